//! `[[nic]]`.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use net::nic::{MTU, MTU_MAX, MTU_MIN, PAIRS_MAX};
use net::stage::Limit;
use net::stage::filter::Action;
use net::stage::mirror::{FILE_BYTES_MAX, SNAP_BYTES};
use net::uplink::{INTERFACE_FORM, is_interface};
use net::{Mac, Rules, VlanSet, Vlans};
use virtio::Access;
use volume::settings::show_size;

use crate::checks::{Surroundings, socket_length, unique};
use crate::key_table::{KeyTable, SettingKey, key, names};
use crate::object::{InPlace, Object, PartOf, keys as different_keys};
use crate::reader::{Lines, Reader, TableReader, Value};
use crate::sections::{Directories, Role};
use crate::values::{
    absolute_path, access, capture_path, name_problem, named_like_socket, role, socket_path,
};

const NIC_KEYS: [SettingKey; 19] = [
    key("name", "The nic's name. Default: the socket's name without the ending."),
    key("socket", "The nic's vhost-user socket, in the sockets' directory."),
    key("role", "The side that makes the socket, as for a disk."),
    key("socket-user", "The owner of the socket, as for a disk."),
    key("socket-group", "The group of the socket, as for a disk."),
    key("socket-mode", "The mode of the socket, as for a disk."),
    key(
        "network",
        "A network of this node, `\"blue\"`, or of [another \
         one](#networks-of-other-nodes), `\"io1/blue\"`.",
    ),
    key(
        "attachment-key",
        "The file of the secret key that proves that the nic may join another node's \
         network.",
    ),
    key(
        "mac",
        "The guest's address, the same as `mac=` of QEMU's device. Frames that the guest \
         sends from other addresses are dropped.",
    ),
    key(
        "queues",
        "The number of pairs of queues that the nic offers. Default: 1. Give QEMU no more \
         (`queues=` of the netdev, `mq=on` and `vectors` of the device).",
    ),
    key(
        "mtu",
        "The largest packet that is not cut. Default: 1500. For more give QEMU's device \
         `host_mtu` as well.",
    ),
    key(
        "vlan",
        "The nic's VLAN. The guest sends and receives frames without a tag. Default: the \
         untagged segment.",
    ),
    key("vlans", "Instead of `vlan`: the VLANs in which the guest tags its frames itself."),
    key(
        "isolated",
        "`true`: the nic reaches the uplink, and no other isolated nic. In another node's \
         network, `remote` of that node decides this.",
    ),
    key("link", "`\"up\"` (default), or `\"down\"`: the guest sees an unplugged cable."),
    key("meter", "`true`: frames are counted by kind and size."),
    key("mirror", "Frames are copied to a file or a tap; see [mirrors](#mirrors)."),
    key(
        "limit",
        "A rate in each direction: `{ bytes-per-second = \"100MiB\", frames-per-second = \
         100000 }`, one or both. Frames that the guest sends too fast stay in its queue; \
         frames that arrive too fast are dropped.",
    ),
    key("filter", "`{ default = \"deny\", rules = [..] }`; see [filters](#filters)."),
];

/// The keys of a nic's `filter`.
const FILTER_KEYS: [SettingKey; 2] = [
    key(
        "default",
        "`\"allow\"` or `\"deny\"`: the decision about frames that no rule \
                    matches.",
    ),
    key("rules", "The rules in their order; the first rule that matches decides."),
];

const MIRROR_KEYS: [SettingKey; 4] = [
    key(
        "file",
        "The file in `captures` that frames are copied into, for wireshark or an intrusion \
         detector. A mirror appends to the file of an earlier mirror with the same \
         `bytes-per-frame`, after its last whole record. Any other file is refused and \
         stays unchanged.",
    ),
    key(
        "size",
        "The size at which the file ends. Default: `\"1GiB\"`. Move a full file away, and \
         the next start begins a new file.",
    ),
    key("bytes-per-frame", "The most bytes that are kept of each frame. Default: 2048."),
    key("tap", "Instead of `file`: a tap interface that gets whole frames."),
];

const LIMIT_KEYS: [SettingKey; 2] = [
    key("bytes-per-second", "The bytes in a second, such as `\"100MiB\"`; at least 4096."),
    key("frames-per-second", "The frames in a second."),
];

