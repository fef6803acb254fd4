//! Which processes are read.

use neap_launch::error::Error;
use neap_launch::sys::Identity;
use regex_lite::{Regex, RegexBuilder};

/// A filter of processes.
#[derive(Clone, Debug)]
pub struct Filter {
    pattern: Option<Regex>,
    /// Only processes of this user; none for root, who gets all.
    user: Option<u32>,
}

impl Filter {
    /// Processes of this user (all for root) with the pattern in their name or command line.
    pub fn new(pattern: Option<&str>) -> Result<Filter, Error> {
        let build = |text: &str| RegexBuilder::new(text).size_limit(1 << 20).build();
        let pattern = pattern.map(build).transpose().map_err(|error| {
            Error::failed(format!("the pattern is not a regular expression: {error}"))
                .remedy("names and words stand for themselves; write a dot, a bracket or a star as \\. \\( \\*")
        })?;
        let own = Identity::current().euid;
        Ok(Filter { pattern, user: (own != 0).then_some(own) })
    }

    /// Whether the filter accepts processes of a user.
    pub fn takes_user(&self, user: u32) -> bool {
        self.user.is_none_or(|own| own == user)
    }

    /// Whether it accepts a process; `cmdline` is the content of `/proc/PID/cmdline`.
    pub fn takes(&self, name: &str, cmdline: &[u8]) -> bool {
        let Some(pattern) = &self.pattern else { return true };
        let line: Vec<u8> = cmdline.iter().map(|&byte| if byte == 0 { b' ' } else { byte }).collect();
        pattern.is_match(name) || pattern.is_match(String::from_utf8_lossy(&line).trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches patterns that match only the kernel's short name, and errors without a remedy.
    #[test]
    fn patterns() {
        let filter = Filter::new(Some("^python.* serve\\.py$")).expect("a pattern");
        assert!(filter.takes("python3", b"python3\0serve.py\0") && !filter.takes("python3", b"python3\0other.py\0"));
        assert!(Filter::new(Some("^redis")).expect("a pattern").takes("redis-server", b"/usr/bin/redis-server\0"));
        assert!(Filter::new(Some("(")).expect_err("no pattern").to_string().contains("hint"));
    }
}
