//! Messages of other hosts that come piece by piece without being asked for, as far as they came.

use std::collections::HashMap;

use super::receives::MessagePlace;
use crate::cell::{Lent, Local};
use crate::matcher::Envelope;
use crate::matcher::store::{Id, ListEnds, MatchStore};
use crate::message::RequestFailure;
use crate::region::Region;
use crate::slab::is_whole;

/// A message that another host pushes.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) source: Local,
    /// The sender's name for the message.
    pub(crate) operation: u64,
    pub(crate) bytes: usize,
    pub(crate) got: usize,
    pub(crate) goal: Goal,
}

/// The goal of the pieces that come.
#[derive(Debug)]
pub(crate) enum Goal {
    /// The program has not asked for the message yet; the content so far.
    Kept(Vec<u8>),
    MessagePlace {
        place: MessagePlace,
        envelope: Envelope,
        data: Option<u64>,
    },
    /// The program does not want the message, but it comes.
    Nothing,
    /// The program has not asked for the message yet, and it will not come.
    Lost(RequestFailure),
}

pub(crate) const UNDER_WAY: usize = 0;

/// All messages that are pushed.
#[derive(Debug)]
pub(crate) struct Pushes {
    pub(crate) store: MatchStore<Push, 1>,
    /// Messages of which pieces have still to come.
    pub(crate) under_way: ListEnds,
    pub(crate) by_name: HashMap<(Local, u64), Id>,
}

impl Pushes {
    pub(crate) fn new() -> Self {
        Self { store: MatchStore::new(0), under_way: ListEnds::EMPTY, by_name: HashMap::new() }
    }
}

impl Push {
    /// Takes the next part out of its buffer, which it fits. A slab with another owner means that
    /// the sender is gone. That ends the message when it is noticed.
    pub(crate) fn take(&mut self, region: &Region, lent: &Lent) {
        let from = region.layout().buffer(lent.owner.slot, lent.buffer);
        let end = self.got + lent.bytes;
        match &mut self.goal {
            Goal::Kept(content) => {
                content.reserve_exact(lent.bytes);
                content.resize(end, 0);
                let to = content[self.got..].as_mut_ptr();
                // SAFETY: the bytes are our own, and so many.
                unsafe { region.mapping().copy_out(from, to, lent.bytes) };
            }
            Goal::MessagePlace { place, .. } => {
                let room = place.parts.bytes().saturating_sub(self.got).min(lent.bytes);
                if room > 0 {
                    place.parts.copy_out(self.got, room, region.mapping(), from);
                }
            }
            Goal::Nothing | Goal::Lost(_) => {}
        }
        if is_whole(region, lent.owner) {
            self.got = end;
        } else if let Goal::Kept(content) = &mut self.goal {
            content.truncate(self.got);
        }
    }
}
