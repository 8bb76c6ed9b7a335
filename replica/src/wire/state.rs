//! The state that a member keeps, as the bytes of its private file.

use super::{
    Body, MalformedMessage, NOTE_BYTES_MAX, RANGE_BYTES, WireReader, WireResult, put_numbers,
    put_record, put_request,
};
use crate::member::{Durable, LifeEnd};
use crate::message::{Knowledge, Place};

/// The first bytes of a state, with the version of its form. Only a state with the end of a life
/// has the second form, and only the state of a copy that is out of sync has the third: a program
/// that does not know these must not go on as if there was none.
const MAGIC: &[u8; 8] = b"vrMEM\0\0\x01";
const MAGIC_ENDED: &[u8; 8] = b"vrMEM\0\0\x02";
const MAGIC_OUT: &[u8; 8] = b"vrMEM\0\0\x03";

/// The state that a member must remember, as bytes.
///
/// # Panics
/// When the note is longer than [`NOTE_BYTES_MAX`], or the tail has more ranges than fit a message.
pub fn encode_durable(durable: &Durable) -> Vec<u8> {
    let is_out = durable.filled_since.is_some() || durable.was_in > 0;
    let magic = match &durable.ended {
        Some(_) => MAGIC_ENDED,
        None if is_out => MAGIC_OUT,
        None => MAGIC,
    };
    let mut bytes = magic.to_vec();
    put_numbers(&mut bytes, &[durable.promised]);
    bytes.push(u8::from(durable.record.is_some()));
    durable.record.iter().for_each(|record| put_record(&mut bytes, record));
    let Some(LifeEnd { life, began, tail, applied, cut }) = &durable.ended else {
        if is_out {
            put_numbers(&mut bytes, &[durable.was_in]);
            put_optional_place(&mut bytes, durable.filled_since);
        }
        bytes.extend_from_slice(&durable.note);
        return bytes;
    };
    put_numbers(&mut bytes, &[*life, began.reign, began.counter]);
    bytes.push(u8::from(cut.is_some()));
    cut.iter().for_each(|cut| put_numbers(&mut bytes, &[cut.reign, cut.counter]));
    for count in [durable.note.len(), tail.len()] {
        let count = u32::try_from(count).expect("within the limits of messages");
        bytes.extend(count.to_le_bytes());
    }
    bytes.extend_from_slice(&durable.note);
    tail.ranges().for_each(|(first, end)| put_numbers(&mut bytes, &[first, end]));
    applied.requests().for_each(|id| put_request(&mut bytes, id));
    bytes
}

/// The state of bytes that [`encode_durable`] gave.
///
/// # Errors
/// When they are no such state: the reason.
pub fn decode_durable(bytes: &[u8]) -> WireResult<Durable> {
    let mut reader = WireReader(bytes);
    let magic = reader.bytes()?;
    let (has_ended, is_out) = match &magic {
        MAGIC => (false, false),
        MAGIC_ENDED => (true, false),
        MAGIC_OUT => (false, true),
        _ => return Err(MalformedMessage("it is no member's state of this version")),
    };
    let promised = reader.number()?;
    let record = reader.flag()?.then(|| reader.record()).transpose()?;
    if !has_ended {
        let (mut was_in, mut filled_since) = (0, None);
        if is_out {
            (was_in, filled_since) = (reader.number()?, reader.optional_place()?);
        }
        let note = reader.0.to_vec();
        if note.len() > NOTE_BYTES_MAX {
            return Err(MalformedMessage("its note is too long"));
        }
        return Ok(Durable { promised, record, note, filled_since, was_in, ended: None });
    }
    let (life, began) = (reader.life()?, reader.place()?);
    let cut = reader.flag()?.then(|| reader.place()).transpose()?;
    let [note_bytes, ranges] = [reader.bytes()?, reader.bytes()?].map(u32::from_le_bytes);
    let mut body = Body { bytes: reader.0 };
    let note = body.note(note_bytes)?;
    let split = body.bytes.split_at_checked(ranges as usize * RANGE_BYTES);
    let (tail, applied) = split.ok_or(MalformedMessage("its tail is too short"))?;
    let tail = Body { bytes: tail }.tail()?;
    let applied = Body { bytes: applied }.applied()?;
    let ended = Some(LifeEnd { life, began, tail, applied, cut });
    Ok(Durable { promised, record, note, ended, ..Durable::default() })
}

fn put_optional_place(bytes: &mut Vec<u8>, place: Option<Place>) {
    bytes.push(u8::from(place.is_some()));
    place.iter().for_each(|it| put_numbers(bytes, &[it.reign, it.counter]));
}

/// The knowledge of a member, in the head of a message.
pub(super) fn put_knowledge(head: &mut Vec<u8>, knowledge: &Knowledge) {
    let Knowledge { life, promised, record, reigns, asks, .. } = knowledge;
    let Knowledge { filled_since, was_in, cut, stored, .. } = knowledge;
    put_numbers(head, &[*life, *promised, *was_in, stored.reign, stored.counter]);
    head.extend([u8::from(*reigns), u8::from(*asks)]);
    put_optional_place(head, *filled_since);
    put_optional_place(head, *cut);
    head.push(u8::from(record.is_some()));
    record.iter().for_each(|record| put_record(head, record));
}

impl WireReader<'_> {
    pub(super) fn knowledge(&mut self) -> WireResult<Knowledge> {
        let (life, promised, was_in) = (self.life()?, self.number()?, self.number()?);
        let (stored, reigns, asks) = (self.place()?, self.flag()?, self.flag()?);
        let (filled_since, cut) = (self.optional_place()?, self.optional_place()?);
        let record = self.flag()?.then(|| self.record()).transpose()?;
        Ok(Knowledge { life, promised, record, reigns, asks, filled_since, was_in, cut, stored })
    }

    fn optional_place(&mut self) -> WireResult<Option<Place>> {
        self.flag()?.then(|| self.place()).transpose()
    }
}
