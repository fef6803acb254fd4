//! Ranges of memory in pages of a chosen size. The C functions of `include/neap.h` do the same; `docs/ranges.md` has
//! the rules.
//!
//! A range is a separate mapping, not a block of the allocator. Its pages are OS pages, transparent huge pages (2 MiB,
//! or smaller ones), or pages from a pool of the machine (hugetlb). If the kernel cannot give the requested pages, the
//! range gets the next smaller ones and says why; with [`Request::strict`] the request fails.
//!
//! ```
//! use neap::ranges::{Pages, Prefault, Request};
//!
//! // 64 MiB from the pool of pages of 2 MiB, else in smaller pages.
//! let mut table = Request::new(Pages::Hugetlb(2 << 20)).allocate(64 << 20)?;
//! if let Some(why) = table.why_smaller() {
//!     println!("in {:?}: {why}", table.pages());
//! }
//! // All of it resident before the first query, by two threads.
//! table.prefault(Prefault::write().threads(2))?;
//! table[1 << 20] = 1;
//! // What it really got.
//! let got = table.resident()?;
//! assert_eq!(got.resident, 64 << 20);
//! println!("{} MiB of 64 in huge pages", got.huge >> 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Any other memory can be prefaulted, advised and queried too:
//!
//! ```
//! use core::ops::ControlFlow;
//! use neap::ranges::{Error, Prefault, resident_in};
//!
//! let buffer = vec![0u8; 32 << 20];
//! let mut steps = 0;
//! Prefault::write().run_with(buffer.as_ptr(), buffer.len(), |progress| {
//!     steps += 1;
//!     println!("{} of {} bytes", progress.done, progress.total);
//!     ControlFlow::Continue(())
//! })?;
//! assert!(steps > 1 && resident_in(buffer.as_ptr(), buffer.len())?.resident >= 32 << 20);
//! let stopped = Prefault::write().run_with(buffer.as_ptr(), buffer.len(), |_| ControlFlow::Break(()));
//! assert_eq!(stopped.map_err(|incomplete| incomplete.error), Err(Error::Cancelled));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Processes share pages of a pool by a name. The file disappears with the last of them; a file that a crash left is
//! made anew:
//!
//! ```
//! use neap::ranges::{Pages, Request};
//!
//! match Request::new(Pages::Hugetlb(2 << 20)).open("prices", 16 << 20) {
//!     Ok(table) if table.is_new() => println!("{} bytes to fill in", table.bytes()),
//!     Ok(table) => println!("another process has {:?}", table.path()),
//!     Err(why) => println!("no table: {why}"),
//! }
//! ```

pub use neap_ranges::advice::{Advice, advise};
pub use neap_ranges::error::Error;
pub use neap_ranges::named::sweep;
pub use neap_ranges::prefault::{Incomplete, Prefault, Progress};
pub use neap_ranges::range::{Pages, Private, Range, Request, Shared};
pub use neap_ranges::resident::{Resident, Source, of as resident_in};
