//! What a row of the table says.

/// What an attribute belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Thread,
    Process,
    Block,
}

/// How torture changes the attribute.
#[derive(Clone, Copy, Debug)]
pub enum Torture {
    /// By changes of the actor `changes` (tests/torture/attributes.c, tests/torture/children.c).
    Changes(&'static [&'static str]),
    /// By an actor of its own, or a word of the program (tests/torture/main.c).
    Actor(&'static str),
    /// Not, and why.
    Not(&'static str),
}

/// An attribute, or several that a program changes in the same way.
#[derive(Debug)]
pub struct Attribute {
    /// What changes, in a few words.
    pub what: &'static str,
    /// The calls, as the manual pages name them.
    pub calls: &'static str,
    pub of: Of,
    /// What neap promises from then on.
    pub promise: &'static str,
    /// Tests that hold the promise: the file in `tests` or in a crate, and a case or function in it.
    pub tests: &'static [(&'static str, &'static str)],
    pub torture: Torture,
}

/// Attributes of one kind: a section of the document.
#[derive(Debug)]
pub struct Kind {
    pub title: &'static str,
    pub attributes: &'static [Attribute],
}
