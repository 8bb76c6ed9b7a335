//! The simulated disk of an IOhost: slow, out of order, with a volatile cache, and with requests
//! that land after the process that made them was killed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sidecore::{Progress, Wake};
use virtio::Segment;
use volume::record::{Record, RecordError, RecordStore, Ticket};
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, Size, Status,
    Topology, Volume, VolumeInfo, Zeroing,
};

use random::Random;

/// The unit of the simulated disk and of its atomicity.
pub(super) const BLOCK_BYTES: usize = 512;

/// How the disk behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// The longest time for a request, usually.
    pub(super) slow_ns: u64,
    /// Requests that take up to a hundred times as long, in parts of a million.
    pub(super) stuck_ppm: u64,
    /// Requests that fail, in parts of a million.
    pub(super) error_ppm: u64,
    /// The disk's promise about flushes.
    pub(super) durability: Durability,
    /// Nothing survives a new incarnation.
    pub(super) volatile: bool,
}

/// The disk's counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskCounts {
    /// Requests completed.
    pub(super) requests: u64,
    /// Requests failed on purpose.
    pub(super) errors: u64,
    /// Requests that landed after their process had died.
    pub(super) orphans: u64,
    /// Cached blocks whose last state was lost with the power.
    pub(super) blocks_lost: u64,
}

/// One block's part of a request, at its own time.
#[derive(Debug)]
struct BlockPart {
    at_ns: u64,
    block: usize,
    done: bool,
}

#[derive(Debug)]
struct SimRequest {
    process: u64,
    channel: u64,
    id: Option<IoId>,
    op: Op,
    durable: bool,
    data: Vec<u8>,
    first_block: usize,
    parts: Vec<BlockPart>,
    ends_ns: u64,
    fails: bool,
}

#[derive(Debug)]
struct Disk {
    random: Random,
    habits: Habits,
    stored: Vec<u8>,
    /// The content of a disk on which nothing was ever written.
    blank: Vec<u8>,
    /// Versions of a block since its last flush, oldest first; the last one is what is read.
    cached: HashMap<usize, Vec<Vec<u8>>>,
    requests: Vec<SimRequest>,
    finished: HashMap<u64, Vec<(IoId, Status, Vec<u8>)>>,
    incarnation: u64,
    process: u64,
    channels: u64,
    now_ns: u64,
    counts: DiskCounts,
}

/// The disk; clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct SimDisk(Arc<Mutex<Disk>>);

impl SimDisk {
    /// A disk that holds this when it is new.
    pub(super) fn new(blank: Vec<u8>, habits: Habits, random: Random) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            random,
            habits,
            stored: blank.clone(),
            blank,
            cached: HashMap::new(),
            requests: Vec::new(),
            finished: HashMap::new(),
            incarnation: 1,
            process: 1,
            channels: 0,
            now_ns: 0,
            counts: DiskCounts::default(),
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock()
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> DiskCounts {
        self.disk().counts
    }

    /// Lets everything happen that is due by now.
    pub(super) fn advance(&self, now_ns: u64) {
        self.disk().advance(now_ns);
    }

    /// When something happens next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let disk = self.disk();
        let parts = disk.requests.iter().flat_map(|request| &request.parts);
        let parts = parts.filter(|part| !part.done).map(|part| part.at_ns);
        parts.chain(disk.requests.iter().map(|request| request.ends_ns)).min()
    }

    /// The process is killed; its requests go on.
    pub(super) fn kill(&self) {
        let mut disk = self.disk();
        disk.process += 1;
        disk.finished.clear();
    }

    /// Whether a killed process still has requests on their way: its lock is not free.
    pub(super) fn is_locked(&self) -> bool {
        let disk = self.disk();
        disk.requests.iter().any(|request| request.process != disk.process)
    }

    /// The power is cut. Blocks that were not flushed may be lost, each by itself.
    pub(super) fn cut_power(&self) {
        let mut disk = self.disk();
        let disk = &mut *disk;
        disk.process += 1;
        disk.incarnation += 1;
        disk.requests.clear();
        disk.finished.clear();
        let mut blocks: Vec<_> = disk.cached.drain().collect();
        blocks.sort_by_key(|(block, _)| *block);
        for (block, versions) in blocks {
            let survives = disk.random.below(versions.len() as u64 + 1);
            let survives = usize::try_from(survives).expect("small");
            disk.counts.blocks_lost += u64::from(survives < versions.len());
            if survives > 0 {
                let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
                disk.stored[range].copy_from_slice(&versions[survives - 1]);
            }
        }
        if disk.habits.volatile {
            disk.stored.copy_from_slice(&disk.blank);
        }
    }
}

