//! The wire format: little-endian, unaligned structures, checked before anything in them is used.
//! `docs/protocol.md` describes it byte by byte; the tests here hold the two together.
//!
//! ```text
//! datagram = packet header (32) | frames ...       | payload ...
//!            `----- head: head_crc guards it -----'  `- payload_crc guards it
//!
//!   sealed = sealed header (24) | payload ... frames ... | tag (16)
//!            `-- authenticated--'-- and encrypted -------'
//! ```

use std::ops::RangeInclusive;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::is_long;
use crate::crc::crc32c;

/// Bytes that sealing adds to a packet.
pub(crate) const TAG_BYTES: usize = 16;

/// Bytes of a cookie: one that says when it was made, and a hash.
pub(crate) const COOKIE_BYTES: usize = 16;

/// Bytes of a reset token.
pub(crate) const RESET_TOKEN_BYTES: usize = 16;

/// The protocol's versions, one line for what each changed. Add a line, and raise
/// [`VERSIONS`], whenever a packet changes; keep speaking the version before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProtocolVersion {
    /// The first: calls with replies, selective acknowledgement, credit per flow, CRC32C.
    First = 1,
    /// A Hello brings a cookie; sessions may be sealed; a packet can ask to be acknowledged at
    /// once.
    Second = 2,
    /// Messages of the block plane: ranges that are zeroed, volumes that say what they can and
    /// tell of a change.
    Third = 3,
    /// Casts: frames that may be lost.
    Fourth = 4,
    /// Messages of the block plane: a volume that another node serves.
    Fifth = 5,
    /// Messages are cut into pieces of one length, and a frame fills a packet up.
    Sixth = 6,
}

/// The version that this program prefers.
pub const PROTOCOL_VERSION: u8 = ProtocolVersion::Sixth as u8;

/// The oldest version that knows cookies, and whose sessions can be sealed.
pub(crate) const SEALED_VERSION_MIN: u8 = ProtocolVersion::Second as u8;

/// The oldest version with casts.
pub(crate) const CAST_VERSION_MIN: u8 = ProtocolVersion::Fourth as u8;

/// The oldest version whose messages are cut into pieces of one length.
pub(crate) const EVEN_VERSION_MIN: u8 = ProtocolVersion::Sixth as u8;

/// All versions that this program speaks.
pub const VERSIONS: RangeInclusive<u8> = 1..=PROTOCOL_VERSION;

/// The version byte of handshake packets, whose layout never changes: they are understood before
/// a version is agreed on.
pub(crate) const VERSION_ANY: u8 = 0;

/// The longest node name.
pub const NAME_BYTES_MAX: usize = 64;

/// The longest head of a message: room for the addressing of any plane, small enough to be copied
/// without a thought.
pub const HEAD_MAX: usize = 192;

/// The longest body of a message.
pub const MESSAGE_MAX: usize = 1 << 20;

/// The longest body of a cast. With a head it is a frame of 64 KiB and its addressing.
pub const CAST_MAX: usize = 64 << 10;

/// Casts of a flow from the oldest that may still arrive to the newest: some four acknowledgements
/// of small ones, eight to a packet, and 32 MiB of large ones.
pub const CAST_WINDOW: usize = 512;

/// Flows in each direction of a session, of calls, and as many of casts.
pub const FLOWS_MAX: usize = 256;

/// The smallest `datagram_bytes_max`: the size that IPv6 carries everywhere, without its and UDP's
/// headers, rounded down. It bounds the fragments of a message.
pub const DATAGRAM_BYTES_MIN: usize = 1200;

/// The largest UDP payload over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The most fragments of a message: a full one in the smallest datagrams.
pub(crate) const FRAGMENTS_MAX: usize = 1024;

/// The longest sealed packet: no datagram is longer over any protocol.
pub(crate) const SEALED_BYTES_MAX: usize = 1 << 16;

/// The packet header.
pub(crate) const HEADER_BYTES: usize = size_of::<DatagramHeader>();

/// The frame in front of a fragment.
pub(crate) const FRAGMENT_BYTES: usize = size_of::<FragmentFrame>();

/// The shortest acknowledgement.
pub(crate) const ACK_BYTES_MIN: usize = size_of::<AckFrame>() + size_of::<AckRange>();

