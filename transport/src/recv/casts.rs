//! Casts on their way in: put together, and handed over in the order of their numbers.
//!
//! A cast that comes before its turn waits for the missing ones. It waits until the sender says
//! that none of these will come any more, or for as long as a sender would go on. A cast that comes
//! after its turn is dropped.
//!
//! ```text
//! flow 3   [71: handed over]  next: 72 (a part is missing)  [73: whole][74: whole]  end: 75
//! ```

use crate::events::SessionId;
use crate::pool::{BufId, BufferOwner, Pool};
use crate::session::SessionContext;
use crate::tables::{append, make_room};
use crate::wire::{CAST_WINDOW, FragmentFrame, HEAD_MAX};

/// Casts of a session that are put together, or wait for their turn: as many as a flow can have
/// twice. Bounds its table.
const SLOTS_MAX: usize = 2 * CAST_WINDOW;

/// No slot.
const NONE: u16 = u16::MAX;

/// How far a cast is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CastState {
    /// Parts of it are missing.
    Partial,
    /// It waits for those before it.
    Whole,
    /// There was no buffer for it: it is passed over.
    Dropped,
}

#[derive(Debug)]
struct CastSlot {
    state: CastState,
    /// Since when it is known.
    since_ns: u64,
    body: Option<BufId>,
    body_bytes: u32,
    head_bytes: u8,
    fragments: u8,
    /// One bit for each fragment that arrived.
    taken: u64,
    head: [u8; HEAD_MAX],
}

impl CastSlot {
    fn vacant() -> Self {
        Self {
            state: CastState::Partial,
            since_ns: 0,
            body: None,
            body_bytes: 0,
            head_bytes: 0,
            fragments: 0,
            taken: 0,
            head: [0; HEAD_MAX],
        }
    }
}

/// A flow that its owner listens to.
#[derive(Debug)]
struct ListenedFlow {
    /// The number whose turn it is; `None` before the first cast.
    next: Option<u64>,
    /// Above the largest number that came.
    end: u64,
    /// By number, modulo the window.
    slots: Box<[u16; CAST_WINDOW]>,
    /// Which of these are taken, a bit each: a peer decides how far apart they are.
    taken: [u64; CAST_WINDOW / 64],
    /// When the first one of those that wait has waited for long enough.
    due_ns: u64,
}

fn at(id: u64) -> usize {
    id as usize % CAST_WINDOW
}

impl ListenedFlow {
    fn new() -> Self {
        let slots = Box::new([NONE; CAST_WINDOW]);
        Self { next: None, end: 0, slots, taken: [0; CAST_WINDOW / 64], due_ns: u64::MAX }
    }

    fn put(&mut self, id: u64, slot: u16) {
        self.slots[at(id)] = slot;
        self.taken[at(id) / 64] |= 1 << (at(id) % 64);
    }

    fn remove(&mut self, id: u64) {
        self.slots[at(id)] = NONE;
        self.taken[at(id) / 64] &= !(1 << (at(id) % 64));
    }

    /// The first number from `from` on that waits in a slot; in nine steps, however far it is.
    fn waiting_from(&self, from: u64) -> Option<u64> {
        let (word, bit) = (at(from) / 64, at(from) % 64);
        let words = self.taken.len();
        // The first word is looked at twice: its upper bits come first, and its lower ones last.
        (0..=words).find_map(|step| {
            let bits = self.taken[(word + step) % words];
            let bits = match step {
                0 => bits >> bit << bit,
                _ if step == words => bits & ((1 << bit) - 1),
                _ => bits,
            };
            let ahead = 64 * step as u64 + u64::from(bits.trailing_zeros());
            (bits != 0).then(|| from + ahead - bit as u64)
        })
    }
}

/// The casts of the peer in one session.
#[derive(Debug)]
pub(crate) struct PeerCasts {
    /// By flow, up to the highest that was opened.
    flows: Vec<Option<ListenedFlow>>,
    /// Grows to the most that were ever needed.
    slots: Vec<CastSlot>,
    free: Vec<u16>,
    /// No flow is due before.
    due_ns: u64,
}

