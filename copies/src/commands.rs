//! Commands about the copies of a replicated volume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use config::{REPLICA_PLACES_MAX, REPLICAS_MAX};
use member::{MemberList, MemberStatus, SnapshotDone, SnapshotEnd};
use registry::PLACED_BYTES_MAX;
use replica::{MemberId, SNAPSHOT_NAME_MAX, SnapshotChange};
use serde::Deserialize;

use api::status::{CopyRole, CopyStatus};
use api::{API_VERSION, Done, Refused, RefusedKind};
use sessions::LinkedSidecore;

use crate::recovery::RecoveryStep;
use crate::scrub::ScrubAsk;
use crate::served::{MemberOrder, MemberSeats, ServedMember, by_place};

/// How long a command waits for its effect: a planned move takes some milliseconds, and a change of
/// the record as long as the registry, which answers within 8 s or not at all.
const EFFECT_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a change of the snapshots may take: a pool that takes no change says so after 30 s.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(45);

/// The longest name that a person gives a snapshot: behind it comes its place, two numbers.
const TAKEN_NAME_MAX: usize = 24;

/// The pause between two looks at the effect.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A command about copies: a node, by its name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum CopyCommand {
    /// It serves the volume from now on.
    Primary(String),
    /// Its copy is gone for good.
    Gone(String),
    /// The same, also if acknowledged writes go with it.
    GoneWithWrites(String),
    /// The nodes with copies are these from now on, by their places.
    List(CopyList),
    /// The copy here serves, after the record or all copies in sync were lost.
    Recover(RecoveryStep),
    /// All copies in sync are proved, compared and repaired.
    Scrub(ScrubAsk),
}

impl CopyCommand {
    /// Refuses the command about a volume that has no copies on other nodes.
    pub fn without_copies(&self, volume: &str) -> Refused {
        let error = format!("volume {volume:?} has no copies on other nodes");
        let way_out = match self {
            Self::Scrub(_) => "`vrio pool scrub` proves all blocks of its pool",
            _ => "docs/replicas.md says how a volume has them",
        };
        Refused::new(RefusedKind::Conflict, error, way_out)
    }
}

/// The nodes of a volume's copies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyList {
    /// By their places; empty names are places without a copy.
    pub nodes: Vec<String>,
    /// The nodes of these that must go.
    #[serde(default)]
    pub leaving: Vec<String>,
    /// The nodes in the list with copies that are smaller than the volume.
    #[serde(default)]
    pub small: Vec<String>,
    /// The copy here has at least so many bytes from now on.
    #[serde(default)]
    pub size_bytes: u64,
    /// Users have so many bytes, once all copies in sync know it.
    #[serde(default)]
    pub serves_bytes: u64,
}

/// A change of the snapshots that is under way.
#[derive(Debug)]
pub struct SnapshotWait {
    volume: String,
    /// The name that a person gave, or the whole name of a snapshot that goes.
    name: String,
    takes: bool,
    ends: Receiver<SnapshotEnd>,
    status: Arc<MemberStatus>,
}

impl SnapshotWait {
    /// Waits for its end. Gives what was done, and a note about copies that have left it out.
    ///
    /// # Errors
    /// When the copy of this node has left it out, or the end is not known.
    pub fn wait(self) -> Result<Done, Refused> {
        let SnapshotDone { name, without } = match self.ends.recv_timeout(SNAPSHOT_TIME_MAX) {
            Ok(Ok(done)) => done,
            Ok(Err(why)) => {
                let volume = &self.volume;
                let error = format!("the copy of volume {volume:?} here has left it out: {why}");
                let way_out = format!("other copies may have made the change; {}", self.look());
                return Err(Refused::new(RefusedKind::Conflict, error, way_out));
            }
            Err(RecvTimeoutError::Timeout) => return Err(self.not_yet()),
            Err(RecvTimeoutError::Disconnected) => {
                let error = format!(
                    "volume {:?}: this node does not serve it any more, so it is not known which \
                     copies have made the change",
                    self.volume
                );
                return Err(Refused::new(RefusedKind::Failed, error, self.look()));
            }
        };
        let Self { volume, takes, .. } = self;
        let note = (!without.is_empty()).then(|| {
            let nodes = without.join(", ");
            format!("the copies on {nodes} have left it out; the logs there say why")
        });
        let done = match takes {
            true => format!("take snapshot {volume}@{name} on the copies in sync"),
            false => format!("remove snapshot {volume}@{name} from the copies in sync"),
        };
        Ok(Done { version: API_VERSION, applied: vec![done], notes: note.into_iter().collect() })
    }

