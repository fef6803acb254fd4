/* A plugin in C, with libneap.a inside. Its interface is that of the Rust crate's example `plugin`. */
#include <stdlib.h>
#include <string.h>

const unsigned char *task(size_t count);
const unsigned char *task(size_t count) {
    unsigned char **blocks = malloc(count * sizeof *blocks), *large = malloc(8 << 20), *result = malloc(1000);
    if (!blocks || !large || !result) return NULL;
    memset(large, 1, 8 << 20);
    size_t sum = large[count];
    for (size_t i = 0; i < count; i++) {
        size_t size = 100 + i % 5000;
        blocks[i] = malloc(size);
        if (!blocks[i]) return NULL;
        memset(blocks[i], 1, size);
        sum += blocks[i][0];
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    free(blocks);
    free(large);
    return memset(result, (int)(sum & 0xff), 1000);
}
