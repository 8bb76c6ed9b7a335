//! A volume of a pool that cannot be served: the pool is not open, say. It is there so that the
//! node serves its other volumes, and so that the status can say why this volume is not.

use std::os::fd::BorrowedFd;

use sidecore::{Progress, Wake};

use super::volume::zeroing;
use crate::backend::kind::{BackendVolume, Opening};
use crate::size::Size;
use crate::volume::{
    Channel, Incarnation, IoId, IoTable, OpenArguments, OpenError, Status, Volume, VolumeInfo,
};

/// The size that stands for an unknown size: a block.
const SIZE_BYTES_UNKNOWN: u64 = 4096;

/// A volume that cannot be served: each request is an error.
#[derive(Debug)]
pub struct AbsentVolume {
    pool: String,
    why: String,
    info: VolumeInfo,
}

impl AbsentVolume {
    /// A volume of this pool, which is not served for this reason. `size_bytes`: its configured
    /// size.
    pub fn new(pool: &str, why: &str, size_bytes: Option<u64>, opening: &Opening<'_>) -> Self {
        let info = VolumeInfo {
            size_bytes: size_bytes.unwrap_or(SIZE_BYTES_UNKNOWN),
            block_bytes: 512,
            read_only: opening.read_only,
            durability: opening.durability,
            volatile: false,
            incarnation: Incarnation::default(),
            // A guest that was there before comes back with the features that it has.
            zeroing: zeroing(opening.read_only),
            topology: opening.topology,
        };
        Self { pool: pool.to_owned(), why: why.to_owned(), info }
    }
}

impl Volume for AbsentVolume {
    fn info(&self) -> VolumeInfo {
        self.info.clone()
    }

    fn size(&self) -> Size {
        Size::new(self.info.size_bytes)
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(AbsentChannel { ready: Vec::with_capacity(usize::from(open.depth)) }))
    }
}

impl BackendVolume for AbsentVolume {
    fn describe(&self) -> String {
        format!("pool {}, not served", self.pool)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn absent(&self) -> Option<String> {
        Some(self.why.clone())
    }
}

#[derive(Debug)]
struct AbsentChannel {
    ready: Vec<IoId>,
}

impl Channel for AbsentChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        ios[id].status = Status::Error;
        self.ready.push(id);
    }

    fn poll(&mut self, _ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        if self.ready.is_empty() {
            return Progress::Idle;
        }
        done.append(&mut self.ready);
        Progress::Busy
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        if self.ready.is_empty() { Progress::Idle } else { Progress::Busy }
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.ready.clear();
        true
    }
}
