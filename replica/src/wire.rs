//! The messages of members as bytes: a head, and a body for what is long. `docs/protocol.md` shows
//! each byte.
//!
//! A message of a peer is checked once, here: [`decode`] gives a message whose counts and ranges
//! keep to the limits below, or the reason why there is none. The content of a range travels as the
//! body as it is, so a [`Message`] on the wire has [`WireContent`] in the place of the content.

mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::applied::{APPLIED_MAX, Applied, ClientId, RequestId};
use crate::cuts::CUTS_MAX;
use crate::extent::{Extent, ExtentSet};
use crate::member::TAIL_RANGES_MAX;
use crate::message::{Message, NOTE_BYTES_MAX, Note, Op, Place, SNAPSHOT_NAME_MAX, SnapshotChange};
use crate::proof::{BlockDigest, BlockProof, SCRUB_BLOCKS_MAX};
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

pub use crate::message::{NUMBER_END, SECTOR_BYTES, WIRE_BODY_MAX};
pub use state::{decode_durable, encode_durable};

/// The most sectors of a range without bytes: as of a request for zeroes on a volume.
pub const ZEROED_SECTORS_MAX: u32 = 16 << 11;

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
    pub(super) const ASK: u8 = WIRE_KIND_MIN + 11;
    pub(super) const KNOWN: u8 = WIRE_KIND_MIN + 12;
    pub(super) const LEND: u8 = WIRE_KIND_MIN + 13;
    pub(super) const LENT: u8 = WIRE_KIND_MIN + 14;
    pub(super) const PROVE: u8 = WIRE_KIND_MIN + 15;
    pub(super) const PROVED: u8 = WIRE_KIND_MIN + 16;
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

/// Bytes of a proof: whether the block can be read, and its digest.
const PROOF_BYTES: usize = 1 + size_of::<BlockDigest>();

