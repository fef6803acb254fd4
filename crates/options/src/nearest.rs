//! Finds the name that is nearest to a mistyped one.

use core::fmt::{Display, Formatter, Result};

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

/// Longest name whose distance is computed.
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
    use std::string::ToString;

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
}
