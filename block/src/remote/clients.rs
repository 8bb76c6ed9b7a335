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
use super::held::HeldRoute;
use super::route::TURN_AFTER_NS;
use crate::wire::{Kind, Names, Outcome, Reply, Request, Title, says_elsewhere};
use volume::OpenError;

/// How long a refused description waits before it is asked for again.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How long a description waits before it follows to another peer.
const FOLLOW_AFTER_NS: u64 = 30_000_000;

/// How often a peer's word that it serves a volume is followed: a hostile member of the list could
/// send a client to and fro.
const HEED_EVERY_NS: u64 = 1_000_000_000;

/// How long the answer may take while there is a session, before the volume counts as away: well
/// above what a busy peer takes.
const ANSWER_TIME_MAX_NS: u64 = 10_000_000_000;

#[derive(Debug)]
struct Description {
    /// Never used twice: the answer to a question that was taken back must not be another's.
    number: u32,
    volume: Arc<RemoteVolume>,
    /// The peers of the volume.
    route: HeldRoute,
    /// When the peer that is asked has had no session for too long.
    turn_at_ns: u64,
    /// From when on a peer's word that it serves the volume is followed again.
    heed_at_ns: u64,
    asked: bool,
    ask_at_ns: u64,
    /// When a question that has no answer yet counts as unanswered.
    late_at_ns: u64,
}

impl Description {
    fn asks(&self, peer: PeerId) -> bool {
        self.route.peer() == Some(peer)
    }

    /// Asks the peer that the volume's channels ask, by a question of its own.
    fn follow(&mut self, number_next: &mut u32) {
        let before = self.route.peer();
        if self.route.follow() {
            self.renumber(number_next);
        }
        if self.route.peer() != before {
            self.turn_at_ns = u64::MAX;
        }
    }

    /// The answer to a question that is on its way answers nothing any more.
    fn renumber(&mut self, number_next: &mut u32) {
        self.number = *number_next;
        *number_next = number_next.wrapping_add(1);
        self.asked = false;
    }

    /// The peer that is asked has no session: after a while the next peer is asked.
    fn wait_for_session(&mut self, now_ns: u64) {
        if !self.route.has_others() {
            return;
        }
        if self.turn_at_ns == u64::MAX {
            self.turn_at_ns = now_ns + TURN_AFTER_NS;
        } else if now_ns >= self.turn_at_ns {
            self.route.turn();
        }
    }
}

/// The client half of a sidecore's block plane.
#[derive(Debug)]
pub struct Clients {
    peers: Rc<RefCell<Peers>>,
    /// The channels, by flow.
    cores: Vec<Option<Rc<RefCell<RemoteCore>>>>,
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
    /// `false` when none of its peers is known.
    pub fn describe(&mut self, volume: Arc<RemoteVolume>) -> bool {
        let route = HeldRoute::new(&volume.route, &self.peers);
        if !route.is_known() {
            return false;
        }
        self.stirred = true;
        let number = self.description_next;
        self.description_next = number.wrapping_add(1);
        self.descriptions.push(Description {
            number,
            volume,
            route,
            turn_at_ns: u64::MAX,
            heed_at_ns: 0,
            asked: false,
            ask_at_ns: 0,
            late_at_ns: u64::MAX,
        });
        true
    }

    /// Does not ask any more: no disk shows the volume.
    pub fn forget(&mut self, volume: &Arc<RemoteVolume>) {
        self.descriptions.retain(|it| !Arc::ptr_eq(&it.volume, volume));
    }

    pub(crate) fn enlist(&mut self, core: &Rc<RefCell<RemoteCore>>) -> Result<u16, OpenError> {
        let entry = Some(Rc::clone(core));
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
        Ok(u16::try_from(flow).expect("below the limit"))
    }

    pub(crate) fn dismiss(&mut self, flow: u16) {
        self.cores[usize::from(flow)] = None;
    }

