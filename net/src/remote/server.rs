//! The networks of this node, for nics of others: one sidecore's joins, and the ports that they
//! make.
//!
//! The network decides about a port's rights ([`JoinGate`]), and its switch decides where frames
//! go. The checks of the other node are not trusted.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use peer::flows;
use sidecore::{Progress, Services};
use transport::{
    BufId, CallId, Endpoint, FLOWS_MAX, FairQueue, HEAD_MAX, PeerIdentity, PeerInfo, PeerNumbers,
    SESSIONS_MAX, SessionId,
};

use super::TOKEN_UNHEARD;
use super::cable::{Cable, CableCore, Plugged};
use super::members::{Member, Members};
use super::port::CablePort;
use super::wire::{Join, NetAnswer, NetCallKind, NetRequest, short_head};
use crate::bridge::Bridge;
use crate::network::Bridges;
use crate::port::{Port, PortCounters};
use crate::switch::{PORTS_MAX, PortOptions};

/// Calls handled in one round, by peers in turn: each may cost a proof of some 100 us.
const CALLS_PER_ROUND_MAX: usize = 4;

/// Members on one sidecore: each costs an inbox of 100 KiB.
const MEMBERS_MAX: usize = 1024;

/// Members of one peer on one sidecore: as many as a session has flows, so one for each nic that a
/// sidecore of that peer can have, and a quarter of the places. Three others find room beside it.
const MEMBERS_PER_PEER_MAX: usize = FLOWS_MAX;

/// Members of one peer in one network: half of its ports, so that no peer alone can take the places
/// of the node's own guests and of other peers'.
const MEMBERS_OF_NETWORK_PER_PEER_MAX: usize = PORTS_MAX / 2;

/// How a member's port is made, on the network's sidecore.
pub type PortMaker =
    Box<dyn FnOnce(Box<dyn Port>, &Arc<PortCounters>) -> Box<dyn Port> + Send + 'static>;

/// A join that is granted.
pub struct Admission {
    /// The network: see [`crate::Network::id`].
    pub network: u64,
    /// The sidecore that it lives on.
    pub sidecore: u16,
    /// How many this node has.
    pub sidecores: u16,
    /// The port's part in the network.
    pub options: PortOptions,
    /// Stages before it.
    pub chain: PortMaker,
    /// By what it was granted.
    pub right: MemberRight,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("network", &self.network)
            .field("options", &self.options)
            .field("right", &self.right)
            .finish_non_exhaustive()
    }
}

/// The right by which a port is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRight {
    /// The node that joined.
    pub peer: String,
    /// The network's name.
    pub network: String,
    /// The key that it proved.
    pub key: Option<[u8; 32]>,
    /// The number of the terms on which it joined, for its gate.
    pub terms: u64,
}

/// Decides which peers may join. Asked on sidecores, at joins only; it must not wait for anything.
pub trait JoinGate: fmt::Debug + Send + Sync {
    /// Whether a peer may join.
    ///
    /// # Errors
    /// The text for the peer. A stranger learns nothing: a network that does not exist and one that
    /// is not open to it are refused in the same words.
    fn admit(
        &self,
        now_ns: u64,
        peer: &PeerInfo,
        join: &Join,
        proof: Option<&[u8]>,
    ) -> Result<Admission, String>;

    /// Whether an admitted port still has its right.
    fn holds(&self, right: &MemberRight) -> bool;

    /// Another number whenever [`JoinGate::holds`] may say otherwise than before.
    fn generation(&self) -> u64;
}

sidecore::counters! {
    /// The counters of a server; one writer, its sidecore.
    pub struct ServerCounters {
        joined: "Joins of peers' nics that were granted.",
        refused: "Joins of peers' nics that were refused.",
        /// The sidecore had no place left, or the peer had all of its own.
        full: "Of these, refusals because no place was left.",
        ended: "Members whose right or network has ended.",
        /// Calls that were not in the protocol's form.
        malformed: "Messages about networks that are not valid.",
    }
}

