//! The program `huge`: sets the system for one kind of memory, walks, and sets it back.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use neap_hugetlb::reservation::{Request, Reservation};
use neap_hugetlb::{Root, pool::Pool};

use super::launch::Launcher;
use crate::catalogue::HUGE_KINDS;
use crate::failure::failure;
use crate::outcome::Outcome;
use crate::place::Place;
use crate::settings::{Settings, chosen};
use crate::sources;

/// Where the kernel keeps its settings of transparent huge pages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// The fraction of the greatest walk that must be in huge pages: its ends and single pages may not be.
const ENOUGH: f64 = 0.9;
/// Bytes of a huge page of the pool.
const HUGE: u64 = 2 << 20;

/// Walks over memory of one kind.
pub fn run(
    place: &Place,
    launcher: &Launcher,
    kind: &str,
    ((low, high, step), settle_ms): ((u32, u32, u32), u32),
    variables: &[String],
    timeout: Duration,
) -> Result<Outcome> {
    let mut settings = Settings::new(place);
    let reservation = match prepare(&mut settings, place, kind, high) {
        Ok(reservation) => reservation,
        Err(reason) => return Ok(Outcome::skipped(format!("{reason:#}"))),
    };
    let numbers = [("--low", low), ("--high", high), ("--step", step), ("--settle", settle_ms)];
    let mut command: Vec<OsString> = vec![sources::experiment(place, "huge")?.into(), "--kind".into()];
    command.push(kind.into());
    command.extend(numbers.iter().flat_map(|(name, value)| [OsString::from(name), value.to_string().into()]));
    let before = pages_of_64_kib();
    let outcome = launcher.measure(variables, &command, timeout);
    let after = pages_of_64_kib();
    drop((reservation, settings));
    let outcome = outcome?;
    let given = match kind {
        "mthp" => after.zip(before).map(|(after, before)| after.saturating_sub(before) as f64 / 16.0),
        "thp" => outcome.value("huge"),
        _ => None,
    };
    Ok(really(outcome, given, high))
}

/// The outcome, or a skip if the kernel had too few huge pages for the greatest walk: then its figures are those of
/// small pages. `given` is the number of MiB in huge pages; none if they are not counted.
fn really(outcome: Outcome, given: Option<f64>, high: u32) -> Outcome {
    let walked = (1u64 << high) as f64 / f64::from(1 << 20);
    match given.filter(|&given| outcome.is_ok() && given < walked * ENOUGH) {
        Some(given) => Outcome::skipped(format!("the kernel gave {given:.0} of {walked:.0} MiB in huge pages")),
        None => outcome,
    }
}

/// Pages of 64 KiB that the kernel has given since boot; none if it does not count them (before Linux 6.10).
fn pages_of_64_kib() -> Option<u64> {
    let text = fs::read_to_string(format!("{THP}/hugepages-64kB/stats/anon_fault_alloc")).ok()?;
    text.trim().parse().ok()
}

/// Sets the system to give this kind of memory, and returns the pages reserved for it. Fails if the system cannot.
fn prepare(settings: &mut Settings, place: &Place, kind: &str, high: u32) -> Result<Option<Reservation>> {
    match kind {
        "thp" => {
            allow(settings, &format!("{THP}/enabled"))?;
            // Kernels before 6.8 have one size, and no such file.
            let size = format!("{THP}/hugepages-2048kB/enabled");
            if Path::new(&size).exists() {
                allow(settings, &size)?;
            }
            Ok(None)
        }
        "mthp" => {
            allow(settings, &format!("{THP}/enabled"))?;
            // Of several allowed sizes the kernel takes the greatest.
            for size in ["128", "256", "512", "1024", "2048"] {
                settings.set(&format!("{THP}/hugepages-{size}kB/enabled"), "never")?;
            }
            settings.set(&format!("{THP}/hugepages-64kB/enabled"), "madvise")?;
            Ok(None)
        }
        _ if HUGE_KINDS.iter().any(|&(name, _, pool)| name == kind && pool) => {
            let reservation = reserve((1u64 << high) / HUGE + 2)?;
            let mounted = || fs::read_to_string("/proc/mounts").is_ok_and(|text| text.contains(" hugetlbfs "));
            if kind == "file" && !mounted() {
                settings.mount("hugetlbfs", &place.cache.join("hugetlbfs"))?;
            }
            Ok(reservation)
        }
        _ => Ok(None),
    }
}

/// Makes MADV_HUGEPAGE work if the setting is `never`.
fn allow(settings: &mut Settings, path: &str) -> Result<()> {
    match fs::read_to_string(path) {
        Ok(text) if chosen(&text) == "never" => settings.set(path, "madvise"),
        Ok(_) => Ok(()),
        Err(error) => anyhow::bail!("this kernel has no transparent huge pages: {error}"),
    }
}

/// Adds pages to the pool until `pages` of it are free.
fn reserve(pages: u64) -> Result<Option<Reservation>> {
    let root = Root::system();
    let free = Pool::read(&root, HUGE).map_or(0, |pool| pool.available());
    if free >= pages {
        return Ok(None);
    }
    let request = Request { bytes: HUGE, node: None, pages: pages - free };
    Reservation::new(&root, request).map(Some).map_err(|refused| failure(refused.cause, refused.remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch 4 KiB pages that are measured as huge ones because the kernel had none.
    #[test]
    fn huge_pages_must_have_been_given() {
        let good = || Outcome::good(Vec::new());
        assert!(really(good(), Some(512.0), 29).is_ok());
        assert!(really(good(), None, 29).is_ok());
        let skipped = really(good(), Some(100.0), 29);
        assert_eq!(skipped.status, "skipped: the kernel gave 100 of 512 MiB in huge pages");
        assert_eq!(really(Outcome::failed("timeout"), Some(0.0), 29).status, "timeout");
    }
}