/// The keys of a nic that can be changed while its guest uses it.
pub const NIC_CHANGEABLE: [&str; 5] = ["link", "meter", "mirror", "limit", "filter"];

/// The shortest file of a mirror: some hundred frames.
const MIRROR_BYTES_MIN: u64 = 64 << 10;

/// How much of a frame a mirror keeps at least: all its headers.
const MIRROR_FRAME_BYTES_MIN: u64 = 64;

/// The highest VLAN that a tag may name.
pub(crate) const VLAN_MAX: u64 = 4094;

/// The name of a network of this node, or of another node.
fn network_ref(value: &Value<'_, '_>) -> Option<String> {
    let text = value.str()?;
    let mut parts = text.splitn(2, '/');
    if let Some((part, problem)) = parts.find_map(|part| Some((part, name_problem(part)?))) {
        value.fail(format!(
            "{text:?} names no network ({part:?} {problem}); write \"network\" for a network of \
             this node, \"peer/network\" for a peer's"
        ));
        return None;
    }
    Some(text.to_owned())
}

fn nic(value: &Value<'_, '_>, directories: &Directories) -> Option<NicConfig> {
    let table = value.table_of(&NIC_KEYS)?;
    let socket = table.require("socket", "socket = \"alice-net.sock\"");
    let socket = socket.and_then(|value| socket_path(&value, directories));
    let name = named_like_socket(&table, socket.as_deref(), "nic");
    let network = table.require("network", "network = \"blue\"").and_then(|it| network_ref(&it));
    let attachment_key = table.get("attachment-key").and_then(|value| absolute_path(&value));
    let mac = table.require("mac", "mac = \"52:54:00:12:34:56\"").and_then(|value| mac(&value));
    let queues = table.get("queues").and_then(|value| value.integer(1..=u64::from(PAIRS_MAX)));
    let range = u64::from(MTU_MIN)..=u64::from(MTU_MAX);
    let mtu = table.get("mtu").and_then(|value| value.integer(range));
    let vlans = vlans(&table);
    let isolated = table.get("isolated").and_then(|value| value.bool());
    let mut nic = NicConfig {
        name: name?,
        socket: socket?,
        role: role(&table),
        access: access(&table),
        network: network?,
        attachment_key,
        mac: mac?,
        pairs: queues.map_or(1, |pairs| pairs as u16),
        mtu: mtu.map_or(MTU, |mtu| mtu as u16),
        vlans,
        isolated: isolated.unwrap_or(false),
        link: true,
        meter: false,
        mirror: None,
        limit: None,
        filter: None,
        lines: table.lines.clone(),
    };
    change(&mut nic, &table, directories, |_| true);
    Some(nic)
}

/// Sets those of the [`NIC_CHANGEABLE`] keys that are `meant` to the table's values.
pub(crate) fn change(
    nic: &mut NicConfig,
    table: &TableReader<'_, '_>,
    directories: &Directories,
    meant: impl Fn(&str) -> bool,
) {
    if meant("link") {
        let words = [("up", true), ("down", false)];
        nic.link = table.get("link").and_then(|value| value.word(&words)).unwrap_or(true);
    }
    if meant("meter") {
        nic.meter = table.get("meter").and_then(|value| value.bool()).unwrap_or(false);
    }
    if meant("mirror") {
        nic.mirror = table.get("mirror").and_then(|value| mirror(&value, directories));
    }
    if meant("limit") {
        nic.limit = table.get("limit").and_then(|value| limit(&value));
    }
    if meant("filter") {
        nic.filter = table.get("filter").and_then(|value| filter(&value));
    }
}

fn mac(value: &Value<'_, '_>) -> Option<Mac> {
    let mac: Mac = value.str()?.parse().map_err(|error| value.fail(format!("{error}"))).ok()?;
    if !mac.is_station() {
        value
            .fail(format!("{mac} is a group's address or zero; a nic needs an address of its own"));
        return None;
    }
    Some(mac)
}

