//! `[[disk]]`.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use block::ROUTE_PEERS_MAX;
use cache::{ANY_PEERS, CachePlan, DirtyStore, WRITE_BACK_DISK_NAME_MAX, cache_volume_name};
use virtio::Access;
use volume::name::NAME_BYTES_MAX;

use crate::cache::{CACHE_KEYS, cache, show_cache};
use crate::checks::{Surroundings, socket_length, unique};
use crate::key_table::{KeyTable, SettingKey, key};
use crate::object::{InPlace, Object, PartOf, keys};
use crate::reader::{Lines, Reader, Value};
use crate::sections::{Directories, QUEUES_DEFAULT, QUEUES_MAX, Role};
use crate::values::{
    absolute_path, access, name, name_problem, named_like_socket, role, socket_path,
};

/// A disk for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its name; unless the file says otherwise, the socket's without its ending. Its beginning is
    /// the serial number that the guest reads.
    pub name: String,
    /// The absolute path of its vhost-user socket.
    pub socket: PathBuf,
    /// Whether this node makes the socket or finds it.
    pub role: Role,
    /// The users that may connect to the socket, where this node makes it.
    pub access: Access,
    /// The volume behind it.
    pub volume: VolumeRef,
    /// How many virtqueues it offers.
    pub queues: u16,
    /// The disk's behaviour when the volume's node is out of reach.
    pub when_lost: WhenLost,
    /// The name of its attachment in the volume's records.
    pub attachment: String,
    /// The file of the secret key that proves whose attachment it is.
    pub attachment_key: Option<PathBuf>,
    /// Serve a resumed guest although acknowledged writes may be lost.
    pub accept_loss: bool,
    /// The part of a pool of this node that keeps blocks of the volume.
    pub cache: Option<CachePlan>,
    /// Where its keys are.
    pub lines: Lines,
}

/// The name of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRef {
    /// The peers that may serve it, the first of which is asked first; none for this node. Several
    /// peers have the members of a replicated volume.
    pub peers: Vec<String>,
    /// Its name there.
    pub volume: String,
    /// The cluster has placed it: the disk names the volume alone, and the peers are the nodes of
    /// its placement, which change.
    pub is_placed: bool,
}

impl VolumeRef {
    /// Whether it is a volume of this node.
    pub fn is_here(&self) -> bool {
        self.peers.is_empty()
    }

    /// Its name in the memory and in the pools of the disk's node. A list that an operator wrote is
    /// a part of the name: a volume of other peers is another volume. The nodes of a placed volume
    /// are not, so that what is kept of the volume is found when they have changed.
    pub fn kept_as(&self) -> String {
        match self.is_placed {
            true => format!("{ANY_PEERS}/{}", self.volume),
            false => self.to_string(),
        }
    }

    /// The problem of a list of peers, if it has one.
    pub fn peers_problem(peers: &[&str]) -> Option<String> {
        if peers.len() > ROUTE_PEERS_MAX {
            return Some(format!("has more than {ROUTE_PEERS_MAX} peers; leave some out"));
        }
        let twice = peers.iter().enumerate().find(|(at, peer)| peers[..*at].contains(peer));
        twice.map(|(_, peer)| format!("has peer {peer:?} twice; leave one out"))
    }

    /// Whether this peer may serve it.
    pub fn may_be_on(&self, peer: &str) -> bool {
        self.peers.iter().any(|of| of == peer)
    }
}

impl fmt::Display for VolumeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peers.as_slice() {
            [] => f.write_str(&self.volume),
            peers => write!(f, "{}/{}", peers.join(","), self.volume),
        }
    }
}

/// A disk's behaviour while its volume is out of reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenLost {
    /// The guest's requests wait.
    #[default]
    Wait,
    /// The guest's requests fail after this long.
    ErrorAfterNs(u64),
}

