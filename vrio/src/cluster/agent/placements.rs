//! The volumes that the cluster has placed on this node: the agent has the node open them by its
//! control socket, as a command would, and keeps them in the node's memory. It works on a
//! thread of its own, since the node's presence does not wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::cluster::registry::CopyLeave;
use ::cluster::registry::membership::{ClusterContents, Membership};
use ::cluster::registry::{Guarded, PlacementRecord};
use ::cluster::{
    ClusterDirectory, KeptPeer, KeptPlacements, NO_SNAPSHOT, OpenedMark, ROUND, fit_snapshot,
    next_steps, tell_size,
};
use node::Config;
use node::config::show_size;
use node::status::{CopyRole, CopyStatus, PooledStatus, Status, VolumeStatus};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cluster::clock::now_s;
use crate::live;

/// The time between two looks while the node does not answer: it is starting.
const SOON: Duration = Duration::from_millis(300);

/// Why placed volumes are not open here, by their names.
pub(super) type RefusedPlacements = Arc<Mutex<BTreeMap<String, String>>>;

/// Starts the thread, which ends with the process.
pub(super) fn start(
    config: &Config,
    directory: &ClusterDirectory,
    ask: fn(&Path) -> Option<Status>,
) -> io::Result<RefusedPlacements> {
    let refused = RefusedPlacements::default();
    if config.cluster.as_ref().is_none_or(|cluster| cluster.name != config.name) {
        tracing::warn!("\"name\" in [cluster] is not the node's name: it gets no placed volumes");
        return Ok(refused);
    }
    let (cluster, path) = (config.cluster.as_ref(), config.placements_path());
    let kept = match KeptPlacements::load(&path) {
        Ok(kept) => kept,
        // By what is in it the node knows its copies from its own volumes.
        Err(error) => {
            let why = format!(
                "{}: the placed volumes that the node has kept cannot be read, so it opens none: \
                 {error}. Put the file back, and start the node again",
                path.display()
            );
            tracing::error!("{why}");
            let (directory, node) = (directory.clone(), config.name.clone());
            let told = Arc::clone(&refused);
            let tell = move || {
                loop {
                    if let Err(why) = refuse_all(&directory, &node, &why, &told) {
                        tracing::debug!(why, "the cluster's placements are not known now");
                    }
                    std::thread::sleep(ROUND);
                }
            };
            std::thread::Builder::new().name("placements".to_owned()).spawn(tell)?;
            return Ok(refused);
        }
    };
    let mut office = PlacementOffice {
        directory: directory.clone(),
        control: config.control.clone(),
        node: config.name.clone(),
        pools: cluster.and_then(|cluster| cluster.pools.clone()),
        volume_keys: cluster.map(|cluster| cluster.volume_keys.clone()).unwrap_or_default(),
        kept,
        path,
        gone: BTreeMap::new(),
        sizes: BTreeMap::new(),
        snapshots: BTreeMap::new(),
        opened: None,
        disks: super::disks::DiskPeers::default(),
        ask,
        refused: Arc::clone(&refused),
    };
    let work = move || {
        loop {
            // Kept volumes are opened before the registry is asked, which may be away.
            let applied = office.apply();
            let answers = applied.is_some();
            let changed = office.look(&applied.unwrap_or_default());
            std::thread::sleep(if answers && !changed { ROUND } else { SOON });
        }
    };
    std::thread::Builder::new().name("placements".to_owned()).spawn(work)?;
    Ok(refused)
}

/// Each volume that is placed on this node says why the node does not open it: a copy of which
/// nothing is told counts as one in order.
fn refuse_all(
    directory: &ClusterDirectory,
    node: &str,
    why: &str,
    refused: &RefusedPlacements,
) -> Result<(), String> {
    let mut registry = directory.registry().map_err(|error| error.to_string())?;
    let contents = Membership::new(&mut registry, directory.keys()).contents();
    let contents = contents.map_err(|error| error.to_string())?;
    let is_here = |it: &PlacementRecord| it.members().any(|(_, copy)| copy.node == node);
    let here = contents.placements.into_iter().filter(|(_, it)| is_here(it));
    *refused.lock() = here.map(|(name, _)| (name, why.to_owned())).collect();
    Ok(())
}

