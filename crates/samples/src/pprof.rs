//! Profiles for pprof (`profile.proto`, not compressed), from a copy of a file. Nothing is allocated: the message is
//! written piece by piece.
//!
//! The format is quoted where it is written: a field is its number and kind, then a number (kind 0), or a length and as
//! many bytes (kind 2). Fields of a profile may come in any order. Functions have no names: pprof finds them by the
//! mappings and build ids.

use crate::{MODULE_SHIFT, Mapped, PARTS, Path, Stack, View, Word};

/// Which values pprof shows first; all are in the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What is live (`inuse_space`), as of `/debug/pprof/heap`.
    Heap,
    /// What was allocated (`alloc_space`), as of `/debug/pprof/allocs`.
    Allocs,
}

/// When a profile was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub now: u64,
    /// CLOCK_REALTIME in nanoseconds.
    pub date: u64,
}

/// The texts of each profile, in the order of the table, each with a line end behind it: one text, because the start of
/// each process relocates what points to texts. Those of modules follow: of each its path and its build id.
const TEXTS: &str = concat!(
    "\n",
    "alloc_objects\n",
    "alloc_space\n",
    "inuse_objects\n",
    "inuse_space\n",
    "count\n",
    "bytes\n",
    "space\n",
    "[no stack]\n",
    // Where neap is part of the program, its own functions are the innermost frames. Readers may leave modules out of
    // names.
    r"(__rustc(\[[0-9a-f]+\])?::)?__rust_(alloc|alloc_zeroed|realloc|dealloc)|",
    r"(neap|neap_sys|neap_core)::.*|",
    r"malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|memalign|valloc|pvalloc",
    "\n",
);
/// Number of them.
const FIXED: u64 = OWN + 1;
const COUNT: u64 = 5;
const BYTES: u64 = 6;
const SPACE: u64 = 7;
const NO_STACK: u64 = 8;
const OWN: u64 = 9;
/// What is counted of samples that are missing or incomplete.
const LOSSES: [Word; 3] = [Word::LostStacks, Word::LostLive, Word::Lost];

/// The text of a note about it, after the number.
fn note(lost: Word) -> &'static str {
    match lost {
        Word::LostStacks => " samples are without their stack, as there was no room for more stacks.",
        Word::LostLive => " samples count as freed, as there was no room for more live ones.",
        _ => " samples are missing, as there was no file for them yet.",
    }
}

/// The location of samples without a stack, and its function.
const NOWHERE: u64 = 1;

/// Words of scratch memory that [`write()`] needs, given the header of the file: a set of frames.
pub fn scratch(frames: u64) -> usize {
    let frames = usize::try_from(frames).unwrap_or(usize::MAX).min(crate::FRAME_WORDS);
    (frames * 2).next_power_of_two().max(64)
}

/// Writes a profile to `sink`, which returns false when it takes no more. Returns false then. `set` must be zeroed, and
/// have as many words as [`scratch`] says.
#[cold]
pub fn write(view: &View<'_>, kind: Kind, time: Time, set: &mut [u64], sink: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut out = Out { piece: Piece::new(), sink, good: true };
    let mut seen = Seen { set };
    head(&mut out, view, kind, time);
    // The first mapping is the program's.
    for program in [true, false] {
        for module in view.modules().filter(|module| module.path.bytes().is_empty() == program) {
            mapping(&mut out, &module);
        }
    }
    nowhere(&mut out);
    for stack in view.stacks() {
        let mut ids = Piece::new();
        for &frame in stack.frames {
            let (id, is_new) = seen.id(frame);
            if is_new {
                location(&mut out, id, frame);
            }
            ids.varint(id);
        }
        if stack.frames.is_empty() {
            ids.varint(NOWHERE);
        }
        sample(&mut out, &ids, &stack);
        if !out.good {
            return false;
        }
    }
    texts(&mut out, view);
    out.flush();
    out.good
}

