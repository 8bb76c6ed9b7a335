//! The messages of members of a replicated volume, from a member that does not keep to the
//! protocol. Members trust each other with the volume's content, so the promise here is smaller:
//! bytes are a message in one way or none, no message makes a member panic, and what a member keeps
//! and says stays within the limits.

use std::collections::{BTreeMap, BTreeSet};

use ::replica::wire::{
    SECTOR_BYTES, WIRE_BODY_MAX, WIRE_HEAD_MAX, WIRE_KIND_MIN, WIRE_NAME_MAX, WireContent, decode,
    decode_name, encode, encode_name, is_name,
};
use ::replica::{
    Applied, ChangedPart, ClientId, ClientRequest, Durable, Extent, Input, MEMBERS_MAX, Message,
    Op, Output, Pacing, Place, Replica, RequestId, ScrubOrder, SnapshotChange, SwapOutcome,
    VolumeRecord,
};
use arbitrary::{Arbitrary, Unstructured};

use crate::steps::steps;

const PACING: Pacing = Pacing {
    lease_ns: 20,
    patience_ns: 25,
    silence_ns: 10,
    fetch_sectors_max: 2048,
    fetches_max: 4,
    block_sectors: 8,
    members: MEMBERS_MAX,
};

/// The hostile member, and the two honest ones: the primary of the first record, and its backup.
const HOSTILE: u8 = 2;

/// Outputs of one input: each list that a member goes through has a limit, and messages are a
/// handful for each entry.
const OUTPUTS_MAX: usize = 4096;

/// Inputs of one step that follow from each other.
const FOLLOWING_MAX: usize = 2000;

#[derive(Arbitrary, Debug)]
enum ReplicaStep<'a> {
    /// Any bytes after a kind that is nearly one of a message.
    Bytes {
        to: bool,
        kind: u8,
        rest: &'a [u8],
        body_bytes: u16,
    },
    /// A message with fields near the fields that an honest member would send.
    Made {
        to: bool,
        kind: u8,
        life: u8,
        near: [u8; 4],
        record: u8,
    },
    /// The honest member's last message to the hostile one, with a byte changed, comes back.
    Echo {
        to: bool,
        at: u8,
        by: u8,
    },
    /// A client writes, or has zeroes written, reads, or flushes.
    Request {
        slot: u8,
        kind: u8,
        first: u16,
        sectors: u16,
    },
    Time {
        by: u8,
    },
    Forget,
    /// The primary's operator has the volume scrubbed, or another word about that.
    Scrub {
        order: u8,
        sectors: u16,
    },
}

struct Members {
    honest: [Replica<WireContent>; 2],
    registry: VolumeRecord,
    now_ns: u64,
    requests: u64,
    /// The last message that each honest member has sent to the hostile one.
    heard: [(Vec<u8>, Vec<u8>); 2],
    followed: usize,
}

/// Tries an input.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let registry = VolumeRecord::first(0, BTreeMap::from([(0, 1), (1, 1), (HOSTILE, 1)]));
    let start = |id| {
        let durable = Durable::default();
        Replica::start(id, 1, PACING, durable, BTreeSet::new(), 0)
    };
    let mut members = Members {
        honest: [start(0), start(1)],
        registry: registry.clone(),
        now_ns: 1,
        requests: 0,
        heard: Default::default(),
        followed: 0,
    };
    members.step(0, Input::Seen(registry.clone()));
    members.step(1, Input::Seen(registry));
    for step in steps::<ReplicaStep<'_>>(&mut input, 64) {
        members.followed = 0;
        members.act(step);
    }
}

