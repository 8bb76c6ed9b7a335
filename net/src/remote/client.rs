//! Networks of other nodes, for this node's nics: one sidecore's memberships, asked for until they
//! are granted, and again whenever a session was lost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use peer::{PlaneId, Token, flows};
use sidecore::Progress;
use transport::{Endpoint, FLOWS_MAX, LostReason, PeerInfo, SessionId};

use super::cable::{Cable, Plugged};
use super::server::{CableChanges, MemberFlow};
use super::wire::{Join, NetAnswer, NetCallKind, NetRequest, PROOF_BYTES, short_head};
use crate::switch::Vlans;

/// How long a refused join waits before it is tried again.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How long the first ask of a session waits for its answer: calls of a live session arrive, and a
/// peer that is silent for so long has lost this one. Each further ask waits twice as long as the
/// one before it, for each takes a place among the session's calls until it is answered: a day of
/// silence takes sixteen.
const ANSWER_NS: u64 = 2_000_000_000;

/// Makes the proof of a key for a session, which has this binding; none where there is no key, or
/// nothing can be proved.
pub type Prove = Box<dyn Fn(&[u8; 32], &Join) -> Option<[u8; PROOF_BYTES]> + Send>;

/// How long a known network may be out of reach before its guests must see it. It is longer than a
/// restart of its node takes, since a guest that sees its link go may let go of its addresses, and
/// a cable that is plugged in takes a second or so.
pub const AWAY_NS: u64 = 2_000_000_000;

/// Told that a network has been out of reach for [`AWAY_NS`] (`false`), and that it is there again.
/// Called on the sidecore; must not wait for anything.
pub type ReachNotice = Box<dyn Fn(bool) + Send>;

/// A network of another node, and the identity with which to join it.
pub struct WantedNetwork {
    /// The node.
    pub peer: String,
    /// The flow is filled in.
    pub join: Join,
    /// Its key's.
    pub prove: Prove,
    /// Shows the nic its link. It is not told of a network that was never there: a guest starts
    /// also while the network's node is down.
    pub told: ReachNotice,
}

impl fmt::Debug for WantedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, join, .. } = self;
        f.debug_struct("Wanted").field("peer", peer).field("join", join).finish_non_exhaustive()
    }
}

/// A session that is up and that this node has asked for.
#[derive(Clone, Debug)]
struct UpSession {
    id: SessionId,
    peer: String,
    addr: SocketAddr,
    index: u16,
    binding: [u8; 32],
}

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinState {
    /// To be asked for.
    Out,
    /// Asked for, in this session. Asked again when there is no answer by then.
    Asked(SessionId, u64),
    /// A member.
    In(SessionId, u32),
}

/// The asks of a client in one session. Answers, and the asks themselves, overtake each other: of
/// two memberships the one with the greater number has replaced the other.
#[derive(Clone, Copy, Debug)]
struct JoinRequests {
    session: SessionId,
    first: u32,
    last: u32,
    /// The last membership that was granted.
    granted: Option<u32>,
}

impl JoinRequests {
    /// Whether an ask was one of these: the client may have its flow from another one, whose
    /// answers are not for it.
    fn has(&self, session: SessionId, number: u32) -> bool {
        self.session == session && !is_later(self.first, number) && !is_later(number, self.last)
    }

    /// Whether a membership that is granted is not one that was replaced.
    fn is_news(&self, membership: u32) -> bool {
        self.granted.is_none_or(|granted| is_later(membership, granted))
    }
}

