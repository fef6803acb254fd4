//! Plain functions over system calls, and what neap knows about the system. Nothing here depends on the allocator.
//!
//! | question | module |
//! |---|---|
//! | Which system calls does more than one module make? | `call` |
//! | How is errno set and kept? | `errno` |
//! | How does a thread wait? | `wait` |
//! | What time is it? | `clock`, `vdso` |
//! | What do the kernel's text files say? | `lines` |
//! | May an unusual call be made? | `filter` |
//! | Which features does the kernel have, and what is done without them? | `probe` |
//! | Where do random numbers come from? | `random` |
//! | What is known about this address space alone? | `space` |
//! | How is memory mapped? | `map` |
//! | Which of neap's memory is locked, and in core dumps? | `locked` |
//! | How does memory go back, and how is it populated? | `purge` |
//! | How is memory moved or replaced? | `moves` |
//! | How does a range get huge pages: transparent ones, or those of the pool? | `huge`, `pool` |
//! | What does PAGEMAP_SCAN say of a range? | `scan` |
//! | Which OS pages hold memory? | `touched` |
//! | Does a thread still live? | `alive` |
//! | How do all threads pass a barrier? | `barrier` |
//! | How much memory may the process use? | `cgroup` |

pub mod alive;
pub mod barrier;
pub mod call;
pub mod cgroup;
pub mod clock;
pub mod errno;
pub mod filter;
pub mod huge;
pub mod lines;
pub mod locked;
pub mod map;
pub mod moves;
pub mod pool;
pub mod probe;
pub mod purge;
pub mod random;
pub mod scan;
pub mod space;
pub mod touched;
mod vdso;
pub mod wait;
