//! Messages on their way in: put together from fragments, each of them taken once.
//!
//! A call has a place in a table of its session, `id % calls_max`, at both ends. The caller uses a
//! place again, with a greater id, once the reply is complete. So a place remembers one id, and
//! that is enough to recognise every fragment of the past.

pub(crate) mod casts;

use crate::bits::Bits;
use crate::pool::BufId;
use crate::tables::{append, make_room};
use crate::wire::{FragmentFrame, HEAD_MAX, Pieces};

/// Whether a message still needs a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentRole {
    /// Take it.
    New,
    /// It was taken.
    Duplicate,
    /// It contradicts the fragments before.
    Contradiction,
}

/// A message that is being put together. The body is elsewhere.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// A fragment arrived, so the lengths are known.
    has_begun: bool,
    head_bytes: u8,
    body_bytes: u32,
    fragments: u16,
    arrived: u16,
    head: [u8; HEAD_MAX],
    taken: Bits,
}

impl Assembly {
    fn new() -> Self {
        Self {
            has_begun: false,
            head_bytes: 0,
            body_bytes: 0,
            fragments: 0,
            arrived: 0,
            head: [0; HEAD_MAX],
            taken: Bits::default(),
        }
    }

    fn restart(&mut self) {
        self.has_begun = false;
        self.arrived = 0;
    }

    /// Takes a fragment's frame, and the head that follows it in fragment 0. The frame is valid and
    /// of one of its message's `pieces`.
    pub(crate) fn take(
        &mut self,
        frame: &FragmentFrame,
        head: &[u8],
        pieces: Pieces,
    ) -> FragmentRole {
        let body_bytes = frame.body_bytes.get();
        if !self.has_begun {
            self.has_begun = true;
            self.head_bytes = frame.head_bytes;
            self.body_bytes = body_bytes;
            self.fragments = pieces.count as u16;
            self.taken.reset(pieces.count);
        }
        if (self.head_bytes, self.body_bytes) != (frame.head_bytes, body_bytes) {
            return FragmentRole::Contradiction;
        }
        if !self.taken.insert(usize::from(frame.fragment.get())) {
            return FragmentRole::Duplicate;
        }
        if frame.fragment.get() == 0 {
            self.head[..head.len()].copy_from_slice(head);
        }
        self.arrived += 1;
        FragmentRole::New
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.has_begun && self.arrived == self.fragments
    }

    /// The head; meaningful once complete.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_bytes)]
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }
}

/// A call of ours.
#[derive(Debug)]
pub(crate) struct OwnCall {
    pub(crate) id: u64,
    pub(crate) is_active: bool,
    /// Its events are not wanted any more.
    pub(crate) is_forgotten: bool,
    pub(crate) token: u64,
    pub(crate) flow: u16,
    pub(crate) reply: Assembly,
}

impl OwnCall {
    /// That of a slot before its first, whose id is greater than this one.
    fn unused(id: u64) -> Self {
        Self {
            id,
            is_active: false,
            is_forgotten: false,
            token: 0,
            flow: 0,
            reply: Assembly::new(),
        }
    }
}

/// The calls of ours in one session.
#[derive(Debug)]
pub(crate) struct OwnCalls {
    /// Grows to the most that were ever outstanding.
    slots: Vec<OwnCall>,
    /// Slots without a call; the last one used comes first.
    free: Vec<u16>,
    calls_max: usize,
    /// Replies were long: slots that are used get room for that.
    is_long: bool,
    /// The greatest id of slots that were given up since.
    past_id: u64,
}