impl Disk {
    fn advance(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        loop {
            let due = self.requests.iter().enumerate().flat_map(|(at, request)| {
                let parts = request.parts.iter().enumerate();
                parts.filter(|(_, part)| !part.done).map(move |(of, part)| (part.at_ns, at, of))
            });
            let Some((at_ns, at, of)) = due.min() else { break };
            if at_ns > now_ns {
                break;
            }
            self.happen(at, of);
        }
        let ended = |request: &SimRequest| request.ends_ns <= now_ns;
        let mut ended: Vec<_> = {
            let (ended, rest) = std::mem::take(&mut self.requests).into_iter().partition(ended);
            self.requests = rest;
            ended
        };
        ended.sort_by_key(|request: &SimRequest| request.ends_ns);
        for request in ended {
            self.end(request);
        }
    }

    fn happen(&mut self, at: usize, of: usize) {
        let request = &mut self.requests[at];
        let part = &mut request.parts[of];
        part.done = true;
        let block = part.block;
        let range = (block - request.first_block) * BLOCK_BYTES..;
        match request.op {
            Op::Read => {
                let stored = &self.stored[block * BLOCK_BYTES..][..BLOCK_BYTES];
                let cached = self.cached.get(&block).and_then(|versions| versions.last());
                let now = cached.map_or(stored, Vec::as_slice);
                request.data[range][..BLOCK_BYTES].copy_from_slice(now);
            }
            // A zeroed range is a write of zeroes: the cache has it, and may lose it.
            Op::Write | Op::Discard | Op::WriteZeroes => {
                let data = request.data[range][..BLOCK_BYTES].to_vec();
                self.cached.entry(block).or_default().push(data);
            }
            Op::Flush => {}
        }
        self.counts.orphans += u64::from(request.process != self.process);
    }

    fn end(&mut self, request: SimRequest) {
        self.counts.requests += 1;
        self.counts.errors += u64::from(request.fails);
        if !request.fails {
            match request.op {
                Op::Flush => self.store_all(),
                op if op.changes() && request.durable => {
                    for part in &request.parts {
                        self.store(part.block);
                    }
                }
                _ => {}
            }
        }
        if request.process != self.process {
            return;
        }
        let status = if request.fails { Status::Error } else { Status::Done };
        if let Some(id) = request.id {
            self.finished.entry(request.channel).or_default().push((id, status, request.data));
        }
    }

    fn store_all(&mut self) {
        let blocks: Vec<_> = self.cached.keys().copied().collect();
        blocks.into_iter().for_each(|block| self.store(block));
    }

    fn store(&mut self, block: usize) {
        if let Some(last) = self.cached.remove(&block).and_then(|mut versions| versions.pop()) {
            self.stored[block * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&last);
        }
    }

    fn submit(&mut self, channel: u64, id: IoId, ios: &mut IoTable) {
        let io = &mut ios[id];
        let slow_ns = self.habits.slow_ns;
        let mut takes_ns = self.random.between(slow_ns / 20, slow_ns);
        if self.random.hits(self.habits.stuck_ppm) {
            takes_ns *= self.random.between(2, 100);
            if self.random.hits(100_000) {
                // Longer than a silent session lives.
                takes_ns = self.random.between(1_000_000_000, 8_000_000_000);
            }
        }
        let ends_ns = self.now_ns + takes_ns;
        let fails = self.random.hits(self.habits.error_ppm) && io.op != Op::Flush;
        let first_block = usize::try_from(io.offset_bytes).expect("small") / BLOCK_BYTES;
        let len = io.len_bytes as usize;
        let mut data = vec![0; len];
        if io.op == Op::Write {
            copy_from(&io.segments, &mut data);
        }
        let mut parts = Vec::new();
        for block in first_block..first_block + len / BLOCK_BYTES {
            // A request that fails may have done a part of its work.
            if fails && self.random.hits(500_000) {
                continue;
            }
            let at_ns = self.random.between(self.now_ns, ends_ns);
            parts.push(BlockPart { at_ns, block, done: false });
        }
        self.requests.push(SimRequest {
            process: self.process,
            channel,
            id: Some(id),
            op: io.op,
            durable: io.durable,
            data,
            first_block,
            parts,
            ends_ns,
            fails,
        });
    }
}

