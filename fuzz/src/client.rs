//! A direct client whose IOhost is hostile: replies that are nearly right, for calls that ask for
//! something else, twice, late, too long, with any bytes; sessions that end. Each of the client's
//! users gets one answer. A request that a user sees as done was answered as done. No byte is
//! written beside its buffer, and nothing is left when the client has ended.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ::block::attachment::{AttachOptions, Phase};
use ::block::ublk::abi::{ABORT, Descriptor, op};
use ::block::ublk::{Front, Kernel, Shape};
use ::block::wire::{Kind, Outcome, Reply, Request};
use ::block::{Attach, Attachment, Exports, Plane, RemoteVolume};
use ::volume::IO_BYTES_MAX;
use ::volume::uring::Completion;
use ::volume::{Durability, Incarnation, OpenArguments, Topology, VolumeInfo, Zeroing};
use arbitrary::{Arbitrary, Unstructured};
use peer::Planes;
use rustix::io::Errno;
use sidecore::Poll;
use sidecore::Services;
use transport::{Endpoint, TransmitBatch};

use crate::net::{MS, NetNode, START_NS, addr, config};
use crate::steps::steps;

const STEPS_MAX: usize = 200;
const SHAPE: Shape = Shape { queues: 1, depth: 4 };
const SIZE_BYTES: u64 = 256 << 10;
/// The largest request: buffers are made for each input.
const SECTORS_MAX: u32 = 64;
/// The bytes of a buffer before anything is read into it.
const UNTOUCHED: u8 = 0xee;
const ROUNDS_MAX: usize = 100;
/// The limit of rounds until the client has ended: its close takes a second at most.
const PATIENCE_ROUNDS: usize = 400;

#[derive(Arbitrary, Debug)]
enum ClientStep {
    /// A user submits a request.
    Ask {
        place: u8,
        op: u8,
        durable: bool,
        sector: u16,
        sectors: u8,
    },
    /// A call gets a correct answer.
    Serve {
        at: u8,
    },
    /// All calls get correct answers.
    ServeAll,
    /// A call gets this answer.
    Answer {
        at: u8,
        reply: Shaped,
        body: u16,
    },
    /// A call gets this other answer.
    Raw {
        at: u8,
        head: Vec<u8>,
        body: u16,
    },
    /// All sessions end.
    Close,
    /// The client learns that it stood still.
    Stand,
    Wait {
        ms: u8,
    },
}

#[derive(Arbitrary, Debug)]
struct Shaped {
    outcome: u8,
    epoch: Epoch,
    volume: Option<ClientVolume>,
    text: String,
    edits: [Option<(u8, u8)>; 2],
}

#[derive(Arbitrary, Debug)]
enum Epoch {
    Next,
    Same,
    Any(u64),
}

#[derive(Arbitrary, Debug)]
struct ClientVolume {
    blocks: u32,
    large_blocks: bool,
    read_only: bool,
    write_through: bool,
    volatile: bool,
    incarnation: u8,
    can: (bool, bool, u32, u32, u32),
}

/// The driver and the disk's users.
#[derive(Debug)]
struct ClientDriver {
    descriptors: Vec<Descriptor>,
    buffers: Vec<Vec<u8>>,
    /// The places at which the client has asked for a request and does not answer a user.
    asking: Vec<bool>,
    mail: Vec<Completion>,
    /// Answers of success.
    done: usize,
}

#[derive(Clone, Debug)]
struct ClientShared(Rc<RefCell<ClientDriver>>);

impl Kernel for ClientShared {
    fn shape(&self) -> Shape {
        SHAPE
    }

    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool {
        let driver = &mut *self.0.borrow_mut();
        let at = place as usize;
        assert!(!std::mem::replace(&mut driver.asking[at], true), "one answer each");
        let Some(answer) = answer else { return true };
        let asked = driver.descriptors[at];
        let len = (asked.nr_sectors as usize) << 9;
        if answer >= 0 {
            let whole = if asked.op() == op::FLUSH { 0 } else { len };
            assert_eq!(answer as usize, whole, "done means all of it");
            driver.done += 1;
        } else {
            let known = [Errno::IO, Errno::ROFS, Errno::OPNOTSUPP].map(|it| -it.raw_os_error());
            assert!(known.contains(&answer), "{answer}");
        }
        let buffer = &driver.buffers[at];
        let end = if asked.op() == op::READ { len.min(buffer.len()) } else { 0 };
        assert!(buffer[end..].iter().all(|&byte| byte == UNTOUCHED), "beside what was asked for");
        true
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.0.borrow_mut().mail);
    }

    fn has_mail(&self) -> bool {
        !self.0.borrow().mail.is_empty()
    }

    fn descriptor(&self, place: u32) -> Descriptor {
        self.0.borrow().descriptors[place as usize]
    }

    fn buffer(&self, place: u32) -> *mut u8 {
        self.0.borrow_mut().buffers[place as usize].as_mut_ptr()
    }
}

