//! Every format: a small trace against kept files, and arbitrary traces against a parser of the format.
//!
//! `NEAP_BLESS=1` in the environment writes the kept files (`tests/snapshots`) again: check the difference.

mod common;

use std::path::Path;

use neap_trace::diff::{self, Diff};
use neap_trace::format::{COLUMNS, FORMATS, Format, json};
use neap_trace::*;
use proptest::prelude::*;
use serde_json::Value;

use common::{any_trace, small};

fn written(name: &str, trace: &Recorded) -> String {
    let format = Format::from_name(name).expect("a format");
    let mut text = Vec::new();
    (format.write)(trace, &mut text).expect("memory takes everything");
    String::from_utf8(text).expect("UTF-8")
}

fn same_as_kept(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("NEAP_BLESS").is_some() {
        std::fs::write(&path, text).expect("the folder is there");
    }
    let kept = std::fs::read_to_string(&path).expect("a kept file; NEAP_BLESS=1 writes it");
    assert_eq!(text, kept, "{} differs; NEAP_BLESS=1 writes it anew", path.display());
}

/// Catches any change of what other programs parse.
#[test]
fn small_trace_as_kept() {
    for (format, file) in
        [("classic", "small.txt"), ("table", "small.table"), ("json", "small.json"), ("csv", "small.csv")]
    {
        same_as_kept(file, &written(format, &small()));
    }
    same_as_kept("small.folded", &written("folded", &small()));
    same_as_kept("small.html.json", element(&written("html", &small()), "data"));
}

/// Catches a format that is listed twice, or whose footer is not where it says.
#[test]
fn formats_are_as_they_say() {
    let trace = small();
    for (index, format) in FORMATS.iter().enumerate() {
        assert!(FORMATS[..index].iter().all(|other| other.name != format.name));
        let has_footer =
            ["exit status 3", "\"exited\":3"].iter().any(|text| written(format.name, &trace).contains(text));
        assert_eq!(has_footer, format.footer, "{}", format.name);
    }
}

// ---- JSON

fn read_back(text: &str) -> Result<Recorded, serde_json::Error> {
    let mut faults = Vec::new();
    let tables = json::read(text.as_bytes(), &mut |_: &Tables, fault: &Fault| faults.push(*fault))?;
    Ok(Recorded { tables, faults })
}

/// Catches a reader that requires the members in the order in which they were written.
#[test]
fn json_in_any_order() {
    let text = written("json", &small());
    let value: Value = serde_json::from_str(&text).expect("JSON");
    // Members of a `Value` are sorted by their names: faults come before the tables.
    let sorted = read_back(&value.to_string()).expect("a trace");
    assert_eq!(written("json", &sorted), text);
}

/// Catches broken references that make a reader panic or loop for ever.
#[test]
fn json_with_broken_references() {
    let text = written("json", &small());
    for (from, to) in [
        ("\"code\":0", "\"code\":99"),
        ("\"thread\":0", "\"thread\":99"),
        ("\"mapping\":0", "\"mapping\":99"),
        ("\"symbol\":0", "\"symbol\":99"),
        ("\"object\":0", "\"object\":99"),
        ("\"parent\":0", "\"parent\":1"),
        ("\"process\":0", "\"process\":99"),
        ("\"place\":0", "\"place\":99"),
        ("\"line\":0", "\"line\":99"),
        ("\"site\":1", "\"site\":99"),
    ] {
        let broken = text.replace(from, to);
        assert_ne!(broken, text, "{from}");
        let why = read_back(&broken).expect_err(to).to_string();
        assert!(why.contains("that is not there"), "{to}: {why}");
    }
}

// ---- CSV

