//! `cargo xtask sim --mutants`: puts faults into a copy of the tree, and tests what finds each of them.
//!
//! A fault is a patch in `crates/sim/mutants`. Its first line says what is wrong. Lines before the patch may be
//! - `By loom: TEST`: the simulation does not reorder memory accesses, so a model of `tests/loom` shall find it;
//! - `Around: SCENARIO`: if the usual search does not find it, variations of that scenario are tried;
//! - `Explained: WHY`: why nothing finds it; it is searched only if it is named.
//!
//! One build has all faults of the simulation ([`merge`]), of which one is active at a time. A fault for loom has a
//! separate build.

use crate::place::{copy_tree, root};
use crate::sim::build;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Limit in processor seconds for finding a fault.
const SECONDS: &str = "120";

/// A fault, as described by its file.
struct Mutant {
    name: String,
    patch: PathBuf,
    fault: String,
    loom: Option<String>,
    around: Option<String>,
    explained: Option<String>,
}

/// What found a fault, and after how long.
struct Found {
    by: String,
    after: String,
}

impl Mutant {
    fn read(patch: PathBuf) -> Result<Mutant> {
        let text = std::fs::read_to_string(&patch).with_context(|| format!("cannot read {}", patch.display()))?;
        let head = |key: &str| {
            let mut lines = text.lines().take_while(|line| !line.starts_with("--- "));
            lines.find_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned())
        };
        Ok(Mutant {
            name: patch.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            fault: text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned(),
            loom: head("By loom:"),
            around: head("Around:"),
            explained: head("Explained:"),
            patch,
        })
    }

    /// Searches for fault `number` of `command`.
    fn find(&self, command: &Path, number: usize) -> Result<Option<Found>> {
        let fault = number.to_string();
        let found = by_search(command, &["--fault", &fault], "any schedule")?;
        let (None, Some(scenario)) = (&found, &self.around) else { return Ok(found) };
        let file = format!("crates/sim/scenarios/{scenario}.txt");
        by_search(command, &["--fault", &fault, "--around", &file], &format!("kept `{scenario}`"))
    }

    /// Puts only this fault into the tree, and runs a model to find it.
    fn find_by_loom(&self, root: &Path, tree: &Path, test: &str) -> Result<Option<Found>> {
        let patched = patched(root, &self.patch)?;
        let before = std::fs::read_to_string(root.join(&patched.0))?;
        std::fs::write(tree.join(&patched.0), &patched.1)?;
        let found = by_loom(tree, &root.join("target/sim/loom"), test);
        std::fs::write(tree.join(&patched.0), before)?;
        found
    }
}

/// Searches with the simulation from the first seed on.
fn by_search(command: &Path, more: &[&str], how: &str) -> Result<Option<Found>> {
    let output = Command::new(command)
        .args(["--processor", SECONDS, "--no-shrink"])
        .args(more)
        .current_dir(root())
        .output()
        .with_context(|| format!("cannot start {}", command.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(None);
    }
    // As `report` in crates/sim/src/main.rs prints it.
    let first = text.lines().skip_while(|line| !line.contains(" times, first after ")).take(2).collect::<Vec<_>>();
    let [numbers, what] = first[..] else { bail!("the simulation failed:\n{text}") };
    let field = |end: &str| {
        let before = numbers.split(end).next().unwrap_or_default();
        before.rsplit(", ").next().unwrap_or_default().trim_start_matches("first after ").to_owned()
    };
    // Without places, and without what each thread waits for.
    let what = what.trim().split(" (").next().unwrap_or_default().replace('|', "/");
    let what = what.replace("invalid:", "validate:").replace("deadlock: thread", "deadlock");
    let what = what.split(" 0: Waits").next().unwrap_or_default();
    let after = format!("{} s, {} million steps", field(" s of a processor"), field(" million steps"));
    Ok(Some(Found { by: format!("{how}: {what}"), after }))
}

/// Runs a test program of `tests/loom`.
fn by_loom(tree: &Path, target: &Path, test: &str) -> Result<Option<Found>> {
    let cargo = |arguments: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["test", "--quiet", "-p", "neap-loom", "--profile", "models", "--test", test, "--target-dir"])
            .arg(target);
        command.args(arguments).env("RUSTFLAGS", "--cfg loom").current_dir(tree);
        command.output().context("cannot start cargo")
    };
    ensure!(cargo(&["--no-run"])?.status.success(), "the models do not build");
    let begin = Instant::now();
    let output = cargo(&[])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = text.lines().find_map(|line| line.strip_prefix("---- ")?.strip_suffix(" stdout ----"));
    let failed = failed.unwrap_or("its end").to_owned();
    let after = format!("{:.1} s", begin.elapsed().as_secs_f64());
    Ok((!output.status.success()).then(|| Found { by: format!("loom `{test}::{failed}`"), after }))
}

