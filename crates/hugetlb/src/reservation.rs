//! Pages that are added to a pool, and taken away again.
//!
//! Several processes may reserve at the same time. Each adds what it needs, and later removes the same number, instead
//! of restoring a total that it saw. So none removes pages of another, in whatever order they end. A change is made
//! under a lock (`Lock`), because the kernel accepts only totals. Manual changes meanwhile stay.
//!
//! The kernel spreads added pages over the nodes, and may remove them from other nodes. So neap notes what each node
//! got, and removes it there.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};

use crate::journal::{Journal, Lock, Undo, restore_leftovers};
use crate::pool::{self, Counts, Place};
use crate::refused::Refused;
use crate::root::Root;
use crate::size;

/// How often a pool is enlarged again because pages of the surplus became pages of the pool.
const TRIES: u32 = 4;

/// What to reserve.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The size of a page.
    pub bytes: u64,
    /// On this node only.
    pub node: Option<u32>,
    /// How many pages.
    pub pages: u64,
}

impl Request {
    fn place(&self) -> Place {
        match self.node {
            Some(node) => Place::node(node, self.bytes),
            None => Place::machine(self.bytes),
        }
    }

    /// The places whose numbers change: the node, or all of them; the machine if the kernel knows no nodes.
    fn parts(&self, root: &Root) -> Vec<Place> {
        let has_pool = |place: &Place| place.counts(root).is_ok();
        let nodes = match self.node {
            Some(node) => vec![node],
            None => pool::nodes(root),
        };
        let parts: Vec<Place> = nodes.into_iter().map(|node| Place::node(node, self.bytes)).filter(has_pool).collect();
        if parts.is_empty() { vec![self.place()] } else { parts }
    }
}

/// Added pages. They are taken away when the value is dropped, or after a kill by the next reservation.
#[derive(Debug)]
pub struct Reservation {
    root: Root,
    journal: Journal,
    steps: Vec<Undo>,
}

impl Reservation {
    /// Adds free pages to a pool. If the kernel gives fewer, the pool is restored.
    pub fn new(root: &Root, request: Request) -> Result<Reservation, Refused> {
        check(root, request)?;
        let lock = Lock::take(root)?;
        let journal = Journal::own(root, &lock)?;
        restore_leftovers(root, &lock);
        let (place, parts) = (request.place(), request.parts(root));
        let unreadable =
            |error: io::Error| Refused::new(format!("cannot read the pool: {error}"), "mount sysfs at /sys");
        let sizes = |parts: &[Place]| -> io::Result<Vec<u64>> {
            parts.iter().map(|part| part.counts(root).map(Counts::size)).collect()
        };
        let before = sizes(&parts).map_err(unreadable)?;
        let steps = parts.iter().cloned().zip(&before).map(|(part, &size)| Undo::Size(part, size)).collect();
        let mut reservation = Reservation { root: root.clone(), journal, steps };
        let gains = |after: Vec<u64>| {
            let gain = |((part, before), after): ((Place, &u64), u64)| {
                after.checked_sub(*before).filter(|&gain| gain > 0).map(|gain| Undo::Less(part, gain))
            };
            parts.iter().cloned().zip(&before).zip(after).filter_map(gain).collect()
        };
        let reserved = reservation.write_journal().and_then(|()| grow(root, &place, request)).and_then(|()| {
            reservation.steps = gains(sizes(&parts).map_err(unreadable)?);
            reservation.write_journal()
        });
        match reserved {
            Ok(()) => Ok(reservation),
            Err(refused) => {
                let _ = reservation.undo(&lock);
                Err(refused)
            }
        }
    }

    fn write_journal(&self) -> Result<(), Refused> {
        self.journal.write(&self.steps).map_err(|error| {
            Refused::new(format!("cannot note in /run what has to be put back: {error}"), "make room on /run")
        })
    }

