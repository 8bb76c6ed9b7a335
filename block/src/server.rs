//! The server of remote volumes: one sidecore's calls of peers, answered by this node's exports.
//!
//! A flow of a session is one channel of one attachment. Its `lane::Lane` holds the requests
//! that are on their way; a flow that is opened anew leaves its old lane to drain by itself.
//! Events are noted when a datagram arrives and handled here, a bounded batch a round.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use peer::flows;
use sidecore::{Progress, Services, Wake};
use transport::{BufId, CallId, Endpoint, FairQueue, HEAD_MAX, PeerInfo, SessionId};

use crate::export::{
    Claimer, Closing, Export, Exports, PendingClaim, PendingOpen, Refusal, places_taken,
};
use crate::remote::calls::{CONFIRM_EVERY_NS, NOTICE_TOKEN};
use crate::wire::{self, Kind, Names, Outcome, Reply, Request, Title};
use volume::{Incarnation, OpenArguments, VolumeInfo};

mod counters;
mod lane;
mod list;
mod rights;
mod shares;

pub use counters::ServerCounters;
pub use shares::ServedPeer;

use lane::{LANE_DEPTH, Lane};
use list::{List, Listed};
use rights::{FlowRight, SessionPeer, not_open};
use shares::{Costs, FLOWS_MAX, Left, Shares, TurnOwner};

/// Calls handled in one round, so that the sidecore's disks and links get their turn.
const CALLS_PER_ROUND_MAX: usize = 256;

/// The least cost of a request, in bytes of a copy: to read the call, to hand it to the storage
/// and to answer it take a few microseconds.
const CALL_BYTES_MIN: u64 = 4096;

/// A peer that has not asked for a volume for this long has no disk of it any more: some of its
/// questions may be late.
const SHOWN_NS: u64 = 4 * CONFIRM_EVERY_NS;

/// How often a claim or an opening that waits looks again.
const LOOK_AGAIN_NS: u64 = 500_000;

#[derive(Debug)]
struct ReceivedCall {
    session: SessionId,
    flow: u16,
    call: CallId,
    head: [u8; HEAD_MAX],
    head_bytes: usize,
    body: Option<(BufId, usize)>,
    costs: Costs,
}

/// A step of a flow that waits for others.
#[derive(Debug)]
enum FlowStep {
    Claim(PendingClaim),
    Open(PendingOpen, Request),
    Close(Closing),
}

#[derive(Debug)]
struct Flow {
    /// The number of its peer.
    peer: usize,
    export: Arc<Export>,
    right: FlowRight,
    step: Option<(FlowStep, CallId)>,
    lane: Option<Lane>,
    listed: Listed,
}

impl Flow {
    fn is_at_work(&self) -> bool {
        self.step.is_some() || self.lane.as_ref().is_some_and(|lane| !lane.is_empty())
    }
}

/// One sidecore's server.
#[derive(Debug)]
pub struct Server {
    exports: Arc<Exports>,
    services: Services,
    /// The peer at the other end.
    peers: HashMap<SessionId, SessionPeer>,
    shares: Shares,
    /// By [`TurnOwner`]: a flood delays its own peer first.
    calls: FairQueue<ReceivedCall>,
    /// Bodies of calls that were dropped with their sessions, until the next round.
    unwanted: Vec<BufId>,
    /// In order, so that a simulated run is the same each time.
    flows: BTreeMap<(SessionId, u16), Flow>,
    /// Those of the flows that a round looks at.
    at_work: List,
    /// [`peer::list_changes`] when the flows' rights were looked up last.
    list_changes: u64,
    /// [`places_taken`] when peers were told last which volumes are served here.
    places_taken: u64,
    /// Lanes without a flow: their sessions were lost or they were opened anew.
    draining: Vec<(usize, Lane)>,
    /// Closes whose session was lost: they go on.
    closing: Vec<Closing>,
    /// Claims whose client has gone; dropped when their flush has ended.
    given_up: Vec<PendingClaim>,
    /// Calls whose step was replaced by a newer one.
    replaced: Vec<CallId>,
    /// Changed volumes, and the sessions that must be told.
    notices: Vec<(SessionId, String)>,
    /// Peers' notices of changed volumes of theirs; see [`Self::take_heard`].
    heard: Vec<(SessionId, Request)>,
    counters: Arc<ServerCounters>,
}

