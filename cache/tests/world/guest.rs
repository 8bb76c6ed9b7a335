//! A guest: it reads and writes, and knows which content it may read.

use std::ops::Range;
use std::sync::Arc;

use block::Attach;
use block::attachment::Attachment;
use random::Random;
use sidecore::Services;
use virtio::Segment;
use volume::{Channel, IoId, IoTable, Op, OpenArguments, Status, io_table};

use super::model::{Model, ModelRead, SECTOR, ZERO};

/// Requests of the guest on one channel at once.
const DEPTH: u16 = 6;

/// The longest request, but for zeroes: longer than what the cache keeps.
const SECTORS_MAX: u64 = 300;

#[derive(Debug)]
enum Doing {
    Read(ModelRead),
    /// Whether it is durable when it is done.
    Change(Range<usize>, bool),
    Flush(Vec<u64>),
}

#[derive(Debug)]
struct Slot {
    id: IoId,
    doing: Doing,
    memory: Vec<u8>,
    /// The guest writes this into the memory while the request is under way.
    scribbles: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct GuestChannel {
    // First: it has pieces of the slots' memory.
    channel: Box<dyn Channel>,
    ios: IoTable,
    slots: Vec<Slot>,
    done: Vec<IoId>,
}

impl GuestChannel {
    pub(crate) fn open(volume: &dyn Attach, attachment: &Arc<Attachment>, index: u16) -> Self {
        let open = OpenArguments { services: &Services::new(), depth: DEPTH };
        let channel = volume.attach(attachment, index, &open).expect("it opens");
        Self { channel, ios: io_table(DEPTH), slots: Vec::new(), done: Vec::new() }
    }
}

pub(crate) struct Guest {
    random: Random,
    pub(crate) model: Model,
    pub(crate) channels: Vec<GuestChannel>,
    value: u32,
    sectors: u64,
}

/// Fills a sector with a value.
pub(crate) fn stamp(sector: &mut [u8], value: u32) {
    sector.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
}

pub(crate) fn value_of(sector: &[u8]) -> u32 {
    let word = |at: usize| u32::from_le_bytes(sector[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0), word(SECTOR - 4), "a torn sector");
    word(0)
}

impl Guest {
    pub(crate) fn new(random: Random, model: Model) -> Self {
        let sectors = super::BLOCKS * 8 + 1;
        Self { random, model, channels: Vec::new(), value: ZERO, sectors }
    }

    /// A value that nothing had before.
    pub(crate) fn value(&mut self) -> u32 {
        self.value += 1;
        self.value
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.channels.iter().all(|it| it.slots.is_empty())
    }

    pub(crate) fn submit_some(&mut self) {
        for at in 0..self.channels.len() {
            for _ in 0..self.random.below(3) {
                self.submit(at);
            }
        }
    }

    /// A range that is often in the same places, often whole blocks, and sometimes long.
    fn range(&mut self, op: Op) -> Range<usize> {
        if self.random.one_in(32) {
            // The piece at the end that is no whole block.
            return self.sectors as usize - 1..self.sectors as usize;
        }
        let most = match op {
            Op::Discard | Op::WriteZeroes => self.sectors,
            _ => SECTORS_MAX,
        };
        let len = match self.random.below(8) {
            0 => self.random.between(1, most),
            1 => self.random.between(1, 20),
            _ => 8 * self.random.between(1, 4),
        };
        let places = if self.random.one_in(2) { 64 * 8 } else { self.sectors };
        let mut first = self.random.below(places);
        if !self.random.one_in(4) {
            first -= first % 8;
        }
        let first = first.min(self.sectors - len);
        first as usize..(first + len) as usize
    }

