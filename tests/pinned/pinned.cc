// The same in C++: containers that keep a little of what was allocated.
#include <cstdio>
#include <cstring>
#include <malloc.h>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#define SITE __attribute__((noinline))
static size_t live;

struct Node { char data[72]; };
struct Request {
    std::vector<std::unique_ptr<Node>> nodes;
    std::string text = std::string(500, 'x');
};

// Of each request one node stays in a map.
SITE static void pinner_map(std::map<int, std::unique_ptr<Node>> &all, int i) {
    Node *node = new Node;
    memset(node, 1, sizeof *node);
    live += malloc_usable_size(node);
    all[i].reset(node);
}
SITE static void pinner_new(std::vector<std::unique_ptr<Node>> &all) {
    all.emplace_back(new Node);
    memset(all.back().get(), 1, sizeof(Node));
    live += malloc_usable_size(all.back().get());
}
SITE static void serve(Request &request) {
    for (int i = 0; i < 60; i++) {
        request.nodes.emplace_back(new Node);
        memset(request.nodes.back().get(), 2, sizeof(Node));
    }
}
SITE static void dense_nodes(std::vector<std::unique_ptr<Node>> &all, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(Node); i++) {
        all.emplace_back(new Node);
        memset(all.back().get(), 3, sizeof(Node));
        live += malloc_usable_size(all.back().get());
    }
}

int main(int argc, char **argv) {
    static auto &map = *new std::map<int, std::unique_ptr<Node>>;
    static auto &kept = *new std::vector<std::unique_ptr<Node>>, &dense = *new std::vector<std::unique_ptr<Node>>;
    bool is_map = argc > 1 && !strcmp(argv[1], "map"), is_new = argc > 1 && !strcmp(argv[1], "new");
    if (!is_map && !is_new) return 1;
    const size_t dense_bytes = 12 << 20;
    kept.reserve(is_new ? 10000 : 0);
    dense.reserve(dense_bytes / sizeof(Node));
    dense_nodes(dense, dense_bytes);
    {
        std::vector<Request> requests(10000);
        for (int i = 0; i < 10000; i++) {
            serve(requests[i]);
            if (is_map) pinner_map(map, i);
            else pinner_new(kept);
        }
    }
    malloc_trim(0);
    // The nodes of the map itself, and the two arrays.
    live += map.size() * 48 + malloc_usable_size(dense.data()) + (is_new ? malloc_usable_size(kept.data()) : 0);
    dprintf(1, "live %zu\n", live);
    char byte;
    return read(0, &byte, 1) > 0;
}
