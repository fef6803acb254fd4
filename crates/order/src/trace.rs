//! `neap order trace`: runs a program, and writes which functions it entered.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitStatus;

use neap_launch::child::{self, Program};
use neap_launch::error::{Error, FAILED, system_message, tell};
use neap_launch::output::Output;
use neap_launch::target;
use neap_layout::binary::NamedBy;
use neap_layout::{FAULTS, Run, Trace, TracedBinary, TracedFunction};

use crate::args::{TraceArgs, Wanted};
use crate::binary::Binary;
use crate::breakpoints::Tracer;
use crate::data;
use crate::files;
use crate::instrumented::{self, Entered, Traced};
use crate::pages::{number, touched, touched_in_place};
use crate::plan::{Hits, Plan};
use crate::target::{Source, Target};

/// Runs the command; the result is the program's exit status.
pub fn run(args: &TraceArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no program is given")) };
    let path = target::resolve(command)?;
    if let Some(why) = target::secure_execution(&path) {
        return Err(Error::cannot_run(format!(
            "cannot trace {}: {why}, and the kernel lets no other process trace such a program",
            path.display()
        ))
        .remedy("trace it as that user: sudo neap order trace -- PROGRAM"));
    }
    let target = open(args, &path)?;
    let mut output = Output::to(&args.output)?;
    let (mut traces, mut last) = (Vec::new(), ExitStatus::default());
    for _ in 0..args.runs {
        let (status, entered) = match target.source {
            Source::Instrumented => instrumented::run(&path, &args.command, &target)?,
            Source::Breakpoints => by_breakpoints(&path, args, &target)?,
            Source::Faults => by_faults(args, &target)?,
        };
        last = status;
        match entered {
            Ok(Some(entered)) => traces.push(trace(args, &target, last, entered)),
            Ok(None) => return after(last, unseen(&target)),
            Err(error) => return after(last, error),
        }
    }
    let mut trace = Trace::merge(traces).map_err(|e| Error::failed(e.to_string()))?;
    if args.data {
        match touched(&target.path, &args.command) {
            Ok(touched) => {
                let bytes = fs::read(&target.path).unwrap_or_default();
                trace.data = data::touched(&trace, &target.binary, &bytes, &touched.data);
                let (status, run) = (number(touched.status), trace.runs[0].clone());
                trace.runs.push(Run { source: FAULTS.to_owned(), status, functions: 0, ..run });
            }
            Err(error) => {
                tell(format_args!("{}, so the trace has no data", error.to_string().lines().next().unwrap_or_default()))
            }
        }
    }
    if let Err(error) = files::write(&mut output, &trace) {
        return after(last, error);
    }
    let (entered, all, source) = (trace.functions.len(), target.plan.len(), target.source.name());
    tell(format_args!("neap: {entered} of {all} functions were entered (source: {source})"));
    Ok(child::end_like(last))
}

/// What a run with breakpoints entered.
fn by_breakpoints(path: &Path, args: &TraceArgs, target: &Target) -> Result<Traced, Error> {
    let program = Program::new(path, &args.command, std::env::vars_os().collect())?;
    let (ended, tracer, signals) = child::supervise_watched(&program, |pid| Tracer::start(pid, target))?;
    let hits = tracer.finish();
    signals.release();
    let entered = hits.map(|hits| hits.map(Entered::from)).map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "allow neap more open files, one for each process: ulimit -n",
            _ => "allow ptrace and writing /proc/PID/mem, or trace by --source faults",
        };
        Error::failed(format!("cannot plant breakpoints: {}", system_message(&error))).remedy(remedy)
    });
    Ok((ended.status, entered))
}

/// The functions that the faults of a run show as entered: for each OS page of code, the one that was executed first.
fn by_faults(args: &TraceArgs, target: &Target) -> Result<Traced, Error> {
    let (status, touched) = touched_in_place(&target.path, &args.command)?;
    let entered = touched.map(|touched| {
        let first = touched.instructions.first()?;
        let mut hits = Hits::new(target.plan.len());
        for fault in touched.instructions.iter().filter(|fault| target.follow || fault.process == first.process) {
            let address = target.binary.code_address(fault.offset);
            if let Some(function) = address.and_then(|address| target.binary.function(address)) {
                hits.add(function, fault.at.saturating_sub(first.at));
            }
        }
        Some(Entered::from(hits))
    });
    Ok((status, entered))
}

