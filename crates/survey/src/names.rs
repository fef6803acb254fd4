//! Names and lines for addresses, from the files that the process has mapped.

use neap_observe::mapped;
use neap_symbols::{Image, Line, Lines, What, demangle};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The folder in which distributions install debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";
/// Limit on the size of a file.
const MOST: u64 = 8 << 30;

/// A function, and its place in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The demangled name.
    pub name: String,
    /// The symbol's name, if it differs.
    pub symbol: Option<String>,
    /// The file of source; empty where unknown.
    pub file: String,
    /// The line in it; 0 where unknown.
    pub line: u32,
}

/// Files that were opened, by path and build id.
#[derive(Default)]
pub struct Names {
    files: HashMap<(String, Vec<u8>), Option<Opened>>,
}

struct Opened {
    image: Image<'static>,
    /// The file with lines: the file itself, or its debug file.
    lines_in: Option<&'static [u8]>,
    lines: Option<Option<Lines>>,
}

impl Names {
    /// The functions at an address as the file states it: inlined ones first, innermost first, then the symbol's
    /// function. Empty for a file of another build.
    pub fn find(&mut self, pid: Option<u32>, path: &str, build: &[u8], address: u64) -> Vec<Name> {
        let key = (path.to_owned(), build.to_vec());
        let opened = self.files.entry(key).or_insert_with(|| Opened::open(pid, path, build));
        opened.as_mut().map(|opened| opened.functions(address)).unwrap_or_default()
    }
}

impl Opened {
    fn open(pid: Option<u32>, path: &str, build: &[u8]) -> Option<Self> {
        if !path.starts_with('/') {
            return None;
        }
        // In a container or below a chroot the path names another file here.
        let of_process = pid.map(|pid| PathBuf::from(format!("/proc/{pid}/root{path}")));
        let (bytes, mut image) = of_process.into_iter().chain([PathBuf::from(path)]).find_map(|candidate| {
            let bytes = read(&candidate)?;
            let image = Image::parse(bytes)?;
            (build.is_empty() || image.build_id() == Some(build)).then_some((bytes, image))
        })?;
        let mut lines_in = image.has_lines().then_some(bytes);
        if let Some((debug, other)) = debug_file(Path::new(path), &image) {
            if other.has_lines() {
                lines_in = Some(debug);
            }
            image.add_symbols(other);
        }
        Some(Opened { image, lines_in, lines: None })
    }

    fn lines(&mut self) -> Option<&Lines> {
        let bytes = self.lines_in?;
        self.lines.get_or_insert_with(|| Lines::parse(bytes, &|bytes| bytes.leak())).as_ref()
    }

    fn functions(&mut self, address: u64) -> Vec<Name> {
        let mut frames = self.lines().map(|lines| lines.functions(address)).unwrap_or_default();
        // The outermost frame is the symbol's function.
        let outer = frames.pop().and_then(|(_, line)| line);
        let Some(found) = self.image.find(address, What::Code) else { return Vec::new() };
        let mut names: Vec<Name> =
            frames.into_iter().filter_map(|(name, line)| Some(Name::new(&name?, line))).collect();
        let mut function = Name::new(found.name, outer);
        if found.stub {
            function.name.push_str("@plt");
        }
        names.push(function);
        names
    }
}

impl Name {
    fn new(mangled: &str, line: Option<Line>) -> Self {
        let demangled = demangle(mangled);
        let (file, line) = line.map_or((String::new(), 0), |line| (line.file, line.line));
        Self {
            symbol: demangled.is_some().then(|| mangled.to_owned()),
            name: demangled.unwrap_or_else(|| mangled.to_owned()),
            file,
            line,
        }
    }
}

/// The contents of a file, for the rest of this process: symbols borrow from them. Other kinds of files, and files
/// longer than any program, are not read.
fn read(path: &Path) -> Option<&'static [u8]> {
    let mut file =
        mapped::regular(path, None).ok().filter(|file| file.metadata().is_ok_and(|file| file.len() <= MOST))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes.leak())
}

/// The debug information of an object, in a file found by its build id or name. A file of another build does not count.
fn debug_file(path: &Path, image: &Image<'_>) -> Option<(&'static [u8], Image<'static>)> {
    let mut candidates = Vec::new();
    if let Some([first, rest @ ..]) = image.build_id() {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        candidates.push(PathBuf::from(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{rest}.debug")));
    }
    if let (Some(name), Some(directory)) =
        (image.debug_link().and_then(|name| std::str::from_utf8(name).ok()), path.parent())
    {
        let below_root = Path::new(DEBUG_ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
        candidates.extend([directory.join(name), directory.join(".debug").join(name), below_root.join(name)]);
    }
    candidates.iter().filter(|candidate| *candidate != path).find_map(|candidate| {
        let bytes = read(candidate)?;
        let other = Image::parse(bytes)?;
        image.is_described_by(&other, bytes).then_some((bytes, other))
    })
}
