//! The house's rules, as a test of the repository itself. Each check is tried on text that breaks
//! its rule and on text that keeps it. So a check that finds no fault can be believed.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/manifests.rs"]
mod manifests;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/printed.rs"]
mod printed;
#[path = "tidy/unsafety.rs"]
mod unsafety;
#[path = "tidy/words.rs"]
mod words;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Where a rule is broken. Lines count from 1.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// One file of the repository.
#[derive(Clone)]
struct Source {
    /// The path from the root, with slashes.
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    fn is_script(&self) -> bool {
        self.text.starts_with("#!") || self.is("sh")
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }
}

/// A rule for one file at a time.
type Check = fn(&Source) -> Vec<Finding>;

fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&package).parent().expect("a package is inside the workspace").to_owned()
}

/// Inputs for the fuzz targets, whose bytes follow no rule.
const CORPUS: &str = "fuzz/corpus";

/// Every text file of the repository, except the fuzz targets' inputs and paths in .gitignore.
fn sources() -> Vec<Source> {
    let root = root();
    let ignored = fs::read_to_string(root.join(".gitignore")).expect("there is a .gitignore");
    let ignored: Vec<PathBuf> =
        ignored.lines().map(|line| root.join(line.trim_start_matches('/'))).collect();
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be listed") {
            let path = entry.expect("a folder can be listed").path();
            let skipped = path.ends_with(".git") || path == root.join(CORPUS);
            if skipped || ignored.contains(&path) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(&root).expect("it was found below the root");
                found.push(Source { path: path.display().to_string(), text });
            }
        }
    }
    assert!(found.len() > 50, "the repository was not found: {} files", found.len());
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn expect_none(findings: impl IntoIterator<Item = Finding>) {
    let findings: Vec<String> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

fn everywhere(check: Check) {
    expect_none(sources().iter().flat_map(check));
}

/// Tries a check on a text that breaks its rule in the given line, and on one that keeps it.
fn try_check(check: Check, path: &str, bad: &str, line: usize, good: &str) {
    let findings = check(&Source::new(path, bad));
    let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
    assert_eq!(lines, [line], "{path}: {findings:?}");
    let findings = check(&Source::new(path, good));
    assert!(findings.is_empty(), "{path}: {findings:?}");
}
