//! Real programs as whole processes: their arguments, input and Debian package.
//!
//! All work is deterministic, so that a program's output is the same under every allocator.

use std::fmt::Write;

use crate::sources::{self, File};

/// One program with its work.
pub struct Real {
    /// The case's name.
    pub name: &'static str,
    /// Names of the program, of which the first that is found is used.
    pub programs: &'static [&'static str],
    /// Debian's package.
    pub package: &'static str,
    /// What it reads.
    pub input: Input,
    /// Its arguments; `{input}` stands for the input's path, `{count}` for the amount of work, `{program}` for the
    /// program's path.
    pub arguments: &'static [&'static str],
    /// Amount of work of a full run: 0.5 to 2 s under glibc.
    pub count: u32,
    /// The input is a shell script of the lab, which starts the program; `/bin/sh` runs it.
    pub shell: bool,
    /// Further environment.
    pub env: &'static [(&'static str, &'static str)],
}

/// What a program reads.
pub enum Input {
    /// A script of `lab/programs`.
    Script(&'static File),
    /// A file of this name, made for an amount of work.
    Made(&'static str, fn(u32) -> String),
}

impl Input {
    /// Path below the folder of sources, and text.
    pub fn file(&self, count: u32) -> (String, String) {
        match self {
            Input::Script((path, text)) => ((*path).into(), (*text).into()),
            Input::Made(name, make) => (format!("programs/{count}/{name}"), make(count)),
        }
    }
}

/// Defaults: a Python script with an amount of work.
const PLAIN: Real = Real {
    name: "",
    programs: &[],
    package: "",
    input: Input::Script(&sources::PYTHON_SCRIPT),
    arguments: &["{input}", "{count}"],
    count: 0,
    shell: false,
    env: &[],
};

/// All programs, in the order of the tables.
pub static REALS: [Real; 12] = [
    Real { name: "python3", programs: &["python3"], package: "python3", count: 60_000, ..PLAIN },
    // Without Python's own allocator for small objects.
    Real {
        name: "python3, PYTHONMALLOC=malloc",
        programs: &["python3"],
        package: "python3",
        count: 60_000,
        env: &[("PYTHONMALLOC", "malloc")],
        ..PLAIN
    },
    Real {
        name: "gcc -O2",
        programs: &["gcc"],
        package: "gcc",
        input: Input::Made("functions.c", c_source),
        arguments: &["-O2", "-S", "-o", "-", "{input}"],
        count: 100,
        ..PLAIN
    },
    Real {
        name: "rustc -O",
        programs: &["rustc"],
        package: "rustc",
        input: Input::Made("items.rs", rust_source),
        arguments: &["-O", "--edition", "2021", "--emit=asm", "-C", "codegen-units=1", "-o", "-", "{input}"],
        count: 24,
        ..PLAIN
    },
    Real {
        name: "redis-server",
        programs: &["redis-server"],
        package: "redis",
        input: Input::Script(&sources::REDIS_SCRIPT),
        arguments: &["{input}", "{program}", "{count}"],
        count: 40_000,
        shell: true,
        ..PLAIN
    },
    Real {
        name: "sqlite3",
        programs: &["sqlite3"],
        package: "sqlite3",
        input: Input::Made("rows.sql", |count| sources::SQL_SCRIPT.1.replace("COUNT", &count.to_string())),
        arguments: &[":memory:", ".read \"{input}\""],
        count: 200_000,
        ..PLAIN
    },
    Real {
        name: "lua",
        programs: &["lua", "lua5.4", "lua5.3"],
        package: "lua5.4",
        input: Input::Script(&sources::LUA_SCRIPT),
        count: 150_000,
        ..PLAIN
    },
    Real {
        name: "ruby",
        programs: &["ruby"],
        package: "ruby",
        input: Input::Script(&sources::RUBY_SCRIPT),
        count: 100_000,
        ..PLAIN
    },
    Real {
        name: "jq",
        programs: &["jq"],
        package: "jq",
        input: Input::Made("items.json", json),
        arguments: &[
            "-c",
            "map({id, words: (.name | split(\" \")), tags}) | group_by(.tags[0]) | map([length, (map(.id) | add)])",
            "{input}",
        ],
        count: 40_000,
        ..PLAIN
    },
    Real {
        name: "z3",
        programs: &["z3"],
        package: "z3",
        input: Input::Made("factors.smt2", factors),
        arguments: &["{input}"],
        count: 4,
        ..PLAIN
    },
    Real {
        name: "node",
        programs: &["node", "nodejs"],
        package: "nodejs",
        input: Input::Script(&sources::NODE_SCRIPT),
        count: 20_000,
        ..PLAIN
    },
    Real {
        name: "perl",
        programs: &["perl"],
        package: "perl",
        input: Input::Script(&sources::PERL_SCRIPT),
        count: 120_000,
        ..PLAIN
    },
];

/// The program of a case.
pub fn named(name: &str) -> Option<&'static Real> {
    REALS.iter().find(|real| real.name == name)
}

/// Functions with loops and branches, which one function calls.
fn c_source(count: u32) -> String {
    let mut text = String::from("#include <stdint.h>\ntypedef struct { uint64_t a, b, c; double d; } item_t;\n");
    for i in 0..count {
        let (room, shift) = (4 + i % 13, 1 + i % 31);
        let _ = write!(
            text,
            "static uint64_t f{i}(const item_t *x, uint64_t n) {{
  uint64_t s = {i}u, t[{room}] = {{{i}u}};
  for (uint64_t i = 0; i < n; i++) {{
    switch ((x[i].a + {i}u) % 5) {{
      case 0: s += x[i].b * {i}u; break;
      case 1: s ^= x[i].c >> {shift}; break;
      case 2: t[i % {room}] += s; break;
      case 3: s += (uint64_t)(x[i].d * {i}.5); break;
      default: s = s << {shift} | s >> (64 - {shift});
    }}
  }}
  for (int i = 0; i < {room}; i++) s += t[i];
  return s;
}}
"
        );
    }
    text += "uint64_t all(const item_t *x, uint64_t n) {\n  uint64_t s = 0;\n";
    (0..count).for_each(|i| text += &format!("  s += f{i}(x, n);\n"));
    text + "  return s;\n}\n"
}