/// neap failed after the program had ended: the program's own failure is worth more to the caller than neap's.
fn after(status: ExitStatus, error: Error) -> Result<u8, Error> {
    error.report();
    if status.success() { Ok(FAILED) } else { Ok(child::end_like(status)) }
}

fn unseen(target: &Target) -> Error {
    let path = target.path.display();
    match target.may_be_library {
        true => Error::failed(format!("no process executed or loaded {path}"))
            .remedy("--binary is the file that the program has, not a copy; static programs load no libraries"),
        false => Error::failed(format!("no process executed {path}")),
    }
}

/// The binary that is traced, and its functions.
fn open(args: &TraceArgs, program: &Path) -> Result<Target, Error> {
    let named = args.binary.as_deref().unwrap_or(program);
    let failed = |e: io::Error| Error::failed(format!("cannot read {}: {}", named.display(), system_message(&e)));
    let path = fs::canonicalize(named).map_err(failed)?;
    let bytes = fs::read(&path).map_err(failed)?;
    let metadata = fs::metadata(&path).map_err(failed)?;
    let Some(mut binary) = files::parse(&bytes).ok().and_then(|layout| Binary::of(layout, &bytes)) else {
        let error = Error::failed(format!("{} is not an ELF file of 64 bits", named.display()));
        return Err(match bytes.starts_with(b"#!") {
            true => error.remedy("it is a script: name the program that it runs with --binary"),
            false => error,
        });
    };
    let source = match args.source {
        Wanted::Auto if binary.instrumented => Source::Instrumented,
        Wanted::Auto | Wanted::Breakpoints => Source::Breakpoints,
        Wanted::Faults => Source::Faults,
    };
    if !binary.native && source != Source::Instrumented {
        let what = source.name();
        return Err(Error::failed(format!("cannot trace {} by {what}: that is for x86-64 only", named.display())));
    }
    binary.keep_mapped();
    match binary.named_by {
        NamedBy::All => {}
        NamedBy::Exported => tell(format_args!(
            "neap: {} is stripped: only its {} exported functions are traced; do not strip it, or install its -dbgsym package",
            named.display(),
            binary.functions.len()
        )),
        NamedBy::None => {
            return Err(Error::failed(format!("{} has no names of functions", named.display()))
                .remedy("do not strip it (strip = false in Cargo.toml, no -s), or install its -dbgsym package"));
        }
    }
    let plan = Plan::new(binary.functions.iter().map(|function| function.address).collect());
    Ok(Target {
        path,
        identity: (metadata.dev(), metadata.ino()),
        size: metadata.len(),
        binary,
        source,
        plan,
        may_be_library: args.binary.is_some(),
        follow: args.follow,
    })
}

/// The trace of a run.
fn trace(args: &TraceArgs, target: &Target, status: ExitStatus, entered: Entered) -> Trace {
    if entered.dropped > 0 {
        tell(format_args!("neap: the record of calls is full: {} calls were not counted", entered.dropped));
    }
    let order = entered.hits.order();
    let functions = order.iter().zip(0..).map(|(hit, rank)| {
        let function = &target.binary.functions[hit.site];
        TracedFunction {
            name: function.name.clone(),
            section: target.binary.section_of(function).to_owned(),
            address: function.address,
            size: function.size,
            file: function.file.clone(),
            runs: 1,
            in_runs: Vec::new(),
            rank,
            first_ns: Some(hit.at),
        }
    });
    let binary = TracedBinary {
        path: target.path.to_string_lossy().into_owned(),
        build_id: target.binary.build_id.clone(),
        size: target.size,
    };
    Trace {
        runs: vec![Run {
            command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            source: target.source.name().to_owned(),
            status: number(status),
            functions: order.len() as u64,
        }],
        functions: functions.collect(),
        calls: entered.calls,
        ..Trace::new(binary)
    }
}
