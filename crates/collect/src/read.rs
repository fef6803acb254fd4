//! Reads one process.

use crate::model::{Light, Neap, Rollup};
use crate::parse;
use neap_account::parse as lists;
use neap_counters::Snapshot;
use std::fs;
use std::fs::File;
use std::io::{self, ErrorKind, Read};

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

/// The name and the light figures.
pub fn light(pid: u32, buffer: &mut Vec<u8>) -> Result<(String, Light), Why> {
    let stat = text(pid, "stat", buffer)?;
    let is_zombie = stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'));
    let (name, mut light) = parse::stat(&stat).ok_or(Why::Other)?;
    let of = |pid, buffer: &mut Vec<u8>, light: &mut Light| {
        text(pid, "status", buffer).map(|status| parse::status(&status, light))
    };
    // Its first thread may have ended while others run.
    let other = if is_zombie { neap_process::living(pid) } else { pid };
    if !of(other, buffer, &mut light)? {
        return Err(Why::NoMemory);
    }
    Ok((name, light))
}

/// The arguments.
pub fn cmdline(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// The container.
pub fn container(pid: u32) -> String {
    parse::container(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default()))
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

/// Pss and huge pages.
pub fn rollup(pid: u32) -> Result<Rollup, Why> {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", neap_process::living(pid)))?;
    // It had memory when its light figures were read.
    if text.is_empty() {
        return Err(Why::Ended);
    }
    let figures = lists::rollup(&text);
    Ok(Rollup {
        rss: figures.rss,
        pss: figures.pss,
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
        while light(child.id(), &mut Vec::new()) != Err(Why::NoMemory) {
            std::thread::yield_now();
        }
        let (rollup, mapped) = (rollup(child.id()).err(), mapped(child.id(), &mut Vec::new()).err());
        child.wait().expect("it has ended");
        assert_eq!((rollup, mapped), (Some(Why::Ended), Some(Why::Ended)));
    }
}
