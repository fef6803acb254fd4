//! Names that change between builds, and how they are matched.
//!
//! A name is looked up as it is, then by its *stem*: the part that stays the same in another build.
//!
//! | in the name | in the stem |
//! |---|---|
//! | `17h` and 16 hexadecimal digits at the end of a Rust name of the older scheme | left out |
//! | `s…_` behind the `C` of a crate, in a Rust name of scheme v0; the offset of a reference to an earlier part | left out |
//! | `.llvm.N`, `.lto_priv.N`, `.isra.N`, `.constprop.N`, `.N` | left out |
//! | `.part.N`, `.cold` | kept without the number: such a part is another piece of code than the rest |

use std::collections::HashMap;

use crate::binary::{Binary, Symbol};

/// The part of a name that stays the same in another build.
pub fn stem(name: &str) -> String {
    // Rust names of the older scheme contain dots, such as `alloc..string..String`, before the hash.
    let (mut stem, suffixes) = match hash(name) {
        Some(hash) => (name[..hash].to_owned(), &name[hash + HASH..]),
        None => {
            let (base, suffixes) = name.split_at(name.find('.').filter(|&dot| dot > 0).unwrap_or(name.len()));
            let stem = if base.starts_with("_R") { without_crate_hashes(base) } else { base.to_owned() };
            (stem, suffixes)
        }
    };
    for suffix in suffixes.split('.').skip(1) {
        let number = !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
        if !number && !matches!(suffix, "llvm" | "lto_priv" | "isra" | "constprop") {
            stem.push('.');
            stem.push_str(suffix);
        }
    }
    stem
}

/// The length of `17h`, 16 digits and `E`.
const HASH: usize = 20;

/// The offset of the hash in a Rust name of the older scheme; suffixes may follow it.
fn hash(name: &str) -> Option<usize> {
    let is_hash = |text: &[u8]| {
        text.starts_with(b"17h") && text.ends_with(b"E") && text[3..HASH - 1].iter().all(u8::is_ascii_hexdigit)
    };
    let ends = |end: usize| matches!(name.as_bytes().get(end), None | Some(b'.'));
    let found = name.as_bytes().windows(HASH).enumerate().filter(|(at, text)| is_hash(text) && ends(at + HASH));
    found.map(|(at, _)| at).next_back().filter(|_| name.starts_with("_ZN"))
}

/// Identifiers are copied by their length, because they may contain anything.
fn without_crate_hashes(name: &str) -> String {
    let bytes = name.as_bytes();
    let number = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let (mut stem, mut at) = (String::new(), 0);
    while at < bytes.len() {
        let begin = at;
        match bytes[at] {
            b'0'..=b'9' => {
                let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let length: usize = name[at..at + digits].parse().unwrap_or(0);
                at = (at + digits).saturating_add(length).min(bytes.len());
                at += usize::from(length > 0 && bytes.get(begin + digits) == Some(&b'_') && at < bytes.len());
            }
            b'C' if bytes.get(at + 1) == Some(&b's') => {
                stem.push('C');
                at += 2 + number(at + 2) + 1;
                continue;
            }
            letter @ (b'B' | b's') => {
                at = (at + 1 + number(at + 1) + 1).min(bytes.len());
                if letter == b'B' {
                    stem.push('B');
                    continue;
                }
            }
            _ => at += 1,
        }
        // An identifier ends within a character only in a damaged name.
        match name.get(begin..at) {
            Some(part) => stem.push_str(part),
            None => return name.to_owned(),
        }
    }
    stem
}

/// How many names of a trace were found in a binary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the unchanged name.
    pub same: usize,
    /// By their stem.
    pub changed: usize,
    /// Not found.
    pub lost: usize,
}

