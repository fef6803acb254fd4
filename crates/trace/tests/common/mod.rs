//! Traces for the tests of the formats: a small one whose every field is known, and arbitrary ones.

use neap_trace::*;
use proptest::prelude::*;

/// A fault with most fields empty.
fn fault(number: u64, thread: ThreadId) -> Fault {
    Fault {
        number,
        time: 0,
        service: None,
        thread,
        address: 0,
        page_shift: None,
        subject: Subject::Data,
        access: Access::Unknown,
        kind: Kind::Unknown,
        guessed: false,
        ip: 0,
        mode: Mode::User,
        mapping: None,
        code: None,
        data: None,
        block: None,
        stack: None,
    }
}

fn process(pid: u32, name: &str, parent: Option<ProcessId>) -> Process {
    Process {
        pid,
        image: 0,
        parent,
        name: name.into(),
        path: Some(format!("/bin/{name}")),
        start: 0,
        end: Some(90_000),
    }
}

/// Two processes, three threads, faults of several kinds with all that a fault can have, and names that need quotes.
pub fn small() -> Recorded {
    let mut trace = Recorded::default();
    let tables = &mut trace.tables;
    tables.clock = Clock { tsc: Some((1 << 10, 11)), measured: true, origin: 5, wall: 1_700_000_000_000_000_000 };
    tables.summary = Summary {
        neap: "0.0.0".into(),
        command: vec!["demo".into(), "a;b,\"c\"\n<script>".into()],
        pid: 70,
        backend: Backend::Perf,
        faults: 6,
        usage: Some(Usage { minor: 7, major: 1 }),
        differences: vec![Difference { cause: Cause::BeforeExec, count: 2 }],
        end: End::Exited(3),
        duration: 123_456_789,
        ..Summary::default()
    };
    let parent = tables.processes.push(process(70, "demo", None));
    let child = tables.processes.push(process(71, "child", Some(parent)));
    let thread = |tid, process, name: &str| Thread { tid, process, name: name.into(), start: 0, end: None };
    let main = tables.threads.push(thread(70, parent, "demo"));
    let worker = tables.threads.push(thread(72, parent, "worker, 1"));
    let other = tables.threads.push(thread(71, child, "child"));
    let demo = tables.objects.push(Object { build_id: Some((1..=20).collect()), ..Object::new("/bin/demo") });
    let libc = tables.objects.push(Object::new("/lib/libc.so.6"));
    let kernel = tables.objects.push(Object::new("[kernel]"));
    let symbol = |name: &str, linkage: Option<&str>, object, address, size| Symbol {
        name: name.into(),
        linkage_name: linkage.map(str::to_owned),
        object: Some(object),
        address,
        size,
    };
    let main_fn = tables.symbols.push(symbol("main", None, demo, 0x1100, 0x80));
    let load = tables.symbols.push(symbol("app::load<int, 2>()", Some("_ZN3app4loadIiLi2EEEvv"), demo, 0x1200, 0x40));
    let memset = tables.symbols.push(symbol("memset", None, libc, 0x9000, 0));
    let table = tables.symbols.push(symbol("table", None, demo, 0x4000, 0x2000));
    let clear = tables.symbols.push(symbol("clear_user", None, kernel, 0xffff_ffff_8100_0000, 0));
    let line = tables.lines.push(Line { file: "src/demo.cc".into(), line: 42 });
    let place = |object, address, symbol, offset, line| Place { address, object: Some(object), symbol, offset, line };
    let in_main = tables.places.push(place(demo, 0x1110, Some(main_fn), 0x10, None));
    let in_load = tables.places.push(place(demo, 0x1208, Some(load), 8, Some(line)));
    let in_memset = tables.places.push(place(libc, 0x9020, Some(memset), 0x20, None));
    let nameless = tables.places.push(place(libc, 0x5555, None, 0, None));
    let in_table = tables.places.push(place(demo, 0x4010, Some(table), 0x10, None));
    let in_kernel = tables.places.push(place(kernel, 0xffff_ffff_8100_0004, Some(clear), 4, None));
    let mapping = |process, start, pages: u64, offset, kind, object, write, execute| Mapping {
        process,
        start,
        end: start + (pages << 12),
        offset,
        kind,
        object,
        protection: Protection { read: true, write, execute },
        shared: false,
        from: 0,
        until: None,
    };
    let text =
        tables.mappings.push(mapping(parent, 0x5000_0000, 2, 0x1000, MappingKind::File, Some(demo), false, true));
    let data =
        tables.mappings.push(mapping(parent, 0x5000_4000, 3, 0x3000, MappingKind::File, Some(demo), true, false));
    let heap = tables.mappings.push(mapping(parent, 0x6000_0000, 64, 0, MappingKind::Heap, None, true, false));
    let name = MappingKind::Named("[anon:cache]".into());
    let named = tables.mappings.push(mapping(child, 0x7f00_0000_0000, 4096, 0, name, None, true, false));
    let outer = tables.stacks.push(StackNode { parent: None, address: 0x5000_0110, place: Some(in_main) });
    let middle = tables.stacks.push(StackNode { parent: Some(outer), address: 0x5000_0208, place: Some(in_load) });
    let inner = tables.stacks.push(StackNode { parent: Some(middle), address: 0x5100_0020, place: Some(in_memset) });
    let block = tables.blocks.push(Block { address: 0x6000_1000, size: 48, site: Some(middle) });
    trace.faults = vec![
        Fault {
            service: Some(900),
            address: 0x5000_0100,
            page_shift: Some(12),
            subject: Subject::Code,
            access: Access::Execute,
            kind: Kind::FileMinor,
            ip: 0x5000_0100,
            mapping: Some(text),
            code: Some(in_main),
            ..fault(1, main)
        },
        Fault {
            time: 2_500,
            service: Some(1_200),
            address: 0x5000_5010,
            page_shift: Some(12),
            access: Access::Write,
            kind: Kind::CopyOnWrite,
            guessed: true,
            ip: 0x5000_0208,
            mapping: Some(data),
            code: Some(in_load),
            data: Some(in_table),
            stack: Some(middle),
            ..fault(2, main)
        },
        Fault {
            time: 9_000,
            service: Some(45_000),
            address: 0x6000_1010,
            page_shift: Some(21),
            access: Access::Write,
            kind: Kind::Huge,
            ip: 0x5100_0020,
            mapping: Some(heap),
            code: Some(in_memset),
            block: Some(block),
            stack: Some(inner),
            ..fault(3, worker)
        },
        Fault {
            time: 60_000,
            address: 0x7f00_0000_0fff,
            kind: Kind::Anonymous,
            ip: 0xffff_ffff_8100_0004,
            mode: Mode::Kernel,
            mapping: Some(named),
            code: Some(in_kernel),
            stack: Some(inner),
            ..fault(4, other)
        },
        Fault { time: 61_000, address: 0x10, kind: Kind::Refused, ip: 0x7000, code: Some(nameless), ..fault(5, other) },
        Fault { time: 62_000, address: 0xffff_ffff_ff60_0000, ip: 0x7008, ..fault(7, other) },
    ];
    trace
}

