//! Messages on their way out: cut into fragments, interleaved between flows, small ones first.
//!
//! ```text
//! flow 3   small:   [call]              -- one fragment each, before the others
//!          large:   [call][reply]       -- the first's next fragment, then the next flow's turn
//!          waiting: [call][call]        -- no credit yet
//! ```
//!
//! Flows with small messages take turns message by message; flows with large ones by deficit round
//! robin, fragment by fragment. Small goes before large, up to four fifths of the bytes. Casts have
//! flows of their own, and keep their order in each ([`casts`]).

mod casts;

use std::collections::VecDeque;
use std::ops::Range;

use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::bits::Bits;
use crate::flow::SendCredit;
use crate::pool::{BufId, Pool, charge_bytes};
use crate::sent::FragmentRef;
use crate::tables::{Sparse, append};
use crate::wire::{
    FLOWS_MAX, FRAME_CALL, FRAME_CAST, FRAME_REPLY, FragmentFrame, HEAD_MAX, MessageCut, Pieces,
};

use casts::Casts;
pub(crate) use casts::Overdue;

/// Messages up to this size, head included, are small (when they fit one fragment at all): a page
/// with its addressing.
const SMALL_BYTES_MAX: usize = 4096 + HEAD_MAX;

/// Small messages get so many fragments' worth of bytes before a large one gets its next fragment.
const SMALL_SHARE: usize = 4;

/// No message.
const NONE: u16 = u16::MAX;

/// In the key of a cast; the other bits are its place among casts.
const CAST: u16 = 1 << 15;

/// Where a message is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePlace {
    Nowhere,
    Small,
    Large,
    Waiting,
}

/// A doubly linked list through the messages.
#[derive(Clone, Copy, Debug)]
struct MessageList {
    head: u16,
    tail: u16,
}

const EMPTY: MessageList = MessageList { head: NONE, tail: NONE };

#[derive(Clone, Debug)]
struct SendFlow {
    small: MessageList,
    large: MessageList,
    waiting: MessageList,
    /// Bytes of large fragments that it may still send in this turn.
    deficit_bytes: usize,
    in_small_turn: bool,
    in_large_turn: bool,
    credit: SendCredit,
}

/// A message.
#[derive(Debug)]
struct OutgoingMessage {
    is_active: bool,
    place: QueuePlace,
    next: u16,
    previous: u16,
    flow: u16,
    id: u64,
    fragments: u16,
    /// The first fragment that was never sent.
    unsent: u16,
    acked_count: u16,
    lost_count: u16,
    body: Option<BufId>,
    body_bytes: u32,
    pieces: Pieces,
    /// Of a cast: since when it waits; then, when it was first sent.
    since_ns: u64,
    head_bytes: u8,
    head: [u8; HEAD_MAX],
    acked: Bits,
    /// To be sent again.
    lost: Bits,
}

impl OutgoingMessage {
    fn vacant() -> Self {
        Self {
            is_active: false,
            place: QueuePlace::Nowhere,
            next: NONE,
            previous: NONE,
            flow: 0,
            id: 0,
            fragments: 0,
            unsent: 0,
            acked_count: 0,
            lost_count: 0,
            body: None,
            body_bytes: 0,
            pieces: Pieces::default(),
            since_ns: 0,
            head_bytes: 0,
            head: [0; HEAD_MAX],
            acked: Bits::default(),
            lost: Bits::default(),
        }
    }

    /// For a long message.
    fn make_room(&mut self) {
        self.acked.make_room();
        self.lost.make_room();
    }

    fn is_sendable(&self) -> bool {
        self.lost_count > 0 || self.unsent < self.fragments
    }
}

/// A message to be queued.
#[derive(Debug)]
pub(crate) struct QueuedMessage<'a> {
    pub(crate) flow: u16,
    pub(crate) id: u64,
    pub(crate) head: &'a [u8],
    /// A reference to the buffer that becomes the queue's.
    pub(crate) body: Option<(BufId, usize)>,
}