    /// The way to the outcome.
    fn look(&self) -> String {
        let Self { volume, name, takes, .. } = self;
        match takes {
            true => format!(
                "look on each node: `vrio volume snapshots {volume}` lists it as \
                 {volume}@{name}.REIGN.COUNTER if the copy there has it"
            ),
            false => format!(
                "look on each node: `vrio volume snapshots {volume}` lists {volume}@{name} if the \
                 copy there still has it"
            ),
        }
    }

    /// The change stands behind the writes before it, and the writes wait.
    fn not_yet(&self) -> Refused {
        let Self { volume, name, takes, .. } = self;
        let within = SNAPSHOT_TIME_MAX.as_secs();
        let what = match takes {
            true => format!("snapshot {name:?} is not taken"),
            false => format!("snapshot {name:?} is not removed from all copies in sync"),
        };
        let why = match self.status.view().waits {
            Some(waits) => format!("its writes wait ({waits})"),
            None => "a copy in sync has not answered: its pool may be full, or slow".to_owned(),
        };
        let error = format!(
            "volume {volume:?}: {what} after {within} s, since {why}; it comes behind the writes \
             of before, and is done when these are, if this node serves until then"
        );
        let way_out = format!(
            "`vrio cluster status` says what a copy waits for; mend that, do not repeat the \
             command, and {}",
            self.look()
        );
        Refused::new(RefusedKind::Failed, error, way_out)
    }
}

impl ServedMember {
    /// Carries out a command on the node of this name, and gives what was done and notes about its
    /// effect.
    ///
    /// # Errors
    /// Why nothing was changed, or the effect did not come in time.
    pub fn carry_out(
        &self,
        (cores, seats): (&[LinkedSidecore], &MemberSeats),
        own: &str,
        command: &CopyCommand,
    ) -> Result<(Option<String>, Vec<String>), Refused> {
        let name = self.volume();
        match command {
            CopyCommand::Primary(node) => {
                self.make_primary(cores, own, node)?;
                Ok((Some(format!("move volume {name} to {node}")), Vec::new()))
            }
            CopyCommand::Gone(node) | CopyCommand::GoneWithWrites(node) => {
                let loses = matches!(command, CopyCommand::GoneWithWrites(_));
                let note = self.evict(cores, own, (node, loses))?;
                let done = format!("evict the copy of volume {name} on {node}");
                Ok((Some(done), note.into_iter().collect()))
            }
            CopyCommand::List(list) => {
                let said: Vec<_> = list.nodes.iter().filter(|it| !it.is_empty()).collect();
                let said = said.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(", ");
                self.change_list(cores, seats, list)?;
                Ok((Some(format!("volume {name} has its copies on {said}")), Vec::new()))
            }
            CopyCommand::Recover(step) => {
                let (serves, told) = self.recover(cores, own, *step)?;
                Ok((serves.then(|| format!("{own} serves volume {name}")), told))
            }
            CopyCommand::Scrub(ask) => Ok((Some(self.scrub(cores, ask)?), Vec::new())),
        }
    }

    /// Changes the nodes with copies, and the size. A place keeps its node for ever: the members
    /// know each other by their places.
    fn change_list(
        &self,
        cores: &[LinkedSidecore],
        seats: &MemberSeats,
        list: &CopyList,
    ) -> Result<(), Refused> {
        let wrong = |why: &str| {
            let error = format!("the copies of volume {:?}: {why}", self.volume());
            let way_out = format!(
                "the node's agent gives the list of the volume's placement. If the copy here is of \
                 another time: `vrio volume remove {} --data`",
                self.volume()
            );
            Refused::new(RefusedKind::Bad, error, way_out)
        };
        if !self.is_placed() {
            return Err(wrong("the list is in the nodes' files"));
        }
        let nodes = by_place(&list.nodes);
        let names: BTreeSet<_> = nodes.values().collect();
        let before = self.list().nodes;
        let moved =
            |(place, node): (&MemberId, &String)| before.get(place).is_some_and(|it| it != node);
        let has_own = before
            .iter()
            .any(|(place, node)| self.is_own(*place) && nodes.get(place) == Some(node));
        if !has_own || names.len() < nodes.len() || nodes.iter().any(moved) {
            return Err(wrong("a node is at another place, or this node is not in the list"));
        }
        if list.nodes.len() > REPLICA_PLACES_MAX || nodes.len() > REPLICAS_MAX {
            return Err(wrong("there are more of them than a volume has"));
        }
        if list.size_bytes > PLACED_BYTES_MAX {
            return Err(wrong("they cannot be so large in a pool"));
        }
        let place = |node: &String| nodes.iter().find(|(_, it)| *it == node).map(|(at, _)| *at);
        let places = |nodes: &[String]| {
            let places = nodes.iter().map(place).collect::<Option<_>>();
            places.ok_or_else(|| wrong("a node that must go, or grow, is not in the list"))
        };
        let (leaving, small) = (places(&list.leaving)?, places(&list.small)?);
        let grown = self.grow(list.size_bytes);
        // Users get no more than the copy has: the record may be any client's.
        let size_bytes = list.serves_bytes.min(self.backend().info().size_bytes);
        self.set_list(MemberList { nodes, leaving, small, size_bytes }, cores, seats.doors());
        grown
    }

