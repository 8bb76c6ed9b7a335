//! The faults of an input, each with its key and the way out.

use thiserror::Error;

/// A fault of a file or of an option.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanFault {
    /// A file cannot be read.
    #[error("{file}: {cause}; name a file that can be read")]
    Unread {
        /// The file.
        file: String,
        /// The cause in the system's words.
        cause: String,
    },
    /// A file is larger than any plan.
    #[error("{file}: larger than {bytes_max} bytes; name a file of `vrio plan`'s form")]
    Long {
        /// The file.
        file: String,
        /// The most bytes.
        bytes_max: u64,
    },
    /// A text is not TOML, or a key is missing, unknown or of another kind.
    #[error("{file}: {cause}; `{example}` prints a file with every key")]
    Form {
        /// The file.
        file: String,
        /// The place and the cause.
        cause: String,
        /// The command that prints an example.
        example: &'static str,
    },
    /// A key's value cannot be used.
    #[error("{key}: {cause}; {way_out}")]
    Key {
        /// The key or option.
        key: String,
        /// The fault of its value.
        cause: String,
        /// The change that helps.
        way_out: String,
    },
    /// A sum is beyond the numbers of the planner.
    #[error("{sum}: beyond what the planner counts; make the counts or prices of it smaller")]
    Overflow {
        /// The sum.
        sum: &'static str,
    },
}

/// The fault of one key.
pub(crate) fn key(
    key: impl Into<String>,
    cause: impl Into<String>,
    way_out: impl Into<String>,
) -> PlanFault {
    PlanFault::Key { key: key.into(), cause: cause.into(), way_out: way_out.into() }
}

/// Characters of titles and names: they stand in columns of tables.
pub(crate) const NAME_MAX: usize = 64;

/// Refuses words that no table or terminal shows as they are.
pub(crate) fn named(at: &str, words: &str, chars_max: usize) -> Result<(), PlanFault> {
    let way_out = format!("give {chars_max} characters at most, none of them a control character");
    if words.chars().nth(chars_max).is_some() {
        return Err(key(at, "it is too long", way_out));
    }
    if words.chars().any(char::is_control) {
        return Err(key(at, "it has a control character", way_out));
    }
    Ok(())
}

/// Refuses a number outside of its range.
pub(crate) fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), PlanFault> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(key(name, format!("{value} is out of range"), format!("give {least} to {most}")))
}