const _: () = {
    assert!(NOTE_BYTES_MAX + APPLIED_MAX * APPLIED_BYTES <= WIRE_BODY_MAX, "one message");
    assert!(TAIL_RANGES_MAX * RANGE_BYTES <= WIRE_BODY_MAX, "a tail is one message");
    // The largest head is a ping's: its beginning, a record, and three numbers.
    assert!(8 + 26 + 9 * MEMBERS_MAX + 24 <= WIRE_HEAD_MAX);
    // Knowledge: its beginning, four numbers, three places, five flags, and a record.
    assert!(8 + 32 + 48 + 5 + 26 + 9 * MEMBERS_MAX <= WIRE_HEAD_MAX);
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
        Message::Held { life, began, counter, left_out } => {
            put_numbers(head, &[*life, began.reign, began.counter, *counter]);
            // Releases without snapshots do not know it, and there is none then.
            if *left_out > 0 {
                put_numbers(head, &[*left_out]);
            }
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
        Message::Ask { number } => put_numbers(head, &[*number]),
        Message::Known { number, knowledge } => {
            put_numbers(head, &[*number]);
            state::put_knowledge(head, knowledge);
        }
        Message::Lend { epoch, life, counter, extent } => {
            put_question(head, [*epoch, *life, *counter], *extent);
        }
        Message::Lent { life, place, extent, data } => {
            put_lent(head, [*life, place.reign, place.counter], *extent, *data);
        }
        Message::Prove { epoch, life, number, extent, key } => {
            put_question(head, [*epoch, *life, *number], *extent);
            head.extend(key);
        }
        Message::Proved { life, reign, number, proofs } => {
            put_numbers(head, &[*life, *reign, *number]);
            put_proofs(body, proofs);
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
        Message::Ask { .. } => kind::ASK,
        Message::Known { .. } => kind::KNOWN,
        Message::Lend { .. } => kind::LEND,
        Message::Lent { .. } => kind::LENT,
        Message::Prove { .. } => kind::PROVE,
        Message::Proved { .. } => kind::PROVED,
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
    put_extent(to, extent);
    to.push(content as u8);
}

fn put_extent(to: &mut Vec<u8>, extent: Extent) {
    put_numbers(to, &[extent.first()]);
    to.extend(extent.sectors().to_le_bytes());
}

/// A question of a primary about a range of a member in sync.
fn put_question(to: &mut Vec<u8>, numbers: [u64; 3], extent: Extent) {
    put_numbers(to, &numbers);
    put_extent(to, extent);
}

fn put_lent(to: &mut Vec<u8>, numbers: [u64; 3], extent: Extent, data: Option<WireContent>) {
    put_numbers(to, &numbers);
    to.push(u8::from(data.is_some()));
    match data {
        Some(data) => put_range(to, extent, data),
        None => put_extent(to, extent),
    }
}

fn put_proofs(to: &mut Vec<u8>, proofs: &[BlockProof]) {
    for proof in proofs {
        to.push(u8::from(proof.is_some()));
        to.extend(proof.unwrap_or_default());
    }
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
            left_out: if reader.0.is_empty() { 0 } else { reader.left_out()? },
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
        kind::ASK => Message::Ask { number: reader.number()? },
        kind::KNOWN => Message::Known { number: reader.number()?, knowledge: reader.knowledge()? },
        kind::LEND => reader.lend()?,
        kind::LENT => reader.lent(&mut body)?,
        kind::PROVE => reader.prove()?,
        kind::PROVED => reader.proved(&mut body)?,
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

    fn proofs(&mut self) -> WireResult<Vec<BlockProof>> {
        let mut reader = self.list(PROOF_BYTES, SCRUB_BLOCKS_MAX as usize)?;
        let mut proofs = Vec::new();
        while !reader.0.is_empty() {
            let (is_read, digest) = (reader.flag()?, reader.bytes()?);
            if !is_read && digest != BlockDigest::default() {
                return Err(MalformedMessage("a block that cannot be read has a digest"));
            }
            proofs.push(is_read.then_some(digest));
        }
        Ok(proofs)
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

    fn extent(&mut self) -> WireResult<Extent> {
        let (first, sectors) = (self.number()?, u32::from_le_bytes(self.bytes()?));
        Extent::new(first, sectors).ok_or(MalformedMessage("its range is empty"))
    }

    fn lend(&mut self) -> WireResult<Message<WireContent>> {
        let (epoch, life, counter) = (self.number()?, self.life()?, self.number()?);
        Ok(Message::Lend { epoch, life, counter, extent: self.extent()? })
    }

    fn prove(&mut self) -> WireResult<Message<WireContent>> {
        let (epoch, life, number) = (self.number()?, self.life()?, self.number()?);
        let (extent, key) = (self.extent()?, self.bytes()?);
        Ok(Message::Prove { epoch, life, number, extent, key })
    }

    fn proved(&mut self, body: &mut Body<'_>) -> WireResult<Message<WireContent>> {
        let (life, reign, number) = (self.life()?, self.number()?, self.number()?);
        Ok(Message::Proved { life, reign, number, proofs: body.proofs()? })
    }

    fn lent(&mut self, body: &mut Body<'_>) -> WireResult<Message<WireContent>> {
        let (life, place) = (self.life()?, self.place()?);
        let (extent, data) = match self.flag()? {
            true => self.range(body).map(|(extent, data)| (extent, Some(data)))?,
            false => (self.extent()?, None),
        };
        Ok(Message::Lent { life, place, extent, data })
    }

    fn range(&mut self, body: &mut Body<'_>) -> WireResult<(Extent, WireContent)> {
        let extent = self.extent()?;
        let content = match self.byte()? {
            0 => WireContent::Bytes,
            1 => WireContent::Zeroes,
            2 => WireContent::Discarded,
            _ => return Err(MalformedMessage("its content is of an unknown kind")),
        };
        body.content(extent, content)?;
        Ok((extent, content))
    }

    fn left_out(&mut self) -> WireResult<u64> {
        let number = self.number()?;
        let none = MalformedMessage("its change of the snapshots has no number");
        if number == 0 { Err(none) } else { Ok(number) }
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
