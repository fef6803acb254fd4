//! Runtimes with their own allocator or collector, in one table: how they are recognised, which mappings belong to
//! them, and which of their commands shows more.

use crate::seen::{Mapping, Seen};

/// A runtime.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// Its name in accounts.
    pub name: &'static str,
    /// Prefixes of the libraries and programs by which it is recognised.
    files: &'static [&'static str],
    /// Which nameless mappings are its heap.
    heap: fn(&Mapping, Option<&Mapping>) -> bool,
    /// The runtime's own command for more; `PID` stands for the process.
    pub command: &'static str,
    /// Advice on that command or on a setting.
    pub advice: &'static str,
    /// Its memory from malloc, if its objects are in another heap.
    pub native: Option<Native>,
}

/// Runtimes whose memory is at addresses that the kernel does not choose by itself, so that no other code has any there.
const AT_OWN_ADDRESSES: [&str; 3] = ["Go", "SBCL", "GHC"];

/// Blocks of malloc that belong to a runtime with another heap.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    /// What they are.
    pub holds: &'static str,
    /// The command that shows more.
    pub command: &'static str,
    /// The option without which it shows nothing; empty if it always shows something.
    option: &'static str,
    /// A setting that limits them, and what it does.
    pub bound: Option<(&'static str, &'static str)>,
}

