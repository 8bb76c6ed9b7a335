//! The messages of the registration socket: one datagram of a sequenced-packet socket each, all of
//! one length.
//!
//! ```text
//!    0  magic  "vriofabr"
//!    8  version u16                      little-endian, as everything
//!   10  kind u16
//!   12  zero u32
//!   16  Hello:          name, 64 bytes; key, 128 bytes; both filled up with zeroes
//!       Welcome:        host u64; with it come the region's memory and an eventfd for each gateway
//!       Refused:        why u16
//!       Endpoint, CloseEndpoint, Process, OpenDoorbell, Doorbell, NoDoorbell, Ring,
//!       DoorbellWriteEnd:  incarnation u32, slot u16, zero u16; in answers about a process its
//!                       number, u32; with Ring 1 if the write end is wanted, u32. With Doorbell
//!                       comes the read end, with DoorbellWriteEnd the write end
//!       the rest is zero
//! ```
//!
//! Magic, version and kind stay at these places in every version, so that a process of another
//! version can be told so.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::key::KEY_BYTES_MAX;

/// The longest name of a domain.
pub const NAME_BYTES_MAX: usize = 63;

/// The bytes of every message.
pub const MESSAGE_BYTES: usize = 256;

/// Most descriptors that come with a message: the memory, and the gateways' doorbells.
pub const ALONG_MAX: usize = 1 + crate::GATEWAYS_MAX as usize;

/// The version of the protocol that this release speaks.
pub const VERSION: u16 = 3;

const MAGIC: [u8; 8] = *b"vriofabr";

/// A name's room: at least one zero follows it.
const NAME_ROOM_BYTES: usize = NAME_BYTES_MAX + 1;

/// A message as it is sent.
pub type Bytes = [u8; MESSAGE_BYTES];

/// The beginning of every message.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MessageHead {
    magic: [u8; 8],
    version: U16,
    kind: U16,
    zero: U32,
}

/// The bytes after the head.
const BODY_BYTES: usize = MESSAGE_BYTES - size_of::<MessageHead>();

/// The body of a Hello. Name and key are filled up with zeroes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HelloBody {
    name: [u8; NAME_ROOM_BYTES],
    key: [u8; KEY_BYTES_MAX],
    zeroes: [u8; BODY_BYTES - NAME_ROOM_BYTES - KEY_BYTES_MAX],
}

/// The body of a Welcome.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WelcomeBody {
    host: U64,
    zeroes: [u8; BODY_BYTES - 8],
}

/// The body of a Refused.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RefusedBody {
    why: U16,
    zeroes: [u8; BODY_BYTES - 2],
}

/// The body of a message about a slot.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct GrantBody {
    incarnation: U32,
    slot: U16,
    zero: U16,
    /// The number of a process, or whether the write end is wanted.
    number: U32,
    zeroes: [u8; BODY_BYTES - 12],
}

/// A body of zeroes.
type NoBody = [u8; BODY_BYTES];

const _: () = assert!(size_of::<MessageHead>() == 16 && size_of::<HelloBody>() == BODY_BYTES);
const _: () = assert!(size_of::<GrantBody>() == BODY_BYTES);

/// A process's message to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationRequest {
    /// The process wants to join.
    Hello {
        /// The domain's name.
        name: String,
        /// Its key.
        key: Box<[u8; KEY_BYTES_MAX]>,
    },
    /// It wants a slot.
    NewEndpoint,
    /// It will not use this slot again.
    CloseEndpoint(SlotGrant),
    /// Which process has this slot?
    Process(SlotGrant),
    /// The process wants a doorbell for an endpoint of its own.
    OpenDoorbell(SlotGrant),
    /// The process asks the node to wake an endpoint.
    Ring {
        /// The endpoint.
        grant: SlotGrant,
        /// Whether the process asks for the write end, to wake the endpoint itself from now on.
        wants_write_end: bool,
    },
}