fn check_csv(trace: &Recorded, text: &str) {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    assert_eq!(reader.headers().expect("names"), COLUMNS.as_slice());
    let records: Vec<csv::StringRecord> = reader.records().map(|record| record.expect("a line")).collect();
    assert_eq!(records.len(), trace.faults.len());
    let column = |name: &str| COLUMNS.iter().position(|column| *column == name).expect("a column");
    for (record, fault) in records.iter().zip(&trace.faults) {
        assert_eq!(record.len(), COLUMNS.len());
        assert_eq!(record[column("number")].parse(), Ok(fault.number));
        assert_eq!(record[column("time_ns")].parse(), Ok(fault.time));
        assert_eq!(record[column("address")], format!("{:#x}", fault.address));
        assert_eq!(Kind::from_name(&record[column("kind")]), Some(fault.kind));
        assert_eq!(record[column("service_ns")].parse().ok(), fault.service);
        assert_eq!(record[column("process")], trace.tables.process_of(fault).name);
        let mapping = fault.mapping.map(|id| trace.tables.mappings[id].describe(&trace.tables));
        assert_eq!(record[column("mapping")], mapping.unwrap_or_default());
    }
}

// ---- folded

fn check_folded(trace: &Recorded, text: &str) {
    let mut sum = 0;
    for line in text.split_terminator('\n') {
        let (stack, count) = line.rsplit_once(' ').expect("a stack and a number");
        sum += count.parse::<usize>().expect("a number");
        assert!(!stack.is_empty());
    }
    assert_eq!(sum, trace.faults.len());
}

// ---- The Firefox Profiler

/// A column of a table of the profile, checked to be as long as the table.
fn column<'a>(table: &'a Value, name: &str) -> &'a [Value] {
    let column = table[name].as_array().unwrap_or_else(|| panic!("no column {name} in {table}"));
    assert_eq!(table["length"], column.len(), "{name}");
    column
}

/// Checks that each of `indexes` is null or the position of a row.
fn indexes(indexes: &[Value], rows: usize, what: &str) {
    for index in indexes.iter().filter(|index| !index.is_null()) {
        assert!(index.as_i64().is_some_and(|index| index < rows as i64 && index >= -1), "{what}: {index} of {rows}");
    }
}

/// Checks a profile against the documented format (docs-developer/processed-profile-format.md and src/types/profile.js
/// of firefox-devtools/profiler, version 55): members that the profiler needs, columns of equal length, positions in
/// range, callers before callees.
fn check_firefox(trace: &Recorded, text: &str) -> Value {
    let profile: Value = serde_json::from_str(text).expect("JSON");
    let meta = &profile["meta"];
    for name in ["interval", "startTime", "processType", "product", "version", "preprocessedProfileVersion"] {
        assert!(!meta[name].is_null(), "meta.{name}");
    }
    let categories = meta["categories"].as_array().expect("categories");
    assert!(categories.iter().all(|category| category["name"].is_string() && category["color"].is_string()));
    let libraries = profile["libs"].as_array().expect("libs");
    for library in libraries {
        for name in ["name", "path", "debugName", "debugPath", "breakpadId"] {
            assert!(library[name].is_string(), "libs.{name}");
        }
    }
    let mut samples = 0;
    for thread in profile["threads"].as_array().expect("threads") {
        for name in ["processType", "processStartupTime", "registerTime", "name", "isMainThread", "pid", "tid"] {
            assert!(!thread[name].is_null(), "thread.{name}");
        }
        let texts = thread["stringArray"].as_array().expect("texts").len();
        let (frames, functions, stacks) = (&thread["frameTable"], &thread["funcTable"], &thread["stackTable"]);
        let rows = |table: &Value| table["length"].as_u64().expect("a length") as usize;
        indexes(column(&thread["samples"], "stack"), rows(stacks), "samples.stack");
        assert_eq!(column(&thread["samples"], "timeDeltas").len(), column(&thread["samples"], "weight").len());
        samples += column(&thread["samples"], "weight").iter().filter_map(Value::as_u64).sum::<u64>();
        indexes(column(stacks, "frame"), rows(frames), "stackTable.frame");
        for (row, prefix) in column(stacks, "prefix").iter().enumerate() {
            assert!(prefix.is_null() || prefix.as_u64().is_some_and(|prefix| prefix < row as u64));
        }
        indexes(column(frames, "func"), rows(functions), "frameTable.func");
        indexes(column(frames, "category"), categories.len(), "frameTable.category");
        indexes(column(functions, "name"), texts, "funcTable.name");
        indexes(column(functions, "resource"), rows(&thread["resourceTable"]), "funcTable.resource");
        indexes(column(&thread["resourceTable"], "lib"), libraries.len(), "resourceTable.lib");
        let markers = &thread["markers"];
        indexes(column(markers, "name"), texts, "markers.name");
        indexes(column(markers, "category"), categories.len(), "markers.category");
        assert_eq!(column(markers, "data").len(), column(markers, "startTime").len());
    }
    assert_eq!(samples, trace.faults.len() as u64);
    profile
}

