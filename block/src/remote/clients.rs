//! What one sidecore's remote channels share: the peers, their sessions, and who waits for what.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use peer::AttachmentSecret;
use peer::proof::Binding;
use sidecore::Progress;
use transport::{Endpoint, LostReason, PeerInfo, SessionId};

use super::RemoteVolume;
use super::core::Core;
use crate::server::NOTICE_TOKEN;
use crate::volume::OpenError;
use crate::wire::{Kind, Names, Outcome, Reply, Request, Title};

/// The most remote channels on one sidecore: one per disk and sidecore, each with a flow of its
/// own, and a session has no more.
pub(crate) const CHANNELS_PER_CORE_MAX: usize = transport::FLOWS_MAX;

/// The flow that descriptions use; channels have those from 1.
pub(crate) const DESCRIBE_FLOW: u16 = 0;

/// How long a refused description or connection waits before it is tried again.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How often a volume that was described is asked for again, so that one that is gone or closed to
/// this node is noticed without a request of a guest. Soon enough for people; it costs the peer a
/// round trip, and 100 us where the volume asks for a proof.
pub(crate) const CONFIRM_EVERY_NS: u64 = 5_000_000_000;

/// How long the answer may take while there is a session, before the volume counts as away: well
/// above what a busy peer takes.
const ANSWER_TIME_MAX_NS: u64 = 10_000_000_000;

/// A token's upper half names the channel, see [`token_flow`].
const DESCRIBE_KEY: u32 = u32::MAX;

#[derive(Debug)]
struct Peer {
    /// Empty: a place whose peer was removed, for the next one.
    name: String,
    addr: SocketAddr,
    session: Option<SessionId>,
    up: bool,
    /// Of the session that is up.
    binding: Binding,
    /// Of the session that is up.
    version: u8,
    /// No connection is tried before this: the peer has refused one.
    connect_at_ns: u64,
    why: Option<String>,
    /// Others than channels that need its session.
    holds: usize,
}

/// A session that is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// What proofs are bound to.
    pub(crate) binding: Binding,
    /// What both ends speak.
    pub(crate) version: u8,
}

#[derive(Debug)]
struct Description {
    /// Never used twice: the answer to a question that was taken back must not be another's.
    number: u32,
    volume: Arc<RemoteVolume>,
    peer: usize,
    asked: bool,
    ask_at_ns: u64,
    /// When a question that has no answer yet counts as unanswered.
    late_at_ns: u64,
}

/// The client half of a sidecore's block plane.
#[derive(Debug, Default)]
pub struct Clients {
    /// This sidecore's index: its sessions carry it.
    index: u16,
    peers: Vec<Peer>,
    cores: Vec<Option<(usize, Rc<RefCell<Core>>)>>,
    descriptions: Vec<Description>,
    /// The number of the next description.
    description_next: u32,
    /// The earliest of the peers' times to be connected to again.
    connect_at_ns: u64,
    /// Something happened after which a peer may need a session or be asked.
    stirred: bool,
    /// Answers for nobody: the channel is gone.
    pub strays: u64,
}

/// The key of a channel in the upper half of its tokens.
pub(super) fn key_of_flow(flow: u16) -> u32 {
    u32::from(flow)
}

fn key_of_token(token: u64) -> u32 {
    u32::try_from(token >> 32).expect("the upper half")
}

impl Clients {
    pub(crate) fn new(index: u16) -> Self {
        // Flow 0 is for descriptions.
        Self { index, cores: vec![None], connect_at_ns: u64::MAX, ..Self::default() }
    }

