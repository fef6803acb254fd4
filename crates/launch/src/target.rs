//! Finds the program as execvp would and examines it, so that what cannot work fails before anything runs.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::ReadCache;

use crate::elf::{self, Loadable, Refusal};
use crate::environment::{LD_PRELOAD, preload_entries};
use crate::error::{Error, NOT_FOUND, system_message};
use crate::sanitizer::Sanitizer;
use crate::sys::{self, Identity};

/// Where execvp searches when PATH is not set (confstr's _CS_PATH).
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Limit on the levels of interpreters that the kernel follows.
const MAX_SCRIPTS: usize = 5;
/// Bytes of a script's first line that the kernel reads.
const HEAD_BYTES: usize = 256;

/// The path of the program that execvp would run. A script whose interpreter is missing is refused: for `#!/usr/bin/env
/// X` the failure would be that of env, which does not name the script.
pub fn resolve(command: &OsStr) -> Result<PathBuf, Error> {
    let path = find(command)?;
    match follow(&path, |_, _| Ok(())) {
        Err(error) if error.status() == NOT_FOUND => Err(error),
        // The kernel decides about all other formats: it may have a handler for one.
        _ => Ok(path),
    }
}

fn find(command: &OsStr) -> Result<PathBuf, Error> {
    resolve_in(command, std::env::var_os("PATH").as_deref())
}

fn resolve_in(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let shown = command.display();
    if command.is_empty() {
        return Err(Error::not_found("cannot run ``: the name is empty"));
    }
    if command.as_bytes().contains(&b'/') {
        let candidate = PathBuf::from(command);
        return match executable(&candidate) {
            Ok(()) => Ok(candidate),
            Err(error) => Err(cannot_execute(&candidate, &error)),
        };
    }
    let mut refused: Option<(PathBuf, io::Error)> = None;
    for dir in path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes().split(|&b| b == b':') {
        // An empty element is the current directory.
        let dir = if dir.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(dir) };
        let candidate = Path::new(dir).join(command);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                refused.get_or_insert((candidate, error));
            }
        }
    }
    match refused {
        Some((candidate, error)) => Err(cannot_execute(&candidate, &error)),
        None => Err(Error::not_found(format!("cannot run {shown}: not found in PATH"))
            .remedy("check the spelling, or give the path of the program")),
    }
}

/// The error that execve would return before it reads the file.
fn executable(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    sys::may_execute(path)
}

/// The error for a program that cannot be executed, or does not exist.
fn cannot_execute(path: &Path, error: &io::Error) -> Error {
    let shown = path.display();
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(format!("cannot run {shown}: no such file")),
        ErrorKind::IsADirectory => Error::cannot_run(format!("cannot run {shown}: it is a directory")),
        ErrorKind::PermissionDenied => {
            let error = Error::cannot_run(format!("cannot run {shown}: permission denied"));
            match fs::metadata(path) {
                Ok(metadata) if metadata.is_file() && metadata.mode() & 0o111 == 0 => {
                    error.remedy(format!("make it executable: chmod +x {shown}"))
                }
                Ok(_) if sys::mount_flags(path).unwrap_or_default().noexec => {
                    error.remedy("its file system is mounted noexec; copy the program elsewhere")
                }
                _ => error,
            }
        }
        _ => Error::cannot_run(format!("cannot run {shown}: {}", system_message(error))),
    }
}

/// Examines the program, its interpreters if it is a script, and what is preloaded already: can the library be loaded
/// into it?
pub fn inspect(path: &Path) -> Result<(), Error> {
    follow(path, inspect_elf)?;
    let preloaded = std::env::var_os(LD_PRELOAD).unwrap_or_default();
    match sanitizer_among(&preloaded) {
        Some((library, sanitizer)) => Err(Error::cannot_run(format!(
            "cannot run {} under neap: {LD_PRELOAD} has {}, the runtime of {}, which works only with its own malloc",
            path.display(),
            library.display(),
            sanitizer.name
        ))
        .remedy(format!("run it without neap, or take the runtime out of {LD_PRELOAD}"))),
        None => Ok(()),
    }
}