/// The functions of a sample, from the outermost caller on.
fn functions(thread: &Value, sample: usize) -> Vec<String> {
    let texts = thread["stringArray"].as_array().expect("texts");
    let at = |table: &str, name: &str, row: usize| thread[table][name][row].as_u64().map(|index| index as usize);
    let mut names = Vec::new();
    let mut stack = at("samples", "stack", sample);
    while let Some(row) = stack {
        let function = at("stackTable", "frame", row).and_then(|frame| at("frameTable", "func", frame));
        let name = function.and_then(|function| at("funcTable", "name", function)).expect("a name");
        names.push(texts[name].as_str().expect("a text").to_owned());
        stack = at("stackTable", "prefix", row);
    }
    names.reverse();
    names
}

/// Catches functions in the wrong order, without a name or on the wrong thread, and markers without their facts.
#[test]
fn firefox_of_the_small_trace() {
    let trace = small();
    let profile = check_firefox(&trace, &written("firefox", &trace));
    let threads = profile["threads"].as_array().expect("threads");
    let thread = |tid: &str| threads.iter().find(|thread| thread["tid"] == tid).expect("a thread");
    assert_eq!(functions(thread("70"), 0), ["main"]);
    assert_eq!(functions(thread("70"), 1), ["main", "app::load<int, 2>()"]);
    assert_eq!(functions(thread("72"), 0), ["main", "app::load<int, 2>()", "memset"]);
    assert_eq!(functions(thread("71"), 0), ["main", "app::load<int, 2>()", "memset", "clear_user"]);
    let libs: Vec<&str> = profile["libs"].as_array().expect("libs").iter().filter_map(|l| l["name"].as_str()).collect();
    assert_eq!(libs, ["demo", "libc.so.6"]);
    assert_eq!(profile["libs"][0]["codeId"], "0102030405060708090a0b0c0d0e0f1011121314");
    assert_eq!(profile["libs"][0]["breakpadId"], "0403020106050807090A0B0C0D0E0F100");
    assert_eq!(profile["meta"]["startTime"], 1_700_000_000_000.0);
    let marker = &thread("70")["markers"]["data"][1];
    assert_eq!((&marker["type"], &marker["number"]), (&"PageFault".into(), &2.0.into()));
    assert_eq!(marker["mapping"], "/bin/demo");
    assert_eq!(thread("70")["markers"]["endTime"][1], 0.0037);
}

// ---- HTML

/// The text of the page's element with that id.
fn element<'a>(page: &'a str, id: &str) -> &'a str {
    let begin = page.find(&format!("id=\"{id}\">")).expect("the element") + id.len() + 6;
    let length = page[begin..].find("</script>").expect("its end");
    &page[begin..begin + length]
}

/// Does what the page's script does: decodes base64, and reads numbers.
fn unpack(text: &str) -> Vec<u64> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0u32);
    for digit in text.chars().filter_map(|digit| DIGITS.find(digit)) {
        (held, bits) = (held << 6 | digit as u32, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    let (mut numbers, mut number, mut shift) = (Vec::new(), 0, 0);
    for byte in bytes {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            numbers.push(std::mem::take(&mut number));
            shift = 0;
        }
    }
    numbers
}

