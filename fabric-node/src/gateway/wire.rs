//! The messages between gateways; `docs/protocol.md`, "Fabric messages".
//!
//! A gateway *joins* a peer's domain by a call and gets a channel for the direction in which it
//! sends. From then on its calls are numbered *batches* of entries. An entry has the content of a
//! cell. A head is a fixed little-endian structure, whose length is checked when it is read.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use fabric::Class;
use fabric::cell::{CellHead, CellKind, Local};
use fabric::{GATEWAYS_MAX, HOST_ENDED};

/// Calls with a kind from here on are about domains.
pub const KIND_MIN: u8 = 128;

/// Bytes of a proof of a domain's key.
pub const PROOF_BYTES: usize = 32;

/// The most bytes of a head of a call or an answer.
pub(super) const HEAD_MAX: usize = 192;

const JOIN: u8 = 128;
const BATCH: u8 = 129;

const NAME_ROOM: usize = fabric::registration::NAME_BYTES_MAX + 1;

/// The longest text of a refusal, for people.
const TEXT_BYTES_MAX: usize = HEAD_MAX - size_of::<RefusedHead>();

/// The bytes before the entries in the head of a batch.
pub(super) const BATCH_HEADER_BYTES: usize = size_of::<BatchHead>();

/// The bytes of an entry before its content.
pub(super) const ENTRY_HEADER_BYTES: usize = size_of::<EntryHead>();

/// Bytes of entries that go into the head of their batch; more are its body.
pub(super) const IN_HEAD_BYTES_MAX: usize = HEAD_MAX - BATCH_HEADER_BYTES;

/// Entries begin at multiples of this.
const ALIGN: usize = 8;

const TAGGED: u8 = 1;
const HAS_DATA: u8 = 2;
const MARKED: u8 = 4;

/// The request to join a peer's domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Which of its gateways, and how many it has.
    pub gateway: u16,
    /// See there.
    pub gateways: u16,
    /// The version of its region, the same at both: it says which gateway has a pair's messages.
    pub layout: u16,
    /// Its host's name.
    pub host: u64,
    /// Another one each time that it has given this host up.
    pub epoch: u32,
    /// The length of its buffers, the same at both.
    pub buffer_bytes: u32,
    /// Of the domain's key.
    pub proof: [u8; PROOF_BYTES],
    /// The domain.
    pub domain: String,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GatewayRequest {
    Join(Box<Join>),
    /// The entries are in the head from [`BATCH_HEADER_BYTES`] on, or in the body.
    Batch {
        channel: BatchChannel,
        number: u64,
    },
}

/// How the receiver of batches knows where a batch belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchChannel {
    /// Which of its rooms.
    pub(super) room: u16,
    /// Never used twice there.
    pub(super) number: u32,
}

/// Why bytes are nothing that gateways say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedBatch;

/// A channel in a head.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ChannelBytes {
    room: U16,
    number: U32,
}

impl From<BatchChannel> for ChannelBytes {
    fn from(BatchChannel { room, number }: BatchChannel) -> Self {
        Self { room: room.into(), number: number.into() }
    }
}

impl From<ChannelBytes> for BatchChannel {
    fn from(ChannelBytes { room, number }: ChannelBytes) -> Self {
        Self { room: room.get(), number: number.get() }
    }
}

/// The head of a join.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct JoinHead {
    kind: u8,
    zero: u8,
    gateway: U16,
    gateways: U16,
    layout: U16,
    host: U64,
    epoch: U32,
    buffer_bytes: U32,
    proof: [u8; PROOF_BYTES],
    /// The domain, filled up with zeroes.
    domain: [u8; NAME_ROOM],
}

/// The head of a batch, before entries that are in it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BatchHead {
    kind: u8,
    zero: u8,
    channel: ChannelBytes,
    number: U64,
}

/// The answer to a join that is done.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DoneHead {
    answer: u8,
    zero: u8,
    channel: ChannelBytes,
    host: U64,
    epoch: U32,
    zeroes: U32,
    received: U64,
    proof: [u8; PROOF_BYTES],
}

/// The answer to a join that is refused, before the text.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RefusedHead {
    answer: u8,
    zero: u8,
    text_bytes: U16,
    zeroes: U32,
}

/// The answer to a batch.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TakenHead {
    answer: u8,
    zeroes: [u8; 7],
    received: U64,
}

/// An entry before its content.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EntryHead {
    kind: u8,
    flags: u8,
    zero: U16,
    content_bytes: U32,
    source_slot: U16,
    to_slot: U16,
    source_incarnation: U32,
    to_incarnation: U32,
    zeroes: U32,
    tag: U64,
    data: U64,
}

