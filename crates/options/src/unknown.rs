//! Variables that look like those of options, but belong to none.

use crate::TABLE;
use crate::nearest::nearest;
use crate::text::Quoted;
use core::fmt::{Display, Formatter, Result};

/// The beginning of the names of all options' variables.
pub const BEGINNING: &str = "NEAP_";

/// Variables that are not options: of the command, of builds and of tests. A `*` stands for the rest of a name. One
/// text, because the dynamic linker would have to relocate a list of texts at each start.
const OTHERS: &str = "NEAP_SET_BY_RUN NEAP_ADVISE_PID NEAP_INSTRUMENT NEAP_LINK_DYNAMIC NEAP_ORDER_RECORD NEAP_TEST_* \
                      NEAP_SOAK* NEAP_TRUST_CASE* NEAP_MUTANT* NEAP_LIBRARY* NEAP_WRITE_DOCS NEAP_TARGET* \
                      NEAP_SIM_BACKTRACE NEAP_RECORD NEAP_PICTURES NEAP_BLESS";

/// A variable that no part of neap reads:
/// `neap: NEAP_PURGE_DELAYS is no option; did you mean NEAP_PURGE_DELAY?`.
/// Never longer than [`crate::Complaint::BYTES`].
#[derive(Clone, Copy, Debug)]
pub struct Unknown<'a>(&'a [u8]);

impl<'a> Unknown<'a> {
    /// `None` if the variable is an option's, or its name does not begin like one.
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

impl Display for Unknown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "neap: {} is no option; ", Quoted(self.0))?;
        match self.nearest() {
            Some(env) => write!(f, "did you mean {env}?"),
            None => f.write_str("neap options lists all"),
        }
    }
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
