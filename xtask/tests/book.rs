//! The site of the documents: mdBook builds it, and its links lead somewhere.

use std::process::Command;

/// Catches a page that mdBook cannot build, and a link that is right in the repository and wrong on the site.
#[test]
fn the_site_is_built() {
    if Command::new("mdbook").arg("--version").output().is_err() {
        eprintln!("SKIPPED the_site_is_built: no mdbook (cargo install mdbook --version ^0.4 --no-default-features)");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("book").output().expect("xtask");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let pages: usize = said.split(' ').next().and_then(|word| word.parse().ok()).expect("a number of pages");
    assert!(pages > 70, "{said}");
}

/// Catches a missing mdBook without advice on how to install it.
#[test]
fn a_missing_mdbook_has_a_remedy() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_xtask")).args(["book", "--mdbook", "/no/mdbook"]).output().expect("xtask");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("cargo install mdbook"), "{said}");
}
