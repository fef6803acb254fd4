//! Opens objects and their debug files, each when it is first needed, and keeps them to the end.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use neap_symbols::{Image, Lines, Listing};

use super::sys::Mapped;
use crate::sys::Identity;

/// Where distributions put debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// An object that was opened.
pub struct Opened {
    /// Its symbols.
    pub image: Image<'static>,
    /// Itself, or its debug file: what has lines.
    lines_in: Option<&'static [u8]>,
    lines: Option<Option<Lines>>,
}

impl Opened {
    /// The line of an address.
    pub fn line(&mut self, address: u64) -> Option<neap_symbols::Line> {
        let bytes = self.lines_in?;
        let lines = self.lines.get_or_insert_with(|| Lines::parse(bytes, &|bytes| bytes.leak()));
        lines.as_ref()?.find(address)
    }
}

/// All objects, by path.
#[derive(Default)]
pub struct Files {
    opened: HashMap<String, Option<Opened>>,
    kernel: Option<Listing>,
    jit: HashMap<u32, Listing>,
}

impl Files {
    /// The object, if it can be opened and read. `[vdso]` is neap's own: every 64-bit program has the same.
    pub fn object(&mut self, path: &str) -> Option<&mut Opened> {
        if !self.opened.contains_key(path) {
            let opened = open(path);
            self.opened.insert(path.to_owned(), opened);
        }
        self.opened.get_mut(path)?.as_mut()
    }

    /// The kernel's symbols; empty for whoever may not see them.
    pub fn kernel(&mut self) -> &Listing {
        self.kernel.get_or_insert_with(|| Listing::kallsyms(&std::fs::read("/proc/kallsyms").unwrap_or_default()))
    }

    /// What the JIT compiler of a process told.
    pub fn jit(&mut self, pid: u32) -> &Listing {
        self.jit.entry(pid).or_insert_with(|| Listing::perf_map(&perf_map(pid).unwrap_or_default()))
    }
}

/// What the JIT compiler of a process wrote. Anybody may write to `/tmp`: what is neither root's nor this user's, nor
/// of the process while it runs, is not believed.
fn perf_map(pid: u32) -> Option<Vec<u8>> {
    let mut file = open_regular(Path::new(&format!("/tmp/perf-{pid}.map")))?;
    let metadata = file.metadata().ok()?;
    let process = std::fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid()).ok();
    let believed = [Some(0), Some(Identity::current().euid), process].contains(&Some(metadata.uid()));
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok().filter(|_| believed)?;
    Some(text)
}

fn open(path: &str) -> Option<Opened> {
    let bytes = if path == "[vdso]" { vdso()? } else { map(Path::new(path))? };
    let mut image = Image::parse(bytes)?;
    let mut lines_in = image.has_lines().then_some(bytes);
    if let Some(debug) = debug_file(Path::new(path), &image).and_then(|path| map(&path))
        && let Some(other) = Image::parse(debug)
    {
        if other.has_lines() {
            lines_in = Some(debug);
        }
        image.add_symbols(other);
    }
    Some(Opened { image, lines_in, lines: None })
}

/// Opens a file, and nothing else: at the path of an object there can be a pipe by now, which would make neap wait.
fn open_regular(path: &Path) -> Option<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// A file's bytes, for the rest of the process: symbols borrow from them.
fn map(path: &Path) -> Option<&'static [u8]> {
    let file = open_regular(path)?;
    let mapped: &'static Mapped = Box::leak(Box::new(Mapped::file(&file).ok()?));
    Some(mapped.bytes())
}

/// The file with the debug information of an object, by its build id or by its name.
fn debug_file(path: &Path, image: &Image<'_>) -> Option<PathBuf> {
    if let Some([first, rest @ ..]) = image.build_id() {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let candidate = PathBuf::from(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{rest}.debug"));
        if candidate.is_file() {
            return Some(candidate);
        }
    }
    let name = std::str::from_utf8(image.debug_link()?).ok()?;
    let directory = path.parent()?;
    let below_root = Path::new(DEBUG_ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
    let candidates = [directory.join(name), directory.join(".debug").join(name), below_root.join(name)];
    candidates.into_iter().find(|candidate| candidate != path && candidate.is_file())
}

/// The bytes of the vdso of this process.
fn vdso() -> Option<&'static [u8]> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let line = neap_trace::track::parse_maps(&maps).find(|line| line.path == b"[vdso]")?;
    let mut bytes = vec![0; usize::try_from(line.end - line.start).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, line.start).ok()?;
    Some(bytes.leak())
}
