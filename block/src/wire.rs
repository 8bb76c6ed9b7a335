//! Block messages: the heads of calls and replies between a remote volume and its server.
//!
//! A head is a fixed little-endian structure; data travels as the message's body. Every message
//! that touches a volume carries attachment, epoch and incarnation. `docs/protocol.md` shows the
//! bytes. A peer's message is checked once, here: [`Request::decode`] and [`Reply::decode`] give
//! plain values or nothing.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use volume::name::NAME_BYTES_MAX;
use volume::{
    Durability, IO_BYTES_MAX, Incarnation, OPTIMAL_BYTES_MAX, Op, PHYSICAL_BYTES_MAX, Topology,
    VolumeInfo, Zeroing,
};

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks for the properties of the volume `names.volume`. Needs no attachment.
    Describe = 1,
    /// An epoch for the attachment `names.attachment` of `names.volume`.
    Claim = 2,
    /// A channel of a claimed attachment on this flow.
    Open = 3,
    /// The attachment ends: drain, flush, remember that it was clean.
    Close = 4,
    /// From a server about `names.volume`: describe it anew. Each client hears of it to which the
    /// server has described the volume, and when the server's node has taken the volume over, each
    /// client that may use it. From version 3.
    Changed = 5,
    /// `len_bytes` from `offset_bytes`.
    Read = 16,
    /// The body to `offset_bytes`.
    Write = 17,
    /// Make completed writes durable.
    Flush = 18,
    /// Forget `len_bytes` from `offset_bytes`: they read as zeroes. From version 3.
    Discard = 19,
    /// Zeroes onto `len_bytes` from `offset_bytes`. From version 3.
    WriteZeroes = 20,
}

/// The first version of this plane ([`peer::PlaneId::version`]) with ranges that are zeroed, and
/// with a volume's description of them and of its layout.
pub const ZEROING_VERSION_MIN: u8 = 2;

/// The first version of this plane with [`Outcome::Elsewhere`].
pub const ELSEWHERE_VERSION_MIN: u8 = 3;

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Describe,
            2 => Self::Claim,
            3 => Self::Open,
            4 => Self::Close,
            5 => Self::Changed,
            16 => Self::Read,
            17 => Self::Write,
            18 => Self::Flush,
            19 => Self::Discard,
            20 => Self::WriteZeroes,
            _ => return None,
        })
    }

    /// The operation on a volume; `None` for calls about an attachment.
    pub fn op(self) -> Option<Op> {
        match self {
            Self::Describe | Self::Claim | Self::Open | Self::Close | Self::Changed => None,
            Self::Read => Some(Op::Read),
            Self::Write => Some(Op::Write),
            Self::Flush => Some(Op::Flush),
            Self::Discard => Some(Op::Discard),
            Self::WriteZeroes => Some(Op::WriteZeroes),
        }
    }

    /// The other way round.
    pub fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
            Op::WriteZeroes => Self::WriteZeroes,
        }
    }
}

/// The attachment and epoch on whose behalf a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Title {
    /// Identifies volume and attachment; see [`attachment_id`].
    pub attachment: u128,
    /// The epoch that the server issued; 0 before the first.
    pub epoch: u64,
    /// The incarnation that it was issued under.
    pub incarnation: Incarnation,
}

/// The fields of a claim besides its title.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Claim {
    /// See [`crate::attachment::AttachOptions`].
    pub claimant: u64,
    /// The guest remembers answers of an earlier client.
    pub resume: bool,
    /// Acknowledged writes of this client are not flushed.
    pub unflushed: bool,
    /// The operator accepts a loss.
    pub accept_loss: bool,
    /// The operator ends another claimant's use of the volume.
    pub take_over: bool,
    /// See [`crate::attachment::AttachOptions::known`].
    pub known: u64,
}

/// The volume and the attachment that a message names.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Names {
    /// The volume, as exported.
    pub volume: String,
    /// The attachment; empty where none is meant.
    pub attachment: String,
}

