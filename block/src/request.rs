//! virtio-blk on the wire: requests as the guest lays them out, and the configuration space
//! (virtio 1.2, section 5.2).
//!
//! ```text
//!   readable: type u32 | reserved u32 | sector u64 | data of a write
//!   writable: data of a read | status u8
//! ```
//!
//! The driver may cut both halves anywhere. The header is read once, into a copy that is checked.

use virtio::{Chain, Segment};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::volume::{IO_BYTES_MAX, Op, SECTOR_BYTES, SEGMENTS_MAX, VolumeInfo};

/// Length of the serial number.
pub const ID_BYTES: usize = 20;

/// The most pieces that a guest is asked to cut a request into: what fits a ring of 128, QEMU's
/// default, beside the header and the status. Longer chains are served up to [`SEGMENTS_MAX`].
pub const SEG_MAX: u32 = 126;

const _: () = assert!(SEG_MAX as usize <= SEGMENTS_MAX);

/// Feature bits of virtio-blk.
pub mod feature {
    /// `size_max` is valid.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// `seg_max` is valid.
    pub const SEG_MAX: u64 = 1 << 2;
    /// Writes are refused.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` is valid.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// There is a flush. A driver that does not accept it gets durable writes.
    pub const FLUSH: u64 = 1 << 9;
    /// `num_queues` is valid.
    pub const MQ: u64 = 1 << 12;
}

/// The answer to a request: the last byte that the device writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// VIRTIO_BLK_S_OK.
    Ok = 0,
    /// VIRTIO_BLK_S_IOERR.
    IoError = 1,
    /// VIRTIO_BLK_S_UNSUPP.
    Unsupported = 2,
}

/// The first bytes of a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

const HEADER_BYTES: usize = size_of::<Header>();

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;

/// The configuration space, up to the fields of write-zeroes. What has no feature is zero.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Config {
    capacity_sectors: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    topology: [u8; 8],
    writeback: u8,
    unused: u8,
    num_queues: U16,
    discard: [U32; 3],
    write_zeroes: [U32; 2],
    write_zeroes_may_unmap: u8,
    padding: [u8; 3],
}

const _: () = assert!(size_of::<Config>() == 60);

/// The configuration space of a disk on such a volume, with this many queues.
pub fn config(info: &VolumeInfo, queues: u16) -> Vec<u8> {
    let config = Config {
        capacity_sectors: (info.size_bytes / SECTOR_BYTES).into(),
        size_max: IO_BYTES_MAX.into(),
        seg_max: SEG_MAX.into(),
        blk_size: info.block_bytes.into(),
        num_queues: queues.into(),
        ..Config::default()
    };
    config.as_bytes().to_vec()
}

/// The features of a disk on such a volume, with this many queues.
pub fn features(info: &VolumeInfo, queues: u16) -> u64 {
    let mut features = feature::SIZE_MAX | feature::SEG_MAX | feature::BLK_SIZE;
    if info.read_only {
        features |= feature::RO;
    }
    // Where each write is durable there is no cache to flush, and a guest that knows sends none.
    if info.durability == crate::volume::Durability::Flush {
        features |= feature::FLUSH;
    }
    if queues > 1 {
        features |= feature::MQ;
    }
    features
}

/// The serial number that a name makes: its first bytes, padded with zeroes.
pub fn serial(name: &str) -> [u8; ID_BYTES] {
    let mut serial = [0; ID_BYTES];
    let len = name.len().min(ID_BYTES);
    serial[..len].copy_from_slice(&name.as_bytes()[..len]);
    serial
}

/// What a chain asks for, checked as far as the volume is not concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Read or write `len_bytes` from `offset_bytes` on; the data is in the buffer that was given.
    Transfer {
        /// Read or write.
        op: Op,
        /// First byte on the volume.
        offset_bytes: u64,
        /// How much.
        len_bytes: u32,
    },
    /// Make durable what was completed.
    Flush,
    /// The serial number, into the buffer that was given.
    GetId,
    /// Makes no sense, and can be told so.
    Nonsense(Answer),
}

/// A request as it was found in a chain.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What it asks for.
    pub asked: Asked,
    /// Where the answer goes. Valid as long as the chain's segments.
    pub answer: *mut u8,
}

/// A chain that is no request at all: there is no room for an answer, so the driver cannot even be
/// told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request without room for its status byte")]
pub struct NoAnswer;

