//! Variables that begin like those of options, and are none; and which of some names was meant.

use crate::TABLE;
use crate::text::Quoted;
use core::fmt::{Display, Formatter, Result};

/// How the variables of all options begin.
pub const BEGINNING: &str = "NEAP_";

/// Variables that are not options: of the command, of builds and of tests. A `*` stands for the rest of a name. One
/// text, as the dynamic linker would have to relocate a list of texts at each start.
const OTHERS: &str = "NEAP_SET_BY_RUN NEAP_ADVISE_PID NEAP_INSTRUMENT NEAP_LINK_DYNAMIC NEAP_ORDER_RECORD NEAP_TEST_* \
                      NEAP_SOAK* NEAP_TRUST_CASE* NEAP_MUTANT* NEAP_LIBRARY* NEAP_WRITE_DOCS NEAP_TARGET* \
                      NEAP_SIM_BACKTRACE NEAP_RECORD NEAP_PICTURES NEAP_BLESS";

/// A variable that no part of neap reads:
/// `neap: NEAP_PURGE_DELAYS is no option; did you mean NEAP_PURGE_DELAY?`.
/// Never longer than [`crate::Complaint::BYTES`].
#[derive(Clone, Copy, Debug)]
pub struct Unknown<'a>(&'a [u8]);

impl<'a> Unknown<'a> {
    /// `None` if the variable is an option's, or does not begin like one.
    pub fn of(name: &'a [u8]) -> Option<Self> {
        let is = |other: &str| match other.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning.as_bytes()),
            None => other.as_bytes() == name,
        };
        let known = TABLE.iter().any(|opt| is(opt.env)) || OTHERS.split(' ').any(is);
        (name.starts_with(BEGINNING.as_bytes()) && !known).then_some(Unknown(name))
    }

    /// The nearest variable of an option.
    fn nearest(&self) -> Option<&'static str> {
        let rest = |env: &'static str| env.as_bytes().get(BEGINNING.len()..).unwrap_or_default();
        let found = nearest(self.0.get(BEGINNING.len()..)?, TABLE.iter().map(|opt| rest(opt.env)))?;
        TABLE.iter().map(|opt| opt.env).find(|env| rest(env) == found)
    }
}

/// The nearest of `names` to `name`, if a third of it at most would have to change.
pub fn nearest<T: AsRef<[u8]>>(name: impl AsRef<[u8]>, names: impl IntoIterator<Item = T>) -> Option<T> {
    let distances = names.into_iter().map(|one| (distance(name.as_ref(), one.as_ref()), one));
    let (distance, one) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= one.as_ref().len().div_ceil(3)).then_some(one)
}

/// ``did you mean `calloc`? `` and a blank, in front of a list of names; nothing where no name is near.
pub fn did_you_mean<T: AsRef<[u8]> + AsRef<str>>(name: &str, names: impl IntoIterator<Item = T>) -> DidYouMean<T> {
    DidYouMean(nearest(name, names))
}

/// See [`did_you_mean`].
#[derive(Clone, Copy, Debug)]
pub struct DidYouMean<T>(Option<T>);

impl<T: AsRef<str>> Display for DidYouMean<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.as_ref().map_or(Ok(()), |name| write!(f, "did you mean `{}`? ", AsRef::<str>::as_ref(name)))
    }
}

impl Display for Unknown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "neap: {} is no option; ", Quoted(self.0))?;
        match self.nearest() {
            Some(env) => write!(f, "did you mean {env}?"),
            None => f.write_str("neap options lists all"),
        }
    }
}

/// Longest name of which the distance is counted.
const LONGEST: usize = 40;

/// How many letters have to be put in, left out, changed, or swapped with the next one to make one text of the other
/// (Levenshtein's distance with swaps).
fn distance(a: &[u8], b: &[u8]) -> usize {
    if a.len().max(b.len()) > LONGEST {
        return usize::MAX;
    }
    let mut row = [0; LONGEST + 1];
    row.iter_mut().enumerate().for_each(|(i, cell)| *cell = i);
    let mut last = row;
    for (i, x) in a.iter().enumerate() {
        // The rows of one letter less, and of two.
        let older = core::mem::replace(&mut last, row);
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = last[j] + usize::from(x != y);
            row[j + 1] = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                row[j + 1] = row[j + 1].min(older[j - 1] + 1);
            }
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Complaint;
    use std::string::{String, ToString};

    fn line_about(name: &str) -> Option<String> {
        Unknown::of(name.as_bytes()).map(|line| line.to_string())
    }

    /// Catches a wrong count, by which another name would be the nearest.
    #[test]
    fn distances() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("rnu", "run", 1),
            ("abc", "cba", 2),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), wanted, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), wanted, "{b} {a}");
        }
    }

    /// Catches a typo of a name without the name, and one that is taken for any name.
    #[test]
    fn the_nearest_name() {
        let names = ["calloc", "retain-large", "retain-small", "vmas"];
        assert_eq!(nearest("caloc", names), Some("calloc"));
        assert_eq!(nearest("retain-smal", names), Some("retain-small"));
        assert_eq!(nearest("everything", names), None);
        assert_eq!(did_you_mean("vmsa", names).to_string(), "did you mean `vmas`? ");
        assert_eq!(did_you_mean("everything", names).to_string(), "");
    }

    /// Catches a typo without its option, a name that is no typo and gets one, or a good name that is reported.
    #[test]
    fn typos() {
        for (name, wanted) in [
            ("NEAP_LIMITS", "NEAP_LIMIT"),
            ("NEAP_PURGE_DELY", "NEAP_PURGE_DELAY"),
            ("NEAP_HARDENED", "NEAP_HARDEN"),
            ("NEAP_PROFIL", "NEAP_PROFILE"),
        ] {
            assert_eq!(line_about(name), Some(std::format!("neap: {name} is no option; did you mean {wanted}?")));
        }
        assert_eq!(
            line_about("NEAP_VERBOSITY_LEVEL").as_deref(),
            Some("neap: NEAP_VERBOSITY_LEVEL is no option; neap options lists all")
        );
        for opt in TABLE {
            assert_eq!(line_about(opt.env), None);
        }
        for name in [crate::environment::SET_BY_RUN, "NEAP_TEST_STRICT", "XNEAP_ZERO", "PATH", "NEA"] {
            assert_eq!(line_about(name), None, "{name}");
        }
        let long = line_about(&(String::from("NEAP_") + &"x\n".repeat(5000))).expect("unknown");
        assert!(long.len() <= Complaint::BYTES && !long.contains('\n'));
    }
}
