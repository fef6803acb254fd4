/* Arrays of vectors: adjacency lists and sparse rows that grow one element at a time.
 *
 * A vector of vectors of 32-bit numbers is filled by random edges, turned around into a second one,
 * sorted row by row, and rows are dropped and grown again.
 *
 * bench: threads=1,2
 */
#include <algorithm>
#include <vector>

#include "common.h"

typedef std::vector<std::vector<uint32_t>> rows_t;

static rows_t transpose(const rows_t &rows) {
  rows_t turned(rows.size());
  for (uint32_t i = 0; i < rows.size(); i++) {
    for (uint32_t target : rows[i]) turned[target].push_back(i);
  }
  return turned;
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t count = scaled(250000), edges = 10 * count;
  uint64_t sum = 0;
  rows_t rows(count);
  for (size_t round = 0; round < 3; round++) {
    for (size_t i = 0; i < edges; i++) {
      /* A few rows get most edges, as in real graphs. */
      size_t row = rng_below(&rng, 1 + rng_below(&rng, count));
      rows[row].push_back((uint32_t)rng_below(&rng, count));
    }
    rows_t turned = transpose(rows);
    for (auto &row : turned) {
      std::sort(row.begin(), row.end());
      if (!row.empty()) sum += row.front() + row.back() * row.size();
    }
    for (size_t i = round & 1; i < count; i += 2) std::vector<uint32_t>().swap(rows[i]);
  }
  for (const auto &row : rows) sum += row.size();
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