/// Numbers and strings from which a trace is drawn; when they are used up, zeros and empty strings follow.
#[derive(Debug)]
struct Draw {
    numbers: std::vec::IntoIter<u64>,
    texts: std::vec::IntoIter<String>,
}

impl Draw {
    fn number(&mut self) -> u64 {
        self.numbers.next().unwrap_or(0)
    }

    fn small(&mut self) -> u32 {
        self.number() as u32
    }

    fn text(&mut self) -> String {
        self.texts.next().unwrap_or_default()
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[(self.number() % values.len() as u64) as usize]
    }

    /// A row, if there is one; sometimes none.
    fn row<I: Id, T>(&mut self, table: &Table<I, T>) -> Option<I> {
        let number = self.number();
        let rows = table.len() as u64;
        (rows != 0 && number % 5 != 4).then(|| I::from_index((number / 5 % rows) as usize))
    }

    fn count(&mut self) -> u64 {
        self.number() % 5
    }

    fn tables(&mut self) -> Tables {
        let mut tables = Tables::default();
        for _ in 0..=self.count() {
            let parent = self.row(&tables.processes);
            let (pid, image, start, end) = (self.small(), self.small(), self.number(), self.number());
            let (name, path) = (self.text(), self.text());
            tables.processes.push(Process { pid, image, parent, name, path: Some(path), start, end: Some(end) });
        }
        for _ in 0..=self.count() {
            let process = self.row(&tables.processes).unwrap_or(ProcessId::from_index(0));
            let (tid, name, start) = (self.small(), self.text(), self.number());
            tables.threads.push(Thread { tid, process, name, start, end: None });
        }
        for _ in 0..self.count() {
            let path = if self.number().is_multiple_of(2) { self.text() } else { format!("/{}", self.text()) };
            let build_id = Some(self.number().to_be_bytes().repeat(self.count() as usize));
            tables.objects.push(Object { build_id, ..Object::new(path) });
        }
        for _ in 0..self.count() {
            let (name, object, address, size) = (self.text(), self.row(&tables.objects), self.number(), self.number());
            tables.symbols.push(Symbol { name, linkage_name: None, object, address, size });
        }
        for _ in 0..self.count() {
            let (file, line) = (self.text(), self.small());
            tables.lines.push(Line { file, line });
        }
        for _ in 0..self.count() {
            let (address, object, symbol) = (self.number(), self.row(&tables.objects), self.row(&tables.symbols));
            let (offset, line) = (self.number(), self.row(&tables.lines));
            tables.places.push(Place { address, object, symbol, offset, line });
        }
        for _ in 0..self.count() {
            let (parent, address, place) = (self.row(&tables.stacks), self.number(), self.row(&tables.places));
            tables.stacks.push(StackNode { parent, address, place });
        }
        for _ in 0..self.count() {
            let (address, size, site) = (self.number(), self.number(), self.row(&tables.stacks));
            tables.blocks.push(Block { address, size, site });
        }
        for _ in 0..self.count() {
            let mapping = self.mapping(&tables);
            tables.mappings.push(mapping);
        }
        tables.clock =
            Clock { tsc: Some((self.small(), self.small() as u16)), wall: self.number(), ..Clock::default() };
        tables.summary.command = vec![self.text(), self.text()];
        tables.summary.missing = vec![self.text()];
        tables
    }

