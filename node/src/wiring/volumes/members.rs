//! Members of replicated volumes: from a volume of a pool to what its users see, and back again.
//!
//! ```text
//!   disks, peers ──▶ Export ──▶ chain ──▶ FrontVolume ··▶ MemberHost ──▶ volume of the pool
//! ```
//!
//! A member is made with its volume, before there are sidecores, and starts on its sidecore as soon
//! as these run. Its volume takes requests from the moment on in which the member serves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::agent::{RecordAsk, RecordOutcome};
use api::status::{CopyRole, CopyStatus};
use api::{Refused, RefusedKind};
use block::Export;
use config::VolumeConfig;
use member::door::{MemberDoor, MemberDoors};
use member::plane::{PlaneMail, ReplicaPlane};
use member::{
    DeskLanes, DeskThreads, DeskWork, FrontVolume, HostOutside, MemberHost, MemberPart, MemberPlan,
    MemberSetup, MemberStatus, MemberView, NODE_PACING, PlaceWatch, PoolTasks, RecordClerk,
    StateFile, VolumeRecords, VolumeTasks, record_from_text, record_text,
};
use parking_lot::Mutex;
use replica::{MemberId, SwapOutcome, VolumeRecord};
use sessions::{LinkedSidecore, random};
use sidecore::{EarlyWaker, PollerId, RoundStage, Waker};
use volume::backend::BackendVolume;
use volume::record::{RecordStore, make_private};

use super::ServedVolume;
use super::identity::CopyIdentity;
use crate::wiring::cluster::ClusterView;
use crate::wiring::inside::Inside;

/// The directory of the members' private files, among the volumes' records. It cannot be a
/// volume's, since those have no dot in their files' names.
const MEMBERS: &str = "own.members";

/// How long a member may take to let its volume go: as long as a disk may take to close.
const ABANDON_TIME_MAX: Duration = Duration::from_secs(4);

/// How long a stop waits until another member serves: a planned move takes some milliseconds.
const MOVE_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause between two looks at a member that ends or moves.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The member of a replicated volume.
#[derive(Debug)]
pub(crate) struct ServedMember {
    volume: String,
    /// Its own place in the list of nodes, and the nodes by their places.
    id: MemberId,
    nodes: BTreeMap<MemberId, String>,
    /// The index of its sidecore.
    home: usize,
    front: Arc<FrontVolume>,
    records: Arc<dyn RecordStore>,
    door: Arc<MemberDoor>,
    status: Arc<MemberStatus>,
    running: Mutex<MemberRun>,
}

/// How far a member is.
#[derive(Debug)]
enum MemberRun {
    /// It waits for its sidecore.
    Planned(Box<PlannedMember>),
    /// It is polled by its sidecore.
    Polled(DeskThreads),
    /// It has ended, or it could not be started.
    Ended,
}

/// The parts of a member that has not started.
#[derive(Debug)]
struct PlannedMember {
    plan: MemberPlan,
    state: StateFile,
    has_state: bool,
    life: u64,
    tasks: PoolTasks,
}

/// The parts of a node that its members share.
#[derive(Debug)]
pub(crate) struct MemberSeats {
    doors: Arc<MemberDoors>,
    early: Vec<EarlyWaker>,
    /// Members that were made so far: they take turns on the sidecores.
    made: Mutex<usize>,
}

impl MemberSeats {
    /// For a node with so many sidecores.
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    pub(crate) fn new(cores: usize) -> std::io::Result<Self> {
        let early = (0..cores).map(|_| EarlyWaker::new()).collect::<Result<_, _>>()?;
        Ok(Self { doors: Arc::default(), early, made: Mutex::default() })
    }

    /// The ways of other members' messages.
    pub(crate) fn doors(&self) -> &Arc<MemberDoors> {
        &self.doors
    }

    /// The wakers of the sidecores, by index.
    pub(crate) fn early(&self) -> &[EarlyWaker] {
        &self.early
    }

