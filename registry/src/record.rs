//! The records of a cluster as they are stored: JSON with a version, for people with `etcdctl` as
//! well. `docs/cluster.md` describes each field.

use std::collections::{BTreeMap, BTreeSet};

use data_encoding::BASE64;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::RegistryError;
use crate::key::Key;
use crate::limits::VALUE_BYTES_MAX;

/// The version of records. A program refuses a record of a version that it does not know; a
/// field that it does not know is not a reason, and is lost when the program changes the record.
const VERSION: u64 = 1;

/// The version of placements with an encryption. A program that does not know encryptions would
/// make copies that are not encrypted.
const VERSION_OF_ENCRYPTED: u64 = 2;

/// The longest text of a record: a key is 44 characters, a name 64.
const TEXT_BYTES_MAX: usize = 128;

/// The longest name of a volume, as of any object of a node's file.
const NAME_BYTES_MAX: usize = 64;

/// The most addresses, and the most pools, of a presence.
const PARTS_MAX: usize = 64;

/// The most copies that a presence tells of: those that are not in order. With their texts they are
/// half of a value.
pub const COPY_REPORTS_MAX: usize = 64;

/// The most nodes with a copy of a volume, by far.
pub const COPY_PLACES_MAX: usize = 64;

/// The largest size of a placed volume: a volume of a pool has at most 2^36 blocks of 4 KiB.
pub const PLACED_BYTES_MAX: u64 = 1 << 48;

/// Sizes are whole sectors: members of a volume count in them.
const SECTOR_BYTES: u64 = 512;

/// The longest text of a reader's error that is shown: it may repeat the value.
const REASON_CHARS_MAX: usize = 160;

/// The longest reason of a pool's or a copy's state.
const REPORT_CHARS_MAX: usize = 320;

/// A kind of records. Any client of the registry can write any bytes, so a record is checked when
/// it is read, and not where it is shown.
pub(crate) trait StoredRecord: Serialize + DeserializeOwned {
    /// The newest version of its kind.
    const NEWEST_VERSION: u64 = VERSION;

    /// The version that it is stored with: the oldest that says all that it says.
    fn version(&self) -> u64 {
        VERSION
    }

    /// The fault of a record at a key with this last part, if it has one.
    fn fault(&self, name: &str) -> Option<&'static str>;
}

/// Whether a character can be shown as it is.
fn is_printed(c: char) -> bool {
    c.is_ascii_graphic() || c == ' '
}

fn is_plain(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX && text.chars().all(is_printed)
}

/// A reason as records have it: its beginning, with signs in place of what is not printed.
pub fn reported(text: &str) -> String {
    shown_up_to(text, REPORT_CHARS_MAX)
}

/// The fault of reasons.
fn fault_of_reasons<'a>(mut all: impl Iterator<Item = &'a String>) -> Option<&'static str> {
    let is_wrong = |text: &String| text.len() > REPORT_CHARS_MAX || !text.chars().all(is_printed);
    all.any(is_wrong).then_some("a reason is too long, or has a character that is not printed")
}

pub(crate) fn fault_of_texts<'a>(
    texts: impl IntoIterator<Item = &'a String>,
) -> Option<&'static str> {
    let has_fault = texts.into_iter().any(|text| !is_plain(text));
    has_fault.then_some("a text is too long, or has a character that is not printed")
}

/// A record of its kind with the version before it.
#[derive(Serialize, Deserialize)]
struct VersionedRecord<T> {
    version: u64,
    #[serde(flatten)]
    record: T,
}

#[derive(Deserialize)]
struct VersionAlone {
    version: u64,
}

/// The bytes of a record.
pub(crate) fn stored<T: StoredRecord>(record: &T) -> Vec<u8> {
    let whole = VersionedRecord { version: record.version(), record };
    serde_json::to_vec(&whole).expect("numbers and texts")
}