impl Members {
    fn act(&mut self, step: ReplicaStep<'_>) {
        match step {
            ReplicaStep::Bytes { to, kind, rest, body_bytes } => {
                let head: Vec<u8> = [WIRE_KIND_MIN + kind % 18, 0, 0, 0, 7, 0, 0, 0]
                    .iter()
                    .chain(rest)
                    .copied()
                    .collect();
                let body = rest
                    .iter()
                    .cycle()
                    .take(usize::from(body_bytes) * usize::from(!rest.is_empty()));
                let body: Vec<u8> = body.copied().collect();
                self.hear(usize::from(to), &head, &body);
            }
            ReplicaStep::Made { to, kind, life, near, record } => {
                let life = u64::from(life % 8 != 0);
                let message = self.made(kind, life, near.map(u64::from), record);
                let (mut head, mut body) = (Vec::new(), Vec::new());
                encode(7, &message, &mut head, &mut body);
                if body.is_empty() {
                    body = vec![0; body_bytes(&message)];
                }
                self.hear(usize::from(to), &head, &body);
            }
            ReplicaStep::Echo { to, at, by } => {
                let (mut head, body) = self.heard[usize::from(to)].clone();
                let bytes = head.len().max(1);
                if let Some(byte) = head.get_mut(usize::from(at) % bytes) {
                    *byte ^= by;
                }
                self.hear(usize::from(to), &head, &body);
            }
            ReplicaStep::Request { slot, kind, first, sectors } => {
                self.requests += 1;
                let client = ClientId { attachment: 9, channel: 0, slot: slot.into() };
                let id = RequestId { client, number: self.requests };
                let extent = Extent::new(first.into(), u32::from(sectors % 2048) + 1);
                let extent = extent.expect("it has sectors");
                let request = match kind % 4 {
                    0 => ClientRequest::Write(extent, WireContent::Bytes),
                    1 => ClientRequest::Write(extent, WireContent::Discarded),
                    2 => ClientRequest::Read(extent),
                    _ => ClientRequest::Flush,
                };
                let incarnation = self.registry.incarnation;
                self.step(0, Input::Request(id, incarnation, request));
            }
            ReplicaStep::Time { by } => {
                self.now_ns += u64::from(by);
                self.step(0, Input::Timer);
                self.step(1, Input::Timer);
            }
            ReplicaStep::Forget => self.step(0, Input::Forget(9)),
            ReplicaStep::Scrub { order, sectors } => {
                let (sectors, bytes_per_s) = (sectors.into(), 1 << (order % 60));
                let order = match order % 5 {
                    0 | 1 => ScrubOrder::Start { key: [order; 16], sectors, bytes_per_s },
                    2 => ScrubOrder::Pause,
                    3 => ScrubOrder::GoOn { bytes_per_s: (order % 2 == 0).then_some(bytes_per_s) },
                    _ => ScrubOrder::Stop,
                };
                self.step(0, Input::Scrub(order));
            }
        }
    }

    /// A message with a record, an epoch and counters near the present ones.
    fn made(&self, kind: u8, life: u64, near: [u64; 4], record: u8) -> Message<WireContent> {
        let [a, b, c, d] = near;
        let epoch = self.registry.epoch + a % 3;
        let mut next = VolumeRecord { epoch, ..self.registry.clone() };
        if record & 1 != 0 {
            (next.primary, next.reign) = (HOSTILE, epoch);
            next.in_sync.insert(HOSTILE, 1);
        }
        if record & 2 != 0 {
            next.in_sync.retain(|id, _| *id == next.primary);
        }
        let place = Place { reign: next.reign, counter: b % 8 };
        let extent = Extent::new(c, d as u32 % 64 + 1).expect("it has sectors");
        let client = ClientId { attachment: 9, channel: 0, slot: 0 };
        let (id, data) = (RequestId { client, number: d }, WireContent::Bytes);
        let op = match c % 9 {
            0 => Op::Write { id, extent, data },
            1 => Op::Flush { id },
            2 => Op::Cut,
            3 => Op::Fill { to: (d % 3) as u8, extent, data },
            4 => Op::Equal { extent, data: WireContent::Zeroes },
            5 => Op::Applied { applied: Applied::default(), note: vec![1] },
            6 => Op::Note { id, note: vec![2, 3] },
            7 => {
                let change = match d % 2 {
                    0 => SnapshotChange::Take { name: "cut.1.1".to_owned(), at_s: b },
                    _ => SnapshotChange::Remove { name: "a".to_owned() },
                };
                Op::Snapshot { id, change }
            }
            _ => Op::Forget(9),
        };
        match kind % 14 {
            0 => Message::Ping { record: next, life, sent_ns: self.now_ns, held: b },
            1 => Message::Pong { epoch, life, sent_ns: self.now_ns + d % 2 },
            2 => Message::Seal { record: next },
            3 => Message::Sealed { epoch, life, tail: [extent].into_iter().collect() },
            4 => Message::Append { epoch, life, began: d % 4, counter: b % 8, op },
            5 => Message::Held { life, began: place, counter: d % 16, left_out: a % 8 },
            6 => Message::Join { epoch, life: d % 2, cuts: BTreeSet::from([place]) },
            7 => Message::GoBack { record: next, life, cut: Some(place), began: d % 8 },
            8 => Message::Hello { life, epoch },
            9 => Message::Lend { epoch, life, counter: b % 8, extent },
            10 => Message::Lent { life, place, extent, data: (d % 2 == 0).then_some(data) },
            11 => Message::Prove { epoch, life, number: b % 8, extent, key: [a as u8; 16] },
            12 => {
                let proofs = (0..d % 17).map(|at| (at % 4 < c % 4).then_some([b as u8; 16]));
                Message::Proved { life, reign: next.reign, number: b, proofs: proofs.collect() }
            }
            _ => Message::Alive { life, record: Some(next), answers: Some((life, epoch)) },
        }
    }

