//! What changes over time: live memory, or what allocators keep.
//!
//! **The rule.** A reading has live, kept, fragmentation and Rss. Over some readings, a figure *grows* if the line
//! through its points (least squares) rises by at least `GROWTH` percent of Rss and by a megabyte, if at least `STEADY`
//! percent of the steps from reading to reading do not fall, and if the second half of the readings has a quarter of
//! the rise. The first readings may be from the time when the program filled its tables, so growth is judged on the
//! *later half*; on all readings if these are few, or if only all of them show it. Then the first line that applies is
//! the verdict:
//!
//! | condition | verdict |
//! |---|---|
//! | live grows, and no less than kept and fragmentation | leak |
//! | fragmentation grows, and more than kept | fragmentation |
//! | kept grows; or Rss stays while live falls; or kept is 15 % of Rss, and live less than at first | retention |
//! | Rss grows | growth outside of heaps |
//! | the last `LOOKS` readings or more have the same Rss, within `GROWTH` percent or a megabyte | plateau |
//! | Rss rose without a fall | nothing yet |
//! | none of them | plateau: it goes up and down |
//!
//! The figures in the sentence are those of the readings on which it was judged.

use crate::model::{Cause, Kind, Report};
use crate::units::{bytes, percent, signed};
use serde::Serialize;
use std::collections::BTreeMap;

/// The version of the JSON.
pub const SCHEMA: &str = "neap.why.watch/1";

const GROWTH: u64 = 3;
const LEAST: u64 = 1 << 20;
const STEADY: usize = 70;
/// Fewer readings have no verdict.
const LOOKS: usize = 3;

/// The figures of one reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Look {
    /// Seconds since the first reading.
    pub seconds: f64,
    /// Rss.
    pub rss_bytes: u64,
    /// Live memory: blocks of malloc, runtimes, mappings of the program's own.
    pub live_bytes: u64,
    /// Kept by allocators.
    pub kept_bytes: u64,
    /// Fragmentation.
    pub fragmentation_bytes: u64,
    /// Swapped out.
    pub swap_bytes: u64,
}

/// An account that grew or shrank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What it is used for.
    pub kind: Kind,
    /// Its owner.
    pub owner: String,
    /// Since the first reading.
    pub bytes: i64,
}

/// All readings so far.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    looks: Vec<Look>,
    first: BTreeMap<(Kind, String), u64>,
}

/// The state after a reading: one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The last reading.
    #[serde(flatten)]
    pub look: Look,
    /// What changed since the first reading, the largest change first.
    pub changes: Vec<Change>,
    /// The main finding so far.
    pub cause: Cause,
    /// The same in a sentence with the evidence.
    pub verdict: String,
}

impl Watch {
    /// Adds a reading.
    pub fn add(&mut self, seconds: f64, report: &Report) -> Step {
        let of = |kinds: &[Kind]| kinds.iter().map(|kind| report.of(*kind)).sum::<u64>();
        let look = Look {
            seconds,
            rss_bytes: report.rss_bytes,
            live_bytes: of(&[Kind::HeapLive, Kind::Heap, Kind::RuntimeHeap, Kind::Anonymous]),
            kept_bytes: report.of(Kind::HeapFree),
            fragmentation_bytes: report.of(Kind::HeapFragmentation),
            swap_bytes: report.swap_bytes,
        };
        let now: BTreeMap<(Kind, String), u64> =
            report.accounts.iter().map(|account| ((account.kind, account.owner.clone()), account.bytes)).collect();
        if self.looks.is_empty() {
            self.first = now.clone();
        }
        self.looks.push(look);
        let (cause, verdict) = judge(&self.looks);
        Step { schema: SCHEMA, look, changes: self.changes(&now), cause, verdict }
    }

    /// The number of readings.
    pub fn looks(&self) -> usize {
        self.looks.len()
    }

    fn changes(&self, now: &BTreeMap<(Kind, String), u64>) -> Vec<Change> {
        let keys: std::collections::BTreeSet<&(Kind, String)> = self.first.keys().chain(now.keys()).collect();
        let change = |key: &(Kind, String)| {
            let of = |map: &BTreeMap<(Kind, String), u64>| map.get(key).copied().unwrap_or(0) as i64;
            Change { kind: key.0, owner: key.1.clone(), bytes: of(now) - of(&self.first) }
        };
        let mut all: Vec<Change> =
            keys.into_iter().map(change).filter(|change| change.bytes.unsigned_abs() >= 64 << 10).collect();
        all.sort_by_key(|change| std::cmp::Reverse(change.bytes.unsigned_abs()));
        all
    }
}

/// The trend of a figure.
#[derive(Clone, Copy, Debug)]
struct Trend {
    /// The rise of the line from the first reading to the last.
    rise: i64,
    /// Bytes a second.
    rate: f64,
    grows: bool,
    falls: bool,
}

