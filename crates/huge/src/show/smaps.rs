//! What `neap huge show` wants to know of a mapping.

use neap_process::maps::{Flags, Mapping};

/// Flags of mappings for which the kernel uses no transparent huge pages: those of a pool or a device, those that the
/// program excluded, and those registered with userfaultfd (missing, write, minor), whose marks it must keep.
const NEVER: [&str; 7] = [Flags::POOL, "io", "pf", "nh", "um", "uw", "ui"];

/// All bytes in memory.
pub fn held(mapping: &Mapping) -> u64 {
    mapping.figures.rss + mapping.figures.hugetlb
}

/// Bytes in transparent huge pages that are mapped whole.
pub fn transparent(mapping: &Mapping) -> u64 {
    mapping.figures.anon_huge + mapping.figures.other_huge
}

/// Whether its pages are those of a pool.
pub fn is_pool(mapping: &Mapping) -> bool {
    mapping.flags.any(&[Flags::POOL])
}

/// Whether the kernel could use transparent huge pages for it: anonymous or shared memory that is not one of [`NEVER`].
pub fn could_be_huge(mapping: &Mapping) -> bool {
    let name = mapping.name.as_str();
    let shared_memory = ["/dev/zero", "/dev/shm/", "/memfd:", "/SYSV"].iter().any(|begin| name.starts_with(begin));
    let special = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&name);
    (mapping.inode == 0 && !special || shared_memory) && !mapping.flags.any(&NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
KernelPageSize:        4 kB
Rss:                  16 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000800000 rw-p 00000000 00:00 0 
Rss:                6144 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:     2048 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg
7f0001000000-7f0041000000 rw-s 00000000 00:10 77                         /anon_hugepage (deleted)
KernelPageSize:  1048576 kB
Rss:                   0 kB
Private_Hugetlb: 1048576 kB
VmFlags: rd wr sh mr mw me ms de ht sd
7f0050000000-7f0050001000 rw-s 00000000 00:01 3                          /memfd:a: b (deleted)
7f0050001000-7f0050002000 r-xp 00000000 00:00 0                          [vdso]
VmFlags: rd ex mr mw me de sd
7f0050002000-7f0050003000 r--p 00000000 fe:00 9                          /usr/lib/libc.so.6
7f0050003000-7f0050004000 rw-s 00000000 00:05 9                          /dev/card0
VmFlags: rd wr sh io pf
7f0060000000-7f0060800000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac uw
";

    /// Catches sizes that are added up wrongly, and wrong candidates for huge pages.
    #[test]
    fn mappings_are_read() {
        let all = neap_process::maps::smaps(TEXT);
        assert_eq!((held(&all[0]), held(&all[1]), transparent(&all[1])), (16 << 10, 6 << 20, 4 << 20));
        assert_eq!((held(&all[2]), all[2].page, is_pool(&all[2])), (1 << 30, 1 << 30, true));
        let candidates: Vec<bool> = all.iter().map(could_be_huge).collect();
        assert_eq!(candidates, [true, true, false, true, false, false, false, false]);
    }
}