/// The header of a sealed packet.
pub(crate) const SEALED_HEADER_BYTES: usize = size_of::<SealedHeader>();

/// The part of each datagram that is not fragment, in plain and in sealed sessions.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + FRAGMENT_BYTES;
pub(crate) const SEALED_OVERHEAD_BYTES: usize = SEALED_HEADER_BYTES + FRAGMENT_BYTES + TAG_BYTES;

const _: () = assert!(HEADER_BYTES == 32 && FRAGMENT_BYTES == 20);
const _: () = assert!(SEALED_HEADER_BYTES == 24 && SEALED_OVERHEAD_BYTES > OVERHEAD_BYTES);
const _: () = assert!(
    (MESSAGE_MAX + HEAD_MAX).div_ceil(DATAGRAM_BYTES_MIN - SEALED_OVERHEAD_BYTES) <= FRAGMENTS_MAX,
    "a full message must fit into the fragment bitmap"
);
const _: () =
    assert!(DATAGRAM_BYTES_MIN - SEALED_OVERHEAD_BYTES >= HEAD_MAX, "the head fits one fragment");
const _: () = assert!(
    (CAST_MAX + HEAD_MAX).div_ceil(DATAGRAM_BYTES_MIN - SEALED_OVERHEAD_BYTES)
        <= u64::BITS as usize,
    "a cast's fragments have a bit each in a word"
);

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketKind {
    /// Frames of a session.
    Data = 0,
    /// Asks for a session: a greeting.
    Hello = 1,
    /// Grants it: a greeting.
    Welcome = 2,
    /// Denies it: a [`HelloRefusal`].
    Refused = 3,
    /// Ask at another port: a [`Redirection`].
    Moved = 4,
    /// There is no such session: echoes session and number of the packet that it answers.
    Reset = 5,
    /// Say Hello again, with this cookie.
    Retry = 6,
    /// Frames of a sealed session, under a [`SealedHeader`].
    Sealed = 7,
}

impl PacketKind {
    fn from_wire(value: u8) -> Option<Self> {
        // Not `Sealed`, which has another header.
        const ALL: [PacketKind; 7] = [
            PacketKind::Data,
            PacketKind::Hello,
            PacketKind::Welcome,
            PacketKind::Refused,
            PacketKind::Moved,
            PacketKind::Reset,
            PacketKind::Retry,
        ];
        ALL.get(usize::from(value)).copied()
    }
}

/// In front of every datagram that is not sealed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DatagramHeader {
    /// CRC32C over the rest of the header and the frames.
    pub(crate) head_crc: U32,
    /// The session's version, or [`VERSION_ANY`].
    pub(crate) version: u8,
    /// A [`PacketKind`].
    pub(crate) kind: u8,
    /// Bytes of header and frames.
    pub(crate) head_bytes: U16,
    /// The id that the receiver chose for the session; 0 in a Hello.
    pub(crate) session: U64,
    /// Packet number in the session, from 0, never used twice; in handshake packets the number of
    /// the attempt.
    pub(crate) number: U64,
    /// CRC32C over the payload; 0 when there is none.
    pub(crate) payload_crc: U32,
    /// Bytes of payload: the rest of the datagram.
    pub(crate) payload_bytes: U16,
    /// `FLAG_*` from version 2 on; 0 and not looked at before.
    pub(crate) flags: U16,
}

/// In front of a sealed packet. Version and kind are where [`DatagramHeader`] has them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SealedHeader {
    /// Bytes of payload, which come first.
    pub(crate) payload_bytes: U16,
    /// `FLAG_*`.
    pub(crate) flags: U16,
    /// The session's version.
    pub(crate) version: u8,
    /// [`PacketKind::Sealed`].
    pub(crate) kind: u8,
    /// Bytes of frames, which follow the payload.
    pub(crate) frames_bytes: U16,
    /// The id that the receiver chose for the session.
    pub(crate) session: U64,
    /// Packet number in the session, from 0, never used twice.
    pub(crate) number: U64,
}

/// The sender's window is full, or a quarter of it: acknowledge this packet at once.
pub(crate) const FLAG_HURRY: u16 = 1;

