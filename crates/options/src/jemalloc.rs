//! jemalloc's variable MALLOC_CONF (`key:value,key:value`), which deployments set for programs that used to run on
//! jemalloc. Its most common keys set the corresponding options of neap. One line names what is ignored.

use crate::{Id, Value};
use core::fmt::{Display, Formatter, Result};

/// The variable.
pub const VARIABLE: &str = "MALLOC_CONF";

/// What a key with its value does in neap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// An option gets a value.
    Option(Id, Value<'static>),
    /// neap does the same anyway.
    Same,
    /// Nothing; what there is instead.
    Instead(&'static str),
    /// Nothing.
    Ignored,
}

/// What a key and its value mean.
fn meaning(key: &[u8], value: &[u8]) -> Meaning {
    use Meaning::{Ignored, Instead, Option, Same};
    let number = || core::str::from_utf8(value).ok()?.parse::<i64>().ok();
    match (key, value) {
        // After this time without use dirty memory goes back; -1: never.
        (b"dirty_decay_ms", _) => match number() {
            Some(-1) => Option(Id::Purge, Value::Word("never")),
            Some(0) => Option(Id::Purge, Value::Word("eager")),
            Some(ms @ 1..) => match Id::PurgeDelay.option().kind.value(ms.cast_unsigned()) {
                Some(delay) => Option(Id::PurgeDelay, delay),
                None => Instead("NEAP_PURGE_DELAY"),
            },
            _ => Instead("NEAP_PURGE_DELAY"),
        },
        // There is no state between dirty and clean.
        (b"muzzy_decay_ms", b"0") => Same,
        (b"muzzy_decay_ms", _) => Instead("NEAP_PURGE=lazy"),
        // A helper thread gives memory back, and lives only while memory waits.
        (b"background_thread", b"true") => Same,
        (b"background_thread", _) => Instead("NEAP_PURGE=eager or never"),
        (b"tcache", b"true") => Same,
        (b"tcache", _) => Instead("GLIBC_TUNABLES=glibc.malloc.tcache_count=0"),
        // All threads share one set of arenas, and do not wait for each other.
        (b"narenas" | b"metadata_thp" | b"percpu_arena" | b"max_background_threads", _) => Same,
        (b"thp", b"always") => Option(Id::Huge, Value::Word("always")),
        (b"thp", b"never") => Option(Id::Huge, Value::Word("off")),
        (b"thp", b"default") => Same,
        (b"prof" | b"prof_active", b"false") => Same,
        (b"prof" | b"prof_active", _) => Instead("neap profile --heap"),
        (b"stats_print", b"false") => Same,
        (b"stats_print", _) => Instead("neap run --summary"),
        _ => Ignored,
    }
}

/// The pairs of a text. Where one has no colon, its value is empty.
fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    text.split(|&byte| byte == b',').filter(|pair| !pair.is_empty()).map(|pair| {
        let colon = pair.iter().position(|&byte| byte == b':');
        colon.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]))
    })
}

/// Calls `set` with each option that a text sets.
pub(crate) fn read(text: &[u8], mut set: impl FnMut(Id, Value<'static>)) {
    for (key, value) in pairs(text) {
        if let Meaning::Option(id, value) = meaning(key, value) {
            set(id, value);
        }
    }
}

/// What a text asks for and neap ignores: `neap: MALLOC_CONF is jemalloc's; ignored: prof (use neap profile --heap)`.
/// Never longer than [`crate::Complaint::BYTES`].
#[derive(Clone, Copy, Debug)]
pub struct Ignored<'a>(&'a [u8]);

/// Most keys that are named, and most letters of each.
const NAMED: usize = 6;
const LETTERS: usize = 24;

impl<'a> Ignored<'a> {
    /// `None` if nothing of the text is ignored.
    pub(crate) fn of(text: &'a [u8]) -> Option<Self> {
        let ignored = Ignored(text);
        ignored.keys().next().map(|_| ignored)
    }

    fn keys(&self) -> impl Iterator<Item = (&'a [u8], Option<&'static str>)> {
        pairs(self.0).filter_map(|(key, value)| match meaning(key, value) {
            Meaning::Instead(instead) => Some((key, Some(instead))),
            Meaning::Ignored => Some((key, None)),
            _ => None,
        })
    }
}

impl Display for Ignored<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("neap: MALLOC_CONF is jemalloc's; ignored: ")?;
        for (i, (key, instead)) in self.keys().enumerate() {
            if i == NAMED {
                return f.write_str(" and others");
            }
            let name = |c: u8| if c.is_ascii_graphic() { char::from(c) } else { '?' };
            f.write_str(if i == 0 { "" } else { ", " })?;
            key.iter().take(LETTERS).try_for_each(|&c| write!(f, "{}", name(c)))?;
            if let Some(instead) = instead {
                write!(f, " (use {instead})")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Complaint;
    use std::string::{String, ToString};
    use std::vec::Vec;

    fn set(text: &str) -> Vec<(Id, String)> {
        let mut all = Vec::new();
        read(text.as_bytes(), |id, value| all.push((id, value.to_string())));
        all
    }

    fn ignored(text: &str) -> Option<String> {
        Ignored::of(text.as_bytes()).map(|line| line.to_string())
    }

    /// Catches a common key that does something else, or that is reported though neap does the same.
    #[test]
    fn common_keys() {
        for (text, id, value) in [
            ("dirty_decay_ms:1000", Id::PurgeDelay, "1s"),
            ("dirty_decay_ms:0", Id::Purge, "eager"),
            ("dirty_decay_ms:-1", Id::Purge, "never"),
            ("thp:always", Id::Huge, "always"),
            ("thp:never", Id::Huge, "off"),
        ] {
            assert_eq!((set(text), ignored(text)), ([(id, value.into())].into(), None), "{text}");
        }
        let same = "background_thread:true,narenas:2,metadata_thp:auto,muzzy_decay_ms:0,thp:default,prof:false,,";
        assert_eq!((set(same), ignored(same)), ([].into(), None));
    }

    /// Catches a key that is ignored without a word, or a line that breaks.
    #[test]
    fn what_is_ignored() {
        assert_eq!(
            ignored("dirty_decay_ms:1000,prof:true,lg_tcache_max:12,muzzy_decay_ms:5000").as_deref(),
            Some(
                "neap: MALLOC_CONF is jemalloc's; ignored: prof (use neap profile --heap), lg_tcache_max, \
                 muzzy_decay_ms (use NEAP_PURGE=lazy)"
            )
        );
        assert_eq!(ignored("dirty_decay_ms:soon").map(|line| line.contains("use NEAP_PURGE_DELAY")), Some(true));
        assert_eq!(ignored("dirty_decay_ms:99999999999").map(|line| line.contains("NEAP_PURGE_DELAY")), Some(true));
        let many = "background_thread:false,".repeat(200) + &"x\n".repeat(1000);
        let line = ignored(&many).expect("unknown keys");
        assert!(line.len() <= Complaint::BYTES && !line.contains('\n') && line.ends_with(" and others"), "{line}");
        assert!(ignored(&"x\n".repeat(1000)).is_some_and(|line| line.len() < 100 && !line.contains('\n')));
    }
}
