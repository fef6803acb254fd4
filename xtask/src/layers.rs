//! `cargo xtask layers`: shows which module of a crate uses which, in levels, and which use each other in a circle.
//!
//! A module uses another one if a path in its code leads there: `crate::a::B`, `super::b`, a module that it declares. A
//! use of a re-export counts as a use of the module where the item is; the re-export itself does not count. Neither do
//! uses in tests, nor those in the body of a macro.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use syn::visit::{self, Visit};

use crate::place::root;

/// Options of `cargo xtask layers`.
#[derive(clap::Args)]
pub struct Args {
    /// Crates, by the folders of their sources; all of the workspace if none is named
    crates: Vec<PathBuf>,
}

/// Crates whose folders are layers, lowest first: a module uses its own layer and lower ones. Modules outside of these
/// folders are above them all.
const LAYERS: &[(&str, &[&str])] = &[("crates/core/src", &["system", "pages", "blocks", "back", "observe"])];

/// A module by its path: `[]` is the root of the crate.
type Module = Vec<String>;

/// The modules of a crate, and what each uses.
struct Graph {
    uses: BTreeMap<Module, BTreeSet<Module>>,
}

/// Runs `cargo xtask layers`.
pub fn main(args: &Args) -> Result<()> {
    let root = root();
    let folders = if args.crates.is_empty() { folders(&root)? } else { args.crates.clone() };
    let mut failed = Vec::new();
    for folder in folders {
        let graph = Graph::read(&root.join(&folder))?;
        let name = folder.display().to_string();
        println!("{name}: {} modules, largest circle {}", graph.uses.len(), graph.largest_circle());
        for (floor, modules) in graph.floors().iter().enumerate() {
            let names = |circle: &Vec<Module>| circle.iter().map(shown).collect::<Vec<_>>().join(" <-> ");
            println!("  {floor:>2}  {}", modules.iter().map(names).collect::<Vec<_>>().join(", "));
        }
        if graph.largest_circle() > 1 {
            failed.push(format!("{name}: modules use each other in a circle"));
        }
        for (from, to) in graph.upward(layers(&name)) {
            failed.push(format!("{name}: {} uses {}, which is in a higher layer", shown(from), shown(to)));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

fn layers(folder: &str) -> &'static [&'static str] {
    LAYERS.iter().find(|(name, _)| *name == folder).map_or(&[], |(_, layers)| *layers)
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "(root)".to_owned() } else { module.join("::") }
}

/// The folders of sources of the workspace's crates.
fn folders(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![PathBuf::from("xtask/src"), PathBuf::from("tests/src")];
    for entry in fs::read_dir(root.join("crates"))? {
        let folder = Path::new("crates").join(entry?.file_name()).join("src");
        if root.join(&folder).is_dir() {
            folders.push(folder);
        }
    }
    folders.sort();
    Ok(folders)
}

impl Graph {
    fn read(folder: &Path) -> Result<Graph> {
        let mut files = BTreeMap::new();
        find(folder, &Module::new(), &mut files)?;
        ensure!(!files.is_empty(), "no source files in {}", folder.display());
        let mut parsed = BTreeMap::new();
        for (module, path) in files {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let file = syn::parse_file(&text).with_context(|| format!("cannot parse {}", path.display()))?;
            parsed.insert(module, file);
        }
        Ok(Graph::of(&parsed))
    }

    fn of(files: &BTreeMap<Module, syn::File>) -> Graph {
        let mut names = Names { modules: files.keys().cloned().collect(), exported: BTreeMap::new() };
        for (module, file) in files {
            let mut reader = Reader::new(&names, module);
            reader.visit_file(file);
            let exported = reader.exported;
            names.exported.extend(exported.into_iter().map(|(name, at)| ((module.clone(), name), at)));
        }
        let uses = files.iter().map(|(module, file)| {
            let mut reader = Reader::new(&names, module);
            reader.visit_file(file);
            reader.uses.remove(module);
            (module.clone(), reader.uses)
        });
        Graph { uses: uses.collect() }
    }

    /// Uses of a module in a higher layer.
    fn upward(&self, layers: &[&str]) -> Vec<(&Module, &Module)> {
        let height = |module: &Module| {
            // The root has what all layers share.
            let Some(folder) = module.first() else { return 0 };
            layers.iter().position(|layer| layer == folder).map_or(layers.len() + 1, |i| i + 1)
        };
        let uses = self.uses.iter().flat_map(|(from, uses)| uses.iter().map(move |to| (from, to)));
        uses.filter(|(from, to)| !layers.is_empty() && height(to) > height(from) && !from.is_empty()).collect()
    }

    /// All modules that a module uses, directly or not; itself only in a circle.
    fn reached(&self, from: &Module) -> BTreeSet<&Module> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            for next in &self.uses[module] {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    }

    /// Groups of modules that use each other; every other module is a group.
    fn circles(&self) -> Vec<Vec<Module>> {
        let reached: BTreeMap<_, _> = self.uses.keys().map(|module| (module, self.reached(module))).collect();
        let mut circles: Vec<Vec<Module>> = Vec::new();
        for module in self.uses.keys() {
            let same = |other: &Module| reached[module].contains(other) && reached[other].contains(module);
            match circles.iter_mut().find(|circle| same(&circle[0])) {
                Some(circle) => circle.push(module.clone()),
                None => circles.push(vec![module.clone()]),
            }
        }
        circles
    }

    fn largest_circle(&self) -> usize {
        self.circles().iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Groups by level: each uses only lower levels.
    fn floors(&self) -> Vec<Vec<Vec<Module>>> {
        let mut left = self.circles();
        let (mut floors, mut below) = (Vec::new(), BTreeSet::new());
        while !left.is_empty() {
            let stands = |circle: &Vec<Module>| {
                circle.iter().flat_map(|m| &self.uses[m]).all(|used| below.contains(used) || circle.contains(used))
            };
            let (floor, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(stands);
            below.extend(floor.iter().flatten().cloned());
            floors.push(floor);
            left = rest;
        }
        floors
    }
}

/// Finds the file of each module.
fn find(folder: &Path, module: &Module, files: &mut BTreeMap<Module, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let inner = || module.iter().cloned().chain([stem.to_owned()]).collect::<Module>();
        if path.is_dir() {
            find(&path, &inner(), files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            // A program beside a library is another crate, which uses the library by its name.
            let own = match stem {
                "mod" | "lib" => true,
                "main" => !folder.join("lib.rs").exists(),
                _ => false,
            };
            files.insert(if own { module.clone() } else { inner() }, path);
        }
    }
    Ok(())
}

/// Resolves names.
struct Names {
    modules: BTreeSet<Module>,
    /// Re-exports of a module: name to the module where the item is.
    exported: BTreeMap<(Module, String), Module>,
}

impl Names {
    /// The module that a path in `module` leads to: the longest prefix that is a module. `None`: it leads to another
    /// crate or to a name.
    fn find(&self, module: &Module, path: &[String]) -> Option<Module> {
        let mut at = module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            name => {
                // Relative if it names a module that this one declares.
                at.push(name.to_owned());
                if !self.modules.contains(&at) {
                    return None;
                }
                rest = &path[1..];
            }
        }
        // A module inside a file counts as the file.
        while !self.modules.contains(&at) {
            at.pop()?;
        }
        for name in rest {
            at.push(name.clone());
            if !self.modules.contains(&at) {
                at.pop();
                let exported = self.exported.get(&(at.clone(), name.clone()));
                return Some(exported.cloned().unwrap_or(at));
            }
        }
        Some(at)
    }
}

/// Collects the uses and re-exports of one file.
struct Reader<'a> {
    names: &'a Names,
    /// The module of the code: the file's, with modules inside the file.
    place: Module,
    uses: BTreeSet<Module>,
    exported: Vec<(String, Module)>,
}

impl<'a> Reader<'a> {
    fn new(names: &'a Names, module: &Module) -> Self {
        Reader { names, place: module.clone(), uses: BTreeSet::new(), exported: Vec::new() }
    }

    /// Visits the paths of a `use`, each with the name that it introduces.
    fn leaves(before: &mut Vec<String>, tree: &syn::UseTree, visit: &mut impl FnMut(&[String], String)) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                Self::leaves(before, &path.tree, visit);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| Self::leaves(before, tree, visit)),
            syn::UseTree::Name(syn::UseName { ident }) if ident == "self" => {
                let name = before.last().cloned().unwrap_or_default();
                visit(before, name);
            }
            syn::UseTree::Name(syn::UseName { ident }) | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                let name = match tree {
                    syn::UseTree::Rename(renamed) => renamed.rename.to_string(),
                    _ => ident.to_string(),
                };
                before.push(ident.to_string());
                visit(before, name);
                before.pop();
            }
            _ => visit(before, String::new()),
        }
    }
}

