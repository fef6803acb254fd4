//! Reads a trace back, fault by fault.

use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::VERSION;
use crate::{Fault, Id, StackId, Tables};

/// Called with each fault, and with the tables as far as they are read.
pub type See<'a> = dyn FnMut(&Tables, &Fault) + 'a;

/// Reads a trace that [`json`](super::json) wrote: passes each fault to `visitor`, and returns the rest.
///
/// Faults can come before the tables (some tools sort members), and a broken file refers to rows that it lacks, so the
/// visitor must not rely on finding them. After the end, every id is that of a row.
pub fn read(reader: impl Read, visitor: &mut See<'_>) -> Result<Tables, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let tables = Trace { visitor }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(tables)
}

/// The top level of a trace.
struct Trace<'a, 'b> {
    visitor: &'a mut See<'b>,
}

impl<'de> DeserializeSeed<'de> for Trace<'_, '_> {
    type Value = Tables;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tables, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Trace<'_, '_> {
    type Value = Tables;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace of neap pagein")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tables, A::Error> {
        let mut tables = Tables::default();
        let mut used = Used::default();
        let mut version = None;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "schema" => {
                    if map.next_value::<serde_json::Value>()? == "neap-profile" {
                        return Err(A::Error::custom("it is a profile, and no trace: neap profile reads it"));
                    }
                }
                "neap_trace" => version = Some(supported::<A::Error>(map.next_value()?)?),
                "summary" => tables.summary = map.next_value()?,
                "clock" => tables.clock = map.next_value()?,
                "processes" => tables.processes = map.next_value()?,
                "threads" => tables.threads = map.next_value()?,
                "objects" => tables.objects = map.next_value()?,
                "mappings" => tables.mappings = map.next_value()?,
                "symbols" => tables.symbols = map.next_value()?,
                "lines" => tables.lines = map.next_value()?,
                "places" => tables.places = map.next_value()?,
                "stacks" => tables.stacks = map.next_value()?,
                "blocks" => tables.blocks = map.next_value()?,
                "faults" => {
                    map.next_value_seed(Faults { visitor: &mut *self.visitor, tables: &tables, used: &mut used })?;
                }
                "meta" => return Err(A::Error::custom("it is a profile for the Firefox Profiler, and no trace")),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if version.is_none() {
            return Err(A::Error::custom("it has no member \"neap_trace\""));
        }
        let broken = used.broken(&tables).or_else(|| broken_rows(&tables));
        broken.map_or(Ok(tables), |what| Err(A::Error::custom(format_args!("it refers to {what} that is not there"))))
    }
}

fn supported<E: Error>(version: u64) -> Result<u64, E> {
    if version == VERSION {
        return Ok(version);
    }
    Err(E::custom(format_args!("it has version {version} of the format, and this neap reads version {VERSION}")))
}

/// The array of faults.
struct Faults<'a, 'b> {
    visitor: &'a mut See<'b>,
    tables: &'a Tables,
    used: &'a mut Used,
}

impl<'de> DeserializeSeed<'de> for Faults<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Faults<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of faults")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut faults: A) -> Result<(), A::Error> {
        while let Some(fault) = faults.next_element::<Fault>()? {
            self.used.add(&fault);
            (self.visitor)(self.tables, &fault);
        }
        Ok(())
    }
}

/// Number of rows that faults need in each table.
#[derive(Default)]
struct Used {
    threads: usize,
    mappings: usize,
    places: usize,
    blocks: usize,
    stacks: usize,
}

impl Used {
    fn add(&mut self, fault: &Fault) {
        fn want<I: Id>(rows: &mut usize, id: Option<I>) {
            *rows = id.map_or(*rows, |id| (*rows).max(id.index() + 1));
        }
        want(&mut self.threads, Some(fault.thread));
        want(&mut self.mappings, fault.mapping);
        want(&mut self.places, fault.code);
        want(&mut self.places, fault.data);
        want(&mut self.blocks, fault.block);
        want(&mut self.stacks, fault.stack);
    }

    /// The kind of a missing row that a fault refers to.
    fn broken(&self, tables: &Tables) -> Option<&'static str> {
        let wanted = [
            (self.threads, tables.threads.len(), "a thread"),
            (self.mappings, tables.mappings.len(), "a mapping"),
            (self.places, tables.places.len(), "a place"),
            (self.blocks, tables.blocks.len(), "a block"),
            (self.stacks, tables.stacks.len(), "a stack"),
        ];
        wanted.into_iter().find(|(wanted, rows, _)| wanted > rows).map(|(_, _, what)| what)
    }
}

/// The kind of a missing row that another row refers to.
fn broken_rows(tables: &Tables) -> Option<&'static str> {
    fn there<I: Id>(rows: usize, id: Option<I>) -> bool {
        id.is_none_or(|id| id.index() < rows)
    }
    let (processes, objects, symbols) = (tables.processes.len(), tables.objects.len(), tables.symbols.len());
    let (places, lines, stacks) = (tables.places.len(), tables.lines.len(), tables.stacks.len());
    // A caller comes before its callees, so that no path is endless.
    let earlier = |parent: Option<StackId>, id: StackId| parent.is_none_or(|parent| parent < id);
    let checks = [
        (tables.processes.iter().all(|(_, row)| there(processes, row.parent)), "a process"),
        (tables.threads.iter().all(|(_, row)| there(processes, Some(row.process))), "a process"),
        (tables.mappings.iter().all(|(_, row)| there(processes, Some(row.process))), "a process"),
        (tables.mappings.iter().all(|(_, row)| there(objects, row.object)), "an object"),
        (tables.symbols.iter().all(|(_, row)| there(objects, row.object)), "an object"),
        (tables.places.iter().all(|(_, row)| there(objects, row.object)), "an object"),
        (tables.places.iter().all(|(_, row)| there(symbols, row.symbol)), "a symbol"),
        (tables.places.iter().all(|(_, row)| there(lines, row.line)), "a line"),
        (tables.stacks.iter().all(|(id, row)| earlier(row.parent, id)), "a caller"),
        (tables.stacks.iter().all(|(_, row)| there(places, row.place)), "a place"),
        (tables.blocks.iter().all(|(_, row)| there(stacks, row.site)), "a stack"),
    ];
    checks.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
}
