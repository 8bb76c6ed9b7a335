//! Sleeping until an endpoint has work, and waking others that sleep.
//!
//! Before it sleeps an endpoint numbers the sleep and writes the number into its slot, on the line
//! that senders look at anyway. It makes all processors see this store, and looks for work once
//! more. A sender compares the number, after each cell that it publishes, with the number of the
//! sleep that it has last woken the endpoint from. While no endpoint sleeps this is one load and no
//! more. The number is never taken back: each sender wakes an endpoint that is awake again once in
//! vain, and to avoid that it would have to look, which costs it as much.
//!
//! Cells in the ring, deaths and the ends of hosts wake an endpoint. Room in a ring and buffers
//! that come back are not announced. An endpoint that waits for these has to look: it may only nap.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

use super::Endpoint;
use super::engine::Engine;
use super::engine::sleep::{Barriers, REFUSALS_MAX, REFUSED, SendRefusal};
use super::errors::SendError;
use super::local_node::{LocalNode, NoDoorbell};
use super::options::INJECT_BYTES_MAX;
use crate::cell::{Cell, CellKind, Local};
use crate::doorbell;
use crate::region::Region;
use crate::ring::Words;

/// Whether an endpoint has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doze {
    /// There is work, or a completion.
    Ready,
    /// Its doorbell is rung when there is work.
    Sleep,
    /// Its doorbell is rung when a cell comes. But the endpoint also waits for room, which nothing
    /// announces: look again soon.
    Nap,
    /// A message was refused for want of room, and there is room now. The program must send the
    /// message again, and nothing else tells it so: this is said until
    /// [`Endpoint::refusals_are_told`]. Before there is room, it is [`Doze::Nap`].
    Refused,
    /// Nothing wakes it any more, because a member has shut its doorbell down:
    /// [`Endpoint::reopen_doorbell`].
    Deaf,
    /// Nothing wakes it: it has no doorbell, or its node is gone.
    Never,
}

/// How often an endpoint's doorbell is replaced after members have shut it down. After that the
/// endpoint polls instead: each new doorbell costs the node a moment.
const REOPENED_MAX: u32 = 16;

impl Endpoint {
    /// Gets a doorbell from the node, and waits for the answer. Without a doorbell the endpoint
    /// does not sleep.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open_doorbell(&mut self) -> Result<(), NoDoorbell> {
        let doorbell = self.doorbell_request().map(DoorbellRequest::ask).transpose()?;
        doorbell.into_iter().for_each(|doorbell| self.set_doorbell(doorbell));
        Ok(())
    }

    /// The same in two steps, for a caller that must not keep other threads from the endpoint while
    /// it waits for the node. None: the endpoint has a doorbell.
    pub fn doorbell_request(&self) -> Option<DoorbellRequest> {
        let Engine { sleeping, peers, me, .. } = &self.engine;
        let home = peers.remotes.home().cloned();
        let Local { slot, incarnation, .. } = *me;
        let has_barrier = sleeping.barriers != Barriers::Own;
        sleeping.read_end.is_none().then_some(DoorbellRequest {
            home,
            slot,
            incarnation,
            has_barrier,
        })
    }

    /// The second step: takes the doorbell that [`DoorbellRequest::ask`] has given for this
    /// endpoint.
    pub fn set_doorbell(&mut self, doorbell: OwnedFd) {
        // Two threads may have asked for it. If the later one's doorbell is the one that the node
        // knows, the first one behaves like a doorbell that was shut down.
        self.engine.sleeping.read_end.get_or_insert(doorbell);
    }

    /// Gets another doorbell in place of one that a member has shut down ([`Doze::Deaf`]), if the
    /// node has given it by now; the call does not wait. A caller that watched the first doorbell
    /// has to forget it before, and to watch the new one after. `false`: not yet, or too often.
    pub fn reopen_doorbell(&mut self) -> bool {
        let Engine { sleeping, peers, me, .. } = &mut self.engine;
        if sleeping.reopened >= REOPENED_MAX {
            return false;
        }
        let home = peers.remotes.home();
        let doorbell = home.and_then(|home| home.reopen_doorbell(me.slot, me.incarnation));
        let has_come = doorbell.is_some();
        if has_come {
            (sleeping.read_end, sleeping.reopened) = (doorbell, sleeping.reopened + 1);
        }
        has_come
    }

    /// Whether pieces or answers that waited for room have been sent since the last call: a nap for
    /// these was not in vain.
    pub fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.engine.sleeping.moved)
    }

    /// The read end of its doorbell, readable once it was woken; none if it has no doorbell.
    pub fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.engine.sleeping.read_end.as_ref().map(AsFd::as_fd)
    }

    /// Asks to be woken from now on, and says whether the caller can sleep until the doorbell can
    /// be read. Nothing that comes in between is missed.
    pub fn doze(&mut self) -> Doze {
        self.engine.doze(&self.region)
    }

    /// Whether a thread that has slept since before should look again: a request has ended, there
    /// is work, or a call has asked for something that only the next [`Endpoint::doze`] finds.
    pub fn has_something(&self) -> bool {
        let Engine { completions, peers, sleeping, .. } = &self.engine;
        let is_due = !completions.is_empty() || self.engine.has_business();
        is_due || peers.has_news() || !sleeping.unrung.is_empty()
    }

    /// The program has heard of [`Doze::Refused`].
    pub fn refusals_are_told(&mut self) {
        let engine = &mut self.engine;
        while let Some(place) = engine.sleeping.refusals.iter().position(|it| it.is_due) {
            engine.forget_refusal(place);
        }
    }

    /// Whether this is the process that it was made in, and not a child.
    pub(crate) fn is_here(&self) -> bool {
        self.region.is_here()
    }

    pub(crate) fn set_barriers(&mut self, barriers: Barriers) {
        self.engine.sleeping.barriers = barriers;
    }
}

