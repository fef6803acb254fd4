//! Any bytes are a file of allocation sites, and then tables of `.eh_frame` with a stack: reader and unwinder must end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_sites::unwind::{Frame, Tables, by_frame_pointer};
use neap_sites::{CAPACITY, Cursor, ENTRY_BYTES, Entry, Head, Ring};

/// A header that changes, and slots that end early.
struct Bytes<'a>(&'a [u8], u64);

impl Ring for Bytes<'_> {
    fn head(&mut self) -> Option<Head> {
        let parsed = Head::parse(self.0).ok();
        self.1 += 7;
        Some(parsed.unwrap_or(Head { pid: 1, interval: 1, head: self.1, lost: 0 }))
    }

    fn slots(&mut self, first: u64, bytes: &mut [u8]) -> bool {
        let found = self.0.get(first as usize * ENTRY_BYTES..).and_then(|rest| rest.get(..bytes.len()));
        found.map(|found| bytes.copy_from_slice(found)).is_some()
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (mut ring, mut cursor) = (Bytes(bytes, 0), Cursor::default());
    for last in [false, false, true] {
        cursor.read(&mut ring, last, &mut |entry| {
            let (words, _) = entry.encode(CAPACITY);
            assert_eq!(Entry::decode(CAPACITY, &words).as_ref(), Some(entry));
        });
    }
    const START: u64 = 0x1000;
    let tables = Tables { start: START, bytes, header: START };
    let mut read = |address: u64| {
        let at = usize::try_from(address.checked_sub(START)?).ok()?;
        Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
    };
    let word =
        |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word));
    let mut frame = Frame { ip: START.wrapping_add(word(12) & 0xffff), sp: START, bp: word(16) };
    while let Some(caller) = match tables.row(frame.ip) {
        Some(row) => row.caller(frame, &mut read),
        None => by_frame_pointer(frame, &mut read),
    } {
        assert!(caller.sp > frame.sp);
        frame = caller;
    }
});
