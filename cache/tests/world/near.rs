//! The pool: a volume whose content outlives a process, with the mark of a clean end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use cache::{BLOCK_BYTES, Blocks, CacheStorage, HeldEpoch};
use parking_lot::Mutex;
use random::Random;
use sidecore::{Progress, Wake};
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, Size, Status,
    Topology, Volume, VolumeInfo, Zeroing,
};

use super::memory::{gathered, scattered};

/// The content of the pool's devices.
#[derive(Clone, Debug)]
pub(crate) struct OnDevices {
    pub(crate) content: Vec<u8>,
    pub(crate) mapped: Vec<bool>,
    pub(crate) mark: Option<HeldEpoch>,
}

#[derive(Debug)]
pub(crate) struct Near {
    pub(crate) devices: Mutex<OnDevices>,
    pub(crate) random: Mutex<Random>,
    pub(crate) fails: AtomicBool,
    /// Requests under way: none may be when the volume is emptied.
    under_way: AtomicU64,
}

impl Near {
    pub(crate) fn new(blocks: u64, random: Random) -> Arc<Self> {
        let content = vec![0; (blocks * BLOCK_BYTES) as usize];
        let devices = OnDevices { content, mapped: vec![false; blocks as usize], mark: None };
        Arc::new(Self {
            devices: Mutex::new(devices),
            random: Mutex::new(random),
            fails: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
        })
    }

    /// Blocks that take space.
    pub(crate) fn mapped(&self) -> u64 {
        self.devices.lock().mapped.iter().filter(|is_mapped| **is_mapped).count() as u64
    }

    /// A process has ended without a word: its requests are done or not.
    pub(crate) fn process_ends(&self) {
        self.under_way.store(0, SeqCst);
    }
}

#[derive(Debug)]
pub(crate) struct NearVolume(pub(crate) Arc<Near>);

impl Volume for NearVolume {
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
        Size::new(self.0.devices.lock().content.len() as u64)
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(NearChannel { near: Arc::clone(&self.0), pending: Vec::new() }))
    }
}

#[derive(Debug)]
struct NearChannel {
    near: Arc<Near>,
    pending: Vec<IoId>,
}

impl NearChannel {
    fn apply(&self, ios: &IoTable, id: IoId) {
        let io = &ios[id];
        let range = io.offset_bytes as usize..io.offset_bytes as usize + io.len_bytes as usize;
        let mut devices = self.near.devices.lock();
        assert!(devices.mark.is_none() || io.op == Op::Read, "written while there is a mark");
        let blocks = Blocks::around(io.offset_bytes, u64::from(io.len_bytes));
        let blocks = blocks.first as usize..blocks.end() as usize;
        match io.op {
            Op::Read => scattered(&devices.content[range], &io.segments),
            Op::Write => {
                devices.content[range].copy_from_slice(&gathered(&io.segments));
                devices.mapped[blocks].fill(true);
            }
            Op::Discard | Op::WriteZeroes => {
                devices.content[range].fill(0);
                devices.mapped[blocks].fill(false);
            }
            Op::Flush => panic!("the cache's loss loses nothing"),
        }
    }
}

impl Channel for NearChannel {
    fn submit(&mut self, _ios: &mut IoTable, id: IoId) {
        self.near.under_way.fetch_add(1, SeqCst);
        self.pending.push(id);
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let (at, waits, fails) = {
            let mut random = self.near.random.lock();
            let at = random.below(self.pending.len().max(1) as u64) as usize;
            (at, random.one_in(2), self.near.fails.load(SeqCst) && random.one_in(4))
        };
        if self.pending.is_empty() || waits {
            return Progress::Idle;
        }
        let id = self.pending.swap_remove(at);
        ios[id].status = if fails { Status::Error } else { Status::Done };
        if !fails {
            self.apply(ios, id);
        }
        self.near.under_way.fetch_sub(1, SeqCst);
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

#[derive(Debug)]
pub(crate) struct NearStorage(pub(crate) Arc<Near>);

impl NearStorage {
    fn try_it(&self) -> Result<(), String> {
        let fails = self.0.fails.load(SeqCst) && self.0.random.lock().one_in(2);
        if fails { Err("the pool is asked for too much".to_owned()) } else { Ok(()) }
    }
}

impl CacheStorage for NearStorage {
    fn load(&mut self) -> Result<Option<(HeldEpoch, Vec<Blocks>)>, String> {
        self.try_it()?;
        let devices = self.0.devices.lock();
        let Some(mark) = devices.mark else { return Ok(None) };
        let all = (0..).zip(&devices.mapped).filter(|(_, is_mapped)| **is_mapped);
        Ok(Some((mark, all.map(|(first, _)| Blocks { first, count: 1 }).collect())))
    }

    fn mark(&mut self, held: &HeldEpoch) -> Result<(), String> {
        self.try_it()?;
        assert_eq!(self.0.under_way.load(SeqCst), 0, "marked while requests are under way");
        self.0.devices.lock().mark = Some(*held);
        Ok(())
    }

    fn unmark(&mut self) -> Result<(), String> {
        self.try_it()?;
        self.0.devices.lock().mark = None;
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        self.unmark()?;
        assert_eq!(self.0.under_way.load(SeqCst), 0, "emptied while requests are under way");
        let mut devices = self.0.devices.lock();
        devices.content.fill(0);
        devices.mapped.fill(false);
        Ok(())
    }
}
