//! The cgroups that limit this process: where their files are, and what they contain. Functions that open files are not
//! inlined, so that their stack frames do not add up.

use super::files::{Buffers, Files, LINE, Path, parent, push_groups};
use super::parse::{Mount, Seen, Version, group, kilobytes, mount, pressure, seen, value};
use crate::system::lines::{digest_of, unescape};
use neap_core::os::Memory;

/// Limit of cgroups that are kept, the innermost ones with a limit. Kubernetes sets three around a process: of the
/// container, of its pod, of all pods.
pub(super) const MAX_LEVELS: usize = 6;

/// Limit of cgroups that are examined, from the process outwards.
const MAX_DEPTH: usize = 32;

/// Least pressure at which a process counts as stalled: hundredths of a percent of the last ten seconds in which some
/// thread waited for memory. At 10 % systemd asks services to give memory back (MemoryPressureThresholdSec=, 200 ms of
/// 2 s). With a much lower limit, every program that reads files in a full container would count.
const STALLED: u64 = 10_00;

/// A cgroup with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Level {
    /// Length of its directory, which is the front of [`Groups::path`].
    pub len: usize,
    /// Bytes that it may use.
    pub limit: u64,
}

/// The cgroups that limit this process.
///
/// `levels[..count]` are valid, innermost first: each `len` is at most the one before it, and none exceeds the path.
#[derive(Debug)]
pub(super) struct Groups {
    /// Hash of the process's line in /proc/self/cgroup. A change means that the process was moved.
    pub line: u64,
    /// Which interface; `None` if no memory controller was found.
    pub version: Option<Version>,
    /// Directory of the process's own cgroup.
    pub path: Path,
    /// Length of the mount point, which is the front of `path`.
    pub top: usize,
    /// How many of `levels` are valid.
    pub count: usize,
    /// cgroups with a limit.
    pub levels: [Level; MAX_LEVELS],
}

impl Groups {
    /// No cgroup.
    pub(super) const NONE: Groups = Groups {
        line: 0,
        version: None,
        path: Path::new(),
        top: 0,
        count: 0,
        levels: [Level { len: 0, limit: 0 }; MAX_LEVELS],
    };

    /// Finds the process's cgroup, and the limits on it and around it. With `keep` its place is looked up again only if
    /// the process was moved.
    #[inline(never)]
    pub(super) fn find(&mut self, files: Files, buffers: &mut Buffers, keep: bool) {
        let own_group = own_group(files, buffers);
        let line = own_group.map_or(0, |(_, line)| line);
        if !keep || self.line != line {
            (self.line, self.version, self.top) = (line, None, 0);
            self.path.clear();
            if let Some((version, _)) = own_group {
                self.locate(files, version, buffers);
            }
        }
        self.survey(files);
    }

    /// Finds the directory of the cgroup `buffers.own` in the table of mounts.
    ///
    /// Takes the first mount that shows the cgroup. The rest of the table is not read, because it may have thousands of
    /// lines. If no mount shows it, see [`Seen::Unknown`].
    #[inline(never)]
    fn locate(&mut self, files: Files, version: Version, buffers: &mut Buffers) {
        let Buffers { line, own, point: path } = buffers;
        let own = own.bytes();
        let Some(mut lines) = files.lines(b"/proc/self", b"mountinfo", line) else { return };
        while let Some(line) = lines.next() {
            let Some(Mount { root, point }) = mount(line, version) else { continue };
            let seen = seen(own, root);
            if seen == Seen::Unknown && self.version.is_some() {
                continue;
            }
            path.clear();
            if !path.extend(unescape(point)) {
                continue;
            }
            self.top = path.bytes().len();
            self.version = Some(version);
            if let Seen::At(below) = seen {
                push_groups(path, below);
            }
            self.path = *path;
            if seen != Seen::Unknown {
                return;
            }
        }
    }

    /// Looks for limits, from the own cgroup outwards to the mount point.
    #[inline(never)]
    fn survey(&mut self, files: Files) {
        self.count = 0;
        let Some(version) = self.version else { return };
        // A limit above all memory counts as none. v1 writes "no limit" as the largest number of whole OS pages.
        let total = total(files).unwrap_or(i64::MAX.cast_unsigned() >> 1);
        let mut dir = self.path.bytes();
        for depth in 0..MAX_DEPTH {
            if depth > 0 && version == Version::V1 && flat(files, dir) {
                break;
            }
            let limit = limit(files, version, dir).filter(|&l| l <= total);
            if let (Some(limit), Some(_)) = (limit, usage(files, version, dir)) {
                let Some(place) = self.levels.get_mut(self.count) else { break };
                *place = Level { len: dir.len(), limit };
                self.count += 1;
            }
            if dir.len() <= self.top {
                break;
            }
            dir = parent(dir);
            if dir.len() < self.top {
                break;
            }
        }
    }

    /// The directory of a level.
    fn front(&self, level: &Level) -> &[u8] {
        self.path.bytes().get(..level.len).unwrap_or_default()
    }

