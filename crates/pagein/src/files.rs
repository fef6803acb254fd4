//! Opens objects and their debug files at their first use, and keeps them to the end.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use neap_process::file::{map_file, regular};
use neap_process::maps::parse_maps;
use neap_process::{living, perf_map};
use neap_symbols::{Image, Lines, Listing};
use neap_trace::track::{Sighting, file_of};
use neap_trace::{FileId, Object, ObjectId};

use super::sys::Mapped;

/// The folder in which distributions install debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";
/// Limit on the files that are kept because their paths name other files here; each is a mapping, of which a process
/// may have some 65,000.
const MAX_HELD: usize = 4096;

/// An object that was opened.
pub struct Opened {
    /// Its symbols.
    pub image: Image<'static>,
    /// The object or its debug file: the one with lines.
    lines_in: Option<&'static [u8]>,
    lines: Option<Option<Lines>>,
}

impl Opened {
    /// The line of an address.
    pub fn line(&mut self, address: u64) -> Option<neap_symbols::Line> {
        self.lines()?.find(address)
    }

    /// The functions at an address, inlined ones first.
    pub fn functions(&mut self, address: u64) -> Vec<(Option<String>, Option<neap_symbols::Line>)> {
        self.lines().map(|lines| lines.functions(address)).unwrap_or_default()
    }

    fn lines(&mut self) -> Option<&Lines> {
        let bytes = self.lines_in?;
        self.lines.get_or_insert_with(|| Lines::parse(bytes, &|bytes| bytes.leak())).as_ref()
    }
}

/// All objects of a trace.
#[derive(Default)]
pub struct Files {
    opened: HashMap<ObjectId, Option<Opened>>,
    /// Contents of objects that cannot be read through their paths, found while the process ran.
    held: HashMap<ObjectId, &'static [u8]>,
    /// Paths that name another file than the program had there, or none.
    unread: BTreeSet<String>,
    kernel: Option<Listing>,
    jit: HashMap<u32, Listing>,
    /// Perf maps that exist but are not trusted.
    disbelieved: BTreeSet<PathBuf>,
}

impl Files {
    /// Inspects an object that a process has mapped: if its path names another file here (in a container or below a
    /// chroot, or because it was replaced), the process's own file is looked up while the process runs.
    pub fn seek(&mut self, seen: &Sighting, object: &Object) {
        if self.held.len() >= MAX_HELD {
            return;
        }
        let via = || living(seen.pid);
        let bytes = if object.path == "[vdso32]" {
            memory(&format!("/proc/{}/mem", via()), seen.start, seen.end)
        } else if object.path.starts_with('/') && !is_there(Path::new(&object.path), object.file) {
            let via = via();
            let exactly = map_file(via, &(seen.start..seen.end));
            let below_root = format!("/proc/{via}/root{}", object.path);
            [exactly, below_root, format!("/proc/{via}/exe")]
                .iter()
                .find_map(|path| map_same(Path::new(path), object.file))
        } else {
            None
        };
        if let Some(bytes) = bytes {
            self.held.insert(seen.object, bytes);
        }
    }

    /// The object, if it can be opened and read. `[vdso]` is neap's own: every 64-bit program has the same one.
    pub fn object(&mut self, id: ObjectId, object: &Object) -> Option<&mut Opened> {
        let held = &self.held;
        let unread = &mut self.unread;
        let opened = self.opened.entry(id).or_insert_with(|| {
            let path = Path::new(&object.path);
            let bytes = match (object.path.as_str(), held.get(&id)) {
                ("[vdso]", _) => vdso(),
                (_, Some(held)) => Some(*held),
                (name, _) if !name.starts_with('/') => None,
                _ => map_same(path, object.file),
            };
            if bytes.is_none() {
                unread.insert(object.path.clone());
            }
            open(path, bytes?)
        });
        opened.as_mut()
    }

    /// Whether the program's file at the object's path could not be read.
    pub fn is_unread(&self, object: &Object) -> bool {
        self.unread.contains(&object.path)
    }

    /// The kernel's symbols; empty for users that may not see them.
    pub fn kernel(&mut self) -> &Listing {
        self.kernel.get_or_insert_with(|| Listing::kallsyms(&std::fs::read("/proc/kallsyms").unwrap_or_default()))
    }

    /// The perf map of a process's JIT compiler.
    pub fn jit(&mut self, pid: u32) -> &Listing {
        let disbelieved = &mut self.disbelieved;
        self.jit.entry(pid).or_insert_with(|| {
            let text = perf_map::read(pid).unwrap_or_else(|path| {
                disbelieved.insert(path);
                Vec::new()
            });
            Listing::perf_map(&text)
        })
    }