const DISK_KEYS: [SettingKey; 13] = [
    key(
        "name",
        "The disk's name. Default: the socket's name without the ending. The guest reads \
         the first 20 bytes of it as the serial number.",
    ),
    key("socket", "The disk's vhost-user socket, in the sockets' directory."),
    key(
        "role",
        "`\"listen\"` (default): the node makes the socket. `\"connect\"`: the VMM makes \
         it (`server=on`).",
    ),
    key(
        "socket-user",
        "The owner of the socket that the node makes, by number (`id -u`). Default: the \
         node's user.",
    ),
    key(
        "socket-group",
        "The group of the socket, by number (`getent group`). A node that does not run as \
         root gives the socket only to groups that its user is in.",
    ),
    key("socket-mode", "The mode of the socket, `\"0660\"`. The umask has no effect."),
    key(
        "volume",
        "`\"name\"` for a volume of this node, or one that its cluster has placed; \
         `\"peer/name\"` for a volume of another node, `\"io1,io2/name\"` for a volume with \
         copies on several nodes (up to eight, this node may be one of them): \
         the disk asks the first one, follows to the node that serves the volume, and asks \
         the next one when its node is out of reach.",
    ),
    key(
        "queues",
        "The number of queues that the disk offers, at most 64. Default: 4. They are \
         spread over the sidecores, and may be [moved](#steering).",
    ),
    key(
        "when-lost",
        "How requests fare while the volume is out of reach: `{ wait = \"forever\" }` \
         (default) or `{ error-after = \"30s\" }`. A volume of this node is never out of \
         reach.",
    ),
    key(
        "attachment",
        "The disk's name in the volume's records. Default: the disk's name. When a guest \
         migrates, the target's disk has the same name.",
    ),
    key(
        "attachment-key",
        "The file of the secret key that the disk proves to a volume that asks for one.",
    ),
    key(
        "accept-loss",
        "`true`: serve the guest although acknowledged writes [may be \
         lost](faults.md#data-that-may-be-lost). Remove the key again afterwards.",
    ),
    key(
        "cache",
        "For a volume of another node: a [cache](pools.md#a-cache-of-a-remote-volume) in a pool \
         of this node, `{ pool = \"local\", size = \"20GiB\" }`. It can be changed while a guest \
         uses the disk, unless it has write-back.",
    ),
];

const WHEN_LOST_KEYS: [SettingKey; 2] = [
    key("wait", "`\"forever\"`: requests wait until the volume is back."),
    key("error-after", "The time after which requests fail, such as `\"30s\"`."),
];

fn disk(value: &Value<'_, '_>, directories: &Directories) -> Option<DiskConfig> {
    let table = value.table_of(&DISK_KEYS)?;
    let socket = table.require("socket", "socket = \"alice.sock\"");
    let socket = socket.and_then(|value| socket_path(&value, directories));
    let volume = table.require("volume", "volume = \"io1/alice-root\"");
    let volume = volume.and_then(|value| volume_ref(&value));
    let name_of_disk = named_like_socket(&table, socket.as_deref(), "disk");
    let attachment = table.get("attachment").and_then(|value| name(&value));
    let queues = table.get("queues").and_then(|value| value.integer(1..=u64::from(QUEUES_MAX)));
    let when_lost = table.get("when-lost").and_then(|value| when_lost(&value));
    let attachment_key = table.get("attachment-key").and_then(|value| absolute_path(&value));
    let accept_loss = table.get("accept-loss").and_then(|value| value.bool());
    let cache = table.get("cache").and_then(|value| cache(&value));
    let name = name_of_disk?;
    Some(DiskConfig {
        socket: socket?,
        role: role(&table),
        access: access(&table),
        volume: volume?,
        queues: queues.map_or(QUEUES_DEFAULT, |queues| queues as u16),
        when_lost: when_lost.unwrap_or_default(),
        attachment: attachment.unwrap_or_else(|| name.clone()),
        attachment_key,
        accept_loss: accept_loss.unwrap_or(false),
        cache,
        lines: table.lines.clone(),
        name,
    })
}

fn volume_ref(value: &Value<'_, '_>) -> Option<VolumeRef> {
    let text = value.str()?;
    let (peers, volume) = match text.split_once('/') {
        Some((peers, volume)) => (peers.split(',').collect(), volume),
        None => (Vec::new(), text),
    };
    for part in peers.iter().copied().chain([volume]) {
        if let Some(problem) = name_problem(part) {
            value.fail(format!(
                "{text:?} names no volume ({part:?} {problem}); write \"volume\" for a volume of \
                 this node, \"peer/volume\" for a peer's, \"peer,peer/volume\" for a replicated \
                 volume"
            ));
            return None;
        }
    }
    if let Some(problem) = VolumeRef::peers_problem(&peers) {
        value.fail(format!("{text:?} {problem}"));
        return None;
    }
    let peers = peers.into_iter().map(str::to_owned).collect();
    Some(VolumeRef { peers, volume: volume.to_owned(), is_placed: false })
}

fn when_lost(value: &Value<'_, '_>) -> Option<WhenLost> {
    let table = value.table_of(&WHEN_LOST_KEYS)?;
    match (table.get("wait"), table.get("error-after")) {
        (Some(wait), None) => {
            let text = wait.str()?;
            if text != "forever" {
                wait.fail(format!(
                    "a disk waits \"forever\"; to fail requests after a while write {{ error-after \
                     = {text:?} }}"
                ));
                return None;
            }
            Some(WhenLost::Wait)
        }
        (None, Some(after)) => after.duration_ns().map(WhenLost::ErrorAfterNs),
        _ => {
            let text = "write { wait = \"forever\" } or { error-after = \"30s\" }";
            value.fail(text.to_owned());
            None
        }
    }
}