/// The node's message to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationAnswer {
    /// The process is a member.
    Welcome {
        /// The name of this host in addresses.
        host: u64,
    },
    /// The process is not let in.
    Refused(RegistrationRefusal),
    /// A slot, and the number that the node sees for the process that has asked.
    Endpoint {
        /// The slot.
        grant: SlotGrant,
        /// The process.
        process: u32,
    },
    /// No slot is left.
    Full,
    /// The process that has a slot; 0 if none has, or none whose number the node sees.
    Process {
        /// The slot that was asked about.
        grant: SlotGrant,
        /// The process.
        process: u32,
    },
    /// A doorbell, with its read end.
    Doorbell(SlotGrant),
    /// No descriptor is left for a doorbell.
    NoDoorbell(SlotGrant),
    /// The write end of an endpoint's doorbell.
    DoorbellWriteEnd(SlotGrant),
}

/// A slot, and which of its owners is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotGrant {
    /// The slot.
    pub slot: u16,
    /// Which of its owners.
    pub incarnation: u32,
}

/// Why a process is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationRefusal {
    /// No such domain, or another key: the answer does not tell which of the two.
    Denied,
    /// It speaks another version.
    Version,
    /// There are as many as there may be.
    Crowded,
    /// The domain's memory cannot be handed over.
    Broken,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// They are no message of this socket at all.
    Bytes,
    /// It is one of another version.
    Version,
}

impl RegistrationRequest {
    /// Whether this answers the request, and not an earlier one that was given up.
    pub fn is_answered_by(&self, answer: &RegistrationAnswer) -> bool {
        match self {
            Self::Hello { .. } => true,
            Self::NewEndpoint => {
                matches!(answer, RegistrationAnswer::Endpoint { .. } | RegistrationAnswer::Full)
            }
            Self::OpenDoorbell(grant) => {
                [RegistrationAnswer::Doorbell(*grant), RegistrationAnswer::NoDoorbell(*grant)]
                    .contains(answer)
            }
            Self::Process(_) | Self::CloseEndpoint(_) | Self::Ring { .. } => false,
        }
    }

    /// As it is sent.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Self::Hello { name, key } => message(1, |body: &mut HelloBody| {
                body.name[..name.len()].copy_from_slice(name.as_bytes());
                body.key = **key;
            }),
            Self::NewEndpoint => message(2, |_: &mut NoBody| {}),
            Self::CloseEndpoint(grant) => with_grant(3, *grant, 0),
            Self::Process(grant) => with_grant(4, *grant, 0),
            Self::OpenDoorbell(grant) => with_grant(5, *grant, 0),
            Self::Ring { grant, wants_write_end } => {
                with_grant(6, *grant, u32::from(*wants_write_end))
            }
        }
    }

    /// Reads a received message.
    ///
    /// # Errors
    /// When it is no message, or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Foreign> {
        let (kind, body) = open(bytes)?;
        match kind {
            1 => {
                let HelloBody { name, key, zeroes: rest } = view(body)?;
                let length = name.iter().position(|byte| *byte == 0).ok_or(Foreign::Bytes)?;
                let (name, zeroes) = name.split_at(length);
                let name = std::str::from_utf8(name).map_err(|_| Foreign::Bytes)?;
                zero(zeroes)?;
                zero(rest)?;
                Ok(Self::Hello { name: name.to_owned(), key: Box::new(*key) })
            }
            2 => zero(body).map(|()| Self::NewEndpoint),
            3 => grant(body).map(Self::CloseEndpoint),
            4 => grant(body).map(Self::Process),
            5 => grant(body).map(Self::OpenDoorbell),
            6 => match grant_of(body)? {
                (grant, wants @ 0..=1) => Ok(Self::Ring { grant, wants_write_end: wants == 1 }),
                _ => Err(Foreign::Bytes),
            },
            _ => Err(Foreign::Bytes),
        }
    }
}

impl RegistrationAnswer {
    /// As it is sent.
    pub fn to_bytes(self) -> Bytes {
        match self {
            Self::Welcome { host } => {
                message(0x101, |body: &mut WelcomeBody| body.host = host.into())
            }
            Self::Refused(why) => {
                let why: u16 = match why {
                    RegistrationRefusal::Denied => 1,
                    RegistrationRefusal::Version => 2,
                    RegistrationRefusal::Crowded => 3,
                    RegistrationRefusal::Broken => 4,
                };
                message(0x102, |body: &mut RefusedBody| body.why = why.into())
            }
            Self::Endpoint { grant, process } => with_grant(0x103, grant, process),
            Self::Full => message(0x104, |_: &mut NoBody| {}),
            Self::Process { grant, process } => with_grant(0x105, grant, process),
            Self::Doorbell(grant) => with_grant(0x106, grant, 0),
            Self::NoDoorbell(grant) => with_grant(0x107, grant, 0),
            Self::DoorbellWriteEnd(grant) => with_grant(0x108, grant, 0),
        }
    }