/// Asks for the doorbell of an endpoint, apart from the endpoint.
#[derive(Debug)]
pub struct DoorbellRequest {
    home: Option<Arc<dyn LocalNode>>,
    slot: u16,
    incarnation: u32,
    has_barrier: bool,
}

impl DoorbellRequest {
    /// Asks the node, and waits for it. The doorbell is for [`Endpoint::set_doorbell`].
    ///
    /// # Errors
    /// Why there is none.
    pub fn ask(self) -> Result<OwnedFd, NoDoorbell> {
        let home = self.home.ok_or(NoDoorbell::NoNode)?;
        let doorbell = home.open_doorbell(self.slot, self.incarnation)?;
        // The node's reason comes first: inside of a VM it is the better one.
        if self.has_barrier { Ok(doorbell) } else { Err(NoDoorbell::NoBarrier) }
    }
}

/// Makes the stores of this thread before this call visible to all members before its loads after
/// it. For each member: this thread sees the member's earlier stores, or the member sees this
/// thread's. `false`: this holds only for members that make fences of their own.
pub(super) fn barrier_for_all() -> bool {
    let is_made = membarrier(MembarrierCommand::GlobalExpedited).is_ok();
    // For members that make fences of their own, as the node does.
    fence(SeqCst);
    is_made
}

impl Engine {
    fn doze(&mut self, region: &Region) -> Doze {
        let Some(read_end) = &self.sleeping.read_end else { return self.never(region) };
        let is_up = self.peers.remotes.home().is_some_and(|home| home.is_there());
        if !is_up || !self.completions.is_empty() {
            return self.never(region);
        }
        // The look below sees the reasons of rings until now.
        if !doorbell::silence(read_end) {
            // The node is there, so a member has shut the doorbell down.
            return match self.never(region) {
                Doze::Never => Doze::Deaf,
                other => other,
            };
        }
        self.sleeping.sleep += 1;
        let (ring, mut is_seen) = (region.ring(self.me.slot), false);
        self.consumer.fall_asleep(&ring, self.sleeping.sleep, || is_seen = barrier_for_all());
        self.rest(region);
        self.look_around(region);
        if !self.completions.is_empty() || self.consumer.look(&ring).is_some() {
            return Doze::Ready;
        }
        if !is_seen {
            return self.never(region);
        }
        if self.has_room_for_refused(region) {
            return Doze::Refused;
        }
        let is_busy = self.has_business()
            || !self.sleeping.refusals.is_empty()
            || !self.sleeping.unrung.is_empty()
            || self.peers.remotes.has_unasked();
        if is_busy { Doze::Nap } else { Doze::Sleep }
    }

    /// Whether something waits for room, which nothing announces.
    #[inline(always)]
    pub(super) fn has_business(&self) -> bool {
        // One comparison, since each look for messages makes it.
        self.answers.len() | self.sends.feeding() | self.backlog.receivers() != 0
    }

    fn never(&mut self, region: &Region) -> Doze {
        match self.completions.is_empty() {
            false => Doze::Ready,
            true if self.has_room_for_refused(region) => Doze::Refused,
            true => Doze::Never,
        }
    }

    /// A message was not sent for want of room, which nothing announces.
    #[cold]
    pub(super) fn note_refused(&mut self, to: Local) {
        let refusals = &mut self.sleeping.refusals;
        if let Some(refusal) = refusals.iter_mut().find(|it| it.to == to) {
            (refusal.is_new, refusal.is_due) = (true, false);
            return;
        }
        if refusals.len() == REFUSALS_MAX {
            self.forget_refusal(0);
        }
        let rung = match to.host {
            0 => std::mem::replace(&mut self.peers.get(to).rung, REFUSED),
            _ => 0,
        };
        self.sleeping.refusals.push(SendRefusal { to, rung, is_new: true, is_due: false });
    }

