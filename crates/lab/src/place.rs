//! Where the lab's files are: the cache, the peers, neap itself.

use std::path::PathBuf;

/// The places of one run. The command `neap` and the task runner fill it in differently.
#[derive(Clone, Debug)]
pub struct Place {
    /// Compiled programs, fetched sources, virtual environments: may be removed at any time.
    pub cache: PathBuf,
    /// Libraries of the peers and `peers.json`.
    pub peers: PathBuf,
    /// The library `libneap.so` that is measured.
    pub library: PathBuf,
    /// The version of that library, for the record.
    pub version: String,
    /// The command `neap`, for the experiments that use it.
    pub command: PathBuf,
    /// What builds the peers, for messages: `neap lab peers build`.
    pub build_peers: &'static str,
}

impl Place {
    /// Folder of compiled programs.
    pub fn programs(&self) -> PathBuf {
        self.cache.join("programs")
    }
}

/// The lab's folder below the user's cache folder: `$XDG_CACHE_HOME/neap/lab` or `~/.cache/neap/lab`.
pub fn user_cache() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let base = base.ok_or_else(|| {
        crate::failure::failure("there is no cache folder for the lab's programs", "set HOME or XDG_CACHE_HOME")
    })?;
    Ok(base.join("neap/lab"))
}

/// Places for tests: compiled programs are shared by all of them.
#[cfg(test)]
pub fn for_test() -> Place {
    let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/lab");
    Place {
        peers: target.join("no-peers"),
        library: target.join("no-libneap.so"),
        version: "test".into(),
        command: "neap".into(),
        build_peers: "neap lab peers build",
        cache: target,
    }
}
