//! The operations of threads, and the checks when they meet.

use crate::blocks::Block;
use crate::memory::{check_zero, protect};
use crate::scenario::{Kind, Op};
use crate::sched::{FOREVER, quietly, sched};
use crate::world::world;
use crate::{child_failed, finding, helper, pattern, slot, trace};
use neap_core::Os;
use neap_core::chunk::Kind as RecordKind;
use neap_core::valid::{Census, Depth};

/// Key on which threads wait for a meeting.
const MEET: usize = 4;
const SLEEP: usize = 5;
/// Limit on the forked children of a run, which are real processes.
const MOST_FORKS: u32 = 3;

/// Adds a new block to the model; `p` may be null. `fresh`: it is zeroed, and is not written.
fn received(p: *mut u8, size: usize, align: usize, fresh: bool) {
    sched().note_progress();
    let w = world();
    if p.is_null() {
        let excused = w.config.is_limited() || w.config.missing != 0 || size > 1 << 30;
        if !excused {
            finding(&format!("no memory for {size} bytes, and no reason"));
        }
        return;
    }
    if !p.addr().is_multiple_of(align.max(16)) {
        finding(&format!("{p:p} is not aligned to {align}"));
    }
    // SAFETY: the block is live.
    let usable = unsafe { slot::usable_size(p) };
    let Some(usable) = usable.filter(|&usable| usable >= size) else {
        finding(&format!("{usable:?} usable bytes for a request of {size}"));
    };
    let w = world();
    let id = w.blocks.new_id();
    let (id, written) = if fresh { (0, size) } else { (id, usable) };
    if !fresh {
        // SAFETY: the block has as many bytes.
        unsafe { pattern::write(p, usable, id) };
    }
    w.blocks.add(Block { p, usable, id, written, owner: sched().current });
}

fn malloc(size: usize) {
    if !world().blocks.is_full() {
        let p = slot::malloc(size);
        received(p, size, 16, false);
    }
}

fn calloc(size: usize) {
    if !world().blocks.is_full() {
        let p = slot::calloc(size);
        // SAFETY: null, or a new block of at least this size.
        unsafe { check_zero(p, size) };
        let fresh = world().random().one_in(3);
        received(p, size, 16, fresh);
    }
}

fn aligned(size: usize, align: usize, zero: bool) {
    if !world().blocks.is_full() {
        let p = slot::malloc_aligned(size, align, zero);
        if zero {
            // SAFETY: null, or a new block of at least this size.
            unsafe { check_zero(p, size) };
        }
        received(p, size, align, false);
    }
}

/// The program makes an OS page of a large block inaccessible, and is about to free the block so.
fn change(block: &Block, at: u64) {
    let w = world();
    let kind = w.a.kind_at(block.p);
    if matches!(kind, Some(RecordKind::LARGE | RecordKind::REENTRANT)) {
        let page = w.config.page as usize;
        let at = block.p.wrapping_add(at as usize % (block.usable / page) * page);
        w.a.note_changed(at);
        protect(at, page, libc::PROT_NONE);
    }
}

fn free(block: Block) {
    block.check();
    release(&block);
}

fn release(block: &Block) {
    // SAFETY: the block was live, and is this thread's now.
    if unsafe { slot::free(block.p) }.is_err() {
        finding("a live block is foreign");
    }
    sched().note_progress();
}

fn realloc(block: Block, size: usize) {
    block.check();
    // SAFETY: the block is this thread's.
    let p = unsafe { slot::realloc(block.p, block.usable, size) };
    if p.is_null() {
        let w = world();
        if !w.config.is_limited() && w.config.missing == 0 {
            finding(&format!("realloc: no memory for {size} bytes, and no reason"));
        }
        block.check();
        return w.blocks.add(block);
    }
    let kept = block.usable.min(size);
    // SAFETY: the block has as many bytes.
    if let Some(offset) = unsafe { pattern::first_wrong(p, kept, block.written, block.id) } {
        finding(&format!("realloc from {} to {size} bytes lost contents at offset {offset:#x}", block.usable));
    }
    received(p, size, 16, false);
}

fn look(block: Block) {
    // SAFETY: the block is this thread's meanwhile.
    let usable = unsafe { slot::usable_size(block.p) };
    if usable != Some(block.usable) {
        finding(&format!("usable size was {}, is {usable:?}", block.usable));
    }
    block.check();
    world().blocks.add(block);
}

