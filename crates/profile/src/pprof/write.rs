//! From the model to `profile.proto`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use neap_trace::{Id, text};
use prost::Message;

use super::{ALLOCATOR, COMMAND, NO_STACK, PROCESS, WHOLE, schema};
use crate::{Frame, FunctionId, Label, LabelValue, Location, Profile, ValueType};

/// Whether function names are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Functions, files and lines.
    Named,
    /// Addresses, with mappings and build ids: the reader finds the names. Frames outside of files keep their names,
    /// which no reader could find.
    Addresses,
}

/// Writes a profile as pprof reads it.
pub fn write(profile: &Profile, symbols: Symbols, out: &mut dyn Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::default());
    encoder.write_all(&message(profile, symbols).encode_to_vec())?;
    encoder.finish()?.flush()
}

/// Strings, each once.
struct Texts<'p> {
    texts: Vec<String>,
    known: HashMap<&'p str, i64>,
}

impl<'p> Texts<'p> {
    fn add(&mut self, text: &'p str) -> i64 {
        *self.known.entry(text).or_insert_with(|| {
            self.texts.push(text.to_owned());
            self.texts.len() as i64 - 1
        })
    }

    fn own(&mut self, text: String) -> i64 {
        if let Some(&known) = self.known.get(text.as_str()) {
            return known;
        }
        self.texts.push(text);
        self.texts.len() as i64 - 1
    }

    fn of(&mut self, of: &'p ValueType) -> schema::ValueType {
        schema::ValueType { r#type: self.add(&of.name), unit: self.add(of.unit.name()) }
    }

    fn label(&mut self, label: &'p Label) -> schema::Label {
        let key = self.add(&label.key);
        match &label.value {
            LabelValue::Text(text) => schema::Label { key, str: self.add(text), ..schema::Label::default() },
            LabelValue::Number(num, unit) => schema::Label { key, str: 0, num: *num, num_unit: self.add(unit.name()) },
        }
    }
}

/// The id of a row: from 1 on.
fn id(row: impl Id) -> u64 {
    row.index() as u64 + 1
}

/// The profile as a message.
pub fn message(profile: &Profile, symbols: Symbols) -> schema::Profile {
    let named = symbols == Symbols::Named;
    let mut texts = Texts { texts: vec![String::new()], known: HashMap::from([("", 0)]) };
    let mut message = schema::Profile {
        sample_type: profile.types.iter().map(|of| texts.of(of)).collect(),
        mapping: mappings(profile, &mut texts, named),
        time_nanos: i64::try_from(profile.time).unwrap_or(0),
        duration_nanos: i64::try_from(profile.duration).unwrap_or(0),
        period_type: profile.period.as_ref().map(|period| texts.of(&period.of)),
        period: profile.period.as_ref().map_or(0, |period| period.value),
        default_sample_type: profile.types.get(profile.shown).map_or(0, |of| texts.add(&of.name)),
        comment: comments(profile).into_iter().map(|line| texts.own(line)).collect(),
        ..schema::Profile::default()
    };
    let shown: HashSet<FunctionId> = profile
        .locations
        .iter()
        .flat_map(|(_, location)| frames(location, named))
        .map(|frame| frame.function)
        .collect();
    let in_file = || profile.functions.iter().filter(|(row, _)| named || shown.contains(row));
    // Without gaps: `go tool pprof` numbers the functions that it finds itself from their count on.
    let numbers: HashMap<FunctionId, u64> = in_file().map(|(row, _)| row).zip(1..).collect();
    message.function = in_file()
        .map(|(row, function)| schema::Function {
            id: numbers[&row],
            name: texts.add(&function.name),
            system_name: texts.add(function.symbol.as_deref().unwrap_or(&function.name)),
            filename: texts.add(&function.file),
            start_line: i64::from(function.line),
        })
        .collect();
    message.location =
        profile.locations.iter().map(|(row, location)| of_location(id(row), location, named, &numbers)).collect();
    let no_stack = profile.samples.iter().any(|sample| sample.stack.is_none());
    let no_stack = no_stack.then(|| add_no_stack(&mut message, texts.add(NO_STACK)));
    message.sample = profile
        .samples
        .iter()
        .map(|sample| schema::Sample {
            location_id: match (sample.stack, no_stack) {
                (None, Some(location)) => vec![location],
                (stack, _) => profile.locations_of(stack).map(id).collect(),
            },
            value: sample.values.clone(),
            label: sample.labels.iter().map(|label| texts.label(label)).collect(),
        })
        .collect();
    message.string_table = texts.texts;
    message
}

/// The frames of a location that are written.
fn frames(location: &Location, named: bool) -> &[Frame] {
    if named || location.mapping.is_none() { &location.frames } else { &[] }
}

fn of_location(id_of: u64, location: &Location, named: bool, numbers: &HashMap<FunctionId, u64>) -> schema::Location {
    let frames = frames(location, named).iter();
    schema::Location {
        id: id_of,
        mapping_id: location.mapping.map_or(0, id),
        address: location.address,
        line: frames
            .map(|frame| schema::Line { function_id: numbers[&frame.function], line: i64::from(frame.line), column: 0 })
            .collect(),
        is_folded: false,
    }
}

/// Adds the location of samples without a stack.
fn add_no_stack(message: &mut schema::Profile, name: i64) -> u64 {
    let function = message.function.len() as u64 + 1;
    let location = message.location.len() as u64 + 1;
    message.function.push(schema::Function { id: function, name, system_name: name, ..schema::Function::default() });
    message.location.push(schema::Location {
        id: location,
        line: vec![schema::Line { function_id: function, ..schema::Line::default() }],
        ..schema::Location::default()
    });
    location
}

fn mappings<'p>(profile: &'p Profile, texts: &mut Texts<'p>, named: bool) -> Vec<schema::Mapping> {
    let mut seen = vec![(false, false, false); profile.mappings.len()];
    for (_, location) in profile.locations.iter().filter(|_| named) {
        let Some(seen) = location.mapping.and_then(|id| seen.get_mut(id.index())) else { continue };
        for frame in &location.frames {
            seen.0 = true;
            seen.1 |= profile.functions.get(frame.function).is_some_and(|function| !function.file.is_empty());
            seen.2 |= frame.line != 0;
        }
    }
    let rows = profile.mappings.iter().zip(seen);
    rows.map(|((row, mapping), (has_functions, has_filenames, has_line_numbers))| schema::Mapping {
        id: id(row),
        memory_start: mapping.start,
        memory_limit: mapping.end,
        file_offset: mapping.offset,
        filename: texts.add(&mapping.file),
        build_id: mapping.build_id.as_deref().map_or(0, |bytes| texts.own(text::hex_bytes::text(bytes))),
        has_functions,
        has_filenames,
        has_line_numbers,
        has_inline_frames: false,
    })
    .collect()
}

/// Properties without a field in the format.
fn comments(profile: &Profile) -> Vec<String> {
    let command = (!profile.command.is_empty()).then(|| format!("{COMMAND}{}", profile.command.join(" ")));
    let process = (profile.pid != 0).then(|| format!("{PROCESS}{}", profile.pid));
    let allocator = profile.allocator.as_ref().map(|name| format!("{ALLOCATOR}{name}"));
    let whole = profile.whole.map(|whole| format!("{WHOLE}{whole}"));
    [command, process, allocator, whole].into_iter().flatten().chain(profile.notes.iter().cloned()).collect()
}