fn trend(looks: &[Look], of: fn(&Look) -> u64) -> Trend {
    let n = looks.len() as f64;
    let mean = |f: &dyn Fn(&Look) -> f64| looks.iter().map(f).sum::<f64>() / n;
    let (time, value) = (mean(&|look| look.seconds), mean(&|look| of(look) as f64));
    let spread: f64 = looks.iter().map(|look| (look.seconds - time).powi(2)).sum();
    let joint: f64 = looks.iter().map(|look| (look.seconds - time) * (of(look) as f64 - value)).sum();
    let rate = if spread > 0.0 { joint / spread } else { 0.0 };
    let span = looks[looks.len() - 1].seconds - looks[0].seconds;
    let rise = (rate * span) as i64;
    let steps = |up: bool| {
        looks.windows(2).filter(|two| if up { of(&two[1]) >= of(&two[0]) } else { of(&two[1]) <= of(&two[0]) }).count()
    };
    let rss = looks.iter().map(|look| look.rss_bytes).max().unwrap_or(0);
    let much = rise.unsigned_abs() >= LEAST && percent(rise.unsigned_abs(), rss) >= GROWTH;
    let steady = |up| steps(up) * 100 >= STEADY * (looks.len() - 1);
    // Growth that has ended does not count: the second half must grow too.
    let half = &looks[looks.len() / 2..];
    let goes_on = half.len() < 2 || of(&half[half.len() - 1]).saturating_sub(of(&half[0])) * 4 >= rise.unsigned_abs();
    Trend { rise, rate, grows: much && rise > 0 && steady(true) && goes_on, falls: much && rise < 0 }
}

/// The trends of some readings.
struct Trends {
    rss: Trend,
    live: Trend,
    kept: Trend,
    fragmentation: Trend,
}

impl Trends {
    fn of(looks: &[Look]) -> Trends {
        Trends {
            rss: trend(looks, |look| look.rss_bytes),
            live: trend(looks, |look| look.live_bytes),
            kept: trend(looks, |look| look.kept_bytes),
            fragmentation: trend(looks, |look| look.fragmentation_bytes),
        }
    }

    fn grow(&self) -> bool {
        [self.rss, self.live, self.kept, self.fragmentation].iter().any(|trend| trend.grows)
    }
}

/// The verdict on the readings.
fn judge(looks: &[Look]) -> (Cause, String) {
    let [first, .., last] = looks else { return (Cause::Nothing, "One reading does not show a change.".into()) };
    if looks.len() < LOOKS {
        let span = last.seconds - first.seconds;
        return (Cause::Nothing, format!("{} readings in {span:.0} s are too few to tell.", looks.len()));
    }
    let later = if looks.len() / 2 < LOOKS { looks } else { &looks[looks.len() / 2..] };
    let (all, late) = (Trends::of(looks), Trends::of(later));
    let (trends, part) = if late.grow() || !all.grow() { (&late, later) } else { (&all, looks) };
    let figures = evidence(part, looks);
    if trends.live.grows && trends.live.rise >= trends.kept.rise && trends.live.rise >= trends.fragmentation.rise {
        let rate = bytes((late.live.rate * 60.0).max(0.0) as u64);
        return (Cause::Leak, format!("A leak, or growing need: live memory grows by {rate} a minute; {figures}."));
    }
    if trends.fragmentation.grows && trends.fragmentation.rise > trends.kept.rise {
        return (Cause::Fragmentation, format!("Fragmentation grows more than live memory: {figures}."));
    }
    let stays = all.live.falls && last.rss_bytes.saturating_mul(10) >= first.rss_bytes.saturating_mul(9);
    let most_kept = percent(last.kept_bytes, last.rss_bytes) >= 15 && last.live_bytes < first.live_bytes;
    if trends.kept.grows || stays || most_kept {
        let figures = if trends.kept.grows { figures } else { evidence(looks, looks) };
        return (Cause::Retention, format!("Retention: what the program frees stays with its allocator; {figures}."));
    }
    if trends.rss.grows {
        return (Cause::Anonymous, format!("Rss grows, but not in heaps: {figures}."));
    }
    no_growth(looks)
}

/// The verdict on readings of which no figure grows.
fn no_growth(looks: &[Look]) -> (Cause, String) {
    let last = looks[looks.len() - 1];
    let room = LEAST.max(last.rss_bytes / 100 * GROWTH);
    let is_same = |look: &&Look| look.rss_bytes.abs_diff(last.rss_bytes) < room;
    let same = looks.iter().rev().take_while(is_same).count();
    let figures = |count: usize| evidence(&looks[looks.len() - count..], looks);
    if same >= LOOKS {
        return (Cause::Plateau, format!("A plateau: nothing grows; {}.", figures(same)));
    }
    let falls = looks.windows(2).any(|two| two[1].rss_bytes.saturating_add(room) <= two[0].rss_bytes);
    match falls {
        true => {
            let all = || looks.iter().map(|look| look.rss_bytes);
            let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
            let between = format!("between {} and {}", bytes(least), bytes(most));
            (Cause::Plateau, format!("No steady growth: Rss goes up and down, {between}; {}.", figures(looks.len())))
        }
        false => {
            let figures = figures(looks.len());
            (Cause::Nothing, format!("Rss has changed until now, but not steadily: watch it for longer; {figures}."))
        }
    }
}

