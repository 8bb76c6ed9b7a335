//! `vrio cluster` and `vrio node join`: the cluster's directory, its tokens, agents and state.

pub(crate) mod agent;
mod clock;
pub(crate) mod copies;
pub(crate) mod sizes;
pub(crate) mod volumes;

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ::cluster::registry::membership::Membership;
use ::cluster::registry::{FileRegistry, Registry, forget_seen};
use ::cluster::{
    ClusterDirectory, ClusterError, ClusterPlan, ClusterVerdict, EtcdMemberFile, EtcdMemberPlan,
    JoinToken, RegistryPlace, issue_token, join, renew_all, renew_client, revoke_node, status,
};
use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use node::Config;
use node::keys;
use rustix::rand::{GetRandomFlags, getrandom};

use self::clock::now_s;
use crate::failure::CommandFailure;
use crate::output::print;
use crate::tables;

/// Where a machine has its cluster's directory.
const DIRECTORY: &str = "/etc/vrio/cluster";

/// Where nodes have their cluster's directories, by default.
const NODES: &str = "/var/lib/vrio";

/// Where the registry of one machine is.
const REGISTRY: &str = "/var/lib/vrio/registry";

/// The longest text that is read as a token from standard input.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

const HOUR_S: u64 = 3600;

pub(crate) const CLUSTER_EXAMPLES: &str = "Examples:
  vrio cluster init rack1 --member a=10.0.0.1 --member b=10.0.0.2 --member c=10.0.0.3
  vrio cluster init lab                 the registry is a file of this machine
  vrio cluster token                    a right to join, for one node
  vrio cluster token | vrio node join - --config /etc/vrio/io1.toml
  vrio cluster status
  vrio cluster renew                    new certificates by the same authorities

`vrio volume create` places a volume with copies on the cluster's nodes.";

const INIT_EXAMPLES: &str = "Examples:
  vrio cluster init rack1 --member a=10.0.0.1 --member b=10.0.0.2 --member c=10.0.0.3
  vrio cluster init lab --file /var/lib/vrio/registry

The directory has the authorities' secret keys: keep a copy of it elsewhere, and nothing of it on
the members but their own directories, members/NAME.";

const TOKEN_EXAMPLES: &str = "Examples:
  vrio cluster token                    lasts for a day
  vrio cluster token --hours 1

The token has the certificate and the key by which the node reaches the registry: it is secret, also
after it was used. It is for one node, and another node that uses it is refused.";

pub(crate) const JOIN_EXAMPLES: &str = "Examples:
  vrio cluster token | vrio node join - --config /etc/vrio/io1.toml
  ssh admin vrio cluster token | ssh io1 vrio node join - --config /etc/vrio/io1.toml

A token in the command line can be seen by all users of the machine; `-` reads it from the input.
The file has a section [cluster], whose directory this command makes. A running node that has the
section is present in the cluster within seconds; else start it, or replace it by --take-over.";

const STATUS_EXAMPLES: &str = "Examples:
  vrio cluster status
  vrio cluster status --json | jq -r .verdict        well, degraded, frozen or away

The first lines say that all is well, or name each problem and its way out. Exit code 1: the
registry does not answer.";

const REMOVE_EXAMPLES: &str = "Examples:
  vrio cluster remove io3               a node that is away, and gone for good
  vrio cluster remove io3 --revoke      a node that is not to be trusted, also if it is present

A certificate is revoked for each new connection once the members of etcd have the new crl.pem; a
restart of the members, one after the other, ends the connections that are there.";

const FORGET_EXAMPLES: &str = "Examples:
  vrio cluster forget alice             after all nodes with a copy were stopped

Copies that remember the record do not start to serve without it. docs/replicas.md has the steps
around this one.";

const TRUST_EXAMPLES: &str = "Examples:
  vrio cluster trust                    after a restore on purpose, on each machine
  vrio cluster trust --restored         the first one after a registry in a file was put back
  vrio cluster trust --volumes          then once: no copy knows a newer record than the registry

Each machine remembers the registry and its highest revision, and makes no change to an older or
another one. This command forgets that.";

const RENEW_EXAMPLES: &str = "Examples:
  vrio cluster renew                             of the operator and of etcd's members
  vrio cluster renew --node io1 --to ./io1       of a node: copy the files to its directory