/// The record in the value of a key.
pub(crate) fn read<T: StoredRecord>(key: &Key, value: &[u8]) -> Result<T, RegistryError> {
    let damaged = |reason: String| RegistryError::Damaged { place: key.to_string(), reason };
    let unread = |error: serde_json::Error| damaged(shown(&error.to_string()));
    if value.len() > VALUE_BYTES_MAX {
        return Err(damaged(format!("it has {} bytes, more than a record has", value.len())));
    }
    let VersionAlone { version } = serde_json::from_slice(value).map_err(unread)?;
    if !(VERSION..=T::NEWEST_VERSION).contains(&version) {
        return Err(RegistryError::OtherVersion {
            place: key.to_string(),
            found: version,
            known: T::NEWEST_VERSION,
        });
    }
    let whole: VersionedRecord<T> = serde_json::from_slice(value).map_err(unread)?;
    match whole.record.fault(key.name()) {
        Some(fault) => Err(damaged(fault.to_owned())),
        None => Ok(whole.record),
    }
}

/// The beginning of a text, without characters that are not printed.
fn shown(text: &str) -> String {
    shown_up_to(text, REASON_CHARS_MAX)
}

fn shown_up_to(text: &str, chars_max: usize) -> String {
    let plain = |c: char| if is_printed(c) { c } else { '?' };
    text.chars().take(chars_max).map(plain).collect()
}

/// The cluster itself, at `/vrio/ID/cluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Its id: 16 random bytes in hexadecimal digits.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
}

impl StoredRecord for ClusterRecord {
    fn fault(&self, _: &str) -> Option<&'static str> {
        fault_of_texts([&self.id, &self.name])
    }
}

/// A node that has joined, at `/vrio/ID/nodes/NAME`. It stays while the node is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// The public half of its key, as peers write it; none for a node without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it joined, in seconds since 1970.
    pub joined_s: u64,
    /// The id of the token that it has used.
    pub token: String,
}

impl StoredRecord for NodeRecord {
    fn fault(&self, name: &str) -> Option<&'static str> {
        match self.name == name {
            true => fault_of_texts(self.key.iter().chain([&self.token])),
            false => Some("it is the record of another node"),
        }
    }
}

/// A node that is there, at `/vrio/ID/present/NAME`, under a lease of its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceRecord {
    /// The agent that keeps it: a random number of its start. Two machines with one node's
    /// configuration are told apart by it.
    pub agent: String,
    /// Where peers reach the node; empty for a node without peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Its pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolSpace>,
    /// Its copies of replicated volumes that are not in order, or are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyReport>,
    /// The version of its program.
    pub program: String,
    /// When it appeared, in seconds since 1970.
    pub since_s: u64,
    /// When the certificate of its agent ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends_s: Option<u64>,
    /// Where the node is, by the kind of place: `rack` is `r1`. Nodes of one place fail together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domain: BTreeMap<String, String>,
}

impl StoredRecord for PresenceRecord {
    fn fault(&self, _: &str) -> Option<&'static str> {
        let Self { agent, addresses, pools, copies, program, domain, .. } = self;
        let parts = addresses.len().max(pools.len()).max(domain.len());
        if parts > PARTS_MAX || copies.len() > COPY_REPORTS_MAX {
            return Some("it has more parts than a node tells");
        }
        let of_pools = pools.iter().flat_map(|pool| pool.class.iter().chain([&pool.name]));
        if copies.iter().any(|copy| copy.filling.len() > COPY_PLACES_MAX) {
            return Some("it fills more copies than a volume has");
        }
        let of_copies =
            copies.iter().flat_map(|copy| copy.filling.keys().chain([&copy.volume, &copy.role]));
        let reasons = pools.iter().map(|pool| &pool.problem).chain(copies.iter().map(|it| &it.why));
        let words = domain.iter().flat_map(|(kind, place)| [kind, place]);
        let words = words.chain(addresses).chain([agent, program]);
        fault_of_texts(words.chain(of_pools).chain(of_copies)).or_else(|| fault_of_reasons(reasons))
    }
}

