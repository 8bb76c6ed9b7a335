//! virtio-blk on the wire: requests as the guest lays them out, and the configuration space
//! (virtio 1.2, section 5.2).
//!
//! ```text
//!   readable: type u32 | reserved u32 | sector u64 | data of a write
//!   writable: data of a read | status u8
//!
//!   data of a discard or write-zeroes: (sector u64 | sectors u32 | flags u32) ...
//! ```
//!
//! The driver may cut both halves anywhere. The header is read once, into a copy that is checked.

use virtio::{Chain, Segment};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use volume::{IO_BYTES_MAX, Op, RANGE_BYTES_MAX, SECTOR_BYTES, SEGMENTS_MAX, VolumeInfo};

/// Length of the serial number.
pub const ID_BYTES: usize = 20;

/// The most pieces that a guest is asked to cut a request into: as many as fit a ring of 128,
/// QEMU's default, beside the header and the status. Longer chains are served up to
/// [`SEGMENTS_MAX`].
pub const SEG_MAX: u32 = 126;

const _: () = assert!(SEG_MAX as usize <= SEGMENTS_MAX);

/// The most ranges of one discard or write-zeroes. A file system's trim has many small ones; each
/// is a request to the volume, and 16 of them are no more than a guest's queue may hold anyway.
pub const RANGES_MAX: usize = 16;

/// The most sectors of one range.
const RANGE_SECTORS_MAX: u32 = RANGE_BYTES_MAX / SECTOR_BYTES as u32;

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
    /// The topology is valid.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// `num_queues` is valid.
    pub const MQ: u64 = 1 << 12;
    /// Ranges can be discarded.
    pub const DISCARD: u64 = 1 << 13;
    /// Ranges can be zeroed.
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// The answer to a request: the last byte that the device writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StatusByte {
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

impl Header {
    /// The header that these pieces begin with, if they are long enough.
    ///
    /// # Safety
    /// The pieces must still be valid.
    #[inline]
    unsafe fn gather(pieces: &[Segment]) -> Option<Self> {
        let mut bytes = [0; HEADER_BYTES];
        // In one piece, as all drivers have it, or in several.
        // SAFETY: the caller's promise.
        let found = unsafe {
            pieces.first()?.read(&mut bytes)
                || virtio::gather(pieces, 0, &mut bytes) == HEADER_BYTES
        };
        found.then(|| zerocopy::transmute!(bytes))
    }
}

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// One range of a discard or write-zeroes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawRange {
    sector: U64,
    sectors: U32,
    flags: U32,
}

const RANGE_BYTES: usize = size_of::<RawRange>();

/// A range of a write-zeroes whose space may be given back.
const UNMAP: u32 = 1;

/// The configuration space, up to the fields of write-zeroes. Fields without a feature are zero.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Config {
    capacity_sectors: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_blocks: U16,
    opt_io_blocks: U32,
    writeback: u8,
    unused: u8,
    num_queues: U16,
    discard_sectors_max: U32,
    discard_seg_max: U32,
    discard_sector_alignment: U32,
    write_zeroes_sectors_max: U32,
    write_zeroes_seg_max: U32,
    write_zeroes_may_unmap: u8,
    padding: [u8; 3],
}

const _: () = assert!(size_of::<Config>() == 60);

