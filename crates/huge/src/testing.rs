//! Trees of files for tests.

use std::fs;
use std::path::Path;

use neap_hugetlb::Root;
use neap_launch::private_dir::{PrivateDir, temporary_bases};

/// A copy of a system's files.
pub struct Tree(PrivateDir);

impl Tree {
    /// With these files: absolute paths and contents.
    pub fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree(PrivateDir::create(&temporary_bases(), "neap-test-tree").expect("a temporary directory"));
        for (path, text) in files {
            let path = tree.root().path(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a folder");
            fs::write(path, format!("{text}\n")).expect("a file");
        }
        tree
    }

    /// Its root.
    pub fn root(&self) -> Root {
        Root::at(self.0.path())
    }
}
