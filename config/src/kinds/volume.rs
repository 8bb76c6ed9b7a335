//! `[[volume]]`.

use std::collections::HashMap;
use std::path::Path;

use peer::Allow;
use volume::backend::store::{VolumeCompression, VolumeHistory};
use volume::backend::{
    BACKEND_KEYS, BACKENDS, BackendConfig, BackendFile, BackendPool, whole_sectors,
};
use volume::settings::{Settings, show_size};
use volume::stage::{STAGES, StageConfig, encryption, show_chain};
use volume::{OPTIMAL_BYTES_MAX, PHYSICAL_BYTES_MAX, Topology};

use crate::checks::Surroundings;
use crate::key_table::{KeyTable, SettingKey, key};
use crate::object::{InPlace, Object, PartOf, keys};
use crate::public_keys::{ALLOW_KEYS, allow as allowed_node};
use crate::reader::{Lines, Reader, TableReader, Value};
use crate::schedule::{SNAPSHOT_RULE_KEYS, SnapshotRule, show_snapshot_rules, snapshot_rules};
use crate::sections::Directories;
use crate::values::{Section, chain, file_path, name};

/// The parts of a volume that are changed in place.
impl VolumeConfig {
    /// The nodes whose disks may use the volume.
    pub const ALLOW: &str = "allow";
    /// The size of the volume's file, or in its pool.
    pub const SIZE: &str = "size";
    /// The stages before the volume.
    pub const CHAIN: &str = "chain";
    /// The rules for snapshots by time.
    pub const SNAPSHOTS: &str = "snapshots";
    /// The reservation and the limit of a volume of a pool.
    pub const QUOTA: &str = "quota";
    /// The place of the key file of a volume that is encrypted in its pool.
    pub const KEY_FILE: &str = "key";
    /// The step that changes its compression.
    pub const COMPRESSION: &str = "compression";
    /// The step that changes its history.
    pub const HISTORY: &str = "history";
}

impl VolumeConfig {
    /// The size that its file, or its volume of a pool, is configured to have.
    pub fn size_bytes(&self) -> Option<u64> {
        match self.backend.pool() {
            Some(pool) => pool.size_bytes,
            None => self.backend.file()?.size_bytes,
        }
    }
}

/// A volume of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeConfig {
    /// Its name, unique on the node.
    pub name: String,
    /// Where its blocks are.
    pub backend: BackendConfig,
    /// Each write durable by itself, instead of by the guest's flushes.
    pub write_through: bool,
    /// The stages that every request passes, the first one first.
    pub chain: Vec<StageConfig>,
    /// Snapshots by time, of a volume of a pool.
    pub snapshots: Vec<SnapshotRule>,
    /// The nodes whose disks may use it, some only with an attachment key; this node's own always
    /// may.
    pub allow: Vec<Allow>,
    /// Refuse writes.
    pub read_only: bool,
    /// The layout of the storage that guests are told; a value of 0 is found out.
    pub topology: Topology,
    /// Several attachments at once may use it; the guests have to agree among themselves.
    pub shared: bool,
    /// The nodes that have a copy of it, this node among them; empty for a volume of this node
    /// alone. A node's place in the list is the name of its copy for all of them.
    pub replicas: Vec<String>,
    /// The number of its placement, of a volume that the cluster has placed: its list of nodes may
    /// change, and a place that no node has is empty in it.
    pub placement: Option<u64>,
    /// Where its keys are.
    pub lines: Lines,
}

