//! Puts all mutants of a file into its text, each with a number, so that one build serves all of them.
//!
//! `a + b` becomes `(match crate::switch::at(7) { 7 => a - b, 8 => a * b, _ => a + b })`, and so on. The text calls
//! `runtime.rs`.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::list::{Genre, Mutant};

/// A file with its mutants in it.
pub struct Switched {
    pub text: String,
    /// Parts of the text with their mutants: a site has all its mutants, an arm its own.
    pub parts: Vec<(Range<usize>, Vec<u32>)>,
    /// The site of each mutant: the number that is recorded when the program reaches it.
    pub sites: HashMap<u32, u32>,
}

/// Where mutants are put in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Around an expression.
    Expression,
    /// At the beginning of a function's body.
    Body,
    /// After the pattern of an arm.
    Pattern,
}

struct Site<'a> {
    range: Range<usize>,
    form: Form,
    mutants: Vec<(u32, &'a Mutant, Range<usize>)>,
}

/// Puts `mutants` with their numbers into `source`. Those that cannot be put in have no site in the result.
pub fn switch(source: &str, mutants: &[(u32, &Mutant)]) -> Result<Switched> {
    let file = syn::parse_file(source).context("syntax")?;
    let lines = Lines::new(source);
    let mut wanted: HashMap<(usize, usize), Vec<(u32, &Mutant)>> = HashMap::new();
    for &(id, mutant) in mutants {
        let range = lines.range(mutant);
        wanted.entry((range.start, range.end)).or_default().push((id, mutant));
    }
    let mut finder = Finder { wanted, sites: Vec::new() };
    finder.visit_file(&file);
    let mut sites = finder.sites;
    sites.sort_by_key(|site| (site.range.start, std::cmp::Reverse(site.range.end)));
    let mut writer = Writer {
        source,
        sites: &sites,
        next: 0,
        out: Switched { text: String::new(), parts: Vec::new(), sites: HashMap::new() },
    };
    writer.copy(0..source.len());
    Ok(writer.out)
}

/// Where the lines of a text begin.
struct Lines<'a> {
    source: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(source: &'a str) -> Self {
        let starts = [0].into_iter().chain(source.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Lines { source, starts }
    }

    fn offset(&self, place: super::list::Place) -> usize {
        let start = self.starts[place.line - 1];
        let line = &self.source[start..];
        start + line.char_indices().nth(place.column - 1).map_or(line.len(), |(i, _)| i)
    }

    fn range(&self, mutant: &Mutant) -> Range<usize> {
        self.offset(mutant.span.start)..self.offset(mutant.span.end)
    }
}

/// Finds the sites of the wanted mutants.
struct Finder<'a> {
    wanted: HashMap<(usize, usize), Vec<(u32, &'a Mutant)>>,
    sites: Vec<Site<'a>>,
}

