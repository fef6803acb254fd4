//! Kernels that lack what this one has, as filters of system calls show them, and a process without /proc and /sys.

mod common;

use common::{Machine, apart, apart_with_mounts};
use neap_ranges::error::Error;
use neap_ranges::kernel::{page_size, pmd_size};
use neap_ranges::prefault::Prefault;
use neap_ranges::range::{Pages, Request};
use neap_ranges::resident::Source;

const MIB: usize = 1 << 20;
/// The calls of Linux 5.14, 6.7 and 6.11: number, place of the argument that is compared, its value.
const POPULATE_READ: Call = (libc::SYS_madvise, 2, libc::MADV_POPULATE_READ as u32);
const POPULATE_WRITE: Call = (libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE as u32);
const SCAN: Call = (libc::SYS_ioctl, 1, 0xC060_6610);
const QUERY: Call = (libc::SYS_ioctl, 1, 0xC068_6611);
const WAKE_OP: Call = (libc::SYS_futex, 1, (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as u32);

type Call = (libc::c_long, u32, u32);

/// From now on these calls of this thread, and of threads that it starts, fail with the error beside them.
fn refuse(calls: &[(Call, i32)]) {
    let calls: Vec<_> = calls.iter().map(|&(call, error)| (call, libc::SECCOMP_RET_ERRNO | error as u32)).collect();
    filter(&calls);
}

/// From now on these calls of this thread, and of threads that it starts, end as the filter's answer says.
fn filter(calls: &[(Call, u32)]) {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let equal = |k, jf| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, jf, k);
    let end = |k| op(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut program = Vec::new();
    for ((number, argument, value), answer) in calls {
        // struct seccomp_data: the arguments come behind 16 bytes.
        program.extend([load(0), equal(*number as u32, 3), load(16 + 8 * argument), equal(*value, 1)]);
        program.push(end(*answer));
    }
    program.push(end(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is a program of classic BPF.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// Catches a fallback that touches too little, changes contents, or dies where the kernel would report an error.
#[test]
fn touches_where_populate_is_missing() {
    if !apart("touches_where_populate_is_missing") {
        return;
    }
    refuse(&[(POPULATE_READ, libc::EINVAL), (POPULATE_WRITE, libc::EINVAL)]);
    let mut range = Request::new(Pages::Small).allocate(9 * MIB).expect("OS pages");
    range.prefault(Prefault::read().threads(2)).expect("zeros");
    let got = range.resident().expect("an answer");
    assert_eq!((got.resident, got.zero), (0, 9 * MIB as u64), "{got:?}");
    range[5 * MIB] = 7;
    range.prefault(Prefault::write().threads(2)).expect("memory");
    assert_eq!(range.resident().expect("an answer").resident, 9 * MIB as u64);
    assert_eq!(range.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 7);
    for (access, how) in [(libc::PROT_NONE, Prefault::read()), (libc::PROT_READ, Prefault::write())] {
        // SAFETY: an OS page of this test's that is not used.
        assert_eq!(unsafe { libc::mprotect(range.as_ptr().wrapping_add(8 * MIB).cast(), page_size(), access) }, 0);
        let failed = range.prefault(how).expect_err("it may not be accessed");
        assert_eq!(failed.error, Error::Inaccessible);
        assert!((4 * MIB..=8 * MIB).contains(&failed.done), "{failed:?}");
    }
    // Pages of a pool, also those of which the range has only a part.
    if let Some(machine) = Machine::lock()
        && let Some(_pool) = machine.pool(pmd_size(), 2)
    {
        let range = Request::new(Pages::Hugetlb(pmd_size())).strict().allocate(4 * MIB).expect("two pages");
        assert_eq!(range.resident().expect("an answer").hugetlb, 4 * MIB as u64);
        drop(range);
        let range = Request::new(Pages::Hugetlb(pmd_size())).strict().lazy().allocate(4 * MIB).expect("two pages");
        Prefault::write().run(range.as_ptr().wrapping_add(MIB), 2 * MIB).expect("memory");
        assert_eq!(range.resident().expect("an answer").hugetlb, 4 * MIB as u64);
    }
    // Huge pages are checked in the same way.
    if let Ok(huge) = Request::new(Pages::Transparent(pmd_size())).strict().allocate(4 * MIB) {
        assert_eq!(huge.resident().expect("an answer").huge, 4 * MIB as u64);
    }
    // Writers meanwhile lose nothing.
    let word = Request::new(Pages::Small).allocate_shared(page_size()).expect("an OS page");
    // SAFETY: the word is used as an atomic one only.
    let count = unsafe { &*word.as_ptr().cast::<std::sync::atomic::AtomicU32>() };
    std::thread::scope(|scope| {
        let add = || (0..1_000_000).for_each(|_| _ = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let writer = scope.spawn(add);
        while !writer.is_finished() {
            word.prefault(Prefault::write()).expect("memory");
        }
    });
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1_000_000);
}

/// Catches an error of the kernel that is called by another name.
#[test]
fn errors_have_their_names() {
    if !apart("errors_have_their_names") {
        return;
    }
    let range = Request::new(Pages::Small).allocate(MIB).expect("OS pages");
    let run = || range.prefault(Prefault::write()).map_err(|incomplete| incomplete.error);
    assert_eq!(run(), Ok(()));
    // A filter that comes later has precedence only with a lower result, so the errors fall.
    for (error, expected) in
        [(libc::EHWPOISON, Error::Poisoned), (libc::EFAULT, Error::Inaccessible), (libc::ENOMEM, Error::NoMemory)]
    {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                refuse(&[(POPULATE_WRITE, error)]);
                assert_eq!(run(), Err(expected));
            });
        });
    }
    refuse(&[(POPULATE_WRITE, libc::EPERM)]);
    assert_eq!(run(), Ok(()), "it is touched");
    refuse(&[(WAKE_OP, libc::ENOSYS)]);
    assert_eq!(run(), Err(Error::Unsupported));
}

