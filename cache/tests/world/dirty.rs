//! The dirty volume of the pool: its content outlives a process, and a loss of power takes changes
//! since the last flush, each by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cache::{BLOCK_BYTES, Blocks, DirtyOwner, DirtyRest, DirtyStorage};
use parking_lot::Mutex;
use random::Random;
use sidecore::{Progress, Wake};
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, Size, Status,
    Topology, Volume, VolumeInfo, Zeroing,
};

use volume::record::{Record, RecordError, RecordStore, Ticket};

use super::memory::{gathered, scattered};

#[derive(Clone, Debug)]
struct Change {
    at: usize,
    /// None for zeroes.
    bytes: Option<Vec<u8>>,
    len: usize,
    /// It is durable.
    stays: bool,
}

/// Blocks with their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirtyBlocks {
    pub(crate) content: Vec<u8>,
    pub(crate) mapped: Vec<bool>,
}

impl DirtyBlocks {
    fn new(blocks: u64) -> Self {
        let content = vec![0; (blocks * BLOCK_BYTES) as usize];
        Self { content, mapped: vec![false; blocks as usize] }
    }

    fn apply(&mut self, change: &Change) {
        let range = change.at..change.at + change.len;
        let around = Blocks::around(change.at as u64, change.len as u64);
        let inside = Blocks::inside(change.at as u64, change.len as u64);
        match &change.bytes {
            Some(bytes) => {
                self.content[range].copy_from_slice(bytes);
                self.mapped[around.first as usize..around.end() as usize].fill(true);
            }
            None => {
                self.content[range].fill(0);
                if !inside.is_empty() {
                    self.mapped[inside.first as usize..inside.end() as usize].fill(false);
                }
            }
        }
    }
}

impl Change {
    /// The change as a pool writes it, when it is there: whole blocks, so that a change of a part
    /// of a block has the rest of the block with it.
    fn whole(&self, now: &DirtyBlocks) -> Vec<Self> {
        let (at, len) = (self.at as u64, self.len as u64);
        let (around, inside) = (Blocks::around(at, len), Blocks::inside(at, len));
        let place = |blocks: Blocks| {
            let at = (blocks.first * BLOCK_BYTES) as usize;
            at..at + (blocks.count * BLOCK_BYTES) as usize
        };
        let image = |blocks: Blocks| {
            let (range, stays) = (place(blocks), self.stays);
            let bytes = Some(now.content[range.clone()].to_vec());
            Self { at: range.start, bytes, len: range.len(), stays }
        };
        if self.bytes.is_some() {
            return vec![image(around)];
        }
        let is_edge = |block: &u64| {
            !(inside.first..inside.end()).contains(block) && now.mapped[*block as usize]
        };
        let edges = (around.first..around.end()).filter(is_edge);
        let mut all: Vec<_> = edges.map(|first| image(Blocks { first, count: 1 })).collect();
        if !inside.is_empty() {
            let range = place(inside);
            all.push(Self { at: range.start, bytes: None, len: range.len(), stays: self.stays });
        }
        all
    }
}

#[derive(Clone, Debug)]
pub(crate) struct OnDevices {
    pub(crate) now: DirtyBlocks,
    flushed: DirtyBlocks,
    unflushed: Vec<Change>,
    owner: Option<DirtyOwner>,
    pub(crate) number: u64,
    pub(crate) stranded: Vec<DirtyBlocks>,
}

#[derive(Debug)]
pub(crate) struct DirtyPool {
    pub(crate) devices: Mutex<OnDevices>,
    pub(crate) random: Mutex<Random>,
    /// Changes fail.
    pub(crate) fails: AtomicBool,
    /// Blocks that cannot be read.
    pub(crate) damaged: Mutex<Vec<u64>>,
    blocks: u64,
}