/// Hello and Welcome. Later versions may append, never change.
#[derive(
    Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct Greeting {
    /// The oldest version that the sender speaks.
    pub(crate) version_min: u8,
    /// The newest.
    pub(crate) version_max: u8,
    /// Welcome: the version of the session. Hello: 0.
    pub(crate) version: u8,
    /// Length of the name.
    pub(crate) name_bytes: u8,
    /// The session's index between the two nodes.
    pub(crate) index: U16,
    /// How many sidecores the sender's node has.
    pub(crate) sidecores: U16,
    /// The id by which the sender wants the session's packets addressed.
    pub(crate) session: U64,
    /// The sender's process.
    pub(crate) process_nonce: U64,
    /// The sender's largest datagram.
    pub(crate) datagram_bytes_max: U32,
    /// How many bytes the sender can have in flight towards it.
    pub(crate) receive_window_bytes: U32,
    /// The credit of each flow at the start.
    pub(crate) flow_credit_bytes: U32,
    /// Calls in each direction that the sender has room for.
    pub(crate) calls_max: U16,
    /// 0.
    pub(crate) reserved: U16,
    /// The sender's name, the rest 0.
    pub(crate) name: [u8; NAME_BYTES_MAX],
}

/// Follows the greeting of a Hello from version 2 on, and the message of the handshake follows it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Entrance {
    /// A `SECURITY_*`.
    pub(crate) security: u8,
    /// 0.
    pub(crate) reserved: u8,
    /// Length of the handshake's message; 0 for a plain session.
    pub(crate) message_bytes: U16,
    /// 0.
    pub(crate) reserved_too: U32,
    /// The cookie of a Retry; zeros before.
    pub(crate) cookie: [u8; COOKIE_BYTES],
}

/// A plain session is asked for.
pub(crate) const SECURITY_PLAIN: u8 = 0;
/// A sealed one.
pub(crate) const SECURITY_SEALED: u8 = 1;

/// The contents of a sealed Hello.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SealedHello {
    /// The token in a Reset of the session, if the connector sends one.
    pub(crate) reset_token: [u8; RESET_TOKEN_BYTES],
    pub(crate) greeting: Greeting,
}

/// The contents of a sealed Welcome. With a reason other than 0 it is a refusal, and the rest is
/// zeros.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SealedWelcome {
    pub(crate) refusal: HelloRefusal,
    /// The token in a Reset of the session, if the acceptor sends one.
    pub(crate) reset_token: [u8; RESET_TOKEN_BYTES],
    pub(crate) greeting: Greeting,
}

/// Why a Hello was refused.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct HelloRefusal {
    /// A `REFUSED_*`.
    pub(crate) reason: u8,
    /// The oldest version that is spoken here.
    pub(crate) version_min: u8,
    /// The newest.
    pub(crate) version_max: u8,
    /// 0.
    pub(crate) reserved: u8,
}

/// No common version.
pub(crate) const REFUSED_VERSION: u8 = 1;
/// This node takes no sessions.
pub(crate) const REFUSED_NOT_ACCEPTING: u8 = 2;
/// Sessions are sealed here.
pub(crate) const REFUSED_SEALED_HERE: u8 = 3;
/// Sessions are plain here.
pub(crate) const REFUSED_PLAIN_HERE: u8 = 4;
/// The handshake is for another key than ours.
pub(crate) const REFUSED_WRONG_KEY: u8 = 5;
/// The connector's key is not known here.
pub(crate) const REFUSED_UNKNOWN_KEY: u8 = 6;
/// It is known, but expired.
pub(crate) const REFUSED_EXPIRED_KEY: u8 = 7;
/// It is known as another node's.
pub(crate) const REFUSED_NAME: u8 = 8;
/// The connector's node has as many sessions as one peer may have.
pub(crate) const REFUSED_SESSIONS_FULL: u8 = 9;

/// Where to send the Hello instead: the same address, this port.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Redirection {
    pub(crate) port: U16,
}