/// How the program of a running process was linked, as far as its file says that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// libneap.so can be loaded into it, or its file cannot be read.
    Open,
    /// It is static: no dynamic linker, and no library that could be preloaded.
    Static,
    /// libneap.so cannot be loaded into it for another reason.
    Closed,
}

/// The same rules as those of [`inspect`], except that the dynamic linker may be in another mount namespace.
pub fn linked(program: &Path) -> Linked {
    let Ok(file) = File::open(program) else { return Linked::Open };
    match elf::inspect(&ReadCache::new(file)) {
        Err(Refusal::Static { .. }) => Linked::Static,
        Err(_) => Linked::Closed,
        Ok(_) if secure_execution(program).is_some() => Linked::Closed,
        Ok(_) => Linked::Open,
    }
}

/// The runtime of a sanitizer in a list of libraries to preload.
fn sanitizer_among(list: &OsStr) -> Option<(&Path, &'static Sanitizer)> {
    preload_entries(list).map(|entry| Path::new(OsStr::from_bytes(entry))).find_map(|path| {
        let name = path.file_name()?;
        Some((path, Sanitizer::of_library(name.as_bytes())?))
    })
}

/// Why the kernel cannot execute a file that it may execute, as far as that is known.
pub fn obstacle(path: &Path) -> Option<Error> {
    let linked = |path: &Path, file: &File| match elf::inspect(&ReadCache::new(file)) {
        Ok(Loadable::Interpreter(linker)) | Err(Refusal::OtherLibc(linker)) => check_linker(path, &linker),
        _ => Ok(()),
    };
    follow(path, linked).err()
}

/// The program at the end of a script's interpreters, or the file itself if it is a program.
pub(crate) fn program_of(path: &Path) -> Option<File> {
    let last = std::cell::RefCell::new(None);
    let keep = |_: &Path, file: &File| {
        last.replace(file.try_clone().ok());
        Ok(())
    };
    follow(path, keep).ok()?;
    let mut file = last.into_inner()?;
    file.rewind().ok()?;
    Some(file)
}

/// Follows a script to its interpreters, and calls `judge` for the program at the end.
fn follow(path: &Path, judge: impl Fn(&Path, &File) -> Result<(), Error>) -> Result<(), Error> {
    let mut path = path.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        // Execute permission without read permission: the kernel can run it, but neap cannot examine it.
        let Ok(file) = File::open(&path) else { return Ok(()) };
        let mut head = Vec::with_capacity(HEAD_BYTES);
        (&file)
            .take(HEAD_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(|e| Error::cannot_run(format!("cannot read {}: {e}", path.display())))?;
        if head.starts_with(b"\x7fELF") {
            return judge(&path, &file);
        }
        let Some(script) = Script::parse(&head) else {
            return Err(no_format(&path));
        };
        executable(&script.interpreter).map_err(|e| script_error(&path, &script.interpreter, &e))?;
        path = match script.command_of_env() {
            // env itself can be preloaded; what matters is the program that it becomes.
            Some(command) => {
                if let Ok(file) = File::open(&script.interpreter) {
                    judge(&script.interpreter, &file)?;
                }
                find(&command).map_err(|error| named_by_env(&path, &command, error))?
            }
            None => script.interpreter,
        };
    }
    Err(Error::cannot_run(format!("cannot run {}: too many levels of interpreters", path.display()))
        .remedy("correct the first line of the script"))
}

/// The error for a file that is neither ELF nor a script with an interpreter line.
fn no_format(path: &Path) -> Error {
    let shown = path.display();
    Error::cannot_run(format!("cannot run {shown}: neither an ELF program nor a script with a #! line"))
        .remedy(format!("if it is a shell script, name its shell: sh {shown}"))
}

fn script_error(script: &Path, interpreter: &Path, error: &io::Error) -> Error {
    let (script, interpreter) = (script.display(), interpreter.display());
    let cause = format!("cannot run {script}: its interpreter {interpreter}: {}", system_message(error));
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(cause),
        _ => Error::cannot_run(cause),
    }
    .remedy("correct the first line of the script")
}

