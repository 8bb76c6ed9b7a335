//! Commands that change a running node: `vrio disk|volume|pool|peer|network|nic|domain|vf ..`,
//! `vrio node reload`.
//!
//! Each option is a key of the configuration's table of the same name; the node checks them, with
//! the same words as it checks its file.

mod any_kind;
mod domains;
mod histories;
pub(crate) mod kinds;
mod nics;
mod pools;
mod scrubs;
mod streams;
mod vfs;
mod volumes;

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use node::api::{Done, Refused, Reload, ReloadPlan};
use node::status::{DiskStatus, PeerStatus};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::client::{self, NodeAnswer};
use crate::failure::CommandFailure;
use crate::nodes::Target;
use crate::output::print;
use crate::snippets::Vmm;
use crate::tables;

pub(crate) const DISK_EXAMPLES: &str = "Examples:
  vrio disk list
  vrio disk add --volume io1/alice-root --socket alice.sock --when-lost error-after=30s
  vrio disk show alice
  vrio disk show alice --for libvirt  the elements for the domain's XML; or --for qemu
  vrio disk resize alice 40GiB        for volumes of this node; the guest sees the size at once
  vrio disk move alice --queue 1 --sidecore 3   while the guest runs
  vrio disk cache alice pool=local,size=20GiB   for volumes of other nodes, while the guest runs
  vrio disk cache alice --none
  vrio disk take alice                end the attachment of a guest on another node, use the volume
  vrio disk remove alice              refused while a guest uses it
  vrio disk remove alice --force      also while a guest uses it: drain and close it";

pub(crate) const PEER_EXAMPLES: &str = "Examples:
  vrio peer add io2 --address 10.0.0.10:4870 --key BASE64
  vrio peer list
  vrio peer remove io2";

pub(crate) const RELOAD_EXAMPLES: &str = "Examples:
  vrio node reload                    print the changes, ask, make them
  vrio node reload --check            only print the changes
  vrio node reload --yes --force      do not ask; also remove objects that guests use
  systemctl reload vrio-node@io1      as --yes: it sends SIGHUP to the node, which logs
                                      the answer";

/// Which node is meant, and how it answers.
#[derive(Debug, Args)]
pub(crate) struct NodeChoice {
    #[command(flatten)]
    target: Target,
    /// Print the node's answer, which is JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print all columns, also those that do not fit the terminal.
    #[arg(long)]
    wide: bool,
}

impl NodeChoice {
    /// The node's control socket. Tables of the node's answers are as wide as these options say.
    pub(crate) fn socket(&self) -> Result<PathBuf, CommandFailure> {
        tables::set_wide(self.wide);
        self.target.socket()
    }
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Its name.
    name: String,
    /// Remove it also while guests use it: it is drained, flushed and closed.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    which: NodeChoice,
}

/// The name of an object, and nothing else about it.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Its name.
    name: String,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct DiskShow {
    #[command(flatten)]
    named: Named,
    /// Print this VMM's options for the disk.
    #[arg(long = "for", value_enum, value_name = "VMM", conflicts_with = "json")]
    vmm: Option<Vmm>,
}

