//! The messages of nodes about networks; `docs/protocol.md`, "Network messages".
//!
//! A port joins by a call and is a *member* of the network from then on: its frames are casts, each
//! with the number of the membership, which is never used twice. A head is a fixed little-endian
//! structure, whose length is checked when it is read.

use std::mem::offset_of;

use transport::HEAD_MAX;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::ether::Mac;
use crate::offload::{HEADER_BYTES as OFFLOAD_BYTES, Offload};
use crate::reason::Reason;
use crate::switch::{VlanSet, Vlans};

/// The first kind of calls about networks.
pub const KIND_MIN: u8 = peer::PlaneId::Network.kind_min();

/// Bytes of a proof, which comes first in the body of a join.
pub const PROOF_BYTES: usize = 96;

/// Bytes of a name at most; the longest of node's names, less one.
pub const NAME_BYTES_MAX: usize = 63;

/// The longest text of an answer, for people.
pub const TEXT_BYTES_MAX: usize = 160;

/// The length of the header before a frame in the head of its cast.
pub(super) const FRAME_HEADER_BYTES: usize = size_of::<FrameHead>();

/// How much of a frame is in the head of its cast; the rest is the body.
pub(super) const FIRST_BYTES_MAX: usize = HEAD_MAX - FRAME_HEADER_BYTES;

const FLAG_PROOF: u8 = 1;
const FLAG_TRUNK: u8 = 2;

const NAME_ROOM: usize = NAME_BYTES_MAX + 1;
const SHORT_BYTES: usize = size_of::<ShortHead>();
const ANSWER_BYTES: usize = size_of::<AnswerHead>();

/// The head of a call, as far as all calls have it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ShortHead {
    kind: u8,
    flags: u8,
    flow: U16,
    /// Zero in a join.
    membership: U32,
}

/// The head of a join.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct JoinHead {
    short: ShortHead,
    mac: [u8; 6],
    mtu: U16,
    /// The VLAN of a port that is no trunk.
    vlan: U16,
    zeroes: [u8; 14],
    /// The names are filled up with zeroes.
    network: [u8; NAME_ROOM],
    nic: [u8; NAME_ROOM],
}

/// The head of an answer, before a text.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AnswerHead {
    answer: u8,
    zero: u8,
    text_bytes: U16,
    membership: U32,
    sidecore: U16,
    sidecores: U16,
    zeroes: U32,
}

/// The header before a frame, as it is sent.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FrameHead {
    membership: U32,
    tci: U16,
    offload: [u8; OFFLOAD_BYTES],
}

const _: () = assert!(SHORT_BYTES == 8 && ANSWER_BYTES == 16);
const _: () = assert!(size_of::<JoinHead>() == 32 + 2 * NAME_ROOM);
const _: () = assert!(offset_of!(JoinHead, network) == 32 && offset_of!(FrameHead, offload) == 6);
const _: () = assert!(size_of::<JoinHead>() <= HEAD_MAX);
const _: () = assert!(ANSWER_BYTES + TEXT_BYTES_MAX <= HEAD_MAX);

const DONE: u8 = 0;
const REFUSED: u8 = 1;
const ELSEWHERE: u8 = 2;

/// The kind of a call. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NetCallKind {
    /// To become a member.
    Join = 64,
    /// To be one no longer.
    Leave = 65,
    /// From the network's node: the member is one no longer, and may ask why by joining.
    Ended = 66,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetRequest {
    /// See [`NetCallKind::Join`].
    Join(Box<Join>),
    /// See [`NetCallKind::Leave`].
    Leave {
        /// The flow of its casts, in both directions.
        flow: u16,
        /// Which.
        membership: u32,
    },
    /// See [`NetCallKind::Ended`].
    Ended {
        /// The flow of its casts, in both directions.
        flow: u16,
        /// Which.
        membership: u32,
    },
}