fn vlans(table: &TableReader<'_, '_>) -> Vlans {
    let one = table.get("vlan").and_then(|value| value.integer(1..=VLAN_MAX));
    let Some(several) = table.get("vlans") else {
        return Vlans::Access(one.unwrap_or(0) as u16);
    };
    if one.is_some() {
        let text = "\"vlan\" is for a guest that does not tag its frames, and \"vlans\" for a \
                    guest that tags them; keep one of the two";
        several.fail(text.to_owned());
    }
    let entries = several.array().unwrap_or_default();
    let numbers = entries.iter().filter_map(|entry| entry.integer(1..=VLAN_MAX));
    let tagged: VlanSet = numbers.map(|vlan| vlan as u16).collect();
    if entries.is_empty() {
        several.fail("name at least one VLAN".to_owned());
    }
    Vlans::Trunk { native: None, tagged }
}

pub(crate) fn limit(value: &Value<'_, '_>) -> Option<Limit> {
    let table = value.table_of(&LIMIT_KEYS)?;
    let bytes = table.get("bytes-per-second").and_then(|value| value.size_bytes());
    let frames = table.get("frames-per-second").and_then(|value| value.integer(1..=1 << 40));
    if table.get("bytes-per-second").is_none() && table.get("frames-per-second").is_none() {
        value.fail("write { bytes-per-second = \"100MiB\" }, or frames-per-second".to_owned());
    }
    if bytes.is_some_and(|bytes| bytes < 4096) {
        value.fail("the least rate is 4096 bytes a second".to_owned());
    }
    let (frames, bytes) = (frames.unwrap_or(0), bytes.unwrap_or(0));
    Some(Limit { frames_per_s: NonZeroU64::new(frames), bytes_per_s: NonZeroU64::new(bytes) })
}

fn mirror(value: &Value<'_, '_>, directories: &Directories) -> Option<MirrorConfig> {
    let of_file = ["file", "size", "bytes-per-frame"];
    let table = value.table_of(&MIRROR_KEYS)?;
    if let Some(tap) = table.get("tap") {
        for other in of_file.iter().filter_map(|key| table.get(key)) {
            let text = "a tap gets whole frames and has no file; keep \"tap\" alone";
            other.fail(text.to_owned());
        }
        return mirror_tap(&tap);
    }
    let file = table.require("file", "file = \"alice.pcap\", or tap = \"ids0\"");
    let file = file.and_then(|value| capture_path(&value, directories));
    let size = table.get("size").and_then(|value| {
        let bytes = value.size_bytes()?;
        if bytes < MIRROR_BYTES_MIN {
            value.fail(format!("a mirror's file has at least {}", show_size(MIRROR_BYTES_MIN)));
        }
        Some(bytes)
    });
    let frame = table
        .get("bytes-per-frame")
        .and_then(|value| value.integer(MIRROR_FRAME_BYTES_MIN..=net::FRAME_BYTES_MAX as u64));
    Some(MirrorConfig::File {
        file: file?,
        size_bytes: size.unwrap_or(FILE_BYTES_MAX),
        frame_bytes: frame.map_or(SNAP_BYTES, |bytes| bytes as usize),
    })
}

fn mirror_tap(value: &Value<'_, '_>) -> Option<MirrorConfig> {
    let name = value.str()?;
    if !is_interface(name) {
        value.fail(format!("{name:?} is no interface's name: {INTERFACE_FORM}"));
        return None;
    }
    Some(MirrorConfig::Tap(name.to_owned()))
}

pub(crate) fn filter(value: &Value<'_, '_>) -> Option<Rules> {
    let table = value.table_of(&FILTER_KEYS)?;
    let words = [("allow", Action::Allow), ("deny", Action::Deny)];
    let default = table.require("default", "default = \"deny\"")?.word(&words)?;
    let rules = table.get("rules").and_then(|value| value.array()).unwrap_or_default();
    let texts: Option<Vec<&str>> = rules.iter().map(Value::str).collect();
    match Rules::parse(&texts?, default) {
        Ok(rules) => Some(rules),
        Err(error) => {
            let at = error.rule().and_then(|rule| rules.get(rule - 1));
            at.unwrap_or(value).fail(error.to_string());
            None
        }
    }
}