/// Catches an older kernel's answer that differs: without PAGEMAP_SCAN, without PROCMAP_QUERY.
#[test]
fn older_kernels_say_the_same() {
    if !apart("older_kernels_say_the_same") {
        return;
    }
    let mut small = Request::new(Pages::Small).allocate(8 * MIB).expect("OS pages");
    small[..MIB].fill(1);
    let huge = Request::new(Pages::Transparent(pmd_size())).strict().allocate(4 * MIB);
    let ask = || {
        let huge = huge.as_ref().map(|huge| huge.resident().expect("an answer"));
        (small.resident().expect("an answer"), huge)
    };
    let (first, first_huge) = ask();
    assert_eq!(first.source, Source::Scan as u32);
    refuse(&[(QUERY, libc::ENOTTY)]);
    assert_eq!(ask(), (first, first_huge));
    // A kernel without it, and a filter.
    for error in [libc::ENOTTY, libc::EPERM] {
        refuse(&[(SCAN, error)]);
        let (second, second_huge) = ask();
        assert_eq!(second.source, Source::Entries as u32);
        assert_eq!((second.resident, second.zero, second.by_order), (first.resident, first.zero, first.by_order));
        if let (Ok(one), Ok(other)) = (&first_huge, second_huge) {
            assert_eq!((one.huge, one.resident, one.by_order), (other.huge, other.resident, other.by_order));
        }
    }
}

/// Catches a call for which a filter that the process was started under ends it.
#[test]
fn a_filter_may_end_it_for_mincore() {
    if !apart("a_filter_may_end_it_for_mincore") {
        return;
    }
    let mut small = Request::new(Pages::Small).allocate(MIB).expect("OS pages");
    small.fill(1);
    let limit = |most| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
        // SAFETY: the call reads the structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    limit(0);
    let got = small.resident().expect("an answer by mincore");
    assert_eq!((got.source, got.resident), (Source::Mincore as u32, MIB as u64));
    // Any call with this length.
    filter(&[((libc::SYS_mincore, 1, MIB as u32), libc::SECCOMP_RET_KILL_PROCESS)]);
    assert_eq!(small.resident(), Err(Error::NoMemory), "no room for another file");
    limit(1024);
    assert_eq!(small.resident().expect("an answer").resident, MIB as u64);
}

