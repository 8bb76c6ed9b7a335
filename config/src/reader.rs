//! Reads a TOML document key by key and collects everything that is wrong with it.
//!
//! Serde stops at the first error and knows no line for a value that parses but makes no sense. An
//! operator is better served by all errors at once, each with its line, its object and a hint. So
//! this code walks the tables itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::key_table::{SettingKey, names};
use crate::quantity;

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The line, from 1. Zero for the file as a whole.
    pub line: usize,
    /// The object of the problem, such as `volume "alice-root"`; empty for the file as a whole.
    pub object: String,
    /// The fault and the way out.
    pub text: String,
}

/// A configuration that cannot be used: every problem that was found, by line.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}", self.path.display())?;
            if problem.line > 0 {
                write!(f, ":{}", problem.line)?;
            }
            if !problem.object.is_empty() {
                write!(f, ": {}", problem.object)?;
            }
            write!(f, ": {}", problem.text)?;
        }
        Ok(())
    }
}

/// The document's text, and the problems found so far.
#[derive(Debug)]
pub struct Reader<'i> {
    text: &'i str,
    /// The place of each line's end, since each key and each value of a list is looked up here.
    line_ends: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
}

impl<'i> Reader<'i> {
    pub(crate) fn new(text: &'i str) -> Self {
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { text, line_ends, problems: RefCell::default() }
    }

    /// Parses the text. `None` when its syntax leaves nothing to go on with. Duplicate keys are
    /// noted, and the first of them counts.
    pub(crate) fn parse(&self) -> Option<Spanned<DeTable<'i>>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        let mut usable = true;
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            let line = self.line(span.start);
            if error.message().contains("duplicate key") {
                let key = self.text.get(span).unwrap_or_default().trim();
                let text = format!("the key {key:?} is given twice; keep one of the two");
                self.note(line, "", text);
            } else {
                usable = false;
                let hint = if error.message().contains("invalid float") {
                    " (a text needs \"quotes\")"
                } else {
                    ""
                };
                self.note(line, "", format!("this is not TOML: {}{hint}", error.message()));
            }
        }
        usable.then_some(document)
    }

    /// The line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.line_ends.partition_point(|end| *end < at)
    }

    /// Notes a problem.
    pub(crate) fn note(&self, line: usize, object: &str, text: String) {
        let problem = Problem { line, object: object.to_owned(), text };
        self.problems.borrow_mut().push(problem);
    }

    /// Whether nothing was noted so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// All problems, by line.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.line);
        problems
    }

    /// An error with all problems, by line, if there is one.
    pub(crate) fn finish(self, path: &Path) -> Result<(), ConfigError> {
        let problems = self.into_problems();
        if problems.is_empty() {
            return Ok(());
        }
        Err(ConfigError { path: path.to_owned(), problems })
    }
}

/// Which line each key of an object is on, for errors that are found after reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    whole: usize,
    keys: BTreeMap<String, usize>,
}

impl Lines {
    /// The line of a key, or the object's own where the key was left out.
    pub fn of(&self, key: &str) -> usize {
        self.keys.get(key).copied().unwrap_or(self.whole)
    }

    /// Whether the key is given.
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// The line where the object starts.
    pub fn whole(&self) -> usize {
        self.whole
    }
}

/// A table whose keys are known.
#[derive(Clone, Debug)]
pub struct TableReader<'r, 'i> {
    pub(crate) reader: &'r Reader<'i>,
    pub(crate) object: String,
    pub(crate) lines: Lines,
    entries: &'r DeTable<'i>,
}

impl<'r, 'i> TableReader<'r, 'i> {
    /// Looks at a table; keys that are not among `known` are noted at once, with a hint.
    pub(crate) fn new(
        reader: &'r Reader<'i>,
        entries: &'r DeTable<'i>,
        span: &Range<usize>,
        object: &str,
        known: &[&str],
    ) -> Self {
        let mut lines = Lines { whole: reader.line(span.start), keys: BTreeMap::new() };
        for key in entries.keys() {
            let line = reader.line(key.span().start);
            lines.keys.insert(key.get_ref().to_string(), line);
            if !known.contains(&key.get_ref().as_ref()) {
                let text = unknown("key", key.get_ref(), known);
                reader.note(line, object, text);
            }
        }
        Self { reader, object: object.to_owned(), lines, entries }
    }

    /// The value of a key, if it is given.
    pub(crate) fn get(&self, key: &str) -> Option<Value<'r, 'i>> {
        let value = self.entries.get(key)?;
        Some(Value {
            reader: self.reader,
            object: self.object.clone(),
            label: format!("{key:?}"),
            line: self.lines.of(key),
            value,
        })
    }

    /// The value of a key that must be given; `example` completes "write for instance".
    pub(crate) fn require(&self, key: &str, example: &str) -> Option<Value<'r, 'i>> {
        let value = self.get(key);
        if value.is_none() {
            self.fail(key, format!("the key {key:?} is missing; write for instance {example}"));
        }
        value
    }