fn check_html(trace: &Recorded, page: &str) {
    let data: Value = serde_json::from_str(element(page, "data")).expect("JSON");
    assert_eq!(data["shown"], trace.faults.len());
    let numbers = unpack(element(page, "faults"));
    assert!(numbers.iter().all(|&number| number < 1 << 53));
    assert_eq!(numbers.len(), trace.faults.len() * 12);
    let mut page = 0i64;
    for (row, fault) in numbers.chunks(12).zip(&trace.faults) {
        assert_eq!(data["kinds"][(row[0] & 15) as usize][0], fault.kind.name());
        page += (row[4] >> 1) as i64 * if row[4] & 1 == 0 { 1 } else { -1 };
        assert_eq!(((page as u64) << 12) + row[5], fault.address);
        assert_eq!(row[3].checked_sub(1), fault.service.map(u64::from));
        assert_eq!(row[8].checked_sub(1), fault.mapping.map(|id| id.index() as u64));
        assert!(!data["code"][row[9] as usize - 1].is_null());
        let mut callers = row[11] as i64 - 1;
        let mut depth = 0;
        while callers >= 0 {
            assert!(data["texts"][data["callers"][callers as usize][1].as_u64().expect("a text") as usize].is_string());
            callers = data["callers"][callers as usize][0].as_i64().expect("a number");
            depth += 1;
        }
        let nodes = fault.stack.map_or(0, |stack| trace.tables.frames(stack).count());
        assert!(depth == nodes || depth + 1 == nodes);
        if let Some(place) = fault.data {
            assert_eq!(data["texts"][row[10] as usize - 1], trace.tables.describe_place(place));
        }
    }
}

// ---- Comparisons

fn totals(format: &str, trace: &Recorded) -> diff::Totals {
    diff::read(&mut written(format, trace).as_bytes()).expect("a trace")
}

/// Catches addresses that prevent a match of two runs of one program, and differences that are not found.
#[test]
fn diff_of_two_runs() {
    let before = small();
    let mut after = small();
    for fault in &mut after.faults {
        if fault.mapping.is_some() {
            (fault.address, fault.ip) = (fault.address + 0x7000_0000, fault.ip.wrapping_add(0x7000_0000));
        }
    }
    for (_, mapping) in after.tables.mappings.iter_mut() {
        (mapping.start, mapping.end) = (mapping.start + 0x7000_0000, mapping.end + 0x7000_0000);
    }
    let equal = Diff::new(&totals("json", &before), &totals("csv", &after));
    for list in [&equal.kinds, &equal.functions, &equal.mappings, &equal.pages] {
        assert!(!list.is_empty() && list.iter().all(|change| change.difference() == 0), "{list:?}");
    }
    after.faults.extend_from_slice(&[before.faults[1], before.faults[1]]);
    let diff = Diff::new(&totals("json", &before), &totals("json", &after));
    assert_eq!(diff.faults.difference(), 2);
    let first = |list: &[diff::Change]| (list[0].name.clone(), list[0].difference());
    assert_eq!(first(&diff.kinds), ("cow".to_owned(), 2));
    assert_eq!(first(&diff.functions), ("app::load<int, 2>() (demo)".to_owned(), 2));
    assert_eq!(first(&diff.mappings), ("demo".to_owned(), 2));
}

proptest! {
    /// Catches a trace that cannot be written, or that changes when it is read back.
    #[test]
    fn json_comes_back(trace in any_trace()) {
        let text = written("json", &trace);
        let back = read_back(&text).expect("a trace");
        prop_assert_eq!(&back.faults, &trace.faults);
        prop_assert_eq!(written("json", &back), text);
    }

    /// Catches names that break a line, a field or an element, and numbers that readers cannot hold.
    #[test]
    fn every_format_parses(trace in any_trace()) {
        check_csv(&trace, &written("csv", &trace));
        check_folded(&trace, &written("folded", &trace));
        check_firefox(&trace, &written("firefox", &trace));
        check_html(&trace, &written("html", &trace));
        let lines = |format| written(format, &trace).lines().filter(|line| !line.starts_with('#')).count();
        prop_assert_eq!(lines("classic"), trace.faults.len());
        // A line of names, and an empty one before the footer.
        prop_assert_eq!(lines("table"), trace.faults.len() + 2);
    }

    /// Catches a comparison that depends on the format of the file.
    #[test]
    fn json_and_csv_count_alike(trace in any_trace()) {
        let (json, csv) = (totals("json", &trace), totals("csv", &trace));
        prop_assert_eq!(&diff::Totals { command: Vec::new(), ..json }, &csv);
        prop_assert_eq!(csv.kinds.values().sum::<u64>(), csv.faults);
        prop_assert_eq!(csv.functions.values().sum::<u64>(), csv.faults);
        prop_assert_eq!(csv.mappings.values().sum::<u64>(), csv.faults);
    }
}