fn disk_volume(reader: &Reader<'_>, around: &Surroundings<'_>, disk: &DiskConfig) {
    let object = format!("disk {:?}", disk.name);
    let line = disk.lines.of("volume");
    let known = |names: &[&str]| match names {
        [] => "there is none".to_owned(),
        names => format!("there are {}", names.join(", ")),
    };
    // The node itself may be one of several that have a copy.
    let is_own = |peer: &str| peer == around.node && around.is_listening && around.is_sealed;
    let may_be_own = disk.volume.is_placed || disk.volume.peers.len() > 1;
    let is_known = |peer: &str| around.has("peer", peer) || may_be_own && is_own(peer);
    let unknown = disk.volume.peers.iter().find(|peer| !is_known(peer));
    match unknown {
        Some(peer) if peer == around.node => {
            let text = match may_be_own {
                true => {
                    "\"volume\": this node asks itself for the volume, which takes \"listen\" and \
                     a \"key\"; add both at the top"
                }
                false => {
                    "\"volume\": this is the node's own name; volumes of this node are named \
                     without a peer"
                }
            };
            reader.note(line, &object, text.to_owned());
        }
        Some(peer) => {
            let peers = known(around.names("peer"));
            let text = format!(
                "\"volume\": there is no [[peer]] {peer:?} ({peers}); add [[peer]] name = \
                 {peer:?}, address = \"..\""
            );
            reader.note(line, &object, text);
        }
        None if disk.volume.is_here() && !around.has("volume", &disk.volume.volume) => {
            let volumes = known(around.names("volume"));
            let cluster = match around.is_in_cluster {
                true => {
                    ". Its cluster has told it of no such volume that its disks may use (`vrio \
                     volume create --allow`): a node that starts for the first time hears of \
                     volumes later, and gets the disk by `vrio disk add`"
                }
                false => "",
            };
            let text = format!(
                "\"volume\": this node has no volume {name:?} ({volumes}); add a [[volume]] of \
                 that name, or write \"peer/{name}\" for a peer's volume{cluster}",
                name = disk.volume.volume
            );
            reader.note(line, &object, text);
        }
        None => {}
    }
}

/// A cache is of a peer's volume, and in a pool of this node that has no other volume of its name.
fn disk_cache(reader: &Reader<'_>, around: &Surroundings<'_>, disk: &DiskConfig) {
    let Some(cache) = &disk.cache else { return };
    let (object, line) = (format!("disk {:?}", disk.name), disk.lines.of("cache"));
    if disk.volume.is_here() {
        let text = "\"cache\": the volume is on this node, where a cache would only copy it; \
                    remove the key";
        reader.note(line, &object, text.to_owned());
    }
    if !around.has("pool", &cache.pool) {
        let pools = around.names("pool");
        let pools = if pools.is_empty() { "none".to_owned() } else { pools.join(", ") };
        let text = format!(
            "\"cache\": this node has no pool {:?} (there is {pools}); add a [[pool]] of that name",
            cache.pool
        );
        reader.note(line, &object, text);
    }
    if cache.write_back.is_some() {
        write_back(reader, around, disk);
    }
    let volume = disk.cache_volume();
    let is_long = volume.len() > NAME_BYTES_MAX;
    if is_long || around.has("volume", &volume) {
        let why = if is_long { "has too many characters" } else { "is a volume of this node" };
        let text = format!(
            "\"cache\": its volume in the pool would be {volume:?}, which {why}; give the disk \
             another name"
        );
        reader.note(line, &object, text);
    }
}

/// A disk with write-back needs room in a name, and a guard that never lets a client go on which
/// another client has replaced.
fn write_back(reader: &Reader<'_>, around: &Surroundings<'_>, disk: &DiskConfig) {
    let (object, line) = (format!("disk {:?}", disk.name), disk.lines.of("cache"));
    if disk.name.len() > WRITE_BACK_DISK_NAME_MAX {
        let text = format!(
            "\"cache\": a disk with write-back has a name of at most {WRITE_BACK_DISK_NAME_MAX} \
             characters, since volumes of the pool are named after it; give it a shorter name"
        );
        reader.note(line, &object, text);
    }
    let volumes = around.names("volume").iter();
    if let Some(volume) = volumes.copied().find(|it| DirtyStore::is_of(it, &disk.name)) {
        let text = format!(
            "\"cache\": volume {volume:?} has a name of the disk's dirty blocks in the pool; give \
             one of them another name"
        );
        reader.note(line, &object, text);
    }
    if disk.accept_loss {
        let text = "\"cache\": with `accept-loss` old writes could go over another client's; \
                    remove one of the two keys";
        reader.note(line, &object, text.to_owned());
    }
}

impl DiskConfig {
    /// A part of a disk that is changed while it is used: its cache.
    pub const CACHE: &str = "cache";

    /// The other part: the nodes of its placed volume.
    pub const PEERS: &str = "peers";