/// A nic in a network of another node.
fn remote_fits(reader: &Reader<'_>, around: &Surroundings<'_>, nic: &NicConfig, peer: &str) {
    let object = format!("nic {:?}", nic.name);
    let note = |key: &str, text: String| reader.note(nic.lines.of(key), &object, text);
    if around.is_whole && !around.has("peer", peer) {
        note("network", format!("\"network\": there is no [[peer]] {peer:?}; add it"));
    }
    if around.is_whole && !around.is_listening {
        let text = "\"network\": a nic in another node's network needs sessions; write at the top \
                    listen = \"10.0.0.1:4870\", with this host's address";
        note("network", text.to_owned());
    }
    if nic.isolated {
        let text = "\"isolated\": the network's node decides this, in \"remote\" of its \
                    [[network]]";
        note("isolated", text.to_owned());
    }
    if nic.attachment_key.is_some() && !around.is_sealed {
        let text = "\"attachment-key\": it can only be proved in sealed sessions; make a node key \
                    with `vrio key new FILE` and write key = \"FILE\" at the top";
        note("attachment-key", text.to_owned());
    }
}

/// A network card for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Its name; unless the file says otherwise, the socket's without its ending.
    pub name: String,
    /// The absolute path of its vhost-user socket.
    pub socket: PathBuf,
    /// Whether this node makes the socket or finds it.
    pub role: Role,
    /// The users that may connect to the socket, where this node makes it.
    pub access: Access,
    /// The network that it is in: `NETWORK`, or `PEER/NETWORK` for another node's.
    pub network: String,
    /// The file of the secret key that proves that it may join another node's.
    pub attachment_key: Option<PathBuf>,
    /// The guest's address; the guest may send from no other one.
    pub mac: Mac,
    /// How many pairs of queues it offers.
    pub pairs: u16,
    /// The largest packet in bytes.
    pub mtu: u16,
    /// Its VLANs.
    pub vlans: Vlans,
    /// It may only talk to ports that are not isolated: to the uplink.
    pub isolated: bool,
    /// Whether the guest's cable is plugged in.
    pub link: bool,
    /// Frames that pass are counted.
    pub meter: bool,
    /// Frames that pass are copied.
    pub mirror: Option<MirrorConfig>,
    /// How fast it may be, each way.
    pub limit: Option<Limit>,
    /// The rules for frames that it may send and receive.
    pub filter: Option<Rules>,
    /// Where its keys are.
    pub lines: Lines,
}

impl NicConfig {
    /// The node that its network is on, if that is another node.
    pub fn peer(&self) -> Option<&str> {
        self.network.split_once('/').map(|(peer, _)| peer)
    }

    /// Its stages in words, those next to the guest first.
    pub fn stages(&self) -> Vec<String> {
        let filter = self.filter.as_ref().map(|rules| format!("filter of {} rules", rules.len()));
        let limit = self.limit.map(|limit| {
            let bytes = limit.bytes_per_s.map(|it| format!("{}/s", show_size(it.get())));
            let frames = limit.frames_per_s.map(|it| format!("{it} frames/s"));
            let parts: Vec<_> = bytes.into_iter().chain(frames).collect();
            format!("limit {}", parts.join(" "))
        });
        let mirror = self.mirror.as_ref().map(MirrorConfig::to_string);
        let meter = self.meter.then(|| "meter".to_owned());
        meter.into_iter().chain(mirror).chain(filter).chain(limit).collect()
    }
}

/// Where a mirror copies a nic's frames to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorConfig {
    /// Into a file.
    File {
        /// Its path. It is made anew.
        file: PathBuf,
        /// How long it may become.
        size_bytes: u64,
        /// How much of each frame is kept.
        frame_bytes: usize,
    },
    /// To the tap interface of this name.
    Tap(String),
}

impl fmt::Display for MirrorConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, .. } => write!(f, "mirror {}", file.display()),
            Self::Tap(interface) => write!(f, "mirror tap {interface}"),
        }
    }
}