/// ```text
/// message Profile { ValueType sample_type = 1; string string_table = 6; int64 drop_frames = 7; int64 time_nanos = 9;
///   int64 duration_nanos = 10; ValueType period_type = 11; int64 period = 12; int64 comment = 13;
///   int64 default_sample_type = 14; }
/// message ValueType { int64 type = 1; int64 unit = 2; }
/// ```
#[inline(never)]
fn head(out: &mut Out<'_>, view: &View<'_>, kind: Kind, time: Time) {
    let mut value_type = |field, name, unit| {
        let mut piece = Short::new();
        piece.number(1, name);
        piece.number(2, unit);
        out.message(field, &piece);
    };
    for (name, unit) in [(1, COUNT), (2, BYTES), (3, COUNT), (4, BYTES)] {
        value_type(1, name, unit);
    }
    value_type(11, SPACE, BYTES);
    let mut piece = Short::new();
    piece.number(7, OWN);
    piece.number(9, time.date);
    piece.number(10, time.now.saturating_sub(view.header(Word::Started)));
    piece.number(12, view.header(Word::Interval));
    piece.number(14, if kind == Kind::Heap { 4 } else { 2 });
    out.raw(piece.bytes());
}

/// ```text
/// message Mapping { uint64 id = 1; uint64 memory_start = 2; uint64 memory_limit = 3; uint64 file_offset = 4;
///   int64 filename = 5; int64 build_id = 6; }
/// ```
#[inline(never)]
fn mapping(out: &mut Out<'_>, module: &Mapped) {
    let [start, end, offset] = module.code;
    let (start, end) = if start == 0 { (module.start, module.end) } else { (start, end) };
    let text = FIXED + 2 * u64::from(module.number);
    let mut piece = Short::new();
    for (field, value) in [(1, module.number.into()), (2, start), (3, end), (4, offset), (5, text), (6, text + 1)] {
        piece.number(field, value);
    }
    out.message(3, &piece);
}

/// ```text
/// message Location { uint64 id = 1; uint64 mapping_id = 2; uint64 address = 3; Line line = 4; }
/// message Line { uint64 function_id = 1; }
/// message Function { uint64 id = 1; int64 name = 2; }
/// ```
#[inline(never)]
fn location(out: &mut Out<'_>, id: u64, frame: u64) {
    let mut piece = Short::new();
    piece.number(1, id);
    // A frame has its module's number plus 1.
    piece.number(2, (frame >> MODULE_SHIFT).saturating_sub(1));
    // A return address can be that of the next function.
    piece.number(3, (frame & ((1 << MODULE_SHIFT) - 1)).saturating_sub(1));
    out.message(4, &piece);
}

#[inline(never)]
fn nowhere(out: &mut Out<'_>) {
    let (mut line, mut place, mut function) = (Short::new(), Short::new(), Short::new());
    line.number(1, NOWHERE);
    place.number(1, NOWHERE);
    place.message(4, &line);
    out.message(4, &place);
    function.number(1, NOWHERE);
    function.number(2, NO_STACK);
    out.message(5, &function);
}

/// ```text
/// message Sample { uint64 location_id = 1; int64 value = 2; }
/// ```
/// Both are lists: a length, and as many bytes of numbers.
#[inline(never)]
fn sample(out: &mut Out<'_>, ids: &Piece<ROOM>, stack: &Stack<'_>) {
    let count = |parts: u64| parts.saturating_add(PARTS / 2) / PARTS;
    let mut values = Short::new();
    for value in [
        count(stack.objects),
        stack.bytes,
        // Saturating: the counts were read one after the other while they changed.
        count(stack.objects.saturating_sub(stack.freed_objects)),
        stack.bytes.saturating_sub(stack.freed_bytes),
    ] {
        values.varint(value);
    }
    let mut piece = Piece::<ROOM>::new();
    piece.message(1, ids);
    piece.message(2, &values);
    out.message(2, &piece);
}

