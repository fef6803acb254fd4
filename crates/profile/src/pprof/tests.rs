//! Tests of the format against the public schema.

use std::io::Read;

use prost::Message;

use super::{Symbols, schema, write};
use crate::model::Location;
use crate::testing::profile;
use crate::{Profile, pprof, read};

fn written(profile: &Profile, symbols: Symbols) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(profile, symbols, &mut bytes).expect("memory takes everything");
    bytes
}

/// Catches field numbers, ids and strings that differ from the public schema.
#[test]
fn a_message_of_the_public_schema() {
    let bytes = written(&profile(), Symbols::Named);
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).expect("gzip");
    let message = schema::Profile::decode(plain.as_slice()).expect("a message");
    let text = |at: i64| message.string_table[usize::try_from(at).expect("a position")].as_str();
    let types: Vec<_> = message.sample_type.iter().map(|of| (text(of.r#type), text(of.unit))).collect();
    assert_eq!(
        types,
        [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")]
    );
    let period = message.period_type.expect("a period");
    assert_eq!((text(period.r#type), text(period.unit), message.period), ("space", "bytes", 524_288));
    assert_eq!((text(0), text(message.default_sample_type)), ("", "inuse_space"));
    assert_eq!(text(message.mapping[0].build_id), "abcdef0123456789");
    let sample = &message.sample[0];
    let names: Vec<&str> = sample
        .location_id
        .iter()
        .flat_map(|id| &message.location.iter().find(|location| location.id == *id).expect("an id").line)
        .map(|line| text(message.function.iter().find(|of| of.id == line.function_id).expect("an id").name))
        .collect();
    assert_eq!(names, ["malloc", "leaky", "main"]);
    assert_eq!(sample.value, [3, 300, 2, 200]);
}

/// Catches data that is lost in the format: all but the ids must be the same.
#[test]
fn what_is_written_is_read() {
    let before = profile();
    let after = read(&written(&before, Symbols::Named)).expect("it is valid");
    assert!(after.is_valid());
    assert_eq!(serde_json::to_value(&after).expect("plain"), serde_json::to_value(&before).expect("plain"));
}

/// Catches names that remain in a file of addresses, and addresses that do not.
#[test]
fn without_names() {
    let message = pprof::message(&profile(), Symbols::Addresses);
    assert!(message.location.iter().filter(|row| row.address != 0).all(|row| row.line.is_empty()));
    assert!(message.mapping.iter().all(|row| !row.has_functions && row.filename != 0));
    assert!(!message.string_table.iter().any(|text| text == "leaky"));
    assert_eq!(message.location[0].address, 0x1010);
    // Frames outside of files keep their names. Numbers have no gaps, because readers use the following ones for
    // themselves.
    let mut profile = profile();
    let is_malloc = |location: &Location| {
        location.frames.iter().any(|frame| profile.functions.get(frame.function).is_some_and(|of| of.name == "malloc"))
    };
    let (id, _) = profile.locations.iter().find(|(_, location)| is_malloc(location)).expect("a location");
    profile.locations[id].mapping = None;
    let message = pprof::message(&profile, Symbols::Addresses);
    let names: Vec<&str> =
        message.function.iter().map(|row| message.string_table[row.name as usize].as_str()).collect();
    assert_eq!(names, ["malloc", pprof::NO_STACK]);
    assert!(message.function.iter().map(|row| row.id).eq(1..=2));
    let named = message.location.iter().find(|row| !row.line.is_empty()).expect("a location with a name");
    assert_eq!(named.line[0].function_id, 1);
    assert!(read(&written(&profile, Symbols::Addresses)).expect("it is valid").is_valid());
}

/// Catches damaged files that are accepted, or that fail without a reason.
#[test]
fn damaged_files() {
    let message = pprof::message(&profile(), Symbols::Named);
    let damaged = |change: &dyn Fn(&mut schema::Profile)| {
        let mut message = message.clone();
        change(&mut message);
        pprof::read(&message.encode_to_vec()).expect_err("it is damaged")
    };
    assert_eq!(damaged(&|message| message.sample[0].location_id[0] = 99), "there is no location 99");
    assert_eq!(damaged(&|message| message.sample[0].value.truncate(1)), "a sample has 1 values instead of 4");
    assert_eq!(damaged(&|message| message.function[0].name = -1), "there is no text number -1");
    assert_eq!(damaged(&|message| message.location[0].mapping_id = 7), "there is no mapping 7");
    assert_eq!(damaged(&|message| message.sample_type.clear()), "it has no sample types");
    let bytes = message.encode_to_vec();
    for end in 0..bytes.len() {
        // A message that is cut between fields is valid.
        if let Ok(profile) = pprof::read(&bytes[..end]) {
            assert!(profile.is_valid(), "{end}");
        }
    }
}
