//! Volumes over volumes: requests of a stage's own to the volumes below it.
//!
//! A stage that only looks at its user's requests hands them on in the user's table and needs
//! nothing of this. A stage that does I/O of its own (the pieces of a range, a second copy,
//! metadata) has a [`Layer`] in each of its channels: channels of the volumes below, each with a
//! table of its own. A request in such a table is a *child*. It is for one of the user's requests,
//! its *parent*, or for the stage itself.
//!
//! - A child ends: its parent ends with its last child, as the worst of them has ended.
//! - Requests that have not begun are recalled: a parent is given back when all of its children
//!   that had not ended came back. Children of other parents, and of the stage itself, are
//!   submitted again.
//! - The user lets go: no further child begins. Children that are below stay in the layer until
//!   each channel has let go of them.
//! - The channel is dropped: the channels below are dropped first, then the table of children.
//!
//! A child's segments are the parent's, or memory of the stage. Declare the layer before such
//! memory, so that it is dropped first: a kernel may still use what children below have.
//!
//! The channels may be of any kind: of [`crate::Volume`]s, opened with the stage's own, or of
//! volumes with attachments and epochs of their own (`block::Attach`). A stage that reads metadata
//! first is not open ([`crate::Channel::is_open`]) until it has read it, and keeps requests until
//! then. It then tells its size with [`crate::Size::set`]. State that a stage's channels on several
//! sidecores share belongs to the stage's volume, behind an `Arc`.
//!
//! All tables are made with the channel: a child costs what a request of any user costs, and no
//! allocation.

use sidecore::{Progress, Services, Wake};

use crate::volume::{
    Channel, Io, IoId, IoTable, OpenArguments, OpenError, Status, Volume, io_table,
};

/// A request of the user's whose children have all ended, or of which none was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The request.
    pub parent: IoId,
    /// As the worst of its children has ended.
    pub status: Status,
}

/// The channels below, and the children in them. See the module.
#[derive(Debug)]
pub struct Layer {
    below: Vec<LowerChannel>,
    parents: Parents,
    /// The requests that a channel below has just handed over. It has room for the largest table.
    handed: Vec<IoId>,
    lets_go: bool,
}

/// The channel goes first when this is dropped: a kernel may still work on the table's requests.
#[derive(Debug)]
struct LowerChannel {
    channel: Box<dyn Channel>,
    children: IoTable,
    /// By the child's slot. `None` for a child of the stage itself.
    parents: Vec<Option<IoId>>,
}

/// By the parent's slot.
#[derive(Debug)]
struct Parents {
    each: Vec<Parent>,
    /// Those that a recall has settled; the next poll tells them.
    settled: Vec<Settled>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Parent {
    /// Its children that have not ended.
    left: u32,
    /// Of these, the ones that a recall has brought back.
    came_back: u32,
    status: Status,
}

impl Parents {
    fn begin(&mut self, parent: IoId) {
        let it = &mut self.each[parent.index()];
        if it.left == 0 {
            it.status = Status::Done;
        }
        it.left += 1;
    }

    /// A child has ended. Gives the parent when it was the last.
    fn end(&mut self, parent: IoId, status: Status) -> Option<Settled> {
        let it = &mut self.each[parent.index()];
        it.left -= 1;
        it.status = worse(it.status, status);
        (it.left == 0).then_some(Settled { parent, status: it.status })
    }

    /// Whether a recall has brought back all that is left of its children.
    fn is_back(&self, parent: IoId) -> bool {
        let it = &self.each[parent.index()];
        it.came_back == it.left
    }
}

/// The status of a parent whose children ended with these two. The first failure stays, with one
/// exception: [`Status::Fenced`] goes before every other, because a successor has the volume then,
/// and the volume must not be touched again.
fn worse(one: Status, other: Status) -> Status {
    match (one, other) {
        (Status::Done, _) | (_, Status::Fenced) => other,
        _ => one,
    }
}

impl Layer {
    /// A layer without channels for a user with a table of `parents_max` requests.
    pub fn new(parents_max: u16) -> Self {
        let parents_max = usize::from(parents_max);
        let each = vec![Parent::default(); parents_max];
        let parents = Parents { each, settled: Vec::with_capacity(parents_max) };
        Self { below: Vec::new(), parents, handed: Vec::new(), lets_go: false }
    }

    /// The same with one more channel, which was opened for `children_max` requests at once.
    /// Channels are numbered from 0, in the order in which they are added.
    #[must_use]
    pub fn with(mut self, channel: Box<dyn Channel>, children_max: u16) -> Self {
        let parents = vec![None; usize::from(children_max)];
        self.handed.reserve(parents.len());
        self.below.push(LowerChannel { channel, children: io_table(children_max), parents });
        self
    }

    /// The same with a channel of `volume`.
    ///
    /// # Errors
    /// When the channel cannot be opened.
    pub fn over(
        self,
        volume: &dyn Volume,
        services: &Services,
        children_max: u16,
    ) -> Result<Self, OpenError> {
        let channel = volume.open(&OpenArguments { services, depth: children_max })?;
        Ok(self.with(channel, children_max))
    }

