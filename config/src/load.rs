//! From a file to a configuration.

use std::path::Path;

use crate::config::Config;
use crate::reader::{ConfigError, Problem, Reader};
use crate::{consistent, document};

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Every problem of the file, or the fault that kept it from being read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let text = format!("cannot be read: {error}");
            let problem = Problem { line: 0, object: String::new(), text };
            ConfigError { path: path.to_owned(), problems: vec![problem] }
        })?;
        Self::parse(path, &text)
    }

    /// Reads and checks a file's text; `path` is for messages.
    ///
    /// # Errors
    /// Every problem of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let reader = Reader::new(text);
        let config =
            reader.parse().and_then(|document| document::document(&reader, path, &document));
        if let Some(config) = &config {
            consistent::consistent(&reader, config);
        }
        reader.finish(path)?;
        Ok(config.expect("a file without problems was read"))
    }
}
