//! Which values options have: for programs started from this environment, or in a running process; and where they come from.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use neap_counters::Gauges;
use neap_options::environment;
use neap_options::glibc::{By, Effect, Saved, Target};
use neap_options::{Id, Kind, Opt, Origin, TABLE, Value};

use neap_launch::error::Error;

/// The value of one option, and who chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Now {
    /// As it would be written; empty: not set.
    pub value: String,
    /// Who chose it.
    pub origin: Origin,
    /// The variable, where one did.
    pub variable: Option<&'static str>,
    /// The value of the option's own variable, where the option does not accept it.
    pub invalid: Option<String>,
}

/// The values with which a program would start in an environment, in the order of the table.
pub fn from_environment(get: impl Fn(&str) -> Option<OsString>) -> Vec<Now> {
    let default = |opt: &Opt| Now {
        value: opt.default.to_owned(),
        origin: Origin::Default,
        variable: None,
        invalid: get(opt.env).and_then(|text| invalid(opt, text.as_encoded_bytes())),
    };
    let mut values = Values(TABLE.iter().map(default).collect());
    let variable = |name: &str| get(name).map(OsString::into_vec);
    environment::read(variable, &Saved::new(), &mut values, |_| {});
    values.0
}

/// The values of all options.
struct Values(Vec<Now>);

impl Target for Values {
    fn number(&self, id: Id) -> u64 {
        let value = id.option().parse(self.0[id as usize].value.as_bytes());
        value.and_then(|value| id.option().kind.number(value)).unwrap_or(0)
    }

    fn set(&mut self, id: Id, value: Value<'_>, By { origin, variable }: By) {
        let now = &mut self.0[id as usize];
        (now.value, now.origin, now.variable) = (value.to_string(), origin, variable);
    }

    fn act(&mut self, _: Effect) {}
}

/// The values in process `pid`, as its counters page tells them.
pub fn of_process(pid: u32) -> Result<Vec<Now>, Error> {
    let snapshot = neap_observe::read(pid).map_err(|error| {
        let made = Error::failed(format!("cannot read the options of process {pid}: {error}"));
        match error {
            neap_observe::Error::Denied => made.remedy("run neap as its user, or as root"),
            neap_observe::Error::NoPage => made.remedy("start it with neap run"),
            neap_observe::Error::NoProcess => made.remedy("ps -e lists processes"),
            _ => made,
        }
    })?;
    if snapshot.version < neap_counters::VERSION {
        return Err(Error::failed(format!("process {pid} runs on an older neap, which does not show its options")));
    }
    let counters = if snapshot.exact { "set" } else { "" };
    Ok(of_gauges(&snapshot.gauges, counters))
}

fn of_gauges(g: &Gauges, counters: &str) -> Vec<Now> {
    let words = g.words();
    let gauge = |name| Gauges::TABLE.iter().position(|row| row.name == name).map(|place| words[place]);
    let value = |opt: &Opt| match (opt.kept.and_then(|(_, name)| gauge(name)), opt.id) {
        (Some(number), _) => opt.kind.value(number).map_or_else(String::new, |value| value.to_string()),
        (None, Id::Counters) => counters.to_owned(),
        // The page does not show the value, only who chose it.
        (None, id) if Origin::of(g.origins, id as usize) != Origin::Default => "set".to_owned(),
        (None, _) => opt.default.to_owned(),
    };
    let now = |(i, opt)| Now { value: value(opt), origin: Origin::of(g.origins, i), variable: None, invalid: None };
    TABLE.iter().enumerate().map(now).collect()
}

/// The text, on one line, if the option does not accept it. An empty path counts as not set.
fn invalid(opt: &Opt, text: &[u8]) -> Option<String> {
    let good = opt.parse(text).is_some() || text.is_empty() && opt.kind == Kind::Directory;
    (!good).then(|| String::from_utf8_lossy(text).escape_debug().to_string())
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
    use neap_options::environment::SET_BY_RUN;

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

    /// Catches an option whose gauge is not on the page.
    #[test]
    fn gauges_exist() {
        for (_, gauge) in TABLE.iter().filter_map(|opt| opt.kept) {
            assert!(Gauges::TABLE.iter().any(|row| row.name == gauge), "{gauge}");
        }
    }

    /// Catches gauges that are read as another option, or a default that is not the table's.
    #[test]
    fn gauges_are_values() {
        let defaults = Gauges {
            purge_delay: 500,
            purge_bytes: u64::MAX,
            limit: u64::MAX,
            mmap_threshold: u64::MAX,
            huge: 1,
            ..Gauges::default()
        };
        for (opt, now) in TABLE.iter().zip(of_gauges(&defaults, "")) {
            assert!(now.value == opt.default || same(opt, &now.value, opt.default), "{}: {}", opt.name, now.value);
            assert_eq!(now.origin, Origin::Default);
        }
        let origins = (Origin::Mallopt as u64) << (Id::MmapThreshold as u64 * 3);
        let other = Gauges { mmap_threshold: 131_072, origins, policy: 3, zero: 1, foreign: 1, limit: 0, ..defaults };
        let all = of_gauges(&other, "set");
        let at = |id: Id| all[id as usize].value.as_str();
        assert_eq!((at(Id::Purge), at(Id::Zero), at(Id::Foreign), at(Id::Limit)), ("never", "always", "abort", "off"));
        assert_eq!((at(Id::MmapThreshold), all[Id::MmapThreshold as usize].origin), ("128K", Origin::Mallopt));
    }
}
