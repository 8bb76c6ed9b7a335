//! The messages between the kernel's ublk driver and its server: `linux/ublk_cmd.h`, as of Linux
//! 6.12.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The bits of a sector's length in bytes, for each block size.
pub const SECTOR_SHIFT: u32 = 9;

/// Features of the driver; asked for when a device is made.
pub mod feature {
    /// The device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that the last server had go to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are numbered like ioctls.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
}

/// The features that a device of ours has.
pub const FEATURES: u64 =
    feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE | feature::CMD_IOCTL_ENCODE;

/// Where a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Made and not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// Without a server; requests wait.
    Quiesced,
    /// Any other: of a later kernel.
    Other(u16),
}

impl DeviceState {
    /// Of the driver's number.
    pub fn of(number: u16) -> Self {
        match number {
            0 => Self::Dead,
            1 => Self::Live,
            2 => Self::Quiesced,
            other => Self::Other(other),
        }
    }
}

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, KnownLayout, FromBytes)]
#[repr(C)]
pub struct ControlCommand {
    /// The device; all ones when a new device is made and the driver numbers it.
    pub dev_id: u32,
    /// All ones: the whole device.
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// The memory that the driver reads or fills.
    pub addr: u64,
    /// The command's own.
    pub data: u64,
    /// Not used.
    pub dev_path_len: u16,
    /// Zero.
    pub pad: u16,
    /// Zero.
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable, KnownLayout, FromBytes,
)]
#[repr(C)]
pub struct DeviceInfo {
    /// Queues.
    pub nr_hw_queues: u16,
    /// Requests at once on each.
    pub queue_depth: u16,
    /// See [`DeviceState`].
    pub state: u16,
    /// Zero.
    pub pad0: u16,
    /// The largest request.
    pub max_io_buf_bytes: u32,
    /// Its number.
    pub dev_id: u32,
    /// Its server's process.
    pub ublksrv_pid: i32,
    /// Zero.
    pub pad1: u32,
    /// See [`feature`].
    pub flags: u64,
    /// Not the driver's but the server's, which keeps a mark of its disk there.
    pub ublksrv_flags: u64,
    /// The user that made it, for unprivileged ones.
    pub owner_uid: u32,
    /// Its group.
    pub owner_gid: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// `struct ublk_params` up to those of discards; the others are not given.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable, KnownLayout, FromBytes,
)]
#[repr(C)]
pub struct Parameters {
    /// Of this structure.
    pub len: u32,
    /// Which parts are given: see [`PARAMETERS_BASIC`].
    pub types: u32,
    /// See [`attribute`].
    pub attrs: u32,
    /// The smallest unit of addresses.
    pub logical_bs_shift: u8,
    /// The smallest unit written without reading.
    pub physical_bs_shift: u8,
    /// The best size.
    pub io_opt_shift: u8,
    /// The smallest good size.
    pub io_min_shift: u8,
    /// The largest request.
    pub max_sectors: u32,
    /// No request crosses a multiple of it; 0 for none.
    pub chunk_sectors: u32,
    /// The disk's size.
    pub dev_sectors: u64,
    /// Of scattered requests; 0 for none.
    pub virt_boundary_mask: u64,
    /// Where discards begin best.
    pub discard_alignment: u32,
    /// In units of this they give space back.
    pub discard_granularity: u32,
    /// The largest; 0 for none at all.
    pub max_discard_sectors: u32,
    /// The same of write-zeroes.
    pub max_write_zeroes_sectors: u32,
    /// Ranges of one: the driver has 1.
    pub max_discard_segments: u16,
    /// Zero.
    pub reserved: u16,
    /// Where the next part begins, which is not given.
    pub unused: u32,
}

/// [`Parameters::types`]: the basic ones are given.
pub const PARAMETERS_BASIC: u32 = 1 << 0;

/// [`Parameters::types`]: those of discards are.
pub const PARAMETERS_DISCARD: u32 = 1 << 1;

/// Bits of [`Parameters::attrs`].
pub mod attribute {
    /// Writes are refused.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Completed writes may be lost until they are flushed.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// A write can ask to be durable by itself.
    pub const FUA: u32 = 1 << 3;
}

/// `struct ublksrv_io_desc`: a request, in memory that the driver shares with us.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable, KnownLayout, FromBytes,
)]
#[repr(C)]
pub struct Descriptor {
    /// The operation and its flags: see [`op`] and [`FUA`].
    pub op_flags: u32,
    /// How much.
    pub nr_sectors: u32,
    /// From where on.
    pub start_sector: u64,
    /// Where its data is.
    pub addr: u64,
}