    /// Asks for descriptions.
    pub(crate) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        // Almost every round ends here.
        if !self.stirred && self.next_ns().is_none_or(|at| now_ns < at) {
            return Progress::Idle;
        }
        self.stirred = false;
        let mut progress = Progress::Idle;
        for description in &mut self.descriptions {
            description.follow(&mut self.description_next);
            let peers = self.peers.borrow();
            let Some(session) = description.route.session() else {
                let why = match description.route.peer() {
                    Some(peer) => format!("{}: {}", peers.describe(peer), peers.why_down(peer)),
                    None => format!("peer {} is not known yet", description.volume.peer()),
                };
                description.volume.waits(now_ns, &why);
                description.wait_for_session(now_ns);
                continue;
            };
            description.turn_at_ns = u64::MAX;
            if description.asked && now_ns >= description.late_at_ns {
                let peer = description.route.peer().map(|peer| peers.describe(peer));
                let peer = peer.unwrap_or_default();
                let why = format!("{peer}: the peer is connected and does not answer");
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
        let next_ns = self.descriptions.iter().map(|it| {
            match it.route.session() {
                // Another channel has found another peer, or the list has changed.
                _ if it.route.is_behind() => 1,
                Some(_) if it.asked => it.late_at_ns,
                Some(_) => it.ask_at_ns,
                None => it.turn_at_ns,
            }
        });
        next_ns.filter(|&at| at > 0 && at != u64::MAX).min()
    }

    pub(crate) fn connected(&mut self, peer: PeerId) {
        self.stirred = true;
        // Its volumes count as away until it has confirmed them.
        for description in self.descriptions.iter_mut().filter(|it| it.asks(peer)) {
            description.ask_at_ns = 0;
        }
    }

    pub(crate) fn lost(&mut self, session: SessionId, peer: PeerId, why: &LostReason) {
        self.stirred = true;
        for description in self.descriptions.iter_mut().filter(|it| it.asks(peer)) {
            description.asked = false;
        }
        let why = why.to_string();
        for core in self.cores.iter().flatten() {
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
        for core in self.cores.iter().flatten() {
            core.borrow_mut().paused();
        }
    }

    /// Whether an epoch is held, which a pause would make doubtful.
    pub(crate) fn holds_any(&self) -> bool {
        self.cores.iter().flatten().any(|core| core.borrow().is_held())
    }

    /// Whether an answer is waited for, which a pause would make doubtful.
    pub(crate) fn is_waiting(&self) -> bool {
        self.cores.iter().flatten().any(|core| core.borrow().is_waiting())
    }

    fn core(&self, token: Token) -> Option<&Rc<RefCell<RemoteCore>>> {
        self.cores.get(usize::from(flow_of(token)))?.as_ref()
    }

    /// A peer says that a volume of its is another one now: it is asked for it anew. A question
    /// that is on its way may have been answered before the change, so its answer is dropped. Of
    /// several peers of a volume, a peer that is not asked says so that it serves the volume now.
    pub(crate) fn changed(&mut self, now_ns: u64, session: SessionId, volume: &str) {
        for description in self.descriptions.iter_mut().filter(|it| it.volume.name() == volume) {
            // Of the list as it is now: a peer says so once.
            description.follow(&mut self.description_next);
            match description.route.place_of(session) {
                Some(place) if place == description.route.place() => {
                    description.renumber(&mut self.description_next);
                    description.ask_at_ns = 0;
                }
                Some(place) if now_ns >= description.heed_at_ns => {
                    description.route.go(place);
                    description.heed_at_ns = now_ns + HEED_EVERY_NS;
                    description.ask_at_ns = 0;
                }
                _ => continue,
            }
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
                let (outcome, text) = reply.map(|it| (it.outcome, it.text)).unzip();
                let text = text.unwrap_or_default();
                let peers = self.peers.borrow();
                let name = description.route.peer().map_or("", |peer| peers.name(peer));
                if outcome == Some(Outcome::Elsewhere) {
                    let why = format!("peer {name}: {}", says_elsewhere(&text));
                    description.volume.waits(now_ns, &why);
                    description.route.sent_to(&text);
                    description.asked = false;
                    // Members that name each other are asked in turn, and not more often.
                    description.ask_at_ns = now_ns + FOLLOW_AFTER_NS;
                    return;
                }
                let why = format!("peer {name}: {text}");
                description.volume.refuses(now_ns, &why);
                description.route.turn();
                description.asked = false;
                description.ask_at_ns = now_ns + ASK_AGAIN_NS;
            }
        }
    }
}
