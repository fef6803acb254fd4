//! Where the kernel's files are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder that contains `/proc`, `/sys` and `/run`: `/`, or in tests one with copies of a system's files.
#[derive(Clone, Debug)]
pub struct Root {
    folder: PathBuf,
    /// In tests: limit on the size of a pool.
    #[cfg(test)]
    pub(crate) most: u64,
}

impl Root {
    /// The system's own.
    pub fn system() -> Root {
        Root::at(Path::new("/"))
    }

    /// Copies of files, in this folder.
    pub fn at(folder: &Path) -> Root {
        Root {
            folder: folder.to_owned(),
            #[cfg(test)]
            most: u64::MAX,
        }
    }

    /// The place of the file with this absolute path.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without the blanks around it.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let bytes = fs::read(self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number in a file.
    pub fn number(&self, path: &str) -> io::Result<u64> {
        self.read(path)?.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// The names in a folder that begin with `prefix`, without it, in order.
    pub fn names(&self, folder: &str, prefix: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(folder))? {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_prefix(prefix)).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }
}