struct PlacementOffice {
    directory: ClusterDirectory,
    control: PathBuf,
    node: String,
    /// The pools that the cluster sees; none: all of them.
    pools: Option<Vec<String>>,
    /// Where the keys of encrypted volumes are.
    volume_keys: PathBuf,
    kept: KeptPlacements,
    /// Where they are kept.
    path: PathBuf,
    /// The volumes of which this node has a copy that has gone, by their placements.
    gone: BTreeMap<String, PlacementRecord>,
    /// The sizes of this node's copies, by their volumes, as the node's last status shows them: a
    /// growth that the node was asked for may be undone by a way back to a cut at the same moment.
    sizes: BTreeMap<String, u64>,
    /// The sizes of the snapshots with which volumes begin here, where these are larger than the
    /// volumes.
    snapshots: BTreeMap<String, u64>,
    opened: Option<Guarded>,
    disks: super::disks::DiskPeers,
    /// The status of the node at its control socket.
    ask: fn(&Path) -> Option<Status>,
    refused: RefusedPlacements,
}

impl PlacementOffice {
    /// Tells the registry which volumes are removed here, and keeps its new placements. A registry
    /// that is away changes nothing: the round of the agent says so. Gives whether there was a
    /// change, after which the node is asked soon.
    fn look(&mut self, removed: &[String]) -> bool {
        let looked = self.try_look(removed);
        looked.unwrap_or_else(|why| {
            self.opened = None;
            tracing::debug!(why, "the cluster's placements are not known at the moment");
            false
        })
    }

    fn try_look(&mut self, removed: &[String]) -> Result<bool, String> {
        let mut registry = match self.opened.take() {
            Some(opened) => opened,
            None => self.directory.registry().map_err(|error| error.to_string())?,
        };
        // A registry that was put back has forgotten volumes that are served.
        if let Some(why) = registry.frozen().map_err(|error| error.to_string())? {
            return Err(why);
        }
        let mut membership = Membership::new(&mut registry, self.directory.keys());
        for volume in removed {
            let told = membership.copy_removed(volume, &self.node);
            told.map_err(|error| error.to_string())?;
            self.kept.opened.remove(volume);
        }
        let contents = membership.contents().map_err(|error| error.to_string())?;
        self.gone = self.kept.gone(&contents);
        let mut changed = self.tell_sizes(&mut membership, &contents);
        for (volume, bytes) in &self.snapshots {
            let fit = |placement: &mut PlacementRecord, record: Option<&_>| {
                fit_snapshot(placement, record, *bytes);
                Ok(())
            };
            match membership.change_placement(volume, fit) {
                Ok(()) => changed = true,
                Err(error) => tracing::debug!(volume, %error, "a volume keeps its size now"),
            }
        }
        for (volume, step) in next_steps(&contents, Some(&self.node), now_s(), show_size) {
            // The status of the cluster has the reason of a step that cannot be taken.
            let Ok(step) = step else { continue };
            let take = |placement: &mut _, record: Option<&_>| step.take(placement, record);
            match membership.change_placement(&volume, take) {
                Ok(()) => {
                    tracing::info!(volume, ?step, "the copies of a placed volume change");
                    changed = true;
                }
                // Another change came first: the next look finds the next step.
                Err(error) => tracing::debug!(volume, %error, "a copy does not change now"),
            }
        }
        self.opened = Some(registry);
        let found = KeptPlacements::of(&contents, &self.node, &self.kept);
        if found != self.kept || !removed.is_empty() {
            found.keep(&self.path).map_err(|error| error.to_string())?;
            self.kept = found;
            changed = true;
        }
        Ok(changed)
    }

    /// Tells the registry of copies here that have grown. Gives whether there was one.
    fn tell_sizes(&self, membership: &mut Membership<'_>, contents: &ClusterContents) -> bool {
        let mut told = false;
        for (volume, placement) in &contents.placements {
            let copy = placement.copy_of(&self.node).map(|(_, copy)| copy);
            let Some(has_bytes) = copy.and_then(|copy| copy.has_bytes) else { continue };
            let Some(bytes) = self.sizes.get(volume).copied().filter(|it| *it > has_bytes) else {
                continue;
            };
            let tell = |placement: &mut PlacementRecord, _: Option<&_>| {
                tell_size(placement, &self.node, bytes);
                Ok(())
            };
            match membership.change_placement(volume, tell) {
                Ok(()) => told = true,
                Err(error) => tracing::debug!(volume, %error, "a copy's size is not told now"),
            }
        }
        told
    }

