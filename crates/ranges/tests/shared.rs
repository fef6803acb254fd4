//! Memory of a pool that processes share: files of hugetlbfs by name, and SysV segments. Mounts are those of a
//! namespace of its own.

mod common;

use common::{Machine, apart_with_mounts, pool_number};
use neap_ranges::error::Error;
use neap_ranges::kernel::pmd_size;
use neap_ranges::range::{Pages, Range, Request, Shared};
use neap_ranges::{mounts, named};
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

const MIB: usize = 1 << 20;

fn hugetlb() -> Request {
    Request::new(Pages::Hugetlb(pmd_size()))
}

/// Catches a value that another process wrote and this one does not see.
fn byte(range: &Range<Shared>, at: usize) -> u8 {
    // SAFETY: inside the range; other processes do not write now.
    unsafe { range.as_ptr().wrapping_add(at).read_volatile() }
}

fn set(range: &Range<Shared>, at: usize, value: u8) {
    // SAFETY: as in `byte`.
    unsafe { range.as_ptr().wrapping_add(at).write_volatile(value) };
}

/// Runs `f` in a child of this process, which ends without any clean-up; whether it returned true. `f` must not
/// allocate.
fn in_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses nothing that another thread may have locked.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(!f());
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// A folder, with a mount of hugetlbfs there; the namespace ends with the process.
fn mount(name: &str, options: &str, flags: libc::c_ulong) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("neap-ranges-mount-{}", std::process::id())).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let text = |text: &str| CString::new(text).unwrap();
    let (kind, target, data) = (text("hugetlbfs"), text(folder.to_str().unwrap()), text(options));
    // SAFETY: C strings that live through the call.
    let done = unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    assert_eq!(done, 0, "{folder:?} {options}: {}", std::io::Error::last_os_error());
    folder
}

/// Removes the mounts, and the folders they were at.
fn clean() {
    let base = std::env::temp_dir().join(format!("neap-ranges-mount-{}", std::process::id()));
    for entry in std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path()) {
        let path = CString::new(entry.to_str().unwrap()).unwrap();
        // More than one may lie there.
        // SAFETY: a C string.
        while unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } == 0 {}
    }
    std::fs::remove_dir_all(base).unwrap();
}

fn files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Removes all mounts of hugetlbfs that the machine has, in this namespace.
fn no_mounts() {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    for line in table.lines().filter(|line| line.split(' ').nth(2) == Some("hugetlbfs")) {
        let path = CString::new(line.split(' ').nth(1).unwrap()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0);
    }
}

/// This thread goes on as another user; others keep their rights.
fn become_unprivileged() {
    const UNPRIVILEGED: libc::c_long = 65534;
    // SAFETY: changes of this thread alone, as the system calls are made directly.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, 0), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED), 0);
    }
}

/// Catches a mount that is overlooked, hidden, read-only or forbidden, and one of another size.
#[test]
fn mounts_are_found() {
    if !common::is_root() || !apart_with_mounts("mounts_are_found") {
        return;
    }
    let Some(_machine) = Machine::lock() else { return };
    no_mounts();
    let path_of = |size| mounts::path_of(size).map(|path| path.as_c().to_str().unwrap().to_owned());
    assert_eq!(path_of(pmd_size()), Err(Error::NoMount));
    assert_eq!(hugetlb().open("t", MIB).err(), Some(Error::NoMount));
    let large = Path::new("/sys/kernel/mm/hugepages/hugepages-1048576kB").exists();
    let gigantic = large.then(|| mount("1G", "pagesize=1G", 0));
    assert_eq!(path_of(pmd_size()), Err(Error::NoMount));
    let _read_only = mount("ro", "pagesize=2M", libc::MS_RDONLY);
    assert_eq!(path_of(pmd_size()), Err(Error::NotAllowed));
    assert_eq!(hugetlb().open("t", MIB).err(), Some(Error::NotAllowed));
    // Another file system lies on top.
    let hidden = mount("hidden", "pagesize=2M", 0);
    let (kind, target) = (c"tmpfs", CString::new(hidden.to_str().unwrap()).unwrap());
    // SAFETY: C strings that live through the call.
    let done = unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    assert_eq!(done, 0);
    assert_eq!(path_of(pmd_size()), Err(Error::NotAllowed));
    let good = mount("with a space", "pagesize=2M,mode=700", 0);
    let _later = mount("later", "pagesize=2M", 0);
    assert_eq!(path_of(pmd_size()).as_deref(), Ok(good.to_str().unwrap()));
    assert_eq!(path_of(1 << 30).ok(), gigantic.map(|path| path.to_str().unwrap().to_owned()));
    let forbidden = std::thread::spawn(move || {
        become_unprivileged();
        mounts::path_of(pmd_size()).map(|path| path.as_c().to_owned())
    });
    // `later` has mode 755 and belongs to root, as all do.
    assert_eq!(forbidden.join().unwrap(), Err(Error::NotAllowed));
    clean();
}

