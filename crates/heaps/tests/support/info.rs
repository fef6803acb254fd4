//! The output of `malloc_info`, and the count of `tests/heaps/busy.c` before it.

/// Sums over all arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Blocks that the program has in arenas, and their bytes; the C library has some more.
    pub live: (u64, u64),
    /// Free chunks and tops, and their bytes; some versions count the flags in sizes too.
    pub rest: (u64, u64),
    /// Chunks in fastbins.
    pub fast: (u64, u64),
    /// Blocks with own mappings.
    pub mmapped: (u64, u64),
    /// Bytes that arenas have from the system.
    pub system: u64,
    /// Figures of `mallinfo2`, if the program printed them: bytes in use and free, and free ones in fastbins.
    pub mallinfo: Option<[u64; 3]>,
}

impl Info {
    /// From what the program printed.
    pub fn parse(text: &str) -> Info {
        let mut info = Info::default();
        let number = |line: &str, key: &str| -> u64 {
            let at = line.split_once(&format!("{key}=\"")).map_or("", |(_, rest)| rest);
            at.split('"').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        // The totals come last.
        for line in text.lines() {
            let pair = (number(line, "count"), number(line, "size"));
            if line.starts_with("<total type=\"rest\"") {
                info.rest = pair;
            } else if line.starts_with("<total type=\"fast\"") {
                info.fast = pair;
            } else if line.starts_with("<total type=\"mmap\"") {
                info.mmapped = pair;
            } else if line.starts_with("<system type=\"current\"") {
                info.system = pair.1;
            } else if let Some(numbers) = line.strip_prefix("mallinfo2 ") {
                let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap_or(0));
                info.mallinfo = Some([(); 3].map(|()| numbers.next().unwrap_or(0)));
            } else if let Some((blocks, bytes)) = line.strip_prefix("live ").and_then(|rest| rest.split_once(' ')) {
                info.live = (blocks.parse().unwrap_or(0), bytes.parse().unwrap_or(0));
            }
        }
        info
    }

    /// How far a walk is from these figures: used and free bytes of all arenas, each as a fraction of all.
    pub fn distance(&self, heap: &neap_heaps::Heap) -> (f64, f64) {
        let parts = heap.parts.iter().filter(|part| part.name != "mmapped blocks");
        let sums = parts.filter_map(|part| part.split.as_ref()).fold((0, 0), |sums, split| {
            let free = split.free.bytes + split.top.bytes;
            (sums.0 + split.total().bytes - free, sums.1 + free)
        });
        let used = self.system.saturating_sub(self.rest.1);
        let share = |walked: u64, said: u64| walked.abs_diff(said) as f64 / self.system as f64;
        (share(sums.0, used), share(sums.1, self.rest.1))
    }

    /// Compares with a walk of a process at rest: all but the program's own count is exact.
    pub fn check(&self, heap: &neap_heaps::Heap) -> Result<(), String> {
        let mut sum = neap_heaps::Split::default();
        let (mut bytes, mut mmapped) = (0, (0, 0));
        for part in &heap.parts {
            let split = part.split.as_ref().ok_or("a part without a split")?;
            let total = split.total();
            if (total.bytes, total.resident) != (part.bytes, part.resident_bytes) {
                return Err(format!("{} does not add up: {part:?}", part.name));
            }
            if part.name == "mmapped blocks" {
                mmapped = (split.live.blocks, split.live.bytes);
                continue;
            }
            if split.kept_bytes > split.free.resident + split.top.resident {
                return Err(format!("{} keeps more than is free: {part:?}", part.name));
            }
            bytes += part.bytes;
            sum.live.add(&split.live);
            sum.cached.add(&split.cached);
            sum.free.add(&split.free);
            sum.top.add(&split.top);
            sum.unsure.add(&split.unsure);
        }
        let free = sum.free.bytes + sum.top.bytes;
        let same = [
            ("system", bytes, self.system),
            ("mmapped blocks", mmapped.0, self.mmapped.0),
            ("mmapped bytes", mmapped.1, self.mmapped.1),
            ("unsure", sum.unsure.bytes, 0),
            ("free chunks", sum.free.blocks + sum.top.blocks, self.rest.0),
        ];
        for (name, walked, said) in same {
            if walked != said {
                return Err(format!("{name}: {walked}, malloc_info {said}"));
            }
        }
        // Flags are in the three lowest bits.
        if free > self.rest.1 || free + 7 * self.rest.0 < self.rest.1 {
            return Err(format!("free: {free}, malloc_info {:?}", self.rest));
        }
        if let Some([used, unused, fast]) = self.mallinfo
            && (free != unused - fast || bytes - free != used + fast)
        {
            return Err(format!("free: {free} of {bytes}, mallinfo2 {used} used, {unused} free, {fast} in fastbins"));
        }
        if sum.cached.bytes < self.fast.1 || sum.cached.blocks < self.fast.0 {
            return Err(format!("cached: {:?}, fastbins alone {:?}", sum.cached, self.fast));
        }
        // The C library has a few blocks of its own for each thread.
        let more = (sum.live.blocks.wrapping_sub(self.live.0), sum.live.bytes.wrapping_sub(self.live.1));
        if more.0 > 64 || more.1 > 100_000 {
            return Err(format!("live: {:?}, the program has {:?}; {heap:#?}", sum.live, self.live));
        }
        Ok(())
    }
}
