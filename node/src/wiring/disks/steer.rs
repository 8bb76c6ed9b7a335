//! Steers a running node: reads the load of sidecores and queues about ten times a second, moves
//! queues as [`crate::steering`] decides, and moves a queue by command.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use block::disk::{MoveError, NotMoved, Placement};
use config::{DiskConfig, Sidecores};
use serde::Deserialize;
use serde_json::Value;

use crate::steering::{CoreLoad, NodeLoad, QueueId, QueueLoad, Steering};
use crate::wiring::error::StartError;
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use api::{API_VERSION, Done, Refused, RefusedKind};

/// The time between two looks: short enough that a guest is helped while it works, and long enough
/// to cost nothing (a look takes some microseconds).
const LOOK: Duration = Duration::from_millis(100);

/// How long a move waits for the volume to open on the new sidecore: a round trip to its node, and
/// a reserve for a busy one. A move that takes longer is tried again later.
const OPEN_TIME_MAX: Duration = Duration::from_millis(50);

/// The same for a move by command, whose caller waits for the answer. It is also tried again when
/// the queue does not drain.
const BY_HAND_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause before the next attempt.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// Begins to look, if there is anything to steer.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(inside: &Arc<Inside>, config: &Sidecores) -> Result<(), StartError> {
    if !config.steers() {
        return Ok(());
    }
    let limits = config.min..=config.max;
    let steering = Steering::new(config.cores.len(), limits, inside.steerer.active().load(Relaxed));
    let (stop, stopped) = channel();
    let weak = Arc::downgrade(inside);
    let look = move || look_on(&weak, &stopped, steering);
    let thread = std::thread::Builder::new().name("steering".to_owned()).spawn(look);
    let what = "start a thread for steering";
    let thread = thread.map_err(|source| StartError::System { what, source })?;
    inside.steerer.keep((stop, thread));
    Ok(())
}

/// Looks until the thread must end or the node is gone.
fn look_on(inside: &Weak<Inside>, stopped: &Receiver<()>, mut steering: Steering) {
    let mut seen = PreviousCounts::default();
    while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let Some(inside) = inside.upgrade() else { return };
        inside.steer(&mut steering, &mut seen);
    }
}

/// The counts at the last look.
#[derive(Default)]
struct PreviousCounts {
    at_ns: Option<u64>,
    cores: Vec<CoreLoad>,
    requests: BTreeMap<QueueId, u64>,
}

impl Inside {
    /// Takes one look, and makes the moves that follow.
    fn steer(&self, steering: &mut Steering, seen: &mut PreviousCounts) {
        // A move to or from a stuck sidecore would wait for it, and a stop of the node for the
        // move.
        if self.watchdog.first_stuck().is_some() {
            return;
        }
        let mut placements = HashMap::new();
        let Some(look) = self.look(seen, &mut placements) else { return };
        let before = steering.active();
        let moves = steering.look(&look);
        let active = steering.active();
        // The number is stored first, so that queues that start meanwhile start on these sidecores.
        self.steerer.active.store(active, Relaxed);
        if active != before {
            let loads: Vec<_> = steering.loads().iter().map(ToString::to_string).collect();
            let load_permille = loads.join(" ");
            tracing::info!(active, before, load_permille, "sidecores with queues");
        }
        for made in moves {
            let QueueId { disk, queue } = made.id;
            let Some((name, placement)) = placements.get(&disk) else { continue };
            let again = |error| matches!(error, MoveError::NotReady);
            match patiently(placement, queue, made.to, OPEN_TIME_MAX, again) {
                Ok(()) => tracing::debug!(disk = name, queue, to = made.to, "moved"),
                Err(error) => {
                    tracing::debug!(disk = name, queue, to = made.to, %error, "not moved");
                    steering.stayed(made.id);
                }
            }
        }
        self.steerer.set_loads(steering.loads());
    }