/// The wish to become a member: the network, and the station's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The flow of the casts, in both directions; chosen by the node that joins.
    pub flow: u16,
    /// The station's address.
    pub mac: Mac,
    /// Its MTU, for people.
    pub mtu: u16,
    /// Its VLANs.
    pub vlans: Vlans,
    /// The network's name at its node.
    pub network: String,
    /// The nic's name at the node that joins, unique there.
    pub nic: String,
}

/// A call that is not in the protocol's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedCall;

fn name(room: &[u8]) -> Result<String, MalformedCall> {
    let end = room.iter().position(|byte| *byte == 0).ok_or(MalformedCall)?;
    let (name, rest) = room.split_at(end);
    let is_clean = !name.is_empty() && rest.iter().all(|byte| *byte == 0);
    let name = std::str::from_utf8(name).map_err(|_| MalformedCall)?;
    if is_clean { Ok(name.to_owned()) } else { Err(MalformedCall) }
}

/// A name with its room, which a reader finds filled up with zeroes.
fn room(name: &str) -> [u8; NAME_ROOM] {
    assert!((1..=NAME_BYTES_MAX).contains(&name.len()), "a name of {} bytes", name.len());
    let mut room = [0; NAME_ROOM];
    room[..name.len()].copy_from_slice(name.as_bytes());
    room
}

impl Join {
    /// The head of the call.
    ///
    /// # Panics
    /// When a name is too long; the configuration checks that.
    pub fn head(&self, has_proof: bool) -> Vec<u8> {
        let (vlan, trunk) = match &self.vlans {
            Vlans::Access(vlan) => (*vlan, 0),
            Vlans::Trunk { .. } => (0, FLAG_TRUNK),
        };
        let flags = trunk | if has_proof { FLAG_PROOF } else { 0 };
        let head = JoinHead {
            short: ShortHead {
                kind: NetCallKind::Join as u8,
                flags,
                flow: self.flow.into(),
                membership: U32::ZERO,
            },
            mac: self.mac.0,
            mtu: self.mtu.into(),
            vlan: vlan.into(),
            zeroes: [0; 14],
            network: room(&self.network),
            nic: room(&self.nic),
        };
        head.as_bytes().to_vec()
    }

    /// The body of the call.
    pub fn body(&self, proof: Option<[u8; PROOF_BYTES]>) -> Vec<u8> {
        let mut body: Vec<u8> = proof.into_iter().flatten().collect();
        if let Vlans::Trunk { tagged, .. } = &self.vlans {
            body.extend(tagged.iter().flat_map(u16::to_le_bytes));
        }
        body
    }
}

/// The head of a call that names a membership.
pub(super) fn short_head(kind: NetCallKind, flow: u16, membership: u32) -> [u8; SHORT_BYTES] {
    let (flow, membership) = (flow.into(), membership.into());
    zerocopy::transmute!(ShortHead { kind: kind as u8, flags: 0, flow, membership })
}

impl NetRequest {
    /// Reads a call, and the proof in it if there is one.
    ///
    /// # Errors
    /// When it is not in the protocol's form.
    pub fn decode<'a>(
        head: &[u8],
        body: &'a [u8],
    ) -> Result<(Self, Option<&'a [u8]>), MalformedCall> {
        let (short, _) = ShortHead::ref_from_prefix(head).map_err(|_| MalformedCall)?;
        let (flow, membership) = (short.flow.get(), short.membership.get());
        if usize::from(flow) >= transport::FLOWS_MAX {
            return Err(MalformedCall);
        }
        match short.kind {
            kind if kind == NetCallKind::Leave as u8 => {
                Ok((Self::Leave { flow, membership }, None))
            }
            kind if kind == NetCallKind::Ended as u8 => {
                Ok((Self::Ended { flow, membership }, None))
            }
            kind if kind == NetCallKind::Join as u8 => {
                let (join, proof) = decode_join(flow, head, body)?;
                Ok((Self::Join(Box::new(join)), proof))
            }
            _ => Err(MalformedCall),
        }
    }
}