    /// Has the node open volumes that it lacks, and remove volumes that must go. Gives the volumes
    /// of which nothing is left here; none if the node does not answer.
    fn apply(&mut self) -> Option<Vec<String>> {
        // Of a node that does not answer, nothing is told.
        self.sizes.clear();
        self.snapshots.clear();
        let status = (self.ask)(&self.control)?;
        let (mut refused, mut removed) = (BTreeMap::new(), Vec::new());
        let sizes = status
            .volumes
            .iter()
            .filter_map(|volume| Some((volume.name.clone(), volume.copy.as_ref()?.has_bytes?)));
        self.sizes = sizes.collect();
        let peers = self.add_peers(&status);
        self.disks.follow(&self.kept, &self.node, (&self.control, &status));
        let gone = self.gone.iter().filter_map(|(name, placement)| {
            Some((name.clone(), placement.clone(), self.kept.opened.get(name)?.pool.clone()))
        });
        for (name, placement, pool) in gone.collect::<Vec<_>>() {
            match self.remove((&name, &pool), &placement, &status) {
                Ok(true) => removed.push(name),
                Ok(false) => {}
                Err(why) => _ = refused.insert(name, why),
            }
        }
        for (name, placement) in &self.kept.volumes.clone() {
            let Some((_, own)) = placement.copy_of(&self.node) else { continue };
            // The copy of before goes first.
            if self.gone.contains_key(name) {
                continue;
            }
            let goes = match &placement.removing {
                None => own.leaves == Some(CopyLeave::Out),
                Some(left) => left.contains(&self.node),
            };
            let done = match &placement.removing {
                _ if goes => self.remove((name, &own.pool), placement, &status),
                None => self.follow((name, &own.pool), placement, &status).map(|()| false),
                Some(_) => Ok(false),
            };
            match done {
                Ok(true) => removed.push(name.clone()),
                Ok(false) => {}
                Err(why) => {
                    let why = format!("{why}{peers}");
                    if self.refused.lock().get(name) != Some(&why) {
                        tracing::error!(volume = name, why, "a placed volume is not as it must be");
                    }
                    refused.insert(name.clone(), why);
                }
            }
        }
        *self.refused.lock() = refused;
        Some(removed)
    }

    /// Opens a placed volume, if the node does not have it.
    fn follow(
        &mut self,
        (name, pool): (&str, &str),
        placement: &PlacementRecord,
        status: &Status,
    ) -> Result<(), String> {
        match status.volumes.iter().find(|volume| volume.name == *name) {
            Some(VolumeStatus { copy: Some(copy), .. }) => self.follow_list(name, placement, copy),
            Some(found) if found.stopped.is_some() => Ok(()),
            Some(_) => Err(format!("node {} has another volume of this name", self.node)),
            None if self.pools.as_ref().is_some_and(|all| !all.iter().any(|it| it == pool)) => {
                Err(format!("the cluster does not see pool {pool}: \"pools\" in [cluster]"))
            }
            None if !is_open(status, pool) => Err(format!("its pool {pool} is not open")),
            None => {
                let is_new = !self.is_opened(name, pool, placement);
                let has_one = find_pooled(status, pool).any(|it| it.name == name);
                if is_new && has_one {
                    return Err(format!(
                        "pool {pool} has a volume {name} already, of another time. If no other \
                         node has its data, keep it; else remove it with `vrio volume remove \
                         {name} --data`, or create the volume by another name"
                    ));
                }
                self.check_origin((name, pool), placement, status)?;
                self.open(name, pool, placement)
            }
        }
    }

    /// Gives the node the list of nodes with copies and the sizes, if its own differ.
    fn follow_list(
        &self,
        name: &str,
        placement: &PlacementRecord,
        copy: &CopyStatus,
    ) -> Result<(), String> {
        let mut nodes = placement.nodes();
        // The node's list ends with its last node.
        nodes.truncate(nodes.iter().rposition(|node| !node.is_empty()).map_or(0, |last| last + 1));
        let leaving = placement.members().filter(|(_, copy)| copy.leaves.is_some());
        let leaving: BTreeSet<_> = leaving.map(|(_, copy)| &copy.node).collect();
        let small = placement.members().filter(|(place, _)| placement.is_small(*place));
        let small: BTreeSet<_> = small.map(|(_, copy)| &copy.node).collect();
        let (size_bytes, serves_bytes) = (placement.size_bytes, placement.served_bytes());
        let has_list = copy.places == nodes
            && copy.leaving.iter().collect::<BTreeSet<_>>() == leaving
            && copy.small.iter().collect::<BTreeSet<_>>() == small;
        if has_list && copy.has_bytes >= Some(size_bytes) && copy.serves_bytes >= Some(serves_bytes)
        {
            return Ok(());
        }
        let body = json!({ "list": {
            "nodes": nodes,
            "leaving": leaving,
            "small": small,
            "size_bytes": size_bytes,
            "serves_bytes": serves_bytes,
        } });
        let path = format!("/v1/volumes/{name}/copies");
        let changed = live::ask(&self.control, "POST", &path, Some(&body));
        changed.map(drop).map_err(|error| error.to_string())
    }

