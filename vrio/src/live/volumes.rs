//! `vrio volume ..`.

use anyhow::anyhow;
use clap::{Args, Subcommand};
use node::api::SnapshotDiff;
use node::config::show_size;
use node::status::{PooledStatus, StoragePoolStatus, VolumeStatus};
use serde_json::{Map, Value, json};

use super::histories::{VolumeAt, VolumeKeepHistory};
use super::scrubs::{SCRUB_EXAMPLES, VolumeScrub};
use super::streams::{VolumeExport, VolumeImport, VolumeReceiveArgs, VolumeSend, VolumeVerify};
use super::{
    Fields, Named, NodeChoice, Resize, allow, ask, change, delete, list, one, segment, show_done,
    stages, understood,
};
use crate::cluster::copies::{COPIES_EXAMPLES, VolumeCopies};
use crate::cluster::sizes::{GrowthAsk, grow};
use crate::cluster::volumes::{CREATE_EXAMPLES, VolumeCreate};
use crate::cluster::{self, ClusterPlace};
use crate::failure::CommandFailure;
use crate::output::print;
use crate::tables;

/// How long the removal of all copies of a volume may take: each node's storage has some seconds.
const REMOVED_S_MAX: u64 = 60;

pub(crate) const VOLUME_EXAMPLES: &str = "Examples:
  vrio volume create max --size 20GiB --replicas 2 --allow vm1   copies on nodes of the cluster
  vrio volume add bob --file bob.img --size 20GiB --allow vm1 --chain meter
  vrio volume add ann --pool p --size 20GiB   thin, in a pool: it can have snapshots
  vrio volume add tom --pool p --size 20GiB --key /etc/vrio/tom.key     encrypted
  vrio volume rekey tom --key /etc/vrio/tom-2.key   another key file, at once
  vrio volume rekey tom --data     another data key; its blocks follow in the background
  vrio volume add eve --file eve.img --size 20GiB --chain encrypt:key=/etc/vrio/eve.xts
  vrio volume chain bob meter limit:iops=50000,bytes-per-second=200MiB
  vrio volume chain bob --none
  vrio volume resize bob 40GiB        guests of all nodes see the size at once
  vrio volume resize bob 10GiB --shrink   while no disk uses it; data beyond 10 GiB is lost
  vrio volume resize max 40GiB --cluster  all its copies grow, then its guests have the size
  vrio volume snapshot ann --name monday      while guests use it
  vrio volume snapshot db-data db-log --name monday   both at the same moment
  vrio volume snapshots ann
  vrio volume quota ann --reservation 5GiB --limit 30GiB   of the pool, with its snapshots
  vrio volume schedule ann 1h:24 1d:30    by time: 24 of hours and 30 of days stay
  vrio volume compress ann lz4        from now on, behind the writes; none ends it
  vrio volume history ann 2h --step 5s    keeps what is overwritten; none ends it
  vrio volume at ann -10min --name ann-before   a clone of ann as it was
  vrio volume rollback ann monday     while no disk uses it; writes since monday are lost
  vrio volume diff ann@monday ann@tuesday     which bytes differ, for a backup
  vrio volume send ann@monday > ann.stream    all of it; --from ann@sunday: the difference
  vrio volume send ann@monday | ssh host2 vrio volume receive p ann-backup
  vrio volume receive p ann-backup --status   of an interrupted stream: the token to go on
  vrio volume verify ann.stream       whether a stored stream is whole
  vrio volume import eve --pool p eve.qcow2 --format qcow2
  vrio volume export ann@monday ann.img
  vrio volume clone ann@monday ben    a new volume with the snapshot's content, at once
  vrio volume remove max --cluster --data   all its copies, and their snapshots
  vrio volume copies max --replace io2      its copy there goes elsewhere; guests go on
  vrio volume move max io2            the copy on io2 serves from now on; guests go on
  vrio volume evict max io2           its copy there is gone for good: do not wait for it
  vrio volume scrub max --wait        prove and compare all its copies, and repair them
  vrio volume recover max             nothing serves it any more: whether the copy here can
  vrio volume show bob --json
  vrio volume remove bob --force      also while attachments use it: they end
  vrio volume remove ann --data       also from its pool; its snapshots stay
  vrio volume remove ann@monday       a snapshot
  vrio volume remove tom --shred      its data key is forgotten, at once";

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume with copies on nodes of the cluster, and wait until these are in sync.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Box<VolumeCreate>),
    /// Change which nodes of the cluster have copies of a volume, while guests use it.
    #[command(after_help = COPIES_EXAMPLES)]
    Copies(Box<VolumeCopies>),
    /// Open a volume until the node is restarted.
    Add(Box<VolumeAdd>),
    /// Remove a volume; its file, or its data in a pool, stays. Or remove a snapshot.
    Remove(VolumeRemove),
    /// List the volumes.
    List(NodeChoice),
    /// Show one volume with all its counters.
    Show(Named),
    /// Make a volume larger while guests use it, or smaller while no disk uses it.
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize(VolumeResize),
    /// Replace the stages of a volume while disks use it.
    Chain(VolumeChain),
    /// Take a snapshot of volumes of a pool while guests use them.
    Snapshot(VolumeSnapshot),
    /// List the snapshots of a volume, or of all volumes, the oldest first.
    Snapshots(VolumeSnapshots),
    /// Reserve space of the pool for a volume and its snapshots, or limit what they may have.
    Quota(VolumeQuota),
    /// Compress the blocks of a volume of a pool while guests use it.
    Compress(VolumeCompress),
    /// Have a volume of a pool take snapshots by time, and keep some of them.
    Schedule(VolumeSchedule),
    /// Have a volume of a pool keep its overwritten data for some time.
    History(VolumeKeepHistory),
    /// Add a new volume that begins as another volume was at some time: a clone of its history.
    At(VolumeAt),
    /// Make a volume again what it was at a snapshot. Refused while disks use it.
    Rollback(VolumeRollback),
    /// Have another node with a copy serve a replicated volume: guests go on.
    Move(VolumeCopyOf),
    /// Say that a node's copy of a replicated volume is gone for good: it is not waited for.
    Evict(VolumeEvict),
    /// Prove all copies in sync of a replicated volume, compare and repair them, in the background.
    #[command(after_help = SCRUB_EXAMPLES)]
    Scrub(VolumeScrub),
    /// Have the copy here serve a replicated volume whose record, or newest copies, are lost.
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover(VolumeRecover),
    /// Put an encrypted volume of a pool under another key, or give it another data key.
    Rekey(VolumeRekey),
    /// List the bytes that differ between two snapshots, or those that a snapshot has.
    Diff(VolumeDiff),
    /// Send a snapshot, or its difference from an earlier one, as a stream to standard output.
    Send(VolumeSend),
    /// Receive a stream from standard input into a volume of a pool.
    Receive(VolumeReceiveArgs),
    /// Prove that a stored stream is whole. It needs no node.
    Verify(VolumeVerify),
    /// Make a new volume of a pool from a raw file or a qcow2 image.
    Import(VolumeImport),
    /// Write a snapshot to a raw file or a qcow2 image.
    Export(VolumeExport),
    /// Add a new volume that begins as a copy of a snapshot and takes no space of its own at first.
    Clone(VolumeClone),
}