fn decode_join<'a>(
    flow: u16,
    head: &[u8],
    body: &'a [u8],
) -> Result<(Join, Option<&'a [u8]>), MalformedCall> {
    let head = JoinHead::ref_from_bytes(head).map_err(|_| MalformedCall)?;
    let flags = head.short.flags;
    if flags & !(FLAG_PROOF | FLAG_TRUNK) != 0 {
        return Err(MalformedCall);
    }
    let proof_bytes = if flags & FLAG_PROOF == 0 { 0 } else { PROOF_BYTES };
    let (proof, vlans) = body.split_at_checked(proof_bytes).ok_or(MalformedCall)?;
    let (vlans, rest) = vlans.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(MalformedCall);
    }
    let is_tag = |vlan: u16| (1..=4094).contains(&vlan);
    let vlans = if flags & FLAG_TRUNK == 0 {
        let vlan = head.vlan.get();
        if !vlans.is_empty() || !(vlan == 0 || is_tag(vlan)) {
            return Err(MalformedCall);
        }
        Vlans::Access(vlan)
    } else {
        let mut tagged = VlanSet::none();
        for vlan in vlans {
            let vlan = u16::from_le_bytes(*vlan);
            if !is_tag(vlan) {
                return Err(MalformedCall);
            }
            tagged.insert(vlan);
        }
        Vlans::Trunk { native: None, tagged }
    };
    let (network, nic) = (name(&head.network)?, name(&head.nic)?);
    let join = Join { flow, mac: Mac(head.mac), mtu: head.mtu.get(), vlans, network, nic };
    Ok((join, (proof_bytes > 0).then_some(proof)))
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetAnswer {
    /// It is a member; or was one.
    Done {
        /// Which.
        membership: u32,
    },
    /// Why it is not.
    Refused {
        /// For people.
        text: String,
    },
    /// The network lives on this sidecore: to be asked in a session that is served there.
    Elsewhere {
        /// Which sidecore.
        sidecore: u16,
        /// How many the node has.
        sidecores: u16,
    },
}

impl NetAnswer {
    /// Its head.
    pub fn encode(&self) -> Vec<u8> {
        let mut head = AnswerHead::new_zeroed();
        let mut said = "";
        match self {
            Self::Done { membership } => head.membership = (*membership).into(),
            Self::Refused { text } => {
                let mut end = text.len().min(TEXT_BYTES_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                said = &text[..end];
                (head.answer, head.text_bytes) = (REFUSED, (end as u16).into());
            }
            Self::Elsewhere { sidecore, sidecores } => {
                head.answer = ELSEWHERE;
                (head.sidecore, head.sidecores) = ((*sidecore).into(), (*sidecores).into());
            }
        }
        [head.as_bytes(), said.as_bytes()].concat()
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is not in the protocol's form.
    pub fn decode(head: &[u8]) -> Result<Self, MalformedCall> {
        let (head, text) = AnswerHead::ref_from_prefix(head).map_err(|_| MalformedCall)?;
        match head.answer {
            DONE => Ok(Self::Done { membership: head.membership.get() }),
            REFUSED => {
                let text = text.get(..usize::from(head.text_bytes.get())).ok_or(MalformedCall)?;
                Ok(Self::Refused { text: String::from_utf8_lossy(text).into_owned() })
            }
            ELSEWHERE if head.sidecore.get() < head.sidecores.get() => {
                let (sidecore, sidecores) = (head.sidecore.get(), head.sidecores.get());
                Ok(Self::Elsewhere { sidecore, sidecores })
            }
            _ => Err(MalformedCall),
        }
    }
}

/// The header before a frame in the head of its cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) membership: u32,
    /// The tag that the frame has, zero for none; it is not in the frame itself.
    pub(super) tci: u16,
    /// As before a frame in a virtio-net queue.
    pub(super) offload: [u8; OFFLOAD_BYTES],
}

impl FrameHeader {
    pub(super) fn write(&self, into: &mut [u8]) {
        let Self { membership, tci, offload } = *self;
        let head = FrameHead { membership: membership.into(), tci: tci.into(), offload };
        head.write_to_prefix(into).expect("there is room for it");
    }

