//! Which epoch of the remote volume the cache's content is right for.
//!
//! An epoch is held by one attachment at a time, and each claim takes the next one: so content that
//! was right at the end of an epoch is right at the start of the next, if nothing lies between the
//! two and the guest goes on. A guest that goes on has parts of the volume in its own memory, and
//! the volume's guard lets it go on only if no other client has written meanwhile; the cache is as
//! right as that memory. A guest that starts afresh has none: the volume may have been rolled back
//! while it was off. The cache is emptied for it, as after any other doubt.
//!
//! ```text
//!   closed ── a channel shows the epoch that it holds ──▶ asked ── the keeper ──▶ open
//!      ▲                                                                            │
//!      └───────── another epoch that does not follow, a fault, a stop ──────────────┘
//! ```
//!
//! Channels use the cache under a [`Pass`]. The keeper empties the cache when no channel has a
//! request in it, which a word for each channel says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use block::attachment::{Attachment, CHANNELS_MAX, Phase};
use parking_lot::{Condvar, Mutex};
use sidecore::Padded;
use volume::Incarnation;

/// The right to a remote volume that a client holds at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldEpoch {
    /// The epoch.
    pub epoch: u64,
    /// The volume's incarnation at that claim.
    pub incarnation: Incarnation,
    /// The client.
    pub claimant: u64,
    /// The last epoch that this node held before, for a guest that resumed with a new client.
    pub resumed: Option<u64>,
}

impl HeldEpoch {
    /// The right of an attachment that holds this epoch.
    pub fn of(attachment: &Attachment, epoch: u64) -> Self {
        let options = attachment.options();
        Self {
            epoch,
            incarnation: attachment.incarnation(),
            claimant: options.claimant,
            resumed: options.resume.then_some(options.known),
        }
    }

    /// Whether content that was right under `before` is right now: the same guest goes on, and no
    /// other client had the volume between the two.
    pub fn follows(&self, before: &Self) -> bool {
        self.epoch == before.epoch + 1
            && self.incarnation == before.incarnation
            && (self.claimant == before.claimant || self.resumed == Some(before.epoch))
    }
}

/// The right to use the cache, until it is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass(u64);

/// The state that the gate's users ask for.
#[derive(Debug, Default)]
pub(crate) struct GateStory {
    /// The right under which the content was right last; none while the content is worth nothing.
    content: Option<HeldEpoch>,
    /// The content of an earlier process is known: it is the content, or there is none.
    is_loaded: bool,
    /// The attachment whose channels use the cache, or used it last.
    attachment: Option<Arc<Attachment>>,
    /// The right for which the cache will be opened.
    pub(crate) asked: Option<HeldEpoch>,
    /// Why the cache is not used, for people.
    pub(crate) why: Option<String>,
    /// A fault: the content is worth nothing, and its storage may not do its work.
    pub(crate) has_failed: bool,
    /// The keeper ends.
    pub(crate) ends: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    /// The number of openings and closings; odd while the cache is open.
    word: AtomicU64,
    /// The epoch that it is open for.
    epoch: AtomicU64,
    /// The last epoch that a channel has shown.
    shown: AtomicU64,
    /// The content is worth nothing: blocks that change need not be hidden. Set with the story.
    is_void: AtomicBool,
    /// Requests in the cache, by channel. Only the channel writes its word.
    inside: [Padded<AtomicU64>; CHANNELS_MAX],
    story: Mutex<GateStory>,
    stirred: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            is_void: AtomicBool::new(false),
            inside: std::array::from_fn(|_| Padded(AtomicU64::new(0))),
            story: Mutex::default(),
            stirred: Condvar::new(),
        }
    }
}

impl Gate {
    /// The right to use the cache under this epoch, which the caller holds.
    #[inline]
    pub fn pass(&self, epoch: u64) -> Option<Pass> {
        let word = self.word.load(SeqCst);
        (word % 2 == 1 && self.epoch.load(SeqCst) == epoch).then_some(Pass(word))
    }

