//! Casts on their way out. Each flow sends its casts in their order, one after the other. Lost
//! parts of earlier casts go again beside that, until they are too old.
//!
//! ```text
//! flow 3   live:  [71: all sent][72: sent, a part lost][73: being sent][74][75]
//!                  oldest                              `- listed ----'  `- waiting
//! ```

use crate::pool::{BufId, Pool};
use crate::sent::FragmentRef;
use crate::tables::{append, make_room};
use crate::wire::{CAST_WINDOW, FLOWS_MAX};

use super::{
    CAST, NONE, NextFragment, OutgoingMessage, QueuePlace, QueuedMessage, SendQueue, outs_bytes,
};

/// Casts of a session that wait or are on their way: four flows' full windows. Bounds its table.
const CASTS_MAX: usize = 2048;

/// Bytes of a flow that wait to be sent for the first time: as many as a session of 10 Gbit/s sends
/// in 1.7 ms. A longer queue only adds delay.
const WAITING_BYTES_MAX: u64 = 2 << 20;

/// A cast that waits for so long is of no use to its receiver.
const WAITING_NS_MAX: u64 = 100_000_000;

/// One flow.
#[derive(Debug)]
struct CastFlow {
    /// The number of the next cast; the oldest that may still arrive, or the next.
    next: u64,
    oldest: u64,
    /// By number, modulo the window: the slot, or `NONE`.
    live: Box<[u16; CAST_WINDOW]>,
    /// Of casts that were not sent in full once.
    waiting_bytes: u64,
    /// One of them is listed to be sent; the others wait for their turn.
    is_listed: bool,
}

impl CastFlow {
    fn new() -> Self {
        Self {
            next: 0,
            oldest: 0,
            live: Box::new([NONE; CAST_WINDOW]),
            waiting_bytes: 0,
            is_listed: false,
        }
    }
}

fn at(id: u64) -> usize {
    id as usize % CAST_WINDOW
}

/// The casts of a session.
#[derive(Debug, Default)]
pub(super) struct Casts {
    /// By slot; grows to the most that there ever were.
    pub(super) outs: Vec<OutgoingMessage>,
    free: Vec<u16>,
    /// By flow, made when it is first used; up to the highest that was.
    flows: Vec<Option<Box<CastFlow>>>,
}

impl Casts {
    pub(super) fn state_bytes(&self) -> usize {
        let flows = self.flows.iter().flatten().count();
        outs_bytes(&self.outs)
            + self.free.capacity() * size_of::<u16>()
            + self.flows.capacity() * size_of::<Option<Box<CastFlow>>>()
            + flows * (size_of::<CastFlow>() + size_of::<[u16; CAST_WINDOW]>())
    }

