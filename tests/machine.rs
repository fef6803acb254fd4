//! Programs that run under a changed setting of the whole machine: nothing else may run beside these.

use std::io::Write;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use neap_tests::{Case, Outcome, Run, Source, Stop, judge_case, suite};

const LIMITS: Source = Source::new("life/limits.c");
const DSO: Source = Source::with_flags("life/dso.c", &["-shared"]);

fn main() -> ExitCode {
    suite::main(vec![Case::new(
        "overcommit_never",
        "reservations that vm.overcommit_memory=2 refuses or counts",
        overcommit_never,
    )])
}

/// Changes a kernel setting, and restores it when dropped or when this process dies: the process that writes the old
/// value waits for the end of its input.
struct Setting(Child);

impl Setting {
    fn set(path: &str, value: &str) -> Result<Self, Stop> {
        if !neap_tests::is_root() {
            return Err(Stop::Skip(format!("only root can set {path}")));
        }
        let old = std::fs::read_to_string(path)?;
        let helper = Command::new("sh")
            .args(["-c", "read -r line; echo \"$1\" > \"$2\"", "restore"])
            .args([old.trim(), path])
            .stdin(Stdio::piped())
            .spawn()?;
        let setting = Setting(helper);
        std::fs::write(path, value).map_err(|e| Stop::Skip(format!("{path} cannot be set here: {e}")))?;
        Ok(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

fn overcommit_never() -> Outcome {
    LIMITS.build()?;
    DSO.build()?;
    let setting = Setting::set("/proc/sys/vm/overcommit_memory", "2")?;
    let run =
        Run::new(LIMITS.build()?).arg("overcommit_never").env("DSO", DSO.build()?).timeout(Duration::from_secs(240));
    let done = judge_case(run)?;
    drop(setting);
    suite::note(format!("overcommit_memory=2: {}", done.stdout.lines().next().unwrap_or_default()));
    done.no_complaint()?;
    Ok(())
}
