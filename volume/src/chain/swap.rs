//! A volume whose chain is replaced while it is used, without losing or reordering a request.
//!
//! Each channel turns by itself, between two requests: it holds back what comes, takes back what
//! its chain has not begun (a limit's queue), waits until the rest has completed, and goes on with
//! the new chain. Nothing waits for other channels, and there was never an order between them.
//!
//! ```text
//!   settled 3, wanted 3   everyone is at 3
//!   settled 3, wanted 4   channels turn to 4, each keeps its drained channel of 3 as a spare
//!   settled 4, wanted 4   all were there: the spares go          (settle)
//!   settled 3, wanted 3   one could not: all turn back to theirs (revert)
//! ```
//! Going back cannot fail, since nothing has to be opened for it: so a change is all or nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use parking_lot::{Mutex, MutexGuard};
use sidecore::{Progress, Services, Wake};

use crate::size::Size;
use crate::volume::{Channel, IoId, IoTable, OpenArguments, OpenError, Volume, VolumeInfo};

/// How far a change is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapProgress {
    /// Every channel is where it is wanted.
    Done,
    /// So many are not, yet.
    Left(usize),
    /// One cannot get there, for this reason.
    Failed(String),
}

/// A numbered chain; numbers are never used twice.
type Version = (u64, Arc<dyn Volume>);

#[derive(Debug)]
struct SwapState {
    settled: Version,
    wanted: Version,
    next: u64,
    places: Vec<Arc<ChannelVersion>>,
}

/// Where a channel is.
#[derive(Debug)]
struct ChannelVersion {
    at: AtomicU64,
    /// Why it cannot turn. Control path only.
    failed: Mutex<Option<String>>,
}

#[derive(Debug)]
struct SwapShared {
    /// The number of the wanted chain, for channels, which take no lock. Written under the books'
    /// lock.
    wanted: AtomicU64,
    settled: AtomicU64,
    books: Mutex<SwapState>,
}

impl SwapShared {
    fn books(&self) -> MutexGuard<'_, SwapState> {
        // Each of its changes is one statement.
        self.books.lock()
    }
}

/// See the module. One thread changes it at a time.
#[derive(Debug)]
pub struct Swap {
    shared: Arc<SwapShared>,
}

impl Swap {
    /// Begins with this chain.
    pub fn new(chain: Arc<dyn Volume>) -> Arc<Self> {
        let first = (0, chain);
        let books =
            SwapState { settled: first.clone(), wanted: first, next: 1, places: Vec::new() };
        let (wanted, settled) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self {
            shared: Arc::new(SwapShared { wanted, settled, books: Mutex::new(books) }),
        })
    }

    /// Has all channels turn to another chain over the same blocks. Wake their sidecores, look at
    /// [`Self::turning`], then [`Self::settle`] or [`Self::revert`].
    pub fn begin(&self, chain: Arc<dyn Volume>) {
        let mut books = self.shared.books();
        assert_eq!(books.wanted.0, books.settled.0, "one change at a time");
        books.wanted = (books.next, chain);
        books.next += 1;
        books.places.iter().for_each(|place| *failed(place) = None);
        self.shared.wanted.store(books.wanted.0, Release);
    }

    /// How far the channels are.
    pub fn turning(&self) -> SwapProgress {
        let books = self.shared.books();
        let why = books.places.iter().find_map(|place| failed(place).clone());
        match (why, books.left()) {
            (Some(why), _) => SwapProgress::Failed(why),
            (None, 0) => SwapProgress::Done,
            (None, left) => SwapProgress::Left(left),
        }
    }

    /// The change is final, if all channels are there. Wake the sidecores: the old chain goes when
    /// its last channel does.
    pub fn settle(&self) -> bool {
        let mut books = self.shared.books();
        if books.left() > 0 {
            return false;
        }
        books.settled = books.wanted.clone();
        self.shared.settled.store(books.settled.0, Release);
        true
    }

    /// Has all channels turn back. Wake the sidecores.
    pub fn revert(&self) {
        let mut books = self.shared.books();
        books.wanted = books.settled.clone();
        books.places.iter().for_each(|place| *failed(place) = None);
        self.shared.wanted.store(books.wanted.0, Release);
    }
}

impl SwapState {
    fn left(&self) -> usize {
        self.places.iter().filter(|place| place.at.load(Acquire) != self.wanted.0).count()
    }
}

fn failed(place: &ChannelVersion) -> MutexGuard<'_, Option<String>> {
    place.failed.lock()
}

impl Volume for Swap {
    fn info(&self) -> VolumeInfo {
        let chain = Arc::clone(&self.shared.books().settled.1);
        chain.info()
    }

    /// All chains are over the same blocks.
    fn size(&self) -> Size {
        let chain = Arc::clone(&self.shared.books().settled.1);
        chain.size()
    }