/// Nothing; wants to be acknowledged.
pub(crate) const FRAME_PING: u8 = 1;
/// An [`AckFrame`] and its ranges.
pub(crate) const FRAME_ACK: u8 = 2;
/// A [`CreditFrame`].
pub(crate) const FRAME_CREDIT: u8 = 3;
/// The sender has forgotten the session.
pub(crate) const FRAME_CLOSE: u8 = 4;
/// A fragment of a call.
pub(crate) const FRAME_CALL: u8 = 5;
/// A fragment of a reply.
pub(crate) const FRAME_REPLY: u8 = 6;
/// A fragment of a cast, from version 4 on.
pub(crate) const FRAME_CAST: u8 = 7;
/// The rest of the frames means nothing, from version 6 on.
pub(crate) const FRAME_FILL: u8 = 8;

/// The longest filling: the room for an acknowledgement, and the rounding of the pieces of a
/// message of 64 KiB. Longer messages fill groups of datagrams by themselves.
pub(crate) const FILL_BYTES_MAX: usize = 128;

/// Which packets arrived: `length` of them up to `largest`, then for each further range a gap of
/// missing ones and the next `length` below.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AckFrame {
    pub(crate) kind: u8,
    /// How many [`AckRange`]s follow, at least one.
    pub(crate) ranges: u8,
    /// `ACK_FLAG_*` from version 2 on; 0 before.
    pub(crate) flags: U16,
    /// How long the packet `largest` waited for this, in microseconds.
    pub(crate) delay_us: U32,
    pub(crate) largest: U64,
}

/// Packets arrived lately that are not acknowledged, for lack of a buffer.
pub(crate) const ACK_FLAG_NO_ROOM: u16 = 1;

/// One range of an [`AckFrame`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AckRange {
    /// Missing packets above this range; 0 in the first.
    pub(crate) gap: U32,
    /// Packets in it, at least 1.
    pub(crate) length: U32,
}

/// The peer may have sent calls whose bodies are charged `limit_bytes` in all on this flow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CreditFrame {
    pub(crate) kind: u8,
    pub(crate) reserved: u8,
    pub(crate) flow: U16,
    pub(crate) limit_bytes: U64,
}

/// In front of each fragment. A message is its head and then its body, cut into pieces of the
/// session's fragment size. Fragment 0's part of the head follows at once; bytes of the body are in
/// the payload.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct FragmentFrame {
    pub(crate) kind: u8,
    pub(crate) head_bytes: u8,
    /// Of the call, and so of its reply.
    pub(crate) flow: U16,
    pub(crate) body_bytes: U32,
    /// The call, for a reply too; `id % calls_max` is its place in the tables. Of a cast its number
    /// in its flow.
    pub(crate) id: U64,
    /// Which piece.
    pub(crate) fragment: U16,
    /// Of a cast: so many numbers before it is the oldest that may still arrive. Else 0.
    pub(crate) behind: U16,
}

impl FragmentFrame {
    /// Whether the lengths are allowed. The fragment must also be one of the [`Pieces`].
    pub(crate) fn is_valid(&self) -> bool {
        let (head, body) = (usize::from(self.head_bytes), self.body_bytes.get() as usize);
        let behind = usize::from(self.behind.get());
        let (body_max, behind_max) =
            if self.kind == FRAME_CAST { (CAST_MAX, CAST_WINDOW - 1) } else { (MESSAGE_MAX, 0) };
        head <= HEAD_MAX
            && body <= body_max
            && usize::from(self.flow.get()) < FLOWS_MAX
            && behind <= behind_max
            && behind as u64 <= self.id.get()
    }

    /// The pieces of its message. The frame must be valid.
    pub(crate) fn pieces(&self, cut: MessageCut) -> Pieces {
        cut.pieces(usize::from(self.head_bytes), self.body_bytes.get() as usize)
    }
}

/// How the messages of a session are cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageCut {
    /// The bytes of a message for which a datagram has room.
    pub(crate) chunk_bytes: usize,
    /// All pieces of a message but the last have the least length with which there are no more
    /// pieces, and the last has room for an acknowledgement where the length allows it. So the
    /// datagrams of equal messages have one length, and the kernel takes many of them as one
    /// ([108](../../docs/decisions/108-even-pieces.md)). Else pieces are as long as they can be.
    pub(crate) is_even: bool,
}

