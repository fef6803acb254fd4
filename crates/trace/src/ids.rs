//! Numbers that stand for rows of tables.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of a row of a [`Table`].
pub trait Id: Copy {
    /// The id of the row at `index`.
    fn from_index(index: usize) -> Self;
    /// The position of the row in its table.
    fn index(self) -> usize;
}

/// Defines types that are the number of a row, also for other crates' tables.
#[macro_export]
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(u32);

        impl $crate::Id for $name {
            fn from_index(index: usize) -> Self {
                // A trace with 2^32 rows has run out of memory long before.
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )+};
}

ids! {
    /// A row of [`Tables::processes`](crate::Tables::processes).
    ProcessId,
    /// A row of [`Tables::threads`](crate::Tables::threads).
    ThreadId,
    /// A row of [`Tables::mappings`](crate::Tables::mappings).
    MappingId,
    /// A row of [`Tables::objects`](crate::Tables::objects).
    ObjectId,
    /// A row of [`Tables::symbols`](crate::Tables::symbols).
    SymbolId,
    /// A row of [`Tables::lines`](crate::Tables::lines).
    LineId,
    /// A row of [`Tables::places`](crate::Tables::places).
    PlaceId,
    /// A row of [`Tables::stacks`](crate::Tables::stacks).
    StackId,
    /// A row of [`Tables::blocks`](crate::Tables::blocks).
    BlockId,
}

/// Rows that are only added, and found by their ids.
pub struct Table<I, T> {
    rows: Vec<T>,
    id: PhantomData<I>,
}

impl<I: Id, T> Table<I, T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { rows: Vec::new(), id: PhantomData }
    }

    /// Adds a row.
    pub fn push(&mut self, row: T) -> I {
        self.rows.push(row);
        I::from_index(self.rows.len() - 1)
    }

    /// The row, unless the id is one of another trace.
    pub fn get(&self, id: I) -> Option<&T> {
        self.rows.get(id.index())
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows in order of their ids.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        self.rows.iter().enumerate().map(|(index, row)| (I::from_index(index), row))
    }

    /// The rows in order of their ids, mutable.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (I, &mut T)> {
        self.rows.iter_mut().enumerate().map(|(index, row)| (I::from_index(index), row))
    }
}

impl<I: Id, T> Default for Table<I, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I, T: Clone> Clone for Table<I, T> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone(), id: PhantomData }
    }
}

impl<I, T: fmt::Debug> fmt::Debug for Table<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

/// As an array of its rows, in order of their ids.
impl<I: Id, T: Serialize> Serialize for Table<I, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.rows)
    }
}

impl<'de, I: Id, T: Deserialize<'de>> Deserialize<'de> for Table<I, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { rows: Vec::deserialize(deserializer)?, id: PhantomData })
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.rows[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.rows[id.index()]
    }
}