    /// The membership that a cast is for.
    pub(super) fn membership_of(head: &[u8]) -> Option<u32> {
        FrameHead::ref_from_prefix(head).ok().map(|(head, _)| head.membership.get())
    }

    /// Reads the rest of a head that has a membership.
    pub(super) fn read(head: &[u8]) -> Result<(u16, Offload), Reason> {
        let (head, _) = FrameHead::ref_from_prefix(head).map_err(|_| Reason::Short)?;
        Ok((head.tci.get(), Offload::read(&head.offload)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(vlans: Vlans) -> Join {
        let mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
        let (network, nic) = ("blue".to_owned(), "alice-net".to_owned());
        Join { flow: 255, mac, mtu: 1500, vlans, network, nic }
    }

    #[test]
    fn calls_and_answers_are_read_as_they_were_written() {
        let tagged: VlanSet = [1, 7, 4094].into_iter().collect();
        for vlans in [Vlans::Access(0), Vlans::Access(5), Vlans::Trunk { native: None, tagged }] {
            for proof in [None, Some([9; PROOF_BYTES])] {
                let join = join(vlans.clone());
                let (head, body) = (join.head(proof.is_some()), join.body(proof));
                let read = NetRequest::decode(&head, &body).unwrap();
                assert_eq!(
                    read,
                    (NetRequest::Join(Box::new(join)), proof.as_ref().map(|it| &it[..]))
                );
            }
        }
        let leave = short_head(NetCallKind::Leave, 3, 0xdead_beef);
        let membership = 0xdead_beef;
        assert_eq!(
            NetRequest::decode(&leave, &[]),
            Ok((NetRequest::Leave { flow: 3, membership }, None))
        );
        let ended = short_head(NetCallKind::Ended, 3, 0xdead_beef);
        assert_eq!(
            NetRequest::decode(&ended, &[]),
            Ok((NetRequest::Ended { flow: 3, membership }, None))
        );
        let refused = |text: &str| NetAnswer::Refused { text: text.to_owned() };
        for answer in [
            NetAnswer::Done { membership },
            refused("no such network"),
            NetAnswer::Elsewhere { sidecore: 1, sidecores: 2 },
        ] {
            assert_eq!(NetAnswer::decode(&answer.encode()), Ok(answer));
        }
        let long = refused(&"ä".repeat(TEXT_BYTES_MAX)).encode();
        assert!(long.len() <= HEAD_MAX);
        assert_eq!(NetAnswer::decode(&long), Ok(refused(&"ä".repeat(TEXT_BYTES_MAX / 2))));
    }

    #[test]
    fn cut_or_changed_bytes_are_malformed_or_another_message_and_never_a_panic() {
        let join = join(Vlans::Trunk { native: None, tagged: [3].into_iter().collect() });
        let (head, body) = (join.head(true), join.body(Some([1; PROOF_BYTES])));
        for len in 0..head.len() {
            assert_eq!(NetRequest::decode(&head[..len], &body), Err(MalformedCall), "{len} bytes");
        }
        for len in 0..body.len() {
            let is_whole = len == PROOF_BYTES;
            assert_eq!(NetRequest::decode(&head, &body[..len]).is_ok(), is_whole, "{len} bytes");
        }
        for bit in 0..head.len() * 8 {
            let mut bent = head.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            let _ = NetRequest::decode(&bent, &body);
            let _ = NetAnswer::decode(&bent);
        }
        let wrong: [&[u8]; 3] =
            [&[2; 16], &[0; 15], &[1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
        for wrong in wrong {
            assert_eq!(NetAnswer::decode(wrong), Err(MalformedCall));
        }
    }
}
