//! Runs a program that is compiled with `-finstrument-functions`, with the library that counts its calls.
//!
//! neap makes the record, a file that the library maps (`crates/instrument` describes how it is written), and reads it
//! when the program has ended. Nothing is traced by ptrace.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use neap_launch::child::{self, Program};
use neap_launch::environment;
use neap_launch::error::{Error, system_message};
use neap_launch::library;
use neap_launch::private_dir::{PrivateDir, volatile_bases};
use neap_launch::sys;
use neap_layout::Call;
use neap_layout::names::stem;

use crate::binary::Binary;
use crate::plan::Hits;
use crate::record::{self, Header, Slot, TABLE_AT};
use crate::target::Target;

/// Average number of slots for each function of the binary, and the minimum for a small binary.
const SLOTS: u64 = 8;
const FEWEST: u64 = 1024;
const MOST: u64 = 1 << 20;

/// The functions that a run entered, and its calls.
#[derive(Debug)]
pub struct Entered {
    /// In order.
    pub hits: Hits,
    /// Between indexes in that order.
    pub calls: Vec<Call>,
    /// Calls that found no room in the record.
    pub dropped: u64,
}

/// How a program ended, and what it entered; `None` if no process had the target.
pub type Traced = (ExitStatus, Result<Option<Entered>, Error>);

impl From<Hits> for Entered {
    fn from(hits: Hits) -> Self {
        Self { hits, calls: Vec::new(), dropped: 0 }
    }
}

/// Runs a program.
pub fn run(path: &Path, command: &[OsString], target: &Target) -> Result<Traced, Error> {
    let folder = PrivateDir::create(&volatile_bases(), "neap-order")
        .map_err(|why| Error::failed(format!("there is no place for a record of calls: {why}")))?;
    let file: PathBuf = folder.path().join("calls");
    let failed = |e: io::Error| {
        Error::failed(format!("cannot keep a record of calls in {}: {}", folder.path().display(), system_message(&e)))
            .remedy("set XDG_RUNTIME_DIR to a directory where there is room")
    };
    let slots = (SLOTS * target.plan.len() as u64).next_power_of_two().clamp(FEWEST, MOST);
    let make = || {
        fs::write(&file, header(target, slots))?;
        sys::allocate(&fs::File::options().read(true).write(true).open(&file)?, record::size(slots))
    };
    sys::with_size_errors(make).map_err(failed)?;

    let library = library::INSTRUMENT.place()?;
    let mut variables = environment::with_library(&library.path, &[]);
    variables.retain(|(name, _)| name != record::VARIABLE);
    variables.push((record::VARIABLE.into(), file.clone().into()));
    let program = Program::new(path, command, variables)?;
    let (ended, (), signals) = child::supervise_watched(&program, |_| Ok(()))?;
    let record = fs::read(&file).map_err(failed);
    // A signal would leave them.
    drop((library, folder));
    signals.release();
    Ok((ended.status, record.and_then(|record| entered(&record, &target.binary))))
}

/// The header of a new record.
fn header(target: &Target, slots: u64) -> Vec<u8> {
    let mut header = vec![0; TABLE_AT];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    let (device, inode) = target.identity;
    let device = [libc::major(device), libc::minor(device)];
    // A longer path is left out: the device and inode identify the file.
    let path = Some(target.path.as_os_str().as_bytes()).filter(|path| path.len() <= record::PATH).unwrap_or_default();
    put(offset_of!(Header, magic), &record::MAGIC.to_ne_bytes());
    put(offset_of!(Header, slots), &slots.to_ne_bytes());
    put(offset_of!(Header, inode), &inode.to_ne_bytes());
    put(offset_of!(Header, device), device.map(u32::to_ne_bytes).as_flattened());
    put(offset_of!(Header, follow), &u32::from(target.follow).to_ne_bytes());
    put(offset_of!(Header, path_length), &(path.len() as u32).to_ne_bytes());
    put(offset_of!(Header, path), path);
    header
}

/// The contents of a record for a binary; `None` if no process had it.
fn entered(record: &[u8], binary: &Binary) -> Result<Option<Entered>, Error> {
    let long = |at: usize| record.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    let short =
        |at: usize| record.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    if short(offset_of!(Header, owner)) == 0 {
        return match short(offset_of!(Header, failed)) {
            0 => Ok(None),
            errno => {
                let why = system_message(&io::Error::from_raw_os_error(errno as i32));
                Err(Error::failed(format!("the program cannot record its calls: {why}"))
                    .remedy("it needs Linux 4.14 and /proc"))
            }
        };
    }
    let Some(bias) = binary.bias(0, long(offset_of!(Header, offset))) else {
        return Err(Error::failed("the binary was replaced while it was traced").remedy("trace it again"));
    };
    let began = long(offset_of!(Header, began));
    // An offset is an address in a process that has its code at 0.
    let function = |offset: u32| binary.function(u64::from(offset).wrapping_sub(bias)).filter(|_| offset != 0);
    let mut slots: Vec<usize> = (TABLE_AT..record.len()).step_by(size_of::<Slot>()).collect();
    slots.retain(|slot| long(slot + offset_of!(Slot, key)) != 0);
    // Slots of a program that was killed before it numbered them come last.
    slots.sort_by_key(|slot| short(slot + offset_of!(Slot, order)).wrapping_sub(1));

    let mut hits = Hits::new(binary.functions.len());
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut counts: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for slot in &slots {
        let key = long(slot + offset_of!(Slot, key));
        let Some(to) = function((key >> 32) as u32) else { continue };
        places.entry(to).or_insert_with(|| hits.order().len());
        hits.add(to, long(slot + offset_of!(Slot, first)).saturating_sub(began));
        // Code of an inlined function calls the library too, although no call was made there.
        let named = function(short(slot + offset_of!(Slot, function)));
        let name = |place: usize| stem(&binary.functions[place].name);
        if let Some(from) = function(key as u32)
            && named.is_none_or(|named| named == to || name(named) == name(to))
        {
            *counts.entry((from, to)).or_default() += long(slot + offset_of!(Slot, count));
        }
    }
    // A caller that is not instrumented was not recorded.
    let seen = |((from, to), count)| Some(Call { from: *places.get(&from)?, to: *places.get(&to)?, count });
    let calls = counts.into_iter().filter_map(seen).collect();
    Ok(Some(Entered { hits, calls, dropped: long(offset_of!(Header, dropped)) }))
}
