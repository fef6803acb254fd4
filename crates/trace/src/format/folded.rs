//! Folded stacks, for flame graphs: a line for each stack, with its number of faults.
//!
//! ```text
//! main;load;parse 17
//! |         |     |
//! |         |     faults
//! |         function of the faulting instruction
//! outermost caller
//! ```
//!
//! With allocation sites and without callers, the stack of a fault in a block is that of the block's allocation.
//! Otherwise, without callers, the frames are the object and the function. Functions of the kernel end in `_[k]`, those
//! of JIT compilers in `_[j]`, by which flame graphs colour them. The footer is not written.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use crate::{Fault, PlaceId, Source, StackId, Tables};

/// Writes a trace as folded stacks, sorted by text.
pub fn folded(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    // A text is made for each stack, not for each fault.
    let mut counts: HashMap<_, (Fault, u64)> = HashMap::new();
    source.visit(&mut |fault| {
        let site = site(tables, fault);
        let (code, ip) = if site.is_some() { (None, 0) } else { (fault.code, fault.ip) };
        counts.entry((code, ip, fault.stack, site)).or_insert((*fault, 0)).1 += 1;
        Ok(())
    })?;
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (fault, count) in counts.into_values() {
        let text = match site(tables, &fault) {
            Some(site) => site_text(tables, site),
            None if fault.stack.is_some() => stack_text(tables, &fault),
            None => object_text(tables, &fault),
        };
        *lines.entry(text).or_default() += count;
    }
    write_lines(&lines, out)
}

/// Writes stacks and their sums.
pub fn write_lines(lines: &BTreeMap<String, u64>, out: &mut dyn Write) -> io::Result<()> {
    lines.iter().try_for_each(|(text, count)| writeln!(out, "{text} {count}"))
}

/// The stack of a fault: functions from the outermost caller inwards, separated by `;`.
pub(super) fn stack_text(tables: &Tables, fault: &Fault) -> String {
    let mut frames: Vec<String> = super::frames(tables, fault.ip, fault.code, fault.stack)
        .map(|(address, place)| frame(tables, address, place))
        .collect();
    frames.reverse();
    frames.join(";")
}

/// The allocation site of the block of a fault without callers.
fn site(tables: &Tables, fault: &Fault) -> Option<StackId> {
    fault.block.filter(|_| fault.stack.is_none()).and_then(|block| tables.blocks[block].site)
}

/// The stack of an allocation: functions from the outermost caller inwards.
pub(super) fn site_text(tables: &Tables, stack: StackId) -> String {
    let mut frames: Vec<String> = tables.frames(stack).map(|node| frame(tables, node.address, node.place)).collect();
    frames.reverse();
    frames.join(";")
}

fn object_text(tables: &Tables, fault: &Fault) -> String {
    let object =
        fault.code.and_then(|place| tables.object_of(place)).map_or("[unknown]", |object| object.path.as_str());
    format!("{};{}", clean(object), frame(tables, fault.ip, fault.code))
}

fn frame(tables: &Tables, address: u64, place: Option<PlaceId>) -> String {
    let object = place.and_then(|place| tables.object_of(place)).map(|object| object.path.as_str());
    frame_text(&super::function(tables, address, place), object)
}

/// A frame: its function, with a suffix for kernel and JIT code.
pub fn frame_text(function: &str, object: Option<&str>) -> String {
    let mut text = clean(function);
    match object {
        Some("[kernel]") => text.push_str("_[k]"),
        Some("[jit]") => text.push_str("_[j]"),
        _ => {}
    }
    text
}

/// Removes characters that separate frames and lines.
fn clean(text: &str) -> String {
    super::one_line(text).replace(';', ":")
}
