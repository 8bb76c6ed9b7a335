//! The messages of members as bytes: a head, and a body for what is long. `docs/protocol.md` shows
//! each byte.
//!
//! A message of a peer is checked once, here: [`decode`] gives a message whose counts and ranges
//! keep to the limits below, or the reason why there is none. The content of a range travels as the
//! body as it is, so a [`Message`] on the wire has [`WireContent`] in the place of the content.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::applied::{APPLIED_MAX, Applied, ClientId, RequestId};
use crate::extent::{Extent, ExtentSet};
use crate::member::{CUTS_MAX, TAIL_RANGES_MAX};
use crate::message::{Message, NOTE_BYTES_MAX, Note, Op, Place, SNAPSHOT_NAME_MAX, SnapshotChange};
use crate::record::{MEMBERS_MAX, VolumeRecord};

/// The longest head of a message between members.
pub const WIRE_HEAD_MAX: usize = 192;

/// The bytes of a head in which the sender numbers the messages about a volume; the codec does not
/// look at them.
pub const WIRE_SEQUENCE: std::ops::Range<usize> = 2..4;

/// The longest name of a volume.
pub const WIRE_NAME_MAX: usize = 63;

/// The bytes that name a volume's form: a digest of the parts that all its members must have alike.
pub const WIRE_FORM_BYTES: usize = 16;

pub use crate::message::{SECTOR_BYTES, WIRE_BODY_MAX};
pub use state::{decode_durable, encode_durable};

/// The most sectors of a range without bytes: as of a request for zeroes on a volume.
pub const ZEROED_SECTORS_MAX: u32 = 16 << 11;

/// No epoch, counter or time is as large: nothing that a member adds to one overflows.
pub const NUMBER_END: u64 = 1 << 62;

/// The first of the kinds of calls. Its upper two bits are the number of the plane of replicas.
pub const WIRE_KIND_MIN: u8 = 3 << 6;

/// The second byte of each head. The plane has the last number that two bits can have; other values
/// are left for subjects that come later.
const SUBJECT: u8 = 0;

/// The content of a range on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WireContent {
    /// The body.
    Bytes,
    /// Zeroes that keep their space.
    Zeroes,
    /// Zeroes without space.
    Discarded,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedMessage(&'static str);

impl fmt::Display for MalformedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message or a record of a member is malformed: {}", self.0)
    }
}

impl std::error::Error for MalformedMessage {}

type WireResult<T> = Result<T, MalformedMessage>;

mod kind {
    use super::WIRE_KIND_MIN;

    pub(super) const NAME: u8 = WIRE_KIND_MIN;
    pub(super) const PING: u8 = WIRE_KIND_MIN + 1;
    pub(super) const PONG: u8 = WIRE_KIND_MIN + 2;
    pub(super) const SEAL: u8 = WIRE_KIND_MIN + 3;
    pub(super) const SEALED: u8 = WIRE_KIND_MIN + 4;
    pub(super) const APPEND: u8 = WIRE_KIND_MIN + 5;
    pub(super) const HELD: u8 = WIRE_KIND_MIN + 6;
    pub(super) const JOIN: u8 = WIRE_KIND_MIN + 7;
    pub(super) const GO_BACK: u8 = WIRE_KIND_MIN + 8;
    pub(super) const HELLO: u8 = WIRE_KIND_MIN + 9;
    pub(super) const ALIVE: u8 = WIRE_KIND_MIN + 10;
}

mod op {
    pub(super) const WRITE: u8 = 1;
    pub(super) const FLUSH: u8 = 2;
    pub(super) const CUT: u8 = 3;
    pub(super) const FILL: u8 = 4;
    pub(super) const EQUAL: u8 = 5;
    pub(super) const NOTHING: u8 = 6;
    pub(super) const APPLIED: u8 = 7;
    pub(super) const FORGET: u8 = 8;
    pub(super) const NOTE: u8 = 9;
    pub(super) const TAKE_SNAPSHOT: u8 = 10;
    pub(super) const REMOVE_SNAPSHOT: u8 = 11;
}

/// Bytes of a range of a tail, and of an entry of the table of applied requests.
const RANGE_BYTES: usize = 16;
const APPLIED_BYTES: usize = 28;

const _: () = {
    assert!(NOTE_BYTES_MAX + APPLIED_MAX * APPLIED_BYTES <= WIRE_BODY_MAX, "one message");
    assert!(TAIL_RANGES_MAX * RANGE_BYTES <= WIRE_BODY_MAX, "a tail is one message");
    // The largest head is a ping's: its beginning, a record, and three numbers.
    assert!(8 + 26 + 9 * MEMBERS_MAX + 24 <= WIRE_HEAD_MAX);
    // An append's with a snapshot: its beginning, four numbers, the request, a time, and the name.
    assert!(8 + 32 + 1 + APPLIED_BYTES + 8 + 1 + SNAPSHOT_NAME_MAX <= WIRE_HEAD_MAX);
    // A join's: its beginning, two numbers, and the cuts.
    assert!(8 + 17 + 16 * CUTS_MAX <= WIRE_HEAD_MAX);
};

