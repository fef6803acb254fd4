/* Tiny big numbers, as in programs that factor or do exact fractions: allocation is the work.
 *
 * Numbers are blocks of a length and 1 to 12 limbs of 32 bits; every operation allocates its
 * result, and operands are freed as soon as they are used up. A few hundred blocks are live at any
 * time, besides a table of kept results.
 *
 * bench: threads=1,2
 */
#include "common.h"

typedef struct {
  uint32_t length;
  uint32_t limbs[];
} number_t;

enum { LIMIT = 12 };

static number_t *make(uint32_t length) {
  number_t *number = need(malloc(sizeof *number + length * sizeof(uint32_t)));
  number->length = length;
  return number;
}

static number_t *trim(number_t *number) {
  while (number->length > 1 && number->limbs[number->length - 1] == 0) number->length--;
  return number;
}

static number_t *from_word(uint64_t word) {
  number_t *number = make(2);
  number->limbs[0] = (uint32_t)word;
  number->limbs[1] = (uint32_t)(word >> 32);
  return trim(number);
}

static number_t *add(const number_t *a, const number_t *b) {
  if (a->length < b->length) return add(b, a);
  uint32_t length = a->length < LIMIT ? a->length + 1 : LIMIT;
  number_t *sum = make(length);
  uint64_t carry = 0;
  for (uint32_t i = 0; i < length; i++) {
    carry += (i < a->length ? a->limbs[i] : 0);
    carry += (i < b->length ? b->limbs[i] : 0);
    sum->limbs[i] = (uint32_t)carry;
    carry >>= 32;
  }
  return trim(sum);
}

static number_t *multiply(const number_t *a, const number_t *b) {
  uint32_t length = a->length + b->length < LIMIT ? a->length + b->length : LIMIT;
  number_t *product = make(length);
  memset(product->limbs, 0, length * sizeof(uint32_t));
  for (uint32_t i = 0; i < a->length && i < length; i++) {
    uint64_t carry = 0;
    for (uint32_t j = 0; i + j < length; j++) {
      carry += product->limbs[i + j];
      if (j < b->length) carry += (uint64_t)a->limbs[i] * b->limbs[j];
      product->limbs[i + j] = (uint32_t)carry;
      carry >>= 32;
    }
  }
  return trim(product);
}

static number_t *remainder_by(const number_t *a, uint32_t divisor) {
  uint64_t rest = 0;
  for (uint32_t i = a->length; i-- > 0;) rest = ((rest << 32) | a->limbs[i]) % divisor;
  return from_word(rest);
}

static uint64_t work(unsigned thread) {
  rng_t rng = rng_for(thread);
  size_t steps = scaled(8000000), kept = scaled(500000);
  uint64_t sum = 0;
  number_t **table = need(calloc(kept, sizeof *table));
  number_t *x = from_word(rng_next(&rng));
  for (size_t i = 0; i < steps; i++) {
    number_t *a = from_word(rng_next(&rng) >> (i & 31));
    number_t *square = multiply(x, a);
    number_t *next = add(square, a);
    number_t *rest = remainder_by(next, 65537);
    sum += rest->limbs[0];
    free(square);
    free(a);
    free(x);
    x = next;
    size_t k = rng_below(&rng, kept);
    if ((i & 3) == 0) {
      free(table[k]);
      table[k] = rest;
    } else {
      free(rest);
    }
    if (x->length >= 8) {
      free(x);
      x = from_word(rng_next(&rng));
    }
  }
  for (size_t i = 0; i < kept; i++) {
    if (table[i]) sum += table[i]->limbs[0];
    free(table[i]);
  }
  free(x);
  free(table);
  return sum;
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  print_checksum(run_threads(work));
  return 0;
}
