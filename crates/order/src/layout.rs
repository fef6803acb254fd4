//! `neap order estimate`, `emit`, `picture` and `closure`: what a trace shows of a layout, and files for linkers.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use neap_launch::error::{Error, cannot_print, system_message, tell};
use neap_launch::output::Output;
use neap_launch::sys;
use neap_layout::binary::NotElf;
use neap_layout::closure::{Closure, closure};
use neap_layout::estimate::{self, Line};
use neap_layout::picture::{self, Subject};
use neap_layout::{Binary, Estimate, Kind, Order, Trace, cluster, emit};
use serde_json::{Value, json};

use crate::args::{ClosureArgs, Clustering, EmitArgs, EstimateArgs, Linker, PictureArgs};
use crate::files;

/// `neap order estimate`.
pub fn estimate_of(args: &EstimateArgs) -> Result<u8, Error> {
    let (trace, binary) = read_traced(&args.trace, &args.binary)?;
    let estimate = Estimate::of(&trace, &binary);
    print(&if args.json { estimate_json(&estimate) } else { estimate_table(&estimate) })
}

/// `neap order emit`.
pub fn emit_for(args: &EmitArgs) -> Result<u8, Error> {
    let trace = files::read(&args.trace)?;
    let binary = read_binary(&args.binary)?;
    let places = places(&trace, args.by);
    let order = Order::with(&trace, &places, &binary);
    let text = match args.linker {
        Linker::Lld => emit::lld(&order),
        Linker::Gold => emit::gold(&order),
        Linker::Ld => emit::ld(&order),
        Linker::LdScript => {
            let script = script(args.script.as_deref())?;
            emit::ld_script(&order, &script).map_err(|e| {
                Error::failed(e.to_string()).remedy("name a script with --script: `ld --verbose` prints that of ld")
            })?
        }
        Linker::Mold | Linker::Objects => {
            if args.objects.is_empty() {
                return Err(Error::failed("an order of object files needs their names")
                    .remedy("neap order emit --for objects T BINARY *.o"));
            }
            let data = read_all(&args.objects)?;
            let named: Vec<(&str, &[u8])> = data.iter().map(|(name, data)| (name.as_str(), data.as_slice())).collect();
            emit::objects(&order, &named).map_err(|e| not_elf(&e))?
        }
    };
    let kinds = [("functions", order.functions), ("data", order.data)];
    for (what, counts) in kinds.into_iter().filter(|(_, counts)| counts.same + counts.changed + counts.lost > 0) {
        let all = counts.same + counts.changed + counts.lost;
        tell(format_args!(
            "neap: {all} {what}: {} found, {} under a changed name, {} lost",
            counts.same, counts.changed, counts.lost
        ));
    }
    if order.nameless > 0 {
        tell(format_args!("neap: {} OS pages of data have no symbol, so no linker can move them", order.nameless));
    }
    let pages = cluster::pages_of_runs(&trace, &places).into_iter().zip(&trace.runs);
    let pages: Vec<String> =
        pages.filter(|(_, run)| run.sees_functions()).map(|(pages, _)| pages.to_string()).collect();
    tell(format_args!("neap: OS pages of code for each run: {}", pages.join(", ")));
    Output::to(&args.output)?.write("the order", |out| out.write_all(text.as_bytes()))?;
    Ok(0)
}

/// `neap order picture`.
pub fn picture_of(args: &PictureArgs) -> Result<u8, Error> {
    let after = args.after.first().zip(args.after.get(1));
    let paths = [Some((&args.trace, &args.binary)), after];
    let mut read = Vec::new();
    for (trace, path) in paths.into_iter().flatten() {
        read.push((path, read_traced(trace, path)?));
    }
    // The titles are the file names, unless both are the same.
    let names = read.iter().map(|(path, _)| path.file_name());
    let differ = names.collect::<HashSet<_>>().len() == read.len();
    let named = |path: &Path| match path.file_name().filter(|_| differ) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.display().to_string(),
    };
    let read: Vec<_> = read.into_iter().map(|(path, read)| (named(path), read)).collect();
    let subjects = read.iter().map(|(name, (trace, binary))| Subject { name, trace, binary });
    let page = picture::page(&subjects.collect::<Vec<_>>());
    Output::to(&args.output)?.write("the picture", |out| out.write_all(page.as_bytes()))?;
    Ok(0)
}

/// `neap order closure`.
pub fn closure_of(args: &ClosureArgs) -> Result<u8, Error> {
    let data = read_all(&args.files)?;
    let named: Vec<(&str, &[u8])> = data.iter().map(|(name, data)| (name.as_str(), data.as_slice())).collect();
    let entries: Vec<&str> = args.entry.iter().map(String::as_str).collect();
    let Closure { reached, rest, undefined } = closure(&entries, &named).map_err(|e| not_elf(&e))?;
    if let Some(missing) = entries.iter().find(|entry| undefined.iter().any(|name| name == *entry)) {
        return Err(Error::failed(format!("no file defines {missing}"))
            .remedy("name the object file or the archive that defines the entry symbol, or another one with --entry"));
    }
    tell(format_args!(
        "neap: {} object files are reached, {} are not; {} symbols are defined in none",
        reached.len(),
        rest.len(),
        undefined.len()
    ));
    let all = if args.all { rest } else { Vec::new() };
    let lines = reached.into_iter().chain(all).fold(String::new(), |text, name| text + &name + "\n");
    print(&lines)
}