/// Puts the call that gives a volume its number in a session into `head`, which is emptied first.
/// `form` is a digest of the parts that all members of the volume must have alike.
///
/// # Panics
/// When the name is empty or longer than [`WIRE_NAME_MAX`].
pub fn encode_name(volume: u32, form: [u8; WIRE_FORM_BYTES], name: &str, head: &mut Vec<u8>) {
    assert!((1..=WIRE_NAME_MAX).contains(&name.len()), "a name that is known to be one");
    head.clear();
    head.extend([kind::NAME, SUBJECT, 0, 0]);
    head.extend(volume.to_le_bytes());
    head.extend(form);
    head.extend_from_slice(name.as_bytes());
}

/// Whether a head says that it gives a volume its number.
pub fn is_name(head: &[u8]) -> bool {
    head.first() == Some(&kind::NAME)
}

/// The number, the form and the name of a head that [`encode_name`] gave.
///
/// # Errors
/// When the bytes are no such head: the reason.
pub fn decode_name(head: &[u8]) -> WireResult<(u32, [u8; WIRE_FORM_BYTES], &str)> {
    let mut reader = WireReader(head);
    let [kind, subject, ..] = reader.bytes::<4>()?;
    if (kind, subject) != (kind::NAME, SUBJECT) {
        return Err(MalformedMessage("it names no volume"));
    }
    let (volume, form) = (u32::from_le_bytes(reader.bytes()?), reader.bytes()?);
    match str::from_utf8(reader.0) {
        Ok(name) if (1..=WIRE_NAME_MAX).contains(&name.len()) => Ok((volume, form, name)),
        _ => Err(MalformedMessage("its name is none")),
    }
}

/// Puts a message about the volume of this number into `head`, and a list that it has into `body`.
/// Both are emptied first. The content of a range is not put into `body`: it is the caller's.
pub fn encode(volume: u32, message: &Message<WireContent>, head: &mut Vec<u8>, body: &mut Vec<u8>) {
    head.clear();
    body.clear();
    let kind = kind_of(message);
    head.extend([kind, SUBJECT, 0, 0]);
    head.extend(volume.to_le_bytes());
    match message {
        Message::Ping { record, life, sent_ns, held } => {
            put_record(head, record);
            put_numbers(head, &[*life, *sent_ns, *held]);
        }
        Message::Pong { epoch, life, sent_ns } => put_numbers(head, &[*epoch, *life, *sent_ns]),
        Message::Seal { record } => put_record(head, record),
        Message::Sealed { epoch, life, tail } => {
            put_numbers(head, &[*epoch, *life]);
            tail.ranges().for_each(|(first, end)| put_numbers(body, &[first, end]));
        }
        Message::Append { epoch, life, began, counter, op } => {
            put_numbers(head, &[*epoch, *life, *began, *counter]);
            put_op(head, body, op);
        }
        Message::Held { life, began, counter } => {
            put_numbers(head, &[*life, began.reign, began.counter, *counter]);
        }
        Message::Join { epoch, life, cuts } => {
            put_numbers(head, &[*epoch, *life]);
            head.push(u8::try_from(cuts.len()).expect("at most CUTS_MAX"));
            cuts.iter().for_each(|cut| put_numbers(head, &[cut.reign, cut.counter]));
        }
        Message::GoBack { record, life, cut, began } => {
            put_record(head, record);
            put_numbers(head, &[*life, *began]);
            head.push(u8::from(cut.is_some()));
            cut.iter().for_each(|cut| put_numbers(head, &[cut.reign, cut.counter]));
        }
        Message::Hello { life, epoch } => put_numbers(head, &[*life, *epoch]),
        Message::Alive { life, record, answers } => {
            put_numbers(head, &[*life]);
            head.push(u8::from(answers.is_some()));
            answers.iter().for_each(|(life, epoch)| put_numbers(head, &[*life, *epoch]));
            head.push(u8::from(record.is_some()));
            record.iter().for_each(|record| put_record(head, record));
        }
    }
}

fn kind_of(message: &Message<WireContent>) -> u8 {
    match message {
        Message::Ping { .. } => kind::PING,
        Message::Pong { .. } => kind::PONG,
        Message::Seal { .. } => kind::SEAL,
        Message::Sealed { .. } => kind::SEALED,
        Message::Append { .. } => kind::APPEND,
        Message::Held { .. } => kind::HELD,
        Message::Join { .. } => kind::JOIN,
        Message::GoBack { .. } => kind::GO_BACK,
        Message::Hello { .. } => kind::HELLO,
        Message::Alive { .. } => kind::ALIVE,
    }
}