impl OwnCalls {
    pub(crate) fn new(calls_max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), calls_max, is_long: false, past_id: 0 }
    }

    /// Nothing is outstanding, nor was for long: lets go of what only a burst needed. Slots begin
    /// anew, the first ones first, with ids beyond all that there were.
    pub(crate) fn rest(&mut self) {
        debug_assert_eq!(self.outstanding(), 0);
        let last = self.slots.iter().map(|call| call.id).max();
        self.past_id = self.past_id.max(last.unwrap_or(0));
        (self.slots, self.free, self.is_long) = (Vec::new(), Vec::new(), false);
    }

    /// Whether an id may be one of a slot that was given up.
    pub(crate) fn is_past(&self, id: u64) -> bool {
        id <= self.past_id
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn state_bytes(&self) -> usize {
        let more = self.slots.iter().map(|call| call.reply.taken.more_bytes());
        self.slots.capacity() * size_of::<OwnCall>()
            + self.free.capacity() * size_of::<u16>()
            + more.sum::<usize>()
    }

    /// Finds a place for a call and gives it its id; `None` when all are taken.
    pub(crate) fn start(&mut self, token: u64, flow: u16) -> Option<(usize, u64)> {
        let slot = match self.free.pop() {
            Some(slot) => usize::from(slot),
            None if self.slots.len() < self.calls_max => {
                let (slot, calls_max) = (self.slots.len(), self.calls_max as u64);
                let round = self.past_id / calls_max;
                append(&mut self.slots, OwnCall::unused(round * calls_max + slot as u64));
                make_room(&mut self.free, &self.slots);
                slot
            }
            None => return None,
        };
        let call = &mut self.slots[slot];
        call.id += self.calls_max as u64;
        call.is_active = true;
        call.is_forgotten = false;
        call.token = token;
        call.flow = flow;
        call.reply.restart();
        if self.is_long {
            call.reply.taken.make_room();
        }
        Some((slot, call.id))
    }

    /// A reply is long: which slot the next such one has is chance, so all that are used get room
    /// for it, once.
    pub(crate) fn make_room(&mut self) {
        self.is_long = true;
    }

    /// The slot that a reply's id belongs to; `None` when there is none that made such a call: it
    /// never was, or is past.
    pub(crate) fn find(&mut self, id: u64) -> Option<(usize, &mut OwnCall)> {
        let slot = (id % self.calls_max as u64) as usize;
        let call = self.slots.get_mut(slot)?;
        (id <= call.id).then_some((slot, call))
    }

    /// The reply is complete.
    pub(crate) fn finish(&mut self, slot: usize) {
        let call = &mut self.slots[slot];
        assert!(call.is_active, "a call is finished once");
        call.is_active = false;
        self.free.push(slot as u16);
    }

    pub(crate) fn get(&self, slot: usize) -> &OwnCall {
        &self.slots[slot]
    }

    pub(crate) fn forget(&mut self, token: u64) {
        for call in self.slots.iter_mut().filter(|call| call.is_active && call.token == token) {
            call.is_forgotten = true;
        }
    }
}

/// How far a call of the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStage {
    /// Answered, and the answer arrived; or there was none yet.
    Done,
    /// Being put together.
    Arriving,
    /// Handed over, not answered.
    Serving,
    /// Answered; the answer is on its way.
    Answered,
}

/// A call of the peer.
#[derive(Debug)]
pub(crate) struct PeerCall {
    pub(crate) id: u64,
    pub(crate) stage: CallStage,
    pub(crate) flow: u16,
    pub(crate) charge_bytes: u64,
    pub(crate) body: Option<BufId>,
    pub(crate) assembly: Assembly,
}

impl PeerCall {
    /// That of a slot whose last one had this id.
    fn unused(id: u64) -> Self {
        Self {
            id,
            stage: CallStage::Done,
            flow: 0,
            charge_bytes: 0,
            body: None,
            assembly: Assembly::new(),
        }
    }

    /// Gets ready for the first fragment of a new call.
    pub(crate) fn start(&mut self, id: u64, flow: u16, charge_bytes: u64, body: Option<BufId>) {
        self.id = id;
        self.stage = CallStage::Arriving;
        self.flow = flow;
        self.charge_bytes = charge_bytes;
        self.body = body;
        self.assembly.restart();
    }
}

/// The calls of the peer in one session.
#[derive(Debug)]
pub(crate) struct PeerCalls {
    slots: Vec<PeerCall>,
    calls_max: usize,
    /// Calls were long: slots that are used get room for that.
    is_long: bool,
    /// The last ids of slots that were given up since: no call of those comes twice.
    past: Box<[u64]>,
}

impl PeerCalls {
    pub(crate) fn new(calls_max: usize) -> Self {
        Self { slots: Vec::new(), calls_max, is_long: false, past: Box::default() }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        let more = self.slots.iter().map(|call| call.assembly.taken.more_bytes());
        self.slots.capacity() * size_of::<PeerCall>()
            + more.sum::<usize>()
            + size_of_val(&*self.past)
    }

    /// Nothing was said for long: lets go of what only a burst needed, but for the ids, if all
    /// calls are done.
    pub(crate) fn rest(&mut self) {
        if self.slots.is_empty() || self.slots.iter().any(|call| call.stage != CallStage::Done) {
            return;
        }
        let slots = self.slots.len().max(self.past.len());
        self.past = (0..slots).map(|slot| self.last_id(slot)).collect();
        (self.slots, self.is_long) = (Vec::new(), false);
    }

    /// The id of a slot's last call, or one below its first.
    fn last_id(&self, slot: usize) -> u64 {
        let known = self.slots.get(slot).map(|call| call.id);
        known.or_else(|| self.past.get(slot).copied()).unwrap_or(slot as u64)
    }

    /// A call is long: which slot the next such one has is chance, so all that are used get room
    /// for it, once.
    pub(crate) fn make_room(&mut self) {
        self.is_long = true;
    }

