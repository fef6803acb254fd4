//! The C functions that change user and groups of all threads. `libneap.so` alone has them: see `rights.rs` of
//! `neap-surface`. setfsuid and setfsgid are of one thread.

use core::ffi::{c_char, c_int};
use libc::{gid_t, uid_t};
use neap_surface::rights::{Name, change};

/// Exports functions that call the next one of their name while there is no helper.
macro_rules! exports {
    ($($(#[$doc:meta])* $name:ident($($parameter:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($parameter: $type),*) -> c_int {
            let mut arguments = [0; 3];
            arguments.iter_mut().zip([$($parameter as usize),*]).for_each(|(to, word)| *to = word);
            // SAFETY: the function's contract is the C library's, and these are its arguments.
            unsafe { change(Name::$name, arguments) }
        }
    )*};
}

exports! {
    /// POSIX: sets the effective user, with privileges also the real and the saved one.
    setuid(user: uid_t);
    /// POSIX: the same for the group.
    setgid(group: gid_t);
    /// POSIX: sets the effective user.
    seteuid(user: uid_t);
    /// POSIX: the same for the group.
    setegid(group: gid_t);
    /// POSIX: sets the real and the effective user.
    setreuid(real: uid_t, effective: uid_t);
    /// POSIX: the same for the group.
    setregid(real: gid_t, effective: gid_t);
    /// POSIX: sets the real, the effective and the saved user.
    setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    /// POSIX: the same for the group.
    setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    /// BSD: sets the supplementary groups.
    setgroups(count: usize, groups: *const gid_t);
    /// BSD: sets the supplementary groups to those of a user, and `group`.
    initgroups(user: *const c_char, group: gid_t);
}
