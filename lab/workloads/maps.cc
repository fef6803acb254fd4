/* Node containers: std::map and std::unordered_map under steady insertion and removal.
 *
 * An ordered index (64-bit key, 16-byte value) and a hash table (key to string) live side by side;
 * each step inserts one entry and removes another, and the hash table is rebuilt now and then.
 *
 * bench: threads=1,2
 */
#include <map>
#include <string>
#include <unordered_map>

#include "common.h"

struct value_t {
  uint64_t first;
  uint64_t second;
};

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t live = scaled(120000), steps = scaled(900000);
  uint64_t sum = 0, oldest = 0, newest = 0;
  std::map<uint64_t, value_t> index;
  std::unordered_map<uint64_t, std::string> table;
  const auto scatter = [](uint64_t i) { return i * 0x9e3779b97f4a7c15u; };
  for (size_t i = 0; i < steps; i++) {
    uint64_t key = scatter(newest++);
    index[key] = value_t{key, i};
    table[key] = std::string(rng_range(&rng, 1, 60), (char)('a' + i % 26));
    if (index.size() <= live) continue;
    auto entry = index.lower_bound(rng_next(&rng));
    if (entry == index.end()) entry = index.begin();
    sum += entry->second.second;
    table.erase(entry->first);
    index.erase(entry);
    if (i % (live * 2) == 0) {
      std::unordered_map<uint64_t, std::string> rebuilt(table.begin(), table.end());
      table.swap(rebuilt);
    }
    oldest++;
  }
  for (const auto &entry : index) sum += entry.first ^ table[entry.first].size();
  return sum + oldest;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