    /// The place of a call, made when it is the first one there.
    pub(crate) fn place(&mut self, id: u64) -> (usize, &mut PeerCall) {
        let slot = (id % self.calls_max as u64) as usize;
        while self.slots.len() <= slot {
            let unused = PeerCall::unused(self.last_id(self.slots.len()));
            append(&mut self.slots, unused);
        }
        let call = &mut self.slots[slot];
        if self.is_long {
            call.assembly.taken.make_room();
        }
        (slot, call)
    }

    /// The peer has the whole answer.
    pub(crate) fn answer_arrived(&mut self, slot: usize) {
        let call = &mut self.slots[slot];
        assert_eq!(call.stage, CallStage::Answered, "only an answer can arrive");
        call.stage = CallStage::Done;
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PeerCall> {
        self.slots.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FRAME_REPLY, MessageCut};
    use zerocopy::byteorder::little_endian::{U16, U32, U64};

    const CUT: MessageCut = MessageCut { chunk_bytes: 1000, is_even: true };

    fn frame(head_bytes: u8, body_bytes: u32, fragment: u16) -> FragmentFrame {
        FragmentFrame {
            kind: FRAME_REPLY,
            head_bytes,
            flow: U16::ZERO,
            body_bytes: U32::new(body_bytes),
            id: U64::ZERO,
            fragment: U16::new(fragment),
            behind: U16::ZERO,
        }
    }

    #[test]
    fn any_order_each_piece_once() {
        let mut assembly = Assembly::new();
        for fragment in [2, 0, 1] {
            assert!(!assembly.is_complete());
            let head: &[u8] = if fragment == 0 { b"head" } else { b"" };
            let frame = frame(4, 2_500, fragment);
            assert_eq!(assembly.take(&frame, head, frame.pieces(CUT)), FragmentRole::New);
            assert_eq!(assembly.take(&frame, head, frame.pieces(CUT)), FragmentRole::Duplicate);
        }
        assert!(assembly.is_complete());
        assert_eq!((assembly.head(), assembly.body_bytes()), (&b"head"[..], 2_500));
        let other = frame(4, 2_501, 0);
        let taken = assembly.take(&other, b"head", other.pieces(CUT));
        assert_eq!(taken, FragmentRole::Contradiction);
    }

    #[test]
    fn a_place_is_used_again_with_a_greater_id() {
        let mut calls = OwnCalls::new(2);
        let (first, first_id) = calls.start(1, 0).expect("room");
        let (_, second_id) = calls.start(2, 0).expect("room");
        assert!(calls.start(3, 0).is_none());
        assert_eq!(calls.outstanding(), 2);
        calls.finish(first);
        let (again, again_id) = calls.start(3, 0).expect("room");
        assert_eq!((again, again_id % 2), (first, first_id % 2));
        assert!(again_id > first_id && second_id != again_id);
        assert!(calls.find(again_id + 2).is_none(), "never made");
        assert!(calls.find(first_id).is_some_and(|(_, call)| call.id != first_id));
    }

    #[test]
    fn after_a_rest_ids_go_on_beyond_all_that_there_were() {
        let mut calls = OwnCalls::new(4);
        let ids: Vec<_> = (0..3).map(|token| calls.start(token, 0).expect("room").1).collect();
        (0..3).for_each(|slot| calls.finish(slot));
        calls.rest();
        assert!(calls.find(ids[2]).is_none() && calls.is_past(ids[2]));
        assert!(!calls.is_past(ids[2] + 4), "never made");
        let (slot, id) = calls.start(3, 0).expect("room");
        assert_eq!((slot, id % 4), (0, 0), "the first ones first");
        assert!(ids.iter().all(|&past| past < id));
        assert!(calls.find(ids[0]).is_some_and(|(_, call)| call.id != ids[0]));
        calls.finish(slot);
        calls.rest();
        let (_, next) = calls.start(4, 0).expect("room");
        assert!(next > id);
    }

    #[test]
    fn a_call_from_before_a_rest_is_known_to_be_past() {
        let mut calls = PeerCalls::new(4);
        for id in [4, 9, 7] {
            let (_, call) = calls.place(id);
            assert!(id > call.id, "it is new");
            call.start(id, 0, 0, None);
        }
        calls.rest();
        assert_eq!(calls.slots.len(), 4, "they are not done");
        calls.iter_mut().for_each(|call| call.stage = CallStage::Done);
        let before = calls.state_bytes();
        calls.rest();
        assert!(calls.slots.is_empty() && calls.state_bytes() < before / 10);
        for (id, is_new) in [(7, false), (11, true), (9, false), (4, false), (8, true), (6, true)] {
            let (slot, call) = calls.place(id);
            assert_eq!((slot as u64, id > call.id), (id % 4, is_new), "{id}");
        }
    }
}