const VOLUME_KEYS: [SettingKey; 12] = [
    key("name", "The volume's name."),
    key("backend", "The place of its blocks; see [backends](#backends)."),
    key(
        "durability",
        "`\"flush\"` (default): a guest's flush makes its writes durable. \
         `\"write-through\"`: each write is durable when it completes.",
    ),
    key("chain", "The [stages](#stages) that each request passes, first to last, at most 8."),
    key(
        "snapshots",
        "Snapshots by time of a volume of a pool, as [rules](#snapshots) of which each takes a \
         snapshot in each period and keeps some of them, such as \
         `[{ every = \"1h\", keep = 24 }, { every = \"1d\", keep = 30 }]`; at most 8.",
    ),
    key(
        "allow",
        "The nodes whose disks may use the volume: `\"vm1\"`, or only those disks that \
         prove an attachment key, `{ node = \"vm1\", key = \"..\" }`. Disks of the \
         volume's own node always may.",
    ),
    key("read-only", "`true`: writes are refused."),
    key(
        "shared",
        "`true`: several disks may use the volume at once; their guests need a file system \
         made for that. Nodes that `allow` has by name alone trust each other: `vrio disk \
         take` on one of them takes any attachment that has no key, wherever it was \
         claimed. Where nodes do not trust each other, give each an attachment key: a name \
         belongs to the key that claimed it first.",
    ),
    key(
        "replicas",
        "The nodes that each keep a copy of the volume in a pool, this node among them: \
         `[\"io1\", \"io2\"]`, two to eight. The list is the same, in the same order, on each of \
         these nodes, which are peers of each other and of one [cluster](cluster.md); see \
         [replicated volumes](replicas.md). Default: the volume is on this node alone.",
    ),
    key(
        "placement",
        "The number of the volume's placement, which the node's agent gives with a volume of \
         `vrio volume create`: then `replicas` has one to eight nodes, `\"\"` for a place that a \
         copy has left, and may change. It is not for files.",
    ),
    key(
        "physical-block-size",
        "The size that the storage writes as a whole, which guests see: a power of two up \
         to 64 KiB, for files only. Default: the size that the storage reports.",
    ),
    key(
        "optimal-io-size",
        "The storage's best size of requests, which guests see: a power of two, such as \
         the stripe of a RAID. Default: guests see none.",
    ),
];

/// Copies of a volume at most, as many as the record of a volume has members
/// (`replica::MEMBERS_MAX`): each of them is sent each write.
pub const REPLICAS_MAX: usize = 8;

/// The most places of a placed volume's list, with the places that copies have left.
pub const REPLICA_PLACES_MAX: usize = 64;

/// The beginning of a piece of a file, for the manual.
const SAMPLE: &str = "[[volume]]\nname = \"a\"\nbackend = { null = \"1GiB\" }\n";

/// The table of backends, as the backends describe themselves.
fn backend_table() -> KeyTable {
    let mut keys: Vec<SettingKey> = Vec::new();
    for key in BACKENDS.iter().flat_map(|kind| kind.keys) {
        // A key of two backends is described by the first one.
        if keys.iter().all(|it| it.name != key.name) {
            keys.push(*key);
        }
    }
    KeyTable::new("backend", "[[volume]]\nname = \"a\"\nbackend = { ? }", &keys)
}

/// The tables of stages, as the stages describe themselves.
fn stage_tables() -> impl Iterator<Item = KeyTable> {
    let with_keys = STAGES.iter().filter(|kind| !kind.keys.is_empty());
    let chain = |stage: &str| format!("{SAMPLE}chain = [{{ {stage} }}]");
    let stages: Vec<_> = with_keys.clone().map(|kind| key(kind.name, kind.text)).collect();
    let each = with_keys.map(move |kind| {
        KeyTable::new(kind.table, &chain(&format!("{} = {{ ? }}", kind.name)), kind.keys)
    });
    let whole = KeyTable::new("stage", &format!("{SAMPLE}chain = [{{ ? }}]"), &stages);
    [whole].into_iter().chain(each)
}

fn volume(value: &Value<'_, '_>, directories: &Directories) -> Option<VolumeConfig> {
    let table = value.table_of(&VOLUME_KEYS)?;
    let name = table.require("name", "name = \"alice-root\"").and_then(|value| name(&value));
    let example = "backend = { file = \"alice.img\" }";
    let backend = table.require("backend", example).and_then(|value| backend(&value, directories));
    let words = [("flush", false), ("write-through", true)];
    let through = table.get("durability").and_then(|value| value.word(&words));
    let chain = table.get("chain").and_then(|value| chain(&value)).unwrap_or_default();
    let snapshots = timed_snapshots(&table, backend.as_ref());
    let allow = table.get("allow").and_then(|value| value.array()).unwrap_or_default();
    let allow = allow.iter().filter_map(allowed_node).collect();
    let flag = |key| table.get(key).and_then(|value| value.bool()).unwrap_or(false);
    let read_only = flag("read-only");
    if read_only && let Some(why) = backend.as_ref().and_then(|it| it.kind().not_read_only) {
        table.fail("read-only", format!("\"read-only\": {why}"));
    }
    let topology = topology(&table, backend.as_ref());
    let placement = table.get("placement").and_then(|value| value.integer(0..=i64::MAX as u64));
    let replicas = replicas(&table, backend.as_ref(), placement.is_some());
    Some(VolumeConfig {
        topology,
        backend: backend?,
        write_through: through.unwrap_or(false),
        chain,
        snapshots,
        allow,
        read_only,
        shared: flag("shared"),
        replicas,
        placement,
        lines: table.lines.clone(),
        name: name?,
    })
}

