//! Releases in the repositories of the allocators' authors: tags that are versions, listed and fetched with git.

use std::cmp::Ordering;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::recipe::{Upstream, Version};
use crate::failure::failure;
use crate::interrupt;
use crate::toolchain::need;

/// A release: a tag of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Where the repository is: an address for git, or a path.
    pub repository: String,
    /// The tag, as `v3.4.3`.
    pub tag: String,
    /// The commit that it names.
    pub commit: String,
}

impl Release {
    /// The version in one word: the tag without its `v`.
    pub fn word(&self) -> &str {
        self.tag.strip_prefix('v').unwrap_or(&self.tag)
    }

    /// The version with its commit, as `git describe --long` prints it.
    pub fn described(&self) -> String {
        format!("{}-0-g{}", self.word(), self.commit)
    }

    /// Fetches the tree of the release into `folder`; the result has its date.
    pub fn fetch(&self, folder: &Path) -> Result<Version> {
        let mut init = git();
        interrupt::run(init.args(["init", "--quiet", "--"]).arg(folder))?;
        // The full name of the tag, because a branch may have the same name, and `git clone` would take that.
        let tag = format!("refs/tags/{}", self.tag);
        let mut fetch = git();
        // Not `-C`, because a relative path to a repository is relative to the current folder.
        fetch.arg("--git-dir").arg(folder.join(".git"));
        fetch.args(["fetch", "--quiet", "--no-tags", "--depth=1", "--", &self.repository]);
        interrupt::run(fetch.arg(format!("{tag}:{tag}"))).map_err(|error| unreachable(&self.repository, error))?;
        let mut checkout = git();
        interrupt::run(checkout.arg("-C").arg(folder).args(["checkout", "--quiet", &tag]))?;
        let mut head = git();
        let commit = interrupt::run(head.arg("-C").arg(folder).args(["rev-parse", "HEAD"]))?;
        if commit.trim() != self.commit {
            let cause = format!("{}: the tag {} was moved meanwhile", self.repository, self.tag);
            return Err(failure(cause, "build again"));
        }
        let mut log = git();
        let date = interrupt::run(log.arg("-C").arg(folder).args(["log", "-1", "--format=%cs"]))?;
        Ok(Version { word: self.word().into(), date: Some(date.trim().into()) })
    }
}

/// The newest release of `upstream` in `repository`.
pub fn newest(upstream: &Upstream, repository: &str) -> Result<Release> {
    need("git", "apt install git, or leave --upstream out: the crates have sources too")?;
    let mut ask = git();
    let tags = interrupt::run(ask.args(["ls-remote", "--tags", "--", repository]));
    let tags = tags.map_err(|error| unreachable(repository, error))?;
    newest_of(&tags, repository, upstream.series).with_context(|| {
        let series = if upstream.series.is_empty() { String::new() } else { format!(" of {}*", upstream.series) };
        format!("{repository} has no tag that is a release{series}")
    })
}

/// The newest of the releases in what `git ls-remote --tags` printed.
fn newest_of(tags: &str, repository: &str, series: &str) -> Option<Release> {
    let release = |line: &str| {
        let (commit, name) = line.split_once('\t')?;
        let name = name.strip_prefix("refs/tags/")?;
        // An annotated tag comes twice: itself, and with `^{}` the commit that it names.
        let tag = name.strip_suffix("^{}").unwrap_or(name);
        let release = Release { repository: repository.into(), tag: tag.into(), commit: commit.into() };
        numbers(release.word())?;
        release.word().starts_with(series).then_some(release)
    };
    // `max_by` takes the last of equals: the commit of an annotated tag.
    tags.lines().filter_map(release).max_by(|a, b| compare(a.word(), b.word()))
}

/// The numbers of a version such as `5.3.1`; none for a release candidate (`2.0.0-rc1`) or another name.
fn numbers(version: &str) -> Option<Vec<u64>> {
    let numbers: Option<Vec<u64>> = version.split('.').map(|number| number.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() > 1)
}

/// Which of two versions is the later one; those without numbers come first.
pub fn compare(a: &str, b: &str) -> Ordering {
    numbers(a).cmp(&numbers(b))
}

/// Whether `version` has numbers, and `newest` is a later one.
pub fn is_older(version: &str, newest: &str) -> bool {
    numbers(version).is_some() && compare(version, newest) == Ordering::Less
}

fn git() -> Command {
    let mut git = Command::new("git");
    // No prompt for a password, and messages in English.
    git.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C").env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
    git.args(["-c", "advice.detachedHead=false"]);
    git
}

fn unreachable(repository: &str, error: anyhow::Error) -> anyhow::Error {
    if error.is::<interrupt::Interrupted>() {
        return error;
    }
    let text = format!("{error:#}");
    let why = text.lines().find(|line| line.starts_with("fatal:")).unwrap_or(&text).to_owned();
    failure(
        format!("cannot read {repository}: {why}"),
        "check the network, name another with --repository NAME=URL, or leave --upstream out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch release candidates that count as releases, versions that are compared as text, and the commit of an
    // annotated tag itself.
    #[test]
    fn the_newest_release_is_found() {
        let tags = "a1\trefs/tags/v2.9.1\nb1\trefs/tags/v2.10.0\nb2\trefs/tags/v2.10.0^{}\n\
                    c1\trefs/tags/v3.0.0-rc1\nd1\trefs/tags/nightly\ne1\trefs/tags/v3.1.2\nf1\trefs/heads/v9.9.9\n\
                    g1\trefs/tags/20\n";
        let newest = |series| newest_of(tags, "url", series).map(|found| (found.word().to_owned(), found.commit));
        assert_eq!(newest("2."), Some(("2.10.0".into(), "b2".into())));
        assert_eq!(newest(""), Some(("3.1.2".into(), "e1".into())));
        assert_eq!(newest("4."), None);
        assert_eq!(compare("1.4.3", "2.0.1"), Ordering::Less);
        assert_eq!(compare("2025-06-16", "2.0.1"), Ordering::Less);
    }
}
