//! From a TOML document to a configuration, section by section.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use sidecore::Idle;
use toml::Spanned;
use toml::de::DeTable;
use virtio::{GuestFiles, MemoryRules};
use volume::settings::show_size;

use crate::config::Config;
use crate::kinds::{Kind, ObjectConfigs, domain};
use crate::reader::{Reader, TableReader, Value};
use crate::sections::{
    ClusterConfig, Directories, FaultConfig, LinkConfig, LinkKind, MemoryConfig, Privileges,
    SIDECORES_MAX, Sidecores, Trust, Watchdog,
};
use crate::values::{absolute_path, address, beside_sockets, name, name_problem, socket_path};

/// The sizes of a pool that the transport takes: at least a large request for each share, at most
/// the limit of its tables.
const SESSION_BUFFERS_BYTES: RangeInclusive<u64> = 4 << 20..=16 << 30;

/// The part of a process's addresses, 128 TiB, that front ends may map: at least enough for the
/// smallest guest, at most so much that the node has some left for itself.
const GUEST_ADDRESSES_BYTES: RangeInclusive<u64> = 1 << 20..=112 << 40;

/// The number of mappings of front ends: at most half of the limit that Linux gives a process
/// (`vm.max_map_count`, 65,530), since a mapping becomes two when memory in it is lost.
const GUEST_MAPPINGS: RangeInclusive<u64> = 1..=32_000;

const FILE_KEYS: [&str; 15] = [
    "name",
    "listen",
    "shm",
    "fabric",
    "key",
    "trust",
    "control",
    "metrics-listen",
    "user",
    "privileges",
    "watchdog",
    "memory",
    "sidecores",
    "directories",
    "cluster",
];

/// Where a node has its cluster's directory: the units let nodes write below it.
const CLUSTER_HOME: &str = "/var/lib/vrio";

/// Where keys of placed volumes are, without a word of the file.
const VOLUME_KEYS_HOME: &str = "/etc/vrio/volume-keys";

const CLUSTER_KEYS: [&str; 5] = ["directory", "name", "pools", "volume-keys", "domain"];

/// The table of the link, which comes after those of the objects.
const LINK_KEY: &str = "link";

/// Reads the whole file. `None` when a key is missing without which nothing else can be read; every
/// problem has been noted by then.
pub(crate) fn document(
    reader: &Reader<'_>,
    path: &Path,
    document: &Spanned<DeTable<'_>>,
) -> Option<Config> {
    let tables = Kind::all().map(Kind::key).chain([LINK_KEY]);
    let keys: Vec<_> = FILE_KEYS.into_iter().chain(tables).collect();
    let file = TableReader::new(reader, document.get_ref(), &(0..0), "", &keys);
    let name = file.require("name", "name = \"io1\"").and_then(|value| name(&value));
    let listen = file.get("listen").and_then(|value| address(&value));
    let directories = directories(&file);
    let mut objects = ObjectConfigs::default();
    Kind::all().for_each(|kind| kind.row().read(&file, &directories, &mut objects));
    let trust = file.get("trust").and_then(|value| value.word(&[("network", Trust::Network)]));
    let name = name?;
    let key = file.get("key").and_then(|value| absolute_path(&value));
    let control = file.get("control").and_then(|value| absolute_path(&value));
    let shm = file.get("shm").and_then(|value| socket_path(&value, &directories));
    let fabric = domain::socket(&file, &name, &directories);
    let metrics_listen = file.get("metrics-listen").and_then(|value| address(&value));
    Some(Config {
        path: path.to_owned(),
        listen,
        shm,
        key,
        trust: trust.unwrap_or_default(),
        control: control.unwrap_or_else(|| beside_sockets(&name, "control", &directories)),
        metrics_listen,
        user: file.get("user").and_then(|value| self::name(&value)),
        privileges: privileges(&file),
        watchdog: watchdog(&file),
        memory: memory(&file),
        sidecores: sidecores(&file),
        link: link(&file),
        cluster: cluster(&file, &name),
        directories,
        objects,
        fabric,
        lines: file.lines.clone(),
        name,
    })
}

fn privileges(file: &TableReader<'_, '_>) -> Privileges {
    let words = [("drop", Privileges::Drop), ("keep", Privileges::Keep)];
    let privileges = file.get("privileges").and_then(|value| value.word(&words));
    if privileges == Some(Privileges::Keep) && file.get("user").is_some() {
        let text = "\"keep\" means that the node keeps the user that started it, and \"user\" that \
                    it changes the user; keep one of the two";
        file.fail("privileges", text.to_owned());
    }
    privileges.unwrap_or_default()
}

