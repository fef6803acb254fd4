//! Why a range could not be made, or not as requested.

use core::fmt;
use rustix::io::Errno;

macro_rules! errors {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a call failed, or why a range has smaller pages than requested. The numbers are those of `enum
        /// neap_result` of the C header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum Error {
            $($(#[doc = $doc])* $name = $number,)*
        }

        impl Error {
            /// The error of this number.
            pub fn from_number(number: i32) -> Option<Error> {
                match number {
                    $($number => Some(Error::$name),)*
                    _ => None,
                }
            }

            /// What it means, as a C string.
            pub fn text(self) -> &'static core::ffi::CStr {
                match self {
                    $(Error::$name => $text,)*
                }
            }
        }
    };
}

errors! {
    /// An argument makes no sense: no bytes, a size that is no power of two, a name with a slash.
    BadValue = 2, c"this value is not accepted";
    /// The caller's buffer is too short.
    TooShort = 4, c"the buffer is too short";
    /// There is no memory or no address space.
    NoMemory = 5, c"there is no memory for it";
    /// The pool of hugetlb pages of this size has too few free pages.
    PoolShort = 6, c"the pool of hugetlb pages of this size has too few free pages";
    /// This kernel has no pages of this size.
    NoSuchPages = 7, c"this kernel has no pages of this size";
    /// The machine's or the process's settings forbid transparent huge pages of this size.
    HugeOff = 8, c"transparent huge pages of this size are switched off";
    /// The kernel found no contiguous free memory.
    NotHuge = 9, c"the kernel has no contiguous memory for pages of this size now";
    /// The user has no right to do this.
    NotAllowed = 10, c"the user has no right to do this";
    /// No hugetlbfs with pages of this size is mounted.
    NoMount = 11, c"no hugetlbfs with pages of this size is mounted";
    /// A part of the range is not mapped, may not be read or written, or is beyond the end of its file.
    Inaccessible = 12, c"a part of the range is not mapped, or may not be accessed so";
    /// The memory of a part of the range is damaged.
    Poisoned = 13, c"the memory of a part of the range is damaged";
    /// The progress callback ended it.
    Cancelled = 14, c"the progress callback ended it";
    /// This kernel does not have this function, or refuses it to this process.
    Unsupported = 15, c"this kernel has no such function";
    /// The kernel does not say (without /sys, say).
    NotKnown = 16, c"the kernel does not say whether it uses pages of this size";
    /// The pool has the pages, but a limit of the process or of its cgroup forbids them.
    Limit = 17, c"a limit of the process or its cgroup, or a policy, forbids these pages";
    /// There is no file or segment of this name, or no process uses it.
    NotFound = 18, c"there is no such file or segment in use";
    /// The file or segment has another length or other pages.
    Mismatch = 19, c"it exists with another length or other pages";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().to_str().unwrap_or_default())
    }
}

impl core::error::Error for Error {}

/// What an error of a call that needs rights or memory means.
impl From<Errno> for Error {
    fn from(error: Errno) -> Error {
        match error {
            Errno::NOMEM | Errno::AGAIN | Errno::NOSPC | Errno::MFILE | Errno::NFILE => Error::NoMemory,
            Errno::PERM | Errno::ACCESS | Errno::ROFS => Error::NotAllowed,
            Errno::FAULT => Error::Inaccessible,
            Errno::HWPOISON => Error::Poisoned,
            _ => Error::Unsupported,
        }
    }
}
