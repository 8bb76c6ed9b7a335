//! From TOML tables to the configuration's types, section by section.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use ::volume::STAGES_MAX;
use ::volume::settings::{Key, Settings};
use ::volume::stage::{STAGES, StageKind};
use sidecore::Idle;
use toml::Spanned;
use toml::de::DeTable;
use virtio::{Access, GuestFiles, MemoryRules};

use super::object::Resize;
use super::reader::{Reader, Table, Value, unknown};
use super::{
    Config, Directories, FaultConfig, LinkConfig, LinkKind, Memory, NAME_BYTES_MAX, OBJECTS_MAX,
    Privileges, Role, SIDECORES_MAX, Sidecores, StageConfig, Trust, Watchdog, show_size,
};
use crate::kinds::{Kind, ObjectConfigs, domain, volume};

/// The sizes of a pool that the transport takes: at least a large request for each share, at most
/// the limit of its tables.
const SESSION_BUFFERS_BYTES: RangeInclusive<u64> = 4 << 20..=16 << 30;

/// The part of a process's addresses, 128 TiB, that front ends may map: at least enough for the
/// smallest guest, at most so much that the node has some left for itself.
const GUEST_ADDRESSES_BYTES: RangeInclusive<u64> = 1 << 20..=112 << 40;

/// The number of mappings of front ends: at most half of the limit that Linux gives a process
/// (`vm.max_map_count`, 65,530), since a mapping becomes two when memory in it is lost.
const GUEST_MAPPINGS: RangeInclusive<u64> = 1..=32_000;

const FILE_KEYS: [&str; 14] = [
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
];

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
    let file = Table::new(reader, document.get_ref(), &(0..0), "", &keys);
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
        directories,
        objects,
        fabric,
        lines: file.lines.clone(),
        name,
    })
}

/// The `chain` of a document that has nothing else.
pub(crate) fn chain_alone(
    reader: &Reader<'_>,
    document: &Spanned<DeTable<'_>>,
) -> Option<Vec<StageConfig>> {
    chain(&alone(reader, document, &["chain"]).get("chain")?)
}

/// A request for another size.
pub(crate) fn resize(reader: &Reader<'_>, document: &Spanned<DeTable<'_>>) -> Option<Resize> {
    let table = Table::new(reader, document.get_ref(), &(0..0), "", &["size", "shrink"]);
    let shrink = table.get("shrink").and_then(|value| value.bool()).unwrap_or(false);
    let size_bytes = volume::size_of_volume(&table.require("size", "size = \"20GiB\"")?)?;
    Some(Resize { size_bytes, shrink })
}

/// A document that has only these keys.
pub(crate) fn alone<'r, 'i>(
    reader: &'r Reader<'i>,
    document: &'r Spanned<DeTable<'i>>,
    keys: &[&str],
) -> Table<'r, 'i> {
    Table::new(reader, document.get_ref(), &(0..0), "", keys)
}

/// A socket beside the disks' sockets, or where daemons of the system have theirs.
pub(crate) fn beside_sockets(name: &str, what: &str, directories: &Directories) -> PathBuf {
    let directory = directories.sockets.as_deref().unwrap_or(Path::new("/run/vrio"));
    directory.join(format!("{name}.{what}"))
}

fn privileges(file: &Table<'_, '_>) -> Privileges {
    let words = [("drop", Privileges::Drop), ("keep", Privileges::Keep)];
    let privileges = file.get("privileges").and_then(|value| value.word(&words));
    if privileges == Some(Privileges::Keep) && file.get("user").is_some() {
        let text = "\"keep\" means that the node stays what it was started as, and \"user\" that \
                    it becomes another; keep one of the two";
        file.fail("privileges", text.to_owned());
    }
    privileges.unwrap_or_default()
}

fn watchdog(file: &Table<'_, '_>) -> Watchdog {
    let words = [("report", Watchdog::Report), ("restart", Watchdog::Restart)];
    file.get("watchdog").and_then(|value| value.word(&words)).unwrap_or_default()
}

