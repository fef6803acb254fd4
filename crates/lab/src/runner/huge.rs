//! The program `huge`: sets the system for one kind of memory, walks, and sets it back.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::Runner;
use crate::catalogue::HUGE_KINDS;
use crate::outcome::Outcome;
use crate::settings::{Settings, chosen};
use crate::sources;

/// Where the kernel keeps its settings of transparent huge pages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// The size of the pool of huge pages.
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// Bytes of a huge page of the pool.
const HUGE: u64 = 2 << 20;

/// Walks over memory of one kind.
pub fn run(
    runner: &Runner,
    kind: &str,
    (low, high, step): (u32, u32, u32),
    variables: &[String],
    timeout: Duration,
) -> Result<Outcome> {
    // A walk that leaves no memory to anybody else tells nothing.
    let room = available();
    if room < 2 << high {
        return Ok(Outcome::skipped(format!("needs {} MiB of free memory", (2u64 << high) >> 20)));
    }
    let mut settings = Settings::new(runner.place);
    if let Err(reason) = prepare(&mut settings, runner, kind, high) {
        return Ok(Outcome::skipped(format!("{reason:#}")));
    }
    let numbers = [("--low", low), ("--high", high), ("--step", step)];
    let mut command: Vec<OsString> = vec![sources::experiment(runner.place, "huge")?.into(), "--kind".into()];
    command.push(kind.into());
    command.extend(numbers.iter().flat_map(|(name, value)| [OsString::from(name), value.to_string().into()]));
    let outcome = runner.measure(variables, &command, timeout);
    drop(settings);
    outcome
}

/// Makes the system give this kind of memory; fails where it does not.
fn prepare(settings: &mut Settings, runner: &Runner, kind: &str, high: u32) -> Result<()> {
    match kind {
        "thp" => allow(settings, &format!("{THP}/enabled")),
        "mthp" => {
            allow(settings, &format!("{THP}/enabled"))?;
            // Of several sizes that are allowed the kernel takes the greatest.
            for size in ["128", "256", "512", "1024", "2048"] {
                settings.set(&format!("{THP}/hugepages-{size}kB/enabled"), "never")?;
            }
            settings.set(&format!("{THP}/hugepages-64kB/enabled"), "madvise")
        }
        _ if HUGE_KINDS.iter().any(|&(name, _, pool)| name == kind && pool) => {
            reserve(settings, (1u64 << high) / HUGE + 2)?;
            let mounted = || fs::read_to_string("/proc/mounts").is_ok_and(|text| text.contains(" hugetlbfs "));
            if kind == "file" && !mounted() {
                settings.mount("hugetlbfs", &runner.place.cache.join("hugetlbfs"))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Makes MADV_HUGEPAGE work where the system says `never`.
fn allow(settings: &mut Settings, path: &str) -> Result<()> {
    match fs::read_to_string(path) {
        Ok(text) if chosen(&text) == "never" => settings.set(path, "madvise"),
        Ok(_) => Ok(()),
        Err(error) => anyhow::bail!("this kernel has no transparent huge pages: {error}"),
    }
}

/// Adds free pages to the pool.
fn reserve(settings: &mut Settings, pages: u64) -> Result<()> {
    let free = || meminfo("HugePages_Free:").saturating_sub(meminfo("HugePages_Rsvd:"));
    if free() >= pages {
        return Ok(());
    }
    let total = meminfo("HugePages_Total:") + pages - free();
    settings.set(POOL, &total.to_string())?;
    let got = free();
    if got < pages {
        anyhow::bail!("the kernel found {got} of {pages} huge pages");
    }
    Ok(())
}

fn meminfo(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(key));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Memory that programs can have without swapping.
fn available() -> u64 {
    meminfo("MemAvailable:") * 1024
}
