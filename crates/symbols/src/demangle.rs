//! Demangles names.

/// The demangled name, if the name is a mangled one of C++ or Rust.
pub fn demangle(name: &str) -> Option<String> {
    // A version (`memcpy@@GLIBC_2.14`) is not part of the name.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // Without the hash at the end.
        return Some(format!("{rust:#}"));
    }
    if !name.starts_with("_Z") && !name.starts_with("__Z") && !name.starts_with("_GLOBAL_") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    symbol.demangle().ok()
}
