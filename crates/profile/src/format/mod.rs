//! The formats in which a profile is written, one module each.

use std::io::{self, Write};

use crate::{Options, Profile, json, pprof};

mod firefox;
mod folded;
mod text;

pub use firefox::firefox;
pub use folded::folded;
pub use text::{diff_text, text};

/// A way of writing a profile.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--help`.
    pub doc: &'static str,
    /// The ending of its file names.
    pub ending: &'static str,
    /// Writes a whole profile.
    pub write: fn(&Profile, Options, &mut dyn Write) -> io::Result<()>,
}

/// All formats; the first is the default.
pub const FORMATS: &[Format] = &[
    Format {
        name: "text",
        doc: "the top call sites, for people",
        ending: ".txt",
        write: |profile, options, out| text(profile, options, out),
    },
    Format {
        name: "pprof",
        doc: "profile.proto, for pprof and all that read its files",
        ending: ".pb.gz",
        write: |profile, options, out| pprof::write(&shown(profile, options), options.symbols, out),
    },
    Format {
        name: "folded",
        doc: "stacks and their values, for flame graphs",
        ending: ".folded",
        write: |profile, options, out| folded(profile, options, out),
    },
    Format {
        name: "firefox",
        doc: "for the Firefox Profiler",
        ending: ".profile.json",
        write: |profile, options, out| firefox(profile, options, out),
    },
    Format {
        name: "json",
        doc: "the whole profile; `neap profile diff` and `show` read it, and pprof's",
        ending: ".json",
        write: |profile, options, out| json(&shown(profile, options), out),
    },
    Format {
        name: "html",
        doc: "one page with a flame graph, for any browser",
        ending: ".html",
        write: |profile, options, out| crate::html::html(&[profile], options, out),
    },
];

impl Format {
    /// The format of that name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }
}

/// The profile with another value type shown first.
fn shown(profile: &Profile, options: Options) -> std::borrow::Cow<'_, Profile> {
    use std::borrow::Cow;
    if profile.shown == options.column {
        return Cow::Borrowed(profile);
    }
    Cow::Owned(Profile { shown: options.column, ..profile.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pprof::Symbols;
    use crate::testing::profile;

    fn written(name: &str, column: usize) -> String {
        let format = Format::from_name(name).expect("a format");
        let options = Options { column, symbols: Symbols::Named, limit: 10 };
        let mut bytes = Vec::new();
        (format.write)(&profile(), options, &mut bytes).expect("memory takes everything");
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// Catches stacks in the wrong order, and values of another type.
    #[test]
    fn folded_stacks() {
        let expected = "main;busy;malloc 100\nmain;leaky;malloc 200\nmain;libc.so.6+0x1777 10\n";
        assert_eq!(written("folded", 3), expected);
        assert!(
            written("folded", 0).contains("main;busy;malloc 50\n[no stack] 1\n")
                || written("folded", 0).starts_with("[no stack] 1\n")
        );
    }

    /// Catches a table without its values, shares or notes.
    #[test]
    fn the_text() {
        let text = written("text", 3);
        for part in ["310 B", "64.5 %", "leaky (server.c:10)", "main", "5.00 s", "7 stacks were dropped"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// Catches a profile that the Firefox Profiler would show without its stacks, weights or names.
    #[test]
    fn the_firefox_profile() {
        let profile: serde_json::Value = serde_json::from_str(&written("firefox", 3)).expect("JSON");
        let threads = profile["threads"].as_array().expect("threads");
        let names: Vec<&str> = threads.iter().filter_map(|thread| thread["name"].as_str()).collect();
        assert_eq!(names, ["inuse_space", "alloc_objects", "alloc_space", "inuse_objects"]);
        let samples = &threads[0]["samples"];
        assert_eq!(samples["weightType"], "bytes");
        assert_eq!(samples["weight"].as_array().expect("weights").iter().filter_map(|w| w.as_i64()).sum::<i64>(), 310);
        assert!(profile.to_string().contains("leaky"));
    }

    /// Catches control characters of a file that reach the terminal, and sums that overflow.
    #[test]
    fn hostile_profiles() {
        let mut bad = profile();
        bad.notes.push("a\u{1b}[31m note\nof two lines".into());
        bad.command = vec!["a\u{1b}]0;title\u{7}".into()];
        bad.types[3].unit = crate::Unit::Other("\u{9b}31m".into());
        bad.functions.iter_mut().for_each(|(_, function)| function.name.push_str("\u{1b}\r\n"));
        let largest = i64::MAX;
        bad.samples.iter_mut().for_each(|sample| sample.values.fill(largest));
        for format in FORMATS {
            for limit in [0, 1, 10] {
                let options = Options { column: 3, symbols: Symbols::Named, limit };
                let mut bytes = Vec::new();
                (format.write)(&bad, options, &mut bytes).expect("memory takes everything");
                let text = String::from_utf8_lossy(&bytes);
                let is_bad = |letter: char| letter.is_control() && letter != '\n';
                assert!(format.name != "text" || !text.contains(is_bad), "{text:?}");
            }
        }
    }
}
