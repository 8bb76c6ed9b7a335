//! Block messages from a hostile peer that holds a session: heads that are nearly right, bodies
//! that do not fit, epochs of others, floods of claims. Every call is answered once at most. Data
//! that the peer may not touch stays unchanged, and no buffer is left when the peer is gone.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ::block::wire::{Claim, Kind, Names, Outcome, Reply, Request, Title, attachment_id};
use ::block::{Export, ExportOptions, Exports, Plane};
use ::volume::Incarnation;
use ::volume::backend::memory::MemoryVolume;
use ::volume::record::NoRecords;
use arbitrary::{Arbitrary, Unstructured};
use peer::{Allow, Planes};
use sidecore::{Poll, Services};
use transport::{Endpoint, TransmitBatch};

use crate::net::{MS, NetNode, START_NS, addr, config};
use crate::steps::steps;

const STEPS_MAX: usize = 200;
const VOLUME_BYTES: u64 = 256 << 10;
/// Channels that the hostile peer claims and opens correctly, so that data requests are reached.
const CHANNELS: u16 = 2;
/// The block that the honest peer writes and reads.
const BLOCK_BYTES: u32 = 4096;
/// The limit of rounds at one instant, and of rounds that wait for an answer.
const ROUNDS_MAX: usize = 400;
const PATIENCE_ROUNDS: usize = 4000;

/// One of the two peers.
#[derive(Clone, Copy)]
enum BlockPeer {
    Hostile,
    Honest,
}

#[derive(Arbitrary, Debug)]
enum BlockStep {
    Ask {
        flow: u8,
        request: Shaped,
        body: BlockBody,
    },
    Raw {
        flow: u8,
        head: Vec<u8>,
        body: BlockBody,
    },
    /// A correct claim and a correct opening.
    Attach {
        flow: u8,
        channel: u8,
    },
    Wait {
        us: u16,
    },
    /// The hostile peer's session ends and another begins.
    Reconnect,
    /// The honest peer reads its block.
    Honest,
}

#[derive(Arbitrary, Debug)]
struct Shaped {
    kind: u8,
    title: TitleChoice,
    channel: u16,
    durable: bool,
    offset: Offset,
    len: u16,
    claim: (u8, bool, bool, bool),
    volume: u8,
    attachment: u8,
    edits: [Option<(u8, u8)>; 2],
}

#[derive(Arbitrary, Debug)]
enum TitleChoice {
    Mine,
    Epoch(u64),
    Incarnation(u8),
    Any(u8, u64, [u8; 16]),
}