    fn submit(&mut self, at: usize) {
        let op = match self.random.below(16) {
            0..=8 => Op::Read,
            9..=13 => Op::Write,
            14 => [Op::Discard, Op::WriteZeroes][self.random.below(2) as usize],
            _ => Op::Flush,
        };
        let range = if op == Op::Flush { 0..0 } else { self.range(op) };
        let Some(id) = self.channels[at].ios.take() else { return };
        let len = range.len() * SECTOR;
        let mut memory = if op.moves_data() { vec![0xee; len] } else { Vec::new() };
        let (mut values, mut scribbles) = (vec![ZERO], None);
        let durable = op.changes() && self.random.one_in(8);
        if op == Op::Write {
            let value = self.value();
            memory.chunks_exact_mut(SECTOR).for_each(|sector| stamp(sector, value));
            values = vec![value];
            if self.random.one_in(6) && !durable {
                scribbles = Some(self.value());
                values.extend(scribbles);
            }
        }
        let doing = match op {
            Op::Read => Doing::Read(self.model.begin_read(range.clone())),
            Op::Flush => Doing::Flush(self.model.begin_flush()),
            _ => {
                let slots = self.channels.iter_mut().flat_map(|it| &mut it.slots);
                let reads = slots.filter_map(|slot| match &mut slot.doing {
                    Doing::Read(read) => Some(read),
                    _ => None,
                });
                self.model.begin_change(&range, &values, reads);
                Doing::Change(range.clone(), durable)
            }
        };
        let it = &mut self.channels[at];
        let io = &mut it.ios[id];
        io.reset();
        io.durable = durable;
        (io.op, io.len_bytes, io.offset_bytes) = (op, len as u32, (range.start * SECTOR) as u64);
        // In pieces, as guests have it.
        for piece in memory.chunks_mut(5 * SECTOR) {
            io.segments.push(Segment { addr: piece.as_mut_ptr(), len: piece.len() as u32 });
        }
        it.slots.push(Slot { id, doing, memory, scribbles });
        it.channel.submit(&mut it.ios, id);
    }

    pub(crate) fn poll(&mut self, at: usize, now_ns: u64) {
        let it = &mut self.channels[at];
        for slot in &mut it.slots {
            if let Some(value) = slot.scribbles.filter(|_| self.random.one_in(8)) {
                let ios = &it.ios[slot.id];
                scribble(&ios.segments, &mut slot.memory, value);
                slot.scribbles = None;
            }
        }
        let _ = it.channel.poll(&mut it.ios, now_ns, &mut it.done);
        let done: Vec<_> = it.done.drain(..).collect();
        for id in done {
            self.ended(at, id);
        }
    }

    fn ended(&mut self, at: usize, id: IoId) {
        let it = &mut self.channels[at];
        let place = it.slots.iter().position(|slot| slot.id == id).expect("once");
        let slot = it.slots.swap_remove(place);
        let status = it.ios[id].status;
        let total: u64 = it.ios[id].segments.iter().map(|piece| u64::from(piece.len)).sum();
        assert_eq!(total, slot.memory.len() as u64, "the pieces are the user's again");
        it.ios.free(id);
        let is_done = status == Status::Done;
        assert!(is_done || status == Status::Error, "{status:?}");
        match slot.doing {
            Doing::Change(sectors, durable) => {
                self.model.end_change(&sectors, is_done);
                if durable && is_done {
                    self.model.end_durable(&sectors);
                }
            }
            Doing::Read(read) if is_done => {
                let values: Vec<_> = slot.memory.chunks_exact(SECTOR).map(value_of).collect();
                self.model.end_read(&read, &values).unwrap_or_else(|error| panic!("{error}"));
            }
            Doing::Flush(began) if is_done => self.model.end_flush(&began),
            Doing::Read(_) | Doing::Flush(_) => {}
        }
    }

    /// The node lets go of the guest in order.
    pub(crate) fn let_go(&mut self, now_ns: u64) {
        for it in &mut self.channels {
            let mut rounds = 0;
            while !it.channel.abandon(&mut it.ios, now_ns) {
                rounds += 1;
                assert!(rounds < 100_000, "{it:?}");
            }
        }
        self.forget_all();
    }

    /// The channels are gone, and with them what was under way: it happened or not.
    pub(crate) fn forget_all(&mut self) {
        for it in std::mem::take(&mut self.channels) {
            let GuestChannel { channel, slots, .. } = it;
            drop(channel);
            for slot in slots {
                if let Doing::Change(sectors, _) = slot.doing {
                    self.model.end_change(&sectors, false);
                }
            }
        }
    }
}

/// The guest changes its memory under a request: as far as the pieces are its own.
fn scribble(segments: &[Segment], memory: &mut [u8], value: u32) {
    let own = memory.as_ptr_range();
    let is_lent = segments.iter().any(|piece| own.contains(&piece.addr.cast_const()));
    // Whole: the model knows values of sectors, and no mixtures of two.
    if is_lent || !memory.is_empty() {
        memory.chunks_exact_mut(SECTOR).for_each(|sector| stamp(sector, value));
    }
}
