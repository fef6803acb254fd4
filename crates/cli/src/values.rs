//! Which values options have: for programs started from this environment, or in a running process; and who chose them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use neap_counters::Gauges;
use neap_options::glibc::{Control, Effect, tunables};
use neap_options::{Id, Milliseconds, Opt, Origin, SET_BY_RUN, Size, TABLE};

use crate::error::Error;

/// The value of one option, and who chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Now {
    /// As it would be written; empty: not set.
    pub value: String,
    /// Who chose it.
    pub origin: Origin,
    /// The variable, where one did.
    pub variable: Option<&'static str>,
}

/// The values with which a program would start in an environment, in the order of the table. The library reads the
/// same variables in the same order.
pub fn from_environment(get: impl Fn(&str) -> Option<OsString>) -> Vec<Now> {
    let default = |opt: &Opt| Now { value: opt.default.to_owned(), origin: Origin::Default, variable: None };
    let mut all: Vec<Now> = TABLE.iter().map(default).collect();
    let mut glibc = Glibc { all: &mut all, no_mmap: false, threshold: None, never: false };
    for control in neap_options::glibc::TABLE {
        let text = control.env.and_then(&get);
        if let Some(number) = text.and_then(|text| Control::parse(text.as_bytes())) {
            glibc.apply(control, number, Origin::GlibcEnvironment, control.env);
        }
    }
    let text = get("GLIBC_TUNABLES").unwrap_or_default();
    for (control, number) in tunables(text.as_bytes()) {
        glibc.apply(control, number, Origin::Tunables, Some("GLIBC_TUNABLES"));
    }
    let from_run = get(SET_BY_RUN).unwrap_or_default();
    for (opt, now) in TABLE.iter().zip(&mut all) {
        let Some(text) = get(opt.env).filter(|text| !(text.is_empty() && opt.kind == neap_options::Kind::Directory))
        else {
            continue;
        };
        if opt.parse(text.as_bytes()).is_some() {
            let by_run = from_run.as_bytes().split(|&b| b == b',').any(|name| name == opt.name.as_bytes());
            let origin = if by_run { Origin::Run } else { Origin::Environment };
            *now = Now { value: text.to_string_lossy().into_owned(), origin, variable: Some(opt.env) };
        }
    }
    all
}

/// What glibc's controls have done so far.
struct Glibc<'a> {
    all: &'a mut [Now],
    /// M_MMAP_MAX is 0, and this is the threshold for when it is not.
    no_mmap: bool,
    threshold: Option<String>,
    /// `purge=never` because of M_TRIM_THRESHOLD.
    never: bool,
}

impl Glibc<'_> {
    fn apply(&mut self, control: &Control, number: u64, origin: Origin, variable: Option<&'static str>) {
        let set = |now: &mut Now, value: String| *now = Now { value, origin, variable };
        match control.effect(number) {
            Some(Effect::Option(Id::MmapThreshold, value)) if self.no_mmap => self.threshold = Some(value.to_string()),
            Some(Effect::Option(id, value)) => {
                if id == Id::Purge {
                    self.never = true;
                } else if id == Id::PurgeBytes && std::mem::take(&mut self.never) {
                    set(&mut self.all[Id::Purge as usize], "decay".to_owned());
                }
                set(&mut self.all[id as usize], value.to_string());
            }
            Some(Effect::Mmap(on)) if on == self.no_mmap => {
                let now = &mut self.all[Id::MmapThreshold as usize];
                let value = if on { self.threshold.take() } else { None };
                if !on {
                    self.threshold = Some(now.value.clone());
                }
                set(now, value.unwrap_or_else(|| "none".to_owned()));
                self.no_mmap = !on;
            }
            _ => {}
        }
    }
}

/// The values in process `pid`, as its counters page tells them.
pub fn of_process(pid: u32) -> Result<Vec<Now>, Error> {
    let snapshot =
        neap_observe::read(pid).map_err(|e| Error::failed(format!("cannot read the options of process {pid}: {e}")))?;
    if snapshot.version < neap_counters::VERSION {
        return Err(Error::failed(format!("process {pid} runs on an older neap, which does not show its options")));
    }
    let counters = if snapshot.exact { "set" } else { "" };
    Ok(of_gauges(&snapshot.gauges, counters))
}