/// Of two numbers that begin again some day, and are near each other.
fn is_later(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

#[derive(Debug)]
struct NetworkClient {
    wanted: WantedNetwork,
    cable: Rc<RefCell<Cable>>,
    state: JoinState,
    /// Not before.
    ask_at_ns: u64,
    /// In the present session.
    asks: Option<JoinRequests>,
    /// How long the next ask waits for its answer.
    answer_ns: u64,
    /// When it became a member last, if ever.
    in_ns: Option<u64>,
    /// When it was seen to be none any more.
    out_ns: Option<u64>,
    /// It was told that the network is out of reach.
    is_away: bool,
    /// The index of the session that the network's sidecore serves, where it is not the one that
    /// the node has anyway.
    index: Option<u16>,
}

/// A membership that a peer granted after its nic had left: to be given back.
pub(super) struct LateGrant {
    pub(super) way: MemberFlow,
    pub(super) membership: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Clients {
    /// This sidecore, and how many the node has.
    index: u16,
    sidecores: u16,
    /// By flow.
    clients: BTreeMap<u16, NetworkClient>,
    up: Vec<UpSession>,
    /// Sessions of our own: peer and index, and the session.
    own: BTreeMap<(String, u16), SessionId>,
    number_next: u32,
    stirred: bool,
    /// When there is something to ask for, or to tell.
    ask_at_ns: u64,
}

impl Clients {
    pub(super) fn new(index: u16, sidecores: u16) -> Self {
        Self {
            index,
            sidecores: sidecores.max(1),
            clients: BTreeMap::new(),
            up: Vec::new(),
            own: BTreeMap::new(),
            number_next: 0,
            stirred: false,
            ask_at_ns: u64::MAX,
        }
    }

    /// Keeps a membership from now on. Gives its flow, or nothing when all are taken.
    pub(super) fn add(
        &mut self,
        mut wanted: WantedNetwork,
        cable: &Rc<RefCell<Cable>>,
    ) -> Option<u16> {
        let Some(flow) = (0..FLOWS_MAX as u16).find(|flow| !self.clients.contains_key(flow)) else {
            let why = format!("a sidecore has at most {FLOWS_MAX} nics in networks of other nodes");
            cable.borrow().core.waits(&why);
            return None;
        };
        wanted.join.flow = flow;
        cable.borrow().core.waits(&format!("peer {} was not reached yet", wanted.peer));
        let cable = Rc::clone(cable);
        let client = NetworkClient {
            wanted,
            cable,
            state: JoinState::Out,
            ask_at_ns: 0,
            asks: None,
            answer_ns: ANSWER_NS,
            in_ns: None,
            out_ns: None,
            is_away: false,
            index: None,
        };
        self.clients.insert(flow, client);
        self.stirred = true;
        Some(flow)
    }

    /// Keeps it no longer, and says so.
    pub(super) fn remove(
        &mut self,
        now_ns: u64,
        flow: u16,
        endpoint: &mut Endpoint,
        ways: CableChanges<'_>,
    ) {
        let Some(client) = self.clients.remove(&flow) else { return };
        if let JoinState::In(session, membership) = client.state {
            endpoint.close_casts(session, flow);
            leave(now_ns, (session, flow), membership, endpoint);
            ways((session, flow), None);
        }
        client.cable.borrow_mut().unplug("it was removed");
        self.stirred = true;
    }

    pub(super) fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        let PeerInfo { name, addr, index, binding, .. } = peer.clone();
        self.up.push(UpSession { id: session, peer: name, addr, index, binding });
        self.stirred = true;
    }

    pub(super) fn lost(
        &mut self,
        now_ns: u64,
        session: SessionId,
        why: &LostReason,
        ways: CableChanges<'_>,
    ) {
        self.up.retain(|up| up.id != session);
        let own = self.own.iter().find(|(_, id)| **id == session).map(|(key, _)| key.clone());
        if let Some(key) = own {
            self.own.remove(&key);
            let waiting = self.clients.values_mut().filter(|it| it.is_of(&key.0, key.1));
            // The node may have fewer sidecores by now, or the network another one.
            waiting.for_each(|it| (it.index, it.ask_at_ns) = (None, now_ns + ASK_AGAIN_NS));
        }
        for (flow, client) in &mut self.clients {
            client.asks = client.asks.filter(|asks| asks.session != session);
            match client.state {
                JoinState::In(of, _) if of == session => ways((session, *flow), None),
                JoinState::Asked(of, _) if of == session => {}
                _ => continue,
            }
            client.go_out(client.ask_at_ns, why);
        }
        self.stirred = true;
    }

    /// When there is something to do.
    pub(super) fn next_ns(&self) -> Option<u64> {
        if self.stirred { Some(0) } else { Some(self.ask_at_ns).filter(|at| *at != u64::MAX) }
    }

    /// Asks for what is not granted, and tells of what has not been for long.
    pub(super) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        if !self.stirred && now_ns < self.ask_at_ns {
            return Progress::Idle;
        }
        (self.stirred, self.ask_at_ns) = (false, u64::MAX);
        let flows: Vec<u16> = self.clients.keys().copied().collect();
        for flow in flows {
            self.ask(now_ns, flow, endpoint);
        }
        for client in self.clients.values_mut() {
            let at_ns = client.look_away(now_ns).unwrap_or(u64::MAX);
            self.ask_at_ns = self.ask_at_ns.min(at_ns);
        }
        self.drop_unused(now_ns, endpoint);
        Progress::Busy
    }

    fn ask(&mut self, now_ns: u64, flow: u16, endpoint: &mut Endpoint) {
        let client = self.clients.get_mut(&flow).expect("the caller has looked");
        let at_ns = match client.state {
            JoinState::In(..) => return,
            JoinState::Out => client.ask_at_ns,
            JoinState::Asked(_, until_ns) => until_ns,
        };
        if now_ns < at_ns {
            self.ask_at_ns = self.ask_at_ns.min(at_ns);
            return;
        }
        client.give_up_waiting();
        let client = &self.clients[&flow];
        let Some(up) = self.session_for(client).cloned() else {
            self.connect_own(now_ns, flow, endpoint);
            return;
        };
        let number = self.number_next;
        self.number_next = number.wrapping_add(1);
        let client = self.clients.get_mut(&flow).expect("looked at above");
        if client.send(now_ns, &up, number, endpoint) {
            let until_ns = now_ns.saturating_add(client.answer_ns);
            client.state = JoinState::Asked(up.id, until_ns);
            client.note_ask(up.id, number);
            self.ask_at_ns = self.ask_at_ns.min(until_ns);
        } else {
            client.ask_at_ns = now_ns + ASK_AGAIN_NS;
            self.ask_at_ns = self.ask_at_ns.min(client.ask_at_ns);
        }
    }

    /// The session to ask in.
    fn session_for(&self, client: &NetworkClient) -> Option<&UpSession> {
        let index = client.index.unwrap_or(self.index);
        self.up.iter().find(|up| up.peer == client.wanted.peer && up.index == index)
    }

    /// Asks for the session that a client was sent to, by the address of the one that it has.
    fn connect_own(&mut self, now_ns: u64, flow: u16, endpoint: &mut Endpoint) {
        let client = &self.clients[&flow];
        let Some(index) = client.index else { return };
        let key = (client.wanted.peer.clone(), index);
        if self.own.contains_key(&key) {
            return;
        }
        let natural = self.up.iter().find(|up| up.peer == key.0 && up.index == self.index);
        let Some(natural) = natural else { return };
        let session = endpoint.connect(now_ns, natural.addr, &key.0, index);
        self.own.insert(key, session);
    }

    /// Ends sessions of our own that are not needed any more.
    fn drop_unused(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        let Self { clients, own, up, .. } = self;
        own.retain(|(peer, index), session| {
            let is_needed = clients.values().any(|client| client.is_of(peer, *index));
            if !is_needed {
                endpoint.close(now_ns, *session);
                up.retain(|up| up.id != *session);
            }
            is_needed
        });
    }

    /// Whether the token is one of ours, and what came of the call.
    pub(super) fn reply(
        &mut self,
        now_ns: u64,
        session: SessionId,
        token: Token,
        head: &[u8],
        late: &mut Vec<LateGrant>,
        ways: CableChanges<'_>,
    ) {
        let (flow, number) = flow_and_number(token);
        let answer = NetAnswer::decode(head);
        let client = self.clients.get_mut(&flow);
        let Some(client) = client.filter(|it| it.asks.is_some_and(|it| it.has(session, number)))
        else {
            // It was taken away meanwhile.
            if let Ok(NetAnswer::Done { membership }) = answer {
                late.push(LateGrant { way: (session, flow), membership });
            }
            return;
        };
        self.stirred = true;
        let mut ask_at_ns = now_ns + ASK_AGAIN_NS;
        let why = match answer {
            Ok(NetAnswer::Done { membership }) => {
                if client.enter(now_ns, session, flow, membership) {
                    ways((session, flow), Some(Rc::clone(&client.cable)));
                }
                return;
            }
            // The answer to a later ask is what counts.
            _ if client.asks.is_some_and(|asks| asks.last != number) => return,
            Ok(NetAnswer::Elsewhere { sidecore, sidecores }) => {
                let index = index_for(self.index, self.sidecores, sidecore, sidecores);
                // Sent on twice: the network has moved, and the first session is asked again.
                let is_again = client.index.is_some();
                client.index = index.filter(|_| !is_again);
                if !is_again {
                    ask_at_ns = now_ns;
                }
                format!("it is on sidecore {sidecore} there")
            }
            Ok(NetAnswer::Refused { text }) => text,
            Err(_) => "its answer is not valid".to_owned(),
        };
        if let JoinState::In(..) = client.state {
            // By an earlier ask, whose membership has gone with this one.
            ways((session, flow), None);
        }
        client.go_out(ask_at_ns, &why);
    }

    /// Gives a membership back that came when its client was gone. Another client may have its flow
    /// by now, whose casts stay open.
    pub(super) fn give_back(
        &self,
        now_ns: u64,
        (session, flow): (SessionId, u16),
        membership: u32,
        endpoint: &mut Endpoint,
    ) {
        if !self.clients.contains_key(&flow) {
            endpoint.close_casts(session, flow);
        }
        leave(now_ns, (session, flow), membership, endpoint);
    }

    /// A peer says that a membership is over.
    pub(super) fn ended(
        &mut self,
        now_ns: u64,
        session: SessionId,
        request: &NetRequest,
        ways: CableChanges<'_>,
    ) {
        let NetRequest::Ended { flow, membership } = *request else { return };
        let client = self.clients.get_mut(&flow);
        let Some(client) = client.filter(|it| it.state == JoinState::In(session, membership))
        else {
            return;
        };
        // At once, but not in a circle with a peer that ends each membership as soon as it began.
        let ask_at_ns = client.in_ns.map_or(now_ns, |in_ns| now_ns.max(in_ns + ASK_AGAIN_NS));
        client.go_out(ask_at_ns, &"the membership has ended");
        ways((session, flow), None);
        self.stirred = true;
    }
}