impl DirtyPool {
    pub(crate) fn new(blocks: u64, random: Random) -> Arc<Self> {
        let now = DirtyBlocks::new(blocks);
        let devices = OnDevices {
            flushed: now.clone(),
            now,
            unflushed: Vec::new(),
            owner: None,
            number: 0,
            stranded: Vec::new(),
        };
        let (devices, random) = (Mutex::new(devices), Mutex::new(random));
        Arc::new(Self {
            devices,
            random,
            fails: AtomicBool::new(false),
            damaged: Mutex::default(),
            blocks,
        })
    }

    /// A new pool in the place of this one, which is given.
    pub(crate) fn make_anew(&self) -> OnDevices {
        let anew = Self::new(self.blocks, Random::new(0)).devices.lock().clone();
        std::mem::replace(&mut *self.devices.lock(), anew)
    }

    pub(crate) fn mapped(&self) -> u64 {
        self.devices.lock().now.mapped.iter().filter(|is_mapped| **is_mapped).count() as u64
    }

    fn change(&self, change: Change) {
        let mut devices = self.devices.lock();
        devices.now.apply(&change);
        let whole = change.whole(&devices.now);
        devices.unflushed.extend(whole);
    }

    pub(crate) fn lose_power(&self) {
        let mut devices = self.devices.lock();
        let mut random = self.random.lock();
        let mut left = devices.flushed.clone();
        for change in std::mem::take(&mut devices.unflushed) {
            if change.stays || random.one_in(2) {
                left.apply(&change);
            }
        }
        (devices.flushed, devices.now) = (left.clone(), left);
    }

    fn flush(&self) {
        let mut devices = self.devices.lock();
        devices.unflushed.clear();
        devices.flushed = devices.now.clone();
    }
}

#[derive(Debug)]
pub(crate) struct DirtyFile(pub(crate) Arc<DirtyPool>);

impl Volume for DirtyFile {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.size().get(),
            block_bytes: 512,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            incarnation: Incarnation::default(),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        }
    }

    fn size(&self) -> Size {
        Size::new(self.0.blocks * BLOCK_BYTES)
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(DirtyChannel { pool: Arc::clone(&self.0), pending: Vec::new() }))
    }
}

#[derive(Debug)]
struct DirtyChannel {
    pool: Arc<DirtyPool>,
    /// With the change, if its data was read already.
    pending: Vec<(IoId, Option<Change>)>,
}

impl DirtyChannel {
    fn change_of(ios: &IoTable, id: IoId) -> Change {
        let io = &ios[id];
        let bytes = (io.op == Op::Write).then(|| gathered(&io.segments));
        let (at, len) = (io.offset_bytes as usize, io.len_bytes as usize);
        Change { at, bytes, len, stays: io.durable }
    }
}

impl Channel for DirtyChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let is_early = self.pool.random.lock().one_in(2);
        let change = (ios[id].op.changes() && is_early).then(|| Self::change_of(ios, id));
        self.pending.push((id, change));
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let (at, waits, fails) = {
            let mut random = self.pool.random.lock();
            let at = random.below(self.pending.len().max(1) as u64) as usize;
            (at, random.one_in(3), self.pool.fails.load(SeqCst) && random.one_in(4))
        };
        if self.pending.is_empty() || waits {
            return Progress::Idle;
        }
        let (id, change) = self.pending.swap_remove(at);
        let io = &ios[id];
        let around = Blocks::around(io.offset_bytes, u64::from(io.len_bytes));
        let is_in = |block: &u64| (around.first..around.end()).contains(block);
        let fails = match io.op {
            Op::Read => self.pool.damaged.lock().iter().any(is_in),
            _ => fails && io.op.changes(),
        };
        match io.op {
            Op::Read if fails => {}
            Op::Read => {
                let range =
                    io.offset_bytes as usize..(io.offset_bytes as usize) + io.len_bytes as usize;
                scattered(&self.pool.devices.lock().now.content[range], &io.segments);
            }
            Op::Flush => self.pool.flush(),
            _ if fails => {}
            _ => self.pool.change(change.unwrap_or_else(|| Self::change_of(ios, id))),
        }
        ios[id].status = if fails { Status::Error } else { Status::Done };
        done.push(id);
        Progress::Busy
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::Busy
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.pending.is_empty()
    }
}

