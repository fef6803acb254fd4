//! Sizes of pages: for messages and command lines, and in the names of the kernel's folders.

/// `4 KiB`, `2 MiB`, `1 GiB`.
pub fn text(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// `2M`, `1G`: as on a command line, and in the names of cgroup files and boot parameters, without a blank.
pub fn short(bytes: u64) -> String {
    text(bytes).trim_end_matches("iB").replace(' ', "")
}

/// A size on a command line: `2M`, `1G`, `2MiB`, `64K`, in any case.
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|&bytes| bytes > 0)
}

/// The size that a folder of the kernel's is named after: `2048kB` of `hugepages-2048kB`.
pub fn of_folder(name: &str) -> Option<u64> {
    name.strip_suffix("kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The end of such a name.
pub fn folder(bytes: u64) -> String {
    format!("{}kB", bytes >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches sizes that are read or written wrongly, and a number without a unit, which could mean pages or bytes.
    #[test]
    fn sizes() {
        for (bytes, long, brief) in [(4 << 10, "4 KiB", "4K"), (2 << 20, "2 MiB", "2M"), (1 << 30, "1 GiB", "1G")] {
            assert_eq!((text(bytes).as_str(), short(bytes).as_str()), (long, brief));
            assert_eq!((parse(brief), of_folder(&folder(bytes))), (Some(bytes), Some(bytes)));
        }
        assert_eq!((parse("2mib"), parse("1024K"), text(100)), (Some(2 << 20), Some(1 << 20), "100 B".into()));
        for bad in ["", "2", "M", "0M", "2X", "-2M", "2 M", "99999999999G"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