fn watchdog(file: &TableReader<'_, '_>) -> Watchdog {
    let words = [("report", Watchdog::Report), ("restart", Watchdog::Restart)];
    file.get("watchdog").and_then(|value| value.word(&words)).unwrap_or_default()
}

fn memory(file: &TableReader<'_, '_>) -> MemoryConfig {
    let mut memory = MemoryConfig::default();
    let keys = [
        "session-buffers",
        "huge-pages",
        "guest-files",
        "guest-addresses-max",
        "guest-mappings-max",
        "front-end-addresses-max",
        "front-end-mappings-max",
    ];
    let Some(table) = section(file, "memory", &keys) else { return memory };
    memory.guests = guests(&table);
    if let Some(value) = table.get("session-buffers")
        && let Some(bytes) = value.size_bytes()
    {
        if !SESSION_BUFFERS_BYTES.contains(&bytes) {
            let [least, most] = [SESSION_BUFFERS_BYTES.start(), SESSION_BUFFERS_BYTES.end()];
            let (least, most) = (show_size(*least), show_size(*most));
            value.fail(format!("a sidecore's buffers take from {least} to {most}"));
        }
        memory.session_buffers_bytes = bytes;
    }
    let words = [("auto", true), ("never", false)];
    if let Some(huge_pages) = table.get("huge-pages").and_then(|value| value.word(&words)) {
        memory.huge_pages = huge_pages;
    }
    memory
}

/// The kinds of files that guests' memory may be in, and its limits.
fn guests(table: &TableReader<'_, '_>) -> MemoryRules {
    let mut rules = MemoryRules::DEFAULT;
    let words = [("memory", GuestFiles::Memory), ("any", GuestFiles::Any)];
    if let Some(files) = table.get("guest-files").and_then(|value| value.word(&words)) {
        rules.files = files;
    }
    let limits = [("guest", &mut rules.node), ("front-end", &mut rules.front_end)];
    for (whose, limits) in limits {
        if let Some(value) = table.get(&format!("{whose}-addresses-max"))
            && let Some(bytes) = value.size_bytes()
        {
            if !GUEST_ADDRESSES_BYTES.contains(&bytes) {
                let [least, most] = [GUEST_ADDRESSES_BYTES.start(), GUEST_ADDRESSES_BYTES.end()];
                let (least, most) = (show_size(*least), show_size(*most));
                value.fail(format!("from {least} to {most}, for a process has 128TiB"));
            }
            limits.addresses_bytes_max = bytes;
        }
        let mappings = table.get(&format!("{whose}-mappings-max"));
        if let Some(count) = mappings.and_then(|value| value.integer(GUEST_MAPPINGS)) {
            limits.mappings_max = count;
        }
    }
    rules
}

fn sidecores(file: &TableReader<'_, '_>) -> Sidecores {
    let mut sidecores = Sidecores::all(vec![None], Idle::default());
    let Some(table) = section(file, "sidecores", &["cores", "count", "idle", "min", "max"]) else {
        return sidecores;
    };
    let idle = [("spin", Idle::Spin), ("adaptive", Idle::Adaptive), ("sleep", Idle::Sleep)];
    if let Some(idle) = table.get("idle").and_then(|value| value.word(&idle)) {
        sidecores.idle = idle;
    }
    let count = table.get("count").and_then(|value| value.integer(1..=SIDECORES_MAX as u64));
    match (table.get("cores"), count) {
        (Some(_), Some(_)) => {
            let text = "\"count\" is for sidecores that are not pinned, and \"cores\" pins them; \
                        keep one of the two";
            table.fail("count", text.to_owned());
        }
        (Some(value), None) => {
            if let Some(cores) = cores(&value) {
                sidecores.cores = cores.into_iter().map(Some).collect();
            }
        }
        (None, Some(count)) => sidecores.cores = vec![None; count as usize],
        (None, None) => {}
    }
    let (min, max) = active(&table, sidecores.cores.len());
    Sidecores { min, max, ..sidecores }
}

/// How many of `count` sidecores have queues, at least and at most.
fn active(table: &TableReader<'_, '_>, count: usize) -> (usize, usize) {
    let of = |key: &str| {
        let value = table.get(key)?;
        let number = value.integer(1..=SIDECORES_MAX as u64)? as usize;
        if number > count {
            value.fail(format!(
                "{number} sidecores are more than the node has ({count}); raise \"count\" or name \
                 more \"cores\""
            ));
            return None;
        }
        Some(number)
    };
    let max = of("max").unwrap_or(count);
    let min = of("min").unwrap_or(max);
    if min > max {
        let text = format!("\"min\" ({min}) is more than \"max\" ({max}); swap them");
        table.fail("min", text);
        return (max, max);
    }
    (min, max)
}