/// Reads the rules for snapshots by time.
fn timed_snapshots(
    table: &TableReader<'_, '_>,
    backend: Option<&BackendConfig>,
) -> Vec<SnapshotRule> {
    let Some(value) = table.get("snapshots") else { return Vec::new() };
    let rules = snapshot_rules(&value).unwrap_or_default();
    if !rules.is_empty() && table.get("replicas").is_some() {
        value.fail("a volume with copies on several nodes has no snapshots yet".to_owned());
    }
    if !rules.is_empty() && backend.is_some_and(|backend| backend.pool().is_none()) {
        value.fail("only a volume of a pool has snapshots: backend = { pool = \"..\" }".to_owned());
    }
    rules
}

/// Reads the list of nodes that have a copy.
fn replicas(
    table: &TableReader<'_, '_>,
    backend: Option<&BackendConfig>,
    is_placed: bool,
) -> Vec<String> {
    let Some(value) = table.get("replicas") else {
        if is_placed {
            table.fail("placement", "a placed volume has \"replicas\"".to_owned());
        }
        return Vec::new();
    };
    let mut nodes: Vec<String> = Vec::new();
    for entry in value.array().unwrap_or_default() {
        if is_placed && entry.is_str() && entry.str() == Some("") {
            nodes.push(String::new());
            continue;
        }
        let Some(node) = name(&entry) else { continue };
        if nodes.contains(&node) {
            entry.fail(format!("{node:?} is in the list twice; a node has one copy"));
        } else {
            nodes.push(node);
        }
    }
    let count = nodes.iter().filter(|node| !node.is_empty()).count();
    let fewest = if is_placed { 1 } else { 2 };
    if !(fewest..=REPLICAS_MAX).contains(&count) || nodes.len() > REPLICA_PLACES_MAX {
        value.fail(format!(
            "{count} nodes; a volume with copies names {fewest} to {REPLICAS_MAX} nodes, and any \
             other volume has no such key"
        ));
    }
    if backend.is_some_and(|backend| backend.pool().is_none()) {
        value.fail("only a volume of a pool has copies: backend = { pool = \"..\" }".to_owned());
    }
    if table.get("read-only").and_then(|value| value.bool()) == Some(true) {
        value.fail("a volume that refuses writes has no copies to keep equal".to_owned());
    }
    nodes
}

/// Reads the layout of the storage that guests are told. A key that is left out is found out.
fn topology(table: &TableReader<'_, '_>, backend: Option<&BackendConfig>) -> Topology {
    let bytes = |key: &str, most: u32| {
        let value = table.get(key)?;
        if backend.is_some_and(|backend| !backend.kind().has_layout) {
            value.fail("only a file has this key".to_owned());
        }
        let bytes = u32::try_from(value.size_bytes()?).unwrap_or(u32::MAX);
        if !bytes.is_power_of_two() || !(512..=most).contains(&bytes) {
            let most = show_size(most.into());
            value.fail(format!("{bytes} bytes: it must be a power of two from 512 to {most}"));
            return None;
        }
        Some(bytes)
    };
    let physical_bytes = bytes("physical-block-size", PHYSICAL_BYTES_MAX);
    let optimal_bytes = bytes("optimal-io-size", OPTIMAL_BYTES_MAX);
    Topology {
        physical_bytes: physical_bytes.unwrap_or(0),
        optimal_bytes: optimal_bytes.unwrap_or(0),
    }
}

