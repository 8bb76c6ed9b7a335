//! `vrio network ..` and `vrio nic ..`.

use clap::{Args, Subcommand};
use node::status::{NetworkStatus, NicStatus};
use serde_json::{Map, Value, json};

use super::{
    Fields, Named, NodeChoice, ROLES, Remove, SocketAccess, allow, change, list, one, segment,
    table, take_away,
};
use crate::failure::CommandFailure;
use crate::snippets::Vmm;
use crate::tables;

pub(crate) const NETWORK_EXAMPLES: &str = "Examples:
  vrio network add blue               for guests of this node alone
  vrio network add red --uplink tap:vrio0   with the host, or its bridge, on a tap
  vrio network add green --uplink xdp:eth1  with an interface of the host, past its network stack
  vrio network list
  vrio network show red
  vrio network remove red --force     removes its nics as well";

pub(crate) const NIC_EXAMPLES: &str = "Examples:
  vrio nic add --network blue --socket alice-net.sock --mac 52:54:00:12:34:56
  vrio nic show alice-net --for qemu  QEMU's options for it; or --for libvirt
  vrio nic set alice-net --limit bytes-per-second=100MiB,frames-per-second=100000
  vrio nic set alice-net --no-limit
  vrio nic set alice-net --default deny --rules 'allow arp' --rules 'allow sent tcp keep'
  vrio nic set alice-net --mirror alice.pcap --meter   copy its frames to a file, and count them
  vrio nic set alice-net --mirror tap=ids0             copy its frames to a tap
  vrio nic set alice-net --link down  the guest sees an unplugged cable
  vrio nic remove alice-net --force   also while a guest uses it";

#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Make a network until the node is restarted.
    Add(NetworkAdd),
    /// Remove a network.
    Remove(Remove),
    /// List the networks.
    List(NodeChoice),
    /// Show one network with all its counters.
    Show(Named),
}