/// A copy of a replicated volume, as its node tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// The volume.
    pub volume: String,
    /// `primary`, `backup`, `takes-over`, `outside`, `failed`, or `closed`: the node's file is not
    /// that of the other nodes, or the copy is not the former one.
    pub role: String,
    /// The nodes of the copies that it fills as the primary, with the percent that they have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filling: BTreeMap<String, u8>,
    /// Why it has stopped, or waits; empty if it does neither.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The volume's size.
    pub size_bytes: u64,
    /// The disks that use the volume here.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub users: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The space of a pool. It is told in steps of a sixteenth, so that a busy pool is no busy
/// registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpace {
    /// The pool's name.
    pub name: String,
    /// The kind of its devices, as the node's configuration names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The most that it can hold.
    pub size_bytes: u64,
    /// How much of that is free, rounded down.
    pub free_bytes: u64,
    /// Why it takes no writes; empty if it takes them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

impl PoolSpace {
    /// The space of a pool without a class.
    pub fn new(name: &str, size_bytes: u64, used_bytes: u64) -> Self {
        let (free, step) = (size_bytes.saturating_sub(used_bytes), (size_bytes / 16).max(1));
        let (name, free_bytes) = (name.to_owned(), free / step * step);
        Self { name, class: None, size_bytes, free_bytes, problem: String::new() }
    }
}

/// A right to join, at `/vrio/ID/tokens/TOKEN`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// When it ends, in seconds since 1970.
    pub ends_s: u64,
    /// The node that has used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_s: Option<u64>,
}

impl StoredRecord for TokenRecord {
    fn fault(&self, _: &str) -> Option<&'static str> {
        fault_of_texts(&self.used_by)
    }
}

/// A volume, at `/vrio/ID/volumes/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Grows with each change.
    pub epoch: u64,
    /// The content on which the volume's members agree: bytes to the registry, in Base64.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub content: Vec<u8>,
    /// The nodes with copies, in their order: the content has their places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The nodes whose copies lack writes, and since when, in seconds since 1970.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lacking: BTreeMap<String, u64>,
    /// The id of the registry that it was written to, in hexadecimal digits: a registry that was
    /// restored has another id than its records, and members may know newer records.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub store: String,
}

impl VolumeRecord {
    /// Whether the registry with this id was restored from a backup since the record was written.
    pub fn was_put_back(&self, store: u64) -> bool {
        !self.store.is_empty() && self.store != store_text(store)
    }
}

/// The id of a registry, as records have it.
pub fn store_text(store: u64) -> String {
    format!("{store:016x}")
}

impl StoredRecord for VolumeRecord {
    fn fault(&self, _: &str) -> Option<&'static str> {
        if self.nodes.len().max(self.lacking.len()) > COPY_PLACES_MAX {
            return Some("it has more nodes than a volume has copies");
        }
        fault_of_texts(self.nodes.iter().chain(self.lacking.keys()).chain([&self.store]))
    }
}

/// A volume that the cluster has placed, at `/vrio/ID/placements/NAME`: the nodes open it as their
/// files would say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// A random number: a later volume of the name has another number.
    #[serde(default)]
    pub number: u64,
    /// The volume's size: that which it gets, while it grows.
    pub size_bytes: u64,
    /// While it grows: the size that its users have still, because copies in sync are smaller than
    /// the new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves_bytes: Option<u64>,
    /// Its copies by their places, which never change. The place of a copy that has gone is empty.
    pub copies: Vec<PlacedCopy>,
    /// The snapshot with which its first copy begins, on the node and in the pool of that copy;
    /// none for a volume that begins empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The nodes whose disks may use it: `vm1`, or `vm1=KEY`, of whose disks only those that prove
    /// the attachment key may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Each write is durable by itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub write_through: bool,
    /// Several disks may use it at once.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
    /// The name of the key under which each copy is encrypted in its pool. Each node with a copy
    /// has the key in a file of its own, and no key is in the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<String>,
    /// The rules for the places of further copies.
    #[serde(default, skip_serializing_if = "PlacementRules::is_default")]
    pub rules: PlacementRules,
    /// When it was placed, in seconds since 1970.
    pub placed_s: u64,
    /// The nodes that still have a copy of a volume that is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removing: Option<Vec<String>>,
}

