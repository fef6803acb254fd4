//! Records the heaps of a process at rest: `cargo run -p neap-heaps --example record -- PID OUTPUT TRUTH`. The file
//! `TRUTH` has what the process reported about its own heap.

#[path = "../tests/support/mod.rs"]
mod support;

use support::Process;
use support::recording::Recording;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, pid, output, truth] = &arguments[..] else { panic!("usage: record PID OUTPUT TRUTH") };
    let process = Process::open(pid.parse().expect("a PID")).expect("no such process, or no permission");
    let truth = std::fs::read_to_string(truth).expect("a file with what the process said");
    let recording = Recording::of(&process, &truth);
    recording.write(output.as_ref()).expect("a file that can be written");
}
