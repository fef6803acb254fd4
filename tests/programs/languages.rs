//! Interpreters and compilers.

use std::path::Path;
use std::time::Duration;

use neap_tests::{Case, Outcome, Run, Stop, program, suite};

use crate::{Workspace, case, same_as_plain};

/// Python's test module, an optional pattern of its tests, and what it would catch.
const PYTHON_TESTS: &[(&str, &str, &str)] = &[
    ("test_list", "", "lists that grow in place over the wrong bytes"),
    ("test_dict", "", "tables that are resized during use"),
    ("test_unicode", "", "strings of all widths that are cut short"),
    ("test_threading", "", "threads, fork in threads, and daemon threads at exit"),
    ("test_multiprocessing_fork", "*WithProcessesTestProcess.*", "forked workers that hang"),
    ("test_multiprocessing_fork", "*WithProcessesTestQueue*", "queues between forked workers that hang"),
    ("test_multiprocessing_fork", "*WithProcessesTestPool.test_map*", "pools of workers that hang"),
    ("test_multiprocessing_main_handling", "", "spawned workers that fail to start"),
    ("test_subprocess", "", "vfork or fork and exec that fail in the child"),
    ("test_mmap", "", "mappings of the program that collide with the heap"),
    ("test_ctypes", "", "blocks that cross between C libraries"),
];

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = PYTHON_TESTS
        .iter()
        .map(|(module, pattern, catches)| {
            let part: String = pattern.chars().filter(|c| c.is_alphanumeric()).collect();
            let name = ["python", module, &part].join("::");
            Case::new(name.trim_end_matches(':'), catches, move || python_test(module, pattern))
        })
        .collect();
    cases.extend([
        case("perl", "hashes and strings that grow by realloc", perl),
        case("node", "V8, worker threads and native buffers on one heap", node),
        case("java::version", "a JVM that does not start", java_version),
        case("java::program", "threads, direct buffers and zlib inside a JVM", java_program),
        case("gcc", "an object file that differs from that of a plain run", gcc),
        case("g++", "a template-heavy compile that crashes or differs", gxx),
        case("cargo", "rustc, which contains a second allocator, failing", cargo),
    ]);
    cases
}

/// One of Python's own test modules, with every object of Python on malloc.
fn python_test(module: &str, pattern: &str) -> Outcome {
    let python = program("/usr/bin/python3")?;
    let found = Run::new(&python)
        .args(["-c", "import sys, importlib.util as u; sys.exit(not u.find_spec('test.' + sys.argv[1]))", module])
        .plain()
        .run()?;
    if !found.status.success() {
        return Err(Stop::Skip(format!("Python has no module test.{module} (tests/setup.sh installs it)")));
    }
    let space = Workspace::new()?;
    let env = program("env")?;
    let tests = || {
        // Shells start background jobs with SIGINT ignored, which makes the tests of interrupts fail. Some tests depend
        // on timing: -w repeats those that fail, and a note reports it.
        let run = Run::new(&env)
            .arg("--default-signal=INT,QUIT")
            .arg(&python)
            .args(["-m", "test", "-v", "-w", module])
            .env("PYTHONMALLOC", "malloc")
            .dir(space.path())
            .timeout(Duration::from_secs(300));
        if pattern.is_empty() { run } else { run.args(["-m", pattern]) }
    };
    let mut done = tests().run()?.no_complaint()?;
    if !done.status.success() {
        // On a machine that is too busy, tests of timing fail without the library as well.
        let plain = tests().plain().run()?;
        if !plain.status.success() {
            return Err(Stop::Skip(format!("test.{module} fails without the library too")));
        }
        suite::note(format!("python {module} failed once, and once more counts"));
        done = tests().run()?.no_complaint()?;
    }
    let done = done.success()?.contains("Tests result: ")?.contains("SUCCESS")?;
    if done.stdout.contains("FAILURE then SUCCESS") {
        let failed = done.stdout.lines().find(|line| line.starts_with("FAIL:") || line.starts_with("ERROR:"));
        suite::note(format!("python {module} passed only on the second try: {}", failed.unwrap_or("no test named")));
    }
    let ran = done
        .stderr
        .lines()
        .chain(done.stdout.lines())
        .filter_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok())
        .sum::<u32>();
    if ran == 0 {
        return Err(done.fail("no test of the module was run"));
    }
    Ok(())
}

