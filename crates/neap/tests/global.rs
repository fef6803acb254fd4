//! A program whose allocator is neap: this test binary itself.

use std::alloc::{GlobalAlloc, Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

#[global_allocator]
static A: neap::Neap = neap::Neap;

/// Set in a process that this test starts to make a mistake: which one.
const MISTAKE: &str = "NEAP_TEST_MISTAKE";

/// The SIGABRT of Linux.
const SIGABRT: i32 = 6;

/// Catches blocks that overlap or lose their contents while collections grow and shrink.
#[test]
fn collections() {
    let mut names: HashMap<u32, String> = HashMap::new();
    let mut order: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for n in 0..20_000u32 {
        names.insert(n, format!("{n:>width$}", width = (n % 300) as usize));
        order.entry(format!("{}", n % 97)).or_default().push(n);
        if n % 3 == 0 {
            names.remove(&(n / 2));
        }
    }
    for (n, name) in &names {
        assert_eq!(name.trim_start().parse(), Ok(*n));
    }
    assert_eq!(order.values().map(Vec::len).sum::<usize>(), 20_000);
    assert!(order.iter().all(|(rest, list)| list.iter().all(|n| format!("{}", n % 97) == *rest)));
}

/// Catches a string or vector that does not survive growth from bytes to many OS pages and back.
#[test]
fn growth() {
    let mut text = String::new();
    let mut words: Vec<u64> = Vec::new();
    for n in 0..300_000u64 {
        text.push(char::from(b'a' + (n % 26) as u8));
        words.push(n);
    }
    words.truncate(1000);
    words.shrink_to_fit();
    assert!(words.iter().copied().eq(0..1000));
    text.truncate(10);
    text.shrink_to_fit();
    assert_eq!(text, "abcdefghij");
}

/// Catches a remote free that loses or doubles a block, and heaps that are not adopted after their threads end.
#[test]
fn threads() {
    let (to_freer, blocks) = mpsc::channel::<(usize, Vec<u8>)>();
    let freer = thread::spawn(move || {
        let mut count = 0;
        for (mark, block) in blocks {
            assert!(block.iter().all(|&b| b == mark as u8), "the block was written by another owner");
            count += 1;
        }
        count
    });
    for round in 0..20 {
        let makers: Vec<_> = (0..4)
            .map(|n| {
                let to_freer = to_freer.clone();
                thread::spawn(move || {
                    for i in 0..500 {
                        let mark = (round * 4 + n + i) % 251;
                        to_freer.send((mark, vec![mark as u8; 1 + i * 7])).expect("the freeing thread lives");
                    }
                })
            })
            .collect();
        makers.into_iter().for_each(|maker| maker.join().expect("no maker panics"));
    }
    drop(to_freer);
    assert_eq!(freer.join().expect("it found all blocks whole"), 20 * 4 * 500);
}

/// Catches a destructor of thread storage that runs after neap forgot the thread and then cannot allocate or free.
#[test]
fn end_of_threads() {
    struct Late(Vec<String>, mpsc::Sender<usize>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.push("allocated at the end".repeat(100));
            let _ = self.1.send(self.0.len());
        }
    }
    thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
    let (sender, lengths) = mpsc::channel();
    for n in 0..50 {
        let sender = sender.clone();
        let thread = thread::spawn(move || {
            LATE.with(|late| *late.borrow_mut() = Some(Late(vec![String::from("x"); n], sender)));
        });
        thread.join().expect("the thread's destructors do not panic");
        assert_eq!(lengths.recv(), Ok(n + 1));
    }
}

