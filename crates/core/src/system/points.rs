//! Atomics for the simulation: each operation is a point at which it may switch threads. Built only with `--cfg
//! neap_sim`; without it [`crate::sync`] has the atomics of `core`.
//!
//! The simulation (`crates/sim`) sets a function with [`set_hook`], which runs before each operation. The threads of
//! the simulation are coroutines of one real thread, so operations are in sequential order, whatever `Ordering` says:
//! loom checks the orderings (`tests/loom`).

use core::panic::Location;
use core::sync::atomic::{self as plain, Ordering};

/// The operation that follows a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A load.
    Load,
    /// A store.
    Store,
    /// An operation that reads and writes in one step; on x86 it is a full barrier as well.
    Update,
    /// One iteration of a loop that waits for another thread.
    Spin,
}

/// The function of [`set_hook`]; null: none is set.
static HOOK: plain::AtomicPtr<()> = plain::AtomicPtr::new(core::ptr::null_mut());

/// A function that is called before each operation, with the location of the operation in the source.
pub type Hook = fn(Point, &'static Location<'static>);

/// Sets the function that is called before each atomic operation.
pub fn set_hook(hook: Hook) {
    // Relaxed: the simulation has one real thread.
    HOOK.store(hook as *mut (), Ordering::Relaxed);
}

/// The number of the active fault, of those that `cargo xtask sim --mutants` builds into a copy of the core; 0: none.
static FAULT: plain::AtomicU32 = plain::AtomicU32::new(0);

/// Activates the fault of this number.
pub fn set_fault(number: u32) {
    // Relaxed, here and below: as in `set_hook`.
    FAULT.store(number, Ordering::Relaxed);
}

/// Whether the fault of this number is active.
#[inline]
pub fn has_fault(number: u32) -> bool {
    FAULT.load(Ordering::Relaxed) == number
}

#[inline(always)]
#[track_caller]
fn point(point: Point) {
    let hook = HOOK.load(Ordering::Relaxed);
    if !hook.is_null() {
        // SAFETY: only `set_hook` writes the address, and it writes that of a `Hook`.
        let hook = unsafe { core::mem::transmute::<*mut (), Hook>(hook) };
        hook(point, Location::caller());
    }
}

/// Marks one iteration of a loop that waits for another thread.
#[track_caller]
pub fn spin_loop() {
    point(Point::Spin);
}

/// Defines a newtype around an atomic of `core`.
macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $value:ty) => {
        /// The atomic of this name in `core`, with points.
        #[repr(transparent)]
        pub struct $name $(<$t>)? (plain::$name $(<$t>)?);

        impl $(<$t>)? $name $(<$t>)? {
            /// As in `core`.
            #[inline]
            pub const fn new(value: $value) -> Self {
                $name(plain::$name::new(value))
            }

            /// As in `core`.
            ///
            /// # Safety
            /// As in `core`.
            #[inline]
            pub unsafe fn from_ptr<'a>(p: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise; the type is transparent.
                unsafe { &*p.cast::<Self>() }
            }

            /// As in `core`.
            #[inline]
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            /// As in `core`.
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                point(Point::Load);
                self.0.load(order)
            }

            /// As in `core`.
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                point(Point::Store);
                self.0.store(value, order);
            }

            /// As in `core`.
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point(Point::Update);
                self.0.swap(value, order)
            }

            /// As in `core`.
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point(Point::Update);
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As in `core`.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// As in `core`, in one step.
            #[inline]
            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point(Point::Update);
                self.0.fetch_update(success, failure, f)
            }
        }

        impl $(<$t>)? core::fmt::Debug for $name $(<$t>)? {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $(<$t>)? Default for $name $(<$t>)? {
            fn default() -> Self {
                $name(plain::$name::default())
            }
        }
    };
}

/// Defines operations that read and write in one step, each with a point.
macro_rules! updates {
    ($name:ident, $value:ty: $($op:ident)*) => {
        impl $name {
            $(
                /// As in `core`.
                #[inline]
                #[track_caller]
                pub fn $op(&self, value: $value, order: Ordering) -> $value {
                    point(Point::Update);
                    self.0.$op(value, order)
                }
            )*
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU8, u8);
atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
atomic!(AtomicPtr<T>, *mut T);

updates!(AtomicBool, bool: fetch_and fetch_or fetch_xor);
updates!(AtomicU8, u8: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
updates!(AtomicU16, u16: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
updates!(AtomicU32, u32: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
updates!(AtomicU64, u64: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
updates!(AtomicUsize, usize: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