    /// Makes the member of a volume of a pool. `state` is the directory of what the node remembers.
    ///
    /// # Errors
    /// Why there is none, and the way out.
    pub(crate) fn plan(
        &self,
        (wanted, node): (&VolumeConfig, &str),
        backend: &Arc<dyn BackendVolume>,
        state: &Path,
    ) -> Result<ServedMember, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let volume = wanted.name.clone();
        let directory = state.join(MEMBERS);
        make_private(&directory).map_err(|error| {
            format!("its member cannot remember what it promises: {directory:?}: {error}")
        })?;
        let state = StateFile::new(&directory.join(&volume));
        let kept = state.load().map_err(|error| text(&error))?;
        let (has_state, durable) = (kept.is_some(), kept.unwrap_or_default());
        let (pool, own) = backend.in_pool().ok_or("only a volume of a pool has copies")?;
        let mut in_pool = pool.volumes().into_iter();
        let has_content =
            in_pool.any(|it| it.id == own && (it.owned_blocks > 0 || it.parent.is_some()));
        CopyIdentity::new(node, &wanted.replicas, pool.uuid(), own.0).verify(
            &directory,
            &volume,
            (has_state, has_content),
        )?;
        let mut tasks = PoolTasks::new(Arc::clone(pool), own);
        let cuts = tasks.cuts()?;
        let nodes: BTreeMap<MemberId, String> =
            (0..).zip(wanted.replicas.iter().cloned()).collect();
        let id = nodes.iter().find(|(_, name)| *name == node).map(|(id, _)| *id);
        let id = id.ok_or_else(|| format!("node {node:?} is not in \"replicas\""))?;
        let drawn = || random().map_err(|error| text(&error));
        let life = drawn()?;
        let number = (u128::from(drawn()?) << 64 | u128::from(drawn()?)).to_le_bytes();
        let own = Arc::clone(backend) as Arc<dyn volume::Volume>;
        let pacing = NODE_PACING;
        let (names, name) = (nodes.clone(), volume.clone());
        let setup = MemberSetup {
            volume: name,
            id,
            nodes: names,
            life,
            number,
            pacing,
            durable,
            cuts,
            settings: settings_of(wanted),
            own,
        };
        let home = {
            let mut made = self.made.lock();
            *made += 1;
            (*made - 1) % self.early.len()
        };
        let plan = MemberPlan::new(setup, &self.early[home].waker());
        let records = Arc::clone(&plan.records) as Arc<dyn RecordStore>;
        Ok(ServedMember {
            volume,
            id,
            nodes,
            home,
            front: Arc::clone(&plan.front),
            records,
            door: Arc::clone(&plan.door),
            status: Arc::clone(&plan.status),
            running: Mutex::new(MemberRun::Planned(Box::new(PlannedMember {
                plan,
                state,
                has_state,
                life,
                tasks,
            }))),
        })
    }
}

/// The settings that all copies of a volume must have alike, besides their list and the size.
fn settings_of(wanted: &VolumeConfig) -> Vec<String> {
    let stages = wanted.chain.iter().map(|stage| format!("stage {}", stage.kind().name));
    stages.chain([format!("shared {}", wanted.shared)]).collect()
}

/// The members on a sidecore, by volume: a service of it.
type HostsHere = BTreeMap<String, (PollerId, Rc<RefCell<MemberHost>>)>;

impl ServedMember {
    /// The volume as its users see it.
    pub(crate) fn front(&self) -> Arc<FrontVolume> {
        Arc::clone(&self.front)
    }

    /// The records of its guard.
    pub(crate) fn records(&self) -> Arc<dyn RecordStore> {
        Arc::clone(&self.records)
    }

    /// Its state.
    fn view(&self) -> MemberView {
        self.status.view()
    }

    /// Its state for the node's status.
    pub(crate) fn status(&self) -> CopyStatus {
        let MemberView { part, primary, epoch, in_sync, waits, failed } = self.view();
        let has_ended = matches!(*self.running.lock(), MemberRun::Ended);
        let role = match part {
            _ if has_ended => CopyRole::Failed,
            MemberPart::Outside => CopyRole::Outside,
            MemberPart::Backup => CopyRole::Backup,
            MemberPart::TakesOver => CopyRole::TakesOver,
            MemberPart::Serves => CopyRole::Primary,
            MemberPart::Failed => CopyRole::Failed,
        };
        let missing = self.nodes.values().filter(|node| !in_sync.contains(node));
        let missing = missing.cloned().collect();
        let why = failed.or(waits).unwrap_or_default();
        CopyStatus { role, primary, epoch, in_sync, missing, why }
    }

