//! One object of a configuration from a request: the same fields as in the file, as JSON, read by
//! the same code and refused with the same words.

use serde_json::{Map, Value};

use toml::Spanned;
use toml::de::DeTable;
use volume::stage::StageConfig;

use cache::CachePlan;

use crate::cache::cache;
use crate::config::Config;
use crate::consistent::consistent;
use crate::kinds::Kind;
use crate::kinds::disk::VolumeRef;
use crate::kinds::nic::{self, NIC_CHANGEABLE};
use crate::kinds::volume::size_of_volume;
use crate::placed;
use crate::reader::{Problem, Reader, TableReader};
use crate::schedule::{SnapshotRule, snapshot_rules};
use crate::sections::OBJECTS_MAX;
use crate::values::chain;

/// A value as the file has it, such as `{ error-after = "30s" }`, as requests have it.
///
/// # Errors
/// The fault of the text as TOML.
pub fn value(text: &str) -> Result<Value, String> {
    let refused = |error: &dyn std::fmt::Display| {
        format!(
            "{text:?} is not a value of the configuration's form (TOML): {}",
            error.to_string().trim()
        )
    };
    let table: toml::Table = format!("value = {text}").parse().map_err(|error| refused(&error))?;
    let value = table.get("value").filter(|_| table.len() == 1);
    let value = value.ok_or_else(|| refused(&"it continues in another line"))?;
    serde_json::to_value(value).map_err(|error| refused(&error))
}

/// Why a disk with write-back keeps a list of peers that an operator wrote.
const LISTED_WRITE_BACK: &str = "it has write-back, and its dirty blocks are known by its list of \
     peers: stop its guest; when its writes are written back, change \"volume\" in the file and \
     reload it. A disk that names a volume of the cluster alone follows by itself";

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
            let tables = alone(&reader, &document, &[key]);
            kind.row().read(&tables, &self.directories, &mut config.objects);
            placed::resolve(&mut config, false);
        }
        if reader.is_clean() {
            if config.names(kind).len() > OBJECTS_MAX {
                let text = format!("a node has at most {OBJECTS_MAX} of a kind; remove one first");
                reader.note(0, key, text);
            }
            consistent(&reader, &config);
        }
        // Lines of a request mean nothing later.
        kind.row().forget_lines_of_last(&mut config.objects);
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(config),
            problems => Err(problems),
        }
    }

    /// The names of all objects of a kind.
    pub fn names(&self, kind: Kind) -> Vec<&str> {
        kind.row().names(&self.objects)
    }

    /// This configuration with other values for some of a nic's [`NIC_CHANGEABLE`] keys. Null
    /// stands for the value of a nic whose table does not have the key.
    ///
    /// # Errors
    /// Everything that is wrong with the values.
    pub fn with_nic(&self, name: &str, fields: &Map<String, Value>) -> Result<Self, Vec<Problem>> {
        let mut keys = fields.keys();
        if let Some(key) = keys.find(|key| !NIC_CHANGEABLE.contains(&key.as_str())) {
            let text = format!(
                "{key:?} of a nic cannot be changed (only {} can); remove the nic and add it again",
                NIC_CHANGEABLE.join(", ")
            );
            return Err(vec![Problem { line: 0, object: format!("nic {name:?}"), text }]);
        }
        let said = fields.iter().filter(|(_, value)| !value.is_null());
        let said = said.map(|(key, value)| (key.clone(), value.clone())).collect();
        let text = toml_text("", &said, "nic")?;
        let reader = Reader::new(&text);
        let mut config = self.clone();
        if let Some(document) = reader.parse() {
            let file = alone(&reader, &document, &NIC_CHANGEABLE);
            let nic = config.nics.iter_mut().find(|nic| nic.name == name);
            let nic = nic.expect("the caller has looked");
            nic::change(nic, &file, &self.directories, |key| fields.contains_key(key));
        }
        consistent(&reader, &config);
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(config),
            problems => Err(problems),
        }
    }

    /// This configuration with another list of peers of a disk's volume, `{"peers": ["io1"]}`. The
    /// disk must be there.
    ///
    /// # Errors
    /// Everything that is wrong with the list, or why the disk has none.
    pub fn with_disk_peers(&self, disk: &str, body: &Value) -> Result<Self, Vec<Problem>> {
        let object = format!("disk {disk:?}");
        let fails = |text: &str| {
            Err(vec![Problem { line: 0, object: object.clone(), text: text.to_owned() }])
        };
        let names = |list: &[Value]| -> Option<Vec<String>> {
            list.iter().map(|name| name.as_str().map(str::to_owned)).collect()
        };
        let fields = body.as_object().filter(|fields| fields.len() == 1);
        let list = fields.and_then(|fields| fields.get("peers")?.as_array());
        let Some(peers) = list.and_then(|list| names(list)) else {
            return fails("send {\"peers\": [\"io1\", \"io3\"]}");
        };
        let mut config = self.clone();
        let found = config.disks.iter_mut().find(|it| it.name == disk);
        let found = found.expect("the caller has looked");
        let volume = &mut found.volume;
        if volume.is_here() {
            return fails("its volume is of this node, and has no peers");
        }
        if peers.is_empty() {
            return fails("the list is empty: nothing could serve the disk");
        }
        let all: Vec<_> = peers.iter().map(String::as_str).collect();
        if let Some(problem) = VolumeRef::peers_problem(&all) {
            return fails(&format!("the list {problem}"));
        }
        let (is_placed, is_same) = (volume.is_placed, volume.peers == peers);
        volume.peers = peers;
        // The node's memory and pools know dirty blocks by the disk's volume.
        let writes_back = found.cache.as_ref().is_some_and(|cache| cache.write_back.is_some());
        if writes_back && !is_placed && !is_same {
            return fails(LISTED_WRITE_BACK);
        }
        match config.problems() {
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
        let chain = reader.parse().and_then(|document| chain_alone(&reader, &document));
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(chain.unwrap_or_default()),
            problems => Err(problems),
        }
    }

    /// The rules for snapshots by time.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn snapshots(rules: &Value) -> Result<Vec<SnapshotRule>, Vec<Problem>> {
        let fields = Map::from_iter([("snapshots".to_owned(), rules.clone())]);
        let text = toml_text("", &fields, "")?;
        let reader = Reader::new(&text);
        let rules = reader.parse().and_then(|document| {
            snapshot_rules(&alone(&reader, &document, &["snapshots"]).get("snapshots")?)
        });
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(rules.unwrap_or_default()),
            problems => Err(problems),
        }
    }
}