impl Native {
    /// Whether the program was started so that the command shows something.
    pub fn is_tracked(&self, seen: &Seen) -> bool {
        let on = |text: &String| text.contains(self.option) && !text.contains(&format!("{}off", self.option));
        self.option.is_empty() || seen.command.iter().chain(&seen.settings).any(on)
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The known runtimes.
const TABLE: &[Runtime] = &[
    Runtime {
        name: "JVM",
        files: &["libjvm.so"],
        heap: jvm,
        command: "jcmd PID GC.heap_info",
        advice: "-Xmx bounds the heap; with G1 and Shenandoah a collection (jcmd GC.run) gives back what is free, with \
                 ZGC -XX:ZUncommitDelay does, Serial and Parallel keep it",
        native: Some(Native {
            holds: "direct buffers, classes, compiled code, libraries of its own",
            command: "jcmd PID VM.native_memory summary",
            option: "-XX:NativeMemoryTracking=",
            bound: Some((
                "-XX:MaxDirectMemorySize=SIZE",
                "Start it with a bound for direct buffers, and with -XX:NativeMemoryTracking=summary to see the rest",
            )),
        }),
    },
    Runtime {
        name: "V8",
        files: &["node", "libnode.so"],
        heap: aligned_256k,
        command: "kill -USR1 PID, then a heap snapshot in chrome://inspect",
        advice: "--max-old-space-size=MIB bounds the heap of node",
        native: Some(Native {
            holds: "Buffers, ArrayBuffers, add-ons",
            command: "process.memoryUsage().arrayBuffers (inside the program)",
            option: "",
            bound: None,
        }),
    },
    // SIGUSR1 ends all of these.
    Runtime {
        name: "V8",
        files: &["chrome", "chromium", "electron", "deno", "libv8.so"],
        heap: aligned_256k,
        command: "a heap snapshot in the developer tools (--remote-debugging-port, --inspect)",
        advice: "--js-flags=--max-old-space-size=MIB bounds a heap",
        native: None,
    },
    Runtime {
        name: "Go",
        files: &[],
        heap: go,
        command: "curl HOST:PORT/debug/pprof/heap (net/http/pprof)",
        advice: "GOMEMLIMIT and GOGC bound the heap; debug.FreeOSMemory gives back what is free",
        native: None,
    },
    Runtime {
        name: "CPython",
        files: &["python", "libpython"],
        heap: never,
        command: "import sys; sys._debugmallocstats() (inside the program)",
        advice: "tracemalloc shows which lines hold the objects",
        native: None,
    },
    Runtime {
        name: "Ruby",
        files: &["ruby", "libruby"],
        heap: ruby,
        command: "p GC.stat (inside the program)",
        advice: "Process.warmup (Ruby 3.3 and later) gives back what is free; otherwise fewer retained objects",
        native: None,
    },
    Runtime {
        name: "PHP",
        files: &["php", "libphp", "mod_php"],
        heap: aligned_2m,
        command: "memory_get_usage(true), gc_mem_caches() (inside the program)",
        advice: "pm.max_requests ends workers that have grown",
        native: None,
    },
    Runtime {
        name: ".NET",
        files: &["libcoreclr.so"],
        heap: dotnet,
        command: "dotnet-counters monitor -p PID; dotnet-gcdump collect -p PID",
        advice: "DOTNET_GCHeapHardLimit bounds the heap, DOTNET_GCConserveMemory makes it give back more",
        native: None,
    },
    Runtime {
        name: "SBCL",
        files: &["sbcl"],
        heap: sbcl,
        command: "(room) (inside the program)",
        advice: "sbcl --dynamic-space-size MIB bounds the heap, (gc :full t) gives back what is free",
        native: None,
    },
    Runtime {
        name: "GHC",
        files: &[],
        heap: ghc,
        command: "the program with +RTS -s, or GHC.Stats (inside the program)",
        advice: "+RTS -M SIZE bounds the heap",
        native: None,
    },
    // Its objects of up to 128 KiB are in arenas from malloc.
    Runtime {
        name: "PyPy",
        files: &["libpypy"],
        heap: never,
        command: "gc.get_stats() (inside the program)",
        advice: "PYPY_GC_MAX=SIZE bounds the heap",
        native: None,
    },
    // These get all of their memory with mmap, and nothing marks it.
    Runtime {
        name: "Erlang",
        files: &["beam"],
        heap: rest,
        command: "erlang:memory(), recon_alloc:memory(usage) (in a shell of the node)",
        advice: "erlang:garbage_collect(P) frees what process P no longer needs, including large binaries",
        native: None,
    },
    Runtime {
        name: "Mono",
        files: &["mono", "libmonosgen"],
        heap: rest,
        command: "GC.GetTotalMemory(true) (inside the program)",
        advice: "MONO_GC_PARAMS=max-heap-size=SIZE bounds the heap",
        native: None,
    },
    Runtime {
        name: "LuaJIT",
        files: &["luajit"],
        heap: rest,
        command: "collectgarbage('count') (inside the program)",
        advice: "collectgarbage() gives back what is free",
        native: None,
    },
    Runtime {
        name: "Guile",
        files: &["libguile"],
        heap: rest,
        command: "(gc-stats) (inside the program)",
        advice: "GC_MAXIMUM_HEAP_SIZE bounds the heap",
        native: None,
    },
];

/// The runtimes of a process, in the order of the table.
pub fn of(seen: &Seen) -> Vec<&'static Runtime> {
    let names: Vec<&str> = seen.mappings.iter().map(|mapping| file_name(&mapping.name)).collect();
    let has = |runtime: &Runtime| {
        let named = |name: &&str| !name.is_empty() && runtime.files.iter().any(|file| begins(name, file));
        names.iter().any(named) || is_marked(runtime, seen)
    };
    TABLE.iter().filter(|runtime| has(runtime)).collect()
}

/// Whether a runtime without files of its own is in the process.
fn is_marked(runtime: &Runtime, seen: &Seen) -> bool {
    match runtime.name {
        "Go" => seen.is_go,
        "GHC" => seen.mappings.windows(2).any(|pair| ghc(&pair[0], Some(&pair[1]))),
        _ => false,
    }
}

/// The runtime called `name`; if several have that name, the one in the process.
pub fn named(seen: &Seen, name: &str) -> Option<&'static Runtime> {
    of(seen).into_iter().chain(TABLE).find(|runtime| runtime.name == name)
}

impl Runtime {
    /// Whether its heap may be executed.
    pub fn is_executable(&self) -> bool {
        self.name == "SBCL"
    }

    /// Whether its collector's heap consists of blocks of malloc.
    pub fn is_in_malloc(&self) -> bool {
        self.name == "PyPy"
    }

    /// The owner of what [`Runtime::owns`]: sizes, alignments and neighbours prove nothing.
    pub fn owner(&self) -> String {
        let is_sure = AT_OWN_ADDRESSES.contains(&self.name);
        if is_sure { self.name.to_owned() } else { format!("{}, or private memory", self.name) }
    }

