//! Plain words: a comment's sentence names its subject with a noun, so that a stranger reads it
//! once.

use std::collections::BTreeMap;

use super::{Finding, Source, sources};

/// Words that stand where a noun should: sender, successor, owner, front end, ...
const PRONOUNS: [&str; 9] =
    ["who", "whom", "whoever", "whatever", "somebody", "someone", "nobody", "anybody", "everybody"];

/// Likewise, of two words; and orders that are "must" or "will".
const PAIRS: [[&str; 2]; 4] = [["that", "one"], ["those", "who"], ["is", "to"], ["are", "to"]];

/// The number of such places that each folder had before there was this rule. The numbers only
/// fall.
const BEFORE: &str = include_str!("words.txt");

/// The text of a line that has only a comment.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.strip_prefix(['/', '!']).unwrap_or(rest))
}

/// A word without the signs around it, in small letters.
fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// Whether a sentence may begin after this word.
fn ends_sentence(word: &str) -> bool {
    word.ends_with(['.', ':', ';', '!', '?']) && !word.ends_with("e.g.") && !word.ends_with("i.e.")
}

/// Looks at the words of one text, in their order.
#[derive(Default)]
pub(super) struct Places {
    /// The word before, and whether a sentence may begin after it.
    before: Option<(String, bool)>,
}

impl Places {
    /// Whether this word is a pronoun that stands instead of a noun. A sentence that begins with
    /// "What" has a question for its subject.
    pub(super) fn is_wrong(&mut self, word: &str) -> bool {
        let this = bare(word);
        let (last, begins) = self.before.take().unwrap_or_else(|| (String::new(), true));
        let is_pair = PAIRS.contains(&[last.as_str(), this.as_str()]);
        let is_pronoun = PRONOUNS.contains(&this.as_str()) && last != "those";
        let is_question = begins && this == "what";
        self.before = Some((this, ends_sentence(word)));
        is_pronoun || is_pair || is_question
    }
}

/// Each place in comments where a pronoun stands instead of a noun.
fn subjects_without_a_noun(source: &Source) -> Vec<Finding> {
    if !source.is("rs") {
        return Vec::new();
    }
    let mut found = Vec::new();
    // The words before, in this comment; a line that is none ends it.
    let mut places = Places::default();
    for (number, line) in source.lines() {
        let Some(text) = comment(line) else {
            places = Places::default();
            continue;
        };
        for word in text.split_whitespace() {
            if places.is_wrong(word) {
                found.push(source.finding(number, format!("'{word}' where a noun should be")));
            }
        }
    }
    found
}

#[test]
fn a_subject_without_a_noun_is_found() {
    for (bad, line) in [
        ("// Who sleeps is woken.\n", 1),
        ("/// A limit. What a\n/// limit did.\nfn f() {}\n", 1),
        ("//! The packet of\n//! somebody.\n", 2),
        ("// The sender is\n// to wait.\n", 2),
        ("// It is that one.\n", 1),
    ] {
        let good = "/// A sleeping process is woken: the sender knows what it sent, to each that\n\
                    /// listens.\nfn f() {}\n// Two.\nlet that = \"who\";\n";
        super::try_check(subjects_without_a_noun, "a.rs", bad, line, good);
    }
}

#[test]
fn comments_name_their_subjects() {
    let mut found: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for source in sources() {
        let folder = source.path.split('/').next().unwrap_or_default().to_owned();
        let findings = subjects_without_a_noun(&source);
        if !findings.is_empty() {
            found.entry(folder).or_default().extend(findings);
        }
    }
    let mut before: BTreeMap<&str, usize> = BEFORE
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(folder, places)| (folder, places.parse().expect("words.txt has a number a line")))
        .collect();
    let mut faults = Vec::new();
    for (folder, findings) in &found {
        let (now, allowed) = (findings.len(), before.remove(folder.as_str()).unwrap_or(0));
        if now < allowed {
            faults.push(format!("{folder}: fewer now; in tidy/words.txt it is \"{folder} {now}\""));
        } else if now > allowed {
            faults.push(format!(
                "{folder}: {now} places, where {allowed} were; some of these are new:"
            ));
            faults.extend(findings.iter().map(Finding::to_string));
        }
    }
    faults.extend(
        before.keys().map(|folder| format!("{folder}: none now; it has no line in tidy/words.txt")),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
