//! From `profile.proto` to the model. Files of other programs are read too: ids may be any numbers, in any order.

use std::borrow::Cow;
use std::collections::HashMap;

use prost::Message;

use super::{ALLOCATOR, COMMAND, NO_STACK, PROCESS, WHOLE, schema};
use crate::{
    Builder, Frame, Function, FunctionId, Label, LabelValue, Location, LocationId, Mapping, MappingId, Period, Profile,
    Unit, ValueType,
};

/// Reads an (uncompressed) message; otherwise returns what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<Profile, String> {
    let message = schema::Profile::decode(bytes).map_err(|error| error.to_string())?;
    Reader { message: &message }.profile()
}

struct Reader<'m> {
    message: &'m schema::Profile,
}

impl Reader<'_> {
    fn text(&self, position: i64) -> Result<&str, String> {
        let text = usize::try_from(position).ok().and_then(|position| self.message.string_table.get(position));
        // In a message without a string table, all strings are empty.
        match text {
            Some(text) => Ok(text),
            None if position == 0 => Ok(""),
            None => Err(format!("there is no text number {position}")),
        }
    }

    fn of(&self, of: schema::ValueType) -> Result<ValueType, String> {
        let name = Cow::Owned(self.text(of.r#type)?.to_owned());
        Ok(ValueType { name, unit: Unit::from_name(self.text(of.unit)?) })
    }

    fn profile(&self) -> Result<Profile, String> {
        let message = self.message;
        let types: Vec<ValueType> = message.sample_type.iter().map(|&of| self.of(of)).collect::<Result<_, _>>()?;
        if types.is_empty() {
            return Err("it has no sample types".to_owned());
        }
        let chosen = self.text(message.default_sample_type)?;
        // pprof shows the last type where none is named.
        let shown = types.iter().position(|of| of.name == chosen).unwrap_or(types.len() - 1);
        let mut builder = Builder::new(types);
        let mappings = self.mappings(&mut builder)?;
        let functions = self.functions(&mut builder)?;
        let locations = self.locations(&mut builder, &mappings, &functions)?;
        for sample in &message.sample {
            self.sample(&mut builder, &locations, sample)?;
        }
        let profile = builder.profile_mut();
        profile.shown = shown;
        profile.time = u64::try_from(message.time_nanos).unwrap_or(0);
        profile.duration = u64::try_from(message.duration_nanos).unwrap_or(0);
        profile.period = message
            .period_type
            .map(|of| Ok::<_, String>(Period { of: self.of(of)?, value: message.period }))
            .transpose()?
            .filter(|period| period.value != 0);
        self.comments(profile)?;
        Ok(builder.finish())
    }

    fn comments(&self, profile: &mut Profile) -> Result<(), String> {
        for &comment in &self.message.comment {
            let line = self.text(comment)?;
            if let Some(command) = line.strip_prefix(COMMAND) {
                profile.command = command.split(' ').map(str::to_owned).collect();
            } else if let Some(pid) = line.strip_prefix(PROCESS).and_then(|pid| pid.parse().ok()) {
                profile.pid = pid;
            } else if let Some(name) = line.strip_prefix(ALLOCATOR) {
                profile.allocator = Some(name.to_owned());
            } else if let Some(whole) = line.strip_prefix(WHOLE).and_then(|whole| whole.parse().ok()) {
                profile.whole = Some(whole);
            } else {
                profile.notes.push(line.to_owned());
            }
        }
        Ok(())
    }

    fn mappings(&self, builder: &mut Builder) -> Result<HashMap<u64, MappingId>, String> {
        let rows = self.message.mapping.iter().map(|row| {
            let id = builder.mapping(Mapping {
                start: row.memory_start,
                end: row.memory_limit,
                offset: row.file_offset,
                file: self.text(row.filename)?.to_owned(),
                build_id: bytes(self.text(row.build_id)?),
            });
            Ok((row.id, id))
        });
        rows.collect()
    }

    /// `None` stands for the name of samples without a stack.
    fn functions(&self, builder: &mut Builder) -> Result<HashMap<u64, Option<FunctionId>>, String> {
        let rows = self.message.function.iter().map(|row| {
            let (name, symbol) = (self.text(row.name)?, self.text(row.system_name)?);
            if name == NO_STACK {
                return Ok((row.id, None));
            }
            let id = builder.function(Function {
                name: if name.is_empty() { symbol } else { name }.to_owned(),
                symbol: (!symbol.is_empty() && symbol != name).then(|| symbol.to_owned()),
                file: self.text(row.filename)?.to_owned(),
                line: u32::try_from(row.start_line).unwrap_or(0),
            });
            Ok((row.id, Some(id)))
        });
        rows.collect()
    }

    /// `None` stands for the location of samples without a stack.
    fn locations(
        &self,
        builder: &mut Builder,
        mappings: &HashMap<u64, MappingId>,
        functions: &HashMap<u64, Option<FunctionId>>,
    ) -> Result<HashMap<u64, Option<LocationId>>, String> {
        let rows = self.message.location.iter().map(|row| {
            let mapping = match row.mapping_id {
                0 => None,
                id => Some(*mappings.get(&id).ok_or_else(|| format!("there is no mapping {id}"))?),
            };
            let mut frames = Vec::with_capacity(row.line.len());
            for line in &row.line {
                let id = line.function_id;
                match functions.get(&id) {
                    Some(Some(function)) => {
                        frames.push(Frame { function: *function, line: u32::try_from(line.line).unwrap_or(0) });
                    }
                    Some(None) => return Ok((row.id, None)),
                    None => return Err(format!("there is no function {id}")),
                }
            }
            Ok((row.id, Some(builder.location(Location { address: row.address, mapping, frames }))))
        });
        rows.collect()
    }

    fn sample(
        &self,
        builder: &mut Builder,
        locations: &HashMap<u64, Option<LocationId>>,
        sample: &schema::Sample,
    ) -> Result<(), String> {
        let of = |id: &u64| locations.get(id).copied().ok_or_else(|| format!("there is no location {id}"));
        let inward: Vec<Option<LocationId>> = sample.location_id.iter().rev().map(of).collect::<Result<_, _>>()?;
        let types = builder.profile_mut().types.len();
        if sample.value.len() != types {
            return Err(format!("a sample has {} values instead of {types}", sample.value.len()));
        }
        let labels = sample.label.iter().map(|label| {
            let value = match label.str {
                0 => LabelValue::Number(label.num, Unit::from_name(self.text(label.num_unit)?)),
                text => LabelValue::Text(self.text(text)?.to_owned()),
            };
            Ok(Label { key: Cow::Owned(self.text(label.key)?.to_owned()), value })
        });
        let labels: Vec<Label> = labels.collect::<Result<_, String>>()?;
        let stack = builder.stack(inward.into_iter().flatten());
        builder.add(stack, labels, &sample.value);
        Ok(())
    }
}

/// The bytes of a build id. Some writers put other text there, which is dropped.
fn bytes(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
