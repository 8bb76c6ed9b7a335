//! The requests of a stand-in guest, their completions, and the faults of a device.

/// The unit of a request's address.
pub const SECTOR_BYTES: u64 = 512;

/// Bytes of the answer to [`DriverOp::GetId`].
pub const ID_BYTES: u32 = 20;

/// A request's buffers: one of the ring's slots. Held by the user or by the device, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestSlot(pub(super) u16);

impl RequestSlot {
    /// Its number, from zero.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverOp {
    /// Disk to guest.
    Read,
    /// Guest to disk.
    Write,
    /// Make completed writes durable.
    Flush,
    /// The disk's serial number, [`ID_BYTES`] long.
    GetId,
    /// Forget sectors; the data is a list of ranges.
    Discard,
    /// Zero sectors; the data is a list of ranges.
    WriteZeroes,
    /// A type that no device knows.
    Unknown(u32),
}

impl DriverOp {
    /// The number on the ring.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 4,
            Self::GetId => 8,
            Self::Discard => 11,
            Self::WriteZeroes => 13,
            Self::Unknown(code) => code,
        }
    }

    /// Whether the device writes the data.
    pub fn is_inward(self) -> bool {
        matches!(self, Self::Read | Self::GetId)
    }
}

/// A piece of guest memory. Nothing is checked: a hostile guest may name any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPiece {
    /// Guest physical address.
    pub guest_address: u64,
    /// Bytes.
    pub len: u32,
}

/// Where a request's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// There is none (a flush).
    None,
    /// The first bytes of the slot's buffer, in one piece.
    Whole(u32),
    /// The first `len` bytes of the slot's buffer, cut into pieces of `piece_bytes`.
    Cut {
        /// All bytes.
        len: u32,
        /// Bytes of each piece but the last.
        piece_bytes: u32,
    },
    /// Anywhere in guest memory.
    Pieces(&'a [GuestPiece]),
}

