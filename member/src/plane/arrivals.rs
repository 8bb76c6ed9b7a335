//! The receiving half: calls of peers, on their way into members' mailboxes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use peer::{PeerLines, PlaneId, PlaneQuota, flows};
use replica::MemberId;
use replica::wire::{WIRE_SEQUENCE, WireContent, decode, decode_name, is_name};
use sidecore::mailbox::Full;
use sidecore::{Progress, Wake, Waker};
use transport::{
    BufId, CallId, Endpoint, FairQueue, HEAD_MAX, PeerIdentity, PeerInfo, PeerNumbers, QuotaPart,
    SESSIONS_MAX, SessionId,
};

use super::counters::ReplicaPlaneCounters;
use super::{NUMBERED_VOLUMES_MAX, REFUSED, TAKEN};
use crate::content::content_of;
use crate::door::{ArrivedMessage, DoorSender, MemberDoor, MemberDoors};
use crate::form::VolumeForm;

/// Messages of one session that wait for earlier ones, or for room in mailboxes: as many as a node
/// has under way to another node. Their bytes are bounded by the credit of the session's flow, and
/// by the peer's part of the buffers.
pub const WAITING_MAX: usize = super::CALLS_UNDER_WAY_MAX as usize;

/// Calls that are looked at in one round, by peers in turn.
const CALLS_PER_ROUND_MAX: usize = 256;

/// Bytes of a round's calls but for its last one: a copy of a megabyte keeps a sidecore for a tenth
/// of a millisecond or more.
const BYTES_PER_ROUND_MAX: usize = 4 << 20;

/// The least cost of a call, in bytes of a copy.
const CALL_BYTES_MIN: usize = 4096;

/// The cost of a call that names a volume: it takes a lock that all sidecores share.
const NAME_BYTES: usize = 64 << 10;

/// How long messages wait for an earlier one: many times as long as a lost datagram takes to come
/// again. They keep buffers meanwhile, which the earlier one may need.
const MISSING_NS_MAX: u64 = 2_000_000_000;

pub(super) const NOT_HERE: &str = "no member of it is on this node";
pub(super) const NO_COPY: &str = "the peer has no copy of it";
pub(super) const UNLIKE: &str =
    "the peer has another list of copies, size, sharing, durability or key for it";
pub(super) const MALFORMED: &str = "a message is malformed";

/// A call that nothing has looked at yet.
#[derive(Debug)]
struct ArrivedCall {
    session: SessionId,
    flow: u16,
    call: CallId,
    head: [u8; HEAD_MAX],
    head_bytes: usize,
    body: Option<(BufId, usize)>,
}

impl ArrivedCall {
    fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    /// The number of a message among its volume's messages.
    fn sequence(&self) -> u16 {
        let [low, high] = self.head[WIRE_SEQUENCE] else { unreachable!("two bytes") };
        u16::from_le_bytes([low, high])
    }

    fn cost_bytes(&self) -> usize {
        match self.body {
            _ if is_name(self.head()) => NAME_BYTES,
            body => body.map_or(0, |(_, len_bytes)| len_bytes).max(CALL_BYTES_MIN),
        }
    }
}

/// A message for which an earlier one is missing, or its member's mailbox had no room.
#[derive(Debug)]
struct WaitingMessage {
    call: CallId,
    /// Without its content, while that is in a buffer.
    message: ArrivedMessage,
    content: Option<(BufId, usize)>,
}

/// A volume that a session has given a number.
#[derive(Debug)]
struct NumberedVolume {
    /// The place of its door.
    door: usize,
    /// The member that the peer is.
    from: MemberId,
    /// The number of the next message.
    next: u16,
    /// From this number on; the first one is missing, or the mailbox was full.
    waiting: VecDeque<Option<WaitingMessage>>,
    /// Since when the first one is missing.
    missing_ns: Option<u64>,
}