/// The client and its hostile IOhost.
struct ClientWorld {
    endpoint: Rc<RefCell<Endpoint>>,
    planes: Planes,
    plane: Rc<RefCell<Plane>>,
    services: Services,
    batch: TransmitBatch,
    host: NetNode,
    volume: Arc<RemoteVolume>,
    attachment: Arc<Attachment>,
    front: Front<ClientShared>,
    driver: ClientShared,
    /// The last epoch that was granted correctly.
    epoch: u64,
    /// Calls about data that were answered as done.
    done: usize,
    now_ns: u64,
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When a promise of the module's text is broken.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let mut world = ClientWorld::new();
    for step in steps(&mut input, STEPS_MAX) {
        world.step(&step);
    }
    world.end();
}

fn info() -> VolumeInfo {
    VolumeInfo {
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        read_only: false,
        durability: Durability::Flush,
        volatile: false,
        incarnation: Incarnation([1; 16]),
        zeroing: Zeroing::ALL,
        topology: Topology::default(),
    }
}

impl ClientWorld {
    fn new() -> Self {
        let endpoint = Rc::new(RefCell::new(Endpoint::new(config("web1", 2))));
        let services = Services::new();
        let exports = Arc::new(Exports::default());
        let mut planes = Planes::new(0, endpoint.clone());
        let plane = Plane::new(&mut planes, exports, services.clone());
        services.insert(plane.clone());
        let volume = RemoteVolume::new("io1", "v");
        planes.peers().borrow_mut().add("io1", addr(1));
        assert!(plane.borrow_mut().clients.describe(volume.clone()));
        let mut host = NetNode::new("io1", 1);
        host.fill = 0x77;
        let mut batch = TransmitBatch::new(64);
        let mut now_ns = START_NS;
        // Correct answers until the client shows its disk: without them there is no disk.
        while volume.described().is_none() {
            carry(now_ns, &endpoint, (&mut planes, &plane), &mut host, &mut batch);
            for at in (0..host.notes.calls.len()).rev() {
                let reply = Reply { volume: Some(info()), ..Reply::plain(Outcome::Done) };
                host.answer_with(now_ns, at, reply.encode().as_bytes(), 0);
            }
            now_ns += MS;
        }
        let options = AttachOptions::new(1);
        let attachment = Arc::new(Attachment::new("a", options));
        let depth = SHAPE.channel_depth();
        let open = OpenArguments { services: &services, depth };
        let channel = volume.attach(&attachment, 0, &open).expect("the peer is known");
        let mut front = Front::new(channel, volume.info(), SHAPE);
        let driver = ClientShared(Rc::new(RefCell::new(ClientDriver {
            descriptors: vec![Descriptor::default(); usize::from(depth)],
            buffers: vec![vec![UNTOUCHED; SECTORS_MAX as usize * 512 + 64]; usize::from(depth)],
            asking: vec![false; usize::from(depth)],
            mail: Vec::new(),
            done: 0,
        })));
        front.show(driver.clone());
        let (epoch, done) = (0, 0);
        let mut world = Self {
            endpoint,
            planes,
            plane,
            services,
            batch,
            host,
            volume,
            attachment,
            front,
            driver,
            epoch,
            done,
            now_ns,
        };
        world.carry();
        world
    }