impl Drop for DirtyChannel {
    fn drop(&mut self) {
        // A kill: the kernel does some of it all the same.
        for (_, change) in self.pending.drain(..) {
            let happens = self.pool.random.lock().one_in(2);
            if let Some(change) = change.filter(|_| happens) {
                self.pool.change(change);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct DirtyDirectory(pub(crate) Arc<DirtyPool>);

impl DirtyStorage for DirtyDirectory {
    fn load(&mut self) -> Result<DirtyRest, String> {
        let devices = self.0.devices.lock();
        let all = (0..).zip(&devices.now.mapped).filter(|(_, is_mapped)| **is_mapped);
        let blocks = all.map(|(first, _)| Blocks { first, count: 1 }).collect();
        let volume = Arc::new(DirtyFile(Arc::clone(&self.0)));
        Ok(DirtyRest { volume, owner: devices.owner, blocks })
    }

    fn last_number(&self) -> u64 {
        self.0.devices.lock().number
    }

    fn stranded(&self) -> Vec<String> {
        let count = self.0.devices.lock().stranded.len();
        (1..=count).map(|number| format!("rest.{number}")).collect()
    }

    fn own(&mut self, owner: DirtyOwner) -> Result<(), String> {
        self.0.devices.lock().owner = Some(owner);
        Ok(())
    }

    fn number(&mut self, number: u64) -> Result<(), String> {
        let mut devices = self.0.devices.lock();
        assert!(devices.number <= number, "{} then {number}", devices.number);
        devices.number = number;
        Ok(())
    }

    fn strand(&mut self) -> Result<(String, Arc<dyn Volume>), String> {
        let mut devices = self.0.devices.lock();
        let empty = DirtyBlocks::new(self.0.blocks);
        let rest = std::mem::replace(&mut devices.now, empty.clone());
        devices.stranded.push(rest);
        devices.unflushed.clear();
        (devices.flushed, devices.owner) = (empty, None);
        Ok((format!("rest.{}", devices.stranded.len()), Arc::new(DirtyFile(Arc::clone(&self.0)))))
    }
}

/// The node's memory: a note is durable some time after it was written, and a kill before that may
/// lose it.
#[derive(Debug, Default)]
pub(crate) struct NodeMemory {
    durable: Mutex<HashMap<String, Record>>,
    pending: Mutex<Vec<(String, Record, Ticket)>>,
    /// A note is durable at once: for a caller that waits for it.
    pub(crate) is_quick: AtomicBool,
}

impl NodeMemory {
    /// So many of the notes that wait become durable, in their order.
    pub(crate) fn settle(&self, most: usize) {
        let mut pending = self.pending.lock();
        let count = most.min(pending.len());
        for (name, record, ticket) in pending.drain(..count) {
            self.durable.lock().insert(name, record);
            ticket.end(Ok(()));
        }
    }

    /// Whether the pool may have dirty blocks.
    pub(crate) fn is_marked(&self) -> bool {
        self.durable.lock().values().any(|record| record.born != 0)
    }

    /// The last number of a round.
    pub(crate) fn number(&self) -> u64 {
        self.durable.lock().values().map(|record| record.epoch).max().unwrap_or_default()
    }

    /// The node is killed.
    pub(crate) fn forget(&self, random: &mut Random) {
        self.settle(random.below(3) as usize);
        self.pending.lock().clear();
    }
}

impl RecordStore for NodeMemory {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(self.durable.lock().clone())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        let ticket = Ticket::new();
        self.pending.lock().push((attachment.to_owned(), record, ticket.clone()));
        if self.is_quick.load(SeqCst) {
            self.settle(usize::MAX);
        }
        ticket
    }
}
