//! The receives that wait for messages, the messages that wait for receives, and the places where
//! they meet.

use crate::cell::{Local, Offer};
use crate::matcher::store::{Id, MatchStore};
use crate::message::{Class, RequestContext};
use crate::parts::MessageParts;
use crate::region::Region;

/// Messages up to this length are kept without an allocation of their own.
const SHORT_BYTES: usize = 48;

/// A receive that waits for a message.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) parts: MessageParts,
    /// The endpoint that it waits for, if it named one.
    pub(crate) source: Option<Local>,
    /// The buffer that several messages share.
    pub(crate) multi: Option<Id>,
}

/// A message that no receive waited for.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub(crate) data: Option<u64>,
    pub(crate) body: ReceivedBody,
}

#[derive(Debug)]
pub(crate) enum ReceivedBody {
    Short {
        bytes: u8,
        content: [u8; SHORT_BYTES],
    },
    Long(Box<[u8]>),
    Offer(Box<Offer>),
    /// A message that is pushed, and its length.
    Push(Id, usize),
}

impl ReceivedBody {
    /// Copies bytes from a place of the region, which was checked.
    pub(crate) fn copied(region: &Region, at: usize, bytes: usize) -> Self {
        let copy = |to: &mut [u8]| {
            let start = to.as_mut_ptr();
            // SAFETY: `to` is our own and has this length.
            unsafe { region.mapping().copy_out(at, start, to.len()) };
        };
        if bytes <= SHORT_BYTES {
            let mut content = [0; SHORT_BYTES];
            copy(&mut content[..bytes]);
            return Self::Short { bytes: bytes as u8, content };
        }
        let mut content = vec![0; bytes].into_boxed_slice();
        copy(&mut content);
        Self::Long(content)
    }

    /// How long the message is.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Short { bytes, .. } => usize::from(*bytes),
            Self::Long(content) => content.len(),
            Self::Offer(offer) => offer.bytes,
            Self::Push(_, bytes) => *bytes,
        }
    }
}

/// A buffer that several messages share.
#[derive(Debug)]
pub(crate) struct Multi {
    pub(crate) context: RequestContext,
    /// The buffer ends when fewer bytes are left than this.
    pub(crate) min_bytes: usize,
    pub(crate) used_bytes: usize,
    /// Messages that are on their way into it.
    pub(crate) arriving: usize,
    pub(crate) over: bool,
    /// It was cancelled. Its program is told when no message is on its way into it any more.
    pub(crate) cancelled: bool,
}

/// All buffers that several messages share.
#[derive(Debug)]
pub(crate) struct Multis(pub(crate) MatchStore<Multi, 1>);

impl Multis {
    pub(crate) fn new() -> Self {
        Self(MatchStore::new(0))
    }

    /// Ends a buffer by a failure, which its program was told.
    pub(crate) fn end(&mut self, id: Id) {
        self.0.give_up(id);
    }
}

/// The place of one message.
#[derive(Debug)]
pub(crate) struct MessagePlace {
    pub(crate) context: RequestContext,
    pub(crate) class: Class,
    pub(crate) parts: MessageParts,
    pub(crate) multi: Option<Id>,
}
