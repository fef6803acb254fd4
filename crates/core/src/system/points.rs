//! Atomics whose every operation is a point where a simulation may switch threads. Only with `--cfg neap_sim`; without
//! it [`crate::sync`] has those of `core`.
//!
//! The simulation (`crates/sim`) sets [`set_hook`]'s function, which is called before each operation. Its threads are
//! coroutines of one real thread, so the operations themselves are in sequential order, whatever `Ordering` says:
//! orderings are for loom (`tests/loom`).

use core::panic::Location;
use core::sync::atomic::{self as plain, Ordering};

/// What happens behind a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A load.
    Load,
    /// A store.
    Store,
    /// An operation that reads and writes in one step: on x86 a full barrier as well.
    Update,
    /// A turn of a loop that waits for another thread.
    Spin,
}

/// The function in use, as an address; 0: none.
static HOOK: plain::AtomicPtr<()> = plain::AtomicPtr::new(core::ptr::null_mut());

/// What is called before each operation, with the place of the operation in the source.
pub type Hook = fn(Point, &'static Location<'static>);

/// Has `hook` called before each atomic operation from now on.
pub fn set_hook(hook: Hook) {
    // Relaxed: the simulation has one real thread.
    HOOK.store(hook as *mut (), Ordering::Relaxed);
}

/// The fault that is on, of those that `cargo xtask sim --mutants` puts into a copy of the core; 0: none.
static FAULT: plain::AtomicU32 = plain::AtomicU32::new(0);

/// Has the fault of this number on.
pub fn set_fault(number: u32) {
    // Relaxed, here and below: as the hook.
    FAULT.store(number, Ordering::Relaxed);
}

/// Whether the fault of this number is on.
#[inline]
pub fn has_fault(number: u32) -> bool {
    FAULT.load(Ordering::Relaxed) == number
}

#[inline(always)]
#[track_caller]
fn point(point: Point) {
    let hook = HOOK.load(Ordering::Relaxed);
    if !hook.is_null() {
        // SAFETY: only `set_hook` writes the address, and only that of such a function.
        let hook = unsafe { core::mem::transmute::<*mut (), Hook>(hook) };
        hook(point, Location::caller());
    }
}

/// A turn of a loop that waits for another thread.
#[track_caller]
pub fn spin_loop() {
    point(Point::Spin);
}

/// A newtype around an atomic of `core`.
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
            /// As there.
            #[inline]
            pub unsafe fn from_ptr<'a>(p: *mut $value) -> &'a Self {
                // SAFETY: as the caller promises; the type is transparent.
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

/// Operations that are one step, each with a point.
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