impl NumberedVolume {
    /// Puts the next message into its member's mailbox, and answers its call. `false`: the message
    /// is missing, or the mailbox is full.
    fn deliver(
        &mut self,
        now_ns: u64,
        door: &mut OpenDoor,
        counters: &ReplicaPlaneCounters,
        endpoint: &mut Endpoint,
    ) -> bool {
        let Some(Some(mut first)) = self.waiting.pop_front_if(|first| first.is_some()) else {
            self.missing_ns = (!self.waiting.is_empty()).then(|| self.missing_ns.unwrap_or(now_ns));
            return false;
        };
        self.missing_ns = None;
        // Its own memory goes to another thread; a copy that found no room is kept.
        if let Some((buffer, len_bytes)) = first.content.take() {
            first.message.body = endpoint.pool().bytes(buffer)[..len_bytes].to_vec();
            endpoint.pool_mut().release(buffer);
        }
        let bytes = first.message.body.len() as u64;
        let WaitingMessage { call, message, .. } = first;
        let outcome = match door.sender.send(message) {
            // The member is gone: nothing takes messages out any more.
            _ if door.sender.is_abandoned() => {
                counters.refused.add(1);
                REFUSED
            }
            Ok(()) => {
                counters.taken.add(1);
                counters.taken_bytes.add(bytes);
                TAKEN
            }
            Err(Full(message)) => {
                let first = WaitingMessage { call, message, content: None };
                self.waiting.push_front(Some(first));
                return false;
            }
        };
        self.next = self.next.wrapping_add(1);
        answer(now_ns, call, outcome, endpoint);
        true
    }
}

/// A session by which calls may come.
#[derive(Debug)]
struct CallerSession {
    name: String,
    identity: PeerIdentity,
    /// The peer's number.
    number: usize,
    /// Whether the session's version has such messages.
    speaks: bool,
    volumes: BTreeMap<u32, NumberedVolume>,
    /// Messages of all its volumes that wait.
    waiting: usize,
}

/// A door, and this plane's mailbox there.
#[derive(Debug)]
struct OpenDoor {
    volume: String,
    door: Arc<MemberDoor>,
    sender: DoorSender,
    /// Numbers of sessions that lead here.
    numbers: usize,
}

/// The notes about a peer.
#[derive(Debug, Default)]
struct CallingPeer {
    sessions: usize,
    overflowed: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Arrivals {
    doors: Arc<MemberDoors>,
    generation: u64,
    lines: Arc<Mutex<PeerLines>>,
    waker: Waker,
    open: Vec<Option<OpenDoor>>,
    peers: PeerNumbers<CallingPeer>,
    /// In order, so that a simulated run is the same each time.
    sessions: BTreeMap<SessionId, CallerSession>,
    /// By the peer's number: a flood delays its own peer first.
    calls: FairQueue<ArrivedCall>,
    /// Messages of all sessions that wait for room.
    waiting: usize,
    /// Numbers of lost sessions: their doors may be let go of.
    parting: Vec<usize>,
    /// Bodies of calls that were dropped with their sessions, until the next round.
    unwanted: Vec<BufId>,
    counters: Arc<ReplicaPlaneCounters>,
}

impl Arrivals {
    pub(super) fn new(
        doors: Arc<MemberDoors>,
        lines: Arc<Mutex<PeerLines>>,
        waker: Waker,
        counters: Arc<ReplicaPlaneCounters>,
    ) -> Self {
        Self {
            generation: doors.generation(),
            doors,
            lines,
            waker,
            open: Vec::new(),
            peers: PeerNumbers::default(),
            sessions: BTreeMap::new(),
            calls: FairQueue::default(),
            waiting: 0,
            parting: Vec::new(),
            unwanted: Vec::new(),
            counters,
        }
    }

    pub(super) fn connected(&mut self, session: SessionId, info: &PeerInfo) {
        // As many as have sessions, and as many again with last calls that wait.
        let max = 2 * usize::from(SESSIONS_MAX);
        let calls = &self.calls;
        let has_nothing =
            |number, peer: &CallingPeer| peer.sessions == 0 && calls.waiting(number) == 0;
        let identity = PeerIdentity::of(info);
        let number = self.peers.enter_or_share(&identity, max, has_nothing);
        self.peers.get_mut(number).sessions += 1;
        let caller = CallerSession {
            name: info.name.clone(),
            identity,
            number,
            speaks: PlaneId::Replicas.version(info.version) > 0,
            volumes: BTreeMap::new(),
            waiting: 0,
        };
        self.sessions.insert(session, caller);
    }