    /// Starts the member on its sidecore.
    ///
    /// # Errors
    /// Why it cannot start, and the way out. Its volume takes no requests then.
    fn start(&self, export: &Arc<Export>, node: &Inside) -> Result<(), String> {
        let mut running = self.running.lock();
        let MemberRun::Planned(planned) = std::mem::replace(&mut *running, MemberRun::Ended) else {
            return Ok(());
        };
        let PlannedMember { plan, state, has_state, life, tasks } = *planned;
        let records = AgentRecords { cluster: node.cluster.clone(), volume: self.volume.clone() };
        let records = Box::new(records) as Box<dyn VolumeRecords>;
        let clerk = RecordClerk::new(records, &self.volume, (self.id, life), has_state);
        let work = DeskWork { state, clerk, tasks: Box::new(tasks) };
        let home = &node.cores[self.home].sidecore;
        let (lanes, threads) = DeskLanes::start(work, &home.waker())
            .map_err(|error| format!("no thread for its member: {error}"))?;
        let wakers = node.cores.iter().map(|core| core.sidecore.waker()).collect();
        let watch = ExportWatch { export: Arc::clone(export), wakers };
        let (volume, id, nodes) = (self.volume.clone(), self.id, self.nodes.clone());
        let form = self.door.form();
        let started = home.call(move |local| {
            let services = local.services().clone();
            let plane = services.get::<ReplicaPlane>().ok_or("this node has no sessions")?;
            let mut others = nodes;
            others.remove(&id);
            let outside = HostOutside {
                mail: Box::new(PlaneMail::new(plane, &volume, form, &others)),
                desk: Box::new(lanes),
                watch: Box::new(watch),
                clock: Box::new(sidecore::boot_ns),
            };
            let host = MemberHost::start(plan, &services, outside);
            let host = Rc::new(RefCell::new(host.map_err(|error| error.to_string())?));
            let poller = local.add(RoundStage::Serve, Box::new(Rc::clone(&host)));
            let hosts = services.get::<HostsHere>().unwrap_or_default();
            hosts.borrow_mut().insert(volume, (poller, host));
            services.insert(hosts);
            Ok::<_, String>(())
        });
        started.map_err(|error| error.to_string()).flatten()?;
        node.volumes.seats().doors().insert(&self.volume, Arc::clone(&self.door));
        *running = MemberRun::Polled(threads);
        Ok(())
    }

