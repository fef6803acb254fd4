//! Names and lines for addresses, from the files that the process has mapped.

use neap_process::file::{self, Identity};
use neap_process::maps::{Mapping, smaps};
use neap_process::perf_map;
use neap_symbols::{Image, Line, Lines, Listing, What, demangle};
use std::collections::HashMap;
use std::fs::File;
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

/// An object of a process.
#[derive(Clone, Copy, Debug)]
pub struct Module<'m> {
    /// Its path, as the process knows it: relative if it was opened so, empty if unknown.
    pub path: &'m str,
    /// Its build id; empty if it has none.
    pub build: &'m [u8],
    /// An address in it.
    pub at: u64,
}

/// Files that were opened, by path and build id, and names of code without a file.
pub struct Names {
    /// The process, while it runs, and the files that it has mapped.
    pid: Option<u32>,
    mapped: Vec<Mapping>,
    files: HashMap<(String, Vec<u8>), Option<Opened>>,
    compiled: Result<Listing, PathBuf>,
}

struct Opened {
    image: Image<'static>,
    /// The file with lines: the file itself, or its debug file.
    lines_in: Option<&'static [u8]>,
    lines: Option<Option<Lines>>,
}

impl Names {
    /// Those of a process that runs, or that has ended and had the number `number`.
    pub fn new(pid: Option<u32>, number: u32) -> Self {
        let maps = pid.and_then(|pid| neap_process::maps(pid).ok()).unwrap_or_default();
        let mut mapped = smaps(&String::from_utf8_lossy(&maps));
        mapped.retain(|mapping| mapping.inode != 0);
        let compiled = perf_map::read(pid.unwrap_or(number)).map(|text| Listing::perf_map(&text));
        Names { pid: pid.map(neap_process::living), mapped, files: HashMap::new(), compiled }
    }

    /// The path of a module: that by which the kernel knows it, where the process's own path is relative or unknown.
    pub fn path(&self, module: Module<'_>) -> String {
        let path = module.path;
        let known = self.mapping(module).filter(|mapping| !path.starts_with('/') && is_named(mapping, path));
        known.map_or(path, |mapping| plain(&mapping.name)).to_owned()
    }

    /// The functions at an address as the file states it: inlined ones first, innermost first, then the symbol's
    /// function. Empty for a file of another build.
    pub fn find(&mut self, module: Module<'_>, address: u64) -> Vec<Name> {
        let key = (self.path(module), module.build.to_vec());
        if !self.files.contains_key(&key) {
            let opened = self.open(module);
            self.files.insert(key.clone(), opened);
        }
        let opened = self.files.get_mut(&key).and_then(Option::as_mut);
        opened.map(|opened| opened.functions(address)).unwrap_or_default()
    }

    /// The function at an address of code that the process compiled itself.
    pub fn compiled(&self, address: u64) -> Option<Name> {
        let (name, _, _) = self.compiled.as_ref().ok()?.find(address)?;
        Some(Name { name: name.to_owned(), ..Name::default() })
    }

    /// The list of such code, if it exists but is not trusted.
    pub fn disbelieved(&self) -> Option<&Path> {
        self.compiled.as_ref().err().map(PathBuf::as_path)
    }

    /// The mapping of a module in the process that runs. Another file may be there by now, so the names have to agree
    /// where no build id proves that it is the module.
    fn mapping(&self, module: Module<'_>) -> Option<&Mapping> {
        let at = self.mapped.partition_point(|mapping| mapping.range.end <= module.at);
        let mapping = self.mapped.get(at).filter(|mapping| mapping.range.contains(&module.at))?;
        (!module.build.is_empty() || is_named(mapping, module.path)).then_some(mapping)
    }

    fn open(&self, module: Module<'_>) -> Option<Opened> {
        let Module { path, build, .. } = module;
        let right = |file: File| {
            let bytes = read(file)?;
            let image = Image::parse(bytes)?;
            (build.is_empty() || image.build_id() == Some(build)).then_some((bytes, image))
        };
        let mapped = self.pid.zip(self.mapping(module)).and_then(|(pid, mapping)| {
            let identity = Identity { device: mapping.device, inode: mapping.inode };
            file::open(pid, &mapping.range, plain(&mapping.name), identity).ok()
        });
        // In a container or below a chroot the path names another file here.
        let places = match path.starts_with('/') {
            true => {
                self.pid.map(|pid| format!("/proc/{pid}/root{path}")).into_iter().chain([path.to_owned()]).collect()
            }
            // Relative to the folder that the process, or neap, has now: only a build id proves that it is the file.
            false if path.is_empty() || build.is_empty() => Vec::new(),
            false => {
                self.pid.map(|pid| format!("/proc/{pid}/cwd/{path}")).into_iter().chain([path.to_owned()]).collect()
            }
        };
        let found = mapped.and_then(right);
        let found = found.or_else(|| places.iter().find_map(|place| right(file::regular(place.as_ref(), None).ok()?)));
        let (bytes, image) = found?;
        Some(Opened::new(&self.path(module), bytes, image))
    }
}

/// Whether the file at the end of a path may be that of a mapping, by its name; any if no path is known.
fn is_named(mapping: &Mapping, path: &str) -> bool {
    path.is_empty() || path.rsplit('/').next() == plain(&mapping.name).rsplit('/').next()
}

/// The kernel's name of a file, without its remark.
fn plain(name: &str) -> &str {
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

impl Opened {
    fn new(path: &str, bytes: &'static [u8], mut image: Image<'static>) -> Self {
        let mut lines_in = image.has_lines().then_some(bytes);
        if let Some((debug, other)) = debug_file(Path::new(path), &image) {
            if other.has_lines() {
                lines_in = Some(debug);
            }
            image.add_symbols(other);
        }
        Opened { image, lines_in, lines: None }
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

/// The contents of a file, for the rest of this process: symbols borrow from them. Files longer than any program are not
/// read.
fn read(mut file: File) -> Option<&'static [u8]> {
    if file.metadata().ok()?.len() > MOST {
        return None;
    }
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
        let bytes = read(file::regular(candidate, None).ok()?)?;
        let other = Image::parse(bytes)?;
        image.is_described_by(&other, bytes).then_some((bytes, other))
    })
}