impl Names {
    /// Both, as proofs are made about them.
    pub fn pair(&self) -> peer::proof::Names<'_> {
        (&self.volume, &self.attachment)
    }
}

/// A call's head, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kind of the call.
    pub kind: Kind,
    /// On whose behalf.
    pub title: Title,
    /// The channel's index within its attachment.
    pub channel: u16,
    /// A write, or a range that is zeroed, that must be durable when answered.
    pub durable: bool,
    /// First byte of what is read, written or zeroed.
    pub offset_bytes: u64,
    /// Length of what is read, written or zeroed.
    pub len_bytes: u32,
    /// For [`Kind::Claim`].
    pub claim: Claim,
    /// For what is about a volume or an attachment as a whole: no [`Kind::op`].
    pub names: Option<Names>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Done in full.
    Done = 0,
    /// The storage failed.
    Error = 1,
    /// The request makes no sense for the volume.
    Invalid = 2,
    /// The title's epoch is over: ask again with a claim.
    EpochOver = 3,
    /// The volume has another incarnation than the title: claim.
    IncarnationOver = 4,
    /// This flow has no open channel (the server forgot, or never knew): open it.
    NotOpen = 5,
    /// A claim by a client that a successor has replaced.
    Superseded = 6,
    /// A claim after which acknowledged writes would be missing.
    Lost = 7,
    /// Refused for the reason in the text (unknown volume, not allowed, in use).
    Refused = 8,
    /// The volume cannot do this. From version 3.
    Unsupported = 9,
    /// Another member serves the volume: the text is the name of its node, or empty if it is not
    /// known. From version 5.
    Elsewhere = 10,
}

impl Outcome {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Done,
            1 => Self::Error,
            2 => Self::Invalid,
            3 => Self::EpochOver,
            4 => Self::IncarnationOver,
            5 => Self::NotOpen,
            6 => Self::Superseded,
            7 => Self::Lost,
            8 => Self::Refused,
            9 => Self::Unsupported,
            10 => Self::Elsewhere,
            _ => return None,
        })
    }
}

/// A reply's head, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the call ended.
    pub outcome: Outcome,
    /// The present epoch, where one was claimed.
    pub epoch: u64,
    /// The volume, for descriptions, claims and opened channels.
    pub volume: Option<VolumeInfo>,
    /// One attachment at a time uses the volume. Descriptions and answers to claims say so; `false`
    /// where it is not known.
    pub sole: bool,
    /// For people; empty unless refused.
    pub text: String,
}

impl Reply {
    /// A reply that says nothing but its outcome.
    pub fn plain(outcome: Outcome) -> Self {
        Self { outcome, epoch: 0, volume: None, sole: false, text: String::new() }
    }

    /// A refusal with its reason.
    pub fn refused(outcome: Outcome, text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::plain(outcome) }
    }
}

/// The words for people about [`Outcome::Elsewhere`].
pub fn says_elsewhere(node: &str) -> String {
    match node {
        "" => "this node has a copy of the volume and does not serve it; it does not know which \
               node does"
            .to_owned(),
        node => format!("this node has a copy of the volume; {node} serves it"),
    }
}

const DURABLE: u8 = 1;
const RESUME: u8 = 2;
const UNFLUSHED: u8 = 4;
const ACCEPT_LOSS: u8 = 8;
const TAKE_OVER: u8 = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct RequestHead {
    kind: u8,
    flags: u8,
    channel: U16,
    len_bytes: U32,
    offset_bytes: U64,
    attachment: [u8; 16],
    epoch: U64,
    incarnation: [u8; 16],
    claimant: U64,
}

/// Bytes of a request's head without names.
pub const REQUEST_BYTES: usize = size_of::<RequestHead>();

const NAME_FIELD_BYTES: usize = NAME_BYTES_MAX + 1;

/// Bytes of a request's head with names.
pub const NAMED_BYTES: usize = REQUEST_BYTES + 2 * NAME_FIELD_BYTES;

