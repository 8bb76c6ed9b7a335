//! A node hands over to another process of the same configuration: the next version, usually.
//!
//! ```text
//!   node                                          successor (take)
//!                                                 reads file and keys, starts sidecores
//!                      ◀── POST /v1/hand-over ──  listens at CONTROL.take-over.PID
//!   may it, and is nothing different?
//!   connects           ──────────────────────▶
//!   disks, sessions, records stand still
//!                      ── state, descriptors ──▶  maps, opens, checks: all that can fail
//!                      ◀──────── have ──────────
//!                      ──────── yours ─────────▶  serves
//!   ends
//! ```
//!
//! Until the node has sent "yours" it can take everything back, and does so after any fault, since
//! it destroys nothing before. After "yours" it touches nothing any more. Each step has a time
//! limit of its own. The reasons: `docs/decisions/018-hand-over.md`.

pub(crate) mod fds;
mod meeting;
pub(crate) mod state;
pub(crate) mod take;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use block::attachment::Phase;
use config::Config;
use handover::{STATE_VERSION, SentDescriptors};
use rustix::net::sockopt::socket_peercred;
use sessions::sidecores;
use virtio::{ParkedServer, ServerState};

use self::meeting::{ANSWER_TIME_MAX, digest, meeting};
use self::state::{HandoverEnd, NicState, NodeState, Verdict};
use super::disks::hand_over::{StillDisk, park};
use super::disks::shown::ServedDisk;
use super::inside::Inside;
use super::networks::hand_over::nic_state;
use super::objects::Objects;
use super::volumes;
use api::{HandOver, Refused, RefusedKind};
use handover::channel::Channel;

/// How long requests under way may take, of disks and then of peers. A request that is not done by
/// then is in the inflight region, or is sent again. A healthy storage needs less, and guests wait
/// meanwhile.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(100);

/// How long attachments may then take to close: a sync, and a round trip. A remote disk whose
/// volume is away gives up after a second.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// How long the storage may take to complete requests and records that it has begun.
const QUIET_TIME_MAX: Duration = Duration::from_secs(2);

/// How often a step checks whether its part has stopped.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The way out in an error of a hand-over.
const GOES_ON: &str = "the node continues as before; correct this and try again";

fn refused(kind: RefusedKind) -> impl Fn(String) -> Refused {
    move |error| Refused::new(kind, error, GOES_ON)
}

/// Marks the end of a hand-over when it is dropped.
struct HandoverGuard<'i>(&'i AtomicBool);

impl Drop for HandoverGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Inside {
    /// Hands the whole node over to the process that asks. With an error this process goes on as
    /// before.
    pub(crate) fn hand_over(&self, wanted: &HandOver) -> Result<(), Refused> {
        let handover_fds = &self.handover_fds;
        if handover_fds.giving.swap(true, SeqCst) {
            let error = "another process is taking this node over already";
            return Err(Refused::new(RefusedKind::Busy, error, "wait until it has ended"));
        }
        let giving = HandoverGuard(&handover_fds.giving);
        let turn = self.turn()?;
        let objects = self.objects().clone();
        check(&objects, wanted)?;
        self.volumes.stock().check_sound().map_err(|error| {
            let way_out = "correct its cause and restart the node instead: guests wait meanwhile";
            Refused::new(RefusedKind::Conflict, error, way_out)
        })?;
        let mut channel = meet(&objects.config.control, wanted.pid)
            .map_err(|error| refused(RefusedKind::Bad)(error.to_string()))?;
        tracing::info!(successor = wanted.pid, release = wanted.release, "handing over");
        let begun = Instant::now();
        let mut still = StoppedNode::new(self, &objects)?;
        let given = still
            .state()
            .and_then(|(state, sent)| give(&mut channel, &state, &sent, || self.domains.leave()));
        given.map_err(refused(RefusedKind::Failed))?;
        // Both are forgotten, not dropped: dropping `still` would start the node again, and
        // dropping `giving` would permit another hand-over.
        std::mem::forget((still, giving));
        handover_fds.successor.store(wanted.pid, SeqCst);
        turn.give_away();
        let took = begun.elapsed();
        tracing::info!(successor = wanted.pid, ?took, "handed over; this process ends");
        handover_fds.gone.notify_one();
        Ok(())
    }
}