impl MessageCut {
    /// The pieces of a message. An empty message is one piece.
    pub(crate) fn pieces(self, head_bytes: usize, body_bytes: usize) -> Pieces {
        let bytes = head_bytes + body_bytes;
        if bytes <= self.chunk_bytes {
            return Pieces { head_bytes, body_bytes, count: 1, piece_bytes: self.chunk_bytes };
        }
        let count = bytes.div_ceil(self.chunk_bytes);
        let piece_bytes = match self.is_even {
            true => (bytes + ACK_BYTES_MIN).div_ceil(count).min(self.chunk_bytes),
            false => self.chunk_bytes,
        };
        Pieces { head_bytes, body_bytes, count, piece_bytes }
    }
}

/// The pieces of a message: its head and then its body, cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Pieces {
    head_bytes: usize,
    body_bytes: usize,
    /// How many there are, at least one.
    pub(crate) count: usize,
    /// The length of each piece but the last. The head is shorter.
    pub(crate) piece_bytes: usize,
}

impl Pieces {
    /// Whether it takes many pieces.
    pub(crate) fn is_long(self) -> bool {
        is_long(self.count)
    }

    /// Which bytes of the body piece number `fragment` has. The head is in piece 0.
    pub(crate) fn body_range(self, fragment: usize) -> std::ops::Range<usize> {
        let first = (fragment * self.piece_bytes).saturating_sub(self.head_bytes);
        let end = (fragment + 1) * self.piece_bytes - self.head_bytes;
        first..end.min(self.body_bytes)
    }
}

/// Why a datagram was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MalformedDatagram {
    Short,
    Version,
    Kind,
    HeadChecksum,
    PayloadChecksum,
}

/// A datagram whose header and both checksums are right.
#[derive(Debug)]
pub(crate) struct CheckedPacket<'a> {
    pub(crate) kind: PacketKind,
    pub(crate) version: u8,
    pub(crate) session: u64,
    pub(crate) number: u64,
    /// To be acknowledged at once.
    pub(crate) hurries: bool,
    pub(crate) frames: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl<'a> CheckedPacket<'a> {
    /// The length of the datagram that it was read from, if it is not sealed.
    pub(crate) fn len_bytes(&self) -> usize {
        HEADER_BYTES + self.frames.len() + self.payload.len()
    }

    /// Checks a datagram. Lengths come before checksums, and the checksums before all meaning: a
    /// damaged packet is called damaged, not of an unknown version.
    pub(crate) fn parse(datagram: &'a [u8]) -> Result<Self, MalformedDatagram> {
        let (header, _) =
            DatagramHeader::ref_from_prefix(datagram).map_err(|_| MalformedDatagram::Short)?;
        let head_bytes = usize::from(header.head_bytes.get());
        let payload_bytes = usize::from(header.payload_bytes.get());
        if head_bytes < HEADER_BYTES || head_bytes + payload_bytes != datagram.len() {
            return Err(MalformedDatagram::Short);
        }
        let (head, payload) = datagram.split_at(head_bytes);
        if crc32c(&head[size_of::<U32>()..]) != header.head_crc.get() {
            return Err(MalformedDatagram::HeadChecksum);
        }
        let kind = PacketKind::from_wire(header.kind).ok_or(MalformedDatagram::Kind)?;
        if (header.version == VERSION_ANY) != (kind != PacketKind::Data) {
            return Err(MalformedDatagram::Version);
        }
        let payload_crc = if payload.is_empty() { 0 } else { crc32c(payload) };
        if payload_crc != header.payload_crc.get() {
            return Err(MalformedDatagram::PayloadChecksum);
        }
        Ok(Self {
            kind,
            version: header.version,
            session: header.session.get(),
            number: header.number.get(),
            hurries: header.version >= ProtocolVersion::Second as u8
                && header.flags.get() & FLAG_HURRY != 0,
            frames: &head[HEADER_BYTES..],
            payload,
        })
    }
}

/// A sealed packet whose lengths are right. Nothing else about it is known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedPacket<'a> {
    pub(crate) version: u8,
    pub(crate) session: u64,
    pub(crate) number: u64,
    flags: u16,
    /// The bytes that are authenticated and not encrypted.
    pub(crate) header: &'a [u8],
    /// Payload, frames and tag.
    pub(crate) sealed: &'a [u8],
    pub(crate) payload_bytes: usize,
}