fn cores(value: &Value<'_, '_>) -> Option<Vec<usize>> {
    let values = value.array()?;
    if values.is_empty() || values.len() > SIDECORES_MAX {
        value.fail(format!("name from 1 to {SIDECORES_MAX} cores, for instance [0]"));
        return None;
    }
    let mut cores: Vec<usize> = Vec::new();
    for entry in values {
        let core = entry.integer(0..=4095)? as usize;
        if cores.contains(&core) {
            entry.fail(format!("core {core} is named twice; a core carries one sidecore"));
        }
        cores.push(core);
    }
    Some(cores)
}

fn directories(file: &TableReader<'_, '_>) -> Directories {
    let mut directories = Directories::default();
    let Some(table) = section(file, "directories", &["volumes", "sockets", "state", "captures"])
    else {
        return directories;
    };
    if let Some(value) = table.get("volumes") {
        let values = if value.is_array() { value.array().unwrap_or_default() } else { vec![value] };
        directories.volumes = values.iter().filter_map(absolute_path).collect();
    }
    directories.sockets = table.get("sockets").and_then(|value| absolute_path(&value));
    directories.state = table.get("state").and_then(|value| absolute_path(&value));
    directories.captures = table.get("captures").and_then(|value| absolute_path(&value));
    if directories.state.is_none() {
        directories.state = directories.volumes.first().map(|first| first.join(".vrio"));
    }
    directories
}

fn cluster(file: &TableReader<'_, '_>, node: &str) -> Option<ClusterConfig> {
    let table = section(file, "cluster", &CLUSTER_KEYS)?;
    let name = table.get("name").and_then(|value| name(&value)).unwrap_or_else(|| node.to_owned());
    let pools = table.get("pools").and_then(|value| value.array());
    let pools = pools.map(|all| all.iter().filter_map(self::name).collect());
    let directory = table.get("directory").and_then(|value| absolute_path(&value));
    let default = || Path::new(CLUSTER_HOME).join(format!("{node}.cluster"));
    let volume_keys = table.get("volume-keys").and_then(|value| absolute_path(&value));
    let volume_keys = volume_keys.unwrap_or_else(|| PathBuf::from(VOLUME_KEYS_HOME));
    let mut domain = BTreeMap::new();
    for value in table.get("domain").and_then(|value| value.array()).unwrap_or_default() {
        let Some(text) = value.str() else { continue };
        let place = text.split_once('=');
        match place.filter(|(kind, at)| name_problem(kind).or(name_problem(at)).is_none()) {
            None => value.fail(format!("{text:?} is no place; write for instance \"rack=r1\"")),
            Some((kind, at)) => {
                if domain.insert(kind.to_owned(), at.to_owned()).is_some() {
                    value.fail(format!("{kind:?} is in the list twice; a node is in one of each"));
                }
            }
        }
    }
    let directory = directory.unwrap_or_else(default);
    Some(ClusterConfig { directory, name, pools, volume_keys, domain })
}

fn link(file: &TableReader<'_, '_>) -> LinkConfig {
    let kinds = [("udp", LinkKind::Udp), ("xdp", LinkKind::Xdp), ("auto", LinkKind::Auto)];
    // One word is enough where only the kind is given.
    if let Some(word) = file.get("link").filter(|value| !value.is_table()) {
        return LinkConfig { kind: word.word(&kinds).unwrap_or_default(), fault: None };
    }
    let table = section(file, "link", &["kind", "fault"]);
    let kind = table.as_ref().and_then(|table| table.get("kind"));
    let kind = kind.and_then(|value| value.word(&kinds)).unwrap_or_default();
    let fault = table.and_then(|table| table.get("fault"));
    let keys = ["loss", "duplicate", "reorder", "corrupt", "seed"];
    let fault = fault.and_then(|value| value.table(&keys)).map(|table| {
        let share = |key| table.get(key).and_then(|value| value.share()).unwrap_or(0.0);
        let seed = table.get("seed").and_then(|value| value.integer(0..=i64::MAX as u64));
        FaultConfig {
            loss: share("loss"),
            duplicate: share("duplicate"),
            reorder: share("reorder"),
            corrupt: share("corrupt"),
            seed: seed.unwrap_or(0),
        }
    });
    LinkConfig { kind, fault }
}

/// A table that may be left out.
fn section<'r, 'i>(
    file: &TableReader<'r, 'i>,
    key: &str,
    known: &[&str],
) -> Option<TableReader<'r, 'i>> {
    file.get(key)?.named(format!("[{key}]")).table(known)
}
