//! The description of each key of the configuration, in one place: `docs/configuration.md` has its
//! tables from here. A test asks the reader which keys it knows. So a key without a description is
//! refused, and a description of a key that is gone is refused, too. Kinds of objects, and the
//! stages, backends and uplinks that they have, describe themselves.

use crate::key_table::{KeyTable, SettingKey, key};
use crate::kinds::Kind;

/// Every table of the file: the node as a whole, its sections, the kinds of objects.
pub fn tables() -> Vec<KeyTable> {
    let kinds = Kind::all().flat_map(|kind| kind.row().manual());
    [whole()].into_iter().chain(sections()).chain(kinds).collect()
}

/// The keys of the file itself.
fn whole() -> KeyTable {
    let kinds = Kind::all().map(|kind| {
        let kind = kind.key();
        key(kind, format!("The tables [[[{kind}]]](#{kind}).").leak())
    });
    let link = key("link", "The section [[link]](#link), or one word: `link = \"xdp\"`.");
    let keys: Vec<_> = NODE_KEYS.iter().copied().chain(kinds).chain([link]).collect();
    KeyTable::new("the node", "?", &keys)
}

/// The sections of the file.
fn sections() -> [KeyTable; 6] {
    [
        KeyTable::new("[sidecores]", "[sidecores]\n?", SIDECORE_KEYS),
        KeyTable::new("[memory]", "[memory]\n?", MEMORY_KEYS),
        KeyTable::new("[directories]", "[directories]\n?", DIRECTORY_KEYS),
        KeyTable::new("[cluster]", "[cluster]\n?", CLUSTER_KEYS),
        KeyTable::new("[link]", "[link]\n?", LINK_KEYS),
        KeyTable::new("fault", "[link]\nfault = { ? }", FAULT_KEYS),
    ]
}

const NODE_KEYS: &[SettingKey] = &[
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
    key("cluster", "The section [[cluster]](#cluster)."),
];

const SIDECORE_KEYS: &[SettingKey] = &[
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
];

const MEMORY_KEYS: &[SettingKey] = &[
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
        "The most addresses that a front end takes. Default: `\"4TiB\"`. A front end that changes \
         its guest's memory has it mapped twice for a moment, so a guest of more than 2 TiB needs \
         more.",
    ),
    key(
        "front-end-mappings-max",
        "The most mappings that a front end takes. Default: 516: two tables of 256 regions, and \
         an inflight region and a dirty log, old and new.",
    ),
];

const DIRECTORY_KEYS: &[SettingKey] = &[
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
];

const CLUSTER_KEYS: &[SettingKey] = &[
    key(
        "directory",
        "The directory that `vrio node join` makes, with the place of the registry and the node's \
         certificate. Default: `/var/lib/vrio/NAME.cluster`.",
    ),
    key("name", "The node's name in the cluster. Default: the node's name."),
    key(
        "domain",
        "Where the node is, as `[\"rack=r1\", \"host=h7\"]`: kinds of places with a name each. \
         Nodes of one place fail together, and `vrio volume create --domain rack` puts copies into \
         different ones.",
    ),
    key(
        "pools",
        "The names of the pools that the cluster sees, `[\"fast\"]`. Default: all pools of the \
         node, also pools that are added later.",
    ),
    key(
        "volume-keys",
        "The directory with the keys of [encrypted volumes](cluster.md#encrypted-volumes) that the \
         cluster places: `alice.key` is the key `alice`. Default: `/etc/vrio/volume-keys`.",
    ),
];

const LINK_KEYS: &[SettingKey] = &[
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
];

const FAULT_KEYS: &[SettingKey] = &[
    key("loss", "The share of datagrams that are lost, from 0 to 1."),
    key("duplicate", "The share of datagrams that come twice."),
    key("reorder", "The share of datagrams that come late."),
    key("corrupt", "The share of datagrams whose bytes change."),
    key("seed", "The seed that decides which datagrams these are."),
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
            let mut known = known_to_the_reader(&table.sample);
            described.sort_unstable();
            known.sort_unstable();
            assert_eq!(known, described, "{}", table.table);
            for key in &table.keys {
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
            "docs/configuration.md differs from what the code says, first at {differs:?}; \
             run: VRIO_WRITE=1 cargo test -p config --lib manual"
        );
        let begins = page.matches("<!-- keys: ").count();
        assert_eq!(begins, tables().len(), "each table of the page is made from the code");
    }
}