    /// Whether a nameless mapping, which is no arena of glibc, belongs to its heap; `next` is the mapping after it.
    pub fn owns(&self, mapping: &Mapping, next: Option<&Mapping>) -> bool {
        (self.heap)(mapping, next)
    }
}

/// Whether a file's name is `start`, or `start` with a version: `python3.11`, not `pythonic`.
fn begins(name: &str, start: &str) -> bool {
    let rest = name.strip_prefix(start);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| !c.is_ascii_alphabetic() && c != '_'))
}

fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

fn never(_: &Mapping, _: Option<&Mapping>) -> bool {
    false
}

/// The dynamic space, and spaces beside it, which follow what is mapped from the core.
fn sbcl(mapping: &Mapping, _: Option<&Mapping>) -> bool {
    mapping.is_nameless() && mapping.write && mapping.execute && mapping.range.start < 0x100_0000_0000
}

/// GHC reserves 1 TiB at 0x4200000000, and opens it from the front.
fn ghc(mapping: &Mapping, next: Option<&Mapping>) -> bool {
    let reserved = next.is_some_and(|next| next.range.start == mapping.range.end && next.is_closed());
    mapping.is_nameless() && mapping.write && reserved && mapping.range.start == 0x42_0000_0000
}

/// All memory that no other rule explains.
fn rest(mapping: &Mapping, _: Option<&Mapping>) -> bool {
    mapping.write
}

/// With compressed references the heap is below 32 GiB. Other areas are reserved as a whole and opened from the front,
/// so a part without access follows them. A stack has such a part before it.
fn jvm(mapping: &Mapping, next: Option<&Mapping>) -> bool {
    let reserved = next.is_some_and(|next| next.range.start == mapping.range.end && next.is_closed());
    let low = mapping.range.end <= 32 * GIB + GIB;
    let own = reserved && mapping.range.start.is_multiple_of(64 * KIB);
    // A heap that has its largest size from the start is not followed by a part without access.
    let whole = mapping.bytes() >= 32 * MIB && mapping.range.start.is_multiple_of(2 * MIB);
    mapping.write && (low || own || whole)
}

/// Go's arenas are far below the addresses that the kernel chooses for mappings: at 0xc000000000, or at random since Go
/// 1.26.
fn go(mapping: &Mapping, _: Option<&Mapping>) -> bool {
    mapping.is_nameless() && (0x1_0000_0000..0x7000_0000_0000).contains(&mapping.range.start)
}

/// Whether a mapping belongs to Go's heap, which also has the stacks of goroutines.
pub fn is_go_heap(seen: &Seen, mapping: &Mapping) -> bool {
    seen.is_go && go(mapping, None)
}

fn aligned_256k(mapping: &Mapping, _: Option<&Mapping>) -> bool {
    mapping.write && mapping.range.start.is_multiple_of(256 * KIB)
}

/// The heap has pages of 64 KiB, or of 16 KiB in older versions; neighbours are one mapping.
fn ruby(mapping: &Mapping, _: Option<&Mapping>) -> bool {
    let whole = mapping.range.start.is_multiple_of(16 * KIB) && mapping.bytes().is_multiple_of(16 * KIB);
    mapping.write && whole
}

/// Chunks of 2 MiB, aligned to 2 MiB. The kernel places the next mapping below and may join both; then only the end is
/// aligned.
fn aligned_2m(mapping: &Mapping, _: Option<&Mapping>) -> bool {
    let ends = mapping.range.end.is_multiple_of(2 * MIB) && mapping.bytes() >= 2 * MIB;
    mapping.write && (mapping.range.start.is_multiple_of(2 * MIB) || ends)
}

