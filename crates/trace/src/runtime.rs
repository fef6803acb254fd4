//! Functions of language runtimes that allocate memory for their callers.

use crate::text;

/// Whether code belongs to the C, C++ or Rust libraries, or to neap: by its object's path, and by the demangled name of
/// its function where that is known.
pub fn is_runtime(path: &str, function: Option<&str>) -> bool {
    const LIBRARIES: [&str; 5] = ["libc.so", "libc-", "libstdc++.so", "libc++.so", "libneap.so"];
    const SPACES: [&str; 5] = ["std::", "alloc::", "core::", "__gnu_cxx::", "hashbrown::"];
    const RUST: [&str; 3] = ["__rust", "__rdl_", "__rg_"];
    /// Names in C++'s namespace std, where they could not be demangled.
    const MANGLED: [&str; 3] = ["_ZSt", "_ZNSt", "_ZNKSt"];
    let object = text::file_name(path);
    if LIBRARIES.iter().any(|library| object.starts_with(library)) {
        return true;
    }
    let Some(name) = function else { return false };
    if MANGLED.iter().any(|prefix| name.starts_with(prefix)) {
        return true;
    }
    // `<alloc::vec::Vec<T>>::push` in Rust; `void std::vector<T>::push(T)` in C++, where the type comes first.
    let name = name.trim_start_matches(['<', '&', '[']);
    let head = &name[..name.find(['<', '(']).unwrap_or(name.len())];
    // `<app::S as core::clone::Clone>` is the program's.
    let last = if head.contains(" as ") { head } else { head.rsplit(' ').next().unwrap_or(head) };
    SPACES.iter().any(|space| head.starts_with(space) || last.starts_with(space))
        || RUST.iter().any(|prefix| head.starts_with(prefix))
        || head.starts_with("operator new")
}