/// A signal handler: some calls, reentrant if it interrupted another one.
pub fn handle() {
    if world().is_child() {
        return;
    }
    let calls = 1 + world().random().below(3);
    for _ in 0..calls {
        let r = world().random();
        let (what, size, pick) = (r.below(16), r.scale(100_000) as usize, r.next());
        trace!("handler: {what} {size}, reentrant: {}", slot::is_reentrant());
        match what {
            0..4 => malloc(size),
            4 | 5 => calloc(size),
            6 => aligned(size, 1 << (pick % 14), pick & 64 != 0),
            7..12 => {
                if let Some(block) = world().take(pick, false) {
                    free(block);
                }
            }
            12 | 13 => {
                if let Some(block) = world().take(pick, false) {
                    realloc(block, size);
                }
            }
            14 if world().may_fork && pick.is_multiple_of(8) => fork(),
            _ => {
                if let Some(block) = world().take(pick, false) {
                    look(block);
                }
            }
        }
    }
}

/// The whole life of a thread.
pub fn run(ops: Vec<Op>) {
    for op in ops {
        carry_out(op);
        if world().is_child() {
            end_of_child();
        }
        sched().note_progress();
        let pace = world().config.pace as usize;
        if pace > 0 {
            let time = world().random().below(pace + 1) as u64;
            sched().pass(time);
        }
    }
    trace!("ends");
    if world().alive > 1 {
        slot::give_up();
    }
    sched().stop_handlers_of_thread();
    if world().is_child() {
        end_of_child();
    }
    world().alive -= 1;
    match world().alive {
        0 => last(),
        alive if world().arrived == alive => check_all(0),
        _ => {}
    }
}

fn carry_out(op: Op) {
    let size = op.a as usize;
    trace!("{op:?}");
    match op.kind {
        Kind::Malloc => malloc(size),
        Kind::Calloc => calloc(size),
        Kind::Aligned => aligned(size, 1 << (op.b % 64).min(22), op.b >= 64),
        // A varied operation may have any number.
        Kind::Fill => (0..op.b % 4096).for_each(|_| malloc(size)),
        Kind::Realloc | Kind::Free | Kind::Check => {
            // Half of the blocks are those of other threads.
            let Some(block) = world().take(op.b, op.b & 1 == 0) else { return };
            match op.kind {
                Kind::Realloc => realloc(block, size),
                Kind::Free => {
                    block.check();
                    if op.a == 1 {
                        change(&block, op.b);
                    }
                    release(&block);
                }
                _ => look(block),
            }
        }
        Kind::Drain => {
            let (count, step) = (op.a % 4096, op.a / 4096 + 1);
            for i in 0..count {
                let Some(block) = world().take(op.b + i * step, i % 8 != 7) else { return };
                free(block);
            }
        }
        Kind::Pass => {
            for i in 0..op.a % 4096 {
                let me = sched().current;
                let Some(block) = world().blocks.take_if(op.b + i, |owner| owner != me) else { return };
                free(block);
            }
        }
        Kind::Trim => {
            slot::in_call(|heap| world().a.trim_with(heap, size, || true));
        }
        Kind::Purge => {
            slot::in_call(|heap| world().a.purge_with(heap));
        }
        Kind::Rest => slot::rest(),
        Kind::Sleep => sched().wait(SLEEP, sched().clock + op.a),
        Kind::End => {
            slot::give_up();
            for i in 0..op.a {
                match world().take(op.b + i, false) {
                    Some(block) => free(block),
                    None => malloc(100),
                }
            }
            slot::be_born_again();
        }
        Kind::Vanish => slot::vanish(),
        Kind::Fork => fork(),
        Kind::Vfork => {
            slot::share();
            world().a.os.process.set_guest(true);
            (0..op.a).for_each(|i| match world().take(op.b + i, false) {
                Some(block) => free(block),
                None => malloc(100),
            });
            world().a.os.process.set_guest(false);
        }
        Kind::Alone => helper::without(|| sched().wait(SLEEP, sched().clock + op.a)),
        Kind::Meet => meet(op.a),
    }
}

/// Waits until all threads have arrived.
fn meet(milliseconds: u64) {
    let w = world();
    w.arrived += 1;
    if w.arrived == w.alive {
        return check_all(milliseconds);
    }
    let meeting = w.meetings;
    while world().meetings == meeting {
        sched().wait(MEET, FOREVER);
    }
}

/// A slow path, which does the work that reentrant calls and children of vfork left.
fn settle_notes() {
    if world().leaves_notes {
        slot::in_call(|_| world().a.settle());
    }
}

