//! Users of a replicated volume: writers that go to the node that serves, and readers on each node.

use std::cell::RefCell;
use std::rc::Rc;

use sidecore::Services;
use volume::contract::Buffer;
use volume::{Channel, IoId, IoTable, Op, OpenArguments, Status, Volume, io_table};

use super::world::{SECTOR_BYTES, World};

/// The numbers of a writer's sectors, which readers look at.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// By sector: the number of the last write that was acknowledged, and of the last one that was
    /// begun. Numbers of a sector grow.
    pub(crate) sectors: Vec<(u64, u64)>,
    /// Promises that were broken.
    pub(crate) broken: Vec<String>,
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) fenced: u64,
}

pub(crate) type SharedLedger = Rc<RefCell<Ledger>>;

pub(crate) fn ledger(sectors: u64) -> SharedLedger {
    let sectors = vec![(0, 0); sectors as usize];
    Rc::new(RefCell::new(Ledger { sectors, ..Ledger::default() }))
}

/// A way of a user to the volume on one node.
pub(crate) struct UserChannel {
    pub(crate) at: usize,
    pub(crate) channel: Box<dyn Channel>,
    pub(crate) ios: IoTable,
    done: Vec<IoId>,
}

impl UserChannel {
    pub(crate) fn open(world: &World, at: usize) -> Option<Self> {
        let process = world.process(at)?;
        let open = OpenArguments { services: &Services::new(), depth: 4 };
        let channel = process.front.open(&open).expect("it opens");
        Some(Self { at, channel, ios: io_table(4), done: Vec::new() })
    }

    pub(crate) fn submit(&mut self, op: Op, sector: u64, buffer: Option<&Buffer>) -> IoId {
        let id = self.ios.take().expect("the test keeps to its depth");
        let io = &mut self.ios[id];
        io.reset();
        io.op = op;
        io.offset_bytes = sector * SECTOR_BYTES as u64;
        if let Some(buffer) = buffer {
            io.segments.extend(buffer.segments(usize::MAX));
            io.len_bytes = io.segments.iter().map(|segment| segment.len).sum();
        }
        self.channel.submit(&mut self.ios, id);
        id
    }

    pub(crate) fn poll(&mut self, id: IoId) -> Option<Status> {
        let _ = self.channel.poll(&mut self.ios, 0, &mut self.done);
        let place = self.done.iter().position(|done| *done == id)?;
        self.done.swap_remove(place);
        let status = self.ios[id].status;
        self.ios.free(id);
        Some(status)
    }

    /// A request in one go, while the world runs.
    pub(crate) fn ask(&mut self, world: &World, op: Op, sector: u64, buffer: &Buffer) -> Status {
        let buffer = op.moves_data().then_some(buffer);
        let id = self.submit(op, sector, buffer);
        let until_ns = world.now_ns.get() + 120_000_000_000;
        loop {
            if let Some(status) = self.poll(id) {
                return status;
            }
            assert!(world.now_ns.get() < until_ns, "a request without an end");
            world.step();
        }
    }
}

/// The content of sectors that a write of this number has made.
pub(crate) fn content(number: u64, sectors: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(SECTOR_BYTES / 8 * sectors as usize)
}

fn number(bytes: &[u8]) -> Result<u64, String> {
    let mut words = bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
    let first = words.next().expect("a sector");
    if words.all(|word| word == first) { Ok(first) } else { Err("a torn sector".to_owned()) }
}

enum Way {
    None,
    Open(UserChannel),
    /// It lets go: a write that it has begun may still happen.
    Leaving(UserChannel),
}

/// A write of a user: its sectors, and its number.
struct UserWrite {
    at: u64,
    count: u64,
    number: u64,
    /// The request, if it was sent.
    sent: Option<(IoId, Buffer)>,
}

/// Writes its own sectors, one request at a time, and sends it again wherever the volume is served.
pub(crate) struct Writer {
    first: u64,
    sectors: u64,
    ledger: SharedLedger,
    way: Way,
    /// The write that has no end yet.
    op: Option<UserWrite>,
    sent_ns: u64,
}

impl Writer {
    pub(crate) fn new(first: u64, sectors: u64, ledger: &SharedLedger) -> Self {
        let ledger = Rc::clone(ledger);
        Self { first, sectors, ledger, way: Way::None, op: None, sent_ns: 0 }
    }

    pub(crate) fn step(&mut self, world: &World) {
        self.way = match std::mem::replace(&mut self.way, Way::None) {
            Way::Leaving(mut leaving) => {
                if leaving.channel.abandon(&mut leaving.ios, 0) {
                    Way::None
                } else {
                    Way::Leaving(leaving)
                }
            }
            Way::None => {
                let at = world.below(world.nodes.len() as u64) as usize;
                // Mostly where it is served; else it waits, or is sent away.
                let at = world.server().filter(|_| !world.one_in(4)).unwrap_or(at);
                UserChannel::open(world, at).map_or(Way::None, Way::Open)
            }
            Way::Open(open) => self.go_on(world, open),
        };
    }

