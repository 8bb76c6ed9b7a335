//! Words and numbers of a line.

use super::Fault;

/// The longest part of a line that an error shows.
const SHOWN_MAX: usize = 60;

/// A line as an error shows it.
pub(super) fn quoted(line: &str) -> String {
    let line = line.trim();
    let short: String = line.chars().take(SHOWN_MAX).collect();
    let more = if short.len() < line.len() { "..." } else { "" };
    format!("{:?}{more}", short)
}

/// A number that a measurement can be: finite, and not less than nothing.
pub(super) fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// The same, or what is wrong.
pub(super) fn number_of(word: Option<&str>, what: &str, line: usize) -> Result<f64, Fault> {
    let found = || word.map_or_else(|| "the line's end".to_owned(), quoted);
    let number = word.and_then(number);
    number.ok_or_else(|| Fault::new(line, format!("a number ({what})"), found()))
}

/// All words of a line as numbers; none if one is not.
pub(super) fn numbers(line: &str) -> Option<Vec<f64>> {
    let numbers: Option<Vec<_>> = line.split_whitespace().map(number).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}