#[derive(Arbitrary, Debug)]
enum Offset {
    Sector(u8),
    End(i8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
enum BlockBody {
    None,
    AsSaid,
    Bytes(u16),
}

/// The server, a hostile peer and an honest one.
struct BlockWorld {
    endpoint: Rc<RefCell<Endpoint>>,
    planes: Planes,
    plane: Rc<RefCell<Plane>>,
    services: Services,
    batch: TransmitBatch,
    hostile: NetNode,
    honest: NetNode,
    now_ns: u64,
    token: u64,
    /// The title that the hostile peer was granted.
    title: Title,
    honest_title: Title,
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When the honest peer's data changes or is not served, a call is answered twice, or buffers are
/// left.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let mut world = BlockWorld::new();
    for step in steps(&mut input, STEPS_MAX) {
        world.step(&step);
    }
    world.end();
}

impl BlockWorld {
    fn new() -> Self {
        let exports = Arc::new(Exports::default());
        for (name, peer) in [("mine", "vm1"), ("both", "vm1"), ("theirs", "vm2")] {
            let volume = Arc::new(MemoryVolume::new(VOLUME_BYTES).expect("memory"));
            let mut options =
                ExportOptions { allow: vec![Allow::node(peer)], ..Default::default() };
            options.shared = name == "both";
            let export = Export::new(name, volume, options, Arc::new(NoRecords));
            exports.insert(export.expect("nothing to read"));
        }
        let endpoint = Rc::new(RefCell::new(Endpoint::new(config("io1", 1))));
        let services = Services::new();
        let mut planes = Planes::new(0, endpoint.clone());
        let plane = Plane::new(&mut planes, exports, services.clone());
        services.insert(plane.clone());
        let mut world = Self {
            endpoint,
            planes,
            plane,
            services,
            batch: TransmitBatch::new(64),
            hostile: NetNode::new("vm1", 2),
            honest: NetNode::new("vm2", 3),
            now_ns: START_NS,
            token: 0,
            title: Title::default(),
            honest_title: Title::default(),
        };
        world.hostile.fill = 0x11;
        world.hostile.endpoint.connect(START_NS, addr(1), "io1", 0);
        world.honest.endpoint.connect(START_NS, addr(1), "io1", 0);
        world.carry();
        let title = world.attach_by(BlockPeer::Honest, ("theirs", 0, 0), 1);
        world.honest_title = title.expect("it is allowed to");
        world.step(&BlockStep::Attach { flow: 0, channel: 0 });
        world.honest();
        world
    }

    fn step(&mut self, step: &BlockStep) {
        match step {
            BlockStep::Ask { flow, request, body } => {
                let request_plain = request.request(&self.title);
                let mut head = request_plain.encode().as_bytes().to_vec();
                for (at, value) in request.edits.into_iter().flatten() {
                    let at = usize::from(at) % head.len();
                    head[at] = value;
                }
                let body = body.bytes(request_plain.len_bytes);
                self.call(*flow, &head, body);
            }
            BlockStep::Raw { flow, head, body } => {
                let head = &head[..head.len().min(transport::HEAD_MAX)];
                self.call(*flow, head, body.bytes(0));
            }
            BlockStep::Attach { flow, channel } => {
                self.attach(*flow, u16::from(*channel) % CHANNELS)
            }
            BlockStep::Wait { us } => self.now_ns += u64::from(*us) * 1000,
            BlockStep::Reconnect => {
                let sessions = self.hostile.notes.sessions.drain(..);
                sessions.for_each(|session| self.hostile.endpoint.close(self.now_ns, session));
                self.carry();
                self.hostile.endpoint.connect(self.now_ns, addr(1), "io1", 0);
            }
            BlockStep::Honest => self.honest(),
        }
        self.carry();
        self.now_ns += 1000;
    }

    fn call(&mut self, flow: u8, head: &[u8], body_bytes: usize) {
        let Some(&session) = self.hostile.notes.sessions.first() else { return };
        self.token += 1;
        let label = (flow.into(), self.token);
        self.hostile.call(self.now_ns, session, label, head, body_bytes);
    }

    /// A claim and an opening of the peer's own volume.
    fn attach(&mut self, flow: u8, channel: u16) {
        let claimant = self.token;
        if let Some(title) = self.attach_by(BlockPeer::Hostile, ("mine", flow, channel), claimant) {
            self.title = title;
        }
    }

    /// The title that was granted, with a channel open under it.
    fn attach_by(
        &mut self,
        who: BlockPeer,
        (volume, flow, channel): (&str, u8, u16),
        claimant: u64,
    ) -> Option<Title> {
        let attachment = attachment_id(volume, "disk");
        let title = Title { attachment, ..Title::default() };
        let mut request = Request::new(Kind::Claim, title, channel);
        request.claim = Claim { claimant, ..Claim::default() };
        request.names = Some(Names { volume: volume.to_owned(), attachment: "disk".to_owned() });
        let reply = self.ask(who, flow, &request, 0)?;
        let volume = reply.volume.filter(|_| reply.outcome == Outcome::Done)?;
        let title = Title { attachment, epoch: reply.epoch, incarnation: volume.incarnation };
        let open = Request { kind: Kind::Open, title, ..request };
        self.ask(who, flow, &open, 0)?;
        Some(title)
    }

    /// Asks and waits for the answer, if one comes.
    fn ask(
        &mut self,
        who: BlockPeer,
        flow: u8,
        request: &Request,
        body_bytes: usize,
    ) -> Option<Reply> {
        self.token += 1;
        let label = (flow.into(), self.token);
        let node = self.node(who);
        let session = *node.notes.sessions.first()?;
        let head = request.encode();
        let now_ns = self.now_ns;
        self.node(who).call(now_ns, session, label, head.as_bytes(), body_bytes);
        for _ in 0..PATIENCE_ROUNDS {
            self.carry();
            self.now_ns += MS / 4;
            if let Some(head) = self.node(who).notes.heads.remove(&label.1) {
                return Some(Reply::decode(&head).expect("a server's reply is one"));
            }
        }
        None
    }

    fn node(&mut self, who: BlockPeer) -> &mut NetNode {
        match who {
            BlockPeer::Hostile => &mut self.hostile,
            BlockPeer::Honest => &mut self.honest,
        }
    }

    /// A write and a read of the honest peer, which must be served.
    fn honest(&mut self) {
        let mut request = Request::new(Kind::Write, self.honest_title, 0);
        request.len_bytes = BLOCK_BYTES;
        for (kind, body_bytes) in [(Kind::Write, BLOCK_BYTES as usize), (Kind::Read, 0)] {
            request.kind = kind;
            let reply = self.ask(BlockPeer::Honest, 0, &request, body_bytes);
            assert_eq!(reply.map(|reply| reply.outcome), Some(Outcome::Done), "{kind:?}");
        }
        assert_eq!(self.honest.notes.odd_bytes, 0, "the honest peer's data is another");
    }

    /// Delivers all datagrams, until no endpoint has one.
    fn carry(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut carried = 0;
            for who in [BlockPeer::Hostile, BlockPeer::Honest] {
                let now_ns = self.now_ns;
                let node = self.node(who);
                let (from, sent) = (node.addr, node.transmit(now_ns));
                for (_, bytes) in sent {
                    carried += 1;
                    let planes = &mut self.planes;
                    self.endpoint.borrow_mut().receive(now_ns, now_ns, from, &bytes, planes);
                }
            }
            carried += self.serve();
            if carried == 0 {
                return;
            }
        }
    }

    /// One round of the server's sidecore.
    fn serve(&mut self) -> usize {
        let _ = self.planes.poll(self.now_ns);
        self.endpoint.borrow_mut().advance(self.now_ns, &mut self.planes);
        let _ = self.plane.borrow_mut().poll(self.now_ns);
        let mut endpoint = self.endpoint.borrow_mut();
        endpoint.transmit(self.now_ns, &mut self.batch);
        let count = self.batch.len();
        for datagram in self.batch.datagrams() {
            let mut bytes = datagram.head().to_vec();
            bytes.extend_from_slice(datagram.body(endpoint.pool()));
            for node in [&mut self.hostile, &mut self.honest] {
                if node.addr == datagram.to() {
                    node.receive(self.now_ns, addr(1), &bytes);
                }
            }
        }
        self.batch.consume(count);
        count
    }

    fn end(mut self) {
        self.honest();
        assert_eq!(self.hostile.notes.honest_bytes, 0, "it read what is not its own");
        for node in [&mut self.hostile, &mut self.honest] {
            for session in std::mem::take(&mut node.notes.sessions) {
                node.endpoint.close(self.now_ns, session);
            }
        }
        for _ in 0..PATIENCE_ROUNDS {
            self.carry();
            self.now_ns += MS;
            if self.endpoint.borrow().sessions().count() == 0 {
                break;
            }
        }
        assert_eq!(self.endpoint.borrow().sessions().count(), 0);
        assert_eq!(self.endpoint.borrow().pool().in_use(), 0, "buffers are left behind");
        // The two refer to each other.
        self.services.remove::<Plane>();
        self.hostile.end(self.now_ns);
        self.honest.end(self.now_ns);
    }
}

impl Shaped {
    fn request(&self, mine: &Title) -> Request {
        const KINDS: [Kind; 7] = [
            Kind::Read,
            Kind::Write,
            Kind::Flush,
            Kind::Describe,
            Kind::Claim,
            Kind::Open,
            Kind::Close,
        ];
        let kind = KINDS[usize::from(self.kind) % KINDS.len()];
        let names = Names {
            volume: ["mine", "both", "theirs", "none"][usize::from(self.volume & 3)].to_owned(),
            attachment: ["disk", "other", "", "x"][usize::from(self.attachment & 3)].to_owned(),
        };
        let title = match self.title {
            TitleChoice::Mine => *mine,
            TitleChoice::Epoch(epoch) => Title { epoch, ..*mine },
            TitleChoice::Incarnation(byte) => {
                Title { incarnation: Incarnation([byte; 16]), ..*mine }
            }
            TitleChoice::Any(volume, epoch, incarnation) => {
                let volume = ["mine", "both", "theirs", "none"][usize::from(volume & 3)];
                let attachment = attachment_id(volume, "disk");
                Title { attachment, epoch, incarnation: Incarnation(incarnation) }
            }
        };
        let end = VOLUME_BYTES;
        let (claimant, resume, unflushed, accept_loss) = self.claim;
        Request {
            durable: self.durable,
            offset_bytes: match self.offset {
                Offset::Sector(sector) => 512 * u64::from(sector),
                Offset::End(by) => end.wrapping_add_signed(i64::from(by) * 256),
                Offset::Any(offset) => offset,
            },
            len_bytes: 64 * u32::from(self.len),
            claim: Claim {
                claimant: claimant.into(),
                resume,
                unflushed,
                accept_loss,
                // Old inputs keep their meaning.
                take_over: accept_loss && unflushed && resume,
                known: u64::from(self.len),
            },
            names: (kind as u8 <= Kind::Close as u8).then_some(names),
            ..Request::new(kind, title, self.channel)
        }
    }
}

impl BlockBody {
    fn bytes(&self, said: u32) -> usize {
        match self {
            Self::None => 0,
            Self::AsSaid => (said as usize).min(transport::MESSAGE_MAX),
            Self::Bytes(bytes) => (*bytes).into(),
        }
    }
}