/// Searches for each fault, or those in `names`; prints a table, which is kept in `target/sim/mutants.md`. Fails if one
/// is not found and not explained.
pub fn main(names: &[String]) -> Result<()> {
    let root = root();
    let tree = root.join("target/sim/mutants");
    let files = std::fs::read_dir(root.join("crates/sim/mutants"))?;
    let mut mutants = files.map(|entry| Mutant::read(entry?.path())).collect::<Result<Vec<_>>>()?;
    mutants.sort_by(|a, b| (&a.loom, &a.name).cmp(&(&b.loom, &b.name)));
    mutants.retain(|m| names.is_empty() || names.contains(&m.name));
    let begin = Instant::now();
    copy_tree(&root, &tree, &|_, bytes| bytes)?;
    let patches = mutants.iter().map(|m| m.loom.is_none().then_some(m.patch.as_path())).collect::<Vec<_>>();
    merge::put_all(&root, &tree, &patches)?;
    let mut command = PathBuf::new();
    if mutants.iter().any(|m| m.loom.is_none()) {
        command = build(&tree, &root.join("target/sim/mutants-target"), "--cap-lints allow")?;
    }
    copy_tree(&root, &tree, &|_, bytes| bytes)?;
    println!("built in {:.0} s", begin.elapsed().as_secs_f64());
    let mut table = String::from("| fault | what is wrong | found by | after |\n|---|---|---|---|\n");
    print!("{table}");
    let mut missed = Vec::new();
    for (i, mutant) in mutants.iter().enumerate() {
        let found = match &mutant.loom {
            _ if names.is_empty() && mutant.explained.is_some() => Ok(None),
            Some(test) => mutant.find_by_loom(&root, &tree, test),
            None => mutant.find(&command, i + 1),
        };
        let (by, after) = match (found, &mutant.explained) {
            (Ok(Some(found)), _) => (found.by, found.after),
            (Ok(None), Some(why)) => (format!("not found: {why}"), String::new()),
            (Ok(None), None) => ("**not found**".into(), format!("{SECONDS} s")),
            (Err(e), _) => (format!("**{e}**"), String::new()),
        };
        if by.starts_with("**") {
            missed.push(mutant.name.as_str());
        }
        let row = format!("| `{}` | {} | {by} | {after} |\n", mutant.name, mutant.fault);
        print!("{row}");
        table.push_str(&row);
        std::fs::write(root.join("target/sim/mutants.md"), &table)?;
    }
    println!("{} faults, {} not found, in {:.0} s", mutants.len(), missed.len(), begin.elapsed().as_secs_f64());
    if missed.is_empty() { Ok(()) } else { bail!("not found: {}", missed.join(", ")) }
}

/// The file that a patch changes, and its new text.
fn patched(root: &Path, patch: &Path) -> Result<(String, String)> {
    let text = std::fs::read_to_string(patch)?;
    let file = text.lines().find_map(|line| line.strip_prefix("+++ b/")).context("a patch names its file")?.to_owned();
    let to = root.join("target/sim/patched.rs");
    let done = Command::new("patch")
        .args(["--quiet", "--force", "--output"])
        .arg(&to)
        .arg(root.join(&file))
        .arg(patch)
        .output()
        .context("cannot start patch")?;
    ensure!(done.status.success(), "{} does not apply", patch.display());
    Ok((file, std::fs::read_to_string(&to)?))
}

/// Puts all faults into one tree: each function that a patch changes is there twice, and its first line chooses one.
mod merge {
    use super::patched;
    use anyhow::{Context, Result, bail, ensure};
    use std::collections::BTreeMap;
    use std::path::Path;

    /// The lines of a function in a file that rustfmt has formatted.
    struct Function {
        from: usize,
        /// The line after its head, which ends with `{`.
        body: usize,
        to: usize,
    }