/// The rules by which the places of a volume's copies are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRules {
    /// The class of the pools; none: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Kinds of places of which no two copies have the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// The pools may have promised more than they have.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overcommits: bool,
    /// For how long a copy lacks writes before another node gets a copy in its stead; none: until
    /// an operator says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_after_s: Option<u64>,
}

impl PlacementRules {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl PlacementRecord {
    /// The nodes whose disks may use it.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.allow.iter().map(|it| it.split_once('=').map_or(&**it, |(node, _)| node))
    }

    /// The copies that there are, with their places.
    pub fn placed(&self) -> impl Iterator<Item = (u8, &PlacedCopy)> {
        (0..=u8::MAX).zip(&self.copies).filter(|(_, copy)| !copy.node.is_empty())
    }

    /// The copies that are members of the volume, with their places: a copy that is out is none.
    pub fn members(&self) -> impl Iterator<Item = (u8, &PlacedCopy)> {
        self.placed().filter(|(_, copy)| copy.leaves != Some(CopyLeave::Out))
    }

    /// The size that its users have.
    pub fn served_bytes(&self) -> u64 {
        self.serves_bytes.unwrap_or(self.size_bytes)
    }

    /// Whether a copy is smaller than the volume of the users, so that it cannot have each write.
    pub fn is_small(&self, place: u8) -> bool {
        let copy = self.copies.get(usize::from(place));
        copy.and_then(|copy| copy.has_bytes).is_some_and(|has| has < self.served_bytes())
    }

    /// The names of the members' nodes, by their places; empty where there is no member.
    pub fn nodes(&self) -> Vec<String> {
        let mut nodes = vec![String::new(); self.copies.len()];
        for (place, copy) in self.members() {
            nodes[usize::from(place)].clone_from(&copy.node);
        }
        nodes
    }

    /// The copy that another copy gives way to when it is in sync.
    pub fn replacement_of(&self, place: u8) -> Option<&PlacedCopy> {
        self.copies.iter().find(|it| it.replaces == Some(place) && it.leaves.is_none())
    }

    /// The copy of a node, with its place.
    pub fn copy_of(&self, node: &str) -> Option<(u8, &PlacedCopy)> {
        self.placed().find(|(_, copy)| copy.node == node)
    }
}

/// A copy at its place. Members of the volume know each other by their places, so no other copy
/// ever has the place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCopy {
    /// The node; empty: the copy has gone.
    pub node: String,
    /// The node's pool.
    pub pool: String,
    /// The copy must go, and how far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<CopyLeave>,
    /// When it came in the stead of a copy, or beside others, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<u64>,
    /// The place of the copy that must go when this copy is in sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u8>,
    /// Its size as its node has told last, while that is less than the volume's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_bytes: Option<u64>,
}

impl PlacedCopy {
    /// A copy on a node, in this pool.
    pub fn new(node: &str, pool: &str) -> Self {
        Self { node: node.to_owned(), pool: pool.to_owned(), ..Self::default() }
    }
}

/// How far a copy is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyLeave {
    /// The volume must go on without it.
    Asked,
    /// It is not in sync, and comes into sync never again: its node may remove it.
    Out,
}

impl StoredRecord for PlacementRecord {
    const NEWEST_VERSION: u64 = VERSION_OF_ENCRYPTED;

    fn version(&self) -> u64 {
        if self.encrypt.is_some() { VERSION_OF_ENCRYPTED } else { VERSION }
    }