/// The configuration space of a disk on such a volume, with this many queues.
pub fn config(info: &VolumeInfo, queues: u16) -> Vec<u8> {
    let (topology, zeroing) = (&info.topology, &info.zeroing);
    let if_can = |can: bool, value: u32| U32::from(if can { value } else { 0 });
    let physical_bytes = topology.physical_bytes.max(info.block_bytes);
    // Whole physical blocks, so that an operator's odd length does no harm.
    let optimal_bytes = topology.optimal_bytes.next_multiple_of(physical_bytes);
    let config = Config {
        capacity_sectors: (info.size_bytes / SECTOR_BYTES).into(),
        size_max: IO_BYTES_MAX.into(),
        seg_max: SEG_MAX.into(),
        blk_size: info.block_bytes.into(),
        physical_block_exp: (physical_bytes / info.block_bytes).ilog2() as u8,
        min_io_blocks: ((physical_bytes / info.block_bytes).min(u32::from(u16::MAX)) as u16).into(),
        opt_io_blocks: (optimal_bytes / info.block_bytes).into(),
        num_queues: queues.into(),
        discard_sectors_max: if_can(zeroing.discard, RANGE_SECTORS_MAX),
        discard_seg_max: if_can(zeroing.discard, RANGES_MAX as u32),
        discard_sector_alignment: if_can(
            zeroing.discard,
            zeroing.unit_bytes.max(info.block_bytes) / SECTOR_BYTES as u32,
        ),
        write_zeroes_sectors_max: if_can(zeroing.write_zeroes, RANGE_SECTORS_MAX),
        write_zeroes_seg_max: if_can(zeroing.write_zeroes, RANGES_MAX as u32),
        write_zeroes_may_unmap: u8::from(zeroing.write_zeroes && zeroing.discard),
        ..Config::default()
    };
    config.as_bytes().to_vec()
}

/// The features of a disk on such a volume, with this many queues.
pub fn features(info: &VolumeInfo, queues: u16) -> u64 {
    let mut features = feature::SIZE_MAX | feature::SEG_MAX | feature::BLK_SIZE | feature::TOPOLOGY;
    if info.read_only {
        features |= feature::RO;
    }
    // Where each write is durable there is no cache to flush, and a guest that knows sends none.
    if info.durability == volume::Durability::Flush {
        features |= feature::FLUSH;
    }
    if queues > 1 {
        features |= feature::MQ;
    }
    if info.zeroing.discard {
        features |= feature::DISCARD;
    }
    if info.zeroing.write_zeroes {
        features |= feature::WRITE_ZEROES;
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

/// The content of a chain, checked as far as the volume is not concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestContent {
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
    /// Zero the ranges that were given, of so many bytes together.
    Zero {
        /// Discard or write-zeroes.
        op: Op,
        /// All of them.
        len_bytes: u32,
    },
    /// Makes no sense, and can be told so.
    Nonsense(StatusByte),
}

/// A range of a discard or write-zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// [`Op::Discard`] or [`Op::WriteZeroes`]. A write-zeroes whose space may go is a discard where
    /// the volume can discard: the discarded range reads as zeroes.
    pub op: Op,
    /// First byte on the volume.
    pub offset_bytes: u64,
    /// How much; at most [`RANGE_BYTES_MAX`], and never nothing.
    pub len_bytes: u32,
}

/// The data of a request; kept for its room.
#[derive(Debug, Default)]
pub struct Data {
    /// Where a read, a write or the serial number has its data.
    pub segments: Vec<Segment>,
    /// The ranges of a discard or write-zeroes.
    pub ranges: Vec<Range>,
}

impl Data {
    /// With room for any request.
    pub fn new() -> Self {
        Self { segments: Vec::with_capacity(SEGMENTS_MAX), ranges: Vec::with_capacity(RANGES_MAX) }
    }
}

/// A request as it was found in a chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainRequest {
    /// The operation and its range.
    pub asked: RequestContent,
    /// Where the answer goes. Valid as long as the chain's segments.
    pub answer: *mut u8,
}

/// A chain that is no request at all: there is no room for an answer, so the driver cannot even be
/// told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request without room for its status byte")]
pub struct NoAnswer;

