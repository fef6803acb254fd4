//! Link options of libneap.so.

/// Functions of the C library in whose place those of `older.rs` in `neap-surface` are called.
const OLDER: [&str; 9] = [
    "__clone",
    "dlclose",
    "dlvsym",
    "pthread_atfork",
    "pthread_create",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setspecific",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The name that programs linked with -lneap ask for: it changes with the binary interface.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libneap.so.0");
    // Never unloaded: the C library keeps neap's handlers for threads and fork, and blocks outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Before all other libraries' constructors: handlers before a fork run in the reverse order of their registration,
    // so neap's run last, and little code runs while all calls are reentrant.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // An undefined symbol is an error here, not in the program that loads the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    // A program or a library in front of this one may define some of these names itself: what neap calls is neap's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // One library for all versions of the C library.
    for name in OLDER {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=neap_{name}");
    }
    // Cold functions apart from the others: for each page that a start touches, the kernel maps the pages around it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,keep-text-section-prefix");
    // Segments begin at OS pages, so that what the dynamic linker writes lies on as few of these as possible. GNU ld
    // does so for the written segment by itself.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,separate-loadable-segments");
    }
}
