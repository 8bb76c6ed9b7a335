//! Values of the file that several kinds of objects have: names, paths, sockets, chains.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use virtio::Access;
use volume::STAGES_MAX;
use volume::settings::{SettingKey, Settings};
use volume::stage::{STAGES, StageConfig, StageKind};

use crate::reader::{TableReader, Value, unknown};
use crate::sections::{Directories, NAME_BYTES_MAX, OBJECTS_MAX, Role};

/// A socket beside the disks' sockets, or where daemons of the system have theirs.
pub(crate) fn beside_sockets(name: &str, what: &str, directories: &Directories) -> PathBuf {
    let directory = directories.sockets.as_deref().unwrap_or(Path::new("/run/vrio"));
    directory.join(format!("{name}.{what}"))
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

/// A stage by its line of the table, `volume::stage::STAGES`.
fn stage(value: &Value<'_, '_>) -> Option<StageConfig> {
    if value.is_str() {
        let text = value.str()?;
        let names: Vec<_> = STAGES.iter().map(|kind| kind.name).collect();
        let problem = match volume::stage::kind(text).map(|kind| (kind.alone)()) {
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
    table: TableReader<'r, 'i>,
}

impl<'v, 'r, 'i> Section<'v, 'r, 'i> {
    /// The table that a value is; keys that are not among `keys` are noted.
    fn new(value: &'v Value<'r, 'i>, keys: &[SettingKey]) -> Option<Self> {
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
pub(crate) fn role(table: &TableReader<'_, '_>) -> Role {
    let roles = [("listen", Role::Listen), ("connect", Role::Connect)];
    table.get("role").and_then(|value| value.word(&roles)).unwrap_or_default()
}

/// The users that may connect to the socket of this device. They are numbers, since a running node
/// reads no user data base.
pub(crate) fn access(table: &TableReader<'_, '_>) -> Access {
    let number = |key: &str| {
        let number = table.get(key)?.integer(0..=u64::from(u32::MAX - 1))?;
        u32::try_from(number).ok()
    };
    let mode = table.get("socket-mode").and_then(|value| {
        let digits = value.str()?;
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
        if mode.is_none() {
            value.fail(format!(
                "{digits:?} is not a mode; write three octal digits, such as \
                               \"0660\""
            ));
        }
        mode
    });
    let access = Access { uid: number("socket-user"), gid: number("socket-group"), mode };
    if access != Access::default() && role(table) == Role::Connect {
        let text = "the VMM makes this socket and decides about its access; remove \
                    \"socket-user\", \"socket-group\" and \"socket-mode\"";
        table.fail("role", text.to_owned());
    }
    access
}

/// The name of a disk or nic; without the key, the name of its socket.
pub(crate) fn named_like_socket(
    table: &TableReader<'_, '_>,
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

/// Reads `[[key]]` objects. Their name, or without one their number, stands in messages.
pub(crate) fn objects<T>(
    file: &TableReader<'_, '_>,
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

/// The absolute path of a volume's file, inside one of the volumes' directories.
pub(crate) fn file_path(value: &Value<'_, '_>, directories: &Directories) -> Option<PathBuf> {
    let path = Path::new(value.str()?);
    let inside = |path: &Path| directories.volumes.iter().any(|home| path.starts_with(home));
    let Some(first) = directories.volumes.first() else {
        let text = "no directory for volumes is named; write [directories] volumes = \"..\"";
        value.fail(text.to_owned());
        return None;
    };
    let full = first.join(path);
    if path.as_os_str().is_empty() || has_parent(path) {
        value.fail(format!("{path:?} is not the name of a file in {first:?}"));
        return None;
    }
    if !inside(&full) {
        value.fail(format!(
            "{path:?} is outside the directories that \"volumes\" names ({}); put it there, or \
             add its directory: volumes = [\"..\", {:?}]",
            directories
                .volumes
                .iter()
                .map(|d| d.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
            full.parent().unwrap_or(&full),
        ));
        return None;
    }
    Some(full)
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
pub fn name_problem(text: &str) -> Option<String> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Some(format!("is no name: a name has from 1 to {NAME_BYTES_MAX} characters"));
    }
    if !text.bytes().all(letter) || !text.as_bytes()[0].is_ascii_alphanumeric() {
        let text = "is no name: a name has letters, digits, '-', '_' and '.', and begins with a \
                    letter or digit";
        return Some(text.to_owned());
    }
    None
}