fn of_gauges(g: &Gauges, counters: &str) -> Vec<Now> {
    let word = |opt: &Opt, code: u64| match opt.kind {
        neap_options::Kind::Choice(words) => words.get(code as usize).map(|word| (*word).to_owned()),
        _ => None,
    };
    let size = |bytes: u64, all: &str| if bytes == u64::MAX { all.to_owned() } else { Size(bytes).to_string() };
    let value = |opt: &Opt| match opt.id {
        Id::Counters => counters.to_owned(),
        // The page does not tell the directory and the interval, only who chose them.
        Id::Sites if Origin::of(g.origins, Id::Sites as usize) != Origin::Default => "set".to_owned(),
        Id::Sites => String::new(),
        Id::SitesInterval if Origin::of(g.origins, Id::SitesInterval as usize) != Origin::Default => "set".to_owned(),
        Id::SitesInterval => opt.default.to_owned(),
        Id::Foreign => word(opt, g.foreign).unwrap_or_default(),
        Id::Purge => word(opt, g.policy).unwrap_or_default(),
        Id::PurgeDelay => Milliseconds(u32::try_from(g.purge_delay).unwrap_or(u32::MAX)).to_string(),
        Id::PurgeBytes => size(g.purge_bytes, "auto"),
        Id::Zero => word(opt, g.zero).unwrap_or_default(),
        Id::MmapThreshold => size(g.mmap_threshold, "none"),
        Id::Harden => word(opt, g.harden).unwrap_or_default(),
        Id::Limit if g.limit == 0 => "off".to_owned(),
        Id::Limit => size(g.limit, "auto"),
    };
    let now = |(i, opt)| Now { value: value(opt), origin: Origin::of(g.origins, i), variable: None };
    TABLE.iter().enumerate().map(now).collect()
}

/// Whether two values mean the same to an option: `65536` is `64K`.
#[cfg(test)]
fn same(opt: &Opt, a: &str, b: &str) -> bool {
    let parse = |text: &str| opt.parse(text.as_bytes()).map(|value| value.to_string());
    parse(a) == parse(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Vec<Now> {
        from_environment(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    fn shown(variables: &[(&str, &str)], id: Id) -> (String, Origin) {
        let now = of(variables).swap_remove(id as usize);
        (now.value, now.origin)
    }

    /// Catches an order of variables that is not the library's, and a bad value that is taken for a good one.
    #[test]
    fn neaps_own_variables_win() {
        let trim = ("MALLOC_TRIM_THRESHOLD_", "131072");
        let tunable = ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=0x40000");
        let own = ("NEAP_PURGE_BYTES", "3M");
        assert_eq!(shown(&[], Id::PurgeBytes), ("auto".into(), Origin::Default));
        assert_eq!(shown(&[trim], Id::PurgeBytes), ("128K".into(), Origin::GlibcEnvironment));
        assert_eq!(shown(&[trim, tunable], Id::PurgeBytes), ("256K".into(), Origin::Tunables));
        assert_eq!(shown(&[trim, tunable, own], Id::PurgeBytes), ("3M".into(), Origin::Environment));
        let run = (SET_BY_RUN, "limit,purge_bytes");
        assert_eq!(shown(&[own, run], Id::PurgeBytes), ("3M".into(), Origin::Run));
        assert_eq!(
            shown(&[("NEAP_PURGE_BYTES", "x"), trim], Id::PurgeBytes),
            ("128K".into(), Origin::GlibcEnvironment)
        );
    }

    /// Catches controls that depend on each other and do not here.
    #[test]
    fn controls_work_together() {
        let (zero, some) = (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_MMAP_THRESHOLD_", "131072"));
        assert_eq!(shown(&[some], Id::MmapThreshold).0, "128K");
        assert_eq!(shown(&[some, zero], Id::MmapThreshold).0, "none");
        let again = ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=9");
        assert_eq!(shown(&[some, zero, again], Id::MmapThreshold).0, "128K");
        let never = ("MALLOC_TRIM_THRESHOLD_", "-1");
        assert_eq!(shown(&[never], Id::Purge).0, "never");
        let back = ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=7");
        assert_eq!(shown(&[never, back], Id::Purge), ("decay".into(), Origin::Tunables));
    }

    /// Catches gauges that are read as another option, or a default that is not the table's.
    #[test]
    fn gauges_are_values() {
        let defaults = Gauges {
            purge_delay: 500,
            purge_bytes: u64::MAX,
            limit: u64::MAX,
            mmap_threshold: u64::MAX,
            ..Gauges::default()
        };
        for (opt, now) in TABLE.iter().zip(of_gauges(&defaults, "")) {
            assert!(now.value == opt.default || same(opt, &now.value, opt.default), "{}: {}", opt.name, now.value);
            assert_eq!(now.origin, Origin::Default);
        }
        let origins = (Origin::Mallopt as u64) << (Id::MmapThreshold as u64 * 4);
        let other = Gauges { mmap_threshold: 131_072, origins, policy: 3, zero: 1, foreign: 1, limit: 0, ..defaults };
        let all = of_gauges(&other, "set");
        let at = |id: Id| all[id as usize].value.as_str();
        assert_eq!((at(Id::Purge), at(Id::Zero), at(Id::Foreign), at(Id::Limit)), ("never", "always", "abort", "off"));
        assert_eq!((at(Id::MmapThreshold), all[Id::MmapThreshold as usize].origin), ("128K", Origin::Mallopt));
    }
}