/// Writes the table of texts: each has the number of its place.
#[inline(never)]
fn texts(out: &mut Out<'_>, view: &View<'_>) {
    for text in TEXTS.split_terminator('\n') {
        out.text(text.as_bytes());
    }
    let program = view.program();
    let mut next = 0;
    let mut fill = |out: &mut Out<'_>, upto: u16| {
        while next < upto {
            out.text(b"");
            out.text(b"");
            next += 1;
        }
        next += 1;
    };
    let mut all = 0;
    for module in view.modules() {
        fill(out, module.number);
        let path = module.path.bytes();
        out.text(if path.is_empty() { program.bytes() } else { path });
        let (text, length) = hex(&module.build);
        out.text(text.get(..length).unwrap_or(&text));
        all = module.number + 1;
    }
    let first = FIXED + 2 * u64::from(all);
    let mut comments = Short::new();
    let mut notes = 0;
    for word in LOSSES {
        let (lost, text) = (view.header(word), note(word));
        if lost != 0 {
            comments.number(13, first + notes);
            notes += 1;
            let (digits, from) = decimal(lost);
            let mut line = [0; 128];
            let digits = digits.get(from..).unwrap_or(&[]);
            let length = digits.len() + text.len();
            for (place, &byte) in line.iter_mut().zip(digits.iter().chain(text.as_bytes())) {
                *place = byte;
            }
            out.text(line.get(..length).unwrap_or(&line));
        }
    }
    out.raw(comments.bytes());
}

/// A number in digits, and where they begin.
fn decimal(mut number: u64) -> ([u8; 20], usize) {
    let (mut digits, mut from) = ([b'0'; 20], 20);
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (number % 10) as u8;
        from = place;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    (digits, from)
}

/// Bytes in hexadecimal digits, and the number of digits.
fn hex(bytes: &Path) -> ([u8; 2 * crate::BUILD_BYTES], usize) {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + value - 10 };
    let mut text = [0; 2 * crate::BUILD_BYTES];
    for (pair, &byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes.bytes()) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    (text, (2 * bytes.bytes().len()).min(2 * crate::BUILD_BYTES))
}

/// The locations of frames: a hash table that is searched from a frame's place on. The number of that place, counted
/// from after [`NOWHERE`], is the number of the location.
struct Seen<'a> {
    set: &'a mut [u64],
}

impl Seen<'_> {
    /// The location of a frame, and whether it is new.
    fn id(&mut self, frame: u64) -> (u64, bool) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let len = self.set.len().max(1);
        let first = (frame.wrapping_mul(ODD) >> 20) as usize;
        for step in 0..len {
            let at = first.wrapping_add(step) % len;
            let Some(place) = self.set.get_mut(at) else { break };
            let is_new = *place == 0;
            if is_new || *place == frame {
                *place = frame;
                return (NOWHERE + 1 + at as u64, is_new);
            }
        }
        // Never reached: the set has more places than frames.
        (NOWHERE, false)
    }
}

/// Longest number, with the key of its field.
const NUMBER: usize = 20;
/// Room for a sample with all its frames, or a text.
const ROOM: usize = (crate::FRAMES + 8) * NUMBER;

/// A message that fits into a buffer.
struct Piece<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

/// A message of some numbers.
type Short = Piece<{ 8 * NUMBER }>;

impl<const N: usize> Piece<N> {
    const fn new() -> Self {
        Piece { bytes: [0; N], length: 0 }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }

    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    /// Seven bits a byte, the least first; the last byte is below 128.
    #[inline(never)]
    fn varint(&mut self, mut value: u64) {
        while value >= 128 {
            self.byte(value as u8 | 128);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// A field that is left out where it is 0.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn message<const M: usize>(&mut self, field: u64, inner: &Piece<M>) {
        self.varint(field << 3 | 2);
        self.varint(inner.length as u64);
        for &byte in inner.bytes() {
            self.byte(byte);
        }
    }
}

/// Bytes that were written and not passed on yet.
struct Out<'a> {
    piece: Piece<ROOM>,
    sink: &'a mut dyn FnMut(&[u8]) -> bool,
    good: bool,
}

impl Out<'_> {
    fn flush(&mut self) {
        self.good = self.good && (self.piece.length == 0 || (self.sink)(self.piece.bytes()));
        self.piece.length = 0;
    }

    #[inline(never)]
    fn raw(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.piece.length == ROOM {
                self.flush();
            }
            self.piece.byte(byte);
        }
    }

    fn message<const M: usize>(&mut self, field: u64, inner: &Piece<M>) {
        self.bytes(field, inner.bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.bytes(6, text);
    }

    #[inline(never)]
    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        let mut head = Piece::<NUMBER>::new();
        head.varint(field << 3 | 2);
        head.varint(bytes.len() as u64);
        self.raw(head.bytes());
        self.raw(bytes);
    }
}