/// Catches a range that needs /proc or /sys, and an answer that is made up.
#[test]
fn without_proc_and_sys() {
    if !apart("without_proc_and_sys") {
        return;
    }
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 2) else { return };
    let empty = std::env::temp_dir().join(format!("neap-ranges-root-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    // Of this thread alone, so that the settings can be put back.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let path = std::ffi::CString::new(empty.to_str().unwrap()).unwrap();
            // SAFETY: the thread gets a root of its own.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_FS), 0);
                assert_eq!(libc::chroot(path.as_ptr()), 0);
            }
            let mut small = Request::new(Pages::Small).allocate(8 * MIB).expect("OS pages");
            small[..MIB].fill(1);
            let got = small.resident().expect("an answer");
            assert_eq!((got.source, got.resident), (Source::Mincore as u32, MIB as u64));
            small.prefault(Prefault::write().threads(2)).expect("memory");
            assert_eq!(small.resident().expect("an answer").resident, 8 * MIB as u64);
            let huge = Request::new(Pages::Transparent(pmd_size()));
            let range = huge.allocate(4 * MIB).expect("some pages");
            assert_eq!(range.why_smaller(), Some(Error::NotKnown));
            // Whether they are huge is found out by trying.
            assert_eq!(huge.strict().allocate(4 * MIB).expect("huge pages").why_smaller(), None);
            let hugetlb = Request::new(Pages::Hugetlb(pmd_size()));
            assert_eq!(hugetlb.allocate(4 * MIB).expect("two pages").why_smaller(), None);
            assert_eq!(hugetlb.strict().allocate(6 * MIB).err(), Some(Error::PoolShort));
            assert_eq!(hugetlb.allocate(6 * MIB).expect("others").why_smaller(), Some(Error::PoolShort));
        });
    });
    std::fs::remove_dir(empty).unwrap();
}

/// Catches a setting of the process that is ignored.
#[test]
fn huge_pages_off_for_the_process() {
    if !apart("huge_pages_off_for_the_process") {
        return;
    }
    let huge = Request::new(Pages::Transparent(pmd_size()));
    if huge.strict().allocate(1).is_err() {
        return println!("SKIPPED: no transparent huge pages");
    }
    const EXCEPT_ADVISED: usize = 1 << 1;
    // SAFETY: a setting of this process, which is the test's alone.
    unsafe {
        if libc::prctl(libc::PR_SET_THP_DISABLE, 1, EXCEPT_ADVISED, 0, 0) == 0 {
            assert_eq!(huge.strict().allocate(1).expect("huge pages").why_smaller(), None);
            assert_eq!(libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
        }
        assert_eq!(libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    }
    assert_eq!(huge.strict().allocate(1).err(), Some(Error::HugeOff));
    assert_eq!(huge.allocate(1).expect("OS pages").why_smaller(), Some(Error::HugeOff));
}

/// Catches memory that stays for good in a process that has reached its limit on mappings: the kernel joins
/// neighbouring ranges, and removing one from the middle takes one mapping more.
#[test]
fn memory_goes_without_mappings() {
    if !apart("memory_goes_without_mappings") {
        return;
    }
    const COUNT: usize = 8;
    const BYTES: usize = 4 * MIB;
    let mut all: Vec<_> = (0..COUNT).map(|_| Request::new(Pages::Small).allocate(BYTES).expect("OS pages")).collect();
    all.iter_mut().for_each(|range| range.fill(1));
    all.sort_by_key(|range| range.as_ptr().addr());
    let places: Vec<usize> = all.iter().map(|range| range.as_ptr().addr()).collect();
    let inner: Vec<usize> =
        (1..COUNT - 1).filter(|&i| places[i] - places[i - 1] == BYTES && places[i + 1] - places[i] == BYTES).collect();
    assert!(!inner.is_empty(), "no ranges side by side: {places:x?}");
    let most = 140_000;
    let access = libc::PROT_NONE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping of this test's, which nothing uses.
    unsafe {
        let many = libc::mmap(core::ptr::null_mut(), most * page_size(), access, flags, -1, 0);
        let part = |i: usize| libc::mprotect(many.wrapping_byte_add(i * page_size()), page_size(), libc::PROT_READ);
        if (0..most).step_by(2).all(|i| part(i) == 0) {
            return println!("SKIPPED: this machine allows more mappings");
        }
    }
    let at = inner[0];
    drop(all.remove(at));
    let resident = || {
        let mut count = 0;
        let known = neap_ranges::kernel::resident(core::ptr::with_exposed_provenance(places[at]), BYTES, |is| {
            count += usize::from(is);
        });
        known.map(|()| count)
    };
    assert_eq!(resident().unwrap_or(0), 0);
    assert!(all.iter().all(|range| range.iter().all(|&byte| byte == 1)));
}

/// Catches a prefault that ends where a thread cannot be started.
#[test]
fn without_other_threads() {
    /// `struct clone_args` of the C library has as many bytes.
    const CLONE3: Call = (libc::SYS_clone3, 1, 88);
    if !apart("without_other_threads") {
        return;
    }
    refuse(&[(CLONE3, libc::EAGAIN)]);
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "threads are not refused");
    let range = Request::new(Pages::Small).allocate(20 * MIB).expect("OS pages");
    range.prefault(Prefault::write().threads(4)).expect("memory");
    assert_eq!(range.resident().expect("an answer").resident, 20 * MIB as u64);
}

/// A cgroup with a limit on pages of 2 MiB, which this process enters; the hierarchy ends with the test.
struct Limited(std::path::PathBuf);

impl Limited {
    fn enter(name: &str, bytes: usize) -> Option<Limited> {
        let base = std::env::temp_dir().join(format!("neap-ranges-cgroup-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        if Self::has_hierarchy() || !Self::mount(&base) {
            println!("SKIPPED: no hierarchy of the hugetlb controller for this test");
            std::fs::remove_dir(base).unwrap();
            return None;
        }
        let limited = Limited(base);
        std::fs::create_dir(limited.group()).unwrap();
        std::fs::write(limited.group().join(format!("hugetlb.2MB.{name}")), bytes.to_string()).unwrap();
        std::fs::write(limited.group().join("cgroup.procs"), std::process::id().to_string()).unwrap();
        Some(limited)
    }

    fn group(&self) -> std::path::PathBuf {
        self.0.join("limited")
    }

    /// Whether the controller has a hierarchy of the first version.
    fn has_hierarchy() -> bool {
        let all = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
        all.lines().any(|line| line.starts_with("hugetlb\t") && !line.starts_with("hugetlb\t0\t"))
    }

    fn mount(at: &std::path::Path) -> bool {
        let target = std::ffi::CString::new(at.to_str().unwrap()).unwrap();
        let (kind, data) = (c"cgroup", c"hugetlb");
        // SAFETY: C strings that live through the call.
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast()) == 0 }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        std::fs::write(self.0.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        std::fs::remove_dir(self.group()).unwrap();
        let target = std::ffi::CString::new(self.0.to_str().unwrap()).unwrap();
        // The hierarchy ends some time after its last mount, if the kernel has forgotten the group by then.
        for attempt in 0..20 {
            assert!(attempt == 0 || Self::mount(&self.0));
            // SAFETY: a C string.
            assert_eq!(unsafe { libc::umount2(target.as_ptr(), 0) }, 0);
            let is_gone = |_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                !Self::has_hierarchy()
            };
            if (0..20).any(is_gone) {
                break;
            }
        }
        std::fs::remove_dir(&self.0).unwrap();
    }
}

