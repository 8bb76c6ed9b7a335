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

mod state;
pub(super) mod take;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use block::attachment::{Phase, Standing};
use config::Config;
use rustix::net::sockopt::socket_peercred;
use tokio::sync::Notify;
use virtio::{ParkedServer, ServerState};

use self::state::{DiskState, STATE_VERSION, State, Verdict, VolumeState, Yours};
pub(in crate::wiring) use self::state::{FabricState, NicState, Received, Sent, UplinkState};
use super::disks::{Shown, Source};
use super::nics::nic_state;
use super::objects::Objects;
use super::{Inside, sidecores};
use crate::api::{HandOver, Refused, RefusedKind};
use crate::channel::Channel;

/// How long requests under way may take, of disks and then of peers. A request that is not done by
/// then is in the inflight region, or is sent again. A healthy storage needs less, and guests wait
/// meanwhile.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(100);

/// How long attachments may then take to close: a sync, and a round trip. A remote disk whose
/// volume is away gives up after a second.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// How long the storage may take to complete requests and records that it has begun.
const QUIET_TIME_MAX: Duration = Duration::from_secs(2);

/// How long each message may take, and the successor's check of the state. The successor maps and
/// opens; no step waits for a disk or a network.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// How often a step checks whether its part has stopped.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The way out in an error of a hand-over.
const GOES_ON: &str = "the node goes on as before; try again when that is seen to";

/// Descriptors that only a successor needs, and the number of a successor that has the node.
#[derive(Debug)]
pub(super) struct Heirlooms {
    pub(super) control: OwnedFd,
    pub(super) control_lock: OwnedFd,
    pub(super) metrics: Option<OwnedFd>,
    /// A hand-over is under way.
    giving: AtomicBool,
    /// The process that has the node now; 0 for none.
    successor: AtomicU32,
    gone: Notify,
}

impl Heirlooms {
    pub(super) fn new([control, control_lock]: [OwnedFd; 2], metrics: Option<OwnedFd>) -> Self {
        let (giving, successor) = (AtomicBool::new(false), AtomicU32::new(0));
        Self { control, control_lock, metrics, giving, successor, gone: Notify::new() }
    }

    /// Waits until another process has the node, and returns its number.
    pub(super) async fn gone(&self) -> u32 {
        self.gone.notified().await;
        self.successor.load(SeqCst)
    }

    /// The process that has the node now.
    pub(super) fn successor(&self) -> u32 {
        self.successor.load(SeqCst)
    }
}

/// The socket at which a successor waits for the node.
fn meeting(control: &Path, pid: u32) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".take-over.{pid}"));
    PathBuf::from(path)
}

/// A digest of a configuration's file, to check that both processes have read the same. It is
/// FNV-1a, since two programs must get the same number, and it need not resist attacks.
fn digest(config: &Config) -> io::Result<u64> {
    let bytes = std::fs::read(&config.path)?;
    let start = 0xcbf2_9ce4_8422_2325_u64;
    Ok(bytes
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)))
}

fn refused(kind: RefusedKind) -> impl Fn(String) -> Refused {
    move |error| Refused::new(kind, error, GOES_ON)
}

