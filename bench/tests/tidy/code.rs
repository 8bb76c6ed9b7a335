//! Rules for Rust.

use super::{Finding, Source, everywhere, try_check};

/// As many lines as a reader can hold in mind. Tests are included, since they are read with the
/// code.
const FILE_LINES_MAX: usize = 900;
/// About a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// Words that mean unfinished, hidden or forgotten work. Written in two halves: this file is
/// checked as well.
const STRAY: [[&str; 2]; 8] = [
    ["to", "do!("],
    ["unimple", "mented!("],
    ["db", "g!("],
    ["#[ig", "nore"],
    ["allow(dead_", "code"],
    ["allow(un", "used"],
    ["FIX", "ME"],
    ["TO", "DO"],
];

fn file_length(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    if !source.is("rs") || lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![source.finding(lines, format!("{lines} lines: split it by concern"))]
}

fn function_length(source: &Source) -> Vec<Finding> {
    if !source.is("rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let Some(length) = function_lines(&lines[start..]) else { continue };
        if length > FUNCTION_LINES_MAX {
            found.push(source.finding(start + 1, format!("fn {name} has {length} lines")));
        }
    }
    found
}

/// The name, if a function begins in this line as rustfmt writes it.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    loop {
        if let Some(rest) = words.strip_prefix("fn ") {
            return rest.split(['(', '<']).next();
        }
        let (word, rest) = words.split_once(' ')?;
        let qualifier = word.starts_with("pub")
            || word.starts_with('"')
            || ["const", "async", "unsafe", "extern", "default"].contains(&word);
        words = if qualifier { rest } else { return None };
    }
}

/// The number of lines of the function that begins in the first of `lines`; none if it has no body.
fn function_lines(lines: &[&str]) -> Option<usize> {
    let indent = lines[0].len() - lines[0].trim_start().len();
    for (index, line) in lines.iter().enumerate() {
        let depth = line.len() - line.trim_start().len();
        let ends = if index == 0 {
            line.ends_with('}') || line.ends_with(';')
        } else {
            depth == indent && (line.trim_start() == "}" || line.ends_with(';'))
        };
        if ends {
            return Some(index + 1);
        }
    }
    None
}

/// The file whose type of a page's alignment is never on a stack, and the least such alignment.
const PAGE_ALIGNED: &str = "pool-format/src/block.rs";
const PAGE_BYTES: u32 = 4096;

/// LLVM 22 drops the prologue of some optimised functions that have a value of such a type on the
/// stack: a release build crashes where a test build does not.
fn page_alignment(source: &Source) -> Vec<Finding> {
    if !source.is("rs") || source.path == PAGE_ALIGNED {
        return Vec::new();
    }
    let aligned = |line: &str| {
        let (_, rest) = line.split_once("align(")?;
        line.contains("repr(").then_some(())?;
        rest.split(')').next()?.parse::<u32>().ok()
    };
    let lines = source.text.lines().enumerate();
    let lines = lines.filter(|(_, line)| aligned(line).is_some_and(|bytes| bytes >= PAGE_BYTES));
    let text = "a value of this type could be on a stack: keep the alignment on the heap";
    lines.map(|(index, _)| source.finding(index + 1, text.to_owned())).collect()
}

fn stray_words(source: &Source) -> Vec<Finding> {
    if !source.is("rs") && !source.is_script() && !source.is("toml") {
        return Vec::new();
    }
    let words: Vec<String> = STRAY.iter().map(|halves| halves.concat()).collect();
    let stray = |line: &str| words.iter().find(|word| line.contains(word.as_str())).cloned();
    let lines = source.lines().filter_map(|(number, line)| Some((number, stray(line)?)));
    lines.map(|(number, word)| source.finding(number, format!("stray '{word}'"))).collect()
}

