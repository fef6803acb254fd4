/* The first process of the virtual machine: runs the lines of /tests (names of variables and values, a program and its
   arguments, all without blanks inside), prints on the console the output of each and how it ended, and turns the
   machine off. The variable THP sets whether the kernel gives huge pages without request. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(char *line) {
    char *words[32], *arguments[32];
    int count = 0, rest = 0;
    for (char *word = strtok(line, " \n"); word && count < 31; word = strtok(NULL, " \n")) words[count++] = word;
    for (int i = 0; i < count; i++)
        if (strncmp(words[i], "THP=", 4) == 0) {
            int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_WRONLY);
            if (file < 0 || write(file, words[i] + 4, strlen(words[i] + 4)) < 0) printf("no huge pages\n");
            close(file);
        }
    /* A file, because the C library queries consoles by calls that filters forbid. */
    int output = open("/tmp/output", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    pid_t child = fork();
    if (child == 0) {
        dup2(output, 1);
        dup2(output, 2);
        setenv("LD_PRELOAD", "/libneap.so", 1);
        for (int i = 0; i < count; i++) {
            if (rest == 0 && strchr(words[i], '=')) putenv(words[i]);
            else arguments[rest++] = words[i];
        }
        arguments[rest] = NULL;
        alarm(600);
        execv(arguments[0], arguments);
        _exit(126);
    }
    int status = -1;
    while (waitpid(child, &status, 0) != child) {}
    char text[4096];
    for (ssize_t length, at = 0; (length = pread(output, text, sizeof text, at)) > 0; at += length)
        write(1, text, length);
    close(output);
    printf("ENDED %d", WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
    for (int i = 0; i < count; i++) printf(" %s", words[i]);
    printf("\n");
}

int main(void) {
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mkdir("/dev", 0755);
    mkdir("/tmp", 0755);
    mount("none", "/proc", "proc", 0, NULL);
    mount("none", "/sys", "sysfs", 0, NULL);
    mount("none", "/dev", "devtmpfs", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int i = 0; i < 3 && console >= 0; i++) dup2(console, i);
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("OS pages of %ld bytes\n", sysconf(_SC_PAGESIZE));
    FILE *list = fopen("/tests", "r");
    char line[1000];
    while (list && fgets(line, sizeof line, list)) run(line);
    printf("ALL ENDED\n");
    reboot(RB_POWER_OFF);
    return 0;
}
