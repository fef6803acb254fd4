//! Views: which value types belong together.

use crate::{Profile, ValueType};

/// The value types that neap's profiles have. The first four are those of pprof's heap profiles, in their usual order:
/// a profile with one of them has all four.
pub mod types {
    use crate::{Unit, ValueType};

    /// Blocks that were allocated.
    pub const ALLOC_OBJECTS: ValueType = ValueType::new("alloc_objects", Unit::Count);
    /// Bytes that were allocated.
    pub const ALLOC_SPACE: ValueType = ValueType::new("alloc_space", Unit::Bytes);
    /// Blocks that are live.
    pub const INUSE_OBJECTS: ValueType = ValueType::new("inuse_objects", Unit::Count);
    /// Bytes that are live.
    pub const INUSE_SPACE: ValueType = ValueType::new("inuse_space", Unit::Bytes);
    /// Live blocks now, less those of the first snapshot; may be negative.
    pub const GROWTH_OBJECTS: ValueType = ValueType::new("growth_objects", Unit::Count);
    /// Live bytes now, less those of the first snapshot; may be negative.
    pub const GROWTH_SPACE: ValueType = ValueType::new("growth_space", Unit::Bytes);
    /// Bytes of resident OS pages that only these live blocks keep from going back, less the blocks themselves.
    pub const PINNED_SPACE: ValueType = ValueType::new("pinned_space", Unit::Bytes);
    /// Samples of the clock inside the allocator.
    pub const TIME_SAMPLES: ValueType = ValueType::new("samples", Unit::Count);
    /// Processor time in the allocator.
    pub const TIME: ValueType = ValueType::new("time", Unit::Nanoseconds);
}

/// What a profile shows. One profile may have several views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// Live blocks by call site.
    Heap,
    /// All allocations by call site.
    Allocs,
    /// Time of allocation.
    Time,
    /// Memory that live blocks keep from going back.
    Pinned,
}

impl View {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Heap, Self::Allocs, Self::Time, Self::Pinned];

    /// The option that selects it, without the hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Allocs => "allocs",
            Self::Time => "time",
            Self::Pinned => "pinned",
        }
    }

    /// A few words for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Heap => "live",
            Self::Allocs => "allocated",
            Self::Time => "time",
            Self::Pinned => "pinned",
        }
    }

    /// The value type that decides the order of its call sites.
    pub const fn main(self) -> ValueType {
        match self {
            Self::Heap => types::INUSE_SPACE,
            Self::Allocs => types::ALLOC_SPACE,
            Self::Time => types::TIME,
            Self::Pinned => types::PINNED_SPACE,
        }
    }

    /// The count that is shown besides [`main`](Self::main).
    pub const fn count(self) -> Option<ValueType> {
        match self {
            Self::Heap => Some(types::INUSE_OBJECTS),
            Self::Allocs => Some(types::ALLOC_OBJECTS),
            Self::Time => Some(types::TIME_SAMPLES),
            Self::Pinned => None,
        }
    }
}

impl Profile {
    /// The column of a view, or the default one; otherwise why there is none.
    pub fn chosen(&self, view: Option<View>) -> Result<usize, String> {
        let Some(view) = view else { return Ok(if self.shown < self.types.len() { self.shown } else { 0 }) };
        let main = view.main();
        self.types.iter().position(|of| *of == main).ok_or_else(|| {
            let names: Vec<&str> = self.types.iter().map(|of| of.name.as_ref()).collect();
            format!("the profile has no {} ({}); it has {}", main.name, view.label(), names.join(", "))
        })
    }

    /// The program's name; `process 42` where it is unknown.
    pub fn program(&self) -> String {
        match self.command.first() {
            Some(program) => neap_trace::text::file_name(program).to_owned(),
            None if self.pid != 0 => format!("process {}", self.pid),
            None => self.mappings.iter().next().map_or_else(
                || "a program".to_owned(),
                |(_, mapping)| neap_trace::text::file_name(&mapping.file).to_owned(),
            ),
        }
    }

    /// A one-line description of the profile.
    pub fn title(&self) -> String {
        let mut text = if self.command.is_empty() {
            self.program()
        } else {
            self.command.join(" ").replace(char::is_control, "?")
        };
        if let Some(allocator) = &self.allocator {
            text.push_str(&format!(", on {allocator}"));
        }
        format!("profile of {text}")
    }
}