/// A backend by its line of the table, `volume::backend::BACKENDS`.
fn backend(value: &Value<'_, '_>, directories: &Directories) -> Option<BackendConfig> {
    let section = Section::of(value, &BACKEND_KEYS)?;
    let given: Vec<_> = BACKENDS.iter().filter(|kind| section.has(kind.name)).collect();
    let [kind] = given[..] else {
        let examples: Vec<_> = BACKENDS.iter().map(|kind| kind.example).collect();
        value.fail(format!("name exactly one of {}", examples.join(", ")));
        return None;
    };
    let others = BACKEND_KEYS.into_iter().filter(|key| section.has(key) && !kind.has(key));
    for key in others {
        let owner = BACKENDS.iter().find(|kind| kind.has(key)).expect("a key of the table");
        let (owner, given) = (owner.name, kind.name);
        let text = format!("this belongs to a {owner}; {given:?} itself gives the size");
        section.fail_key(key, format!("{key:?}: {text}"));
    }
    (kind.read)(&section, &|key| file_path(&section.value_of(key)?, directories))
}

/// A size in whole sectors, and not zero.
pub(crate) fn size_of_volume(value: &Value<'_, '_>) -> Option<u64> {
    whole_sectors(value.size_bytes()?).map_err(|text| value.fail(text)).ok()
}

/// Two volumes on one file would wait for each other's lock.
fn same_file(reader: &Reader<'_>, volumes: &[VolumeConfig]) {
    let mut seen: HashMap<&Path, &VolumeConfig> = HashMap::new();
    for volume in volumes {
        let Some(BackendFile { path, .. }) = volume.backend.file() else { continue };
        let other = seen.insert(path, volume);
        let Some(other) = other.filter(|other| !(other.read_only && volume.read_only)) else {
            continue;
        };
        let text = format!(
            "\"backend\": volume {:?} has the same file {path:?}; only one volume may write a file \
             (several disks may use a \"shared\" volume)",
            other.name
        );
        reader.note(volume.lines.of("backend"), &format!("volume {:?}", volume.name), text);
    }
}

/// With one key for two volumes, a reader of both files would see where they are alike.
fn same_encryption(reader: &Reader<'_>, volumes: &[VolumeConfig]) {
    let mut seen: HashMap<&Path, &VolumeConfig> = HashMap::new();
    for volume in volumes {
        let Some(key) = encryption(&volume.chain) else { continue };
        let Some(other) = seen.insert(key, volume) else { continue };
        let text = format!(
            "\"chain\": volume {:?} has the same key {key:?}; each volume needs a key of its own: \
             `vrio key new --volume FILE`",
            other.name
        );
        reader.note(volume.lines.of("chain"), &format!("volume {:?}", volume.name), text);
    }
}