/// Catches processes that do not share, a file that stays after the last one, and one that a crash leaves for good.
#[test]
fn a_file_lives_as_long_as_its_processes() {
    if !common::is_root() || !apart_with_mounts("a_file_lives_as_long_as_its_processes") {
        return;
    }
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 4) else { return };
    no_mounts();
    let folder = mount("2M", "pagesize=2M", 0);
    let free = || pool_number(pmd_size(), "free_hugepages");
    assert_eq!(hugetlb().open("t", 0).err(), Some(Error::NotFound));
    let first = hugetlb().open("t", 3 * MIB).expect("two pages");
    assert!(first.is_new() && first.bytes() == 4 * MIB && files(&folder) == ["neap-t"] && free() == 2);
    assert_eq!(first.path().map(CStr::to_bytes), Some(folder.join("neap-t").to_str().unwrap().as_bytes()));
    assert_eq!(first.resident().expect("an answer").hugetlb, 4 * MIB as u64);
    set(&first, 3 * MIB, 1);
    // Another process, and another opening in this one.
    assert!(in_child(|| {
        let Ok(other) = hugetlb().open("t", 0) else { return false };
        let same = !other.is_new() && other.bytes() == 4 * MIB && byte(&other, 3 * MIB) == 1;
        set(&other, 0, 2);
        same
    }));
    let second = hugetlb().open("t", 4 * MIB).expect("the same");
    assert!(!second.is_new() && byte(&second, 0) == 2);
    assert_eq!(hugetlb().open("t", 6 * MIB).err(), Some(Error::Mismatch));
    assert_eq!(named::sweep(), 0);
    drop(first);
    assert_eq!((files(&folder), byte(&second, 0)), (vec!["neap-t".to_owned()], 2));
    drop(second);
    assert!(files(&folder).is_empty() && free() == 4);
    // A crash leaves the file, which the next one does not take for one in use.
    let crash = |name: &str| {
        assert!(in_child(|| match hugetlb().open(name, 4 * MIB) {
            Ok(range) => {
                set(&range, 5, 5);
                std::mem::forget(range);
                true
            }
            Err(_) => false,
        }));
        assert_eq!((files(&folder), free()), (vec![format!("neap-{name}")], 2));
    };
    crash("t");
    assert_eq!(hugetlb().open("t", 0).err(), Some(Error::NotFound));
    crash("t");
    let anew = hugetlb().open("t", 8 * MIB).expect("four pages");
    assert!(anew.is_new() && byte(&anew, 5) == 0 && free() == 0);
    drop(anew);
    crash("u");
    std::fs::write(folder.join("other"), "").unwrap_or_else(|error| panic!("a file of others: {error}"));
    assert_eq!(named::sweep(), 1);
    assert_eq!((files(&folder), free()), (vec!["other".to_owned()], 4));
    // A pool that is short leaves nothing.
    assert_eq!(hugetlb().open("t", 10 * MIB).err(), Some(Error::PoolShort));
    assert_eq!((files(&folder), free()), (vec!["other".to_owned()], 4));
    for name in ["", "a/b", "a\0b", &"x".repeat(200)] {
        assert_eq!(hugetlb().open(name, MIB).err(), Some(Error::BadValue), "{name:?}");
    }
    assert_eq!(Request::new(Pages::Small).open("t", MIB).err(), Some(Error::BadValue));
    // A file of another user is not used.
    let planted = hugetlb().open("t", MIB).expect("a page");
    let path = CString::new(planted.path().unwrap().to_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::chown(path.as_ptr(), 1, 1) }, 0);
    assert_eq!(hugetlb().open("t", MIB).err(), Some(Error::NotAllowed));
    drop(planted);
    // Nor is it waited for, when that user has locked it.
    let (locked, path) = (folder.join("neap-v"), CString::new(folder.join("neap-v").to_str().unwrap()).unwrap());
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&locked).unwrap();
    // SAFETY: a C string; the lock is from the beginning to the end of a file of this test's.
    unsafe {
        assert_eq!(libc::chown(path.as_ptr(), 1, 1), 0);
        let lock = libc::flock { l_type: libc::F_WRLCK as i16, ..std::mem::zeroed() };
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock), 0);
    }
    let (send, receive) = std::sync::mpsc::channel();
    let opener = std::thread::spawn(move || send.send(hugetlb().open("v", MIB).err()));
    let answer = receive.recv_timeout(std::time::Duration::from_secs(5));
    drop(file);
    assert_eq!(answer, Ok(Some(Error::NotAllowed)));
    opener.join().unwrap().unwrap();
    clean();
}

