//! Link options of libneap_instrument.so.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Loads before all other libraries' constructors, which may be instrumented.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // An undefined symbol is an error here, not in the program that loads the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}