    /// Makes a peer known. A peer that is known keeps its sessions; its address is replaced for
    /// the next one.
    pub fn add_peer(&mut self, name: &str, addr: SocketAddr) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.name == name) {
            peer.addr = addr;
            return;
        }
        let name = name.to_owned();
        self.stirred = true;
        let peer = Peer {
            name,
            addr,
            session: None,
            up: false,
            binding: Binding::default(),
            version: 0,
            connect_at_ns: 0,
            why: None,
            holds: 0,
        };
        match self.peers.iter_mut().find(|peer| peer.name.is_empty()) {
            Some(vacant) => *vacant = peer,
            None => self.peers.push(peer),
        }
    }

    /// Reaches a known peer at another address from now on: its session ends, and whoever needs it
    /// gets another one.
    pub fn move_peer(
        &mut self,
        now_ns: u64,
        name: &str,
        addr: SocketAddr,
        endpoint: &mut Endpoint,
    ) {
        self.add_peer(name, addr);
        let peer = self.peers.iter().find(|peer| peer.name == name);
        let Some(session) = peer.and_then(|peer| peer.session) else { return };
        endpoint.close(now_ns, session);
        self.lost(now_ns, session, &LostReason::Closed);
    }

    /// Forgets a peer and ends its session. `false`, and nothing is changed, while a channel or a
    /// description needs it. A peer that is not known is forgotten already.
    pub fn remove_peer(&mut self, now_ns: u64, name: &str, endpoint: &mut Endpoint) -> bool {
        let Some(at) = self.peer(name) else { return true };
        if self.is_needed(at) {
            return false;
        }
        let peer = &mut self.peers[at];
        peer.name.clear();
        peer.up = false;
        if let Some(session) = peer.session.take() {
            endpoint.close(now_ns, session);
        }
        true
    }

    /// Asks the volume's peer what it is, until it answers; see [`RemoteVolume::described`].
    /// `false` when the peer is not known.
    pub fn describe(&mut self, volume: Arc<RemoteVolume>) -> bool {
        let Some(peer) = self.peer(volume.peer()) else { return false };
        self.stirred = true;
        let number = self.description_next;
        self.description_next = number.wrapping_add(1);
        self.descriptions.push(Description {
            number,
            volume,
            peer,
            asked: false,
            ask_at_ns: 0,
            late_at_ns: u64::MAX,
        });
        true
    }

    /// Does not ask any more: nobody shows the volume.
    pub fn forget(&mut self, volume: &Arc<RemoteVolume>) {
        self.descriptions.retain(|description| !Arc::ptr_eq(&description.volume, volume));
    }

    /// Keeps a session with a peer for another plane's use, until as many
    /// [`let_go`](Self::let_go) as there were of these. A peer that is not known is left alone.
    pub fn hold(&mut self, name: &str) {
        if let Some(at) = self.peer(name) {
            self.peers[at].holds += 1;
            self.stirred = true;
        }
    }

    /// See [`hold`](Self::hold).
    pub fn let_go(&mut self, name: &str) {
        if let Some(at) = self.peer(name) {
            self.peers[at].holds = self.peers[at].holds.saturating_sub(1);
        }
    }

    /// Why there is no session with a peer, if there is none and it is known why.
    pub fn why_not(&self, name: &str) -> Option<String> {
        let peer = &self.peers[self.peer(name)?];
        peer.why.clone().filter(|_| !peer.up)
    }

    fn is_needed(&self, at: usize) -> bool {
        self.peers[at].holds > 0
            || self.cores.iter().flatten().any(|(peer, _)| *peer == at)
            || self.descriptions.iter().any(|description| description.peer == at)
    }

    pub(crate) fn peer(&self, name: &str) -> Option<usize> {
        // An empty name is a vacant place's.
        self.peers.iter().position(|peer| peer.name == name && !name.is_empty())
    }

    /// The peer's session, when it is up.
    pub(crate) fn session(&self, peer: usize) -> Option<Session> {
        let peer = &self.peers[peer];
        let id = peer.session.filter(|_| peer.up)?;
        Some(Session { id, binding: peer.binding, version: peer.version })
    }

    pub(crate) fn enlist(
        &mut self,
        peer: usize,
        core: &Rc<RefCell<Core>>,
    ) -> Result<u16, OpenError> {
        let entry = Some((peer, core.clone()));
        self.stirred = true;
        let free = self.cores.iter().skip(1).position(Option::is_none).map(|at| at + 1);
        let flow = match free {
            Some(flow) => {
                self.cores[flow] = entry;
                flow
            }
            None if self.cores.len() < CHANNELS_PER_CORE_MAX => {
                self.cores.push(entry);
                self.cores.len() - 1
            }
            None => return Err(OpenError::NoService("room for another remote disk")),
        };
        Ok(u16::try_from(flow).expect("below the limit"))
    }

    pub(crate) fn dismiss(&mut self, flow: u16) {
        self.cores[usize::from(flow)] = None;
    }

    /// Keeps a session to every peer that somebody needs, and asks for descriptions.
    pub(crate) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        // Almost every round ends here.
        if !self.stirred && self.next_ns().is_none_or(|at| now_ns < at) {
            return Progress::Idle;
        }
        self.stirred = false;
        self.connect_at_ns = u64::MAX;
        let mut progress = Progress::Idle;
        for at in 0..self.peers.len() {
            let needed = self.is_needed(at);
            let peer = &mut self.peers[at];
            if needed && peer.session.is_none() && now_ns < peer.connect_at_ns {
                self.connect_at_ns = self.connect_at_ns.min(peer.connect_at_ns);
            } else if needed && peer.session.is_none() {
                peer.session = Some(endpoint.connect(now_ns, peer.addr, &peer.name, self.index));
                progress = Progress::Busy;
            }
        }
        progress | self.ask_for_descriptions(now_ns, endpoint)
    }

    fn ask_for_descriptions(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let mut progress = Progress::Idle;
        for description in &mut self.descriptions {
            let peer = &self.peers[description.peer];
            let Some(session) = peer.session.filter(|_| peer.up) else {
                let reason = peer.why.as_deref().unwrap_or("it does not answer");
                let why = format!("peer {} at {}: {reason}", peer.name, peer.addr);
                description.volume.waits(now_ns, &why);
                continue;
            };
            if description.asked && now_ns >= description.late_at_ns {
                let (name, addr) = (&peer.name, peer.addr);
                let why = format!("peer {name} at {addr}: it is connected and does not answer");
                description.volume.waits(now_ns, &why);
                description.late_at_ns = u64::MAX;
            }
            if description.asked || now_ns < description.ask_at_ns {
                continue;
            }
            let mut request = Request::new(Kind::Describe, Title::default(), 0);
            let volume = description.volume.name().to_owned();
            request.names = Some(Names { volume, attachment: String::new() });
            let token = u64::from(DESCRIBE_KEY) << 32 | u64::from(description.number);
            let session = Session { id: session, binding: peer.binding, version: peer.version };
            let key = description.volume.key().map(AsRef::as_ref);
            description.asked =
                control(now_ns, session, (DESCRIBE_FLOW, token), &request, key, endpoint);
            description.ask_at_ns = now_ns + ASK_AGAIN_NS;
            description.late_at_ns = now_ns + ANSWER_TIME_MAX_NS;
            progress = Progress::Busy;
        }
        progress
    }

    /// When to look again: a description is to be confirmed, or its answer is late.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let up = self.descriptions.iter().filter(|it| self.peers[it.peer].up);
        let next_ns = up.map(|it| if it.asked { it.late_at_ns } else { it.ask_at_ns });
        let next_ns = next_ns.filter(|&at| at > 0 && at != u64::MAX);
        next_ns.chain(Some(self.connect_at_ns).filter(|&at| at != u64::MAX)).min()
    }

    pub(crate) fn connected(&mut self, session: SessionId, info: &PeerInfo) {
        self.stirred = true;
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if peer.session != Some(session) {
                continue;
            }
            peer.up = true;
            peer.binding = info.binding;
            peer.version = info.version;
            peer.why = None;
            // Its volumes count as away until it has confirmed them.
            for description in self.descriptions.iter_mut().filter(|it| it.peer == at) {
                description.ask_at_ns = 0;
            }
        }
    }

    pub(crate) fn lost(&mut self, now_ns: u64, session: SessionId, why: &LostReason) {
        let Some(at) = self.peers.iter().position(|peer| peer.session == Some(session)) else {
            return;
        };
        self.stirred = true;
        let peer = &mut self.peers[at];
        peer.session = None;
        peer.up = false;
        if matches!(why, LostReason::Refused(_)) {
            peer.connect_at_ns = now_ns + ASK_AGAIN_NS;
        }
        let why = why.to_string();
        peer.why = Some(why.clone());
        for description in self.descriptions.iter_mut().filter(|it| it.peer == at) {
            description.asked = false;
        }
        for (_, core) in self.cores.iter().flatten().filter(|(peer, _)| *peer == at) {
            core.borrow_mut().session_lost(session, &why);
        }
    }

    pub(crate) fn reply_body(
        &mut self,
        session: SessionId,
        token: u64,
        offset: usize,
        bytes: &[u8],
    ) {
        if let Some(core) = self.core(token) {
            core.borrow_mut().place(session, token, offset, bytes);
        } else {
            self.strays += 1;
        }
    }

    pub(crate) fn reply(
        &mut self,
        now_ns: u64,
        session: SessionId,
        token: u64,
        head: &[u8],
        body_len: usize,
    ) {
        if token == NOTICE_TOKEN {
            // The peer has heard of a change; there is no more to it.
        } else if key_of_token(token) == DESCRIBE_KEY {
            self.described(now_ns, token, head);
        } else if let Some(core) = self.core(token) {
            core.borrow_mut().answered(now_ns, session, token, head, body_len);
        } else {
            self.strays += 1;
        }
    }

    /// This process stood still for a while: nothing that arrives now is believed before the
    /// servers have confirmed the epochs.
    pub(crate) fn paused(&self) {
        for (_, core) in self.cores.iter().flatten() {
            core.borrow_mut().paused();
        }
    }

    /// Whether an epoch is held, which a pause would make doubtful.
    pub(crate) fn holds_any(&self) -> bool {
        self.cores.iter().flatten().any(|(_, core)| core.borrow().is_held())
    }

    /// Whether an answer is waited for, which a pause would make doubtful.
    pub(crate) fn is_waiting(&self) -> bool {
        self.cores.iter().flatten().any(|(_, core)| core.borrow().is_waiting())
    }

    fn core(&self, token: u64) -> Option<&Rc<RefCell<Core>>> {
        let at = usize::try_from(key_of_token(token)).ok()?;
        self.cores.get(at)?.as_ref().map(|(_, core)| core)
    }

    /// A peer says that a volume of its is another one now: it is asked for it anew. A question
    /// that is on its way may have been answered before the change, so its answer is nobody's.
    pub(crate) fn changed(&mut self, session: SessionId, volume: &str) {
        let peers = &self.peers;
        let is_its = |it: &&mut Description| {
            peers[it.peer].session == Some(session) && it.volume.name() == volume
        };
        for description in self.descriptions.iter_mut().filter(is_its) {
            description.number = self.description_next;
            self.description_next = self.description_next.wrapping_add(1);
            (description.asked, description.ask_at_ns) = (false, 0);
            self.stirred = true;
        }
    }

    fn described(&mut self, now_ns: u64, token: u64, head: &[u8]) {
        let number = token & u64::from(u32::MAX);
        let mut asked = self.descriptions.iter_mut();
        let Some(description) = asked.find(|it| u64::from(it.number) == number) else {
            self.strays += 1;
            return;
        };
        match Reply::decode(head) {
            Some(Reply { outcome: Outcome::Done, volume: Some(info), .. }) => {
                description.volume.describe(now_ns, info);
                description.asked = false;
                description.ask_at_ns = now_ns + CONFIRM_EVERY_NS;
            }
            reply => {
                let text = reply.map(|reply| reply.text).unwrap_or_default();
                let peer = &self.peers[description.peer].name;
                description.volume.refuses(now_ns, &format!("peer {peer}: {text}"));
                description.asked = false;
                description.ask_at_ns = now_ns + ASK_AGAIN_NS;
            }
        }
    }
}

/// Sends a call about an attachment, by this flow and under this token, with the proof of its key
/// where it has one. `false` when it was not taken: there is no room now.
pub(super) fn control(
    now_ns: u64,
    session: Session,
    (flow, token): (u16, u64),
    request: &Request,
    key: Option<&AttachmentSecret>,
    endpoint: &mut Endpoint,
) -> bool {
    let names = request.names.as_ref().expect("calls about attachments name them");
    let head = request.encode();
    let proof = key.and_then(|key| key.prove(&session.binding, request.kind as u8, names.pair()));
    let mut body = None;
    if let Some(proof) = proof {
        let Some(buffer) = endpoint.pool_mut().alloc(proof.len()) else { return false };
        endpoint.pool_mut().bytes_mut(buffer)[..proof.len()].copy_from_slice(&proof);
        body = Some((buffer, proof.len()));
    }
    let sent = endpoint.call(now_ns, session.id, flow, token, head.as_bytes(), body);
    if let Some((buffer, _)) = body {
        endpoint.pool_mut().release(buffer);
    }
    sent.is_ok()
}
