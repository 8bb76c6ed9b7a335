//! Members of replicated volumes: from a volume of a pool to the volume of its users, and back.
//!
//! ```text
//!   disks, peers ──▶ Export ──▶ chain ──▶ FrontVolume ··▶ MemberHost ──▶ volume of the pool
//! ```
//!
//! A member is made with its volume, before there are sidecores, and starts on its sidecore as soon
//! as these run. Its volume takes requests from the moment on in which the member serves.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use api::agent::{RecordAsk, RecordOutcome, RecordRemake};
use api::status::{CopyRole, CopyStatus};
use block::Export;
use config::VolumeConfig;
use member::door::{MemberDoor, MemberDoors};
use member::plane::{PlaneMail, ReplicaPlane};
use member::{
    DeskLanes, DeskThreads, DeskWork, FrontVolume, HostOutside, MemberHost, MemberList, MemberPart,
    MemberPlan, MemberSetup, MemberStatus, MemberView, NODE_PACING, PlaceWatch, PoolTasks,
    RecordClerk, RecordDeskError, StateFile, VolumeRecords, VolumeTask, VolumeTaskEnd, VolumeTasks,
    form_text, record_from_text, record_text,
};
use parking_lot::Mutex;
use replica::{Durable, MemberId, Pacing, Place, RecoveryPlan, SwapOutcome, VolumeRecord};
use sessions::{LinkedSidecore, random};
use sidecore::{EarlyWaker, PollerId, RoundStage, Waker};
use store::PoolVolume;
use volume::Volume;
use volume::backend::BackendVolume;
use volume::record::{FileRecords, RecordStore, make_private};
use volume::stage::VolumeKey;

use crate::agent::{ClusterView, EndsOfOthers, RecordOf};
use crate::identity::{CopyIdentity, forget_copies, state_path};

/// The directory of the members' private files, among the volumes' records. It cannot be a
/// volume's, since volumes have no dot in their files' names.
const MEMBERS: &str = "own.members";

/// How long a member may take to let its volume go: as long as a disk may take to close.
const ABANDON_TIME_MAX: Duration = Duration::from_secs(4);

/// How long a stop waits until another member serves: a planned move takes some milliseconds.
const MOVE_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a stop waits until the content of a member is durable. With the times for moves and for
/// letting go this is less than a node's stop may take.
const RETIRE_TIME_MAX: Duration = Duration::from_secs(3);

/// The pause between two looks at a member that ends or moves.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A list of a file fits into a record.
const _: () = assert!(config::REPLICAS_MAX <= replica::MEMBERS_MAX);

/// And all places that a placed volume's list has in its life.
const _: () = assert!(config::REPLICA_PLACES_MAX == registry::COPY_PLACES_MAX);

/// A pool can have a volume of each size that a placement has.
const _: () = assert!(
    registry::PLACED_BYTES_MAX
        == store::stream::VOLUME_BLOCKS_MAX * store::block::BLOCK_BYTES as u64
);

/// The member of a replicated volume.
#[derive(Debug)]
pub struct ServedMember {
    volume: String,
    /// Its own place in the list of nodes.
    id: MemberId,
    /// The cluster has placed the volume: its list of nodes may change.
    is_placed: bool,
    /// The nodes by their places, which also the questions to the registry name.
    list: Arc<Mutex<MemberList>>,
    /// Its volume of the pool.
    backend: Arc<dyn BackendVolume>,
    /// The size that its volume of the pool must have, also after a way back to a cut.
    wanted_bytes: Arc<AtomicU64>,
    /// The index of its sidecore.
    home: usize,
    front: Arc<FrontVolume>,
    records: Arc<dyn RecordStore>,
    door: Arc<MemberDoor>,
    status: Arc<MemberStatus>,
    running: Mutex<MemberRun>,
    /// The member was ended: its threads ask the registry nothing more.
    is_over: Arc<AtomicBool>,
}

/// An operator's word to a member.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemberOrder {
    /// That member serves from now on.
    Move(MemberId),
    /// That member's copy is gone for good.
    Evict(MemberId),
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
    /// The state without the end of the last life, which is good for one start.
    begun: Option<Durable>,
    life: u64,
    tasks: PoolTasks,
}

