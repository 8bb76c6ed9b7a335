//! `[[vf]]`: a virtual machine's window into a domain.

use std::path::PathBuf;

use super::{Changed, Object, PartOf};
use crate::config::change::keys;
use crate::config::read::{name, named_like_socket, socket_path};
use crate::config::reader::{Lines, Reader, Value};
use crate::config::{Config, Directories, check};
use crate::status::VfStatus;
use crate::wiring::Inside;

const VF_KEYS: [&str; 3] = ["name", "domain", "socket"];

fn vf(value: &Value<'_, '_>, directories: &Directories) -> Option<VfConfig> {
    let table = value.table(&VF_KEYS)?;
    let socket = table.require("socket", "socket = \"vm1.vf\"");
    let socket = socket.and_then(|value| socket_path(&value, directories));
    let name_of_vf = named_like_socket(&table, socket.as_deref(), "vf");
    let domain = table.require("domain", "domain = \"science\"").and_then(|value| name(&value));
    let lines = table.lines.clone();
    Some(VfConfig { name: name_of_vf?, domain: domain?, socket: socket?, lines })
}

/// A virtual machine's window into a domain, to which QEMU's `ivshmem-doorbell` connects.
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
    const KEYS: &'static [&'static str] = &VF_KEYS;
    const NEEDS: &'static [&'static str] = &["domain"];
    type Status = VfStatus;

    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self> {
        vf(value, directories)
    }

    fn consistent(reader: &Reader<'_>, config: &Config, whole: bool) {
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

    fn add(&self, node: &Inside) -> Changed {
        node.add_vf(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_vf(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_vf(name)
    }

    fn status(node: &Inside) -> Vec<VfStatus> {
        node.vf_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
