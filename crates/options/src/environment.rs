//! Reads the variables of the environment that a program is started with: jemalloc's, glibc's variables, then
//! GLIBC_TUNABLES, then neap's own. A later one replaces an earlier one.

use crate::glibc::{self, Saved, Target};
use crate::origin::By;
use crate::{Kind, Origin, TABLE, jemalloc};
use core::fmt::Display;

/// The variable in which `neap run` lists the options that it has set: their names, with commas between.
pub const SET_BY_RUN: &str = "NEAP_SET_BY_RUN";

/// The variable of glibc's tunables.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// The beginnings of the names of all variables that [`read`] looks up. In an environment without such a name it does
/// nothing.
pub const BEGINNINGS: [&str; 3] = ["NEAP_", "MALLOC_", TUNABLES];

/// Sets the options of the environment in `target`. Calls `complain` with a line about each value that its option does
/// not accept, whose default stays, and about what is ignored.
pub fn read<T: AsRef<[u8]>>(
    variable: impl Fn(&str) -> Option<T>,
    saved: &Saved,
    target: &mut impl Target,
    mut complain: impl FnMut(&dyn Display),
) {
    if let Some(text) = variable(jemalloc::VARIABLE) {
        let by = By { origin: Origin::Jemalloc, variable: Some(jemalloc::VARIABLE) };
        jemalloc::read(text.as_ref(), |id, value| target.set(id, value, by));
        if let Some(ignored) = jemalloc::Ignored::of(text.as_ref()) {
            complain(&ignored);
        }
    }
    for control in glibc::all() {
        if let Some(number) = control.env.and_then(&variable).and_then(|text| glibc::number(text.as_ref())) {
            let by = By { origin: Origin::GlibcEnvironment, variable: control.env };
            saved.apply(control, number, by, target);
        }
    }
    if let Some(text) = variable(TUNABLES) {
        for (control, number) in glibc::tunables(text.as_ref()) {
            saved.apply(control, number, By { origin: Origin::Tunables, variable: Some(TUNABLES) }, target);
        }
    }
    let run = variable(SET_BY_RUN);
    let set_by_run = |name: &str| {
        run.as_ref().is_some_and(|names| names.as_ref().split(|&b| b == b',').any(|n| n == name.as_bytes()))
    };
    for opt in TABLE {
        let Some(text) = variable(opt.env) else { continue };
        let text = text.as_ref();
        let origin = if set_by_run(opt.name) { Origin::Run } else { Origin::Environment };
        match opt.parse(text) {
            Some(value) => target.set(opt.id, value, By { origin, variable: Some(opt.env) }),
            // An empty path counts as not set.
            None if text.is_empty() && opt.kind == Kind::Directory => {}
            None => complain(&opt.complaint(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Catches a variable that would have no effect, because its name has none of the beginnings.
    #[test]
    fn beginnings_of_all_names() {
        struct Nothing;
        impl Target for Nothing {
            fn number(&self, _: crate::Id) -> u64 {
                0
            }
            fn set(&mut self, _: crate::Id, _: crate::Value<'_>, _: By) {}
            fn act(&mut self, _: glibc::Effect) {}
        }
        let asked = Cell::new(0);
        let variable = |name: &str| {
            assert!(BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)), "{name}");
            asked.set(asked.get() + 1);
            None::<&[u8]>
        };
        read(variable, &Saved::new(), &mut Nothing, |_| {});
        assert!(asked.get() > TABLE.len());
    }
}
