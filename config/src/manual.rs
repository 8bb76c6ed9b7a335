//! The description of each key of the configuration, in one place: `docs/configuration.md` has its
//! tables from here. A test asks the reader which keys it knows. So a key without a description is
//! refused, and a description of a key that is gone is refused, too. Stages, backends and uplinks
//! describe themselves.

use std::sync::LazyLock;

use net::uplink::UPLINKS;
use volume::backend::BACKENDS;
pub use volume::settings::Key;
use volume::stage::STAGES;

/// The keys of one table of the file.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The table, as the reference calls it.
    pub table: &'static str,
    /// A piece of a file with this table, in which `?` stands where its keys do.
    pub sample: &'static str,
    /// Each key.
    pub keys: &'static [Key],
}

impl Keys {
    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let rows = self.keys.iter().map(|key| format!("| `{}` | {} |\n", key.name, key.text));
        format!("| key | meaning |\n| --- | --- |\n{}", rows.collect::<String>())
    }
}

const fn key(name: &'static str, text: &'static str) -> Key {
    Key::new(name, text)
}

/// Every table of the file.
pub fn tables() -> impl Iterator<Item = Keys> {
    let of_others = [&*BACKEND_TABLE, &*NETWORK_TABLE];
    TABLES.iter().chain(&*STAGE_TABLES).chain(of_others).copied()
}

/// The tables of stages, as the stages describe themselves.
static STAGE_TABLES: LazyLock<Vec<Keys>> = LazyLock::new(|| {
    let with_keys = STAGES.iter().filter(|kind| !kind.keys.is_empty());
    let chain = |stage: &str| -> &'static str {
        let volume = "[[volume]]\nname = \"a\"\nbackend = { null = \"1GiB\" }\n";
        format!("{volume}chain = [{{ {stage} }}]").leak()
    };
    let keys = with_keys.clone().map(|kind| key(kind.name, kind.text)).collect::<Vec<_>>();
    let whole = Keys { table: "stage", sample: chain("?"), keys: keys.leak() };
    let each = with_keys.map(|kind| Keys {
        table: kind.table,
        sample: chain(&format!("{} = {{ ? }}", kind.name)),
        keys: kind.keys,
    });
    [whole].into_iter().chain(each).collect()
});

/// The table of backends, as the backends describe themselves.
static BACKEND_TABLE: LazyLock<Keys> = LazyLock::new(|| {
    let keys: Vec<_> = BACKENDS.iter().flat_map(|kind| kind.keys).copied().collect();
    let sample = "[[volume]]\nname = \"a\"\nbackend = { ? }";
    Keys { table: "backend", sample, keys: keys.leak() }
});

/// The table of networks, whose uplinks describe themselves.
static NETWORK_TABLE: LazyLock<Keys> = LazyLock::new(|| {
    let forms: Vec<_> = UPLINKS.iter().map(|kind| format!("`{}`", kind.form())).collect();
    let uplink = format!(
        "The way to other networks: {}; see [uplinks](#uplinks). Default: none, and guests only \
         reach each other.",
        forms.join(" or ")
    );
    let keys = vec![
        key("name", "The network's name, unique on the node."),
        key("uplink", uplink.leak()),
        key("allow", "The nodes whose nics may join the network, as for a volume. Default: none."),
        key(
            "remote",
            "Conditions for nics of other nodes: `{ vlans = [5, 6], isolated = true, limit = {..}, \
             filter = {..} }`.",
        ),
    ];
    Keys { table: "[[network]]", sample: "[[network]]\n?", keys: keys.leak() }
});