impl Volume for SimDisk {
    fn info(&self) -> VolumeInfo {
        let disk = self.disk();
        let mut incarnation = [0; 16];
        incarnation[..8].copy_from_slice(&disk.incarnation.to_le_bytes());
        VolumeInfo {
            size_bytes: disk.stored.len() as u64,
            block_bytes: 512,
            read_only: false,
            durability: disk.habits.durability,
            volatile: disk.habits.volatile,
            incarnation: Incarnation(incarnation),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        }
    }

    fn size(&self) -> Size {
        Size::new(self.info().size_bytes)
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let mut disk = self.disk();
        disk.channels += 1;
        Ok(Box::new(SimChannel { disk: self.clone(), number: disk.channels, outstanding: 0 }))
    }
}

#[derive(Debug)]
struct SimChannel {
    disk: SimDisk,
    number: u64,
    outstanding: usize,
}

impl Channel for SimChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        self.disk.disk().submit(self.number, id, ios);
        self.outstanding += 1;
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let finished = self.disk.disk().finished.remove(&self.number).unwrap_or_default();
        let progress = Progress::busy_if(!finished.is_empty());
        for (id, status, data) in finished {
            let io = &mut ios[id];
            if io.op == Op::Read {
                copy_to(&data, &io.segments);
            }
            io.status = status;
            self.outstanding -= 1;
            done.push(id);
        }
        progress
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::Idle
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    /// All of it has begun.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.outstanding == 0
    }
}

fn copy_from(segments: &[Segment], data: &mut [u8]) {
    let mut at = 0;
    for segment in segments {
        let len = segment.len as usize;
        // SAFETY: the channel's user keeps its segments valid until the completion, and no other
        // thread runs meanwhile; `data` is our own.
        unsafe { std::ptr::copy_nonoverlapping(segment.addr, data[at..][..len].as_mut_ptr(), len) };
        at += len;
    }
}

fn copy_to(data: &[u8], segments: &[Segment]) {
    let mut at = 0;
    for segment in segments {
        let len = segment.len as usize;
        // SAFETY: as in `copy_from`.
        unsafe { std::ptr::copy_nonoverlapping(data[at..][..len].as_ptr(), segment.addr, len) };
        at += len;
    }
}

#[derive(Debug)]
struct Writing {
    at_ns: u64,
    attachment: String,
    record: Record,
    ticket: Ticket,
}

#[derive(Debug, Default)]
struct Records {
    durable: HashMap<String, Record>,
    writing: Vec<Writing>,
    now_ns: u64,
    delay_ns: u64,
}

/// The simulated store of attachment records; clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct SimRecords(Arc<Mutex<Records>>);

impl SimRecords {
    /// An empty store whose writes take this long.
    pub(super) fn new(delay_ns: u64) -> Self {
        let records = Records { delay_ns, ..Records::default() };
        Self(Arc::new(Mutex::new(records)))
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock()
    }

    /// Whether the attachment's record says that it was closed clean.
    pub(super) fn is_clean(&self, attachment: &str) -> bool {
        self.records().durable.get(attachment).is_some_and(|record| record.clean)
    }

    /// Ends the writes that are due by now, in order.
    pub(super) fn advance(&self, now_ns: u64) {
        let mut records = self.records();
        records.now_ns = now_ns;
        while records.writing.first().is_some_and(|writing| writing.at_ns <= now_ns) {
            let writing = records.writing.remove(0);
            records.durable.insert(writing.attachment, writing.record);
            writing.ticket.end(Ok(()));
        }
    }

    /// When the next one ends.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.records().writing.first().map(|writing| writing.at_ns)
    }

    /// Ends all writes: a process that hands over waits for them.
    pub(super) fn settle(&self) {
        let mut records = self.records();
        for writing in std::mem::take(&mut records.writing) {
            records.durable.insert(writing.attachment, writing.record);
            writing.ticket.end(Ok(()));
        }
    }

    /// The process is killed or the power cut: some of what is being written is lost.
    pub(super) fn kill(&self, random: &mut Random) {
        let mut records = self.records();
        let survive = random.below(records.writing.len() as u64 + 1);
        let writing = std::mem::take(&mut records.writing);
        for writing in writing.into_iter().take(usize::try_from(survive).expect("small")) {
            records.durable.insert(writing.attachment, writing.record);
        }
    }
}

impl RecordStore for SimRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(self.records().durable.clone())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        let mut records = self.records();
        let ticket = Ticket::new();
        let at_ns = records.now_ns + records.delay_ns;
        records.writing.push(Writing {
            at_ns,
            attachment: attachment.to_owned(),
            record,
            ticket: ticket.clone(),
        });
        ticket
    }
}
