// C++ thread_local and static objects whose destructors allocate and free.
#include "check.h"
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

static std::atomic<int> destroyed{0};

struct Holder {
    std::vector<std::string> lines;
    std::unique_ptr<char[]> block;
    explicit Holder(int n) : block(new char[n * 100]) {
        for (int i = 0; i < n; i++) lines.push_back(std::string(i * 20, 'x'));
    }
    ~Holder() {
        std::vector<std::string> copy(lines);
        copy.emplace_back(5000, 'y');
        CHECK(copy.size() == lines.size() + 1);
        CHECK(copy[3] == lines[3]);
        destroyed++;
    }
};

thread_local Holder first(20);
thread_local std::unique_ptr<Holder> second;
static Holder global(30);

static void use() {
    first.lines.push_back("more");
    second = std::make_unique<Holder>(10);
}

static void in_threads() {
    for (int round = 0; round < 200; round++) {
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; i++) threads.emplace_back(use);
        for (auto &t : threads) t.join();
    }
    CHECK_AT(destroyed == 3200, destroyed.load());
}

// Those of the main thread and of the program run after main returned.
static void of_main() {
    use();
    global.lines.push_back("more");
    std::atexit([] { dprintf(1, "%d objects destroyed\n", destroyed.load()); });
}

static const test_case CASES[] = {CASE(in_threads), CASE(of_main)};
TEST_MAIN(CASES)
