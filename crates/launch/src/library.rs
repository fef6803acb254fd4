//! Puts an embedded library in a file that the dynamic linker can load.
//!
//! The file is `BASE/neap/lib/HASH/NAME` in the user's cache, shared by every run of this build. An existing file is
//! used only if the directories belong to the user, no other user can write them, and the file is the one that this
//! build wrote, unchanged since. Each directory is checked before anything in it is used. Because no other user can
//! change its entries from then on, paths are as safe as descriptors. If there is no such place, the file goes to a
//! separate directory that is removed after the program.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, system_message};
use crate::private_dir::{PrivateDir, absolute_env, temporary_bases};
use crate::sys::{self, Identity};

/// A library that is embedded in the command.
pub struct Library {
    /// The file's name.
    name: &'static str,
    bytes: &'static [u8],
    /// The hash of `bytes`, as the build script computed it.
    pub hash: &'static str,
}

/// `libneap.so`: the allocator.
pub static NEAP: Library =
    Library { name: "libneap.so", bytes: include_bytes!(env!("NEAP_LIBRARY")), hash: env!("NEAP_LIBRARY_HASH") };
/// `libneap_instrument.so`: records the calls of instrumented programs.
pub static INSTRUMENT: Library = Library {
    name: "libneap_instrument.so",
    bytes: include_bytes!(env!("NEAP_INSTRUMENT")),
    hash: env!("NEAP_INSTRUMENT_HASH"),
};
/// Readable and executable by all: a program that gives up its rights must still be able to load it into its children.
const FILE_MODE: u32 = 0o555;

/// How often a build marks its use.
const MARK: Duration = Duration::from_hours(24);
/// How long the library of an unused build stays: programs that it started may run for long, and start others.
const UNUSED: Duration = Duration::from_hours(24 * 60);

/// Time since a directory was changed or marked; `None` where that is unknown.
fn age(dir: &Path) -> Option<Duration> {
    fs::symlink_metadata(dir).ok()?.modified().ok()?.elapsed().ok()
}

/// The place of the library.
#[derive(Debug)]
pub struct Placed {
    /// The path for LD_PRELOAD.
    pub path: PathBuf,
    /// The directory to remove when the program has ended.
    temporary: Option<PrivateDir>,
}

impl Placed {
    /// Whether the file is removed with this value, so that the caller must outlive the program.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }
}

impl Library {
    /// Finds or writes the file.
    pub fn place(&self) -> Result<Placed, Error> {
        let mut reasons = Vec::new();
        for base in cache_bases(absolute_env("XDG_CACHE_HOME"), absolute_env("HOME"), absolute_env("XDG_RUNTIME_DIR")) {
            match self.place_in_cache(&base) {
                Ok(path) => return Ok(Placed { path, temporary: None }),
                Err(reason) => reasons.push(format!("{}: {reason}", base.display())),
            }
        }
        for base in temporary_bases() {
            match self.place_in_temporary(&base) {
                Ok(placed) => return Ok(placed),
                Err(reason) => reasons.push(format!("{}: {reason}", base.display())),
            }
        }
        Err(Error::failed(format!("there is no place for {}: {}", self.name, reasons.join("; "))).remedy(
            "set XDG_CACHE_HOME or TMPDIR to a directory of yours with 4 MiB free, not mounted noexec, \
             without spaces, colons or dollar signs in its path",
        ))
    }