    /// Has the copy in its pool at least this size.
    fn grow(&self, size_bytes: u64) -> Result<(), Refused> {
        let backend = self.backend();
        if size_bytes <= backend.info().size_bytes {
            return Ok(());
        }
        let refused = |why: String| {
            let error = format!("the copy of volume {:?} cannot grow: {why}", self.volume());
            let way_out = "make room in its pool: it is tried again and again";
            Refused::new(RefusedKind::Failed, error, way_out)
        };
        let resizable = backend.as_resizable();
        let resizable = resizable.ok_or_else(|| refused("it is not in a pool".to_owned()))?;
        self.want_bytes(size_bytes);
        let resized = resizable.resize(size_bytes, None, false);
        resized.map(drop).map_err(|error| refused(error.to_string()))
    }

    /// Refuses another size by the word of one node.
    ///
    /// # Errors
    /// The way to another size.
    pub fn refuse_resize(&self) -> Result<(), Refused> {
        let name = self.volume();
        let error = format!(
            "volume {name:?} has copies on several nodes: the copies of other nodes would keep \
             their size"
        );
        let way_out = match self.is_placed() {
            true => format!("`vrio volume resize {name} SIZE --cluster` has all copies grow"),
            false => "docs/replicas.md, \"Changing the list\", says how".to_owned(),
        };
        Err(Refused::new(RefusedKind::Conflict, error, way_out))
    }

    /// Whether it serves the volume, so that it can change the snapshots of all copies.
    pub fn is_primary(&self) -> bool {
        self.status().role == CopyRole::Primary
    }

    /// Begins to take a snapshot with this name, at this time in seconds since 1970: all copies in
    /// sync do so at the same place among the writes.
    ///
    /// # Errors
    /// When another node serves, or another change of the snapshots is under way.
    pub fn take_snapshot(
        &self,
        cores: &[LinkedSidecore],
        name: &str,
        at_s: u64,
    ) -> Result<SnapshotWait, Refused> {
        self.change_snapshots(cores, SnapshotChange::Take { name: name.to_owned(), at_s })
    }

    /// Begins to remove a snapshot from all copies in sync.
    ///
    /// # Errors
    /// As [`Self::take_snapshot`] has them.
    pub fn remove_snapshot(
        &self,
        cores: &[LinkedSidecore],
        name: &str,
    ) -> Result<SnapshotWait, Refused> {
        self.change_snapshots(cores, SnapshotChange::Remove { name: name.to_owned() })
    }

    fn change_snapshots(
        &self,
        cores: &[LinkedSidecore],
        change: SnapshotChange,
    ) -> Result<SnapshotWait, Refused> {
        let volume = self.volume();
        let status = self.status();
        if status.role != CopyRole::Primary {
            return Err(not_here(&status, volume));
        }
        let (SnapshotChange::Take { name, .. } | SnapshotChange::Remove { name }) = &change;
        let takes = matches!(change, SnapshotChange::Take { .. });
        if takes && name.len() > TAKEN_NAME_MAX || name.len() > SNAPSHOT_NAME_MAX {
            let error = format!("the name {name:?} is too long for volume {volume:?}");
            let way_out = format!("take one of at most {TAKEN_NAME_MAX} characters");
            return Err(Refused::new(RefusedKind::Bad, error, way_out));
        }
        let refused = |why: String| {
            let error = format!("volume {volume:?}: {why}");
            Refused::new(RefusedKind::Conflict, error, "nothing was changed; try again")
        };
        let name = name.clone();
        let begun = self.with_host(cores, move |host| host.change_snapshots(change));
        let begun = begun.ok_or_else(|| refused("its copy here has ended".to_owned()))?;
        let ends = begun.map_err(refused)?;
        let (volume, status) = (volume.to_owned(), self.member_status());
        Ok(SnapshotWait { volume, name, takes, ends, status })
    }

