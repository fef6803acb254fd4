//! The table: see `mod.rs`. The promises say what neap does, not what the system does. From the manual pages of
//! man-pages 6.03 and the kernel's documents up to Linux 6.18.

use super::model::Of::{Block, Process, Thread};
use super::model::Torture::{Actor, Changes, Not};
use super::model::{Attribute, Kind};

const PURGE: &str = "tests/purge.rs";
const LIFE: &str = "tests/life.rs";
const TRUST: &str = "tests/trust.rs";
const SIGNALS: &str = "tests/signals.rs";
const CONTROLS: &str = "tests/controls.rs";

/// Nothing in neap depends on the attribute.
const NOTHING: &str = "Nothing changes: neap neither reads nor sets it.";

pub const TABLE: &[Kind] = &[
    Kind {
        title: "Scheduling",
        attributes: &[
            Attribute {
                what: "policy and priority: other, batch, idle, FIFO, round robin, with or without reset at fork",
                calls: "sched_setscheduler, sched_setparam, sched_setattr, pthread_setschedparam",
                of: Thread,
                promise: "The helper has the ordinary policy, whichever thread starts it; free memory goes back also \
                          beside threads that never leave their processors.",
                tests: &[(PURGE, "realtime_starter"), (PURGE, "round_robin_starter"), (PURGE, "idle_starter")],
                torture: Changes(&["policy"]),
            },
            Attribute {
                what: "the policy of deadlines",
                calls: "sched_setattr",
                of: Thread,
                promise: "The kernel lets such a thread start no other, so no helper either: as where threads are \
                          limited. Another thread that frees memory starts it.",
                tests: &[(PURGE, "no_more_threads"), (PURGE, "deadline_starter")],
                torture: Changes(&["deadline"]),
            },
            Attribute {
                what: "nice value",
                calls: "nice, setpriority, sched_setattr",
                of: Thread,
                promise: "The helper has the nice value 0, or that of the first thread, where the system permits: an \
                          ordinary user's keeps a worse one of its starter. A thread of low priority does not slow \
                          down those of others.",
                tests: &[(PURGE, "nice_starter"), (PURGE, "low_process")],
                torture: Changes(&["nice"]),
            },
            Attribute {
                what: "processors",
                calls: "sched_setaffinity, pthread_setaffinity_np, cpusets",
                of: Thread,
                promise: "The helper may use the processors of the first thread.",
                tests: &[(PURGE, "realtime_starter"), (PURGE, "low_process")],
                torture: Changes(&["affinity"]),
            },
            Attribute {
                what: "timer slack",
                calls: "prctl(PR_SET_TIMERSLACK)",
                of: Thread,
                promise: "The helper has the kernel's default: with the slack of its starter, 5 seconds for instance, \
                          it would wake as much later. Under a filter that the program was started with it keeps the \
                          starter's.",
                tests: &[],
                torture: Changes(&["timer_slack"]),
            },
            Attribute {
                what: "priority of input and output",
                calls: "ioprio_set",
                of: Thread,
                promise: "The helper keeps that of the thread that starts it; it reads and writes no disk.",
                tests: &[],
                torture: Changes(&["io_priority"]),
            },
            Attribute {
                what: "cgroup of a thread, core scheduling, utilization clamps",
                calls: "cgroup.threads, prctl(PR_SCHED_CORE), sched_setattr",
                of: Thread,
                promise: "The helper keeps those of the thread that starts it. In a cgroup with little processor time \
                          it is as slow as that thread.",
                tests: &[],
                torture: Not("changes the system's cgroups"),
            },
            Attribute {
                what: "stopped, frozen or traced, at any time",
                calls: "SIGSTOP, SIGCONT, ptrace, freezer",
                of: Process,
                promise: "The process goes on as if nothing had happened. A single thread that is stopped keeps what \
                          its caches hold.",
                tests: &[(PURGE, "traced")],
                torture: Changes(&["stopped"]),
            },
        ],
    },
    Kind {
        title: "Memory of the process",
        attributes: &[
            Attribute {
                what: "all memory locked: present, future, on fault; unlocked again",
                calls: "mlockall, munlockall",
                of: Process,
                promise: "With MCL_CURRENT and MCL_FUTURE each later block is locked; with MCL_FUTURE alone, those in \
                          memory that comes into use later; after munlockall none. Addresses that are only reserved \
                          are not locked.",
                tests: &[
                    (LIFE, "current_and_future"),
                    (LIFE, "future_without_notice"),
                    (LIFE, "future_on_fault"),
                    (LIFE, "beside_forks"),
                ],
                torture: Changes(&["lock_all"]),
            },
            Attribute {
                what: "all memory locked by a user with a limit, also before the user changes",
                calls: "mlockall, setrlimit(RLIMIT_MEMLOCK), setresuid",
                of: Process,
                promise: "Only committed memory counts for the limit; threads and mappings are made as before.",
                tests: &[
                    (LIFE, "as_user"),
                    (LIFE, "current_as_user"),
                    (LIFE, "too_much_as_user"),
                    (LIFE, "rights_given_up"),
                ],
                torture: Changes(&["lock_all_as_user"]),
            },
            Attribute {
                what: "policy of memory on several nodes",
                calls: "set_mempolicy, set_mempolicy_home_node, migrate_pages",
                of: Thread,
                promise: "Blocks lie where the policy of the thread that first touches them says.",
                tests: &[],
                torture: Changes(&["memory_policy"]),
            },
            Attribute {
                what: "transparent huge pages off",
                calls: "prctl(PR_SET_THP_DISABLE)",
                of: Process,
                promise: "A process that was started so asks for none. One that asks for it later keeps the huge pages \
                          that it has, and neap advises more without effect.",
                tests: &[("tests/huge.rs", "without")],
                torture: Changes(&["huge_pages_off"]),
            },
            Attribute {
                what: "no memory that is executable after it was writable",
                calls: "prctl(PR_SET_MDWE)",
                of: Process,
                promise: "Nothing changes: neap maps no code.",
                tests: &[],
                torture: Changes(&["no_new_code"]),
            },
            Attribute {
                what: "personality: addresses that are not random, readable memory that is executable",
                calls: "personality",
                of: Process,
                promise: "Nothing changes. Readable memory that is executable, together with PR_SET_MDWE, lets the \
                          kernel refuse all new memory: malloc returns NULL.",
                tests: &[],
                torture: Changes(&["execution_domain"]),
            },
            Attribute {
                what: "equal OS pages merged",
                calls: "prctl(PR_SET_MEMORY_MERGE)",
                of: Process,
                promise: NOTHING,
                tests: &[],
                torture: Changes(&["merged_memory"]),
            },
            Attribute {
                what: "memory of others: its end of the data segment, its start of the stack",
                calls: "brk, sbrk, prctl(PR_SET_MM)",
                of: Process,
                promise: "Nothing changes: neap does not use the data segment.",
                tests: &[],
                torture: Not("needs CAP_SYS_RESOURCE in the first user namespace"),
            },
            Attribute {
                what: "swapped out, moved between nodes, compacted, poisoned",
                calls: "process_madvise, swapoff, move_pages, MADV_SOFT_OFFLINE",
                of: Process,
                promise: "Bytes stay; calloc clears what was swapped out.",
                tests: &[("crates/coretest/tests/threads.rs", "blocks_survive_the_system")],
                torture: Not("changes the system"),
            },
            Attribute {
                what: "core dumps",
                calls: "prctl(PR_SET_DUMPABLE), /proc/PID/coredump_filter",
                of: Process,
                promise: "Reserved addresses are in no dump. In a process of a user that is not dumpable, /proc/self \
                          belongs to root: calloc clears whole blocks, and memory goes back as before.",
                tests: &[(LIFE, "core_dump_filtered")],
                torture: Changes(&["dumpable"]),
            },
        ],
    },
    Kind {
        title: "OS pages of blocks",
        attributes: &[
            Attribute {
                what: "not copied to children",
                calls: "madvise(MADV_DONTFORK)",
                of: Block,
                promise: "The next owner's block is ordinary: a changed block of more than 32 KiB is mapped anew when \
                          it is freed.",
                tests: &[(TRUST, "freed_blocks_are_as_new")],
                torture: Changes(&["not_copied"]),
            },
            Attribute {
                what: "wiped in children",
                calls: "madvise(MADV_WIPEONFORK)",
                of: Block,
                promise: "As above.",
                tests: &[(TRUST, "freed_blocks_are_as_new")],
                torture: Changes(&["wiped_in_children"]),
            },
            Attribute {
                what: "not in core dumps",
                calls: "madvise(MADV_DONTDUMP)",
                of: Block,
                promise: "As above.",
                tests: &[],
                torture: Changes(&["not_dumped"]),
            },
            Attribute {
                what: "may be merged with equal ones",
                calls: "madvise(MADV_MERGEABLE)",
                of: Block,
                promise: "As above.",
                tests: &[],
                torture: Changes(&["mergeable"]),
            },
            Attribute {
                what: "locked",
                calls: "mlock, mlock2",
                of: Block,
                promise: "As above.",
                tests: &[(TRUST, "freed_blocks_are_as_new")],
                torture: Changes(&["locked_block"]),
            },
            Attribute {
                what: "bound to a node",
                calls: "mbind",
                of: Block,
                promise: "As above.",
                tests: &[],
                torture: Changes(&["memory_policy_of_block"]),
            },
            Attribute {
                what: "faults served by the program",
                calls: "userfaultfd, ioctl(UFFDIO_REGISTER)",
                of: Block,
                promise: "As above: no fault of the next owner reaches the program. neap waits for no server, so one \
                          may allocate.",
                tests: &[(LIFE, "registered"), (LIFE, "registered_with_events")],
                torture: Changes(&["served_block"]),
            },
            Attribute {
                what: "inaccessible, read-only, executable; with a key; guard pages; unmapped, moved, mapped from a file",
                calls: "mprotect, pkey_mprotect, madvise(MADV_GUARD_INSTALL), munmap, mremap, mmap(MAP_FIXED)",
                of: Block,
                promise: "As above.",
                tests: &[(TRUST, "freed_blocks_are_as_new"), (TRUST, "programs_pages_stay")],
                torture: Actor("worker"),
            },
            Attribute {
                what: "sealed",
                calls: "mseal",
                of: Block,
                promise: "Bytes stay when the block is resized; what cannot be unmapped is used again as it is.",
                tests: &[(TRUST, "parts_sealed")],
                torture: Changes(&["sealed_block"]),
            },
            Attribute {
                what: "huge pages, access patterns, cold, paged out",
                calls: "madvise",
                of: Block,
                promise: "Bytes stay. The next owner may get the advice.",
                tests: &[],
                torture: Actor("advice"),
            },
            Attribute {
                what: "a stack of a thread, with a guard",
                calls: "pthread_attr_setstack, mprotect",
                of: Block,
                promise: "The stack works, and the guard does not reach the next owner.",
                tests: &[(TRUST, "programs_pages_stay")],
                torture: Changes(&["stack_in_block"]),
            },
            Attribute {
                what: "a stack of signal handlers",
                calls: "sigaltstack",
                of: Block,
                promise: "Handlers on it may allocate.",
                tests: &[(SIGNALS, "one_thread")],
                torture: Changes(&["alternate_stack"]),
            },
            Attribute {
                what: "registered with a device or a ring",
                calls: "io_uring_register, RDMA",
                of: Block,
                promise: "As long as the block lives its OS pages stay; a block that is freed while it is registered \
                          is the program's error. Caches of registrations: see compatibility.md.",
                tests: &[],
                torture: Not("needs a device, or rings that many systems forbid"),
            },
        ],
    },
    Kind {
        title: "Limits",
        attributes: &[
            Attribute {
                what: "address space",
                calls: "setrlimit, prlimit (RLIMIT_AS)",
                of: Process,
                promise: "What is reserved and not used goes back; beyond the limit calls return NULL with ENOMEM.",
                tests: &[(LIFE, "address_limit_later"), (LIFE, "address_limit_from_outside"), (PURGE, "address_limit")],
                torture: Changes(&["limit_addresses"]),
            },
            Attribute {
                what: "data",
                calls: "setrlimit, prlimit (RLIMIT_DATA)",
                of: Process,
                promise: "What is committed and not used goes back; beyond the limit calls return NULL with ENOMEM; \
                          blocks stay whole.",
                tests: &[
                    (LIFE, "data_limit_lowered"),
                    (LIFE, "data_limit_below"),
                    (LIFE, "data_limit_used_up"),
                    (LIFE, "data_limit_used_up_large"),
                ],
                torture: Changes(&["limit_data"]),
            },
            Attribute {
                what: "locked memory",
                calls: "setrlimit, prlimit (RLIMIT_MEMLOCK)",
                of: Process,
                promise: "Blocks are handed out as long as the kernel gives memory.",
                tests: &[(LIFE, "first_block_as_user")],
                torture: Changes(&["limit_locked"]),
            },
            Attribute {
                what: "open files",
                calls: "setrlimit, prlimit (RLIMIT_NOFILE)",
                of: Process,
                promise: "calloc clears, and memory goes back, also where no file can be opened.",
                tests: &[(PURGE, "no_room_to_look")],
                torture: Changes(&["limit_files"]),
            },
            Attribute {
                what: "size of files",
                calls: "setrlimit, prlimit (RLIMIT_FSIZE)",
                of: Process,
                promise: "No SIGXFSZ comes from neap: samples and counters are refused instead.",
                tests: &[],
                torture: Changes(&["limit_file_size"]),
            },
            Attribute {
                what: "stack",
                calls: "setrlimit, prlimit (RLIMIT_STACK)",
                of: Process,
                promise: "Nothing changes: the helper's stack has its own size.",
                tests: &[(TRUST, "bytes_for_each_call")],
                torture: Changes(&["limit_stack"]),
            },
            Attribute {
                what: "threads",
                calls: "setrlimit, prlimit (RLIMIT_NPROC), pids.max",
                of: Process,
                promise: "Without a helper the threads that free memory give it back; in an idle program a part waits.",
                tests: &[(PURGE, "no_more_threads")],
                torture: Changes(&["limit_threads"]),
            },
            Attribute {
                what: "pending signals",
                calls: "setrlimit, prlimit (RLIMIT_SIGPENDING)",
                of: Process,
                promise: "Nothing changes.",
                tests: &[],
                torture: Changes(&["limit_signals"]),
            },
            Attribute {
                what: "processor time, core files, priorities, queues, locks",
                calls: "setrlimit, prlimit (RLIMIT_CPU, _CORE, _NICE, _RTPRIO, _RTTIME, _MSGQUEUE, _LOCKS, _RSS)",
                of: Process,
                promise: "The helper's time counts as the program's.",
                tests: &[],
                torture: Not("the first ends the process, the others change nothing"),
            },
            Attribute {
                what: "mappings",
                calls: "vm.max_map_count",
                of: Process,
                promise: "At the limit blocks stay whole, and calls return NULL where they need a mapping.",
                tests: &[(LIFE, "mappings_used_up"), (TRUST, "freed_at_the_limit_of_mappings")],
                torture: Actor("mappings"),
            },
            Attribute {
                what: "memory of the container: another limit, another container",
                calls: "memory.max, memory.limit_in_bytes, cgroup.procs",
                of: Process,
                promise: "Near the limit memory goes back at once. neap looks for another limit each second; until \
                          then memory waits as before.",
                tests: &[(PURGE, "relay")],
                torture: Actor("garbage"),
            },
        ],
    },
    Kind {
        title: "Namespaces and shared tables",
        attributes: &[
            Attribute {
                what: "another namespace of users",
                calls: "unshare(CLONE_NEWUSER), setns",
                of: Process,
                promise: "The call succeeds in a process of one thread, whether there is a helper or not; a helper \
                          starts again when memory waits.",
                tests: &[(PURGE, "unshare_user"), (PURGE, "setns_user"), (LIFE, "unshare_user")],
                torture: Changes(&["user_namespace"]),
            },
            Attribute {
                what: "another namespace of mounts",
                calls: "unshare(CLONE_NEWNS), setns",
                of: Process,
                promise: "As above; without /proc calloc clears whole blocks.",
                tests: &[(PURGE, "without_proc")],
                torture: Changes(&["mount_namespace", "join_namespace"]),
            },
            Attribute {
                what: "another namespace of networks, names, System V objects, cgroups",
                calls: "unshare, setns",
                of: Process,
                promise: "As above.",
                tests: &[],
                torture: Changes(&["other_namespaces"]),
            },
            Attribute {
                what: "another namespace of processes for children",
                calls: "unshare(CLONE_NEWPID), setns",
                of: Process,
                promise: "From then on the kernel lets the process start no thread, so no helper either: as where \
                          threads are limited. Children have helpers.",
                tests: &[(PURGE, "no_more_threads")],
                torture: Changes(&["process_namespace"]),
            },
            Attribute {
                what: "other clocks for children: ahead or behind",
                calls: "unshare(CLONE_NEWTIME), setns, /proc/PID/timens_offsets",
                of: Process,
                promise: "Memory goes back in children as soon as elsewhere.",
                tests: &[(PURGE, "clock_behind")],
                torture: Changes(&["time_namespace"]),
            },
            Attribute {
                what: "tables of files and folders that are no longer shared",
                calls: "unshare(CLONE_FILES, CLONE_FS, CLONE_SYSVSEM, CLONE_VM, CLONE_SIGHAND, CLONE_THREAD)",
                of: Thread,
                promise: "The call succeeds as without neap.",
                tests: &[(PURGE, "unshare_by_syscall")],
                torture: Changes(&["own_tables"]),
            },
            Attribute {
                what: "a child with or without its own memory, by any call",
                calls: "fork, vfork, posix_spawn, clone, clone3",
                of: Process,
                promise: "See [signals.md](signals.md#fork) and [giving-back.md](giving-back.md#the-helper-thread).",
                tests: &[(PURGE, "bare_fork"), (PURGE, "vfork_frees"), (TRUST, "vfork_child_frees")],
                torture: Actor("vforks"),
            },
            Attribute {
                what: "a thread that the C library does not know",
                calls: "clone(CLONE_VM), clone(CLONE_THREAD)",
                of: Process,
                promise: "It may allocate if it has thread storage of its own (CLONE_SETTLS), or stops its parent \
                          (CLONE_VFORK).",
                tests: &[(TRUST, "sharing_child_ends")],
                torture: Actor("vforks"),
            },
            Attribute {
                what: "the keyring of the parent's session; another label",
                calls: "keyctl(KEYCTL_SESSION_TO_PARENT), /proc/self/attr/current",
                of: Process,
                promise: "None: the kernel refuses these for processes of several threads, and counts the helper.",
                tests: &[],
                torture: Not("neap does not see these calls"),
            },
        ],
    },
    Kind {
        title: "Rights",
        attributes: &[
            Attribute {
                what: "user and groups of all threads",
                calls: "setuid, seteuid, setreuid, setresuid, setgid, setegid, setregid, setresgid, setgroups, initgroups",
                of: Process,
                promise: "When the call returns, no thread of neap's has the old rights. In a program that has neap in \
                          it (`libneap.a`, the Rust crate) within 100 ms: see \
                          [giving-back.md](giving-back.md#the-helper-thread).",
                tests: &[
                    (PURGE, "family"),
                    (PURGE, "in_empty_root"),
                    (PURGE, "in_namespace"),
                    (PURGE, "in_handlers"),
                    (PURGE, "beside_threads"),
                    (PURGE, "in_python"),
                    (TRUST, "rights_given_up_without_proc"),
                ],
                torture: Changes(&["user"]),
            },
            Attribute {
                what: "user and groups by the bare system call",
                calls: "syscall(SYS_setresuid), syscall(SYS_setgroups)",
                of: Thread,
                promise: "Within 100 ms, if it is the first thread. Other threads are not noticed: the helper keeps the \
                          rights of the thread that started it.",
                tests: &[(TRUST, "rights_given_up_at_start")],
                torture: Changes(&["user_by_call", "user_of_thread"]),
            },
            Attribute {
                what: "capabilities",
                calls: "capset, prctl(PR_CAPBSET_DROP, PR_CAP_AMBIENT)",
                of: Thread,
                promise: "As above.",
                tests: &[(TRUST, "rights_given_up_without_proc")],
                torture: Changes(&["capabilities", "capabilities_of_thread"]),
            },
            Attribute {
                what: "no new privileges; kept capabilities, secure bits, subreaper, death signal, machine checks",
                calls: "prctl(PR_SET_NO_NEW_PRIVS, PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, \
                        PR_SET_PDEATHSIG, PR_MCE_KILL, PR_SET_IO_FLUSHER)",
                of: Process,
                promise: NOTHING,
                tests: &[],
                torture: Changes(&["other_rights"]),
            },
            Attribute {
                what: "a filter of system calls: for a thread, for all, strict",
                calls: "seccomp, prctl(PR_SET_SECCOMP)",
                of: Thread,
                promise: "See [limits.md](limits.md#filters-seccomp): neap makes only calls that every filter allows.",
                tests: &[(PURGE, "kill_last_all_threads"), (PURGE, "strict_mode"), (LIFE, "seccomp_kill")],
                torture: Actor("filters"),
            },
            Attribute {
                what: "system calls that the program receives as signals",
                calls: "prctl(PR_SET_SYSCALL_USER_DISPATCH)",
                of: Thread,
                promise: "None: neap makes its calls outside of the C library, so they are dispatched if only that \
                          is excepted.",
                tests: &[],
                torture: Not("needs a program that emulates system calls"),
            },
            Attribute {
                what: "rules for files and networks",
                calls: "landlock_restrict_self",
                of: Thread,
                promise: "calloc clears and memory goes back, also where /proc and /sys are forbidden.",
                tests: &[],
                torture: Changes(&["landlock"]),
            },
            Attribute {
                what: "the processor's counter",
                calls: "prctl(PR_SET_TSC)",
                of: Thread,
                promise: "From then on neap reads clocks that do not need it.",
                tests: &[(TRUST, "taken_by_the_strict_mode")],
                torture: Changes(&["no_counter"]),
            },
        ],
    },
    Kind {
        title: "Files and folders",
        attributes: &[
            Attribute {
                what: "all files closed, others in their place",
                calls: "close, close_range, dup2",
                of: Process,
                promise: "neap trusts no file that it did not check; the program's files are never closed or used.",
                tests: &[(PURGE, "all_fds_closed"), (PURGE, "all_fds_replaced"), (PURGE, "lowest_fd")],
                torture: Changes(&["close_files"]),
            },
            Attribute {
                what: "standard streams closed, or other files",
                calls: "close, dup2, open",
                of: Process,
                promise: "Blocks stay right. Messages go to whatever has number 2; reports at the exit only to the \
                          standard error of the start.",
                tests: &[("tests/exit_stats.rs", "closed")],
                torture: Changes(&["standard_streams"]),
            },
            Attribute {
                what: "the current folder, also one that is removed",
                calls: "chdir, fchdir",
                of: Process,
                promise: "neap uses no relative path.",
                tests: &[],
                torture: Changes(&["folder"]),
            },
            Attribute {
                what: "an empty root",
                calls: "chroot, pivot_root",
                of: Process,
                promise: "calloc clears, memory goes back, controls work.",
                tests: &[(CONTROLS, "chrooted"), (PURGE, "without_proc")],
                torture: Changes(&["root"]),
            },
            Attribute {
                what: "the mask of new files",
                calls: "umask",
                of: Process,
                promise: "Nothing changes but the rights of files that the program asks neap for.",
                tests: &[],
                torture: Changes(&["file_mask"]),
            },
        ],
    },
    Kind {
        title: "Threads, signals and code",
        attributes: &[
            Attribute {
                what: "a name",
                calls: "prctl(PR_SET_NAME), pthread_setname_np",
                of: Thread,
                promise: "The helper is called `neap-helper`.",
                tests: &[(PURGE, "nice_starter")],
                torture: Changes(&["name"]),
            },
            Attribute {
                what: "a thread that ends: cancelled, detached, the first one, without exit",
                calls: "pthread_exit, pthread_cancel, syscall(SYS_exit)",
                of: Thread,
                promise: "Its blocks and caches go to others; the process ends with its last thread.",
                tests: &[(LIFE, "main_thread_exits"), (LIFE, "cancelled"), (TRUST, "first_thread_exits")],
                torture: Actor("lives"),
            },
            Attribute {
                what: "restartable sequences, lists of robust locks",
                calls: "rseq, set_robust_list, set_tid_address",
                of: Thread,
                promise: "Nothing changes. A thread without a list of robust locks that gets the number of a helper \
                          that has ended may delay unshare by 5 seconds.",
                tests: &[],
                torture: Changes(&["restartable_sequences"]),
            },
            Attribute {
                what: "handlers, masks, timers",
                calls: "sigaction, sigprocmask, timer_create, signalfd",
                of: Process,
                promise: "See [signals.md](signals.md): handlers may allocate; the helper takes no signal.",
                tests: &[(PURGE, "signals"), (LIFE, "blocked_signal_stays_pending")],
                torture: Actor("signals"),
            },
            Attribute {
                what: "memory barriers of its own",
                calls: "membarrier",
                of: Process,
                promise: "Nothing changes: registrations add up.",
                tests: &[],
                torture: Not("nothing can be undone by it"),
            },
            Attribute {
                what: "libraries loaded and unloaded",
                calls: "dlopen, dlclose, dlmopen",
                of: Process,
                promise: "Blocks outlive the library that made them.",
                tests: &[(LIFE, "load_1000_times"), (LIFE, "load_in_threads"), (LIFE, "dlmopen_namespace")],
                torture: Actor("libraries"),
            },
            Attribute {
                what: "a library with neap inside unloaded",
                calls: "dlopen, dlclose",
                of: Process,
                promise: "No code of neap runs in memory that is no longer mapped.",
                tests: &[(LIFE, "threads_end_later"), (LIFE, "helper_goes_on"), (LIFE, "forks_later")],
                torture: Changes(&["unloaded_allocator"]),
            },
            Attribute {
                what: "another program",
                calls: "execve",
                of: Process,
                promise: "Nothing of neap's outlives it: no file, no thread.",
                tests: &[(PURGE, "exec_")],
                torture: Actor("vforks"),
            },
            Attribute {
                what: "the wall clock; a checkpoint that is restored later",
                calls: "clock_settime, adjtimex, CRIU",
                of: Process,
                promise: "neap reads clocks that are not set. Where one is behind its last reading, what waits counts \
                          as due.",
                tests: &[],
                torture: Not("changes the system"),
            },
        ],
    },
];