    fn step(&mut self, step: &ClientStep) {
        match step {
            ClientStep::Ask { place, op, durable, sector, sectors } => {
                self.ask(u32::from(*place) % SHAPE.places(), *op, *durable, *sector, *sectors);
            }
            ClientStep::Serve { at } => self.serve(usize::from(*at)),
            ClientStep::ServeAll => {
                // A claim, an opening, and the requests that waited for them.
                for _ in 0..4 {
                    (0..self.host.notes.calls.len()).for_each(|_| self.serve(0));
                    self.carry();
                }
            }
            ClientStep::Answer { at, reply, body } => {
                let mut head = reply.encode(self.epoch);
                for (at, value) in reply.edits.into_iter().flatten() {
                    let at = usize::from(at) % head.len();
                    head[at] = value;
                }
                self.answer(usize::from(*at), &head, usize::from(*body));
            }
            ClientStep::Raw { at, head, body } => {
                let head = &head[..head.len().min(transport::HEAD_MAX)];
                self.answer(usize::from(*at), head, usize::from(*body));
            }
            ClientStep::Close => {
                let sessions = self.host.notes.sessions.drain(..);
                sessions.for_each(|session| self.host.endpoint.close(self.now_ns, session));
            }
            ClientStep::Stand => self.now_ns += 2000 * MS,
            ClientStep::Wait { ms } => self.now_ns += u64::from(*ms) * MS,
        }
        self.carry();
        self.now_ns += MS;
        let driver = self.driver.0.borrow();
        assert!(driver.done <= self.done, "told of what was never done");
    }

    fn ask(&mut self, place: u32, op: u8, durable: bool, sector: u16, sectors: u8) {
        const OPS: [u32; 6] =
            [op::READ, op::WRITE, op::FLUSH, op::DISCARD, op::WRITE_ZEROES, op::READ];
        let mut driver = self.driver.0.borrow_mut();
        if !std::mem::take(&mut driver.asking[place as usize]) {
            return;
        }
        driver.buffers[place as usize].fill(UNTOUCHED);
        let fua = if durable { ::block::ublk::abi::FUA } else { 0 };
        driver.descriptors[place as usize] = Descriptor {
            op_flags: OPS[usize::from(op) % OPS.len()] | fua,
            nr_sectors: u32::from(sectors) % (SECTORS_MAX + 1),
            // Some of them are beyond the end.
            start_sector: u64::from(sector) % (SIZE_BYTES / 512 + 8),
            addr: 0,
        };
        driver.mail.push(Completion { token: place, result: 0 });
    }

    /// Answers as an honest server that has the volume for this client alone.
    fn serve(&mut self, at: usize) {
        let count = self.host.notes.calls.len();
        if count == 0 {
            return;
        }
        let at = at % count;
        let request = Request::decode(&self.host.notes.calls[at].head);
        let request = request.expect("a client's call is one");
        let mut reply = Reply::plain(Outcome::Done);
        let mut body = 0;
        match request.kind {
            Kind::Claim => {
                self.epoch = self.epoch.max(request.title.epoch) + 1;
                reply.epoch = self.epoch;
                reply.volume = Some(info());
            }
            Kind::Describe | Kind::Open => reply.volume = Some(info()),
            Kind::Read => body = request.len_bytes as usize,
            _ => {}
        }
        let head = reply.encode();
        self.answer(at, head.as_bytes(), body);
    }

    fn answer(&mut self, at: usize, head: &[u8], body_bytes: usize) {
        let count = self.host.notes.calls.len();
        if count == 0 {
            return;
        }
        let at = at % count;
        let body_bytes = body_bytes.min(IO_BYTES_MAX as usize);
        let asked = Request::decode(&self.host.notes.calls[at].head);
        let whole = asked.is_some_and(|asked| match asked.kind {
            Kind::Read => body_bytes == asked.len_bytes as usize,
            kind => kind.op().is_some() && body_bytes == 0,
        });
        let done = Reply::decode(head).is_some_and(|reply| reply.outcome == Outcome::Done);
        self.done += usize::from(whole && done);
        self.host.answer_with(self.now_ns, at, head, body_bytes);
    }