    fn make_primary(&self, cores: &[LinkedSidecore], own: &str, node: &str) -> Result<(), Refused> {
        let name = self.volume();
        let to = self.place_of(node).ok_or_else(|| no_copy(self, node))?;
        let status = self.status();
        if status.role != CopyRole::Primary {
            return Err(not_here(&status, name));
        }
        if own == node {
            return Ok(());
        }
        if !status.in_sync.iter().any(|it| it == node) {
            let error = format!("the copy of volume {name:?} on {node} lacks writes");
            let way_out = "`vrio status` says when it is in sync; nothing was changed";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        self.order(cores, MemberOrder::Move(to));
        let has_moved = wait_until(|| !self.moves());
        let now = self.status();
        if has_moved && now.role == CopyRole::Backup && now.primary.as_deref() == Some(node) {
            return Ok(());
        }
        let error = format!("{node} does not serve volume {name:?} as far as this node knows");
        let way_out = "`vrio status` here and on that node says where it is served";
        Err(Refused::new(RefusedKind::Failed, error, way_out))
    }

    /// Takes a copy out of the copies that the volume waits for.
    fn evict(
        &self,
        cores: &[LinkedSidecore],
        own: &str,
        (node, loses): (&str, bool),
    ) -> Result<Option<String>, Refused> {
        let name = self.volume();
        let place = self.place_of(node).ok_or_else(|| no_copy(self, node))?;
        if own == node {
            let error = format!("{node} is this node, and its copy of volume {name:?} is here");
            let way_out = "run the command on a node with another copy";
            return Err(Refused::new(RefusedKind::Bad, error, way_out));
        }
        let status = self.status();
        if status.role == CopyRole::Backup || status.primary.is_none() && status.epoch == 0 {
            return Err(not_here(&status, name));
        }
        if status.role == CopyRole::Failed {
            let error = format!("the copy of volume {name:?} here has stopped: {}", status.why);
            let way_out = "run the command on a node with another copy";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        if !status.in_sync.iter().any(|it| it == node) {
            return Ok(Some(format!("the volume does not wait for the copy on {node}")));
        }
        if status.role == CopyRole::Outside && !status.in_sync.iter().any(|it| it == own) {
            let error =
                format!("the copy of volume {name:?} here was not in sync, and cannot serve");
            let way_out = format!("run the command on one of {}", status.in_sync.join(", "));
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        if status.role == CopyRole::Outside && !loses {
            let error = format!(
                "volume {name:?} is not served, and acknowledged writes may be on {node} alone"
            );
            let way_out = "start that node; with --force they are given up, and guests are told";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        self.order(cores, MemberOrder::Evict(place));
        let is_out = || !self.status().in_sync.iter().any(|it| it == node);
        Ok((!wait_until(is_out)).then(|| {
            format!(
                "the volume waits for {node} still: for the registry, for the end of leases, or \
                 for other copies in sync. Run the command again when `vrio status` shows no change"
            )
        }))
    }
}

fn no_copy(member: &ServedMember, node: &str) -> Refused {
    let name = member.volume();
    let error = format!("node {node:?} has no copy of volume {name:?}");
    let nodes: Vec<_> = member.list().nodes.into_values().collect();
    let way_out = format!("its copies are on {}", nodes.join(", "));
    Refused::new(RefusedKind::Unknown, error, way_out)
}

pub(crate) fn not_here(status: &CopyStatus, name: &str) -> Refused {
    let (at, way_out) = match &status.primary {
        Some(node) => (format!("{node} serves it"), format!("run the command on {node}")),
        None => {
            let way_out = "`vrio cluster status` says whether the registry answers".to_owned();
            ("it is not known where it is served".to_owned(), way_out)
        }
    };
    let error = format!("this node does not serve volume {name:?}: {at}");
    Refused::new(RefusedKind::Conflict, error, way_out)
}

/// Waits for an effect, and says whether it came.
fn wait_until(mut is_there: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + EFFECT_TIME_MAX;
    loop {
        if is_there() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