    /// The pass that is or was last valid, for changes, which are noted in any case.
    pub fn present(&self) -> Pass {
        Pass(self.word.load(SeqCst))
    }

    /// Whether the cache has been open since the pass was given.
    #[inline]
    pub fn is_valid(&self, pass: Pass) -> bool {
        pass.0 % 2 == 1 && self.word.load(SeqCst) == pass.0
    }

    /// The channel `index` is about to give the cache a request. `false`: the cache was closed, and
    /// must be left alone.
    #[inline]
    pub fn enter(&self, index: u16, pass: Pass) -> bool {
        let inside = &self.inside[usize::from(index)];
        // Only this channel writes here. The store comes before the load of the word in the single
        // order of all such operations: either the channel sees that the cache was closed, or the
        // keeper sees the request.
        inside.store(inside.load(SeqCst) + 1, SeqCst);
        let is_valid = self.is_valid(pass);
        if !is_valid {
            self.leave(index);
        }
        is_valid
    }

    /// A request of the channel has ended in the cache.
    #[inline]
    pub fn leave(&self, index: u16) {
        let inside = &self.inside[usize::from(index)];
        inside.store(inside.load(SeqCst) - 1, SeqCst);
    }

    /// The channel is gone, and so are its requests. Unless it was idle, the content is worth
    /// nothing: its blocks are half changed.
    pub fn forget(&self, index: u16, was_idle: bool) {
        if !was_idle {
            let mut story = self.story.lock();
            self.close_now();
            self.spoil(&mut story);
        }
        self.inside[usize::from(index)].store(0, SeqCst);
    }

    /// Whether no request is in the cache.
    pub fn is_quiet(&self) -> bool {
        self.inside.iter().all(|inside| inside.load(SeqCst) == 0)
    }

    /// Whether an epoch was shown already.
    #[inline]
    pub fn knows(&self, epoch: u64) -> bool {
        self.shown.load(SeqCst) == epoch
    }

    /// Channels of this attachment are about to use the cache. Those of an earlier one are gone.
    pub fn begin(&self, attachment: &Arc<Attachment>) {
        let mut story = self.story.lock();
        if story.attachment.as_ref().is_some_and(|it| Arc::ptr_eq(it, attachment)) {
            return;
        }
        story.attachment = Some(Arc::clone(attachment));
        story.asked = None;
        self.shown.store(0, SeqCst);
        self.close_now();
    }

    /// A channel shows the epoch that its attachment holds. `is_sole`: no other attachment can
    /// write to the volume during the epoch.
    pub fn show(&self, attachment: &Attachment, is_sole: bool) {
        let mut story = self.story.lock();
        let view = attachment.view();
        if view.phase == Phase::Held && !self.knows(view.epoch) {
            self.note(&mut story, HeldEpoch::of(attachment, view.epoch), is_sole);
        }
    }

    fn note(&self, story: &mut GateStory, held: HeldEpoch, is_sole: bool) {
        self.shown.store(held.epoch, SeqCst);
        story.asked = Some(held);
        let follows = story.content.is_some_and(|before| held.follows(&before));
        if self.is_open() && follows && is_sole {
            // A client that lost its session for a moment: nothing has to stop.
            story.content = Some(held);
            self.epoch.store(held.epoch, SeqCst);
            return;
        }
        self.close_now();
        if story.is_loaded && !follows {
            self.spoil(story);
        }
        self.stirred.notify_all();
    }

    /// A request failed in the cache: it is not used until the keeper has emptied it.
    pub fn fail(&self, why: String) {
        let mut story = self.story.lock();
        self.close_now();
        if !std::mem::replace(&mut story.has_failed, true) {
            tracing::error!(why, "a cache is not used: requests go to the remote volume");
        }
        story.why = Some(why);
        self.spoil(&mut story);
        self.stirred.notify_all();
    }