#[derive(Debug, Args)]
pub(crate) struct NetworkAdd {
    /// Its name.
    name: String,
    /// The network's way to other networks, such as "tap:vrio0" or "xdp:eth1".
    #[arg(long)]
    uplink: Option<String>,
    /// A node whose nics may join it (with a key: only the nics that prove this key); may be given
    /// several times.
    #[arg(long, value_name = "NODE[=KEY]")]
    allow: Vec<String>,
    /// Limits for other nodes' nics, as in the configuration: `{ vlans = [10], isolated = true }`.
    #[arg(long, value_name = "TABLE")]
    remote: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NicCommand {
    /// Show a nic to a guest until the node is restarted.
    Add(Box<NicAdd>),
    /// Remove a nic.
    Remove(Remove),
    /// List the nics.
    List(NodeChoice),
    /// Show one nic with all its counters, or print a VMM's options for it.
    Show(NicShow),
    /// Change a nic's stages (rate, rules, mirror, meter) or its link while the guest runs.
    Set(NicSet),
}

#[derive(Debug, Args)]
pub(crate) struct NicShow {
    #[command(flatten)]
    named: Named,
    /// Print this VMM's options for the nic.
    #[arg(long = "for", value_enum, value_name = "VMM", conflicts_with = "json")]
    vmm: Option<Vmm>,
}

/// The settings that can also be changed later.
#[derive(Debug, Args)]
struct Changeable {
    /// Whether the guest's cable is plugged in: "up" or "down".
    #[arg(long, value_parser = ["up", "down"])]
    link: Option<String>,
    /// Count frames by kind and size.
    #[arg(long)]
    meter: bool,
    /// Copy frames: "file=alice.pcap,size=64MiB,bytes-per-frame=256", the file alone, or
    /// "tap=ids0".
    #[arg(long, value_name = "FILE")]
    mirror: Option<String>,
    /// Its rate in each direction: "bytes-per-second=100MiB,frames-per-second=100000", or one of
    /// them.
    #[arg(long, value_name = "RATES")]
    limit: Option<String>,
    /// The decision about frames that no rule matches: "allow" or "deny".
    #[arg(long, value_name = "ACTION", value_parser = ["allow", "deny"])]
    default: Option<String>,
    /// A rule of its filter, such as "allow sent tcp to any port 443 keep"; may be given several
    /// times, and the first rule that matches decides.
    #[arg(long, alias = "rule", value_name = "RULE", requires = "default")]
    rules: Vec<String>,
}

impl Changeable {
    fn put(&self, fields: &mut Fields) -> Result<(), CommandFailure> {
        fields.text("link", self.link.as_ref());
        fields.flag("meter", self.meter);
        let mirror = self.mirror.as_ref().map(|word| match word.contains('=') {
            true => table("--mirror", word),
            false => Ok(json!({ "file": word })),
        });
        fields.put("mirror", mirror.transpose()?);
        let limit = self.limit.as_ref().map(|rates| table("--limit", rates)).transpose()?;
        fields.put("limit", limit);
        let filter = |default| json!({ "default": default, "rules": self.rules });
        fields.put("filter", self.default.as_ref().map(filter));
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct NicAdd {
    /// Its name; default: the socket's name without the ending.
    name: Option<String>,
    /// Its network.
    #[arg(long)]
    network: String,
    /// Its vhost-user socket, in the sockets' directory.
    #[arg(long)]
    socket: String,
    /// The file of the secret key that proves the nic's owner in a network of another node.
    #[arg(long, value_name = "FILE")]
    attachment_key: Option<String>,
    /// The guest's address, such as "52:54:00:12:34:56"; the VMM must have the same.
    #[arg(long)]
    mac: String,
    /// The side that makes the socket: "listen" (the node) or "connect" (the VMM).
    #[arg(long, value_parser = ROLES)]
    role: Option<String>,
    #[command(flatten)]
    access: SocketAccess,
    /// How many pairs of queues it offers.
    #[arg(long)]
    queues: Option<u64>,
    /// The largest packet in bytes.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u64>,
    /// Its VLAN; the guest sends and receives frames without a tag.
    #[arg(long, value_name = "VLAN", conflicts_with = "vlans")]
    vlan: Option<u64>,
    /// Its VLANs, such as "10,20"; the guest tags its frames itself.
    #[arg(long, value_name = "VLAN", value_delimiter = ',')]
    vlans: Vec<u64>,
    /// Refuse frames to and from other isolated nics; the uplink stays reachable.
    #[arg(long)]
    isolated: bool,
    #[command(flatten)]
    changeable: Changeable,
    #[command(flatten)]
    which: NodeChoice,
}

impl NicAdd {
    fn fields(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut fields = Fields::default();
        fields.text("name", self.name.as_ref());
        fields.text("network", Some(&self.network));
        fields.text("socket", Some(&self.socket));
        fields.text("attachment-key", self.attachment_key.as_ref());
        fields.text("mac", Some(&self.mac));
        fields.text("role", self.role.as_ref());
        self.access.put(&mut fields);
        fields.put("queues", self.queues.map(Value::from));
        fields.put("mtu", self.mtu.map(Value::from));
        fields.put("vlan", self.vlan.map(Value::from));
        fields.put("vlans", (!self.vlans.is_empty()).then(|| json!(self.vlans)));
        fields.flag("isolated", self.isolated);
        self.changeable.put(&mut fields)?;
        Ok(fields.0)
    }
}

#[derive(Debug, Args)]
pub(crate) struct NicSet {
    /// Its name.
    name: String,
    #[command(flatten)]
    changeable: Changeable,
    /// Stop counting.
    #[arg(long, conflicts_with = "meter")]
    no_meter: bool,
    /// Stop copying.
    #[arg(long, conflicts_with = "mirror")]
    no_mirror: bool,
    /// Remove the limit.
    #[arg(long, conflicts_with = "limit")]
    no_limit: bool,
    /// Remove the filter: all frames pass.
    #[arg(long, conflicts_with = "default")]
    no_filter: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl NicSet {
    fn fields(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut fields = Fields::default();
        self.changeable.put(&mut fields)?;
        for (key, is_none) in [
            ("meter", self.no_meter),
            ("mirror", self.no_mirror),
            ("limit", self.no_limit),
            ("filter", self.no_filter),
        ] {
            fields.put(key, is_none.then_some(Value::Null));
        }
        Ok(fields.0)
    }
}

pub(crate) fn network(command: &NetworkCommand) -> Result<(), CommandFailure> {
    match command {
        NetworkCommand::Add(add) => {
            let mut fields = Fields::default();
            fields.text("name", Some(&add.name));
            fields.text("uplink", add.uplink.as_ref());
            fields.put("allow", allow(&add.allow));
            let remote = add.remote.as_ref().map(|text| table("--remote", text));
            fields.put("remote", remote.transpose()?);
            change(&add.which, "POST", "/v1/networks", &fields.0.into())
        }
        NetworkCommand::Remove(remove) => take_away("networks", remove),
        NetworkCommand::List(which) => {
            list(which, "/v1/networks", |all: &Vec<NetworkStatus>| tables::network_list(all))
        }
        NetworkCommand::Show(show) => one(show, "network", tables::network_alone),
    }
}

pub(crate) fn nic(command: &NicCommand) -> Result<(), CommandFailure> {
    match command {
        NicCommand::Add(add) => change(&add.which, "POST", "/v1/nics", &add.fields()?.into()),
        NicCommand::Remove(remove) => take_away("nics", remove),
        NicCommand::List(which) => {
            list(which, "/v1/nics", |all: &Vec<NicStatus>| tables::nic_list(all))
        }
        NicCommand::Show(show) => {
            let text = |nic: &NicStatus| match show.vmm {
                Some(vmm) => vmm.nic_snippet(nic),
                None => tables::nic_alone(nic),
            };
            one(&show.named, "nic", text)
        }
        NicCommand::Set(set) => {
            let path = format!("/v1/nics/{}", segment(&set.name)?);
            change(&set.which, "PUT", &path, &set.fields()?.into())
        }
    }
}