/// The symbols of a binary by name.
pub struct Names<'b> {
    exact: HashMap<&'b str, Vec<&'b Symbol>>,
    stems: HashMap<String, Vec<&'b Symbol>>,
}

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<'b> {
    /// By the unchanged name.
    Same(&'b Symbol),
    /// By its stem.
    Changed(Vec<&'b Symbol>),
    /// Not found.
    Lost,
}

impl<'b> Names<'b> {
    /// The names of a binary.
    pub fn new(binary: &'b Binary) -> Self {
        let (mut exact, mut stems): (HashMap<_, Vec<_>>, HashMap<_, Vec<_>>) = Default::default();
        for symbol in &binary.symbols {
            for name in std::iter::once(&symbol.name).chain(&symbol.aliases) {
                exact.entry(name.as_str()).or_default().push(symbol);
                stems.entry(stem(name)).or_default().push(symbol);
            }
        }
        Self { exact, stems }
    }

    /// Looks up a name. Of several local symbols with this name, the one of the same source file is returned, otherwise
    /// the one at the same address, otherwise the first. Of several with its stem, such as a generic function of Rust
    /// for each type, those of the same size are returned, otherwise all.
    pub fn find(&self, name: &str, file: Option<&str>, address: u64, size: u64) -> Found<'b> {
        if let Some(symbols) = self.exact.get(name) {
            let likeness = |symbol: &&&Symbol| (symbol.file.as_deref() == file, symbol.address == address);
            // Of equal candidates the first must win, not the last.
            return symbols.iter().rev().max_by_key(likeness).map_or(Found::Lost, |symbol| Found::Same(symbol));
        }
        match self.stems.get(&stem(name)) {
            Some(symbols) => {
                let alike: Vec<&Symbol> = symbols.iter().copied().filter(|symbol| symbol.size == size).collect();
                Found::Changed(if alike.is_empty() { symbols.clone() } else { alike })
            }
            None => Found::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches names that are lost in the next build, and parts of a function that count as the function.
    #[test]
    fn stems() {
        for (one, other) in [
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "_ZN4core3fmt5Write9write_fmt17hfedcba9876543210E"),
            (
                "_ZN4core3ptr42drop_in_place$LT$alloc..string..String$GT$17h0123456789abcdefE",
                "_ZN4core3ptr42drop_in_place$LT$alloc..string..String$GT$17hfedcba9876543210E.llvm.77",
            ),
            ("_RNvCs1234_7mycrate3foo", "_RNvCskQ9zZ_7mycrate3foo"),
            ("_RNvMCs12_3abcNtB2_3Foo3new", "_RNvMCs12345_3abcNtB5_3Foo3new"),
            ("foo.llvm.1234", "foo.llvm.99"),
            ("foo.lto_priv.0", "foo"),
            ("foo.isra.0", "foo.constprop.3"),
            ("foo.isra.0.cold", "foo.cold"),
            ("foo.part.1", "foo.part.0"),
            ("counter.0", "counter.17"),
        ] {
            assert_eq!(stem(one), stem(other), "{one}");
        }
        for (one, other) in [
            ("foo", "foo.cold"),
            ("foo", "foo.part.0"),
            ("_RNvCs12_7mycrate3foo", "_RNvCs12_7mycrate3bar"),
            ("_RNvC5Cs1_a3foo", "_RNvC5Cs2_a3foo"),
            ("_ZN1a1bE", "_ZN1a1cE"),
            ("_ZN7a..b1c17h0123456789abcdefE", "_ZN7a..d1c17h0123456789abcdefE"),
        ] {
            assert_ne!(stem(one), stem(other), "{one}");
        }
        for name in [".", "", "_R", "_RC", "_RCs", "_R9", "_R99999999999999999999x", "E", "_ZN17hE", "_R2ééé"] {
            let _ = stem(name);
        }
    }

    /// Catches instances of a generic function that are all placed for one, and one that is lost because its size
    /// changed.
    #[test]
    fn of_instances_those_of_the_same_size_count() {
        let symbol = |address: u64, size: u64| Symbol {
            name: format!("_ZN1a1b17h{address:016x}E"),
            aliases: Vec::new(),
            section: 0,
            address,
            size,
            file: None,
        };
        let binary = Binary { symbols: vec![symbol(16, 7), symbol(32, 9), symbol(48, 9)], ..Binary::default() };
        let names = Names::new(&binary);
        let find = |size: u64| match names.find("_ZN1a1b17hfedcba9876543210E", None, 16, size) {
            Found::Changed(symbols) => symbols.iter().map(|symbol| symbol.address).collect(),
            _ => Vec::new(),
        };
        assert_eq!([find(7), find(9), find(8)], [vec![16], vec![32, 48], vec![16, 32, 48]]);
    }
}