/// A fragment of a cast with what belongs to it. The frame is valid.
pub(crate) struct CastPiece<'a> {
    pub(crate) frame: &'a FragmentFrame,
    pub(crate) head: &'a [u8],
    pub(crate) data: &'a [u8],
    /// Where `data` lies in the body.
    pub(crate) first: usize,
    /// How many fragments its cast has.
    pub(crate) count: usize,
}

/// The parts of the session that its casts borrow while one is worked on.
pub(crate) struct CastContext<'a, 'b> {
    pub(crate) inside: &'a mut SessionContext<'b>,
    /// Whose the buffers are.
    pub(crate) owner: BufferOwner,
    pub(crate) session: SessionId,
    /// How long a sender goes on.
    pub(crate) life_ns: u64,
}

/// A fragment says otherwise than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction;

impl PeerCasts {
    pub(crate) fn new() -> Self {
        Self { flows: Vec::new(), slots: Vec::new(), free: Vec::new(), due_ns: u64::MAX }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        let flows = self.flows.iter().flatten().count();
        self.slots.capacity() * size_of::<CastSlot>()
            + self.free.capacity() * size_of::<u16>()
            + self.flows.capacity() * size_of::<Option<ListenedFlow>>()
            + flows * size_of::<[u16; CAST_WINDOW]>()
    }

    /// Nothing came for long: lets go of what only a burst needed.
    pub(crate) fn rest(&mut self) {
        if self.free.len() == self.slots.len() {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// When [`Self::advance`] is due.
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Hands casts of a flow over from now on.
    pub(crate) fn open(&mut self, flow: u16) {
        if self.flows.len() <= usize::from(flow) {
            self.flows.resize_with(usize::from(flow) + 1, || None);
        }
        self.flows[usize::from(flow)].get_or_insert_with(ListenedFlow::new);
    }

    /// Stops handing over casts of a flow. Waiting casts are dropped.
    pub(crate) fn close(&mut self, flow: u16, pool: &mut Pool) {
        let closed = self.flows.get_mut(usize::from(flow)).and_then(Option::take);
        for &number in closed.iter().flat_map(|flow| flow.slots.iter()).filter(|it| **it != NONE) {
            self.free.push(number);
            let slot = &mut self.slots[usize::from(number)];
            slot.body.take().into_iter().for_each(|body| pool.release(body));
        }
    }

    /// Lets go of all buffers: the session is over.
    pub(crate) fn release_all(&mut self, pool: &mut Pool) {
        let bodies = self.slots.iter_mut().filter_map(|slot| slot.body.take());
        bodies.for_each(|body| pool.release(body));
    }

    /// Takes a fragment.
    pub(crate) fn take(
        &mut self,
        around: &mut CastContext<'_, '_>,
        piece: &CastPiece<'_>,
    ) -> Result<(), Contradiction> {
        let number = piece.frame.flow.get();
        let Some(mut flow) = self.flows.get_mut(usize::from(number)).and_then(Option::take) else {
            around.inside.counters.casts_unwanted += 1;
            return Ok(());
        };
        let taken = self.take_of_flow(around, number, &mut flow, piece);
        self.flows[usize::from(number)] = Some(flow);
        taken
    }

    fn take_of_flow(
        &mut self,
        around: &mut CastContext<'_, '_>,
        number: u16,
        flow: &mut ListenedFlow,
        piece: &CastPiece<'_>,
    ) -> Result<(), Contradiction> {
        let id = piece.frame.id.get();
        let oldest = id - u64::from(piece.frame.behind.get());
        if flow.next.is_none_or(|next| next < oldest) {
            self.pass(around, number, flow, oldest);
        }
        let next = *flow.next.get_or_insert(oldest);
        if id < next {
            around.inside.counters.casts_late += 1;
            return Ok(());
        }
        assert!(id - next < CAST_WINDOW as u64, "a valid frame is near the oldest");
        if id == next && flow.end <= next && piece.count == 1 {
            // Most of them: alone, and in order.
            (flow.next, flow.end) = (Some(next + 1), next + 1);
            hand_over_at_once(around, number, piece);
            return Ok(());
        }
        flow.end = flow.end.max(id + 1);
        self.take_piece(around, flow, piece)?;
        self.hand_over(around, number, flow);
        self.note_due(around, flow);
        Ok(())
    }

    /// Puts a fragment where it belongs, and makes a place for it if it is the first one.
    fn take_piece(
        &mut self,
        around: &mut CastContext<'_, '_>,
        flow: &mut ListenedFlow,
        piece: &CastPiece<'_>,
    ) -> Result<(), Contradiction> {
        let id = piece.frame.id.get();
        if flow.slots[at(id)] == NONE {
            let Some(slot) = self.begin(around, piece.frame, piece.count) else {
                // Not even a place to remember that: it looks like one that never came.
                around.inside.counters.casts_no_buffer += 1;
                return Ok(());
            };
            flow.put(id, slot);
        }
        let slot = &mut self.slots[usize::from(flow.slots[at(id)])];
        let lengths = (piece.frame.head_bytes, piece.frame.body_bytes.get());
        if (slot.head_bytes, slot.body_bytes) != lengths {
            return Err(Contradiction);
        }
        let bit = 1 << piece.frame.fragment.get();
        if slot.state != CastState::Partial || slot.taken & bit != 0 {
            around.inside.counters.fragments_duplicate += 1;
            return Ok(());
        }
        slot.taken |= bit;
        if piece.frame.fragment.get() == 0 {
            slot.head[..piece.head.len()].copy_from_slice(piece.head);
        }
        if let Some(body) = slot.body {
            fill(around, body, piece);
        }
        if slot.taken.count_ones() == u32::from(slot.fragments) {
            slot.state = CastState::Whole;
        }
        Ok(())
    }

    fn begin(
        &mut self,
        around: &mut CastContext<'_, '_>,
        frame: &FragmentFrame,
        fragments: usize,
    ) -> Option<u16> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.slots.len() < SLOTS_MAX => {
                append(&mut self.slots, CastSlot::vacant());
                make_room(&mut self.free, &self.slots);
                (self.slots.len() - 1) as u16
            }
            None => return None,
        };
        let body_bytes = frame.body_bytes.get() as usize;
        let SessionContext { now_ns, pool, counters, .. } = &mut *around.inside;
        let mut body = None;
        if body_bytes > 0 {
            body = pool.alloc_incoming(around.owner, body_bytes, counters);
        }
        let has_room = body.is_some() || body_bytes == 0;
        counters.casts_no_buffer += u64::from(!has_room);
        let slot = &mut self.slots[usize::from(number)];
        slot.state = if has_room { CastState::Partial } else { CastState::Dropped };
        slot.since_ns = *now_ns;
        (slot.body, slot.body_bytes) = (body, frame.body_bytes.get());
        slot.head_bytes = frame.head_bytes;
        (slot.fragments, slot.taken) = (fragments as u8, 0);
        Some(number)
    }

