//! Examines an ELF file: will its dynamic linker load `libneap.so` into it?
//!
//! Reads the headers, and the names of dynamic symbols (`sanitizer`); no I/O of its own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadRef};

use crate::sanitizer::{self, Sanitizer};

/// The e_machine of this build: programs for any other cannot load the library.
#[cfg(target_arch = "x86_64")]
pub const MACHINE: u16 = elf::EM_X86_64.0;
#[cfg(target_arch = "aarch64")]
pub const MACHINE: u16 = elf::EM_AARCH64.0;

/// A program that can be run under neap.
#[derive(Debug, PartialEq, Eq)]
pub enum Loadable {
    /// With this dynamic linker.
    Interpreter(PathBuf),
    /// It is glibc's dynamic linker itself, run as a command.
    DynamicLinker,
}

/// Why neap cannot be loaded into a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no dynamic linker, hence no preloading; `pie` distinguishes static-pie from plain static.
    Static {
        /// Position-independent.
        pie: bool,
    },
    /// Made for another processor.
    OtherMachine(String),
    /// The dynamic linker of another C library.
    OtherLibc(PathBuf),
    /// Built with a sanitizer that has its own malloc.
    Sanitized(&'static Sanitizer),
    /// An object file or a core file.
    NotAProgram(&'static str),
    /// Damaged.
    Malformed(String),
}

/// Examines the ELF file `data`.
pub fn inspect<'data, R: ReadRef<'data>>(data: R) -> Result<Loadable, Refusal> {
    let ident = data.read_bytes_at(0, 20).map_err(|()| Refusal::Malformed("the file is truncated".to_owned()))?;
    let (class, encoding) = (ident[4], ident[5]);
    let field = |at: usize| match encoding {
        2 => u16::from_be_bytes([ident[at], ident[at + 1]]),
        _ => u16::from_le_bytes([ident[at], ident[at + 1]]),
    };
    let (kind, machine) = (field(16), field(18));
    let native_encoding = if cfg!(target_endian = "big") { 2 } else { 1 };
    if machine != MACHINE || class != 2 || encoding != native_encoding {
        return Err(Refusal::OtherMachine(machine_name(machine, class)));
    }
    match kind {
        1 => return Err(Refusal::NotAProgram("an object file")),
        4 => return Err(Refusal::NotAProgram("a core file")),
        _ => {}
    }
    inspect_native(data).map_err(|e| match e {
        Fault::Refusal(refusal) => refusal,
        Fault::Read(e) => Refusal::Malformed(e.to_string()),
    })
}

/// Either outcome for a damaged or unsuitable file, so that `?` works on both.
enum Fault {
    Refusal(Refusal),
    Read(object::read::Error),
}

impl From<object::read::Error> for Fault {
    fn from(e: object::read::Error) -> Self {
        Fault::Read(e)
    }
}

fn inspect_native<'data, R: ReadRef<'data>>(data: R) -> Result<Loadable, Fault> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    for segment in segments {
        if let Some(path) = segment.interpreter(endian, data)? {
            let path = PathBuf::from(OsStr::from_bytes(path));
            if !is_linker_of_neap(&path) {
                return Err(Fault::Refusal(Refusal::OtherLibc(path)));
            }
            // If the symbols cannot be read, the dynamic linker decides.
            if let Ok(Some(sanitizer)) = sanitizer::find(data) {
                return Err(Fault::Refusal(Refusal::Sanitized(sanitizer)));
            }
            return Ok(Loadable::Interpreter(path));
        }
    }
    // No dynamic linker is requested. glibc's own is such a file, and preloads like any program's.
    for segment in segments {
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        let value_of =
            |tag: i64| entries.iter().find(|entry| entry.d_tag(endian).0 == tag).map(|entry| entry.d_val(endian));
        let name = value_of(elf::DT_SONAME.0).and_then(|offset| {
            let table = value_of(elf::DT_STRTAB.0)?;
            segments.iter().find_map(|s| s.data_range(endian, data, table + offset, 10).ok().flatten())
        });
        if name.is_some_and(|name: &[u8]| name.starts_with(b"ld-linux")) {
            return Ok(Loadable::DynamicLinker);
        }
        return Err(Fault::Refusal(Refusal::Static { pie: true }));
    }
    Err(Fault::Refusal(Refusal::Static { pie: false }))
}

