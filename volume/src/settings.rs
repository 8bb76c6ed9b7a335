//! The keys of a stage or a backend in the configuration, and how it reads them. The reader of the
//! file implements [`Settings`], so that this crate needs to know neither the file's format nor its
//! lines.

use std::ops::RangeInclusive;
use std::path::PathBuf;

/// A key of the configuration and its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingKey {
    /// As it is written in the file.
    pub name: &'static str,
    /// Its description as Markdown, in one line.
    pub text: &'static str,
}

impl SettingKey {
    /// A key and what it says.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text }
    }
}

/// The keys of one table of the configuration, as they stand there. A value that is missing or
/// wrong reads as `None`; of one that is wrong the reader notes the line and what to write.
pub trait Settings {
    /// Whether the key is given.
    fn has(&self, key: &str) -> bool;

    /// A whole number in this range.
    fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64>;

    /// A size with a unit, such as `"4KiB"`.
    fn bytes(&self, key: &str) -> Option<u64>;

    /// A size with a unit, or a number of bytes in this range.
    fn bytes_or_integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64>;

    /// A duration with a unit, such as `"1s"`.
    fn duration_ns(&self, key: &str) -> Option<u64>;

    /// `true` or `false`.
    fn flag(&self, key: &str) -> Option<bool>;

    /// A text.
    fn text(&self, key: &str) -> Option<String>;

    /// An absolute path. The key must be given; `example` completes "write for instance".
    fn path(&self, key: &str, example: &str) -> Option<PathBuf>;

    /// Notes what is wrong with the value of this key.
    fn fail_key(&self, key: &str, text: String);

    /// Notes what is wrong with the table as a whole.
    fn fail(&self, text: String);
}

/// Writes a size with the largest binary unit that fits: exactly where the unit divides the size,
/// else with one decimal.
pub fn show_size(bytes: u64) -> String {
    let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1_u64 << 10)];
    match units.into_iter().find(|(_, scale)| bytes >= *scale) {
        Some((name, scale)) if bytes.is_multiple_of(scale) => format!("{}{name}", bytes / scale),
        Some((name, scale)) => {
            // One decimal, rounded down, in integers: a size near 2^64 must not lose its head.
            let tenths = (u128::from(bytes) * 10) / u128::from(scale);
            format!("{}.{}{name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes}B"),
    }
}