fn put_numbers(to: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| to.extend(number.to_le_bytes()));
}

fn put_record(to: &mut Vec<u8>, record: &VolumeRecord) {
    put_numbers(to, &[record.epoch, record.reign, record.incarnation]);
    let members = u8::try_from(record.in_sync.len()).expect("at most MEMBERS_MAX");
    to.extend([record.primary, members]);
    for (member, life) in &record.in_sync {
        to.push(*member);
        put_numbers(to, &[*life]);
    }
}

fn put_request(to: &mut Vec<u8>, RequestId { client, number }: RequestId) {
    to.extend(client.attachment.to_le_bytes());
    to.extend(client.channel.to_le_bytes());
    to.extend(client.slot.to_le_bytes());
    put_numbers(to, &[number]);
}

fn put_range(to: &mut Vec<u8>, extent: Extent, content: WireContent) {
    put_numbers(to, &[extent.first()]);
    to.extend(extent.sectors().to_le_bytes());
    to.push(content as u8);
}

fn put_op(head: &mut Vec<u8>, body: &mut Vec<u8>, op: &Op<WireContent>) {
    match op {
        Op::Write { id, extent, data } => {
            head.push(op::WRITE);
            put_request(head, *id);
            put_range(head, *extent, *data);
        }
        Op::Flush { id } => {
            head.push(op::FLUSH);
            put_request(head, *id);
        }
        Op::Cut => head.push(op::CUT),
        Op::Fill { to, extent, data } => {
            head.extend([op::FILL, *to]);
            put_range(head, *extent, *data);
        }
        Op::Equal { extent, data } => {
            head.push(op::EQUAL);
            put_range(head, *extent, *data);
        }
        Op::Nothing => head.push(op::NOTHING),
        Op::Applied { applied, note } => {
            head.push(op::APPLIED);
            put_note(head, body, note);
            applied.requests().for_each(|id| put_request(body, id));
        }
        Op::Forget(attachment) => {
            head.push(op::FORGET);
            head.extend(attachment.to_le_bytes());
        }
        Op::Note { id, note } => {
            head.push(op::NOTE);
            put_request(head, *id);
            put_note(head, body, note);
        }
        Op::Snapshot { id, change: SnapshotChange::Take { name, at_s } } => {
            head.push(op::TAKE_SNAPSHOT);
            put_request(head, *id);
            put_numbers(head, &[*at_s]);
            put_snapshot_name(head, name);
        }
        Op::Snapshot { id, change: SnapshotChange::Remove { name } } => {
            head.push(op::REMOVE_SNAPSHOT);
            put_request(head, *id);
            put_snapshot_name(head, name);
        }
    }
}

fn put_snapshot_name(head: &mut Vec<u8>, name: &str) {
    head.push(u8::try_from(name.len()).expect("at most SNAPSHOT_NAME_MAX"));
    head.extend_from_slice(name.as_bytes());
}

fn put_note(head: &mut Vec<u8>, body: &mut Vec<u8>, note: &Note) {
    let bytes = u32::try_from(note.len()).expect("at most NOTE_BYTES_MAX");
    head.extend(bytes.to_le_bytes());
    body.extend_from_slice(note);
}

/// A record as bytes, as the registry has it.
pub fn encode_record(record: &VolumeRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_record(&mut bytes, record);
    bytes
}

/// The record of bytes that [`encode_record`] gave.
///
/// # Errors
/// When they are no record: the reason.
pub fn decode_record(bytes: &[u8]) -> WireResult<VolumeRecord> {
    let mut reader = WireReader(bytes);
    let record = reader.record()?;
    if reader.0.is_empty() { Ok(record) } else { Err(MalformedMessage("it is too long")) }
}

/// The form of a volume and its record behind it, as a registry has them.
///
/// # Errors
/// When the bytes are no such pair: the reason.
pub fn decode_formed_record(bytes: &[u8]) -> WireResult<([u8; WIRE_FORM_BYTES], VolumeRecord)> {
    let (form, record) = bytes.split_first_chunk().ok_or(MalformedMessage("it is too short"))?;
    Ok((*form, decode_record(record)?))
}

