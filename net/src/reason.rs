//! Why a frame was dropped: one list for all ports, so that counters read alike.

use std::fmt;

use sidecore::Counter;

/// Makes the list, its names and its length from one table.
macro_rules! reasons {
    ($($(#[doc = $doc:expr])+ $variant:ident = $name:literal,)+) => {
        /// Why a frame went no further.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Reason {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// One word, for counters.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

reasons! {
    /// Shorter than the device's own header and an Ethernet header.
    Short = "short",
    /// Longer than any frame, with segmentation offload or without.
    TooLong = "too_long",
    /// Longer than the port's MTU, and not to be segmented.
    OverMtu = "over_mtu",
    /// An offload that was not negotiated, or is not known.
    OffloadUnknown = "offload_unknown",
    /// The checksum to be completed lies outside of the frame or of its headers.
    ChecksumPlace = "checksum_place",
    /// To be segmented, but without the headers that this needs.
    SegmentHeaders = "segment_headers",
    /// To be segmented into pieces of no bytes, or into too many.
    SegmentSize = "segment_size",
    /// The source is a group address, or nobody's.
    SourceInvalid = "source_invalid",
    /// The source is not an address of this port.
    SourceForeign = "source_foreign",
    /// The VLAN, or having a tag at all, is not this port's.
    VlanForeign = "vlan_foreign",
    /// To an address that no switch passes on: the link's own protocols.
    Reserved = "reserved",
    /// More frames to everyone than this port may send.
    FloodLimit = "flood_limit",
    /// Copies for everyone would cost more than this port, or all ports of its node, may cost.
    CopyLimit = "copy_limit",
    /// To a port that this one may not talk to.
    Isolated = "isolated",
    /// To an address behind the port that it came from.
    Returning = "returning",
    /// There is no other port in its VLAN.
    Nowhere = "nowhere",
    /// A rule says so.
    Filtered = "filtered",
    /// Faster than the port's limit.
    Limited = "limited",
    /// The receiver is not there: its guest has not started it, or the uplink is down.
    LinkDown = "link_down",
    /// The receiver has no room.
    NoRoom = "no_room",
    /// The receiver's buffers are smaller than the frame.
    BufferSmall = "buffer_small",
    /// The receiver refused it.
    Refused = "refused",
}

/// How many frames were dropped, by reason. One writer.
#[derive(Default)]
pub struct Drops([Counter; Reason::ALL.len()]);

impl Drops {
    /// Counts one.
    pub fn count(&self, reason: Reason) {
        self.0[reason as usize].add(1);
    }

    /// How many so far.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize].get()
    }

    /// How many for all reasons together.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    /// Those that happened, by name.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = Reason::ALL.iter().map(|reason| (reason.name(), self.get(*reason)));
        all.filter(|(_, count)| *count > 0)
    }
}

impl fmt::Debug for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.by_name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_place_and_a_name_of_its_own() {
        let drops = Drops::default();
        for (at, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            drops.count(*reason);
        }
        let mut names: Vec<_> = drops.by_name().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), drops.total()), (Reason::ALL.len(), names.len() as u64));
    }
}
