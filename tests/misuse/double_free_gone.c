/* Frees a block again whose chunk went back to the system: here, in another thread, in the child of a fork, or through
 * another call, as argv[1] selects. The blocks fill whole chunks, all of which are free by then. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "misuse.h"

enum { BLOCKS = 9000 };

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "here";
    size_t size = argc > 2 ? strtoul(argv[2], NULL, 0) : 48;
    static char *p[BLOCKS];
    int count = size < 4096 ? BLOCKS : strcmp(how, "many") == 0 ? 500 : 20;
    for (int i = 0; i < count; i++) memset(p[i] = malloc(size), 1, size);
    for (int i = 0; i < count; i++) free(p[i]);
    malloc_trim(0);
    /* A block in the middle, and not at the start of its chunk where blocks are small. */
    char *again = p[count / 2] + (strcmp(how, "inside") == 0 ? 8 : 0);
    dprintf(1, "%p\n", again);
    if (strcmp(how, "here") == 0 || strcmp(how, "many") == 0 || strcmp(how, "inside") == 0) free(again);
    if (strcmp(how, "thread") == 0) in_thread(free_it, again);
    if (strcmp(how, "realloc") == 0) return realloc(again, 2 * size) != NULL;
    if (strcmp(how, "usable") == 0) return malloc_usable_size(again) != 0;
    if (strcmp(how, "fork") == 0) {
        pid_t child = fork();
        if (child == 0) {
            free(again);
            _exit(0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) abort();
    }
    return 0;
}