/// Looks at a chain. The pieces of its data are put into `data`, which is emptied first.
///
/// # Errors
/// [`NoAnswer`] when the driver left no byte to write.
///
/// # Safety
/// The chain's segments must still be valid.
pub unsafe fn parse(chain: &Chain, data: &mut Vec<Segment>) -> Result<Request, NoAnswer> {
    data.clear();
    let last = chain.writable.last().filter(|last| last.len > 0).ok_or(NoAnswer)?;
    let answer = last.addr.wrapping_add(last.len as usize - 1);
    let mut bytes = [0; HEADER_BYTES];
    // SAFETY: the caller's promise.
    let found = unsafe { virtio::gather(&chain.readable, 0, &mut bytes) };
    if found < HEADER_BYTES {
        return Ok(Request { asked: Asked::Nonsense(Answer::IoError), answer });
    }
    let header = Header::read_from_bytes(&bytes).expect("as long as a header");
    Ok(Request { asked: ask(chain, &header, data), answer })
}

fn ask(chain: &Chain, header: &Header, data: &mut Vec<Segment>) -> Asked {
    let nonsense = Asked::Nonsense(Answer::IoError);
    let inward = chain.writable_bytes() - 1;
    let (op, pieces, skip, len_bytes) = match header.kind.get() {
        IN => (Op::Read, &chain.writable, 0, inward),
        OUT => {
            let skip = HEADER_BYTES as u32;
            (Op::Write, &chain.readable, skip, chain.readable_bytes() - skip)
        }
        FLUSH => return Asked::Flush,
        GET_ID => {
            cut(&chain.writable, 0, inward, data);
            return if inward as usize >= ID_BYTES { Asked::GetId } else { nonsense };
        }
        _ => return Asked::Nonsense(Answer::Unsupported),
    };
    let offset_bytes = header.sector.get().checked_mul(SECTOR_BYTES);
    let whole = u64::from(len_bytes).is_multiple_of(SECTOR_BYTES);
    let (Some(offset_bytes), true) = (offset_bytes, whole) else { return nonsense };
    cut(pieces, skip, len_bytes, data);
    if data.len() > SEGMENTS_MAX {
        // We said so in `seg_max`.
        return nonsense;
    }
    Asked::Transfer { op, offset_bytes, len_bytes }
}