const _: () = assert!(size_of::<JoinHead>() == 56 + NAME_ROOM && size_of::<DoneHead>() == 64);
const _: () = assert!(size_of::<RefusedHead>() == 8 && size_of::<TakenHead>() == 16);
const _: () = assert!(BATCH_HEADER_BYTES == 16 && ENTRY_HEADER_BYTES == 40);
const _: () = assert!(offset_of!(JoinHead, proof) == 24 && offset_of!(DoneHead, proof) == 32);
const _: () = assert!(offset_of!(EntryHead, tag) == 24);

const DONE: u8 = 0;
const REFUSED: u8 = 1;
const TAKEN: u8 = 2;
const NO_CHANNEL: u8 = 3;
const LATER: u8 = 4;

impl Join {
    /// The head of the call.
    ///
    /// # Panics
    /// When the name is too long; the configuration checks that.
    pub(super) fn head(&self) -> [u8; size_of::<JoinHead>()] {
        assert!((1..NAME_ROOM).contains(&self.domain.len()), "{} bytes", self.domain.len());
        let mut domain = [0; NAME_ROOM];
        domain[..self.domain.len()].copy_from_slice(self.domain.as_bytes());
        zerocopy::transmute!(JoinHead {
            kind: JOIN,
            zero: 0,
            gateway: self.gateway.into(),
            gateways: self.gateways.into(),
            layout: self.layout.into(),
            host: self.host.into(),
            epoch: self.epoch.into(),
            buffer_bytes: self.buffer_bytes.into(),
            proof: self.proof,
            domain,
        })
    }

    fn decode(head: &[u8]) -> Result<Self, MalformedBatch> {
        let head = JoinHead::ref_from_bytes(head).map_err(|_| MalformedBatch)?;
        let (name, rest) =
            head.domain.split_at(head.domain.iter().take_while(|it| **it != 0).count());
        let is_clean = !name.is_empty() && !rest.is_empty() && rest.iter().all(|byte| *byte == 0);
        let name = std::str::from_utf8(name).map_err(|_| MalformedBatch)?;
        let (gateway, gateways, layout) =
            (head.gateway.get(), head.gateways.get(), head.layout.get());
        let (host, epoch) = (head.host.get(), head.epoch.get());
        let is_one = gateway < gateways && gateways <= GATEWAYS_MAX;
        let is_host = ![0, HOST_ENDED].contains(&host) && epoch != 0;
        if !is_clean || !is_one || !is_host || head.zero != 0 {
            return Err(MalformedBatch);
        }
        let (buffer_bytes, proof, domain) = (head.buffer_bytes.get(), head.proof, name.to_owned());
        Ok(Self { gateway, gateways, layout, host, epoch, buffer_bytes, proof, domain })
    }
}

impl GatewayRequest {
    pub(super) fn decode(head: &[u8]) -> Result<Self, MalformedBatch> {
        if let Some(&JOIN) = head.first() {
            return Ok(Self::Join(Box::new(Join::decode(head)?)));
        }
        let (head, _) = BatchHead::ref_from_prefix(head).map_err(|_| MalformedBatch)?;
        if head.kind != BATCH || head.zero != 0 {
            return Err(MalformedBatch);
        }
        Ok(Self::Batch { channel: head.channel.into(), number: head.number.get() })
    }
}

/// Writes what is before the entries of a batch.
pub(super) fn batch_header(head: &mut [u8], channel: BatchChannel, number: u64) {
    let header = BatchHead { kind: BATCH, zero: 0, channel: channel.into(), number: number.into() };
    header.write_to_prefix(head).expect("there is room for it");
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GatewayAnswer {
    /// To a join.
    Done {
        channel: BatchChannel,
        host: u64,
        epoch: u32,
        /// The batches before this one have been taken.
        received: u64,
        proof: [u8; PROOF_BYTES],
    },
    /// To a join: why not, for people.
    Refused(String),
    /// To a batch: those before this one have been taken.
    Taken { received: u64 },
    /// To a batch: there is no such channel here, join again.
    NoChannel,
    /// To a batch: it was neither taken nor kept, since too much waits here. Those before this one
    /// have been taken.
    Later { received: u64 },
}

impl GatewayAnswer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let taken = |answer, received: u64| {
            TakenHead { answer, zeroes: [0; 7], received: received.into() }.as_bytes().to_vec()
        };
        match self {
            Self::Done { channel, host, epoch, received, proof } => DoneHead {
                answer: DONE,
                zero: 0,
                channel: (*channel).into(),
                host: (*host).into(),
                epoch: (*epoch).into(),
                zeroes: U32::ZERO,
                received: (*received).into(),
                proof: *proof,
            }
            .as_bytes()
            .to_vec(),
            Self::Refused(text) => {
                let mut end = text.len().min(TEXT_BYTES_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                let text_bytes = (end as u16).into();
                let head = RefusedHead { answer: REFUSED, zero: 0, text_bytes, zeroes: U32::ZERO };
                [head.as_bytes(), &text.as_bytes()[..end]].concat()
            }
            Self::Taken { received } => taken(TAKEN, *received),
            Self::NoChannel => taken(NO_CHANNEL, 0),
            Self::Later { received } => taken(LATER, *received),
        }
    }

    pub(super) fn decode(head: &[u8]) -> Result<Self, MalformedBatch> {
        match head.first() {
            Some(&DONE) => {
                let head = DoneHead::ref_from_bytes(head).map_err(|_| MalformedBatch)?;
                Ok(Self::Done {
                    channel: head.channel.into(),
                    host: head.host.get(),
                    epoch: head.epoch.get(),
                    received: head.received.get(),
                    proof: head.proof,
                })
            }
            Some(&REFUSED) => {
                let (head, text) =
                    RefusedHead::ref_from_prefix(head).map_err(|_| MalformedBatch)?;
                let text = text.get(..usize::from(head.text_bytes.get())).ok_or(MalformedBatch)?;
                Ok(Self::Refused(String::from_utf8_lossy(text).into_owned()))
            }
            Some(_) => {
                let head = TakenHead::ref_from_bytes(head).map_err(|_| MalformedBatch)?;
                let received = head.received.get();
                match head.answer {
                    TAKEN => Ok(Self::Taken { received }),
                    NO_CHANNEL => Ok(Self::NoChannel),
                    LATER => Ok(Self::Later { received }),
                    _ => Err(MalformedBatch),
                }
            }
            None => Err(MalformedBatch),
        }
    }
}

