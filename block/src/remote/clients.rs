//! The state that the remote channels of a sidecore share: which channel waits for which answer,
//! and the open questions about volumes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use peer::{PeerId, Peers, Token, flows};
use sidecore::Progress;
use transport::{Endpoint, LostReason, SessionId};

use super::calls::{CONFIRM_EVERY_NS, NOTICE_TOKEN, control, flow_of, token};
use super::core::RemoteCore;
use super::described::RemoteVolume;
use crate::wire::{Kind, Names, Outcome, Reply, Request, Title};
use volume::OpenError;

/// How long a refused description waits before it is asked for again.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How long the answer may take while there is a session, before the volume counts as away: well
/// above what a busy peer takes.
const ANSWER_TIME_MAX_NS: u64 = 10_000_000_000;

#[derive(Debug)]
struct Description {
    /// Never used twice: the answer to a question that was taken back must not be another's.
    number: u32,
    volume: Arc<RemoteVolume>,
    peer: PeerId,
    asked: bool,
    ask_at_ns: u64,
    /// When a question that has no answer yet counts as unanswered.
    late_at_ns: u64,
}

/// The client half of a sidecore's block plane.
#[derive(Debug)]
pub struct Clients {
    peers: Rc<RefCell<Peers>>,
    /// The channels, by flow.
    cores: Vec<Option<(PeerId, Rc<RefCell<RemoteCore>>)>>,
    descriptions: Vec<Description>,
    /// The number of the next description.
    description_next: u32,
    /// Something happened after which a peer may have to be asked.
    stirred: bool,
    /// Answers to channels and questions that are gone.
    pub strays: u64,
}

impl Clients {
    pub(crate) fn new(peers: Rc<RefCell<Peers>>) -> Self {
        Self {
            peers,
            // Flow 0 is for descriptions.
            cores: vec![None],
            descriptions: Vec::new(),
            description_next: 0,
            stirred: false,
            strays: 0,
        }
    }

    /// The peers that volumes may be on.
    pub(crate) fn peers(&self) -> &Rc<RefCell<Peers>> {
        &self.peers
    }

    /// Asks the volume's peer what it is, until it answers; see [`RemoteVolume::described`].
    /// `false` when the peer is not known.
    pub fn describe(&mut self, volume: Arc<RemoteVolume>) -> bool {
        let Some(peer) = self.peers.borrow().find(volume.peer()) else { return false };
        self.peers.borrow_mut().hold(peer);
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

    /// Does not ask any more: no disk shows the volume.
    pub fn forget(&mut self, volume: &Arc<RemoteVolume>) {
        let is_its = |it: &mut Description| Arc::ptr_eq(&it.volume, volume);
        for gone in self.descriptions.extract_if(.., is_its) {
            self.peers.borrow_mut().release(gone.peer);
        }
    }

    pub(crate) fn enlist(
        &mut self,
        peer: PeerId,
        core: &Rc<RefCell<RemoteCore>>,
    ) -> Result<u16, OpenError> {
        let entry = Some((peer, core.clone()));
        let free = self.cores.iter().skip(1).position(Option::is_none).map(|at| at + 1);
        let flow = match free {
            Some(flow) => {
                self.cores[flow] = entry;
                flow
            }
            // One for each remote disk and sidecore, whichever the peer.
            None if self.cores.len() < usize::from(flows::CHANNELS.end) => {
                self.cores.push(entry);
                self.cores.len() - 1
            }
            None => return Err(OpenError::NoService("room for another remote disk")),
        };
        self.peers.borrow_mut().hold(peer);
        Ok(u16::try_from(flow).expect("below the limit"))
    }

    pub(crate) fn dismiss(&mut self, flow: u16) {
        if let Some((peer, _)) = self.cores[usize::from(flow)].take() {
            self.peers.borrow_mut().release(peer);
        }
    }

    /// Asks for descriptions.
    pub(crate) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        // Almost every round ends here.
        if !self.stirred && self.next_ns().is_none_or(|at| now_ns < at) {
            return Progress::Idle;
        }
        self.stirred = false;
        let peers = self.peers.borrow();
        let mut progress = Progress::Idle;
        for description in &mut self.descriptions {
            let peer = description.peer;
            let Some(session) = peers.session(peer) else {
                let why = format!("{}: {}", peers.describe(peer), peers.why_down(peer));
                description.volume.waits(now_ns, &why);
                continue;
            };
            if description.asked && now_ns >= description.late_at_ns {
                let why =
                    format!("{}: the peer is connected and does not answer", peers.describe(peer));
                description.volume.waits(now_ns, &why);
                description.late_at_ns = u64::MAX;
            }
            if description.asked || now_ns < description.ask_at_ns {
                continue;
            }
            let mut request = Request::new(Kind::Describe, Title::default(), 0);
            let volume = description.volume.name().to_owned();
            request.names = Some(Names { volume, attachment: String::new() });
            let token = token(flows::CONTROL, description.number);
            let key = description.volume.key().map(AsRef::as_ref);
            description.asked =
                control(now_ns, session, (flows::CONTROL, token), &request, key, endpoint);
            description.ask_at_ns = now_ns + ASK_AGAIN_NS;
            description.late_at_ns = now_ns + ANSWER_TIME_MAX_NS;
            progress = Progress::Busy;
        }
        progress
    }