    /// Nothing was sent for long: lets go of what only a burst needed.
    pub(super) fn rest(&mut self) {
        if self.free.len() == self.outs.len() {
            (self.outs, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// The flow of a turn; it has casts.
    fn flow(&mut self, turn: u16) -> &mut CastFlow {
        let flow = &mut self.flows[usize::from(turn) - FLOWS_MAX];
        flow.as_mut().expect("it has casts")
    }

    /// How far the oldest that may still arrive is behind this one.
    pub(super) fn behind(&self, turn: u16, id: u64) -> u16 {
        let flow = self.flows[usize::from(turn) - FLOWS_MAX].as_ref();
        (id - flow.expect("it has casts").oldest) as u16
    }

    fn slot(&mut self) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.outs.len() == CASTS_MAX {
            return None;
        }
        append(&mut self.outs, OutgoingMessage::vacant());
        make_room(&mut self.free, &self.outs);
        Some((self.outs.len() - 1) as u16)
    }
}

impl SendQueue {
    /// Queues a cast. `false`: there is no room, and nothing was taken.
    pub(crate) fn start_cast(
        &mut self,
        now_ns: u64,
        flow: u16,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> bool {
        let bytes = (head.len() + body.map_or(0, |(_, len_bytes)| len_bytes)) as u64;
        let Some((key, id)) = self.place_for_cast(flow, bytes) else { return false };
        let turn = FLOWS_MAX as u16 + flow;
        self.fill(key, &QueuedMessage { flow: turn, id, head, body });
        self.out_mut(key).since_ns = now_ns;
        if std::mem::replace(&mut self.casts.flow(turn).is_listed, true) {
            self.append(key, QueuePlace::Waiting, false);
        } else {
            self.link(key, false);
        }
        true
    }

    fn place_for_cast(&mut self, flow: u16, bytes: u64) -> Option<(u16, u64)> {
        let casts = &mut self.casts;
        let flow = usize::from(flow);
        if casts.flows.len() <= flow {
            casts.flows.resize_with(flow + 1, || None);
        }
        let state = casts.flows[flow].get_or_insert_with(|| Box::new(CastFlow::new()));
        let is_full = state.waiting_bytes + bytes > WAITING_BYTES_MAX
            || state.next - state.oldest >= CAST_WINDOW as u64;
        if is_full {
            return None;
        }
        let slot = casts.slot()?;
        let state = casts.flows[flow].as_mut().expect("made above");
        let id = state.next;
        state.next += 1;
        state.waiting_bytes += bytes;
        state.live[at(id)] = slot;
        Some((CAST | slot, id))
    }

    /// Bytes of a flow's casts that wait to be sent for the first time.
    pub(crate) fn casts_waiting_bytes(&self, flow: u16) -> u64 {
        let state = self.casts.flows.get(usize::from(flow)).and_then(Option::as_ref);
        state.map_or(0, |state| state.waiting_bytes)
    }

    /// Whether it is a fragment of a cast.
    pub(crate) fn is_cast(reference: &FragmentRef) -> bool {
        reference.key & CAST != 0 && reference.key != NONE
    }

    /// Whether a cast to which a lost fragment belongs was first sent before `before_ns`, so that
    /// no part of it must be sent again.
    pub(crate) fn is_too_old(&mut self, reference: FragmentRef, before_ns: u64) -> bool {
        Self::is_cast(&reference)
            && self.current(reference).is_some_and(|out| out.since_ns < before_ns)
    }

    /// Gives up the cast whose turn it is, if it is too old: it waited for too long, or was first
    /// sent before `before_ns`. Tells which of the two it was.
    pub(crate) fn give_up_old(
        &mut self,
        next: &NextFragment,
        now_ns: u64,
        before_ns: u64,
        pool: &mut Pool,
    ) -> Option<Overdue> {
        if next.key & CAST == 0 {
            return None;
        }
        let out = self.out(next.key);
        let why = if out.unsent == 0 { Overdue::Waiting } else { Overdue::Lost };
        let is_old = match why {
            Overdue::Waiting => out.since_ns + WAITING_NS_MAX < now_ns,
            // A fragment on its first way goes on.
            Overdue::Lost => next.is_resend && out.since_ns < before_ns,
        };
        is_old.then(|| self.finish(next.key, pool))?;
        Some(why)
    }

    /// A fragment of a cast is sent for the first time.
    pub(super) fn cast_taken(&mut self, key: u16, now_ns: u64) {
        let out = self.out_mut(key);
        if out.unsent == 1 {
            out.since_ns = now_ns;
        }
        if out.unsent == out.fragments {
            self.cast_was_sent(key);
        }
    }

    /// A cast waits no more to be sent for the first time: the next one of its flow is listed.
    fn cast_was_sent(&mut self, key: u16) {
        let out = self.out(key);
        let (turn, bytes) = (out.flow, u64::from(out.head_bytes) + u64::from(out.body_bytes));
        self.casts.flow(turn).waiting_bytes -= bytes;
        let next = self.flows.get(turn).waiting.head;
        self.casts.flow(turn).is_listed = next != NONE;
        if next != NONE {
            self.unlink(next);
            self.link(next, false);
        }
    }

    /// A cast that was taken off all lists is over: it arrived, or was given up.
    pub(super) fn cast_finished(&mut self, key: u16, was: QueuePlace) {
        let out = self.out(key);
        let (turn, id) = (out.flow, out.id);
        if was == QueuePlace::Waiting {
            let bytes = u64::from(out.head_bytes) + u64::from(out.body_bytes);
            self.casts.flow(turn).waiting_bytes -= bytes;
        } else if out.unsent < out.fragments {
            self.cast_was_sent(key);
        }
        self.casts.free.push(key & !CAST);
        let flow = self.casts.flow(turn);
        flow.live[at(id)] = NONE;
        while flow.oldest < flow.next && flow.live[at(flow.oldest)] == NONE {
            flow.oldest += 1;
        }
    }
}

/// Why a cast was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// It was never sent.
    Waiting,
    /// A part of it was lost for too long.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DATAGRAM_BYTES_MIN, MessageCut, OVERHEAD_BYTES};

    const CHUNK: usize = DATAGRAM_BYTES_MIN - OVERHEAD_BYTES;

    fn queue() -> (SendQueue, Pool) {
        let cut = MessageCut { chunk_bytes: CHUNK, is_even: true };
        (SendQueue::new(cut, 8 << 20), Pool::new(32 << 20))
    }

    fn cast(queue: &mut SendQueue, pool: &mut Pool, now_ns: u64, flow: u16, body: usize) -> bool {
        let body = (body > 0).then(|| (pool.alloc(body).expect("room"), body));
        let taken = queue.start_cast(now_ns, flow, b"head", body);
        if let (false, Some((body, _))) = (taken, body) {
            pool.release(body);
        }
        taken
    }

    /// Sends so many fragments; flow, number, how far behind the oldest is, and the reference.
    fn drain(
        queue: &mut SendQueue,
        now_ns: u64,
        limit: usize,
    ) -> Vec<(u16, u64, u16, FragmentRef)> {
        let mut order = Vec::new();
        while let Some(next) = queue.peek().filter(|_| order.len() < limit) {
            let frame = queue.frame(&next);
            let taken = queue.take(&next, now_ns);
            order.push((frame.flow.get(), frame.id.get(), frame.behind.get(), taken));
        }
        order
    }

    #[test]
    fn a_flow_keeps_its_order_with_any_sizes_and_flows_take_turns() {
        let (mut queue, mut pool) = queue();
        for body in [9_000, 0, 100, 5_000, 0] {
            assert!(cast(&mut queue, &mut pool, 0, 7, body));
        }
        assert!(cast(&mut queue, &mut pool, 0, 8, 9_000));
        let waiting = 5 * 4 + 9_000 + 100 + 5_000;
        assert_eq!(queue.casts_waiting_bytes(7), waiting);
        let order = drain(&mut queue, 1, usize::MAX);
        let of = |flow| order.iter().filter(move |it| it.0 == flow).map(|it| it.1);
        assert!(of(7).is_sorted() && of(7).max() == Some(4));
        assert_eq!((of(7).count(), of(8).count()), (8 + 1 + 1 + 5 + 1, 8));
        // In turn, while both have large ones.
        assert!(order[..14].windows(2).all(|two| two[0].0 != two[1].0));
        assert_eq!(queue.casts_waiting_bytes(7) + queue.casts_waiting_bytes(8), 0);
        queue.finish_all(&mut pool);
        assert_eq!((pool.in_use(), queue.peek()), (0, None));
    }

    #[test]
    fn lost_fragments_are_sent_again_beside_new_ones_with_their_age() {
        let (mut queue, mut pool) = queue();
        (0..3).for_each(|_| assert!(cast(&mut queue, &mut pool, 0, 0, 3_000)));
        let sent = drain(&mut queue, 5, 4);
        assert_eq!(sent.iter().map(|it| it.1).collect::<Vec<_>>(), [0, 0, 0, 1]);
        queue.lost(sent[1].3);
        let order = drain(&mut queue, 9, 3);
        assert_eq!(
            order.iter().map(|it| (it.1, it.2)).collect::<Vec<_>>(),
            [(0, 0), (1, 1), (1, 1)]
        );
        for taken in [sent[0].3, sent[2].3, order[0].3] {
            assert_eq!(queue.acked(taken, &mut pool), taken == order[0].3);
        }
        assert_eq!(drain(&mut queue, 9, 1)[0].2, 1, "the first has arrived");
        assert!(queue.is_too_old(sent[3].3, 6) && !queue.is_too_old(sent[3].3, 5));
        assert!(!queue.is_too_old(sent[0].3, 100), "it has arrived");
        queue.finish(sent[3].3.key, &mut pool);
        assert_eq!(drain(&mut queue, 9, 1)[0].2, 0, "the second was given up");
        queue.finish_all(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn one_that_was_given_up_lets_the_next_one_go() {
        let (mut queue, mut pool) = queue();
        (0..3).for_each(|_| assert!(cast(&mut queue, &mut pool, 0, 0, 3_000)));
        let now_ns = WAITING_NS_MAX + 1;
        let next = queue.peek().expect("the first");
        assert_eq!(queue.give_up_old(&next, now_ns - 1, 0, &mut pool), None);
        assert_eq!(queue.give_up_old(&next, now_ns, 0, &mut pool), Some(Overdue::Waiting));
        let second = drain(&mut queue, now_ns, 3);
        assert_eq!((second[0].1, second[0].2), (1, 0));
        queue.lost(second[1].3);
        let next = queue.peek().expect("what was lost");
        assert_eq!(queue.give_up_old(&next, now_ns, now_ns, &mut pool), None);
        let given_up = queue.give_up_old(&next, now_ns, now_ns + 1, &mut pool);
        assert_eq!(given_up, Some(Overdue::Lost));
        assert_eq!(drain(&mut queue, now_ns, usize::MAX).len(), 3);
        assert_eq!(pool.in_use(), 1, "the third is on its way");
        queue.finish_all(&mut pool);
    }

    #[test]
    fn full_is_a_refusal() {
        let (mut queue, mut pool) = queue();
        let mut taken = 0;
        while cast(&mut queue, &mut pool, 0, 1, CHUNK) {
            taken += 1;
        }
        assert_eq!(taken, CAST_WINDOW);
        assert!(cast(&mut queue, &mut pool, 0, 2, 60_000), "another flow has its own room");
        taken = 1;
        while cast(&mut queue, &mut pool, 0, 2, 60_000) {
            taken += 1;
        }
        assert_eq!(taken, WAITING_BYTES_MAX as usize / 60_004);
        let mut all = CAST_WINDOW + taken;
        for flow in 3..20 {
            while cast(&mut queue, &mut pool, 0, flow, 0) {
                all += 1;
            }
        }
        assert_eq!(all, CASTS_MAX);
        queue.finish_all(&mut pool);
        assert!(cast(&mut queue, &mut pool, 0, 1, 0));
        queue.finish_all(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }
}
