//! The machine and its settings, for the record.

use std::fs;
use std::process::Command;

use neap_results::Machine;

use crate::allocators::glibc_version;
use crate::toolchain::{cc, cxx, run, version_line};

/// Reads them.
pub fn look() -> Machine {
    Machine {
        cpu: value_in("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        memory_mib: meminfo_mib("MemTotal"),
        kernel: line_of("/proc/sys/kernel/osrelease"),
        libc: format!("glibc {}", glibc_version()),
        transparent_hugepage: line_of("/sys/kernel/mm/transparent_hugepage/enabled"),
        overcommit_memory: line_of("/proc/sys/vm/overcommit_memory"),
        governor: fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
            .ok()
            .map(|text| text.trim().to_owned()),
        virtualised: virtualised(),
        swap_mib: meminfo_mib("SwapTotal"),
        load_before: load(),
        load_after: String::new(),
        compilers: vec![version_line(&cc()), version_line(&cxx())],
    }
}

/// Load averages.
pub fn load() -> String {
    let line = line_of("/proc/loadavg");
    line.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The time as `2026-01-31T12:00:00Z`.
pub fn utc_now() -> String {
    date("+%Y-%m-%dT%H:%M:%SZ")
}

/// The time as part of a file's name: `2026-01-31-120000`.
pub fn stamp() -> String {
    date("+%Y-%m-%d-%H%M%S")
}

fn date(format: &str) -> String {
    run(Command::new("date").args(["-u", format])).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// The hypervisor, where the processor says that there is one.
fn virtualised() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    flags.split_whitespace().find(|flag| *flag == "hypervisor")?;
    let names = ["/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor"];
    let name = names.iter().find_map(|path| fs::read_to_string(path).ok());
    Some(name.map_or_else(|| "yes".into(), |text| text.trim().to_owned()))
}

fn line_of(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// The value of the first line `key : value` of a file.
fn value_in(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn meminfo_mib(key: &str) -> u64 {
    let value = value_in("/proc/meminfo", key).unwrap_or_default();
    let kib: Option<u64> = value.split(' ').next().and_then(|n| n.parse().ok());
    kib.unwrap_or_default() / 1024
}
