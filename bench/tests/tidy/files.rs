//! Rules for every file.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{Finding, Source, everywhere, expect_none, root, sources, try_check};

/// The width of code: two files fit side by side.
const COLUMNS_MAX: usize = 100;
/// The width of documents.
const PROSE_COLUMNS_MAX: usize = 120;

/// Places of one person's or one machine's own. In two halves: this file is checked as well.
const PLACES: [[&str; 2]; 3] = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"]];

fn white_space(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, line) in source.text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    {
        if line.ends_with([' ', '\t', '\r']) {
            found.push(source.finding(number, "white space at the end of the line"));
        } else if source.is("rs") && line.contains('\t') {
            found.push(source.finding(number, "a tab"));
        }
    }
    let lines = source.text.lines().count();
    if !source.text.is_empty() && (!source.text.ends_with('\n') || source.text.ends_with("\n\n")) {
        found.push(source.finding(lines, "a file ends with one line end"));
    }
    found
}

fn width(source: &Source) -> Vec<Finding> {
    let columns_max = if source.is("rs") || source.is_script() {
        COLUMNS_MAX
    } else if source.is("md") {
        PROSE_COLUMNS_MAX
    } else {
        return Vec::new();
    };
    // A table's row and an address cannot be broken.
    let excused = |line: &str| source.is("md") && (line.starts_with('|') || line.contains("://"));
    let wide = |line: &str| line.chars().count() > columns_max && !excused(line);
    let what = format!("wider than {columns_max} columns");
    let lines = source.lines().filter(|(_, line)| wide(line));
    lines.map(|(number, _)| source.finding(number, what.clone())).collect()
}

fn places(source: &Source) -> Vec<Finding> {
    let places: Vec<String> = PLACES.iter().map(|halves| halves.concat()).collect();
    let own = |line: &str| places.iter().any(|place| line.contains(place.as_str()));
    let lines = source.lines().filter(|(_, line)| own(line));
    lines.map(|(number, _)| source.finding(number, "a path of one machine's own")).collect()
}

#[test]
fn lines_end_where_their_text_ends() {
    try_check(white_space, "a.rs", "a \nb\n", 1, "a\n\nb\n");
    try_check(white_space, "a.md", "a\r\nb\n", 1, "a\nb\n");
    try_check(white_space, "a.rs", "a\n\tb\n", 2, "a\n    b\n");
    try_check(white_space, "a.rs", "a\nb", 2, "");
    try_check(white_space, "a.rs", "a\nb\n\n", 3, "a\nb\n");
    everywhere(white_space);
}

#[test]
fn lines_fit_a_screen() {
    let (wide, widest) = ("é".repeat(COLUMNS_MAX + 1), "é".repeat(COLUMNS_MAX));
    try_check(width, "a.rs", &wide, 1, &widest);
    let (wide, widest) = ("é".repeat(PROSE_COLUMNS_MAX + 1), "é".repeat(PROSE_COLUMNS_MAX));
    try_check(width, "a.md", &wide, 1, &widest);
    try_check(width, "a.md", &wide, 1, &format!("| {wide} |"));
    everywhere(width);
}

#[test]
fn no_path_is_one_machines_own() {
    for halves in PLACES {
        let bad = format!("a\n cat {}x\n", halves.concat());
        try_check(places, "a.md", &bad, 2, "/var/lib/vrio\n");
    }
    everywhere(places);
}

#[test]
fn scripts_can_be_run() {
    let executable = |source: &Source| {
        let status = fs::metadata(root().join(&source.path)).expect("it was just read");
        status.permissions().mode() & 0o111 != 0
    };
    // A Rust file may begin with an inner attribute, which looks like it.
    let scripts = sources().into_iter().filter(|source| source.text.starts_with("#!/"));
    let (run, not_run): (Vec<_>, Vec<_>) = scripts.partition(executable);
    assert!(run.len() >= 3, "the scripts were not found");
    expect_none(not_run.iter().map(|source| source.finding(1, "a script is not executable")));
}