#[derive(Debug, Args)]
#[group(id = "backend", required = true, args = ["file", "memory", "null", "pool"])]
pub(crate) struct VolumeAdd {
    /// Its name.
    name: String,
    /// A raw file or block device.
    #[arg(long)]
    file: Option<String>,
    /// How much of the file is used, or the size in the pool; a file or volume that is missing is
    /// made with it.
    #[arg(long, conflicts_with_all = ["memory", "null"])]
    size: Option<String>,
    /// Bypass the page cache (O_DIRECT).
    #[arg(long, requires = "file")]
    direct: bool,
    /// "raw": serve the file's bytes although it looks like an image of another format.
    #[arg(long, requires = "file", value_parser = ["raw"])]
    format: Option<String>,
    /// A volume in the node's memory, of this size; its data ends with the node.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// A volume of this size that stores nothing, for measuring.
    #[arg(long, value_name = "SIZE")]
    null: Option<String>,
    /// A volume of this pool of the node: thin, with snapshots.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// The snapshot as whose copy the volume begins if the pool does not have it: "golden@v1".
    #[arg(long, value_name = "SNAPSHOT", requires = "pool")]
    from: Option<String>,
    /// The space of the pool that no other volume can take.
    #[arg(long, value_name = "SIZE", requires = "pool")]
    reservation: Option<String>,
    /// The space of the pool that the volume and its snapshots may have.
    #[arg(long, value_name = "SIZE", requires = "pool")]
    limit: Option<String>,
    /// The file of the key that encrypts it in the pool (`vrio key new --volume FILE`); an absolute
    /// path.
    #[arg(long, value_name = "FILE", requires = "pool")]
    key: Option<String>,
    /// How its blocks are compressed in the pool, later and never before a write is answered:
    /// "lz4", "zstd:3" (levels 1 to 9), or "none".
    #[arg(long, value_name = "CODEC", requires = "pool")]
    compression: Option<String>,
    /// How far back its history reaches, "2h": overwritten data stays for so long; or "none".
    #[arg(long, value_name = "TIME", requires = "pool")]
    history: Option<String>,
    /// The least time between two moments of its history; default: 1s.
    #[arg(long, value_name = "TIME", requires = "history")]
    history_step: Option<String>,
    /// When writes are durable: after the guest's flush ("flush"), or each at once
    /// ("write-through").
    #[arg(long, value_parser = ["flush", "write-through"])]
    durability: Option<String>,
    /// A stage: "meter", "limit:iops=50000,bytes-per-second=200MiB,burst=1s",
    /// or "encrypt:key=/etc/vrio/bob.xts"; may be given several times, in the order of the chain.
    #[arg(long, value_name = "STAGE")]
    chain: Vec<String>,
    /// A rule for snapshots by time, "1h:24": one in each hour, of which 24 stay; may be given
    /// several times.
    #[arg(long, value_name = "EVERY:KEEP", requires = "pool")]
    snapshots: Vec<String>,
    /// A node whose disks may use it (with a key: only the disks that prove this key); may be given
    /// several times.
    #[arg(long, value_name = "NODE[=KEY]")]
    allow: Vec<String>,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// Several disks may use it at once.
    #[arg(long)]
    shared: bool,
    /// A node that keeps a copy of it, this node among them; given for each of two to eight nodes,
    /// in the same order on all of them.
    #[arg(long, value_name = "NODE", requires = "pool")]
    replicas: Vec<String>,
    /// The storage's block size that guests see; default: the size that the storage reports.
    #[arg(long, value_name = "SIZE", requires = "file")]
    physical_block_size: Option<String>,
    /// The storage's best size of requests, which guests see.
    #[arg(long, value_name = "SIZE", requires = "file")]
    optimal_io_size: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeAdd {
    fn fields(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut backend = Fields::default();
        backend.text("file", self.file.as_ref());
        backend.text("size", self.size.as_ref());
        backend.flag("direct", self.direct);
        backend.text("format", self.format.as_ref());
        backend.text("memory", self.memory.as_ref());
        backend.text("null", self.null.as_ref());
        backend.text("pool", self.pool.as_ref());
        backend.text("from", self.from.as_ref());
        backend.text("reservation", self.reservation.as_ref());
        backend.text("limit", self.limit.as_ref());
        backend.text("key", self.key.as_ref());
        backend.text("compression", self.compression.as_ref());
        backend.text("history", self.history.as_ref());
        backend.text("history-step", self.history_step.as_ref());
        let mut fields = Fields::default();
        fields.text("name", Some(&self.name));
        fields.put("backend", Some(Value::Object(backend.0)));
        fields.text("durability", self.durability.as_ref());
        let chain = stages(&self.chain)?;
        fields.put("chain", Some(chain).filter(|_| !self.chain.is_empty()));
        let snapshots = snapshot_rules(&self.snapshots)?;
        fields.put("snapshots", Some(snapshots).filter(|_| !self.snapshots.is_empty()));
        fields.put("allow", allow(&self.allow));
        fields.flag("read-only", self.read_only);
        fields.flag("shared", self.shared);
        let replicas = self.replicas.iter().cloned().map(Value::String).collect();
        fields.put("replicas", Some(Value::Array(replicas)).filter(|_| !self.replicas.is_empty()));
        fields.text("physical-block-size", self.physical_block_size.as_ref());
        fields.text("optimal-io-size", self.optimal_io_size.as_ref());
        Ok(fields.0)
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeChain {
    /// The volume's name.
    name: String,
    /// The stages in their order: "meter", "limit:iops=50000,bytes-per-second=200MiB,burst=1s".
    #[arg(required_unless_present = "none", conflicts_with = "none")]
    stages: Vec<String>,
    /// Remove all stages.
    #[arg(long)]
    none: bool,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
#[group(id = "quota", required = true, multiple = true, args = ["reservation", "limit"])]
pub(crate) struct VolumeQuota {
    /// The volume's name.
    name: String,
    /// The space that others cannot take, or "none".
    #[arg(long, value_name = "SIZE")]
    reservation: Option<String>,
    /// The space that the volume and its snapshots may have, or "none".
    #[arg(long, value_name = "SIZE")]
    limit: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCompress {
    /// The volume's name.
    name: String,
    /// "lz4" (fast), "zstd:N" (smaller and slower, N from 1 to 9), or "none". It holds for blocks
    /// that move from now on; compressed ones stay as they are until they are written again.
    codec: String,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeSchedule {
    /// The volume's name.
    name: String,
    /// The rules: "1h:24" takes one in each hour, of which the newest 24 stay. They replace the
    /// rules that the volume has.
    #[arg(required_unless_present = "none", conflicts_with = "none", value_name = "EVERY:KEEP")]
    rules: Vec<String>,
    /// Take no more. The snapshots that were taken stay.
    #[arg(long)]
    none: bool,
    #[command(flatten)]
    which: NodeChoice,
}

/// The rules for snapshots by time, as the file has them.
fn snapshot_rules(words: &[String]) -> Result<Value, CommandFailure> {
    let rule = |word: &String| {
        let parts = word.split_once(':');
        let parts = parts.and_then(|(every, keep)| Some((every, keep.parse::<u64>().ok()?)));
        let (every, keep) = parts.ok_or_else(|| {
            let text = format!(
                "{word:?} is no rule for snapshots; write for instance 1h:24, which takes one in \
                 each hour and keeps 24 of them"
            );
            CommandFailure::configuration(anyhow!(text))
        })?;
        Ok(json!({ "every": every, "keep": keep }))
    };
    words.iter().map(rule).collect::<Result<Vec<_>, _>>().map(Value::from)
}

#[derive(Debug, Args)]
pub(crate) struct VolumeRemove {
    /// Its name; or a snapshot: "ann@monday", or by its number "p:17".
    name: String,
    /// Remove it also while guests use it: it is drained, flushed and closed. With --data: also
    /// writes of a disk that were not written back.
    #[arg(long)]
    force: bool,
    /// Remove also its data, which is in a pool. Its snapshots and their clones stay.
    #[arg(long)]
    data: bool,
    /// Remove its data by forgetting its data key; refused if others have the same data key.
    #[arg(long, conflicts_with = "data")]
    shred: bool,
    /// With --shred: remove all volumes and snapshots that have the same data key.
    #[arg(long, requires = "shred")]
    all: bool,
    /// A volume of `vrio volume create`: remove all its copies and their snapshots, with --data.
    /// Refused while disks use it.
    #[arg(long, requires = "data", conflicts_with_all = ["force", "node"])]
    cluster: bool,
    #[command(flatten)]
    place: ClusterPlace,
    #[command(flatten)]
    which: NodeChoice,
}

const RESIZE_EXAMPLES: &str = "Examples:
  vrio volume resize bob 40GiB            of this node; guests of all nodes see the size at once
  vrio volume resize bob 10GiB --shrink   while no disk uses it; data beyond 10 GiB is lost
  vrio volume resize max 40GiB --cluster  of `vrio volume create`: all its copies grow

With --cluster it needs a directory of the cluster: the operator's, or a node's (--directory).
Guests have the old size until each copy in sync has grown. A copy on a node that is away grows when
the node is back. Such a volume gets no smaller size.";

#[derive(Debug, Args)]
pub(crate) struct VolumeResize {
    /// A volume of `vrio volume create`: all its copies grow, then its guests have the size.
    #[arg(long, conflicts_with = "node")]
    cluster: bool,
    /// With --cluster: also in pools that have promised, or have, less space than it gets; from
    /// then on each later copy and size of it may be promised so.
    #[arg(long, requires = "cluster")]
    overcommit: bool,
    /// With --cluster: how long to wait until the guests have the size; 0: not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "cluster")]
    wait: u64,
    #[command(flatten)]
    place: ClusterPlace,
    #[command(flatten)]
    resize: Resize,
}

impl VolumeResize {
    fn send(&self) -> Result<(), CommandFailure> {
        let Self { cluster, overcommit, wait, place, resize } = self;
        if !cluster {
            place.refuse_alone()?;
            return resize.send("volumes");
        }
        if resize.shrink {
            return Err(CommandFailure::configuration(anyhow!(
                "--shrink: a volume with copies on several nodes gets no smaller size"
            )));
        }
        let Resize { name, size, .. } = resize;
        let ask = GrowthAsk { name, size, overcommits: *overcommit, wait_s: *wait };
        let done = serde_json::to_string(&grow(&ask, place)?).expect("texts");
        show_done(&done, resize.which.json)
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeSnapshot {
    /// The volumes' names; several volumes of a pool get snapshots of one moment.
    #[arg(required = true, value_name = "NAME", id = "name")]
    volumes: Vec<String>,
    /// The name of the snapshot; each volume's is VOLUME@SNAPSHOT.
    #[arg(long = "name", value_name = "SNAPSHOT")]
    snapshot: String,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeSnapshots {
    /// The volume's name; default: all volumes.
    name: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeRollback {
    /// The volume's name.
    name: String,
    /// The snapshot: "monday", "ann@monday", or by its number "p:17".
    snapshot: String,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCopyOf {
    /// The volume's name.
    name: String,
    /// The node with the copy.
    copy: String,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeEvict {
    #[command(flatten)]
    of: VolumeCopyOf,
    /// Also if no copy is served, and acknowledged writes may be on that node alone.
    #[arg(long)]
    force: bool,
}

const RECOVER_EXAMPLES: &str = "Examples:
  vrio volume recover max             what each copy has, and what would be lost; changes nothing
  vrio volume recover max --serve     the copy here serves, if no flushed write can be lost
  vrio volume recover max --force     also with a loss: of what, the first command says

It asks all nodes with copies, so have as many of them started as can be. Make sure that the
processes of the others have ended: a node that is cut off could go on serving its guests.";

#[derive(Debug, Args)]
pub(crate) struct VolumeRecover {
    /// The volume's name.
    name: String,
    /// Have the copy here serve, if no flushed write can be lost by it.
    #[arg(long)]
    serve: bool,
    /// Have the copy here serve, also if flushed writes are lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeRecover {
    fn send(&self) -> Result<(), CommandFailure> {
        let step = match (self.force, self.serve) {
            (true, _) => "force",
            (false, true) => "serve",
            (false, false) => "look",
        };
        let path = format!("/v1/volumes/{}/copies", segment(&self.name)?);
        change(&self.which, "POST", &path, &json!({ "recover": step }))
    }
}

impl VolumeCopyOf {
    fn change(&self, field: &str) -> Result<(), CommandFailure> {
        let path = format!("/v1/volumes/{}/copies", segment(&self.name)?);
        change(&self.which, "POST", &path, &json!({ field: self.copy }))
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeRekey {
    /// The volume's name.
    name: String,
    /// The file of the key under which its data key is kept from now on; an absolute path.
    #[arg(long, value_name = "FILE", required_unless_present = "data")]
    key: Option<String>,
    /// Another data key: blocks are encrypted anew in the background.
    #[arg(long)]
    data: bool,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeDiff {
    /// The earlier snapshot, "ann@monday"; with no later one, all bytes that it has are listed.
    snapshot: String,
    /// The later snapshot.
    #[arg(id = "later", value_name = "SNAPSHOT")]
    later: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeClone {
    /// The snapshot: "ann@monday", or by its number "p:17".
    snapshot: String,
    /// The new volume's name.
    new: String,
    /// Its size, if it must be larger than the snapshot.
    #[arg(long)]
    size: Option<String>,
    /// The file of the snapshot's key, if that is encrypted; an absolute path.
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// A stage of its chain; may be given several times, as for `vrio volume add`.
    #[arg(long, value_name = "STAGE")]
    chain: Vec<String>,
    /// A node whose disks may use it; may be given several times, as for `vrio volume add`.
    #[arg(long, value_name = "NODE[=KEY]")]
    allow: Vec<String>,
    #[command(flatten)]
    which: NodeChoice,
}

/// Carries a command about volumes out.
pub(crate) fn volume(command: &VolumeCommand) -> Result<(), CommandFailure> {
    match command {
        VolumeCommand::Add(add) => change(&add.which, "POST", "/v1/volumes", &add.fields()?.into()),
        VolumeCommand::Create(create) => create.run(),
        VolumeCommand::Copies(copies) => copies.run(),
        VolumeCommand::Remove(volume) if volume.cluster => {
            cluster::volumes::remove(&volume.name, &volume.place, REMOVED_S_MAX)
        }
        VolumeCommand::Remove(volume) => volume.send(),
        VolumeCommand::List(which) => {
            list(which, "/v1/volumes", |all: &Vec<VolumeStatus>| tables::volume_list(all))
        }
        VolumeCommand::Resize(resize) => resize.send(),
        VolumeCommand::Show(show) => one(show, "volume", tables::volume_alone),
        VolumeCommand::Chain(chain) => {
            let path = format!("/v1/volumes/{}/chain", segment(&chain.name)?);
            change(&chain.which, "PUT", &path, &stages(&chain.stages)?)
        }
        VolumeCommand::Snapshot(snapshot) => {
            let body = json!({ "volumes": snapshot.volumes, "name": snapshot.snapshot });
            change(&snapshot.which, "POST", "/v1/snapshots", &body)
        }
        VolumeCommand::Snapshots(of) => of.show(),
        VolumeCommand::Quota(quota) => {
            let path = format!("/v1/volumes/{}/quota", segment(&quota.name)?);
            let mut fields = Fields::default();
            for (key, word) in [("reservation", &quota.reservation), ("limit", &quota.limit)] {
                let value = word.as_ref().map(|word| match word.as_str() {
                    "none" => Value::Null,
                    size => json!(size),
                });
                fields.put(key, value);
            }
            change(&quota.which, "PUT", &path, &fields.0.into())
        }
        VolumeCommand::Compress(compress) => {
            let path = format!("/v1/volumes/{}/compression", segment(&compress.name)?);
            change(&compress.which, "PUT", &path, &json!({ "compression": compress.codec }))
        }
        VolumeCommand::History(history) => history.send(),
        VolumeCommand::At(at) => at.send(),
        VolumeCommand::Schedule(schedule) => {
            let path = format!("/v1/volumes/{}/snapshots", segment(&schedule.name)?);
            change(&schedule.which, "PUT", &path, &snapshot_rules(&schedule.rules)?)
        }
        VolumeCommand::Rollback(back) => {
            let path = format!("/v1/volumes/{}/rollback", segment(&back.name)?);
            change(&back.which, "POST", &path, &json!({ "snapshot": back.snapshot }))
        }
        VolumeCommand::Move(copy) => copy.change("primary"),
        VolumeCommand::Recover(recover) => recover.send(),
        VolumeCommand::Scrub(scrub) => scrub.send(),
        VolumeCommand::Evict(evict) if evict.force => evict.of.change("gone-with-writes"),
        VolumeCommand::Evict(evict) => evict.of.change("gone"),
        VolumeCommand::Rekey(rekey) => {
            let path = format!("/v1/volumes/{}/key", segment(&rekey.name)?);
            let mut body = Fields::default();
            body.text("key", rekey.key.as_ref());
            body.flag("data", rekey.data);
            change(&rekey.which, "PUT", &path, &body.0.into())
        }
        VolumeCommand::Diff(diff) => diff.show(),
        VolumeCommand::Clone(clone) => clone.send(),
        VolumeCommand::Send(send) => send.run(),
        VolumeCommand::Receive(receive) => receive.run(),
        VolumeCommand::Verify(verify) => verify.run(),
        VolumeCommand::Import(import) => import.run(),
        VolumeCommand::Export(export) => export.run(),
    }
}

/// The pools of a node.
fn pools(which: &NodeChoice) -> Result<Vec<StoragePoolStatus>, CommandFailure> {
    understood(&ask(&which.socket()?, "GET", "/v1/pools", None)?)
}

/// A volume or snapshot that is in a pool, by its name or by the pool's name and its number.
fn pooled<'a>(
    pools: &'a [StoragePoolStatus],
    words: &str,
) -> Option<(&'a StoragePoolStatus, &'a PooledStatus)> {
    let all = pools.iter().flat_map(|pool| pool.volumes.iter().map(move |it| (pool, it)));
    let mut all = all.filter(|(_, it)| it.kind != "removing");
    all.find(|(pool, it)| it.name == words || format!("{}:{}", pool.name, it.number) == words)
}

fn no_snapshot(words: &str) -> CommandFailure {
    let text = format!(
        "there is no snapshot {words:?}; `vrio volume snapshots` lists them, and `vrio pool show` \
         all that a pool has with its numbers"
    );
    CommandFailure::running(anyhow!(text))
}

/// Whether a snapshot of a volume is a cut of a copy: `VOLUME@cut.REIGN.COUNTER`, or
/// `VOLUME@cut.now`.
fn is_cut(name: &str, volume: &str) -> bool {
    let cut = name.strip_prefix(volume).and_then(|rest| rest.strip_prefix("@cut."));
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let is_place = |(reign, counter): (&str, &str)| is_number(reign) && is_number(counter);
    cut.is_some_and(|cut| cut == "now" || cut.split_once('.').is_some_and(is_place))
}

impl VolumeRemove {
    fn send(&self) -> Result<(), CommandFailure> {
        self.place.refuse_alone()?;
        let is_of_pool = self.name.contains(['@', ':']);
        let removes_data = self.data || self.shred;
        let pools = if is_of_pool || removes_data { pools(&self.which)? } else { Vec::new() };
        let found = pooled(&pools, &self.name);
        let place_of = |pool: &str, number| format!("/v1/pools/{pool}/volumes/{number}");
        let place = found.map(|(pool, it)| place_of(&pool.name, it.number));
        // The cuts of a copy are of no use without it, and hold the space of its old content.
        let cuts: Vec<_> = found.map_or_else(Vec::new, |(pool, of)| {
            let is_cut = |it: &&PooledStatus| it.kind == "snapshot" && is_cut(&it.name, &of.name);
            let cuts = pool.volumes.iter().filter(is_cut);
            cuts.map(|it| place_of(&pool.name, it.number)).collect()
        });
        let force = if self.force { "?force=true" } else { "" };
        // With its data, a volume that the node does not serve goes from its pool alone.
        let is_served = found.is_none_or(|(_, it)| it.served);
        if !is_of_pool && is_served {
            if removes_data && place.is_none() {
                // The node says so of a volume that it has not.
                let path = format!("/v1/volumes/{}", segment(&self.name)?);
                ask(&self.which.socket()?, "GET", &path, None)?;
                let text = format!(
                    "volume {:?} has no data in a pool; remove it without --data and --shred, and \
                     its file by hand",
                    self.name
                );
                return Err(CommandFailure::running(anyhow!(text)));
            }
            if let Some(place) = place.as_ref().filter(|_| self.shred) {
                // A volume whose data stays is served on.
                let body = json!({ "all": self.all, "check": true });
                let path = format!("{place}/shred");
                ask(&self.which.socket()?, "POST", &path, Some(&body))?;
            }
            delete(&self.which, &format!("/v1/volumes/{}{force}", segment(&self.name)?))?;
        }
        match place {
            Some(place) if self.shred => {
                let body = json!({ "all": self.all });
                change(&self.which, "POST", &format!("{place}/shred"), &body)
            }
            Some(place) => {
                cuts.iter().try_for_each(|cut| delete(&self.which, cut))?;
                delete(&self.which, &format!("{place}{force}"))
            }
            None if is_of_pool => Err(no_snapshot(&self.name)),
            None => Ok(()),
        }
    }
}

impl VolumeSnapshots {
    fn show(&self) -> Result<(), CommandFailure> {
        let pools = pools(&self.which)?;
        let is_of = |it: &&PooledStatus| {
            let of = it.name.split_once('@').map(|(of, _)| of);
            it.kind == "snapshot" && self.name.as_deref().is_none_or(|name| of == Some(name))
        };
        let pooled = || pools.iter().flat_map(|pool| &pool.volumes);
        // Numbers grow, so each volume's are in the order in which they were taken.
        let mut all: Vec<_> = pooled().filter(is_of).cloned().collect();
        all.sort_by_key(|it| it.number);
        if let Some(name) = &self.name
            && all.is_empty()
            && !pooled().any(|it| it.kind == "volume" && it.name == *name)
        {
            let text = format!(
                "no pool of this node has a volume {name:?}, or a snapshot of one; `vrio pool \
                 show` lists what there is"
            );
            return Err(CommandFailure::running(anyhow!(text)));
        }
        if self.which.json {
            return print(&format!("{}\n", json!(all)));
        }
        print(&tables::snapshot_list(&all))
    }
}

impl VolumeDiff {
    fn show(&self) -> Result<(), CommandFailure> {
        let socket = self.which.socket()?;
        let query = match &self.later {
            Some(later) => format!("from={}&to={}", reference(&self.snapshot)?, reference(later)?),
            None => format!("to={}", reference(&self.snapshot)?),
        };
        let (mut all, mut next_bytes) = (SnapshotDiff::default(), Some(0));
        while let Some(start) = next_bytes {
            let path = format!("/v1/diff?{query}&start={start}");
            let part: SnapshotDiff = understood(&ask(&socket, "GET", &path, None)?)?;
            next_bytes = part.next_bytes;
            if !self.which.json {
                let lines = part.runs.iter().map(|run| {
                    let content = if run.zeroes { "zeroes" } else { "data" };
                    format!("{:>16} {:>14} {content}\n", run.offset_bytes, run.length_bytes)
                });
                print(&lines.collect::<String>())?;
            }
            all.runs.extend(part.runs);
            (all.version, all.size_bytes) = (part.version, part.size_bytes);
        }
        if self.which.json {
            return print(&format!("{}\n", json!(all)));
        }
        let total = |zeroes: bool| {
            let runs = all.runs.iter().filter(|run| run.zeroes == zeroes);
            show_size(runs.map(|run| run.length_bytes).sum())
        };
        let (data, zeroes, size) = (total(false), total(true), show_size(all.size_bytes));
        print(&format!("{data} of data and {zeroes} of zeroes, of {size}\n"))
    }
}

/// A snapshot's name as a part of a question: it has no signs of the question.
pub(super) fn reference(words: &str) -> Result<&str, CommandFailure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@:".contains(&byte);
    match words.bytes().all(plain) {
        true => Ok(words),
        false => Err(no_snapshot(words)),
    }
}

impl VolumeClone {
    fn send(&self) -> Result<(), CommandFailure> {
        let pools = pools(&self.which)?;
        let found = pooled(&pools, &self.snapshot).filter(|(_, it)| it.kind == "snapshot");
        let (pool, _) = found.ok_or_else(|| no_snapshot(&self.snapshot))?;
        let mut backend = Fields::default();
        backend.text("pool", Some(&pool.name));
        backend.text("from", Some(&self.snapshot));
        backend.text("size", self.size.as_ref());
        backend.text("key", self.key.as_ref());
        let mut fields = Fields::default();
        fields.text("name", Some(&self.new));
        fields.put("backend", Some(Value::Object(backend.0)));
        let chain = stages(&self.chain)?;
        fields.put("chain", Some(chain).filter(|_| !self.chain.is_empty()));
        fields.put("allow", allow(&self.allow));
        change(&self.which, "POST", "/v1/volumes", &fields.0.into())
    }
}