/// The copy of a volume on this node, before it is made.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCopy<'p> {
    /// The volume's configuration.
    pub wanted: &'p VolumeConfig,
    /// This node.
    pub node: &'p str,
    /// The volume of the pool.
    pub backend: &'p Arc<dyn BackendVolume>,
    /// The records of the time in which the volume was this node's alone.
    pub records: Option<&'p FileRecords>,
    /// The key of its chain.
    pub key: Option<&'p VolumeKey>,
    /// The directory of the node's memory.
    pub state: &'p Path,
}

impl PlannedCopy<'_> {
    /// The size that users have, of a volume that the cluster has placed: its volume of the pool
    /// may be larger already.
    fn placed_bytes(&self) -> Option<u64> {
        self.wanted.placement?;
        let told_bytes = self.wanted.backend.pool().and_then(|pool| pool.size_bytes);
        Some(told_bytes.unwrap_or_else(|| self.backend.info().size_bytes))
    }

    /// Proves that it is the copy that it was, and gives the tasks on its volume.
    fn identify(&self, directory: &Path, has_state: bool) -> Result<PoolTasks, String> {
        let (pool, own) = self.backend.in_pool().ok_or("only a volume of a pool has copies")?;
        // The first copy of a placed volume may begin as a snapshot.
        let is_first = self.wanted.replicas.first().is_some_and(|it| it == self.node);
        let may_be_clone = is_first && self.wanted.placement.is_some();
        let all = pool.volumes();
        let is_clone = |it: &PoolVolume| {
            let parent = all.iter().find(|parent| Some(parent.id) == it.parent);
            may_be_clone && parent.is_some_and(|parent| parent.of != Some(own))
        };
        let has_content =
            |it: &PoolVolume| it.owned_blocks > 0 || it.parent.is_some() && !is_clone(it);
        let has_content = all.iter().any(|it| it.id == own && has_content(it));
        let identity = CopyIdentity::new(self.node, self.wanted, pool.uuid(), own.0);
        identity.verify(directory, &self.wanted.name, (has_state, has_content))?;
        Ok(PoolTasks::new(Arc::clone(pool), own))
    }
}

/// The parts of a node that its members share.
#[derive(Debug)]
pub struct MemberSeats {
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
    pub fn new(cores: usize) -> std::io::Result<Self> {
        let early = (0..cores).map(|_| EarlyWaker::new()).collect::<Result<_, _>>()?;
        Ok(Self { doors: Arc::default(), early, made: Mutex::default() })
    }

    /// The ways of other members' messages.
    pub fn doors(&self) -> &Arc<MemberDoors> {
        &self.doors
    }

    /// The wakers of the sidecores, by index.
    pub fn early(&self) -> &[EarlyWaker] {
        &self.early
    }

