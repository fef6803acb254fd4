//! Finds callers in a copy of the stack, with the unwind tables of the objects (framehop), while the mappings are
//! current.

use std::collections::{HashMap, HashSet};

use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use neap_trace::perf::record::{Callers, Sample};
use neap_trace::track::{HeapBlock, Tracker, World};
use neap_trace::{MappingId, ProcessId, Tables};

use super::blocks::Blocks;
use super::files::Files;

#[cfg(target_arch = "x86_64")]
mod arch {
    pub use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64 as Registers, UnwinderX86_64 as Unwinder};

    /// The registers to request: `PERF_REG_X86_BP`, `_SP` and `_IP`.
    pub const MASK: u64 = 1 << 6 | 1 << 7 | 1 << 8;

    /// The registers of a sample, in the order of the mask's bits: the instruction, the stack pointer, all of them.
    pub fn registers(values: &[u64]) -> Option<(u64, u64, Registers)> {
        let &[bp, sp, ip] = values else { return None };
        Some((ip, sp, Registers::new(ip, sp, bp)))
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    pub use framehop::aarch64::{CacheAarch64 as Cache, UnwindRegsAarch64 as Registers, UnwinderAarch64 as Unwinder};

    /// The registers to request: x29 (frame), x30 (link), `PERF_REG_ARM64_SP` and `_PC`.
    pub const MASK: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

    /// The registers of a sample, in the order of the mask's bits: the instruction, the stack pointer, all of them.
    pub fn registers(values: &[u64]) -> Option<(u64, u64, Registers)> {
        let &[fp, lr, sp, pc] = values else { return None };
        Some((pc, sp, Registers::new(lr, sp, fp)))
    }
}

pub use self::arch::MASK;

/// Limit on the frames.
const MAX_FRAMES: usize = 128;

/// Reads `/proc`, and unwinds.
#[derive(Default)]
pub struct Proc {
    /// The objects found so far.
    pub files: Files,
    cache: arch::Cache,
    processes: HashMap<ProcessId, Known>,
    /// The blocks of neap's heaps.
    pub blocks: Blocks,
}

/// The objects of a process that the unwinder knows.
#[derive(Default)]
struct Known {
    unwinder: arch::Unwinder<&'static [u8]>,
    added: HashSet<MappingId>,
}

impl World for Proc {
    fn maps(&mut self, pid: u32) -> Option<Vec<u8>> {
        neap_process::maps(pid).ok()
    }

    fn block(&mut self, pid: u32, address: u64) -> Option<HeapBlock> {
        self.blocks.find(pid, address)
    }

    fn unwind(&mut self, sample: &Sample, tables: &Tables, space: &dyn Fn(u64) -> Option<MappingId>) -> Vec<u64> {
        sample.callers.as_deref().and_then(|callers| self.callers(callers, tables, space)).unwrap_or_default()
    }
}

impl Proc {
    /// Inspects the objects that were seen for the first time.
    pub fn seek(&mut self, tracker: &mut Tracker) {
        for seen in tracker.take_sightings() {
            self.files.seek(&seen, &tracker.tables().objects[seen.object]);
        }
    }

    fn callers(
        &mut self,
        callers: &Callers,
        tables: &Tables,
        space: &dyn Fn(u64) -> Option<MappingId>,
    ) -> Option<Vec<u64>> {
        let (ip, sp, mut registers) = arch::registers(&callers.registers)?;
        let mut read_stack = |address: u64| -> Result<u64, ()> {
            let start = usize::try_from(address.checked_sub(sp).ok_or(())?).map_err(|_| ())?;
            let word = callers.stack.get(start..).and_then(|rest| rest.first_chunk()).ok_or(())?;
            Ok(u64::from_ne_bytes(*word))
        };
        let mut chain = vec![ip];
        let mut frame = FrameAddress::from_instruction_pointer(ip);
        while chain.len() < MAX_FRAMES {
            let id = space(frame.address_for_lookup())?;
            let known = self.processes.entry(tables.mappings[id].process).or_default();
            if known.added.insert(id) {
                known.add(&mut self.files, tables, id);
            }
            match known.unwinder.unwind_frame(frame, &mut registers, &mut self.cache, &mut read_stack) {
                Ok(Some(caller)) => {
                    chain.push(caller);
                    match FrameAddress::from_return_address(caller) {
                        Some(next) => frame = next,
                        None => break,
                    }
                }
                // The outermost frame, or the end of the copied stack.
                Ok(None) | Err(_) => break,
            }
        }
        Some(chain)
    }
}

impl Known {
    /// Adds a mapping to the unwinder.
    fn add(&mut self, files: &mut Files, tables: &Tables, id: MappingId) {
        let row = &tables.mappings[id];
        let Some(object) = row.object else { return };
        let Some(opened) = files.object(object, &tables.objects[object]) else { return };
        let image = &opened.image;
        let protection = row.protection;
        let Some(stated) = image.address(row.offset, protection.write, protection.execute) else { return };
        let range = |name: &str| image.section(name).map(|(start, data)| start..start + data.len() as u64);
        let data = |name: &str| image.section(name).map(|(_, data)| data);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(".text"),
            text: data(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        let base = row.start.wrapping_sub(stated);
        self.unwinder.add_module(Module::new(tables.objects[object].path.clone(), row.start..row.end, base, sections));
    }
}