    /// Submits a child to the channel `below`, for `parent` or for the stage itself. `set` makes
    /// it: its operation, range and segments, with [`Io::owner`] for the stage's own use.
    ///
    /// `false`, and nothing was begun, when the channel's table is full, the user is letting go, or
    /// `set` says so.
    pub fn begin(
        &mut self,
        below: usize,
        parent: Option<IoId>,
        set: impl FnOnce(&mut Io) -> bool,
    ) -> bool {
        let below = &mut self.below[below];
        let taken = if self.lets_go { None } else { below.children.take() };
        let Some(id) = taken else { return false };
        below.children[id].reset();
        if !set(&mut below.children[id]) {
            below.children.free(id);
            return false;
        }
        if let Some(parent) = parent {
            self.parents.begin(parent);
        }
        below.parents[id.index()] = parent;
        below.channel.submit(&mut below.children, id);
        true
    }

    /// Whether no child is below, and none has ended that was not told.
    pub fn is_idle(&self) -> bool {
        self.below.iter().all(|below| below.children.is_empty()) && self.parents.settled.is_empty()
    }

    /// Moves on. `ended` sees each child that has ended, with its parent: it takes back the memory
    /// that the child had. `settled` sees each parent whose last child has ended, afterwards; the
    /// stage then completes the request, or begins further children for it.
    pub fn poll(
        &mut self,
        now_ns: u64,
        mut ended: impl FnMut(Option<IoId>, &mut Io),
        settled: &mut Vec<Settled>,
    ) -> Progress {
        let mut progress = Progress::busy_if(!self.parents.settled.is_empty());
        settled.append(&mut self.parents.settled);
        for below in &mut self.below {
            progress |= below.channel.poll(&mut below.children, now_ns, &mut self.handed);
            for id in self.handed.drain(..) {
                let parent = below.parents[id.index()];
                ended(parent, &mut below.children[id]);
                let status = below.children[id].status;
                below.children.free(id);
                settled.extend(parent.and_then(|parent| self.parents.end(parent, status)));
            }
        }
        progress
    }

    /// Before the sidecore sleeps, as [`Channel::arm`].
    pub fn arm(&mut self, wake: &mut Wake) -> Progress {
        let untold = Progress::busy_if(!self.parents.settled.is_empty());
        self.below.iter_mut().fold(untold, |progress, below| progress | below.channel.arm(wake))
    }

    /// After the sidecore slept, as [`Channel::disarm`].
    pub fn disarm(&mut self) {
        self.below.iter_mut().for_each(|below| below.channel.disarm());
    }

    /// Whether what is begun now goes on to the blocks of every volume below.
    pub fn is_open(&self) -> bool {
        self.below.iter().all(|below| below.channel.is_open())
    }

    /// Takes back parents whose children have not begun below, or not all of them: for
    /// [`Channel::recall`]. `returned` sees each child that came back for good and takes its
    /// memory. Such a parent is in `back` afterwards, and is done once more as a whole.
    ///
    /// A parent of which something is still below completes later. So does one that has failed
    /// already: it is settled.
    pub fn recall(&mut self, mut returned: impl FnMut(IoId, &mut Io), back: &mut Vec<IoId>) {
        // First all channels, since a parent may have children in several.
        let mut came = Vec::new();
        for (at, below) in self.below.iter_mut().enumerate() {
            below.channel.recall(&mut below.children, &mut self.handed);
            for id in self.handed.drain(..) {
                if let Some(parent) = below.parents[id.index()] {
                    self.parents.each[parent.index()].came_back += 1;
                }
                came.push((at, id));
            }
        }
        // In the order of their submission, so that what goes below again does so in that order.
        for &(at, id) in &came {
            let below = &mut self.below[at];
            match below.parents[id.index()] {
                Some(parent) if self.parents.is_back(parent) => {
                    returned(parent, &mut below.children[id]);
                    below.children.free(id);
                }
                _ => below.channel.submit(&mut below.children, id),
            }
        }
        for &(at, id) in &came {
            let Some(parent) = self.below[at].parents[id.index()] else { continue };
            let it = &mut self.parents.each[parent.index()];
            // A parent's first child here settles all of them.
            if it.came_back > 0 && it.came_back == it.left {
                match it.status {
                    Status::Done => back.push(parent),
                    status => self.parents.settled.push(Settled { parent, status }),
                }
                it.left = 0;
            }
            it.came_back = 0;
        }
    }

    /// Lets go, as [`Channel::abandon`]: begins nothing more, and is `true` once no channel below
    /// touches the volume or a segment. Then the children are gone, and their memory is the stage's
    /// again. The stage itself must forget the parents: the layer does not name each of them.
    pub fn abandon(&mut self, now_ns: u64) -> bool {
        self.lets_go = true;
        // Each of them is asked, so that all let go at once.
        let mut has_let_go = true;
        for below in &mut self.below {
            has_let_go &= below.channel.abandon(&mut below.children, now_ns);
        }
        if !has_let_go {
            return false;
        }
        for below in &mut self.below {
            for at in 0..below.children.capacity() {
                if let Some(id) = below.children.id_at(at) {
                    below.children.free(id);
                }
            }
        }
        self.parents.each.fill(Parent::default());
        self.parents.settled.clear();
        true
    }
}

#[cfg(test)]
mod tests;