    /// Makes the member of a volume of a pool.
    ///
    /// # Errors
    /// Why there is none, and the way out.
    pub fn plan(&self, copy: &PlannedCopy<'_>) -> Result<ServedMember, String> {
        let PlannedCopy { wanted, node, backend, records, key, state } = *copy;
        let volume = wanted.name.clone();
        let directory = state.join(MEMBERS);
        make_private(&directory).map_err(|error| {
            format!("its member cannot remember what it promises: {directory:?}: {error}")
        })?;
        let state = StateFile::new(&state_path(&directory, &volume));
        let kept = state.load().map_err(|error| error.to_string())?;
        let (has_state, durable) = (kept.is_some(), kept.unwrap_or_default());
        records.filter(|_| !has_state).map_or(Ok(()), |it| refuse_open_attachments(it))?;
        let nodes = by_place(&wanted.replicas);
        let id = nodes.iter().find(|(_, name)| *name == node).map(|(id, _)| *id);
        let id = id.ok_or_else(|| format!("node {node:?} is not in \"replicas\""))?;
        let drawn = || random().map_err(|error| error.to_string());
        let life = drawn()?;
        let number = (u128::from(drawn()?) << 64 | u128::from(drawn()?)).to_le_bytes();
        let mut tasks = copy.identify(&directory, has_state)?;
        // Cuts of a new member's volume are another cluster's, or a user's.
        let reign = durable.record.as_ref().map_or(0, |record| record.reign);
        let cuts = if has_state { find_cuts(&mut tasks, reign)? } else { BTreeSet::new() };
        let own = Arc::clone(backend) as Arc<dyn Volume>;
        let pacing = Pacing { members: nodes.len(), ..NODE_PACING };
        let begun = durable.ended.as_ref().map(|_| Durable { ended: None, ..durable.clone() });
        let settings = settings(wanted, key);
        let placed_bytes = copy.placed_bytes();
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
            settings,
            placed_bytes,
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
            is_placed: wanted.placement.is_some(),
            list: Arc::new(Mutex::new(MemberList::of_size(nodes, placed_bytes))),
            backend: Arc::clone(backend),
            wanted_bytes: Arc::clone(tasks.wanted_bytes()),
            home,
            front: Arc::clone(&plan.front),
            records,
            door: Arc::clone(&plan.door),
            status: Arc::clone(&plan.status),
            running: Mutex::new(MemberRun::Planned(Box::new(PlannedMember {
                plan,
                state,
                has_state,
                begun,
                life,
                tasks,
            }))),
            is_over: Arc::default(),
        })
    }
}

/// The members on a sidecore, by volume: a service of it.
type HostsHere = BTreeMap<String, (PollerId, Rc<RefCell<MemberHost>>)>;

impl ServedMember {
    /// The volume as its users see it.
    pub fn front(&self) -> Arc<FrontVolume> {
        Arc::clone(&self.front)
    }

    /// The records of its guard.
    pub fn records(&self) -> Arc<dyn RecordStore> {
        Arc::clone(&self.records)
    }

    /// Its state, also when this is gone.
    pub(crate) fn member_status(&self) -> Arc<MemberStatus> {
        Arc::clone(&self.status)
    }

    /// Its state.
    fn view(&self) -> MemberView {
        self.status.view()
    }

    /// Its state for the node's status.
    pub fn status(&self) -> CopyStatus {
        let view = self.view();
        let MemberView { part, primary, epoch, in_sync, filling, failed, waits, .. } = view;
        let has_ended = matches!(*self.running.lock(), MemberRun::Ended);
        // A record can name this node while its member does not serve.
        let is_serving = matches!(part, MemberPart::Serves | MemberPart::TakesOver);
        let list = self.list();
        let places = if self.is_placed { list.names() } else { Vec::new() };
        let placed = |bytes| Some(bytes).filter(|_| self.is_placed);
        let has_bytes = placed(self.backend.info().size_bytes);
        let MemberList { nodes, leaving, small, size_bytes } = list;
        let serves_bytes = placed(size_bytes);
        let primary = primary.filter(|it| is_serving || nodes.get(&self.id) != Some(it));
        let role = match part {
            _ if has_ended => CopyRole::Failed,
            MemberPart::Outside => CopyRole::Outside,
            MemberPart::Backup => CopyRole::Backup,
            MemberPart::TakesOver => CopyRole::TakesOver,
            MemberPart::Serves => CopyRole::Primary,
            MemberPart::Failed => CopyRole::Failed,
        };
        let missing = nodes.values().filter(|node| !in_sync.contains(node));
        let missing = missing.cloned().collect();
        let named = |of: &BTreeSet<MemberId>| {
            of.iter().filter_map(|member| nodes.get(member).cloned()).collect()
        };
        let (leaving, small) = (named(&leaving), named(&small));
        let why = failed.or(waits).unwrap_or_default();
        CopyStatus {
            role,
            primary,
            epoch,
            in_sync,
            missing,
            places,
            leaving,
            small,
            has_bytes,
            serves_bytes,
            filling,
            why,
            repaired_bytes: view.repaired_bytes,
            lost: view.lost,
            scrub: view.scrub.map(|scrub| self.scrub_status(scrub)),
        }
    }

    /// The size that users have: here, or as the node's agent has told.
    pub fn size_bytes(&self) -> u64 {
        let size_bytes = self.front.info().size_bytes;
        match self.view().part {
            MemberPart::Serves => size_bytes,
            _ => size_bytes.max(self.list.lock().size_bytes),
        }
    }