/// The collector reserves 256 GiB, and opens regions of it.
fn dotnet(mapping: &Mapping, next: Option<&Mapping>) -> bool {
    mapping.write
        && next.is_some_and(|next| next.is_closed() && next.range.start == mapping.range.end && next.bytes() >= GIB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mapping;

    fn with(names: &[&str]) -> Vec<&'static str> {
        let mappings = names.iter().map(|name| mapping(0x1000, 0x1000, name)).collect();
        of(&Seen { mappings, ..Seen::default() }).iter().map(|runtime| runtime.name).collect()
    }

    /// Catches a runtime that is not recognised by its file, and programs that are taken for one because of a part of
    /// their name.
    #[test]
    fn runtimes_are_known_by_their_files() {
        assert_eq!(with(&["/usr/lib/jvm/java-17/lib/server/libjvm.so"]), ["JVM"]);
        assert_eq!(with(&["/usr/bin/python3.11", "/usr/bin/node"]), ["V8", "CPython"]);
        assert_eq!(with(&["/usr/lib/erlang/erts-13.1.5/bin/beam.smp"]), ["Erlang"]);
        assert_eq!(
            with(&["/usr/bin/mono-sgen", "/opt/bin/monocle", "/usr/bin/luajit-2.1.0-beta3"]),
            ["Mono", "LuaJIT"]
        );
        assert_eq!(with(&["/usr/lib/x86_64-linux-gnu/libguile-3.0.so.1.5.0"]), ["Guile"]);
        assert_eq!(with(&["/usr/lib/sbcl/sbcl.core", "/usr/lib/x86_64-linux-gnu/libpypy3.11-c.so"]), ["SBCL", "PyPy"]);
        assert_eq!(with(&["/opt/bin/nodes", "/usr/bin/phpunit", "/lib/libc.so.6", "[heap]"]), [""; 0]);
        let arena = Mapping { range: 0xc0_0000_0000..0xc0_0040_0000, write: true, ..Mapping::default() };
        let go = Seen { mappings: vec![arena], is_go: true, ..Seen::default() };
        assert!(of(&go)[0].name == "Go" && is_go_heap(&go, &go.mappings[0]));
    }

    /// Catches heaps of GHC and SBCL that have no owner, or that count as generated code.
    #[test]
    fn heaps_at_their_own_places() {
        let mut reserved = mapping(0x42_0060_0000, 1 << 40, "");
        (reserved.read, reserved.write) = (false, false);
        let seen = Seen { mappings: vec![mapping(0x42_0000_0000, 6 * MIB, ""), reserved], ..Seen::default() };
        assert!(
            matches!(of(&seen)[..], [ghc] if ghc.name == "GHC" && ghc.owns(&seen.mappings[0], seen.mappings.get(1)))
        );
        let other = Seen { mappings: vec![mapping(0x42_0000_0000, 6 * MIB, "")], ..Seen::default() };
        assert!(of(&other).is_empty());
        let mut space = mapping(0x10_00b8_8000, 64 * MIB, "");
        space.execute = true;
        let seen = Seen {
            mappings: vec![mapping(0x10_0000_0000, 0xb8_8000, "/usr/lib/sbcl/sbcl.core"), space],
            ..Seen::default()
        };
        let class = &crate::owner::classes(&seen)[1];
        assert_eq!((class.kind, class.owner.as_str()), (crate::model::Kind::RuntimeHeap, "SBCL"));
    }

    /// Catches a chunk of PHP's that is not recognised because the kernel joined it with the mapping below.
    #[test]
    fn joined_chunks_are_phps() {
        let joined = |bytes| aligned_2m(&mapping(64 * MIB * 1000 + 6 * MIB - bytes, bytes, ""), None);
        assert!(joined(2 * MIB + 4096) && joined(2 * MIB) && !joined(MIB + 4096));
    }

    /// Catches advice to send a signal that ends the program.
    #[test]
    fn only_node_is_sent_a_signal() {
        let advised = |path: &str| {
            let seen = Seen { mappings: vec![mapping(0x1000, 4096, path)], ..Seen::default() };
            named(&seen, "V8").expect("it is in the table").command
        };
        assert!(advised("/usr/bin/node").contains("kill -USR1"));
        assert!(!advised("/usr/lib/chromium/chromium").contains("kill"));
    }

    /// Catches a heap of the JVM that is completely open, above 32 GiB, and counts as the program's memory.
    #[test]
    fn a_whole_heap_is_the_jvms() {
        assert!(jvm(&mapping(0x7000_0000_0000, 1 << 30, ""), None));
        assert!(!jvm(&mapping(0x7000_0000_1000, MIB, ""), None));
    }
}