etcd takes a member's new files at its next connection, and a node within seconds; neither is
restarted. Copy members/NAME to the member, but for its data.";

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Make a cluster: its authorities, and its registry or the files of etcd's members.
    #[command(after_help = INIT_EXAMPLES)]
    Init(InitArgs),
    /// Print a token, by which one node joins.
    #[command(after_help = TOKEN_EXAMPLES)]
    Token(TokenArgs),
    /// Show the registry, nodes, pools, volumes, and each problem with its way out.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(ClusterStatusArgs),
    /// Keep a node present in the registry: the node starts this.
    #[command(hide = true)]
    Agent(agent::AgentArgs),
    /// Remove a node that is gone for good.
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// The node.
        node: String,
        /// Remove it also while it is present, and revoke its certificates.
        #[arg(long)]
        revoke: bool,
        #[command(flatten)]
        place: ClusterPlace,
    },
    /// Remove the record of a replicated volume: its copies, or a volume of its name, begin anew.
    #[command(after_help = FORGET_EXAMPLES)]
    Forget {
        /// The volume.
        volume: String,
        /// Also while nodes are present: none of them has a copy of it.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: ClusterPlace,
    },
    /// Believe the registry as it is now, after a restore on purpose.
    #[command(after_help = TRUST_EXAMPLES)]
    Trust(TrustArgs),
    /// Make new certificates in place of those that end.
    #[command(after_help = RENEW_EXAMPLES)]
    Renew(RenewArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    #[command(flatten)]
    place: ClusterPlace,
    /// The registry is a file that was put back: give it another id, once, before other machines
    /// trust it. etcd gets one by the steps of a restore.
    #[arg(long)]
    restored: bool,
    /// Also have the records of replicated volumes count as they are: no copy of any volume knows a
    /// newer record.
    #[arg(long)]
    volumes: bool,
}

impl TrustArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let directory = self.place.open()?;
        // Records know the id of the registry that they were written to.
        match &directory.file().registry {
            _ if !self.restored => {}
            RegistryPlace::File(path) => {
                let store = u64::from_be_bytes(random()?);
                FileRegistry::open(path).renew_store(store).map_err(CommandFailure::running)?;
            }
            RegistryPlace::Etcd(_) => {
                return Err(CommandFailure::configuration(anyhow!(
                    "--restored: the registry is on etcd, which gets another id by the steps of a \
                     restore (docs/cluster.md)"
                )));
            }
        }
        forget_seen(&directory.seen_path()).map_err(CommandFailure::running)?;
        // From now on this directory knows the id.
        directory.registry().map_err(refused)?.stamp().map_err(CommandFailure::running)?;
        let mut text = "this machine believes the registry as it is now\n".to_owned();
        if self.volumes {
            let mut registry = directory.registry().map_err(refused)?;
            let trusted = Membership::new(&mut registry, directory.keys()).trust_volumes();
            match &trusted.map_err(CommandFailure::running)?[..] {
                [] => text += "no record of a volume was written before a restore\n",
                names => text += &format!("the records count of: {}\n", names.join(", ")),
            }
        }
        print(&text)
    }
}

/// The cluster's directory on this machine.
#[derive(Debug, Args)]
pub(crate) struct ClusterPlace {
    /// The cluster's directory on this machine [default: /etc/vrio/cluster].
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

impl ClusterPlace {
    fn open(&self) -> Result<ClusterDirectory, CommandFailure> {
        ClusterDirectory::open(&self.path()).map_err(refused)
    }

    /// Refuses a directory that a command without --cluster does not use.
    pub(crate) fn refuse_alone(&self) -> Result<(), CommandFailure> {
        let Some(directory) = &self.directory else { return Ok(()) };
        Err(CommandFailure::configuration(anyhow!(
            "--directory {directory:?}: without --cluster the command is about a volume of one \
             node, which has no such directory: add --cluster, or leave --directory out and name \
             the node by --node"
        )))
    }

    /// The directory of the operator.
    fn operators(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| PathBuf::from(DIRECTORY))
    }