    /// Ends the member. Its thread may wait for the registry until the node asks it nothing more.
    pub(crate) fn stop(&self, cores: &[LinkedSidecore], doors: &MemberDoors) {
        let run = std::mem::replace(&mut *self.running.lock(), MemberRun::Ended);
        let MemberRun::Polled(threads) = run else { return };
        doors.remove(&self.volume);
        let home = &cores[self.home].sidecore;
        let until = Instant::now() + ABANDON_TIME_MAX;
        loop {
            let volume = self.volume.clone();
            let ended = home.call(move |local| {
                let Some(hosts) = local.services().get::<HostsHere>() else { return true };
                let Some((poller, host)) = hosts.borrow().get(&volume).cloned() else {
                    return true;
                };
                let has_ended = host.borrow_mut().abandon(sidecore::now_ns());
                if has_ended {
                    local.remove(poller);
                    hosts.borrow_mut().remove(&volume);
                }
                has_ended
            });
            // A sidecore that has stopped polls nothing any more.
            if ended.unwrap_or(true) {
                break;
            }
            if Instant::now() >= until {
                tracing::error!(volume = self.volume, "its storage holds requests of its member");
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        threads.join();
    }

    /// Makes another member in sync the primary, if this one serves.
    pub(crate) fn move_away(&self, cores: &[LinkedSidecore]) {
        let view = self.view();
        let is_other = |id: &MemberId| *id != self.id;
        let next = self.nodes.iter().find(|(id, node)| is_other(id) && view.in_sync.contains(node));
        let (MemberPart::Serves, Some((next, _))) = (view.part, next) else { return };
        let (volume, next) = (self.volume.clone(), *next);
        let ordered = cores[self.home].sidecore.call(move |local| {
            let hosts = local.services().get::<HostsHere>()?;
            let host = Rc::clone(&hosts.borrow().get(&volume)?.1);
            host.borrow_mut().order(sidecore::now_ns(), replica::Input::Move(next));
            Some(())
        });
        let until = Instant::now() + MOVE_TIME_MAX;
        while matches!(ordered, Ok(Some(())))
            && self.view().part == MemberPart::Serves
            && Instant::now() < until
        {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Refuses to serve a copy of a replicated volume as a volume of its own.
///
/// # Errors
/// When this node has the promises of a member of this volume.
pub(crate) fn refuse_plain(state: &Path, volume: &str) -> Result<(), String> {
    let directory = state.join(MEMBERS);
    if !CopyIdentity::is_noted(&directory, volume) {
        return Ok(());
    }
    Err(format!(
        "this node has a copy of the replicated volume {volume:?}, and the file has no \
         \"replicas\" for it: other nodes may have newer writes. Put the key back; or, to have \
         this copy as a volume of its own, remove {volume}.copy and {volume} from {directory:?}"
    ))
}

/// Refuses a change of a volume's content or size that the protocol of its members does not carry.
///
/// # Errors
/// For a volume with copies on several nodes.
pub(crate) fn refuse_replicated(served: &ServedVolume, why: &str) -> Result<(), Refused> {
    let Some(member) = &served.member else { return Ok(()) };
    let error = format!("volume {:?} has copies on several nodes: {why}", member.volume);
    let way_out = "docs/limits.md says what such a volume cannot do yet; nothing was changed";
    Err(Refused::new(RefusedKind::Conflict, error, way_out))
}

/// Starts the members of all volumes that have one. A member that cannot start is logged, and its
/// status says why: other volumes are served all the same.
pub(crate) fn start_all(node: &Inside) {
    let volumes = node.objects().volumes.clone();
    for served in volumes {
        start(&served, node);
    }
}

/// Starts the member of a volume, if it has one.
pub(crate) fn start(served: &ServedVolume, node: &Inside) {
    let Some(member) = &served.member else { return };
    if let Err(why) = member.start(&served.export, node) {
        tracing::error!(volume = member.volume, why, "its copy here does not work");
    }
}

/// The guard of a volume with copies.
struct ExportWatch {
    export: Arc<Export>,
    /// Of all sidecores: their servers end channels whose epochs are over.
    wakers: Vec<Waker>,
}

impl PlaceWatch for ExportWatch {
    fn serves(&mut self) -> Result<(), String> {
        let served = self.export.serve_here().map_err(|error| error.to_string());
        self.wakers.iter().for_each(Waker::wake);
        served
    }

    fn elsewhere(&mut self, node: &str) {
        self.export.set_elsewhere(Some(node));
        self.wakers.iter().for_each(Waker::wake);
    }
}

/// The record of a volume in the cluster's registry, by way of the node's agent.
struct AgentRecords {
    cluster: ClusterView,
    volume: String,
}

impl VolumeRecords for AgentRecords {
    fn look(&mut self) -> Result<Option<VolumeRecord>, String> {
        match self.cluster.ask(&self.volume, RecordAsk::Look) {
            RecordOutcome::Record(text) => record_from_text(&text).map(Some),
            RecordOutcome::NoRecord => Ok(None),
            RecordOutcome::Done => Err("the agent has answered another question".to_owned()),
            RecordOutcome::NoAnswer(why) => Err(why),
        }
    }

    fn create(&mut self, first: &VolumeRecord) -> Result<(), String> {
        match self.cluster.ask(&self.volume, RecordAsk::Create(record_text(first))) {
            RecordOutcome::Done => Ok(()),
            RecordOutcome::NoAnswer(why) => Err(why),
            other => Err(format!("the agent has answered another question: {other:?}")),
        }
    }

    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        match self.cluster.ask(&self.volume, RecordAsk::Swap(record_text(target))) {
            RecordOutcome::Done => SwapOutcome::Done,
            RecordOutcome::Record(text) => {
                record_from_text(&text).map_or(SwapOutcome::Unknown, SwapOutcome::Conflict)
            }
            RecordOutcome::NoRecord | RecordOutcome::NoAnswer(_) => SwapOutcome::Unknown,
        }
    }
}