#[derive(Debug)]
struct PendingJoin {
    session: SessionId,
    call: CallId,
    head: [u8; HEAD_MAX],
    head_bytes: usize,
    body: Option<(BufId, usize)>,
}

/// A port that a peer has joined with.
#[derive(Debug)]
struct Joined {
    cable: Rc<RefCell<Cable>>,
    membership: u32,
    bridge: Rc<RefCell<Bridge>>,
    port: u16,
    right: MemberRight,
    nic: String,
    /// Listed for others to see, for as long as it lives.
    _member: Member,
}

/// A flow of a session.
pub(super) type MemberFlow = (SessionId, u16);

/// See the module's text.
#[derive(Debug)]
pub struct NetServer {
    gate: Arc<dyn JoinGate>,
    members: Arc<Members>,
    services: Services,
    index: u16,
    /// With each peer's number.
    peers: HashMap<SessionId, (PeerInfo, usize)>,
    /// How many sessions each peer has.
    roll: PeerNumbers<u64>,
    /// By the peer's number and one: a flood delays its own peer first. 0 is of sessions that this
    /// node asked for.
    calls: FairQueue<PendingJoin>,
    /// Bodies of calls that were dropped with their sessions, until the next round.
    unwanted: Vec<BufId>,
    /// In order, so that a simulated run is the same each time.
    joined: BTreeMap<MemberFlow, Joined>,
    /// Of lost sessions.
    parting: Vec<MemberFlow>,
    membership_next: u32,
    generation: u64,
    counters: Arc<ServerCounters>,
}

/// Cables that came and went, for the sorter of arriving frames.
pub(super) type CableChanges<'a> = &'a mut dyn FnMut(MemberFlow, Option<Rc<RefCell<Cable>>>);

impl NetServer {
    pub(super) fn new(
        index: u16,
        gate: Arc<dyn JoinGate>,
        members: Arc<Members>,
        services: Services,
    ) -> Self {
        Self {
            generation: gate.generation(),
            gate,
            members,
            services,
            index,
            peers: HashMap::new(),
            roll: PeerNumbers::default(),
            calls: FairQueue::default(),
            unwanted: Vec::new(),
            joined: BTreeMap::new(),
            parting: Vec::new(),
            membership_next: 1,
            counters: Arc::default(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Arc<ServerCounters> {
        Arc::clone(&self.counters)
    }

    pub(super) fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        // As many as have sessions, and as many again whose last calls wait.
        let max = 2 * usize::from(SESSIONS_MAX);
        let calls = &self.calls;
        let has_nothing = |number, sessions: &u64| *sessions == 0 && calls.waiting(number + 1) == 0;
        let number = self.roll.enter_or_share(&PeerIdentity::of(peer), max, has_nothing);
        *self.roll.get_mut(number) += 1;
        self.peers.insert(session, (peer.clone(), number));
    }

    /// Its members go in the next round: the endpoint is at work.
    pub(super) fn lost(&mut self, session: SessionId) {
        if let Some((_, number)) = self.peers.remove(&session) {
            *self.roll.get_mut(number) -= 1;
        }
        let gone = self.joined.range((session, 0)..=(session, u16::MAX));
        self.parting.extend(gone.map(|(way, _)| *way));
    }

    pub(super) fn called(
        &mut self,
        session: SessionId,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        let mut called =
            PendingJoin { session, call, head: [0; HEAD_MAX], head_bytes: head.len(), body };
        called.head[..head.len()].copy_from_slice(head);
        // Of live sessions bounded by what the transport accepts before it is answered.
        let Self { calls, peers, unwanted, .. } = self;
        let turn = peers.get(&session).map_or(0, |(_, number)| number + 1);
        calls.push_tidily(turn, called, |waiting| {
            let is_wanted = turn == 0 || peers.contains_key(&waiting.session);
            if !is_wanted {
                unwanted.extend(waiting.body.map(|(buffer, _)| buffer));
            }
            is_wanted
        });
    }

    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        endpoint: &Rc<RefCell<Endpoint>>,
        ways: CableChanges<'_>,
    ) -> Progress {
        let generation = self.gate.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.look_again(now_ns, endpoint, ways);
        }
        for buffer in self.unwanted.drain(..) {
            endpoint.borrow_mut().pool_mut().release(buffer);
        }
        for way in std::mem::take(&mut self.parting) {
            self.part(way, ways);
        }
        let mut progress = Progress::Idle;
        for _ in 0..CALLS_PER_ROUND_MAX {
            let Some((_, called)) = self.calls.pop() else { break };
            self.handle(now_ns, &called, endpoint, ways);
            progress = Progress::Busy;
        }
        progress
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.parting.is_empty() && self.unwanted.is_empty()
    }

