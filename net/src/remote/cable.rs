//! One end of the way between a network and a nic on another node: the sidecore's sessions put
//! frames into it, and its [`CablePort`] takes them out again.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use transport::{BufId, Endpoint, HEAD_MAX, SessionId};

use super::wire::FrameHeader;
use crate::port::PortCounters;
use crate::reason::Reason;

/// Frames that came and wait for their port's turn: eight bursts.
const INBOX_FRAMES_MAX: usize = 512;

/// Bytes of them in the session's pool: four bursts.
const INBOX_BYTES_MAX: usize = 4 << 20;

sidecore::counters! {
    /// A cable's state and counts, for observers.
    pub struct CableCore {
        /// Times that it joined its network.
        joins,
        /// Frames that were marked, since the queue to the other node was long.
        marked,
        /// Frames that were for a membership of the past.
        stale,
        /// Bytes copied between frames and the sessions' buffers.
        bytes_copied,
    }
    and {
        joined: AtomicBool,
        why: Mutex<String>,
    }
}

impl CableCore {
    /// Whether frames pass.
    pub fn is_joined(&self) -> bool {
        self.joined.load(Relaxed)
    }

    /// Why they do not, for people.
    pub fn why(&self) -> String {
        self.story().clone()
    }

    pub(super) fn waits(&self, why: &str) {
        let mut story = self.story();
        if *story != why {
            why.clone_into(&mut story);
        }
    }

    fn story(&self) -> MutexGuard<'_, String> {
        self.why.lock()
    }
}

/// Where the frames of a cable go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plugged {
    pub(super) session: SessionId,
    pub(super) flow: u16,
    pub(super) membership: u32,
}

/// A frame that came.
pub(super) struct Arrived {
    head: [u8; HEAD_MAX],
    head_bytes: u8,
    pub(super) body: Option<(BufId, usize)>,
}

impl Arrived {
    pub(super) fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_bytes)]
    }
}

/// A ring of frames. Those that its port was lent stay where they are until they are given back.
pub(super) struct FrameInbox {
    slots: Box<[Arrived]>,
    first: usize,
    lent: usize,
    count: usize,
    body_bytes: usize,
}

impl FrameInbox {
    fn new() -> Self {
        let empty = || Arrived { head: [0; HEAD_MAX], head_bytes: 0, body: None };
        Self {
            slots: (0..INBOX_FRAMES_MAX).map(|_| empty()).collect(),
            first: 0,
            lent: 0,
            count: 0,
            body_bytes: 0,
        }
    }

    /// `false`: there is no room.
    fn push(&mut self, head: &[u8], body: Option<(BufId, usize)>) -> bool {
        let bytes = body.map_or(0, |(_, len_bytes)| len_bytes);
        if self.count == INBOX_FRAMES_MAX || self.body_bytes + bytes > INBOX_BYTES_MAX {
            return false;
        }
        let slot = &mut self.slots[(self.first + self.count) % INBOX_FRAMES_MAX];
        slot.head[..head.len()].copy_from_slice(head);
        slot.head_bytes = head.len() as u8;
        slot.body = body;
        self.count += 1;
        self.body_bytes += bytes;
        true
    }

    /// The next one.
    pub(super) fn lend(&mut self) -> Option<&mut Arrived> {
        if self.lent == self.count {
            return None;
        }
        let at = (self.first + self.lent) % INBOX_FRAMES_MAX;
        self.lent += 1;
        Some(&mut self.slots[at])
    }

    /// The first one that was lent is done with; its body.
    pub(super) fn give_back(&mut self) -> Option<Option<BufId>> {
        self.lent = self.lent.checked_sub(1)?;
        let body = self.slots[self.first].body.take();
        self.first = (self.first + 1) % INBOX_FRAMES_MAX;
        self.count -= 1;
        self.body_bytes -= body.map_or(0, |(_, len_bytes)| len_bytes);
        Some(body.map(|(buffer, _)| buffer))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// See the module's text.
pub(super) struct Cable {
    pub(super) endpoint: Rc<RefCell<Endpoint>>,
    pub(super) core: Arc<CableCore>,
    pub(super) counters: Arc<PortCounters>,
    pub(super) plugged: Option<Plugged>,
    pub(super) inbox: FrameInbox,
    /// Its port is gone, so a frame that comes is dropped.
    pub(super) is_cut: bool,
}

impl fmt::Debug for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { core, plugged, .. } = self;
        f.debug_struct("Cable")
            .field("core", core)
            .field("plugged", plugged)
            .finish_non_exhaustive()
    }
}

impl Cable {
    pub(super) fn new(
        endpoint: Rc<RefCell<Endpoint>>,
        core: Arc<CableCore>,
        counters: Arc<PortCounters>,
    ) -> Self {
        Self { endpoint, core, counters, plugged: None, inbox: FrameInbox::new(), is_cut: false }
    }

    /// Frames pass from now on.
    pub(super) fn plug(&mut self, plugged: Plugged) {
        self.plugged = Some(plugged);
        self.core.joins.add(1);
        self.core.waits("");
        self.core.joined.store(true, Relaxed);
    }

    /// Frames pass no longer.
    pub(super) fn unplug(&mut self, why: &str) {
        self.plugged = None;
        self.core.joined.store(false, Relaxed);
        self.core.waits(why);
    }

    /// A frame came for this cable's flow. `Some`: it is not taken, and its body must be released.
    pub(super) fn arrived(
        &mut self,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> Option<Option<BufId>> {
        let given_back = Some(body.map(|(buffer, _)| buffer));
        let membership = FrameHeader::membership_of(head);
        let is_ours = self.plugged.is_some_and(|it| membership == Some(it.membership));
        if !is_ours || self.is_cut {
            self.core.stale.add(1);
            return given_back;
        }
        if self.inbox.push(head, body) {
            return None;
        }
        self.counters.drops_in.count(Reason::NoRoom);
        given_back
    }

    /// Its port goes: waiting frames are released.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        self.core.joined.store(false, Relaxed);
        while self.inbox.lend().is_some() {}
        let mut endpoint = self.endpoint.borrow_mut();
        while let Some(body) = self.inbox.give_back() {
            body.into_iter().for_each(|body| endpoint.pool_mut().release(body));
        }
    }
}