/// Looks at a chain, for a disk on such a volume. The request's segments or ranges go into `data`,
/// which is emptied first.
///
/// # Errors
/// [`NoAnswer`] when the driver left no byte to write.
///
/// # Safety
/// The chain's segments must still be valid.
pub unsafe fn parse(
    chain: &Chain,
    info: &VolumeInfo,
    data: &mut Data,
) -> Result<ChainRequest, NoAnswer> {
    data.segments.clear();
    data.ranges.clear();
    let last = chain.writable.last().filter(|last| last.len > 0).ok_or(NoAnswer)?;
    let answer = last.addr.wrapping_add(last.len as usize - 1);
    // SAFETY: the caller's promise.
    let Some(header) = (unsafe { Header::gather(&chain.readable) }) else {
        return Ok(ChainRequest { asked: RequestContent::Nonsense(StatusByte::IoError), answer });
    };
    let asked = match header.kind.get() {
        // SAFETY: the caller's promise.
        DISCARD => unsafe { zero(chain, info, Op::Discard, &mut data.ranges) },
        // SAFETY: as above.
        WRITE_ZEROES => unsafe { zero(chain, info, Op::WriteZeroes, &mut data.ranges) },
        _ => ask(chain, &header, &mut data.segments),
    };
    Ok(ChainRequest { asked, answer })
}

/// Reads the ranges of a discard or write-zeroes, each once, and checks all of them: nothing is
/// done of a request that is wrong anywhere.
///
/// # Safety
/// The chain's segments must still be valid.
unsafe fn zero(
    chain: &Chain,
    info: &VolumeInfo,
    op: Op,
    ranges: &mut Vec<Range>,
) -> RequestContent {
    let nonsense = RequestContent::Nonsense(StatusByte::IoError);
    if !info.zeroing.can(op) {
        return RequestContent::Nonsense(StatusByte::Unsupported);
    }
    let list_bytes = chain.readable_bytes() as usize - HEADER_BYTES;
    if !list_bytes.is_multiple_of(RANGE_BYTES) || list_bytes > RANGES_MAX * RANGE_BYTES {
        return nonsense;
    }
    let mut bytes = [0; RANGES_MAX * RANGE_BYTES];
    // SAFETY: the caller's promise.
    unsafe { virtio::gather(&chain.readable, HEADER_BYTES, &mut bytes[..list_bytes]) };
    let mut len_bytes = 0;
    for raw in bytes[..list_bytes].chunks_exact(RANGE_BYTES) {
        let raw = RawRange::read_from_bytes(raw).expect("as long as a range");
        // The unmap flag of a discard means nothing and is refused like any other.
        let known = if op == Op::WriteZeroes { UNMAP } else { 0 };
        if raw.flags.get() & !known != 0 {
            return RequestContent::Nonsense(StatusByte::Unsupported);
        }
        let unmap = raw.flags.get() & UNMAP != 0 && info.zeroing.discard;
        let range = match range(info, &raw) {
            Some(range) => Range { op: if unmap { Op::Discard } else { op }, ..range },
            None => return nonsense,
        };
        if range.len_bytes > 0 {
            // At most RANGES_MAX times RANGE_BYTES_MAX, which fits.
            len_bytes += range.len_bytes;
            ranges.push(range);
        }
    }
    RequestContent::Zero { op, len_bytes }
}

/// A range of whole blocks inside the volume, or none.
fn range(info: &VolumeInfo, raw: &RawRange) -> Option<Range> {
    let sectors = Some(raw.sectors.get()).filter(|sectors| *sectors <= RANGE_SECTORS_MAX)?;
    let offset_bytes = raw.sector.get().checked_mul(SECTOR_BYTES)?;
    let len_bytes = sectors * SECTOR_BYTES as u32;
    let end = offset_bytes.checked_add(u64::from(len_bytes))?;
    let block = u64::from(info.block_bytes);
    let whole = offset_bytes.is_multiple_of(block) && u64::from(len_bytes).is_multiple_of(block);
    (whole && end <= info.size_bytes && !info.read_only).then_some(Range {
        op: Op::Discard,
        offset_bytes,
        len_bytes,
    })
}

const _: () = assert!(RANGES_MAX as u64 * RANGE_BYTES_MAX as u64 <= u32::MAX as u64);