/// Errors of ours whose cause is printed twice in a chain of causes. Their own text has it, and
/// `source()` has it, which thiserror makes of a field of that name and of two attributes.
fn causes_twice(source: &Source) -> Vec<Finding> {
    if !source.is("rs") {
        return Vec::new();
    }
    let (mut found, mut says_its_cause, mut in_text) = (Vec::new(), false, false);
    for (number, line) in source.lines() {
        let words = line.trim();
        if words.starts_with("#[error(") {
            (says_its_cause, in_text) = (words != "#[error(transparent)]", true);
        }
        if in_text {
            in_text = !words.ends_with(")]");
            continue;
        }
        let declared = words.trim_start_matches("pub(super) ").trim_start_matches("pub ");
        let marks = [["#[sou", "rce]"], ["#[fr", "om]"]].map(|halves| halves.concat());
        let is_marked = marks.iter().any(|mark| words.contains(mark));
        if says_its_cause && (declared.starts_with("source: ") || is_marked) {
            found.push(source.finding(number, "its text says its cause, so source() says none"));
        }
        // The end of a variant, or of all.
        says_its_cause &= !words.starts_with('}') && !words.ends_with("),");
    }
    found
}

#[test]
fn causes_are_told_once() {
    let field = |field: &str| {
        format!(
            "enum E {{\n    #[error(\"x: {{source}}\")]\n    X {{\n        {field}\n    }},\n}}\n"
        )
    };
    for bad in ["source: io::Error,", "pub source: io::Error,", "pub(super) source: io::Error,"] {
        try_check(causes_twice, "a.rs", &field(bad), 4, &field("r#source: io::Error,"));
    }
    let variant = |text: &str, mark: &str| {
        format!("enum E {{\n    #[error({text})]\n    X({mark} io::Error),\n}}\n")
    };
    let mark = ["#[fr", "om]"].concat();
    let transparent = variant("transparent", &mark);
    try_check(causes_twice, "a.rs", &variant("\"x: {0}\"", &mark), 3, &transparent);
    everywhere(causes_twice);
}

#[test]
fn files_are_short() {
    let line = "// x\n";
    let (long, longest) = (line.repeat(FILE_LINES_MAX + 1), line.repeat(FILE_LINES_MAX));
    try_check(file_length, "a.rs", &long, FILE_LINES_MAX + 1, &longest);
    everywhere(file_length);
}

#[test]
fn functions_are_short() {
    let function = |lines: usize| {
        let body = "        x();\n".repeat(lines - 2);
        format!("impl X {{\n    pub(crate) const fn f<T>(x: T) {{\n{body}    }}\n}}\n")
    };
    let (long, longest) = (function(FUNCTION_LINES_MAX + 1), function(FUNCTION_LINES_MAX));
    try_check(function_length, "a.rs", &long, 2, &longest);
    let declared = format!("fn f();\n{}", "\n".repeat(100));
    try_check(function_length, "a.rs", &long, 2, &declared);
    everywhere(function_length);
}

#[test]
fn a_function_is_known_by_its_first_line() {
    for (line, name) in [
        ("    pub(super) async fn name<'a>(", Some("name")),
        ("pub unsafe extern \"C\" fn name() {", Some("name")),
        ("fn name() {}", Some("name")),
        ("    let x = fn_name();", None),
        ("// fn name()", None),
        ("", None),
    ] {
        assert_eq!(function_name(line), name, "{line}");
    }
}

#[test]
fn no_value_on_a_stack_is_aligned_to_a_page() {
    let bad = format!("#[repr(C, {}n(8192))]\nstruct A;\n", "alig");
    try_check(page_alignment, "a.rs", &bad, 1, "#[repr(C, align(64))]\nstruct A;\n");
    everywhere(page_alignment);
}

#[test]
fn nothing_is_left_unfinished() {
    for halves in STRAY {
        let bad = format!("fn f() {{\n    {}\n}}\n", halves.concat());
        try_check(stray_words, "a.rs", &bad, 2, "fn f() {\n    done()\n}\n");
    }
    everywhere(stray_words);
}
