//! Profiles that were written: shown, converted, compared.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use neap_launch::error::{Error, system_message};
use neap_launch::output::Output;
use neap_profile::diff::{self, Diff};
use neap_profile::format::diff_text;
use neap_profile::html;
use neap_profile::pprof::Symbols;
use neap_profile::{Options, Profile, View};
use serde::Serialize;

use super::args::{DiffArgs, DiffFormat, ShowArgs};
use super::written;

/// Shows a profile, or writes it in another format.
pub fn show(args: &ShowArgs) -> Result<u8, Error> {
    let profile = read(&args.file)?;
    let column = match &args.value {
        Some(name) => profile.column(name).ok_or_else(|| {
            let names: Vec<&str> = profile.types.iter().map(|of| of.name.as_ref()).collect();
            Error::failed(format!("{} has no {name}", args.file.display()))
                .remedy(format!("use --type with one of {}", names.join(", ")))
        })?,
        None => chosen(&profile, args.views.chosen())?,
    };
    let output = match args.written.output.as_deref() {
        // What is shown is what was asked for: it goes to standard output.
        None if args.written.format().name == "text" => Output::standard()?,
        path => Output::create(path, &format!("profile.{}{}", profile.pid, args.written.format().ending))?,
    };
    written::write(&profile, column, &args.written, Some(output))?;
    Ok(0)
}

fn chosen(profile: &Profile, view: Option<View>) -> Result<usize, Error> {
    profile.chosen(view).map_err(|why| Error::failed(why).remedy("leave the view out, or name another profile"))
}

/// The comparison as JSON.
#[derive(Serialize)]
struct Report<'a> {
    before: &'a str,
    after: &'a str,
    #[serde(flatten)]
    diff: &'a DiffJson<'a>,
}

/// A comparison under names that do not clash with those of the files.
#[derive(Serialize)]
struct DiffJson<'a> {
    #[serde(rename = "type")]
    value: &'a str,
    unit: &'a str,
    total_before: i64,
    total_after: i64,
    sites: &'a [diff::Change],
}

/// Compares two profiles.
pub fn diff(args: &DiffArgs) -> Result<u8, Error> {
    if args.before.as_os_str() == "-" && args.after.as_os_str() == "-" {
        return Err(
            Error::failed("both profiles cannot come from standard input").remedy("name a file for one of them")
        );
    }
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let view = args.views.chosen();
    let diff = diff::diff(&before, &after, view)
        .map_err(|why| Error::failed(why).remedy("compare profiles of the same view"))?;
    let mut output = Output::to(&args.output)?;
    let format = if args.json { DiffFormat::Json } else { args.format };
    let to_standard = output.is_standard();
    output.write("the comparison", |out| match format {
        DiffFormat::Text => written::fitted(&|out| diff_text(&diff, args.limit, out), to_standard, out),
        DiffFormat::Json => json(args, &diff, out),
        DiffFormat::Html => {
            let column = after.chosen(view).unwrap_or(0);
            html(&[&before, &after], Options { column, symbols: Symbols::Named, limit: args.limit }, out)
        }
    })?;
    Ok(0)
}

fn json(args: &DiffArgs, diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    let (before, after) = (args.before.to_string_lossy(), args.after.to_string_lossy());
    let inner = DiffJson {
        value: &diff.value,
        unit: diff.unit.name(),
        total_before: diff.before,
        total_after: diff.after,
        sites: &diff.sites,
    };
    serde_json::to_writer_pretty(&mut *out, &Report { before: &before, after: &after, diff: &inner })?;
    writeln!(out)
}

/// Reads a profile; `-` is standard input.
fn read(path: &Path) -> Result<Profile, Error> {
    let name = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    let done = if path.as_os_str() == "-" {
        io::stdin().lock().read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    done.map_err(|e| {
        Error::failed(format!("cannot read {name}: {}", system_message(&e))).remedy("name a profile that was written")
    })?;
    neap_profile::read(&bytes).map_err(|why| {
        Error::failed(format!("{name} is no profile that neap can read: {why}"))
            .remedy("neap profile --format json (or pprof) -o FILE -- PROGRAM writes one")
    })
}