    /// Notes a problem with a key of this table.
    pub(crate) fn fail(&self, key: &str, text: String) {
        self.reader.note(self.lines.of(key), &self.object, text);
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Value<'r, 'i> {
    pub(crate) reader: &'r Reader<'i>,
    pub(crate) object: String,
    /// The key, quoted, or another name for the value.
    label: String,
    pub(crate) line: usize,
    value: &'r Spanned<DeValue<'i>>,
}

impl<'r, 'i> Value<'r, 'i> {
    /// Notes a problem with this value.
    pub(crate) fn fail(&self, text: String) {
        self.reader.note(self.line, &self.object, format!("{}: {text}", self.label));
    }

    fn wrong<T>(&self, wanted: &str) -> Option<T> {
        self.fail(format!("this is {}, but {wanted} is wanted", kind(self.value.get_ref())));
        None
    }

    pub(crate) fn is_str(&self) -> bool {
        self.value.get_ref().is_str()
    }

    pub(crate) fn is_table(&self) -> bool {
        self.value.get_ref().is_table()
    }

    pub(crate) fn is_array(&self) -> bool {
        self.value.get_ref().is_array()
    }

    pub(crate) fn str(&self) -> Option<&'r str> {
        self.value.get_ref().as_str().or_else(|| self.wrong("a text in quotes"))
    }

    pub(crate) fn bool(&self) -> Option<bool> {
        self.value.get_ref().as_bool().or_else(|| self.wrong("true or false"))
    }

    pub(crate) fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(integer) = self.value.get_ref().as_integer() else {
            return self.wrong("a whole number");
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (low, high) = (range.start(), range.end());
            self.fail(format!("{integer} is out of range; from {low} to {high} is allowed"));
        }
        number
    }

    /// A share between 0 and 1.
    pub(crate) fn share(&self) -> Option<f64> {
        let number = match self.value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            _ => return self.wrong("a number from 0 to 1"),
        };
        let number = number.filter(|number: &f64| (0.0..=1.0).contains(number));
        if number.is_none() {
            self.fail("a share is a number from 0 to 1, for instance 0.01".to_owned());
        }
        number
    }

    /// A size in bytes.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        let result = quantity::size_bytes(self.str()?);
        result.map_err(|why| self.fail(why)).ok()
    }

    /// A duration in nanoseconds.
    pub(crate) fn duration_ns(&self) -> Option<u64> {
        let result = quantity::duration_ns(self.str()?);
        result.map_err(|why| self.fail(why)).ok()
    }

    /// A point in time, in seconds since 1970.
    pub(crate) fn unix_s(&self) -> Option<u64> {
        let DeValue::Datetime(date) = self.value.get_ref() else {
            return self.wrong("a date such as 2027-01-01T00:00:00Z");
        };
        let instant: Option<jiff::Timestamp> = date.to_string().parse().ok();
        let unix_s = instant.and_then(|instant| u64::try_from(instant.as_second()).ok());
        if unix_s.is_none() {
            self.fail(format!(
                "{date} is not a point in time; write date, time and zone, for instance \
                 2027-01-01T00:00:00Z"
            ));
        }
        unix_s
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.str()?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.fail(unknown("word", text, &known));
        }
        found.map(|(_, value)| *value)
    }

    /// A table with the keys of a description.
    pub(crate) fn table_of(&self, known: &[SettingKey]) -> Option<TableReader<'r, 'i>> {
        self.table(&names(known))
    }

    /// A table with these keys.
    pub(crate) fn table(&self, known: &[&str]) -> Option<TableReader<'r, 'i>> {
        match self.value.get_ref() {
            DeValue::Table(entries) => Some(TableReader::new(
                self.reader,
                entries,
                &self.value.span(),
                &self.object,
                known,
            )),
            _ => self.wrong("a table, { .. },"),
        }
    }

    /// The values of an array.
    pub(crate) fn array(&self) -> Option<Vec<Self>> {
        let Some(array) = self.value.get_ref().as_array() else {
            return self.wrong("a list, [ .. ],");
        };
        let values = array.iter().enumerate().map(|(index, value)| Self {
            reader: self.reader,
            object: self.object.clone(),
            label: format!("{}, entry {}", self.label, index + 1),
            line: self.reader.line(value.span().start),
            value,
        });
        Some(values.collect())
    }

    /// The text of the first of these keys that this table has, as a name for the table.
    pub(crate) fn label_key(&self, keys: &[&str]) -> Option<&'r str> {
        let DeValue::Table(entries) = self.value.get_ref() else { return None };
        keys.iter().find_map(|key| entries.get(*key)?.get_ref().as_str())
    }

    /// The same value under another object's name.
    pub(crate) fn named(mut self, object: String) -> Self {
        self.object = object;
        self
    }
}

/// Says that a word is not known, which word was perhaps meant, and which words there are.
pub(crate) fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let list = known.join(", ");
    match nearest(word, known) {
        Some(near) => format!("unknown {what} {word:?}; did you mean {near:?}? (known: {list})"),
        None => format!("unknown {what} {word:?}; known are {list}"),
    }
}

/// The known word that is at most two edits (one for short words) away.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.replace('_', "-").to_lowercase();
    let distance_max = if word.len() <= 4 { 1 } else { 2 };
    // The distance is at least the difference of the lengths.
    let length = word.chars().count();
    let near = known.iter().filter(|known| known.chars().count().abs_diff(length) <= distance_max);
    let near = near.map(|known| (distance(&word, known), *known)).min()?;
    (near.0 <= distance_max).then_some(near.1)
}

/// How many letters must be put in, taken out, changed or swapped with the next.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best =
                (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = ["name", "listen", "durability", "read-only"];
        assert_eq!(nearest("nmae", &known), Some("name"));
        assert_eq!(nearest("read_only", &known), Some("read-only"));
        assert_eq!(nearest("Listen", &known), Some("listen"));
        assert_eq!(nearest("durabilty", &known), Some("durability"));
        assert_eq!(nearest("colour", &known), None);
    }

    #[test]
    fn lines_are_counted_from_one() {
        let reader = Reader::new("a\n\nb\n");
        let lines = [0, 1, 2, 3, 4, 5, 99].map(|at| reader.line(at));
        assert_eq!(lines, [1, 1, 2, 3, 3, 4, 4]);
        assert_eq!(Reader::new("").line(0), 1);
    }

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("chain", "chian", 1)] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }
}
