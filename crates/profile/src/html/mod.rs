//! One page of HTML with a flame graph, for any browser and without a network: of one profile, or of two and what
//! changed between them.
//!
//! `page.html`, `page.css` and `page.js` are the page (with the style that all pages of neap have in common); between
//! them goes what this module makes of the profiles: frames and stacks, each once, as JSON. The page has the [`STACKS`]
//! largest stacks, and the sum of the others.

use std::collections::HashMap;
use std::io::{self, Write};

use neap_trace::format::html::{BASE_STYLE, escaped, fill, write_data};
use neap_trace::text::file_name;
use serde::Serialize;

use crate::allocator::is_allocator;
use crate::amount::amount;
use crate::pprof::NO_STACK;
use crate::time::operation;
use crate::{Options, Profile, Shown, Unit, View};

/// How many stacks the page has: what a browser still handles with ease.
const STACKS: usize = 20_000;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes a page of one profile; or of two: the second one, and what changed since the first.
pub fn html(profiles: &[&Profile], options: Options, out: &mut dyn Write) -> io::Result<()> {
    html_of(profiles, options, STACKS, out)
}

fn html_of(profiles: &[&Profile], options: Options, stacks: usize, out: &mut dyn Write) -> io::Result<()> {
    let Some(last) = profiles.last() else { return Ok(()) };
    let data = Data::new(profiles, options, stacks);
    let title = match profiles {
        [before, after] if before.title() != after.title() => format!("{}, since {}", after.title(), before.title()),
        [_, after] => format!("{}: what changed", after.title()),
        _ => last.title(),
    };
    fill(PAGE, out, &mut |mark, out| match mark {
        "title" => write!(out, "{}", escaped(&title)),
        "style" => write!(out, "{BASE_STYLE}{STYLE}"),
        "notes" => notes(profiles, out),
        "data" => write_data(&data, out),
        "script" => out.write_all(SCRIPT.as_bytes()),
        _ => Ok(()),
    })
}

fn notes(profiles: &[&Profile], out: &mut dyn Write) -> io::Result<()> {
    let period = profiles.iter().filter_map(|profile| profile.period.as_ref()).next();
    if let Some(period) = period {
        writeln!(out, "<li>One sample each {}.</li>", escaped(&amount(period.value, &period.of.unit)))?;
    }
    for (index, profile) in profiles.iter().enumerate() {
        let side = match (profiles.len(), index) {
            (2, 0) => "before: ",
            (2, _) => "after: ",
            _ => "",
        };
        if profile.duration != 0 {
            let time = amount(i64::try_from(profile.duration).unwrap_or(i64::MAX), &Unit::Nanoseconds);
            writeln!(out, "<li>{side}taken over {}.</li>", escaped(&time))?;
        }
        profile.notes.iter().try_for_each(|note| writeln!(out, "<li>{side}{}</li>", escaped(note)))?;
    }
    Ok(())
}

/// What the page's script finds as JSON.
#[derive(Serialize)]
struct Data {
    /// Whether there are two profiles.
    diff: bool,
    /// Value types that all profiles have.
    types: Vec<Type>,
    /// The one that is shown at first.
    shown: usize,
    /// Of what its values are a part, where that is known.
    whole: Option<i64>,
    /// Texts, each once.
    texts: Vec<String>,
    /// Functions: positions of the name, the object and the place in the source (-1 for none) in `texts`, and what kind
    /// of code it is: 0 the program's, 1 the allocator's, 2 of a library, 3 the kernel's.
    frames: Vec<[i64; 4]>,
    /// Operations of profiles of time.
    operations: Vec<String>,
    /// Stacks: frames, outermost first; the operation (-1 for none); the values of each profile, in the order of
    /// `types`.
    stacks: Vec<(Vec<usize>, i64, Vec<Vec<i64>>)>,
    /// Stacks that are not in the page one by one.
    left_out: usize,
}

#[derive(Serialize)]
struct Type {
    name: String,
    label: String,
    unit: String,
}

/// Texts and frames, each once.
#[derive(Default)]
struct Rows {
    texts: Vec<String>,
    known: HashMap<String, usize>,
    frames: Vec<[i64; 4]>,
    functions: HashMap<(usize, i64), usize>,
}