    /// Hands over all that is whole and whose turn it is.
    fn hand_over(
        &mut self,
        around: &mut CastContext<'_, '_>,
        number: u16,
        flow: &mut ListenedFlow,
    ) {
        let mut next = flow.next.expect("a cast has come");
        while next < flow.end {
            let slot = flow.slots[at(next)];
            if slot == NONE || self.slots[usize::from(slot)].state == CastState::Partial {
                break;
            }
            flow.remove(next);
            self.end(around, number, slot);
            next += 1;
        }
        flow.next = Some(next);
    }

    /// Goes on at number `to`, at least: whole casts before it are handed over, and the rest is
    /// dropped.
    fn pass(
        &mut self,
        around: &mut CastContext<'_, '_>,
        number: u16,
        flow: &mut ListenedFlow,
        to: u64,
    ) {
        let Some(next) = flow.next else { return };
        // Above the end there is nothing, however far it goes.
        let end = to.min(flow.end);
        let mut missed = end.saturating_sub(next);
        while let Some(id) = flow.waiting_from(next).filter(|id| *id < end) {
            let slot = flow.slots[at(id)];
            flow.remove(id);
            self.end(around, number, slot);
            missed -= 1;
        }
        around.inside.counters.casts_missed += missed;
        let unseen = to - to.min(flow.end.max(next));
        // However far a hostile peer's numbers jump, it is a count.
        around.inside.counters.casts_missed += unseen.min(CAST_WINDOW as u64);
        flow.next = Some(to.max(next));
        flow.end = flow.end.max(to);
    }

