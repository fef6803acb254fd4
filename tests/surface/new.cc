// All 20 forms of operator new and delete, and the new-handler.
#include "check.h"
#include <malloc.h>
#include <sys/resource.h>
#include <map>
#include <new>
#include <string>
#include <vector>

static const std::nothrow_t &NT = std::nothrow;
static std::align_val_t al(size_t n) { return static_cast<std::align_val_t>(n); }
// More than any allocator can give, in a form that the compiler cannot see through.
static volatile size_t TOO_LARGE = static_cast<size_t>(PTRDIFF_MAX) - 4096;

// Keeps the compiler from dropping a block that is not used.
static void *keep(void *p) {
    asm volatile("" : "+r"(p) : : "memory");
    return p;
}

static void all_forms() {
    for (size_t size = 0; size < (4u << 20); size = size * 3 / 2 + 1) {
        for (size_t a = 32; a <= 65536; a *= 16) {
            void *p[8] = {::operator new(size),           ::operator new[](size),
                          ::operator new(size, NT),       ::operator new[](size, NT),
                          ::operator new(size, al(a)),    ::operator new[](size, al(a)),
                          ::operator new(size, al(a), NT), ::operator new[](size, al(a), NT)};
            for (int i = 0; i < 8; i++) {
                CHECK_AT(p[i] != nullptr, i);
                CHECK_AT(malloc_usable_size(p[i]) >= size, i);
                if (i >= 4) CHECK_AT(reinterpret_cast<uintptr_t>(p[i]) % a == 0, a);
                fill(p[i], size, i);
            }
            for (int i = 0; i < 8; i++) CHECK_FILL(p[i], size, i);
            ::operator delete(p[0]);
            ::operator delete[](p[1]);
            ::operator delete(p[2], NT);
            ::operator delete[](p[3], NT);
            ::operator delete(p[4], al(a));
            ::operator delete[](p[5], al(a));
            ::operator delete(p[6], al(a), NT);
            ::operator delete[](p[7], al(a), NT);
        }
    }
}

static void sized_deletes() {
    for (size_t size = 0; size < (4u << 20); size = size * 3 / 2 + 1) {
        ::operator delete(keep(::operator new(size)), size);
        ::operator delete[](::operator new[](size), size);
        ::operator delete(::operator new(size, al(128)), size, al(128));
        ::operator delete[](::operator new[](size, al(128)), size, al(128));
    }
    long before = status_kib("VmRSS:");
    for (int i = 0; i < 3000; i++) {
        char *p = static_cast<char *>(::operator new(100000));
        memset(p, 1, 100000);
        ::operator delete(p, size_t{100000});
    }
    CHECK(status_kib("VmRSS:") - before < 32768);
}

static void delete_null() {
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
    ::operator delete(nullptr, size_t{8});
    ::operator delete[](nullptr, size_t{8});
    ::operator delete(nullptr, NT);
    ::operator delete[](nullptr, NT);
    ::operator delete(nullptr, al(64));
    ::operator delete[](nullptr, al(64));
    ::operator delete(nullptr, size_t{64}, al(64));
    ::operator delete[](nullptr, size_t{64}, al(64));
    ::operator delete(nullptr, al(64), NT);
    ::operator delete[](nullptr, al(64), NT);
}

template <class F> static bool throws_bad_alloc(F f) {
    try {
        f();
    } catch (const std::bad_alloc &e) {
        return e.what() != nullptr;
    }
    return false;
}

static void bad_alloc() {
    std::set_new_handler(nullptr);
    const size_t sizes[] = {TOO_LARGE, SIZE_MAX, SIZE_MAX / 2 + 1};
    for (size_t size : sizes) {
        CHECK_AT(throws_bad_alloc([=] { keep(::operator new(size)); }), size);
        CHECK_AT(throws_bad_alloc([=] { keep(::operator new[](size)); }), size);
        CHECK_AT(::operator new(size, NT) == nullptr, size);
        CHECK_AT(::operator new[](size, NT) == nullptr, size);
        // Before GCC 13 the standard library's aligned forms let this size wrap around to 0.
        if (size == SIZE_MAX && !strict()) continue;
        CHECK_AT(throws_bad_alloc([=] { keep(::operator new(size, al(64))); }), size);
        CHECK_AT(throws_bad_alloc([=] { keep(::operator new[](size, al(64))); }), size);
        CHECK_AT(::operator new(size, al(64), NT) == nullptr, size);
        CHECK_AT(::operator new[](size, al(64), NT) == nullptr, size);
    }
}