/// The tables that are described here.
const TABLES: &[Keys] = &[
    Keys {
        table: "the node",
        sample: "?",
        keys: &[
            key("name", "The node's name, as other nodes write it into `allow` and `[[peer]]`."),
            key(
                "listen",
                "The address and port at which other nodes reach this one, `\"10.0.0.9:4870\"`. A \
                 node that has only local disks needs none.",
            ),
            key(
                "shm",
                "A socket in the sockets' directory, `\"io1.shm\"`, at which nodes of this machine \
                 ask for shared memory. Only nodes of the same user may ask. `listen` is needed as \
                 well; a loopback address is enough.",
            ),
            key(
                "fabric",
                "The socket at which processes join a [domain](#domain): a name in the sockets' \
                 directory, or a whole path elsewhere. Default: `NAME.fabric` in the sockets' \
                 directory. The socket exists once there is a domain.",
            ),
            key(
                "key",
                "The file of this node's secret key. With it the node speaks only [sealed \
                 sessions](first-pair.md#trust-before-anything-else).",
            ),
            key(
                "trust",
                "`\"network\"`, instead of `key`: sessions are plain on any network. See \
                 [trust](first-pair.md#trust-before-anything-else).",
            ),
            key(
                "control",
                "The control socket. Default: `NAME.control` in the sockets' directory, or in \
                 `/run/vrio` where no such directory is named.",
            ),
            key(
                "metrics-listen",
                "The address at which Prometheus may ask for \
                 [metrics](operating.md#metrics), `\"127.0.0.1:9470\"`. Default: none.",
            ),
            key(
                "user",
                "The user that a node becomes after root has started it; see \
                 [privileges](operating.md#privileges).",
            ),
            key(
                "privileges",
                "`\"drop\"` (default): the node gives up rights that it does not need. `\"keep\"`: \
                 it keeps all rights, for a debugger.",
            ),
            key(
                "watchdog",
                "`\"report\"` (default): status, metrics and log name a sidecore that is \
                 [stuck](faults.md#a-sidecore-that-is-stuck). `\"restart\"`: the node stops its \
                 messages to the service manager until the sidecore runs again, and the service \
                 manager restarts the node after the unit's `WatchdogSec=`, or after 10 s.",
            ),
            key("memory", "The section [[memory]](#memory)."),
            key("sidecores", "The section [[sidecores]](#sidecores)."),
            key("directories", "The section [[directories]](#directories)."),
            key("volume", "The tables [[[volume]]](#volume)."),
            key("peer", "The tables [[[peer]]](#peer)."),
            key("disk", "The tables [[[disk]]](#disk)."),
            key("network", "The tables [[[network]]](#network)."),
            key("nic", "The tables [[[nic]]](#nic)."),
            key("domain", "The tables [[[domain]]](#domain)."),
            key("vf", "The tables [[[vf]]](#vf)."),
            key("link", "The section [[link]](#link), or one word: `link = \"xdp\"`."),
        ],
    },
    Keys {
        table: "[sidecores]",
        sample: "[sidecores]\n?",
        keys: &[
            key("cores", "The cores to poll on, one sidecore each: `[2, 3]`."),
            key("count", "Instead of `cores`: the number of sidecores, on any core. Default: 1."),
            key(
                "idle",
                "How a sidecore waits for work. `\"spin\"` polls for ever and takes a whole core: \
                 the shortest latency. `\"adaptive\"` (default) polls for a while, then sleeps \
                 until there is work; it also yields where other threads want its core. \
                 `\"sleep\"` sleeps at once: the classic back end, driven by notifications, for \
                 comparisons.",
            ),
            key(
                "min",
                "The least number of sidecores that guests' queues are on; see \
                 [steering](#steering). Default: all of them.",
            ),
            key(
                "max",
                "The greatest number of sidecores that guests' queues are on. Default: all of \
                 them.",
            ),
        ],
    },
    Keys {
        table: "[memory]",
        sample: "[memory]\n?",
        keys: &[
            key(
                "session-buffers",
                "The most memory that the bodies of messages to and from peers take on each \
                 sidecore, from 4MiB to 16GiB. Default: `\"256MiB\"`. The node takes it from the \
                 system as it is used, and keeps it. When it is full, peers wait: `pool_refused` \
                 of the sidecore counts that, and `sessions_calls_beyond_share` counts calls of a \
                 peer beyond its part ([why](decisions/047-shares.md)).",
            ),
            key(
                "huge-pages",
                "`\"auto\"` (default): this memory has huge pages where the system has them, \
                 reserved (`vm.nr_hugepages`) or transparent ones. `\"never\"`: it has none.",
            ),
            key(
                "guest-files",
                "The kinds of files that guests' memory may be in. `\"memory\"` (default): memory \
                 files (memfd), tmpfs, hugetlbfs and device-dax. `\"any\"`: any file system. A \
                 front end could then bring a file system that stalls a page fault (FUSE, a \
                 network file system), which stops a sidecore and all of its guests; allow it only \
                 where every front end is trusted.",
            ),
            key(
                "guest-addresses-max",
                "The most of the node's addresses that all front ends together take for guests' \
                 memory, from 1MiB to 112TiB. Default: `\"96TiB\"`. Once half of it is used, each \
                 front end has at most an eighth of the rest, so that some addresses are left for \
                 the next front end.",
            ),
            key(
                "guest-mappings-max",
                "The most mappings that all front ends together take, at most 32000, by the same \
                 rule as their addresses. Default: 16384. The limit of a process is \
                 `vm.max_map_count` (65530), and a mapping whose memory is lost becomes two.",
            ),
            key(
                "front-end-addresses-max",
                "The most addresses that a front end takes. Default: `\"4TiB\"`. A front end that \
                 changes its guest's memory has it mapped twice for a moment, so a guest of more \
                 than 2 TiB needs more.",
            ),
            key(
                "front-end-mappings-max",
                "The most mappings that a front end takes. Default: 516: two tables of 256 \
                 regions, and an inflight region and a dirty log, old and new.",
            ),
        ],
    },
    Keys {
        table: "[directories]",
        sample: "[directories]\n?",
        keys: &[
            key(
                "volumes",
                "The directories of volumes' files: one path or a list. The node opens no file \
                 outside of them.",
            ),
            key(
                "sockets",
                "The directory in which the node makes the sockets of disks and nics. The node \
                 makes the directory if it is missing.",
            ),
            key(
                "state",
                "The directory of the records of attachments; see [records](#records). Default: \
                 `.vrio` in the first of `volumes`.",
            ),
            key(
                "captures",
                "The directory in which the node makes the files of mirrors. The node makes the \
                 directory if it is missing, for its own user alone.",
            ),
        ],
    },
    Keys {
        table: "[[volume]]",
        sample: "[[volume]]\nname = \"a\"\nbackend = { null = \"1GiB\" }\n?",
        keys: &[
            key("name", "The volume's name."),
            key("backend", "The place of its blocks; see [backends](#backends)."),
            key(
                "durability",
                "`\"flush\"` (default): a guest's flush makes its writes durable. \
                 `\"write-through\"`: each write is durable when it completes.",
            ),
            key(
                "chain",
                "The [stages](#stages) that each request passes, first to last, at most 8.",
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
                "physical-block-size",
                "The size that the storage writes as a whole, which guests see: a power of two up \
                 to 64 KiB, for files only. Default: the size that the storage reports.",
            ),
            key(
                "optimal-io-size",
                "The storage's best size of requests, which guests see: a power of two, such as \
                 the stripe of a RAID. Default: guests see none.",
            ),
        ],
    },
    Keys {
        table: "allow",
        sample: "[[volume]]\nname = \"a\"\nbackend = { null = \"1GiB\" }\nallow = [{ ? }]",
        keys: &[
            key("node", "The name of the other node."),
            key(
                "key",
                "The public half of the attachment key that a disk or nic of that node must prove.",
            ),
        ],
    },
    Keys {
        table: "[[peer]]",
        sample: "[[peer]]\n?",
        keys: &[
            key("name", "The peer's name. A node that answers with another name is refused."),
            key(
                "address",
                "The address of the peer's `listen`, or `\"shm:/run/vrio/io1.shm\"` for a node of \
                 this machine that has this `shm` ([why](decisions/012-shared-memory.md)). A peer \
                 that has a key and only uses volumes of this node needs none.",
            ),
            key(
                "key",
                "The peer's public key, which `vrio key show` prints on its host. Needed when this \
                 node has a `key`.",
            ),
            key(
                "keys",
                "Instead of `key`, up to four: `[\"..\", { key = \"..\", expires = .. }]`.",
            ),
            key("expires", "The date at which `key` expires, for instance `2027-01-01T00:00:00Z`."),
        ],
    },
    Keys {
        table: "keys of a peer",
        sample: "[[peer]]\nname = \"a\"\nkeys = [{ ? }]",
        keys: &[
            key("key", "A public key."),
            key("expires", "The date at which this key expires. Default: never."),
        ],
    },
    Keys {
        table: "[[disk]]",
        sample: "[[disk]]\n?",
        keys: &[
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
                "`\"name\"` for a volume of this node, `\"peer/name\"` for a volume of another \
                 one.",
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
        ],
    },
    Keys {
        table: "when-lost",
        sample: "[[disk]]\nsocket = \"a.sock\"\nvolume = \"a\"\nwhen-lost = { ? }",
        keys: &[
            key("wait", "`\"forever\"`: requests wait until the volume is back."),
            key("error-after", "The time after which requests fail, such as `\"30s\"`."),
        ],
    },
    Keys {
        table: "remote",
        sample: "[[network]]\nname = \"a\"\nremote = { ? }",
        keys: &[
            key("vlans", "The VLANs that those nics are in. Default: the untagged segment only."),
            key("isolated", "`true`: those nics reach the uplink, and no isolated nic."),
            key("limit", "A rate for each of those nics, as `limit` of a nic."),
            key(
                "filter",
                "Rules for each of those nics, as `filter` of a nic; `sent` in a rule means frames \
                 that their guest sent.",
            ),
        ],
    },
    Keys {
        table: "[[nic]]",
        sample: "[[nic]]\n?",
        keys: &[
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
        ],
    },
    Keys {
        table: "mirror",
        sample: "[[nic]]\nsocket = \"a.sock\"\nnetwork = \"a\"\n\
                 mac = \"52:54:00:12:34:56\"\nmirror = { ? }",
        keys: &[
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
        ],
    },
    Keys {
        table: "limit of a nic",
        sample: "[[nic]]\nsocket = \"a.sock\"\nnetwork = \"a\"\n\
                 mac = \"52:54:00:12:34:56\"\nlimit = { ? }",
        keys: &[
            key("bytes-per-second", "The bytes in a second, such as `\"100MiB\"`; at least 4096."),
            key("frames-per-second", "The frames in a second."),
        ],
    },
    Keys {
        table: "filter",
        sample: "[[nic]]\nsocket = \"a.sock\"\nnetwork = \"a\"\n\
                 mac = \"52:54:00:12:34:56\"\nfilter = { ? }",
        keys: &[
            key(
                "default",
                "`\"allow\"` or `\"deny\"`: the decision about frames that no rule \
                            matches.",
            ),
            key("rules", "The rules in their order; the first rule that matches decides."),
        ],
    },
    Keys {
        table: "[[domain]]",
        sample: "[[domain]]\n?",
        keys: &[
            key("name", "The domain's name, unique on the node."),
            key(
                "key",
                "The absolute path of a file whose only line is the domain's key: 16 to 128 \
                 characters, the same for all members. The file's owner and group may read it, \
                 other users must not.",
            ),
            key(
                "endpoints-max",
                "The most endpoints at once, from 1 to 4032. Default: 256. MPI needs one for each \
                 process.",
            ),
            key(
                "peers",
                "The names of `[[peer]]`s whose nodes have a domain of the same name and key: \
                 messages travel between these domains. Both nodes must list each other. Default: \
                 none.",
            ),
        ],
    },
    Keys {
        table: "[[vf]]",
        sample: "[[vf]]\n?",
        keys: &[
            key("name", "The window's name. Default: the socket's name without the ending."),
            key("domain", "The domain."),
            key("socket", "The socket that the VM's QEMU connects to, in the sockets' directory."),
        ],
    },
    Keys {
        table: "[link]",
        sample: "[link]\n?",
        keys: &[
            key(
                "kind",
                "`\"udp\"` (default): datagrams go through the system's network stack. `\"xdp\"`: \
                 they go past it ([AF_XDP](#af_xdp)) where this is possible, else by UDP; the log \
                 has the reason. `\"auto\"`: they go past it only where the card itself reads and \
                 writes the node's memory (zero-copy) at each queue that is used, else by UDP; the \
                 log has the reason.",
            ),
            key(
                "fault",
                "Loses, delays and changes datagrams on purpose, for tests; its keys are \
                          below.",
            ),
        ],
    },
    Keys {
        table: "fault",
        sample: "[link]\nfault = { ? }",
        keys: &[
            key("loss", "The share of datagrams that are lost, from 0 to 1."),
            key("duplicate", "The share of datagrams that come twice."),
            key("reorder", "The share of datagrams that come late."),
            key("corrupt", "The share of datagrams whose bytes change."),
            key("seed", "The seed that decides which datagrams these are."),
        ],
    },
];

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::path::Path;

    use super::tables;
    use crate::Config;

    /// A key that no table has.
    const UNKNOWN: &str = "zzzzzzzz";

    /// The directories of paths, for tables that have some.
    const DIRECTORIES: &str = "[directories]\nvolumes = \"/v\"\nsockets = \"/s\"\n\
                               captures = \"/c\"\n";

    /// The keys that the reader names when it refuses an unknown one there.
    fn known_to_the_reader(sample: &str) -> Vec<String> {
        let directories = if sample.starts_with("[directories]") { "" } else { DIRECTORIES };
        let sample = sample.replace('?', &format!("{UNKNOWN} = 1"));
        let text = format!("name = \"a\"\n{sample}\n{directories}");
        let error = Config::parse(Path::new("a.toml"), &text).expect_err("a key is unknown");
        let refused = format!("unknown key {UNKNOWN:?}; known are ");
        let mut lists = error.problems.iter().filter_map(|it| it.text.strip_prefix(&refused));
        let list = lists.next().unwrap_or_else(|| panic!("{text}\n{error}"));
        list.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn each_key_that_is_read_is_described_and_no_other() {
        for table in tables() {
            let mut described: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
            let mut known = known_to_the_reader(table.sample);
            described.sort_unstable();
            known.sort_unstable();
            assert_eq!(known, described, "{}", table.table);
            for key in table.keys {
                let is_sentence = key.text.ends_with('.') && !key.text.contains('\n');
                assert!(is_sentence, "{}, {}: {:?}", table.table, key.name, key.text);
            }
        }
    }

    /// The page with its tables as they are made here. Each stands between two comments.
    fn made_anew(page: &str) -> String {
        let mut page = page.to_owned();
        for table in tables() {
            let begin = format!("<!-- keys: {} -->\n", table.table);
            let from = page.find(&begin);
            let from = from.unwrap_or_else(|| panic!("the page has no {begin}")) + begin.len();
            let to = page[from..].find("<!-- end -->").expect("each table ends") + from;
            page.replace_range(from..to, &format!("\n{}\n", table.markdown()));
        }
        page
    }

    /// `VRIO_WRITE=1 cargo test -p config --lib manual` writes the page.
    #[test]
    fn the_reference_is_what_the_code_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let page = fs::read_to_string(&path).expect("the page is there");
        let anew = made_anew(&page);
        if env::var_os("VRIO_WRITE").is_some() {
            fs::write(&path, &anew).expect("the page can be written");
        }
        let differs = anew.lines().zip(page.lines()).find(|(new, old)| new != old);
        assert!(
            anew == page,
            "docs/configuration.md differs from config/src/manual.rs, first at {differs:?}; \
             run: VRIO_WRITE=1 cargo test -p config --lib manual"
        );
        let begins = page.matches("<!-- keys: ").count();
        assert_eq!(begins, tables().count(), "each table of the page is made from the code");
    }
}