fn memory(file: &Table<'_, '_>) -> Memory {
    let mut memory = Memory::default();
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
fn guests(table: &Table<'_, '_>) -> MemoryRules {
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

fn sidecores(file: &Table<'_, '_>) -> Sidecores {
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
fn active(table: &Table<'_, '_>, count: usize) -> (usize, usize) {
    let of = |key: &str| {
        let value = table.get(key)?;
        let number = value.integer(1..=SIDECORES_MAX as u64)? as usize;
        if number > count {
            value.fail(format!(
                "{number} sidecores are more than there are ({count}); raise \"count\" or name \
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

fn directories(file: &Table<'_, '_>) -> Directories {
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

fn link(file: &Table<'_, '_>) -> LinkConfig {
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

pub(crate) fn has_parent(path: &Path) -> bool {
    path.components().any(|part| matches!(part, Component::ParentDir))
}

pub(crate) fn chain(value: &Value<'_, '_>) -> Option<Vec<StageConfig>> {
    let values = value.array()?;
    if values.len() > STAGES_MAX {
        value.fail(format!("{} stages are too many; at most {STAGES_MAX}", values.len()));
    }
    let stages: Vec<_> = values.iter().filter_map(stage).collect();
    for kind in STAGES {
        let count = stages.iter().filter(|stage| stage.kind() == kind).count();
        if let Some(text) = kind.twice.filter(|_| count > 1) {
            value.fail(text.to_owned());
        }
    }
    Some(stages)
}

/// A stage by its line of the table, `::volume::stage::STAGES`.
fn stage(value: &Value<'_, '_>) -> Option<StageConfig> {
    if value.is_str() {
        let text = value.str()?;
        let names: Vec<_> = STAGES.iter().map(|kind| kind.name).collect();
        let problem = match ::volume::stage::kind(text).map(|kind| (kind.alone)()) {
            Some(Ok(stage)) => return Some(stage),
            Some(Err(problem)) => problem.to_owned(),
            None => unknown("stage", text, &names),
        };
        value.fail(problem);
        return None;
    }
    if !value.is_table() {
        let forms: Vec<_> = STAGES.iter().map(form).collect();
        let (last, others) = forms.split_last().expect("there are stages");
        value.fail(format!("a stage is {} or {last}", others.join(", ")));
        return None;
    }
    let with_keys: Vec<_> = STAGES.iter().filter(|kind| !kind.keys.is_empty()).collect();
    let names: Vec<_> = with_keys.iter().map(|kind| kind.name).collect();
    let table = value.table(&names)?;
    let given = with_keys.into_iter().filter_map(|kind| Some((kind, table.get(kind.name)?)));
    let given: Vec<_> = given.collect();
    match &given[..] {
        [] => None,
        [(kind, value)] => (kind.read)(&Section::new(value, kind.keys)?),
        several => {
            let one = |(kind, _): &(&StageKind<_>, _)| format!("{{ {} = .. }}", kind.name);
            let each: Vec<_> = several.iter().map(one).collect();
            value.fail(format!("each stage is a table of its own: [{}]", each.join(", ")));
            None
        }
    }
}

/// The form in which a stage is written.
fn form(kind: &StageKind<StageConfig>) -> String {
    let name = kind.name;
    if kind.keys.is_empty() { format!("{name:?}") } else { format!("{{ {name} = {{ .. }} }}") }
}

/// A table of the file, as a stage or a backend reads it.
pub(crate) struct Section<'v, 'r, 'i> {
    value: &'v Value<'r, 'i>,
    table: Table<'r, 'i>,
}

impl<'v, 'r, 'i> Section<'v, 'r, 'i> {
    /// The table that a value is; keys that are not among `keys` are noted.
    fn new(value: &'v Value<'r, 'i>, keys: &[Key]) -> Option<Self> {
        let names: Vec<_> = keys.iter().map(|key| key.name).collect();
        Self::of(value, &names)
    }

    /// The same, with the names of the keys.
    pub(crate) fn of(value: &'v Value<'r, 'i>, names: &[&str]) -> Option<Self> {
        Some(Self { value, table: value.table(names)? })
    }

    /// The value of a key, if it is given.
    pub(crate) fn value_of(&self, key: &str) -> Option<Value<'r, 'i>> {
        self.table.get(key)
    }
}

impl Settings for Section<'_, '_, '_> {
    fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        self.table.get(key)?.integer(range)
    }

    fn bytes(&self, key: &str) -> Option<u64> {
        self.table.get(key)?.size_bytes()
    }

    fn bytes_or_integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.table.get(key)?;
        if value.is_str() { value.size_bytes() } else { value.integer(range) }
    }

    fn duration_ns(&self, key: &str) -> Option<u64> {
        self.table.get(key)?.duration_ns()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.table.get(key)?.bool()
    }

    fn text(&self, key: &str) -> Option<String> {
        self.table.get(key)?.str().map(str::to_owned)
    }

    fn path(&self, key: &str, example: &str) -> Option<PathBuf> {
        absolute_path(&self.table.require(key, example)?)
    }

    fn fail_key(&self, key: &str, text: String) {
        self.table.fail(key, text);
    }

    fn fail(&self, text: String) {
        self.value.fail(text);
    }
}

/// The process that makes the socket of this device.
pub(crate) fn role(table: &Table<'_, '_>) -> Role {
    let roles = [("listen", Role::Listen), ("connect", Role::Connect)];
    table.get("role").and_then(|value| value.word(&roles)).unwrap_or_default()
}

/// The users that may connect to the socket of this device. They are numbers, since a running node
/// reads no user data base.
pub(crate) fn access(table: &Table<'_, '_>) -> Access {
    let number = |key: &str| {
        let number = table.get(key)?.integer(0..=u64::from(u32::MAX - 1))?;
        u32::try_from(number).ok()
    };
    let mode = table.get("socket-mode").and_then(|value| {
        let digits = value.str()?;
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
        if mode.is_none() {
            value
                .fail(format!("{digits:?} is no mode; write three octal digits, such as \"0660\""));
        }
        mode
    });
    let access = Access { uid: number("socket-user"), gid: number("socket-group"), mode };
    if access != Access::default() && role(table) == Role::Connect {
        let text = "the VMM makes this socket, and says whom it is for; take \"socket-user\", \
                    \"socket-group\" and \"socket-mode\" out";
        table.fail("role", text.to_owned());
    }
    access
}

/// The name of a disk or nic; without the key, the name of its socket.
pub(crate) fn named_like_socket(
    table: &Table<'_, '_>,
    socket: Option<&Path>,
    kind: &str,
) -> Option<String> {
    if let Some(value) = table.get("name") {
        return name(&value);
    }
    let socket = socket?;
    let stem = socket.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if let Some(problem) = name_problem(stem) {
        let text = format!("{stem:?} {problem}; give the {kind} a name = \"..\" of its own");
        table.fail("socket", text);
        return None;
    }
    Some(stem.to_owned())
}

pub(crate) fn socket_path(value: &Value<'_, '_>, directories: &Directories) -> Option<PathBuf> {
    let path = Path::new(value.str()?);
    let Some(home) = &directories.sockets else {
        let text = "no directory for sockets is named; write [directories] sockets = \"/run/vrio\"";
        value.fail(text.to_owned());
        return None;
    };
    let full = inside(home, path);
    if full.is_none() {
        value.fail(format!("{path:?} is not inside the sockets' directory {home:?}"));
    }
    full
}

/// A mirror's file.
pub(crate) fn capture_path(value: &Value<'_, '_>, directories: &Directories) -> Option<PathBuf> {
    let path = Path::new(value.str()?);
    let Some(home) = &directories.captures else {
        let text = "no directory for mirrors' files is named; write [directories] captures = \
                    \"/var/lib/vrio/captures\"";
        value.fail(text.to_owned());
        return None;
    };
    let full = inside(home, path);
    if full.is_none() {
        value.fail(format!("{path:?} is not inside the directory \"captures\" {home:?}"));
    }
    full
}

/// A path below a directory, relative or whole.
fn inside(home: &Path, path: &Path) -> Option<PathBuf> {
    let full = home.join(path);
    let is_inside = !path.as_os_str().is_empty() && !has_parent(path) && full.starts_with(home);
    (is_inside && full != home).then_some(full)
}

/// A table that may be left out.
fn section<'r, 'i>(file: &Table<'r, 'i>, key: &str, known: &[&str]) -> Option<Table<'r, 'i>> {
    file.get(key)?.named(format!("[{key}]")).table(known)
}

/// Reads `[[key]]` objects. Their name, or without one their number, stands in messages.
pub(crate) fn objects<T>(
    file: &Table<'_, '_>,
    key: &str,
    read: impl Fn(Value<'_, '_>) -> Option<T>,
) -> Vec<T> {
    let Some(list) = file.get(key) else { return Vec::new() };
    if list.is_table() {
        list.fail(format!("write [[{key}]] in double brackets; there may be several"));
        return Vec::new();
    }
    let values = list.array().unwrap_or_default();
    if values.len() > OBJECTS_MAX {
        list.fail(format!("{} are too many; at most {OBJECTS_MAX}", values.len()));
        return Vec::new();
    }
    let named = values.into_iter().enumerate().map(|(index, value)| {
        let label = value.label_key(&["name", "socket"]);
        let label = label.map_or_else(|| format!("{}", index + 1), |name| format!("{name:?}"));
        value.named(format!("{key} {label}"))
    });
    named.filter_map(read).collect()
}

pub(crate) fn absolute_path(value: &Value<'_, '_>) -> Option<PathBuf> {
    absolute(value, value.str()?)
}

/// The path that `text`, a part of `value`, names.
pub(crate) fn absolute(value: &Value<'_, '_>, text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    if !path.is_absolute() || has_parent(path) {
        value.fail(format!("{path:?} is not an absolute path, such as \"/var/lib/vrio\""));
        return None;
    }
    Some(path.to_owned())
}

pub(crate) fn address(value: &Value<'_, '_>) -> Option<SocketAddr> {
    let text = value.str()?;
    let address = text.parse().ok();
    if address.is_none() {
        value.fail(format!(
            "{text:?} is not an address with a port; write for instance \"10.0.0.9:4870\" or \
             \"[fd00::9]:4870\" (names are not looked up)"
        ));
    }
    address
}

pub(crate) fn name(value: &Value<'_, '_>) -> Option<String> {
    let text = value.str()?;
    if let Some(problem) = name_problem(text) {
        value.fail(format!("{text:?} {problem}"));
        return None;
    }
    Some(text.to_owned())
}

/// Why a text is not a name. Names appear in paths, records and addresses of the form peer/volume.
pub(crate) fn name_problem(text: &str) -> Option<String> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Some(format!("is no name: it has to have from 1 to {NAME_BYTES_MAX} characters"));
    }
    if !text.bytes().all(letter) || !text.as_bytes()[0].is_ascii_alphanumeric() {
        let text = "is no name: only letters, digits, '-', '_' and '.', a letter or digit first";
        return Some(text.to_owned());
    }
    None
}