fn ask(chain: &Chain, header: &Header, data: &mut Vec<Segment>) -> RequestContent {
    let nonsense = RequestContent::Nonsense(StatusByte::IoError);
    let inward = chain.writable_bytes() - 1;
    let (op, pieces, skip, len_bytes) = match header.kind.get() {
        IN => (Op::Read, &chain.writable, 0, inward),
        OUT => {
            let skip = HEADER_BYTES as u32;
            (Op::Write, &chain.readable, skip, chain.readable_bytes() - skip)
        }
        FLUSH => return RequestContent::Flush,
        GET_ID => {
            cut(&chain.writable, 0, inward, data);
            return if inward as usize >= ID_BYTES { RequestContent::GetId } else { nonsense };
        }
        _ => return RequestContent::Nonsense(StatusByte::Unsupported),
    };
    let offset_bytes = header.sector.get().checked_mul(SECTOR_BYTES);
    let whole = u64::from(len_bytes).is_multiple_of(SECTOR_BYTES);
    let (Some(offset_bytes), true) = (offset_bytes, whole) else { return nonsense };
    match (op, &pieces[..]) {
        // As all drivers have it: header and status in pieces of their own.
        (Op::Read, [whole @ .., last]) if last.len == 1 => data.extend_from_slice(whole),
        (Op::Write, [first, whole @ ..]) if first.len == skip => data.extend_from_slice(whole),
        _ => cut(pieces, skip, len_bytes, data),
    }
    if data.len() > SEGMENTS_MAX {
        // We said so in `seg_max`.
        return nonsense;
    }
    RequestContent::Transfer { op, offset_bytes, len_bytes }
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
    use volume::{Durability, Incarnation, Topology, Zeroing};

    fn info() -> VolumeInfo {
        VolumeInfo {
            size_bytes: 1 << 30,
            block_bytes: 4096,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            incarnation: Incarnation::default(),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        }
    }

    /// Requests in memory that lives as long as the test.
    struct ChainMemory {
        bytes: Vec<u8>,
        chain: Chain,
        data: Data,
    }

    impl ChainMemory {
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
            Self { bytes, chain, data: Data::default() }
        }

        fn parse(&mut self) -> Result<RequestContent, NoAnswer> {
            // SAFETY: the segments point into `bytes`.
            let request = unsafe { parse(&self.chain, &info(), &mut self.data) }?;
            assert_eq!(request.answer, self.at(self.bytes.len() - 1), "the last byte");
            Ok(request.asked)
        }

        fn at(&mut self, at: usize) -> *mut u8 {
            self.bytes.as_mut_ptr().wrapping_add(at)
        }

        fn data_bytes(&self) -> u64 {
            volume::copy::total_bytes(&self.data.segments)
        }
    }

    #[test]
    fn a_transfer_is_found_however_it_is_cut() {
        for piece in [1 << 20, 4096, 512, 100, 17] {
            let mut read = ChainMemory::new(IN, 7, 16, 4097, piece);
            let asked =
                RequestContent::Transfer { op: Op::Read, offset_bytes: 7 * 512, len_bytes: 4096 };
            assert_eq!(read.parse(), Ok(asked));
            assert_eq!((read.data_bytes(), read.data.segments[0].addr), (4096, read.at(16)));
            let mut write = ChainMemory::new(OUT, 8, 16 + 1024, 1, piece);
            let asked =
                RequestContent::Transfer { op: Op::Write, offset_bytes: 4096, len_bytes: 1024 };
            assert_eq!(write.parse(), Ok(asked));
            assert_eq!((write.data_bytes(), write.data.segments[0].addr), (1024, write.at(16)));
        }
    }

    #[test]
    fn requests_without_data() {
        assert_eq!(ChainMemory::new(FLUSH, 0, 16, 1, 64).parse(), Ok(RequestContent::Flush));
        let mut id = ChainMemory::new(GET_ID, 0, 16, 21, 8);
        assert_eq!(id.parse(), Ok(RequestContent::GetId));
        assert_eq!(id.data_bytes(), 20);
        let unsupported = Ok(RequestContent::Nonsense(StatusByte::Unsupported));
        for kind in [2, 12, 14, 99, u32::MAX] {
            assert_eq!(ChainMemory::new(kind, 0, 16, 1, 64).parse(), unsupported);
        }
    }

    /// A request with these ranges: sector, sectors, flags.
    fn zeroing(kind: u32, ranges: &[(u64, u32, u32)], piece: usize) -> ChainMemory {
        let mut guest = ChainMemory::new(kind, 0, 16 + ranges.len() * RANGE_BYTES, 1, piece);
        for (at, (sector, sectors, flags)) in ranges.iter().enumerate() {
            let raw = RawRange {
                sector: (*sector).into(),
                sectors: (*sectors).into(),
                flags: (*flags).into(),
            };
            let at = HEADER_BYTES + at * RANGE_BYTES;
            guest.bytes[at..at + RANGE_BYTES].copy_from_slice(raw.as_bytes());
        }
        guest
    }

    #[test]
    fn ranges_are_found_however_they_are_cut() {
        for piece in [4096, 48, 17, 1] {
            let mut discard = zeroing(DISCARD, &[(8, 8, 0), (0, 0, 0), (1 << 20, 32768, 0)], piece);
            let len_bytes = 4096 + (16 << 20);
            assert_eq!(discard.parse(), Ok(RequestContent::Zero { op: Op::Discard, len_bytes }));
            let range = |op, offset_bytes, len_bytes| Range { op, offset_bytes, len_bytes };
            let found =
                [range(Op::Discard, 4096, 4096), range(Op::Discard, 512 << 20, RANGE_BYTES_MAX)];
            assert_eq!(discard.data.ranges, found, "an empty range is nothing to do");
            let mut zeroes = zeroing(WRITE_ZEROES, &[(8, 8, UNMAP), (24, 8, 0)], piece);
            assert_eq!(
                zeroes.parse(),
                Ok(RequestContent::Zero { op: Op::WriteZeroes, len_bytes: 8192 })
            );
            let found = [range(Op::Discard, 4096, 4096), range(Op::WriteZeroes, 12288, 4096)];
            assert_eq!(zeroes.data.ranges, found, "what may be unmapped is");
        }
    }

    #[test]
    fn a_range_that_is_wrong_spoils_the_request() {
        let end = (1 << 30) / SECTOR_BYTES;
        let answered = |kind, range: (u64, u32, u32)| {
            zeroing(kind, &[(0, 8, 0), range], 64).parse().expect("it can be answered")
        };
        let error = RequestContent::Nonsense(StatusByte::IoError);
        for kind in [DISCARD, WRITE_ZEROES] {
            let op = if kind == DISCARD { Op::Discard } else { Op::WriteZeroes };
            assert_eq!(
                answered(kind, (end - 8, 8, 0)),
                RequestContent::Zero { op, len_bytes: 8192 }
            );
            assert_eq!(answered(kind, (end - 8, 16, 0)), error, "beyond the end");
            assert_eq!(answered(kind, (end, 8, 0)), error, "behind the end");
            assert_eq!(answered(kind, (u64::MAX - 7, 8, 0)), error, "overflow");
            assert_eq!(answered(kind, (1 << 63, 8, 0)), error, "overflow");
            assert_eq!(answered(kind, (0, RANGE_SECTORS_MAX + 8, 0)), error, "too long");
            assert_eq!(answered(kind, (4, 8, 0)), error, "not whole blocks");
            assert_eq!(answered(kind, (8, 4, 0)), error, "not whole blocks");
            let unsupported = RequestContent::Nonsense(StatusByte::Unsupported);
            assert_eq!(answered(kind, (8, 8, 2)), unsupported, "an unknown flag");
        }
        let unsupported = RequestContent::Nonsense(StatusByte::Unsupported);
        assert_eq!(answered(DISCARD, (8, 8, UNMAP)), unsupported, "no flag of a discard's");
        let many = zeroing(DISCARD, &[(0, 8, 0); RANGES_MAX + 1], 64).parse();
        assert_eq!(many, Ok(error), "too many");
        assert_eq!(ChainMemory::new(DISCARD, 0, 16 + 15, 1, 64).parse(), Ok(error), "half a range");
    }

    #[test]
    fn a_volume_that_cannot_zero_is_not_asked_to() {
        let mut guest = zeroing(WRITE_ZEROES, &[(0, 8, UNMAP)], 64);
        let keeps = Zeroing { discard: false, ..Zeroing::ALL };
        let keeps = VolumeInfo { zeroing: keeps, ..info() };
        // SAFETY: the segments point into the guest's bytes.
        let asked = unsafe { parse(&guest.chain, &keeps, &mut guest.data) };
        assert_eq!(
            asked.map(|request| request.asked),
            Ok(RequestContent::Zero { op: Op::WriteZeroes, len_bytes: 4096 })
        );
        assert_eq!(guest.data.ranges[0].op, Op::WriteZeroes, "its space cannot be given back");
        assert_eq!(features(&keeps, 1) & feature::DISCARD, 0);
        assert_ne!(features(&keeps, 1) & feature::WRITE_ZEROES, 0);
        let config = config(&keeps, 1);
        assert_eq!((&config[36..48], config[56]), (&[0; 12][..], 0));
        let plain = VolumeInfo { zeroing: Zeroing::default(), ..info() };
        // SAFETY: as above.
        let asked = unsafe { parse(&guest.chain, &plain, &mut guest.data) };
        let unsupported = RequestContent::Nonsense(StatusByte::Unsupported);
        assert_eq!(asked.map(|request| request.asked), Ok(unsupported));
        assert_eq!(features(&plain, 1) & feature::WRITE_ZEROES, 0);
    }

    #[test]
    fn nonsense_is_answered_with_an_error() {
        let error = Ok(RequestContent::Nonsense(StatusByte::IoError));
        assert_eq!(ChainMemory::new(IN, 0, 15, 513, 64).parse(), error, "a short header");
        assert_eq!(ChainMemory::new(IN, 0, 0, 513, 64).parse(), error, "no header");
        assert_eq!(ChainMemory::new(IN, 0, 16, 512, 64).parse(), error, "not whole sectors");
        assert_eq!(ChainMemory::new(OUT, 0, 16 + 511, 1, 64).parse(), error, "not whole sectors");
        assert_eq!(
            ChainMemory::new(IN, u64::MAX / 512 + 1, 16, 513, 64).parse(),
            error,
            "overflow"
        );
        assert_eq!(ChainMemory::new(GET_ID, 0, 16, 20, 64).parse(), error, "no room for the id");
        let many = (SEGMENTS_MAX + 1) * 512;
        assert_eq!(ChainMemory::new(OUT, 0, 16 + many, 1, 512).parse(), error, "too many pieces");
        assert_ne!(ChainMemory::new(OUT, 0, 16 + many, 1, 1024).parse(), error, "few enough");
        assert!(ChainMemory::new(OUT, 0, 512, 0, 512).parse().is_err(), "nowhere to answer");
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
        let u32s = |from: usize| {
            let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
            [word(from), word(from + 4)]
        };
        assert_eq!(u32s(36), [32768, 16]);
        assert_eq!(u32s(44), [8, 32768], "the alignment is a block");
        assert_eq!((u32s(52)[0], config[56]), (16, 1));
    }

    #[test]
    fn the_topology_is_in_blocks() {
        let with = |block_bytes, physical_bytes, optimal_bytes| {
            let topology = Topology { physical_bytes, optimal_bytes };
            let config = config(&VolumeInfo { block_bytes, topology, ..info() }, 1);
            let min = u16::from_le_bytes([config[26], config[27]]);
            let opt = u32::from_le_bytes(config[28..32].try_into().unwrap());
            (config[24], config[25], min, opt)
        };
        assert_eq!(with(512, 4096, 65536), (3, 0, 8, 128));
        assert_eq!(with(4096, 4096, 0), (0, 0, 1, 0));
        assert_eq!(with(4096, 512, 5000), (0, 0, 1, 2), "never less than a block");
        assert_ne!(features(&info(), 1) & feature::TOPOLOGY, 0);
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