    /// Functions of a file, the outermost ones.
    fn functions(lines: &[&str]) -> Result<Vec<Function>> {
        let mut all = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            let line = lines[at];
            let words = line.trim_start();
            let is_head = words.contains("fn ") && !words.starts_with("//") && {
                let before = words.split("fn ").next().unwrap_or_default();
                before.split_whitespace().all(|w| w.starts_with("pub") || ["unsafe", "const", "extern"].contains(&w))
            };
            if !is_head || line.ends_with(';') || line.ends_with('}') {
                at += 1;
                continue;
            }
            let indent = line.len() - words.len();
            let end = format!("{}}}", " ".repeat(indent));
            let body = at + 1 + lines[at..].iter().position(|l| l.ends_with('{')).context("a function has a body")?;
            let to = body + 1 + lines[body..].iter().position(|l| *l == end).context("a function has an end")?;
            all.push(Function { from: at, body, to });
            at = to;
        }
        Ok(all)
    }

    /// The name of a function, and the names of its parameters.
    fn head(text: &str) -> Result<(String, Vec<String>)> {
        let behind = text.split_once("fn ").context("a function has a name")?.1;
        let name: String = behind.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let (mut depth, mut angles, mut part, mut parts, mut before) = (0, 0, String::new(), Vec::new(), ' ');
        for c in behind[name.len()..].chars() {
            match c {
                '<' => angles += 1,
                '>' if before != '-' => angles -= 1,
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            let opens = c == '(' && depth == 1 && angles == 0 && parts.is_empty() && part.is_empty();
            if depth == 0 && c == ')' && angles == 0 {
                parts.push(part);
                break;
            }
            if depth == 1 && angles == 0 && c == ',' {
                parts.push(core::mem::take(&mut part));
            } else if depth >= 1 && !opens {
                part.push(c);
            }
            before = c;
        }
        let names =
            parts.iter().map(|part| part.split(':').next().unwrap_or_default().trim().trim_start_matches("mut "));
        Ok((name, names.filter(|name| !name.is_empty()).map(str::to_owned).collect()))
    }

    /// Puts the patches into the tree, as faults 1, 2 and so on.
    pub fn put_all(root: &Path, tree: &Path, patches: &[Option<&Path>]) -> Result<()> {
        // Numbers and texts of faults, by file and function.
        let mut files: BTreeMap<String, BTreeMap<usize, Vec<(usize, String)>>> = BTreeMap::new();
        for (i, patch) in patches.iter().enumerate() {
            let Some(patch) = patch else { continue };
            let (file, new) = patched(root, patch)?;
            let old = std::fs::read_to_string(root.join(&file))?;
            let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
            let (before, after) = (functions(&old)?, functions(&new)?);
            ensure!(before.len() == after.len(), "{} adds or removes a function", patch.display());
            let mut changes = 0;
            for (n, (b, a)) in before.iter().zip(&after).enumerate() {
                if old[b.from..b.to] != new[a.from..a.to] {
                    ensure!(old[b.from..b.body] == new[a.from..a.body], "{} changes a head", patch.display());
                    let text = new[a.from..a.to].join("\n");
                    files.entry(file.clone()).or_default().entry(n).or_default().push((i + 1, text));
                    changes += 1;
                }
            }
            if changes == 0 {
                bail!("{} changes no function", patch.display());
            }
        }
        for (file, faults) in files {
            let old = std::fs::read_to_string(root.join(&file))?;
            let old: Vec<_> = old.lines().collect();
            let mut text = String::new();
            let mut at = 0;
            for (n, function) in functions(&old)?.iter().enumerate() {
                let Some(faults) = faults.get(&n) else { continue };
                let (name, parameters) = head(&old[function.from..function.body].join("\n"))?;
                let is_method = parameters.first().is_some_and(|p| p.ends_with("self"));
                let free = !old[function.from].starts_with(' ');
                text.extend(old[at..function.from].iter().flat_map(|line| [*line, "\n"]));
                // A parameter without a name gets one, so that it can be passed on.
                let named = |line: &&str| line.replace("(_: ", "(unnamed: ").replace(" _: ", " unnamed: ") + "\n";
                text.extend(old[function.from..function.body].iter().map(named));
                for (number, _) in faults {
                    let path = if is_method {
                        "self."
                    } else if free {
                        ""
                    } else {
                        "Self::"
                    };
                    let arguments = parameters[usize::from(is_method)..].iter();
                    let arguments = arguments.map(|name| if name == "_" { "unnamed" } else { name });
                    let arguments = arguments.collect::<Vec<_>>().join(", ");
                    text.push_str(&format!(
                        "if crate::points::has_fault({number}) {{ return unsafe {{ {path}{name}_{number}({arguments}) }} }}\n"
                    ));
                }
                text.extend(old[function.body..function.to].iter().flat_map(|line| [*line, "\n"]));
                for (number, copy) in faults {
                    text.push_str(&copy.replacen(&format!("fn {name}"), &format!("fn {name}_{number}"), 1));
                    text.push('\n');
                }
                at = function.to;
            }
            text.extend(old[at..].iter().flat_map(|line| [*line, "\n"]));
            std::fs::write(tree.join(&file), text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a change of the core after which a fault can no longer be put back.
    #[test]
    fn patches_apply() {
        let root = root();
        std::fs::create_dir_all(root.join("target/sim")).expect("a folder");
        let files = std::fs::read_dir(root.join("crates/sim/mutants")).expect("the faults");
        let patches: Vec<PathBuf> = files.map(|entry| entry.expect("an entry").path()).collect();
        assert!(patches.len() > 70, "{} faults", patches.len());
        for patch in patches {
            let (file, text) = patched(&root, &patch).expect("a patch that applies");
            let before = std::fs::read_to_string(root.join(file)).expect("the file that it changes");
            assert_ne!(before, text, "{} changes nothing", patch.display());
        }
    }
}
