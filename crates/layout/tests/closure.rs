//! The closure of an entry symbol over object files and archives made by gcc and ar.

use std::fs;
use std::path::Path;
use std::process::Command;

use neap_layout::closure::{Closure, closure};

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}");
}

fn compile(folder: &Path, name: &str, source: &str) {
    let file = folder.join(format!("{name}.c"));
    fs::write(&file, source).expect("written");
    run(Command::new("gcc").current_dir(folder).arg("-c").arg(&file));
}

/// Catches needed object files that are not reached, others that are reached without need, and lost members of
/// archives.
#[test]
fn what_main_needs() {
    let folder = std::env::temp_dir().join(format!("neap-layout-closure-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    compile(&folder, "unused", "int main(void); int unused(void) { return main(); }");
    compile(&folder, "main", "int b(void); int main(void) { return b(); }");
    compile(&folder, "a", "int puts(const char *); int a(void) { return puts(\"a\"); }");
    compile(&folder, "weak", "__attribute__((weak)) int b(void) { return 1; }");
    compile(&folder, "b", "int a(void); int b(void) { return a(); }");
    run(Command::new("ar").current_dir(&folder).args(["rc", "lib.a", "a.o", "weak.o", "b.o"]));
    let files: Vec<(&str, Vec<u8>)> =
        ["unused.o", "main.o", "lib.a"].map(|name| (name, fs::read(folder.join(name)).expect("made"))).into();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, data)| (*name, data.as_slice())).collect();
    let found = closure(&["main"], &files);
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = Closure {
        reached: strings(&["main.o", "lib.a(b.o)", "lib.a(a.o)"]),
        rest: strings(&["unused.o", "lib.a(weak.o)"]),
        undefined: strings(&["puts"]),
    };
    let none = closure(&["absent"], &files).map(|closure| (closure.reached.len(), closure.undefined));
    assert_eq!((found, none), (Ok(expected), Ok((0, strings(&["absent"])))));
    assert!(closure(&["main"], &[("x", b"!<arch>\ndamaged")]).is_err());
    let _ = fs::remove_dir_all(&folder);
}