    /// The directory: on a host of one node the node's, unless the operator's is there or named.
    fn path(&self) -> PathBuf {
        if let Some(directory) = &self.directory {
            return directory.clone();
        }
        let own = self.operators();
        if own.exists() {
            return own;
        }
        let found = std::fs::read_dir(NODES).into_iter().flatten().flatten().map(|it| it.path());
        let mut found = found.filter(|path| path.extension().is_some_and(|it| it == "cluster"));
        match (found.next(), found.next()) {
            (Some(path), None) => path,
            _ => own,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The cluster's name.
    name: String,
    /// A member of etcd and the address of its machine; 1, 3 or 5 of them. Without one the registry
    /// is a file.
    #[arg(long = "member", value_name = "NAME=ADDRESS", value_parser = member)]
    members: Vec<EtcdMemberPlan>,
    /// etcd's port for clients.
    #[arg(long, value_name = "PORT", requires = "members")]
    client_port: Option<u16>,
    /// etcd's port for its members among each other.
    #[arg(long, value_name = "PORT", requires = "members")]
    peer_port: Option<u16>,
    /// The directory of a registry in a file.
    #[arg(long, value_name = "DIRECTORY", default_value = REGISTRY, conflicts_with = "members")]
    file: PathBuf,
    #[command(flatten)]
    place: ClusterPlace,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// For how long the token can be used.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=8760))]
    hours: u64,
    #[command(flatten)]
    place: ClusterPlace,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterStatusArgs {
    #[command(flatten)]
    place: ClusterPlace,
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
    /// Print all columns, also those that do not fit the terminal.
    #[arg(long)]
    wide: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// The node whose certificate is renewed.
    #[arg(long, value_name = "NAME", requires = "to")]
    node: Option<String>,
    /// The new directory of the node's files.
    #[arg(long, value_name = "DIRECTORY", requires = "node")]
    to: Option<PathBuf>,
    #[command(flatten)]
    place: ClusterPlace,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The token that `vrio cluster token` has printed; `-` reads it from standard input.
    token: String,
    /// The node's configuration: its key, and its section `[cluster]`.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn member(text: &str) -> Result<EtcdMemberPlan, String> {
    let (name, address) = text.split_once('=').ok_or("write NAME=ADDRESS, a=10.0.0.1")?;
    let address: IpAddr = address.parse().map_err(|_| {
        format!("{address:?} is no address; etcd listens at an address, not a name")
    })?;
    Ok(EtcdMemberPlan { name: name.to_owned(), address, client_port: None, peer_port: None })
}

/// The exit code 2 is for what the caller must mend, 1 for what the system or the registry says.
fn refused(error: ClusterError) -> CommandFailure {
    match error {
        ClusterError::Wrong { .. } => CommandFailure::configuration(error),
        _ => CommandFailure::running(error),
    }
}

fn random<const N: usize>() -> Result<[u8; N], CommandFailure> {
    let mut bytes = [0; N];
    let drawn = getrandom(&mut bytes, GetRandomFlags::empty());
    match drawn.context("the system has no random numbers").map_err(CommandFailure::running)? {
        count if count == N => Ok(bytes),
        _ => Err(CommandFailure::running(anyhow!("the system has too few random numbers"))),
    }
}

/// `vrio cluster`.
pub(crate) fn cluster(command: &ClusterCommand) -> Result<(), CommandFailure> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Token(args) => {
            let directory = args.place.open()?;
            let lasts_s = args.hours * HOUR_S;
            let token = issue_token(&directory, random()?, (now_s(), lasts_s)).map_err(refused)?;
            print(&format!("{token}\n"))
        }
        ClusterCommand::Status(args) => show(args),
        ClusterCommand::Agent(args) => agent::run(args),
        ClusterCommand::Remove { node, revoke: true, place } => revoke(&place.open()?, node),
        ClusterCommand::Remove { node, place, .. } => {
            let directory = place.open()?;
            let mut registry = directory.registry().map_err(refused)?;
            let mut membership = Membership::new(&mut registry, directory.keys());
            membership.remove(node).map_err(CommandFailure::running)?;
            let left = copies_left(&mut membership, node)?;
            print(&format!("node {node} is removed; its name is free\n{left}"))
        }
        ClusterCommand::Forget { volume, force, place } => forget(&place.open()?, volume, *force),
        ClusterCommand::Trust(args) => args.run(),
        ClusterCommand::Renew(args) => renew(args),
    }
}

/// Removes the record of a volume. A member that serves goes on without it, so none may run.
fn forget(directory: &ClusterDirectory, volume: &str, force: bool) -> Result<(), CommandFailure> {
    let mut registry = directory.registry().map_err(refused)?;
    let mut membership = Membership::new(&mut registry, directory.keys());
    let contents = membership.contents().map_err(CommandFailure::running)?;
    let present = contents.nodes.iter().filter(|node| node.presence.is_some());
    let present: Vec<_> = present.map(|node| node.record.name.as_str()).collect();
    if contents.placements.iter().any(|(placed, _)| placed == volume) {
        return Err(CommandFailure::running(anyhow!(
            "the cluster has placed volume {volume}, and its nodes would open it again. If its \
             record is not the newest, `vrio volume recover {volume}` on a node with a copy makes \
             it anew; `vrio volume remove {volume} --cluster --data` removes the volume with all \
             data"
        )));
    }
    if !present.is_empty() && !force {
        return Err(CommandFailure::running(anyhow!(
            "nodes are present: {}. A node with a copy of {volume} would go on, and a node that \
             starts would serve it too. Stop the nodes with copies; or use --force if none of \
             these nodes has one",
            present.join(", ")
        )));
    }
    membership.forget_volume(volume).map_err(CommandFailure::running)?;
    print(&format!("the cluster has no record of volume {volume} any more\n"))
}

/// The copies of a node that is removed, and the way to end their part. They take part in their
/// volumes without the registry: other nodes have the node as a peer.
fn copies_left(membership: &mut Membership<'_>, node: &str) -> Result<String, CommandFailure> {
    let contents = membership.contents().map_err(CommandFailure::running)?;
    let placed = contents.placements.iter().filter(|(_, it)| it.copy_of(node).is_some());
    let placed: Vec<_> = placed.map(|(name, _)| name.as_str()).collect();
    let is_own = |name: &String| !contents.placements.iter().any(|(placed, _)| placed == name);
    let has_copy = |nodes: &[String]| nodes.iter().any(|it| it == node);
    let own = contents.volumes.iter().filter(|(name, it)| is_own(name) && has_copy(&it.nodes));
    let own: Vec<_> = own.map(|(name, _)| name.as_str()).collect();
    let mut text = String::new();
    if !placed.is_empty() {
        text += &format!(
            "volumes {} have copies on it, which take part as long as it runs: `vrio volume copies \
             --all --replace {node}`, or --remove, ends that\n",
            placed.join(", ")
        );
    }
    if !own.is_empty() {
        text += &format!(
            "volumes {} of the nodes' files have copies on it: docs/replicas.md, \"Changing the \
             list\"\n",
            own.join(", ")
        );
    }
    Ok(text)
}

fn revoke(directory: &ClusterDirectory, node: &str) -> Result<(), CommandFailure> {
    let count = revoke_node(directory, node, now_s()).map_err(refused)?;
    let mut registry = directory.registry().map_err(refused)?;
    let left = copies_left(&mut Membership::new(&mut registry, directory.keys()), node)?;
    let mut text = format!("node {node} is removed; certificates revoked: {count}\n{left}");
    for EtcdMemberFile { name, address, .. } in &directory.file().members {
        text += &format!("copy members/{name}/crl.pem to {address}, and restart vrio-etcd there\n");
    }
    print(&text)
}

fn init(args: &InitArgs) -> Result<(), CommandFailure> {
    let members = args.members.iter().map(|member| EtcdMemberPlan {
        client_port: args.client_port,
        peer_port: args.peer_port,
        ..member.clone()
    });
    let absolute = |path: &Path| {
        let path = std::path::absolute(path).context("the working directory is gone");
        path.map_err(CommandFailure::running)
    };
    let plan = ClusterPlan {
        name: args.name.clone(),
        directory: absolute(&args.place.operators())?,
        members: members.collect(),
        file: absolute(&args.file)?,
        random: random()?,
        now_s: now_s(),
    };
    let made = ::cluster::init(&plan).map_err(refused)?;
    let (path, name) = (made.path().display(), &made.file().name);
    let mut text = format!("cluster {name} ({}) is made in {path}\n\nNext:\n", made.file().id);
    match &made.file().registry {
        RegistryPlace::File(file) => {
            let file = file.display();
            text += &format!("  the nodes' user must own it: chown -R vrio: {file}\n");
        }
        RegistryPlace::Etcd(_) => {
            for member in &plan.members {
                let EtcdMemberPlan { name, address, .. } = member;
                text += &format!(
                    "  on {address}, as root: apt-get install etcd-server; copy members/{name} to \
                     /var/lib/vrio-etcd;\n    chown -R etcd: /var/lib/vrio-etcd; mv \
                     /var/lib/vrio-etcd/vrio-etcd.service /etc/systemd/system/;\n    \
                     systemctl disable --now etcd; systemctl enable --now --no-block vrio-etcd\n"
                );
            }
        }
    }
    let option = if args.place.operators() == Path::new(DIRECTORY) {
        String::new()
    } else {
        format!(" --directory {path}")
    };
    text += &format!(
        "  vrio cluster status{option}\n  vrio cluster token{option} | vrio node join - \
         --config FILE\n"
    );
    print(&text)
}

fn show(args: &ClusterStatusArgs) -> Result<(), CommandFailure> {
    tables::set_wide(args.wide);
    let status = status(&args.place.open()?, now_s()).map_err(refused)?;
    if args.json {
        let json = serde_json::to_string_pretty(&status).expect("texts and numbers");
        print(&format!("{json}\n"))?;
    } else {
        print(&tables::cluster(&status))?;
    }
    match status.verdict {
        ClusterVerdict::Away => {
            Err(CommandFailure::running(anyhow!("the registry of {} is away", status.name)))
        }
        _ => Ok(()),
    }
}

fn renew(args: &RenewArgs) -> Result<(), CommandFailure> {
    let directory = args.place.open()?;
    let (Some(node), Some(to)) = (&args.node, &args.to) else {
        let renewed = renew_all(&directory, now_s()).map_err(refused)?;
        let mut text = "the operator's certificate is renewed\n".to_owned();
        for member in &renewed.file().members {
            let name = &member.name;
            text += &format!("copy members/{name}/*.pem and *.key to {}\n", member.address);
        }
        return print(&text);
    };
    let renewed = renew_client(&directory, node, to, now_s()).map_err(refused)?;
    let path = renewed.path().display();
    print(&format!(
        "copy {path}/cluster.json, {path}/client.key and {path}/client.pem, in this order, to the \
         cluster's directory on {node}\n"
    ))
}

/// The public half of the node's key.
fn identity(config: &Config) -> Result<Option<String>, CommandFailure> {
    let key = config.key.as_deref().map(keys::read).transpose();
    Ok(key.map_err(CommandFailure::configuration)?.map(|key| key.public()))
}

/// `vrio node join`.
pub(crate) fn join_node(args: &JoinArgs) -> Result<(), CommandFailure> {
    let mut text = args.token.clone();
    if text == "-" {
        text.clear();
        let read = std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut text);
        read.context("cannot read standard input").map_err(CommandFailure::running)?;
    }
    let token = JoinToken::read(&text).map_err(refused)?;
    let config = Config::load(&args.config).map_err(CommandFailure::configuration)?;
    let Some(cluster) = &config.cluster else {
        let text = format!(
            "{:?} has no section [cluster]: add a line \"[cluster]\", below which \"directory\" \
             and \"name\" have defaults",
            args.config
        );
        return Err(CommandFailure::configuration(anyhow!(text)));
    };
    let (node, key) = (&cluster.name, identity(&config)?);
    let joined = join(&token, &cluster.directory, (node, key), now_s()).map_err(refused)?;
    let (cluster, path) = (&joined.file().name, joined.path().display());
    print(&format!("node {node} has joined the cluster {cluster}; its files are in {path}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_with_their_addresses() {
        let read = member("a=fd00::1").unwrap();
        assert_eq!((read.name.as_str(), read.address.to_string()), ("a", "fd00::1".to_owned()));
        assert!(member("a").unwrap_err().contains("NAME=ADDRESS"));
        assert!(member("a=host1").unwrap_err().contains("is no address"));
    }
}
