//! Devices in memory that answer at once, for tests of the engine.

use std::fmt;
use std::sync::{Arc, Mutex};

use store::block::{Block, BlockBuffer};
use store::{DeviceIo, DeviceOp, PoolDeviceError, PoolDevices, PoolEngine};

/// The errno of a write that fails.
const EIO: i32 = 5;

/// Requests since a test began to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    pub(crate) reads: u64,
    pub(crate) read_blocks: u64,
    pub(crate) writes: u64,
    pub(crate) written_blocks: u64,
    pub(crate) syncs: u64,
}

/// Is told what devices did, in this order.
pub(crate) trait DeviceWatch: Send {
    /// These blocks were written.
    fn written(&mut self, device: u8, block: u64, blocks: &[Block]);

    /// The device has made all writes durable.
    fn synced(&mut self, device: u8);
}

/// The devices of a pool.
#[derive(Clone)]
pub(crate) struct MemoryDevices {
    /// The blocks of each device.
    pub(crate) blocks: Vec<Vec<Block>>,
    /// Writes fail for want of space.
    pub(crate) no_space: bool,
    /// Writes and syncs fail.
    pub(crate) fails: bool,
    /// Requests of all devices.
    pub(crate) counts: DeviceCounts,
    /// Is told of all writes and syncs.
    pub(crate) watch: Option<Arc<Mutex<dyn DeviceWatch>>>,
}

impl MemoryDevices {
    /// Equal devices, all zeroes.
    pub(crate) fn new(devices: usize, blocks: u64) -> Self {
        Self {
            blocks: vec![vec![Block::ZERO; blocks as usize]; devices],
            no_space: false,
            fails: false,
            counts: DeviceCounts::default(),
            watch: None,
        }
    }

    /// The length of each device.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        self.blocks.iter().map(|device| device.len() as u64).collect()
    }

    /// Does and answers all requests that an engine has for its devices.
    pub(crate) fn serve(&mut self, engine: &mut PoolEngine) {
        while let Some(io) = engine.next_io() {
            self.answer(engine, io);
        }
    }

    /// Does and answers one request.
    pub(crate) fn answer(&mut self, engine: &mut PoolEngine, io: DeviceIo) {
        let DeviceIo { token, device, op } = io;
        let (buffer, result) = match op {
            DeviceOp::Read { block, mut buffer, blocks } => {
                let result = self.read(device, block, &mut buffer, blocks);
                (Some(buffer), result)
            }
            DeviceOp::Write { block, buffer, blocks } => {
                let result = self.write(device, block, &buffer, blocks);
                (Some(buffer), result)
            }
            DeviceOp::Sync => (None, self.sync(device)),
        };
        engine.complete_io(token, buffer, result);
    }
}

impl PoolDevices for MemoryDevices {
    fn read(
        &mut self,
        device: u8,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        let from = &self.blocks[usize::from(device)][block as usize..][..blocks as usize];
        buffer.blocks_mut()[..blocks as usize].clone_from_slice(from);
        self.counts.reads += 1;
        self.counts.read_blocks += u64::from(blocks);
        Ok(())
    }

    fn write(
        &mut self,
        device: u8,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        if self.no_space {
            return Err(PoolDeviceError::NoSpace);
        }
        if self.fails {
            return Err(PoolDeviceError::Failed(EIO));
        }
        let to = &mut self.blocks[usize::from(device)][block as usize..][..blocks as usize];
        let content = &buffer.blocks()[..blocks as usize];
        to.clone_from_slice(content);
        if let Some(watch) = &self.watch {
            watch.lock().expect("no test panics with it").written(device, block, content);
        }
        self.counts.writes += 1;
        self.counts.written_blocks += u64::from(blocks);
        Ok(())
    }

    fn sync(&mut self, device: u8) -> Result<(), PoolDeviceError> {
        self.counts.syncs += 1;
        if self.fails {
            return Err(PoolDeviceError::Failed(EIO));
        }
        if let Some(watch) = &self.watch {
            watch.lock().expect("no test panics with it").synced(device);
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content is too long to be read.
        let Self { no_space, fails, counts, .. } = self;
        let DeviceCounts { reads, read_blocks, writes, written_blocks, syncs } = counts;
        write!(
            f,
            "devices of {:?} blocks, no space: {no_space}, fail: {fails}, {reads} reads of \
             {read_blocks} blocks, {writes} writes of {written_blocks} blocks, {syncs} syncs",
            self.sizes()
        )
    }
}
