//! Texts that list symbols.

/// The symbols of a text, by address.
#[derive(Debug, Default)]
pub struct Listing {
    /// Address, size (0 where it is unknown), and the position of the name in `names`.
    entries: Vec<(u64, u64, u32, u32)>,
    names: String,
}

impl Listing {
    /// A perf map, as JIT compilers write it to `/tmp/perf-PID.map`: `START SIZE NAME` in each line, with hexadecimal
    /// numbers. Invalid lines are skipped. A later line for the same address wins, because code is replaced.
    pub fn perf_map(text: &[u8]) -> Self {
        let mut listing = Self::default();
        for line in String::from_utf8_lossy(text).lines() {
            let mut words = line.trim_start().splitn(3, ' ');
            let (start, size, name) = (words.next().and_then(hex), words.next().and_then(hex), words.next());
            if let (Some(start), Some(size), Some(name)) = (start, size, name) {
                listing.push(start, size, name.trim());
            }
        }
        listing.sort()
    }

    /// The kernel's list: `ADDRESS TYPE NAME [MODULE]` in each line. Only code is kept. For users that may not see
    /// them, all addresses are 0: then the listing is empty.
    pub fn kallsyms(text: &[u8]) -> Self {
        let mut listing = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let address = std::str::from_utf8(address).ok().and_then(hex).unwrap_or(0);
            if address != 0
                && matches!(kind, b"t" | b"T" | b"w" | b"W")
                && let Ok(name) = std::str::from_utf8(name)
            {
                listing.push(address, 0, name);
            }
        }
        listing.sort()
    }

    /// The symbol at an address: its name, address and size.
    pub fn find(&self, address: u64) -> Option<(&str, u64, u64)> {
        let index = self.entries.partition_point(|entry| entry.0 <= address).checked_sub(1)?;
        let &(start, size, from, to) = &self.entries[index];
        let name = self.names.get(from as usize..to as usize)?;
        (size == 0 || address - start < size).then_some((name, start, size))
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push(&mut self, start: u64, size: u64, name: &str) {
        let from = self.names.len() as u32;
        self.names.push_str(name);
        self.entries.push((start, size, from, self.names.len() as u32));
    }

    fn sort(mut self) -> Self {
        // A stable sort: the last of several for one address stays last, and is found.
        self.entries.sort_by_key(|entry| entry.0);
        self
    }
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}
