// Allocates with new, and through the library's containers, in functions of known names.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#define SITE __attribute__((noinline))

static void tell(const void *p, size_t n, const char *who) {
    std::printf("block 0 %p %zu %s\n", p, n, who);
    std::fflush(stdout);
}

struct Wide {
    char bytes[9000];
};
struct alignas(4096) Aligned {
    char bytes[8192];
};

SITE void new_array() {
    char *p = new char[200000];
    std::memset(p, 1, 200000);
    tell(p, 200000, "new_array");
}
SITE void new_object() {
    Wide *p = new Wide();
    tell(p, sizeof *p, "new_object");
}
SITE void new_aligned() {
    Aligned *p = new Aligned();
    tell(p, sizeof *p, "new_aligned");
}
SITE void new_vector() {
    auto *v = new std::vector<std::string>();
    for (int i = 0; i < 20000; i++) v->push_back("x");
    tell(v->data(), v->size() * sizeof(std::string), "new_vector");
}
SITE void new_string() {
    auto *s = new std::string(300000, 'x');
    tell(s->data(), s->size(), "new_string");
}

int main() {
    new_array();
    new_object();
    new_aligned();
    new_vector();
    new_string();
}