/// Whether a path names the dynamic linker of glibc or musl: `ld-linux-x86-64.so.2` or `ld-musl-x86_64.so.1` on every
/// distribution, in any folder.
fn is_linker_of_neap(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-linux") || name.starts_with(b"ld-musl-")
}

/// A readable name.
fn machine_name(machine: u16, class: u8) -> String {
    let bits = match class {
        1 => "32-bit ",
        2 => "64-bit ",
        _ => "",
    };
    let name = match machine {
        3 => "x86",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "S/390",
        40 => "Arm",
        62 => "x86-64",
        183 => "Arm (aarch64)",
        243 => "RISC-V",
        258 => "LoongArch",
        other => return format!("{bits}machine {other}"),
    };
    format!("{bits}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_program() -> Vec<u8> {
        std::fs::read("/bin/sh").expect("every Linux has /bin/sh")
    }

    /// Catches a parser that refuses ordinary programs.
    #[test]
    fn an_ordinary_program_is_accepted() {
        match inspect(own_program().as_slice()) {
            Ok(Loadable::Interpreter(path)) => assert!(is_linker_of_neap(&path)),
            other => panic!("{other:?}"),
        }
    }

    /// Catches programs for other processors that would fail in the middle of their start.
    #[test]
    fn other_machines_are_refused() {
        let mut file = own_program();
        file[18..20].copy_from_slice(&243u16.to_le_bytes());
        assert_eq!(inspect(file.as_slice()), Err(Refusal::OtherMachine("64-bit RISC-V".to_owned())));
        let mut file = own_program();
        file[4] = 1;
        assert!(matches!(inspect(file.as_slice()), Err(Refusal::OtherMachine(name)) if name.starts_with("32-bit")));
        let mut file = own_program();
        file[5] = 2;
        assert!(matches!(inspect(file.as_slice()), Err(Refusal::OtherMachine(_))));
    }

    /// Catches a panic or an acceptance of truncated files.
    #[test]
    fn truncated_files_are_refused() {
        let file = own_program();
        for length in [4, 19, 20, 40, 63, 64, 100] {
            assert!(inspect(&file[..length]).is_err(), "{length} bytes");
        }
    }

    /// Catches programs on musl that are refused, and those on other C libraries that are accepted.
    #[test]
    fn dynamic_linkers_are_told_apart() {
        let mut file = own_program();
        let at = file.windows(10).position(|w| w == b"/ld-linux-").expect("the interpreter is in the file");
        file[at..at + 10].copy_from_slice(b"/ld-musl-x");
        assert!(matches!(inspect(file.as_slice()), Ok(Loadable::Interpreter(_))));
        file[at..at + 10].copy_from_slice(b"/ld-uClibc");
        assert!(matches!(inspect(file.as_slice()), Err(Refusal::OtherLibc(_))));
    }

    /// Catches object files reported as static programs.
    #[test]
    fn object_files_are_refused() {
        let mut file = own_program();
        file[16..18].copy_from_slice(&1u16.to_le_bytes());
        assert_eq!(inspect(file.as_slice()), Err(Refusal::NotAProgram("an object file")));
    }

    /// Catches the dynamic linker, run as a command, that counts as a static program.
    #[test]
    fn the_dynamic_linker_is_accepted() {
        let Ok(Loadable::Interpreter(path)) = inspect(own_program().as_slice()) else { panic!("/bin/sh") };
        let linker = std::fs::read(path).expect("the dynamic linker of /bin/sh");
        assert_eq!(inspect(linker.as_slice()), Ok(Loadable::DynamicLinker));
    }
}
