//! The memory of a process, with breakpoints in it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use libc::pid_t;
use neap_launch::ptrace;
use neap_process::file::{self, Identity};
use neap_process::maps::parse_maps;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use super::undumpable;
use crate::plan::{BREAKPOINT, Hits, Plan};

/// The memory of one process, or of several that share it.
pub struct Space {
    memory: File,
    planted: Option<Planted>,
    loader: Option<LoaderStop>,
}

#[derive(Clone)]
struct Planted {
    /// The difference between addresses in memory and in the file.
    bias: u64,
    /// The original bytes of all sites.
    originals: Rc<[u8]>,
}

/// The function that a dynamic linker calls when it has mapped files, and its first byte.
#[derive(Clone, Copy)]
struct LoaderStop {
    address: u64,
    original: u8,
}

impl Space {
    /// Opens that of a stopped process that has just executed a program.
    pub fn of(pid: pid_t) -> io::Result<Self> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self { memory, planted: None, loader: None })
    }

    /// Opens that of a stopped process that has just begun as a copy of one with this memory.
    pub fn copy(&self, pid: pid_t) -> io::Result<Self> {
        let of = match Self::of(pid) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                undumpable::with_access(|address| self.word(address), pid, || Self::of(pid)).unwrap_or(Err(error))
            }
            of => of,
        };
        Ok(Self { planted: self.planted.clone(), loader: self.loader, ..of? })
    }

    /// The difference for which sites were planted.
    pub fn bias(&self) -> Option<u64> {
        self.planted.as_ref().map(|planted| planted.bias)
    }

    /// Sets a breakpoint at each site that was not hit before. On failure there is none.
    pub fn plant(&mut self, plan: &Plan, bias: u64, hits: &Hits) -> io::Result<()> {
        let mut originals = Vec::with_capacity(plan.len());
        let mut write = || {
            plan.stretches().try_for_each(|stretch| {
                let mut bytes = vec![0; stretch.length];
                let address = stretch.address.wrapping_add(bias);
                self.memory.read_exact_at(&mut bytes, address)?;
                plan.plant(&stretch, &mut bytes, |site| !hits.seen(site), &mut originals);
                self.memory.write_all_at(&bytes, address)
            })
        };
        let written = write();
        // Bytes that were not read were not written either.
        originals.resize(plan.len(), BREAKPOINT);
        self.planted = Some(Planted { bias, originals: originals.into() });
        if written.is_err() {
            self.clean(plan);
        }
        written
    }

    /// Restores all bytes. A range that is no longer mapped has none. The planted sites stay known: a thread may have
    /// executed a breakpoint before.
    pub fn clean(&self, plan: &Plan) {
        if let Some(Planted { bias, originals }) = &self.planted {
            for stretch in plan.stretches() {
                let mut bytes = vec![0; stretch.length];
                let address = stretch.address.wrapping_add(*bias);
                if self.memory.read_exact_at(&mut bytes, address).is_ok()
                    && plan.restore(&stretch, &mut bytes, originals)
                {
                    let _ = self.memory.write_all_at(&bytes, address);
                }
            }
        }
        if let Some(stop) = self.loader {
            let _ = self.memory.write_all_at(&[stop.original], stop.address);
        }
    }

    /// Does the same in a stopped process that began as a copy of one with this memory, where [`copy`](Self::copy)
    /// fails: word by word, which needs no file.
    pub fn clean_copy(&self, pid: pid_t, plan: &Plan) {
        let sites = self.planted.iter().flat_map(|Planted { bias, originals }| {
            (0..plan.len()).map(|site| (plan.address(site).wrapping_add(*bias), originals[site]))
        });
        for (address, byte) in sites.chain(self.loader.map(|stop| (stop.address, stop.original))) {
            let _ = ptrace::replace_byte(pid, address, BREAKPOINT, byte);
        }
    }

    /// The site at an address, if the breakpoint there is neap's.
    pub fn site(&self, plan: &Plan, address: u64) -> Option<usize> {
        let planted = self.planted.as_ref()?;
        plan.site(address.wrapping_sub(planted.bias)).filter(|&site| planted.originals[site] != BREAKPOINT)
    }

    /// Restores the byte of a site that a stopped thread has hit.
    pub fn restore(&self, tid: pid_t, site: usize, address: u64) {
        if let Some(planted) = &self.planted {
            self.write_byte(tid, address, planted.originals[site]);
        }
    }

    /// Writes a byte in place of a breakpoint.
    pub fn write_byte(&self, tid: pid_t, address: u64, byte: u8) {
        if self.memory.write_all_at(&[byte], address).is_err() {
            // Some kernels permit a tracer to write code only in this way.
            let _ = ptrace::replace_byte(tid, address, BREAKPOINT, byte);
        }
    }

    /// Makes the process stop whenever its dynamic linker has mapped files. False if it has no linker, or one that does
    /// not report this.
    pub fn stop_loader(&mut self, pid: pid_t) -> bool {
        let Some(address) = loader_function(pid) else { return false };
        let mut original = [0];
        let planted = self.memory.read_exact_at(&mut original, address).is_ok()
            && self.memory.write_all_at(&[BREAKPOINT], address).is_ok();
        self.loader = planted.then_some(LoaderStop { address, original: original[0] });
        planted
    }

    /// Whether the dynamic linker stops at this address.
    pub fn is_loader_stop(&self, address: u64) -> bool {
        self.loader.is_some_and(|stop| stop.address == address)
    }

    /// Reads memory at an address; `None` where it cannot be read.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        self.memory.read_exact_at(bytes, address).ok()
    }

    /// A word of memory.
    pub fn word(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// The address of the function that a process's dynamic linker calls for debuggers. It does nothing and returns.
fn loader_function(pid: pid_t) -> Option<u64> {
    const NAME: &str = "_dl_debug_state";
    let base = auxiliary(pid, libc::AT_BASE).filter(|&base| base != 0)?;
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let line = parse_maps(&maps).find(|line| line.start == base)?;
    let path = std::str::from_utf8(line.path).ok()?;
    let identity = Identity { device: line.device, inode: line.inode };
    let mut file = file::open(pid.unsigned_abs(), &(line.start..line.end), path, identity).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let file = ElfFile64::<Endianness>::parse(bytes.as_slice()).ok()?;
    let symbols = file.dynamic_symbols().chain(file.symbols());
    let mut found = symbols.filter(|symbol| symbol.is_definition() && symbol.name() == Ok(NAME));
    Some(base + found.next()?.address())
}

/// An entry of the auxiliary vector of a process.
fn auxiliary(pid: pid_t, wanted: libc::c_ulong) -> Option<u64> {
    let bytes = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words: Vec<u64> =
        bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_ne_bytes).collect();
    words.chunks_exact(2).find(|pair| pair[0] == wanted).map(|pair| pair[1])
}
