//! `[[vf]]`: a virtual machine's window into a domain.

use std::path::{Path, PathBuf};

use crate::checks::{Surroundings, socket_length, unique};
use crate::key_table::{SettingKey, key};
use crate::object::{Object, PartOf, keys};
use crate::reader::{Lines, Reader, Value};
use crate::sections::Directories;
use crate::values::{name, named_like_socket, socket_path};

const VF_KEYS: [SettingKey; 3] = [
    key("name", "The window's name. Default: the socket's name without the ending."),
    key("domain", "The domain."),
    key("socket", "The socket that the VM's QEMU connects to, in the sockets' directory."),
];

fn vf(value: &Value<'_, '_>, directories: &Directories) -> Option<VfConfig> {
    let table = value.table_of(&VF_KEYS)?;
    let socket = table.require("socket", "socket = \"vm1.vf\"");
    let socket = socket.and_then(|value| socket_path(&value, directories));
    let name_of_vf = named_like_socket(&table, socket.as_deref(), "vf");
    let domain = table.require("domain", "domain = \"science\"").and_then(|value| name(&value));
    let lines = table.lines.clone();
    Some(VfConfig { name: name_of_vf?, domain: domain?, socket: socket?, lines })
}

/// A virtual machine's window into a domain. QEMU's `ivshmem-doorbell` connects to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfConfig {
    /// Its name; unless the file says otherwise, the socket's without its ending.
    pub name: String,
    /// The domain.
    pub domain: String,
    /// The absolute path of its socket.
    pub socket: PathBuf,
    /// Where its keys are.
    pub lines: Lines,
}

impl Object for VfConfig {
    const KEY: &'static str = "vf";
    const NEEDS: &'static [&'static str] = &["domain"];

    fn keys() -> &'static [SettingKey] {
        &VF_KEYS
    }

    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self> {
        vf(value, directories)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>) {
        let sockets = all.iter().filter_map(|vf| Some((vf.socket.to_str()?, &vf.lines)));
        unique(reader, "vf", "socket", sockets);
        for vf in all {
            let object = format!("vf {:?}", vf.name);
            let note = |key: &str, text: String| reader.note(vf.lines.of(key), &object, text);
            if around.is_whole && !around.has("domain", &vf.domain) {
                let domain = &vf.domain;
                note(
                    "domain",
                    format!(
                        "\"domain\": this node has no domain {domain:?}; add [[domain]] name = \
                         {domain:?}, key = \"..\""
                    ),
                );
            }
            let is_taken = around.is_socket_of("disk", &vf.socket)
                || around.is_socket_of("nic", &vf.socket)
                || [around.control, around.fabric].contains(&vf.socket.as_path())
                || around.shm == Some(&vf.socket);
            if is_taken {
                note(
                    "socket",
                    format!("\"socket\": another object has the same socket {:?}", vf.socket),
                );
            }
            socket_length(reader, &vf.socket, &object, vf.lines.of("socket"));
        }
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }

    fn part_of(&self) -> Option<PartOf<'_>> {
        Some(PartOf { kind: "domain", name: &self.domain, said: "its domain" })
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let different =
            [("domain", self.domain != wanted.domain), ("socket", self.socket != wanted.socket)];
        let moved = Self { lines: wanted.lines.clone(), ..self.clone() };
        keys(&different, moved != *wanted)
    }

    fn added_to(&self) -> String {
        format!(" into domain {}", self.domain)
    }
}
