//! From a file to a configuration.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::config::Config;
use crate::reader::{ConfigError, Problem, Reader};
use crate::{consistent, document, placed};

/// The longest file. A disk, its volume and the rights to it are half a kilobyte, so this is a file
/// for far more objects than a node can have. A wrong name, such as a disk's image, ends here.
const FILE_BYTES_MAX: usize = 4 << 20;

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Every problem of the file, or the fault that kept it from being read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let whole = |line, text| {
            let problem = Problem { line, object: String::new(), text };
            ConfigError { path: path.to_owned(), problems: vec![problem] }
        };
        let bytes = read(path).map_err(|error| whole(0, format!("cannot be read: {error}")))?;
        if bytes.len() > FILE_BYTES_MAX {
            let max = FILE_BYTES_MAX >> 20;
            let text =
                format!("more than {max} MiB, which no configuration has; name another file");
            return Err(whole(0, text));
        }
        let text = str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            whole(line, "this is not UTF-8 text; save the file as UTF-8".to_owned())
        })?;
        Self::parse(path, text)
    }

    /// Reads and checks a file's text; `path` is for messages.
    ///
    /// # Errors
    /// Every problem of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let reader = Reader::new(text);
        let mut config =
            reader.parse().and_then(|document| document::document(&reader, path, &document));
        if let Some(config) = &mut config {
            placed::resolve(config, true);
            consistent::consistent(&reader, config);
        }
        reader.finish(path)?;
        Ok(config.expect("a file without problems was read"))
    }
}

/// Reads a file, but not more of it than one byte too many.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