    fn handle(
        &mut self,
        now_ns: u64,
        called: &PendingJoin,
        endpoint: &Rc<RefCell<Endpoint>>,
        ways: CableChanges<'_>,
    ) {
        let body = called.body.map(|(buffer, len_bytes)| {
            let mut endpoint = endpoint.borrow_mut();
            let bytes = endpoint.pool().bytes(buffer)[..len_bytes].to_vec();
            endpoint.pool_mut().release(buffer);
            bytes
        });
        let body = body.unwrap_or_default();
        let answer = match NetRequest::decode(&called.head[..called.head_bytes], &body) {
            Ok((NetRequest::Join(join), proof)) => {
                let joined = self.join(now_ns, called.session, &join, proof, endpoint, ways);
                joined.unwrap_or_else(|text| {
                    self.counters.refused.add(1);
                    NetAnswer::Refused { text }
                })
            }
            Ok((NetRequest::Leave { flow, membership }, _)) => {
                let way = (called.session, flow);
                if self.joined.get(&way).is_some_and(|it| it.membership == membership) {
                    endpoint.borrow_mut().close_casts(called.session, flow);
                    self.part(way, ways);
                }
                NetAnswer::Done { membership }
            }
            Ok((NetRequest::Ended { .. }, _)) | Err(_) => {
                self.counters.malformed.add(1);
                NetAnswer::Refused { text: "not a call about a network".to_owned() }
            }
        };
        // On a session that is gone, the answer goes nowhere.
        let _ = endpoint.borrow_mut().reply(now_ns, called.call, &answer.encode(), None);
    }