    /// Removes a placed volume with its data. Returns whether nothing is left of it.
    fn remove(
        &self,
        (name, pool): (&str, &str),
        placement: &PlacementRecord,
        status: &Status,
    ) -> Result<bool, String> {
        let delete = |path: &str| {
            let deleted = live::ask(&self.control, "DELETE", path, None);
            deleted.map(|_| false).map_err(|error| error.to_string())
        };
        let served = status.volumes.iter().find(|volume| volume.name == name);
        if !self.is_opened(name, pool, placement) {
            return match served {
                Some(found) if found.copy.is_some() || found.stopped.is_some() => {
                    Err("the node was not told to open this volume: it is in its file".to_owned())
                }
                // The cluster has no part in a volume of the node alone.
                _ => Ok(true),
            };
        }
        match served.map(|it| (it.copy.as_ref(), it.stopped.is_some())) {
            None => {}
            Some((None, false)) => {
                return Err("the node has another volume of this name".to_owned());
            }
            // The node that serves refuses while a disk uses the volume: the other copies wait.
            Some((Some(copy), _)) if copy.role == CopyRole::Backup => return Ok(false),
            Some(_) => return delete(&format!("/v1/volumes/{name}")),
        }
        if !is_open(status, pool) {
            return Err(format!("its pool {pool} is not open"));
        }
        let snapshots = format!("{name}@");
        let is_its = |it: &&PooledStatus| it.name == name || it.name.starts_with(&snapshots);
        let mut left: Vec<_> = find_pooled(status, pool).filter(is_its).collect();
        left.sort_by_key(|it| it.name == name);
        for it in &left {
            delete(&format!("/v1/pools/{pool}/volumes/{}", it.number))?;
        }
        Ok(left.is_empty())
    }

    /// Whether the node was told to open the volume by this placement, in this pool. A changed
    /// placement does not count: it could name a pool with the node's own volume.
    fn is_opened(&self, name: &str, pool: &str, placement: &PlacementRecord) -> bool {
        let mark = self.kept.opened.get(name);
        mark.is_some_and(|mark| mark.placed_s == placement.placed_s && mark.pool == pool)
    }

    /// Whether the volume may begin with its snapshot: one of a volume that the cluster has placed
    /// in this pool. A hostile record could name a snapshot of the node's own volume. A snapshot
    /// that is larger than the volume waits until the volume has its size.
    fn check_origin(
        &mut self,
        (name, pool): (&str, &str),
        placement: &PlacementRecord,
        status: &Status,
    ) -> Result<(), String> {
        let is_first = placement.copy_of(&self.node).is_some_and(|(place, _)| place == 0);
        let from = placement.from.as_ref().filter(|_| is_first);
        let Some((from, (of, _))) = from.and_then(|from| Some((from, from.split_once('@')?)))
        else {
            return Ok(());
        };
        if !self.kept.volumes.get(of).is_some_and(|it| self.is_opened(of, pool, it)) {
            return Err(format!("the cluster has placed no volume {of} in pool {pool} here"));
        }
        // It has begun already.
        if find_pooled(status, pool).any(|it| it.name == name) {
            return Ok(());
        }
        let mut snapshots = find_pooled(status, pool).filter(|it| it.kind == "snapshot");
        let Some(snapshot) = snapshots.find(|it| it.name == *from) else {
            return Err(format!(
                "{NO_SNAPSHOT} {from}; `vrio volume snapshots {of}` there lists the snapshots \
                 that it has"
            ));
        };
        if snapshot.size_bytes > placement.size_bytes {
            self.snapshots.insert(name.to_owned(), snapshot.size_bytes);
            return Err(format!(
                "its snapshot has {}, and the volume gets that size",
                show_size(snapshot.size_bytes)
            ));
        }
        Ok(())
    }

