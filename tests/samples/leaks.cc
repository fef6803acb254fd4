// Containers that only grow, in `leaky`; all other memory is freed.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#define SITE __attribute__((noinline))

SITE static void leaky_new(int) {
    static auto &all = *new std::vector<int *>;
    all.push_back(new int[60]);
}
SITE static void leaky_map(int i) {
    static auto &all = *new std::map<int, std::string>;
    all[i] = std::string(100, 'x');
}
SITE static void leaky_shared(int) {
    struct Node {
        std::shared_ptr<Node> other;
        char data[200];
    };
    // A circle that is never freed.
    auto a = std::make_shared<Node>(), b = std::make_shared<Node>();
    a->other = b;
    b->other = a;
}
SITE static void churn(int i) {
    std::vector<std::string> all;
    for (int k = 0; k < 20; k++) all.push_back(std::string(40 + (i + k) % 300, 'y'));
}

int main(int, char **argv) {
    void (*leak)(int) = nullptr;
    if (!strcmp(argv[1], "new")) leak = leaky_new;
    if (!strcmp(argv[1], "map")) leak = leaky_map;
    if (!strcmp(argv[1], "shared")) leak = leaky_shared;
    for (int i = 0; leak && i < 60000; i++) {
        churn(i);
        leak(i);
    }
    puts(leak ? "ok" : "no such case");
    return leak ? 0 : 1;
}
