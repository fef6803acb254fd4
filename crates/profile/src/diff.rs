//! The changes from one profile to another, by call site.

use std::collections::HashMap;

use serde::Serialize;

use crate::sites::{Site, sites};
use crate::{Profile, Unit, View};

/// A comparison of two profiles in one value type.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The value type.
    pub value: String,
    /// Its unit.
    pub unit: Unit,
    /// The sum of the first profile, and of the second.
    pub before: i64,
    /// See `before`.
    pub after: i64,
    /// All sites of both, sorted by growth, the largest first.
    pub sites: Vec<Change>,
}

/// A site in two profiles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What was done, in profiles of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The function.
    pub function: String,
    /// The place in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The library with its code; empty for the program.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// The value in the first profile.
    pub before: i64,
    /// The value in the second one.
    pub after: i64,
}

impl Change {
    /// How much it grew.
    pub const fn growth(&self) -> i64 {
        self.after.saturating_sub(self.before)
    }

    /// For people.
    pub fn describe(&self) -> String {
        let site = Site {
            operation: self.operation.clone(),
            function: self.function.clone(),
            place: self.place.clone(),
            object: self.object.clone(),
        };
        match &self.operation {
            Some(operation) => format!("{operation}: {}", site.describe()),
            None => site.describe(),
        }
    }
}

/// Compares two profiles in the value type that the second one shows, or in that of the view; otherwise returns why
/// not. Sites are matched by name.
pub fn diff(before: &Profile, after: &Profile, view: Option<View>) -> Result<Diff, String> {
    let column = after.chosen(view)?;
    let of = &after.types[column];
    let Some(other) = before.types.iter().position(|candidate| candidate == of) else {
        let names: Vec<&str> = before.types.iter().map(|of| of.name.as_ref()).collect();
        return Err(format!("the first profile has no {} ({}); it has {}", of.name, of.unit.name(), names.join(", ")));
    };
    let mut changes: HashMap<Site, (i64, i64)> = HashMap::new();
    for row in sites(before, other) {
        changes.entry(row.site).or_default().0 += row.values[other];
    }
    for row in sites(after, column) {
        changes.entry(row.site).or_default().1 += row.values[column];
    }
    let mut sites: Vec<Change> = changes
        .into_iter()
        .map(|(site, (before, after))| Change {
            operation: site.operation,
            function: site.function,
            place: site.place,
            object: site.object,
            before,
            after,
        })
        .collect();
    sites.sort_by(|a, b| {
        (b.growth(), b.after, &a.function, &a.place).cmp(&(a.growth(), a.after, &b.function, &b.place))
    });
    Ok(Diff {
        value: of.name.clone().into_owned(),
        unit: of.unit.clone(),
        before: before.total(other),
        after: after.total(column),
        sites,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::profile;

    /// Catches growth that is found at the wrong site, or with the wrong sign.
    #[test]
    fn what_grew_comes_first() {
        let before = profile();
        let mut after = profile();
        after.samples[1].values[3] = 900;
        after.samples[0].values[3] = 50;
        // Another run has other addresses.
        after.locations.iter_mut().for_each(|(_, location)| location.address += 0x10_0000);
        let diff = diff(&before, &after, None).expect("the same types");
        let seen: Vec<_> = diff.sites.iter().map(|change| (change.function.as_str(), change.growth())).collect();
        assert_eq!(seen, [("busy", 800), ("main", 0), ("[no stack]", 0), ("leaky", -150)]);
        assert_eq!((diff.before, diff.after), (310, 960));
        assert!(super::diff(&before, &after, Some(View::Time)).expect_err("no time").contains("time"));
    }
}
