//! The keys of one table of the file with their descriptions. The reader takes the names from here,
//! and the manual the whole.

pub use volume::settings::SettingKey;

/// The keys of one table of the file.
#[derive(Clone, Debug)]
pub struct KeyTable {
    /// The table, as the reference calls it.
    pub table: String,
    /// A piece of a file with this table, in which `?` stands where its keys do.
    pub sample: String,
    /// Each key.
    pub keys: Vec<SettingKey>,
}

impl KeyTable {
    pub(crate) fn new(table: &str, sample: &str, keys: &[SettingKey]) -> Self {
        Self { table: table.to_owned(), sample: sample.to_owned(), keys: keys.to_vec() }
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let rows = self.keys.iter().map(|key| format!("| `{}` | {} |\n", key.name, key.text));
        format!("| key | meaning |\n| --- | --- |\n{}", rows.collect::<String>())
    }
}

/// A key and its description, as Markdown in one line.
pub(crate) const fn key(name: &'static str, text: &'static str) -> SettingKey {
    SettingKey::new(name, text)
}

/// The names of keys.
pub(crate) fn names(keys: &[SettingKey]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