/// The error for an interpreter that `env` does not find: it names the script too.
fn named_by_env(script: &Path, command: &OsStr, error: Error) -> Error {
    if error.status() != NOT_FOUND {
        return error;
    }
    let place = if command.as_bytes().contains(&b'/') { "" } else { " in PATH" };
    let (script, command) = (script.display(), command.display());
    Error::not_found(format!("cannot run {script}: its interpreter {command} is not found{place}"))
        .remedy(format!("install {command}, or correct the first line of the script"))
}

/// The error for a missing dynamic linker.
fn check_linker(program: &Path, linker: &Path) -> Result<(), Error> {
    executable(linker).map_err(|error| {
        let (program, linker) = (program.display(), linker.display());
        let message = system_message(&error);
        Error::not_found(format!("cannot run {program}: its dynamic linker {linker}: {message}"))
            .remedy("install the C library that the program was built for")
    })
}

fn inspect_elf(path: &Path, file: &File) -> Result<(), Error> {
    let shown = path.display();
    if let Some(why) = secure_execution(path) {
        return Err(Error::cannot_run(format!(
            "cannot run {shown} under neap: {why}, and the dynamic linker ignores LD_PRELOAD in such programs"
        ))
        .remedy("run neap inside, as the other user: sudo neap run -- PROGRAM, not neap run -- sudo PROGRAM"));
    }
    let refused = match elf::inspect(&ReadCache::new(file)) {
        Ok(Loadable::DynamicLinker) => return Ok(()),
        Ok(Loadable::Interpreter(linker)) => {
            return check_linker(path, &linker);
        }
        Err(refused) => refused,
    };
    Err(match refused {
        Refusal::Static { pie } => Error::cannot_run(format!(
            "cannot run {shown} under neap: it is statically linked{}, so no dynamic linker loads libneap.so",
            if pie { " (static-pie)" } else { "" }
        ))
        .remedy("use a dynamically linked build of it, or link libneap.a into it"),
        Refusal::OtherMachine(machine) => Error::cannot_run(format!(
            "cannot run {shown} under neap: it is a program for {machine}, and this neap is for {}",
            std::env::consts::ARCH
        ))
        .remedy("use a neap that was built for that processor"),
        Refusal::OtherLibc(linker) => Error::cannot_run(format!(
            "cannot run {shown} under neap: its C library is neither glibc nor musl (its dynamic linker is {})",
            linker.display()
        ))
        .remedy("use a build of the program for glibc or musl"),
        Refusal::Sanitized(sanitizer) => Error::cannot_run(format!(
            "cannot run {shown} under neap: it is built with {}, which works only with its own malloc",
            sanitizer.name
        ))
        .remedy("run it without neap, or build it without -fsanitize"),
        Refusal::NotAProgram(what) => Error::cannot_run(format!("cannot run {shown}: it is {what}, not a program")),
        Refusal::Malformed(why) => Error::cannot_run(format!("cannot run {shown}: it is a damaged ELF file ({why})")),
    })
}

/// Why the kernel would start this file in secure-execution mode, if it would: the rules of cap_bprm_creds_from_file,
/// based on this process's real and effective identity.
pub fn secure_execution(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let identity = Identity::current();
    let mut buffer = [0u8; 32];
    // Most files have no such attribute: ENODATA. File systems without attributes: ENOTSUP.
    let has_capabilities = sys::attribute(path, c"security.capability", &mut buffer).is_ok_and(grants_capabilities);
    if metadata.mode() & 0o6000 == 0 && !has_capabilities && identity.is_plain() {
        return None;
    }
    // Set-id bits and file capabilities have no effect on a nosuid mount or for a process that gave them up.
    let inert = sys::mount_flags(path).unwrap_or_default().nosuid || sys::no_new_privs();
    secure_reason(&metadata.into(), has_capabilities, identity, inert)
}

