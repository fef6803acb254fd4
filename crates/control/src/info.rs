//! The figures in the forms of glibc's functions: mallinfo2, malloc_info, malloc_stats.
//!
//! | glibc | neap |
//! |---|---|
//! | arena | what slabs, large blocks and dirty ranges have: `uordblks + fordblks` |
//! | block in a mapping of its own (`hblks`, `hblkhd`, type "mmap") | huge block |
//! | fast bin (`smblks`, `fsmblks`, type "fast") | caches of threads, of small and of large blocks |
//! | other free block (`ordblks`, type "rest") | free block of a slab, dirty free range |
//! | releasable at the top (`keepcost`) | dirty ranges |
//!
//! These count blocks, whether they hold memory or not. malloc_info also has elements that glibc does not have:
//! `resident`, the memory that the kernel holds at the time of the call (`neap_core::resident`).

use core::fmt::{Result, Write};
use neap_core::CHUNK;
use neap_core::census::Census;
use neap_core::class;
use neap_core::figures::Figures;
use neap_core::resident::Resident;
use neap_sys::{global::NEAP, thread};

/// `struct mallinfo2` of <malloc.h>.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Bytes of arenas that are used or may hold memory.
    pub arena: usize,
    /// Free blocks in slabs, and dirty free ranges.
    pub ordblks: usize,
    /// Free blocks in the caches of threads.
    pub smblks: usize,
    /// Huge blocks.
    pub hblks: usize,
    /// Their bytes.
    pub hblkhd: usize,
    /// 0, as in glibc.
    pub usmblks: usize,
    /// Bytes in the caches of threads.
    pub fsmblks: usize,
    /// Bytes of live blocks that are not huge.
    pub uordblks: usize,
    /// Bytes of arenas that are free: `fsmblks`, and what `ordblks` counts.
    pub fordblks: usize,
    /// What waits to go back to the system, and malloc_trim would give back first.
    pub keepcost: usize,
}

/// `struct mallinfo`: the same as `int`. A number that does not fit is the greatest `int`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortInfo([i32; 10]);

impl From<Info> for ShortInfo {
    fn from(i: Info) -> Self {
        let all =
            [i.arena, i.ordblks, i.smblks, i.hblks, i.hblkhd, i.usmblks, i.fsmblks, i.uordblks, i.fordblks, i.keepcost];
        ShortInfo(all.map(|n| i32::try_from(n).unwrap_or(i32::MAX)))
    }
}

/// Figures and census, read one right after the other.
struct Moment {
    f: Figures,
    census: Census,
}

impl Moment {
    /// No figures.
    #[inline(always)]
    fn new() -> Moment {
        Moment { f: Figures::default(), census: Census::new() }
    }

    /// Reads the figures. Reads nothing in a signal handler that interrupted malloc or free. It fills `self` in place,
    /// because that has some kilobytes, and the caller's stack may be short.
    #[inline(never)]
    fn read(&mut self) {
        thread::in_call(|_| {
            NEAP.take_census(&mut self.census);
            self.f = NEAP.figures();
        });
    }

    /// Bytes that are free and in no cache.
    fn rest(&self) -> u64 {
        self.f.slab_free + self.f.dirty + self.f.lazy
    }

    /// Number of blocks and ranges that have those bytes.
    fn rest_count(&self) -> u64 {
        self.census.blocks.iter().chain(self.census.dirty.iter().map(|count| &count.count)).sum()
    }

    /// Bytes in use that are not huge.
    fn used(&self) -> u64 {
        self.f.live - self.f.huge
    }

    fn arena(&self) -> u64 {
        self.used() + self.f.cached + self.rest()
    }
}

/// What mallinfo2 returns.
pub fn mallinfo2() -> Info {
    let mut m = Moment::new();
    m.read();
    Info {
        arena: m.arena() as usize,
        ordblks: m.rest_count() as usize,
        smblks: m.f.cached_blocks as usize,
        hblks: m.f.huge_blocks as usize,
        hblkhd: m.f.huge as usize,
        usmblks: 0,
        fsmblks: m.f.cached as usize,
        uordblks: m.used() as usize,
        fordblks: (m.f.cached + m.rest()) as usize,
        keepcost: m.f.dirty as usize,
    }
}

/// The memory that the system holds for neap. `None` where the kernel does not say, and in a signal handler that
/// interrupted malloc or free.
pub fn resident() -> Option<Resident> {
    thread::in_call(|_| NEAP.resident()).flatten()
}

/// Writes what malloc_info writes: one heap, because memory belongs to all threads. The figures are read at once, so
/// `out` may allocate, and may be slow.
pub fn xml(out: &mut impl Write) -> Result {
    let mut m = Moment::new();
    m.read();
    let resident = resident();
    out.write_str("<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n")?;
    let mut from = 1;
    for (class, &count) in m.census.blocks.iter().enumerate().skip(1) {
        let to = u64::from(class::SIZE[class]);
        size(out, from, to, count * to, count)?;
        from = to + 1;
    }
    for (i, count) in m.census.dirty.iter().enumerate() {
        let from = (CHUNK as u64) << i;
        size(out, from, from * 2 - CHUNK as u64, count.bytes, count.count)?;
    }
    out.write_str("</sizes>\n")?;
    let (current, space) = (m.arena(), m.census.used.max(m.arena()));
    let totals = [
        ("fast", m.f.cached_blocks, m.f.cached),
        ("rest", m.rest_count(), m.rest()),
        ("mmap", m.f.huge_blocks, m.f.huge),
    ];
    // The same for the heap and for all memory, except huge blocks, which are in no heap.
    for (totals, end) in [(&totals[..2], "</heap>\n"), (&totals[..], "")] {
        for (kind, count, size) in totals {
            writeln!(out, "<total type=\"{kind}\" count=\"{count}\" size=\"{size}\"/>")?;
        }
        elements(out, "system", &[("current", current), ("max", m.census.peak.max(current))])?;
        elements(out, "aspace", &[("total", space), ("mprotect", space)])?;
        out.write_str(end)?;
    }
    if let Some(r) = resident {
        let sizes = [("arenas", r.arenas), ("tables", r.tables), ("mmap", r.huge), ("total", r.total())];
        elements(out, "resident", &sizes)?;
    }
    out.write_str("</malloc>\n")
}

fn size(out: &mut impl Write, from: u64, to: u64, total: u64, count: u64) -> Result {
    if count == 0 {
        return Ok(());
    }
    writeln!(out, "  <size from=\"{from}\" to=\"{to}\" total=\"{total}\" count=\"{count}\"/>")
}

/// Writes elements of this name, each with a type and a size.
fn elements(out: &mut impl Write, name: &str, sizes: &[(&str, u64)]) -> Result {
    sizes.iter().try_for_each(|(kind, size)| writeln!(out, "<{name} type=\"{kind}\" size=\"{size}\"/>"))
}

/// Writes what malloc_stats writes.
pub fn text(out: &mut impl Write) -> Result {
    let mut m = Moment::new();
    m.read();
    let most = m.census.most_huge;
    writeln!(out, "Arena 0:")?;
    writeln!(out, "system bytes     = {:>10}", m.arena())?;
    writeln!(out, "in use bytes     = {:>10}", m.used())?;
    writeln!(out, "Total (incl. mmap):")?;
    writeln!(out, "system bytes     = {:>10}", m.arena() + m.f.huge)?;
    writeln!(out, "in use bytes     = {:>10}", m.f.live)?;
    writeln!(out, "max mmap regions = {:>10}", most.count)?;
    writeln!(out, "max mmap bytes   = {:>10}", most.bytes)
}