/// Marks the end of a hand-over when it is dropped.
struct Giving<'i>(&'i AtomicBool);

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Inside {
    /// Hands the whole node over to the process that asks. With an error this process goes on as
    /// before.
    pub(super) fn hand_over(&self, wanted: &HandOver) -> Result<(), Refused> {
        let heirlooms = &self.heirlooms;
        if heirlooms.giving.swap(true, SeqCst) {
            let error = "another process is taking this node over already";
            return Err(Refused::new(RefusedKind::Busy, error, "wait for that one's end"));
        }
        let giving = Giving(&heirlooms.giving);
        let turn = self.turn()?;
        let objects = self.objects().clone();
        check(&objects, wanted)?;
        let mut channel = meet(&objects.config.control, wanted.pid)
            .map_err(|error| refused(RefusedKind::Bad)(error.to_string()))?;
        tracing::info!(successor = wanted.pid, release = wanted.release, "handing over");
        let begun = Instant::now();
        let mut still = Still::new(self, &objects)?;
        let given = still
            .state()
            .and_then(|(state, sent)| give(&mut channel, &state, &sent, || self.domains.leave()));
        given.map_err(refused(RefusedKind::Failed))?;
        // Both are forgotten, not dropped: dropping `still` would start the node again, and
        // dropping `giving` would permit another hand-over.
        std::mem::forget((still, giving));
        heirlooms.successor.store(wanted.pid, SeqCst);
        turn.give_away();
        let took = begun.elapsed();
        tracing::info!(successor = wanted.pid, ?took, "handed over; this process ends");
        heirlooms.gone.notify_one();
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
            "end that first (`vrio node drain --undo`), or stop the node when nobody is there";
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
    let differs = objects.differs();
    if !differs.is_empty() {
        let error = format!("the node is not what its file says: {}", differs.join("; "));
        let way_out = "put what came by commands into the file, then `vrio node reload`; what \
                       takes a restart takes one";
        return conflict(error, way_out);
    }
    if let Some(error) = objects.disks.iter().find_map(|shown| ended(shown)) {
        let way_out = "stop its guest, or remove the disk (`vrio disk remove`); a hand-over would \
                       begin it anew, and take its volume from whoever has it now";
        return conflict(error, way_out);
    }
    Ok(())
}

/// The reason, if a disk has failed for the guest that is still connected.
fn ended(shown: &Shown) -> Option<String> {
    let look = shown.look();
    let core = look.core.filter(|_| matches!(look.server, Some(ServerState::Connected)))?;
    let phase = core.attachment().map(|attachment| attachment.view().phase);
    let is_over = matches!(phase, Some(Phase::Fenced | Phase::Failed));
    is_over.then(|| format!("disk {:?} is over for its guest, who is still there", core.name()))
}

/// Connects to the waiting successor, and checks its process and user.
fn meet(control: &Path, pid: u32) -> io::Result<Channel> {
    let path = meeting(control, pid);
    let stream = UnixStream::connect(&path)
        .map_err(|error| io::Error::other(format!("the successor is not at {path:?}: {error}")))?;
    let peer = socket_peercred(&stream)?;
    let is_it = u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(pid);
    if peer.uid != rustix::process::geteuid() || !is_it {
        let text = format!(
            "process {} of user {} is at {path:?}: the successor has to be process {pid} of this \
             node's user",
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
    state: &State,
    sent: &Sent,
    leave: impl FnOnce(),
) -> Result<(), String> {
    let lost = |error: io::Error| format!("the successor is lost: {error}");
    channel.send(state, &sent.0).map_err(lost)?;
    match channel.receive_word().map_err(lost)? {
        Verdict::Have => {
            leave();
            channel.send(&Yours {}, &[]).map_err(lost)
        }
        Verdict::Cannot(why) => Err(format!("the successor cannot go on: {why}")),
    }
}

/// A node in which every part has stopped. Dropping it starts the parts again.
struct Still<'i> {
    inside: &'i Inside,
    objects: &'i Objects,
    disks: Vec<StillDisk>,
    nics: Vec<(String, ParkedServer)>,
    suspended: bool,
}

struct StillDisk {
    shown: Arc<Shown>,
    parked: ParkedServer,
    /// The state of its attachment, once the attachment is closed.
    standing: Option<Standing>,
}

impl<'i> Still<'i> {
    /// Stops disks, sessions and records. With an error everything goes on.
    fn new(inside: &'i Inside, objects: &'i Objects) -> Result<Self, Refused> {
        let failed = refused(RefusedKind::Failed);
        let (disks, nics) = (Vec::new(), Vec::new());
        let mut still = Self { inside, objects, disks, nics, suspended: false };
        // New callers wait first, while guests still work, since a caller may be slow. They wait
        // for this process or for its successor.
        inside.door.iter().for_each(|door| door.answer(false));
        inside.domains.let_wait().map_err(&failed)?;
        still.park_disks().map_err(&failed)?;
        still.park_nics().map_err(&failed)?;
        let closed = |shown: &Shown| shown.look().core.is_none_or(|core| core.channels() == 0);
        let closing = || still.disks.iter().find(|disk| !closed(&disk.shown));
        if !within(CLOSE_TIME_MAX, || closing().is_none()) {
            let name = closing().map_or("", |disk| &disk.shown.config.name).to_owned();
            return Err(failed(format!(
                "disk {name:?}: requests have not completed within {CLOSE_TIME_MAX:?}; its storage \
                 may be stuck"
            )));
        }
        still.look_at_attachments().map_err(&failed)?;
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
        Ok(still)
    }

    /// Stops all disks at once: each drains for a while.
    fn park_disks(&mut self) -> Result<(), String> {
        let begin = |shown: &Arc<Shown>| (Arc::clone(shown), shown.begin_park(DRAIN_TIME_MAX));
        let parking: Vec<_> = self.objects.disks.iter().map(begin).collect();
        let mut error = None;
        for (shown, parking) in parking {
            match parking.map(|parking| parking.end()).transpose() {
                Ok(Some(parked)) => self.disks.push(StillDisk { shown, parked, standing: None }),
                Ok(None) => {}
                Err(why) => error = Some(format!("disk {:?}: {why}", shown.config.name)),
            }
        }
        error.map_or(Ok(()), Err)
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

    /// Notes the state of each attachment. One may have ended while its disk stopped.
    fn look_at_attachments(&mut self) -> Result<(), String> {
        self.disks.iter_mut().try_for_each(|disk| {
            let look = disk.shown.look();
            let name = &disk.shown.config.name;
            let standing = look.placement.map_or(Ok(None), |placement| placement.standing());
            disk.standing = standing.map_err(|ended| format!("disk {name:?}: {ended}"))?;
            // A guest that broke its ring's rules does not hold up the node: its front end stays
            // behind, and begins anew with the successor, as it may at any time.
            if look.core.is_some_and(|core| core.is_broken()) {
                let state = disk.parked.state.as_mut();
                let left = state.and_then(|served| served.front_end.take());
                disk.standing = None;
                tracing::warn!(
                    disk = name,
                    was_there = left.is_some(),
                    "not handed over: its guest broke its ring's rules"
                );
            }
            Ok(())
        })
    }

    /// Writes down the state of the whole node.
    fn state(&mut self) -> Result<(State, Sent), String> {
        let mut sent = Sent::default();
        let state = self.take_down(&mut sent);
        Ok((state.map_err(|error| format!("copying descriptors: {error}"))?, sent))
    }

    fn take_down(&mut self, sent: &mut Sent) -> io::Result<State> {
        let inside = self.inside;
        let heirlooms = &inside.heirlooms;
        let state_lock = inside.volumes.state_lock()?.map(|lock| sent.put(lock));
        let links = inside.cores.iter().filter_map(|core| core.socket.as_ref());
        let metrics = heirlooms.metrics.as_ref();
        // Two statements, since each locks the nics, and one expression must not lock them twice.
        let uplinks = inside.nics().take_down_uplinks(sent)?;
        let nics = self.nics(sent)?;
        Ok(State {
            version: STATE_VERSION,
            control: sent.copy(&heirlooms.control)?,
            control_lock: sent.copy(&heirlooms.control_lock)?,
            metrics: metrics.map(|metrics| sent.copy(metrics)).transpose()?,
            state_lock,
            door: inside.door.as_ref().map(|door| sent.copy(door.listener())).transpose()?,
            links: links.map(|link| sent.copy(link)).collect::<io::Result<_>>()?,
            volumes: self.volumes(sent)?,
            disks: self.disks(sent),
            uplinks,
            nics,
            fabric: inside.domains.take_down(&inside.cores, sent)?,
        })
    }

    fn nics(&mut self, sent: &mut Sent) -> io::Result<Vec<NicState>> {
        let mut states = Vec::new();
        for (name, parked) in &mut self.nics {
            let conversations = self.inside.nics().conversations(name)?;
            states.extend(nic_state(name, parked, &conversations, sent)?);
        }
        Ok(states)
    }

    fn volumes(&self, sent: &mut Sent) -> io::Result<Vec<VolumeState>> {
        let in_files = self.inside.volumes.keeps_records();
        let volumes = self.objects.volumes.iter().map(|served| {
            let export = &served.export;
            let records = if in_files { HashMap::new() } else { export.records() };
            let records = records.into_iter().map(|(name, record)| (name, record.into()));
            let backend = &served.backend;
            let blocks = backend.descriptor().map(|blocks| sent.copy(blocks)).transpose()?;
            let is_memory = export.volume().info().volatile;
            Ok(VolumeState {
                name: export.name().to_owned(),
                file: blocks.filter(|_| !is_memory),
                failed: backend.has_failed(),
                memory: blocks.filter(|_| is_memory),
                incarnation: export.volume().info().incarnation.0,
                records: records.collect(),
                key_check: served.key().map(|key| key.check()),
            })
        });
        volumes.collect()
    }

    fn disks(&mut self, sent: &mut Sent) -> Vec<DiskState> {
        let disks = self.disks.iter_mut().map(|StillDisk { shown, parked, standing }| {
            let described = match &shown.volume {
                Source::Local(_) => None,
                Source::Remote(volume) => volume.described().map(Into::into),
            };
            let (name, standing) = (shown.config.name.clone(), standing.map(Into::into));
            let served = parked.state.take().map(|served| sent.served(served));
            DiskState { name, described, standing, served }
        });
        disks.collect()
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        if self.suspended {
            sidecores::resume(&self.inside.cores);
        }
        self.inside.door.iter().for_each(|door| door.answer(true));
        self.inside.domains.answer();
        self.disks.clear();
        self.nics.clear();
        self.inside.nics().set_paused(false);
        self.objects.disks.iter().for_each(|shown| shown.unpark());
        tracing::warn!("not handed over; the node goes on");
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