/// What changed in a part of the readings, up to the last one, and before it.
fn evidence(part: &[Look], looks: &[Look]) -> String {
    let (first, last) = (part[0], part[part.len() - 1]);
    let span = last.seconds - first.seconds;
    let changed = |of: fn(&Look) -> u64| signed(of(&last) as i64 - of(&first) as i64);
    let mut text = format!(
        "in {}{span:.0} s and {} readings Rss changed by {} (live {}, kept {}, fragmentation {})",
        if part.len() < looks.len() { "the last " } else { "" },
        part.len(),
        changed(|look| look.rss_bytes),
        changed(|look| look.live_bytes),
        changed(|look| look.kept_bytes),
        changed(|look| look.fragmentation_bytes),
    );
    if part.len() < looks.len() {
        let before = signed(first.rss_bytes as i64 - looks[0].rss_bytes as i64);
        text.push_str(&format!("; in the {:.0} s before that by {before}", first.seconds - looks[0].seconds));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(of: &[(u64, u64, u64)]) -> Vec<Look> {
        let look = |(at, &(live, kept, fragmentation)): (usize, &(u64, u64, u64))| Look {
            seconds: at as f64,
            rss_bytes: (live + kept + fragmentation + 10) << 20,
            live_bytes: live << 20,
            kept_bytes: kept << 20,
            fragmentation_bytes: fragmentation << 20,
            swap_bytes: 0,
        };
        of.iter().enumerate().map(look).collect()
    }

    /// Catches causes that are taken for each other.
    #[test]
    fn causes_over_time() {
        let leak: Vec<_> = (0..8).map(|n| (100 + 10 * n, 5, 5)).collect();
        assert_eq!(judge(&looks(&leak)).0, Cause::Leak);
        let retained = [(100, 0, 0), (80, 20, 0), (50, 50, 0), (20, 80, 0), (20, 80, 0)];
        assert_eq!(judge(&looks(&retained)).0, Cause::Retention);
        let fragmented: Vec<_> = (0..8).map(|n| (100, 5, 5 + 10 * n)).collect();
        assert_eq!(judge(&looks(&fragmented)).0, Cause::Fragmentation);
        // A cache that fills, and then is full.
        let full =
            [(20, 5, 5), (60, 5, 5), (100, 5, 5), (100, 5, 5), (100, 5, 5), (100, 5, 5), (100, 5, 5), (100, 5, 5)];
        assert_eq!(judge(&looks(&full)).0, Cause::Plateau);
        let waves = [(100, 5, 5), (130, 5, 5), (100, 5, 5), (130, 5, 5), (100, 5, 5), (130, 5, 5), (100, 5, 5)];
        assert_eq!(judge(&looks(&waves)).0, Cause::Plateau);
        assert_eq!(judge(&looks(&leak[..2])).0, Cause::Nothing);
    }

    /// Catches a leak that is a plateau because the first readings were from a warm-up, a rate that includes the
    /// warm-up, and a plateau that is said beside a change that is none.
    #[test]
    fn a_warm_up_does_not_count() {
        let leak: Vec<_> = [5, 45].into_iter().chain((0..18).map(|n| 46 + 2 * n)).map(|live| (live, 1, 1)).collect();
        let (cause, verdict) = judge(&looks(&leak));
        assert_eq!(cause, Cause::Leak);
        assert!(verdict.contains("grows by 120.0 MiB a minute; in the last 9 s and 10 readings Rss changed by +18.0"));
        assert!(verdict.ends_with("; in the 10 s before that by +57.0 MiB."), "{verdict}");
        let warm: Vec<_> = [5, 45].into_iter().chain([100; 8]).map(|live| (live, 1, 1)).collect();
        let (cause, verdict) = judge(&looks(&warm));
        assert_eq!(cause, Cause::Plateau);
        let words = "A plateau: nothing grows; in the last 7 s and 8 readings Rss changed by +0 B";
        assert!(verdict.starts_with(words) && verdict.ends_with("in the 2 s before that by +95.0 MiB."), "{verdict}");
        // It is not over yet.
        let (cause, verdict) = judge(&looks(&warm[..4]));
        assert_eq!(cause, Cause::Nothing);
        assert!(verdict.contains("watch it for longer") && verdict.contains("by +95.0 MiB"), "{verdict}");
        let waves: Vec<_> = (0..9).map(|n| (100 + n % 2 * 30, 5, 5)).collect();
        let (cause, verdict) = judge(&looks(&waves));
        assert_eq!(cause, Cause::Plateau);
        assert!(verdict.starts_with("No steady growth: Rss goes up and down, between 120.0 MiB and"), "{verdict}");
    }
}
