//! A member that the primary sends operations to, and how far it is if it joins.

use std::collections::BTreeMap;

use crate::extent::{Extent, ExtentSet};
use crate::message::{Counter, Message, Op, Place};
use crate::record::{Life, VolumeRecord};

/// A member that the primary sends operations to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Follower {
    pub(crate) life: Life,
    /// The last operation that it did not get, and the last one that it has stored.
    pub(crate) began: Counter,
    pub(crate) held: Counter,
    /// The last change of the snapshots that it has left out.
    pub(crate) left_out: Counter,
    /// When the ping was sent that it answered last.
    pub(crate) lease_ns: Option<u64>,
    pub(crate) heard_ns: u64,
    pub(crate) joining: Option<Joining>,
}

impl Follower {
    pub(crate) fn new(life: Life, began: Counter, now_ns: u64, joining: Option<Joining>) -> Self {
        Self { life, began, held: began, left_out: 0, lease_ns: None, heard_ns: now_ns, joining }
    }

    /// Whether it is sent operations: a member that goes back is not.
    pub(crate) fn takes_operations(&self) -> bool {
        self.joining.as_ref().is_none_or(|joining| !joining.prepares)
    }

    /// A ping with the last operation that all members in sync have.
    pub(crate) fn ping<D>(&self, record: &VolumeRecord, sent_ns: u64, held: Counter) -> Message<D> {
        Message::Ping { record: record.clone(), life: self.life, sent_ns, held }
    }

    pub(crate) fn append<D>(&self, epoch: u64, counter: Counter, op: Op<D>) -> Message<D> {
        let (life, began) = (self.life, self.began);
        Message::Append { epoch, life, began, counter, op }
    }
}

/// How far a member is that joins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Joining {
    pub(crate) cut: Option<Place>,
    /// It goes back, which may take long: it gets no operation before it has, so that none waits
    /// for it. It then goes back once more, where it is already, and gets all operations from that
    /// moment on.
    pub(crate) prepares: bool,
    /// It has gone back, and is asked for no blocks before: its Join may come while it hears
    /// nothing.
    pub(crate) has_gone_back: bool,
    /// The sector from which on the difference is not known yet; none if all of it is.
    pub(crate) compared: Option<u64>,
    /// The part of it from there on is being looked for.
    pub(crate) is_comparing: bool,
    /// Sectors that it lacks, as far as the difference is known.
    left: ExtentSet,
    /// Ranges that it lacks and that are being fetched, with operations on them meanwhile.
    fetching: BTreeMap<Extent, Written>,
    /// Parts of ranges that an operation changed in part while they were fetched.
    again: Vec<Extent>,
    /// It is equal when it has this operation.
    pub(crate) until: Option<Counter>,
    /// It is equal, and from now on operations need it: it is admitted when it has this
    /// operation, the last that was acknowledged without it.
    pub(crate) acknowledged: Option<Counter>,
}

/// The part of a range that operations have changed since it is being fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Written {
    /// None: the fetched content is its content.
    Nothing,
    /// Some of it: its parts are fetched again. The smallest part is one sector, which an operation
    /// changes as a whole, so that steady load comes to an end with it.
    Part,
    /// One operation has all of it, so that it needs no fill.
    Whole,
}

impl Joining {
    pub(crate) fn new(cut: Option<Place>) -> Self {
        Self {
            cut,
            prepares: true,
            has_gone_back: false,
            compared: Some(0),
            is_comparing: false,
            left: ExtentSet::default(),
            fetching: BTreeMap::new(),
            again: Vec::new(),
            until: None,
            acknowledged: None,
        }
    }

    pub(crate) fn message<D>(
        &self,
        record: &VolumeRecord,
        life: Life,
        began: Counter,
    ) -> Message<D> {
        Message::GoBack { record: record.clone(), life, cut: self.cut, began }
    }

    /// An operation behind all fetches changes the range.
    pub(crate) fn written(&mut self, extent: &Extent) {
        for (fetched, written) in &mut self.fetching {
            if extent.covers(fetched) {
                *written = Written::Whole;
            } else if extent.overlaps(fetched) && *written == Written::Nothing {
                *written = Written::Part;
            }
        }
    }

    /// It lacks these ranges as well.
    pub(crate) fn lacks(&mut self, extents: Vec<Extent>) {
        self.left.extend(extents);
    }

    /// The next range to be fetched, while less than `fetches_max` are.
    pub(crate) fn next_fetch(&mut self, sectors_max: u32, fetches_max: usize) -> Option<Extent> {
        if self.fetching.len() >= fetches_max {
            return None;
        }
        let extent = self.again.pop().or_else(|| self.left.take_first(sectors_max))?;
        self.fetching.insert(extent, Written::Nothing);
        Some(extent)
    }

    /// Whether a range is left, and may be fetched.
    pub(crate) fn may_fetch(&self, fetches_max: usize) -> bool {
        let has_more = !self.left.is_empty() || !self.again.is_empty();
        self.has_gone_back && has_more && self.fetching.len() < fetches_max
    }

    /// A range was fetched; none if it was not asked for.
    pub(crate) fn fetched(&mut self, extent: Extent) -> Option<Written> {
        let written = self.fetching.remove(&extent)?;
        if written == Written::Part {
            self.again.extend(extent.halves().into_iter().flatten());
        }
        Some(written)
    }

    /// Whether all that is known to be lacking was sent.
    pub(crate) fn is_filled(&self) -> bool {
        self.left.is_empty() && self.fetching.is_empty() && self.again.is_empty()
    }
}