/// Catches a fork that leaves a lock of neap's taken in the child, or in the parent, while other threads allocate.
#[test]
fn fork_under_load() {
    let barrier = Arc::new(Barrier::new(3));
    let (stop, busy): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| {
            let (stop, stopped) = mpsc::channel::<()>();
            let barrier = barrier.clone();
            let thread = thread::spawn(move || {
                barrier.wait();
                let mut kept = Vec::new();
                while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    kept.push(vec![1u8; 1 + kept.len() * 97 % 100_000]);
                    kept.truncate(200 - kept.len() / 200 * 150);
                }
            });
            (stop, thread)
        })
        .unzip();
    barrier.wait();
    for n in 0..50 {
        let mut command = Command::new("/bin/echo");
        // With a hook std calls fork, not posix_spawn, which would leave the fork handlers out.
        // SAFETY: the child allocates and frees only, which neap allows after fork.
        unsafe {
            command.pre_exec(|| {
                let blocks: Vec<Vec<u8>> = (0..100).map(|i| vec![7; i * 31]).collect();
                assert!(blocks.iter().flatten().all(|&b| b == 7));
                Ok(())
            });
        }
        let output = command.arg(n.to_string()).output().expect("echo runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), n.to_string());
    }
    drop(stop);
    busy.into_iter().for_each(|thread| thread.join().expect("the busy threads do not panic"));
}

#[repr(align(4096))]
#[derive(Clone, Copy)]
struct Aligned([u8; 100]);

/// Catches a box or vector of an over-aligned type at a wrong address, also after it grew.
#[test]
fn over_aligned_types() {
    let boxes: Vec<Box<Aligned>> = (0..100).map(|n| Box::new(Aligned([n; 100]))).collect();
    for (n, b) in boxes.iter().enumerate() {
        assert!(core::ptr::from_ref::<Aligned>(b).addr().is_multiple_of(4096));
        assert!(b.0.iter().all(|&byte| usize::from(byte) == n));
    }
    let mut list: Vec<Aligned> = Vec::new();
    for n in 0..200 {
        list.push(Aligned([n; 100]));
        assert!(list.as_ptr().addr().is_multiple_of(4096));
    }
    assert!(list.iter().enumerate().all(|(n, a)| usize::from(a.0[99]) == n));
}

/// Catches a block that is misaligned or lost its contents after realloc, for each alignment, between small, large
/// and huge sizes.
#[test]
fn realloc_keeps_alignment() {
    let sizes = [1, 40, 5000, 200, 70_000, 3_000_000, 300_000, 2_000_000, 90_000, 100, 40_000_000, 8, 1 << 30, 24];
    for shift in 0..22 {
        let align = 1 << shift;
        let mut layout = Layout::from_size_align(16, align).expect("a valid layout");
        // SAFETY: blocks are used within their sizes and freed once, with their layouts.
        unsafe {
            let mut p = alloc(layout);
            p.write_bytes(0xA5, 16);
            let mut filled = 16;
            for size in sizes {
                p = realloc(p, layout, size);
                assert!(!p.is_null(), "no memory for {size} bytes");
                assert!(p.addr().is_multiple_of(align), "{p:p} is not aligned to {align}, {size} bytes");
                assert!(neap::usable_size(p) >= size);
                layout = Layout::from_size_align(size, align).expect("a valid layout");
                filled = size.min(filled);
                assert!((0..filled).all(|i| p.add(i).read() == 0xA5), "contents, {size} bytes aligned to {align}");
                filled = size.min(100_000);
                p.write_bytes(0xA5, filled);
            }
            dealloc(p, layout);
        }
    }
}

/// Catches alloc_zeroed returning what an earlier owner of the memory wrote, for each kind of block and alignment.
#[test]
fn zeroed() {
    for size in [1, 16, 100, 256, 257, 1024, 3000, 30_000, 65_536, 200_000, 5_000_000, 40_000_000] {
        for align in [1, 8, 16, 32, 64, 512, 4096, 65_536, 1 << 21] {
            let layout = Layout::from_size_align(size, align).expect("a valid layout");
            for _ in 0..3 {
                // SAFETY: blocks are used within their sizes and freed once, with their layouts.
                unsafe {
                    let p = alloc_zeroed(layout);
                    assert!(!p.is_null() && p.addr().is_multiple_of(align));
                    let bytes = core::slice::from_raw_parts_mut(p, size);
                    assert!(bytes.iter().all(|&b| b == 0), "{size} bytes aligned to {align} are not zero");
                    bytes.fill(0xFF);
                    dealloc(p, layout);
                }
            }
        }
    }
    let table = vec![0u64; 100_000];
    assert!(table.iter().all(|&n| n == 0));
}