    fn join(
        &mut self,
        now_ns: u64,
        session: SessionId,
        join: &Join,
        proof: Option<&[u8]>,
        endpoint: &Rc<RefCell<Endpoint>>,
        ways: CableChanges<'_>,
    ) -> Result<NetAnswer, String> {
        let (peer, number) = self.peers.get(&session).ok_or("the session is over")?;
        let owner = Some(*number);
        let admission = self.gate.admit(now_ns, peer, join, proof)?;
        if admission.sidecore != self.index {
            let Admission { sidecore, sidecores, .. } = admission;
            return Ok(NetAnswer::Elsewhere { sidecore, sidecores });
        }
        let gone = || format!("network {:?} is being removed", join.network);
        let bridge = Bridges::find(&self.services, admission.network).ok_or_else(gone)?;
        let way = (session, join.flow);
        // A nic that joins again has lost its former port, for any reason.
        let is_same = |it: &Joined| it.right.peer == admission.right.peer && it.nic == join.nic;
        let before = self.joined.iter().filter(|(had, it)| **had == way || is_same(it));
        let before: Vec<_> = before.map(|(way, it)| (*way, it.membership)).collect();
        for (had, membership) in before {
            self.part(had, ways);
            if had != way {
                // This join may be the late one, of a process that is gone: the member asks again.
                tell_ended(now_ns, had, membership, &mut endpoint.borrow_mut());
            }
        }
        self.check_room(&admission.right).inspect_err(|_| self.counters.full.add(1))?;
        let (counters, core) = (Arc::<PortCounters>::default(), Arc::<CableCore>::default());
        let member = self.members.enter(&admission.right, join, &counters, &core);
        let cable = Cable::new(Rc::clone(endpoint), core, Arc::clone(&counters));
        let cable = Rc::new(RefCell::new(cable));
        let port = (admission.chain)(Box::new(CablePort(Rc::clone(&cable))), &counters);
        let port = bridge.borrow_mut().add_for(owner, admission.options, port, counters);
        let port = port.map_err(|error| format!("network {:?}: {error}", join.network))?;
        let membership = self.membership_next;
        // Not before four thousand million joins of one sidecore's life is one used twice.
        self.membership_next = membership.wrapping_add(1).max(1);
        cable.borrow_mut().plug(Plugged { session, flow: join.flow, membership });
        endpoint.borrow_mut().open_casts(session, join.flow);
        ways(way, Some(Rc::clone(&cable)));
        let (right, nic) = (admission.right, join.nic.clone());
        let joined = Joined { cable, membership, bridge, port, right, nic, _member: member };
        self.joined.insert(way, joined);
        self.counters.joined.add(1);
        Ok(NetAnswer::Done { membership })
    }

    /// Whether there is a place for one more with this right.
    fn check_room(&self, right: &MemberRight) -> Result<(), String> {
        let own = self.joined.values().filter(|it| it.right.peer == right.peer);
        let (mut of_peer, mut of_network) = (0, 0);
        for joined in own {
            of_peer += 1;
            of_network += usize::from(joined.right.network == right.network);
        }
        if of_network >= MEMBERS_OF_NETWORK_PER_PEER_MAX {
            return Err(format!(
                "a network has at most {MEMBERS_OF_NETWORK_PER_PEER_MAX} members of one node: \
                 remove others of yours, or use another network"
            ));
        }
        if of_peer >= MEMBERS_PER_PEER_MAX || self.joined.len() >= MEMBERS_MAX {
            return Err(format!(
                "a sidecore has at most {MEMBERS_PER_PEER_MAX} members of one node and \
                 {MEMBERS_MAX} in all: use a network on another sidecore or node"
            ));
        }
        Ok(())
    }

    /// Ends a membership.
    fn part(&mut self, way: MemberFlow, ways: CableChanges<'_>) {
        let Some(joined) = self.joined.remove(&way) else { return };
        ways(way, None);
        joined.cable.borrow_mut().unplug("it has left");
        // A bridge that was taken off its sidecore has its ports still, until this last one goes.
        drop(joined.bridge.borrow_mut().remove(joined.port));
    }

    /// Ends memberships whose right is gone, and tells their nodes.
    fn look_again(
        &mut self,
        now_ns: u64,
        endpoint: &Rc<RefCell<Endpoint>>,
        ways: CableChanges<'_>,
    ) {
        let gone = self.joined.iter().filter(|(_, it)| !self.gate.holds(&it.right));
        let gone: Vec<_> = gone.map(|(way, it)| (*way, it.membership)).collect();
        for (way, membership) in gone {
            self.part(way, ways);
            self.counters.ended.add(1);
            tell_ended(now_ns, way, membership, &mut endpoint.borrow_mut());
        }
    }
}

/// Tells a member's node that its membership is over.
fn tell_ended(now_ns: u64, (session, flow): MemberFlow, membership: u32, endpoint: &mut Endpoint) {
    endpoint.close_casts(session, flow);
    let head = short_head(NetCallKind::Ended, flow, membership);
    // Without room for it, it finds out by its frames' going nowhere, and by status.
    let _ = endpoint.call(now_ns, session, flows::CONTROL, TOKEN_UNHEARD.raw(), &head, None);
}