impl Finder<'_> {
    /// Adds the mutants of `genres` that replace exactly `at`, as a site at `range`.
    fn add(&mut self, at: Range<usize>, genres: &[Genre], form: Form, range: Range<usize>) {
        let Some(found) = self.wanted.get(&(at.start, at.end)) else { return };
        let mutants: Vec<_> = found
            .iter()
            .filter(|(_, mutant)| genres.contains(&mutant.genre))
            .map(|&(id, mutant)| (id, mutant, at.clone()))
            .collect();
        if !mutants.is_empty() {
            self.sites.push(Site { range, form, mutants });
        }
    }

    fn body(&mut self, block: &syn::Block) {
        if let (Some(first), Some(last)) = (block.stmts.first(), block.stmts.last()) {
            let at = first.span().byte_range().start..last.span().byte_range().end;
            let start = block.brace_token.span.open().byte_range().end;
            self.add(at, &[Genre::FnValue], Form::Body, start..start);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.body(&item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.body(&item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_binary(&mut self, e: &'ast syn::ExprBinary) {
        // A chain with a `let` cannot be used as an expression elsewhere.
        if !chains(&e.left) && !chains(&e.right) {
            self.add(e.op.span().byte_range(), &[Genre::BinaryOperator], Form::Expression, e.span().byte_range());
        }
        visit::visit_expr_binary(self, e);
    }

    fn visit_expr_unary(&mut self, e: &'ast syn::ExprUnary) {
        self.add(e.op.span().byte_range(), &[Genre::UnaryOperator], Form::Expression, e.span().byte_range());
        visit::visit_expr_unary(self, e);
    }

    fn visit_expr_struct(&mut self, e: &'ast syn::ExprStruct) {
        for field in e.fields.pairs() {
            let start = field.value().span().byte_range();
            let end = field.punct().map_or(start.end, |comma| comma.span().byte_range().end);
            self.add(start.start..end, &[Genre::StructField], Form::Expression, e.span().byte_range());
        }
        visit::visit_expr_struct(self, e);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let end = arm.pat.span().byte_range().end;
        self.add(arm.span().byte_range(), &[Genre::MatchArm], Form::Pattern, end..end);
        visit::visit_arm(self, arm);
    }

    fn visit_pat_guard(&mut self, guarded: &'ast syn::PatGuard) {
        let range = guarded.guard.span().byte_range();
        if !chains(&guarded.guard) {
            self.add(range.clone(), &[Genre::MatchArmGuard], Form::Expression, range);
        }
        visit::visit_pat_guard(self, guarded);
    }
}

/// Whether `e` is a part of a chain with a `let`.
fn chains(e: &syn::Expr) -> bool {
    match e {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => chains(&binary.left) || chains(&binary.right),
        _ => false,
    }
}

/// Writes the new text.
struct Writer<'a> {
    source: &'a str,
    /// Sorted by start, the outer one first.
    sites: &'a [Site<'a>],
    next: usize,
    out: Switched,
}

impl Writer<'_> {
    /// Writes `range` of the source, with the sites in it.
    fn copy(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(site) = self.sites.get(self.next).filter(|site| site.range.end <= range.end) {
            self.next += 1;
            self.out.text.push_str(&self.source[at..site.range.start]);
            self.site(site);
            at = site.range.end;
        }
        self.out.text.push_str(&self.source[at..range.end]);
    }

    fn site(&mut self, site: &Site<'_>) {
        let start = self.out.text.len();
        let first = site.mutants[0].0;
        let ids: Vec<u32> = site.mutants.iter().map(|mutant| mutant.0).collect();
        self.out.sites.extend(ids.iter().map(|&id| (id, first)));
        match site.form {
            Form::Pattern => self.out.text.push_str(&format!(" if crate::switch::at({first}) != {first}")),
            Form::Body => {
                self.out.text.push_str(&format!(" match crate::switch::at({first}) {{ "));
                for (id, mutant, _) in &site.mutants {
                    self.arm(*id, &format!("return {}", mutant.replacement));
                }
                self.out.text.push_str("_ => {} }");
            }
            Form::Expression => {
                self.out.text.push_str(&format!("(match crate::switch::at({first}) {{ "));
                for (id, mutant, at) in &site.mutants {
                    let [before, after] =
                        [site.range.start..at.start, at.end..site.range.end].map(|part| &self.source[part]);
                    self.arm(*id, &format!("{before}{}{after}", mutant.replacement));
                }
                self.out.text.push_str("_ => ");
                // Sites in it are written once, because only one mutant is active at a time.
                self.copy(site.range.clone());
                self.out.text.push_str(" })");
            }
        }
        self.out.parts.push((start..self.out.text.len(), ids));
    }

    fn arm(&mut self, id: u32, text: &str) {
        let start = self.out.text.len();
        self.out.text.push_str(&format!("{id} => {text}, "));
        self.out.parts.push((start..self.out.text.len(), vec![id]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::list::{Place, Span};

    /// A mutant that replaces the `nth` occurrence of `old`, on line 1 of `source`.
    fn mutant(source: &str, old: &str, nth: usize, genre: Genre, new: &str) -> Mutant {
        let column = source.match_indices(old).nth(nth).expect("it is there").0 + 1;
        let [start, end] = [column, column + old.len()].map(|column| Place { line: 1, column });
        let (name, file) = (String::new(), String::new());
        Mutant { name, file, span: Span { start, end }, replacement: new.to_owned(), genre }
    }

    /// Catches a mutant that replaces more or less than cargo-mutants says, or that is lost.
    #[test]
    fn each_mutant_has_its_number() {
        let source = "fn f(a: u8) -> bool { !(a + 1 < 2) }";
        let mutants = [
            mutant(source, "!(a + 1 < 2)", 0, Genre::FnValue, "true"),
            mutant(source, "!", 0, Genre::UnaryOperator, ""),
            mutant(source, "<", 0, Genre::BinaryOperator, "=="),
            mutant(source, "<", 0, Genre::BinaryOperator, ">"),
            mutant(source, "+", 0, Genre::BinaryOperator, "*"),
        ];
        let numbered: Vec<(u32, &Mutant)> = (10..).zip(&mutants).collect();
        let switched = switch(source, &numbered).expect("it is Rust");
        assert_eq!(
            switched.text,
            "fn f(a: u8) -> bool { match crate::switch::at(10) { 10 => return true, _ => {} } \
             (match crate::switch::at(11) { 11 => (a + 1 < 2), _ => !((match crate::switch::at(12) { 12 => a + 1 == 2, \
             13 => a + 1 > 2, _ => (match crate::switch::at(14) { 14 => a * 1, _ => a + 1 }) < 2 })) }) }"
        );
        assert_eq!(switched.sites.len(), mutants.len());
        assert_eq!(switched.sites[&13], 12);
    }

    /// Catches arms and guards that cannot be disabled, and expressions taken out of a chain with `let`.
    #[test]
    fn arms_and_chains() {
        let source =
            "fn f(a: Option<u8>) -> u8 { if let Some(b) = a && b > 1 { b } else { match a { Some(1) => 3, _ => 4 } } }";
        let mutants = [
            mutant(source, "&&", 0, Genre::BinaryOperator, "||"),
            mutant(source, ">", 2, Genre::BinaryOperator, "<"),
            mutant(source, "Some(1) => 3,", 0, Genre::MatchArm, ""),
        ];
        let numbered: Vec<(u32, &Mutant)> = (0..).zip(&mutants).collect();
        let switched = switch(source, &numbered).expect("it is Rust");
        assert!(switched.text.contains("= a && (match crate::switch::at(1) { 1 => b < 1, _ => b > 1 })"));
        assert!(switched.text.contains("Some(1) if crate::switch::at(2) != 2 => 3,"));
        assert!(!switched.sites.contains_key(&0), "a chain of `let` cannot be moved");
    }
}
