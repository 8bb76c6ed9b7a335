//! The properties of a virtio-blk device: feature bits and the config space.

/// Feature bits, as numbers of bits: virtio 1.2, sections 5.2.3 and 6, and vhost-user's own.
pub mod feature {
    /// The disk is read-only.
    pub const BLK_RO: u32 = 5;
    /// `blk_size` is valid.
    pub const BLK_SIZE: u32 = 6;
    /// At most `seg_max` pieces in a request.
    pub const BLK_SEG_MAX: u32 = 2;
    /// There is a flush; without it every write is durable.
    pub const BLK_FLUSH: u32 = 9;
    /// The topology is valid.
    pub const BLK_TOPOLOGY: u32 = 10;
    /// More than one queue.
    pub const BLK_MQ: u32 = 12;
    /// Sectors can be forgotten.
    pub const BLK_DISCARD: u32 = 13;
    /// Sectors can be zeroed.
    pub const BLK_WRITE_ZEROES: u32 = 14;
    /// Pages that the device writes are marked.
    pub const LOG_ALL: u32 = 26;
    /// Indirect descriptors.
    pub const INDIRECT_DESC: u32 = 28;
    /// Events by index.
    pub const EVENT_IDX: u32 = 29;
    /// vhost-user has protocol features.
    pub const PROTOCOL_FEATURES: u32 = 30;
    /// Virtio 1.0 or later.
    pub const VERSION_1: u32 = 32;
    /// Packed rings.
    pub const RING_PACKED: u32 = 34;
}

/// Protocol feature bits of vhost-user, as numbers of bits.
pub mod protocol {
    /// GET_QUEUE_NUM.
    pub const MQ: u32 = 0;
    /// The log of dirty pages is in shared memory.
    pub const LOG_SHMFD: u32 = 1;
    /// Acknowledgements.
    pub const REPLY_ACK: u32 = 3;
    /// A back-channel.
    pub const BACKEND_REQ: u32 = 5;
    /// GET_CONFIG.
    pub const CONFIG: u32 = 9;
    /// The inflight region.
    pub const INFLIGHT_SHMFD: u32 = 12;
    /// Regions are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u32 = 15;
}

/// Whether a set of features has a bit.
pub fn has(features: u64, bit: u32) -> bool {
    features & mask(bit) != 0
}

pub(super) const fn mask(bit: u32) -> u64 {
    1 << bit
}

/// The features of virtio-blk that a stand-in uses where they are offered.
pub(super) const BLK_KNOWN: u64 = mask(feature::BLK_RO)
    | mask(feature::BLK_SIZE)
    | mask(feature::BLK_SEG_MAX)
    | mask(feature::BLK_FLUSH)
    | mask(feature::BLK_TOPOLOGY)
    | mask(feature::BLK_MQ)
    | mask(feature::BLK_DISCARD)
    | mask(feature::BLK_WRITE_ZEROES);

/// How much of the config space is read: up to `write_zeroes_may_unmap` and its padding, which
/// every back end has.
pub(super) const CONFIG_BYTES: u32 = 60;

/// The contents of the config space; fields without their feature are zero or the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// Size in sectors of 512 bytes.
    pub capacity_sectors: u64,
    /// The block size in bytes.
    pub block_bytes: u32,
    /// The most pieces in a request; zero when the device sets no limit.
    pub segments_max: u32,
    /// Queues that the device has.
    pub queues: u16,
    /// Nothing can be written.
    pub read_only: bool,
    /// Writes are durable only after a flush.
    pub flush: bool,
    /// The most sectors of one range of a discard; zero where there is none.
    pub discard_sectors_max: u32,
    /// The most sectors of one range of a write-zeroes; zero where there is none.
    pub write_zeroes_sectors_max: u32,
    /// A write-zeroes may give space back.
    pub may_unmap: bool,
    /// Blocks that the storage writes as a whole, as a power of two.
    pub physical_block_exp: u8,
}

impl DiskInfo {
    /// Reads the config space in the light of the features offered; `config` has `CONFIG_BYTES`.
    pub(super) fn read(config: &[u8], features: u64) -> Self {
        let le = |at: usize, len: usize| {
            config[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let if_offered = |bit, value: u64, otherwise| {
            if has(features, bit) { value } else { otherwise }
        };
        Self {
            capacity_sectors: le(0, 8),
            segments_max: if_offered(feature::BLK_SEG_MAX, le(12, 4), 0) as u32,
            block_bytes: if_offered(feature::BLK_SIZE, le(20, 4), 512) as u32,
            queues: if_offered(feature::BLK_MQ, le(34, 2), 1) as u16,
            read_only: has(features, feature::BLK_RO),
            flush: has(features, feature::BLK_FLUSH),
            discard_sectors_max: if_offered(feature::BLK_DISCARD, le(36, 4), 0) as u32,
            write_zeroes_sectors_max: if_offered(feature::BLK_WRITE_ZEROES, le(48, 4), 0) as u32,
            may_unmap: if_offered(feature::BLK_WRITE_ZEROES, le(56, 1), 0) != 0,
            physical_block_exp: if_offered(feature::BLK_TOPOLOGY, le(24, 1), 0) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_count_only_with_their_features() {
        let mut config = [0; CONFIG_BYTES as usize];
        config[0] = 8;
        config[12] = 126;
        config[20..22].copy_from_slice(&4096u16.to_le_bytes());
        config[34] = 4;
        let plain = DiskInfo::read(&config, 0);
        assert_eq!((plain.capacity_sectors, plain.block_bytes, plain.queues), (8, 512, 1));
        let all = DiskInfo::read(&config, BLK_KNOWN);
        assert_eq!((all.segments_max, all.block_bytes, all.queues), (126, 4096, 4));
        assert!(all.read_only && all.flush);
    }
}