/// Catches a file that stays as its last two owners close it at the same moment, each while the other still has it.
#[test]
fn the_last_two_close_at_once() {
    if !common::is_root() || !apart_with_mounts("the_last_two_close_at_once") {
        return;
    }
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 1) else { return };
    no_mounts();
    let folder = mount("2M", "pagesize=2M", 0);
    let open = || hugetlb().lazy().open("t", MIB).expect("a page");
    let both = Barrier::new(2);
    for round in 0..3000 {
        let (first, second) = (open(), open());
        std::thread::scope(|scope| {
            for range in [first, second] {
                let both = &both;
                scope.spawn(move || {
                    both.wait();
                    drop(range);
                });
            }
        });
        assert!(files(&folder).is_empty(), "round {round}");
    }
    clean();
}

/// Catches a file that is removed while a process has it, and two processes that have different files of one name.
#[test]
fn processes_open_and_close_at_once() {
    if !common::is_root() || !apart_with_mounts("processes_open_and_close_at_once") {
        return;
    }
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 4) else { return };
    no_mounts();
    let folder = mount("2M", "pagesize=2M", 0);
    let mut children = Vec::new();
    for _ in 0..3 {
        // SAFETY: the child uses nothing that another thread may have locked.
        let id = unsafe { libc::fork() };
        if id == 0 {
            // The pages are not touched, which would take longer than all else.
            let lazy = hugetlb().lazy();
            let has_it = |_: u32| {
                let Ok(_range) = lazy.open("busy", MIB) else { return false };
                lazy.open("busy", 0).is_ok_and(|again| !again.is_new())
            };
            let good = (0..3000).all(has_it);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        children.push(id);
    }
    for id in children {
        let mut status = -1;
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
        assert_eq!(status, 0);
    }
    assert!(files(&folder).is_empty());
    assert_eq!(pool_number(pmd_size(), "free_hugepages"), 4);
    clean();
}

/// Segments of this user that the system has.
fn segments() -> usize {
    std::fs::read_to_string("/proc/sysvipc/shm").unwrap().lines().count()
}

/// Catches a segment that stays, is not in huge pages, or cannot be shared.
#[test]
fn segments_go_with_their_processes() {
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 3) else { return };
    let before = segments();
    let range = hugetlb().segment(3 * MIB).expect("two pages");
    let id = range.segment().expect("a number");
    assert_eq!(range.resident().expect("an answer").hugetlb, 4 * MIB as u64);
    assert_eq!(segments(), before + 1);
    assert!(in_child(|| {
        let Ok(other) = Range::attach(id) else { return false };
        set(&other, 7, 7);
        // It ends without any clean-up.
        let good = other.bytes() == 4 * MIB && other.pages() == Pages::Hugetlb(pmd_size());
        std::mem::forget(other);
        good
    }));
    assert_eq!(byte(&range, 7), 7);
    assert_eq!(hugetlb().segment(4 * MIB).err(), Some(Error::PoolShort));
    drop(range);
    assert_eq!(segments(), before);
    assert_eq!(Range::attach(id).err(), Some(Error::NotFound));
    assert_eq!(pool_number(pmd_size(), "free_hugepages"), 3);
    // A crash.
    assert!(in_child(|| hugetlb().segment(MIB).map(std::mem::forget).is_ok()));
    assert_eq!((segments(), pool_number(pmd_size(), "free_hugepages")), (before, 3));
    let forbidden = std::thread::spawn(|| {
        become_unprivileged();
        hugetlb().segment(MIB).err()
    });
    assert_eq!(forbidden.join().unwrap(), Some(Error::NotAllowed));
    assert_eq!(Request::new(Pages::Hugetlb(16 * MIB)).segment(MIB).err(), Some(Error::NoSuchPages));
}