/// A volume is cut from a pool of this node.
fn its_pool(reader: &Reader<'_>, volumes: &[VolumeConfig], around: &Surroundings<'_>) {
    for volume in volumes {
        let Some(BackendPool { name: pool, .. }) = volume.backend.pool() else { continue };
        if !around.has("pool", pool) {
            let pools = match around.names("pool") {
                [] => "there is none".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            let text = format!(
                "\"backend\": this node has no pool {pool:?} ({pools}); make one with `vrio pool \
                 create FILE` and add [[pool]] name = {pool:?}, devices = [\"FILE\"]"
            );
            reader.note(volume.lines.of("backend"), &format!("volume {:?}", volume.name), text);
        }
    }
}

/// A copy is on this node, and the nodes of the other copies are peers.
fn its_replicas(reader: &Reader<'_>, volumes: &[VolumeConfig], around: &Surroundings<'_>) {
    for volume in volumes.iter().filter(|volume| !volume.replicas.is_empty()) {
        let note = |text: String| {
            let object = format!("volume {:?}", volume.name);
            reader.note(volume.lines.of("replicas"), &object, format!("\"replicas\": {text}"));
        };
        let named = || volume.replicas.iter().filter(|node| !node.is_empty());
        let (own, others): (Vec<_>, Vec<_>) = named().partition(|node| *node == around.node);
        if own.is_empty() {
            note(format!(
                "this node, {:?}, is not in the list; name it, or remove the volume here",
                around.node
            ));
        }
        // The agent adds a node of a placed volume as a peer once the node has told its address.
        let others = others.into_iter().filter(|_| volume.placement.is_none());
        let unknown: Vec<_> = others.filter(|it| !around.has("peer", it)).collect();
        if let [first, ..] = unknown[..] {
            note(format!(
                "{} no peer of this node; add [[peer]] name = {first:?} with its address and key",
                list_words(&unknown)
            ));
        }
        let reached = |node: &&String| !around.has("reached", node) && around.has("peer", node);
        if let Some(node) = named().find(reached).filter(|_| volume.placement.is_none()) {
            note(format!("peer {node:?} has no \"address\", and its copy is reached by it"));
        }
        if !around.is_in_cluster {
            note(
                "copies need the registry of a cluster: add a section [cluster], and run `vrio \
                 cluster init` and `vrio node join`"
                    .to_owned(),
            );
        }
        if !around.is_sealed {
            note("copies need sealed sessions: give this node a \"key\"".to_owned());
        }
    }
}

/// Names with the verb behind them.
fn list_words(names: &[&String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("{} {}", quoted.join(", "), if names.len() == 1 { "is" } else { "are" })
}

/// Whether the two take their blocks from another place.
fn is_moved(now: &VolumeConfig, wanted: &VolumeConfig) -> bool {
    match (now.backend.pool(), wanted.backend.pool()) {
        // The other keys say how a volume is made, and that it is large enough.
        (Some(now), Some(wanted)) => now.name != wanted.name,
        _ => now.backend != wanted.backend && !grows(now, wanted),
    }
}

/// Whether another reservation or limit is written for a volume of a pool. A key that is not
/// written is left to commands.
fn has_other_quota(now: &VolumeConfig, wanted: &VolumeConfig) -> bool {
    let (Some(now), Some(wanted)) = (now.backend.pool(), wanted.backend.pool()) else {
        return false;
    };
    let differs = |now: Option<u64>, wanted: Option<u64>| wanted.is_some() && now != wanted;
    differs(now.reservation_bytes, wanted.reservation_bytes)
        || differs(now.limit_bytes, wanted.limit_bytes)
}

/// Whether the backends differ in that the volume must become larger, and in nothing else.
fn grows(now: &VolumeConfig, wanted: &VolumeConfig) -> bool {
    if now.backend.pool().is_some() && wanted.backend.pool().is_some() {
        return !is_moved(now, wanted) && wanted.size_bytes() > now.size_bytes();
    }
    let (Some(now_bytes), Some(wanted_bytes)) = (now.size_bytes(), wanted.size_bytes()) else {
        return false;
    };
    let grown = now.backend.with_size(wanted_bytes);
    now_bytes < wanted_bytes && grown.as_ref() == Some(&wanted.backend)
}

/// The change to another key file of a volume of a pool, or to none, in words.
fn other_key_file(now: &VolumeConfig, wanted: &VolumeConfig) -> Option<String> {
    let differs = now.backend.key_file() != wanted.backend.key_file();
    now.backend.pool().filter(|_| differs && !is_moved(now, wanted))?;
    Some(match wanted.backend.key_file() {
        Some(path) => format!("its key file is now {path:?}"),
        None => "it has no key file now".to_owned(),
    })
}

/// The compression that the volume must get, if it had another compression before.
fn compresses(now: &VolumeConfig, wanted: &VolumeConfig) -> Option<VolumeCompression> {
    let (before, after) = (now.backend.pool()?, wanted.backend.pool()?);
    after.compression.filter(|_| before.compression != after.compression)
}

/// The history that the volume must get, if it had another history before.
fn has_other_history(now: &VolumeConfig, wanted: &VolumeConfig) -> Option<VolumeHistory> {
    let (before, after) = (now.backend.pool()?, wanted.backend.pool()?);
    after.history.filter(|_| before.history != after.history)
}

impl Object for VolumeConfig {
    const KEY: &'static str = "volume";
    const NEEDS: &'static [&'static str] = &["peer", "pool"];

    fn keys() -> &'static [SettingKey] {
        &VOLUME_KEYS
    }

    fn keys_within(key: &str) -> Option<Vec<&'static str>> {
        (key == "backend").then(|| BACKEND_KEYS.to_vec())
    }

    fn inner_tables() -> Vec<KeyTable> {
        let allow = format!("{SAMPLE}allow = [{{ ? }}]");
        let rules =
            "[[volume]]\nname = \"a\"\nbackend = { pool = \"p\" }\nsnapshots = [{ ? }]".to_owned();
        let rules = KeyTable::new("snapshots", &rules, &SNAPSHOT_RULE_KEYS);
        let own = [KeyTable::new("allow", &allow, &ALLOW_KEYS), rules, backend_table()];
        own.into_iter().chain(stage_tables()).collect()
    }

    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self> {
        volume(value, directories)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>) {
        same_file(reader, all);
        same_encryption(reader, all);
        // A pool that could not be read is missing here; it has had its message.
        if around.is_whole {
            its_pool(reader, all, around);
            its_replicas(reader, all, around);
        }
    }

    fn part_of(&self) -> Option<PartOf<'_>> {
        let pool = self.backend.pool()?;
        Some(PartOf { kind: "pool", name: pool.name, said: "its pool" })
    }

    fn allow(&self) -> &[Allow] {
        &self.allow
    }

    fn has_copies(&self) -> bool {
        !self.replicas.is_empty()
    }

    fn is_for_peers(&self) -> bool {
        !self.allow.is_empty() || !self.replicas.is_empty()
    }

    fn set_allow(&mut self, allow: Vec<Allow>) {
        self.allow = allow;
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let (told, tell) = (&self.topology, &wanted.topology);
        let different = [
            ("backend", is_moved(self, wanted)),
            ("durability", self.write_through != wanted.write_through),
            ("read-only", self.read_only != wanted.read_only),
            ("shared", self.shared != wanted.shared),
            ("replicas", self.replicas != wanted.replicas),
            ("placement", self.placement != wanted.placement),
            ("physical-block-size", told.physical_bytes != tell.physical_bytes),
            ("optimal-io-size", told.optimal_bytes != tell.optimal_bytes),
        ];
        let mut changed = Self {
            lines: wanted.lines.clone(),
            allow: wanted.allow.clone(),
            chain: wanted.chain.clone(),
            snapshots: wanted.snapshots.clone(),
            ..self.clone()
        };
        if !is_moved(self, wanted) {
            changed.backend.clone_from(&wanted.backend);
        }
        keys(&different, changed != *wanted)
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        let object = format!("volume {:?}", self.name);
        let allow = (self.allow != wanted.allow)
            .then(|| InPlace { step: Self::ALLOW, text: format!("change {object}: \"allow\"") });
        let size = wanted.size_bytes().filter(|_| grows(self, wanted)).map(|size_bytes| {
            let text = format!("resize {object} to {}", show_size(size_bytes));
            InPlace { step: Self::SIZE, text }
        });
        let quota = has_other_quota(self, wanted).then(|| {
            let text = format!("change {object}: its reservation or limit in the pool");
            InPlace { step: Self::QUOTA, text }
        });
        let chain = (self.chain != wanted.chain).then(|| {
            let chain = show_chain(&wanted.chain);
            InPlace {
                step: Self::CHAIN,
                text: format!("change {object}: the chain is now {chain}"),
            }
        });
        let snapshots = (self.snapshots != wanted.snapshots).then(|| {
            let rules = show_snapshot_rules(&wanted.snapshots);
            InPlace {
                step: Self::SNAPSHOTS,
                text: format!("change {object}: snapshots by time are now {rules}"),
            }
        });
        let key_file = other_key_file(self, wanted)
            .map(|text| InPlace { step: Self::KEY_FILE, text: format!("change {object}: {text}") });
        let compression = compresses(self, wanted).map(|compression| InPlace {
            step: Self::COMPRESSION,
            text: format!("change {object}: the compression is now {compression}"),
        });
        let history = has_other_history(self, wanted).map(|history| InPlace {
            step: Self::HISTORY,
            text: format!("change {object}: the history is now {history}"),
        });
        // The other steps take all of the backend over, so the key file is proved before them.
        let steps = allow.into_iter().chain(key_file).chain(size).chain(quota).chain(chain);
        steps.chain(snapshots).chain(compression).chain(history).collect()
    }
}
