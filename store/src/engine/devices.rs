//! Devices that become longer, join the pool and leave it.
//!
//! The superblock has the table of devices, so a checkpoint brings each change of it:
//!
//! ```text
//! longer   the next checkpoint has more segments; when it is durable they are free
//! joins    the same; the new device has this superblock before any other device
//! leaves   a checkpoint says so; streams go elsewhere, collection moves what is there; when
//!          nothing is left, a checkpoint has no such device, and the device is told last
//! ```
//!
//! So a leave goes on after a crash or a hand-over: it is a word in the table.

use serde::{Deserialize, Serialize};

use super::PoolEngine;
use super::checkpoint::TableChange;
use super::recover::SEGMENTS_MIN;
use super::rows::RowLog;
use super::segments::SegmentRecord;
use crate::api::{Admission, PoolError, RequestTag, VolumeId};
use crate::block::BLOCK_BYTES;
use crate::format::{
    DEVICE_HEADER_BLOCKS, DEVICES_MAX, DeviceRecord, SEGMENTS_PER_DEVICE_MAX, Superblock,
};

/// Free segments below the guests' floor with which a segment of a leaving device is still emptied:
/// a part of those that collection has for itself. Its blocks fill one, and their map a part of
/// another one.
const LEAVING_KEPT: usize = 2;

/// The pause before another checkpoint that lets streams go away from a leaving device: a busy
/// stream may not be able to go yet. It doubles as long as nothing gets on.
const LEAVING_PAUSE_NS: u64 = 5_000_000;

/// Pauses without any gain after which a leave is stuck. It looks again after the longest pause.
const FUTILE_LOOKS_MAX: u32 = 7;

/// A change of a pool's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// A device has become longer, and the pool uses what is new.
    Grow {
        /// The device's number.
        device: u8,
        /// Its whole length.
        blocks: u64,
    },
    /// A new device, whose content is lost.
    Add {
        /// The number that [`PoolEngine::free_device`] has given.
        device: u8,
        /// Its UUID, from a random source.
        uuid: [u8; 16],
        /// Its whole length.
        blocks: u64,
    },
    /// The pool moves all that is on the device to the others, and then lets it go. The request is
    /// done when that has begun for good; the status says how far it is.
    Remove {
        /// The device's number.
        device: u8,
    },
    /// The pool keeps a device that it was leaving.
    Keep {
        /// The device's number.
        device: u8,
    },
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDevice {
    /// Its number in the pool.
    pub number: u8,
    /// Its segments.
    pub segments: u32,
    /// Free ones among them.
    pub free_segments: u32,
    /// Blocks on it that are alive.
    pub live_blocks: u64,
    /// The pool moves them to the other devices.
    pub is_leaving: bool,
    /// The move does not get on: the other devices have no room, or damage holds blocks here.
    pub is_stuck: bool,
}

/// The changes of devices under way.
#[derive(Debug, Default)]
pub(crate) struct DeviceWork {
    /// The request that waits for a change.
    tag: Option<RequestTag>,
    /// When a leave looks for its end again.
    look_ns: u64,
    /// Looks since the leaving devices had less.
    futile: u32,
    /// Live blocks and free segments of the leaving devices, and whether the others have room.
    left: ((u64, usize), bool),
}

impl DeviceWork {
    fn is_stuck(&self) -> bool {
        self.futile >= FUTILE_LOOKS_MAX
    }
}

impl PoolEngine {
    /// Changes the pool's devices; one change at a time. A device that joins is used by the engine
    /// from this call on.
    pub fn change_devices(&mut self, tag: RequestTag, change: DeviceChange) -> Admission {
        let failed = self.core.failed.map(PoolError::DeviceFailed);
        if let Some(error) = failed.or(self.is_closing.then_some(PoolError::Closed)) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        if self.device_work.tag.is_some() || self.checkpointer.has_change() {
            return Admission::Busy;
        }
        match self.table_change(change) {
            Ok(TableChange { number, record }) => {
                if record.is_leaving() {
                    self.core.segments.set_leaving(number, true);
                    self.device_work.futile = 0;
                }
                let known = self.core.segments.of_device(number).segments;
                self.core.announced = record.segments.get().saturating_sub(known) as usize;
                self.device_work.tag = Some(tag);
                self.checkpointer.want_change(TableChange { number, record });
            }
            Err(text) => self.core.done(tag, Err(PoolError::Invalid(text))),
        }
        Admission::Taken
    }

    /// The number of a device that joins; `None` if the pool has as many as it can have.
    pub fn free_device(&self) -> Option<u8> {
        let table = &self.checkpointer.table().device_table;
        table.iter().position(|device| !device.is_used()).map(|place| place as u8)
    }

    /// Whether a device is one of the pool's, or has requests that it has not answered.
    pub fn uses_device(&self, number: u8) -> bool {
        self.core.uses(number) || self.checkpointer.changes_device(number)
    }

    /// The devices.
    pub fn devices(&self) -> Vec<PoolDevice> {
        let device = |number: u8| {
            let counts = self.core.segments.of_device(number);
            PoolDevice {
                number,
                segments: counts.segments,
                free_segments: counts.free,
                live_blocks: counts.live_blocks,
                is_leaving: counts.is_leaving,
                is_stuck: counts.is_leaving && self.device_work.is_stuck(),
            }
        };
        self.checkpointer.table().numbers().map(device).collect()
    }

