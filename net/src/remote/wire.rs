//! The messages of nodes about networks; `docs/protocol.md`, "Network messages".
//!
//! A port joins by a call and is a *member* of the network from then on: its frames are casts, each
//! with the number of the membership, which is never used twice.

use transport::HEAD_MAX;

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
pub(super) const FRAME_HEADER_BYTES: usize = 6 + OFFLOAD_BYTES;

/// How much of a frame is in the head of its cast; the rest is the body.
pub(super) const FIRST_BYTES_MAX: usize = HEAD_MAX - FRAME_HEADER_BYTES;

const FLAG_PROOF: u8 = 1;
const FLAG_TRUNK: u8 = 2;

const NAME_ROOM: usize = NAME_BYTES_MAX + 1;
const JOIN_BYTES: usize = 32 + 2 * NAME_ROOM;
const SHORT_BYTES: usize = 8;
const ANSWER_BYTES: usize = 16;

const _: () = assert!(JOIN_BYTES <= HEAD_MAX && ANSWER_BYTES + TEXT_BYTES_MAX <= HEAD_MAX);

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

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) | u32::from(word(bytes, at + 2)) << 16
}

fn name(room: &[u8]) -> Result<String, MalformedCall> {
    let end = room.iter().position(|byte| *byte == 0).ok_or(MalformedCall)?;
    let (name, rest) = room.split_at(end);
    let is_clean = !name.is_empty() && rest.iter().all(|byte| *byte == 0);
    let name = std::str::from_utf8(name).map_err(|_| MalformedCall)?;
    if is_clean { Ok(name.to_owned()) } else { Err(MalformedCall) }
}

impl Join {
    /// The head of the call.
    ///
    /// # Panics
    /// When a name is too long; the configuration checks that.
    pub fn head(&self, has_proof: bool) -> Vec<u8> {
        let mut head = vec![0; JOIN_BYTES];
        head[0] = NetCallKind::Join as u8;
        head[1] = if has_proof { FLAG_PROOF } else { 0 };
        head[2..4].copy_from_slice(&self.flow.to_le_bytes());
        head[8..14].copy_from_slice(&self.mac.0);
        head[14..16].copy_from_slice(&self.mtu.to_le_bytes());
        match &self.vlans {
            Vlans::Access(vlan) => head[16..18].copy_from_slice(&vlan.to_le_bytes()),
            Vlans::Trunk { .. } => head[1] |= FLAG_TRUNK,
        }
        for (at, name) in [(32, &self.network), (32 + NAME_ROOM, &self.nic)] {
            assert!((1..=NAME_BYTES_MAX).contains(&name.len()), "a name of {} bytes", name.len());
            head[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        head
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
    let mut head = [0; SHORT_BYTES];
    head[0] = kind as u8;
    head[2..4].copy_from_slice(&flow.to_le_bytes());
    head[4..8].copy_from_slice(&membership.to_le_bytes());
    head
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
        if head.len() < SHORT_BYTES {
            return Err(MalformedCall);
        }
        let (flow, membership) = (word(head, 2), long(head, 4));
        if usize::from(flow) >= transport::FLOWS_MAX {
            return Err(MalformedCall);
        }
        match head[0] {
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
    if head.len() != JOIN_BYTES || head[1] & !(FLAG_PROOF | FLAG_TRUNK) != 0 {
        return Err(MalformedCall);
    }
    let proof_bytes = if head[1] & FLAG_PROOF == 0 { 0 } else { PROOF_BYTES };
    let (proof, vlans) = body.split_at_checked(proof_bytes).ok_or(MalformedCall)?;
    let (vlans, rest) = vlans.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(MalformedCall);
    }
    let is_tag = |vlan: u16| (1..=4094).contains(&vlan);
    let vlans = if head[1] & FLAG_TRUNK == 0 {
        let vlan = word(head, 16);
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
    let mac = Mac(head[8..14].try_into().expect("six bytes"));
    let (network, nic) = (name(&head[32..32 + NAME_ROOM])?, name(&head[32 + NAME_ROOM..])?);
    let join = Join { flow, mac, mtu: word(head, 14), vlans, network, nic };
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
        let mut head = vec![0; ANSWER_BYTES];
        match self {
            Self::Done { membership } => head[4..8].copy_from_slice(&membership.to_le_bytes()),
            Self::Refused { text } => {
                let mut end = text.len().min(TEXT_BYTES_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                head[0] = 1;
                head[2..4].copy_from_slice(&(end as u16).to_le_bytes());
                head.extend_from_slice(&text.as_bytes()[..end]);
            }
            Self::Elsewhere { sidecore, sidecores } => {
                head[0] = 2;
                head[8..10].copy_from_slice(&sidecore.to_le_bytes());
                head[10..12].copy_from_slice(&sidecores.to_le_bytes());
            }
        }
        head
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is not in the protocol's form.
    pub fn decode(head: &[u8]) -> Result<Self, MalformedCall> {
        if head.len() < ANSWER_BYTES {
            return Err(MalformedCall);
        }
        match head[0] {
            0 => Ok(Self::Done { membership: long(head, 4) }),
            1 => {
                let text = head.get(ANSWER_BYTES..ANSWER_BYTES + usize::from(word(head, 2)));
                let text = String::from_utf8_lossy(text.ok_or(MalformedCall)?).into_owned();
                Ok(Self::Refused { text })
            }
            2 => {
                let (sidecore, sidecores) = (word(head, 8), word(head, 10));
                let is_one = sidecore < sidecores;
                if is_one {
                    Ok(Self::Elsewhere { sidecore, sidecores })
                } else {
                    Err(MalformedCall)
                }
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
        into[..4].copy_from_slice(&self.membership.to_le_bytes());
        into[4..6].copy_from_slice(&self.tci.to_le_bytes());
        into[6..FRAME_HEADER_BYTES].copy_from_slice(&self.offload);
    }

    /// The membership that a cast is for.
    pub(super) fn membership_of(head: &[u8]) -> Option<u32> {
        (head.len() >= FRAME_HEADER_BYTES).then(|| long(head, 0))
    }

    /// Reads the rest of a head that has a membership.
    pub(super) fn read(head: &[u8]) -> Result<(u16, Offload), Reason> {
        let offload = head[6..].first_chunk().ok_or(Reason::Short)?;
        Ok((word(head, 4), Offload::read(offload)?))
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
