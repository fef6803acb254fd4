//! Copies that a program makes of its own code, breakpoints included: JIT compilers do this to keep all code close
//! together. If a thread stops at a breakpoint outside the binary's memory, the bytes around it show of which function
//! it is a copy; then all breakpoints of that copy are removed at once. Code that runs in a copy does not count as
//! entered, because it touches no OS page of the binary.

use std::fs;
use std::ops::Range;

use libc::pid_t;
use neap_process::maps::{MapsLine, parse_maps};

use super::space::Space;
use crate::plan::BREAKPOINT;
use crate::target::Target;

/// Number of bytes behind a breakpoint that must equal the function's: at the one that was hit, and at others of its
/// copy.
const LIKE: u64 = 16;
const LIKE_OTHERS: u64 = 8;
/// A longer mapping is no copy of code.
const LONGEST: u64 = 1 << 30;

/// Removes the breakpoints from the copy that a thread has stopped in; `None` if there is none at `address`.
pub fn restore(space: &Space, target: &Target, tid: pid_t, address: u64) -> Option<()> {
    let mapping = mapping_at(target, tid, address)?;
    let mut memory = vec![0; usize::try_from(mapping.end - mapping.start).ok()?];
    space.read(mapping.start, &mut memory)?;
    let file = fs::read(&target.path).ok()?;
    let plan = &target.plan;
    // Whether a copy of a site is at an offset of the mapping. Breakpoints of other functions may follow it.
    let is_copy = |site: usize, at: usize, length: u64| {
        let start = plan.address(site);
        let code = target.binary.code_at(&file, start, length + 1)?;
        let found = memory.get(at..at.checked_add(code.len())?)?;
        let like = |(place, (found, own)): (u64, (&u8, &u8))| {
            found == own || (*found == BREAKPOINT && plan.site(start + place).is_some())
        };
        let mut both = (0_u64..).zip(found.iter().zip(code)).skip(1);
        (found[0] == BREAKPOINT && code[0] != BREAKPOINT && both.all(like)).then_some(code[0])
    };
    let hit = usize::try_from(address - mapping.start).ok()?;
    let site = (0..plan.len()).find(|&site| is_copy(site, hit, LIKE).is_some())?;
    let distance = address.wrapping_sub(plan.address(site));
    for other in 0..plan.len() {
        let at = plan.address(other).wrapping_add(distance);
        if !mapping.contains(&at) {
            continue;
        }
        let length = if other == site { LIKE } else { LIKE_OTHERS };
        if let Some(byte) = is_copy(other, (at - mapping.start) as usize, length) {
            space.write_byte(tid, at, byte);
        }
    }
    Some(())
}

/// The mapping at an address, if it is not one of the binary.
fn mapping_at(target: &Target, tid: pid_t, address: u64) -> Option<Range<u64>> {
    let maps = fs::read(format!("/proc/{tid}/maps")).ok()?;
    let is_own = |line: &MapsLine<'_>| line.inode == target.identity.1 && line.inode != 0;
    let line = parse_maps(&maps).find(|line| (line.start..line.end).contains(&address))?;
    (!is_own(&line) && line.end - line.start <= LONGEST).then_some(line.start..line.end)
}