    /// Takes the pages away; returns how many were gone already, because another process made the pool smaller.
    pub fn give_back(mut self) -> Result<u64, Refused> {
        let stay = |why: String| {
            Refused::new(
                format!("cannot take the pages out of the pool: {why}"),
                "run `neap huge reserve 1 -- true`, which tries again; until then leave nr_hugepages as it is",
            )
        };
        let lock = Lock::take(&self.root).map_err(|refused| stay(refused.cause))?;
        self.undo(&lock).map_err(|error| stay(error.to_string()))
    }

    /// Undoes all steps, also after one that fails. Steps that others can do later stay in the journal: the next
    /// reservation after the end of this process does them.
    fn undo(&mut self, _: &Lock) -> io::Result<u64> {
        let (mut results, mut left) = (Vec::new(), Vec::new());
        for step in self.steps.drain(..) {
            let result = step.carry_out(&self.root);
            if result.is_err() && matches!(step, Undo::Less(..)) {
                left.push(step);
            }
            results.push(result);
        }
        if left.is_empty() || self.journal.write(&left).is_err() {
            self.journal.remove();
        }
        results.into_iter().sum()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.steps.is_empty()
            && let Ok(lock) = Lock::take(&self.root)
        {
            let _ = self.undo(&lock);
        }
    }
}

/// Refuses what cannot succeed, before anything is changed.
fn check(root: &Root, request: Request) -> Result<(), Refused> {
    let Request { bytes, node, pages } = request;
    let page = size::text(bytes);
    let Ok(sizes) = pool::sizes(root) else {
        return Err(Refused::new(
            "this system shows no pools of huge pages: /sys/kernel/mm/hugepages cannot be read",
            "mount sysfs at /sys; a kernel without CONFIG_HUGETLBFS has no pools",
        ));
    };
    if !sizes.contains(&bytes) {
        let names: Vec<String> = sizes.into_iter().map(size::text).collect();
        return Err(Refused::new(
            format!("this system has no huge pages of {page}"),
            format!("name one of its sizes with --size: {}", names.join(", ")),
        ));
    }
    let place = request.place();
    if let Some(node) = node
        && place.counts(root).is_err()
    {
        let nodes: Vec<String> = pool::nodes(root).iter().map(u32::to_string).collect();
        return Err(Refused::new(
            format!("this system has no NUMA node {node} with memory"),
            format!("its nodes are: {}", nodes.join(", ")),
        ));
    }
    if let Err(error) = OpenOptions::new().write(true).open(root.path(&place.setting())) {
        let cause = format!("cannot change {}: {error}", place.setting());
        return Err(match error.kind() {
            ErrorKind::ReadOnlyFilesystem => {
                Refused::new(cause, "sysfs is mounted read-only, as in most containers: reserve the pages on the host")
            }
            _ => Refused::new(cause, "only root can reserve huge pages: sudo neap huge reserve ..."),
        });
    }
    let wanted = pages.saturating_mul(bytes);
    match available(root) {
        Some(free) if wanted > free => Err(Refused::new(
            format!(
                "{pages} pages of {page} are {} MiB, and the machine has {} MiB of memory available",
                wanted >> 20,
                free >> 20
            ),
            "reserve fewer pages, or end programs",
        )),
        _ => Ok(()),
    }
}

