//! The profile as JSON: the model as it is, after the name and the version of the schema (`docs/profile.md`).

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::Profile;

/// The value of `schema` in each file.
pub const SCHEMA: &str = "neap-profile";
/// The value of `version`. It changes when an older reader would misunderstand the file.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct Written<'p> {
    schema: &'static str,
    version: u32,
    #[serde(flatten)]
    profile: &'p Profile,
}

/// Identifies a file before the rest is read.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    schema: String,
    #[serde(default)]
    version: u32,
    /// What a trace of `neap pagein` begins with.
    neap_trace: Option<u32>,
}

/// Writes a profile as JSON.
pub fn json(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Written { schema: SCHEMA, version: VERSION, profile })?;
    writeln!(out)
}

/// Reads what [`json`] wrote; otherwise returns why not.
pub fn read_json(bytes: &[u8]) -> Result<Profile, String> {
    let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match (head.schema.as_str(), head.version) {
        (SCHEMA, VERSION) => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        (SCHEMA, version) => Err(format!("it has version {version} of the schema, and this neap reads {VERSION}")),
        _ if head.neap_trace.is_some() => Err("it is a trace: neap pagein reads it".to_owned()),
        _ => Err("it is JSON, but no profile of neap".to_owned()),
    }
}
