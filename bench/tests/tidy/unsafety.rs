//! The places with unsafe code are those that ARCHITECTURE.md lists.

use super::{Finding, Source, expect_none, sources};

const LIST: &str = "ARCHITECTURE.md";

/// The section of the list, of which each line of the table names places as `crate/src/..`.
const SECTION: &str = "## Unsafe code";

/// The text after the keyword where it makes code unsafe. Attributes are lists of lints or names.
const FORMS: [&str; 5] = [" {", " fn ", " impl ", " extern ", " impl<"];

/// A file of a program or library; tests' own code argues for itself.
fn is_shipped(path: &str) -> bool {
    let (_, inside) = path.split_once("src/").unwrap_or_default();
    let name = inside.rsplit('/').next().unwrap_or_default();
    let is_test = inside.contains("tests/")
        || name == "tests.rs"
        || name == "testing.rs"
        || name.ends_with("_tests.rs");
    path.ends_with(".rs") && !inside.is_empty() && !is_test
}

/// The first line with unsafe code, before the file's tests.
fn unsafe_line(source: &Source) -> Option<usize> {
    let tests = source.text.find("#[cfg(test)]\nmod ").unwrap_or(source.text.len());
    let mut lines = source.text[..tests].lines().enumerate();
    let found = lines.find(|(_, line)| {
        let code = line.split("//").next().unwrap_or_default();
        code.match_indices("unsafe").any(|(at, word)| {
            let rest = &code[at + word.len()..];
            let starts = code[..at].chars().next_back().is_none_or(|c| " (=".contains(c));
            starts && FORMS.iter().any(|form| rest.starts_with(form))
        })
    });
    found.map(|(index, _)| index + 1)
}

/// Each place that the list names, with its line.
fn places(list: &Source) -> Vec<(usize, &str)> {
    let section = list.lines().skip_while(|(_, line)| *line != SECTION).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    let rows = section.filter(|(_, line)| line.starts_with('|'));
    let spans = rows.flat_map(|(number, row)| {
        row.split('`').skip(1).step_by(2).map(move |span| (number, span))
    });
    spans.filter(|(_, span)| span.contains("/src/")).collect()
}

fn covers(place: &str, path: &str) -> bool {
    path == place || (place.ends_with('/') && path.starts_with(place))
}

fn unlisted(sources: &[Source]) -> Vec<Finding> {
    let list = sources.iter().find(|source| source.path == LIST).expect("there is the list");
    let places = places(list);
    let shipped = sources.iter().filter(|source| is_shipped(&source.path));
    let with: Vec<_> = shipped.filter_map(|it| Some((it, unsafe_line(it)?))).collect();
    let missing = with
        .iter()
        .filter(|(source, _)| !places.iter().any(|(_, place)| covers(place, &source.path)));
    let missing = missing.map(|(source, line)| {
        source.finding(*line, format!("unsafe code that {LIST} does not list"))
    });
    let idle = places
        .iter()
        .filter(|(_, place)| !with.iter().any(|(source, _)| covers(place, &source.path)));
    let idle = idle.map(|(line, place)| list.finding(*line, format!("{place} has no unsafe code")));
    missing.chain(idle).collect()
}

#[test]
fn unsafe_code_is_where_the_list_says() {
    let list = "# A\n\n## Unsafe code\n\n| crate | places |\n| `a` | `a/src/b/`, `a/src/c.rs` |\n";
    let list = Source::new(LIST, list);
    let file = |path: &str, text: &str| Source::new(path, text);
    let block = "//! It is not unsafe {\nlet x = unsafe { y() };\n";
    let good = [
        list.clone(),
        file("a/src/b/d.rs", block),
        file("a/src/c.rs", "unsafe impl Send for A {}\n"),
        file("a/src/lib.rs", "#![deny(unsafe_code)]\n#[cfg(test)]\nmod tests { unsafe { z() } }\n"),
        file("a/src/tests/e.rs", block),
        file("a/tests/f.rs", block),
    ];
    assert_eq!(unlisted(&good), []);
    let bad = [list, file("a/src/b/d.rs", block), file("a/src/g.rs", block)];
    let found = unlisted(&bad);
    let found: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.line)).collect();
    assert_eq!(found, [("a/src/g.rs", 2), (LIST, 6)]);
    expect_none(unlisted(&sources()));
}
