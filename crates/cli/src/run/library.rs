//! Puts the embedded `libneap.so` in a file that the dynamic linker can load.
//!
//! The place is `BASE/neap/lib/HASH/libneap.so` in the user's cache, shared by every start of this build. What
//! lies there already is used only if the directories are the user's own, nobody else can write them, and the
//! content is that of the embedded copy. Where there is no such place, the file goes to a directory of its
//! own that is removed after the program.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;

use super::private_dir::{PrivateDir, absolute_env, temporary_bases};
use crate::error::{Error, system_message};

/// The library.
static LIBRARY: &[u8] = include_bytes!(env!("NEAP_LIBRARY"));
/// The hash of [`LIBRARY`], as the build script computed it.
const HASH: &str = env!("NEAP_LIBRARY_HASH");
/// The file's name.
const FILE_NAME: &str = "libneap.so";
/// Readable and executable by all: a program that gives up its rights still loads it in what it starts.
const FILE_MODE: u32 = 0o555;

/// Where the library is.
#[derive(Debug)]
pub struct Placed {
    /// The path for LD_PRELOAD.
    pub path: PathBuf,
    /// The directory to remove when the program has ended.
    temporary: Option<PrivateDir>,
}

impl Placed {
    /// Whether the file goes away with this value, so that the caller must outlive the program.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }
}

/// Finds or makes the file.
pub fn place() -> Result<Placed, Error> {
    let mut reasons = Vec::new();
    for base in cache_bases(absolute_env("XDG_CACHE_HOME"), absolute_env("HOME"), absolute_env("XDG_RUNTIME_DIR")) {
        match place_in_cache(&base) {
            Ok(path) => return Ok(Placed { path, temporary: None }),
            Err(reason) => reasons.push(format!("{}: {reason}", base.display())),
        }
    }
    for base in temporary_bases() {
        match place_in_temporary(&base) {
            Ok(placed) => return Ok(placed),
            Err(reason) => reasons.push(format!("{}: {reason}", base.display())),
        }
    }
    Err(Error::failed(format!("there is no place for libneap.so: {}", reasons.join("; "))).remedy(
        "set XDG_CACHE_HOME or TMPDIR to a directory of yours with 1 MiB free, not mounted noexec, \
         without spaces, colons or dollar signs in its path",
    ))
}

/// The lasting places, best first.
fn cache_bases(cache: Option<PathBuf>, home: Option<PathBuf>, runtime: Option<PathBuf>) -> Vec<PathBuf> {
    cache.or_else(|| home.map(|home| home.join(".cache"))).into_iter().chain(runtime).collect()
}

/// Why a place cannot be used, for people.
type Reason = String;

fn reason(what: &str) -> impl Fn(Errno) -> Reason {
    move |errno| format!("{what}: {}", system_message(errno))
}

fn place_in_cache(base: &Path) -> Result<PathBuf, Reason> {
    check_path(base)?;
    let dir = open_base(base)?;
    check_mount(&dir)?;
    // In a base that others can write, they could exchange our directory for theirs after we looked at it.
    let stat = rustix::fs::fstat(&dir).map_err(reason("cannot look at it"))?;
    check_owner(&stat, true)?;
    let dir = enter(&dir, "neap")?;
    let dir = enter(&dir, "lib")?;
    let dir = enter(&dir, HASH)?;
    if !is_current(&dir) {
        write(&dir)?;
    }
    Ok(base.join("neap/lib").join(HASH).join(FILE_NAME))
}

fn place_in_temporary(base: &Path) -> Result<Placed, Reason> {
    check_path(base)?;
    let temporary = PrivateDir::create_in_one(base, "neap-lib")?;
    let dir = open_dir(rustix::fs::CWD, temporary.path()).map_err(reason("cannot open it"))?;
    check_mount(&dir)?;
    write(&dir)?;
    Ok(Placed { path: temporary.path().join(FILE_NAME), temporary: Some(temporary) })
}

/// The dynamic linker splits LD_PRELOAD at spaces and colons and expands dollar signs; it knows no quotes.
fn check_path(base: &Path) -> Result<(), Reason> {
    let special = base.as_os_str().as_bytes().iter().find(|b| matches!(b, b' ' | b':' | b'$' | b'\n' | b'\t'));
    match special {
        Some(&b) => Err(format!("{:?} in the path cannot be written in LD_PRELOAD", char::from(b))),
        None => Ok(()),
    }
}

fn open_dir(at: impl AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the base directory, which is made if only its last component is missing. It may be a symbolic link:
/// where the user keeps the cache is the user's business.
fn open_base(base: &Path) -> Result<OwnedFd, Reason> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(base, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            match rustix::fs::mkdir(base, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(reason("cannot make it")(errno)),
            }
            rustix::fs::open(base, flags, Mode::empty()).map_err(reason("cannot open it"))
        }
        opened => opened.map_err(reason("cannot open it")),
    }
}

fn check_mount(dir: &OwnedFd) -> Result<(), Reason> {
    let flags = rustix::fs::fstatvfs(dir).map_err(reason("cannot look at its file system"))?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err("its file system is mounted noexec".to_owned());
    }
    Ok(())
}

/// Nobody but the user (and root, where `or_root` says so) may own it, and nobody else may write it. A
/// directory with the sticky bit protects what is in it, if root owns it.
fn check_owner(stat: &Stat, or_root: bool) -> Result<(), Reason> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user && !(or_root && stat.st_uid == 0) {
        return Err(format!("it belongs to user {}, not to user {user}", stat.st_uid));
    }
    let sticky = or_root && stat.st_mode & 0o1000 != 0;
    if stat.st_mode & 0o022 != 0 && !sticky {
        return Err("others can write to it".to_owned());
    }
    Ok(())
}