    /// The figures of the cgroup that has the least memory left. `None` if there is no cgroup, or if one cannot be read
    /// any more.
    #[cold]
    pub(super) fn memory(&self, files: Files, buffers: &mut Buffers) -> Option<Memory> {
        let version = self.version?;
        let levels = self.levels.get(..self.count)?;
        let mut best: Option<(&Level, u64)> = None;
        let left = |level: &Level, used: u64| level.limit.saturating_sub(used);
        for level in levels {
            let dir = self.front(level);
            let has_least = |used| best.is_none_or(|(least, its_used)| left(level, used) < left(least, its_used));
            let used = usage(files, version, dir)?;
            // memory.stat costs most to read. Memory that can be taken back only adds to what is left, so the file is
            // read only for a cgroup that has the least without it.
            if has_least(used) {
                let used = used.saturating_sub(reclaimable(files, version, dir, &mut buffers.line));
                if has_least(used) {
                    best = Some((level, used));
                }
            }
        }
        let (level, used) = best?;
        let own = match version {
            Version::V1 => None,
            Version::V2 => stalled(files, self.front(level), b"memory.pressure"),
        };
        let stalled = own.unwrap_or_else(|| machine_stalled(files));
        Some(Memory { limit: bytes(level.limit), used: bytes(used), stalled })
    }
}

/// The machine's memory. `None` without /proc.
#[cold]
pub(super) fn machine(files: Files, buffers: &mut Buffers) -> Option<Memory> {
    let mut lines = files.lines(b"/proc", b"meminfo", &mut buffers.line)?;
    let (mut total, mut free, mut inactive) = (None, 0, 0);
    let mut available = None;
    while let Some(line) = lines.next() {
        total = total.or(kilobytes(line, b"MemTotal:"));
        available = available.or(kilobytes(line, b"MemAvailable:"));
        if total.is_some() && available.is_some() {
            break;
        }
        // Kernels before 3.14 have no line for available memory.
        free = kilobytes(line, b"MemFree:").unwrap_or(free);
        inactive = kilobytes(line, b"Inactive(file):").unwrap_or(inactive);
    }
    drop(lines);
    let total = total.filter(|&t| t > 0)?;
    let used = total.saturating_sub(available.unwrap_or(free.saturating_add(inactive)));
    Some(Memory { limit: bytes(total), used: bytes(used), stalled: machine_stalled(files) })
}

/// Writes the process's cgroup into `buffers.own`, cut where it is too long; returns the interface and the hash of the
/// line.
#[inline(never)]
fn own_group(files: Files, buffers: &mut Buffers) -> Option<(Version, u64)> {
    let Buffers { line, own: path, .. } = buffers;
    path.clear();
    let mut lines = files.lines(b"/proc/self", b"cgroup", line)?;
    let mut found = None;
    while let Some(line) = lines.next() {
        let Some((version, own)) = group(line) else { continue };
        path.clear();
        push_groups(path, own);
        found = Some((version, digest_of(line.iter().copied())));
        if version == Version::V1 {
            break;
        }
    }
    found
}

/// Whether the limit of this cgroup of v1 leaves out what its children use (before Linux 5.11, unless switched on).
fn flat(files: Files, dir: &[u8]) -> bool {
    files.number(dir, b"memory.use_hierarchy") == Some(0)
}

/// The limit of a cgroup, if it has one.
fn limit(files: Files, version: Version, dir: &[u8]) -> Option<u64> {
    let read = |name| files.number(dir, name);
    match version {
        Version::V1 => read(b"memory.limit_in_bytes"),
        // Above `high` the kernel slows threads down until memory is taken back.
        Version::V2 => match (read(b"memory.max"), read(b"memory.high")) {
            (Some(max), Some(high)) => Some(max.min(high)),
            (max, high) => max.or(high),
        },
    }
}

/// Bytes that a cgroup uses.
#[inline(never)]
fn usage(files: Files, version: Version, dir: &[u8]) -> Option<u64> {
    let name: &[u8] = match version {
        Version::V1 => b"memory.usage_in_bytes",
        Version::V2 => b"memory.current",
    };
    files.number(dir, name)
}

/// Bytes that the system can take back from a cgroup at once; 0 if it does not say.
#[inline(never)]
fn reclaimable(files: Files, version: Version, dir: &[u8], line: &mut [u8; LINE]) -> u64 {
    let (file_key, slab_key): (&[u8], Option<&[u8]>) = match version {
        Version::V1 => (b"total_inactive_file", None),
        Version::V2 => (b"inactive_file", Some(b"slab_reclaimable")),
    };
    let Some(mut lines) = files.lines(dir, b"memory.stat", line) else { return 0 };
    let (mut file, mut slab) = (None, slab_key.is_none().then_some(0));
    while let Some(line) = lines.next() {
        file = file.or_else(|| value(line, file_key));
        slab = slab.or_else(|| value(line, slab_key?));
        if file.is_some() && slab.is_some() {
            break;
        }
    }
    // Half of the kernel's own caches counts, as in its MemAvailable: the rest may be in use.
    file.unwrap_or(0).saturating_add(slab.unwrap_or(0) / 2)
}

fn machine_stalled(files: Files) -> bool {
    stalled(files, b"/proc/pressure", b"memory").unwrap_or(false)
}

/// Whether threads wait for memory. `None` where the kernel does not say.
#[inline(never)]
fn stalled(files: Files, dir: &[u8], name: &[u8]) -> Option<bool> {
    // Only the first line matters.
    let mut buffer = [0; 64];
    Some(pressure(files.read(dir, name, &mut buffer)?)? >= STALLED)
}

/// Bytes of the machine's memory: the first line of /proc/meminfo.
fn total(files: Files) -> Option<u64> {
    files.read(b"/proc", b"meminfo", &mut [0; 64]).and_then(|text| kilobytes(text, b"MemTotal:")).filter(|&t| t > 0)
}

fn bytes(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