    fn fault(&self, name: &str) -> Option<&'static str> {
        let nodes: BTreeSet<_> = self.placed().map(|(_, copy)| &copy.node).collect();
        let count = self.placed().count();
        if count == 0 || self.copies.len() > COPY_PLACES_MAX || nodes.len() < count {
            return Some("it has no copies, or two on a node, or more than a volume has");
        }
        let is_known = |place: u8| usize::from(place) < self.copies.len();
        if !self.copies.iter().filter_map(|copy| copy.replaces).all(is_known) {
            return Some("a copy replaces one that there is not");
        }
        if self.allow.len().max(self.rules.domains.len()) > PARTS_MAX || name.len() > NAME_BYTES_MAX
        {
            return Some("its name, or one of its lists, is too long");
        }
        let sizes = self.copies.iter().filter_map(|copy| copy.has_bytes).chain(self.serves_bytes);
        let sizes: Vec<_> = sizes.collect();
        if sizes.iter().any(|size| *size >= self.size_bytes) {
            return Some("copies that must grow have its size already");
        }
        let is_size = |size: &u64| *size > 0 && size.is_multiple_of(SECTOR_BYTES);
        if self.size_bytes > PLACED_BYTES_MAX
            || ![self.size_bytes].iter().chain(&sizes).all(is_size)
        {
            return Some(
                "one of its sizes is none, or no whole sectors, or larger than a pool has",
            );
        }
        if self.removing.as_ref().is_some_and(|left| left.len() > COPY_PLACES_MAX) {
            return Some("it is removed from more nodes than a volume has copies");
        }
        if self.from.as_ref().is_some_and(|from| !is_snapshot(from)) {
            return Some("it begins with something that is no snapshot of a volume");
        }
        if self.encrypt.as_ref().is_some_and(|name| !is_name(name)) {
            return Some("its key's name is no name");
        }
        let copies = self.copies.iter().flat_map(|copy| [&copy.node, &copy.pool]);
        let rules = self.rules.domains.iter().chain(&self.rules.class);
        let texts = copies.chain(&self.allow).chain(self.removing.iter().flatten());
        fault_of_texts(texts.chain(rules).chain(&self.from).chain(&self.encrypt))
    }
}

/// Whether a text is a name of an object, which is a part of a path as well.
fn is_name(text: &str) -> bool {
    let may = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(may)
}