impl Server {
    pub(crate) fn new(exports: Arc<Exports>, services: Services) -> Self {
        Self {
            exports,
            services,
            peers: HashMap::new(),
            shares: Shares::default(),
            calls: FairQueue::default(),
            unwanted: Vec::new(),
            flows: BTreeMap::new(),
            at_work: List::default(),
            list_changes: 0,
            places_taken: 0,
            draining: Vec::new(),
            closing: Vec::new(),
            given_up: Vec::new(),
            replaced: Vec::new(),
            notices: Vec::new(),
            heard: Vec::new(),
            counters: Arc::default(),
        }
    }

    /// Its counters, for `vrio status`.
    pub fn counters(&self) -> Arc<ServerCounters> {
        self.counters.clone()
    }

    /// Ends every flow to an export. Requests on their way complete, later ones find their channel
    /// not open, and the claim that follows asks [`Exports`] again.
    pub fn retire(&mut self, export: &Arc<Export>) {
        let flows = self.flows.iter().filter(|(_, flow)| Arc::ptr_eq(&flow.export, export));
        let gone: Vec<_> = flows.map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| self.end_flow(key));
    }

    fn end_flow(&mut self, key: (SessionId, u16)) {
        let Some(flow) = self.flows.remove(&key) else { return };
        self.at_work.remove(key, &flow.listed);
        self.drain(flow.peer, flow.lane);
        self.shares.give_channel(flow.peer);
        if let Some((step, call)) = flow.step {
            self.replaced.push(call);
            self.give_up(step);
        }
    }

    /// Closes an attachment whose node does not: drained, flushed and remembered as clean. See
    /// [`Self::closings`].
    pub fn close(&mut self, export: &Arc<Export>, attachment: &str, epoch: u64) {
        self.closing.push(Closing::new(Arc::clone(export), attachment, epoch));
    }

    /// Lets go of the requests of lost sessions that the storage has not begun: a limit may hold
    /// them back for minutes, and their clients send them again.
    pub fn let_go(&mut self) {
        self.draining.iter_mut().for_each(|(_, lane)| lane.let_go());
    }

    /// Whether it has nothing to do: no call waits, no request is with a volume.
    pub fn is_quiet(&self) -> bool {
        let lanes = self.flows.values().filter_map(|flow| flow.lane.as_ref());
        self.calls.is_empty()
            && self.closing.is_empty()
            && self.given_up.is_empty()
            && self.flows.values().all(|flow| flow.step.is_none())
            && lanes.chain(self.draining.iter().map(|(_, lane)| lane)).all(Lane::is_empty)
    }

    /// The use that each peer makes of this server, or made lately.
    pub fn served(&self, now_ns: u64) -> impl Iterator<Item = ServedPeer> {
        self.shares.served(now_ns)
    }

    /// How many closes of an export's attachments are under way.
    pub fn closings(&self, export: &Arc<Export>) -> usize {
        self.closing.iter().filter(|closing| closing.is_of(export)).count()
    }

    pub(crate) fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        self.exports.note_process(&peer.name, peer.process_nonce);
        let calls = &self.calls;
        let is_waited_for = |number| calls.waiting(TurnOwner::of(Some(number)).0) > 0;
        let number = self.shares.connected(peer, is_waited_for);
        self.peers.insert(session, SessionPeer::new(peer, number));
    }

    pub(crate) fn lost(&mut self, now_ns: u64, session: SessionId) {
        let Some(peer) = self.peers.remove(&session) else { return };
        self.exports.forget_process(&peer.name, peer.process_nonce);
        // The waiting client is gone, which the transport knows.
        let gone: Vec<_> = self.flows.keys().filter(|(of, _)| *of == session).copied().collect();
        for key in gone {
            let export = self.flows.get(&key).map(|flow| Arc::clone(&flow.export));
            self.end_flow(key);
            if let Some(export) = export {
                export.note_silence(now_ns);
            }
        }
        self.shares.lost(peer.number);
    }

    pub(crate) fn called(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        let kind = Request::kind_of(head);
        let mut called = ReceivedCall {
            session,
            flow,
            call,
            head: [0; HEAD_MAX],
            head_bytes: head.len(),
            body,
            costs: kind.map_or_else(Costs::default, |kind| costs(kind, head, body.is_some())),
        };
        called.head[..head.len()].copy_from_slice(head);
        let turn = TurnOwner::of(self.peers.get(&session).map(|peer| peer.number));
        // Of live sessions bounded by what the transport accepts before it is answered.
        let Self { calls, peers, unwanted, .. } = self;
        calls.push_tidily(turn.0, called, |waiting| {
            let is_wanted = turn.peer().is_none() || peers.contains_key(&waiting.session);
            if !is_wanted {
                unwanted.extend(waiting.body.map(|(buffer, _)| buffer));
            }
            is_wanted
        });
    }

    /// One bounded batch of calls, then all completions.
    pub(crate) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let mut progress = self.revoke(now_ns, endpoint);
        self.note_places();
        for buffer in self.unwanted.drain(..) {
            endpoint.pool_mut().release(buffer);
        }
        let mut left = Left::default();
        self.shares.begin_round();
        for _ in 0..CALLS_PER_ROUND_MAX {
            let shares = &self.shares;
            let next = self.calls.pop_of(|turn, called| {
                shares.may_handle(TurnOwner(turn), called.costs, &left, now_ns)
            });
            let Some((turn, called)) = next else { break };
            left.take(called.costs);
            self.shares.take(TurnOwner(turn), called.costs, now_ns);
            self.handle(now_ns, &called, endpoint);
            progress = Progress::Busy;
        }
        progress |= self.poll_flows(now_ns, endpoint);
        let shares = &mut self.shares;
        self.draining.retain_mut(|(peer, lane)| {
            progress |= lane.poll(now_ns, endpoint);
            if lane.is_empty() {
                shares.give_channel(*peer);
            }
            !lane.is_empty()
        });
        progress | self.steps(now_ns, endpoint) | self.tell(now_ns, endpoint)
    }

    /// Peers' notices of changed volumes since the last time; bounded by the calls of a round.
    pub(crate) fn take_heard(&mut self) -> Vec<(SessionId, Request)> {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn arm(&mut self, wake: &mut Wake, now_ns: u64) -> Progress {
        if !self.unwanted.is_empty() {
            return Progress::Busy;
        }
        for (turn, called) in self.calls.oldest() {
            let next_ns = self.shares.next_ns(TurnOwner(turn), called.costs);
            if next_ns <= now_ns {
                return Progress::Busy;
            }
            wake.at(next_ns);
        }
        if !self.notices.is_empty() {
            wake.at(now_ns + LOOK_AGAIN_NS);
        }
        let mut progress = self.arm_flows(wake, now_ns);
        for (_, lane) in &mut self.draining {
            progress |= lane.arm(wake);
        }
        for claim in &mut self.given_up {
            progress |= claim.arm(wake);
        }
        for closing in &mut self.closing {
            progress |= closing.arm(wake, now_ns);
        }
        progress
    }

    pub(crate) fn disarm(&mut self) {
        let lanes = self.flows.values_mut().filter_map(|flow| flow.lane.as_mut());
        for lane in lanes.chain(self.draining.iter_mut().map(|(_, lane)| lane)) {
            lane.disarm();
        }
    }

    fn handle(&mut self, now_ns: u64, called: &ReceivedCall, endpoint: &mut Endpoint) {
        let Some(request) = Request::decode(&called.head[..called.head_bytes]) else {
            self.counters.malformed.add(1);
            let reply = Reply::refused(Outcome::Invalid, "not a block request");
            return answer(now_ns, called, &reply, endpoint);
        };
        match request.kind {
            Kind::Changed => {
                // For the client half, which knows whether the session is with its volume's node.
                self.heard.push((called.session, request));
                answer(now_ns, called, &Reply::plain(Outcome::Done), endpoint);
            }
            kind if kind.op().is_some() => self.data(now_ns, called, &request, endpoint),
            _ => match self.control(now_ns, called, request, endpoint) {
                Ok(None) => release(called, endpoint),
                Ok(Some(reply)) => answer(now_ns, called, &reply, endpoint),
                Err(refusal) => {
                    let reply = match self.peers.get(&called.session) {
                        Some(peer) => peer.told(refusal),
                        None => Reply::refused(refusal.outcome, refusal.text),
                    };
                    answer(now_ns, called, &reply, endpoint);
                }
            },
        }
    }

    fn data(
        &mut self,
        now_ns: u64,
        called: &ReceivedCall,
        request: &Request,
        endpoint: &mut Endpoint,
    ) {
        let key = (called.session, called.flow);
        let Some(flow) = self.flows.get_mut(&key) else {
            return answer(now_ns, called, &Reply::plain(Outcome::NotOpen), endpoint);
        };
        match &mut flow.lane {
            Some(lane) => {
                lane.take(now_ns, called.call, request, called.body, endpoint);
                self.at_work.add(key, &mut flow.listed);
            }
            None => answer(now_ns, called, &Reply::plain(Outcome::NotOpen), endpoint),
        }
    }

    /// `Ok(None)`: the answer comes later.
    fn control(
        &mut self,
        now_ns: u64,
        called: &ReceivedCall,
        request: Request,
        endpoint: &Endpoint,
    ) -> Result<Option<Reply>, Refusal> {
        let key = (called.session, called.flow);
        let names = request.names.clone().expect("decoded with its kind");
        let (export, right) = self.right(now_ns, called, &request, endpoint)?;
        if request.kind == Kind::Describe {
            export.check_here()?;
            let volume = Some(self.describe(now_ns, called.session, &export));
            let sole = export.is_sole() && self.peers[&called.session].understands_changes();
            return Ok(Some(Reply { volume, sole, ..Reply::plain(Outcome::Done) }));
        }
        if names.attachment.is_empty() {
            return Err(Refusal::new(Outcome::Refused, "an attachment needs a name"));
        }
        let attachment_key = right.key();
        self.flow(key, &export, right)?;
        let Some(peer) = self.peers.get_mut(&called.session) else {
            return Err(not_open(&names.volume, "", None));
        };
        let is_holder = export.is_holder(&names.attachment, &peer.name, attachment_key);
        let step = match request.kind {
            Kind::Claim => {
                let node = peer.name.clone();
                self.check_process(called.session)?;
                export.check_drained(&names.attachment)?;
                let by = Claimer { node: &node, key: attachment_key, now_ns };
                let (attachment, title, claim) =
                    (&names.attachment, &request.title, &request.claim);
                let claimed = export.claim(attachment, title, claim, &by);
                if let Err(refusal) = &claimed
                    && let Some(peer) = self.peers.get(&called.session)
                {
                    peer.log_claim(now_ns, &self.exports, &names, &request, refusal);
                }
                FlowStep::Claim(claimed?)
            }
            // Another client has its epoch: the call has nothing to close.
            Kind::Close if !is_holder => return Ok(Some(Reply::plain(Outcome::Done))),
            _ if !is_holder => return Err(Refusal::new(Outcome::EpochOver, "the epoch is over")),
            Kind::Close => {
                self.drain_lane(key);
                FlowStep::Close(Closing::new(export, &names.attachment, request.title.epoch))
            }
            _ => {
                self.check_drains(key)?;
                let pending = export.open(&names.attachment, &request.title, request.channel)?;
                self.drain_lane(key);
                FlowStep::Open(pending, request)
            }
        };
        self.set_step(key, step, called.call);
        Ok(None)
    }

    /// The volume in the words of the session's version. One that understands is told of changes
    /// from now on.
    fn describe(&mut self, now_ns: u64, session: SessionId, export: &Export) -> VolumeInfo {
        let peer = self.peers.get_mut(&session).expect("it has just shown its right");
        // First: a change that comes in between is told again.
        peer.knows.insert(export.name().to_owned(), now_ns);
        match peer.understands_changes() {
            true => export.volume().info(),
            false => wire::told_before_zeroing(export.volume().info()),
        }
    }

    /// Names of the peers that have a disk of the volume, whether a guest uses it or not: they have
    /// asked for it lately.
    pub fn shown_by(&self, now_ns: u64, volume: &str) -> Vec<String> {
        let asked_lately = |peer: &&SessionPeer| {
            let asked_ns = peer.knows.get(volume);
            asked_ns.is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < SHOWN_NS)
        };
        self.peers.values().filter(asked_lately).map(|peer| peer.name.clone()).collect()
    }

    /// Tells the peers to which the volume was described that it has changed; see
    /// [`Kind::Changed`].
    pub fn changed(&mut self, volume: &str) {
        let knows =
            |peer: &SessionPeer| peer.understands_changes() && peer.knows.contains_key(volume);
        let told = self.peers.iter().filter(|(_, peer)| knows(peer));
        let told = told.map(|(session, _)| *session).collect();
        self.note(told, volume);
    }

    fn note(&mut self, mut told: Vec<SessionId>, volume: &str) {
        told.retain(|session| !self.notices.iter().any(|(to, of)| to == session && of == volume));
        self.notices.extend(told.into_iter().map(|session| (session, volume.to_owned())));
    }

    /// Has the peers hear of volumes that this node has taken over. A peer whose disk waits for the
    /// node that served such a volume before need not wait until that session is given up.
    fn note_places(&mut self) {
        let places = places_taken();
        let before = std::mem::replace(&mut self.places_taken, places);
        if before == places {
            return;
        }
        let all = self.exports.all();
        for export in all.into_iter().filter(|export| export.was_taken_after(before)) {
            let may = |peer: &SessionPeer| peer.understands_changes() && export.names(&peer.name);
            let told = self.peers.iter().filter(|(_, peer)| may(peer));
            let told = told.map(|(session, _)| *session).collect();
            self.note(told, export.name());
        }
    }

    /// Sends the notices that wait, as far as there is room.
    fn tell(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let peers = &self.peers;
        self.notices.retain(|(session, _)| peers.contains_key(session));
        let before = self.notices.len();
        self.notices.retain(|(session, volume)| {
            let mut request = Request::new(Kind::Changed, Title::default(), 0);
            let (volume, attachment) = (volume.clone(), String::new());
            request.names = Some(Names { volume, attachment });
            let head = request.encode();
            let (flow, token) = (flows::CONTROL, NOTICE_TOKEN.raw());
            endpoint.call(now_ns, *session, flow, token, head.as_bytes(), None).is_err()
        });
        Progress::busy_if(self.notices.len() < before)
    }

    /// A claim that a process made before it died must not win over its successor's.
    fn check_process(&self, session: SessionId) -> Result<(), Refusal> {
        let late = |peer: &&SessionPeer| self.exports.is_late(&peer.name, peer.process_nonce);
        match self.peers.get(&session).filter(late) {
            None => Ok(()),
            Some(SessionPeer { name, .. }) => Err(Refusal::new(
                Outcome::Refused,
                format!("another process of {name} has connected since"),
            )),
        }
    }

    /// The export that a peer asks for and by what right. Nothing is said about a volume before the
    /// proof was looked at and the volume is found to be open to it.
    fn right(
        &mut self,
        now_ns: u64,
        called: &ReceivedCall,
        request: &Request,
        endpoint: &Endpoint,
    ) -> Result<(Arc<Export>, FlowRight), Refusal> {
        let volume = &request.names.as_ref().expect("decoded with its kind").volume;
        let body = called.body.map(|(buffer, len)| &endpoint.pool().bytes(buffer)[..len]);
        let Some(peer) = self.peers.get_mut(&called.session) else {
            return Err(not_open(volume, "", None));
        };
        self.counters.proofs.add(u64::from(body.is_some()));
        let key = peer.proved(request, body)?;
        peer.right(now_ns, &self.exports, volume, key)
    }

    fn flow(
        &mut self,
        key: (SessionId, u16),
        export: &Arc<Export>,
        right: FlowRight,
    ) -> Result<(), Refusal> {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.right = right;
            if !Arc::ptr_eq(&flow.export, export) {
                flow.export = export.clone();
                self.drain_lane(key);
            }
            return Ok(());
        }
        let peer = self.peers[&key.0].number;
        if !self.shares.take_channel(peer) {
            return Err(too_many_channels());
        }
        let flow = Flow {
            peer,
            export: export.clone(),
            right,
            step: None,
            lane: None,
            listed: Listed::default(),
        };
        self.flows.insert(key, flow);
        Ok(())
    }

    /// Whether a flow may be opened anew: its earlier requests drain as one more channel.
    fn check_drains(&mut self, key: (SessionId, u16)) -> Result<(), Refusal> {
        let Some(flow) = self.flows.get(&key).filter(|flow| flow.lane.is_some()) else {
            return Ok(());
        };
        let peer = flow.peer;
        if !self.shares.take_channel(peer) {
            return Err(too_many_channels());
        }
        self.shares.give_channel(peer);
        Ok(())
    }

    /// Lets what a lane has on its way complete, on its peer's account.
    fn drain(&mut self, peer: usize, lane: Option<Lane>) {
        let Some(lane) = lane.map(Lane::closed) else { return };
        self.shares.add_channel(peer);
        self.draining.push((peer, lane));
    }

    /// Ends the flows of peers that may no longer use their volume: requests on their way complete
    /// by themselves.
    fn revoke(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let list_changes = peer::list_changes();
        if std::mem::replace(&mut self.list_changes, list_changes) == list_changes {
            return Progress::Idle;
        }
        let mut gone = Vec::new();
        let old = self.flows.iter_mut().filter(|(_, flow)| flow.right.is_old(&flow.export));
        for (key, flow) in old {
            let peer = &self.peers[&key.0];
            if !flow.right.renew(peer, &flow.export) {
                gone.push((*key, flow.right.gone(peer, &flow.export)));
            }
        }
        let progress = Progress::busy_if(!gone.is_empty());
        for (key, refusal) in gone {
            self.counters.revoked.add(1);
            let flow = self.flows.remove(&key).expect("listed above");
            self.at_work.remove(key, &flow.listed);
            self.drain(flow.peer, flow.lane);
            self.shares.give_channel(flow.peer);
            if let Some((step, call)) = flow.step {
                self.give_up(step);
                let reply = Reply::refused(refusal.outcome, refusal.text);
                send(now_ns, call, &reply, endpoint);
            }
        }
        progress
    }

    /// Lets a step go on by itself when its client has gone.
    fn give_up(&mut self, step: FlowStep) {
        match step {
            FlowStep::Claim(claim) => self.given_up.push(claim),
            FlowStep::Close(closing) => self.closing.push(closing),
            FlowStep::Open(..) => {}
        }
    }

    /// A newer step replaces an older one: its sender has given it up.
    fn set_step(&mut self, key: (SessionId, u16), step: FlowStep, call: CallId) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        self.at_work.add(key, &mut flow.listed);
        if let Some((step, call)) = flow.step.replace((step, call)) {
            self.replaced.push(call);
            self.give_up(step);
        }
    }

    /// The requests that came by this flow until now complete by themselves.
    fn drain_lane(&mut self, key: (SessionId, u16)) {
        if let Some(flow) = self.flows.get_mut(&key) {
            let (peer, lane) = (flow.peer, flow.lane.take());
            self.drain(peer, lane);
        }
    }

    fn steps(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let mut progress = Progress::Idle;
        for key in self.at_work.with_steps() {
            let Some(flow) = self.flows.get_mut(key) else { continue };
            let Some((step, call)) = &mut flow.step else { continue };
            let call = *call;
            let understands = self.peers.get(&key.0).is_some_and(|it| it.understands_changes());
            let sole = understands && flow.export.is_sole();
            let reply = match step {
                FlowStep::Claim(claim) => flow
                    .export
                    .poll_claim(claim, &self.services, now_ns)
                    .map(|answer| claimed((&flow.export, sole), answer, &self.counters)),
                FlowStep::Close(closing) => {
                    closing.poll(&self.services, now_ns).map(|result| match result {
                        Ok(()) => Reply::plain(Outcome::Done),
                        Err(refusal) => Reply::refused(refusal.outcome, refusal.text),
                    })
                }
                FlowStep::Open(pending, _) if !flow.export.poll_open(pending) => None,
                FlowStep::Open(..) => Some(open_lane(flow, &self.services, &self.counters)),
            };
            if let Some(reply) = reply {
                flow.step = None;
                send(now_ns, call, &reply, endpoint);
                progress = Progress::Busy;
            }
        }
        self.closing.retain_mut(|closing| closing.poll(&self.services, now_ns).is_none());
        self.given_up.retain_mut(|claim| !claim.has_ended(now_ns));
        for call in self.replaced.drain(..) {
            send(now_ns, call, &Reply::plain(Outcome::EpochOver), endpoint);
        }
        progress
    }
}