#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// Its name.
    name: String,
    /// The new size, such as "40GiB".
    size: String,
    /// Allow a smaller size: data beyond the new end is lost. Refused while disks use the volume.
    #[arg(long)]
    shrink: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl Resize {
    fn send(&self, kinds: &str) -> Result<(), CommandFailure> {
        let path = format!("/v1/{kinds}/{}/size", segment(&self.name)?);
        let mut fields = Fields::default();
        fields.text("size", Some(&self.size));
        fields.flag("shrink", self.shrink);
        change(&self.which, "PUT", &path, &fields.0.into())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum DiskCommand {
    /// Show a disk to a guest until the node is restarted.
    Add(Box<DiskAdd>),
    /// Remove a disk: its requests are drained and its attachment is closed.
    Remove(Remove),
    /// List the disks.
    List(NodeChoice),
    /// Show one disk with all its counters, or print a VMM's options for it.
    Show(DiskShow),
    /// Resize the volume of a disk; it must be a volume of this node.
    Resize(Resize),
    /// Move a queue of a disk to another sidecore while the guest runs.
    Move(DiskMove),
    /// Give a disk its volume, and end the attachment that holds the volume now.
    Take(DiskTake),
    /// Give a disk of another node's volume a cache in a pool, or take the cache away.
    Cache(DiskCache),
}

#[derive(Debug, Args)]
pub(crate) struct DiskCache {
    /// Its name.
    name: String,
    /// The cache: "pool=local,size=20GiB".
    #[arg(required_unless_present = "none", conflicts_with = "none")]
    cache: Option<String>,
    /// Take the cache away; nothing is lost.
    #[arg(long)]
    none: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl DiskCache {
    fn send(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/disks/{}/cache", segment(&self.name)?);
        let cache = self.cache.as_ref().map(|cache| table("the cache", cache)).transpose()?;
        change(&self.which, "PUT", &path, &cache.unwrap_or_else(|| json!({})))
    }
}

#[derive(Debug, Args)]
pub(crate) struct DiskTake {
    /// Its name.
    name: String,
    #[command(flatten)]
    which: NodeChoice,
}

impl DiskTake {
    fn send(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/disks/{}/take", segment(&self.name)?);
        change(&self.which, "POST", &path, &json!({}))
    }
}

#[derive(Debug, Args)]
pub(crate) struct DiskMove {
    /// Its name.
    name: String,
    /// The queue's number; the first queue is 0.
    #[arg(long)]
    queue: usize,
    /// The sidecore's index, as `vrio status` shows it.
    #[arg(long)]
    sidecore: usize,
    #[command(flatten)]
    which: NodeChoice,
}

impl DiskMove {
    fn send(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/disks/{}/queues/{}", segment(&self.name)?, self.queue);
        change(&self.which, "PUT", &path, &json!({ "sidecore": self.sidecore }))
    }
}

/// The owner and the permissions of a socket that the node makes.
#[derive(Debug, Args)]
struct SocketAccess {
    /// The user that owns the socket, as a number (`id -u`).
    #[arg(long, value_name = "UID")]
    socket_user: Option<u32>,
    /// The group that owns the socket, as a number.
    #[arg(long, value_name = "GID")]
    socket_group: Option<u32>,
    /// The socket's permissions, such as "0660".
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
}

impl SocketAccess {
    fn put(&self, fields: &mut Fields) {
        fields.put("socket-user", self.socket_user.map(Value::from));
        fields.put("socket-group", self.socket_group.map(Value::from));
        fields.text("socket-mode", self.socket_mode.as_ref());
    }
}

#[derive(Debug, Args)]
pub(crate) struct DiskAdd {
    /// Its name; default: the socket's name without the ending.
    name: Option<String>,
    /// A volume of this node ("volume"), or of another node ("peer/volume").
    #[arg(long)]
    volume: String,
    /// Its vhost-user socket, in the sockets' directory.
    #[arg(long)]
    socket: String,
    /// The side that makes the socket: "listen" (the node) or "connect" (the VMM).
    #[arg(long, value_parser = ROLES)]
    role: Option<String>,
    #[command(flatten)]
    access: SocketAccess,
    /// How many queues it offers.
    #[arg(long)]
    queues: Option<u64>,
    /// How requests fare while the volume is out of reach: "wait=forever" or "error-after=30s".
    #[arg(long, value_name = "RULE")]
    when_lost: Option<String>,
    /// The former name of --when-lost.
    #[arg(long, hide = true, conflicts_with = "when_lost")]
    error_after: Option<String>,
    /// The attachment's name in the volume's records.
    #[arg(long)]
    attachment: Option<String>,
    /// The file of the secret key that proves the attachment's owner.
    #[arg(long, value_name = "FILE")]
    attachment_key: Option<String>,
    /// Serve the guest although acknowledged writes may be lost.
    #[arg(long)]
    accept_loss: bool,
    /// A cache in a pool of this node, for a volume of another node: "pool=local,size=20GiB".
    #[arg(long)]
    cache: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

impl DiskAdd {
    fn fields(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut fields = Fields::default();
        let when_lost = self.when_lost.as_ref().map(|rule| table("--when-lost", rule));
        fields.text("name", self.name.as_ref());
        fields.text("volume", Some(&self.volume));
        fields.text("socket", Some(&self.socket));
        fields.text("role", self.role.as_ref());
        self.access.put(&mut fields);
        fields.put("queues", self.queues.map(Value::from));
        let before = self.error_after.as_ref().map(|it| json!({ "error-after": it }));
        fields.put("when-lost", when_lost.transpose()?.or(before));
        fields.text("attachment", self.attachment.as_ref());
        fields.text("attachment-key", self.attachment_key.as_ref());
        fields.flag("accept-loss", self.accept_loss);
        let cache = self.cache.as_ref().map(|cache| table("--cache", cache));
        fields.put("cache", cache.transpose()?);
        Ok(fields.0)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeerCommand {
    /// Add a node whose volumes this node's disks may use, until this node is restarted.
    Add(PeerAdd),
    /// Remove a peer. Disks that use its volumes must be removed first.
    Remove(Named),
    /// List the peers.
    List(NodeChoice),
}

#[derive(Debug, Args)]
pub(crate) struct PeerAdd {
    /// Its name.
    name: String,
    /// The address at which it listens; not needed for a peer that only connects to this node.
    #[arg(long, required_unless_present_any = ["key", "keys"])]
    address: Option<String>,
    /// A public key by which the peer proves its name.
    #[arg(long)]
    key: Vec<String>,
    /// Its public keys, with commas between them: two while a key is being replaced.
    #[arg(long, value_name = "KEY", value_delimiter = ',', conflicts_with = "key")]
    keys: Vec<String>,
    /// When the key expires, such as 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "DATE", requires = "key")]
    expires: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Only print the changes.
    #[arg(long, conflicts_with_all = ["yes", "force"])]
    check: bool,
    /// Make the changes without asking.
    #[arg(long)]
    yes: bool,
    /// Also remove disks and volumes that guests use.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    which: NodeChoice,
}

/// A JSON object that has a field for each option that was given.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, key: &str, value: Option<Value>) {
        self.0.extend(value.map(|value| (key.to_owned(), value)));
    }

    fn text(&mut self, key: &str, text: Option<&String>) {
        self.put(key, text.map(|text| Value::from(text.as_str())));
    }

    fn flag(&mut self, key: &str, set: bool) {
        self.put(key, set.then_some(Value::Bool(true)));
    }
}

/// Whether the node or the VMM makes a socket.
const ROLES: [&str; 2] = ["listen", "connect"];

/// The configuration's `allow`; nothing when no node is named.
pub(crate) fn allow(words: &[String]) -> Option<Value> {
    (!words.is_empty()).then(|| words.iter().map(|word| allowed(word)).collect())
}

/// A table, as the file has it (`{ error-after = "30s" }`) or in short (`error-after=30s`). `whole`
/// is the option.
fn table(whole: &str, text: &str) -> Result<Value, CommandFailure> {
    if !text.trim_start().starts_with('{') {
        return parameters(whole, text).map(Value::Object);
    }
    node::config::value(text)
        .map_err(|error| CommandFailure::configuration(anyhow!("{whole}: {error}")))
}

/// An entry of the configuration's `allow`.
fn allowed(word: &str) -> Value {
    match word.split_once('=') {
        Some((node, key)) => json!({ "node": node, "key": key }),
        None => Value::from(word),
    }
}

/// Stages as the configuration's `chain` has them.
fn stages(words: &[String]) -> Result<Value, CommandFailure> {
    words.iter().map(|word| stage(word)).collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn stage(word: &str) -> Result<Value, CommandFailure> {
    let Some((kind, parameters)) = word.split_once(':') else { return Ok(Value::from(word)) };
    Ok(json!({ kind: self::parameters(word, parameters)? }))
}

/// `key=value,key=value`; `whole` is what the person wrote.
fn parameters(whole: &str, parameters: &str) -> Result<Map<String, Value>, CommandFailure> {
    let mut fields = Map::new();
    for parameter in parameters.split(',') {
        let Some((key, value)) = parameter.split_once('=') else {
            let text = format!(
                "{whole:?} is not understood: {parameter:?} has no '='; write for instance \
                 iops=50000,burst=1s"
            );
            return Err(CommandFailure::configuration(anyhow!(text)));
        };
        let value = match value {
            "true" | "false" => Value::Bool(value == "true"),
            _ => value.parse::<u64>().map_or_else(|_| Value::from(value), Value::from),
        };
        if fields.insert(key.to_owned(), value).is_some() {
            let text = format!("{whole:?}: {key:?} is given twice; keep one of the two");
            return Err(CommandFailure::configuration(anyhow!(text)));
        }
    }
    Ok(fields)
}

pub(crate) fn disk(command: &DiskCommand) -> Result<(), CommandFailure> {
    match command {
        DiskCommand::Add(add) => change(&add.which, "POST", "/v1/disks", &add.fields()?.into()),
        DiskCommand::Remove(remove) => take_away("disks", remove),
        DiskCommand::List(which) => {
            list(which, "/v1/disks", |all: &Vec<DiskStatus>| tables::disk_list(all))
        }
        DiskCommand::Resize(resize) => resize.send("disks"),
        DiskCommand::Move(queue) => queue.send(),
        DiskCommand::Take(disk) => disk.send(),
        DiskCommand::Cache(cache) => cache.send(),
        DiskCommand::Show(show) => {
            let text = |disk: &DiskStatus| match show.vmm {
                Some(vmm) => vmm.snippet(disk),
                None => tables::disk_alone(disk),
            };
            one(&show.named, "disk", text)
        }
    }
}

pub(crate) fn peer(command: &PeerCommand) -> Result<(), CommandFailure> {
    match command {
        PeerCommand::Add(add) => {
            let mut fields = Fields::default();
            fields.text("name", Some(&add.name));
            fields.text("address", add.address.as_ref());
            // Repeated `--key` options are the older form of `--keys`.
            let several = add.keys.iter().chain(add.key.iter().filter(|_| add.key.len() > 1));
            let several: Vec<_> = several.map(String::as_str).collect();
            fields.put("keys", (!several.is_empty()).then(|| json!(several)));
            fields.text("key", add.key.first().filter(|_| add.key.len() == 1));
            fields.text("expires", add.expires.as_ref());
            change(&add.which, "POST", "/v1/peers", &fields.0.into())
        }
        PeerCommand::Remove(peer) => {
            let path = format!("/v1/peers/{}", segment(&peer.name)?);
            delete(&peer.which, &path)
        }
        PeerCommand::List(which) => {
            list(which, "/v1/peers", |all: &Vec<PeerStatus>| tables::peer_list(all))
        }
    }
}

/// `vrio node reload`.
pub(crate) fn reload(args: &ReloadArgs) -> Result<(), CommandFailure> {
    let socket = args.which.socket()?;
    let answer = ask(&socket, "GET", "/v1/reload", None)?;
    if args.check && args.which.json {
        return print(&format!("{}\n", answer.trim_end()));
    }
    let plan: ReloadPlan = understood(&answer)?;
    if !args.which.json {
        print(&show_plan(&plan))?;
    }
    let may_revoke = !plan.revokes.is_empty() || plan.reads_keys;
    let nothing = plan.changes.is_empty() && !may_revoke;
    if args.check || (nothing && !args.which.json) {
        return Ok(());
    }
    let used = plan.changes.iter().any(|change| !change.used_by.is_empty());
    let stuck = used && !args.force;
    if stuck && !may_revoke {
        return Err(CommandFailure::running(anyhow!(IN_USE)));
    }
    // A revocation does not wait for a guest to stop.
    let question = if stuck { "Only revoke and read keys now? [y/N] " } else { QUESTION };
    if !args.yes && !confirmed(question, &plan)? {
        return print(&format!("nothing was changed{}\n", not_revoked(&plan)));
    }
    let wanted = Reload { digest: Some(plan.digest), force: args.force, revoke_only: stuck };
    let wanted = serde_json::to_value(&wanted).expect("a structure of texts and flags");
    let answer = ask(&socket, "POST", "/v1/reload", Some(&wanted))?;
    show_done(&answer, args.which.json)?;
    if stuck {
        let text = format!("only keys and \"allow\" were changed: {IN_USE}");
        return Err(CommandFailure::running(anyhow!(text)));
    }
    Ok(())
}

const QUESTION: &str = "Make these changes now? [y/N] ";

const IN_USE: &str =
    "guests use the objects that would be removed (see above); stop the guests, or use --force";

/// The addition to an answer about a plan that was not carried out and would have revoked keys.
fn not_revoked(plan: &ReloadPlan) -> &'static str {
    if plan.revokes.is_empty() { "" } else { ", and NOTHING WAS REVOKED" }
}

fn show_plan(plan: &ReloadPlan) -> String {
    let mut text = match plan.revokes.len() + plan.changes.len() {
        0 => format!("{}: nothing to change\n", plan.file),
        1 => format!("{}: 1 change\n", plan.file),
        several => format!("{}: {several} changes\n", plan.file),
    };
    for what in &plan.revokes {
        text.push_str(&format!("  {what}, before all other changes\n"));
    }
    for change in &plan.changes {
        text.push_str(&format!("  {}\n", change.what));
        for user in &change.used_by {
            text.push_str(&format!("    ! used by {user}\n"));
        }
    }
    if plan.reads_keys {
        text.push_str("  the key files are read again\n");
    }
    for key in &plan.needs_restart {
        text.push_str(&format!("  {key} has changed too: that takes a restart of the node\n"));
    }
    text
}

/// Asks on the terminal. Without a terminal there can be no yes.
fn confirmed(question: &str, plan: &ReloadPlan) -> Result<bool, CommandFailure> {
    if !std::io::stdin().is_terminal() {
        let not_revoked = not_revoked(plan);
        let text =
            format!("nothing was changed{not_revoked}: there is no terminal to ask on; use --yes");
        return Err(CommandFailure::configuration(anyhow!(text)));
    }
    let mut line = String::new();
    let asked = std::io::stdout()
        .write_all(question.as_bytes())
        .and_then(|()| std::io::stdout().flush())
        .and_then(|()| std::io::stdin().lock().read_line(&mut line));
    asked.context("asking on the terminal").map_err(CommandFailure::running)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn take_away(kinds: &str, remove: &Remove) -> Result<(), CommandFailure> {
    let force = if remove.force { "?force=true" } else { "" };
    let path = format!("/v1/{kinds}/{}{force}", segment(&remove.name)?);
    delete(&remove.which, &path)
}

fn delete(which: &NodeChoice, path: &str) -> Result<(), CommandFailure> {
    let answer = ask(&which.socket()?, "DELETE", path, None)?;
    show_done(&answer, which.json)
}

fn change(
    which: &NodeChoice,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<(), CommandFailure> {
    let answer = ask(&which.socket()?, method, path, Some(body))?;
    show_done(&answer, which.json)
}

fn show_done(answer: &str, json: bool) -> Result<(), CommandFailure> {
    if json {
        return print(&format!("{}\n", answer.trim_end()));
    }
    let done: Done = understood(answer)?;
    let mut text = String::new();
    for what in &done.applied {
        text.push_str(&format!("done: {what}\n"));
    }
    if done.applied.is_empty() {
        text.push_str("nothing to change\n");
    }
    for note in &done.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    print(&text)
}

fn list<T: DeserializeOwned>(
    which: &NodeChoice,
    path: &str,
    show: impl Fn(&T) -> String,
) -> Result<(), CommandFailure> {
    let answer = ask(&which.socket()?, "GET", path, None)?;
    if which.json {
        return print(&format!("{}\n", answer.trim_end()));
    }
    print(&show(&understood(&answer)?))
}

/// One object of a list, by its name.
fn one<T: DeserializeOwned>(
    show: &Named,
    kind: &str,
    text: impl Fn(&T) -> String,
) -> Result<(), CommandFailure> {
    let answer = ask(&show.which.socket()?, "GET", &format!("/v1/{kind}s"), None)?;
    let all: Vec<Value> = understood(&answer)?;
    let found = all.into_iter().find(|value| value["name"].as_str() == Some(&show.name));
    let Some(found) = found else {
        let text = format!("there is no {kind} {:?}; `vrio {kind} list` lists them", show.name);
        return Err(CommandFailure::running(anyhow!(text)));
    };
    if show.which.json {
        return print(&format!("{found}\n"));
    }
    let object: T = serde_json::from_value(found)
        .context("the node's answer cannot be read; the node may be of another release")
        .map_err(CommandFailure::running)?;
    print(&text(&object))
}

/// Asks, and turns a refusal into an error with its way out.
pub(crate) fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<String, CommandFailure> {
    let body = body.map(Value::to_string);
    let answer =
        client::ask(socket, method, path, body.as_deref()).map_err(CommandFailure::no_answer)?;
    let NodeAnswer { code, body } = answer;
    if code == 200 {
        return Ok(body);
    }
    let Ok(refused) = serde_json::from_str::<Refused>(&body) else {
        let text = format!("the node answered {code}: {}", body.trim());
        return Err(CommandFailure::running(anyhow!(text)));
    };
    let mut text = refused.to_string();
    for what in &refused.applied {
        text.push_str(&format!("\n  done before: {what}"));
    }
    for what in &refused.untried {
        text.push_str(&format!("\n  not tried: {what}"));
    }
    let failure = if code == 400 { CommandFailure::configuration } else { CommandFailure::running };
    Err(failure(anyhow!(text)))
}

pub(crate) fn understood<T: DeserializeOwned>(answer: &str) -> Result<T, CommandFailure> {
    serde_json::from_str(answer)
        .context("the node's answer cannot be read; the node may be of another release")
        .map_err(CommandFailure::running)
}

/// A name as a part of a path. Names have no other characters, so no object has such a name.
fn segment(name: &str) -> Result<&str, CommandFailure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.') {
        return Ok(name);
    }
    Err(CommandFailure::configuration(anyhow!(
        "{name:?} is no name: a name has letters, digits, '-', '_' and '.', and no '.' first"
    )))
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn stages_are_read_as_the_file_has_them() {
        let words = ["meter", "limit:iops=50000,bytes-per-second=200MiB", "encrypt:key=/k"];
        let words = words.map(str::to_owned);
        let limit = json!({ "iops": 50000, "bytes-per-second": "200MiB" });
        let wanted = json!(["meter", { "limit": limit }, { "encrypt": { "key": "/k" } }]);
        assert_eq!(stages(&words).unwrap(), wanted);
        assert_eq!(stages(&[]).unwrap(), json!([]));
        for wrong in ["limit:iops", "limit:iops=1,iops=2", "limit:"] {
            let failure = stages(&[wrong.to_owned()]).unwrap_err();
            assert_eq!(failure.code, 2, "{wrong}");
        }
    }

    #[test]
    fn values_are_written_as_in_the_file_or_in_short() {
        let remote = table("--remote", "{ vlans = [10, 20], isolated = true }").unwrap();
        assert_eq!(remote, json!({ "vlans": [10, 20], "isolated": true }));
        let short = table("--remote", "isolated=true").unwrap();
        assert_eq!(short, json!({ "isolated": true }));
        for wrong in ["{ vlans = }", "{}\nname = 1", "{ a = 1", "isolated"] {
            let failure = table("--remote", wrong).unwrap_err();
            assert!(failure.to_string().contains(wrong.lines().next().unwrap()), "{failure}");
        }
        let when_lost = |words: &[&str]| {
            let line = ["add", "--volume", "a", "--socket", "a.sock"];
            let command = DiskAdd::augment_args(clap::Command::new("add"));
            let matches = command.try_get_matches_from(line.iter().chain(words)).unwrap();
            let add = DiskAdd::from_arg_matches(&matches).unwrap();
            add.fields().unwrap()["when-lost"].clone()
        };
        let wanted = json!({ "error-after": "30s" });
        for words in [
            ["--when-lost", "error-after=30s"],
            ["--when-lost", "{ error-after = \"30s\" }"],
            ["--error-after", "30s"],
        ] {
            assert_eq!(when_lost(&words), wanted, "{words:?}");
        }
    }

    #[test]
    fn a_plan_lists_changes_users_and_keys_that_take_a_restart() {
        let planned = |what: &str, user: Option<&str>| node::api::Planned {
            what: what.to_owned(),
            used_by: user.map(str::to_owned).into_iter().collect(),
        };
        let plan = ReloadPlan {
            file: "/etc/vrio/vm1.toml".to_owned(),
            revokes: vec!["revoke the keys of peer \"vm9\"".to_owned()],
            changes: vec![
                planned("remove disk \"a\"", Some("a guest (process 7)")),
                planned("add peer \"io2\"", None),
            ],
            needs_restart: vec!["\"listen\"".to_owned()],
            ..ReloadPlan::default()
        };
        let text = show_plan(&plan);
        let wanted = "/etc/vrio/vm1.toml: 3 changes\n  revoke the keys of \
                      peer \"vm9\", before all other changes\n  remove disk \"a\"\n    ! used by a \
                      guest (process 7)\n  add peer \"io2\"\n  \"listen\" has changed too: that \
                      takes a restart of the node\n";
        assert_eq!(text, wanted);
        assert!(show_plan(&ReloadPlan::default()).contains("nothing to change"));
    }

    #[test]
    fn names_are_parts_of_paths_and_nothing_else_is() {
        assert_eq!(segment("alice-root.1").unwrap(), "alice-root.1");
        for wrong in ["", "a/b", "..", "a b", "a?force=true", "ä"] {
            assert!(segment(wrong).is_err(), "{wrong}");
        }
    }
}
