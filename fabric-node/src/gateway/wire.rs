//! The messages between gateways; `docs/protocol.md`, "Fabric messages".
//!
//! A gateway *joins* a peer's domain by a call and gets a channel for the direction in which it
//! sends. From then on its calls are numbered *batches* of entries. An entry has the content of a
//! cell.

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
const JOIN_BYTES: usize = 56 + NAME_ROOM;
const DONE_BYTES: usize = 64;
const REFUSED_BYTES: usize = 8;
const TAKEN_BYTES: usize = 16;

/// The longest text of a refusal, for people.
const TEXT_BYTES_MAX: usize = HEAD_MAX - REFUSED_BYTES;

/// The bytes before the entries in the head of a batch.
pub(super) const BATCH_HEADER_BYTES: usize = 16;

/// The bytes of an entry before its content.
pub(super) const ENTRY_HEADER_BYTES: usize = 40;

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

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn channel(head: &[u8]) -> BatchChannel {
    BatchChannel { room: short(head, 2), number: word(head, 4) }
}

fn put_channel(head: &mut [u8], channel: BatchChannel) {
    put(head, 2, &channel.room.to_le_bytes());
    put(head, 4, &channel.number.to_le_bytes());
}

impl Join {
    /// The head of the call.
    ///
    /// # Panics
    /// When the name is too long; the configuration checks that.
    pub(super) fn head(&self) -> [u8; JOIN_BYTES] {
        assert!((1..NAME_ROOM).contains(&self.domain.len()), "{} bytes", self.domain.len());
        let mut head = [0; JOIN_BYTES];
        head[0] = JOIN;
        put(&mut head, 2, &self.gateway.to_le_bytes());
        put(&mut head, 4, &self.gateways.to_le_bytes());
        put(&mut head, 6, &self.layout.to_le_bytes());
        put(&mut head, 8, &self.host.to_le_bytes());
        put(&mut head, 16, &self.epoch.to_le_bytes());
        put(&mut head, 20, &self.buffer_bytes.to_le_bytes());
        put(&mut head, 24, &self.proof);
        put(&mut head, 56, self.domain.as_bytes());
        head
    }

    fn decode(head: &[u8]) -> Result<Self, MalformedBatch> {
        if head.len() != JOIN_BYTES || head[1] != 0 {
            return Err(MalformedBatch);
        }
        let (name, rest) =
            head[56..].split_at(head[56..].iter().take_while(|it| **it != 0).count());
        let is_clean = !name.is_empty() && !rest.is_empty() && rest.iter().all(|byte| *byte == 0);
        let name = std::str::from_utf8(name).map_err(|_| MalformedBatch)?;
        let (gateway, gateways, layout) = (short(head, 2), short(head, 4), short(head, 6));
        let (host, epoch) = (long(head, 8), word(head, 16));
        let is_one = gateway < gateways && gateways <= GATEWAYS_MAX;
        if !is_clean || !is_one || [0, HOST_ENDED].contains(&host) || epoch == 0 {
            return Err(MalformedBatch);
        }
        let proof = head[24..56].try_into().expect("so many");
        let (buffer_bytes, domain) = (word(head, 20), name.to_owned());
        Ok(Self { gateway, gateways, layout, host, epoch, buffer_bytes, proof, domain })
    }
}

impl GatewayRequest {
    pub(super) fn decode(head: &[u8]) -> Result<Self, MalformedBatch> {
        match head.first() {
            Some(&JOIN) => Ok(Self::Join(Box::new(Join::decode(head)?))),
            Some(&BATCH) if head.len() >= BATCH_HEADER_BYTES && head[1] == 0 => {
                Ok(Self::Batch { channel: channel(head), number: long(head, 8) })
            }
            _ => Err(MalformedBatch),
        }
    }
}

