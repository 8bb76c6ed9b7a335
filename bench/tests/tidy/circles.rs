//! Files of a crate import from each other in one direction: a reader of a file needs the files
//! that it imports from, and not the whole crate. The test reads the imports from the text: `use`
//! lines, and paths that begin with `crate`, `super`, `self` or a module that the file knows. An
//! import of a name that is re-exported counts as one from the file that declares the name; to
//! re-export a name, and not to use it, counts as none.

use std::collections::{BTreeMap, BTreeSet};

use super::names::is_of_the_program;
use super::{Source, sources};

/// In a circle of this many files a reader still finds a beginning: a type, its parts, and the
/// state that they share.
const CIRCLE_FILES_MAX: usize = 3;

/// A crate with more thousands of lines is two crates. Lines of tests do not count.
const CRATE_THOUSANDS_MAX: usize = 15;

/// The renamings and re-exports of a path stop after this many steps.
const STEPS_MAX: usize = 8;

type Module = Vec<String>;

/// A file, as others import from it.
#[derive(Default)]
struct Parsed<'a> {
    path: &'a str,
    code: String,
    /// The path of each name that a `use` line brings.
    names: BTreeMap<String, Module>,
    /// The names that others may import from here.
    exported: BTreeSet<String>,
    /// Paths that end in `*`.
    globs: Vec<Module>,
    lines: usize,
}

/// The module of a file below `src`: the folders, and the file's name.
fn module_of(path: &str) -> Module {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || module.len() == 1 && is_root(last)) {
        module.pop();
    }
    module
}

fn is_root(name: &str) -> bool {
    ["lib", "main"].contains(&name)
}

/// The lines of code, without comments and without the module of tests.
fn code_of(text: &str) -> (String, usize) {
    let mut code = String::new();
    let (mut count, mut is_test, mut may_be_test, mut is_inner) = (0, false, false, false);
    for line in text.lines() {
        if is_test {
            is_test = line != "}";
            continue;
        }
        let opens = line.starts_with("mod ") || line.starts_with("pub") && line.contains(" mod ");
        if may_be_test && opens {
            is_test = line.ends_with('{');
            may_be_test = false;
            continue;
        }
        may_be_test = line == "#[cfg(test)]" || may_be_test && line.starts_with("#[");
        count += 1;
        is_inner = is_inner && line != "}" || opens && line.ends_with('{');
        let line = line.split("//").next().unwrap_or(line);
        // A module inside of the file is a part of it: its parent is the file.
        code.push_str(&if is_inner { line.replacen("super::", "self::", 1) } else { line.into() });
        code.push('\n');
    }
    (code, count)
}

