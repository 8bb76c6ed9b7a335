//! The threads of a member that may wait: for its private file, for the registry, for its volume.
//!
//! They are three, so that none waits for another. A primary whose registry does not answer must
//! still remember its note, and its pings come behind that.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use replica::{Life, MemberId, RecoveryPlan, SwapOutcome, VolumeRecord};
use sidecore::Waker;
use sidecore::mailbox;

use crate::desk::{RecordDeskError, StateFile, VolumeRecords};
use crate::member::{Errand, ErrandEnd};
use crate::tasks::VolumeTasks;

/// Errands of a member that wait for one thread. A member has one look, one task and one state
/// under way, and a swap for each record that it has asked for.
const ERRANDS_MAX: usize = 16;

/// Ends of other processes that wait for the member. A process has one end, so only a hostile
/// registry brings more at once.
const NEWS_MAX: usize = 16;

/// The pause of a member that waits for the first record of its volume.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A way to have errands done, and to hear of their ends. Never waits.
pub trait ErrandDesk {
    /// Begins an errand. One that does not begin comes to an end as one that had no answer.
    fn put(&mut self, errand: Errand);

    /// The next end.
    fn take(&mut self) -> Option<ErrandEnd>;

    /// Whether no end waits.
    fn is_empty(&self) -> bool;
}

/// The registry's record of a volume, as a member looks at it: with the rules about a record that
/// is not there.
#[derive(Debug)]
pub struct RecordClerk<R> {
    records: R,
    volume: String,
    id: MemberId,
    life: Life,
    /// The member has known a record.
    has_known: bool,
    /// A record that an operator has made, or not: a try had no answer, and may come late.
    unsure: Option<VolumeRecord>,
}

impl<R: VolumeRecords> RecordClerk<R> {
    /// The clerk of a member. `has_state`: it was started with a state that it had kept.
    pub fn new(records: R, volume: &str, (id, life): (MemberId, Life), has_state: bool) -> Self {
        Self { records, volume: volume.to_owned(), id, life, has_known: has_state, unsure: None }
    }

    /// Looks at the record. The first member of a new volume puts the first record there.
    pub fn look(&mut self) -> ErrandEnd {
        let away = |error: RecordDeskError| format!("the registry has not answered: {error}");
        let found = match self.records.look() {
            Ok(Some(record)) if !self.has_known && self.is_forgotten(&record) => {
                return ErrandEnd::NoRecord(self.forgotten());
            }
            Ok(Some(record)) => Ok(record),
            Err(RecordDeskError::OtherForm) => return ErrandEnd::NoRecord(self.other_form()),
            Err(error) => Err(away(error)),
            Ok(None) if self.has_known => return ErrandEnd::Lost(None, self.lost()),
            Ok(None) if self.id == 0 => {
                let first = VolumeRecord::first(self.id, [(self.id, self.life)].into());
                // Without an answer the next look finds it, or tries once more.
                self.records.create(&first).map(|()| first).map_err(away)
            }
            Ok(None) => Err(format!(
                "the registry has no record of volume {} yet, which the first node of its \
                 \"replicas\" makes",
                self.volume
            )),
        };
        self.has_known |= found.is_ok();
        found.map_or_else(ErrandEnd::NotSeen, ErrandEnd::Seen)
    }

    /// Replaces the record. A swap without an outcome may be one of a record that is not there any
    /// more: a primary looks at nothing else.
    pub fn swap(&mut self, target: VolumeRecord) -> ErrandEnd {
        // Only a look finds out that a member has lost its state.
        if !self.has_known {
            return ErrandEnd::Swapped(target, SwapOutcome::Unknown);
        }
        let outcome = self.records.swap(&target);
        if outcome == SwapOutcome::Unknown {
            match self.records.look() {
                Ok(None) => return ErrandEnd::Lost(Some(target), self.lost()),
                Err(RecordDeskError::OtherForm) => {
                    return ErrandEnd::NoRecord(self.other_form());
                }
                _ => {}
            }
        }
        self.has_known |= outcome != SwapOutcome::Unknown;
        ErrandEnd::Swapped(target, outcome)
    }