/// The part of a file's metadata that determines the identity of the program.
#[derive(Clone, Copy)]
struct Ownership {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl From<Metadata> for Ownership {
    fn from(metadata: Metadata) -> Self {
        Self { mode: metadata.mode(), uid: metadata.uid(), gid: metadata.gid() }
    }
}

fn secure_reason(file: &Ownership, has_capabilities: bool, id: Identity, inert: bool) -> Option<String> {
    let (mut euid, mut egid) = (id.euid, id.egid);
    if !inert && file.mode & 0o4000 != 0 {
        euid = file.uid;
    }
    // Set-group-id without group execution once meant mandatory locking and changes no identity.
    if !inert && file.mode & 0o2010 == 0o2010 {
        egid = file.gid;
    }
    if euid != id.uid {
        return Some(format!("it runs as user {euid} (set-user-id)"));
    }
    if egid != id.gid {
        return Some(format!("it runs as group {egid} (set-group-id)"));
    }
    if !inert && has_capabilities && id.uid != 0 {
        return Some("it has file capabilities".to_owned());
    }
    None
}

/// Whether a security.capability attribute (struct vfs_cap_data, little-endian) grants anything: the
/// effective flag, or a permitted capability.
fn grants_capabilities(data: &[u8]) -> bool {
    let word = |i: usize| data.get(4 * i..4 * i + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    const EFFECTIVE: u32 = 1;
    // magic, permitted (low), inheritable (low), permitted (high), inheritable (high)
    word(0) & EFFECTIVE != 0 || word(1) != 0 || word(3) != 0
}

/// The first line of a script, as the kernel splits it: an interpreter and at most one argument.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    interpreter: PathBuf,
    argument: Option<OsString>,
}

impl Script {
    fn parse(head: &[u8]) -> Option<Self> {
        let line = head.strip_prefix(b"#!")?;
        let line = line.split(|&b| b == b'\n' || b == 0).next()?;
        let blank = |b: &u8| matches!(b, b' ' | b'\t');
        let line = trim(line, blank);
        let end = line.iter().position(blank).unwrap_or(line.len());
        let (interpreter, argument) = line.split_at(end);
        if interpreter.is_empty() {
            return None;
        }
        let argument = trim(argument, blank);
        Some(Self {
            interpreter: PathBuf::from(OsStr::from_bytes(interpreter)),
            argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
        })
    }

    /// The command that env(1) would look up, when the interpreter is env and its argument is understood.
    fn command_of_env(&self) -> Option<OsString> {
        if self.interpreter.file_name()? != "env" {
            return None;
        }
        let argument = self.argument.as_ref()?.as_bytes();
        let split = argument.strip_prefix(b"-S").or_else(|| argument.strip_prefix(b"--split-string="));
        let words: Vec<&[u8]> = match split {
            Some(rest) => rest.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).collect(),
            None => vec![argument],
        };
        // Options of env without a value are skipped; any other option ends the guess, and so does a value for PATH.
        if words.iter().any(|word| word.starts_with(b"PATH=")) {
            return None;
        }
        let command = words.into_iter().find(|w| !(w.contains(&b'=') || matches!(*w, b"-i" | b"-" | b"--")))?;
        let plain = !command.starts_with(b"-") && !command.iter().any(|b| b"'\"\\$".contains(b));
        plain.then(|| OsString::from_vec(command.to_vec()))
    }
}