    fn place_in_cache(&self, base: &Path) -> Result<PathBuf, Reason> {
        check_path(base)?;
        let metadata = match fs::metadata(base) {
            // Made if only its last component is missing. It may be a symbolic link: where the user keeps the cache is
            // the user's choice.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_directory(base)?;
                fs::metadata(base)
            }
            looked => looked,
        };
        let metadata = metadata.map_err(reason("cannot look at it"))?;
        if !metadata.is_dir() {
            return Err("it is not a directory".to_owned());
        }
        // In a base that others can write, they could replace our directory after the check.
        check_owner(&metadata, true)?;
        check_mount(base)?;
        let mut dir = base.to_owned();
        for name in ["neap", "lib", self.hash] {
            dir.push(name);
            check_directory(&dir).map_err(|why| format!("{}: {why}", dir.display()))?;
        }
        let file = dir.join(self.name);
        let missing = !self.is_current(&file);
        if missing {
            self.write(&dir)?;
        }
        // Once a day each build marks its use, and removes builds that are no longer used.
        if missing || age(&dir).is_none_or(|age| age > MARK) {
            let _ = File::open(&dir).and_then(|dir| dir.set_modified(SystemTime::now()));
            self.remove_unused(dir.parent().unwrap_or(&dir));
        }
        Ok(file)
    }

    /// Removes the libraries of other builds that were not used for [`UNUSED`]. Errors are ignored.
    fn remove_unused(&self, libraries: &Path) {
        let Ok(entries) = fs::read_dir(libraries) else { return };
        for entry in entries.filter_map(Result::ok) {
            let (path, name) = (entry.path(), entry.file_name());
            let hash = name.len() == self.hash.len() && name.as_bytes().iter().all(u8::is_ascii_hexdigit);
            let other = ![NEAP.hash, INSTRUMENT.hash].iter().any(|own| name == *own);
            if hash && other && entry.file_type().is_ok_and(|kind| kind.is_dir()) && age(&path) > Some(UNUSED) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }

    fn place_in_temporary(&self, base: &Path) -> Result<Placed, Reason> {
        check_path(base)?;
        check_mount(base)?;
        let temporary = PrivateDir::create_in_one(base, "neap-lib")?;
        self.write(temporary.path())?;
        Ok(Placed { path: temporary.path().join(self.name), temporary: Some(temporary) })
    }

    /// Whether the file is the embedded library, ours, and protected. Reading all of it at every start would cost more
    /// than the rest of the start; instead the modification time identifies it: it is set to a value of this build once
    /// the content is complete, and any later write changes it.
    fn is_current(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|metadata| {
            metadata.is_file()
                && metadata.mode() & 0o777 == FILE_MODE
                && metadata.len() == self.bytes.len() as u64
                && metadata.modified().is_ok_and(|time| time == self.seal())
                && check_owner(&metadata, false).is_ok()
        })
    }

    /// The modification time of a complete file: a time derived from the content's hash.
    fn seal(&self) -> SystemTime {
        let seconds = u32::from_str_radix(&self.hash[..7], 16).expect("the hash is hexadecimal");
        UNIX_EPOCH + Duration::from_secs(u64::from(seconds))
    }

    /// Writes the file under a temporary name, and renames it once its content is on disk: a reader that opens it
    /// meanwhile finds the complete file or none.
    fn write(&self, dir: &Path) -> Result<(), Reason> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let partial = dir.join(format!(".{}.{}.{now:x}", self.name, std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
        let result = self
            .fill(file.map_err(reason("cannot make a file in it"))?)
            .and_then(|()| fs::rename(&partial, dir.join(self.name)).map_err(reason("cannot rename the file in it")));
        if result.is_err() {
            let _ = fs::remove_file(&partial);
            return result;
        }
        // The name may be lost in a power failure; the next start then writes the file again.
        Ok(())
    }

    fn fill(&self, mut file: File) -> Result<(), Reason> {
        sys::with_size_errors(|| file.write_all(self.bytes))
            .map_err(reason(&format!("cannot write the file ({} bytes)", self.bytes.len())))?;
        file.set_permissions(Permissions::from_mode(FILE_MODE)).map_err(reason("cannot set the file's mode"))?;
        file.set_modified(self.seal()).map_err(reason("cannot set the file's time"))?;
        file.sync_all().map_err(reason("cannot write the file to the disk"))
    }
}

/// The permanent places, best first.
fn cache_bases(cache: Option<PathBuf>, home: Option<PathBuf>, runtime: Option<PathBuf>) -> Vec<PathBuf> {
    cache.or_else(|| home.map(|home| home.join(".cache"))).into_iter().chain(runtime).collect()
}

