// A server with a leak, for `neap profile` (see README.md): its cache keeps the reply to each session, but no session
// comes back. Build: c++ -g -O2 -o cache cache.cc
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

struct Cache {
    std::unordered_map<int, std::string> replies;

    __attribute__((noinline)) void keep(int session, const std::string &reply) { replies.emplace(session, reply); }
};

__attribute__((noinline)) static std::string render(int session) {
    std::string page;
    for (int row = 0; row < 40; row++) page += "row " + std::to_string(row * session) + '\n';
    return page;
}

__attribute__((noinline)) static std::vector<char> load_settings() { return std::vector<char>(12 << 20, 'x'); }

int main(int argc, char **argv) {
    int sessions = argc > 1 ? atoi(argv[1]) : 100000;
    std::vector<char> settings = load_settings();
    Cache cache;
    for (int session = 0; session < sessions; session++) cache.keep(session, render(session));
    printf("%zu replies, %zu bytes of settings\n", cache.replies.size(), settings.size());
    // Ends without destructors, like a server that is stopped.
    fflush(stdout);
    _Exit(0);
}