/// The volume's number and the message of a head and a body.
///
/// # Errors
/// When the bytes are no message: the reason.
pub fn decode(head: &[u8], body: &[u8]) -> WireResult<(u32, Message<WireContent>)> {
    let mut reader = WireReader(head);
    let [kind, subject, ..] = reader.bytes::<4>()?;
    if subject != SUBJECT {
        return Err(MalformedMessage("its subject is unknown"));
    }
    let volume = u32::from_le_bytes(reader.bytes()?);
    let mut body = Body { bytes: body };
    let message = match kind {
        kind::PING => Message::Ping {
            record: reader.record()?,
            life: reader.life()?,
            sent_ns: reader.number()?,
            held: reader.number()?,
        },
        kind::PONG => Message::Pong {
            epoch: reader.number()?,
            life: reader.life()?,
            sent_ns: reader.number()?,
        },
        kind::SEAL => Message::Seal { record: reader.record()? },
        kind::SEALED => {
            Message::Sealed { epoch: reader.number()?, life: reader.life()?, tail: body.tail()? }
        }
        kind::APPEND => Message::Append {
            epoch: reader.number()?,
            life: reader.life()?,
            began: reader.number()?,
            counter: reader.number()?,
            op: reader.op(&mut body)?,
        },
        kind::HELD => Message::Held {
            life: reader.life()?,
            began: reader.place()?,
            counter: reader.number()?,
        },
        kind::JOIN => {
            Message::Join { epoch: reader.number()?, life: reader.life()?, cuts: reader.cuts()? }
        }
        kind::GO_BACK => {
            let (record, life, began) = (reader.record()?, reader.life()?, reader.number()?);
            let cut = reader.flag()?.then(|| reader.place()).transpose()?;
            Message::GoBack { record, life, cut, began }
        }
        kind::HELLO => Message::Hello { life: reader.life()?, epoch: reader.number()? },
        kind::ALIVE => {
            let life = reader.life()?;
            let answers = reader.flag()?.then(|| Ok((reader.life()?, reader.number()?)));
            let answers = answers.transpose()?;
            let record = reader.flag()?.then(|| reader.record()).transpose()?;
            Message::Alive { life, record, answers }
        }
        _ => return Err(MalformedMessage("its kind is unknown")),
    };
    if !reader.0.is_empty() {
        return Err(MalformedMessage("its head is too long"));
    }
    if !body.bytes.is_empty() {
        return Err(MalformedMessage("its body is too long"));
    }
    Ok((volume, message))
}

/// The rest of the body of a message that is read.
struct Body<'a> {
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    fn tail(&mut self) -> WireResult<ExtentSet> {
        let mut reader = self.list(RANGE_BYTES, TAIL_RANGES_MAX)?;
        let (mut tail, mut from) = (ExtentSet::default(), 0);
        while !reader.0.is_empty() {
            let (first, end) = (reader.number()?, reader.number()?);
            if first < from || first >= end {
                return Err(MalformedMessage("its ranges are not in order"));
            }
            tail.insert(first, end);
            // Two ranges that touch each other would be one.
            from = end + 1;
        }
        Ok(tail)
    }

    fn applied(&mut self) -> WireResult<Applied> {
        let mut reader = self.list(APPLIED_BYTES, APPLIED_MAX)?;
        let mut applied = Applied::default();
        let mut last = None;
        while !reader.0.is_empty() {
            let id = reader.request()?;
            if last.is_some_and(|last| last >= id.client) {
                return Err(MalformedMessage("its clients are not in order"));
            }
            last = Some(id.client);
            applied.note(id);
        }
        Ok(applied)
    }

    /// All that is left, as entries of this length.
    fn list(&mut self, entry_bytes: usize, entries_max: usize) -> WireResult<WireReader<'a>> {
        let bytes = std::mem::take(&mut self.bytes);
        if !bytes.len().is_multiple_of(entry_bytes) || bytes.len() / entry_bytes > entries_max {
            return Err(MalformedMessage("its list has another length"));
        }
        Ok(WireReader(bytes))
    }

    fn note(&mut self, bytes: u32) -> WireResult<Note> {
        let split = self.bytes.split_at_checked(bytes as usize);
        let (note, rest) = split.ok_or(MalformedMessage("its note is too short"))?;
        if note.len() > NOTE_BYTES_MAX {
            return Err(MalformedMessage("its note is too long"));
        }
        self.bytes = rest;
        Ok(note.to_vec())
    }

    /// Checks the length of the content of a range.
    fn content(&mut self, extent: Extent, content: WireContent) -> WireResult<()> {
        let bytes = u64::from(extent.sectors()) * SECTOR_BYTES;
        let fits = match content {
            WireContent::Bytes => {
                let given = std::mem::take(&mut self.bytes).len() as u64;
                bytes <= WIRE_BODY_MAX as u64 && given == bytes
            }
            WireContent::Zeroes | WireContent::Discarded => extent.sectors() <= ZEROED_SECTORS_MAX,
        };
        if fits { Ok(()) } else { Err(MalformedMessage("its range has another length")) }
    }
}

/// The rest of a head or a list.
struct WireReader<'a>(&'a [u8]);

