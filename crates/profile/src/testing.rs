//! A small profile for tests.

use crate::{Builder, Frame, Function, Label, Location, Mapping, Period, Profile, Unit, ValueType, types};

/// Two call sites, one without labels, and a sample without a stack.
pub fn profile() -> Profile {
    let mut builder =
        Builder::new(vec![types::ALLOC_OBJECTS, types::ALLOC_SPACE, types::INUSE_OBJECTS, types::INUSE_SPACE]);
    let program = builder.mapping(Mapping {
        start: 0x1000,
        end: 0x2000,
        offset: 0,
        file: "/bin/server".into(),
        build_id: Some(vec![0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89]),
    });
    let library = builder.mapping(Mapping {
        start: 0x7000,
        end: 0x8000,
        offset: 0x1000,
        file: "/lib/libc.so.6".into(),
        build_id: None,
    });
    let mut at = |address, mapping, name: &str, file: &str, line: u32| {
        let function =
            builder.function(Function { name: name.into(), symbol: None, file: file.into(), line: line.min(1) });
        builder.location(Location { address, mapping: Some(mapping), frames: vec![Frame { function, line }] })
    };
    let main = at(0x1010, program, "main", "server.c", 40);
    let leaky = at(0x1020, program, "leaky", "server.c", 10);
    let busy = at(0x1030, program, "busy", "server.c", 20);
    let malloc = at(0x7010, library, "malloc", "", 0);
    let unknown = builder.location(Location { address: 0x7777, mapping: Some(library), frames: Vec::new() });
    let leak = builder.stack([main, leaky, malloc]);
    let churn = builder.stack([main, busy, malloc]);
    let odd = builder.stack([main, unknown]);
    builder.add(leak, vec![Label::number("oldest", 5_000_000_000, Unit::Nanoseconds)], &[3, 300, 2, 200]);
    builder.add(churn, vec![Label::text("thread", "worker")], &[50, 5000, 1, 100]);
    builder.add(odd, Vec::new(), &[1, 10, 1, 10]);
    builder.add(None, Vec::new(), &[1, 1, 0, 0]);
    let profile = builder.profile_mut();
    profile.command = vec!["/bin/server".into(), "--fast".into()];
    profile.pid = 42;
    profile.allocator = Some("neap".into());
    profile.time = 1_700_000_000_000_000_000;
    profile.duration = 2_000_000_000;
    profile.shown = 3;
    profile.period = Some(Period { of: ValueType::new("space", Unit::Bytes), value: 524_288 });
    profile.notes = vec!["7 stacks were dropped".into()];
    builder.finish()
}