/// The fragment whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextFragment {
    key: u16,
    fragment: u16,
    is_resend: bool,
    /// Bytes of head that follow the frame.
    pub(crate) head_bytes: usize,
    /// Bytes of the body that are the payload.
    pub(crate) body: Range<usize>,
    /// How long the first of several pieces is; 0 where there is one piece.
    pub(crate) piece_bytes: usize,
}

/// The memory of a table of messages.
fn outs_bytes(outs: &Vec<OutgoingMessage>) -> usize {
    let more = outs.iter().map(|out| out.acked.more_bytes() + out.lost.more_bytes());
    outs.capacity() * size_of::<OutgoingMessage>() + more.sum::<usize>()
}

/// The place of call number `slot` in the queue.
pub(crate) fn call_key(slot: usize) -> u16 {
    (slot * 2) as u16
}

/// The place of the reply to the peer's call number `slot`.
pub(crate) fn reply_key(slot: usize) -> u16 {
    (slot * 2 + 1) as u16
}

fn is_reply(key: u16) -> bool {
    key & CAST == 0 && key % 2 == 1
}

/// The slot of a place in the queue, when it is a reply's.
pub(crate) fn reply_slot(key: u16) -> Option<usize> {
    is_reply(key).then_some(usize::from(key / 2))
}

/// All outgoing messages of a session.
#[derive(Debug)]
pub(crate) struct SendQueue {
    cut: MessageCut,
    /// By key; grows to the most that were ever needed. Once one was long, all have room for that:
    /// which is the next to be long is chance.
    outs: Vec<OutgoingMessage>,
    is_long: bool,
    casts: Casts,
    /// By turn: `FLOWS_MAX` of calls and replies, then as many of casts.
    flows: Sparse<SendFlow>,
    /// Flows with small messages, with large ones; whose turn it is comes first.
    small_turns: VecDeque<u16>,
    large_turns: VecDeque<u16>,
    /// Small bytes since the last large fragment that had to wait for them.
    small_run_bytes: usize,
}

