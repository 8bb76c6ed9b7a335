//! A type's name says what the type is of. No name stands for types in three files: a reader that
//! meets it in an error or a search would have three places to read.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, sources};

/// The most files that may have a type of one name: a type, and one more in a crate that never
/// meets the first.
const FILES_MAX: usize = 2;

/// The name, if a type is declared in this line as rustfmt writes it. Types of a trait's
/// implementation have the trait's name for them.
fn type_name(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let words = match words.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => words,
    };
    let words = words.strip_prefix("unsafe ").unwrap_or(words);
    let (kind, name) = words.split_once(' ')?;
    let indented = line.starts_with(' ');
    let declares =
        ["struct", "enum", "trait", "union"].contains(&kind) || kind == "type" && !indented;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (declares && name.starts_with(char::is_uppercase)).then(|| &name[..end])
}

/// Whether a file is a part of the program. Tests are read with the code beside them, and examples
/// alone.
pub(super) fn is_of_the_program(path: &str) -> bool {
    let part = |part: &str| path.split('/').any(|folder| folder == part);
    let file = path.rsplit('/').next().unwrap_or(path);
    path.ends_with(".rs")
        && !part("tests")
        && !part("examples")
        && !["tests.rs", "testing.rs"].contains(&file)
        && !file.ends_with("_tests.rs")
}

/// Each name that is in too many files, with these.
fn names_in_many_files(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_of_the_program(&source.path)) {
        for name in source.text.lines().filter_map(type_name) {
            files.entry(name).or_default().insert(&source.path);
        }
    }
    files.retain(|_, files| files.len() > FILES_MAX);
    files
}

#[test]
fn a_type_is_known_by_its_first_line() {
    for (line, name) in [
        ("pub(in crate::udp) struct Listed<'a> {", Some("Listed")),
        ("    pub enum Inner {", Some("Inner")),
        ("unsafe trait Marker {}", Some("Marker")),
        ("type Token = u64;", Some("Token")),
        ("    type Error = io::Error;", None),
        ("// struct Token", None),
        ("let structure = 1;", None),
    ] {
        assert_eq!(type_name(line), name, "{line}");
    }
}

#[test]
fn a_name_that_is_in_three_files_is_found() {
    let declared = |path: &str| Source::new(path, "struct Step;\n");
    let mut sources = vec![declared("a/src/x.rs"), declared("b/src/y.rs")];
    sources.push(declared("b/src/y/tests.rs"));
    assert!(names_in_many_files(&sources).is_empty());
    sources.push(declared("c/src/z.rs"));
    assert_eq!(names_in_many_files(&sources)["Step"].len(), 3);
}

#[test]
fn no_type_name_is_in_three_files() {
    let sources = sources();
    let faults: Vec<String> = names_in_many_files(&sources)
        .iter()
        .map(|(name, files)| {
            let files: Vec<&str> = files.iter().copied().collect();
            format!("{name}: name it after what it is of, in {}", files.join(", "))
        })
        .collect();
    assert!(faults.is_empty(), "{} names:\n{}", faults.len(), faults.join("\n"));
}