    /// Whether the two name the same placed volume, and differ in its nodes at most.
    fn is_of_same_placement(&self, wanted: &Self) -> bool {
        let (ours, theirs) = (&self.volume, &wanted.volume);
        ours.is_placed && theirs.is_placed && ours.volume == theirs.volume
    }

    /// A change of its peers to the present ones, in words.
    pub fn peers_text(&self) -> String {
        format!("change disk {:?}: its volume is now {}", self.name, self.volume)
    }

    /// Whether one of the two has write-back, and they differ.
    fn changes_write_back(&self, wanted: &Self) -> bool {
        let has = |it: &Self| it.cache.as_ref().is_some_and(|cache| cache.write_back.is_some());
        self.cache != wanted.cache && (has(self) || has(wanted))
    }

    /// The name of the volume of a pool that has the disk's cache.
    pub fn cache_volume(&self) -> String {
        cache_volume_name(&self.name)
    }
}

/// Two disks with one attachment would fence each other off for ever.
fn same_attachment(reader: &Reader<'_>, disks: &[DiskConfig]) {
    let mut seen: HashMap<(String, &str), &str> = HashMap::new();
    for disk in disks {
        let key = (disk.volume.to_string(), disk.attachment.as_str());
        if let Some(other) = seen.insert(key, &disk.name).filter(|other| *other != disk.name) {
            let text = format!(
                "\"attachment\": disk {other:?} has the same attachment {:?} of volume {}, and \
                 each disk would take it from the other; give them different names",
                disk.attachment, disk.volume
            );
            reader.note(disk.lines.of("attachment"), &format!("disk {:?}", disk.name), text);
        }
    }
}

impl Object for DiskConfig {
    const KEY: &'static str = "disk";
    const NEEDS: &'static [&'static str] = &["peer", "pool", "volume"];

    fn keys() -> &'static [SettingKey] {
        &DISK_KEYS
    }

    fn inner_tables() -> Vec<KeyTable> {
        let sample = "[[disk]]\nsocket = \"a.sock\"\nvolume = \"a\"\n";
        let table = |key: &str, keys| KeyTable::new(key, &format!("{sample}{key} = {{ ? }}"), keys);
        vec![table("when-lost", &WHEN_LOST_KEYS), table("cache", &CACHE_KEYS)]
    }

    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self> {
        disk(value, directories)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>) {
        let sockets = all.iter().filter_map(|disk| Some((disk.socket.to_str()?, &disk.lines)));
        unique(reader, "disk", "socket", sockets);
        for disk in all {
            let object = format!("disk {:?}", disk.name);
            socket_length(reader, &disk.socket, &object, disk.lines.of("socket"));
            // A volume or peer that could not be read is missing here; it has had its message.
            if around.is_whole {
                disk_volume(reader, around, disk);
                disk_cache(reader, around, disk);
            }
        }
        same_attachment(reader, all);
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }

    fn part_of(&self) -> Option<PartOf<'_>> {
        self.volume.is_here().then(|| PartOf {
            kind: "volume",
            name: &self.volume.volume,
            said: "its volume",
        })
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let moves = self.is_of_same_placement(wanted);
        let different = [
            ("socket", self.socket != wanted.socket),
            ("role", self.role != wanted.role),
            ("socket-user", self.access.uid != wanted.access.uid),
            ("socket-group", self.access.gid != wanted.access.gid),
            ("socket-mode", self.access.mode != wanted.access.mode),
            ("volume", self.volume != wanted.volume && !moves),
            ("queues", self.queues != wanted.queues),
            ("when-lost", self.when_lost != wanted.when_lost),
            ("attachment", self.attachment != wanted.attachment),
            ("accept-loss", self.accept_loss != wanted.accept_loss),
            ("attachment-key", self.attachment_key != wanted.attachment_key),
            // Channels that work by one mode do not change to another.
            ("cache", self.changes_write_back(wanted)),
        ];
        let (lines, cache) = (wanted.lines.clone(), wanted.cache.clone());
        let volume = if moves { &wanted.volume } else { &self.volume }.clone();
        let moved = Self { lines, cache, volume, ..self.clone() };
        keys(&different, moved != *wanted || self.changes_write_back(wanted))
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        let mut changes = Vec::new();
        if self.volume != wanted.volume && self.is_of_same_placement(wanted) {
            changes.push(InPlace { step: Self::PEERS, text: wanted.peers_text() });
        }
        if self.cache != wanted.cache && !self.changes_write_back(wanted) {
            let cache = show_cache(wanted.cache.as_ref());
            let text = format!("change disk {:?}: the cache is now {cache}", self.name);
            changes.push(InPlace { step: Self::CACHE, text });
        }
        changes
    }

    fn added_to(&self) -> String {
        format!(" of volume {}", self.volume)
    }
}