impl WireReader<'_> {
    fn bytes<const N: usize>(&mut self) -> WireResult<[u8; N]> {
        let (bytes, rest) =
            self.0.split_first_chunk().ok_or(MalformedMessage("it is too short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> WireResult<u8> {
        self.bytes().map(|[byte]| byte)
    }

    /// A random number.
    fn life(&mut self) -> WireResult<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// An epoch, a counter or a time.
    fn number(&mut self) -> WireResult<u64> {
        let number = self.bytes().map(u64::from_le_bytes)?;
        if number < NUMBER_END {
            Ok(number)
        } else {
            Err(MalformedMessage("a number is too large"))
        }
    }

    fn flag(&mut self) -> WireResult<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MalformedMessage("a flag is neither 0 nor 1")),
        }
    }

    fn place(&mut self) -> WireResult<Place> {
        Ok(Place { reign: self.number()?, counter: self.number()? })
    }

    fn record(&mut self) -> WireResult<VolumeRecord> {
        let (epoch, reign, incarnation) = (self.number()?, self.number()?, self.number()?);
        let (primary, count) = (self.byte()?, self.byte()?);
        if usize::from(count) > MEMBERS_MAX {
            return Err(MalformedMessage("its record has too many members"));
        }
        let mut in_sync = BTreeMap::new();
        for _ in 0..count {
            let (member, life) = (self.byte()?, self.life()?);
            if in_sync.last_key_value().is_some_and(|(last, _)| *last >= member) {
                return Err(MalformedMessage("the members of its record are not in order"));
            }
            in_sync.insert(member, life);
        }
        if !in_sync.contains_key(&primary) || reign > epoch {
            return Err(MalformedMessage("its record contradicts itself"));
        }
        Ok(VolumeRecord { epoch, reign, incarnation, primary, in_sync })
    }

    fn cuts(&mut self) -> WireResult<BTreeSet<Place>> {
        let count = self.byte()?;
        if usize::from(count) > CUTS_MAX {
            return Err(MalformedMessage("it has too many cuts"));
        }
        let mut cuts = BTreeSet::new();
        for _ in 0..count {
            let cut = self.place()?;
            if cuts.last().is_some_and(|last| *last >= cut) {
                return Err(MalformedMessage("its cuts are not in order"));
            }
            cuts.insert(cut);
        }
        Ok(cuts)
    }

    fn request(&mut self) -> WireResult<RequestId> {
        let attachment = u128::from_le_bytes(self.bytes()?);
        let channel = u16::from_le_bytes(self.bytes()?);
        let slot = u16::from_le_bytes(self.bytes()?);
        let client = ClientId { attachment, channel, slot };
        Ok(RequestId { client, number: self.number()? })
    }

    fn range(&mut self, body: &mut Body<'_>) -> WireResult<(Extent, WireContent)> {
        let (first, sectors) = (self.number()?, u32::from_le_bytes(self.bytes()?));
        let extent = Extent::new(first, sectors).ok_or(MalformedMessage("its range is empty"))?;
        let content = match self.byte()? {
            0 => WireContent::Bytes,
            1 => WireContent::Zeroes,
            2 => WireContent::Discarded,
            _ => return Err(MalformedMessage("its content is of an unknown kind")),
        };
        body.content(extent, content)?;
        Ok((extent, content))
    }

    fn snapshot_name(&mut self) -> WireResult<String> {
        let bytes = usize::from(self.byte()?);
        let (name, rest) =
            self.0.split_at_checked(bytes).ok_or(MalformedMessage("it is too short"))?;
        self.0 = rest;
        let name = std::str::from_utf8(name).ok().filter(|it| !it.is_empty());
        let name = name.filter(|it| it.len() <= SNAPSHOT_NAME_MAX);
        Ok(name.ok_or(MalformedMessage("its snapshot has no name"))?.to_owned())
    }

    fn op(&mut self, body: &mut Body<'_>) -> WireResult<Op<WireContent>> {
        Ok(match self.byte()? {
            op::WRITE => {
                let id = self.request()?;
                let (extent, data) = self.range(body)?;
                Op::Write { id, extent, data }
            }
            op::FLUSH => Op::Flush { id: self.request()? },
            op::CUT => Op::Cut,
            op::FILL => {
                let to = self.byte()?;
                let (extent, data) = self.range(body)?;
                Op::Fill { to, extent, data }
            }
            op::EQUAL => {
                let (extent, data) = self.range(body)?;
                Op::Equal { extent, data }
            }
            op::NOTHING => Op::Nothing,
            op::APPLIED => {
                let note = body.note(u32::from_le_bytes(self.bytes()?))?;
                Op::Applied { applied: body.applied()?, note }
            }
            op::NOTE => {
                let id = self.request()?;
                Op::Note { id, note: body.note(u32::from_le_bytes(self.bytes()?))? }
            }
            op::FORGET => Op::Forget(u128::from_le_bytes(self.bytes()?)),
            op::TAKE_SNAPSHOT => {
                let (id, at_s) = (self.request()?, self.number()?);
                let change = SnapshotChange::Take { name: self.snapshot_name()?, at_s };
                Op::Snapshot { id, change }
            }
            op::REMOVE_SNAPSHOT => {
                let id = self.request()?;
                Op::Snapshot { id, change: SnapshotChange::Remove { name: self.snapshot_name()? } }
            }
            _ => return Err(MalformedMessage("its operation is unknown")),
        })
    }
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;
    use crate::member::{Durable, LifeEnd};
    use crate::record::MemberId;

    /// Draws messages of all kinds.
    struct Draw(Random);

    impl Draw {
        fn number(&mut self) -> u64 {
            let bits = self.0.below(62);
            self.0.below(1 << bits)
        }

        fn member(&mut self) -> MemberId {
            self.0.below(256) as MemberId
        }

        fn place(&mut self) -> Place {
            Place { reign: self.number(), counter: self.number() }
        }

        fn record(&mut self) -> VolumeRecord {
            let members = self.0.between(1, MEMBERS_MAX as u64);
            let in_sync: BTreeMap<_, _> =
                (0..members).map(|_| (self.member(), self.0.draw())).collect();
            let at = self.0.below(in_sync.len() as u64) as usize;
            let primary = *in_sync.keys().nth(at).unwrap();
            let (one, other) = (self.number(), self.number());
            let (epoch, reign, incarnation) = (one.max(other), one.min(other), self.number());
            VolumeRecord { epoch, reign, incarnation, primary, in_sync }
        }

        fn request(&mut self) -> RequestId {
            let attachment = u128::from(self.0.draw()) << 64 | u128::from(self.0.draw());
            let (channel, slot) = (self.0.below(1 << 16) as u16, self.0.below(1 << 16) as u16);
            RequestId { client: ClientId { attachment, channel, slot }, number: self.number() }
        }

        /// A range and its content, with the bytes of the body.
        fn range(&mut self) -> (Extent, WireContent, usize) {
            let kinds = [WireContent::Bytes, WireContent::Zeroes, WireContent::Discarded];
            let data = kinds[self.0.below(3) as usize];
            let most = match data {
                WireContent::Bytes => WIRE_BODY_MAX as u64 / SECTOR_BYTES,
                _ => ZEROED_SECTORS_MAX.into(),
            };
            let extent = Extent::new(self.number(), self.0.between(1, most) as u32).unwrap();
            let bytes = extent.sectors() as usize * SECTOR_BYTES as usize;
            (extent, data, if data == WireContent::Bytes { bytes } else { 0 })
        }

        fn note(&mut self) -> Note {
            (0..self.0.below(40)).map(|at| at as u8).collect()
        }

        fn end(&mut self) -> LifeEnd {
            let ranges = (0..self.0.below(4)).map(|at| (at * 9, at * 9 + 1 + self.0.below(8)));
            let mut tail = ExtentSet::default();
            ranges.for_each(|(first, end)| tail.insert(first, end));
            let mut applied = Applied::default();
            (0..self.0.below(4)).for_each(|_| applied.note(self.request()));
            let cut = self.0.one_in(2).then(|| self.place());
            LifeEnd { life: self.0.draw(), began: self.place(), tail, applied, cut }
        }

        fn op(&mut self) -> (Op<WireContent>, usize) {
            let kind = self.0.below(10);
            let (extent, data, bytes) = self.range();
            match kind {
                0 => (Op::Write { id: self.request(), extent, data }, bytes),
                1 => (Op::Flush { id: self.request() }, 0),
                2 => (Op::Cut, 0),
                3 => (Op::Fill { to: self.member(), extent, data }, bytes),
                4 => (Op::Equal { extent, data }, bytes),
                5 => (Op::Nothing, 0),
                6 => {
                    let mut applied = Applied::default();
                    (0..self.0.below(9)).for_each(|_| applied.note(self.request()));
                    (Op::Applied { applied, note: self.note() }, 0)
                }
                7 => (Op::Note { id: self.request(), note: self.note() }, 0),
                8 => {
                    let name = "n".repeat(self.0.between(1, SNAPSHOT_NAME_MAX as u64) as usize);
                    let (id, at_s) = (self.request(), self.number());
                    let takes = self.0.one_in(2);
                    let take = |name| SnapshotChange::Take { name, at_s };
                    let remove = |name| SnapshotChange::Remove { name };
                    (Op::Snapshot { id, change: if takes { take(name) } else { remove(name) } }, 0)
                }
                _ => (Op::Forget(self.request().client.attachment), 0),
            }
        }

        /// A message, and the bytes of the content that it has.
        fn message(&mut self) -> (Message<WireContent>, usize) {
            let (record, life) = (self.record(), self.0.draw());
            let (epoch, began) = (self.number(), self.number());
            let message = match self.0.below(10) {
                0 => Message::Ping { record, life, sent_ns: self.number(), held: self.number() },
                1 => Message::Pong { epoch, life, sent_ns: self.number() },
                2 => Message::Seal { record },
                3 => {
                    let extents = (0..self.0.below(9)).map(|_| self.range().0);
                    Message::Sealed { epoch, life, tail: extents.collect() }
                }
                4 => {
                    let (op, bytes) = self.op();
                    let append = Message::Append { epoch, life, began, counter: self.number(), op };
                    return (append, bytes);
                }
                5 => Message::Held { life, began: self.place(), counter: self.number() },
                6 => {
                    let cuts = (0..self.0.below(CUTS_MAX as u64 + 1)).map(|_| self.place());
                    Message::Join { epoch, life, cuts: cuts.collect() }
                }
                7 => {
                    let cut = self.0.one_in(2).then(|| self.place());
                    Message::GoBack { record, life, cut, began }
                }
                8 => Message::Hello { life, epoch },
                _ => {
                    let answers = self.0.one_in(2).then(|| (self.0.draw(), self.number()));
                    let record = self.0.one_in(2).then_some(record);
                    Message::Alive { life, record, answers }
                }
            };
            (message, 0)
        }
    }

    #[test]
    fn each_message_arrives_as_it_was_sent() {
        let mut draw = Draw(Random::new(1));
        let (mut head, mut list) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            let (message, bytes) = draw.message();
            encode(7, &message, &mut head, &mut list);
            assert!(head.len() <= WIRE_HEAD_MAX && list.len() <= WIRE_BODY_MAX);
            assert!(list.is_empty() || bytes == 0);
            let content = vec![0; bytes];
            let body = if list.is_empty() { &content } else { &list };
            assert_eq!(decode(&head, body), Ok((7, message.clone())));
            // Nothing of it can be missing, and there can be nothing more.
            let short = draw.0.below(head.len() as u64) as usize;
            assert!(decode(&head[..short], body).is_err(), "{message:?}");
            head.push(0);
            assert!(decode(&head, body).is_err(), "{message:?}");
            head.pop();
            let longer: Vec<u8> = body.iter().copied().chain([0]).collect();
            assert!(decode(&head, &longer).is_err(), "{message:?}");
        }
    }

    #[test]
    fn names_of_volumes_arrive_and_others_are_refused() {
        let mut head = Vec::new();
        for name in ["a", &"n".repeat(WIRE_NAME_MAX), "größe"] {
            encode_name(9, [5; WIRE_FORM_BYTES], name, &mut head);
            assert!(is_name(&head) && head.len() <= WIRE_HEAD_MAX);
            assert_eq!(decode_name(&head), Ok((9, [5; WIRE_FORM_BYTES], name)));
            assert!(decode(&head, &[]).is_err(), "it is no message");
        }
        let begin = &head[..8 + WIRE_FORM_BYTES].to_vec();
        let with = |rest: &[u8]| [&begin[..], rest].concat();
        let (long, other) = (vec![b'n'; WIRE_NAME_MAX + 1], [&[kind::PING], &begin[1..]].concat());
        let subject = [&begin[..1], &[1], &begin[2..], b"a"].concat();
        for head in [
            &[][..],
            &begin[..7],
            &begin[..23],
            &with(&[]),
            &with(&long),
            &with(&[0xff]),
            &other,
            &subject,
        ] {
            assert!(decode_name(head).is_err(), "{head:?}");
        }
    }

    #[test]
    fn records_and_states_come_back_as_they_were_kept() {
        let mut draw = Draw(Random::new(2));
        for _ in 0..2000 {
            let record = draw.record();
            let mut bytes = encode_record(&record);
            assert_eq!(decode_record(&bytes), Ok(record.clone()));
            bytes.push(0);
            assert!(decode_record(&bytes).is_err());
            let record = draw.0.one_in(2).then_some(record);
            let ended = draw.0.one_in(2).then(|| draw.end());
            let durable = Durable { promised: draw.number(), record, note: draw.note(), ended };
            let mut bytes = encode_durable(&durable);
            assert_eq!(decode_durable(&bytes), Ok(durable.clone()));
            if durable.ended.is_some() {
                // Each part of it is needed, or it is the state of a shorter table.
                let cut = draw.0.below(bytes.len() as u64) as usize;
                assert_ne!(decode_durable(&bytes[..cut]), Ok(durable));
            }
            bytes[0] ^= 1;
            assert!(decode_durable(&bytes).is_err());
        }
        assert!(decode_durable(&[]).is_err());
    }

    #[test]
    fn the_largest_lists_fit_a_message() {
        let mut applied = Applied::default();
        for at in 0..APPLIED_MAX {
            let client = ClientId { slot: at as u16, channel: 1, attachment: u128::MAX };
            applied.note(RequestId { client, number: NUMBER_END - 1 });
        }
        let op = Op::Applied { applied, note: vec![1; NOTE_BYTES_MAX] };
        let table = Message::Append { epoch: 1, life: 1, began: 0, counter: 1, op };
        let ranges = (0..TAIL_RANGES_MAX as u64).map(|at| Extent::new(at * 9, 8).unwrap());
        let tail = Message::Sealed { epoch: 1, life: 1, tail: ranges.collect() };
        let (mut head, mut body) = (Vec::new(), Vec::new());
        for message in [table, tail] {
            encode(1, &message, &mut head, &mut body);
            assert!(head.len() <= WIRE_HEAD_MAX && body.len() <= WIRE_BODY_MAX);
            assert_eq!(decode(&head, &body), Ok((1, message)));
            // An entry more is refused.
            let more: Vec<u8> = body.iter().chain(&body[..112]).copied().collect();
            assert!(decode(&head, &more).is_err());
        }
    }

    /// A head with each reason to refuse it.
    #[test]
    fn messages_that_break_a_limit_are_refused_with_the_reason() {
        let place = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
        let begin = |kind: u8| vec![kind, 0, 0, 0, 7, 0, 0, 0];
        let with = |kind: u8, rest: &[&[u8]]| [begin(kind), rest.concat()].concat();
        let (one, large) = (1_u64.to_le_bytes(), NUMBER_END.to_le_bytes());
        let record = |primary: u8, members: &[u8]| {
            let head = [&one[..], &one, &one, &[primary, members.len() as u8]].concat();
            let lives = members.iter().flat_map(|member| [&[*member][..], &one].concat());
            head.into_iter().chain(lives).collect::<Vec<u8>>()
        };
        let append = [&one[..]; 4].concat();
        let range = |sectors: u32, content: u8| {
            let head = [&append[..], &[op::EQUAL], &one, &sectors.to_le_bytes(), &[content]];
            with(kind::APPEND, &[&head.concat()])
        };
        let snapshot = |name: &[u8]| {
            let request = [0; APPLIED_BYTES];
            with(kind::APPEND, &[&append, &[op::REMOVE_SNAPSHOT], &request, name])
        };
        let cases: &[(Vec<u8>, usize, &str)] = &[
            (vec![], 0, "too short"),
            (with(200 + 30, &[]), 0, "kind is unknown"),
            (vec![kind::SEAL, 1, 0, 0, 7, 0, 0, 0], 0, "subject is unknown"),
            (with(kind::PONG, &[&large, &one, &one]), 0, "number is too large"),
            (with(kind::PONG, &[&one, &one, &one]), 1, "body is too long"),
            (with(kind::SEAL, &[&record(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9])]), 0, "too many members"),
            (with(kind::SEAL, &[&record(1, &[2, 1])]), 0, "not in order"),
            (with(kind::SEAL, &[&record(3, &[1, 2])]), 0, "contradicts itself"),
            (with(kind::SEAL, &[&record(1, &[])]), 0, "contradicts itself"),
            (with(kind::JOIN, &[&one, &one, &[9]]), 0, "too many cuts"),
            (with(kind::JOIN, &[&one, &one, &[2], &place, &place]), 0, "cuts are not in order"),
            (with(kind::SEALED, &[&one, &one]), 15, "list has another length"),
            (with(kind::SEALED, &[&one, &one]), 16, "ranges are not in order"),
            (with(kind::ALIVE, &[&one, &[2]]), 0, "neither 0 nor 1"),
            (with(kind::APPEND, &[&append, &[99]]), 0, "operation is unknown"),
            (snapshot(&[0]), 0, "snapshot has no name"),
            (snapshot(&[64; 65]), 0, "snapshot has no name"),
            (snapshot(&[1, 0xff]), 0, "snapshot has no name"),
            (snapshot(&[2, b'a']), 0, "too short"),
            (range(0, 0), 0, "range is empty"),
            (range(1, 3), 0, "content is of an unknown kind"),
            (range(1, 0), 511, "range has another length"),
            (range(2049, 0), 2049 * 512, "range has another length"),
            (range(ZEROED_SECTORS_MAX + 1, 1), 0, "range has another length"),
        ];
        for (head, body_bytes, wanted) in cases {
            let error = decode(head, &vec![0; *body_bytes]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}: {wanted}");
        }
    }
}
