//! State that is set once: at the start of the process, or at its first use.

use crate::system::filter::{self, Asking, Filter};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

/// A value that is changed only while the process has one thread.
#[derive(Debug)]
pub struct AtStart<T>(UnsafeCell<T>);

// SAFETY: `change` alone writes the value, while the process has one thread. From then on it is only read.
unsafe impl<T: Sync> Sync for AtStart<T> {}

impl<T> AtStart<T> {
    /// The value before the start.
    pub const fn new(value: T) -> Self {
        AtStart(UnsafeCell::new(value))
    }

    /// Changes the value.
    ///
    /// # Safety
    /// The process must have one thread, which has no reference to the value.
    pub unsafe fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: as the caller promises.
        change(unsafe { &mut *self.0.get() })
    }

    /// The value.
    pub fn get(&self) -> &T {
        // SAFETY: it is only read, see `Sync`.
        unsafe { &*self.0.get() }
    }
}

/// A value that is made at its first use. No thread waits for another that makes it.
#[derive(Debug)]
pub struct Lazily<T> {
    /// [`NONE`], or what follows it.
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// There is no value yet.
const NONE: u8 = 0;
/// A thread makes it, or has failed to.
const TRIED: u8 = 1;
/// It is there.
const THERE: u8 = 2;

// SAFETY: the thread that changes the state from `NONE` alone writes the value; from `THERE` on it is only read.
unsafe impl<T: Sync + Send> Sync for Lazily<T> {}

impl<T> Lazily<T> {
    /// No value yet.
    pub const fn new() -> Self {
        Lazily { state: AtomicU8::new(NONE), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The value, which `make` makes if no thread has tried yet. `None` if that failed, or another thread is doing it.
    pub fn get_or_make(&self, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        // Acquire pairs with the Release below.
        if self.state.load(Ordering::Acquire) == NONE
            && self.state.compare_exchange(NONE, TRIED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let value = make()?;
            // SAFETY: this thread changed the state, so no other uses the value.
            unsafe { (*self.value.get()).write(value) };
            self.state.store(THERE, Ordering::Release);
        }
        // SAFETY: the value was written before the state.
        (self.state.load(Ordering::Acquire) == THERE).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}

/// A mapping that is made at its first use and never unmapped. All zero before, so it can lie in memory that the kernel
/// wipes in the child of a fork.
#[derive(Debug)]
pub struct Made<T: 'static> {
    /// The mapping, if there is one.
    place: AtomicPtr<T>,
    /// It could not be made, and is not tried again before [`Made::allow_again`].
    is_refused: AtomicBool,
    /// Whether a thread makes it now.
    making: AtomicBool,
}

impl<T: Sync> Made<T> {
    /// No mapping yet.
    pub const fn new() -> Self {
        let place = AtomicPtr::new(core::ptr::null_mut());
        Made { place, is_refused: AtomicBool::new(false), making: AtomicBool::new(false) }
    }

    /// The mapping, if there is one.
    pub fn get(&self) -> Option<&'static T> {
        // Acquire pairs with the Release in `get_or_make`.
        // SAFETY: only references that live for ever are stored.
        unsafe { self.place.load(Ordering::Acquire).as_ref() }
    }

    /// Lets the next call try again if the mapping could not be made: memory may have been short only for a moment.
    pub fn allow_again(&self) {
        // Relaxed: a thread that does not see it leaves the mapping out once more.
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// Whether another thread makes the mapping now.
    pub fn is_being_made(&self) -> bool {
        self.making.load(Ordering::Relaxed)
    }

    /// The mapping, which `make` makes where there is none yet, if `may_make` allows it. `make` gets whether a seccomp
    /// filter watches the process. `None` too where another thread makes it now, or the filter is not known: a later
    /// call tries again.
    pub fn get_or_make(
        &self,
        may_make: impl FnOnce() -> bool,
        make: impl FnOnce(bool) -> Option<&'static T>,
    ) -> Option<&'static T> {
        if let Some(made) = self.get() {
            return Some(made);
        }
        // Relaxed: a thread that does not see a refusal tries once more. Acquire pairs with the Release below: of
        // threads that come here one after the other, the second sees the mapping.
        if self.is_refused.load(Ordering::Relaxed) || !may_make() || self.making.swap(true, Ordering::Acquire) {
            return None;
        }
        let _asking = Asking::begin();
        let filter = filter::filter();
        if self.get().is_none() && filter != Filter::Unknown {
            match make(filter == Filter::Yes) {
                // Release pairs with the Acquire in `get`.
                Some(new) => self.place.store(core::ptr::from_ref(new).cast_mut(), Ordering::Release),
                None => self.is_refused.store(true, Ordering::Relaxed),
            }
        }
        self.making.store(false, Ordering::Release);
        self.get()
    }
}