impl<'a> SealedPacket<'a> {
    /// Whether a datagram says that it is sealed.
    pub(crate) fn is_meant(datagram: &[u8]) -> bool {
        const KIND_AT: usize = std::mem::offset_of!(SealedHeader, kind);
        datagram.get(KIND_AT) == Some(&(PacketKind::Sealed as u8))
    }

    pub(crate) fn parse(datagram: &'a [u8]) -> Result<Self, MalformedDatagram> {
        let (header, _) =
            SealedHeader::ref_from_prefix(datagram).map_err(|_| MalformedDatagram::Short)?;
        let payload_bytes = usize::from(header.payload_bytes.get());
        let frames_bytes = usize::from(header.frames_bytes.get());
        let bytes = SEALED_HEADER_BYTES + payload_bytes + frames_bytes + TAG_BYTES;
        if frames_bytes == 0 || bytes != datagram.len() || bytes > SEALED_BYTES_MAX {
            return Err(MalformedDatagram::Short);
        }
        let (head, sealed) = datagram.split_at(SEALED_HEADER_BYTES);
        Ok(Self {
            version: header.version,
            session: header.session.get(),
            number: header.number.get(),
            flags: header.flags.get(),
            header: head,
            sealed,
            payload_bytes,
        })
    }

    /// The packet, once it was opened into `opened`.
    pub(crate) fn opened<'b>(&self, opened: &'b [u8]) -> CheckedPacket<'b> {
        let (payload, frames) = opened.split_at(self.payload_bytes);
        CheckedPacket {
            kind: PacketKind::Sealed,
            version: self.version,
            session: self.session,
            number: self.number,
            hurries: self.flags & FLAG_HURRY != 0,
            frames,
            payload,
        }
    }
}

/// The header of a sealed packet.
pub(crate) fn sealed_header(label: Label, payload: &[u8], frames: &[u8]) -> SealedHeader {
    SealedHeader {
        payload_bytes: U16::new(payload.len() as u16),
        flags: U16::new(label.flags),
        version: label.version,
        kind: PacketKind::Sealed as u8,
        frames_bytes: U16::new(frames.len() as u16),
        session: U64::new(label.session),
        number: U64::new(label.number),
    }
}

/// The identification of a packet to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) kind: PacketKind,
    pub(crate) version: u8,
    pub(crate) session: u64,
    pub(crate) number: u64,
    pub(crate) flags: u16,
}

