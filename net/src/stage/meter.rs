//! Counts what passes: how much of what kind, in which sizes.

use std::sync::Arc;

use sidecore::Counter;

use super::{Direction, FrameStage};
use crate::ether::{self, TYPE_ARP, TYPE_IPV4, TYPE_IPV6};
use crate::frame::{Burst, Frame};
use crate::reason::Reason;

/// Frames of at most so many bytes are counted together; longer ones are the last sort.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1514, usize::MAX];

sidecore::counters! {
    /// The counters of one direction.
    pub struct DirectionCounts {
        /// Frames.
        frames,
        /// Their bytes, without tags.
        bytes,
        /// Frames to a group, everyone among them.
        group_frames,
        /// Frames of IPv4.
        ipv4_frames,
        /// Frames of IPv6.
        ipv6_frames,
        /// Frames of ARP.
        arp_frames,
        /// Frames that are larger than the network's packets: to be cut.
        uncut_frames,
    }
    and {
        /// Frames by size; see [`SIZES`].
        pub sizes: [Counter; SIZES.len()],
    }
}

/// The counters of a meter. Written by its sidecore only.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct MeterCore {
    /// From the port into the network.
    pub sent: DirectionCounts,
    /// From the network to the port.
    pub received: DirectionCounts,
}

/// See the module's text.
#[derive(Debug)]
pub struct Meter(Arc<MeterCore>);

impl Meter {
    /// A meter that counts there.
    pub fn new(core: Arc<MeterCore>) -> Self {
        Self(core)
    }
}

impl FrameStage for Meter {
    fn pass(
        &mut self,
        direction: Direction,
        frame: &Frame,
        _burst: &Burst,
        _now_ns: u64,
    ) -> Result<(), Reason> {
        let flow = match direction {
            Direction::Sent => &self.0.sent,
            Direction::Received => &self.0.received,
        };
        let len = frame.len_bytes();
        flow.frames.add(1);
        flow.bytes.add(len as u64);
        flow.group_frames.add(u64::from(frame.addresses().0.is_group()));
        match ether::ether_type(frame.head()) {
            Some(TYPE_IPV4) => flow.ipv4_frames.add(1),
            Some(TYPE_IPV6) => flow.ipv6_frames.add(1),
            Some(TYPE_ARP) => flow.arp_frames.add(1),
            _ => {}
        }
        flow.uncut_frames.add(u64::from(frame.offload.cut != crate::Cut::None));
        let size = SIZES.iter().position(|most| len <= *most).expect("the last one takes all");
        flow.sizes[size].add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::FrameMaker;
    use crate::testing::pushed;

    #[test]
    fn each_frame_is_counted_once_in_each_way() {
        let core = Arc::<MeterCore>::default();
        let mut meter = Meter::new(Arc::clone(&core));
        let mut burst = Burst::new();
        for (len, direction) in
            [(10, Direction::Sent), (100, Direction::Sent), (1500, Direction::Received)]
        {
            burst.clear();
            pushed(&mut burst, &FrameMaker::udp6().payload(len).build(), 100);
            meter.pass(direction, &burst.frames()[0], &burst, 0).unwrap();
        }
        assert_eq!((core.sent.frames.get(), core.received.frames.get()), (2, 1));
        assert_eq!((core.sent.bytes.get(), core.sent.ipv6_frames.get()), (72 + 162, 2));
        let sizes: Vec<_> = core.sent.sizes.iter().map(Counter::get).collect();
        assert_eq!(sizes, [0, 1, 1, 0, 0, 0, 0]);
        assert_eq!(core.received.sizes[6].get(), 1);
    }
}
