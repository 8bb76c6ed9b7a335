//! Which sidecore serves which queue of a disk, and how a queue goes over to another one while it
//! runs.
//!
//! ```text
//!   1  the share on the new sidecore is there, its channel open under the attachment's epoch
//!   2  the old share takes nothing more, and gives the queue when it has drained (2 ms at most)
//!   3  the new share looks into the ring and goes on
//! ```
//!
//! The lock is held through a start, a stop, a change and a move. So the caller of any of them
//! finds a queue where the book says, and never between two sidecores. A move waits for nothing but
//! sidecores, so a front end that asks meanwhile is answered 2 ms later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;

use parking_lot::{Mutex, MutexGuard};
use sidecore::{CallError, Sidecore};

use super::part::{Start, adopt, prepare, with};
use super::queues::{LEAVE, NotMoved};
use crate::attachment::{Attachment, AttachmentSnapshot};

/// Why a queue was not moved. It is served where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// There is no such sidecore.
    #[error("there is no sidecore {sidecore}: there are {sidecores}")]
    NoSuchSidecore {
        /// The sidecore that was asked for.
        sidecore: usize,
        /// How many there are.
        sidecores: usize,
    },
    /// Its guest has not started it.
    #[error("the queue does not run: its guest has not started it")]
    NotRunning,
    /// The disk is being started, stopped or changed; or a queue of it is being moved.
    #[error("the disk is being started, stopped or changed")]
    Busy,
    /// The volume is not open there yet; it is being opened.
    #[error("the way to its volume is not open on that sidecore yet")]
    NotReady,
    /// It stays where it is.
    #[error(transparent)]
    Stays(#[from] NotMoved),
    /// A sidecore is gone.
    #[error(transparent)]
    Sidecore(#[from] CallError),
}

/// See the module.
#[derive(Debug)]
pub struct Placement {
    pub(super) sidecores: Vec<Sidecore>,
    /// Queues start on the first so many.
    active: Arc<AtomicUsize>,
    places: Mutex<Places>,
}

/// The book.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) running: Option<RunningStart>,
    /// The sidecore of each queue that runs, and of others where they were last.
    pub(super) owners: Vec<usize>,
    /// Its queues ran, and are started again as they were.
    pub(super) paused: Option<Paused>,
    /// Under which claimant, and up to which epoch, the volume was claimed last for the front end
    /// that is there.
    pub(super) before: Option<(u64, u64)>,
}

/// The state of a disk when it was paused.
#[derive(Debug)]
pub(super) struct Paused {
    /// None if it had not come to that.
    pub(super) attachment: Option<Arc<Attachment>>,
}

/// A disk is over for its guest: no successor can go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has failed for its guest, which is still connected")]
pub struct Ended;

/// A start with queues.
#[derive(Debug)]
pub(super) struct RunningStart {
    pub(super) start: Arc<Start>,
    pub(super) id: u64,
    /// Which queues run.
    pub(super) queues: Vec<bool>,
    /// When draining is over, once it has begun.
    pub(super) drain_until_ns: Option<u64>,
    /// The attachment that it goes on with, after a pause.
    pub(super) heir: Option<Arc<Attachment>>,
}

impl RunningStart {
    /// The state that another start needs to go on with this one.
    pub(super) fn pause(&self) -> Paused {
        Paused { attachment: self.start.attachment.get().or(self.heir.as_ref()).cloned() }
    }
}

impl Placement {
    pub(super) fn new(sidecores: Vec<Sidecore>, queues: u16, active: Arc<AtomicUsize>) -> Self {
        let owners = (0..usize::from(queues)).map(|queue| queue % sidecores.len()).collect();
        let places = Mutex::new(Places { running: None, owners, paused: None, before: None });
        Self { sidecores, active, places }
    }

    pub(super) fn places(&self) -> MutexGuard<'_, Places> {
        // Each of its changes is one statement.
        self.places.lock()
    }

    fn try_places(&self) -> Result<MutexGuard<'_, Places>, MoveError> {
        self.places.try_lock().ok_or(MoveError::Busy)
    }

    /// Where a queue starts that was last at `last`: there, if that sidecore takes queues.
    pub(super) fn home(&self, queue: usize, last: usize) -> usize {
        let active = self.active.load(Relaxed).clamp(1, self.sidecores.len());
        if last < active { last } else { queue % active }
    }

    /// The queues that run, each with its sidecore.
    ///
    /// # Errors
    /// [`MoveError::Busy`]: ask again later.
    pub fn running(&self) -> Result<Vec<(usize, usize)>, MoveError> {
        let places = self.try_places()?;
        let runs = |queue: &(usize, usize)| {
            places.running.as_ref().is_some_and(|running| running.queues[queue.0])
        };
        Ok(places.owners.iter().copied().enumerate().filter(runs).collect())
    }

    /// The state that another process needs to go on with the attachment of a disk that was paused
    /// and has let go of its channels; `None` if the disk has no attachment.
    ///
    /// # Errors
    /// When the attachment has ended.
    pub fn standing(&self) -> Result<Option<AttachmentSnapshot>, Ended> {
        let places = self.places();
        let attachment = places.paused.as_ref().and_then(|paused| paused.attachment.as_ref());
        attachment.map(|attachment| attachment.standing().ok_or(Ended)).transpose()
    }

    /// Moves a queue that runs to the sidecore `to`; nothing is done where it is there already.
    /// Waits for the two sidecores, and never for a volume: where that is not open on the new one
    /// yet, it begins to open.
    ///
    /// # Errors
    /// Why it is served where it was.
    ///
    /// # Panics
    /// When called on a sidecore.
    pub fn try_move(&self, queue: usize, to: usize) -> Result<(), MoveError> {
        let sidecores = self.sidecores.len();
        let no_such = MoveError::NoSuchSidecore { sidecore: to, sidecores };
        let target = self.sidecores.get(to).ok_or(no_such)?;
        let mut places = self.try_places()?;
        let runs = |running: &&RunningStart| running.queues.get(queue) == Some(&true);
        let running = places.running.as_ref().filter(runs).ok_or(MoveError::NotRunning)?;
        let (id, start, from) = (running.id, Arc::clone(&running.start), places.owners[queue]);
        if from == to {
            return Ok(());
        }
        if start.attachment.get().is_none() {
            return Err(NotMoved::Paused.into());
        }
        let ready = {
            let start = Arc::clone(&start);
            target.call(move |local| prepare(local, id, &start))?
        };
        if !ready {
            return Err(MoveError::NotReady);
        }
        let (reply, left) = sync_channel(1);
        let leave = move |local: &mut sidecore::Local| {
            let until_ns = local.now_ns() + LEAVE.as_nanos() as u64;
            with(local, id, |part| part.begin_leave(queue, until_ns, reply))
        };
        self.sidecores[from].call(leave)?.unwrap_or(Err(NotMoved::NotServed))?;
        // A sidecore that is gone has dropped the sender.
        let moved = left.recv().map_err(|_| CallError::Stopped)??;
        target.call(move |local| adopt(local, id, &start, moved))?;
        places.owners[queue] = to;
        Ok(())
    }
}