/// How much an entry of so many bytes takes of a batch.
pub(super) fn entry_bytes(bytes: usize) -> usize {
    ENTRY_HEADER_BYTES + bytes.next_multiple_of(ALIGN)
}

/// Writes an entry of so many bytes, which has just its place, but for those bytes: they go where
/// it says. Hosts are those of the batch's two ends.
pub(super) fn put_entry<'a>(entry: &'a mut [u8], head: &CellHead, bytes: usize) -> &'a mut [u8] {
    let CellHead { kind, class, source, to, tag, data, marked, .. } = *head;
    let flag = |is: bool, bit| if is { bit } else { 0 };
    let flags = flag(class == Class::Tagged, TAGGED)
        | flag(data.is_some(), HAS_DATA)
        | flag(marked, MARKED);
    let header = EntryHead {
        kind: kind as u8,
        flags,
        zero: U16::ZERO,
        content_bytes: (bytes as u32).into(),
        source_slot: source.slot.into(),
        to_slot: to.slot.into(),
        source_incarnation: source.incarnation.into(),
        to_incarnation: to.incarnation.into(),
        zeroes: U32::ZERO,
        tag: tag.into(),
        data: data.unwrap_or_default().into(),
    };
    let (place, rest) = entry.split_at_mut(ENTRY_HEADER_BYTES);
    header.write_to(place).expect("it is as long");
    let (place, behind) = rest.split_at_mut(bytes);
    behind.fill(0);
    place
}

/// Adds an entry to those of a batch.
pub(super) fn push_entry(batch: &mut Vec<u8>, head: &CellHead, bytes: &[u8]) {
    let at = batch.len();
    batch.resize(at + entry_bytes(bytes.len()), 0);
    put_entry(&mut batch[at..], head, bytes.len()).copy_from_slice(bytes);
}

/// An entry at the beginning of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SplitEntry<'a> {
    pub(super) head: CellHead,
    pub(super) content: &'a [u8],
    /// The entries after it.
    pub(super) rest: &'a [u8],
}

