//! The processed profile of the Firefox Profiler, as JSON.
//!
//! Each value type is a thread, the shown one first, and each stack a sample of it whose weight is the value: the call
//! tree and the flame graph show bytes, blocks or samples. Names are in the profile; nothing must be looked up. Samples
//! have no times of their own: they are spaced by a millisecond. Weights are 32 bits wide, so a larger value is split
//! into several samples. A track has room for [`PARTS`] of these, which is 2 PiB; larger values are cut.

use std::collections::HashMap;
use std::io::{self, Write};

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile as Processed, ReferenceTimestamp,
    SamplingInterval, StackHandle, StringHandle, ThreadHandle, Timestamp, WeightType,
};

use crate::Options;
use crate::pprof::NO_STACK;
use crate::time::operation;
use crate::{Profile, Sample, Shown, Unit};

/// Limit on the additional samples of a track for values beyond 32 bits.
const PARTS: usize = 1 << 20;

/// Writes a profile for the Firefox Profiler.
pub fn firefox(profile: &Profile, options: Options, out: &mut dyn Write) -> io::Result<()> {
    let begin = ReferenceTimestamp::from_millis_since_unix_epoch(profile.time as f64 / 1e6);
    let mut processed = Processed::new(&profile.title(), begin, SamplingInterval::from_millis(1));
    processed.set_os_name("Linux");
    processed.set_symbolicated(true);
    let start = Timestamp::from_nanos_since_reference(0);
    let process = processed.add_process(&profile.program(), profile.pid, start);
    let mut writer = Writer { profile, categories: HashMap::new(), names: HashMap::new(), processed };
    let columns = std::iter::once(options.column).chain((0..profile.types.len()).filter(|&at| at != options.column));
    for (at, column) in (0u32..).zip(columns) {
        let of = &profile.types[column];
        // Tracks are shown in the order in which they begin.
        let begin = Timestamp::from_nanos_since_reference(u64::from(at));
        let thread = writer.processed.add_thread(process, profile.pid.wrapping_add(at), begin, false);
        writer.processed.set_thread_name(thread, &of.name);
        let weight = if of.unit == Unit::Bytes { WeightType::Bytes } else { WeightType::Samples };
        writer.processed.set_thread_samples_weight_type(thread, weight);
        writer.thread(thread, column);
    }
    serde_json::to_writer(&mut *out, &writer.processed)?;
    writeln!(out)
}

struct Writer<'p> {
    profile: &'p Profile,
    processed: Processed,
    categories: HashMap<String, CategoryHandle>,
    names: HashMap<String, StringHandle>,
}

impl Writer<'_> {
    fn thread(&mut self, thread: ThreadHandle, column: usize) {
        const MILLISECOND: u64 = 1_000_000;
        let samples = self.profile.samples.iter().filter(|sample| sample.values[column] != 0);
        let mut parts = PARTS;
        for (sample, at) in samples.zip(0u64..) {
            let stack = self.stack(thread, sample);
            let mut rest = sample.values[column];
            while rest != 0 {
                let weight = i32::try_from(rest).unwrap_or(if rest > 0 { i32::MAX } else { i32::MIN });
                let time = Timestamp::from_nanos_since_reference(at.saturating_mul(MILLISECOND));
                self.processed.add_sample(thread, time, stack, CpuDelta::ZERO, weight);
                rest -= i64::from(weight);
                if rest != 0 && parts == 0 {
                    break;
                }
                parts -= usize::from(rest != 0);
            }
        }
    }

    fn stack(&mut self, thread: ThreadHandle, sample: &Sample) -> Option<StackHandle> {
        let category = operation(sample).map_or(CategoryHandle::OTHER, |name| self.category(&name));
        let mut texts: Vec<String> = self.profile.frames(sample).map(|frame| described(&frame)).collect();
        if texts.is_empty() {
            texts.push(NO_STACK.to_owned());
        }
        let frames: Vec<FrameInfo> = texts
            .into_iter()
            .rev()
            .map(|text| {
                let processed = &mut self.processed;
                let name = *self.names.entry(text).or_insert_with_key(|text| processed.intern_string(text));
                let frame = Frame::Label(name);
                FrameInfo { frame, category_pair: category.into(), flags: FrameFlags::empty() }
            })
            .collect();
        self.processed.intern_stack_frames(thread, frames.into_iter())
    }

    fn category(&mut self, name: &str) -> CategoryHandle {
        /// At least as many as there are operations.
        const COLORS: [CategoryColor; 12] = [
            CategoryColor::Blue,
            CategoryColor::LightBlue,
            CategoryColor::Magenta,
            CategoryColor::Green,
            CategoryColor::LightGreen,
            CategoryColor::Yellow,
            CategoryColor::Red,
            CategoryColor::Purple,
            CategoryColor::DarkGray,
            CategoryColor::Orange,
            CategoryColor::Brown,
            CategoryColor::Gray,
        ];
        if let Some(&known) = self.categories.get(name) {
            return known;
        }
        let at = crate::time::Operation::ALL.iter().position(|operation| operation.name() == name);
        let handle = self.processed.add_category(name, COLORS[at.unwrap_or(COLORS.len() - 1)]);
        self.categories.insert(name.to_owned(), handle);
        handle
    }
}

/// A frame's name, with the line where one is known.
fn described(frame: &Shown<'_>) -> String {
    match frame.place() {
        Some(place) => format!("{} ({place})", frame.name),
        None => frame.name.clone().into_owned(),
    }
}