/// Checks that a process may take this node over, before any part stops.
fn check(objects: &Objects, wanted: &HandOver) -> Result<(), Refused> {
    let conflict = |error: String, way_out: &str| {
        Err(Refused::new(RefusedKind::Conflict, error, way_out.to_owned()))
    };
    if wanted.state_version != STATE_VERSION {
        let error = format!(
            "the successor (vrio {}) speaks version {} of the hand-over, this node (vrio {}) {}",
            wanted.release,
            wanted.state_version,
            env!("CARGO_PKG_VERSION"),
            STATE_VERSION
        );
        return conflict(error, "restart the node instead: guests wait until it is back");
    }
    let config = &objects.config;
    if wanted.node != config.name {
        let error = format!("this is node {:?}, not {:?}", config.name, wanted.node);
        return conflict(error, "name the configuration that this node was started with");
    }
    if objects.draining {
        let way_out =
            "end the drain first (`vrio node drain --undo`), or stop the node when no user is left";
        return conflict("the node is drained".to_owned(), way_out);
    }
    let failed = |error: String| Refused::new(RefusedKind::Failed, error, GOES_ON);
    let file = Config::load(&config.path).map_err(|error| failed(error.to_string()))?;
    let digest = digest(config).map_err(|error| failed(format!("{:?}: {error}", config.path)))?;
    if digest != wanted.config_digest {
        let error = format!("the successor's configuration is not the file {:?}", config.path);
        return conflict(error, "name that file, and do not change it meanwhile");
    }
    if let Some(nic) = config.nics.iter().find(|nic| nic.peer().is_some()) {
        let error = format!(
            "nic {:?} is in a network of another node, which cannot be handed over yet",
            nic.name
        );
        return conflict(error, "restart the node instead: its guest's link is down for a moment");
    }
    let mut objects = objects.clone();
    objects.file_read(file);
    // The successor starts an agent of its own by the section as it is now.
    objects.take_cluster_of_file();
    let differs = objects.differs();
    if !differs.is_empty() {
        let error = format!("the node is not what its file says: {}", differs.join("; "));
        let way_out = "write objects that commands added into the file, then `vrio node reload`; \
                       keys that take a restart take one";
        return conflict(error, way_out);
    }
    if let Some(shown) = objects.disks.iter().find(|shown| shown.is_leaving()) {
        let error = format!("disk {:?} is being removed", shown.config.name);
        return conflict(error, "wait until its writes are written back, and try again");
    }
    if let Some(error) = objects.disks.iter().find_map(|shown| ended(shown)) {
        let way_out = "stop its guest, or remove the disk (`vrio disk remove`); a hand-over would \
                       start it again, and end the attachment that has its volume now";
        return conflict(error, way_out);
    }
    Ok(())
}

/// The reason, if a disk has failed for the guest that is still connected.
fn ended(shown: &ServedDisk) -> Option<String> {
    let look = shown.look();
    let core = look.core.filter(|_| matches!(look.server, Some(ServerState::Connected)))?;
    let phase = core.attachment().map(|attachment| attachment.view().phase);
    let is_over = matches!(phase, Some(Phase::Fenced | Phase::Failed));
    is_over.then(|| {
        format!("disk {:?} has failed for its guest, which is still connected", core.name())
    })
}

