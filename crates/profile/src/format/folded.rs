//! Folded stacks, for flame graphs: a line for each stack, from the outermost caller inwards, with its value.
//!
//! ```text
//! main;load;malloc 8192
//! ```
//!
//! As in traces of page faults, functions of the kernel end in `_[k]`, those of JIT compilers in `_[j]`. Values below
//! one (growth may be negative) cannot be drawn in flame graphs, and are left out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use neap_trace::format::folded::{frame_text, write_lines};

use crate::Options;
use crate::pprof::NO_STACK;
use crate::{Profile, Sample};

/// Writes one value type as folded stacks, sorted by text.
pub fn folded(profile: &Profile, options: Options, out: &mut dyn Write) -> io::Result<()> {
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for sample in &profile.samples {
        let sum = sums.entry(line(profile, sample)).or_default();
        *sum = sum.saturating_add(sample.values[options.column]);
    }
    let lines =
        sums.into_iter().filter_map(|(text, sum)| Some((text, u64::try_from(sum).ok().filter(|&sum| sum > 0)?)));
    write_lines(&lines.collect(), out)
}

fn line(profile: &Profile, sample: &Sample) -> String {
    let mut frames: Vec<String> =
        profile.frames(sample).map(|frame| frame_text(&frame.name, Some(frame.object))).collect();
    if frames.is_empty() {
        return NO_STACK.to_owned();
    }
    frames.reverse();
    frames.join(";")
}
