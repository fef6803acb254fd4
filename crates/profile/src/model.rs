//! The parts of a profile.

use std::borrow::Cow;

use neap_trace::{Table, text};
use serde::{Deserialize, Serialize};

neap_trace::ids! {
    /// A row of [`Profile::mappings`].
    MappingId,
    /// A row of [`Profile::functions`].
    FunctionId,
    /// A row of [`Profile::locations`].
    LocationId,
    /// A row of [`Profile::stacks`].
    StackId,
}

/// A whole profile. For each sample, `sample.values.len() == types.len()`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// The program and its arguments; empty where unknown.
    pub command: Vec<String>,
    /// The process; 0 where unknown.
    pub pid: u32,
    /// The program's malloc, as far as it is known: `neap`, or the path of its library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator: Option<String>,
    /// When it was taken, in nanoseconds since 1970; for a profile over a time, its beginning.
    pub time: u64,
    /// Its length in nanoseconds; 0 for a snapshot.
    pub duration: u64,
    /// The meanings of the values of samples, in their order.
    pub types: Vec<ValueType>,
    /// The value type that is shown by default; the first one if it is not in `types`.
    #[serde(default)]
    pub shown: usize,
    /// The total of which the values of the shown type are a part: the processor time of the program, inside and
    /// outside of the allocator; the resident bytes of the heap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<i64>,
    /// The sampling period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Period>,
    /// What the profile covers and what it lacks, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Files in the process.
    pub mappings: Table<MappingId, Mapping>,
    /// Functions.
    pub functions: Table<FunctionId, Function>,
    /// Instructions.
    pub locations: Table<LocationId, Location>,
    /// Stacks; a caller comes before its callees.
    pub stacks: Table<StackId, StackNode>,
    /// Values by stack. A stack may occur more than once, with other labels.
    pub samples: Vec<Sample>,
}

/// The meaning of values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ValueType {
    /// pprof's name: `inuse_space`.
    pub name: Cow<'static, str>,
    /// What is counted.
    pub unit: Unit,
}

impl ValueType {
    /// A value type that is known at compile time.
    pub const fn new(name: &'static str, unit: Unit) -> Self {
        Self { name: Cow::Borrowed(name), unit }
    }
}

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Objects.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Another unit, of a profile that was not made by neap.
    Other(String),
}

impl Unit {
    /// pprof's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "nanoseconds",
            Self::Other(name) => name,
        }
    }

    /// The unit of that name.
    pub fn from_name(name: &str) -> Self {
        match name {
            "count" => Self::Count,
            "bytes" => Self::Bytes,
            "nanoseconds" => Self::Nanoseconds,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// On average, one sample is taken for every `value` units of the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// What is measured between two samples: `space` in bytes, `cpu` in nanoseconds.
    pub of: ValueType,
    /// How many units.
    pub value: i64,
}

/// A file in the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    #[serde(with = "text::hex")]
    pub start: u64,
    /// The address behind it.
    #[serde(with = "text::hex")]
    pub end: u64,
    /// The position of `start` in the file.
    #[serde(with = "text::hex")]
    pub offset: u64,
    /// The path, or a stand-in for one: `[vdso]`, `[kernel]`, `[jit]`.
    pub file: String,
    /// The build id in its notes, by which its symbols are found elsewhere.
    #[serde(default, with = "text::hex_bytes", skip_serializing_if = "Option::is_none")]
    pub build_id: Option<Vec<u8>>,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Function {
    /// The demangled name.
    pub name: String,
    /// The symbol's name, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// The file of source; empty where unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The line that it begins at; 0 where unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// The address in the process. For a caller: inside the call instruction (the return address minus 1).
    #[serde(with = "text::hex")]
    pub address: u64,
    /// The file that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapping: Option<MappingId>,
    /// Its frames: inlined functions first, the function that contains them last. Empty where no symbol is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
}

/// A function, and a line of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The function.
    pub function: FunctionId,
    /// The line in the function's file; 0 where unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
}

/// A location and its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackNode {
    /// The rest of the stack, outwards; `None` at the outermost frame. Its id is lower than this node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<StackId>,
    /// The location.
    pub location: LocationId,
}

/// Values of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The innermost frame; `None` where no stack could be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackId>,
    /// One for each of [`Profile::types`].
    pub values: Vec<i64>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Label>,
}

/// A further property of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Label {
    /// `oldest` (age of the oldest live block), `operation` (what the allocator does), `thread`.
    pub key: Cow<'static, str>,
    /// Its value.
    pub value: LabelValue,
}

/// The value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelValue {
    /// A text.
    Text(String),
    /// A number with its unit.
    Number(i64, Unit),
}

impl Label {
    /// A label with a text.
    pub fn text(key: &'static str, value: impl Into<String>) -> Self {
        Self { key: Cow::Borrowed(key), value: LabelValue::Text(value.into()) }
    }

    /// A label with a number.
    pub const fn number(key: &'static str, value: i64, unit: Unit) -> Self {
        Self { key: Cow::Borrowed(key), value: LabelValue::Number(value, unit) }
    }
}

impl Sample {
    /// The label of that key.
    pub fn label(&self, key: &str) -> Option<&LabelValue> {
        self.labels.iter().find(|label| label.key == key).map(|label| &label.value)
    }
}

impl Profile {
    /// The index of a value type.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.types.iter().position(|of| of.name == name)
    }

    /// The locations of a stack, from the innermost outwards.
    pub fn locations_of(&self, stack: Option<StackId>) -> impl Iterator<Item = LocationId> {
        let mut next = stack;
        std::iter::from_fn(move || {
            let node = self.stacks.get(next?)?;
            next = node.parent;
            Some(node.location)
        })
    }

    /// The sum of a column.
    pub fn total(&self, column: usize) -> i64 {
        self.samples
            .iter()
            .filter_map(|sample| sample.values.get(column))
            .fold(0, |sum, &value| sum.saturating_add(value))
    }

    /// Whether all ids name rows, callers come first, and each sample has a value for each type. Profiles from files
    /// must be checked; a [`Builder`](crate::Builder) makes valid ones.
    pub fn is_valid(&self) -> bool {
        let stacks = self.stacks.iter().all(|(id, node)| {
            node.parent.is_none_or(|parent| parent < id) && self.locations.get(node.location).is_some()
        });
        let locations = self.locations.iter().all(|(_, location)| {
            location.mapping.is_none_or(|id| self.mappings.get(id).is_some())
                && location.frames.iter().all(|frame| self.functions.get(frame.function).is_some())
        });
        let samples = self.samples.iter().all(|sample| {
            sample.values.len() == self.types.len() && sample.stack.is_none_or(|id| self.stacks.get(id).is_some())
        });
        !self.types.is_empty() && stacks && locations && samples
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}