    /// Its state, for the text of a failure.
    pub(crate) fn state(&self) -> String {
        let way = match &self.way {
            Way::None => "no channel".to_owned(),
            Way::Open(open) => format!("a channel at node {}: {:?}", open.at, open.channel),
            Way::Leaving(open) => format!("leaves node {}: {:?}", open.at, open.channel),
        };
        format!("write {:?} by {way}", self.op.as_ref().map(|op| op.number))
    }

    fn begin(&mut self, world: &World) -> (u64, u64, u64) {
        if let Some(op) = &self.op {
            return (op.at, op.count, op.number);
        }
        let at = world.below(self.sectors);
        let count = 1 + world.below((self.sectors - at).min(4));
        let ledger = &mut self.ledger.borrow_mut();
        let range = (self.first + at) as usize..(self.first + at + count) as usize;
        let last = ledger.sectors[range.clone()].iter().map(|it| it.1).max();
        let number = last.unwrap_or(0) + 1;
        ledger.sectors[range].iter_mut().for_each(|it| it.1 = number);
        (self.first + at, count, number)
    }

    fn go_on(&mut self, world: &World, mut open: UserChannel) -> Way {
        let Some(UserWrite { at, count, number, sent: Some((id, buffer)) }) =
            self.op.take_if(|it| it.sent.is_some())
        else {
            let (at, count, number) = self.begin(world);
            let buffer = Buffer::filled(&content(number, count), 0);
            let id = open.submit(Op::Write, at, Some(&buffer));
            // The guest writes into its buffer again: all members have what was submitted.
            buffer.fill(0xee);
            self.op = Some(UserWrite { at, count, number, sent: Some((id, buffer)) });
            self.sent_ns = world.now_ns.get();
            return Way::Open(open);
        };
        let status = open.poll(id);
        let mut ledger = self.ledger.borrow_mut();
        match status {
            Some(Status::Done) => {
                ledger.writes += 1;
                for it in &mut ledger.sectors[at as usize..(at + count) as usize] {
                    it.0 = number;
                }
                Way::Open(open)
            }
            Some(Status::Fenced) => {
                ledger.fenced += 1;
                self.op = Some(UserWrite { at, count, number, sent: None });
                // It was sent away: the channel is of no more use.
                Way::Leaving(open)
            }
            Some(status) => {
                ledger.broken.push(format!("a write ended as {status:?}"));
                Way::None
            }
            // No member serves there, or so it seems.
            None if world.now_ns.get() > self.sent_ns + 4_000_000_000 => {
                self.op = Some(UserWrite { at, count, number, sent: None });
                Way::Leaving(open)
            }
            None => {
                self.op = Some(UserWrite { at, count, number, sent: Some((id, buffer)) });
                Way::Open(open)
            }
        }
    }
}

/// Reads on one node, also where that node does not serve, and looks whether the content is old.
pub(crate) struct Reader {
    at: usize,
    ledger: SharedLedger,
    open: Option<UserChannel>,
    /// The read: its sector, the last write acknowledged when it was sent, the users' size then,
    /// and its buffer.
    read: Option<(u64, u64, u64, IoId, Buffer)>,
}

impl Reader {
    pub(crate) fn new(at: usize, ledger: &SharedLedger) -> Self {
        Self { at, ledger: Rc::clone(ledger), open: None, read: None }
    }

    pub(crate) fn step(&mut self, world: &World) {
        let Some(open) = &mut self.open else {
            self.open = UserChannel::open(world, self.at);
            return;
        };
        let Some((sector, acknowledged, size, id, buffer)) = self.read.take() else {
            let mut ledger = self.ledger.borrow_mut();
            let sector = world.below(ledger.sectors.len() as u64);
            let acknowledged = ledger.sectors[sector as usize].0;
            ledger.reads += 1;
            let buffer = Buffer::new(SECTOR_BYTES, 0);
            let id = open.submit(Op::Read, sector, Some(&buffer));
            self.read = Some((sector, acknowledged, world.most_sectors.get(), id, buffer));
            return;
        };
        let status = open.poll(id);
        let mut ledger = self.ledger.borrow_mut();
        match status {
            None => self.read = Some((sector, acknowledged, size, id, buffer)),
            Some(Status::Fenced) => self.open = None,
            Some(Status::Done) => {
                if world.sectors(self.at) < size {
                    let text = format!("node {} has a smaller volume for its users", self.at);
                    ledger.broken.push(text);
                }
                let begun = ledger.sectors[sector as usize].1;
                let found = number(&buffer.bytes());
                if !found.as_ref().is_ok_and(|it| (acknowledged..=begun).contains(it)) {
                    let text = format!(
                        "node {} at {} ms: sector {sector} has {found:?}, and {acknowledged} was \
                         acknowledged before the read (last begun: {begun})",
                        self.at,
                        world.now_ns.get() / 1_000_000
                    );
                    ledger.broken.push(text);
                }
            }
            Some(status) => ledger.broken.push(format!("a read ended as {status:?}")),
        }
    }
}
