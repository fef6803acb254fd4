//! stub for the moment
use crate::{Profile, format::Options};
use std::io::{self, Write};
pub fn html(_profiles: &[&Profile], _options: Options, _out: &mut dyn Write) -> io::Result<()> {
    Ok(())
}
