//! Samples by call site.

use std::collections::HashMap;

use neap_trace::text::file_name;

use crate::time::operation;
use crate::{LabelValue, Profile, Shown};

/// The key of the label with the age of the oldest live block.
pub const OLDEST: &str = "oldest";

/// The key by which samples are summed, in any profile: addresses differ between runs, names do not.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The operation, in profiles of time.
    pub operation: Option<String>,
    /// The function.
    pub function: String,
    /// `server.c:12`, where there is a line.
    pub place: Option<String>,
    /// The name of the library with its code; empty for the program, whose name may differ in another profile.
    pub object: String,
}

/// The samples of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The site.
    pub site: Site,
    /// The sums, one for each of the profile's types.
    pub values: Vec<i64>,
    /// The age of the oldest live block, in nanoseconds.
    pub oldest: Option<i64>,
    /// The callers of the site, innermost first, in its largest sample.
    pub callers: Vec<String>,
    /// That sample's value.
    largest: i64,
}

/// The sites of a profile, sorted by a column, the largest first.
pub fn sites(profile: &Profile, column: usize) -> Vec<Row> {
    let mut rows: HashMap<Site, Row> = HashMap::new();
    for sample in &profile.samples {
        let site = Site::new(profile.site(sample).as_ref(), operation(sample).map(|name| name.into_owned()));
        let row = rows.entry(site.clone()).or_insert_with(|| Row {
            site,
            values: vec![0; profile.types.len()],
            oldest: None,
            callers: Vec::new(),
            largest: i64::MIN,
        });
        for (sum, value) in row.values.iter_mut().zip(&sample.values) {
            *sum = sum.saturating_add(*value);
        }
        if let Some(LabelValue::Number(age, _)) = sample.label(OLDEST) {
            row.oldest = row.oldest.max(Some(*age));
        }
        let value = sample.values[column];
        if value > row.largest {
            row.largest = value;
            row.callers = profile.callers(sample).skip(1).map(|frame| frame.name.into_owned()).collect();
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_by(|a, b| (b.values[column], &a.site).cmp(&(a.values[column], &b.site)));
    rows
}

impl Site {
    fn new(frame: Option<&Shown<'_>>, operation: Option<String>) -> Self {
        match frame {
            Some(frame) => Self {
                operation,
                function: frame.name.clone().into_owned(),
                place: frame.place(),
                object: if frame.is_library() { file_name(frame.object).to_owned() } else { String::new() },
            },
            None => Self { operation, function: "[no stack]".to_owned(), place: None, object: String::new() },
        }
    }

    /// For people: `leaky (server.c:12)`, `leaky in libserver.so`.
    pub fn describe(&self) -> String {
        match &self.place {
            Some(place) => format!("{} ({place})", self.function),
            None if self.object.is_empty() => self.function.clone(),
            None => format!("{} in {}", self.function, self.object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::profile;

    /// Catches sites in the wrong order, and values that are added to other sites.
    #[test]
    fn largest_first() {
        let rows = sites(&profile(), 3);
        let seen: Vec<_> = rows.iter().map(|row| (row.site.describe(), row.values[3], row.oldest)).collect();
        let expected = [
            ("leaky (server.c:10)", 200, Some(5_000_000_000)),
            ("busy (server.c:20)", 100, None),
            ("main (server.c:40)", 10, None),
            ("[no stack]", 0, None),
        ];
        assert_eq!(seen, expected.map(|(name, value, age)| (name.to_owned(), value, age)));
        assert_eq!(rows[0].callers, ["main"]);
    }
}
