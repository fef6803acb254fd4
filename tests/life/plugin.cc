// A library in C++ for a program that is not: only the library links the C++ library, or contains it.
#include "check.h"
#include <new>

static volatile size_t TOO_LARGE = static_cast<size_t>(PTRDIFF_MAX) - 4096;
static int calls;

static bool throws(void *(*make)()) {
    try {
        make();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

// Checks what operators new do where memory runs out.
extern "C" void use_operators(void) {
    CHECK(throws([] { return ::operator new(TOO_LARGE); }));
    CHECK(throws([] { return ::operator new[](TOO_LARGE); }));
    CHECK(throws([] { return ::operator new(TOO_LARGE, std::align_val_t(64)); }));
    CHECK(throws([] { return ::operator new[](TOO_LARGE, std::align_val_t(64)); }));
    std::set_new_handler([] {
        if (++calls % 3 == 0) std::set_new_handler(nullptr);
    });
    CHECK(throws([] { return ::operator new(TOO_LARGE); }));
    CHECK_AT(calls == 3, calls);
    std::set_new_handler([] {
        if (++calls % 3 == 0) throw std::bad_alloc();
    });
    CHECK(::operator new(TOO_LARGE, std::nothrow) == nullptr);
    CHECK(::operator new[](TOO_LARGE, std::align_val_t(64), std::nothrow) == nullptr);
    CHECK_AT(calls == 9, calls);
    std::set_new_handler(nullptr);
    ::operator delete(::operator new(100));
}
