//! `[[network]]`.

use std::collections::HashMap;
use std::fmt;

use peer::Allow;

use super::nic::{INTERFACE_BYTES_MAX, VLAN_MAX, filter, is_interface, limit};
use super::{Changed, InPlace, Object};
use crate::config::change::keys;
use crate::config::keys::allow as allowed_node;
use crate::config::read::name;
use crate::config::reader::{Lines, Reader, Value};
use crate::config::{Config, Directories};
use crate::status::NetworkStatus;
use crate::wiring::Inside;

/// A network of this node: a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Its name, unique on the node.
    pub name: String,
    /// The way to what is outside; none for a network of guests only.
    pub uplink: Option<Uplink>,
    /// The nodes whose nics may join it, some only with an attachment key.
    pub allow: Vec<Allow>,
    /// What holds for their ports.
    pub remote: RemotePorts,
    /// Where its keys are.
    pub lines: Lines,
}

/// What a network demands of ports that join it from other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePorts {
    /// The VLANs in which they may be, beside the untagged segment.
    pub vlans: net::VlanSet,
    /// They may only talk to ports that are not isolated.
    pub isolated: bool,
    /// How fast each may be, each way.
    pub limit: Option<net::stage::Limit>,
    /// What each may send and receive.
    pub filter: Option<net::Rules>,
}

impl Default for RemotePorts {
    fn default() -> Self {
        Self { vlans: net::VlanSet::none(), isolated: false, limit: None, filter: None }
    }
}

/// A way from a network to what is outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Uplink {
    /// A tap interface of this name, which is made if there is none.
    Tap(String),
    /// An Ethernet interface of this name, past the host's network stack (AF_XDP).
    Xdp(String),
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(interface) => write!(f, "tap:{interface}"),
            Self::Xdp(interface) => write!(f, "xdp:{interface}"),
        }
    }
}

const NETWORK_KEYS: [&str; 4] = ["name", "uplink", "allow", "remote"];

fn network(value: &Value<'_, '_>) -> Option<NetworkConfig> {
    let table = value.table(&NETWORK_KEYS)?;
    let name = table.require("name", "name = \"blue\"").and_then(|value| name(&value));
    let uplink = table.get("uplink").map(|value| uplink(&value));
    let uplink = match uplink {
        None => None,
        Some(uplink) => Some(uplink?),
    };
    let allow = table.get("allow").and_then(|value| value.array()).unwrap_or_default();
    let allow = allow.iter().filter_map(allowed_node).collect();
    let remote = table.get("remote").map_or_else(RemotePorts::default, |value| remote(&value));
    Some(NetworkConfig { name: name?, uplink, allow, remote, lines: table.lines.clone() })
}

/// What a network demands of ports of other nodes.
fn remote(value: &Value<'_, '_>) -> RemotePorts {
    let keys = ["vlans", "isolated", "limit", "filter"];
    let Some(table) = value.table(&keys) else { return RemotePorts::default() };
    let vlans = table.get("vlans").and_then(|value| value.array()).unwrap_or_default();
    let vlans = vlans.iter().filter_map(|entry| entry.integer(1..=VLAN_MAX));
    RemotePorts {
        vlans: vlans.map(|vlan| vlan as u16).collect(),
        isolated: table.get("isolated").and_then(|value| value.bool()).unwrap_or(false),
        limit: table.get("limit").and_then(|value| limit(&value)),
        filter: table.get("filter").and_then(|value| filter(&value)),
    }
}

fn uplink(value: &Value<'_, '_>) -> Option<Uplink> {
    let text = value.str()?;
    let uplink = match text.split_once(':') {
        Some(("tap", name)) if is_interface(name) => Some(Uplink::Tap(name.to_owned())),
        Some(("xdp", name)) if is_interface(name) => Some(Uplink::Xdp(name.to_owned())),
        _ => None,
    };
    if uplink.is_none() {
        value.fail(format!(
            "{text:?} is no uplink; write \"tap:NAME\" or \"xdp:NAME\" with an interface's name of \
             at most {INTERFACE_BYTES_MAX} letters, digits, '-', '_' and '.'"
        ));
    }
    uplink
}

impl Object for NetworkConfig {
    const KEY: &'static str = "network";
    const KEYS: &'static [&'static str] = &NETWORK_KEYS;
    const NEEDS: &'static [&'static str] = &["peer"];
    type Status = NetworkStatus;

    fn read(value: &Value<'_, '_>, _directories: &Directories) -> Option<Self> {
        network(value)
    }

    fn consistent(reader: &Reader<'_>, config: &Config, _whole: bool) {
        let mut uplinks: HashMap<&Uplink, &str> = HashMap::new();
        for network in &config.networks {
            let Some(uplink) = &network.uplink else { continue };
            if let Some(other) = uplinks.insert(uplink, &network.name) {
                let text = format!("\"uplink\": network {other:?} has the same one");
                let object = format!("network {:?}", network.name);
                reader.note(network.lines.of("uplink"), &object, text);
            }
        }
    }

    fn allow(&self) -> &[Allow] {
        &self.allow
    }

    fn set_allow(&mut self, allow: Vec<Allow>) {
        self.allow = allow;
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let different = [("uplink", self.uplink != wanted.uplink)];
        let (allow, remote) = (wanted.allow.clone(), wanted.remote.clone());
        let changed = Self { lines: wanted.lines.clone(), allow, remote, ..self.clone() };
        keys(&different, changed != *wanted)
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        let different =
            [("allow", self.allow != wanted.allow), ("remote", self.remote != wanted.remote)];
        let keys = keys(&different, false);
        if keys.is_empty() {
            return Vec::new();
        }
        let text = format!("change network {:?}: \"{}\"", self.name, keys.join("\", \""));
        vec![InPlace { step: "allow", text }]
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_network(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_network(self)
    }

    fn readmit(&self, node: &Inside) {
        node.open_network(self);
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_network(name, force)
    }

    fn status(node: &Inside) -> Vec<NetworkStatus> {
        node.network_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