/// All threads have met: checks everything. The running thread may be one that has just ended.
fn check_all(milliseconds: u64) {
    // An ending helper leaves a note, and the next one must not end because of that before the check.
    world().a.os.process.hold(true);
    until_helper_rests();
    settle_notes();
    if world().is_child() {
        // A handler forked in that call: the child ends here.
        end_of_child();
    }
    until_helper_rests();
    quietly(|| {
        validate();
        let w = world();
        w.blocks.check_all();
        w.clear_graves();
        w.a.os.process.hold(false);
        w.arrived = 0;
        w.meetings += 1;
        sched().explores = w.meetings == w.config.explore;
    });
    sched().pass(milliseconds);
    sched().wake(MEET, true);
}

fn until_helper_rests() {
    let [start, wake] = helper::rests();
    while !sched().all_wait(&[MEET, SLEEP, start, wake]) {
        sched().wait(SLEEP, sched().clock + 1);
    }
}

fn validate() -> Census {
    world().a.os.flush_all();
    let w = world();
    // SAFETY: no call is in progress.
    let census = match unsafe { w.a.validate(Depth::Bits) } {
        Ok(census) => census,
        Err(e) => finding(&format!("invalid: {} (at {:#x})", e.what, e.at)),
    };
    let live = census.small + census.large + census.huge;
    if live != w.blocks.count() {
        finding(&format!("{live} blocks are live, not {}: {census:?}", w.blocks.count()));
    }
    let (guards, counted) = (w.a.os.guards(), w.a.guards.count());
    if guards != counted {
        finding(&format!("{counted} guards are counted, and {guards} there"));
    }
    census
}

/// The last thread: frees everything, and checks that all memory goes back.
fn last() {
    world().a.os.be_kind();
    while world().blocks.count() != 0 {
        let pick = world().random().next();
        let Some(block) = world().take(pick, false) else { break };
        free(block);
    }
    slot::give_up();
    // A helper that had to end may have left a note meanwhile.
    for _ in 0..2 {
        settle_notes();
        let mut patience = 20_000;
        while world().a.os.process.has_helper() {
            sched().wait(SLEEP, sched().clock + 100);
            sched().note_progress();
            patience -= 1;
            if patience == 0 {
                finding("the helper never ends although the program is idle");
            }
        }
    }
    quietly(|| check_empty(false));
    slot::in_call(|_| world().a.purge());
    quietly(|| check_empty(true));
}

fn check_empty(purged: bool) {
    let census = validate();
    // Blocks in the caches of threads that left their heaps behind stay there.
    let stays = world().vanished;
    let left = [census.small, census.large, census.huge];
    let cached = census.cached + census.remote + if purged { census.slabs } else { 0 };
    if left != [0; 3] || (!stays && cached != 0) || (purged && census.deferred != 0) {
        finding(&format!("something is left at the end: {census:?}"));
    }
}

/// Forks, and runs the child.
fn fork() {
    let w = world();
    if w.forks >= MOST_FORKS || w.is_child() {
        return;
    }
    w.forks += 1;
    let plain = slot::enter_fork();
    trace!("forks, reentrant: {}", !plain);
    world().a.os.flush_all();
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    let a = &world().a;
    if child > 0 {
        let mut status = 0;
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        if status != 0 {
            child_failed(status);
        }
        if plain {
            slot::leave_fork();
        }
        return;
    }
    sched().alone = true;
    let helped = a.os.process.forked();
    a.os.forked();
    if plain {
        a.fork_child(slot::place(), 0);
        end_of_child();
    }
    a.fork_child_reentrant(slot::place(), 0, !helped);
    if a.is_stranded() {
        slot::strand();
    }
    // The interrupted call goes on; `run` does the rest.
}

/// The end of a forked child, after the end of an operation.
fn end_of_child() -> ! {
    let stranded = world().a.is_stranded();
    quietly(|| {
        let w = world();
        w.blocks.check_all();
    });
    for i in 0..20 {
        let r = world().random();
        let (size, pick) = (r.scale(200_000) as usize, r.next());
        match i % 4 {
            0 | 1 => malloc(size),
            2 => calloc(size),
            _ => {
                if let Some(block) = world().take(pick, false) {
                    free(block);
                }
            }
        }
    }
    if !stranded {
        slot::in_call(|heap| world().a.purge_with(heap));
        while let Some(block) = world().take(0, false) {
            free(block);
        }
        world().a.tick();
    }
    quietly(|| {
        let w = world();
        w.blocks.check_all();
    });
    // SAFETY: ends the child.
    unsafe { libc::_exit(0) }
}