/// Catches SIGBUS where the pool has the pages, and the cgroup's limit forbids them when they are touched.
#[test]
fn limit_of_the_cgroup() {
    if !common::is_root() || !apart_with_mounts("limit_of_the_cgroup") {
        return;
    }
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 4) else { return };
    let Some(limited) = Limited::enter("limit_in_bytes", 2 * pmd_size()) else { return };
    let hugetlb = Request::new(Pages::Hugetlb(pmd_size()));
    let check = || {
        drop(hugetlb.strict().allocate(4 * MIB).expect("two pages"));
        assert_eq!(hugetlb.strict().allocate(6 * MIB).err(), Some(Error::Limit));
        assert_eq!(hugetlb.segment(6 * MIB).err(), Some(Error::Limit));
        assert_eq!(hugetlb.allocate(6 * MIB).expect("other pages").why_smaller(), Some(Error::Limit));
        let lazy = hugetlb.strict().lazy().allocate(6 * MIB).expect("three pages are reserved");
        let incomplete = lazy.prefault(Prefault::write()).expect_err("two pages");
        assert_eq!(incomplete.error, Error::Inaccessible);
    };
    check();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse(&[(POPULATE_WRITE, libc::EPERM)]);
            check();
        });
    });
    drop(limited);
    // A limit on what is reserved.
    let Some(_limited) = Limited::enter("rsvd.limit_in_bytes", 2 * pmd_size()) else { return };
    drop(hugetlb.strict().allocate(4 * MIB).expect("two pages"));
    assert_eq!(hugetlb.strict().lazy().allocate(6 * MIB).err(), Some(Error::Limit));
    assert_eq!(hugetlb.strict().allocate(10 * MIB).err(), Some(Error::PoolShort));
}
