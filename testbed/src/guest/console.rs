//! The console of a guest: a file that grows, read line by line.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Lines of the console that an error text shows.
const TAIL_LINES: usize = 30;
/// A guest that prints more than this without being read is stuck in printing.
const UNREAD_LINES_MAX: usize = 100_000;

/// The reading end of a console file.
#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    file: File,
    /// The start of a line whose end has not arrived yet.
    partial: Vec<u8>,
    unread: VecDeque<String>,
    last: VecDeque<String>,
}

impl Console {
    /// Reads the file from its start.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: File::open(path)?,
            partial: Vec::new(),
            unread: VecDeque::new(),
            last: VecDeque::new(),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes in the text that was printed since the last call.
    ///
    /// # Errors
    /// The file cannot be read, or the guest floods it.
    pub fn read(&mut self) -> io::Result<()> {
        self.file.read_to_end(&mut self.partial)?;
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&self.partial[..end]).replace('\r', "");
            self.partial.drain(..=end);
            self.last.push_back(line.clone());
            if self.last.len() > TAIL_LINES {
                self.last.pop_front();
            }
            self.unread.push_back(line);
        }
        if self.unread.len() > UNREAD_LINES_MAX {
            return Err(io::Error::other("the guest floods its console"));
        }
        Ok(())
    }

    /// The next whole line that was taken in.
    pub fn pop(&mut self) -> Option<String> {
        self.unread.pop_front()
    }

    /// The end of all text so far, with the last line even if it is not whole yet.
    pub fn tail(&self) -> String {
        let mut lines: Vec<&str> =
            self.last.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        let partial = String::from_utf8_lossy(&self.partial);
        lines.push(&partial);
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_come_whole_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let mut file = File::create(&path).unwrap();
        let mut console = Console::open(&path).unwrap();
        file.write_all(b"one\r\ntw").unwrap();
        console.read().unwrap();
        assert_eq!(console.pop().as_deref(), Some("one"));
        assert_eq!(console.pop(), None);
        assert_eq!(console.tail(), "one\ntw");
        file.write_all(b"o\n\xff\n").unwrap();
        console.read().unwrap();
        assert_eq!(console.pop().as_deref(), Some("two"));
        assert_eq!(console.pop().as_deref(), Some("\u{fffd}"));
    }

    #[test]
    fn only_the_end_is_kept_for_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let lines: String = (0..1000).map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, lines).unwrap();
        let mut console = Console::open(&path).unwrap();
        console.read().unwrap();
        let tail = console.tail();
        assert!(tail.starts_with("970\n") && tail.contains("999"), "{tail}");
    }
}