    fn mapping(&mut self, tables: &Tables) -> Mapping {
        let kinds = [MappingKind::File, MappingKind::Anonymous, MappingKind::Heap, MappingKind::Stack];
        let kind = self.number() as usize % 5;
        Mapping {
            process: self.row(&tables.processes).unwrap_or(ProcessId::from_index(0)),
            // Whole pages, as the kernel maps them.
            start: self.number() & !0xfff,
            end: self.number() & !0xfff,
            offset: self.number() & !0xfff,
            kind: kinds.get(kind).cloned().unwrap_or_else(|| MappingKind::Named(self.text())),
            object: self.row(&tables.objects),
            protection: Protection { read: true, write: kind == 2, execute: kind == 3 },
            shared: false,
            from: 0,
            until: Some(self.number()),
        }
    }

    fn fault(&mut self, tables: &Tables, number: u64) -> Fault {
        Fault {
            time: self.number(),
            service: Some(self.small()).filter(|service| service % 3 != 0),
            address: self.number(),
            page_shift: Some(self.number() as u8).filter(|shift| shift % 3 != 0),
            subject: self.one_of(&[Subject::Code, Subject::Data]),
            access: self.one_of(&[Access::Unknown, Access::Read, Access::Write, Access::Execute]),
            kind: self.one_of(&Kind::ALL),
            guessed: self.number().is_multiple_of(2),
            ip: self.number(),
            mode: self.one_of(&[Mode::User, Mode::Kernel]),
            mapping: self.row(&tables.mappings),
            code: self.row(&tables.places),
            data: self.row(&tables.places),
            block: self.row(&tables.blocks),
            stack: self.row(&tables.stacks),
            ..fault(number, self.row(&tables.threads).unwrap_or(ThreadId::from_index(0)))
        }
    }
}

/// An arbitrary consistent trace: numbers and strings are arbitrary, but all referenced rows exist.
pub fn any_trace() -> impl Strategy<Value = Recorded> {
    let number = prop_oneof![0..40u64, 0..40u64, any::<u64>(), (0..47u32).prop_map(|bit| 1u64 << bit)];
    let letters =
        ['a', 'Z', ' ', ';', ',', '"', '\'', '\n', '\r', '\t', '\0', '<', '>', '&', '/', '[', '#', '!', '-', 'é'];
    let letter = prop_oneof![proptest::sample::select(letters.to_vec()), any::<char>()];
    let text =
        proptest::collection::vec(letter, 0..8).prop_map(|letters: Vec<char>| letters.into_iter().collect::<String>());
    let texts = proptest::collection::vec(text, 0..40);
    (proptest::collection::vec(number, 0..400), texts, 0..12u64).prop_map(|(numbers, texts, faults)| {
        let mut draw = Draw { numbers: numbers.into_iter(), texts: texts.into_iter() };
        let tables = draw.tables();
        let faults = (1..=faults).map(|number| draw.fault(&tables, number)).collect();
        Recorded { tables, faults }
    })
}