/// Bytes that programs can get without swapping.
fn available(root: &Root) -> Option<u64> {
    let text = root.read("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Enlarges the pool until it has `pages` more. Pages of the surplus become pages of the pool first: those are in use,
/// so they do not count.
fn grow(root: &Root, place: &Place, request: Request) -> Result<(), Refused> {
    let Request { bytes, pages, .. } = request;
    let page = size::text(bytes);
    let failed =
        |error: io::Error| Refused::new(format!("cannot change {}: {error}", place.setting()), "run neap as root");
    let before = place.counts(root).map_err(failed)?;
    let (mut size, mut gained) = (before.size(), 0);
    for _ in 0..TRIES {
        size += pages - gained;
        place.resize(root, size).map_err(failed)?;
        let now = place.counts(root).map_err(failed)?;
        gained = now.total.saturating_sub(before.total).min(pages);
        if gained == pages {
            return Ok(());
        }
        if now.size() < size {
            break;
        }
    }
    let short = size::short(bytes);
    Err(Refused::new(
        format!("the kernel gave {gained} of {pages} pages of {page}: it found no more free memory in one piece"),
        format!(
            "try again after `echo 1 > /proc/sys/vm/compact_memory`, or reserve at boot, when memory is in one piece: \
             hugepagesz={short} hugepages={pages}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Held, held};
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const MIB_2: u64 = 2 << 20;

    /// A copy of a system with two nodes, which has memory for 100 pages; removed when it is dropped.
    struct System {
        folder: PathBuf,
        root: Root,
    }

    impl System {
        fn new() -> System {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let name = format!("neap-test-hugetlb-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
            let folder = std::env::temp_dir().join(name);
            // A killed test with the same process number left it.
            let _ = fs::remove_dir_all(&folder);
            let root = Root::at(&folder);
            let system = System { folder, root };
            system.write("/run/is-there", "");
            system.write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 204800 kB\n");
            let stat = fs::read_to_string("/proc/self/stat").unwrap();
            system.write(&format!("/proc/{}/stat", std::process::id()), &stat);
            for place in [Place::machine(MIB_2), Place::node(0, MIB_2), Place::node(1, MIB_2)] {
                for (name, number) in [("nr_hugepages", 10), ("free_hugepages", 10), ("surplus_hugepages", 0)] {
                    system.write(&place.file(name), &format!("{number}\n"));
                }
            }
            system
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn size(&self, place: &Place) -> u64 {
            place.counts(&self.root).unwrap().size()
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn on_node_1(pages: u64) -> Request {
        Request { bytes: MIB_2, node: Some(1), pages }
    }

    /// Catches reservations that take each other's pages away, or pages that were added manually.
    #[test]
    fn changes_are_relative() {
        let system = System::new();
        let place = Place::node(1, MIB_2);
        let first = Reservation::new(&system.root, on_node_1(3)).unwrap();
        let second = Reservation::new(&system.root, on_node_1(4)).unwrap();
        assert_eq!(system.size(&place), 17);
        let pages: Vec<_> = held(&system.root).iter().map(|held| (held.alive, held.pages())).collect();
        assert_eq!(pages, [(true, Some((MIB_2, 3))), (true, Some((MIB_2, 4)))]);
        assert_eq!(first.give_back(), Ok(0));
        assert_eq!(system.size(&place), 14);
        place.resize(&system.root, 16).unwrap();
        drop(second);
        assert_eq!((system.size(&place), system.size(&Place::node(0, MIB_2))), (12, 10));
        assert_eq!(held(&system.root), []);
    }

    /// Catches a pool that stays larger although the kernel gave fewer pages, and an unhelpful error.
    #[test]
    fn fewer_pages_than_wanted_are_given_back() {
        let mut system = System::new();
        system.root.most = 12;
        let refused = Reservation::new(&system.root, on_node_1(5)).unwrap_err();
        assert!(refused.cause.starts_with("the kernel gave 2 of 5 pages of 2 MiB"), "{refused}");
        assert!(refused.remedy.contains("compact_memory") && refused.remedy.contains("hugepagesz=2M hugepages=5"));
        assert_eq!((system.size(&Place::node(1, MIB_2)), held(&system.root)), (10, vec![]));
    }

    /// Catches pages that another process took out of the pool, and that are then taken away from a third one.
    #[test]
    fn pages_that_are_gone_are_said() {
        let system = System::new();
        let reservation = Reservation::new(&system.root, on_node_1(8)).unwrap();
        Place::node(1, MIB_2).resize(&system.root, 3).unwrap();
        assert_eq!(reservation.give_back(), Ok(5));
        assert_eq!(system.size(&Place::node(1, MIB_2)), 0);
    }

    /// Catches pages that could not be taken away, without a message.
    #[test]
    fn pages_that_stay_are_said() {
        let system = System::new();
        let reservation = Reservation::new(&system.root, on_node_1(8)).unwrap();
        fs::remove_dir_all(system.root.path("/sys/devices/system/node/node1")).unwrap();
        let refused = reservation.give_back().unwrap_err();
        assert!(refused.cause.contains("No such file") && refused.remedy.contains("nr_hugepages"), "{refused:?}");
    }

    /// Catches pages that stay without a word, as neap cannot take the lock.
    #[test]
    fn pages_that_stay_without_a_lock_are_said() {
        let system = System::new();
        let reservation = Reservation::new(&system.root, on_node_1(8)).unwrap();
        fs::remove_dir_all(system.root.path("/run/neap-huge")).unwrap();
        system.write("/run/neap-huge", "not a folder");
        let refused = reservation.give_back().unwrap_err();
        assert!(refused.cause.contains("out of the pool: cannot lock"), "{refused:?}");
        assert!(refused.remedy.contains("nr_hugepages"), "{refused:?}");
    }

    /// Catches pages that could not be taken away, and that no later reservation takes away either.
    #[test]
    fn pages_that_stay_are_noted() {
        let system = System::new();
        let reservation = Reservation::new(&system.root, on_node_1(8)).unwrap();
        let (node, aside) = ("/sys/devices/system/node/node1", "/sys/devices/system/node/aside");
        fs::rename(system.root.path(node), system.root.path(aside)).unwrap();
        reservation.give_back().unwrap_err();
        fs::rename(system.root.path(aside), system.root.path(node)).unwrap();
        let pages: Vec<_> = held(&system.root).iter().map(|held| held.pages()).collect();
        assert_eq!((system.size(&Place::node(1, MIB_2)), pages), (18, vec![Some((MIB_2, 8))]));
    }

    /// Catches a change that was not begun but is shown, and a live reservation that counts as that of a killed
    /// process.
    #[test]
    fn others_see_what_is_reserved() {
        let system = System::new();
        system.write("/run/neap-huge/1-2-0.new", &format!("size {} 7\n", Place::node(1, MIB_2).0));
        assert_eq!(held(&system.root).iter().map(Held::pages).collect::<Vec<_>>(), [None]);
        fs::remove_dir_all(system.root.path("/proc")).unwrap();
        let refused = Reservation::new(&system.root, on_node_1(1)).unwrap_err();
        assert!(refused.cause.contains("/proc") && refused.remedy.contains("/proc"), "{refused:?}");
        assert_eq!(system.size(&Place::node(1, MIB_2)), 10);
    }

    /// Catches what a killed process left: at rest, and in the middle of a change.
    #[test]
    fn the_next_reservation_restores_what_a_killed_one_left() {
        let system = System::new();
        let (place, other) = (Place::node(1, MIB_2), Place::node(0, MIB_2));
        system.write("/run/neap-huge/1-2-0", &format!("less {} 4\n", place.0));
        system.write("/run/neap-huge/1-2-1", &format!("size {} 7\n", other.0));
        // One that is alive is left alone.
        let alive = Reservation::new(&system.root, on_node_1(1)).unwrap();
        assert_eq!((system.size(&place), system.size(&other)), (7, 7));
        drop(Reservation::new(&system.root, on_node_1(2)).unwrap());
        assert_eq!(system.size(&place), 7);
        drop(alive);
        assert_eq!(system.size(&place), 6);
    }

    /// Catches requests that change something before they fail, and errors without a remedy.
    #[test]
    fn what_cannot_succeed_changes_nothing() {
        let system = System::new();
        let refused = |request| Reservation::new(&system.root, request).unwrap_err();
        let request = Request { bytes: MIB_2, node: None, pages: 1 };
        for (request, cause, remedy) in [
            (Request { bytes: 1 << 30, ..request }, "no huge pages of 1 GiB", "2 MiB"),
            (Request { node: Some(2), ..request }, "no NUMA node 2", "0, 1"),
            (Request { pages: 101, ..request }, "202 MiB, and the machine has 200 MiB", "fewer"),
            (Request { pages: u64::MAX, ..request }, "the machine has 200 MiB", "fewer"),
        ] {
            let refused = refused(request);
            assert!(refused.cause.contains(cause) && refused.remedy.contains(remedy), "{refused:?}");
        }
        fs::remove_dir_all(system.root.path("/sys")).unwrap();
        assert!(refused(request).cause.contains("no pools") && !system.root.path("/run/neap-huge").exists());
    }
}