impl Data<'_> {
    /// Descriptors that it takes.
    pub(super) fn count(&self) -> usize {
        match *self {
            Data::None => 0,
            Data::Whole(_) => 1,
            Data::Cut { len, piece_bytes } => len.div_ceil(piece_bytes) as usize,
            Data::Pieces(pieces) => pieces.len(),
        }
    }

    /// All its bytes.
    pub(super) fn bytes(&self) -> u64 {
        match *self {
            Data::None => 0,
            Data::Whole(len) | Data::Cut { len, .. } => u64::from(len),
            Data::Pieces(pieces) => pieces.iter().map(|piece| u64::from(piece.len)).sum(),
        }
    }

    /// The piece at a position below `count`; `base` is the slot's buffer.
    pub(super) fn piece(&self, position: usize, base: u64) -> GuestPiece {
        match *self {
            Data::None => unreachable!("no data has no pieces"),
            Data::Whole(len) => GuestPiece { guest_address: base, len },
            Data::Cut { len, piece_bytes } => {
                let start = position as u32 * piece_bytes;
                let guest_address = base + u64::from(start);
                GuestPiece { guest_address, len: piece_bytes.min(len - start) }
            }
            Data::Pieces(pieces) => pieces[position],
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct DriverRequest<'a> {
    /// The buffers; held by the caller, the device's from now on.
    pub slot: RequestSlot,
    /// The operation.
    pub op: DriverOp,
    /// First sector, of [`SECTOR_BYTES`].
    pub sector: u64,
    /// The data's place.
    pub data: Data<'a>,
    /// The caller's mark; comes back with the completion.
    pub token: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestStatus {
    /// VIRTIO_BLK_S_OK.
    Ok,
    /// VIRTIO_BLK_S_IOERR.
    IoError,
    /// VIRTIO_BLK_S_UNSUPP.
    Unsupported,
}

/// A finished request. Its slot is the user's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverCompletion {
    /// The buffers.
    pub slot: RequestSlot,
    /// The operation that was asked for.
    pub op: DriverOp,
    /// The caller's mark.
    pub token: u64,
    /// How it ended.
    pub status: RequestStatus,
    /// How many bytes the device says it wrote, the status byte among them.
    pub written_bytes: u32,
}

/// The status byte while a request is outstanding: a device must overwrite it.
pub(super) const STATUS_UNWRITTEN: u8 = 0xff;

/// The status byte of a slot that no device owns: it must stay.
pub(super) const STATUS_PARKED: u8 = 0xee;

/// A violation of the protocol by a device. A ring that saw one takes and gives nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The used index moved by more than what was outstanding, or backwards.
    #[error(
        "queue {queue}: the used index went from {seen} to {now} with {outstanding} outstanding"
    )]
    UsedIndexJump {
        /// The queue.
        queue: u16,
        /// The index so far.
        seen: u16,
        /// The index now.
        now: u16,
        /// Requests that the device held.
        outstanding: u16,
    },
    /// A used element names no descriptor of this ring.
    #[error("queue {queue}: used element {position} names descriptor {id}, which does not exist")]
    UsedIdUnknown {
        /// The queue.
        queue: u16,
        /// The used index of the element.
        position: u16,
        /// The descriptor that it names.
        id: u32,
    },
    /// A used element names a descriptor that is no outstanding request's first.
    #[error("queue {queue}: used element {position} names descriptor {id}, not outstanding")]
    UsedIdNotOutstanding {
        /// The queue.
        queue: u16,
        /// The used index of the element.
        position: u16,
        /// The descriptor that it names.
        id: u16,
    },
    /// A used element names a request that was completed before and not submitted again.
    #[error("queue {queue}: used element {position} completes descriptor {id} a second time")]
    CompletedTwice {
        /// The queue.
        queue: u16,
        /// The used index of the element.
        position: u16,
        /// The descriptor that it names.
        id: u16,
    },
    /// The length in a used element is not what such an answer has.
    #[error("queue {queue}: {written} bytes written to a {op:?} with room for {room} ({status:?})")]
    UsedLengthWrong {
        /// The queue.
        queue: u16,
        /// The request.
        op: DriverOp,
        /// Its answer.
        status: RequestStatus,
        /// The bytes that the device claims to have written.
        written: u32,
        /// The room that the device had, all of which a success must have written.
        room: u32,
    },
    /// A chain of frames came back with more bytes than it has room for.
    #[error("queue {queue}: {written} bytes written to a chain with room for {room}")]
    UsedBeyond {
        /// The queue.
        queue: u16,
        /// The bytes that the device claims to have written.
        written: u32,
        /// The room that the device had.
        room: u32,
    },
    /// A request was completed without an answer.
    #[error("queue {queue}: slot {slot} was completed but its status byte was not written")]
    StatusUnwritten {
        /// The queue.
        queue: u16,
        /// The slot.
        slot: u16,
    },
    /// A status that virtio-blk does not have.
    #[error("queue {queue}: slot {slot} was completed with the status {status}")]
    StatusUnknown {
        /// The queue.
        queue: u16,
        /// The slot.
        slot: u16,
        /// The status byte.
        status: u8,
    },
    /// The status byte of a slot changed although the device did not own it.
    #[error("queue {queue}: the status of slot {slot} became {status} after its completion")]
    StatusLate {
        /// The queue.
        queue: u16,
        /// The slot.
        slot: u16,
        /// The status byte.
        status: u8,
    },
}

/// Why a request was not taken. It can be submitted again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too few free descriptors; complete something first.
    #[error("{needed} descriptors needed, {free} free")]
    Full {
        /// The descriptors that the request takes.
        needed: u16,
        /// The free descriptors.
        free: u16,
    },
    /// The device broke the protocol.
    #[error(transparent)]
    Broken(#[from] Breach),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_gives_every_byte_once() {
        let data = Data::Cut { len: 2500, piece_bytes: 1000 };
        let pieces: Vec<_> = (0..data.count()).map(|at| data.piece(at, 1 << 20)).collect();
        let lens: Vec<_> = pieces.iter().map(|piece| piece.len).collect();
        assert_eq!(lens, [1000, 1000, 500]);
        assert_eq!(pieces[2].guest_address, (1 << 20) + 2000);
        assert_eq!(data.bytes(), 2500);
        assert_eq!(Data::Pieces(&pieces).bytes(), 2500);
        assert_eq!(Data::None.count(), 0);
    }
}