/// Connects to the waiting successor, and checks its process and user.
fn meet(control: &Path, pid: u32) -> io::Result<Channel> {
    let path = meeting(control, pid);
    let stream = UnixStream::connect(&path).map_err(|error| {
        io::Error::other(format!("the successor does not answer at {path:?}: {error}"))
    })?;
    let peer = socket_peercred(&stream)?;
    let is_it = u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(pid);
    if peer.uid != rustix::process::geteuid() || !is_it {
        let text = format!(
            "process {} of user {} answers at {path:?}: the successor must be process {pid} of \
             this node's user",
            peer.pid.as_raw_nonzero(),
            peer.uid.as_raw()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Channel::new(stream, ANSWER_TIME_MAX)
}

/// Sends the state, waits for the verdict, and sends "yours". `leave` is called right before
/// "yours".
fn give(
    channel: &mut Channel,
    state: &NodeState,
    sent: &SentDescriptors,
    leave: impl FnOnce(),
) -> Result<(), String> {
    let lost = |error: io::Error| format!("the successor is lost: {error}");
    channel.send(state, sent.as_slice()).map_err(lost)?;
    match channel.receive_word().map_err(lost)? {
        Verdict::Have => {
            leave();
            channel.send(&HandoverEnd {}, &[]).map_err(lost)
        }
        Verdict::Cannot(why) => Err(format!("the successor cannot take over: {why}")),
    }
}

/// A node in which every part has stopped. Dropping it starts the parts again.
struct StoppedNode<'i> {
    inside: &'i Inside,
    objects: &'i Objects,
    disks: Vec<StillDisk>,
    nics: Vec<(String, ParkedServer)>,
    suspended: bool,
    /// Pools have let their devices go, or were about to.
    pools_stopped: bool,
}

impl<'i> StoppedNode<'i> {
    /// Stops disks, sessions and records. With an error everything goes on.
    fn new(inside: &'i Inside, objects: &'i Objects) -> Result<Self, Refused> {
        let failed = refused(RefusedKind::Failed);
        let (disks, nics) = (Vec::new(), Vec::new());
        let (suspended, pools_stopped) = (false, false);
        let mut still = Self { inside, objects, disks, nics, suspended, pools_stopped };
        // New callers wait first, while guests still work, since a caller may be slow. They wait
        // for this process or for its successor.
        inside.door.iter().for_each(|door| door.answer(false));
        inside.domains.let_wait().map_err(&failed)?;
        let parked = park(&objects.disks, DRAIN_TIME_MAX, &mut still.disks);
        parked.map_err(&failed)?;
        still.park_nics().map_err(&failed)?;
        let closed = |shown: &ServedDisk| shown.look().core.is_none_or(|core| core.channels() == 0);
        let closing = || still.disks.iter().find(|disk| !closed(&disk.shown));
        if !within(CLOSE_TIME_MAX, || closing().is_none()) {
            let name = closing().map_or("", |disk| &disk.shown.config.name).to_owned();
            return Err(failed(format!(
                "disk {name:?}: requests have not completed within {CLOSE_TIME_MAX:?}; its storage \
                 may be stuck"
            )));
        }
        let looked = still.disks.iter_mut().try_for_each(StillDisk::look_at_attachment);
        looked.map_err(&failed)?;
        // After the channels have let go, and before the pools are closed.
        objects.disks.iter().for_each(|disk| disk.save_cache());
        sidecores::suspend(&inside.cores);
        still.suspended = true;
        let exports = || objects.volumes.iter().map(|served| &served.export);
        let quiet = || sidecores::is_quiet(&inside.cores) && exports().all(|it| it.is_quiet());
        within(DRAIN_TIME_MAX, quiet);
        sidecores::hang_up(&inside.cores);
        if !within(QUIET_TIME_MAX, quiet) {
            let busy = exports().find(|export| !export.is_quiet());
            let name = busy.map_or("", |export| export.name());
            return Err(failed(format!(
                "volume {name:?}: requests of peers have not completed within {QUIET_TIME_MAX:?}; \
                 its storage may be stuck"
            )));
        }
        let records = inside.volumes.settle();
        if !within(QUIET_TIME_MAX, || records.result().is_some()) {
            let text = "records of attachments are not written within";
            return Err(failed(format!("{text} {QUIET_TIME_MAX:?}; look at \"state\"")));
        }
        inside.domains.stand_still();
        // Last, since nothing writes any more.
        still.pools_stopped = true;
        inside.volumes.stock().stop_all().map_err(&failed)?;
        Ok(still)
    }

    /// Stops all nics at once. No frame outlives its round, so there is nothing to drain.
    fn park_nics(&mut self) -> Result<(), String> {
        let parking = self.inside.nics().begin_park(Duration::ZERO);
        let mut error = None;
        for (name, parking) in parking {
            match parking.end() {
                Ok(parked) => self.nics.push((name, parked)),
                Err(why) => error = Some(format!("nic {name:?}: {why}")),
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Writes down the state of the whole node.
    fn state(&mut self) -> Result<(NodeState, SentDescriptors), String> {
        let mut sent = SentDescriptors::default();
        let state = self.take_down(&mut sent);
        Ok((state.map_err(|error| format!("copying descriptors: {error}"))?, sent))
    }

    fn take_down(&mut self, sent: &mut SentDescriptors) -> io::Result<NodeState> {
        let inside = self.inside;
        let handover_fds = &inside.handover_fds;
        let state_lock = inside.volumes.state_lock()?.map(|lock| sent.put(lock));
        let links = inside.cores.iter().filter_map(|core| core.socket.as_ref());
        let metrics = handover_fds.metrics.as_ref();
        // Two statements, since each locks the nics, and one expression must not lock them twice.
        let uplinks = inside.nics().take_down_uplinks(sent)?;
        let nics = self.nics(sent)?;
        Ok(NodeState {
            version: STATE_VERSION,
            control: sent.put_copy(&handover_fds.control)?,
            control_lock: sent.put_copy(&handover_fds.control_lock)?,
            metrics: metrics.map(|metrics| sent.put_copy(metrics)).transpose()?,
            state_lock,
            door: inside.door.as_ref().map(|door| sent.put_copy(door.listener())).transpose()?,
            links: links.map(|link| sent.put_copy(link)).collect::<io::Result<_>>()?,
            volumes: volumes::hand_over::states(
                &self.objects.volumes,
                inside.volumes.keeps_records(),
                sent,
            )?,
            disks: self.disks.iter_mut().map(|disk| disk.state(sent)).collect(),
            pools: inside.volumes.stock().names(),
            uplinks,
            nics,
            fabric: inside.domains.take_down(&inside.cores, sent)?,
        })
    }

    fn nics(&mut self, sent: &mut SentDescriptors) -> io::Result<Vec<NicState>> {
        let mut states = Vec::new();
        for (name, parked) in &mut self.nics {
            let conversations = self.inside.nics().conversations(name)?;
            states.extend(nic_state(name, parked, &conversations, sent)?);
        }
        Ok(states)
    }
}

impl Drop for StoppedNode<'_> {
    fn drop(&mut self) {
        if self.pools_stopped {
            self.inside.volumes.stock().go_on();
        }
        if self.suspended {
            sidecores::resume(&self.inside.cores);
        }
        self.inside.door.iter().for_each(|door| door.answer(true));
        self.inside.domains.answer();
        self.disks.clear();
        self.nics.clear();
        self.inside.nics().set_paused(false);
        self.objects.disks.iter().for_each(|shown| shown.unpark());
        tracing::warn!("not handed over; the node continues");
    }
}

fn within(limit: Duration, is: impl Fn() -> bool) -> bool {
    let until = Instant::now() + limit;
    loop {
        if is() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