    /// Reads a received message.
    ///
    /// # Errors
    /// When it is no message, or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Foreign> {
        let (kind, body) = match open(bytes) {
            // Said by a node of another version, in its own.
            Err(Foreign::Version) if is_refusal(bytes) => {
                return Ok(Self::Refused(RegistrationRefusal::Version));
            }
            other => other?,
        };
        match kind {
            0x101 => {
                let WelcomeBody { host, zeroes } = view(body)?;
                zero(zeroes)?;
                match host.get() {
                    0 => Err(Foreign::Bytes),
                    host => Ok(Self::Welcome { host }),
                }
            }
            0x102 => {
                let RefusedBody { why, zeroes } = view(body)?;
                zero(zeroes)?;
                let why = match why.get() {
                    1 => RegistrationRefusal::Denied,
                    2 => RegistrationRefusal::Version,
                    3 => RegistrationRefusal::Crowded,
                    4 => RegistrationRefusal::Broken,
                    _ => return Err(Foreign::Bytes),
                };
                Ok(Self::Refused(why))
            }
            0x103 => grant_of(body).map(|(grant, process)| Self::Endpoint { grant, process }),
            0x104 => zero(body).map(|()| Self::Full),
            0x105 => grant_of(body).map(|(grant, process)| Self::Process { grant, process }),
            0x106 => grant(body).map(Self::Doorbell),
            0x107 => grant(body).map(Self::NoDoorbell),
            0x108 => grant(body).map(Self::DoorbellWriteEnd),
            _ => Err(Foreign::Bytes),
        }
    }
}

/// A message of this kind, whose body `fill` fills.
fn message<B: FromBytes + IntoBytes + KnownLayout>(kind: u16, fill: impl FnOnce(&mut B)) -> Bytes {
    let mut bytes = [0; MESSAGE_BYTES];
    let (head, body) = MessageHead::mut_from_prefix(&mut bytes).expect("a message is longer");
    (head.magic, head.version, head.kind) = (MAGIC, VERSION.into(), kind.into());
    fill(B::mut_from_bytes(body).expect("all bodies have one length"));
    bytes
}

fn with_grant(kind: u16, grant: SlotGrant, number: u32) -> Bytes {
    message(kind, |body: &mut GrantBody| {
        body.incarnation = grant.incarnation.into();
        body.slot = grant.slot.into();
        body.number = number.into();
    })
}

/// Whether a message of another version is a refusal.
fn is_refusal(bytes: &[u8]) -> bool {
    MessageHead::ref_from_prefix(bytes).is_ok_and(|(head, _)| head.kind == 0x102)
}

/// A message's kind and body.
fn open(bytes: &[u8]) -> Result<(u16, &[u8]), Foreign> {
    let (head, body) = MessageHead::ref_from_prefix(bytes).map_err(|_| Foreign::Bytes)?;
    if body.len() != BODY_BYTES || head.magic != MAGIC {
        return Err(Foreign::Bytes);
    }
    if head.version != VERSION {
        return Err(Foreign::Version);
    }
    match head.zero.get() {
        0 => Ok((head.kind.get(), body)),
        _ => Err(Foreign::Bytes),
    }
}

/// A body as a structure; each has the length of all bodies.
fn view<B: FromBytes + Immutable + KnownLayout>(body: &[u8]) -> Result<&B, Foreign> {
    B::ref_from_bytes(body).map_err(|_| Foreign::Bytes)
}

fn grant(body: &[u8]) -> Result<SlotGrant, Foreign> {
    let (grant, process) = grant_of(body)?;
    if process == 0 { Ok(grant) } else { Err(Foreign::Bytes) }
}

