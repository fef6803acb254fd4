//! The text of `/proc/PID/smaps`: the kernel's figures of each mapping.
//!
//! ```text
//! 7f1c2a000000-7f1c2a400000 rw-p 00000000 00:00 0                          [heap]
//! Rss:                4096 kB
//! AnonHugePages:      2048 kB
//! VmFlags: rd wr mr mw me ac sd hg
//! ```

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
    /// `rwxp`, as printed.
    pub permissions: String,
    /// The file or name; empty for anonymous memory without a name.
    pub name: String,
    /// Whether it has no file.
    no_file: bool,
    /// Bytes in memory, without those of a pool.
    pub resident: u64,
    /// Of those: in transparent huge pages that are mapped whole.
    pub transparent: u64,
    /// Bytes in pages of a pool.
    pub pool: u64,
    /// The size of the pages of the mapping: larger than an OS page for pages of a pool.
    pub page: u64,
    /// The two-letter flags.
    flags: Vec<String>,
}

impl Mapping {
    /// All bytes in memory.
    pub fn held(&self) -> u64 {
        self.resident + self.pool
    }

    /// Whether its pages are those of a pool.
    pub fn is_pool(&self) -> bool {
        self.has("ht")
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|one| one == flag)
    }

    /// Whether the kernel could use transparent huge pages for it: anonymous or shared memory that is neither a pool's
    /// nor a device's, and that the program did not exclude.
    pub fn could_be_huge(&self) -> bool {
        let shared_memory =
            ["/dev/zero", "/dev/shm/", "/memfd:", "/SYSV"].iter().any(|begin| self.name.starts_with(begin));
        let special = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&self.name.as_str());
        (self.no_file && !special || shared_memory) && !["ht", "io", "pf", "nh"].iter().any(|flag| self.has(flag))
    }
}

/// The mappings, by address. Unknown lines are skipped.
pub fn parse(text: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = first_line(line) {
            mappings.push(mapping);
        } else if let Some((mapping, (name, value))) = mappings.last_mut().zip(line.split_once(':')) {
            let bytes = || value.trim().strip_suffix(" kB").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024;
            match name {
                "Rss" => mapping.resident = bytes(),
                "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => mapping.transparent += bytes(),
                "Shared_Hugetlb" | "Private_Hugetlb" => mapping.pool += bytes(),
                "KernelPageSize" => mapping.page = bytes(),
                "VmFlags" => mapping.flags = value.split_whitespace().map(str::to_owned).collect(),
                _ => {}
            }
        }
    }
    mappings
}

/// `start-end permissions offset device inode   name`.
fn first_line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let permissions = fields.next()?.to_owned();
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("").trim_start().to_owned();
    Some(Mapping { start, end, permissions, name, no_file: inode == "0", ..Mapping::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
KernelPageSize:        4 kB
Rss:                  16 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000800000 rw-p 00000000 00:00 0 
KernelPageSize:        4 kB
Rss:                6144 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg
7f0001000000-7f0041000000 rw-s 00000000 00:10 77                         /anon_hugepage (deleted)
KernelPageSize:  1048576 kB
Rss:                   0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb: 1048576 kB
VmFlags: rd wr sh mr mw me ms de ht sd
7f0050000000-7f0050001000 rw-s 00000000 00:01 3                          /memfd:a: b (deleted)
7f0050001000-7f0050002000 r-xp 00000000 00:00 0                          [vdso]
VmFlags: rd ex mr mw me de sd
7f0050002000-7f0050003000 r--p 00000000 fe:00 9                          /usr/lib/libc.so.6
7f0050003000-7f0050004000 rw-s 00000000 00:05 9                          /dev/card0
VmFlags: rd wr sh io pf
";

    /// Catches sizes that are added up wrongly, names with blanks, and wrong candidates for huge pages.
    #[test]
    fn mappings_are_read() {
        let all = parse(TEXT);
        let heap = &all[0];
        assert_eq!((heap.start, heap.end, heap.name.as_str()), (0x55d0_c000_0000, 0x55d0_c002_1000, "[heap]"));
        assert_eq!((heap.resident, heap.page, heap.permissions.as_str()), (16 << 10, 4096, "rw-p"));
        assert_eq!((all[1].resident, all[1].transparent, all[1].name.as_str()), (6 << 20, 4 << 20, ""));
        assert_eq!((all[2].held(), all[2].pool, all[2].page, all[2].is_pool()), (1 << 30, 1 << 30, 1 << 30, true));
        assert_eq!(all[3].name, "/memfd:a: b (deleted)");
        let candidates: Vec<bool> = all.iter().map(Mapping::could_be_huge).collect();
        assert_eq!(candidates, [true, true, false, true, false, false, false]);
    }
}