const READ_ONLY: u8 = 1;
const VOLATILE: u8 = 2;
const WRITE_THROUGH: u8 = 4;
const HAS_VOLUME: u8 = 8;
const HAS_LAYOUT: u8 = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct ReplyHead {
    outcome: u8,
    flags: u8,
    text_bytes: U16,
    block_bytes: U32,
    epoch: U64,
    size_bytes: U64,
    incarnation: [u8; 16],
}

const DISCARDS: u32 = 1;
const WRITES_ZEROES: u32 = 2;
const SOLE: u32 = 4;

/// The part after the head of a reply that has a volume, from version 3 on: the ways in which the
/// volume zeroes ranges, and its topology.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Layout {
    flags: U32,
    unit_bytes: U32,
    physical_bytes: U32,
    optimal_bytes: U32,
}

/// Bytes of it.
const LAYOUT_BYTES: usize = size_of::<Layout>();

/// Bytes of a reply's head without text.
pub const REPLY_BYTES: usize = size_of::<ReplyHead>();

/// The longest text of a reply: the rest of the transport's head.
pub const TEXT_BYTES_MAX: usize = 128;

/// Room for any head of either direction.
pub const HEAD_BYTES_MAX: usize = 192;

const _: () = assert!(
    NAMED_BYTES <= HEAD_BYTES_MAX && REPLY_BYTES + LAYOUT_BYTES + TEXT_BYTES_MAX <= HEAD_BYTES_MAX
);
const _: () = assert!(HEAD_BYTES_MAX <= transport::HEAD_MAX);