    /// Its volume of the pool.
    pub(crate) fn backend(&self) -> &dyn BackendVolume {
        &*self.backend
    }

    /// Its volume of the pool must have this size at least: a way back to a cut does not undo it.
    pub(crate) fn want_bytes(&self, bytes: u64) {
        self.wanted_bytes.fetch_max(bytes, SeqCst);
    }

    /// Starts the member on its sidecore.
    ///
    /// # Errors
    /// Why it cannot start, and the way out. Its volume takes no requests then.
    pub fn start(
        &self,
        export: &Arc<Export>,
        cores: &[LinkedSidecore],
        (cluster, seats): (&ClusterView, &MemberSeats),
    ) -> Result<(), String> {
        let mut running = self.running.lock();
        let MemberRun::Planned(planned) = std::mem::replace(&mut *running, MemberRun::Ended) else {
            return Ok(());
        };
        let PlannedMember { plan, state, has_state, begun, life, tasks } = *planned;
        // A crash from here on is a loss of what this process has not made durable.
        begun.map_or(Ok(()), |it| state.keep(&it)).map_err(|error| error.to_string())?;
        let records = AgentRecords {
            cluster: cluster.clone(),
            volume: self.volume.clone(),
            form: form_text(self.door.form()),
            list: Arc::clone(&self.list),
            is_placed: self.is_placed,
            is_over: Arc::clone(&self.is_over),
        };
        let records = Box::new(records) as Box<dyn VolumeRecords>;
        let clerk = RecordClerk::new(records, &self.volume, (self.id, life), has_state);
        let work = DeskWork { state, clerk, tasks: Box::new(tasks) };
        let home = &cores[self.home].sidecore;
        let (mut lanes, threads) = DeskLanes::start(work, &home.waker())
            .map_err(|error| format!("no thread for its member: {error}"))?;
        let news = lanes.news(&home.waker());
        let wakers = cores.iter().map(|core| core.sidecore.waker()).collect();
        let watch = ExportWatch { export: Arc::clone(export), wakers };
        let (volume, id, list) = (self.volume.clone(), self.id, self.list());
        let form = self.door.form().said_by(id);
        let started = home.call(move |local| {
            let services = local.services().clone();
            let plane = services.get::<ReplicaPlane>().ok_or("this node has no sessions")?;
            let mut others = list.nodes.clone();
            others.remove(&id);
            let outside = HostOutside {
                mail: Box::new(PlaneMail::new(plane, &volume, form, &others)),
                desk: Box::new(lanes),
                watch: Box::new(watch),
                clock: Box::new(sidecore::boot_ns),
            };
            let host = MemberHost::start(plan, &services, outside);
            let mut host = host.map_err(|error| error.to_string())?;
            // It may have changed since the plan was made.
            host.set_list(list);
            let life = host.life();
            let host = Rc::new(RefCell::new(host));
            let poller = local.add(RoundStage::Serve, Box::new(Rc::clone(&host)));
            let hosts = services.get::<HostsHere>().unwrap_or_default();
            hosts.borrow_mut().insert(volume, (poller, host));
            services.insert(hosts);
            Ok::<_, String>(life)
        });
        let life = started.map_err(|error| error.to_string()).flatten()?;
        let others = EndsOfOthers { list: Arc::clone(&self.list), news };
        cluster.follow_ends(&self.volume, life, others);
        seats.doors().insert(&self.volume, Arc::clone(&self.door));
        *running = MemberRun::Polled(threads);
        Ok(())
    }