    /// A cell is published: if it is a message, none to the same endpoint is refused any more.
    #[inline]
    pub(super) fn note_sent(&mut self, to: Local, kind: CellKind) {
        if !self.sleeping.refusals.is_empty() {
            self.forget_refusals_to(to, kind);
        }
    }

    #[cold]
    fn forget_refusals_to(&mut self, to: Local, kind: CellKind) {
        let is_message =
            matches!(kind, CellKind::Inline | CellKind::Eager | CellKind::Offer | CellKind::Push);
        let place = self.sleeping.refusals.iter().position(|it| it.to == to);
        if let Some(place) = place.filter(|_| is_message) {
            self.forget_refusal(place);
        }
    }

    fn forget_refusal(&mut self, place: usize) {
        let SendRefusal { to, rung, .. } = self.sleeping.refusals.remove(place);
        if to.host != 0 {
            return;
        }
        let peer = self.peers.get(to);
        // Another owner of the slot may have been met since.
        if peer.incarnation == to.incarnation && peer.rung == REFUSED {
            peer.rung = rung;
        }
    }

    /// Whether a refused message should be sent again: there is room for it, or its receiver is
    /// gone.
    fn has_room_for_refused(&mut self, region: &Region) -> bool {
        let mut is_due = false;
        for place in 0..self.sleeping.refusals.len() {
            let SendRefusal { to, is_new, .. } = self.sleeping.refusals[place];
            let has_room = !is_new && self.has_room(region, to);
            let refusal = &mut self.sleeping.refusals[place];
            (refusal.is_new, refusal.is_due) = (false, has_room);
            is_due |= has_room;
        }
        is_due
    }

    fn has_room(&mut self, region: &Region, to: Local) -> bool {
        if !self.lives(region, to) {
            return true;
        }
        let ring = self.ring_to(region, to);
        let is_next = !self.backlog.waits_for(to) && self.is_open(region, to);
        let has_way = is_next && self.find_room(region, ring) != Err(SendError::Busy);
        has_way || self.backlog.has_room(INJECT_BYTES_MAX)
    }

    /// Wakes a sleeper in a slot of this host, once this cell of its ring is published.
    #[inline(always)]
    pub(super) fn wake(&mut self, region: &Region, cell: &Cell<'_>, to: Local, kind: CellKind) {
        match self.sleeping.barriers {
            // The sleeper's barrier comes before both the store and this look, or after both.
            Barriers::Sleepers => compiler_fence(SeqCst),
            Barriers::Own => fence(SeqCst),
        }
        if cell.asleep() != self.peers.get(to).rung {
            self.wake_or_note(region, to, kind);
        }
    }

    #[cold]
    fn wake_or_note(&mut self, region: &Region, to: Local, kind: CellKind) {
        self.note_sent(to, kind);
        self.ring(region, to);
        // An endpoint that could not be woken before does not wait for the next look around, which
        // may be long after.
        if !self.sleeping.unrung.is_empty() {
            let first = self.sleeping.unrung.remove(0);
            self.ring_if_live(region, first);
        }
    }

    /// The place of the number of the sleep that an endpoint was woken from last.
    fn rung(&mut self, to: Local) -> &mut u64 {
        let peer = self.peers.get(to);
        if peer.rung != REFUSED {
            return &mut peer.rung;
        }
        let refusal = self.sleeping.refusals.iter_mut().find(|it| it.to == to);
        refusal.map_or(&mut peer.rung, |it| &mut it.rung)
    }

    fn ring(&mut self, region: &Region, to: Local) {
        // Read before the ring: a later sleep has another number and is woken again.
        let word = region.ring(to.slot).asleep();
        if *self.rung(to) == word {
            return;
        }
        let home = self.peers.remotes.home();
        let is_rung = word == 0 || home.is_none_or(|home| home.ring(to.slot, to.incarnation));
        if is_rung {
            *self.rung(to) = word;
        } else if !self.sleeping.unrung.contains(&to) {
            self.sleeping.unrung.push(to);
        }
    }

    /// Wakes endpoints that could not be woken before.
    pub(super) fn ring_again(&mut self, region: &Region) {
        for to in std::mem::take(&mut self.sleeping.unrung) {
            self.ring_if_live(region, to);
        }
    }

    fn ring_if_live(&mut self, region: &Region, to: Local) {
        // Another owner of its slot may have been met since.
        if region.is_live(to.slot, to.incarnation)
            && self.peers.get(to).incarnation == to.incarnation
        {
            self.ring(region, to);
        }
    }
}