/// Whether words name a snapshot by its volume, and no cut that copies make.
fn is_snapshot(words: &str) -> bool {
    words.split_once('@').is_some_and(|(volume, snapshot)| {
        is_name(volume) && is_name(snapshot) && !snapshot.starts_with("cut.")
    })
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    BASE64.decode(text.as_bytes()).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("/vrio/1/x").unwrap()
    }

    /// The stored form stays: other releases read it.
    #[test]
    fn records_are_stored_as_they_are_documented() {
        let cluster = ClusterRecord { id: "ab".to_owned(), name: "rack".to_owned(), made_s: 5 };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let wanted = r#"{"version":1,"id":"ab","name":"rack","made_s":5}"#;
        assert_eq!(text(stored(&cluster)), wanted);
        let node =
            NodeRecord { name: "io1".to_owned(), key: None, joined_s: 7, token: "t".to_owned() };
        let wanted = r#"{"version":1,"name":"io1","joined_s":7,"token":"t"}"#;
        assert_eq!(text(stored(&node)), wanted);
        let token = TokenRecord { made_s: 1, ends_s: 2, used_by: None, used_s: None };
        assert_eq!(text(stored(&token)), r#"{"version":1,"made_s":1,"ends_s":2}"#);
        let present = PresenceRecord {
            agent: "a".to_owned(),
            addresses: vec!["10.0.0.1:4870".to_owned()],
            pools: vec![PoolSpace {
                class: Some("ssd".to_owned()),
                ..PoolSpace::new("p", 160, 75)
            }],
            copies: vec![CopyReport {
                volume: "v".to_owned(),
                role: "outside".to_owned(),
                filling: [("io2".to_owned(), 40)].into(),
                size_bytes: 9,
                ..CopyReport::default()
            }],
            program: "0.1.0".to_owned(),
            since_s: 3,
            certificate_ends_s: Some(4),
            domain: [("rack".to_owned(), "r1".to_owned())].into(),
        };
        let wanted = concat!(
            r#"{"version":1,"agent":"a","addresses":["10.0.0.1:4870"],"#,
            r#""pools":[{"name":"p","class":"ssd","size_bytes":160,"free_bytes":80}],"#,
            r#""copies":[{"volume":"v","role":"outside","filling":{"io2":40},"size_bytes":9}],"#,
            r#""program":"0.1.0","since_s":3,"certificate_ends_s":4,"#,
            r#""domain":{"rack":"r1"}}"#
        );
        assert_eq!(text(stored(&present)), wanted);
        let volume = VolumeRecord {
            epoch: 9,
            content: b"\x00\xff".to_vec(),
            nodes: vec!["io1".to_owned()],
            lacking: [("io1".to_owned(), 5)].into(),
            store: store_text(7),
        };
        assert!(volume.was_put_back(8) && !volume.was_put_back(7));
        let bytes = stored(&volume);
        let wanted = concat!(
            r#"{"version":1,"epoch":9,"content":"AP8=","nodes":["io1"],"#,
            r#""lacking":{"io1":5},"store":"0000000000000007"}"#
        );
        assert_eq!(text(bytes.clone()), wanted);
        assert_eq!(read::<VolumeRecord>(&key(), &bytes).unwrap(), volume);
        // Of a release without the names.
        let older = br#"{"version":1,"epoch":9,"content":"AP8="}"#;
        assert!(read::<VolumeRecord>(&key(), older).unwrap().nodes.is_empty());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_with_its_key() {
        for (value, wanted) in [
            ("", "/vrio/1/x is damaged"),
            ("{}", "/vrio/1/x is damaged"),
            ("[1]", "/vrio/1/x is damaged"),
            (r#"{"version":1}"#, "missing field"),
            (r#"{"version":1,"epoch":1,"content":"AP8"}"#, "/vrio/1/x is damaged"),
            (r#"{"version":1,"epoch":-1,"content":""}"#, "/vrio/1/x is damaged"),
            (r#"{"version":2,"else":true}"#, "/vrio/1/x has version 2"),
        ] {
            let error = read::<VolumeRecord>(&key(), value.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{value}: {error}");
        }
        let more = r#"{"version":1,"epoch":1,"content":"","colour":"red"}"#;
        assert_eq!(read::<VolumeRecord>(&key(), more.as_bytes()).unwrap().epoch, 1);
    }

    /// A client's certificate is a right to write any bytes, and the status shows them to people.
    #[test]
    fn a_record_of_hostile_texts_is_damaged_and_its_error_is_short_and_plain() {
        let escape = r"\u001b[2J";
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let name = "x".repeat(VALUE_BYTES_MAX / 2);
        let fault = |error: RegistryError| {
            let text = error.to_string();
            assert!(text.starts_with("/vrio/1/x is damaged"), "{text}");
            assert!(text.len() < 300 && !text.contains(char::is_control), "{text:?}");
        };
        let node = |name: &str, key: &str| {
            format!(r#"{{"version":1,"name":"{name}","key":"{key}","joined_s":1,"token":"t"}}"#)
        };
        assert!(read::<NodeRecord>(&key(), node("x", "k").as_bytes()).is_ok());
        for (name, text) in [("y", "k"), ("x", escape), ("x", &*long), ("x", r"\u202e")] {
            fault(read::<NodeRecord>(&key(), node(name, text).as_bytes()).unwrap_err());
        }
        let present = |address: &str, pool: &str, pools: usize| {
            let pool = format!(r#"{{"name":"{pool}","size_bytes":1,"free_bytes":0}}"#);
            let pools = vec![pool; pools].join(",");
            format!(
                r#"{{"version":1,"agent":"a","addresses":["{address}"],"pools":[{pools}],
                "program":"1","since_s":1}}"#
            )
        };
        assert!(read::<PresenceRecord>(&key(), present("a", "p", 64).as_bytes()).is_ok());
        for value in [present(escape, "p", 1), present("a", escape, 1), present("a", "p", 65)] {
            fault(read::<PresenceRecord>(&key(), value.as_bytes()).unwrap_err());
        }
        let copies = |why: &str, count: usize| {
            let copy = format!(r#"{{"volume":"v","role":"x","why":"{why}","size_bytes":1}}"#);
            let copies = vec![copy; count].join(",");
            format!(r#"{{"version":1,"agent":"a","copies":[{copies}],"program":"1","since_s":1}}"#)
        };
        let longer = "x".repeat(REPORT_CHARS_MAX + 1);
        assert!(read::<PresenceRecord>(&key(), copies("w", 64).as_bytes()).is_ok());
        for value in [copies(escape, 1), copies(&longer, 1), copies("w", 65)] {
            fault(read::<PresenceRecord>(&key(), value.as_bytes()).unwrap_err());
        }
        let volume =
            |nodes: String| format!(r#"{{"version":1,"epoch":1,"content":"","nodes":[{nodes}]}}"#);
        for nodes in [format!("\"{escape}\""), vec!["\"a\""; 65].join(",")] {
            fault(read::<VolumeRecord>(&key(), volume(nodes).as_bytes()).unwrap_err());
        }
        let cluster = format!(r#"{{"version":1,"id":"1","name":"{escape}","made_s":1}}"#);
        fault(read::<ClusterRecord>(&key(), cluster.as_bytes()).unwrap_err());
        let token = format!(r#"{{"version":1,"made_s":1,"ends_s":2,"used_by":"{escape}"}}"#);
        fault(read::<TokenRecord>(&key(), token.as_bytes()).unwrap_err());
        // The reader's own error repeats the value.
        for value in [format!(r#"{{"version":"{name}{escape}"}}"#), " ".repeat(1 << 20)] {
            fault(read::<TokenRecord>(&key(), value.as_bytes()).unwrap_err());
        }
    }

    /// Copies get these sizes, and members count in sectors of them.
    #[test]
    fn a_placement_has_sizes_that_a_pool_can_have() {
        let placement = |size_bytes, serves_bytes, has_bytes| {
            let copy = PlacedCopy { has_bytes, ..PlacedCopy::new("io1", "fast") };
            PlacementRecord {
                size_bytes,
                serves_bytes,
                copies: vec![copy],
                ..PlacementRecord::default()
            }
        };
        for (size_bytes, serves_bytes, has_bytes) in
            [(512, None, None), (PLACED_BYTES_MAX, None, None), (8192, Some(4096), Some(512))]
        {
            assert_eq!(placement(size_bytes, serves_bytes, has_bytes).fault("alice"), None);
        }
        for (size_bytes, serves_bytes, has_bytes) in [
            (0, None, None),
            (513, None, None),
            (PLACED_BYTES_MAX + 512, None, None),
            (u64::MAX - 511, Some(4096), None),
            (8192, Some(0), None),
            (8192, Some(4095), None),
            (8192, None, Some(1)),
            (8192, Some(8192), None),
            (8192, None, Some(8192)),
        ] {
            let fault = placement(size_bytes, serves_bytes, has_bytes).fault("alice");
            assert!(fault.is_some(), "{size_bytes} {serves_bytes:?} {has_bytes:?}");
        }
    }

    /// A release that does not know the field would make a copy that is not encrypted.
    #[test]
    fn older_releases_refuse_a_placement_with_a_key() {
        let placement = |encrypt: Option<&str>| PlacementRecord {
            size_bytes: 512,
            copies: vec![PlacedCopy::new("io1", "fast")],
            encrypt: encrypt.map(str::to_owned),
            ..PlacementRecord::default()
        };
        let text = |it: &PlacementRecord| String::from_utf8(stored(it)).unwrap();
        assert!(text(&placement(None)).starts_with("{\"version\":1,"));
        let encrypted = placement(Some("alice"));
        assert!(text(&encrypted).starts_with("{\"version\":2,"));
        assert_eq!(read::<PlacementRecord>(&key(), &stored(&encrypted)).unwrap(), encrypted);
        let newer = text(&encrypted).replace("\"version\":2", "\"version\":3");
        let error = read::<PlacementRecord>(&key(), newer.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("has version 3, and this vrio reads version 2"), "{error}");
        for name in ["", "../node", "a/b", ".a", "-a", "a b"] {
            assert!(placement(Some(name)).fault("x").is_some(), "{name:?}");
        }
    }

    #[test]
    fn space_is_told_in_steps() {
        let free = |used| PoolSpace::new("p", 1600, used).free_bytes;
        assert_eq!(
            [free(0), free(1), free(99), free(101), free(1600), free(9999)],
            [1600, 1500, 1500, 1400, 0, 0]
        );
        assert_eq!(PoolSpace::new("p", 0, 0).free_bytes, 0);
    }
}