    /// The load since the last look; none for the first one.
    fn look(
        &self,
        seen: &mut PreviousCounts,
        placements: &mut HashMap<u64, (String, Arc<Placement>)>,
    ) -> Option<NodeLoad> {
        let now_ns = sidecore::now_ns();
        let mut requests = BTreeMap::new();
        let mut queues = Vec::new();
        let disks = self.objects().disks.clone();
        for shown in &disks {
            let looked = shown.look();
            let (Some(core), Some(placement)) = (looked.core, looked.placement) else { continue };
            // A disk that is being changed is looked at the next time.
            for (queue, sidecore) in placement.running().unwrap_or_default() {
                let id = QueueId { disk: shown.number, queue };
                let all = core.counters(queue).requests.get();
                let earlier = seen.requests.get(&id).copied().unwrap_or(all);
                requests.insert(id, all);
                queues.push(QueueLoad { id, sidecore, requests: all - earlier });
            }
            placements.insert(shown.number, (shown.config.name.clone(), placement));
        }
        let now = self.cores.iter().map(|core| CoreLoad {
            busy_ns: core.sidecore.counters().busy_ns.get(),
            fixed_requests: core.server.as_ref().map_or(0, |server| server.requests.get()),
        });
        let now: Vec<_> = now.collect();
        let cores = now.iter().zip(&seen.cores).map(|(now, then)| CoreLoad {
            busy_ns: now.busy_ns.saturating_sub(then.busy_ns),
            fixed_requests: now.fixed_requests.saturating_sub(then.fixed_requests),
        });
        let cores = cores.collect();
        let then_ns = seen.at_ns;
        *seen = PreviousCounts { at_ns: Some(now_ns), cores: now, requests };
        Some(NodeLoad { elapsed_ns: now_ns.saturating_sub(then_ns?), cores, queues })
    }

    /// Has the guest of a disk take its volume, although another attachment holds it.
    pub(crate) fn take_disk(&self, name: &str) -> Result<Done, Refused> {
        let objects = self.objects().clone();
        let Some(shown) = objects.disk(name) else {
            return Err(unknown::<DiskConfig>(name, &objects.config));
        };
        let Some(core) = shown.look().core else {
            let error = format!("disk {name:?} is not served yet");
            let way_out = "its volume's node does not answer; try again when it does";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        };
        let note = if core.take_over() {
            "its guest waits for the volume and takes it now; the attachment that holds it ends"
        } else {
            "its guest takes the volume at its next start, or when its VMM connects"
        };
        tracing::warn!(disk = name, "an operator lets the disk's guest take the volume");
        let (applied, notes) =
            (vec![format!("take the volume of disk {name:?}")], vec![note.into()]);
        Ok(Done { version: API_VERSION, applied, notes })
    }

    /// Moves a queue of a disk to the sidecore that a request names.
    pub(crate) fn move_queue(
        &self,
        name: &str,
        queue: usize,
        body: &Value,
    ) -> Result<Done, Refused> {
        let wanted = MoveRequest::deserialize(body).map_err(|error| {
            let way_out = "send {\"sidecore\": 1}";
            Refused::new(RefusedKind::Bad, error.to_string(), way_out)
        })?;
        let objects = self.objects().clone();
        let Some(shown) = objects.disk(name) else {
            return Err(unknown::<DiskConfig>(name, &objects.config));
        };
        if queue >= usize::from(shown.config.queues) {
            let error = format!("disk {name:?} has no queue {queue}");
            let way_out = format!("its queues are 0 to {}", shown.config.queues - 1);
            return Err(Refused::new(RefusedKind::Bad, error, way_out));
        }
        let placement = shown.look().placement.ok_or(MoveError::NotRunning);
        let again = |error| {
            let later = NotMoved::NotDrained;
            error == MoveError::NotReady || error == MoveError::Busy || error == later.into()
        };
        let moved = placement.and_then(|placement| {
            patiently(&placement, queue, wanted.sidecore, BY_HAND_TIME_MAX, again)
        });
        moved.map_err(|error| not_moved(name, queue, error))?;
        let applied = vec![format!("move queue {queue} of disk {name:?} to {}", wanted.sidecore)];
        let mut done = Done { version: API_VERSION, applied, notes: Vec::new() };
        if objects.config.sidecores.steers() {
            let note = "this node steers its queues by load and may move it again";
            done.notes.push(note.to_owned());
        }
        Ok(done)
    }
}

/// The request for a move.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveRequest {
    sidecore: usize,
}

fn not_moved(name: &str, queue: usize, error: MoveError) -> Refused {
    let (kind, way_out) = match error {
        MoveError::NoSuchSidecore { .. } => (RefusedKind::Bad, "`vrio status` lists them"),
        MoveError::NotRunning => (RefusedKind::Conflict, "start its guest"),
        MoveError::Sidecore(_) => (RefusedKind::Failed, "is the node stopping?"),
        _ => (RefusedKind::Busy, "it stays at its sidecore; try again"),
    };
    Refused::new(kind, format!("queue {queue} of disk {name:?} was not moved: {error}"), way_out)
}

/// Tries to move a queue until it is moved, or stays for a reason that time does not change, or the
/// time is over.
fn patiently(
    placement: &Placement,
    queue: usize,
    to: usize,
    time_max: Duration,
    again: impl Fn(MoveError) -> bool,
) -> Result<(), MoveError> {
    let until = Instant::now() + time_max;
    loop {
        match placement.try_move(queue, to) {
            Err(error) if again(error) && Instant::now() < until => {
                std::thread::sleep(TRY_AGAIN);
            }
            done => return done,
        }
    }
}
