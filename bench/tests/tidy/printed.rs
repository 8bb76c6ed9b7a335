//! Plain words in texts that a person reads at a terminal: errors, log lines, help and status. And
//! plain names of tests, which a person reads when a test fails.

use super::names::is_of_the_program;
use super::words::Places;
use super::{Finding, Source};

/// The start of a file's own tests, whose texts only developers read.
const OWN_TESTS: &str = "#[cfg(test)]\nmod tests {";

/// The content of each string in Rust code, with its line. Comments and characters are skipped.
fn strings(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(next) = text[at..].find(['"', '\'', '/']).map(|next| at + next) {
        let rest = &text[next..];
        line += text[at..next].matches('\n').count();
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(rest) = rest.strip_prefix('"') {
            let raw = text[..next].trim_end_matches('#').ends_with('r');
            let hashes = next - text[..next].trim_end_matches('#').len();
            let content = string_length(rest, raw.then_some(hashes));
            found.push((line, &rest[..content]));
            content + 2
        } else if rest.starts_with('\'') {
            character_length(rest)
        } else {
            1
        };
        at = next + length.min(rest.len());
        line += text[next..at].matches('\n').count();
    }
    found
}

/// The length of a string's content. A raw string has a number of hashes after its end.
fn string_length(text: &str, raw: Option<usize>) -> usize {
    if let Some(hashes) = raw {
        return text.find(&format!("\"{}", "#".repeat(hashes))).unwrap_or(text.len());
    }
    let mut is_escaped = false;
    let end = text.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    end.unwrap_or(text.len())
}

/// The length of a character in quotes; one for the quote of a lifetime.
fn character_length(text: &str) -> usize {
    let mut rest = text.char_indices().skip(1);
    let end = match (rest.next(), rest.next()) {
        (Some((_, '\\')), Some((escaped, _))) => {
            text[escaped + 1..].find('\'').map(|end| escaped + 1 + end)
        }
        (Some(_), Some((end, '\''))) => Some(end),
        _ => None,
    };
    end.map_or(1, |end| end + 1)
}

/// The words of a string as a person reads them. A placeholder and a sign that is escaped are
/// breaks between words; a line that goes on behind a backslash is one line.
fn words(content: &str) -> Vec<String> {
    let mut text = String::new();
    let mut depth = 0_usize;
    let mut chars = content.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                _ => text.push(' '),
            },
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                text.push('x');
            }
            _ if depth > 0 => {}
            _ => text.push(c),
        }
    }
    text.split_whitespace().map(str::to_owned).collect()
}

/// Each place in texts of the program where a pronoun stands instead of a noun. A text of one word
/// is a name.
fn texts_without_a_noun(source: &Source) -> Vec<Finding> {
    if !is_of_the_program(&source.path) {
        return Vec::new();
    }
    let end = source.text.find(OWN_TESTS).unwrap_or(source.text.len());
    let mut found = Vec::new();
    for (line, content) in strings(&source.text[..end]) {
        let words = words(content);
        if words.len() < 2 {
            continue;
        }
        let mut places = Places::default();
        let wrong = words.iter().filter(|word| places.is_wrong(word));
        found.extend(
            wrong.map(|word| source.finding(line, format!("'{word}' where a noun should be"))),
        );
    }
    found
}

/// Each test with a pronoun in its name, or with a question for its subject. The name of the
/// system's user without rights is a noun.
fn tests_without_a_noun(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (line, text) in source.lines().filter(|_| source.is("rs")) {
        let text = text.trim_start();
        let name = text.strip_prefix("fn ").and_then(|rest| rest.split_once('('));
        match name {
            Some((name, _)) if is_test => {
                let plain = name.replace("of_nobody", "").replace('_', " ");
                let mut places = Places::default();
                if plain.split(' ').any(|word| places.is_wrong(word)) {
                    found.push(source.finding(line, format!("{name}: a pronoun for a noun")));
                }
                is_test = false;
            }
            _ => is_test = text == "#[test]" || is_test && text.starts_with("#["),
        }
    }
    found
}

#[test]
fn strings_are_told_from_other_code() {
    let code = "let a = 'x'; let b: &'static str = \"one\\\" \\\n    two\"; // \"no\"\n\
                let c = '\"';\n\
                let d = r#\"raw \"text\" here\"#; let e = '\\''; f(\"three\");\n";
    let found: Vec<_> = strings(code).into_iter().map(|(line, text)| (line, words(text))).collect();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let wanted = [(1, "one two"), (4, "raw \"text\" here"), (4, "three")];
    assert_eq!(found, wanted.map(|(line, text)| (line, words(text))));
}

#[test]
fn a_text_without_a_noun_is_found() {
    for (bad, line) in [
        ("fn f() {\n    bail!(\"{path}: stop who has it\");\n}\n", 2),
        ("#[error(\"nothing is \\\n    to be done\")]\nstruct X;\n", 1),
        ("const HELP: &str = \"Wait until nobody\nis there\";\n", 1),
    ] {
        let good = "// who\nfn f() {\n    bail!(\"{who} must stop\", \"who\");\n}\n#[cfg(test)]\n\
                    mod tests {\n    const A: &str = \"it is who\";\n}\n";
        super::try_check(texts_without_a_noun, "a/src/a.rs", bad, line, good);
    }
    let bad = "#[test]\n#[should_panic]\nfn what_is_wrong_is_refused() {}\n";
    let good = "fn who_is_it() {}\n#[test]\nfn a_node_of_nobody_knows_what_it_does() {}\n";
    super::try_check(tests_without_a_noun, "a/tests/a.rs", bad, 3, good);
}

#[test]
fn texts_name_their_subjects() {
    super::everywhere(texts_without_a_noun);
}

#[test]
fn tests_name_their_subjects() {
    super::everywhere(tests_without_a_noun);
}