/// Writes what is before the entries of a batch.
pub(super) fn batch_header(head: &mut [u8], channel: BatchChannel, number: u64) {
    head[..BATCH_HEADER_BYTES].fill(0);
    head[0] = BATCH;
    put_channel(head, channel);
    put(head, 8, &number.to_le_bytes());
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
        match self {
            Self::Done { channel, host, epoch, received, proof } => {
                let mut head = vec![0; DONE_BYTES];
                put_channel(&mut head, *channel);
                put(&mut head, 8, &host.to_le_bytes());
                put(&mut head, 16, &epoch.to_le_bytes());
                put(&mut head, 24, &received.to_le_bytes());
                put(&mut head, 32, proof);
                head
            }
            Self::Refused(text) => {
                let mut end = text.len().min(TEXT_BYTES_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                let mut head = vec![0; REFUSED_BYTES];
                head[0] = 1;
                put(&mut head, 2, &(end as u16).to_le_bytes());
                head.extend_from_slice(&text.as_bytes()[..end]);
                head
            }
            Self::Taken { received } | Self::Later { received } => {
                let mut head = vec![0; TAKEN_BYTES];
                head[0] = if matches!(self, Self::Taken { .. }) { 2 } else { 4 };
                put(&mut head, 8, &received.to_le_bytes());
                head
            }
            Self::NoChannel => {
                let mut head = vec![0; TAKEN_BYTES];
                head[0] = 3;
                head
            }
        }
    }

    pub(super) fn decode(head: &[u8]) -> Result<Self, MalformedBatch> {
        match (head.first(), head.len()) {
            (Some(0), DONE_BYTES) => Ok(Self::Done {
                channel: channel(head),
                host: long(head, 8),
                epoch: word(head, 16),
                received: long(head, 24),
                proof: head[32..].try_into().expect("so many"),
            }),
            (Some(1), REFUSED_BYTES..) => {
                let text = head.get(REFUSED_BYTES..REFUSED_BYTES + usize::from(short(head, 2)));
                Ok(Self::Refused(String::from_utf8_lossy(text.ok_or(MalformedBatch)?).into_owned()))
            }
            (Some(2), TAKEN_BYTES) => Ok(Self::Taken { received: long(head, 8) }),
            (Some(3), TAKEN_BYTES) => Ok(Self::NoChannel),
            (Some(4), TAKEN_BYTES) => Ok(Self::Later { received: long(head, 8) }),
            _ => Err(MalformedBatch),
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
    let (header, rest) = entry.split_at_mut(ENTRY_HEADER_BYTES);
    header.fill(0);
    header[0] = kind as u8;
    header[1] = flags;
    put(header, 4, &(bytes as u32).to_le_bytes());
    put(header, 8, &source.slot.to_le_bytes());
    put(header, 10, &to.slot.to_le_bytes());
    put(header, 12, &source.incarnation.to_le_bytes());
    put(header, 16, &to.incarnation.to_le_bytes());
    put(header, 24, &tag.to_le_bytes());
    put(header, 32, &data.unwrap_or_default().to_le_bytes());
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

/// The first entry of a batch that came from the host of this index, and the rest. `Err` when it is
/// none, with which the rest is lost as well.
pub(super) fn split_entry(
    batch: &[u8],
    host: u16,
) -> Result<(CellHead, &[u8], &[u8]), MalformedBatch> {
    if batch.len() < ENTRY_HEADER_BYTES {
        return Err(MalformedBatch);
    }
    let (kind, flags) = (CellKind::from_byte(batch[0]).ok_or(MalformedBatch)?, batch[1]);
    let bytes = word(batch, 4) as usize;
    let whole = batch.len() >= entry_bytes(bytes.min(batch.len()));
    let is_clean = flags <= (TAGGED | HAS_DATA | MARKED) && [batch[2], batch[3]] == [0, 0];
    if !whole || !is_clean {
        return Err(MalformedBatch);
    }
    let head = CellHead {
        kind,
        class: if flags & TAGGED != 0 { Class::Tagged } else { Class::Untagged },
        inline_bytes: 0,
        source: Local { host, slot: short(batch, 8), incarnation: word(batch, 12) },
        to: Local { host: 0, slot: short(batch, 10), incarnation: word(batch, 16) },
        tag: long(batch, 24),
        data: (flags & HAS_DATA != 0).then(|| long(batch, 32)),
        marked: flags & MARKED != 0,
    };
    if head.source.slot >= fabric::SLOTS_MAX {
        return Err(MalformedBatch);
    }
    let content = &batch[ENTRY_HEADER_BYTES..ENTRY_HEADER_BYTES + bytes];
    Ok((head, content, &batch[entry_bytes(bytes)..]))
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
            let (read, bytes, after) = split_entry(rest, 9).expect("it is one");
            assert_eq!((&read, bytes), (head, &vec![at as u8; at][..]));
            rest = after;
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
            "nobody has these"
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
