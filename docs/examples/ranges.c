/* A table in huge pages, ready before it is used.
 *
 * cc -O2 ranges.c -lneap && ./a.out        (or, with neap preloaded, without -lneap if the linker permits)
 */
#include <neap.h>
#include <stdio.h>
#include <stdlib.h>

static int show(size_t done, size_t total, void *context) {
    unsigned *last = context, percent = (unsigned)(done * 100 / total);
    if (percent / 25 > *last / 25) printf("%u %%\n", percent);
    *last = percent;
    return 0; /* another number would end the prefault */
}

int main(void) {
    const size_t bytes = (size_t)64 << 20, page = (size_t)2 << 20;
    unsigned percent = 0;

    /* Pages of 2 MiB from the pool; if it has too few, transparent ones, otherwise OS pages. */
    struct neap_range table = {.size = sizeof table};
    int result = neap_range_alloc(&table, bytes, page, NEAP_HUGETLB);
    if (result != NEAP_OK) {
        fprintf(stderr, "no table: %s\n", neap_result_text(result));
        return 1;
    }
    if (table.why_smaller != NEAP_OK) printf("pages of %zu bytes: %s\n", table.page_size, neap_result_text(table.why_smaller));

    /* Makes all of it resident now, with two threads. Pages that are resident already cost next to nothing. */
    struct neap_prefault_options how = {.size = sizeof how, .threads = 2, .progress = show, .context = &percent};
    result = neap_prefault(table.start, table.bytes, &how);
    if (result != NEAP_OK) {
        fprintf(stderr, "%zu bytes are ready, then: %s\n", how.done, neap_result_text(result));
        return 1;
    }

    /* What it really got. */
    struct neap_resident got = {.size = sizeof got};
    if (neap_resident_get(table.start, table.bytes, &got) == NEAP_OK)
        printf("%llu MiB resident, %llu of them in huge pages\n", (unsigned long long)got.resident >> 20,
               (unsigned long long)got.huge >> 20);

    /* Any memory of the program can be prefaulted and advised, here for reading a lookup table of malloc's. */
    char *block = calloc(1, bytes);
    struct neap_prefault_options reading = {.size = sizeof reading, .access = NEAP_READ};
    if (!block || neap_prefault(block, bytes, &reading) != NEAP_OK) return 1;
    free(block);

    neap_range_free(&table);
    puts("ok");
    return 0;
}
