//! Rules for documents.

use std::path::Path;

use super::{Finding, Source, everywhere, root, try_check};

/// A decision is one page.
const DECISION_LINES_MAX: usize = 80;

/// The most words of README, which a stranger reads first, in three minutes.
const README_WORDS_MAX: usize = 800;

/// The lines of a Markdown file that are not inside a block of code.
pub(super) fn prose(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    source.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

fn one_title(source: &Source) -> Vec<Finding> {
    if !source.is("md") {
        return Vec::new();
    }
    let titles: Vec<usize> = prose(source)
        .filter(|(_, line)| line.starts_with("# "))
        .map(|(number, _)| number)
        .collect();
    match titles.as_slice() {
        [1] => Vec::new(),
        [] | [_] => vec![source.finding(1, "a document begins with its title")],
        [_, second, ..] => vec![source.finding(*second, "a second title")],
    }
}

fn short_decision(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    // Their list has a line for each.
    let is_decision =
        source.path.starts_with("docs/decisions/") && !source.path.ends_with("/README.md");
    if !is_decision || lines <= DECISION_LINES_MAX {
        return Vec::new();
    }
    vec![source.finding(lines, format!("{lines} lines: a decision is one page"))]
}

fn short_readme(source: &Source) -> Vec<Finding> {
    let words = source.text.split_whitespace().count();
    if source.path != "README.md" || words <= README_WORDS_MAX {
        return Vec::new();
    }
    vec![source.finding(1, format!("{words} words: the rest belongs into docs/"))]
}

/// Files that a document names, in a link or as `folder/file.rs`, are there.
fn named_files(source: &Source) -> Vec<Finding> {
    if !source.is("md") {
        return Vec::new();
    }
    let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for (number, line) in prose(source) {
        let outside = |link: &&str| !link.starts_with('#');
        let files = links(line).filter(outside);
        for link in files.map(|link| link.split('#').next().unwrap_or(link)) {
            if !root().join(folder).join(link).exists() {
                found.push(source.finding(number, format!("the link to {link} leads nowhere")));
            }
        }
        for file in code_spans(line).filter(|span| looks_like_a_file(span)) {
            if !root().join(file).exists() && !root().join(folder).join(file).exists() {
                found.push(source.finding(number, format!("there is no {file}")));
            }
        }
    }
    found
}

/// The targets of a line's links inside the repository.
pub(super) fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Whether it is the path of a source file, and not another example.
fn looks_like_a_file(span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    span.contains('/')
        && !span.starts_with('/')
        && span.chars().all(plain)
        && [".rs", ".toml", ".md", ".sh"].iter().any(|extension| span.ends_with(extension))
}

#[test]
fn a_document_has_one_title() {
    let good = "# Title\n\n```\n# a comment\n```\n\n## Part\n";
    try_check(one_title, "a.md", "# Title\n\n# Other\n", 3, good);
    try_check(one_title, "a.md", "text\n\n# Late\n", 1, good);
    try_check(one_title, "a.md", "text\n", 1, good);
    everywhere(one_title);
}

#[test]
fn a_decision_is_one_page() {
    let (long, longest) = ("x\n".repeat(DECISION_LINES_MAX + 1), "x\n".repeat(DECISION_LINES_MAX));
    let path = "docs/decisions/a.md";
    try_check(short_decision, path, &long, DECISION_LINES_MAX + 1, &longest);
    assert!(short_decision(&Source::new("docs/a.md", &long)).is_empty());
    everywhere(short_decision);
}

#[test]
fn the_readme_is_read_in_three_minutes() {
    let (long, longest) = ("x ".repeat(README_WORDS_MAX + 1), "x ".repeat(README_WORDS_MAX));
    try_check(short_readme, "README.md", &long, 1, &longest);
    everywhere(short_readme);
}

#[test]
fn paths_in_documents_exist() {
    let good = "see [the manifest](../Cargo.toml#here), `bench/src/net.rs`, `x/*.rs` and\n\
                [elsewhere](https://example.org/a.rs)\n";
    try_check(named_files, "docs/a.md", "one\nsee [this](nowhere.md)\n", 2, good);
    try_check(named_files, "docs/a.md", "one\nsee `bench/src/nowhere.rs`\n", 2, good);
    everywhere(named_files);
}
