//! Faults of files that are imported, each with its line.

use results::Measurement;
use thiserror::Error;

use crate::store::StoreError;

/// The reason that a file cannot be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The file cannot be read at all.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// The content differs from the expected content.
    #[error("{file}, line {line}: expected {expected}, found {found}")]
    Content {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The content that the importer expected.
        expected: String,
        /// The content that is there.
        found: String,
    },
}

/// The same without the file's name.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) expected: String,
    pub(super) found: String,
}

impl Fault {
    pub(super) fn new(line: usize, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { line, expected: expected.into(), found: found.into() }
    }

    pub(super) fn of(self, file: &str) -> ImportError {
        let Self { line, expected, found } = self;
        ImportError::Content { file: file.to_owned(), line, expected, found }
    }

    /// A fault of JSON, whose lines are counted from `line`.
    pub(super) fn json(
        text: &str,
        line: usize,
        of: &str,
    ) -> impl FnOnce(serde_json::Error) -> Self {
        let lines = text.lines().count();
        let of = of.to_owned();
        move |error| {
            let at = (line + error.line()).saturating_sub(1).max(1);
            if error.is_eof() {
                let end = (line + lines).saturating_sub(1).max(1);
                return Self::new(end, format!("the rest of {of}"), "the file's end: was it cut?");
            }
            let said = error.to_string();
            let bare = said.split_once(" at line ").map_or(said.as_str(), |(bare, _)| bare);
            Self::new(at, of, bare)
        }
    }
}

/// The measurements that an importer makes of a text, or the text's fault.
pub(super) type Imported = Result<Vec<Measurement>, Fault>;