    /// Why the cache is not used; `None` while it is.
    pub fn why(&self) -> Option<String> {
        if self.is_open() {
            return None;
        }
        let why = self.story.lock().why.clone();
        Some(why.unwrap_or_else(|| "no guest uses the disk".to_owned()))
    }

    /// Whether a change may go on while the cache is closed, with the busy bits of its blocks: its
    /// content is worth nothing, and is forgotten before the cache is opened. `false`: the content
    /// may be right, and is about to be used. A caller that cannot wait for that is `late`, and
    /// makes the content worth nothing.
    pub fn may_change(&self, late: bool) -> bool {
        if self.is_void.load(SeqCst) {
            return true;
        }
        let mut story = self.story.lock();
        if late && !self.is_open() {
            self.spoil(&mut story);
        }
        self.is_void.load(SeqCst)
    }

    /// The content is worth nothing from now on. With the story's lock held, and closed.
    fn spoil(&self, story: &mut GateStory) {
        (story.content, story.is_loaded) = (None, true);
        self.is_void.store(true, SeqCst);
    }

    /// The keeper has read the mark of an earlier process.
    pub(crate) fn loaded(&self, content: Option<HeldEpoch>) {
        let mut story = self.story.lock();
        if !std::mem::replace(&mut story.is_loaded, true) {
            story.content = content;
            self.is_void.store(content.is_none(), SeqCst);
        }
    }

    /// The right under which the content was right last.
    pub(crate) fn content(&self) -> Option<HeldEpoch> {
        self.story.lock().content
    }

    /// The content is about to be removed.
    pub(crate) fn empty(&self) {
        let mut story = self.story.lock();
        if !self.is_open() {
            self.spoil(&mut story);
        }
    }

    /// Whether the cache is used.
    pub fn is_open(&self) -> bool {
        self.word.load(SeqCst) % 2 == 1
    }