    /// Delivers all datagrams, until no endpoint has one.
    fn carry(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let Self { endpoint, planes, plane, host, batch, .. } = self;
            let carried = carry(self.now_ns, endpoint, (planes, plane), host, batch);
            let progress = self.front.poll(self.now_ns);
            if carried == 0 && !progress.is_busy() {
                return;
            }
        }
    }

    fn end(mut self) {
        let places = 0..SHAPE.places();
        // Every user is answered, or its device is removed, as by `detach --force`.
        self.attachment.fail("it was detached by force");
        self.carry();
        assert!(self.driver.0.borrow().asking.iter().all(|&asking| asking), "a user still waits");
        assert_ne!(self.attachment.view().phase, Phase::Held);
        let aborts = places.map(|token| Completion { token, result: ABORT });
        self.driver.0.borrow_mut().mail.extend(aborts);
        self.attachment.close();
        self.front.let_go();
        let core = self.front.core();
        for _ in 0..PATIENCE_ROUNDS {
            if core.is_gone() {
                break;
            }
            self.carry();
            self.now_ns += 10 * MS;
        }
        assert!(core.is_gone() && core.outstanding() == 0);
        self.plane.borrow_mut().clients.forget(&self.volume);
        drop(self.front);
        let sessions: Vec<_> =
            self.endpoint.borrow().sessions().map(|status| status.session).collect();
        let mut endpoint = self.endpoint.borrow_mut();
        sessions.iter().for_each(|&session| endpoint.close(self.now_ns, session));
        endpoint.transmit(self.now_ns, &mut self.batch);
        assert_eq!(endpoint.pool().in_use(), 0, "buffers are left behind");
        drop(endpoint);
        // The two refer to each other.
        self.services.remove::<Plane>();
        self.host.end(self.now_ns);
    }
}

/// One exchange, with a round of the client's plane; gives the number of datagrams.
fn carry(
    now_ns: u64,
    endpoint: &RefCell<Endpoint>,
    (planes, plane): (&mut Planes, &RefCell<Plane>),
    host: &mut NetNode,
    batch: &mut TransmitBatch,
) -> usize {
    let _ = planes.poll(now_ns);
    let mut carried = 0;
    for (_, bytes) in host.transmit(now_ns) {
        carried += 1;
        endpoint.borrow_mut().receive(now_ns, now_ns, addr(1), &bytes, planes);
    }
    endpoint.borrow_mut().advance(now_ns, planes);
    let _ = plane.borrow_mut().poll(now_ns);
    let mut endpoint = endpoint.borrow_mut();
    endpoint.transmit(now_ns, batch);
    let count = batch.len();
    for datagram in batch.datagrams() {
        let mut bytes = datagram.head().to_vec();
        bytes.extend_from_slice(datagram.body(endpoint.pool()));
        host.receive(now_ns, addr(2), &bytes);
    }
    batch.consume(count);
    carried + count
}

impl Shaped {
    fn encode(&self, epoch: u64) -> Vec<u8> {
        const OUTCOMES: [Outcome; 10] = [
            Outcome::Done,
            Outcome::Error,
            Outcome::Invalid,
            Outcome::EpochOver,
            Outcome::IncarnationOver,
            Outcome::NotOpen,
            Outcome::Superseded,
            Outcome::Lost,
            Outcome::Refused,
            Outcome::Unsupported,
        ];
        let reply = Reply {
            outcome: OUTCOMES[usize::from(self.outcome) % OUTCOMES.len()],
            epoch: match self.epoch {
                Epoch::Next => epoch + 1,
                Epoch::Same => epoch,
                Epoch::Any(epoch) => epoch,
            },
            volume: self.volume.as_ref().map(ClientVolume::info),
            sole: self.volume.is_some(),
            text: self.text.clone(),
        };
        reply.encode().as_bytes().to_vec()
    }
}

impl ClientVolume {
    fn info(&self) -> VolumeInfo {
        let block_bytes = if self.large_blocks { 4096 } else { 512 };
        let (discard, write_zeroes, unit_bytes, physical_bytes, optimal_bytes) = self.can;
        VolumeInfo {
            size_bytes: u64::from(self.blocks) * u64::from(block_bytes),
            block_bytes,
            read_only: self.read_only,
            durability: match self.write_through {
                true => Durability::WriteThrough,
                false => Durability::Flush,
            },
            volatile: self.volatile,
            incarnation: Incarnation([self.incarnation; 16]),
            zeroing: Zeroing { discard, write_zeroes, unit_bytes },
            topology: Topology { physical_bytes, optimal_bytes },
        }
    }
}
