//! The remote volume: it has an epoch, loses its session, fails requests, and does what is under
//! way in any order.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use block::Attach;
use block::attachment::{Attachment, Phase};
use cache::CachedRemote;
use parking_lot::Mutex;
use random::Random;
use sidecore::{Progress, Wake};
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, Size, Status,
    Topology, VolumeInfo, Zeroing,
};

use super::memory::{gathered, scattered};

/// The state that all channels share.
#[derive(Debug)]
pub(crate) struct Far {
    pub(crate) content: Mutex<Vec<u8>>,
    /// The content of the last flush.
    flushed: Mutex<Vec<u8>>,
    pub(crate) random: Mutex<Random>,
    pub(crate) has_session: AtomicBool,
    pub(crate) is_sole: AtomicBool,
    pub(crate) fails: AtomicBool,
    size: Size,
}

impl Far {
    pub(crate) fn new(bytes: usize, random: Random) -> Arc<Self> {
        Arc::new(Self {
            content: Mutex::new(vec![0; bytes]),
            flushed: Mutex::new(vec![0; bytes]),
            random: Mutex::new(random),
            has_session: AtomicBool::new(true),
            is_sole: AtomicBool::new(true),
            fails: AtomicBool::new(false),
            size: Size::new(bytes as u64),
        })
    }

    /// Its host has lost power: of each sector the content of the last flush is there, or the last.
    pub(crate) fn lose_power(&self) {
        let (mut content, mut flushed) = (self.content.lock(), self.flushed.lock());
        let mut random = self.random.lock();
        for (now, before) in content.chunks_mut(512).zip(flushed.chunks(512)) {
            if random.one_in(2) {
                now.copy_from_slice(before);
            }
        }
        flushed.clone_from(&content);
    }

    /// Another client has written, and has closed its attachment.
    pub(crate) fn flush(&self) {
        self.flushed.lock().clone_from(&self.content.lock());
    }
}

#[derive(Debug)]
pub(crate) struct FarVolume(pub(crate) Arc<Far>);

impl Attach for FarVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.0.size.get(),
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
        self.0.size.clone()
    }

    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        _index: u16,
        _open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        let (far, attachment) = (Arc::clone(&self.0), Arc::clone(attachment));
        Ok(Box::new(FarChannel { far, attachment, pending: Rc::default() }))
    }
}

impl CachedRemote for FarVolume {
    fn is_sole(&self) -> Option<bool> {
        Some(self.0.is_sole.load(SeqCst))
    }
}

#[derive(Debug)]
struct Pending {
    id: IoId,
    /// The bytes of a write, read once, as the transport does.
    stable: Option<Vec<u8>>,
    /// Its effect is there, and its answer is not.
    is_applied: bool,
}

#[derive(Debug)]
struct FarChannel {
    far: Arc<Far>,
    attachment: Arc<Attachment>,
    pending: Rc<RefCell<Vec<Pending>>>,
}

impl FarChannel {
    fn is_there(&self) -> bool {
        self.far.has_session.load(SeqCst) && self.attachment.view().phase == Phase::Held
    }

    fn apply(&self, ios: &IoTable, at: usize) {
        let mut pending = self.pending.borrow_mut();
        let it = &mut pending[at];
        let io = &ios[it.id];
        let range = io.offset_bytes as usize..io.offset_bytes as usize + io.len_bytes as usize;
        let mut content = self.far.content.lock();
        match io.op {
            Op::Read => scattered(&content[range.clone()], &io.segments),
            Op::Write => {
                let bytes = it.stable.get_or_insert_with(|| gathered(&io.segments));
                content[range.clone()].copy_from_slice(bytes);
            }
            Op::Discard | Op::WriteZeroes => content[range.clone()].fill(0),
            Op::Flush => self.far.flushed.lock().clone_from(&content),
        }
        if io.durable {
            self.far.flushed.lock()[range.clone()].copy_from_slice(&content[range]);
        }
        it.is_applied = true;
    }
}

impl Channel for FarChannel {
    fn submit(&mut self, _ios: &mut IoTable, id: IoId) {
        self.pending.borrow_mut().push(Pending { id, stable: None, is_applied: false });
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        if !self.is_there() {
            // Requests are sent again: their answers are not believed.
            self.pending.borrow_mut().iter_mut().for_each(|it| it.is_applied = false);
            return Progress::Idle;
        }
        if self.far.random.lock().one_in(2) {
            return Progress::Idle;
        }
        for _ in 0..2 {
            let count = self.pending.borrow().len() as u64;
            if count == 0 {
                break;
            }
            let (at, fails) = {
                let mut random = self.far.random.lock();
                let fails = self.far.fails.load(SeqCst) && random.one_in(5);
                (random.below(count) as usize, fails)
            };
            let (is_applied, id) =
                (self.pending.borrow()[at].is_applied, self.pending.borrow()[at].id);
            if fails {
                self.pending.borrow_mut().swap_remove(at);
                ios[id].status = Status::Error;
                done.push(id);
            } else if is_applied {
                self.pending.borrow_mut().swap_remove(at);
                ios[id].status = Status::Done;
                done.push(id);
            } else {
                self.apply(ios, at);
            }
        }
        Progress::Busy
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::Busy
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        self.is_there()
    }

    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, ios: &mut IoTable, _now_ns: u64) -> bool {
        // Some arrive all the same.
        let count = self.pending.borrow().len();
        for at in 0..count {
            let arrives = self.far.random.lock().one_in(2);
            let id = self.pending.borrow()[at].id;
            if arrives && ios[id].op.changes() {
                self.apply(ios, at);
            }
        }
        self.pending.borrow_mut().clear();
        true
    }
}
