//! `[[pool]]`.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use volume::settings::show_size;

use crate::checks::Surroundings;
use crate::key_table::{SettingKey, key};
use crate::object::{InPlace, Object, keys};
use crate::reader::{Lines, Reader, TableReader, Value};
use crate::sections::Directories;
use crate::values::{file_path, name};

/// The most devices of a pool: the format has as many places.
const DEVICES_MAX: usize = 16;

/// Memory for the map: the least with which the store works, and more than any map needs.
const MEMORY_BYTES: RangeInclusive<u64> = 4 << 20..=1 << 40;

/// The default: the map of some GiB that guests use again and again.
const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;

/// The log between two checkpoints. Less would be checkpoints without an end, more an opening that
/// takes minutes.
const LOG_BYTES: RangeInclusive<u64> = 16 << 20..=64 << 30;

/// The default: a second or so of reading when the pool is opened after a crash.
const LOG_BYTES_DEFAULT: u64 = 1 << 30;

/// A pool of this node: devices and the volumes that are cut from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name, unique on the node.
    pub name: String,
    /// The kind of its devices, for a cluster's placement.
    pub class: Option<String>,
    /// The absolute paths of its files and block devices, inside of the volumes' directories.
    pub devices: Vec<PathBuf>,
    /// The most memory for the map's pages.
    pub memory_bytes: u64,
    /// The most that is written between two checkpoints.
    pub log_bytes: u64,
    /// Blocks with the same content share it.
    pub deduplication: bool,
    /// The most memory for finding them.
    pub deduplication_memory_bytes: u64,
    /// Where its keys are.
    pub lines: Lines,
}

/// Memory for finding blocks with the same content.
const DEDUPLICATION_MEMORY_BYTES: RangeInclusive<u64> = 1 << 20..=64 << 30;

/// The default: eight bytes for each block of 32 GiB of different data.
const DEDUPLICATION_MEMORY_BYTES_DEFAULT: u64 = 64 << 20;

impl PoolConfig {
    /// The step that changes what a cluster knows about it.
    pub const CLASS: &str = "class";

    /// The step that changes the search for blocks with the same content.
    pub const DEDUPLICATION: &str = "deduplication";

    /// The most memory for finding blocks with the same content; `None`: none are looked for.
    pub fn dedup_bytes(&self) -> Option<u64> {
        self.deduplication.then_some(self.deduplication_memory_bytes)
    }
}

const POOL_KEYS: [SettingKey; 7] = [
    key("name", "The pool's name, unique on the node."),
    key(
        "devices",
        "The files or block devices of the pool, all of them, inside of `volumes`: \
         `[\"p.pool\"]`. `vrio pool create` makes them. Their order does not matter. The pool \
         itself knows which devices it has: a device that did not come to join it, or has left it, \
         is passed over.",
    ),
    key(
        "class",
        "A word for the kind of its devices, `\"ssd\"`, by which a [cluster](#cluster) tells pools \
         apart. Default: none. A reload changes it in place.",
    ),
    key(
        "memory",
        "The most memory for the map from volumes' blocks to their places, from 4MiB to 1TiB. \
         Default: `\"64MiB\"`. Parts of the map that do not fit are read again when they are \
         needed: `map_hits` and `map_misses` of the pool count blocks whose parts were there and \
         that waited.",
    ),
    key(
        "log",
        "The most that is written between two checkpoints, from 16MiB to 64GiB. Default: \
         `\"1GiB\"`. It is read when the pool is opened after a crash: more makes that longer, \
         less makes checkpoints more frequent.",
    ),
    key(
        "deduplication",
        "`true`: blocks of the pool's volumes that have the same content \
         [share its space](pools.md#deduplication). Default: `false`. A reload changes it in \
         place.",
    ),
    key(
        "deduplication-memory",
        "The most memory for finding such blocks, from 1MiB to 64GiB. Default: `\"64MiB\"`, \
         enough for 32 GiB of different blocks: each takes eight bytes. Of more, those are \
         forgotten first that were not found for longest. A reload changes it in place, and then \
         it begins empty.",
    ),
];