    /// Empties a slot: hands the cast over, or drops it.
    fn end(&mut self, around: &mut CastContext<'_, '_>, flow: u16, number: u16) {
        self.free.push(number);
        let slot = &mut self.slots[usize::from(number)];
        let SessionContext { pool, counters, sink, .. } = &mut *around.inside;
        let body = slot.body.take();
        if slot.state == CastState::Whole {
            counters.casts_received += 1;
            let head = &slot.head[..usize::from(slot.head_bytes)];
            let body = body.map(|body| (body, slot.body_bytes as usize));
            sink.cast(around.session, flow, head, body);
            return;
        }
        counters.casts_missed += u64::from(slot.state == CastState::Partial);
        if let Some(body) = body {
            pool.release(body);
        }
    }

    /// Notes when the first one that waits has waited for long enough.
    fn note_due(&mut self, around: &CastContext<'_, '_>, flow: &mut ListenedFlow) {
        let next = flow.next.expect("a cast has come");
        let waiting =
            flow.waiting_from(next).map(|id| self.slots[usize::from(flow.slots[at(id)])].since_ns);
        flow.due_ns = waiting.map_or(u64::MAX, |since_ns| since_ns + around.life_ns);
        self.due_ns = self.due_ns.min(flow.due_ns);
    }

    /// Passes over what is missing for too long.
    pub(crate) fn advance(&mut self, around: &mut CastContext<'_, '_>) {
        if around.inside.now_ns < self.due_ns {
            return;
        }
        self.due_ns = u64::MAX;
        for number in 0..self.flows.len() {
            let Some(mut flow) = self.flows[number].take() else { continue };
            // Each turn passes over one number at least, of a window of them.
            while flow.due_ns <= around.inside.now_ns {
                self.pass_one(around, number as u16, &mut flow);
            }
            self.due_ns = self.due_ns.min(flow.due_ns);
            self.flows[number] = Some(flow);
        }
    }

    /// Passes over the numbers that are missing before the first cast that came; or over that cast,
    /// if it is not whole.
    fn pass_one(&mut self, around: &mut CastContext<'_, '_>, number: u16, flow: &mut ListenedFlow) {
        let next = flow.next.expect("a cast has come");
        let first = flow.waiting_from(next);
        let to = first.map_or(flow.end, |first| if first == next { next + 1 } else { first });
        self.pass(around, number, flow, to);
        self.hand_over(around, number, flow);
        self.note_due(around, flow);
    }
}

/// Copies a fragment's part of the body.
fn fill(around: &mut CastContext<'_, '_>, body: BufId, piece: &CastPiece<'_>) {
    let range = piece.first..piece.first + piece.data.len();
    around.inside.pool.bytes_mut(body)[range].copy_from_slice(piece.data);
    around.inside.counters.bytes_copied += piece.data.len() as u64;
}

/// Hands over a cast that came whole, and in its turn.
fn hand_over_at_once(around: &mut CastContext<'_, '_>, number: u16, piece: &CastPiece<'_>) {
    let mut body = None;
    if !piece.data.is_empty() {
        let SessionContext { pool, counters, .. } = &mut *around.inside;
        body = pool.alloc_incoming(around.owner, piece.data.len(), counters);
        let Some(body) = body else {
            counters.casts_no_buffer += 1;
            return;
        };
        fill(around, body, piece);
    }
    around.inside.counters.casts_received += 1;
    let body = body.map(|body| (body, piece.data.len()));
    around.inside.sink.cast(around.session, number, piece.head, body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Random;

    #[test]
    fn the_first_that_waits_is_that_of_a_plain_search() {
        let mut random = Random::new(5);
        for _ in 0..2000 {
            let (mut flow, next) = (ListenedFlow::new(), random.draw() % 5000);
            let window = next..next + CAST_WINDOW as u64;
            for _ in 0..random.draw() % 4 {
                flow.put(next + random.draw() % CAST_WINDOW as u64, 7);
            }
            while let Some(id) = window.clone().find(|id| flow.slots[at(*id)] != NONE) {
                assert_eq!(flow.waiting_from(next), Some(id));
                flow.remove(id);
            }
            assert_eq!(flow.waiting_from(next), None);
        }
    }
}