    fn open(&mut self, name: &str, pool: &str, placement: &PlacementRecord) -> Result<(), String> {
        let key = placement.encrypt.as_ref().map(|key| self.volume_keys.join(format!("{key}.key")));
        // A node that was asked to open it without its key keeps it closed, also when the key
        // comes. The agent has no right to read the key.
        if let Some(path) = &key
            && path.symlink_metadata().is_err_and(|it| it.kind() == io::ErrorKind::NotFound)
        {
            return Err(format!("its key {path:?} is not there: bring it to this node"));
        }
        // Before the node is asked: a volume whose mark was lost could not be removed.
        let is_new = !self.is_opened(name, pool, placement);
        if is_new {
            let place = placement.copy_of(&self.node).map(|(place, _)| place);
            let (placed_s, pool) = (placement.placed_s, pool.to_owned());
            let mark = OpenedMark { placed_s, pool, place };
            self.kept.opened.insert(name.to_owned(), mark);
            let kept = self.kept.keep(&self.path);
            kept.map_err(|error| format!("{:?}: {error}", self.path))?;
        }
        let body = fields(name, (&self.node, pool, key.as_deref()), placement);
        if let Err(error) = live::ask(&self.control, "POST", "/v1/volumes", Some(&body)) {
            self.unmark(name, is_new);
            return Err(error.to_string());
        }
        tracing::info!(volume = name, pool, "a volume that the cluster has placed here is open");
        Ok(())
    }

    /// Takes the mark of a volume back that the node has not opened. A node that does not answer
    /// may have opened it.
    fn unmark(&mut self, name: &str, is_new: bool) {
        let Some(status) = (self.ask)(&self.control) else { return };
        if !is_new || status.volumes.iter().any(|volume| volume.name == name) {
            return;
        }
        self.kept.opened.remove(name);
        if let Err(error) = self.kept.keep(&self.path) {
            tracing::error!(%error, "the placed volumes of the node cannot be kept");
        }
    }

    /// Adds the nodes that the placed volumes need as peers, where the node's file has none of the
    /// name. Gives why some could not be added.
    fn add_peers(&self, status: &Status) -> String {
        let mut refused = String::new();
        let is_known = |name: &str| status.peers.iter().any(|peer| peer.name == name);
        for (name, peer) in self.kept.peers.iter().filter(|(name, _)| !is_known(name)) {
            let KeptPeer { address, key } = peer;
            let mut body = json!({ "name": name, "key": key });
            if let Some(address) = address {
                body["address"] = Value::from(address.as_str());
            }
            match live::ask(&self.control, "POST", "/v1/peers", Some(&body)) {
                Ok(_) => tracing::info!(peer = name, "a node of the cluster is a peer"),
                Err(error) => {
                    tracing::error!(peer = name, %error, "a node of the cluster is no peer");
                    refused = format!("; peer {name}: {error}");
                }
            }
        }
        refused
    }
}

/// Whether the pool is open: a pool that is not has no size.
fn is_open(status: &Status, pool: &str) -> bool {
    status.pools.iter().any(|it| it.name == pool && it.size_bytes > 0)
}

/// The volumes and snapshots of a pool that are not being removed.
fn find_pooled<'s>(status: &'s Status, pool: &str) -> impl Iterator<Item = &'s PooledStatus> {
    let found = status.pools.iter().find(|it| it.name == pool);
    found.into_iter().flat_map(|it| &it.volumes).filter(|it| it.kind != "removing")
}

/// A placed volume as a node's file would have it, with the file of its key.
fn fields(
    name: &str,
    (node, pool, key): (&str, &str, Option<&Path>),
    placement: &PlacementRecord,
) -> Value {
    let PlacementRecord { number, allow, write_through, shared, .. } = placement;
    // Once it is open, it grows to a size that is not in force yet.
    let size_bytes = placement.served_bytes();
    let mut fields = json!({
        "name": name,
        "backend": { "pool": pool, "size": format!("{size_bytes}B") },
        "replicas": placement.nodes(),
        "placement": number,
    });
    // The other copies are filled from the first one.
    let is_first = placement.copy_of(node).is_some_and(|(place, _)| place == 0);
    if let Some(from) = placement.from.as_ref().filter(|_| is_first) {
        fields["backend"]["from"] = json!(from);
    }
    if let Some(key) = key {
        fields["backend"]["key"] = json!(key);
    }
    if let Some(allow) = live::allow(allow) {
        fields["allow"] = allow;
    }
    if *write_through {
        fields["durability"] = json!("write-through");
    }
    if *shared {
        fields["shared"] = json!(true);
    }
    fields
}