/// A slot grant, and the process beside it.
fn grant_of(body: &[u8]) -> Result<(SlotGrant, u32), Foreign> {
    let GrantBody { incarnation, slot, zero: between, number, zeroes } = view(body)?;
    zero(between.as_bytes())?;
    zero(zeroes)?;
    let grant = SlotGrant { incarnation: incarnation.get(), slot: slot.get() };
    Ok((grant, number.get()))
}

fn zero(bytes: &[u8]) -> Result<(), Foreign> {
    bytes.iter().all(|byte| *byte == 0).then_some(()).ok_or(Foreign::Bytes)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn known() -> (Vec<RegistrationRequest>, Vec<RegistrationAnswer>) {
        let grant = SlotGrant { slot: 7, incarnation: 0x0102_0304 };
        let mut key = Box::new([0; KEY_BYTES_MAX]);
        key[..4].copy_from_slice(b"abcd");
        let name = "n".repeat(NAME_BYTES_MAX);
        let requests = vec![
            RegistrationRequest::Hello { name, key },
            RegistrationRequest::NewEndpoint,
            RegistrationRequest::CloseEndpoint(grant),
            RegistrationRequest::Process(grant),
            RegistrationRequest::OpenDoorbell(grant),
            RegistrationRequest::Ring { grant, wants_write_end: true },
            RegistrationRequest::Ring { grant, wants_write_end: false },
        ];
        let refusals = [
            RegistrationRefusal::Denied,
            RegistrationRefusal::Version,
            RegistrationRefusal::Crowded,
            RegistrationRefusal::Broken,
        ];
        let mut answers = vec![
            RegistrationAnswer::Welcome { host: 9 },
            RegistrationAnswer::Endpoint { grant, process: 7 },
            RegistrationAnswer::Full,
            RegistrationAnswer::Process { grant, process: 9 },
            RegistrationAnswer::Doorbell(grant),
            RegistrationAnswer::NoDoorbell(grant),
            RegistrationAnswer::DoorbellWriteEnd(grant),
        ];
        answers.extend(refusals.map(RegistrationAnswer::Refused));
        (requests, answers)
    }

    #[test]
    fn written_messages_are_read_back() {
        let (requests, answers) = known();
        for request in requests {
            assert_eq!(RegistrationRequest::from_bytes(&request.to_bytes()), Ok(request.clone()));
            assert_eq!(RegistrationAnswer::from_bytes(&request.to_bytes()), Err(Foreign::Bytes));
        }
        for answer in answers {
            assert_eq!(RegistrationAnswer::from_bytes(&answer.to_bytes()), Ok(answer));
            assert_eq!(RegistrationRequest::from_bytes(&answer.to_bytes()), Err(Foreign::Bytes));
        }
    }

    #[test]
    fn another_version_is_told_so() {
        let mut bytes = RegistrationRequest::NewEndpoint.to_bytes();
        bytes[8] = 9;
        assert_eq!(RegistrationRequest::from_bytes(&bytes), Err(Foreign::Version));
        let mut bytes = RegistrationAnswer::Refused(RegistrationRefusal::Denied).to_bytes();
        bytes[8] = 9;
        assert_eq!(
            RegistrationAnswer::from_bytes(&bytes),
            Ok(RegistrationAnswer::Refused(RegistrationRefusal::Version))
        );
    }

    proptest! {
        /// Every byte that is changed is either noticed or says something else; none panics.
        #[test]
        fn no_byte_is_without_meaning(which in 0_usize..11, at in 0..MESSAGE_BYTES, by in 1_u8..) {
            let (requests, answers) = known();
            if let Some(request) = requests.get(which) {
                let mut bytes = request.to_bytes();
                bytes[at] ^= by;
                prop_assert_ne!(RegistrationRequest::from_bytes(&bytes), Ok(request.clone()));
            }
            // A refusal in another version is a refusal for the version.
            prop_assume!(!(8..10).contains(&at));
            let mut bytes = answers[which].to_bytes();
            bytes[at] ^= by;
            prop_assert_ne!(RegistrationAnswer::from_bytes(&bytes), Ok(answers[which]));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(RegistrationRequest::from_bytes(&bytes), Err(Foreign::Bytes));
            prop_assert_eq!(RegistrationAnswer::from_bytes(&bytes), Err(Foreign::Bytes));
        }
    }
}