impl NetworkClient {
    fn is_of(&self, peer: &str, index: u16) -> bool {
        self.wanted.peer == peer && self.index == Some(index)
    }

    fn note_ask(&mut self, session: SessionId, number: u32) {
        match &mut self.asks {
            Some(asks) if asks.session == session => asks.last = number,
            asks => {
                *asks = Some(JoinRequests { session, first: number, last: number, granted: None })
            }
        }
    }

    /// An answer that was due is waited for no longer; it counts if it comes all the same.
    fn give_up_waiting(&mut self) {
        if !matches!(self.state, JoinState::Asked(..)) {
            return;
        }
        self.state = JoinState::Out;
        let seconds = self.answer_ns / 1_000_000_000;
        let text = format!("peer {}: no answer for {seconds} s; asked again", self.wanted.peer);
        self.cable.borrow().core.waits(&text);
        self.answer_ns = self.answer_ns.saturating_mul(2);
    }

    /// It is no member, and is asked for again, but not before.
    fn go_out(&mut self, ask_at_ns: u64, why: &dyn fmt::Display) {
        (self.state, self.ask_at_ns, self.answer_ns) = (JoinState::Out, ask_at_ns, ANSWER_NS);
        let why = format!("peer {}: {why}", self.wanted.peer);
        self.cable.borrow_mut().unplug(&why);
    }

