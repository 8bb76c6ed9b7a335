//! The words of a guest's lines, each of the form `name=value`.

use anyhow::{Context, Result};

/// The value of a name in a line.
///
/// # Errors
/// When the line has no such name.
pub fn text<'a>(line: &'a str, name: &str) -> Result<&'a str> {
    let mut values = line.split_whitespace().filter_map(|word| word.split_once('='));
    let found = values.find(|(key, _)| *key == name);
    Ok(found.with_context(|| format!("the guest does not say {name}=: {line}"))?.1)
}

/// The value of a name, as a number.
///
/// # Errors
/// When the name is missing, or its value is no number.
pub fn number(line: &str, name: &str) -> Result<u64> {
    let value = text(line, name)?;
    value.parse().with_context(|| format!("the guest says {name}={value}"))
}

/// The number at the beginning of a line.
///
/// # Errors
/// When the line begins with something else.
pub fn first_number(line: &str) -> Result<u64> {
    let word = line.split_whitespace().next().unwrap_or_default();
    word.parse().with_context(|| format!("the guest says '{line}', which begins with no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_words_are_understood() {
        let line = "blocks=4096 writes=10 longest_ms=7 digest=00ff";
        assert_eq!(number(line, "writes").unwrap(), 10);
        assert_eq!(text(line, "digest").unwrap(), "00ff");
        assert!(number(line, "digest").unwrap_err().to_string().contains("digest=00ff"));
        assert_eq!(first_number("8192 a1b2").unwrap(), 8192);
        assert!(first_number(line).is_err() && first_number("").is_err());
        assert!(text(line, "reads").unwrap_err().to_string().contains("reads="));
    }
}