/// Why a place cannot be used, as text.
type Reason = String;

fn reason(what: &str) -> impl Fn(io::Error) -> Reason {
    move |error| format!("{what}: {}", system_message(&error))
}

fn make_directory(path: &Path) -> Result<(), Reason> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(reason("cannot make it")(error)),
        // Another start of neap may have been faster.
        _ => Ok(()),
    }
}

/// The dynamic linker splits LD_PRELOAD at spaces and colons and expands dollar signs; it has no quoting.
fn check_path(base: &Path) -> Result<(), Reason> {
    let special = base.as_os_str().as_bytes().iter().find(|b| matches!(b, b' ' | b':' | b'$' | b'\n' | b'\t'));
    match special {
        Some(&b) => Err(format!("{:?} in the path cannot be written in LD_PRELOAD", char::from(b))),
        None => Ok(()),
    }
}

fn check_mount(dir: &Path) -> Result<(), Reason> {
    match sys::mount_flags(dir) {
        Ok(flags) if flags.noexec => Err("its file system is mounted noexec".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(reason("cannot look at its file system")(error)),
    }
}

/// Only the user (and root, with `or_root`) may own it, and no other user may write it. A base with the sticky bit
/// (/tmp) protects its entries.
fn check_owner(metadata: &Metadata, or_root: bool) -> Result<(), Reason> {
    let (user, owner) = (Identity::current().euid, metadata.uid());
    if owner != user && !(or_root && owner == 0) {
        return Err(format!("it belongs to user {owner}, not to user {user}"));
    }
    let sticky = or_root && metadata.mode() & 0o1000 != 0;
    if metadata.mode() & 0o022 != 0 && !sticky {
        return Err("others can write to it".to_owned());
    }
    Ok(())
}

/// Checks that `dir`, in a directory that was checked, is a directory of ours; makes it if it is missing.
fn check_directory(dir: &Path) -> Result<(), Reason> {
    let metadata = match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_directory(dir)?;
            fs::symlink_metadata(dir)
        }
        looked => looked,
    };
    let metadata = metadata.map_err(reason("cannot look at it"))?;
    if !metadata.is_dir() {
        return Err("it is not a directory (a symbolic link is not followed)".to_owned());
    }
    check_owner(&metadata, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it exists").permissions().mode() & 0o7777
    }

    fn base() -> PrivateDir {
        crate::private_dir::for_test()
    }

    /// Catches debug information in the copy, which is four fifths of it: the command must have at most 8 MB.
    #[test]
    fn the_copies_are_small() {
        assert!(NEAP.bytes.len() < 900_000 && INSTRUMENT.bytes.len() < 50_000);
    }

    /// Catches a wrong order of places and relative paths.
    #[test]
    fn places_are_tried_in_order() {
        let path = |s: &str| Some(PathBuf::from(s));
        assert_eq!(cache_bases(path("/c"), path("/h"), path("/r")), [Path::new("/c"), Path::new("/r")]);
        assert_eq!(cache_bases(None, path("/h"), None), [Path::new("/h/.cache")]);
        assert!(cache_bases(None, None, None).is_empty());
    }

    /// Catches wrong modes, a second copy on the second start, and a damaged file that is used.
    #[test]
    fn the_file_is_made_once_and_repaired() {
        let base = base();
        let path = NEAP.place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), NEAP.bytes);
        assert_eq!(mode(&path), 0o555);
        for dir in ["neap", "neap/lib"] {
            assert_eq!(mode(&base.path().join(dir)), 0o700);
        }
        let inode = fs::metadata(&path).expect("it exists").ino();
        assert_eq!(NEAP.place_in_cache(base.path()).expect("placed"), path);
        assert_eq!(fs::metadata(&path).expect("it exists").ino(), inode, "the file was written again");

        let mut damaged = NEAP.bytes.to_vec();
        damaged[NEAP.bytes.len() / 2] ^= 1;
        fs::remove_file(&path).expect("removable");
        fs::write(&path, damaged).expect("writable");
        NEAP.place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), NEAP.bytes);
        let left: Vec<_> = fs::read_dir(path.parent().expect("a directory")).expect("readable").collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    /// Catches libraries of old builds that stay for ever, those of builds in use that are removed, and other files.
    #[test]
    fn libraries_of_old_builds_are_removed() {
        let base = base();
        let libraries = base.path().join("neap/lib");
        fs::create_dir_all(&libraries).expect("directories");
        fs::set_permissions(base.path().join("neap"), Permissions::from_mode(0o700)).expect("chmod");
        fs::set_permissions(&libraries, Permissions::from_mode(0o700)).expect("chmod");
        let hash = |digit: &str| digit.repeat(NEAP.hash.len());
        let old = SystemTime::now() - UNUSED - MARK;
        for (name, time) in [(hash("a"), old), (hash("b"), SystemTime::now()), ("notes".to_owned(), old)] {
            fs::create_dir(libraries.join(&name)).expect("a directory");
            fs::write(libraries.join(&name).join("libneap.so"), "").expect("a file");
            File::open(libraries.join(&name)).and_then(|dir| dir.set_modified(time)).expect("a time");
        }
        let left = || {
            let names = fs::read_dir(&libraries).expect("readable").map(|entry| entry.expect("one").file_name());
            let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let mut expected = vec![hash("b"), "notes".to_owned(), NEAP.hash.to_owned()];
        expected.sort();
        let path = NEAP.place_in_cache(base.path()).expect("placed");
        assert_eq!(left(), expected);
        // This build also marks its use, once a day.
        let own = path.parent().expect("a directory");
        File::open(own).and_then(|dir| dir.set_modified(old)).expect("a time");
        NEAP.place_in_cache(base.path()).expect("placed");
        assert!(age(own) < Some(MARK));
    }

    /// Catches an attacker's directory behind a symbolic link, and directories that others can write.
    #[test]
    fn untrusted_directories_are_refused() {
        let elsewhere = base();
        let linked = base();
        symlink(elsewhere.path(), linked.path().join("neap")).expect("a link");
        let why = NEAP.place_in_cache(linked.path()).expect_err("a link");
        assert!(why.contains("not a directory"), "{why}");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("readable").count(), 0);

        let open = base();
        fs::create_dir(open.path().join("neap")).expect("a directory");
        fs::set_permissions(open.path().join("neap"), Permissions::from_mode(0o777)).expect("chmod");
        let why = NEAP.place_in_cache(open.path()).expect_err("writable by others");
        assert!(why.contains("others can write"), "{why}");

        let open_base = base();
        fs::set_permissions(open_base.path(), Permissions::from_mode(0o777)).expect("chmod");
        assert!(NEAP.place_in_cache(open_base.path()).is_err());
    }

    /// Catches a link or a FIFO in place of the file that is followed or blocks.
    #[test]
    fn odd_files_are_replaced() {
        let base = base();
        let path = NEAP.place_in_cache(base.path()).expect("placed");
        fs::remove_file(&path).expect("removable");
        symlink("/etc/passwd", &path).expect("a link");
        NEAP.place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), NEAP.bytes);
        fs::remove_file(&path).expect("removable");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        NEAP.place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), NEAP.bytes);
    }

    /// Catches paths that the dynamic linker would split or expand.
    #[test]
    fn paths_that_cannot_be_preloaded_are_refused() {
        for path in ["/a b", "/a:b", "/$ORIGIN"] {
            assert!(check_path(Path::new(path)).is_err(), "{path}");
        }
        assert!(check_path(Path::new("/home/ä/.cache")).is_ok());
    }

    /// Catches a temporary directory that stays.
    #[test]
    fn a_temporary_place_is_removed() {
        let base = base();
        let placed = NEAP.place_in_temporary(base.path()).expect("placed");
        assert!(placed.is_temporary());
        assert_eq!(fs::read(&placed.path).expect("readable"), NEAP.bytes);
        drop(placed);
        assert_eq!(fs::read_dir(base.path()).expect("readable").count(), 0);
    }
}