    /// The session has ended, with its messages that no mailbox has taken.
    pub(super) fn lost(&mut self, session: SessionId) {
        let Some(caller) = self.sessions.remove(&session) else { return };
        self.peers.get_mut(caller.number).sessions -= 1;
        self.waiting -= caller.waiting;
        for named in caller.volumes.into_values() {
            self.parting.push(named.door);
            let contents = named.waiting.into_iter().flatten().filter_map(|it| it.content);
            self.unwanted.extend(contents.map(|(buffer, _)| buffer));
        }
    }

    pub(super) fn called(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        let mut called =
            ArrivedCall { session, flow, call, head: [0; HEAD_MAX], head_bytes: head.len(), body };
        called.head[..head.len()].copy_from_slice(head);
        let Self { calls, sessions, unwanted, .. } = self;
        let Some(caller) = sessions.get(&session) else {
            // An answer would find no session.
            unwanted.extend(body.map(|(buffer, _)| buffer));
            return;
        };
        // Of live sessions bounded by what the transport accepts before it is answered.
        calls.push_tidily(caller.number, called, |waiting| {
            let is_wanted = sessions.contains_key(&waiting.session);
            if !is_wanted {
                unwanted.extend(waiting.body.map(|(buffer, _)| buffer));
            }
            is_wanted
        });
    }