    /// Makes the record anew, as an operator wants it. After a try without an answer no
    /// refusal of a later try says that nothing was changed.
    pub fn remake(&mut self, plan: RecoveryPlan) -> ErrandEnd {
        let outcome = match self.records.remake(&plan) {
            Ok(outcome) => outcome,
            Err(_) if self.unsure.as_ref() == Some(&plan.record) => SwapOutcome::Unknown,
            Err(error) => return ErrandEnd::NotRemade(plan, error.to_string()),
        };
        self.unsure = (outcome == SwapOutcome::Unknown).then(|| plan.record.clone());
        self.has_known |= self.unsure.is_none();
        ErrandEnd::Swapped(plan.record, outcome)
    }

    /// Whether a member without a state is in sync by the record: it has lost its promises, and
    /// perhaps its content. The first member may have ended before it could keep its first state.
    fn is_forgotten(&self, record: &VolumeRecord) -> bool {
        record.epoch > 1 && record.in_sync.contains_key(&self.id)
    }

    fn forgotten(&self) -> String {
        format!(
            "the registry's record of volume {} has this member in sync, and it has no state: its \
             private file was lost, and its content may be. Restore the directory of its state \
             from a backup; or have an operator evict it, so that it is filled by another member",
            self.volume
        )
    }

    fn other_form(&self) -> String {
        format!(
            "the registry's record of volume {} was made by nodes with another list of nodes \
             (\"replicas\"), another size, another \"shared\", another \"durability\" or another \
             key of encryption than this node's file has. Make them equal on all nodes, in the \
             order of the first start, and start this node again",
            self.volume
        )
    }

    fn lost(&self) -> String {
        format!(
            "the registry has no record of volume {}, but this member has: the registry was lost \
             or put back. Restore it from a backup; or have the nodes with copies started, and run \
             `vrio volume recover {}` on each: it says which copy lacks nothing, and has it serve",
            self.volume, self.volume
        )
    }
}

/// The things that the threads of a member work with.
pub struct DeskWork {
    /// The private file.
    pub state: StateFile,
    /// The registry's record.
    pub clerk: RecordClerk<Box<dyn VolumeRecords>>,
    /// Changes of the volume as a whole.
    pub tasks: Box<dyn VolumeTasks>,
}

impl fmt::Debug for DeskWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeskWork").field("state", &self.state).finish_non_exhaustive()
    }
}

/// The threads' handles. Its owner waits for them before another member of the volume is started
/// here: a late write of the private file would undo a promise of that member.
#[derive(Debug)]
pub struct DeskThreads(Vec<JoinHandle<()>>);

impl DeskThreads {
    /// Waits for the ends of the threads: they end when the member's host is gone, each after its
    /// present errand.
    pub fn join(self) {
        for thread in self.0 {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// The host's way to one thread.
struct DeskLane {
    errands: SyncSender<Errand>,
    ends: mailbox::Receiver<ErrandEnd>,
}

/// The host's way to the threads.
pub struct DeskLanes {
    keep: DeskLane,
    registry: DeskLane,
    volume: DeskLane,
    /// Ends of errands that did not begin.
    refused: Vec<ErrandEnd>,
    /// News of the registry that no errand has asked for.
    news: Option<mailbox::Receiver<ErrandEnd>>,
}

impl fmt::Debug for DeskLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeskLanes").field("refused", &self.refused).finish_non_exhaustive()
    }
}

impl DeskLanes {
    /// Starts the threads of a member; `home` wakes its sidecore.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(work: DeskWork, home: &Waker) -> io::Result<(Self, DeskThreads)> {
        let DeskWork { state, mut clerk, mut tasks } = work;
        let mut threads = Vec::new();
        let mut start = |name: &str, work| lane(name, home, work, &mut threads);
        let keep = start("member-file", keeping(state))?;
        let registry = start(
            "member-record",
            Box::new(move |errand| match errand {
                Errand::Look => {
                    let end = clerk.look();
                    if matches!(end, ErrandEnd::NotSeen(_)) {
                        // No swap waits behind it: a member that knows no record asks for none.
                        thread::sleep(if clerk.has_known { Duration::ZERO } else { LOOK_AGAIN });
                    }
                    Some(end)
                }
                Errand::Swap(target) => Some(clerk.swap(target)),
                Errand::Remake(plan) => Some(clerk.remake(plan)),
                _ => None,
            }),
        )?;
        let volume = start(
            "member-volume",
            Box::new(move |errand| match errand {
                Errand::Volume(task) => Some(ErrandEnd::Volume(tasks.carry_out(task))),
                _ => None,
            }),
        )?;
        let lanes = Self { keep, registry, volume, refused: Vec::new(), news: None };
        Ok((lanes, DeskThreads(threads)))
    }

