//! Devices that become longer, join the pool and leave it, while users go on.

use store::format::DEVICE_HEADER_BLOCKS;
use store::{DeviceChange, PoolStatus, SEGMENTS_MIN};

use super::Failure;
use super::disk::SimDisk;
use super::life::{Ask, Request, World};

/// The most devices of a world.
const DEVICES_MAX: usize = 5;

/// The most segments of a device that joins, or that another device gets.
const SEGMENTS_MAX: u64 = 48;

impl World {
    /// Now and then, a change of the devices.
    pub(super) fn change_devices(&mut self) {
        let rounds = self.plan.device_rounds;
        let is_under_way = |request: &Request| matches!(request.ask, Ask::Devices(_));
        if rounds == 0 || !self.random.one_in(rounds) || self.requests.values().any(is_under_way) {
            return;
        }
        let engine = self.engine.as_ref().expect("the pool is open");
        let devices = engine.devices();
        let free = engine.free_device().filter(|_| devices.len() < DEVICES_MAX);
        let at = self.random.below(devices.len() as u64) as usize;
        let (device, is_leaving) = (devices[at].number, devices[at].is_leaving);
        let segment_blocks = u64::from(self.plan.layout.segment_blocks);
        let segments = self.random.between(1, SEGMENTS_MAX);
        let change = match self.random.below(4) {
            0 => {
                let disk = &mut self.disks[usize::from(device)];
                // A change that did not come to its end left a device that is longer already.
                let blocks = disk.blocks() + segments * segment_blocks / 2;
                disk.grow(blocks);
                DeviceChange::Grow { device, blocks }
            }
            1 | 2 if free.is_some_and(|free| !engine.uses_device(free)) => {
                let device = free.expect("looked at just now");
                let blocks = DEVICE_HEADER_BLOCKS + segments.max(SEGMENTS_MIN / 2) * segment_blocks;
                self.plug_in(device, blocks);
                let mut uuid = [0; 16];
                uuid[..8].copy_from_slice(&self.random.draw().to_le_bytes());
                uuid[8] = 1;
                DeviceChange::Add { device, uuid, blocks }
            }
            _ if is_leaving && self.random.one_in(8) => DeviceChange::Keep { device },
            _ => DeviceChange::Remove { device },
        };
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.change_devices(tag, change);
        self.admitted(admission, tag, stamp, Ask::Devices(change));
    }

    /// A new disk in a place of the pool's table.
    fn plug_in(&mut self, device: u8, blocks: u64) {
        let mut disk = SimDisk::new(blocks);
        disk.faults = self.plan.faults;
        let place = usize::from(device);
        match self.disks.get_mut(place) {
            Some(old) => {
                // The count of faults goes on.
                disk.medium_faults = old.medium_faults;
                *old = disk;
            }
            None => self.disks.push(disk),
        }
    }

    /// A change of the devices is durable.
    pub(super) fn devices_changed(&mut self, change: DeviceChange) {
        let what = match change {
            DeviceChange::Grow { .. } => "longer devices",
            DeviceChange::Add { .. } => "devices that joined",
            DeviceChange::Remove { .. } => "devices that began to leave",
            DeviceChange::Keep { .. } => "devices that stayed after all",
        };
        self.tally.add(what, 1);
    }

    /// The devices for an opening. Those that are not the pool's may be there or not.
    pub(super) fn device_sizes(&mut self) -> Vec<u64> {
        self.disks.iter().map(SimDisk::blocks).collect()
    }

    /// At rest, a device that leaves has left, unless there is a reason.
    pub(super) fn check_devices_at_rest(&mut self, status: &PoolStatus) -> Result<(), Failure> {
        let leaving = status.devices.iter().filter(|device| device.is_leaving);
        for device in leaving {
            let slack = 4 * u64::from(status.segment_blocks);
            let is_full = status.used_blocks + slack >= status.size_blocks;
            if self.plan.has_good_media() && !is_full && device.is_stuck {
                return Err(Failure::new("a device does not leave", format!("{status:?}")));
            }
            self.tally.add("leaves that are stuck at rest", 1);
        }
        if (status.devices.len() as u64) < self.disks.len() as u64 {
            self.tally.add("rests without a device that left", 1);
        }
        Ok(())
    }
}