    fn table_change(&self, change: DeviceChange) -> Result<TableChange, String> {
        let table = self.checkpointer.table();
        let known = |number: u8| {
            let record = table.device_table.get(usize::from(number)).copied();
            let record = record.filter(DeviceRecord::is_used);
            record.ok_or_else(|| format!("the pool has no device {number}"))
        };
        let (number, mut record) = match change {
            DeviceChange::Grow { device, .. }
            | DeviceChange::Remove { device }
            | DeviceChange::Keep { device } => (device, known(device)?),
            DeviceChange::Add { device, uuid, .. } => (device, DeviceRecord::new(uuid, 0)),
        };
        match change {
            DeviceChange::Grow { blocks, .. } => {
                record.segments = self.more_segments(table, blocks, record.segments.get())?.into();
            }
            DeviceChange::Add { uuid, blocks, .. } => {
                if self.free_device() != Some(number) {
                    return Err(format!("a pool has {DEVICES_MAX} devices at most"));
                }
                let is_known = |device: &DeviceRecord| device.uuid == uuid;
                if uuid == [0; 16] || table.device_table.iter().any(is_known) {
                    return Err("a new device needs a UUID of its own".into());
                }
                record.segments = self.more_segments(table, blocks, 0)?.into();
            }
            DeviceChange::Remove { .. } => {
                self.check_rest(number, record.segments.get())?;
                record.state = DeviceRecord::LEAVING.into();
            }
            DeviceChange::Keep { .. } => record.state = 0.into(),
        }
        Ok(TableChange { number, record })
    }

    /// The segments of a device of so many blocks, which has `known` already.
    fn more_segments(&self, table: &Superblock, blocks: u64, known: u32) -> Result<u32, String> {
        let segment_blocks = u64::from(table.segment_blocks.get());
        let segments = blocks.saturating_sub(DEVICE_HEADER_BLOCKS) / segment_blocks;
        let segments = segments.min(u64::from(SEGMENTS_PER_DEVICE_MAX) - 1) as u32;
        if segments <= known {
            let bytes = blocks * BLOCK_BYTES as u64;
            return Err(format!(
                "it has {bytes} bytes, which is room for {segments} segments of {} bytes, and the \
                 pool uses {known} of it: make it longer first",
                segment_blocks * BLOCK_BYTES as u64
            ));
        }
        // Each checkpoint lists all segments, twice; there may be two checkpoints.
        let list =
            4 * (size_of::<SegmentRecord>() * (segments - known) as usize).div_ceil(BLOCK_BYTES);
        let needed = self.core.guest_floor() + RowLog::segments_for(list, &self.core.segments);
        let free = self.core.segments.free_count();
        if free < needed {
            return Err(format!(
                "its {segments} segments make the pool's own list longer, for which {needed} free \
                 segments are needed, and the pool has {free}: remove snapshots or volumes first, \
                 or make the device smaller"
            ));
        }
        Ok(segments)
    }

    /// Whether the other devices have room for all that the pool has.
    fn check_rest(&self, number: u8, segments: u32) -> Result<(), String> {
        let core = &self.core;
        let is_leaving = core.segments.of_device(number).is_leaving;
        let goes = if is_leaving { 0 } else { segments as usize };
        let rest = core.segments.staying() - goes;
        if (rest as u64) < SEGMENTS_MIN {
            return Err(format!(
                "the other devices have {rest} segments, and a pool needs {SEGMENTS_MIN}: add a \
                 device first"
            ));
        }
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let (room, used) = (
            core.usable_in(rest),
            core.segments.live() + core.log.payload_under_way() + core.map.promised(),
        );
        if room < used {
            return Err(format!(
                "the other devices have room for {} bytes, and the pool has {}: remove snapshots \
                 or volumes, or add a device first",
                bytes(room),
                bytes(used)
            ));
        }
        Ok(())
    }

    /// Ends the request whose change is durable, and goes on with devices that leave.
    pub(super) fn work_on_devices(&mut self) {
        if let Some(error) = self.core.failed {
            if let Some(tag) = self.device_work.tag.take() {
                self.core.done(tag, Err(PoolError::DeviceFailed(error)));
            }
            return;
        }
        if let Some(change) = self.checkpointer.changed.take()
            // A device that has left has no request that waits.
            && change.record.is_used()
            && let Some(tag) = self.device_work.tag.take()
        {
            self.core.done(tag, Ok(VolumeId(0)));
        }
        if self.core.segments.has_leaving()
            && !self.is_closing
            && !self.collector.is_busy()
            && !self.checkpointer.is_busy()
        {
            self.leave_on();
        }
    }

    /// The next step of a leave: another segment is emptied, or a checkpoint.
    fn leave_on(&mut self) {
        let Self { core, device_work: work, collector, .. } = self;
        let (free, floor) = (core.segments.free_staying(), core.guest_floor());
        let has_room = free + LEAVING_KEPT >= floor;
        let left = (core.segments.left(), has_room);
        if std::mem::replace(&mut work.left, left) != left {
            (work.futile, work.look_ns) = (0, 0);
        }
        let segment = core.segments.next_to_leave(core.applied);
        if let Some(segment) = segment
            && has_room
        {
            collector.begin_with(core, segment);
            // It takes free segments, so collection on the others begins its count of gains anew.
            (self.space_before.0, self.rests_at) = (0, None);
            return;
        }
        if core.now_ns < work.look_ns {
            return;
        }
        work.look_ns = core.now_ns + (LEAVING_PAUSE_NS << work.futile);
        work.futile = (work.futile + 1).min(FUTILE_LOOKS_MAX);
        match core.segments.left_device().filter(|_| free >= floor) {
            Some(number) => {
                let gone = TableChange { number, record: DeviceRecord::NONE };
                self.checkpointer.want_change(gone);
            }
            // It frees what is empty, and lets streams go away.
            None if segment.is_none() => self.checkpointer.want_once(),
            None => {}
        }
    }

    /// Whether a leave has something to do.
    pub(super) fn is_leaving(&self) -> bool {
        self.core.segments.has_leaving() && !self.device_work.is_stuck()
    }
}
