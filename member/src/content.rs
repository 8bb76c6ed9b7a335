//! The content of a range, as the protocol passes it on: a handle.

use std::rc::Rc;

use replica::wire::{SECTOR_BYTES, WireContent};
use replica::{Extent, Message, Op};

/// The content of a range. A clone is another handle to the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RangeContent {
    /// Bytes, as many as the range has.
    Bytes(Rc<Vec<u8>>),
    /// Zeroes that keep their space.
    Zeroes,
    /// Zeroes without space.
    Discarded,
}

impl RangeContent {
    /// A handle to bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self::Bytes(Rc::new(bytes))
    }

    /// Whether it is the content of such a range.
    pub fn fits(&self, extent: Extent) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64 == bytes_of(extent),
            Self::Zeroes | Self::Discarded => true,
        }
    }

    /// Its form on the wire.
    pub fn wire(&self) -> WireContent {
        match self {
            Self::Bytes(_) => WireContent::Bytes,
            Self::Zeroes => WireContent::Zeroes,
            Self::Discarded => WireContent::Discarded,
        }
    }
}

/// The form of a message on the wire, and its content.
pub fn to_wire(message: Message<RangeContent>) -> (Message<WireContent>, Option<RangeContent>) {
    let mut content = None;
    let message = message.map(|data: RangeContent| {
        let form = data.wire();
        content = Some(data);
        form
    });
    (message, content)
}

/// The message of a form on the wire and the bytes that came with it, which have the length that
/// the form's range has.
pub fn from_wire(message: Message<WireContent>, bytes: Vec<u8>) -> Message<RangeContent> {
    let mut bytes = Some(bytes);
    message.map(|form| match form {
        // A message has one range.
        WireContent::Bytes => RangeContent::of(bytes.take().unwrap_or_default()),
        WireContent::Zeroes => RangeContent::Zeroes,
        WireContent::Discarded => RangeContent::Discarded,
    })
}

/// The message of a form on the wire and the content that [`to_wire`] has taken out of it.
pub(crate) fn from_content(
    message: Message<WireContent>,
    mut content: Option<RangeContent>,
) -> Message<RangeContent> {
    message.map(|_| content.take().expect("a message has one content at most"))
}

/// The length of a range.
pub(crate) fn bytes_of(extent: Extent) -> u64 {
    u64::from(extent.sectors()) * SECTOR_BYTES
}

/// The content that a message has.
pub fn content_of<D>(message: &Message<D>) -> Option<&D> {
    let op = match message {
        Message::Append { op, .. } => op,
        Message::Lent { data, .. } => return data.as_ref(),
        _ => return None,
    };
    match op {
        Op::Write { data, .. } | Op::Fill { data, .. } | Op::Equal { data, .. } => Some(data),
        _ => None,
    }
}