/// Whether an item is for tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            self.place.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.place.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        if !is_test(&item.attrs) {
            Self::leaves(&mut Vec::new(), &item.tree, &mut |path, name| {
                let Some(at) = self.names.find(&self.place, path) else { return };
                if public {
                    self.exported.push((name, at));
                } else {
                    self.uses.insert(at);
                }
            });
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.uses.extend(self.names.find(&self.place, &names));
        }
        visit::visit_path(self, path);
    }

    // The path in `pub(in crate::a)` is not a use.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches modules that begin to use each other in a circle, and a module of a layer that uses a higher one.
    #[test]
    fn no_circle_and_no_arrow_upward() {
        for folder in folders(&root()).expect("the crates") {
            let graph = Graph::read(&root().join(&folder)).expect("its modules");
            let name = folder.display().to_string();
            assert_eq!(graph.largest_circle(), 1, "see cargo xtask layers {name}");
            assert_eq!(graph.upward(layers(&name)), [], "see cargo xtask layers {name}");
        }
    }

    /// Catches a use of a higher layer that is not found, and one that does not exist.
    #[test]
    fn arrows_upward() {
        let module = |name: &str| name.split("::").map(str::to_owned).collect::<Module>();
        let edges =
            [("low::a", "low::b"), ("low::a", "high::a"), ("high::b", "low::a"), ("top", "high::a"), ("low::b", "top")];
        let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in edges {
            uses.entry(module(from)).or_default().insert(module(to));
        }
        let graph = Graph { uses };
        let (a, b, high, top) = (module("low::a"), module("low::b"), module("high::a"), module("top"));
        assert_eq!(graph.upward(&["low", "high"]), [(&a, &high), (&b, &top)]);
        assert_eq!(graph.upward(&[]), []);
    }

    /// Catches a form of use that is overlooked, and a use in a test or of another crate that counts.
    #[test]
    fn what_a_module_uses() {
        let module =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Module>();
        let used = |place: &str, code: &str| {
            let mut files: BTreeMap<Module, syn::File> = ["", "a", "b", "b::c", "b::d", "e"]
                .into_iter()
                .map(|name| (module(name), syn::parse_file("").expect("no code")))
                .collect();
            files.insert(module(""), syn::parse_file("pub use b::{Short, d::T as Long}; mod b;").expect("code"));
            files.insert(module(place), syn::parse_file(code).expect("code"));
            Graph::of(&files).uses[&module(place)].iter().map(|m| m.join("::")).collect::<Vec<_>>()
        };
        assert_eq!(used("a", "use crate::b::{self, c::X, d::{Y, Z}};"), ["b", "b::c", "b::d"]);
        assert_eq!(used("a", "use crate::{Long, Other}; fn f(x: crate::Short) {}"), ["", "b", "b::d"]);
        assert_eq!(used("b::c", "use super::d; use super::Parent;"), ["b", "b::d"]);
        assert_eq!(used("b", "mod c; pub use c::X; fn f() { self::d::h(); other::i(); }"), ["b::d"]);
        assert_eq!(used("b", "mod c; fn f() { c::g(); }"), ["b::c"]);
        assert_eq!(used("b::c", "mod inside { use super::Own; use super::super::d; }"), ["b::d"]);
        assert_eq!(used("a", "fn f(x: crate::e::T) -> u8 { crate::b::c::N }"), ["b::c", "e"]);
        assert_eq!(used("a", "#[cfg(test)] mod tests { use crate::b; } use std::e; use ::e::X;"), Vec::<String>::new());
    }

    /// Catches circles that are not found, and modules on too low a level.
    #[test]
    fn circles_and_floors() {
        let module = |name: &str| vec![name.to_owned()];
        let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")];
        let mut uses: BTreeMap<Module, BTreeSet<Module>> =
            ["a", "b", "c", "d"].into_iter().map(|name| (module(name), BTreeSet::new())).collect();
        for (from, to) in edges {
            uses.get_mut(&module(from)).expect("a module").insert(module(to));
        }
        let graph = Graph { uses };
        assert_eq!(graph.largest_circle(), 2);
        let floors = [vec![vec![module("d")]], vec![vec![module("b"), module("c")]], vec![vec![module("a")]]];
        assert_eq!(graph.floors(), floors);
    }
}