/// Types with derived traits, and functions over their collections.
fn rust_source(count: u32) -> String {
    let mut text = String::from("#![crate_type = \"lib\"]\n");
    for i in 0..count {
        let bits = 8 << (i % 4);
        let _ = write!(
            text,
            "#[derive(Clone, Debug, PartialEq)]
pub struct Item{i} {{ name: String, values: Vec<u{bits}>, next: Option<Box<Item{i}>> }}
pub fn work{i}(items: &[Item{i}]) -> std::collections::BTreeMap<String, u64> {{
    let mut map = std::collections::BTreeMap::new();
    for item in items.iter().filter(|item| item.values.len() > {i}) {{
        *map.entry(format!(\"{{}} {i}\", item.name)).or_insert(0) += item.values.iter().map(|&v| v as u64).sum::<u64>();
    }}
    map
}}
"
        );
    }
    text
}

/// A list of objects with strings and lists.
fn json(count: u32) -> String {
    let mut text = String::from("[");
    for i in 0..u64::from(count) {
        let comma = if i == 0 { "" } else { "," };
        let (name, tag, part) = (i * 7919 % 100_003, i % 97, i % 360);
        let _ = writeln!(
            text,
            "{comma}{{\"id\":{i},\"name\":\"name {name}\",\"tags\":[\"tag {tag}\",\"tag {}\"],\"point\":[{part}.5,{part}]}}",
            i * 3 % 97
        );
    }
    text + "]\n"
}

/// Primes; z3 factors the products of neighbours.
const PRIMES: [u64; 9] = [65_521, 65_519, 65_497, 65_479, 65_449, 65_447, 65_437, 65_423, 65_419];

/// Questions in bit vectors: which two numbers have this product?
fn factors(count: u32) -> String {
    let mut text =
        String::from("(set-logic QF_BV)\n(declare-const a (_ BitVec 32))\n(declare-const b (_ BitVec 32))\n");
    for pair in PRIMES.windows(2).take(count as usize) {
        let _ = write!(
            text,
            "(push)
(assert (= (bvmul a b) (_ bv{} 32)))
(assert (bvult #x00000001 a))
(assert (bvule a b))
(assert (bvult b #x00010000))
(check-sat)
(get-value (a b))
(pop)
",
            pair[0] * pair[1]
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch an input that differs from call to call, one that does not grow with the work, and two with one name.
    #[test]
    fn inputs_are_deterministic() {
        for real in &REALS {
            assert!(!real.package.is_empty() && !real.programs.is_empty() && real.count > 0, "{}", real.name);
            assert_eq!(REALS.iter().filter(|other| other.name == real.name).count(), 1, "{}", real.name);
            let Input::Made(..) = real.input else {
                assert!(real.arguments.contains(&"{count}"), "{}: always the same work", real.name);
                continue;
            };
            assert_eq!(real.input.file(real.count), real.input.file(real.count), "{}", real.name);
            assert_ne!(real.input.file(real.count), real.input.file(real.count / 2), "{}", real.name);
        }
    }
}
