//! `neap why --watch`: reads a process repeatedly, until it ends, the time is over, or neap is interrupted.

use crate::args::WhyArgs;
use crate::failed;
use crate::output::Output;
use crate::read::{Effort, look_until};
use neap_account::text::wrapped;
use neap_account::units::{fit, plain};
use neap_account::watch::{Step, Watch};
use neap_launch::error::Error;
use neap_launch::signals;
use neap_launch::units::bytes;
use neap_process::identity;
use std::time::Instant;

/// How many changes are shown for a reading.
const CHANGES: usize = 4;

/// Watches process `pid`.
pub fn run(args: &WhyArgs, pid: u32) -> Result<u8, Error> {
    let mut output = Output::standard(args)?;
    let (started, mut watch) = (Instant::now(), Watch::default());
    let Some(program) = identity::of(pid) else { return Err(failed::no_memory(pid)) };
    let first = watch.add(0.0, &look_until(pid, Effort::Full, || false)?);
    output.line(serde_json::to_string(&first), format!("{}{}", header(), line(&first)))?;
    let inherited = signals::block();
    let mut last = first;
    let (mut result, mut ended) = (Ok(()), None);
    while result.is_ok() {
        let left = args.duration.map_or(args.interval, |all| all.saturating_sub(started.elapsed()));
        if left.is_zero() || signals::asked_to_end(args.interval.min(left)) {
            break;
        }
        let report = look_until(pid, Effort::Full, signals::is_pending);
        let now = identity::of(pid);
        let report = match report {
            _ if now.as_ref().is_some_and(|now| !now.is_of(&program)) => {
                ended = Some(another(pid));
                break;
            }
            Ok(report) => report,
            // It has ended, or is a zombie.
            Err(_) if now.is_none() || failed::is_zombie(pid) => break,
            Err(error) => {
                ended = Some(error);
                break;
            }
        };
        last = watch.add(started.elapsed().as_secs_f64(), &report);
        result = output.line(serde_json::to_string(&last), line(&last));
    }
    inherited.release();
    result?;
    if !args.json {
        output.line(Ok(String::new()), format!("\n{}", wrapped(&last.verdict, 0)))?;
    }
    ended.map_or(Ok(0), Err)
}

fn another(pid: u32) -> Error {
    Error::failed(format!("process {pid} now runs another program, or is another process with the same number"))
        .remedy("the figures so far are of the first one; to watch the other one: neap why --watch PID")
}

fn header() -> &'static str {
    "    time        Rss       live       kept fragmented    swapped\n"
}

/// A reading: its figures, and what changed most since the first one.
fn line(step: &Step) -> String {
    let look = &step.look;
    let figures =
        [look.rss_bytes, look.live_bytes, look.kept_bytes, look.fragmentation_bytes, look.swap_bytes].map(bytes);
    let mut text = format!("{:>7.1}s", look.seconds);
    for figure in figures {
        text.push_str(&format!(" {figure:>10}"));
    }
    text.push('\n');
    for change in step.changes.iter().take(CHANGES) {
        let sign = if change.bytes < 0 { '-' } else { '+' };
        let owner = fit(&plain(&change.owner), 38);
        let amount = format!("{sign}{}", bytes(change.bytes.unsigned_abs()));
        text.push_str(&format!("         {amount:>10} {}, {owner}\n", change.kind.label()));
    }
    text
}