impl Config {
    /// The cache of a disk; none without a key.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn cache(fields: &Value) -> Result<Option<CachePlan>, Vec<Problem>> {
        if fields.as_object().is_some_and(Map::is_empty) {
            return Ok(None);
        }
        let fields = Map::from_iter([("cache".to_owned(), fields.clone())]);
        let text = toml_text("", &fields, "")?;
        let reader = Reader::new(&text);
        let read = reader
            .parse()
            .and_then(|document| cache(&alone(&reader, &document, &["cache"]).get("cache")?));
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(read),
            problems => Err(problems),
        }
    }
}

/// A request for another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The new size.
    pub size_bytes: u64,
    /// It may be smaller than the present one.
    pub shrink: bool,
}

impl Config {
    /// Reads a request for another size.
    ///
    /// # Errors
    /// Everything that is wrong with the request.
    pub fn resize(body: &Value) -> Result<Resize, Vec<Problem>> {
        let Some(fields) = body.as_object() else {
            let text = "send {\"size\": \"20GiB\"}, with \"shrink\": true for a smaller one";
            return Err(vec![Problem { line: 0, object: String::new(), text: text.to_owned() }]);
        };
        let text = toml_text("", fields, "")?;
        let reader = Reader::new(&text);
        let resize = reader.parse().and_then(|document| resize(&reader, &document));
        match (reader.into_problems(), resize) {
            (problems, Some(resize)) if problems.is_empty() => Ok(resize),
            (problems, _) => Err(problems),
        }
    }

    /// The contradictions in the configuration, as [`Config::parse`] finds them.
    pub fn problems(&self) -> Vec<Problem> {
        let reader = Reader::new("");
        consistent(&reader, self);
        reader.into_problems()
    }
}

/// The `chain` of a document that has nothing else.
fn chain_alone(reader: &Reader<'_>, document: &Spanned<DeTable<'_>>) -> Option<Vec<StageConfig>> {
    chain(&alone(reader, document, &["chain"]).get("chain")?)
}

/// A request for another size.
fn resize(reader: &Reader<'_>, document: &Spanned<DeTable<'_>>) -> Option<Resize> {
    let table = TableReader::new(reader, document.get_ref(), &(0..0), "", &["size", "shrink"]);
    let shrink = table.get("shrink").and_then(|value| value.bool()).unwrap_or(false);
    let size_bytes = size_of_volume(&table.require("size", "size = \"20GiB\"")?)?;
    Some(Resize { size_bytes, shrink })
}

/// A document that has only these keys.
fn alone<'r, 'i>(
    reader: &'r Reader<'i>,
    document: &'r Spanned<DeTable<'i>>,
    keys: &[&str],
) -> TableReader<'r, 'i> {
    TableReader::new(reader, document.get_ref(), &(0..0), "", keys)
}

/// The fields in the file's form.
fn toml_text(
    head: &str,
    fields: &Map<String, Value>,
    object: &str,
) -> Result<String, Vec<Problem>> {
    let refused = |text: String| vec![Problem { line: 0, object: object.to_owned(), text }];
    if let Some((key, _)) = fields.iter().find(|(_, value)| has_null(value)) {
        return Err(refused(format!("{key:?}: null has no meaning here; leave the key out")));
    }
    let table = toml::Table::try_from(fields).map(|mut table| {
        table.iter_mut().for_each(|(_, value)| dates(value));
        dates_of(&mut table);
        table
    });
    // Each value is written in one line: a table of its own would end the object's table.
    let table =
        table.map_err(|error| refused(format!("this cannot be written as TOML: {error}")))?;
    let lines = table.iter().map(|(key, value)| format!("{} = {value}\n", toml_key(key)));
    Ok(head.chars().chain(lines.collect::<String>().chars()).collect())
}

/// JSON has no dates: the text of `expires` becomes a date, if it can be read as one.
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