/// The paths of a `use` line's tree, each with the name that it brings.
fn tree(text: &str, before: &[String], found: &mut Vec<(String, Module)>) {
    let text = text.trim();
    let (head, group) = match text.split_once('{') {
        Some((head, rest)) => (head, Some(rest.strip_suffix('}').unwrap_or(rest))),
        None => (text, None),
    };
    let (head, alias) = match head.split_once(" as ") {
        Some((head, alias)) => (head, Some(alias.trim())),
        None => (head, None),
    };
    let mut path = before.to_vec();
    path.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(Into::into));
    let Some(group) = group else {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.map(str::to_owned).or_else(|| path.last().cloned());
        found.extend(name.map(|name| (name, path)));
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                tree(&group[start..at], &path, found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !group[start..].trim().is_empty() {
        tree(&group[start..], &path, found);
    }
}

/// The text of each `use` line, whether it exports, and the rest of the code.
fn uses_of(code: &str) -> (Vec<(bool, String)>, String) {
    let (mut uses, mut rest) = (Vec::new(), String::new());
    let mut open: Option<(bool, String)> = None;
    for line in code.lines() {
        let words = line.trim_start();
        let after = ["pub use ", "use "].iter().find_map(|word| words.strip_prefix(word));
        let restricted = words.strip_prefix("pub(").and_then(|rest| rest.split_once(") use "));
        match (&mut open, after.or(restricted.map(|(_, rest)| rest))) {
            (Some((_, open)), _) => open.push_str(words),
            (None, Some(begin)) => open = Some((words.starts_with("pub"), begin.to_owned())),
            (None, None) => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
        if let Some((exports, text)) = open.take_if(|(_, open)| open.ends_with(';')) {
            uses.push((exports, text.trim_end_matches(';').to_owned()));
        }
    }
    (uses, rest)
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of at least two names in this code.
fn paths_of(code: &str) -> BTreeSet<Module> {
    let words = code.split(|c| !is_of_name(c) && c != ':').filter(|word| word.contains("::"));
    let parts = |word: &str| word.split("::").filter(|it| !it.is_empty()).map(Into::into).collect();
    words.filter(|word| !word.starts_with(':')).map(parts).collect()
}

/// A crate's files, by module.
#[derive(Default)]
struct Files<'a>(BTreeMap<Module, Parsed<'a>>);

impl<'a> Files<'a> {
    fn add(&mut self, path: &'a str, below_src: &str, text: &str) {
        let module = module_of(below_src);
        let (code, lines) = code_of(text);
        let (uses, code) = uses_of(&code);
        let mut parsed = Parsed { path, code, lines, ..Parsed::default() };
        for (exports, text) in uses {
            let mut brought = Vec::new();
            tree(&text, &[], &mut brought);
            let (globs, names): (Vec<_>, Vec<_>) =
                brought.into_iter().partition(|(name, _)| name == "*");
            parsed.globs.extend(globs.into_iter().map(|(_, path)| path));
            if exports {
                parsed.exported.extend(names.iter().map(|(name, _)| name.clone()));
            }
            parsed.names.extend(names);
        }
        self.0.insert(module, parsed);
    }

    /// The path from the crate's root that a path in this module means; `None` for other crates'.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Module> {
        let (mut at, mut rest) = (module.to_vec(), path);
        let first = path.first()?;
        match first.as_str() {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            // A module of this file; the path of an import is looked up by its first name.
            _ => {
                let mut child = module.to_vec();
                child.push(first.clone());
                let known = self.0.contains_key(&child);
                let parsed = self.0.get(module)?;
                let imported = parsed.names.get(first).filter(|path| path.first() != Some(first));
                match imported {
                    Some(imported) if !known => {
                        at = self.absolute(module, imported)?;
                        rest = &path[1..];
                    }
                    _ if !known => return None,
                    _ => {}
                }
            }
        }
        at.extend(rest.iter().cloned());
        Some(at)
    }

    /// The module that declares the item with this path from the root.
    fn declaring(&self, path: &[String], steps: usize) -> Option<Module> {
        let depth = (0..=path.len()).rev().find(|&depth| self.0.contains_key(&path[..depth]))?;
        let (module, rest) = path.split_at(depth);
        let Some(name) = rest.first().filter(|_| steps < STEPS_MAX) else {
            return Some(module.to_vec());
        };
        let forwarded = self.0[module].names.get(name).and_then(|path| {
            let mut path = self.absolute(module, path)?;
            path.extend(rest[1..].iter().cloned());
            self.declaring(&path, steps + 1)
        });
        Some(forwarded.unwrap_or_else(|| module.to_vec()))
    }

    /// The modules that this one imports from.
    fn imports(&self, module: &[String]) -> BTreeSet<Module> {
        let parsed = &self.0[module];
        let globs = parsed.globs.iter().map(|path| path[..path.len() - 1].to_vec());
        let mut paths: BTreeSet<Module> = paths_of(&parsed.code);
        paths.extend(globs);
        // A module that is imported is met again where its items are used.
        let used = paths.iter().filter_map(|path| path.first()).cloned().collect::<BTreeSet<_>>();
        let words: BTreeSet<&str> = parsed.code.split(|c| !is_of_name(c)).collect();
        let is_items = |name: &String, path: &Module| {
            let path = self.absolute(module, path);
            let is_item = path.is_none_or(|path| !self.0.contains_key(&path));
            let is_used = words.contains(name.as_str()) || !parsed.exported.contains(name);
            is_used && (is_item || !used.contains(name))
        };
        let brought = parsed.names.iter().filter(|(name, path)| is_items(name, path));
        paths.extend(brought.map(|(_, path)| path.clone()));
        let absolute = paths.iter().filter_map(|path| self.absolute(module, path));
        let mut found: BTreeSet<_> = absolute.filter_map(|path| self.declaring(&path, 0)).collect();
        found.remove(module);
        found
    }

    /// The circles of more files than there may be, by their files.
    fn circles(&self) -> Vec<Vec<&'a str>> {
        let edges: BTreeMap<&Module, BTreeSet<Module>> =
            self.0.keys().map(|module| (module, self.imports(module))).collect();
        let reached = |from: &Module| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(at) = open.pop() {
                let next = edges[&at].iter().filter(|next| seen.insert((*next).clone()));
                open.extend(next.cloned());
            }
            seen
        };
        let reach: BTreeMap<_, _> = self.0.keys().map(|module| (module, reached(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, reaches) in &reach {
            let back = reaches.iter().filter(|other| reach[other].contains(*module));
            circles.insert(back.map(|other| self.0[other].path).collect::<Vec<_>>());
        }
        circles.into_iter().filter(|circle| circle.len() > CIRCLE_FILES_MAX).collect()
    }

    fn lines(&self) -> usize {
        self.0.values().map(|parsed| parsed.lines).sum()
    }
}

/// The crates' files, by the crates' folders.
fn crates(sources: &[Source]) -> BTreeMap<&str, Files<'_>> {
    let mut crates: BTreeMap<&str, Files<'_>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_of_the_program(&source.path)) {
        if let Some((name, below_src)) = source.path.split_once("/src/") {
            crates.entry(name).or_default().add(&source.path, below_src, &source.text);
        }
    }
    crates
}

