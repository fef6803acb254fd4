/* For each argument `name=value`: sets the option, unless the value is empty, and prints the result, the value in force
 * and where it came from. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int (*get)(const char *, char *, size_t) = (int (*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "neap_option_get");
    int (*origin)(const char *, char *, size_t) = (int (*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "neap_option_origin");
    int (*set)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_DEFAULT, "neap_option_set");
    if (!get || !origin || !set) return 1;
    /* Programs that change their title overwrite their environment. */
    for (char **entry = environ; *entry; entry++) memset(*entry, 'x', strlen(*entry));
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '='), now[4096], by[32];
        if (!value) return 1;
        *value++ = 0;
        int result = *value ? set(argv[i], value) : 0;
        if (get(argv[i], now, sizeof now) || origin(argv[i], by, sizeof by)) return 1;
        printf("%s: %d, %s by %s\n", argv[i], result, now, by);
    }
    return 0;
}