/// The first entry of a batch that came from the host of this index. `Err` when it is none, with
/// which the rest is lost as well.
pub(super) fn split_entry(batch: &[u8], host: u16) -> Result<SplitEntry<'_>, MalformedBatch> {
    let (header, after) = EntryHead::ref_from_prefix(batch).map_err(|_| MalformedBatch)?;
    let kind = CellKind::from_byte(header.kind).ok_or(MalformedBatch)?;
    let (flags, bytes) = (header.flags, header.content_bytes.get() as usize);
    let is_clean = flags <= (TAGGED | HAS_DATA | MARKED) && header.zero == 0;
    let filled = bytes.checked_next_multiple_of(ALIGN).ok_or(MalformedBatch)?;
    let (content, rest) = after.split_at_checked(filled).ok_or(MalformedBatch)?;
    if !is_clean {
        return Err(MalformedBatch);
    }
    let source = (header.source_slot.get(), header.source_incarnation.get());
    let to = (header.to_slot.get(), header.to_incarnation.get());
    let head = CellHead {
        kind,
        class: if flags & TAGGED != 0 { Class::Tagged } else { Class::Untagged },
        inline_bytes: 0,
        source: Local { host, slot: source.0, incarnation: source.1 },
        to: Local { host: 0, slot: to.0, incarnation: to.1 },
        tag: header.tag.get(),
        data: (flags & HAS_DATA != 0).then(|| header.data.get()),
        marked: flags & MARKED != 0,
    };
    if head.source.slot >= fabric::SLOTS_MAX {
        return Err(MalformedBatch);
    }
    Ok(SplitEntry { head, content: &content[..bytes], rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join() -> Join {
        let (gateway, gateways, layout, host, epoch) = (1, 2, 3, 77, 3);
        let (buffer_bytes, proof, domain) = (16_384, [9; PROOF_BYTES], "n".repeat(NAME_ROOM - 1));
        Join { gateway, gateways, layout, host, epoch, buffer_bytes, proof, domain }
    }

    #[test]
    fn written_messages_are_read_back() {
        let read = GatewayRequest::decode(&join().head());
        assert_eq!(read, Ok(GatewayRequest::Join(Box::new(join()))));
        let mut head = [7; HEAD_MAX];
        let (channel, number) = (BatchChannel { room: 4, number: 5 }, u64::MAX);
        batch_header(&mut head, channel, number);
        assert_eq!(GatewayRequest::decode(&head), Ok(GatewayRequest::Batch { channel, number }));
        let proof = [3; PROOF_BYTES];
        let answers = [
            GatewayAnswer::Done { channel, host: 2, epoch: 3, received: 4, proof },
            GatewayAnswer::Refused("ä".repeat(20)),
            GatewayAnswer::Taken { received: 5 },
            GatewayAnswer::NoChannel,
            GatewayAnswer::Later { received: 6 },
        ];
        for answer in answers {
            assert_eq!(GatewayAnswer::decode(&answer.encode()), Ok(answer));
        }
        let long = GatewayAnswer::Refused("ä".repeat(HEAD_MAX)).encode();
        assert!(long.len() <= HEAD_MAX && GatewayAnswer::decode(&long).is_ok());
    }

    #[test]
    fn entries_are_split_as_they_were_put_together() {
        let mut batch = Vec::new();
        let heads: Vec<_> = (CellKind::ALL.into_iter().enumerate())
            .map(|(at, kind)| CellHead {
                kind,
                class: if at % 2 == 0 { Class::Tagged } else { Class::Untagged },
                inline_bytes: 0,
                source: Local { host: 9, slot: at as u16, incarnation: 1 },
                to: Local { host: 0, slot: 4095, incarnation: u32::MAX },
                tag: 3,
                data: (at % 3 == 0).then_some(4),
                marked: at % 4 == 0,
            })
            .collect();
        for (at, head) in heads.iter().enumerate() {
            push_entry(&mut batch, head, &vec![at as u8; at]);
        }
        let mut rest = &batch[..];
        for (at, head) in heads.iter().enumerate() {
            let entry = split_entry(rest, 9).expect("it is one");
            assert_eq!((&entry.head, entry.content), (head, &vec![at as u8; at][..]));
            rest = entry.rest;
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn cut_or_changed_bytes_are_refused_or_another_message_and_never_a_panic() {
        let head = join().head();
        for len in 0..head.len() {
            assert_eq!(GatewayRequest::decode(&head[..len]), Err(MalformedBatch), "{len} bytes");
        }
        let crowd = |gateways| Join { gateway: gateways - 1, gateways, ..join() }.head();
        assert!(GatewayRequest::decode(&crowd(GATEWAYS_MAX)).is_ok());
        assert_eq!(
            GatewayRequest::decode(&crowd(GATEWAYS_MAX + 1)),
            Err(MalformedBatch),
            "no version has these"
        );
        let mut batch = Vec::new();
        let source = Local { host: 1, slot: 1, incarnation: 1 };
        let (kind, class, tag) = (CellKind::Inline, Class::Tagged, 0);
        let whole = CellHead {
            kind,
            class,
            inline_bytes: 0,
            source,
            to: source,
            tag,
            data: None,
            marked: false,
        };
        push_entry(&mut batch, &whole, &[1; 13]);
        for len in 0..batch.len() {
            assert_eq!(split_entry(&batch[..len], 1), Err(MalformedBatch), "{len} bytes");
        }
        let done = GatewayAnswer::NoChannel;
        for bytes in [&head[..], &batch, &done.encode(), &GatewayAnswer::NoChannel.encode()] {
            for bit in 0..bytes.len() * 8 {
                let mut bent = bytes.to_vec();
                bent[bit / 8] ^= 1 << (bit % 8);
                let _ = (
                    GatewayRequest::decode(&bent),
                    GatewayAnswer::decode(&bent),
                    split_entry(&bent, 1),
                );
            }
        }
        let mut long = batch.clone();
        long[4..8].fill(0xff);
        assert_eq!(split_entry(&long, 1), Err(MalformedBatch), "longer than memory");
    }
}