fn places(trace: &Trace, by: Clustering) -> Vec<usize> {
    match by {
        Clustering::Runs => cluster::by_runs(trace),
        Clustering::Entry => cluster::by_first_entry(trace),
        Clustering::C3 => cluster::c3(trace),
    }
}

/// The linker script of GNU ld: from a file, or as `ld` of this machine prints it.
fn script(path: Option<&Path>) -> Result<String, Error> {
    if let Some(path) = path {
        return fs::read_to_string(path).map_err(|e| cannot_read(path, &e));
    }
    let remedy = "name a script with --script: `gcc -Wl,--verbose` prints that of a link";
    let output = Command::new("ld").arg("--verbose").output();
    let output = output.map_err(|e| Error::failed(format!("cannot run ld: {}", system_message(&e))).remedy(remedy))?;
    String::from_utf8(output.stdout).map_err(|_| Error::failed("ld prints no script").remedy(remedy))
}

/// Reads a trace, and the build that was traced.
fn read_traced(trace: &Path, path: &Path) -> Result<(Trace, Binary), Error> {
    let (trace, binary) = (files::read(trace)?, read_binary(path)?);
    let size = fs::metadata(path).map_err(|e| cannot_read(path, &e))?.len();
    // Builds without an id are compared by size.
    let is_traced = match &trace.binary.build_id {
        None => binary.build_id.is_none() && trace.binary.size == size,
        traced => *traced == binary.build_id,
    };
    if !is_traced {
        return Err(Error::failed(format!("{} is not the build that was traced", path.display()))
            .remedy("the build that was traced is needed: trace this one, or name that one"));
    }
    Ok((trace, binary))
}

pub(crate) fn read_binary(path: &Path) -> Result<Binary, Error> {
    let data = fs::read(path).map_err(|e| cannot_read(path, &e))?;
    files::parse(&data).map_err(|e| {
        Error::failed(format!("cannot use {}: {e}", path.display())).remedy("name an ELF program or library")
    })
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let read = |path: &PathBuf| {
        let data = fs::read(path).map_err(|e| cannot_read(path, &e))?;
        Ok((path.display().to_string(), data))
    };
    paths.iter().map(read).collect()
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("cannot read {}: {}", path.display(), system_message(error)))
}

fn not_elf(error: &NotElf) -> Error {
    Error::failed(error.to_string()).remedy("name object files (ELF) and archives")
}

/// Prints a result.
fn print(text: &str) -> Result<u8, Error> {
    let mut output = sys::standard_output().map_err(|e| cannot_print(&e))?;
    output.write_all(text.as_bytes()).map_err(|e| cannot_print(&e))?;
    Ok(0)
}

fn estimate_table(estimate: &Estimate) -> String {
    let pair = |now: &dyn Display, packed: &dyn Display| format!(" {now:>9} {packed:>7}");
    let mut text =
        format!("{:<6} {:>7} {:>10} {:>17} {:>17} {:>17}\n", "", "", "", "OS pages", "faults", "fault-around");
    text.push_str(&format!("{:<6} {:>7} {:>10}{}\n", "", "pieces", "bytes", pair(&"now", &"packed").repeat(3)));
    let mut add = |name: &str, line: &Line| {
        let (now, packed) = (&line.now, &line.packed);
        text.push_str(&format!(
            "{name:<6} {:>7} {:>10}{}{}{}\n",
            line.pieces,
            line.bytes,
            pair(&now.pages, &packed.pages),
            pair(&now.faults, &packed.faults),
            pair(&now.faults_around, &packed.faults_around)
        ));
    };
    estimate.kinds.iter().for_each(|(kind, line)| add(kind.name(), line));
    add("all", &estimate.total);
    if estimate.outside > 0 {
        text.push_str(&format!("{} functions and data of the trace lie in no section\n", estimate.outside));
    }
    if !estimate.kinds.keys().any(|kind| *kind != Kind::Text) {
        text.push_str("The trace has no data: neap order trace --data records it.\n");
    }
    text
}

fn estimate_json(estimate: &Estimate) -> String {
    let line = |line: &Line| -> Value {
        let layout = |layout: &estimate::Layout| json!({"pages": layout.pages, "faults": layout.faults, "faults_around": layout.faults_around});
        json!({"pieces": line.pieces, "bytes": line.bytes, "now": layout(&line.now), "packed": layout(&line.packed)})
    };
    let kinds: serde_json::Map<String, Value> =
        estimate.kinds.iter().map(|(kind, of)| (kind.name().to_string(), line(of))).collect();
    let all = json!({
        "format": "neap-order-estimate 1",
        "kinds": kinds,
        "total": line(&estimate.total),
        "outside": estimate.outside,
    });
    format!("{all:#}\n")
}
