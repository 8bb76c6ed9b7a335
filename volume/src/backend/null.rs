//! A volume without blocks, for measuring the cost of everything else. Writes vanish. A read by a
//! guest of this node leaves the guest's memory as it is. A read into a buffer of this process
//! gives zeroes, for the buffer may have held another tenant's data.

use std::os::fd::BorrowedFd;

use sidecore::Progress;

use super::kind::{
    BackendNeeds, BackendVolume, FileAt, HandedBlocks, Opening, VolumeBackend, volume_bytes,
};
use crate::copy;
use crate::settings::{SettingKey, Settings};
use crate::size::Size;
use crate::volume::{
    Channel, Durability, Incarnation, Io, IoId, IoTable, Op, OpenArguments, OpenError, Status,
    Topology, Volume, VolumeInfo, Zeroing,
};

/// A volume that forgets.
#[derive(Debug)]
pub struct NullVolume {
    info: VolumeInfo,
}

impl NullVolume {
    /// A null volume of `size_bytes`, a multiple of 512.
    ///
    /// # Panics
    /// When the size is not a multiple of 512.
    pub fn new(size_bytes: u64) -> Self {
        let info = VolumeInfo {
            size_bytes,
            block_bytes: 512,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            // It never loses what it never had.
            incarnation: Incarnation(*b"nothing is lost."),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        };
        assert!(size_bytes.is_multiple_of(u64::from(info.block_bytes)), "whole sectors");
        Self { info }
    }
}

impl Volume for NullVolume {
    fn info(&self) -> VolumeInfo {
        self.info.clone()
    }

    fn size(&self) -> Size {
        Size::new(self.info.size_bytes)
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let ready = Vec::with_capacity(usize::from(open.depth));
        Ok(Box::new(NullChannel { info: self.info.clone(), ready }))
    }
}

#[derive(Debug)]
struct NullChannel {
    info: VolumeInfo,
    ready: Vec<IoId>,
}

impl NullChannel {
    fn execute(&self, io: &Io) -> Status {
        if !self.info.admits(io) {
            return Status::Invalid;
        }
        if io.op == Op::Read && !io.own_memory {
            // SAFETY: the user keeps the segments mapped until the completion.
            unsafe { copy::zero(&io.segments) };
        }
        Status::Done
    }
}

impl Channel for NullChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        ios[id].status = self.execute(&ios[id]);
        self.ready.push(id);
    }

    fn poll(&mut self, _ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let progress = Progress::busy_if(!self.ready.is_empty());
        done.append(&mut self.ready);
        progress
    }

    fn arm(&mut self, _wake: &mut sidecore::Wake) -> Progress {
        Progress::busy_if(!self.ready.is_empty())
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    /// The next poll ends all of it.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.ready.clear();
        true
    }
}

/// `null = "1GiB"`: nothing, for measuring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullBackend {
    /// Its size.
    pub size_bytes: u64,
}

impl VolumeBackend for NullBackend {
    const NAME: &'static str = "null";
    const EXAMPLE: &'static str = "null = \"1GiB\"";
    const KEYS: &'static [SettingKey] = &[SettingKey::new(
        "null",
        "A size: the volume stores nothing and is for measuring. Writes vanish. A read by a guest \
         of this node leaves the guest's memory as it was; a read from another node returns \
         zeroes.",
    )];
    const NEEDS: BackendNeeds = BackendNeeds { uring: false, calls: &[] };
    const NOT_READ_ONLY: Option<&'static str> =
        Some("a null volume is for measuring, and takes writes");

    fn read(settings: &dyn Settings, _: FileAt<'_>) -> Option<Self> {
        Some(Self { size_bytes: volume_bytes(settings, "null")? })
    }

    fn open(
        &self,
        _: &Opening<'_>,
        _: Option<HandedBlocks>,
    ) -> Result<Box<dyn BackendVolume>, String> {
        Ok(Box::new(NullVolume::new(self.size_bytes)))
    }
}

impl BackendVolume for NullVolume {
    fn describe(&self) -> String {
        "null".to_owned()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ChannelBench;

    #[test]
    fn reads_are_zeroes_and_writes_vanish() {
        let mut bench = ChannelBench::new(&NullVolume::new(1 << 20), 8);
        assert_eq!(bench.write(4096, &[7; 512]), Status::Done);
        assert_eq!(bench.read(4096, 512), Ok(vec![0; 512]));
        assert_eq!(bench.flush(), Status::Done);
    }

    #[test]
    fn keeps_the_contract() {
        crate::contract::check_bounds(&NullVolume::new(1 << 20));
        crate::contract::check_one_completion_each(&NullVolume::new(1 << 20));
        crate::contract::check_abandon(&NullVolume::new(1 << 20));
    }
}
