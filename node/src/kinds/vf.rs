//! `[[vf]]`: a virtual machine's window into a domain.

use toml::Spanned;
use toml::de::DeTable;

use crate::config::read::{alone, name, named_like_socket, objects, socket_path};
use crate::config::reader::{Reader, Table, Value};
use crate::config::{Config, Directories, VfConfig, check};

pub(crate) const VF_KEYS: [&str; 3] = ["name", "domain", "socket"];

pub(crate) fn vfs(file: &Table<'_, '_>, directories: &Directories) -> Vec<VfConfig> {
    objects(file, "vf", |value| vf(&value, directories))
}

/// The `[[vf]]`s of a document that has nothing else.
pub(crate) fn vfs_alone(
    reader: &Reader<'_>,
    document: &Spanned<DeTable<'_>>,
    directories: &Directories,
) -> Vec<VfConfig> {
    vfs(&alone(reader, document, &["vf"]), directories)
}

fn vf(value: &Value<'_, '_>, directories: &Directories) -> Option<VfConfig> {
    let table = value.table(&VF_KEYS)?;
    let socket = table.require("socket", "socket = \"vm1.vf\"");
    let socket = socket.and_then(|value| socket_path(&value, directories));
    let name_of_vf = named_like_socket(&table, socket.as_deref(), "vf");
    let domain = table.require("domain", "domain = \"science\"").and_then(|value| name(&value));
    let lines = table.lines.clone();
    Some(VfConfig { name: name_of_vf?, domain: domain?, socket: socket?, lines })
}

/// What does not fit together.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config, whole: bool) {
    let names = config.vfs.iter().map(|vf| (vf.name.as_str(), &vf.lines));
    check::unique(reader, "vf", "name", names);
    let sockets = config.vfs.iter().filter_map(|vf| Some((vf.socket.to_str()?, &vf.lines)));
    check::unique(reader, "vf", "socket", sockets);
    for vf in &config.vfs {
        let object = format!("vf {:?}", vf.name);
        let note = |key: &str, text: String| reader.note(vf.lines.of(key), &object, text);
        if whole && config.domains.iter().all(|domain| domain.name != vf.domain) {
            let domain = &vf.domain;
            note(
                "domain",
                format!(
                    "\"domain\": this node has no domain {domain:?}; add [[domain]] name = \
                     {domain:?}, key = \"..\""
                ),
            );
        }
        let is_taken = config.disks.iter().any(|disk| disk.socket == vf.socket)
            || config.nics.iter().any(|nic| nic.socket == vf.socket)
            || [&config.control, &config.fabric].contains(&&vf.socket)
            || config.shm.as_ref() == Some(&vf.socket);
        if is_taken {
            note("socket", format!("\"socket\": {:?} is another's as well", vf.socket));
        }
        check::socket_length(reader, &vf.socket, &object, vf.lines.of("socket"));
    }
}
