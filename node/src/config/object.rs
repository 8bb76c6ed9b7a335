//! One object of a configuration from a request: the same fields as in the file, as JSON, read by
//! the same code and refused with the same words.

use serde_json::{Map, Value};

use super::reader::{Lines, Problem, Reader};
use super::{Config, OBJECTS_MAX, StageConfig, check, read};

/// What a request can add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A `[[disk]]`.
    Disk,
    /// A `[[volume]]`.
    Volume,
    /// A `[[peer]]`.
    Peer,
}

impl Kind {
    /// The table's name in the file.
    pub fn key(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Volume => "volume",
            Self::Peer => "peer",
        }
    }
}

impl Config {
    /// This configuration and one object more, the last of its kind.
    ///
    /// # Errors
    /// Everything that is wrong with the object, by itself or beside the others.
    pub fn with(&self, kind: Kind, fields: &Map<String, Value>) -> Result<Self, Vec<Problem>> {
        let key = kind.key();
        let text = toml_text(&format!("[[{key}]]\n"), fields, key)?;
        let reader = Reader::new(&text);
        let mut config = self.clone();
        if let Some(document) = reader.parse() {
            let directories = &self.directories;
            match kind {
                Kind::Disk => config.disks.extend(read::disks(&reader, &document, directories)),
                Kind::Volume => {
                    config.volumes.extend(read::volumes(&reader, &document, directories));
                }
                Kind::Peer => config.peers.extend(read::peers(&reader, &document)),
            }
        }
        if reader.is_clean() {
            let most = config.disks.len().max(config.volumes.len()).max(config.peers.len());
            if most > OBJECTS_MAX {
                let text = format!("a node has at most {OBJECTS_MAX} of a kind; remove one first");
                reader.note(0, key, text);
            }
            check::consistent(&reader, &config);
        }
        // Lines of a request mean nothing later.
        let lines = [
            config.disks.last_mut().map(|it| &mut it.lines).filter(|_| kind == Kind::Disk),
            config.volumes.last_mut().map(|it| &mut it.lines).filter(|_| kind == Kind::Volume),
            config.peers.last_mut().map(|it| &mut it.lines).filter(|_| kind == Kind::Peer),
        ];
        lines.into_iter().flatten().for_each(|lines| *lines = Lines::default());
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(config),
            problems => Err(problems),
        }
    }

    /// The stages of a chain.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn chain(stages: &Value) -> Result<Vec<StageConfig>, Vec<Problem>> {
        let fields = Map::from_iter([("chain".to_owned(), stages.clone())]);
        let text = toml_text("", &fields, "")?;
        let reader = Reader::new(&text);
        let chain = reader.parse().and_then(|document| read::chain_alone(&reader, &document));
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(chain.unwrap_or_default()),
            problems => Err(problems),
        }
    }
}

/// What a request says about a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The new size.
    pub size_bytes: u64,
    /// It may be smaller than the present one.
    pub shrink: bool,
}

impl Config {
    /// A new size, and whether it may be a smaller one.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn resize(body: &Value) -> Result<Resize, Vec<Problem>> {
        let Some(fields) = body.as_object() else {
            let text = "send {\"size\": \"20GiB\"}, with \"shrink\": true for a smaller one";
            return Err(vec![Problem { line: 0, object: String::new(), text: text.to_owned() }]);
        };
        let text = toml_text("", fields, "")?;
        let reader = Reader::new(&text);
        let resize = reader.parse().and_then(|document| read::resize(&reader, &document));
        match (reader.into_problems(), resize) {
            (problems, Some(resize)) if problems.is_empty() => Ok(resize),
            (problems, _) => Err(problems),
        }
    }

    /// What does not fit together, as [`Config::parse`] finds it.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let reader = Reader::new("");
        check::consistent(&reader, self);
        reader.into_problems()
    }
}

/// The fields as the file would have them.
fn toml_text(
    head: &str,
    fields: &Map<String, Value>,
    object: &str,
) -> Result<String, Vec<Problem>> {
    let refused = |text: String| vec![Problem { line: 0, object: object.to_owned(), text }];
    if let Some((key, _)) = fields.iter().find(|(_, value)| has_null(value)) {
        return Err(refused(format!("{key:?}: null says nothing; leave the key out")));
    }
    let table = toml::Table::try_from(fields).map(|mut table| {
        table.iter_mut().for_each(|(_, value)| dates(value));
        dates_of(&mut table);
        table
    });
    // Written in one line each: a table of its own would end the object's.
    let table =
        table.map_err(|error| refused(format!("this cannot be written as TOML: {error}")))?;
    let lines = table.iter().map(|(key, value)| format!("{} = {value}\n", toml_key(key)));
    Ok(head.chars().chain(lines.collect::<String>().chars()).collect())
}

/// JSON has no dates: what `expires` says is one, if it can be.
fn dates_of(table: &mut toml::Table) {
    if let Some(value) = table.get_mut("expires")
        && let Some(date) = value.as_str().and_then(|text| text.parse().ok())
    {
        *value = toml::Value::Datetime(date);
    }
}

fn dates(value: &mut toml::Value) {
    match value {
        toml::Value::Array(values) => values.iter_mut().for_each(dates),
        toml::Value::Table(table) => dates_of(table),
        _ => {}
    }
}

fn toml_key(key: &str) -> String {
    toml::Value::String(key.to_owned()).to_string()
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}