    pub(super) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        for door in std::mem::take(&mut self.parting) {
            self.leave(door);
        }
        for buffer in self.unwanted.drain(..) {
            endpoint.pool_mut().release(buffer);
        }
        let generation = self.doors.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.look_again(now_ns, endpoint);
        }
        let mut progress = Progress::busy_if(self.waiting > 0 && self.retry(now_ns, endpoint));
        let mut left_bytes = BYTES_PER_ROUND_MAX;
        for _ in 0..CALLS_PER_ROUND_MAX {
            if left_bytes == 0 {
                break;
            }
            let Some((_, called)) = self.calls.pop() else { break };
            left_bytes = left_bytes.saturating_sub(called.cost_bytes());
            let is_kept = self.handle(now_ns, &called, endpoint);
            if let Some((buffer, _)) = called.body.filter(|_| !is_kept) {
                endpoint.pool_mut().release(buffer);
            }
            progress = Progress::Busy;
        }
        progress
    }

    /// A full mailbox wakes the sidecore when it has room.
    pub(super) fn arm(&self, wake: &mut Wake) -> Progress {
        if self.waiting > 0 {
            let volumes = self.sessions.values().flat_map(|caller| caller.volumes.values());
            let since = volumes.filter_map(|named| named.missing_ns);
            since.for_each(|since_ns| wake.at(since_ns + MISSING_NS_MAX));
        }
        let is_idle = self.calls.is_empty() && self.unwanted.is_empty() && self.parting.is_empty();
        Progress::busy_if(!is_idle || self.doors.generation() != self.generation)
    }

    pub(super) fn quotas(&self) -> Vec<PlaneQuota> {
        let of_peer = |number: usize| self.sessions.values().filter(move |it| it.number == number);
        let known = self.peers.iter().filter(|it| it.value.sessions > 0 || it.value.overflowed > 0);
        let part = known.map(|entry| PlaneQuota {
            peer: entry.peer.clone(),
            resource: "replica_messages",
            part: QuotaPart {
                has: of_peer(entry.number).map(|it| it.waiting as u64).sum(),
                has_max: (entry.value.sessions * WAITING_MAX) as u64,
                refused: entry.value.overflowed,
            },
        });
        part.collect()
    }

    /// Looks at a call. `true`: its body is kept.
    fn handle(&mut self, now_ns: u64, called: &ArrivedCall, endpoint: &mut Endpoint) -> bool {
        // The calls of a lost session go with it.
        let Some(caller) = self.sessions.get_mut(&called.session) else { return false };
        if !caller.speaks || called.flow != flows::REPLICAS {
            return self.malformed(now_ns, called, endpoint);
        }
        if is_name(called.head()) {
            return match decode_name(called.head()) {
                Ok((number, form, volume)) if called.body.is_none() => {
                    self.name(now_ns, called, (number, VolumeForm(form), volume), endpoint)
                }
                _ => self.malformed(now_ns, called, endpoint),
            };
        }
        let body: &[u8] = match called.body {
            Some((buffer, len_bytes)) => &endpoint.pool().bytes(buffer)[..len_bytes],
            None => &[],
        };
        let Ok((number, message)) = decode(called.head(), body) else {
            return self.malformed(now_ns, called, endpoint);
        };
        let Some(named) = caller.volumes.get_mut(&number) else {
            self.counters.refused.add(1);
            answer(now_ns, called.call, REFUSED, endpoint);
            return false;
        };
        let at = usize::from(called.sequence().wrapping_sub(named.next));
        if at >= WAITING_MAX || caller.waiting >= WAITING_MAX {
            self.counters.overflowed.add(1);
            self.peers.get_mut(caller.number).overflowed += 1;
            answer(now_ns, called.call, REFUSED, endpoint);
            return false;
        }
        if named.waiting.get(at).is_some_and(Option::is_some) {
            return self.malformed(now_ns, called, endpoint);
        }
        // A list that was in the body is in the message now.
        let has_content = content_of(&message) == Some(&WireContent::Bytes);
        let content = called.body.filter(|_| has_content);
        let message = ArrivedMessage { from: named.from, message, body: Vec::new() };
        if named.waiting.len() <= at {
            named.waiting.resize_with(at + 1, || None);
        }
        named.waiting[at] = Some(WaitingMessage { call: called.call, message, content });
        caller.waiting += 1;
        self.waiting += 1;
        let door = self.open[named.door].as_mut().expect("a number leads to it");
        let left = caller.waiting;
        while named.deliver(now_ns, door, &self.counters, endpoint) {
            caller.waiting -= 1;
            self.waiting -= 1;
        }
        self.counters.waited.add(u64::from(caller.waiting == left));
        content.is_some()
    }

    /// Offers messages that wait to their mailboxes again, one of each volume in turn. A number
    /// ends with the patience for a message that is missing.
    fn retry(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> bool {
        let Self { sessions, open, waiting, counters, .. } = self;
        let mut any = false;
        loop {
            let mut more = false;
            for caller in sessions.values_mut().filter(|caller| caller.waiting > 0) {
                for named in caller.volumes.values_mut() {
                    let door = open[named.door].as_mut().expect("a number leads to it");
                    if named.deliver(now_ns, door, counters, endpoint) {
                        caller.waiting -= 1;
                        *waiting -= 1;
                        more = true;
                    }
                }
            }
            if !more {
                break;
            }
            any = true;
        }
        let is_over = |named: &NumberedVolume| {
            named.missing_ns.is_some_and(|since_ns| now_ns >= since_ns + MISSING_NS_MAX)
        };
        let mut over = Vec::new();
        for (session, caller) in sessions.iter() {
            let numbers = caller.volumes.iter().filter(|(_, named)| is_over(named));
            over.extend(numbers.map(|(number, _)| (*session, *number)));
        }
        any |= !over.is_empty();
        over.into_iter().for_each(|key| self.forget(now_ns, key, endpoint));
        any
    }

    /// Gives a volume the number that the peer has chosen, if the peer has a copy of it, and the
    /// volume has the same form there.
    fn name(
        &mut self,
        now_ns: u64,
        called: &ArrivedCall,
        (number, form, volume): (u32, VolumeForm, &str),
        endpoint: &mut Endpoint,
    ) -> bool {
        if number as usize >= NUMBERED_VOLUMES_MAX {
            return self.malformed(now_ns, called, endpoint);
        }
        let caller = &self.sessions[&called.session];
        let found = self.doors.door(volume).ok_or(NOT_HERE);
        let found = found.and_then(|door| {
            let from = door.member(&caller.name).ok_or(NO_COPY)?;
            if door.form().said_by(from) == form { Ok((door, from)) } else { Err(UNLIKE) }
        });
        let outcome = match found {
            Ok((door, from)) => {
                // Before the earlier meaning goes: the mailbox stays, if it is the same.
                let door = self.enter(volume, door);
                self.forget(now_ns, (called.session, number), endpoint);
                let caller = self.sessions.get_mut(&called.session).expect("just found");
                let named = NumberedVolume {
                    door,
                    from,
                    next: 0,
                    waiting: VecDeque::new(),
                    missing_ns: None,
                };
                caller.volumes.insert(number, named);
                TAKEN
            }
            Err(why) => {
                self.forget(now_ns, (called.session, number), endpoint);
                self.counters.refused.add(1);
                self.counters.unlike.add(u64::from(why == UNLIKE));
                self.log(now_ns, called.session, volume, why);
                REFUSED
            }
        };
        answer(now_ns, called.call, outcome, endpoint);
        false
    }

    /// The place of a door, to which another number leads from now on.
    fn enter(&mut self, volume: &str, door: Arc<MemberDoor>) -> usize {
        let is_same = |open: &OpenDoor| Arc::ptr_eq(&open.door, &door);
        let known = self.open.iter().position(|open| open.as_ref().is_some_and(is_same));
        if let Some(at) = known {
            self.open[at].as_mut().expect("just found").numbers += 1;
            return at;
        }
        let sender = door.connect(self.waker.clone());
        let open = Some(OpenDoor { volume: volume.to_owned(), door, sender, numbers: 1 });
        match self.open.iter().position(Option::is_none) {
            Some(at) => {
                self.open[at] = open;
                at
            }
            None => {
                self.open.push(open);
                self.open.len() - 1
            }
        }
    }

    /// One number less leads to a door. The mailbox of the last one ends; its messages are heard.
    fn leave(&mut self, door: usize) {
        let Some(open) = &mut self.open[door] else { return };
        open.numbers -= 1;
        if open.numbers == 0 {
            self.open[door] = None;
        }
    }

    /// A number of a session means nothing any more.
    fn forget(&mut self, now_ns: u64, (session, number): (SessionId, u32), to: &mut Endpoint) {
        let Some(caller) = self.sessions.get_mut(&session) else { return };
        let Some(gone) = caller.volumes.remove(&number) else { return };
        for WaitingMessage { call, content, .. } in gone.waiting.into_iter().flatten() {
            content.into_iter().for_each(|(buffer, _)| to.pool_mut().release(buffer));
            caller.waiting -= 1;
            self.waiting -= 1;
            self.counters.refused.add(1);
            answer(now_ns, call, REFUSED, to);
        }
        self.leave(gone.door);
    }

    /// Members have come or gone: numbers without a door or a right mean nothing any more.
    fn look_again(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        let is_there = |open: &OpenDoor| {
            let door = self.doors.door(&open.volume);
            door.is_some_and(|door| Arc::ptr_eq(&door, &open.door))
        };
        let there: Vec<bool> =
            self.open.iter().map(|open| open.as_ref().is_some_and(is_there)).collect();
        let mut gone = Vec::new();
        for (session, caller) in &self.sessions {
            let is_gone = |named: &NumberedVolume| {
                let open = self.open[named.door].as_ref().filter(|_| there[named.door]);
                open.is_none_or(|open| open.door.member(&caller.name) != Some(named.from))
            };
            let numbers = caller.volumes.iter().filter(|(_, named)| is_gone(named));
            gone.extend(numbers.map(|(number, _)| (*session, *number)));
        }
        gone.into_iter().for_each(|key| self.forget(now_ns, key, endpoint));
    }

    /// Refuses a call, and keeps nothing of it.
    fn malformed(&mut self, now_ns: u64, called: &ArrivedCall, endpoint: &mut Endpoint) -> bool {
        self.counters.malformed.add(1);
        self.log(now_ns, called.session, "", MALFORMED);
        answer(now_ns, called.call, REFUSED, endpoint);
        false
    }

    fn log(&self, now_ns: u64, session: SessionId, volume: &str, why: &'static str) {
        let caller = &self.sessions[&session];
        let line = self.lines.lock().may(now_ns, &caller.identity, volume, why);
        if let Some(kept_back) = line {
            let peer = &caller.name;
            tracing::warn!(peer, volume, why, kept_back, "a message of a member was refused");
        }
    }
}

fn answer(now_ns: u64, call: CallId, outcome: u8, endpoint: &mut Endpoint) {
    // On a session that is gone, the answer goes nowhere.
    let _ = endpoint.reply(now_ns, call, &[outcome], None);
}
