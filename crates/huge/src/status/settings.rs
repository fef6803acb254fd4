//! The settings of transparent huge pages: their files, the meanings of their values, and commands that change them.

use std::path::Path;

use neap_hugetlb::{Root, size};
use neap_launch::units::{bytes, counted};
use serde::Serialize;

use super::row::Row;

/// The kernel's folder for them.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// A setting that is one of some words: for each word its meaning, and the word that a user would change it to.
struct Choice {
    name: &'static str,
    words: &'static [(&'static str, &'static str, &'static str)],
}

/// In the order in which they are shown.
const CHOICES: &[Choice] = &[
    Choice {
        name: "enabled",
        words: &[
            ("always", "all programs get 2 MiB pages where these fit: quick, and memory may grow", "madvise"),
            ("madvise", "programs get 2 MiB pages only where they ask (MADV_HUGEPAGE)", "always"),
            ("never", "programs get 2 MiB pages only by MADV_COLLAPSE", "madvise"),
        ],
    },
    Choice {
        name: "defrag",
        words: &[
            ("always", "each page fault waits until the kernel has made a 2 MiB page free", "madvise"),
            ("defer", "page faults take what is free; the kernel makes room in the background", "madvise"),
            (
                "defer+madvise",
                "page faults wait for room only where the program asked; elsewhere the kernel makes it in the background",
                "madvise",
            ),
            ("madvise", "page faults wait for room only where the program asked (MADV_HUGEPAGE)", "defer+madvise"),
            ("never", "page faults take a 2 MiB page only if one is free", "madvise"),
        ],
    },
    Choice {
        name: "shmem_enabled",
        words: &[
            ("always", "shared memory (memfd, SysV, MAP_SHARED) has 2 MiB pages wherever these fit", "advise"),
            ("within_size", "shared memory has 2 MiB pages that lie within its size, and where programs ask", "advise"),
            ("advise", "shared memory has 2 MiB pages only where programs ask (MADV_HUGEPAGE)", "within_size"),
            ("never", "shared memory has no 2 MiB pages, except by MADV_COLLAPSE", "advise"),
            ("deny", "no shared memory has 2 MiB pages, whatever mounts say", "advise"),
            ("force", "all shared memory has 2 MiB pages: for tests only", "advise"),
        ],
    },
    Choice {
        name: "use_zero_page",
        words: &[
            ("1", "a read of untouched memory maps one shared 2 MiB page of zeros", "0"),
            ("0", "a read of untouched memory maps a 4 KiB page of zeros", "1"),
        ],
    },
    Choice {
        name: "shrink_underused",
        words: &[
            ("1", "short of memory, the kernel splits 2 MiB pages that are mostly zero", "0"),
            ("0", "2 MiB pages that are mostly zero stay whole, also when memory is short", "1"),
        ],
    },
    Choice {
        name: "khugepaged/defrag",
        words: &[
            ("1", "khugepaged makes room for 2 MiB pages by moving others", "0"),
            ("0", "khugepaged uses only 2 MiB pages that are free", "1"),
        ],
    },
];

/// A setting that is a number: its meaning, and a value to try.
struct Number {
    name: &'static str,
    means: fn(u64) -> String,
    other: u64,
}

const NUMBERS: &[Number] = &[
    Number {
        name: "khugepaged/pages_to_scan",
        means: |n| format!("OS pages that khugepaged looks at in one go: {}", bytes(n.saturating_mul(4096))),
        other: 4096,
    },
    Number {
        name: "khugepaged/scan_sleep_millisecs",
        means: |n| format!("khugepaged rests {n} ms after each go"),
        other: 1000,
    },
    Number {
        name: "khugepaged/alloc_sleep_millisecs",
        means: |n| format!("khugepaged rests {n} ms when it finds no free 2 MiB page"),
        other: 10_000,
    },
    Number {
        name: "khugepaged/max_ptes_none",
        means: |n| format!("khugepaged fills up to {} of 512 in an area with zeros: memory grows by that", absent(n)),
        other: 0,
    },
    Number {
        name: "khugepaged/max_ptes_swap",
        means: |n| format!("khugepaged reads up to {} back from swap for a 2 MiB page", counted(n, "page", "pages")),
        other: 0,
    },
    Number {
        name: "khugepaged/max_ptes_shared",
        means: |n| format!("khugepaged takes areas with up to {} that processes share", counted(n, "page", "pages")),
        other: 0,
    },
];

fn absent(n: u64) -> String {
    counted(n, "absent page", "absent pages")
}

/// The value in a file: of `always [madvise] never` the word in brackets, otherwise the whole text.
pub fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    bracketed.unwrap_or(text.trim())
}

/// The command that writes a value into a file.
pub fn write(value: impl std::fmt::Display, path: &str) -> Option<String> {
    Some(format!("echo {value} > {path}"))
}

/// Whether the kernel has these settings.
pub fn is_there(root: &Root) -> bool {
    Path::is_dir(&root.path(THP))
}

/// All settings that this kernel has.
pub fn rows(root: &Root) -> Vec<Row> {
    let choice = |choice: &Choice| {
        let path = format!("{THP}/{}", choice.name);
        let text = root.read(&path).ok()?;
        let value = chosen(&text).to_owned();
        let known = choice.words.iter().find(|(word, ..)| *word == value);
        let means = known.map_or("a value that this neap does not know", |(_, means, _)| means).to_owned();
        let change = known.and_then(|(.., other)| write(other, &path));
        Some(Row { name: choice.name.to_owned(), value, means, change })
    };
    let number = |number: &Number| {
        let path = format!("{THP}/{}", number.name);
        let value = root.number(&path).ok()?;
        let means = (number.means)(value);
        let change = if value == number.other { write("N", &path) } else { write(number.other, &path) };
        Some(Row { name: number.name.to_owned(), value: value.to_string(), means, change })
    };
    CHOICES.iter().filter_map(choice).chain(NUMBERS.iter().filter_map(number)).collect()
}

/// The settings of one size of transparent huge pages.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// The size.
    pub bytes: u64,
    /// For private memory.
    pub enabled: Option<Row>,
    /// For shared memory; some sizes and older kernels have no such setting.
    pub shmem_enabled: Option<Row>,
}

/// The sizes that this kernel has (Linux 6.8), the smallest first.
pub fn sizes(root: &Root) -> Vec<Size> {
    let names = root.names(THP, "hugepages-").unwrap_or_default();
    let mut sizes: Vec<u64> = names.iter().filter_map(|name| size::of_folder(name)).collect();
    sizes.sort_unstable();
    let row = |bytes: u64, name: &str, memory: &str| {
        let path = format!("{THP}/hugepages-{}/{name}", size::folder(bytes));
        let text = root.read(&path).ok()?;
        let value = chosen(&text).to_owned();
        let asked = if name == "enabled" { "madvise" } else { "advise" };
        let (means, other) = match value.as_str() {
            "always" => ("wherever they fit", asked),
            "inherit" => ("as the setting of all sizes says", asked),
            "madvise" | "advise" => ("where programs ask", "never"),
            "within_size" => ("within the size of a file, and where programs ask", asked),
            "never" => ("none", asked),
            _ => ("a value that this neap does not know", asked),
        };
        let means = format!("{memory}: {means}");
        Some(Row { name: name.to_owned(), value, means, change: write(other, &path) })
    };
    let size = |&bytes: &u64| Size {
        bytes,
        enabled: row(bytes, "enabled", "private memory"),
        shmem_enabled: row(bytes, "shmem_enabled", "shared memory"),
    };
    sizes.iter().map(size).collect()
}