    /// A membership was granted. `false`: it is one that another has replaced.
    fn enter(&mut self, now_ns: u64, session: SessionId, flow: u16, membership: u32) -> bool {
        let asks = self.asks.as_mut().expect("it is the answer to one");
        if !asks.is_news(membership) {
            return false;
        }
        asks.granted = Some(membership);
        self.state = JoinState::In(session, membership);
        (self.in_ns, self.out_ns, self.answer_ns) = (Some(now_ns), None, ANSWER_NS);
        self.cable.borrow_mut().plug(Plugged { session, flow, membership });
        if std::mem::take(&mut self.is_away) {
            (self.wanted.told)(true);
        }
        true
    }

    /// Tells that it is out when it was in and has been out for long. Gives when that will be.
    fn look_away(&mut self, now_ns: u64) -> Option<u64> {
        self.in_ns?;
        if self.is_away || matches!(self.state, JoinState::In(..)) {
            return None;
        }
        let at_ns = self.out_ns.get_or_insert(now_ns).saturating_add(AWAY_NS);
        if now_ns < at_ns {
            return Some(at_ns);
        }
        self.is_away = true;
        (self.wanted.told)(false);
        None
    }

    /// Sends the join. `false`: there is no room now.
    fn send(&self, now_ns: u64, up: &UpSession, number: u32, endpoint: &mut Endpoint) -> bool {
        let join = &self.wanted.join;
        // Frames may come right behind the answer.
        endpoint.open_casts(up.id, join.flow);
        endpoint.set_watched(up.id, true);
        let proof = (self.wanted.prove)(&up.binding, join);
        let (head, body) = (join.head(proof.is_some()), join.body(proof));
        let mut buffer = None;
        if !body.is_empty() {
            let Some(id) = endpoint.pool_mut().alloc(body.len()) else { return false };
            endpoint.pool_mut().bytes_mut(id).copy_from_slice(&body);
            buffer = Some((id, body.len()));
        }
        let token = token(join.flow, number);
        let called = endpoint.call(now_ns, up.id, flows::CONTROL, token.raw(), &head, buffer);
        if let Some((id, _)) = buffer {
            endpoint.pool_mut().release(id);
        }
        called.is_ok()
    }
}