    pub(crate) fn story(&self) -> parking_lot::MutexGuard<'_, GateStory> {
        self.story.lock()
    }

    /// Waits until there may be something to decide, or for so long.
    pub(crate) fn wait(&self, at_most: Duration) {
        let mut story = self.story.lock();
        if !story.ends {
            self.stirred.wait_for(&mut story, at_most);
        }
    }

    /// Has the keeper look.
    pub(crate) fn stir(&self) {
        self.stirred.notify_all();
    }

    /// Opens the cache for `held`, unless another epoch was shown or the cache has failed
    /// meanwhile. The content is right for it: the content of `before`, or nothing.
    pub(crate) fn open(&self, held: HeldEpoch, before: Option<HeldEpoch>) -> bool {
        let mut story = self.story.lock();
        let is_as_before = story.content == before && !story.has_failed;
        if story.asked != Some(held) || self.is_open() || !is_as_before {
            return false;
        }
        (story.content, story.why) = (Some(held), None);
        self.is_void.store(false, SeqCst);
        self.epoch.store(held.epoch, SeqCst);
        self.word.fetch_add(1, SeqCst);
        true
    }

    /// Closes it. The content stays as it is.
    pub(crate) fn close(&self) {
        let _story = self.story.lock();
        self.close_now();
    }

    /// Closes it until a channel shows an epoch again.
    pub(crate) fn end(&self) {
        let mut story = self.story.lock();
        story.asked = None;
        self.shown.store(0, SeqCst);
        self.close_now();
    }

    /// With the story's lock held.
    fn close_now(&self) {
        if self.is_open() {
            self.word.fetch_add(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::attachment::AttachOptions;

    fn held(epoch: u64, claimant: u64) -> HeldEpoch {
        HeldEpoch { epoch, incarnation: Incarnation([1; 16]), claimant, resumed: None }
    }

    #[test]
    fn content_is_right_only_for_the_same_guest_and_the_next_epoch() {
        let before = held(5, 7);
        assert!(held(6, 7).follows(&before));
        assert!(!held(7, 7).follows(&before), "another client had it between");
        assert!(!held(5, 7).follows(&before) && !held(4, 7).follows(&before));
        assert!(!held(6, 8).follows(&before), "a guest that starts afresh");
        assert!(HeldEpoch { resumed: Some(5), ..held(6, 8) }.follows(&before));
        assert!(!HeldEpoch { resumed: Some(4), ..held(6, 8) }.follows(&before));
        let other = HeldEpoch { incarnation: Incarnation([2; 16]), ..held(6, 7) };
        assert!(!other.follows(&before), "unflushed writes may be lost");
    }

    fn attachment(claimant: u64, epoch: u64) -> Arc<Attachment> {
        let it = Arc::new(Attachment::new("a", AttachOptions::new(claimant)));
        assert!(it.hold(epoch, Incarnation([1; 16])));
        it
    }

    #[test]
    fn a_pass_ends_with_the_epoch_that_it_is_for() {
        let (gate, it) = (Gate::default(), attachment(7, 5));
        gate.loaded(None);
        gate.begin(&it);
        gate.show(&it, true);
        assert!(gate.pass(5).is_none() && gate.open(held(5, 7), None));
        let pass = gate.pass(5).expect("open");
        assert!(gate.pass(4).is_none() && gate.enter(3, pass) && !gate.is_quiet());
        assert!(it.reclaim(5) && it.hold(6, Incarnation([1; 16])));
        gate.show(&it, true);
        assert!(gate.is_valid(pass) && gate.pass(6) == Some(pass) && gate.pass(5).is_none());
        assert!(it.reclaim(6) && it.hold(8, Incarnation([1; 16])));
        gate.show(&it, true);
        assert!(!gate.is_valid(pass) && gate.pass(8).is_none() && !gate.enter(3, pass));
        gate.leave(3);
        assert!(gate.is_quiet());
        assert!(!gate.open(held(6, 7), None), "the keeper was late");
        assert!(gate.open(held(8, 7), None) && gate.is_open());
        gate.fail("damage".to_owned());
        assert_eq!(gate.why().as_deref(), Some("damage"));
        assert!(gate.content().is_none());
    }

    /// A volume that was made anew counts its epochs from the beginning.
    #[test]
    fn an_epoch_of_another_attachment_is_another_one() {
        let (gate, it) = (Gate::default(), attachment(7, 5));
        gate.loaded(None);
        gate.begin(&it);
        gate.show(&it, true);
        assert!(gate.open(held(5, 7), None) && gate.pass(5).is_some());
        let other = attachment(8, 5);
        gate.begin(&other);
        assert!(gate.pass(5).is_none() && !gate.open(held(5, 7), None));
        gate.show(&other, true);
        assert!(gate.pass(5).is_none(), "the keeper has to look first");
        assert!(gate.content().is_none(), "another guest");
    }

    /// A change that the cache does not hear of must not be under way when old content is used.
    #[test]
    fn changes_wait_for_content_that_is_about_to_be_used() {
        let gate = Gate::default();
        assert!(!gate.may_change(false), "nothing is known of an earlier process");
        gate.loaded(Some(held(5, 7)));
        assert!(!gate.may_change(false));
        let it = attachment(7, 6);
        gate.begin(&it);
        gate.show(&it, true);
        assert!(!gate.may_change(false) && gate.open(held(6, 7), Some(held(5, 7))));
        assert!(!gate.may_change(true), "it is open, and hears of changes");
        gate.close();
        assert!(!gate.may_change(false) && gate.may_change(true) && gate.may_change(false));
        assert!(gate.content().is_none() && !gate.open(held(6, 7), Some(held(5, 7))));
        let other = Gate::default();
        assert!(other.may_change(true));
        other.loaded(Some(held(5, 7)));
        assert!(other.content().is_none() && other.may_change(false), "too late");
    }
}