/// Opens a directory of ours below `dir`, made if it is missing.
fn enter(dir: &OwnedFd, name: &str) -> Result<OwnedFd, Reason> {
    let opened = match open_dir(dir, name) {
        Err(Errno::NOENT) => {
            match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
                // Another start of neap may have been first.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(reason(&format!("cannot make {name} in it"))(errno)),
            }
            open_dir(dir, name)
        }
        opened => opened,
    };
    let opened = opened.map_err(|errno| match errno {
        // What openat says about a symbolic link, with and without O_DIRECTORY.
        Errno::LOOP | Errno::NOTDIR => format!("{name} in it is not a directory (a symbolic link is not followed)"),
        errno => reason(&format!("cannot open {name} in it"))(errno),
    })?;
    let stat = rustix::fs::fstat(&opened).map_err(reason("cannot look at it"))?;
    check_owner(&stat, false).map_err(|why| format!("{name} in it cannot be trusted: {why}"))?;
    Ok(opened)
}

/// Whether the file in `dir` is the embedded library, ours, and protected.
fn is_current(dir: &OwnedFd) -> bool {
    // NONBLOCK: a FIFO of that name must not hold us up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(dir, FILE_NAME, flags, Mode::empty()) else { return false };
    let Ok(stat) = rustix::fs::fstat(&file) else { return false };
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_mode & 0o777 == FILE_MODE
        && check_owner(&stat, false).is_ok()
        && u64::try_from(stat.st_size) == Ok(LIBRARY.len() as u64)
        && same_content(File::from(file), LIBRARY)
}

fn same_content(mut file: File, mut expected: &[u8]) -> bool {
    let mut buffer = [0u8; 16 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return expected.is_empty(),
            Ok(n) if n <= expected.len() && buffer[..n] == expected[..n] => expected = &expected[n..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}

/// Writes the file under another name, and gives it its own once its content is on the disk: whoever opens
/// it meanwhile finds the whole file or none.
fn write(dir: &OwnedFd) -> Result<(), Reason> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let name = format!(".{FILE_NAME}.{}.{now:x}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &*name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(reason("cannot make a file in it"))?;
    let result = fill(File::from(file)).and_then(|()| {
        rustix::fs::renameat(dir, &*name, dir, FILE_NAME).map_err(reason("cannot rename the file in it"))
    });
    if result.is_err() {
        let _ = rustix::fs::unlinkat(dir, &*name, AtFlags::empty());
        return result;
    }
    // Not for correctness: a start after a power failure writes the file again.
    let _ = rustix::fs::fsync(dir);
    Ok(())
}

fn fill(mut file: File) -> Result<(), Reason> {
    file.write_all(LIBRARY).map_err(|e| format!("cannot write the file ({} bytes): {e}", LIBRARY.len()))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(FILE_MODE)).map_err(reason("cannot set the file's mode"))?;
    rustix::fs::fsync(&file).map_err(reason("cannot write the file to the disk"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it exists").permissions().mode() & 0o7777
    }

    fn base() -> tempfile::TempDir {
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().expect("a directory")
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
    fn the_file_is_made_once_and_mended() {
        let base = base();
        let path = place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), LIBRARY);
        assert_eq!(mode(&path), 0o555);
        for dir in ["neap", "neap/lib"] {
            assert_eq!(mode(&base.path().join(dir)), 0o700);
        }
        let inode = fs::metadata(&path).expect("it exists").ino();
        assert_eq!(place_in_cache(base.path()).expect("placed"), path);
        assert_eq!(fs::metadata(&path).expect("it exists").ino(), inode, "the file was written again");

        let mut damaged = LIBRARY.to_vec();
        damaged[LIBRARY.len() / 2] ^= 1;
        fs::remove_file(&path).expect("removable");
        fs::write(&path, damaged).expect("writable");
        place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), LIBRARY);
        let left: Vec<_> = fs::read_dir(path.parent().expect("a directory")).expect("readable").collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    /// Catches an attacker's directory behind a symbolic link, and directories that others can write.
    #[test]
    fn untrusted_directories_are_refused() {
        let elsewhere = base();
        let linked = base();
        symlink(elsewhere.path(), linked.path().join("neap")).expect("a link");
        let why = place_in_cache(linked.path()).expect_err("a link");
        assert!(why.contains("not a directory"), "{why}");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("readable").count(), 0);

        let open = base();
        fs::create_dir(open.path().join("neap")).expect("a directory");
        fs::set_permissions(open.path().join("neap"), fs::Permissions::from_mode(0o777)).expect("chmod");
        let why = place_in_cache(open.path()).expect_err("writable by others");
        assert!(why.contains("others can write"), "{why}");

        let open_base = base();
        fs::set_permissions(open_base.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(place_in_cache(open_base.path()).is_err());
    }

    /// Catches a link or a FIFO in place of the file that is followed or waited for.
    #[test]
    fn odd_files_are_replaced() {
        let base = base();
        let path = place_in_cache(base.path()).expect("placed");
        fs::remove_file(&path).expect("removable");
        symlink("/etc/passwd", &path).expect("a link");
        place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), LIBRARY);
        fs::remove_file(&path).expect("removable");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).expect("a FIFO");
        place_in_cache(base.path()).expect("placed");
        assert_eq!(fs::read(&path).expect("readable"), LIBRARY);
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
        let placed = place_in_temporary(base.path()).expect("placed");
        assert!(placed.is_temporary());
        assert_eq!(fs::read(&placed.path).expect("readable"), LIBRARY);
        drop(placed);
        assert_eq!(fs::read_dir(base.path()).expect("readable").count(), 0);
    }
}