fn trim(bytes: &[u8], blank: impl Fn(&u8) -> bool) -> &[u8] {
    let start = bytes.iter().position(|b| !blank(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !blank(b)).map_or(start, |i| i + 1);
    &bytes[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_dir;

    fn script(head: &[u8]) -> (String, Option<String>) {
        let script = Script::parse(head).expect("a script");
        let argument = script.argument.map(|a| a.to_str().expect("UTF-8").to_owned());
        (script.interpreter.to_str().expect("UTF-8").to_owned(), argument)
    }

    /// Catches a split of the #! line that differs from the kernel's.
    #[test]
    fn interpreter_lines_are_split_as_the_kernel_does() {
        assert_eq!(script(b"#!/bin/sh\necho"), ("/bin/sh".into(), None));
        assert_eq!(script(b"#! \t/bin/sh -e -x \nx"), ("/bin/sh".into(), Some("-e -x".into())));
        assert_eq!(script(b"#!/usr/bin/env python3"), ("/usr/bin/env".into(), Some("python3".into())));
        assert_eq!(Script::parse(b"#!\n"), None);
        assert_eq!(Script::parse(b"echo hello\n"), None);
    }

    /// Catches a script whose real program is not examined, and options of env that count as the program.
    #[test]
    fn the_command_of_env_is_found() {
        let command = |head: &[u8]| Script::parse(head).and_then(|s| s.command_of_env());
        assert_eq!(command(b"#!/usr/bin/env python3\n"), Some("python3".into()));
        assert_eq!(command(b"#!/usr/bin/env -S python3 -u\n"), Some("python3".into()));
        assert_eq!(command(b"#!/usr/bin/env -S A=1 B=2 perl -w\n"), Some("perl".into()));
        assert_eq!(command(b"#!/usr/bin/env -S -i perl\n"), Some("perl".into()));
        assert_eq!(command(b"#!/usr/bin/env -S -u HOME perl\n"), None);
        assert_eq!(command(b"#!/usr/bin/env -S PATH=/opt/bin perl\n"), None);
        assert_eq!(command(b"#!/usr/bin/env -S \"my prog\"\n"), None);
        assert_eq!(command(b"#!/bin/sh env\n"), None);
    }

    /// Catches a search that stops at the wrong candidate.
    #[test]
    fn the_search_is_that_of_execvp() {
        let dir = private_dir::for_test();
        let make = |sub: &str, mode: u32| {
            use std::os::unix::fs::PermissionsExt;
            let sub = dir.path().join(sub);
            std::fs::create_dir_all(&sub).expect("a directory");
            std::fs::write(sub.join("prog"), "#!/bin/sh\n").expect("a file");
            std::fs::set_permissions(sub.join("prog"), std::fs::Permissions::from_mode(mode)).expect("chmod");
            sub
        };
        let (plain, good) = (make("plain", 0o644), make("good", 0o755));
        let missing = dir.path().join("missing");
        let directory = dir.path().join("directory");
        std::fs::create_dir_all(directory.join("prog")).expect("a directory");
        let find = |dirs: &[&Path]| {
            let path = std::env::join_paths(dirs).expect("no colons");
            resolve_in(OsStr::new("prog"), Some(&path))
        };
        assert_eq!(find(&[&missing, &directory, &plain, &good]).expect("found"), good.join("prog"));
        assert_eq!(find(&[&plain, &missing]).expect_err("not executable").status(), 126);
        assert_eq!(find(&[&missing]).expect_err("missing").status(), 127);
        assert_eq!(resolve_in(OsStr::new("sh"), None).expect("in the default path"), Path::new("/bin/sh"));
    }

    /// Catches set-id programs that lose the library silently, and refusals where the bits change nothing.
    #[test]
    fn secure_execution_follows_the_kernel() {
        let mut file = Ownership { mode: 0o100755, uid: 0, gid: 0 };
        let user = Identity { uid: 1000, euid: 1000, gid: 1000, egid: 1000 };
        let root = Identity { uid: 0, euid: 0, gid: 0, egid: 0 };
        assert!(secure_reason(&file, false, user, false).is_none());
        assert!(secure_reason(&file, true, user, false).is_some());
        assert!(secure_reason(&file, true, root, false).is_none());
        assert!(secure_reason(&file, true, user, true).is_none());
        file.mode = 0o104755;
        assert!(secure_reason(&file, false, user, false).is_some());
        assert!(secure_reason(&file, false, root, false).is_none());
        assert!(secure_reason(&file, false, user, true).is_none());
        file.mode = 0o102755;
        assert!(secure_reason(&file, false, user, false).is_some());
        file.mode = 0o102745;
        assert!(secure_reason(&file, false, user, false).is_none());
        let raised = Identity { euid: 0, ..user };
        file.mode = 0o100755;
        assert!(secure_reason(&file, false, raised, false).is_some());
    }

    /// Catches capability sets that are misread.
    #[test]
    fn capability_attributes_are_read() {
        let attribute = |words: [u32; 5]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        assert!(grants_capabilities(&attribute([0x0200_0001, 0, 0, 0, 0])));
        assert!(grants_capabilities(&attribute([0x0200_0000, 1 << 13, 0, 0, 0])));
        assert!(grants_capabilities(&attribute([0x0200_0000, 0, 0, 1, 0])));
        assert!(!grants_capabilities(&attribute([0x0200_0000, 0, 1, 0, 0])));
        assert!(!grants_capabilities(&[]));
    }
}