    /// Opens the settled chain; a change under way is caught up with at the first poll. The books
    /// stay locked meanwhile, so that no change is settled without this channel.
    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let mut books = self.shared.books();
        let (version, chain) = &books.settled;
        let (version, inner) = (*version, chain.open(open)?);
        let place =
            Arc::new(ChannelVersion { at: AtomicU64::new(version), failed: Mutex::default() });
        books.places.push(Arc::clone(&place));
        Ok(Box::new(SwapChannel {
            inner,
            version,
            spare: None,
            turning: false,
            held: VecDeque::with_capacity(usize::from(open.depth)),
            recalled: Vec::with_capacity(usize::from(open.depth)),
            inside: 0,
            shared: Arc::clone(&self.shared),
            place,
            services: open.services.clone(),
            depth: open.depth,
        }))
    }
}

#[derive(Debug)]
struct SwapChannel {
    inner: Box<dyn Channel>,
    version: u64,
    /// The drained channel of the settled chain, until the change is.
    spare: Option<(u64, Box<dyn Channel>)>,
    turning: bool,
    /// In the order of their submission; only while turning.
    held: VecDeque<IoId>,
    recalled: Vec<IoId>,
    /// Requests that the chain has.
    inside: usize,
    shared: Arc<SwapShared>,
    place: Arc<ChannelVersion>,
    services: Services,
    depth: u16,
}

impl SwapChannel {
    fn is_wanted_elsewhere(&self) -> bool {
        self.shared.wanted.load(Acquire) != self.version
    }

    /// One round of a turn; `true` when it is over.
    fn turn(&mut self, ios: &mut IoTable) {
        if !self.turning {
            self.turning = true;
            self.inner.recall(ios, &mut self.recalled);
            self.inside -= self.recalled.len();
            self.held.extend(self.recalled.drain(..));
        }
        if self.inside > 0 || failed(&self.place).is_some() {
            return;
        }
        if let Err(error) = self.enter() {
            *failed(&self.place) = Some(error.to_string());
        }
    }

    /// Goes over to the wanted chain; nothing is inside the present one.
    fn enter(&mut self) -> Result<(), OpenError> {
        let (wanted, settled) = {
            let books = self.shared.books();
            (books.wanted.clone(), books.settled.0)
        };
        let back = self.spare.take_if(|(version, _)| *version == wanted.0);
        let (version, next) = match back {
            Some(spare) => spare,
            None => {
                let open = OpenArguments { services: &self.services, depth: self.depth };
                (wanted.0, wanted.1.open(&open)?)
            }
        };
        let left = (self.version, std::mem::replace(&mut self.inner, next));
        self.version = version;
        if left.0 == settled {
            self.spare = Some(left);
        }
        self.place.at.store(version, Release);
        Ok(())
    }

    /// Hands on what was held back.
    fn go_on(&mut self, ios: &mut IoTable) {
        self.turning = false;
        while let Some(id) = self.held.pop_front() {
            self.inside += 1;
            self.inner.submit(ios, id);
        }
    }

    fn has_useless_spare(&self) -> bool {
        self.spare.is_some() && self.shared.settled.load(Acquire) == self.version
    }
}

impl Channel for SwapChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        if self.turning {
            self.held.push_back(id);
        } else {
            self.inside += 1;
            self.inner.submit(ios, id);
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let before = done.len();
        let mut progress = self.inner.poll(ios, now_ns, done);
        self.inside -= done.len() - before;
        if self.is_wanted_elsewhere() {
            self.turn(ios);
        }
        if self.turning && !self.is_wanted_elsewhere() {
            self.go_on(ios);
            progress = Progress::Busy;
        }
        if self.has_useless_spare() {
            self.spare = None;
        }
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let elsewhere = self.is_wanted_elsewhere();
        // A completion wakes a channel that waits to turn. The revert of the change wakes a channel
        // whose turn failed.
        let can_turn = elsewhere && self.inside == 0 && failed(&self.place).is_none();
        let due = elsewhere != self.turning || can_turn || self.has_useless_spare();
        self.inner.arm(wake) | Progress::busy_if(due)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn is_open(&self) -> bool {
        !self.turning && !self.is_wanted_elsewhere() && self.inner.is_open()
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.held.clear();
        self.inner.abandon(ios, now_ns)
    }

    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        let before = back.len();
        self.inner.recall(ios, back);
        self.inside -= back.len() - before;
        back.extend(self.held.drain(..));
    }
}

impl Drop for SwapChannel {
    fn drop(&mut self) {
        self.shared.books().places.retain(|place| !Arc::ptr_eq(place, &self.place));
    }
}

#[cfg(test)]
mod tests;
