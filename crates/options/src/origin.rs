//! Where the value of an option comes from.

use core::fmt;
use neap_core::policy::Policy;

/// Who chose a value. The numbers are stored in the counters page, three bits for each option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// The default: not chosen.
    #[default]
    Default = 0,
    /// The option's environment variable.
    Environment = 1,
    /// `neap run --set`.
    Run = 2,
    /// One of glibc's environment variables.
    GlibcEnvironment = 3,
    /// GLIBC_TUNABLES.
    Tunables = 4,
    /// The program, by mallopt.
    Mallopt = 5,
    /// The program, by neap's own functions.
    Program = 6,
    /// jemalloc's MALLOC_CONF.
    Jemalloc = 7,
}

/// An origin, and the environment variable where it is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// Who chose.
    pub origin: Origin,
    /// The variable.
    pub variable: Option<&'static str>,
}

impl Origin {
    /// All of them, each at the place of its number, with their names.
    const ALL: [(Origin, &str); 8] = [
        (Origin::Default, "default"),
        (Origin::Environment, "environment"),
        (Origin::Run, "neap run --set"),
        (Origin::GlibcEnvironment, "glibc's environment"),
        (Origin::Tunables, "GLIBC_TUNABLES"),
        (Origin::Mallopt, "mallopt"),
        (Origin::Program, "the program"),
        (Origin::Jemalloc, "MALLOC_CONF"),
    ];

    /// The origin of the option at `place` in the table; `origins` has three bits for each.
    pub fn of(origins: u64, place: usize) -> Origin {
        let number = (origins >> (place % Policy::ORIGINS * 3) & 7) as usize;
        Self::ALL[number].0
    }

    /// Its name, for output.
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an origin that is read as another.
    #[test]
    fn numbers_are_places() {
        for (i, (origin, _)) in Origin::ALL.into_iter().enumerate() {
            assert_eq!(origin as usize, i);
            assert_eq!(Origin::of((i as u64) << 9, 3), origin);
        }
    }
}
