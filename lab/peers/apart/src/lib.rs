//! Empty: the dependencies are what counts, see Cargo.toml.
