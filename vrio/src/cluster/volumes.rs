//! `vrio volume create`, and `vrio volume remove --cluster`: volumes that the cluster places.

use std::time::{Duration, Instant};

use ::cluster::registry::membership::{ClusterContents, Membership};
use ::cluster::registry::{
    Guarded, PLACED_BYTES_MAX, PlacedCopy, PlacementRecord, PlacementRules, VolumeRecord,
};
use ::cluster::{
    ClusterDirectory, ClusterVolumeStatus, NO_SNAPSHOT, PlacementAsk, check_copy, place, problem,
    volumes,
};
use anyhow::anyhow;
use node::config::{name_problem, show_size, size_bytes};

use super::copies::rebuild_after_s;
use super::{ClusterPlace, now_s, random, refused};
use crate::failure::CommandFailure;
use crate::output::{print, say};

/// The time between two looks at the registry.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long to wait until a volume that could not begin is gone: its nodes take some rounds.
const TAKE_BACK_S: u64 = 30;

/// The unit of sizes.
const SECTOR_BYTES: u64 = 512;

pub(crate) const CREATE_EXAMPLES: &str = "Examples:
  vrio volume create alice --size 20GiB --replicas 2 --allow vm1
  vrio volume create alice --size 20GiB --replicas 3 --domain rack --pool-class ssd
  vrio volume create alice --size 20GiB --on io1,io2       io1 serves it first
  vrio volume create alice --size 20GiB --encrypt          each node has the key alice.key
  vrio volume create ben --from alice@monday.3.71          begins as alice's snapshot

It needs a directory of the cluster: the operator's, or a node's (--directory). The nodes with the
most space have the copies; those of one --domain have one of them. Each of these nodes opens the
volume by itself, and again whenever it starts; it is in no node's file.";

/// `vrio volume create`
#[derive(Debug, clap::Args)]
pub(crate) struct VolumeCreate {
    /// Its name, which is new in the cluster.
    name: String,
    /// Its size; with --from, it is as large as that volume or its snapshot, unless this is larger.
    #[arg(long, required_unless_present = "from")]
    size: Option<String>,
    /// The snapshot of another placed volume with which it begins, "alice@monday.3.71". Its first
    /// copy is a clone in the pool of that volume, on the node that serves it or on the first of
    /// --on; the other copies are filled from it.
    #[arg(long, value_name = "VOLUME@SNAPSHOT")]
    from: Option<String>,
    /// How many copies it has, each on another node.
    #[arg(long, value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// The nodes with the copies, in this order; instead of --replicas.
    #[arg(long, value_name = "NODES", value_delimiter = ',', conflicts_with = "replicas")]
    on: Vec<String>,
    /// Only pools of this class.
    #[arg(long, value_name = "CLASS")]
    pool_class: Option<String>,
    /// Kinds of places of which no two copies have the same, "rack,host": nodes say where they are
    /// by "domain" in [cluster].
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    domain: Vec<String>,
    /// The nodes whose disks may use it (with a key: only the disks that prove this key).
    #[arg(long, value_name = "NODE[=KEY]", value_delimiter = ',')]
    allow: Vec<String>,
    /// When writes are durable: after the guest's flush ("flush"), or each at once
    /// ("write-through").
    #[arg(long, value_parser = ["flush", "write-through"], default_value = "flush")]
    durability: String,
    /// Several disks may use it at once.
    #[arg(long)]
    shared: bool,
    /// Each copy is encrypted in its pool, under a key that each node with a copy has in a file of
    /// its own, "KEY.key" in "volume-keys" of [cluster] (/etc/vrio/volume-keys). Without KEY it is
    /// named as the volume.
    #[arg(long, value_name = "KEY", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    encrypt: Option<String>,
    /// Also in pools that have promised, or have, less space than its size: it is thin.
    #[arg(long)]
    overcommit: bool,
    /// After how long away a node's copy is made anew elsewhere ("30min"); "never": by `vrio volume
    /// copies`.
    #[arg(long, value_name = "TIME", default_value = "never")]
    rebuild_after: String,
    /// How long to wait until all copies are in sync; 0: not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait: u64,
    #[command(flatten)]
    place: ClusterPlace,
}

