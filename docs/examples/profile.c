/* Writes a profile of its own heap: which code holds memory.
 *
 *   cc -g -o profile profile.c -lneap
 *   ./profile heap.pb
 *   go tool pprof -top profile heap.pb
 */
#include <fcntl.h>
#include <neap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *table[100000];

/* Keeps what it allocates: some 30 MB. */
__attribute__((noinline)) static void fill_table(void) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        table[i] = malloc(300);
        if (!table[i]) exit(1);
        memset(table[i], 1, 300);
    }
}

/* Frees what it allocates. */
__attribute__((noinline)) static void work(void) {
    for (int i = 0; i < 100000; i++) {
        char *text = malloc(300);
        if (!text) exit(1);
        memset(text, 1, 300);
        free(text);
    }
}

int main(int argc, char **argv) {
    int result = neap_profile_start(0);
    if (result != NEAP_OK) {
        fprintf(stderr, "no samples: %s\n", neap_result_text(result));
        return 1;
    }
    fill_table();
    work();
    int file = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644) : STDOUT_FILENO;
    if (file < 0) {
        perror(argv[1]);
        return 1;
    }
    result = neap_profile_write(file, NEAP_PROFILE_HEAP);
    if (result != NEAP_OK) {
        fprintf(stderr, "no profile: %s\n", neap_result_text(result));
        return 1;
    }
    return 0;
}