const PERL: &str = r#"
use strict; use warnings;
my (%count, @lines, $text);
for my $i (1 .. 300000) { $count{"key" . ($i * 7919 % 50021)} .= chr(65 + $i % 26); }
push @lines, "$_=" . length($count{$_}) for sort keys %count;
$text = join ",", @lines;
my $n = () = $text =~ /key\d*7=(\d+)/g;
$text =~ s/key(\d+)/<$1>/g;
my @sorted = sort { $b <=> $a } map { ($_ * 48271) % 65537 } 1 .. 100000;
print length($text), " $n $sorted[0] $sorted[-1]\n";
my $pid = fork(); if (!$pid) { my @more = map { [ $_, "x" x $_ ] } 1 .. 2000; exit(@more == 2000 ? 0 : 1); }
waitpid($pid, 0); print "child $?\n";
"#;

fn perl() -> Outcome {
    let perl = program("perl")?;
    same_as_plain(|| Run::new(&perl).arg("-").input(PERL))?.contains("child 0")?;
    Ok(())
}

const NODE: &str = r#"
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib'), crypto = require('crypto');
function work(n) {
  const parts = [];
  for (let i = 0; i < 300; i++) parts.push(Buffer.alloc(1 + (i * 7919) % 90000, i + n));
  const all = Buffer.concat(parts);
  const back = zlib.gunzipSync(zlib.gzipSync(all));
  if (!back.equals(all)) throw new Error('gzip');
  const map = new Map();
  for (let i = 0; i < 200000; i++) map.set('k' + i, { i, s: 'v'.repeat(i % 30) });
  return crypto.createHash('sha256').update(back).digest('hex') + ' ' + JSON.stringify([...map.values()]).length;
}
if (isMainThread) {
  const runs = [1, 2, 3].map(n => new Promise((ok, no) => {
    const w = new Worker(__filename, { workerData: n });
    w.on('message', ok); w.on('error', no);
  }));
  Promise.all(runs).then(r => console.log([...r, work(0)].join('\n')));
} else parentPort.postMessage(work(workerData));
"#;

fn node() -> Outcome {
    let node = program("node")?;
    let space = Workspace::new()?;
    let script = space.write("work.js", NODE)?;
    same_as_plain(|| Run::new(&node).arg(&script))?;
    Ok(())
}

fn java_version() -> Outcome {
    let done = Run::new(program("java")?).arg("-version").run()?;
    done.success()?.contains("version")?.no_complaint()?;
    Ok(())
}

const JAVA: &str = r#"
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import java.util.zip.*;

public class Work {
    static long crc(int seed) throws Exception {
        ByteBuffer direct = ByteBuffer.allocateDirect(3_000_000);
        Random random = new Random(seed);
        while (direct.hasRemaining()) direct.put((byte) random.nextInt(20));
        direct.flip();
        byte[] plain = new byte[direct.remaining()], packed = new byte[plain.length + 1000], back = new byte[plain.length];
        direct.get(plain);
        Deflater deflater = new Deflater();
        deflater.setInput(plain);
        deflater.finish();
        int n = deflater.deflate(packed);
        deflater.end();
        Inflater inflater = new Inflater();
        inflater.setInput(packed, 0, n);
        inflater.inflate(back);
        inflater.end();
        if (!Arrays.equals(plain, back)) throw new Exception("inflate");
        CRC32 crc = new CRC32();
        crc.update(back);
        return crc.getValue();
    }
    public static void main(String[] args) throws Exception {
        List<Long> all = IntStream.range(0, 16).parallel().mapToObj(i -> {
            try { return crc(i); } catch (Exception e) { throw new RuntimeException(e); }
        }).collect(Collectors.toList());
        System.out.println(all);
        Map<String, Integer> counts = new TreeMap<>();
        for (int i = 0; i < 500_000; i++) counts.merge("key" + i % 1009, i % 7, Integer::sum);
        System.out.println(counts.hashCode());
    }
}
"#;

fn java_program() -> Outcome {
    let (java, javac) = (program("java")?, program("javac")?);
    let space = Workspace::new()?;
    let source = space.write("Work.java", JAVA)?;
    Run::new(javac).arg("-d").arg(space.path()).arg(source).run()?.success()?.no_complaint()?;
    same_as_plain(|| Run::new(&java).arg("-cp").arg(space.path()).args(["-Xmx512m", "Work"]))?;
    Ok(())
}

/// Compiles `source` with and without the library: the object files must be the same; then links and runs it.
fn compile_twice(compiler: &str, source: &Path, flags: &[&str], output: &str) -> Outcome {
    let compiler = program(compiler)?;
    let object = |name: &str| source.with_file_name(name);
    let run = |out: &Path| {
        let run = Run::new(&compiler).args(flags).args(["-O2", "-c"]).arg(source).arg("-o").arg(out);
        run.timeout(Duration::from_secs(300))
    };
    let (with, without) = (object("with.o"), object("without.o"));
    run(&with).run()?.success()?.no_complaint()?;
    run(&without).plain().run()?.success()?;
    if std::fs::read(&with)? != std::fs::read(&without)? {
        return Err(Stop::Fail("the object file differs from that of a plain compile".into()));
    }
    let program = object("program");
    Run::new(&compiler).arg(&with).arg("-o").arg(&program).run()?.success()?.no_complaint()?;
    Run::new(&program).run()?.success()?.contains(output)?.no_complaint()?;
    Ok(())
}

