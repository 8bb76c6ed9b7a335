//! Words and numbers of a line.

use super::fault::Fault;

/// The longest part of a line that an error shows.
const SHOWN_MAX: usize = 60;

/// A line in the form for an error.
pub(super) fn quoted(line: &str) -> String {
    let line = line.trim();
    let short: String = line.chars().take(SHOWN_MAX).collect();
    let more = if short.len() < line.len() { "..." } else { "" };
    format!("{:?}{more}", short)
}

/// A number that a measurement can be: finite, and not negative.
pub(super) fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// The same, or the fault.
pub(super) fn number_of(word: Option<&str>, what: &str, line: usize) -> Result<f64, Fault> {
    let found = || word.map_or_else(|| "the line's end".to_owned(), quoted);
    let number = word.and_then(number);
    number.ok_or_else(|| Fault::new(line, format!("a number ({what})"), found()))
}
