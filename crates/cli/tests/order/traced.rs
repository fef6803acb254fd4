//! Programs whose functions are known, and traces of them.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{Neap, compile, skip, stderr};

const KNOWN: &str = include_str!("known.c");

/// `known.c`, in a test's directory. None where there is nothing to test.
pub fn known(neap: &Neap, test: &str, flags: &[&str]) -> Option<PathBuf> {
    let program = cfg!(target_arch = "x86_64")
        .then(|| compile(neap.dir.path(), "known", KNOWN, &[&["-O1", "-pthread"], flags].concat()))
        .flatten();
    if program.is_none() {
        skip(test, "needs x86-64 and a C compiler that can make such programs");
    }
    program
}

/// A traced program, and what was recorded.
pub struct Traced {
    /// What neap and the program did.
    pub output: Output,
    /// The trace; null where there is none.
    pub trace: Value,
}

impl Traced {
    pub fn new<S: AsRef<OsStr>>(neap: &Neap, options: &[&str], command: &[S]) -> Self {
        let file = neap.path("trace");
        let mut run = neap.command(["order", "trace", "-o"]);
        let output = run.arg(&file).args(options).arg("--").args(command).output().expect("neap starts");
        let trace = fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { output, trace: trace.unwrap_or_default() }
    }

    /// The functions, in order.
    pub fn functions(&self) -> Vec<&str> {
        let functions = self.trace["functions"].as_array().map(Vec::as_slice).unwrap_or_default();
        functions.iter().filter_map(|function| function["name"].as_str()).collect()
    }

    /// Those of the program's own, in order: the C library's start and end are left out.
    pub fn own(&self) -> Vec<&str> {
        self.functions().into_iter().filter(|name| !name.starts_with('_')).collect()
    }

    /// Catches a program that behaves in another way when it is traced.
    pub fn is_like(&self, program: &mut Command) {
        let alone = program.output().expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&self.output.stdout), text(&alone.stdout), "{}", stderr(&self.output));
        assert_eq!(self.output.status.code(), alone.status.code(), "{}", stderr(&self.output));
        assert_eq!(self.output.status.signal(), alone.status.signal());
    }
}