impl Rows {
    fn text(&mut self, text: &str) -> usize {
        if let Some(&known) = self.known.get(text) {
            return known;
        }
        self.texts.push(text.to_owned());
        self.known.insert(text.to_owned(), self.texts.len() - 1);
        self.texts.len() - 1
    }

    /// A function is one frame, whatever its line: profiles are compared by names.
    fn frame(&mut self, frame: &Shown<'_>) -> usize {
        let name = self.text(&frame.name);
        // The program may have another name in the other profile.
        let object = if frame.is_library() { self.text(file_name(frame.object)) as i64 } else { -1 };
        if let Some(&known) = self.functions.get(&(name, object)) {
            return known;
        }
        let place = frame.place().map_or(-1, |place| self.text(&place) as i64);
        self.frames.push([name as i64, object, place, kind(frame)]);
        self.functions.insert((name, object), self.frames.len() - 1);
        self.frames.len() - 1
    }
}

/// What kind of code a frame is.
fn kind(frame: &Shown<'_>) -> i64 {
    if frame.object == "[kernel]" {
        3
    } else if is_allocator(frame.object, &frame.name) {
        1
    } else if neap_trace::runtime::is_runtime(frame.object, Some(&frame.name)) || frame.is_library() {
        2
    } else {
        0
    }
}

impl Data {
    fn new(profiles: &[&Profile], options: Options, most: usize) -> Self {
        let last = profiles[profiles.len() - 1];
        // In the order of the last profile; those that another one lacks cannot be compared.
        let columns: Vec<Vec<usize>> = (0..last.types.len())
            .filter_map(|at| {
                profiles.iter().map(|profile| profile.types.iter().position(|of| *of == last.types[at])).collect()
            })
            .collect();
        let shown = columns.iter().position(|of| of.last() == Some(&options.column)).unwrap_or(0);
        let mut rows = Rows::default();
        let mut operations: Vec<String> = Vec::new();
        let mut sums: HashMap<(Vec<usize>, i64), Vec<Vec<i64>>> = HashMap::new();
        let empty: Vec<Vec<i64>> = vec![vec![0; columns.len()]; profiles.len()];
        for (index, profile) in profiles.iter().enumerate() {
            for sample in &profile.samples {
                let mut path: Vec<usize> = profile.frames(sample).map(|frame| rows.frame(&frame)).collect();
                if path.is_empty() {
                    path.push(rows.frame(&Shown { name: NO_STACK.into(), object: "", source: "", line: 0 }));
                }
                path.reverse();
                let operation = operation(sample).map_or(-1, |name| position(&mut operations, &name));
                let values = &mut sums.entry((path, operation)).or_insert_with(|| empty.clone())[index];
                for (sum, column) in values.iter_mut().zip(&columns) {
                    *sum = sum.saturating_add(sample.values[column[index]]);
                }
            }
        }
        let mut stacks: Vec<_> =
            sums.into_iter().map(|((path, operation), values)| (path, operation, values)).collect();
        let size = |values: &Vec<Vec<i64>>| -> u64 {
            values.iter().fold(0, |sum, of| sum.saturating_add(of[shown].unsigned_abs()))
        };
        stacks.sort_by(|a, b| size(&b.2).cmp(&size(&a.2)).then_with(|| a.0.cmp(&b.0)));
        let left_out = stacks.len().saturating_sub(most);
        if left_out > 0 {
            let rest = stacks.split_off(most);
            let frame = rows.frame(&Shown { name: "[smaller stacks]".into(), object: "", source: "", line: 0 });
            let mut sum = empty;
            for (_, _, values) in rest {
                let pairs = sum.iter_mut().flatten().zip(values.iter().flatten());
                pairs.for_each(|(sum, value)| *sum = sum.saturating_add(*value));
            }
            stacks.push((vec![frame], -1, sum));
        }
        let types = columns.iter().filter_map(|of| last.types.get(*of.last()?)).map(|of| Type {
            name: of.name.clone().into_owned(),
            label: label(of),
            unit: of.unit.name().to_owned(),
        });
        Self {
            diff: profiles.len() > 1,
            types: types.collect(),
            shown,
            whole: last.whole.filter(|_| options.column == last.shown && profiles.len() == 1),
            texts: rows.texts,
            frames: rows.frames,
            operations,
            stacks,
            left_out,
        }
    }
}