    /// Perf maps that exist but are not trusted, because another user owns them.
    pub fn disbelieved(&self) -> impl Iterator<Item = &Path> {
        self.disbelieved.iter().map(PathBuf::as_path)
    }
}

fn open(path: &Path, bytes: &'static [u8]) -> Option<Opened> {
    let mut image = Image::parse(bytes)?;
    let mut lines_in = image.has_lines().then_some(bytes);
    if let Some((debug, other)) = debug_file(path, &image) {
        if other.has_lines() {
            lines_in = Some(debug);
        }
        image.add_symbols(other);
    }
    Some(Opened { image, lines_in, lines: None })
}

/// The contents of a file, mapped for the rest of this process: symbols borrow from them.
fn map(file: &File) -> Option<&'static [u8]> {
    let mapped: &'static Mapped = Box::leak(Box::new(Mapped::file(file).ok()?));
    Some(mapped.bytes())
}

/// The contents of the file at a path, if it is the wanted file.
fn map_same(path: &Path, wanted: Option<FileId>) -> Option<&'static [u8]> {
    let file = regular(path, None).ok()?;
    let Some(wanted) = wanted else { return map(&file) };
    if has_identity(&file.metadata().ok()?, wanted) {
        return map(&file);
    }
    is_mapped_as(&file, wanted).then(|| map(&file)).flatten()
}

/// Whether the file at a path is the wanted file.
fn is_there(path: &Path, wanted: Option<FileId>) -> bool {
    let Some(wanted) = wanted else { return path.exists() };
    std::fs::metadata(path).is_ok_and(|metadata| has_identity(&metadata, wanted))
        || regular(path, None).is_ok_and(|file| is_mapped_as(&file, wanted))
}

/// Whether a file has this device and inode.
fn has_identity(metadata: &std::fs::Metadata, wanted: FileId) -> bool {
    let device = metadata.dev();
    (libc::major(device), libc::minor(device), metadata.ino()) == (wanted.major, wanted.minor, wanted.inode)
}

/// Whether the kernel reports mappings of a file under this identity. Some file systems (btrfs) report another device
/// there than in `stat`, and layered ones may report the device of a layer in only one of the two.
fn is_mapped_as(file: &File, wanted: FileId) -> bool {
    /// `OVERLAYFS_SUPER_MAGIC`
    const OVERLAY: u32 = 0x794c_7630;
    /// The bits of an inode below those by which an overlay distinguishes layers.
    const OF_LAYER: u64 = 0xffff_ffff;
    let Some(seen) = mapped_identity(file) else { return false };
    seen == wanted || super::sys::file_system(file) == Some(OVERLAY) && seen.inode & OF_LAYER == wanted.inode & OF_LAYER
}

/// The identity that the kernel reports for a mapping of the file in this process.
fn mapped_identity(file: &File) -> Option<FileId> {
    let mapped = Mapped::file(file).ok()?;
    let start = mapped.bytes().as_ptr().addr() as u64;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    parse_maps(&maps).find(|line| (line.start..line.end).contains(&start)).and_then(|line| file_of(&line))
}

/// The debug information of an object, in a file found by its build id or name. A file of another build does not count.
fn debug_file(path: &Path, image: &Image<'_>) -> Option<(&'static [u8], Image<'static>)> {
    let mut candidates = Vec::new();
    if let Some([first, rest @ ..]) = image.build_id() {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        candidates.push(PathBuf::from(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{rest}.debug")));
    }
    if let Some(name) = image.debug_link().and_then(|name| std::str::from_utf8(name).ok())
        && let Some(directory) = path.parent()
    {
        let below_root = Path::new(DEBUG_ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
        candidates.extend([directory.join(name), directory.join(".debug").join(name), below_root.join(name)]);
    }
    candidates.iter().filter(|candidate| *candidate != path).find_map(|candidate| {
        let bytes = map(&regular(candidate, None).ok()?)?;
        let other = Image::parse(bytes)?;
        image.is_described_by(&other, bytes).then_some((bytes, other))
    })
}

/// The bytes of the vdso of this process.
fn vdso() -> Option<&'static [u8]> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let line = parse_maps(&maps).find(|line| line.path == b"[vdso]")?;
    memory("/proc/self/mem", line.start, line.end)
}

/// A part of the memory of a process.
fn memory(path: &str, start: u64, end: u64) -> Option<&'static [u8]> {
    /// More than the size of any vdso.
    const MAX: u64 = 1 << 20;
    let length = end.checked_sub(start).filter(|&length| length <= MAX)?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    File::open(path).ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes.leak())
}
