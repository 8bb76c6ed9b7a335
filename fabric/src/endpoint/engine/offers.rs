//! The messages that a receiver has asked senders for, and the answers that it still owes to
//! offers.

use super::receives::MessagePlace;
use crate::cell::{Clear, Local};
use crate::matcher::Envelope;
use crate::matcher::store::{ListEnds, MatchStore};
use crate::message::Class;

/// A message that comes piece by piece.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) source: Local,
    pub(crate) envelope: Envelope,
    pub(crate) data: Option<u64>,
    pub(crate) place: MessagePlace,
    /// The length of the message, the bytes of it that are wanted, and the bytes that have come.
    pub(crate) bytes: usize,
    pub(crate) wanted: usize,
    pub(crate) got: usize,
}

/// The list of all pulls.
pub(crate) const ALL: usize = 0;

/// All messages that come piece by piece.
#[derive(Debug)]
pub(crate) struct Pulls {
    pub(crate) store: MatchStore<Pull, 1>,
    pub(crate) all: ListEnds,
}

impl Pulls {
    pub(crate) fn new() -> Self {
        Self { store: MatchStore::new(0), all: ListEnds::EMPTY }
    }
}

/// An answer to the sender of an offer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferAnswer {
    pub(crate) to: Local,
    pub(crate) class: Class,
    pub(crate) operation: u64,
    /// The pieces that the receiver wants. None: the message has been taken, or is not wanted.
    pub(crate) clear: Option<Clear>,
}
