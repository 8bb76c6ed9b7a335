//! Rules for references between documents: links with anchors, documents that code and scripts
//! name, and the index of decisions. A rule here looks at several files at once.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::documents::{links, prose};
use super::{Finding, Source, expect_none, sources};

/// The anchors of a document, as GitHub makes them of its headings.
fn anchors(source: &Source) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(source).filter(|(_, line)| line.starts_with('#'));
    let slugs = headings.map(|(_, line)| slug(line.trim_start_matches('#').trim()));
    let numbered = slugs.map(|slug| {
        let count = seen.entry(slug.clone()).or_default();
        *count += 1;
        if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
    });
    numbered.collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A path without `.` and `..`, from the repository's root.
fn resolved(folder: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// A link with an anchor leads to a heading of that document.
fn dead_anchors(sources: &[Source]) -> Vec<Finding> {
    let documents = || sources.iter().filter(|source| source.is("md"));
    let known: HashMap<&Path, Vec<String>> =
        documents().map(|source| (Path::new(&source.path), anchors(source))).collect();
    let mut found = Vec::new();
    for source in documents() {
        let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
        for (number, line) in prose(source) {
            for (target, anchor) in links(line).filter_map(|link| link.split_once('#')) {
                let path = match target {
                    "" => PathBuf::from(&source.path),
                    target => resolved(folder, target),
                };
                let is_there =
                    known.get(path.as_path()).is_none_or(|all| all.iter().any(|it| it == anchor));
                if !is_there {
                    let what = format!("{} has no heading for #{anchor}", path.display());
                    found.push(source.finding(number, what));
                }
            }
        }
    }
    found
}

/// The documents that a line of code, of a script or of a unit names, `docs/NAME.md`.
fn named_documents(line: &str) -> impl Iterator<Item = &str> {
    let starts = line.match_indices("docs/").map(|(at, _)| &line[at..]);
    starts.filter_map(|rest| {
        let in_name = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let end = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        name.rfind(".md").map(|at| &name[..at + 3])
    })
}

/// A document that is named outside of documents is there.
fn missing_documents(sources: &[Source]) -> Vec<Finding> {
    let is_there = |name: &str| sources.iter().any(|source| source.path == name);
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !source.is("md")) {
        // The tidy tests themselves name documents that must not be there.
        if source.path.starts_with("bench/tests/tidy") {
            continue;
        }
        for (number, line) in source.lines() {
            for name in named_documents(line).filter(|name| !is_there(name)) {
                found.push(source.finding(number, format!("there is no {name}")));
            }
        }
    }
    found
}

const DECISIONS: &str = "docs/decisions/";

/// The index of decisions has one line of its table for each decision.
fn unlisted_decisions(sources: &[Source]) -> Vec<Finding> {
    let index = format!("{DECISIONS}README.md");
    let lines = sources.iter().filter(|source| source.path == index).flat_map(Source::lines);
    let rows = lines.map(|(_, line)| line).filter(|line| line.starts_with("| ["));
    let listed: Vec<&str> = rows.filter_map(|row| links(row).next()).collect();
    let decisions = sources.iter().filter(|source| source.path.starts_with(DECISIONS));
    let unlisted = decisions.filter(|source| source.path != index).filter_map(|source| {
        let name = source.path.trim_start_matches(DECISIONS);
        let lines = listed.iter().filter(|listed| **listed == name).count();
        (lines != 1).then(|| source.finding(1, format!("{index} has {lines} lines for it")))
    });
    unlisted.collect()
}

#[test]
fn an_anchor_is_a_heading() {
    let document = |text: &str| Source::new("docs/a.md", text);
    let other = Source::new("README.md", "# One `two`, three\n\n## Part\n\n## Part\n");
    let good =
        "# A\n[1](../README.md#one-two-three) [2](#a) [3](../README.md#part-1) [4](b.rs#L3)\n";
    assert_eq!(dead_anchors(&[document(good), other]), []);
    let found = dead_anchors(&[document("# A\n\nsee [this](#b) and [that](a.md#c)\n")]);
    assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [3, 3], "{found:?}");
    expect_none(dead_anchors(&sources()));
}

#[test]
fn a_document_that_code_names_is_there() {
    let code = Source::new("a/src/b.rs", "//! See docs/a.md.\nlet x = \"docs/gone.md lists\";\n");
    let found = missing_documents(&[code, Source::new("docs/a.md", "# A\n")]);
    assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [2], "{found:?}");
    expect_none(missing_documents(&sources()));
}

#[test]
fn each_decision_is_in_the_index() {
    let index =
        Source::new("docs/decisions/README.md", "# D\n\n| [1](1-a.md) | as [2](2-b.md) |\n");
    let decisions = ["1-a.md", "2-b.md"].map(|name| Source::new(&format!("{DECISIONS}{name}"), ""));
    let found = unlisted_decisions(&[vec![index], decisions.into()].concat());
    assert_eq!(found.iter().map(|it| &*it.path).collect::<Vec<_>>(), ["docs/decisions/2-b.md"]);
    let twice = Source::new("docs/decisions/README.md", "| [1](1-a.md) | |\n| [1](1-a.md) | |\n");
    assert_eq!(unlisted_decisions(&[twice, Source::new("docs/decisions/1-a.md", "")]).len(), 1);
    expect_none(unlisted_decisions(&sources()));
}