static int calls;

// As in the C++ library: an alignment must be a power of two, and no handler is called for any other.
static void odd_alignment() {
    std::set_new_handler([] { calls++; });
    for (size_t a : {size_t{0}, size_t{3}, size_t{24}, size_t{4097}, SIZE_MAX}) {
        for (size_t size : {size_t{0}, size_t{100}, size_t{100000}}) {
            CHECK_AT(throws_bad_alloc([=] { keep(::operator new(size, al(a))); }), a);
            CHECK_AT(throws_bad_alloc([=] { keep(::operator new[](size, al(a))); }), a);
            CHECK_AT(::operator new(size, al(a), NT) == nullptr, a);
            CHECK_AT(::operator new[](size, al(a), NT) == nullptr, a);
        }
    }
    CHECK_AT(calls == 0, calls);
    ::operator delete(keep(::operator new(100, al(1))), al(1));
}

// The handler is called until it throws.
static void handler_throws() {
    std::set_new_handler([] {
        if (++calls == 5) throw std::bad_alloc();
    });
    CHECK(throws_bad_alloc([] { keep(::operator new(TOO_LARGE)); }));
    CHECK_AT(calls == 5, calls);
    calls = 0;
    CHECK(throws_bad_alloc([] { keep(::operator new[](TOO_LARGE, al(4096))); }));
    CHECK_AT(calls == 5, calls);
    calls = 0;
    CHECK(::operator new(TOO_LARGE, NT) == nullptr);
    CHECK_AT(calls == 5, calls);
    calls = 0;
    CHECK(::operator new[](TOO_LARGE, al(64), NT) == nullptr);
    CHECK_AT(calls == 5, calls);
}

// The handler removes itself; then new throws.
static void handler_resets() {
    std::set_new_handler([] {
        if (++calls == 3) std::set_new_handler(nullptr);
    });
    CHECK(throws_bad_alloc([] { keep(::operator new(TOO_LARGE)); }));
    CHECK_AT(calls == 3, calls);
    CHECK(std::get_new_handler() == nullptr);
}

// The handler throws another exception, which must pass through.
struct odd : std::bad_alloc {};
static void handler_own_exception() {
    std::set_new_handler([] { throw odd(); });
    bool seen = false;
    try {
        keep(::operator new(TOO_LARGE));
    } catch (const odd &) {
        seen = true;
    }
    CHECK(seen);
}

// The handler frees a reserve; then new succeeds.
static char *reserve;
static void handler_frees() {
    reserve = static_cast<char *>(malloc(512u << 20));
    CHECK(reserve);
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = (static_cast<size_t>(status_kib("VmSize:")) << 10) + (64u << 20);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    while (keep(malloc(8u << 20))) { // the heap may own more address space than it uses
    }
    std::set_new_handler([] {
        ++calls;
        free(reserve);
        reserve = nullptr;
        std::set_new_handler(nullptr);
    });
    char *p = static_cast<char *>(::operator new(300u << 20));
    CHECK(p);
    p[0] = p[(300u << 20) - 1] = 1;
    CHECK_AT(calls == 1, calls);
    ::operator delete(p);
}

// Mixed with malloc by the standard library's own code.
static void containers() {
    std::map<int, std::vector<std::string>> map;
    for (int i = 0; i < 100000; i++) map[i % 977].push_back(std::string(i % 61, static_cast<char>('a' + i % 26)));
    size_t total = 0;
    for (auto &entry : map)
        for (auto &s : entry.second) total += s.size();
    size_t want = 0;
    for (int i = 0; i < 100000; i++) want += i % 61;
    CHECK_AT(total == want, total);
}

static const test_case CASES[] = {
    CASE(all_forms),      CASE(sized_deletes), CASE(delete_null),           CASE(bad_alloc), CASE(odd_alignment),     CASE(handler_throws),
    CASE(handler_resets), CASE(handler_frees), CASE(handler_own_exception), CASE(containers),
};
TEST_MAIN(CASES)