    /// The way for news of the registry, in place of the way before; `home` wakes the member's
    /// sidecore.
    pub fn news(&mut self, home: &Waker) -> mailbox::Sender<ErrandEnd> {
        let (sender, news) = mailbox::channel(NEWS_MAX, home.clone());
        self.news = Some(news);
        sender
    }

    fn lanes(&mut self) -> [&mut DeskLane; 3] {
        [&mut self.keep, &mut self.registry, &mut self.volume]
    }
}

type LaneWork = Box<dyn FnMut(Errand) -> Option<ErrandEnd> + Send>;

fn keeping(state: StateFile) -> LaneWork {
    Box::new(move |errand| {
        let Errand::Keep(durable) = errand else { return None };
        Some(match state.keep(&durable) {
            Ok(()) => ErrandEnd::Kept,
            Err(error) => ErrandEnd::NotKept(error.to_string()),
        })
    })
}

fn lane(
    name: &str,
    home: &Waker,
    work: LaneWork,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<DeskLane> {
    let (errands, errands_out) = sync_channel(ERRANDS_MAX);
    // One more than can wait: an end always has room, since each errand has one.
    let (ends_in, ends) = mailbox::channel(ERRANDS_MAX + 1, home.clone());
    let thread = thread::Builder::new().name(name.to_owned());
    threads.push(thread.spawn(move || run_lane(&errands_out, ends_in, work))?);
    Ok(DeskLane { errands, ends })
}

fn run_lane(errands: &Receiver<Errand>, mut ends: mailbox::Sender<ErrandEnd>, mut work: LaneWork) {
    while let Ok(errand) = errands.recv() {
        if ends.is_abandoned() {
            return;
        }
        let Some(mut end) = work(errand) else { continue };
        // The host takes ends before it gives errands, so this waits for a round at most.
        while let Err(mailbox::Full(back)) = ends.send(end) {
            if ends.is_abandoned() {
                return;
            }
            end = back;
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ErrandDesk for DeskLanes {
    fn put(&mut self, errand: Errand) {
        let lane = match &errand {
            Errand::Keep(_) => &self.keep,
            Errand::Look | Errand::Swap(_) | Errand::Remake(_) => &self.registry,
            Errand::Volume(_) => &self.volume,
        };
        let Err(TrySendError::Full(errand) | TrySendError::Disconnected(errand)) =
            lane.errands.try_send(errand)
        else {
            return;
        };
        let ended = "a thread of the member has ended; start the node again";
        self.refused.push(match errand {
            Errand::Keep(_) => ErrandEnd::NotKept(ended.to_owned()),
            Errand::Look => ErrandEnd::NotSeen(ended.to_owned()),
            // The protocol asks for it again.
            Errand::Swap(target) => ErrandEnd::Swapped(target, SwapOutcome::Unknown),
            // An earlier try may have no answer yet.
            Errand::Remake(plan) => ErrandEnd::Swapped(plan.record, SwapOutcome::Unknown),
            Errand::Volume(_) => {
                ErrandEnd::Volume(crate::queue::VolumeTaskEnd::Failed(ended.to_owned()))
            }
        });
    }

    fn take(&mut self) -> Option<ErrandEnd> {
        if let Some(end) = self.refused.pop() {
            return Some(end);
        }
        let end = self.lanes().into_iter().find_map(|lane| lane.ends.receive());
        end.or_else(|| self.news.as_mut()?.receive())
    }

    fn is_empty(&self) -> bool {
        let lanes = [&self.keep, &self.registry, &self.volume];
        self.refused.is_empty()
            && lanes.iter().all(|lane| lane.ends.is_empty())
            && self.news.as_ref().is_none_or(mailbox::Receiver::is_empty)
    }
}
