/* Strings: read words, build a list, sort it, join and split lines, drop everything.
 *
 * std::string of 4 to 200 characters, most of them beyond the 15 that fit inside the object, so
 * each is a block of its own; concatenation makes temporaries.
 *
 * bench: threads=1,2
 */
#include <algorithm>
#include <string>
#include <vector>

#include "common.h"

static std::string make_word(rng_t *rng) {
  size_t length = rng_range(rng, 4, (rng_next(rng) & 15) ? 40 : 200);
  std::string word;
  for (size_t i = 0; i < length; i++) word.push_back((char)('a' + rng_below(rng, 26)));
  return word;
}

static uint64_t hash(const std::string &text) {
  uint64_t value = 1469598103934665603u;
  for (char c : text) value = (value ^ (uint8_t)c) * 1099511628211u;
  return value;
}

static std::vector<std::string> split(const std::string &line) {
  std::vector<std::string> words;
  size_t start = 0, comma;
  while ((comma = line.find(',', start)) != std::string::npos) {
    words.push_back(line.substr(start, comma - start));
    start = comma + 1;
  }
  words.push_back(line.substr(start));
  return words;
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t count = scaled(400000), rounds = 3;
  uint64_t sum = 0;
  for (size_t round = 0; round < rounds; round++) {
    std::vector<std::string> words;
    for (size_t i = 0; i < count; i++) words.push_back(make_word(&rng));
    std::sort(words.begin(), words.end());
    std::vector<std::string> lines;
    for (size_t i = 0; i + 8 <= count; i += 8) {
      std::string line = words[i];
      for (size_t j = 1; j < 8; j++) line = line + "," + words[i + j];
      lines.push_back(line);
    }
    for (const std::string &line : lines) {
      for (const std::string &word : split(line)) sum += hash(word);
    }
    std::reverse(lines.begin(), lines.end());
    sum ^= hash(lines.front()) + lines.size();
  }
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