/// Gives a membership back; the flow's casts are the caller's to close.
fn leave(now_ns: u64, (session, flow): (SessionId, u16), membership: u32, endpoint: &mut Endpoint) {
    let head = short_head(NetCallKind::Leave, flow, membership);
    // Without room for it, the membership is replaced by the next one of that nic.
    let _ = endpoint.call(now_ns, session, flows::CONTROL, super::TOKEN_UNHEARD.raw(), &head, None);
}

fn token(flow: u16, number: u32) -> Token {
    Token::new(PlaneId::Network, u64::from(flow) << 32 | u64::from(number))
}

fn flow_and_number(token: Token) -> (u16, u32) {
    ((token.key() >> 32) as u16, token.key() as u32)
}

/// The index of a session of ours that is served by the other node's sidecore `there`. Sessions are
/// served by the sidecore `index % sidecores`; those below our own number of them are everybody's.
fn index_for(own: u16, own_count: u16, there: u16, there_count: u16) -> Option<u16> {
    if own % there_count == there {
        return None;
    }
    let rounds = own_count.div_ceil(there_count).checked_add(own)?;
    there_count.checked_mul(rounds)?.checked_add(there)
}

/// The wish for a membership, without the flow.
pub fn join(network: &str, nic: &str, mac: crate::Mac, mtu: u16, vlans: Vlans) -> Join {
    Join { flow: 0, mac, mtu, vlans, network: network.to_owned(), nic: nic.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sidecore_has_its_own_session_to_each_that_it_needs() {
        for own_count in 1..5 {
            for there_count in 1..5 {
                let mut seen: Vec<u16> = (0..own_count).collect();
                for (own, there) in
                    (0..own_count).flat_map(|a| (0..there_count).map(move |b| (a, b)))
                {
                    match index_for(own, own_count, there, there_count) {
                        None => assert_eq!(own % there_count, there),
                        Some(index) => {
                            assert_eq!(index % there_count, there);
                            assert!(!seen.contains(&index), "{index}");
                            seen.push(index);
                        }
                    }
                }
            }
        }
        assert_eq!(index_for(1, u16::MAX, 2, 60_000), None, "there is no such number");
    }

    #[test]
    fn numbers_are_compared_also_where_they_begin_again() {
        for (one, other) in [(1, 0), (9, 3), (0, u32::MAX), (5, u32::MAX - 5)] {
            assert!(is_later(one, other) && !is_later(other, one) && !is_later(one, one));
        }
    }

    #[test]
    fn tokens_come_apart() {
        assert_eq!(flow_and_number(token(255, u32::MAX)), (255, u32::MAX));
    }
}
