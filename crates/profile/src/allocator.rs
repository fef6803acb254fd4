//! Which functions belong to an allocator, and which of them programs call: those of the C library and of others, by
//! the names of functions and libraries.

use neap_trace::text::file_name;

/// What a program requests of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// malloc, and all functions that return a block with any content.
    Malloc,
    /// calloc.
    Calloc,
    /// realloc.
    Realloc,
    /// free.
    Free,
    /// malloc_trim, and functions of that name in other libraries.
    Trim,
}

/// The names of functions that programs call, without prefixes.
const CALLS: [(&str, Call); 27] = [
    ("malloc", Call::Malloc),
    ("memalign", Call::Malloc),
    ("aligned_alloc", Call::Malloc),
    ("posix_memalign", Call::Malloc),
    ("valloc", Call::Malloc),
    ("pvalloc", Call::Malloc),
    ("mallocx", Call::Malloc),
    ("malloc_aligned", Call::Malloc),
    ("new", Call::Malloc),
    ("new_nothrow", Call::Malloc),
    ("calloc", Call::Calloc),
    ("zalloc", Call::Calloc),
    ("zalloc_aligned", Call::Calloc),
    ("calloc_aligned", Call::Calloc),
    ("realloc", Call::Realloc),
    ("reallocarray", Call::Realloc),
    ("reallocf", Call::Realloc),
    ("rallocx", Call::Realloc),
    ("free", Call::Free),
    ("cfree", Call::Free),
    ("dallocx", Call::Free),
    ("sdallocx", Call::Free),
    ("free_sized", Call::Free),
    ("free_aligned_sized", Call::Free),
    ("malloc_trim", Call::Trim),
    ("collect", Call::Trim),
    ("release_free_memory", Call::Trim),
];

/// Prefixes that libraries add to these names.
const PREFIXES: [&str; 8] = ["mi_", "je_", "tc_", "rp", "sn_", "neap_", "__libc_", "__"];

/// Names that mean an allocator's function only with a prefix.
const ONLY_WITH_PREFIX: [&str; 7] =
    ["new", "new_nothrow", "zalloc", "zalloc_aligned", "calloc_aligned", "malloc_aligned", "collect"];

/// The call that a function with this (demangled) name serves, if programs call it.
pub fn call(name: &str) -> Option<Call> {
    let name = bare(name);
    if name.starts_with("operator new") || name == "__rust_alloc" || name == "__rdl_alloc" {
        return Some(Call::Malloc);
    }
    if name.starts_with("operator delete") || name == "__rust_dealloc" || name == "__rdl_dealloc" {
        return Some(Call::Free);
    }
    match name {
        "__rust_alloc_zeroed" | "__rdl_alloc_zeroed" => return Some(Call::Calloc),
        "__rust_realloc" | "__rdl_realloc" => return Some(Call::Realloc),
        _ => {}
    }
    let plain = CALLS.iter().find(|(known, _)| *known == name).filter(|(known, _)| !ONLY_WITH_PREFIX.contains(known));
    if let Some(&(_, call)) = plain {
        return Some(call);
    }
    PREFIXES.iter().find_map(|prefix| {
        let rest = name.strip_prefix(prefix)?;
        CALLS.iter().find(|(known, _)| *known == rest).map(|&(_, call)| call)
    })
}

/// The usual name of a function that has several: glibc's `free` is also found as `cfree`, which no new program calls.
pub fn canonical(name: &str) -> &str {
    if name == "cfree" { "free" } else { name }
}

/// A name without suffixes of stubs and versions, and without the module path of neap's own functions.
fn bare(name: &str) -> &str {
    let name = name.strip_suffix("@plt").unwrap_or(name);
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    match name.strip_prefix("__rustc::").or_else(|| name.strip_prefix("neap_preload::")) {
        Some(rest) => rest.rsplit("::").next().unwrap_or(rest),
        None => name,
    }
}

/// Libraries that are allocators: how their file names begin, without `lib`.
const LIBRARIES: [&str; 12] = [
    "neap.so",
    "jemalloc",
    "mimalloc",
    "tcmalloc",
    "rpmalloc",
    "snmalloc",
    "hoard",
    "scalloc",
    "mesh.so",
    "hardened_malloc",
    "scudo",
    "supermalloc",
];

/// Functions of the C library's malloc that programs do not call, by how they begin.
const OF_GLIBC: [&str; 24] = [
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "_int_memalign",
    "_mid_memalign",
    "sysmalloc",
    "systrim",
    "malloc_consolidate",
    "malloc_printerr",
    "unlink_chunk",
    "munmap_chunk",
    "mremap_chunk",
    "new_heap",
    "alloc_new_heap",
    "grow_heap",
    "shrink_heap",
    "heap_trim",
    "delete_heap",
    "arena_get",
    "tcache_",
    "__malloc_",
    "mtrim",
    "ptmalloc_init",
    "__default_morecore",
];

/// How the names of functions of allocators begin that are linked into a program.
const NAMES: [&str; 12] = [
    "mi_",
    "_mi_",
    "je_",
    "tcmalloc::",
    "snmalloc::",
    "rpmalloc",
    "scudo::",
    "neap_core::",
    "neap_sys::",
    "neap_preload::",
    "neap_surface::",
    "__scudo_",
];

/// Whether code belongs to an allocator: by the path of its object, and the demangled name of its function.
pub fn is_allocator(object: &str, function: &str) -> bool {
    let file = file_name(object);
    let file = file.strip_prefix("lib").unwrap_or(file);
    let name = bare(function);
    // `<neap_core::alloc::Allocator>::free`
    let head = name.trim_start_matches('<');
    // `[caches of threads]`: memory that belongs to no function has a name in brackets, and no object.
    (object.is_empty() && function.starts_with('['))
        || LIBRARIES.iter().any(|library| file.starts_with(library))
        || call(function).is_some()
        || NAMES.iter().any(|prefix| head.starts_with(prefix))
        || OF_GLIBC.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches functions of allocators that count as the program's, and the other way round.
    #[test]
    fn names_of_allocators() {
        for (name, expected) in [
            ("malloc", Some(Call::Malloc)),
            ("malloc@plt", Some(Call::Malloc)),
            ("__libc_calloc", Some(Call::Calloc)),
            ("mi_zalloc_aligned", Some(Call::Calloc)),
            ("je_free", Some(Call::Free)),
            ("rpcalloc", Some(Call::Calloc)),
            ("operator new(unsigned long)", Some(Call::Malloc)),
            ("operator delete[](void*)", Some(Call::Free)),
            ("__rustc::__rust_realloc", Some(Call::Realloc)),
            ("malloc_trim", Some(Call::Trim)),
            ("collect", None),
            ("new", None),
            ("freeze", None),
            ("xmalloc", None),
            ("my_calloc", None),
            ("std::vector<int>::free()", None),
        ] {
            assert_eq!(call(name), expected, "{name}");
        }
        for (object, name) in [
            ("/usr/lib/libjemalloc.so.2", "arena_dalloc_bin"),
            ("/tmp/peers/mimalloc3.so", "segment_alloc"),
            ("/lib/libc.so.6", "_int_free_merge_chunk"),
            ("/bin/app", "<neap_core::alloc::Allocator>::free"),
            ("/bin/app", "tcmalloc::CentralFreeList::Populate()"),
        ] {
            assert!(is_allocator(object, name), "{object} {name}");
        }
        for (object, name) in [("/lib/libc.so.6", "memset"), ("/bin/app", "main"), ("/bin/meshtool", "load")] {
            assert!(!is_allocator(object, name), "{object} {name}");
        }
    }
}