/// An encoded head; lives on the stack.
#[derive(Debug, Clone, Copy)]
pub struct EncodedHead {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl EncodedHead {
    fn new() -> Self {
        Self { bytes: [0; HEAD_BYTES_MAX], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Tells attachments apart in messages; see [`peer::proof::id_of`].
pub fn attachment_id(volume: &str, attachment: &str) -> u128 {
    peer::proof::id_of((volume, attachment))
}

fn name_field(name: &str) -> [u8; NAME_FIELD_BYTES] {
    let mut field = [0; NAME_FIELD_BYTES];
    let bytes = name.as_bytes();
    assert!(bytes.len() <= NAME_BYTES_MAX, "names are checked by the configuration");
    field[..bytes.len()].copy_from_slice(bytes);
    field
}

fn name_from(field: &[u8]) -> Option<String> {
    let len = field.iter().position(|&byte| byte == 0)?;
    if field[len..].iter().any(|&byte| byte != 0) {
        return None;
    }
    let name = std::str::from_utf8(&field[..len]).ok()?;
    (!name.chars().any(char::is_control)).then(|| name.to_owned())
}

impl Request {
    /// A request of `kind` with everything else empty.
    pub fn new(kind: Kind, title: Title, channel: u16) -> Self {
        Self {
            kind,
            title,
            channel,
            durable: false,
            offset_bytes: 0,
            len_bytes: 0,
            claim: Claim::default(),
            names: None,
        }
    }

    /// Writes the head.
    pub fn encode(&self) -> EncodedHead {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let is_claim = self.kind == Kind::Claim;
        let head = RequestHead {
            kind: self.kind as u8,
            flags: flag(self.durable, DURABLE)
                | flag(self.claim.resume, RESUME)
                | flag(self.claim.unflushed, UNFLUSHED)
                | flag(self.claim.accept_loss, ACCEPT_LOSS)
                | flag(self.claim.take_over, TAKE_OVER),
            channel: self.channel.into(),
            len_bytes: self.len_bytes.into(),
            offset_bytes: if is_claim { self.claim.known } else { self.offset_bytes }.into(),
            attachment: self.title.attachment.to_le_bytes(),
            epoch: self.title.epoch.into(),
            incarnation: self.title.incarnation.0,
            claimant: self.claim.claimant.into(),
        };
        let mut out = EncodedHead::new();
        out.push(head.as_bytes());
        if let Some(names) = &self.names {
            out.push(&name_field(&names.volume));
            out.push(&name_field(&names.attachment));
        }
        out
    }

    /// The kind of a call, before anything else of its head is looked at.
    pub(crate) fn kind_of(head: &[u8]) -> Option<Kind> {
        head.first().copied().and_then(Kind::from_byte)
    }

    /// How many bytes a call is about, by the head that a peer sent; nothing else of it is checked.
    pub(crate) fn len_of(head: &[u8]) -> u32 {
        RequestHead::ref_from_prefix(head).map_or(0, |(fixed, _)| fixed.len_bytes.get())
    }

    /// Reads a head that came from a peer; `None` when it is not one.
    pub fn decode(head: &[u8]) -> Option<Self> {
        let (fixed, rest) = RequestHead::ref_from_prefix(head).ok()?;
        let kind = Kind::from_byte(fixed.kind)?;
        let named = kind.op().is_none();
        let names = match rest.len() {
            0 if !named => None,
            len if named && len == 2 * NAME_FIELD_BYTES => {
                let (volume, attachment) = rest.split_at(NAME_FIELD_BYTES);
                Some(Names { volume: name_from(volume)?, attachment: name_from(attachment)? })
            }
            _ => return None,
        };
        let flags = DURABLE | RESUME | UNFLUSHED | ACCEPT_LOSS | TAKE_OVER;
        let bytes_max = kind.op().map_or(IO_BYTES_MAX, Op::bytes_max);
        if fixed.flags & !flags != 0 || fixed.len_bytes.get() > bytes_max {
            return None;
        }
        let offset = fixed.offset_bytes.get();
        // Older programs send 0 there in a claim.
        let (known, offset_bytes) = if kind == Kind::Claim { (offset, 0) } else { (0, offset) };
        Some(Self {
            kind,
            title: Title {
                attachment: u128::from_le_bytes(fixed.attachment),
                epoch: fixed.epoch.get(),
                incarnation: Incarnation(fixed.incarnation),
            },
            channel: fixed.channel.get(),
            durable: fixed.flags & DURABLE != 0,
            offset_bytes,
            len_bytes: fixed.len_bytes.get(),
            claim: Claim {
                claimant: fixed.claimant.get(),
                resume: fixed.flags & RESUME != 0,
                unflushed: fixed.flags & UNFLUSHED != 0,
                accept_loss: fixed.flags & ACCEPT_LOSS != 0,
                take_over: fixed.flags & TAKE_OVER != 0,
                known,
            },
            names,
        })
    }
}

impl Reply {
    /// Writes the head. A text that is too long is cut at a character. The volume's ways of
    /// zeroing, its topology and whether it is sole are written only if they differ from the
    /// default: see [`told_before_zeroing`].
    pub fn encode(&self) -> EncodedHead {
        let cut = self.text.floor_char_boundary(TEXT_BYTES_MAX);
        let text = &self.text.as_bytes()[..cut];
        let mut head = ReplyHead {
            outcome: self.outcome as u8,
            flags: 0,
            text_bytes: u16::try_from(text.len()).expect("cut above").into(),
            block_bytes: 0.into(),
            epoch: self.epoch.into(),
            size_bytes: 0.into(),
            incarnation: [0; 16],
        };
        if let Some(volume) = &self.volume {
            let write_through = volume.durability == Durability::WriteThrough;
            head.flags = HAS_VOLUME
                | if volume.read_only { READ_ONLY } else { 0 }
                | if volume.volatile { VOLATILE } else { 0 }
                | if write_through { WRITE_THROUGH } else { 0 };
            head.block_bytes = volume.block_bytes.into();
            head.size_bytes = volume.size_bytes.into();
            head.incarnation = volume.incarnation.0;
        }
        let layout = self.volume.as_ref().and_then(|volume| layout(volume, self.sole));
        head.flags |= if layout.is_some() { HAS_LAYOUT } else { 0 };
        let mut out = EncodedHead::new();
        out.push(head.as_bytes());
        if let Some(layout) = &layout {
            out.push(layout.as_bytes());
        }
        out.push(text);
        out
    }

    /// Reads a head that came from a peer; `None` when it is not one.
    pub fn decode(head: &[u8]) -> Option<Self> {
        let (fixed, rest) = ReplyHead::ref_from_prefix(head).ok()?;
        let (layout, text) = if fixed.flags & HAS_LAYOUT == 0 {
            (None, rest)
        } else {
            let (layout, text) = Layout::ref_from_prefix(rest).ok()?;
            (Some(layout), text)
        };
        let known = HAS_VOLUME | READ_ONLY | VOLATILE | WRITE_THROUGH | HAS_LAYOUT;
        if usize::from(fixed.text_bytes.get()) != text.len() || fixed.flags & !known != 0 {
            return None;
        }
        let sole = layout.is_some_and(|layout| layout.flags.get() & SOLE != 0);
        let volume = match (fixed.flags & HAS_VOLUME != 0, layout) {
            (false, None) => None,
            (false, Some(_)) => return None,
            (true, layout) => Some(volume_of(fixed, layout)?),
        };
        Some(Self {
            outcome: Outcome::from_byte(fixed.outcome)?,
            epoch: fixed.epoch.get(),
            volume,
            sole,
            text: std::str::from_utf8(text).ok()?.to_owned(),
        })
    }
}

/// A volume as a peer of a version before [`ZEROING_VERSION_MIN`] is told of it.
pub fn told_before_zeroing(volume: VolumeInfo) -> VolumeInfo {
    VolumeInfo { zeroing: Zeroing::default(), topology: Topology::default(), ..volume }
}

fn layout(volume: &VolumeInfo, sole: bool) -> Option<Layout> {
    let (zeroing, topology) = (volume.zeroing, volume.topology);
    if (zeroing, topology, sole) == Default::default() {
        return None;
    }
    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
    let flags = flag(zeroing.discard, DISCARDS)
        | flag(zeroing.write_zeroes, WRITES_ZEROES)
        | flag(sole, SOLE);
    Some(Layout {
        flags: flags.into(),
        unit_bytes: zeroing.unit_bytes.into(),
        physical_bytes: topology.physical_bytes.into(),
        optimal_bytes: topology.optimal_bytes.into(),
    })
}

/// Flags that are not known are a later version's, and no concern of this one's.
fn layout_of(layout: &Layout) -> Option<(Zeroing, Topology)> {
    let (flags, unit_bytes) = (layout.flags.get(), layout.unit_bytes.get());
    let zeroing = Zeroing {
        discard: flags & DISCARDS != 0,
        write_zeroes: flags & WRITES_ZEROES != 0,
        unit_bytes,
    };
    let physical_bytes = layout.physical_bytes.get();
    let topology = Topology { physical_bytes, optimal_bytes: layout.optimal_bytes.get() };
    let sound = |bytes: u32| bytes == 0 || (bytes.is_power_of_two() && bytes >= 512);
    let fits = topology.optimal_bytes <= OPTIMAL_BYTES_MAX && physical_bytes <= PHYSICAL_BYTES_MAX;
    (sound(physical_bytes) && unit_bytes.is_multiple_of(512) && fits).then_some((zeroing, topology))
}

fn volume_of(head: &ReplyHead, layout: Option<&Layout>) -> Option<VolumeInfo> {
    let (zeroing, topology) = match layout {
        Some(layout) => layout_of(layout)?,
        None => Default::default(),
    };
    let size_bytes = head.size_bytes.get();
    let block_bytes = head.block_bytes.get();
    let sound =
        matches!(block_bytes, 512 | 4096) && size_bytes.is_multiple_of(u64::from(block_bytes));
    sound.then_some(VolumeInfo {
        size_bytes,
        block_bytes,
        read_only: head.flags & READ_ONLY != 0,
        durability: if head.flags & WRITE_THROUGH != 0 {
            Durability::WriteThrough
        } else {
            Durability::Flush
        },
        volatile: head.flags & VOLATILE != 0,
        incarnation: Incarnation(head.incarnation),
        zeroing,
        topology,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title() -> Title {
        Title { attachment: attachment_id("v", "a"), epoch: 3, incarnation: Incarnation([5; 16]) }
    }

    fn volume() -> VolumeInfo {
        VolumeInfo {
            size_bytes: 1 << 30,
            block_bytes: 4096,
            read_only: true,
            durability: Durability::WriteThrough,
            volatile: false,
            incarnation: Incarnation([9; 16]),
            zeroing: Zeroing { unit_bytes: 4096, ..Zeroing::ALL },
            topology: Topology { physical_bytes: 4096, optimal_bytes: 65536 },
        }
    }

    #[test]
    fn requests_come_back() {
        let names = Names { volume: "v".repeat(63), attachment: "ä".repeat(31) };
        let claim = Claim {
            claimant: 77,
            resume: true,
            unflushed: true,
            accept_loss: false,
            take_over: true,
            known: 1 << 40,
        };
        let named = Request { claim, names: Some(names), ..Request::new(Kind::Claim, title(), 2) };
        let write = Request {
            durable: true,
            offset_bytes: 1 << 40,
            len_bytes: IO_BYTES_MAX,
            ..Request::new(Kind::Write, title(), 1)
        };
        let zeroes = Request {
            len_bytes: volume::RANGE_BYTES_MAX,
            ..Request::new(Kind::WriteZeroes, title(), 1)
        };
        for request in [named, write, zeroes] {
            assert_eq!(Request::decode(request.encode().as_bytes()), Some(request));
        }
    }

    #[test]
    fn replies_come_back() {
        let full = Reply { epoch: 8, volume: Some(volume()), ..Reply::plain(Outcome::Done) };
        let refusal = Reply::refused(Outcome::Refused, "volume \"x\" does not exist");
        let before =
            Reply { volume: Some(told_before_zeroing(volume())), ..Reply::plain(Outcome::Done) };
        assert_eq!(before.encode().as_bytes().len(), REPLY_BYTES, "as version 2 has it");
        let sole = Reply { sole: true, ..before.clone() };
        for reply in [full, refusal, before, sole] {
            assert_eq!(Reply::decode(reply.encode().as_bytes()), Some(reply));
        }
        let long = Reply::refused(Outcome::Lost, "ß".repeat(200));
        let cut = Reply::decode(long.encode().as_bytes()).expect("still a reply");
        assert_eq!(cut.text, "ß".repeat(64));
    }

    #[test]
    fn malformed_heads_are_refused() {
        let head = Request::new(Kind::Read, title(), 0).encode();
        let sound = head.as_bytes();
        assert!(Request::decode(&sound[..sound.len() - 1]).is_none(), "short");
        assert!(Request::decode(&[sound, &[0]].concat()).is_none(), "long");
        assert!(Request::decode(&[&[99], &sound[1..]].concat()).is_none(), "unknown kind");
        assert!(Request::decode(&[&sound[..1], &[255], &sound[2..]].concat()).is_none(), "flags");
        let huge = Request { len_bytes: IO_BYTES_MAX + 1, ..Request::new(Kind::Read, title(), 0) };
        assert!(Request::decode(huge.encode().as_bytes()).is_none(), "huge");
        let odd = VolumeInfo { block_bytes: 4096, size_bytes: 4097, ..volume() };
        let odd = Reply { volume: Some(odd), ..Reply::plain(Outcome::Done) };
        assert!(Reply::decode(odd.encode().as_bytes()).is_none(), "odd size");
        let topology = Topology { physical_bytes: 1000, optimal_bytes: 0 };
        let odd = Reply {
            volume: Some(VolumeInfo { topology, ..volume() }),
            ..Reply::plain(Outcome::Done)
        };
        assert!(Reply::decode(odd.encode().as_bytes()).is_none(), "odd topology");
        let huge = volume::RANGE_BYTES_MAX + 1;
        let huge = Request { len_bytes: huge, ..Request::new(Kind::Discard, title(), 0) };
        assert!(Request::decode(huge.encode().as_bytes()).is_none(), "huge");
    }

    #[test]
    fn ids_tell_names_apart() {
        assert_ne!(attachment_id("ab", "c"), attachment_id("a", "bc"));
    }
}