/// Writes the header and its checksums in front of frames that are already in
/// `head[HEADER_BYTES..head_bytes]`.
pub(crate) fn guard(head: &mut [u8], head_bytes: usize, label: Label, payload: &[u8]) {
    let mut header = DatagramHeader {
        head_crc: U32::ZERO,
        version: label.version,
        kind: label.kind as u8,
        head_bytes: U16::new(head_bytes as u16),
        session: U64::new(label.session),
        number: U64::new(label.number),
        payload_crc: U32::new(if payload.is_empty() { 0 } else { crc32c(payload) }),
        payload_bytes: U16::new(payload.len() as u16),
        flags: U16::new(label.flags),
    };
    head[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    header.head_crc = U32::new(crc32c(&head[size_of::<U32>()..head_bytes]));
    head[..size_of::<U32>()].copy_from_slice(header.head_crc.as_bytes());
}

/// Appends `frame` at `*at`.
pub(crate) fn put<T: IntoBytes + Immutable + ?Sized>(head: &mut [u8], at: &mut usize, frame: &T) {
    let bytes = frame.as_bytes();
    head[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}

/// Takes a structure off the front of `*bytes`.
pub(crate) fn take<'a, T>(bytes: &mut &'a [u8]) -> Option<&'a T>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (value, rest) = T::ref_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

/// Takes `count` bytes off the front of `*bytes`.
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.push(FRAME_PING);
        let head_bytes = bytes.len();
        let label =
            Label { kind: PacketKind::Data, version: 1, session: 0x0102, number: 7, flags: 0 };
        guard(&mut bytes, head_bytes, label, payload);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn layout_is_what_the_document_says() {
        assert_eq!(size_of::<Greeting>(), 104);
        assert_eq!(size_of::<AckFrame>(), 16);
        assert_eq!(size_of::<AckRange>(), 8);
        assert_eq!(size_of::<CreditFrame>(), 12);
        assert_eq!(size_of::<HelloRefusal>(), 4);
        assert_eq!(size_of::<Redirection>(), 2);
        assert_eq!(size_of::<Entrance>(), 24);
        assert_eq!(size_of::<SealedHello>(), 120);
        assert_eq!(size_of::<SealedWelcome>(), 124);
        let bytes = packet(b"abc");
        assert_eq!(bytes[4..8], [1, 0, 33, 0]);
        assert_eq!(bytes[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[28..33], [3, 0, 0, 0, FRAME_PING]);
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_noticed() {
        let good = packet(b"payload");
        assert!(CheckedPacket::parse(&good).is_ok());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(CheckedPacket::parse(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(CheckedPacket::parse(&good[..len]).is_err(), "{len} bytes");
        }
        let mut long = good;
        long.push(0);
        assert_eq!(CheckedPacket::parse(&long).err(), Some(MalformedDatagram::Short));
    }

    #[test]
    fn a_sealed_packet_has_the_lengths_that_it_says() {
        let label =
            Label { kind: PacketKind::Sealed, version: 2, session: 0x0102, number: 7, flags: 0 };
        let packet = |payload: usize, frames: usize| {
            let (payload, frames) = (vec![1; payload], vec![2; frames]);
            let mut bytes = sealed_header(label, &payload, &frames).as_bytes().to_vec();
            bytes.extend_from_slice(&payload);
            bytes.extend_from_slice(&frames);
            bytes.resize(bytes.len() + TAG_BYTES, 0);
            bytes
        };
        let bytes = packet(3, 1);
        assert_eq!(bytes[..9], [3, 0, 0, 0, 2, 7, 1, 0, 2]);
        let parsed = SealedPacket::parse(&bytes).expect("right lengths");
        assert_eq!((parsed.session, parsed.number, parsed.payload_bytes), (0x0102, 7, 3));
        let wrong =
            [&bytes[..bytes.len() - 1], &bytes[..10], &packet(3, 0), &packet(65_500, 65_500)];
        for bytes in wrong {
            assert!(SealedPacket::is_meant(bytes));
            assert_eq!(SealedPacket::parse(bytes).err(), Some(MalformedDatagram::Short));
        }
    }

    #[test]
    fn pieces_tile_the_message() {
        let chunk_bytes = DATAGRAM_BYTES_MIN - OVERHEAD_BYTES;
        let messages =
            [(0, 0), (192, 0), (0, 1), (60, 1147), (60, 1148 * 3 - 60), (192, 1 << 20), (64, 4096)];
        for ((head, body), is_even) in
            messages.into_iter().flat_map(|of| [false, true].map(|is_even| (of, is_even)))
        {
            let pieces = MessageCut { chunk_bytes, is_even }.pieces(head, body);
            let mut next = 0;
            for fragment in 0..pieces.count {
                let range = pieces.body_range(fragment);
                assert_eq!(range.start, next);
                let carried = range.len() + if fragment == 0 { head } else { 0 };
                let is_last = fragment == pieces.count - 1;
                assert!(carried == pieces.piece_bytes || is_last && carried < pieces.piece_bytes);
                assert!(carried > 0 || head + body == 0, "no piece is empty");
                next = range.end;
            }
            assert_eq!(next, body);
        }
    }

    #[test]
    fn no_message_has_more_pieces_for_being_cut_evenly() {
        for chunk_bytes in [DATAGRAM_BYTES_MIN - SEALED_OVERHEAD_BYTES, 1420, 8920, 65_000] {
            for bytes in (0..MESSAGE_MAX).step_by(997).chain(MESSAGE_MAX - 999..=MESSAGE_MAX) {
                for head in [0, HEAD_MAX] {
                    let cut = |is_even| MessageCut { chunk_bytes, is_even }.pieces(head, bytes);
                    let (even, full) = (cut(true), cut(false));
                    assert_eq!(even.count, full.count);
                    assert!(even.piece_bytes <= chunk_bytes && even.piece_bytes >= HEAD_MAX);
                    let last = even.body_range(even.count - 1);
                    assert!(last.end == bytes && (even.count == 1 || !last.is_empty()));
                }
            }
        }
    }
}