/// A C file long enough to keep the compiler busy: functions that call each other.
fn gcc() -> Outcome {
    let mut text =
        String::from("#include <stdio.h>\n#include <stdlib.h>\nstatic unsigned f0(unsigned x) { return x + 1; }\n");
    for i in 1..1500 {
        let before = i - 1;
        text.push_str(&format!(
            "static unsigned f{i}(unsigned x) {{ unsigned *p = malloc({i} * 4), s = 0; for (unsigned k = 0; k < {i}; k++) \
             p[k] = k * x; for (unsigned k = 0; k < {i}; k += 7) s ^= p[k]; free(p); return f{before}(s % 1000 + x % 3); }}\n"
        ));
    }
    text.push_str("int main(void) { printf(\"result %u\\n\", f1499(5) > 0); return 0; }\n");
    let space = Workspace::new()?;
    compile_twice("gcc", &space.write("many.c", &text)?, &[], "result 1")
}

const TEMPLATES: &str = r#"
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Node { using L = std::tuple<std::map<int, std::vector<Node<N - 1>>>, Node<N - 1>>; L value; };
template <> struct Node<0> { int value; };
template <int... I> int sum(std::integer_sequence<int, I...>) { return (0 + ... + I); }
template <class... T> struct All { std::variant<T...> v; std::unordered_map<std::string, std::shared_ptr<std::variant<T...>>> m; };
int main() {
    Node<25> deep;
    All<int, double, std::string, std::vector<int>, std::map<int, std::string>> all;
    all.m["a"] = std::make_shared<std::variant<int, double, std::string, std::vector<int>, std::map<int, std::string>>>(7);
    std::regex r("(a|b)*c+[0-9]{2,3}");
    std::cout << sum(std::make_integer_sequence<int, 500>()) << ' ' << std::regex_match("ababcc12", r)
              << ' ' << (sizeof deep > 25) << ' ' << std::get<int>(*all.m["a"]) << '\n';
}
"#;

fn gxx() -> Outcome {
    let space = Workspace::new()?;
    let source = space.write("templates.cc", TEMPLATES)?;
    compile_twice("g++", &source, &["-std=c++17"], "124750 1 1 7")
}

const CRATE_MAIN: &str = r#"
use std::collections::{BTreeMap, HashMap};
mod shapes;
fn main() {
    let handles: Vec<_> = (0..4u64).map(|n| std::thread::spawn(move || {
        let mut map: HashMap<String, Vec<u64>> = HashMap::new();
        for i in 0..20_000 { map.entry(format!("key{}", i % 97)).or_default().push(i * n); }
        map.into_iter().collect::<BTreeMap<_, _>>().values().flatten().sum::<u64>()
    })).collect();
    let total: u64 = handles.into_iter().map(|h| h.join().unwrap()).sum();
    println!("total {total} {:.1}", shapes::all().iter().map(|s| s.area()).sum::<f64>());
}
"#;
const CRATE_SHAPES: &str = r#"
#[derive(Clone, Debug, PartialEq)]
pub enum Shape { Square(f64), Rect { w: f64, h: f64 } }
impl Shape { pub fn area(&self) -> f64 { match self { Shape::Square(a) => a * a, Shape::Rect { w, h } => w * h } } }
pub fn all() -> Vec<Shape> { vec![Shape::Square(2.0), Shape::Rect { w: 3.0, h: 4.0 }] }
#[test] fn areas() { assert_eq!(all()[0].area(), 4.0); }
"#;

fn cargo() -> Outcome {
    let cargo = program("cargo")?;
    let space = Workspace::new()?;
    space.write("Cargo.toml", "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n")?;
    space.write("src/main.rs", CRATE_MAIN)?;
    space.write("src/shapes.rs", CRATE_SHAPES)?;
    let run = |args: &[&str]| {
        let mut run = Run::new(&cargo).args(args).arg("--offline").dir(space.path());
        for name in ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER"] {
            run = run.env_remove(name);
        }
        run.timeout(Duration::from_secs(300)).run()?.success()?.no_complaint()
    };
    run(&["build", "--release"])?;
    run(&["run", "--release"])?.contains("total 1199940000 16.0")?;
    run(&["test"])?.contains("1 passed")?;
    Ok(())
}