/// Catches a request that cannot be met and does not come back as null.
#[test]
fn too_much() {
    let layout = Layout::from_size_align(isize::MAX as usize - 4096, 4096).expect("a valid layout");
    // SAFETY: the layout is not empty.
    assert!(unsafe { A.alloc(layout) }.is_null());
    // SAFETY: as above.
    assert!(unsafe { A.alloc_zeroed(layout) }.is_null());
    let mut list = vec![1u8; 100];
    assert!(list.try_reserve_exact(isize::MAX as usize - 100).is_err());
    assert!(list.iter().all(|&b| b == 1), "the block is as it was");
}

/// Catches a usable size that is too small, or that changes during a block's life.
#[test]
fn usable_size_is_constant() {
    for size in (1..200_000).step_by(997) {
        let block = vec![0u8; size];
        // SAFETY: the vector's buffer is a live block.
        let usable = || unsafe { neap::usable_size(block.as_ptr()) };
        let first = usable();
        assert!(first >= size);
        let others: Vec<Vec<u8>> = (0..10).map(|n| vec![0; size + n]).collect();
        drop(others);
        assert_eq!(usable(), first);
    }
}

/// Makes the mistake that the environment names; does nothing in the usual run.
#[test]
fn mistake() {
    let Ok(which) = std::env::var(MISTAKE) else { return };
    let layout = Layout::from_size_align(48, 8).expect("a valid layout");
    let mut outside = [0u64; 64];
    let foreign = outside.as_mut_ptr().wrapping_add(8).cast::<u8>();
    // SAFETY: none; that is the subject. The process ends in the first of these calls that is wrong.
    unsafe {
        match which.as_str() {
            "double free" => {
                let p = alloc(layout);
                dealloc(p, layout);
                dealloc(core::hint::black_box(p), layout);
            }
            "free" => dealloc(foreign, layout),
            "realloc" => drop(realloc(foreign, layout, 100)),
            "usable size" => drop(neap::usable_size(foreign)),
            other => panic!("no mistake is called {other}"),
        }
    }
}

/// Catches a mistake that does not end the process with the one line that says so, and the stack of the call.
#[test]
fn mistakes_end_the_process() {
    let lines = [
        ("double free", "neap: double free of 0x", " (48-byte block"),
        ("free", "neap: free of 0x", ", which neap did not allocate\n"),
        ("realloc", "neap: realloc of 0x", ", which neap did not allocate\n"),
        ("usable size", "neap: malloc_usable_size of 0x", ", which neap did not allocate\n"),
    ];
    for (which, start, end) in lines {
        let mut child = Command::new(std::env::current_exe().expect("the path of this test"))
            .args(["--exact", "mistake", "--nocapture", "--test-threads=1"])
            .env(MISTAKE, which)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test starts again");
        let mut stderr = String::new();
        child.stderr.take().expect("it is a pipe").read_to_string(&mut stderr).expect("text");
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(SIGABRT), "{which}: {status}, {stderr}");
        assert!(stderr.starts_with(start) && stderr.contains(end), "{which}: {stderr}");
        let behind: Vec<_> = stderr.lines().skip(1).collect();
        let is_stack = |line: &&str| line.trim_start().starts_with('#');
        assert!(behind.first() == Some(&"    this call:") && behind[1..].iter().all(is_stack), "{which}: {stderr}");
        assert!(behind.len() > 2, "{which}: {stderr}");
    }
}