/// Appends the `len` bytes that come after the first `skip` of some pieces to `data`.
pub fn cut(pieces: &[Segment], mut skip: u32, mut len: u32, data: &mut Vec<Segment>) {
    for piece in pieces {
        if len == 0 {
            return;
        }
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let part = len.min(piece.len - skip);
        data.push(Segment { addr: piece.addr.wrapping_add(skip as usize), len: part });
        len -= part;
        skip = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Durability, Incarnation};

    fn info() -> VolumeInfo {
        VolumeInfo {
            size_bytes: 1 << 30,
            block_bytes: 4096,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            incarnation: Incarnation::default(),
        }
    }

    /// Requests in memory that lives as long as the test.
    struct Guest {
        bytes: Vec<u8>,
        chain: Chain,
        data: Vec<Segment>,
    }

    impl Guest {
        /// A request with this many bytes to read (header included) and to write (status
        /// included), in pieces of `piece` bytes.
        fn new(kind: u32, sector: u64, readable: usize, writable: usize, piece: usize) -> Self {
            let mut bytes = vec![0; readable + writable];
            let header = Header { kind: kind.into(), reserved: 9.into(), sector: sector.into() };
            let have = readable.min(HEADER_BYTES);
            bytes[..have].copy_from_slice(&header.as_bytes()[..have]);
            let mut chain = Chain::new();
            let base = bytes.as_mut_ptr();
            let pieces = |from: usize, to: usize| {
                (from..to).step_by(piece).map(move |at| Segment {
                    addr: base.wrapping_add(at),
                    len: piece.min(to - at) as u32,
                })
            };
            chain.readable.extend(pieces(0, readable));
            chain.writable.extend(pieces(readable, readable + writable));
            Self { bytes, chain, data: Vec::new() }
        }

        fn parse(&mut self) -> Result<Asked, NoAnswer> {
            // SAFETY: the segments point into `bytes`.
            let request = unsafe { parse(&self.chain, &mut self.data) }?;
            assert_eq!(request.answer, self.at(self.bytes.len() - 1), "the last byte");
            Ok(request.asked)
        }

        fn at(&mut self, at: usize) -> *mut u8 {
            self.bytes.as_mut_ptr().wrapping_add(at)
        }

        fn data_bytes(&self) -> u64 {
            crate::copy::total_bytes(&self.data)
        }
    }

    #[test]
    fn a_transfer_is_found_however_it_is_cut() {
        for piece in [1 << 20, 4096, 512, 100, 17] {
            let mut read = Guest::new(IN, 7, 16, 4097, piece);
            let asked = Asked::Transfer { op: Op::Read, offset_bytes: 7 * 512, len_bytes: 4096 };
            assert_eq!(read.parse(), Ok(asked));
            assert_eq!((read.data_bytes(), read.data[0].addr), (4096, read.at(16)));
            let mut write = Guest::new(OUT, 8, 16 + 1024, 1, piece);
            let asked = Asked::Transfer { op: Op::Write, offset_bytes: 4096, len_bytes: 1024 };
            assert_eq!(write.parse(), Ok(asked));
            assert_eq!((write.data_bytes(), write.data[0].addr), (1024, write.at(16)));
        }
    }

    #[test]
    fn requests_without_data() {
        assert_eq!(Guest::new(FLUSH, 0, 16, 1, 64).parse(), Ok(Asked::Flush));
        let mut id = Guest::new(GET_ID, 0, 16, 21, 8);
        assert_eq!(id.parse(), Ok(Asked::GetId));
        assert_eq!(id.data_bytes(), 20);
        let unsupported = Ok(Asked::Nonsense(Answer::Unsupported));
        for kind in [2, 11, 13, 99, u32::MAX] {
            assert_eq!(Guest::new(kind, 0, 16, 1, 64).parse(), unsupported);
        }
    }

    #[test]
    fn nonsense_is_answered_with_an_error() {
        let error = Ok(Asked::Nonsense(Answer::IoError));
        assert_eq!(Guest::new(IN, 0, 15, 513, 64).parse(), error, "a short header");
        assert_eq!(Guest::new(IN, 0, 0, 513, 64).parse(), error, "no header");
        assert_eq!(Guest::new(IN, 0, 16, 512, 64).parse(), error, "not whole sectors");
        assert_eq!(Guest::new(OUT, 0, 16 + 511, 1, 64).parse(), error, "not whole sectors");
        assert_eq!(Guest::new(IN, u64::MAX / 512 + 1, 16, 513, 64).parse(), error, "overflow");
        assert_eq!(Guest::new(GET_ID, 0, 16, 20, 64).parse(), error, "no room for the id");
        let many = (SEGMENTS_MAX + 1) * 512;
        assert_eq!(Guest::new(OUT, 0, 16 + many, 1, 512).parse(), error, "too many pieces");
        assert_ne!(Guest::new(OUT, 0, 16 + many, 1, 1024).parse(), error, "few enough");
        assert!(Guest::new(OUT, 0, 512, 0, 512).parse().is_err(), "nowhere to answer");
    }

    #[test]
    fn the_configuration_space_is_laid_out_as_specified() {
        let config = config(&info(), 4);
        assert_eq!(config.len(), 60);
        assert_eq!(config[..8], (1u64 << 21).to_le_bytes());
        assert_eq!(config[8..12], (1u32 << 20).to_le_bytes());
        assert_eq!(config[12..16], 126u32.to_le_bytes());
        assert_eq!(config[20..24], 4096u32.to_le_bytes());
        assert_eq!(config[34..36], 4u16.to_le_bytes());
    }

    #[test]
    fn features_follow_the_volume() {
        let plain = features(&info(), 1);
        assert_eq!(plain & (feature::RO | feature::MQ), 0);
        assert_ne!(plain & feature::FLUSH, 0);
        let other = VolumeInfo { read_only: true, durability: Durability::WriteThrough, ..info() };
        let features = features(&other, 2);
        assert_eq!(features & feature::FLUSH, 0);
        assert_ne!(features & feature::RO, 0);
        assert_ne!(features & feature::MQ, 0);
    }

    #[test]
    fn a_serial_is_cut_or_padded() {
        assert_eq!(&serial("alice")[..6], b"alice\0");
        assert_eq!(&serial("a-name-of-more-than-twenty-bytes"), b"a-name-of-more-than-");
    }
}
