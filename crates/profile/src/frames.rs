//! Frames of stacks, for people.

use std::borrow::Cow;

use neap_trace::text::file_name;

use crate::allocator::is_allocator;
use crate::{Location, LocationId, Profile, Sample};

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shown<'p> {
    /// The function; if none is known, the file's name and the position in it; otherwise the address.
    pub name: Cow<'p, str>,
    /// The path of the file with its code; empty where unknown.
    pub object: &'p str,
    /// The file of source; empty where unknown.
    pub source: &'p str,
    /// The line in it; 0 where unknown.
    pub line: u32,
}

impl Shown<'_> {
    /// Whether its code is in a shared library or in the kernel.
    pub fn is_library(&self) -> bool {
        self.object.starts_with('[') || file_name(self.object).contains(".so")
    }

    /// `server.c:12`, without directories; `None` where there is no line.
    pub fn place(&self) -> Option<String> {
        (self.line != 0 && !self.source.is_empty()).then(|| format!("{}:{}", file_name(self.source), self.line))
    }
}

impl Profile {
    /// The frames at a location, inlined functions first. At least one.
    pub fn frames_at(&self, id: LocationId) -> impl DoubleEndedIterator<Item = Shown<'_>> {
        let location = &self.locations[id];
        let object = location.mapping.map_or("", |id| self.mappings[id].file.as_str());
        let known = location.frames.iter().map(move |frame| {
            let function = &self.functions[frame.function];
            Shown { name: Cow::Borrowed(&*function.name), object, source: &function.file, line: frame.line }
        });
        let unknown = location.frames.is_empty().then(|| self.unnamed(location, object));
        known.chain(unknown)
    }

    fn unnamed<'p>(&'p self, location: &Location, object: &'p str) -> Shown<'p> {
        let name = match location.mapping.map(|id| &self.mappings[id]) {
            Some(row) => {
                let offset = location.address.wrapping_sub(row.start).wrapping_add(row.offset);
                format!("{}+{offset:#x}", file_name(&row.file))
            }
            None => format!("{:#x}", location.address),
        };
        Shown { name: Cow::Owned(name), object, source: "", line: 0 }
    }

    /// The frames of a sample, from the innermost outwards; empty where no stack was taken.
    pub fn frames(&self, sample: &Sample) -> impl Iterator<Item = Shown<'_>> {
        self.locations_of(sample.stack).flat_map(|location| self.frames_at(location))
    }

    /// The call site of a sample: the innermost frame outside of the allocator and of the languages' libraries;
    /// otherwise the innermost one. `None` where no stack was taken.
    pub fn site(&self, sample: &Sample) -> Option<Shown<'_>> {
        let own = self.frames(sample).find(|frame| !is_foreign(frame));
        own.or_else(|| self.frames(sample).next())
    }

    /// The frames from the call site outwards, up to the program's main or the function of the thread.
    pub fn callers(&self, sample: &Sample) -> impl Iterator<Item = Shown<'_>> {
        let skipped = match self.frames(sample).any(|frame| !is_foreign(&frame)) {
            true => self.frames(sample).take_while(is_foreign).count(),
            false => 0,
        };
        self.frames(sample).skip(skipped).take_while(|frame| !STARTS.contains(&&*frame.name))
    }
}

/// Functions by which programs and threads are started.
const STARTS: [&str; 7] = [
    "__libc_start_call_main",
    "__libc_start_main",
    "__libc_start_main@@GLIBC_2.34",
    "_start",
    "start_thread",
    "__clone",
    "clone3",
];

/// Whether a frame is not the program's own.
fn is_foreign(frame: &Shown<'_>) -> bool {
    frame.object == "[kernel]"
        || is_allocator(frame.object, &frame.name)
        || neap_trace::runtime::is_runtime(frame.object, Some(&frame.name))
}

#[cfg(test)]
mod tests {
    use crate::testing::profile;

    /// Catches sites inside the allocator, and names that are missing where there is no symbol.
    #[test]
    fn sites_and_names() {
        let profile = profile();
        let names = |index: usize| -> Vec<String> {
            profile.frames(&profile.samples[index]).map(|frame| frame.name.into_owned()).collect()
        };
        assert_eq!(names(0), ["malloc", "leaky", "main"]);
        assert_eq!(names(2), ["libc.so.6+0x1777", "main"]);
        assert_eq!(names(3), [""; 0]);
        let site = profile.site(&profile.samples[0]).expect("a stack");
        assert_eq!((site.name.as_ref(), site.place().as_deref()), ("leaky", Some("server.c:10")));
        assert_eq!(profile.callers(&profile.samples[1]).count(), 2);
        assert!(profile.site(&profile.samples[3]).is_none());
    }
}