/// What a value type is called in the page: `live (bytes)`.
fn label(of: &crate::ValueType) -> String {
    let view = View::ALL.into_iter().find_map(|view| {
        let is_count = view.count().is_some_and(|count| count == *of);
        (view.main() == *of || is_count).then(|| view.label())
    });
    let growth = of.name.strip_prefix("growth_").map(|_| "growth");
    let unit = match (&of.unit, view) {
        (Unit::Count, Some("time")) => "samples",
        (Unit::Count, _) => "blocks",
        (unit, _) => unit.name(),
    };
    match view.or(growth) {
        Some("time") if of.unit == Unit::Nanoseconds => "time".to_owned(),
        Some(name) => format!("{name} ({unit})"),
        None => format!("{} ({})", of.name, of.unit.name()),
    }
}

fn position(texts: &mut Vec<String>, text: &str) -> i64 {
    let found = texts.iter().position(|known| known == text);
    found.unwrap_or_else(|| {
        texts.push(text.to_owned());
        texts.len() - 1
    }) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pprof::Symbols;
    use crate::testing::profile;

    const OPTIONS: Options = Options { column: 3, symbols: Symbols::Named, limit: 10 };

    fn page(profiles: &[&Profile], stacks: usize) -> String {
        let mut page = Vec::new();
        html_of(profiles, OPTIONS, stacks, &mut page).expect("memory takes everything");
        String::from_utf8(page).expect("UTF-8")
    }

    fn data(page: &str) -> serde_json::Value {
        let begin = page.split_once("id=\"data\">").expect("the element").1;
        serde_json::from_str(begin.split_once("</script>").expect("its end").0).expect("JSON")
    }

    /// Catches names that end the element they are in, marks that stay, and texts that become marks.
    #[test]
    fn names_stay_text() {
        let mut profile = profile();
        profile.command = vec!["</title><script>alert(1)</script>".into(), "<!--data-->".into()];
        profile.functions.iter_mut().for_each(|(_, function)| function.name = "</script><!--".into());
        let page = page(&[&profile], 10);
        assert_eq!(page.matches("<script").count(), PAGE.matches("<script").count());
        assert_eq!(page.matches("</script").count(), PAGE.matches("</script").count());
        assert!(!page.contains("<!--"), "{page}");
    }

    /// Catches anything that a browser would fetch.
    #[test]
    fn nothing_comes_from_elsewhere() {
        for part in [PAGE, STYLE, SCRIPT] {
            for word in ["http:", "https:", "src=", "@import", "url(", "fetch(", "import ", "innerHTML"] {
                assert!(!part.contains(word), "{word}");
            }
        }
    }

    /// Catches stacks that are upside down, profiles that are exchanged, and sums that lack what was left out.
    #[test]
    fn the_data() {
        let one = data(&page(&[&profile()], 10));
        assert_eq!((one["shown"].as_u64(), one["diff"].as_bool()), (Some(3), Some(false)));
        let name = |data: &serde_json::Value, frame: &serde_json::Value| {
            let text = data["frames"][frame.as_u64().expect("a frame") as usize][0].as_u64().expect("a text");
            data["texts"][text as usize].as_str().expect("a name").to_owned()
        };
        let first = &one["stacks"][0];
        let names: Vec<String> = first[0].as_array().expect("frames").iter().map(|frame| name(&one, frame)).collect();
        assert_eq!(names, ["main", "leaky", "malloc"]);
        let mut after = profile();
        after.samples[0].values[3] = 999;
        let two = data(&page(&[&profile(), &after], 2));
        assert_eq!(two["stacks"][0][2], serde_json::json!([[3, 300, 2, 200], [3, 300, 2, 999]]));
        assert_eq!((two["left_out"].as_u64(), two["stacks"].as_array().map(Vec::len)), (Some(2), Some(3)));
        assert_eq!(two["stacks"][2][2], serde_json::json!([[2, 11, 1, 10], [2, 11, 1, 10]]));
    }
}
