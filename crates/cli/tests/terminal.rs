//! What commands print on a terminal of 80 columns.

mod common;

use std::process::Command;

use common::{Neap, compile, default_signals, skip, stderr, stdout};

/// Runs a command on a terminal of 80 columns, and copies what it prints. It ends with the command's status.
const ON_TERMINAL: &str = "
import fcntl, os, pty, struct, sys, termios
pid, master = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while data := os.read(master, 65536):
        os.write(1, data)
except OSError: pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// What remains to be seen of a line: not its colours, and not what a carriage return takes away.
fn visible(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let mut pieces = line.rsplit('\r').next().unwrap_or_default().split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces
        .fold(first, |text, piece| text + piece.trim_start_matches(|c: char| !c.is_alphabetic()).get(1..).unwrap_or(""))
}

/// Catches tables and texts with lines that the terminal breaks anywhere.
#[test]
fn lines_fit_80_columns() {
    let neap = Neap::new();
    let source = "#line 1 \"main.c\"\n#include <stdlib.h>\n#include <string.h>\nchar *kept;\n\
                  __attribute__((noinline)) void keep(void) { memset(kept = malloc(4 << 20), 1, 4 << 20); }\n\
                  int main(void) { keep(); return 0; }\n";
    // Its path has no room beside anything.
    let name = "a-program-with-a-name-that-is-as-long-as-the-paths-of-libraries-of-python-often-are";
    if compile(neap.dir.path(), name, source, &["-g", "-O1"]).is_none() {
        return skip("lines_fit_80_columns", "no C compiler");
    }
    if !Command::new("python3").args(["-c", "import pty"]).output().is_ok_and(|output| output.status.success()) {
        return skip("lines_fit_80_columns", "no python3 with the module pty");
    }
    let program = format!("./{name}");
    for made in [
        &["pagein", "--json", "-o", "trace.json", "--", &program][..],
        &["profile", "--heap", "--interval", "1", "--json", "-o", "profile.json", "--", &program],
        &["profile", "--heap", "--interval", "1", "--json", "-o", "other.json", "--", "ls"],
        &["order", "trace", "-o", "T", "--", &program],
    ] {
        let output = neap.command(made).current_dir(neap.dir.path()).output().expect("neap starts");
        assert!(output.status.success(), "{made:?}: {}", stderr(&output));
    }
    for line in [
        &["pagein", "--format", "table", "-o", "-", "--", &program][..],
        &["pagein", "--callgraph", "dwarf", "--format", "table", "-o", "-", "--", &program],
        &["pagein", "show", "trace.json"],
        &["pagein", "show", "trace.json", "--format", "table"],
        &["pagein", "diff", "trace.json", "trace.json"],
        &["profile", "show", "profile.json"],
        &["profile", "diff", "other.json", "profile.json"],
        &["profile", "--heap", "--", &program],
        &["huge", "show", "--all", "--", &program],
        &["huge", "status"],
        &["order", "estimate", "T", &program],
        &["why", "--all", "--", &program],
        &["top", "--once"],
        &["lab", "list"],
        &["options"],
        &["--help"],
    ] {
        let mut python = Command::new("python3");
        python.args(["-c", ON_TERMINAL, env!("CARGO_BIN_EXE_neap")]).args(line);
        default_signals(python.current_dir(neap.dir.path()).env("HOME", neap.dir.path()).env("TERM", "xterm"));
        let output = python.output().expect("python3 starts");
        let text = stdout(&output);
        assert!(output.status.success() && !text.is_empty(), "{line:?}: {} {text}", stderr(&output));
        // The command is the user's own text, and can be copied.
        let own = |line: &str| line.contains(&program);
        let wide: Vec<_> = text.lines().map(visible).filter(|line| line.chars().count() > 80 && !own(line)).collect();
        assert!(wide.is_empty(), "{line:?}: {wide:#?}");
    }
}
