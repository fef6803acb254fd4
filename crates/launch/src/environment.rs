//! The environment of a program that is started on neap.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use neap_options::environment::SET_BY_RUN;

use crate::Setting;

/// The variable that the dynamic linker reads.
pub const LD_PRELOAD: &str = "LD_PRELOAD";

/// neap's own environment with the library first in LD_PRELOAD, and the settings.
pub fn with_library(library: &Path, settings: &[Setting]) -> Vec<(OsString, OsString)> {
    let replaced = |name: &OsStr| name == LD_PRELOAD || name == SET_BY_RUN || settings.iter().any(|s| name == s.env);
    let mut env: Vec<_> = std::env::vars_os().filter(|(name, _)| !replaced(name)).collect();
    env.push((LD_PRELOAD.into(), preload_list(library, std::env::var_os(LD_PRELOAD).as_deref())));
    for (i, setting) in settings.iter().enumerate() {
        // The last of several wins, as with shell assignments.
        if !settings[i + 1..].iter().any(|later| later.env == setting.env) {
            env.push((setting.env.into(), setting.value.clone().into()));
        }
    }
    // The variables that an outer `neap run` has set still are.
    let mut names = std::env::var_os(SET_BY_RUN).unwrap_or_default();
    for setting in settings {
        if !names.is_empty() {
            names.push(",");
        }
        names.push(setting.name);
    }
    if !names.is_empty() {
        env.push((SET_BY_RUN.into(), names));
    }
    env
}

/// The entries of a list of libraries to preload: separated by colons or spaces, as for the dynamic linker.
pub fn preload_entries(list: &OsStr) -> impl Iterator<Item = &[u8]> {
    list.as_bytes().split(|b| matches!(b, b':' | b' ')).filter(|entry| !entry.is_empty())
}

/// The library, then what was preloaded already, without a second entry for the library.
fn preload_list(library: &Path, existing: Option<&OsStr>) -> OsString {
    let library = library.as_os_str().as_bytes();
    let mut list = library.to_vec();
    for entry in preload_entries(existing.unwrap_or_default()).filter(|entry| *entry != library) {
        list.push(b':');
        list.extend_from_slice(entry);
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a preload of the user that is lost or reordered, and a list that grows with every nested `neap run`.
    #[test]
    fn an_existing_preload_is_kept_after_ours() {
        let ours = Path::new("/c/libneap.so");
        assert_eq!(preload_list(ours, None), "/c/libneap.so");
        assert_eq!(preload_list(ours, Some(OsStr::new(""))), "/c/libneap.so");
        assert_eq!(preload_list(ours, Some(OsStr::new("/a.so b.so"))), "/c/libneap.so:/a.so:b.so");
        assert_eq!(preload_list(ours, Some(OsStr::new("/c/libneap.so:/a.so"))), "/c/libneap.so:/a.so");
    }

    /// Catches two values for one variable, of which a program may read either.
    #[test]
    fn the_last_setting_wins() {
        let setting = |value: &str| Setting { name: "foreign", env: "NEAP_FOREIGN", value: value.to_owned() };
        let env = with_library(Path::new("/c/libneap.so"), &[setting("pass"), setting("abort")]);
        let values: Vec<_> = env.iter().filter(|(name, _)| name == "NEAP_FOREIGN").map(|(_, v)| v).collect();
        assert_eq!(values, ["abort"]);
        assert_eq!(env.iter().filter(|(name, _)| name == LD_PRELOAD).count(), 1);
    }
}