    /// An honest member gets bytes of the hostile one.
    fn hear(&mut self, to: usize, head: &[u8], body: &[u8]) {
        if let Ok((number, form, name)) = decode_name(head) {
            assert!(is_name(head) && name.len() <= WIRE_NAME_MAX && decode(head, body).is_err());
            let mut again = Vec::new();
            encode_name(number, form, name, &mut again);
            assert_eq!((&again[..2], &again[4..]), (&head[..2], &head[4..]), "{name}");
        }
        let Ok((volume, message)) = decode(head, body) else { return };
        let (mut again, mut list) = (Vec::new(), Vec::new());
        encode(volume, &message, &mut again, &mut list);
        // Bytes 2 and 3 are reserved, and not looked at.
        assert_eq!((&again[..2], &again[4..]), (&head[..2], &head[4..]), "{message:?}");
        assert!(list.is_empty() || list == body, "{message:?}");
        self.step(to, Input::Message(HOSTILE, message));
    }

    fn step(&mut self, id: usize, input: Input<WireContent>) {
        let mut inputs = vec![(id, input)];
        while let Some((id, input)) = inputs.pop() {
            self.followed += 1;
            if self.followed > FOLLOWING_MAX {
                return;
            }
            let mut out = Vec::new();
            self.honest[id].step(self.now_ns, input, &mut out);
            assert!(out.len() <= OUTPUTS_MAX, "{} outputs", out.len());
            for output in out.into_iter().rev() {
                inputs.extend(self.carry_out(id, output));
            }
        }
    }

    fn carry_out(
        &mut self,
        id: usize,
        output: Output<WireContent>,
    ) -> Option<(usize, Input<WireContent>)> {
        Some(match output {
            Output::Send(to, message) => {
                let (mut head, mut body) = (Vec::new(), Vec::new());
                encode(7, &message, &mut head, &mut body);
                assert!(head.len() <= WIRE_HEAD_MAX && body.len() <= WIRE_BODY_MAX, "{message:?}");
                if body.is_empty() {
                    body = vec![0; body_bytes(&message)];
                }
                assert_eq!(decode(&head, &body), Ok((7, message.clone())));
                if to == HOSTILE {
                    self.heard[id] = (head, body);
                    return None;
                }
                let to = usize::from(to);
                (to < self.honest.len()).then_some(())?;
                (to, Input::Message(id as u8, message))
            }
            Output::Remake(_) => return None,
            Output::Swap(target) => {
                let outcome = match target.epoch == self.registry.epoch + 1 {
                    true => SwapOutcome::Done,
                    false => SwapOutcome::Conflict(self.registry.clone()),
                };
                if outcome == SwapOutcome::Done {
                    self.registry = target.clone();
                }
                (id, Input::Swapped(target, outcome))
            }
            Output::Look => (id, Input::Seen(self.registry.clone())),
            Output::Store(place, _) => (id, Input::Stored(place)),
            // Some ranges are damaged.
            Output::Fetch(fetch, extent) if extent.first() % 16 == 8 => {
                (id, Input::Unread(fetch, extent))
            }
            Output::Fetch(fetch, extent) => (id, Input::Fetched(fetch, extent, WireContent::Bytes)),
            Output::Prove(question, extent, key) => {
                let blocks = extent.sectors().div_ceil(PACING.block_sectors) as usize;
                (
                    id,
                    Input::Proved(
                        question,
                        vec![(extent.first() % 256 != 8).then_some(key); blocks],
                    ),
                )
            }
            Output::Compare(member, began, _, from) => {
                let extents = Extent::new(from, 3).into_iter().collect();
                let part = ChangedPart { extents, next: (from < 9).then_some(from + 5) };
                (id, Input::Changed(member, began, part))
            }
            Output::Keep(_)
            | Output::Drop(_)
            | Output::GoBack(_)
            | Output::EndCompare(..)
            | Output::Answer(..)
            | Output::Refuse(..)
            | Output::Mend(..)
            | Output::Lost(_)
            | Output::Found(_)
            | Output::Unreadable(_)
            | Output::Full(_) => return None,
        })
    }
}

/// The length of the content that a message has as its body.
fn body_bytes(message: &Message<WireContent>) -> usize {
    let op = match message {
        Message::Append { op, .. } => op,
        Message::Lent { extent, data: Some(WireContent::Bytes), .. } => {
            return extent.sectors() as usize * SECTOR_BYTES as usize;
        }
        _ => return 0,
    };
    match op {
        Op::Write { extent, data: WireContent::Bytes, .. }
        | Op::Fill { extent, data: WireContent::Bytes, .. }
        | Op::Equal { extent, data: WireContent::Bytes } => {
            extent.sectors() as usize * SECTOR_BYTES as usize
        }
        _ => 0,
    }
}