impl SendQueue {
    /// For messages that are cut so, with `credit_bytes` on each flow.
    pub(crate) fn new(cut: MessageCut, credit_bytes: u64) -> Self {
        let flow = SendFlow {
            small: EMPTY,
            large: EMPTY,
            waiting: EMPTY,
            deficit_bytes: 0,
            in_small_turn: false,
            in_large_turn: false,
            credit: SendCredit::new(credit_bytes),
        };
        Self {
            cut,
            outs: Vec::new(),
            is_long: false,
            casts: Casts::default(),
            flows: Sparse::new(flow),
            small_turns: VecDeque::new(),
            large_turns: VecDeque::new(),
            small_run_bytes: 0,
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        outs_bytes(&self.outs)
            + self.casts.state_bytes()
            + self.flows.more_bytes()
            + (self.small_turns.capacity() + self.large_turns.capacity()) * size_of::<u16>()
    }

    /// Nothing was sent for long: lets go of what only a burst needed.
    pub(crate) fn rest(&mut self) {
        if self.outs.iter().all(|out| !out.is_active) {
            (self.outs, self.is_long) = (Vec::new(), false);
        }
        self.casts.rest();
    }

    /// Queues a call. `false`: it waits for credit first.
    pub(crate) fn start_call(&mut self, slot: usize, message: &QueuedMessage<'_>) -> bool {
        let key = call_key(slot);
        self.fill(key, message);
        let charge = self.charge(key);
        let flow = self.flows.get_mut(message.flow);
        let may_go = charge == 0 || (flow.waiting.head == NONE && flow.credit.take(charge));
        if may_go {
            self.link(key, false);
        } else {
            self.append(key, QueuePlace::Waiting, false);
        }
        may_go
    }

    /// Queues a reply, which needs no credit: the caller asked for it.
    pub(crate) fn start_reply(&mut self, slot: usize, message: &QueuedMessage<'_>) {
        let key = reply_key(slot);
        self.fill(key, message);
        self.link(key, false);
    }

    /// The receiver granted a flow `limit_bytes` in all.
    pub(crate) fn grant(&mut self, flow: u16, limit_bytes: u64) {
        self.flows.get_mut(flow).credit.grant(limit_bytes);
        loop {
            let key = self.flows.get(flow).waiting.head;
            if key == NONE {
                return;
            }
            let charge = self.charge(key);
            if !self.flows.get_mut(flow).credit.take(charge) {
                return;
            }
            self.unlink(key);
            self.link(key, false);
        }
    }

    /// Removes a message, whether it was sent or not, and drops its body.
    pub(crate) fn finish(&mut self, key: u16, pool: &mut Pool) {
        let Some(out) = self.find_mut(key).filter(|out| out.is_active) else { return };
        out.is_active = false;
        let was = out.place;
        if let Some(body) = out.body.take() {
            pool.release(body);
        }
        self.unlink(key);
        if key & CAST != 0 {
            self.cast_finished(key, was);
        }
    }

    /// Removes all messages.
    pub(crate) fn finish_all(&mut self, pool: &mut Pool) {
        let casts = (0..self.casts.outs.len()).map(|slot| CAST | slot as u16);
        for key in (0..self.outs.len()).map(|key| key as u16).chain(casts) {
            self.finish(key, pool);
        }
    }

    /// A fragment arrived. `true`: now the whole message has, and it is finished.
    pub(crate) fn acked(&mut self, reference: FragmentRef, pool: &mut Pool) -> bool {
        let Some(out) = self.current(reference) else { return false };
        if !out.acked.insert(usize::from(reference.fragment)) {
            return false;
        }
        out.acked_count += 1;
        let is_complete = out.acked_count == out.fragments;
        if is_complete {
            self.finish(reference.key, pool);
        }
        is_complete
    }

    /// A fragment was lost: it goes again, before what was not sent yet.
    pub(crate) fn lost(&mut self, reference: FragmentRef) {
        let Some(out) = self.current(reference) else { return };
        let fragment = usize::from(reference.fragment);
        if out.acked.contains(fragment) || !out.lost.insert(fragment) {
            return;
        }
        out.lost_count += 1;
        if out.place == QueuePlace::Nowhere {
            self.link(reference.key, true);
        }
    }

    /// The next fragment to send. The same one until it is taken or something changes.
    pub(crate) fn peek(&mut self) -> Option<NextFragment> {
        let small = self.small_turn();
        let large = self.large_turn();
        let small_waits_its_turn = self.small_run_bytes >= SMALL_SHARE * self.cut.chunk_bytes;
        let key = match (small, large) {
            (Some(_), Some(large)) if small_waits_its_turn => large,
            (Some(small), _) => small,
            (None, Some(large)) => large,
            (None, None) => return None,
        };
        Some(self.next_of(key))
    }

    /// Takes the fragment that `peek` showed: it is sent now.
    pub(crate) fn take(&mut self, next: &NextFragment, now_ns: u64) -> FragmentRef {
        let out = self.out_mut(next.key);
        if next.is_resend {
            out.lost.remove(usize::from(next.fragment));
            out.lost_count -= 1;
        } else {
            out.unsent += 1;
        }
        let (place, flow, is_done) = (out.place, out.flow, !out.is_sendable());
        let reference =
            FragmentRef { key: next.key, fragment: next.fragment, id_low: out.id as u32 };
        if is_done {
            self.unlink(next.key);
        }
        let bytes = next.head_bytes + next.body.len();
        if place == QueuePlace::Small {
            self.small_turns.rotate_left(1);
            self.small_run_bytes += if self.large_turns.is_empty() { 0 } else { bytes };
        } else {
            self.flows.get_mut(flow).deficit_bytes -= bytes;
            self.small_run_bytes = 0;
        }
        if next.key & CAST != 0 && !next.is_resend {
            self.cast_taken(next.key, now_ns);
        }
        reference
    }

    /// The frame for a fragment.
    pub(crate) fn frame(&self, next: &NextFragment) -> FragmentFrame {
        let out = self.out(next.key);
        let (kind, behind) = match next.key {
            key if key & CAST != 0 => (FRAME_CAST, self.casts.behind(out.flow, out.id)),
            key if is_reply(key) => (FRAME_REPLY, 0),
            _ => (FRAME_CALL, 0),
        };
        FragmentFrame {
            kind,
            head_bytes: out.head_bytes,
            flow: U16::new(out.flow % FLOWS_MAX as u16),
            body_bytes: U32::new(out.body_bytes),
            id: U64::new(out.id),
            fragment: U16::new(next.fragment),
            behind: U16::new(behind),
        }
    }

    /// The bytes of head that follow the frame.
    pub(crate) fn head(&self, next: &NextFragment) -> &[u8] {
        &self.out(next.key).head[..next.head_bytes]
    }

    /// The buffer that the payload is in.
    pub(crate) fn body(&self, next: &NextFragment) -> Option<BufId> {
        self.out(next.key).body.filter(|_| !next.body.is_empty())
    }

    /// Whether the fragment was sent before.
    pub(crate) fn is_resend(next: &NextFragment) -> bool {
        next.is_resend
    }

    fn charge(&self, key: u16) -> u64 {
        charge_bytes(self.out(key).body_bytes as usize)
    }

    fn current(&mut self, reference: FragmentRef) -> Option<&mut OutgoingMessage> {
        let out = self.find_mut(reference.key)?;
        (out.is_active && out.id as u32 == reference.id_low).then_some(out)
    }

    fn find_mut(&mut self, key: u16) -> Option<&mut OutgoingMessage> {
        match key & CAST {
            0 => self.outs.get_mut(usize::from(key)),
            _ => self.casts.outs.get_mut(usize::from(key & !CAST)),
        }
    }

    fn out(&self, key: u16) -> &OutgoingMessage {
        match key & CAST {
            0 => &self.outs[usize::from(key)],
            _ => &self.casts.outs[usize::from(key & !CAST)],
        }
    }

    fn out_mut(&mut self, key: u16) -> &mut OutgoingMessage {
        self.find_mut(key).expect("a message")
    }

    fn fill(&mut self, key: u16, message: &QueuedMessage<'_>) {
        let body_bytes = message.body.map_or(0, |(_, len_bytes)| len_bytes);
        let pieces = self.cut.pieces(message.head.len(), body_bytes);
        self.is_long |= pieces.is_long();
        while key & CAST == 0 && self.outs.len() <= usize::from(key) {
            append(&mut self.outs, OutgoingMessage::vacant());
        }
        // Which place the next long one has is chance: all that are used get room for it, once.
        let is_long = self.is_long;
        let out = self.out_mut(key);
        if is_long {
            out.make_room();
        }
        assert!(!out.is_active && out.place == QueuePlace::Nowhere, "the place is taken");
        out.is_active = true;
        out.flow = message.flow;
        out.id = message.id;
        out.pieces = pieces;
        out.fragments = pieces.count as u16;
        out.unsent = 0;
        out.acked_count = 0;
        out.lost_count = 0;
        out.body = message.body.map(|(body, _)| body);
        out.body_bytes = body_bytes as u32;
        out.head_bytes = message.head.len() as u8;
        out.head[..message.head.len()].copy_from_slice(message.head);
        out.acked.reset(pieces.count);
        out.lost.reset(pieces.count);
    }

    fn next_of(&self, key: u16) -> NextFragment {
        let out = self.out(key);
        let resend = if out.lost_count > 0 { out.lost.first() } else { None };
        let fragment = resend.unwrap_or(usize::from(out.unsent));
        let head = usize::from(out.head_bytes);
        NextFragment {
            key,
            fragment: fragment as u16,
            is_resend: resend.is_some(),
            head_bytes: if fragment == 0 { head } else { 0 },
            body: out.pieces.body_range(fragment),
            piece_bytes: if out.fragments > 1 { out.pieces.piece_bytes } else { 0 },
        }
    }

    /// The small message whose turn it is. Flows that have none any more leave the round.
    fn small_turn(&mut self) -> Option<u16> {
        while let Some(&flow) = self.small_turns.front() {
            let flow = self.flows.get_mut(flow);
            if flow.small.head != NONE {
                return Some(flow.small.head);
            }
            flow.in_small_turn = false;
            self.small_turns.pop_front();
        }
        None
    }

    /// The large message whose turn it is: the first flow with enough deficit for its next
    /// fragment. Each flow that has to pass gets a fragment's worth, so one round finds one.
    fn large_turn(&mut self) -> Option<u16> {
        while let Some(&flow_index) = self.large_turns.front() {
            let flow = self.flows.get(flow_index);
            let key = flow.large.head;
            if key == NONE {
                let flow = self.flows.get_mut(flow_index);
                flow.deficit_bytes = 0;
                flow.in_large_turn = false;
                self.large_turns.pop_front();
                continue;
            }
            let next = self.next_of(key);
            if next.head_bytes + next.body.len() <= flow.deficit_bytes {
                return Some(key);
            }
            self.flows.get_mut(flow_index).deficit_bytes += self.cut.chunk_bytes;
            self.large_turns.rotate_left(1);
        }
        None
    }

    /// Lists a sendable message with its like, at the front when it was lost.
    fn link(&mut self, key: u16, at_front: bool) {
        let out = self.out(key);
        let bytes = usize::from(out.head_bytes) + out.body_bytes as usize;
        let is_small = bytes <= SMALL_BYTES_MAX.min(self.cut.chunk_bytes);
        let flow_index = out.flow;
        let flow = self.flows.get_mut(flow_index);
        let (place, is_in_turn, turns) = if is_small {
            (QueuePlace::Small, &mut flow.in_small_turn, &mut self.small_turns)
        } else {
            (QueuePlace::Large, &mut flow.in_large_turn, &mut self.large_turns)
        };
        if !std::mem::replace(is_in_turn, true) {
            turns.push_back(flow_index);
        }
        self.append(key, place, at_front);
    }

    fn list(&mut self, flow: u16, place: QueuePlace) -> &mut MessageList {
        let flow = self.flows.get_mut(flow);
        match place {
            QueuePlace::Small => &mut flow.small,
            QueuePlace::Large => &mut flow.large,
            QueuePlace::Waiting => &mut flow.waiting,
            QueuePlace::Nowhere => unreachable!("an unlisted message has no list"),
        }
    }

    fn append(&mut self, key: u16, place: QueuePlace, at_front: bool) {
        let flow = self.out(key).flow;
        let list = self.list(flow, place);
        let (previous, next) = if at_front { (NONE, list.head) } else { (list.tail, NONE) };
        if previous == NONE {
            list.head = key;
        }
        if next == NONE {
            list.tail = key;
        }
        if previous != NONE {
            self.out_mut(previous).next = key;
        }
        if next != NONE {
            self.out_mut(next).previous = key;
        }
        let out = self.out_mut(key);
        assert_eq!(out.place, QueuePlace::Nowhere, "a message is listed once");
        (out.place, out.previous, out.next) = (place, previous, next);
    }

    /// Takes a message off its list, if it is on one.
    fn unlink(&mut self, key: u16) {
        let out = self.out_mut(key);
        let (place, flow, previous, next) = (out.place, out.flow, out.previous, out.next);
        if place == QueuePlace::Nowhere {
            return;
        }
        (out.place, out.previous, out.next) = (QueuePlace::Nowhere, NONE, NONE);
        if previous == NONE {
            self.list(flow, place).head = next;
        } else {
            self.out_mut(previous).next = next;
        }
        if next == NONE {
            self.list(flow, place).tail = previous;
        } else {
            self.out_mut(next).previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DATAGRAM_BYTES_MIN, OVERHEAD_BYTES};

    const CUT: MessageCut =
        MessageCut { chunk_bytes: DATAGRAM_BYTES_MIN - OVERHEAD_BYTES, is_even: true };

    fn queue() -> (SendQueue, Pool) {
        (SendQueue::new(CUT, 8 << 20), Pool::new(32 << 20))
    }

    fn call(queue: &mut SendQueue, pool: &mut Pool, slot: usize, flow: u16, body: usize) -> bool {
        let body = (body > 0).then(|| (pool.alloc(body).expect("room"), body));
        let id = 10_000 + slot as u64;
        queue.start_call(slot, &QueuedMessage { flow, id, head: b"head", body })
    }

    /// Sends everything; the keys in the order of their fragments.
    fn drain(queue: &mut SendQueue, limit: usize) -> Vec<(u16, FragmentRef)> {
        let mut order = Vec::new();
        while let Some(next) = queue.peek() {
            assert_eq!(queue.peek(), Some(next.clone()), "looking changes nothing");
            let flow = queue.frame(&next).flow.get();
            order.push((flow, queue.take(&next, 0)));
            if order.len() == limit {
                break;
            }
        }
        order
    }

    #[test]
    fn large_flows_alternate_fragment_by_fragment() {
        let (mut queue, mut pool) = queue();
        call(&mut queue, &mut pool, 0, 1, 50_000);
        call(&mut queue, &mut pool, 1, 1, 50_000);
        call(&mut queue, &mut pool, 2, 2, 50_000);
        let order = drain(&mut queue, 80);
        for pair in order.windows(2) {
            assert_ne!(pair[0].0, pair[1].0);
        }
        queue.finish_all(&mut pool);
        assert_eq!((pool.in_use(), queue.peek()), (0, None));
    }

    #[test]
    fn small_goes_first_but_not_for_ever() {
        let (mut queue, mut pool) = queue();
        call(&mut queue, &mut pool, 0, 1, 100_000);
        drain(&mut queue, 3);
        for slot in 1..100 {
            call(&mut queue, &mut pool, slot, (slot % 7) as u16, 900);
        }
        let order = drain(&mut queue, 100);
        let large = order.iter().filter(|(_, reference)| reference.key == 0).count();
        assert_eq!(order[0].1.fragment, 0);
        assert!((12..=20).contains(&large), "{large} of 100 fragments were large");
        queue.finish_all(&mut pool);
    }

    #[test]
    fn lost_fragments_and_no_others_are_sent_again() {
        let (mut queue, mut pool) = queue();
        call(&mut queue, &mut pool, 0, 1, 9_000);
        let sent = drain(&mut queue, usize::MAX);
        assert_eq!(sent.len(), 8);
        queue.lost(sent[3].1);
        queue.lost(sent[3].1);
        queue.lost(sent[7].1);
        // Sent twice, arrived once, lost once: nothing to do.
        assert!(!queue.acked(sent[5].1, &mut pool));
        queue.lost(sent[5].1);
        let again: Vec<u16> =
            drain(&mut queue, usize::MAX).iter().map(|(_, r)| r.fragment).collect();
        assert_eq!(again, [3, 7]);
        for (index, (_, reference)) in sent.iter().enumerate() {
            assert_eq!(queue.acked(*reference, &mut pool), index == 7);
        }
        queue.lost(sent[0].1);
        assert_eq!((queue.peek(), pool.in_use()), (None, 0));
    }

    #[test]
    fn calls_without_credit_wait_in_order_and_those_without_bodies_pass() {
        let (mut queue, mut pool) = queue();
        for slot in 0..10 {
            assert_eq!(call(&mut queue, &mut pool, slot, 5, 1 << 20), slot < 8);
        }
        assert!(!call(&mut queue, &mut pool, 10, 5, 1), "behind those that wait");
        assert!(call(&mut queue, &mut pool, 11, 5, 0));
        assert!(call(&mut queue, &mut pool, 12, 6, 1), "another flow has its own credit");
        drain(&mut queue, usize::MAX);
        queue.grant(5, 9 << 20);
        let order = drain(&mut queue, usize::MAX);
        assert!(!order.is_empty() && order.iter().all(|(_, r)| r.key == call_key(8)));
        queue.grant(5, 20 << 20);
        assert_eq!(drain(&mut queue, usize::MAX).len(), 914 + 1);
        queue.finish_all(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_reference_to_an_earlier_message_is_ignored() {
        let (mut queue, mut pool) = queue();
        call(&mut queue, &mut pool, 0, 1, 0);
        let (_, old) = drain(&mut queue, 1)[0];
        queue.finish(old.key, &mut pool);
        queue.start_call(0, &QueuedMessage { flow: 1, id: 77, head: b"", body: None });
        assert!(!queue.acked(old, &mut pool));
        drain(&mut queue, usize::MAX);
        queue.lost(old);
        assert_eq!(queue.peek(), None);
    }
}
