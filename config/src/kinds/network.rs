//! `[[network]]`.

use std::collections::HashMap;
use std::sync::LazyLock;

use net::uplink::{UPLINKS, UplinkConfig, UplinkKind};
use peer::Allow;

use super::nic::{VLAN_MAX, filter, limit};
use crate::checks::Surroundings;
use crate::key_table::{KeyTable, SettingKey, key};
use crate::object::{InPlace, Object, keys};
use crate::public_keys::allow as allowed_node;
use crate::reader::{Lines, Reader, Value};
use crate::sections::Directories;
use crate::values::name;

/// A network of this node: a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Its name, unique on the node.
    pub name: String,
    /// The way out of the node; none for a network of guests only.
    pub uplink: Option<UplinkConfig>,
    /// The nodes whose nics may join it, some only with an attachment key.
    pub allow: Vec<Allow>,
    /// The rules for these nics' ports.
    pub remote: RemotePorts,
    /// Where its keys are.
    pub lines: Lines,
}

/// The rules of a network for ports that join it from other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePorts {
    /// The VLANs in which they may be, beside the untagged segment.
    pub vlans: net::VlanSet,
    /// They may only talk to ports that are not isolated.
    pub isolated: bool,
    /// How fast each may be, each way.
    pub limit: Option<net::stage::Limit>,
    /// The rules for frames that each may send and receive.
    pub filter: Option<net::Rules>,
}

impl Default for RemotePorts {
    fn default() -> Self {
        Self { vlans: net::VlanSet::none(), isolated: false, limit: None, filter: None }
    }
}

static NETWORK_KEYS: LazyLock<Vec<SettingKey>> = LazyLock::new(|| {
    let forms: Vec<_> = UPLINKS.iter().map(|kind| format!("`{}`", kind.form())).collect();
    let uplink = format!(
        "The way to other networks: {}; see [uplinks](#uplinks). Default: none, and guests only \
         reach each other.",
        forms.join(" or ")
    );
    vec![
        key("name", "The network's name, unique on the node."),
        key("uplink", uplink.leak()),
        key("allow", "The nodes whose nics may join the network, as for a volume. Default: none."),
        key(
            "remote",
            "Conditions for nics of other nodes: `{ vlans = [5, 6], isolated = true, limit = {..}, \
             filter = {..} }`.",
        ),
    ]
});

const REMOTE_KEYS: [SettingKey; 4] = [
    key("vlans", "The VLANs that those nics are in. Default: the untagged segment only."),
    key("isolated", "`true`: those nics reach the uplink, and no isolated nic."),
    key("limit", "A rate for each of those nics, as `limit` of a nic."),
    key(
        "filter",
        "Rules for each of those nics, as `filter` of a nic; `sent` in a rule means frames \
         that their guest sent.",
    ),
];

fn network(value: &Value<'_, '_>) -> Option<NetworkConfig> {
    let table = value.table_of(&NETWORK_KEYS)?;
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

/// Reads the rules for ports of other nodes.
fn remote(value: &Value<'_, '_>) -> RemotePorts {
    let Some(table) = value.table_of(&REMOTE_KEYS) else { return RemotePorts::default() };
    let vlans = table.get("vlans").and_then(|value| value.array()).unwrap_or_default();
    let vlans = vlans.iter().filter_map(|entry| entry.integer(1..=VLAN_MAX));
    RemotePorts {
        vlans: vlans.map(|vlan| vlan as u16).collect(),
        isolated: table.get("isolated").and_then(|value| value.bool()).unwrap_or(false),
        limit: table.get("limit").and_then(|value| limit(&value)),
        filter: table.get("filter").and_then(|value| filter(&value)),
    }
}

/// An uplink by its line of the table, [`UPLINKS`].
fn uplink(value: &Value<'_, '_>) -> Option<UplinkConfig> {
    let text = value.str()?;
    let uplink = text.split_once(':').and_then(|(name, place)| {
        let kind = UPLINKS.iter().find(|kind| kind.name == name)?;
        (kind.read)(place)
    });
    if uplink.is_none() {
        let alike = UPLINKS.chunk_by(|one, next| one.place_form == next.place_form);
        let forms = alike.map(|kinds| {
            let forms: Vec<_> = kinds.iter().map(UplinkKind::form).collect();
            format!("{} with {}", forms.join(" or "), kinds[0].place_form)
        });
        let forms = forms.collect::<Vec<_>>().join("; or ");
        value.fail(format!("{text:?} is no uplink; write {forms}"));
    }
    uplink
}

impl Object for NetworkConfig {
    const KEY: &'static str = "network";
    const NEEDS: &'static [&'static str] = &["peer"];

    fn keys() -> &'static [SettingKey] {
        &NETWORK_KEYS
    }

    fn inner_tables() -> Vec<KeyTable> {
        vec![KeyTable::new("remote", "[[network]]\nname = \"a\"\nremote = { ? }", &REMOTE_KEYS)]
    }

    fn read(value: &Value<'_, '_>, _directories: &Directories) -> Option<Self> {
        network(value)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], _around: &Surroundings<'_>) {
        let mut uplinks: HashMap<&UplinkConfig, &str> = HashMap::new();
        for network in all {
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
}
