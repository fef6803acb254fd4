//! Reads one process.

use crate::model::{Light, Neap, Rollup};
use crate::parse;
use neap_account::parse as lists;
use neap_counters::Snapshot;
use neap_process::kernel_file;
use std::fs::File;
use std::io::{self, ErrorKind, Read};

/// Bytes of a first read. `status` is longer only for a user in hundreds of groups.
const SHORT: usize = 4096;

/// Why a process was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has ended.
    Ended,
    /// Denied to this user.
    Denied,
    /// It has no memory (a kernel thread), or the filter does not accept it.
    NoMemory,
    /// Anything else.
    Other,
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Why::Ended,
            _ if error.raw_os_error() == Some(libc::ESRCH) => Why::Ended,
            ErrorKind::PermissionDenied => Why::Denied,
            _ => Why::Other,
        }
    }
}

/// Reads a file of `/proc/PID` into a buffer that is reused.
fn text<'b>(pid: u32, name: &str, buffer: &'b mut Vec<u8>) -> Result<std::borrow::Cow<'b, str>, Why> {
    buffer.clear();
    File::open(format!("/proc/{pid}/{name}"))?.read_to_end(buffer)?;
    Ok(String::from_utf8_lossy(buffer))
}

/// The same for a file that the kernel makes as a whole: one read, if it is no longer than `SHORT`.
fn short<'b>(pid: u32, name: &str, buffer: &'b mut Vec<u8>) -> Result<std::borrow::Cow<'b, str>, Why> {
    buffer.resize(SHORT, 0);
    let mut file = File::open(format!("/proc/{pid}/{name}"))?;
    let count = file.read(buffer)?;
    buffer.truncate(count);
    if count == SHORT {
        file.read_to_end(buffer)?;
    }
    Ok(String::from_utf8_lossy(buffer))
}

/// The name and the light figures of `stat`, and a thread that has not ended: the first one may have, while others run.
pub fn stat(pid: u32, buffer: &mut Vec<u8>) -> Result<(String, Light, u32), Why> {
    let stat = short(pid, "stat", buffer)?;
    if parse::is_kernel(&stat) {
        return Err(Why::NoMemory);
    }
    let is_zombie = stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'));
    let (name, light) = parse::stat(&stat).ok_or(Why::Other)?;
    Ok((name, light, if is_zombie { neap_process::living(pid) } else { pid }))
}

/// Adds the light figures of `status`.
pub fn status(via: u32, buffer: &mut Vec<u8>, light: &mut Light) -> Result<(), Why> {
    if parse::status(&short(via, "status", buffer)?, light) { Ok(()) } else { Err(Why::NoMemory) }
}

/// The arguments.
pub fn cmdline(pid: u32) -> Vec<u8> {
    kernel_file(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// The container.
pub fn container(pid: u32) -> String {
    parse::container(&String::from_utf8_lossy(&kernel_file(format!("/proc/{pid}/cgroup")).unwrap_or_default()))
}

/// Reads `/proc/PID/maps`: the allocator, and neap's counters page.
pub fn mapped(pid: u32, buffer: &mut Vec<u8>) -> Result<(&'static str, Option<neap_observe::Page>), Why> {
    let is_empty = text(pid, "maps", buffer)?.is_empty();
    // Its first thread may have ended.
    let pid = if is_empty { neap_process::living(pid) } else { pid };
    let maps = if is_empty { text(pid, "maps", buffer)? } else { String::from_utf8_lossy(buffer) };
    if maps.is_empty() {
        return Err(Why::Ended);
    }
    let page = neap_observe::Page::find_in(pid, maps.as_bytes()).ok();
    Ok((if page.is_some() { "neap" } else { parse::allocator(&maps) }, page))
}

/// The figures of neap's counters page.
pub fn neap(snapshot: &Snapshot) -> Neap {
    let gauges = &snapshot.gauges;
    Neap {
        live: gauges.live_bytes,
        kept: gauges.cached_bytes + gauges.dirty_bytes + gauges.lazy_bytes,
        purged: gauges.purged_bytes,
        purge_calls: gauges.purge_calls,
    }
}

/// Pss and huge pages. With `exact` by the kernel's own sums, for which a large process has to wait.
pub fn rollup(pid: u32, exact: bool) -> Result<Rollup, Why> {
    let pid = neap_process::living(pid);
    let (figures, knows_pss) = match exact {
        true => {
            let text = kernel_file(format!("/proc/{pid}/smaps_rollup"))?;
            // It had memory when its light figures were read.
            if text.is_empty() {
                return Err(Why::Ended);
            }
            (lists::rollup(&String::from_utf8_lossy(&text)), true)
        }
        false => neap_why::total(pid)?,
    };
    Ok(Rollup {
        rss: figures.rss,
        pss: knows_pss.then_some(figures.pss),
        private: figures.private_clean + figures.private_dirty,
        huge: figures.anon_huge,
        swap: figures.swap,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Catches a process that ended while it was read and that is not counted as an error.
    #[test]
    fn what_has_ended_is_an_error() {
        let mut child = Command::new("true").spawn().expect("true(1)");
        let mut buffer = Vec::new();
        while status(child.id(), &mut buffer, &mut Light::default()) != Err(Why::NoMemory) {
            std::thread::yield_now();
        }
        let rollup = [true, false].map(|exact| rollup(child.id(), exact).err());
        let mapped = mapped(child.id(), &mut buffer).err();
        child.wait().expect("it has ended");
        assert_eq!((rollup, mapped), ([Some(Why::Ended); 2], Some(Why::Ended)));
    }
}
