/* Changes of attributes: what a change may use. */
#ifndef NEAP_TORTURE_CHANGES_H
#define NEAP_TORTURE_CHANGES_H

#include "torture.h"

/* Where a change is made. */
struct lives_on {
    const char *name;
    /* The actor's slot, for progress. */
    int slot;
    /* /proc/self/task, opened before the change; -1: none. */
    int folder;
    /* Whether the process has other threads than the calling one and neap's helper. */
    int threads;
};

/* An attribute that the program changes, by its name in xtask/src/attributes/table.rs. */
struct change {
    const char *name;
    /* Whether nothing undoes the change, so that a child makes it. */
    int of_child;
    void (*make)(uint64_t *seed, struct lives_on *it);
};

/* Both end with an entry without a name. */
extern const struct change changes_of_threads[], changes_of_children[];

/* In a child: no helper can be started; memory may stay. */
extern int child_without_helper, child_keeps;

int task_folder(void);
/* How many threads have this user in any of their four user numbers; 0 where that cannot be read. */
int threads_with_user(int folder, unsigned user);
/* Fails where neap's helper is not as it always is: ordinary policy, a nice value between 0 and the
   first thread's, the processors of the first thread. */
void check_helper(int folder);
/* Whether the mapping of an address has a flag of /proc/PID/smaps, as " lo"; -1 where that is unknown. */
int has_flag(const void *at, const char *flag);
/* Frees megabytes, so that the helper is needed. */
void leave_garbage(uint64_t *seed);
/* Checks that calloc clears, also what was just freed. */
void check_zeroed(uint64_t *seed);
/* In a child that has freed all: fails where its memory does not go back. */
void check_child_resident(int slot);

#endif