    /// Ends the member. Its threads end after their present errands; of all errands, a change of a
    /// full pool may take half a minute.
    ///
    /// # Errors
    /// When its storage does not end the member's requests in time. The member has stopped all the
    /// same, and this may be called again.
    pub fn stop(
        &self,
        cores: &[LinkedSidecore],
        doors: &MemberDoors,
        cluster: &ClusterView,
    ) -> Result<(), String> {
        let run = std::mem::replace(&mut *self.running.lock(), MemberRun::Ended);
        let MemberRun::Polled(threads) = run else { return Ok(()) };
        doors.remove(&self.volume);
        let until = Instant::now() + ABANDON_TIME_MAX;
        while !self.abandon(&cores[self.home]) {
            if Instant::now() >= until {
                *self.running.lock() = MemberRun::Polled(threads);
                return Err(format!(
                    "its storage has held requests of its copy for {ABANDON_TIME_MAX:?}; the copy \
                     has stopped"
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.is_over.store(true, SeqCst);
        cluster.give_up(&self.volume);
        threads.join();
        Ok(())
    }

    /// Has the member end in order. Returns whether there is nothing more to wait for.
    fn retire(&self, cores: &[LinkedSidecore]) -> bool {
        let retired = self.with_host(cores, |host| host.retire(sidecore::now_ns()));
        retired.unwrap_or(true)
    }

    /// Asks the member on its sidecore. None if there is none.
    pub(crate) fn with_host<R: Send + 'static>(
        &self,
        cores: &[LinkedSidecore],
        ask: impl FnOnce(&mut MemberHost) -> R + Send + 'static,
    ) -> Option<R> {
        let volume = self.volume.clone();
        let asked = cores[self.home].sidecore.call(move |local| {
            let hosts = local.services().get::<HostsHere>()?;
            let host = Rc::clone(&hosts.borrow().get(&volume)?.1);
            let mut host = host.borrow_mut();
            Some(ask(&mut host))
        });
        asked.ok().flatten()
    }

    /// Has the member let its volume go. Returns whether it has.
    fn abandon(&self, home: &LinkedSidecore) -> bool {
        let volume = self.volume.clone();
        let ended = home.sidecore.call(move |local| {
            let Some(hosts) = local.services().get::<HostsHere>() else { return true };
            let Some((poller, host)) = hosts.borrow().get(&volume).cloned() else { return true };
            let has_ended = host.borrow_mut().abandon(sidecore::now_ns());
            if has_ended {
                local.remove(poller);
                hosts.borrow_mut().remove(&volume);
            }
            has_ended
        });
        // A sidecore that has stopped polls nothing any more.
        ended.unwrap_or(true)
    }

    /// The volume's name.
    pub(crate) fn volume(&self) -> &str {
        &self.volume
    }

    /// Whether the cluster has placed the volume.
    pub(crate) fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// Whether the place is this member's.
    pub(crate) fn is_own(&self, place: MemberId) -> bool {
        self.id == place
    }

    /// The nodes with a copy, by their places.
    pub(crate) fn list(&self) -> MemberList {
        self.list.lock().clone()
    }

    /// The place of a node in the list of nodes.
    pub(crate) fn place_of(&self, node: &str) -> Option<MemberId> {
        self.list.lock().place_of(node)
    }

    /// From now on the list has the nodes with a copy. The size gets no smaller.
    pub(crate) fn set_list(
        &self,
        mut list: MemberList,
        cores: &[LinkedSidecore],
        doors: &MemberDoors,
    ) {
        {
            let mut known = self.list.lock();
            list.size_bytes = list.size_bytes.max(known.size_bytes);
            known.clone_from(&list);
        }
        self.door.set_peers(list.peers(self.id));
        doors.look_again();
        // A member that has not started takes the list when it does.
        let _ = self.with_host(cores, move |host| host.set_list(list));
    }

    /// Gives the member an operator's word. Returns whether there is a member that hears it.
    pub(crate) fn order(&self, cores: &[LinkedSidecore], order: MemberOrder) -> bool {
        let ordered = self.with_host(cores, move |host| {
            let order = match order {
                MemberOrder::Move(to) => replica::Input::Move(to),
                MemberOrder::Evict(member) => replica::Input::Evicted(member),
            };
            host.order(sidecore::now_ns(), order);
        });
        ordered.is_some()
    }

    /// Orders that another member in sync becomes the primary, if this member serves. Returns
    /// whether there is a move to wait for.
    fn order_move(&self, cores: &[LinkedSidecore]) -> bool {
        let view = self.view();
        let is_other = |id: &MemberId| *id != self.id;
        let MemberList { nodes, leaving, .. } = self.list();
        let mut others =
            nodes.iter().filter(|(id, node)| is_other(id) && view.in_sync.contains(node));
        // Not to a member that must go itself, if there is another member.
        let next = others.clone().find(|(id, _)| !leaving.contains(id)).or_else(|| others.next());
        let (MemberPart::Serves, Some((next, _))) = (view.part, next) else { return false };
        self.order(cores, MemberOrder::Move(*next))
    }

    /// Whether the move that was ordered is under way still: this member serves, or its successor
    /// needs its answers before it serves.
    pub(crate) fn moves(&self) -> bool {
        let view = self.view();
        match view.part {
            MemberPart::Serves | MemberPart::TakesOver => true,
            MemberPart::Backup => !view.follows,
            MemberPart::Outside | MemberPart::Failed => false,
        }
    }
}

/// Ends members in order: other members in sync serve, and each of these members keeps the end of
/// its life, so that its next process goes on where it ended. All of them together have the same
/// time; a member that needs longer ends as if it was killed, and so do members of which the agent
/// may still tell that their lives are over.
pub fn end_in_order(members: &[&ServedMember], cores: &[LinkedSidecore], cluster: &ClusterView) {
    move_all_away(members, cores);
    if !cluster.forget_lives(members.iter().map(|member| member.volume())) {
        return tracing::warn!("the cluster's agent does not read: copies end as if killed");
    }
    let until = Instant::now() + RETIRE_TIME_MAX;
    let mut retiring = members.to_vec();
    loop {
        retiring.retain(|member| !member.retire(cores));
        if retiring.is_empty() {
            return;
        }
        if Instant::now() >= until {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    for member in retiring {
        let volume = member.volume();
        tracing::warn!(
            volume,
            "its copy here has not become durable in time: it ends as if killed"
        );
    }
}

/// Tells members that their node is drained, or is not any more. A drained node gives its volumes
/// to other members in sync, at once where they are, and takes over last.
pub fn set_drained(members: &[&ServedMember], cores: &[LinkedSidecore], drained: bool) {
    for member in members {
        // A member that has not started, or has ended, serves nothing.
        let _ = member.with_host(cores, move |host| host.set_drained(drained));
    }
    if drained {
        move_all_away(members, cores);
    }
}

/// Makes other members in sync the primaries of these members' volumes, where the members serve,
/// and waits until the successors serve: all moves together have the same time.
fn move_all_away(members: &[&ServedMember], cores: &[LinkedSidecore]) {
    let mut moving: Vec<_> = members.iter().filter(|member| member.order_move(cores)).collect();
    let until = Instant::now() + MOVE_TIME_MAX;
    while !moving.is_empty() && Instant::now() < until {
        std::thread::sleep(LOOK_AGAIN);
        moving.retain(|member| member.moves());
    }
}

/// The settings about which all nodes must agree, or a copy has other bytes, another guest, or
/// forgets writes that are durable elsewhere.
fn settings(wanted: &VolumeConfig, key: Option<&VolumeKey>) -> Vec<String> {
    let mut settings = vec![
        format!("shared {}", wanted.shared),
        format!("write-through {}", wanted.write_through),
        format!("encrypted {}", key.map_or_else(String::new, VolumeKey::check)),
    ];
    settings.extend(wanted.placement.map(|number| format!("placement {number}")));
    settings
}

/// The nodes of a list by their places. A place without a name is empty.
pub(crate) fn by_place(list: &[String]) -> BTreeMap<MemberId, String> {
    (0..=MemberId::MAX).zip(list.iter().cloned()).filter(|(_, node)| !node.is_empty()).collect()
}

/// The cuts of a member that knows this reign. Own cuts go: the process that needed them has ended.
fn find_cuts(tasks: &mut PoolTasks, reign: u64) -> Result<BTreeSet<Place>, String> {
    let mut cuts = tasks.cuts()?;
    refuse_older_state(&cuts, reign)?;
    for own in cuts.extract_if(.., Place::is_own) {
        if let VolumeTaskEnd::Failed(why) = tasks.carry_out(VolumeTask::Drop(own)) {
            return Err(why);
        }
    }
    Ok(cuts)
}

/// Refuses a private file that is older than the pool: the member may have promised more. A member
/// makes a cut only in a reign whose record it has kept.
fn refuse_older_state(cuts: &BTreeSet<Place>, reign: u64) -> Result<(), String> {
    let Some(cut) = cuts.iter().find(|cut| cut.reign > reign) else { return Ok(()) };
    Err(format!(
        "its pool has a cut of reign {}, and its private file in {MEMBERS:?} of the state \
         directory knows only reign {reign}: the file is older than the pool. Put the newer \
         file back, or give this copy up: docs/replicas.md",
        cut.reign
    ))
}

/// Refuses a volume of this node alone that becomes a replicated one while attachments of it have
/// not ended in order: their records say which writes are not durable, and copies have new records.
fn refuse_open_attachments(records: &dyn RecordStore) -> Result<(), String> {
    let kept = records.load().map_err(|error| error.to_string())?;
    let mut open: Vec<_> = kept.iter().filter(|(_, it)| !it.clean).map(|(name, _)| name).collect();
    open.sort();
    let Some(first) = open.first() else { return Ok(()) };
    Err(format!(
        "the volume was used without \"replicas\", and {} of its attachments, {first:?} among \
         them, did not end in order. Serve it without \"replicas\" once more, end these disks, \
         and stop the node in order; then add \"replicas\"",
        open.len()
    ))
}

/// Refuses to serve a copy of a replicated volume as a volume of its own.
///
/// # Errors
/// When this node has the promises of a member of this volume.
pub fn refuse_plain(state: &Path, volume: &str) -> Result<(), String> {
    let directory = state.join(MEMBERS);
    let noted = CopyIdentity::is_noted(&directory, volume);
    if !noted.map_err(|error| format!("{directory:?} cannot be read: {error}"))? {
        return Ok(());
    }
    Err(format!(
        "this node has a copy of the replicated volume {volume:?}, and the file has no \
         \"replicas\" for it: other nodes may have newer writes. Put the key back; or, to have \
         this copy as a volume of its own, remove {volume}.copy and {volume} from {directory:?}"
    ))
}

/// Forgets the copies whose volume of a pool goes with its data: its pool's uuid and its number.
///
/// # Errors
/// When their files cannot be removed.
pub fn forget(state: Option<&Path>, of: ([u8; 16], u32)) -> Result<(), String> {
    let Some(directory) = state.map(|state| state.join(MEMBERS)) else { return Ok(()) };
    let forgotten = forget_copies(&directory, of);
    forgotten.map_err(|error| format!("the promises of its copy in {directory:?} stay: {error}"))
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

    fn resized(&mut self) {
        self.export.tell_peers();
        self.wakers.iter().for_each(Waker::wake);
    }
}

/// The record of a volume in the cluster's registry, by way of the node's agent.
struct AgentRecords {
    cluster: ClusterView,
    volume: String,
    /// The volume's form here, as text.
    form: String,
    list: Arc<Mutex<MemberList>>,
    is_placed: bool,
    is_over: Arc<AtomicBool>,
}

impl VolumeRecords for AgentRecords {
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError> {
        match self.ask(RecordAsk::Look) {
            RecordOutcome::Record(text) => {
                record_from_text(&text).map(Some).map_err(RecordDeskError::NoAnswer)
            }
            RecordOutcome::NoRecord => Ok(None),
            other => Err(no_answer(other)),
        }
    }

    fn create(&mut self, first: &VolumeRecord) -> Result<(), RecordDeskError> {
        match self.ask(RecordAsk::Create(record_text(first))) {
            RecordOutcome::Done => Ok(()),
            other => Err(no_answer(other)),
        }
    }

    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        match self.ask(RecordAsk::Swap(record_text(target))) {
            RecordOutcome::Done => SwapOutcome::Done,
            RecordOutcome::Record(text) => {
                record_from_text(&text).map_or(SwapOutcome::Unknown, SwapOutcome::Conflict)
            }
            // The clerk looks at the record then, and finds the reason.
            _ => SwapOutcome::Unknown,
        }
    }

    fn remake(&mut self, plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError> {
        let remake = RecordRemake {
            known: record_text(&plan.known),
            record: record_text(&plan.record),
            heard: plan.heard.clone(),
            unheard: plan.unheard.clone(),
            placed: self.is_placed,
        };
        match self.ask(RecordAsk::Remake(remake)) {
            RecordOutcome::Done => Ok(SwapOutcome::Done),
            RecordOutcome::Record(text) => {
                Ok(record_from_text(&text).map_or(SwapOutcome::Unknown, SwapOutcome::Conflict))
            }
            RecordOutcome::Refused(why) => Err(RecordDeskError::NoAnswer(why)),
            RecordOutcome::OtherForm => Err(RecordDeskError::OtherForm),
            // Without an answer the change may have been made, or may be made later.
            _ => Ok(SwapOutcome::Unknown),
        }
    }
}

impl AgentRecords {
    fn ask(&self, ask: RecordAsk) -> RecordOutcome {
        if self.is_over.load(SeqCst) {
            return RecordOutcome::NoAnswer("the member was ended on this node".to_owned());
        }
        let Self { volume, form, list, .. } = self;
        let nodes = list.lock().names();
        self.cluster.ask(RecordOf { volume, form, nodes: &nodes }, ask)
    }
}

/// Why an outcome is not the wanted one.
fn no_answer(outcome: RecordOutcome) -> RecordDeskError {
    match outcome {
        RecordOutcome::OtherForm => RecordDeskError::OtherForm,
        RecordOutcome::NoAnswer(why) | RecordOutcome::Refused(why) => {
            RecordDeskError::NoAnswer(why)
        }
        RecordOutcome::Record(_)
        | RecordOutcome::NoRecord
        | RecordOutcome::Done
        | RecordOutcome::Unknown => {
            RecordDeskError::NoAnswer("the agent has answered another question".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use config::Config;
    use volume::record::{KeptRecords, Record};

    use super::*;

    #[test]
    fn each_setting_that_copies_must_share_is_in_the_form() {
        let read = |more: &str| {
            let text = format!(
                "name = \"n\"\ncontrol = \"/run/c\"\n[directories]\nvolumes = [\"/\"]\n\
                 [[pool]]\nname = \"p\"\ndevices = [\"/p\"]\n\
                 [[volume]]\nname = \"a\"\nbackend = {{ pool = \"p\", size = \"1MiB\" }}\n{more}"
            );
            Config::parse(Path::new("/n.toml"), &text).expect("a configuration").volumes.remove(0)
        };
        let plain = settings(&read(""), None);
        assert_eq!(plain, settings(&read("chain = [\"meter\"]\n"), None));
        for more in ["shared = true\n", "durability = \"write-through\"\n"] {
            assert_ne!(settings(&read(more), None), plain, "{more}");
        }
        let placed = |number| VolumeConfig { placement: Some(number), ..read("") };
        assert_ne!(settings(&placed(7), None), plain);
        assert_ne!(settings(&placed(7), None), settings(&placed(8), None));
    }

    #[test]
    fn a_private_file_that_is_older_than_the_pool_is_refused() {
        let cuts = [Place { reign: 3, counter: 9 }].into();
        assert_eq!(refuse_older_state(&cuts, 3), Ok(()));
        assert_eq!(refuse_older_state(&BTreeSet::new(), 0), Ok(()));
        let error = refuse_older_state(&cuts, 2).unwrap_err();
        assert!(error.contains("a cut of reign 3"), "{error}");
    }

    #[test]
    fn a_volume_with_open_attachments_does_not_become_a_replicated_one() {
        let kept =
            |clean| KeptRecords([("g".to_owned(), Record { clean, ..Record::default() })].into());
        assert_eq!(refuse_open_attachments(&KeptRecords::default()), Ok(()));
        assert_eq!(refuse_open_attachments(&kept(true)), Ok(()));
        let error = refuse_open_attachments(&kept(false)).unwrap_err();
        assert!(error.contains("1 of its attachments, \"g\" among them"), "{error}");
    }
}