#[test]
fn imports_are_read_from_the_text() {
    let files = [
        ("x/src/lib.rs", "mod a;\nmod b;\npub use a::{Item, inner::{self, Deep as Other}};\n"),
        ("x/src/a.rs", "pub mod inner;\nuse std::fmt;\n// crate::b::NotThis\npub struct Item;\n"),
        ("x/src/a/inner.rs", "pub(super) use super::super::b;\nfn f() { b::call(); }\n"),
        ("x/src/b.rs", "use crate::{\n    Item,\n    Other,\n};\n#[cfg(test)]\nmod tests {\n}\n"),
        ("x/src/b/tests.rs", "use super::*;\nuse crate::a;\n"),
    ];
    let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    let crates = crates(&sources);
    let x = &crates["x"];
    let imports = |path: &str| {
        let found = x.imports(&module_of(path));
        found.iter().map(|module| module.join("/")).collect::<Vec<_>>()
    };
    assert_eq!(imports("lib.rs"), [""; 0], "to re-export is not to use");
    assert_eq!(imports("a.rs"), [""; 0]);
    assert_eq!(imports("a/inner.rs"), ["b"]);
    assert_eq!(imports("b.rs"), ["a", "a/inner"], "re-exports are followed");
    assert_eq!(x.lines(), 3 + 4 + 2 + 5, "the module of tests does not count");
}

#[test]
fn a_circle_of_four_files_is_found() {
    let file = |name: &str, next: &str| {
        Source::new(&format!("x/src/{name}.rs"), &format!("use crate::{next}::Item;\n"))
    };
    let mut sources = vec![file("a", "b"), file("b", "c"), file("c", "a"), file("d", "a")];
    assert!(crates(&sources)["x"].circles().is_empty());
    sources[2] = file("c", "d");
    assert_eq!(
        crates(&sources)["x"].circles(),
        [["x/src/a.rs", "x/src/b.rs", "x/src/c.rs", "x/src/d.rs"]]
    );
}

#[test]
fn files_import_in_one_direction_and_crates_stay_small() {
    let sources = sources();
    let mut faults = Vec::new();
    for (name, files) in crates(&sources) {
        for circle in files.circles() {
            faults.push(format!(
                "{name}: turn an import around, or move to a file below what two of them share: {}",
                circle.join(", ")
            ));
        }
        let lines = files.lines();
        if lines.div_ceil(1000) > CRATE_THOUSANDS_MAX {
            faults.push(format!(
                "{name}: {lines} lines, and {CRATE_THOUSANDS_MAX} thousand are the most; cut the \
                 crate where the imports are fewest"
            ));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
