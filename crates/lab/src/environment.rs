//! Variables that configure allocators. A measured program gets only those that the lab sets, because a forgotten
//! `MALLOC_ARENA_MAX` would change figures for no visible reason.

use std::ffi::{OsStr, OsString};
use std::process::Command;

/// Their names; a star stands for any ending. Case is ignored, because mimalloc reads its variables in either case.
const SETTINGS: &[&str] = &[
    // The dynamic linker, the C and the C++ library.
    "LD_PRELOAD",
    "LD_AUDIT",
    "GLIBC_TUNABLES",
    "GLIBCXX_TUNABLES",
    "GLIBCXX_FORCE_NEW",
    // glibc has MALLOC_ARENA_MAX and similar ones, jemalloc MALLOC_CONF.
    "MALLOC_*",
    "_RJEM_MALLOC_*",
    "JE_MALLOC_*",
    "NEAP_*",
    "MIMALLOC_*",
    "RPMALLOC_*",
    "SNMALLOC_*",
    "TCMALLOC_*",
    "HEAPCHECK*",
    "HEAPPROFILE*",
    "SCUDO_OPTIONS",
    // Python's own allocator stands between the client of tls-chunks and malloc.
    "PYTHONMALLOC*",
];

/// Whether a variable of this name configures an allocator.
fn is_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_uppercase();
    SETTINGS.iter().any(|setting| match setting.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *setting,
    })
}

/// The variables that are set in this process.
fn set_here() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_setting(name))
}

/// Removes them from what `command` inherits; variables that it sets itself stay.
pub fn clean(command: &mut Command) {
    let own: Vec<OsString> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for (name, _) in set_here().filter(|(name, _)| !own.contains(name)) {
        command.env_remove(name);
    }
}

/// The removed variables, for the record of a run; none if there are none.
pub fn note() -> Option<String> {
    let mut list: Vec<String> =
        set_here().map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy())).collect();
    list.sort();
    (!list.is_empty()).then(|| format!("Set here, and not passed to the programs: `{}`.", list.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch an allocator's variable that is passed on, and a variable that programs need and do not get.
    #[test]
    fn settings_are_known_by_name() {
        let settings = ["MALLOC_ARENA_MAX", "MALLOC_CONF", "NEAP_PURGE", "mimalloc_allow_thp", "LD_PRELOAD"];
        assert!(settings.iter().all(|name| is_setting(OsStr::new(name))));
        let others = ["PATH", "HOME", "LD_LIBRARY_PATH", "MALLOC", "NEAPOLIS", "LD_PRELOADED", "TMPDIR"];
        assert!(!others.iter().any(|name| is_setting(OsStr::new(name))));
    }

    // Would catch a variable of the measured allocator that does not reach the program.
    #[test]
    fn what_a_command_sets_stays() {
        let mut command = Command::new("true");
        command.env("NEAP_PURGE", "eager");
        clean(&mut command);
        assert!(command.get_envs().any(|pair| pair == (OsStr::new("NEAP_PURGE"), Some(OsStr::new("eager")))));
    }
}