impl Object for NicConfig {
    const KEY: &'static str = "nic";
    const NEEDS: &'static [&'static str] = &["peer", "network"];

    fn keys() -> &'static [SettingKey] {
        &NIC_KEYS
    }

    fn keys_within(key: &str) -> Option<Vec<&'static str>> {
        (key == "filter").then(|| names(&FILTER_KEYS))
    }

    fn inner_tables() -> Vec<KeyTable> {
        vec![
            KeyTable::new(
                "mirror",
                "[[nic]]\nsocket = \"a.sock\"\nnetwork = \"a\"\n\
                 mac = \"52:54:00:12:34:56\"\nmirror = { ? }",
                &MIRROR_KEYS,
            ),
            KeyTable::new(
                "limit of a nic",
                "[[nic]]\nsocket = \"a.sock\"\nnetwork = \"a\"\n\
                 mac = \"52:54:00:12:34:56\"\nlimit = { ? }",
                &LIMIT_KEYS,
            ),
            KeyTable::new(
                "filter",
                "[[nic]]\nsocket = \"a.sock\"\nnetwork = \"a\"\n\
                 mac = \"52:54:00:12:34:56\"\nfilter = { ? }",
                &FILTER_KEYS,
            ),
        ]
    }

    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self> {
        nic(value, directories)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>) {
        let mut macs: HashMap<(&str, Mac), &str> = HashMap::new();
        for nic in all {
            let object = format!("nic {:?}", nic.name);
            let note = |key: &str, text: String| reader.note(nic.lines.of(key), &object, text);
            if let Some(other) = macs.insert((&nic.network, nic.mac), &nic.name) {
                let text =
                    format!("\"mac\": nic {other:?} of the same network has the same address");
                note("mac", text);
            }
            if let Some(peer) = nic.peer() {
                remote_fits(reader, around, nic, peer);
            } else if nic.attachment_key.is_some() {
                let text = "\"attachment-key\": this node's own nics need none; it is for networks \
                            of a peer, \"peer/network\"";
                note("attachment-key", text.to_owned());
            }
            // A network that could not be read is missing here; it has had its message.
            let is_here = nic.peer().is_none();
            if around.is_whole && is_here && !around.has("network", &nic.network) {
                let text = format!(
                    "\"network\": there is no [[network]] {network:?}; add one with name = \
                     {network:?}",
                    network = nic.network
                );
                note("network", text);
            }
            if around.is_socket_of("disk", &nic.socket)
                || [around.control, around.fabric].contains(&nic.socket.as_path())
            {
                note(
                    "socket",
                    format!("\"socket\": another object has the same socket {:?}", nic.socket),
                );
            }
            socket_length(reader, &nic.socket, &object, nic.lines.of("socket"));
        }
        let mirrors = all.iter().filter_map(|nic| Some((nic, nic.mirror.as_ref()?)));
        let targets = mirrors.filter_map(|(nic, mirror)| match mirror {
            MirrorConfig::File { file, .. } => Some((file.to_str()?, &nic.lines)),
            MirrorConfig::Tap(interface) => Some((interface.as_str(), &nic.lines)),
        });
        unique(reader, "nic", "mirror", targets);
        let sockets = all.iter().filter_map(|nic| Some((nic.socket.to_str()?, &nic.lines)));
        unique(reader, "nic", "socket", sockets);
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }

    fn part_of(&self) -> Option<PartOf<'_>> {
        Some(PartOf { kind: "network", name: &self.network, said: "its network" })
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let different = [
            ("socket", self.socket != wanted.socket),
            ("role", self.role != wanted.role),
            ("socket-user", self.access.uid != wanted.access.uid),
            ("socket-group", self.access.gid != wanted.access.gid),
            ("socket-mode", self.access.mode != wanted.access.mode),
            ("network", self.network != wanted.network),
            ("attachment-key", self.attachment_key != wanted.attachment_key),
            ("mac", self.mac != wanted.mac),
            ("queues", self.pairs != wanted.pairs),
            ("mtu", self.mtu != wanted.mtu),
            ("vlan", self.vlans != wanted.vlans),
            ("isolated", self.isolated != wanted.isolated),
        ];
        // The two configurations without the keys that can be changed in place.
        let mut same = Self { lines: wanted.lines.clone(), ..self.clone() };
        (same.link, same.meter, same.limit) = (wanted.link, wanted.meter, wanted.limit);
        (same.mirror, same.filter) = (wanted.mirror.clone(), wanted.filter.clone());
        different_keys(&different, same != *wanted)
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        let different = [
            ("link", self.link != wanted.link),
            ("meter", self.meter != wanted.meter),
            ("mirror", self.mirror != wanted.mirror),
            ("limit", self.limit != wanted.limit),
            ("filter", self.filter != wanted.filter),
        ];
        let keys = different_keys(&different, false);
        if keys.is_empty() {
            return Vec::new();
        }
        let text = format!("change nic {:?}: {}", self.name, keys.join(", "));
        vec![InPlace { step: "stages", text }]
    }

    fn added_to(&self) -> String {
        format!(" to network {}", self.network)
    }
}