impl Descriptor {
    /// See [`op`].
    pub fn op(&self) -> u32 {
        self.op_flags & 0xff
    }

    /// Whether a write has to be durable when it is answered.
    pub fn is_durable(&self) -> bool {
        self.op_flags & FUA != 0
    }
}

/// [`Descriptor::op_flags`] of a durable write.
pub const FUA: u32 = 1 << 13;

/// [`Descriptor::op_flags`] of zeroes whose range keeps its space.
pub const NOUNMAP: u32 = 1 << 15;

/// The operations of requests.
pub mod op {
    /// A read.
    pub const READ: u32 = 0;
    /// A write.
    pub const WRITE: u32 = 1;
    /// A flush.
    pub const FLUSH: u32 = 2;
    /// A discard.
    pub const DISCARD: u32 = 3;
    /// Zeroes onto a range.
    pub const WRITE_ZEROES: u32 = 5;
}

/// `struct ublksrv_io_cmd`: our answer to a request, and where the next one's data goes.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, KnownLayout, FromBytes)]
#[repr(C)]
pub struct IoCommand {
    /// The queue.
    pub q_id: u16,
    /// The request's place in it.
    pub tag: u16,
    /// Bytes done, or a negative error number.
    pub result: i32,
    /// The buffer.
    pub addr: u64,
}

/// The driver's word for "this device is stopping: ask for no more requests" (ENODEV).
pub const ABORT: i32 = -libc::ENODEV;

/// Bytes between two queues' descriptors in the character device's file: room for the deepest
/// queue that the driver has, in pages.
pub const DESCRIPTORS_STRIDE_BYTES: u64 = 4096 * size_of::<Descriptor>() as u64;

/// Numbers of commands.
pub mod command {
    const READS: u32 = 2;
    const BOTH: u32 = 3;

    /// The value of `_IOC` for direction, number and size, with the driver's letter.
    const fn ioc(direction: u32, number: u32, bytes: usize) -> u32 {
        direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
    }

    const CONTROL_BYTES: usize = size_of::<super::ControlCommand>();
    const IO_BYTES: usize = size_of::<super::IoCommand>();

    /// Makes a device.
    pub const ADD: u32 = ioc(BOTH, 0x04, CONTROL_BYTES);
    /// Removes one that is stopped.
    pub const DELETE: u32 = ioc(BOTH, 0x05, CONTROL_BYTES);
    /// Shows the disk; waits until all its requests are asked for.
    pub const START: u32 = ioc(BOTH, 0x06, CONTROL_BYTES);
    /// Takes the disk away; waits for what is on its way.
    pub const STOP: u32 = ioc(BOTH, 0x07, CONTROL_BYTES);
    /// Sets [`super::Parameters`].
    pub const SET_PARAMETERS: u32 = ioc(BOTH, 0x08, CONTROL_BYTES);
    /// Begins to serve a quiesced device.
    pub const START_RECOVERY: u32 = ioc(BOTH, 0x10, CONTROL_BYTES);
    /// Goes on with it; waits until all its requests are asked for.
    pub const END_RECOVERY: u32 = ioc(BOTH, 0x11, CONTROL_BYTES);
    /// Tells [`super::DeviceInfo`].
    pub const GET_INFO: u32 = ioc(READS, 0x02, CONTROL_BYTES);
    /// Tells what the driver can do, as [`super::feature`]s in 8 bytes.
    pub const GET_FEATURES: u32 = ioc(READS, 0x13, CONTROL_BYTES);
    /// Asks for the first request of a place.
    pub const FETCH: u32 = ioc(BOTH, 0x20, IO_BYTES);
    /// Answers a place's request and asks for the next one.
    pub const COMMIT_AND_FETCH: u32 = ioc(BOTH, 0x21, IO_BYTES);
}

const _: () = {
    assert!(size_of::<ControlCommand>() == 32);
    assert!(size_of::<DeviceInfo>() == 64);
    assert!(size_of::<Parameters>() == 64);
    assert!(size_of::<Descriptor>() == 24);
    assert!(size_of::<IoCommand>() == 16);
    // As the C header's macros come out.
    assert!(command::ADD == 0xc020_7504);
    assert!(command::GET_INFO == 0x8020_7502);
    assert!(command::FETCH == 0xc010_7520);
    assert!(DESCRIPTORS_STRIDE_BYTES == 98304);
};