/// The cluster's records, as a command reads and changes them.
pub(super) struct VolumeDesk {
    directory: ClusterDirectory,
    registry: Guarded,
}

impl VolumeDesk {
    pub(super) fn open(place: &ClusterPlace) -> Result<Self, CommandFailure> {
        let directory = place.open()?;
        let registry = directory.registry().map_err(refused)?;
        Ok(Self { directory, registry })
    }

    fn records(&mut self) -> Membership<'_> {
        Membership::new(&mut self.registry, self.directory.keys())
    }

    pub(super) fn contents(&mut self) -> Result<ClusterContents, CommandFailure> {
        self.records().contents().map_err(CommandFailure::running)
    }

    /// Changes the placement of a volume.
    pub(super) fn change(
        &mut self,
        name: &str,
        change: impl Fn(&mut PlacementRecord, Option<&VolumeRecord>) -> Result<(), String>,
    ) -> Result<(), CommandFailure> {
        self.records().change_placement(name, change).map_err(CommandFailure::running)
    }

    pub(super) fn find(
        &mut self,
        name: &str,
    ) -> Result<Option<ClusterVolumeStatus>, CommandFailure> {
        let mut contents = self.contents()?;
        contents.volumes.retain(|(known, _)| known == name);
        contents.placements.retain(|(known, _)| known == name);
        let (mut all, damaged) = volumes(&contents, now_s());
        match damaged.into_iter().next() {
            Some(error) => Err(CommandFailure::running(error)),
            None => Ok(all.pop()),
        }
    }

    /// Waits until the volume is so, and says what is new. Returns whether it is.
    pub(super) fn wait(
        &mut self,
        name: &str,
        wait_s: u64,
        is_done: impl Fn(Option<&ClusterVolumeStatus>) -> bool,
    ) -> Result<Result<(), String>, CommandFailure> {
        let until = Instant::now() + Duration::from_secs(wait_s);
        let mut told = String::new();
        loop {
            let found = match self.find(name) {
                Ok(found) => found,
                // The nodes go on with it meanwhile, and the registry may be back.
                Err(error) if Instant::now() < until => {
                    let now = error.to_string();
                    if now != told {
                        say(&now);
                        told = now;
                    }
                    std::thread::sleep(LOOK_AGAIN);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if is_done(found.as_ref()) {
                return Ok(Ok(()));
            }
            let now = found.as_ref().map(problem).unwrap_or_default();
            if Instant::now() >= until {
                return Ok(Err(now));
            }
            if now != told {
                // Beside what a script reads.
                say(&now);
                told = now;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Refuses a size that no volume of a pool can have.
pub(super) fn refuse_too_large(bytes: u64) -> Result<(), CommandFailure> {
    if bytes <= PLACED_BYTES_MAX {
        return Ok(());
    }
    let most = show_size(PLACED_BYTES_MAX);
    Err(wrong(format!("the size: {bytes} bytes are more than {most}, the most in a pool")))
}

pub(super) fn wrong(text: String) -> CommandFailure {
    CommandFailure::configuration(anyhow!(text))
}

impl VolumeCreate {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let size_bytes = self.check()?;
        let mut desk = VolumeDesk::open(&self.place)?;
        let contents = desk.contents()?;
        let is_node = |name: &str| contents.nodes.iter().any(|node| node.record.name == name);
        if let Some(unknown) = self.users().find(|name| !is_node(name)) {
            return Err(wrong(format!(
                "--allow: the cluster has no node {unknown:?}; have it join by `vrio node join`"
            )));
        }
        let origin = self.from.as_ref().map(|from| origin(&contents, from, self.on.first()));
        let origin = origin.transpose()?;
        let (first, encrypt) =
            (origin.as_ref().map(|it| it.first.clone()), self.key(origin.as_ref())?);
        let size_bytes = match &origin {
            Some(SnapshotOrigin { bytes, .. }) if size_bytes.is_none_or(|size| size >= *bytes) => {
                size_bytes.unwrap_or(*bytes)
            }
            Some(SnapshotOrigin { bytes, .. }) => {
                return Err(wrong(format!("--size: the snapshot has {}", show_size(*bytes))));
            }
            None => size_bytes.expect("it is required"),
        };
        let rules = PlacementRules {
            class: self.pool_class.clone(),
            domains: self.domain.clone(),
            overcommits: self.overcommit,
            rebuild_after_s: rebuild_after_s(&self.rebuild_after)?,
        };
        let copies = self.place(&contents, size_bytes, first)?;
        let placement = PlacementRecord {
            // As a node's file can have it.
            number: u64::from_be_bytes(random()?) >> 1,
            size_bytes,
            serves_bytes: None,
            copies,
            from: self.from.clone(),
            allow: self.allow.clone(),
            write_through: self.durability == "write-through",
            shared: self.shared,
            encrypt,
            rules,
            placed_s: now_s(),
            removing: None,
        };
        let placed = desk.records().place_volume(&self.name, &placement);
        placed.map_err(CommandFailure::running)?;
        let at = placement.placed().map(|(_, it)| format!("{} (pool {})", it.node, it.pool));
        let at = at.collect::<Vec<_>>().join(", ");
        print(&format!("volume {} has copies on {at}\n", self.name))?;
        if self.wait == 0 {
            return Ok(());
        }
        self.wait_for_copies(&mut desk, size_bytes)
    }

    /// Waits until all copies are in sync. A volume without its snapshot is taken back.
    fn wait_for_copies(
        &self,
        desk: &mut VolumeDesk,
        size_bytes: u64,
    ) -> Result<(), CommandFailure> {
        let is_over = |it: Option<&ClusterVolumeStatus>| {
            it.is_some_and(|it| it.state == "well" || self.lacks_snapshot(it).is_some())
        };
        let waited = desk.wait(&self.name, self.wait, is_over)?;
        let found = desk.find(&self.name)?;
        if let Some(why) = found.as_ref().and_then(|it| self.lacks_snapshot(it)) {
            return Err(take_back(desk, &self.name, &why));
        }
        match waited {
            Ok(()) => {
                let larger = found.and_then(|it| it.size_bytes).filter(|it| *it > size_bytes);
                if let Some(bytes) = larger {
                    print(&format!("it has {}, as its snapshot has\n", show_size(bytes)))?;
                }
                print("all copies are in sync\n")
            }
            Err(why) => Err(CommandFailure::running(anyhow!(
                "{why}. The nodes go on with it; `vrio cluster status` shows how far they are, and \
                 `vrio volume remove {} --cluster --data` takes it back",
                self.name
            ))),
        }
    }

    /// Why the new volume cannot begin, if its first node has said that there is no such snapshot.
    fn lacks_snapshot(&self, volume: &ClusterVolumeStatus) -> Option<String> {
        // A refusal of an earlier volume with the name may still be there, of another snapshot.
        let words = format!("{NO_SNAPSHOT} {};", self.from.as_ref()?);
        let mut faults = volume.faults.iter().filter(|_| volume.state == "new");
        let fault = faults.find(|fault| fault.why.starts_with(&words))?;
        Some(format!("--from: node {}: {}", fault.node, fault.why))
    }

    /// Chooses the nodes and pools, of which the first may be given.
    fn place(
        &self,
        contents: &ClusterContents,
        size_bytes: u64,
        first: Option<PlacedCopy>,
    ) -> Result<Vec<PlacedCopy>, CommandFailure> {
        let copies = if self.on.is_empty() { self.replicas.into() } else { self.on.len() };
        let copies_left = copies - usize::from(first.is_some());
        let ask = PlacementAsk {
            size_bytes,
            copies: copies_left,
            on: self.on.iter().skip(usize::from(first.is_some())).cloned().collect(),
            class: self.pool_class.clone(),
            pool: None,
            domains: self.domain.clone(),
            overcommits: self.overcommit,
            beside: first.iter().map(|it| it.node.clone()).collect(),
            instead: None,
        };
        if let Some(first) = &first {
            check_copy(contents, &ask, first, show_size).map_err(|why| {
                CommandFailure::running(anyhow!(
                    "--from: the first copy is a clone beside its snapshot, which cannot be: {why}"
                ))
            })?;
        }
        let chosen = match copies_left {
            0 => Vec::new(),
            _ => place(contents, &ask, show_size)
                .map_err(|why| CommandFailure::running(anyhow!(why)))?,
        };
        Ok(first.into_iter().chain(chosen).collect())
    }

    /// The name of the volume's key: a clone has its snapshot's data key, which is kept under
    /// the key of its origin.
    fn key(&self, origin: Option<&SnapshotOrigin>) -> Result<Option<String>, CommandFailure> {
        let own = |name: &String| if name.is_empty() { self.name.clone() } else { name.clone() };
        match (&self.encrypt, origin.map(|it| &it.encrypt)) {
            (asked, None) => Ok(asked.as_ref().map(own)),
            (None, Some(key)) => Ok(key.clone()),
            (Some(name), Some(Some(key))) if name.is_empty() || name == key => {
                Ok(Some(key.clone()))
            }
            (Some(_), Some(Some(key))) => Err(wrong(format!(
                "--encrypt: a volume that begins as a snapshot has its key, {key:?}"
            ))),
            (Some(_), Some(None)) => Err(wrong(
                "--encrypt: the snapshot is not encrypted, and its blocks stay as they are; copy \
                 its content into a volume that is created with --encrypt"
                    .to_owned(),
            )),
        }
    }

    /// The nodes that `--allow` names.
    fn users(&self) -> impl Iterator<Item = &str> {
        self.allow.iter().map(|it| it.split_once('=').map_or(&**it, |(node, _)| node))
    }

    /// Gives the size, if it is said.
    fn check(&self) -> Result<Option<u64>, CommandFailure> {
        let bytes = self.size.as_ref().map(|size| size_bytes(size)).transpose();
        let bytes = bytes.map_err(|why| wrong(format!("--size: {why}")))?;
        if let Some(bytes) = bytes.filter(|it| *it == 0 || !it.is_multiple_of(SECTOR_BYTES)) {
            return Err(wrong(format!("--size: {bytes} bytes are no sectors of {SECTOR_BYTES}")));
        }
        bytes.map_or(Ok(()), refuse_too_large)?;
        let key = self.encrypt.iter().filter(|key| !key.is_empty());
        let kinds = self.domain.iter().chain(&self.pool_class).chain(key);
        let names = [&self.name].into_iter().chain(&self.on).chain(kinds);
        for name in names.map(String::as_str).chain(self.users()) {
            if let Some(problem) = name_problem(name) {
                return Err(wrong(format!("{name:?} {problem}")));
            }
        }
        if self.on.len() > 8 {
            return Err(wrong("--on: a volume has copies on one to eight nodes".to_owned()));
        }
        match ::cluster::twice(&self.on) {
            Some(twice) => Err(wrong(format!("--on: {twice:?} is in the list twice"))),
            None => Ok(bytes),
        }
    }
}

/// Removes a volume that cannot begin. Gives the failure for it.
fn take_back(desk: &mut VolumeDesk, name: &str, why: &str) -> CommandFailure {
    let removed = match ask_to_remove(desk, name) {
        Ok(()) => desk.wait(name, TAKE_BACK_S, |found| found.is_none()),
        Err(error) => Err(error),
    };
    let rest = match removed {
        Ok(Ok(())) => "nothing was made".to_owned(),
        Ok(Err(left)) => format!("{left}: its nodes go on with the removal"),
        Err(error) => format!("it is there and never served, since {error}"),
    };
    CommandFailure::running(anyhow!("{why}; {rest}"))
}

/// Has all nodes remove their copies of a volume.
fn ask_to_remove(desk: &mut VolumeDesk, name: &str) -> Result<(), CommandFailure> {
    let contents = desk.contents()?;
    let placed = contents.placements.iter().find(|(known, _)| known == name);
    let placed = placed.into_iter().flat_map(|(_, placement)| placement.placed());
    // A node that was removed from the cluster has no copy any more that counts.
    let is_node = |name: &String| contents.nodes.iter().any(|node| node.record.name == *name);
    let nodes: Vec<_> = placed.map(|(_, copy)| copy.node.clone()).filter(is_node).collect();
    desk.records().remove_placed(name, &nodes).map_err(CommandFailure::running)
}

/// The beginning of a volume as a snapshot.
struct SnapshotOrigin {
    /// The volume's first copy.
    first: PlacedCopy,
    /// The size of the snapshot's volume.
    bytes: u64,
    /// The name of its key.
    encrypt: Option<String>,
}

/// Finds the beginning of a volume as a snapshot. The first copy is on the node that is asked for,
/// or on the node that serves the snapshot's volume.
fn origin(
    contents: &ClusterContents,
    from: &str,
    on: Option<&String>,
) -> Result<SnapshotOrigin, CommandFailure> {
    let Some((volume, snapshot)) = from.split_once('@') else {
        return Err(wrong(format!("--from: {from:?} is no snapshot; write VOLUME@SNAPSHOT")));
    };
    if let Some(problem) = name_problem(snapshot) {
        return Err(wrong(format!("--from: {snapshot:?} {problem}")));
    }
    if snapshot.starts_with("cut.") {
        return Err(wrong(format!("--from: {from:?} is a cut, which goes by itself")));
    }
    let placed = contents.placements.iter().find(|(name, _)| name == volume);
    let Some((_, placement)) = placed.filter(|(_, it)| it.removing.is_none()) else {
        return Err(wrong(format!(
            "--from: the cluster has placed no volume {volume:?}; `vrio cluster status` lists them"
        )));
    };
    let (known, _) = volumes(contents, now_s());
    let is_served = |it: &&ClusterVolumeStatus| !["stopped", "new"].contains(&&*it.state);
    let served = known.iter().find(|it| it.name == volume).filter(is_served);
    let node = on.or_else(|| served.map(|it| &it.primary));
    let node = node.ok_or_else(|| {
        CommandFailure::running(anyhow!(
            "no node serves volume {volume:?} at the moment (`vrio cluster status` says why): name \
             a node that has the snapshot first in --on"
        ))
    })?;
    let copy = placement.members().find(|(_, copy)| copy.node == *node && copy.leaves.is_none());
    let Some((_, copy)) = copy else {
        return Err(wrong(format!(
            "node {node:?} has no copy of volume {volume:?} that stays: name a node that has the \
             snapshot first in --on"
        )));
    };
    let first = PlacedCopy::new(&copy.node, &copy.pool);
    Ok(SnapshotOrigin { first, bytes: placement.size_bytes, encrypt: placement.encrypt.clone() })
}

/// `vrio volume remove NAME --cluster --data`: all its copies go.
pub(crate) fn remove(name: &str, place: &ClusterPlace, wait_s: u64) -> Result<(), CommandFailure> {
    let mut desk = VolumeDesk::open(place)?;
    let contents = desk.contents()?;
    if !contents.placements.iter().any(|(known, _)| known == name) {
        return Err(CommandFailure::running(anyhow!(
            "the cluster has placed no volume {name:?}; `vrio cluster status` lists its volumes. A \
             volume of the nodes' files is removed there: docs/replicas.md"
        )));
    }
    let found = desk.find(name)?;
    if let Some(users) = found.map(|it| it.users).filter(|users| *users > 0) {
        return Err(CommandFailure::running(anyhow!(
            "{users} disks use volume {name:?}: stop or remove them first; nothing was changed"
        )));
    }
    ask_to_remove(&mut desk, name)?;
    match desk.wait(name, wait_s, |found| found.is_none())? {
        Ok(()) => print(&format!("volume {name} is removed from all its nodes\n")),
        Err(why) => Err(CommandFailure::running(anyhow!(
            "{why}. The nodes go on with the removal, and `vrio cluster status` shows how far they \
             are"
        ))),
    }
}