    /// When to look again: a description must be confirmed, or its answer is late.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        // In almost every round there is nothing to look at.
        if self.descriptions.is_empty() {
            return None;
        }
        let peers = self.peers.borrow();
        let up = self.descriptions.iter().filter(|it| peers.session(it.peer).is_some());
        let next_ns = up.map(|it| if it.asked { it.late_at_ns } else { it.ask_at_ns });
        next_ns.filter(|&at| at > 0 && at != u64::MAX).min()
    }

    pub(crate) fn connected(&mut self, peer: PeerId) {
        self.stirred = true;
        // Its volumes count as away until it has confirmed them.
        for description in self.descriptions.iter_mut().filter(|it| it.peer == peer) {
            description.ask_at_ns = 0;
        }
    }

    pub(crate) fn lost(&mut self, session: SessionId, peer: PeerId, why: &LostReason) {
        self.stirred = true;
        for description in self.descriptions.iter_mut().filter(|it| it.peer == peer) {
            description.asked = false;
        }
        let why = why.to_string();
        for (_, core) in self.cores.iter().flatten().filter(|(of, _)| *of == peer) {
            core.borrow_mut().session_lost(session, &why);
        }
    }

    pub(crate) fn reply_body(
        &mut self,
        session: SessionId,
        token: Token,
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
        token: Token,
        head: &[u8],
        body_len: usize,
    ) {
        if token == NOTICE_TOKEN {
            // The peer has heard of a change; there is no more to it.
        } else if flow_of(token) == flows::CONTROL {
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

    fn core(&self, token: Token) -> Option<&Rc<RefCell<RemoteCore>>> {
        self.cores.get(usize::from(flow_of(token)))?.as_ref().map(|(_, core)| core)
    }

    /// A peer says that a volume of its is another one now: it is asked for it anew. A question
    /// that is on its way may have been answered before the change, so its answer is nobody's.
    pub(crate) fn changed(&mut self, session: SessionId, volume: &str) {
        let peers = self.peers.borrow();
        let is_its = |it: &&mut Description| {
            peers.is_session_of(it.peer, session) && it.volume.name() == volume
        };
        for description in self.descriptions.iter_mut().filter(is_its) {
            description.number = self.description_next;
            self.description_next = self.description_next.wrapping_add(1);
            (description.asked, description.ask_at_ns) = (false, 0);
            self.stirred = true;
        }
    }

    fn described(&mut self, now_ns: u64, token: Token, head: &[u8]) {
        let number = token.key() as u32;
        let mut asked = self.descriptions.iter_mut();
        let Some(description) = asked.find(|it| it.number == number) else {
            self.strays += 1;
            return;
        };
        match Reply::decode(head) {
            Some(Reply { outcome: Outcome::Done, volume: Some(info), sole, .. }) => {
                description.volume.sole.set(sole);
                description.volume.describe(now_ns, info);
                description.asked = false;
                description.ask_at_ns = now_ns + CONFIRM_EVERY_NS;
            }
            reply => {
                let text = reply.map(|reply| reply.text).unwrap_or_default();
                let peers = self.peers.borrow();
                let why = format!("peer {}: {text}", peers.name(description.peer));
                description.volume.refuses(now_ns, &why);
                description.asked = false;
                description.ask_at_ns = now_ns + ASK_AGAIN_NS;
            }
        }
    }
}