fn costs(kind: Kind, head: &[u8], has_body: bool) -> Costs {
    let is_control = kind.op().is_none();
    let len_bytes = kind.op().map_or(0, |op| Request::len_of(head).min(op.bytes_max()));
    Costs {
        bytes: u64::from(len_bytes).max(CALL_BYTES_MIN),
        claim: kind == Kind::Claim,
        open: is_control && !matches!(kind, Kind::Claim | Kind::Changed),
        proof: is_control && has_body,
    }
}

fn claimed(
    (export, sole): (&Export, bool),
    answer: Result<(u64, Incarnation), Refusal>,
    counters: &ServerCounters,
) -> Reply {
    match answer {
        Ok((epoch, incarnation)) => {
            counters.claims.add(1);
            // The client has been told the rest by the description, in its version's words.
            let info = wire::told_before_zeroing(export.volume().info());
            let info = VolumeInfo { incarnation, ..info };
            Reply { epoch, volume: Some(info), sole, ..Reply::plain(Outcome::Done) }
        }
        Err(refusal) => Reply::refused(refusal.outcome, refusal.text),
    }
}

/// Ends the opening step of `flow` with a lane.
fn open_lane(flow: &mut Flow, services: &Services, counters: &Arc<ServerCounters>) -> Reply {
    let Some((FlowStep::Open(pending, request), _)) = flow.step.take() else {
        unreachable!("called for this step only");
    };
    match flow.export.admitted(pending, &OpenArguments { services, depth: LANE_DEPTH }) {
        Ok(admitted) => {
            flow.lane = Some(Lane::new(admitted, request.title, counters.clone()));
            Reply::plain(Outcome::Done)
        }
        Err(error) => Reply::refused(Outcome::Refused, error.to_string()),
    }
}

fn too_many_channels() -> Refusal {
    let text = format!(
        "this peer has its part of the {FLOWS_MAX} channels of a sidecore: close disks of this node"
    );
    Refusal::new(Outcome::Refused, text)
}

fn release(called: &ReceivedCall, endpoint: &mut Endpoint) {
    if let Some((buffer, _)) = called.body {
        endpoint.pool_mut().release(buffer);
    }
}

fn answer(now_ns: u64, called: &ReceivedCall, reply: &Reply, endpoint: &mut Endpoint) {
    release(called, endpoint);
    send(now_ns, called.call, reply, endpoint);
}

fn send(now_ns: u64, call: CallId, reply: &Reply, endpoint: &mut Endpoint) {
    let head = reply.encode();
    // A session that is gone gets no answer.
    let _ = endpoint.reply(now_ns, call, head.as_bytes(), None);
}
