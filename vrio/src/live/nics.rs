//! `vrio network ..` and `vrio nic ..`.

use clap::{Args, Subcommand};
use node::status::{NetworkStatus, NicStatus};
use serde_json::{Map, Value, json};

use super::{
    Fields, Named, ROLES, Remove, SocketAccess, Which, allow, change, list, one, segment, table,
    take_away,
};
use crate::failure::CommandFailure;
use crate::snippets::Vmm;
use crate::tables;

pub(crate) const NETWORK_EXAMPLES: &str = "Examples:
  vrio network add blue               guests of this node, among themselves
  vrio network add red --uplink tap:vrio0   and the host, or what it bridges that to
  vrio network add green --uplink xdp:eth1  an interface of the host, past its stack
  vrio network list
  vrio network show red
  vrio network remove red --force     takes its nics away as well";

pub(crate) const NIC_EXAMPLES: &str = "Examples:
  vrio nic add --network blue --socket alice-net.sock --mac 52:54:00:12:34:56
  vrio nic show alice-net --for qemu  what QEMU is told about it; or --for libvirt
  vrio nic set alice-net --limit bytes-per-second=100MiB,frames-per-second=100000
  vrio nic set alice-net --no-limit
  vrio nic set alice-net --default deny --rules 'allow arp' --rules 'allow sent tcp keep'
  vrio nic set alice-net --mirror alice.pcap --meter   copies what passes, and counts it
  vrio nic set alice-net --mirror tap=ids0             copies it to a tap, for who listens there
  vrio nic set alice-net --link down  pulls the guest's cable
  vrio nic remove alice-net --force   also while a guest uses it";

#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Make a network, from now until the node is restarted.
    Add(NetworkAdd),
    /// Take a network away.
    Remove(Remove),
    /// List the networks.
    List(Which),
    /// Show one network with all its counters.
    Show(Named),
}

#[derive(Debug, Args)]
pub(crate) struct NetworkAdd {
    /// Its name.
    name: String,
    /// The way to what is outside, such as "tap:vrio0" or "xdp:eth1".
    #[arg(long)]
    uplink: Option<String>,
    /// A node whose nics may join it, or only those that prove a key; may be given several times.
    #[arg(long, value_name = "NODE[=KEY]")]
    allow: Vec<String>,
    /// What it demands of other nodes' nics, as the file has it: "{ vlans = [10], isolated = true
    /// }".
    #[arg(long, value_name = "TABLE")]
    remote: Option<String>,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NicCommand {
    /// Show a nic to a guest, from now until the node is restarted.
    Add(Box<NicAdd>),
    /// Take a nic away.
    Remove(Remove),
    /// List the nics.
    List(Which),
    /// Show one nic with all its counters, or what a VMM is told about it.
    Show(NicShow),
    /// Give a nic other stages (rate, rules, mirror, meter), or pull its cable, while its guest
    /// works.
    Set(NicSet),
}

#[derive(Debug, Args)]
pub(crate) struct NicShow {
    #[command(flatten)]
    named: Named,
    /// Print what this VMM is told about the nic.
    #[arg(long = "for", value_enum, value_name = "VMM", conflicts_with = "json")]
    vmm: Option<Vmm>,
}

/// What can also be changed later.
#[derive(Debug, Args)]
struct Changeable {
    /// Whether the guest's cable is plugged in: "up" or "down".
    #[arg(long, value_parser = ["up", "down"])]
    link: Option<String>,
    /// Count what passes, by kind and size.
    #[arg(long)]
    meter: bool,
    /// Copy what passes: "file=alice.pcap,size=64MiB,bytes-per-frame=256", the file alone, or
    /// "tap=ids0".
    #[arg(long, value_name = "FILE")]
    mirror: Option<String>,
    /// How fast it may be, each way: "bytes-per-second=100MiB,frames-per-second=100000", or one.
    #[arg(long, value_name = "RATES")]
    limit: Option<String>,
    /// What becomes of frames that no rule fits: "allow" or "deny".
    #[arg(long, value_name = "ACTION", value_parser = ["allow", "deny"])]
    default: Option<String>,
    /// A rule of its filter, first one first, such as "allow sent tcp to any port 443 keep".
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
    /// Its name; default: the socket's, without its ending.
    name: Option<String>,
    /// The network that it is in.
    #[arg(long)]
    network: String,
    /// Its vhost-user socket, in the sockets' directory.
    #[arg(long)]
    socket: String,
    /// The file of the secret key that proves whose nic it is, in a network of another node.
    #[arg(long, value_name = "FILE")]
    attachment_key: Option<String>,
    /// The guest's address, such as "52:54:00:12:34:56": the same as the VMM's.
    #[arg(long)]
    mac: String,
    /// Who makes the socket: "listen" (the node) or "connect" (the VMM).
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
    /// The VLAN that it is in without knowing.
    #[arg(long, value_name = "VLAN", conflicts_with = "vlans")]
    vlan: Option<u64>,
    /// The VLANs in which it tags its frames itself, such as "10,20".
    #[arg(long, value_name = "VLAN", value_delimiter = ',')]
    vlans: Vec<u64>,
    /// It can talk to the uplink, and to no other isolated nic.
    #[arg(long)]
    isolated: bool,
    #[command(flatten)]
    changeable: Changeable,
    #[command(flatten)]
    which: Which,
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
    /// Count no more.
    #[arg(long, conflicts_with = "meter")]
    no_meter: bool,
    /// Copy no more.
    #[arg(long, conflicts_with = "mirror")]
    no_mirror: bool,
    /// As fast as it gets.
    #[arg(long, conflicts_with = "limit")]
    no_limit: bool,
    /// Everything may pass.
    #[arg(long, conflicts_with = "default")]
    no_filter: bool,
    #[command(flatten)]
    which: Which,
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
        NetworkCommand::Show(show) => {
            one(show, "network", |it: &NetworkStatus| &it.name, tables::network_alone)
        }
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
            one(&show.named, "nic", |nic: &NicStatus| &nic.name, text)
        }
        NicCommand::Set(set) => {
            let path = format!("/v1/nics/{}", segment(&set.name)?);
            change(&set.which, "PUT", &path, &set.fields()?.into())
        }
    }
}
