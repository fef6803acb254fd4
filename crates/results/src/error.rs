//! Why a kept run cannot be read.

use std::fmt;

/// The version of the schema.
pub const SCHEMA: u64 = 1;

/// Why a text is not a run that this version reads. Each message names the cause and the remedy.
#[derive(Debug)]
pub enum ReadError {
    /// The text is not JSON, or lacks what the schema requires.
    Json(serde_json::Error),
    /// It is JSON without a member `schema`, so it is not a run.
    NoSchema,
    /// It was written by a newer neap.
    Newer {
        /// The version of its schema.
        found: u64,
        /// The neap that wrote it, where it says so.
        neap: Option<String>,
    },
    /// Its schema never existed.
    Unknown(String),
    /// A line of the rows is damaged.
    Csv(csv::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Json(error) => write!(f, "the run is damaged: {error}"),
            ReadError::NoSchema => write!(f, "this is not a run of `neap lab`: it has no member \"schema\""),
            ReadError::Newer { found, neap } => {
                let writer = neap.as_deref().map_or(String::new(), |neap| format!(" {neap}"));
                write!(
                    f,
                    "the run has schema {found}, written by neap{writer}; this neap reads schema {SCHEMA}: \
                     show it with a newer neap"
                )
            }
            ReadError::Unknown(found) => write!(f, "the run has schema {found}, which does not exist"),
            ReadError::Csv(error) => write!(f, "the rows are damaged: {error}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Json(error) => Some(error),
            ReadError::Csv(error) => Some(error),
            _ => None,
        }
    }
}