fn pool(value: &Value<'_, '_>, directories: &Directories) -> Option<PoolConfig> {
    let table = value.table_of(&POOL_KEYS)?;
    let name = table.require("name", "name = \"p\"").and_then(|value| name(&value));
    let devices = table.require("devices", "devices = [\"p.pool\"]");
    let devices = devices.and_then(|value| devices_of(&value, directories));
    let class = table.get("class").and_then(|value| self::name(&value));
    let memory = size(&table, "memory", &MEMORY_BYTES);
    let log = size(&table, "log", &LOG_BYTES);
    let deduplication = table.get("deduplication").and_then(|value| value.bool());
    let of_deduplication = size(&table, "deduplication-memory", &DEDUPLICATION_MEMORY_BYTES);
    Some(PoolConfig {
        name: name?,
        class,
        devices: devices?,
        memory_bytes: memory.unwrap_or(MEMORY_BYTES_DEFAULT),
        log_bytes: log.unwrap_or(LOG_BYTES_DEFAULT),
        deduplication: deduplication.unwrap_or(false),
        deduplication_memory_bytes: of_deduplication.unwrap_or(DEDUPLICATION_MEMORY_BYTES_DEFAULT),
        lines: table.lines.clone(),
    })
}

fn devices_of(value: &Value<'_, '_>, directories: &Directories) -> Option<Vec<PathBuf>> {
    let values = value.array()?;
    if values.is_empty() || values.len() > DEVICES_MAX {
        let count = values.len();
        value.fail(format!("a pool has from 1 to {DEVICES_MAX} devices, and these are {count}"));
        return None;
    }
    let count = values.len();
    let paths: Vec<_> = values.iter().filter_map(|it| file_path(it, directories)).collect();
    (paths.len() == count).then_some(paths)
}

fn size(table: &TableReader<'_, '_>, key: &str, range: &RangeInclusive<u64>) -> Option<u64> {
    let value = table.get(key)?;
    let bytes = value.size_bytes()?;
    if !range.contains(&bytes) {
        let (least, most) = (show_size(*range.start()), show_size(*range.end()));
        value.fail(format!("it must be from {least} to {most}"));
        return None;
    }
    Some(bytes)
}

/// A device is one pool's, and once.
fn same_device(reader: &Reader<'_>, pools: &[PoolConfig]) {
    let mut seen: HashMap<&Path, &str> = HashMap::new();
    for pool in pools {
        for device in &pool.devices {
            let Some(other) = seen.insert(device, &pool.name) else { continue };
            let text = if other == pool.name {
                format!("\"devices\": {device:?} is named twice; keep one")
            } else {
                format!(
                    "\"devices\": {device:?} is a device of pool {other:?}; keep one of the two"
                )
            };
            reader.note(pool.lines.of("devices"), &format!("pool {:?}", pool.name), text);
        }
    }
}

impl Object for PoolConfig {
    const KEY: &'static str = "pool";

    fn keys() -> &'static [SettingKey] {
        &POOL_KEYS
    }

    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self> {
        pool(value, directories)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], _around: &Surroundings<'_>) {
        same_device(reader, all);
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let is_same_set = self.devices.len() == wanted.devices.len()
            && self.devices.iter().all(|device| wanted.devices.contains(device));
        let different = [
            ("devices", !is_same_set),
            ("memory", self.memory_bytes != wanted.memory_bytes),
            ("log", self.log_bytes != wanted.log_bytes),
        ];
        let mut moved = Self {
            lines: wanted.lines.clone(),
            class: wanted.class.clone(),
            deduplication: wanted.deduplication,
            deduplication_memory_bytes: wanted.deduplication_memory_bytes,
            ..self.clone()
        };
        if is_same_set {
            moved.devices.clone_from(&wanted.devices);
        }
        keys(&different, moved != *wanted)
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        let mut steps = Vec::new();
        if self.class != wanted.class {
            let class = wanted.class.as_deref().unwrap_or("none");
            let text = format!("change pool {:?}: its class is now {class}", self.name);
            steps.push(InPlace { step: Self::CLASS, text });
        }
        if self.dedup_bytes() != wanted.dedup_bytes() {
            let now = match wanted.dedup_bytes() {
                Some(bytes) => format!("on, with {} of memory", show_size(bytes)),
                None => "off".to_owned(),
            };
            let text = format!("change pool {:?}: deduplication is now {now}", self.name);
            steps.push(InPlace { step: Self::DEDUPLICATION, text });
        }
        steps
    }
}
