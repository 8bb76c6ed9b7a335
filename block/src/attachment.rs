//! The client's side of an attachment: one disk on one volume, across all its channels, sessions
//! and reconnects.
//!
//! Channels of several sidecores share one [`Attachment`]. It answers three questions without a
//! lock: *may this answer be given to the guest* ([`Attachment::accepts`]), *are there writes that
//! the guest believes in but that were not flushed* ([`Attachment::unflushed`]), and *who asks the
//! server for an epoch* ([`Attachment::try_lead`]). The promise that it keeps is in
//! `docs/decisions/003-epochs.md`.
//!
//! ```text
//!              claimed                        superseded
//!  Unclaimed ───────────▶ Held ──┐  Unclaimed ───────────▶ Fenced   (rings are left alone)
//!      ▲                         │  Unclaimed ───────────▶ Failed   (every request is an error)
//!      └── reclaim: restart, ────┘       any  ───────────▶ Closed
//!          time-out, pause
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::volume::Incarnation;

/// The most channels of one attachment: one per sidecore, and no host has more sidecores.
pub const CHANNELS_MAX: usize = 64;

/// The longest name of a volume, an attachment or a node: three fit a message's head.
pub const NAME_BYTES_MAX: usize = 63;

/// Nobody leads.
const NO_LEAD: u32 = u32::MAX;

const PHASE_BITS: u32 = 3;

/// Where an attachment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Needs an epoch from the server before anything is sent or accepted.
    Unclaimed = 0,
    /// Has one.
    Held = 1,
    /// A successor has claimed: neither volume nor rings are touched again.
    Fenced = 2,
    /// Cannot go on (refused, or writes were lost); every request ends in an error.
    Failed = 3,
    /// Let go by its disk.
    Closed = 4,
}

impl Phase {
    fn of(word: u64) -> Self {
        match word & ((1 << PHASE_BITS) - 1) {
            0 => Self::Unclaimed,
            1 => Self::Held,
            2 => Self::Fenced,
            3 => Self::Failed,
            _ => Self::Closed,
        }
    }
}

/// A consistent look at phase and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The phase.
    pub phase: Phase,
    /// The last epoch that was held, 0 before the first.
    pub epoch: u64,
}

fn pack(view: View) -> u64 {
    assert!(view.epoch < 1 << (64 - PHASE_BITS), "an epoch counts claims; it cannot get there");
    view.epoch << PHASE_BITS | view.phase as u64
}

fn unpack(word: u64) -> View {
    View { phase: Phase::of(word), epoch: word >> PHASE_BITS }
}

/// How an attachment is to behave; from the disk's configuration and the way its rings started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// Rings did not start at zero: the guest remembers answers that an earlier client gave it.
    pub resume: bool,
    /// The operator accepts that acknowledged, unflushed writes may be gone.
    pub accept_loss: bool,
    /// The volume is claimed although another attachment uses it: that one is over then.
    pub take_over: bool,
    /// Requests end in an error after this time without their server; `None` waits for ever.
    pub error_after_ns: Option<u64>,
    /// Random: tells this client from any other that claims the same attachment.
    pub claimant: u64,
}

impl AttachOptions {
    /// Of a client that comes for the first time, accepts nothing and waits for ever.
    pub fn new(claimant: u64) -> Self {
        Self { resume: false, accept_loss: false, take_over: false, error_after_ns: None, claimant }
    }
}

/// Counts that only one channel writes; a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Acked(AtomicU64);

#[derive(Debug, Default)]
struct Story {
    incarnation: Incarnation,
    why: Option<String>,
}

/// One disk on one volume.
#[derive(Debug)]
pub struct Attachment {
    name: String,
    options: AttachOptions,
    /// Epoch and phase in one word, so that one load decides.
    word: AtomicU64,
    lead: AtomicU32,
    /// Writes whose completion was given to the guest, by channel.
    acked: [Acked; CHANNELS_MAX],
    /// The largest sum of `acked` that a completed flush is known to cover.
    flushed: AtomicU64,
    /// Control path only.
    story: Mutex<Story>,
}

impl Attachment {
    /// An attachment called `name`, unclaimed.
    ///
    /// # Panics
    /// When the name is empty or longer than [`NAME_BYTES_MAX`]; configuration checks it first.
    pub fn new(name: &str, options: AttachOptions) -> Self {
        assert!((1..=NAME_BYTES_MAX).contains(&name.len()), "checked by the configuration");
        Self {
            name: name.to_owned(),
            options,
            word: AtomicU64::new(pack(View { phase: Phase::Unclaimed, epoch: 0 })),
            lead: AtomicU32::new(NO_LEAD),
            acked: std::array::from_fn(|_| Acked::default()),
            flushed: AtomicU64::new(0),
            story: Mutex::new(Story::default()),
        }
    }

    /// Its name, as the server's records have it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it was made.
    pub fn options(&self) -> &AttachOptions {
        &self.options
    }

    /// Phase and epoch.
    pub fn view(&self) -> View {
        unpack(self.word.load(SeqCst))
    }

    /// Whether the rings may no longer be touched.
    pub fn is_fenced(&self) -> bool {
        self.view().phase == Phase::Fenced
    }

    /// The incarnation that the present epoch was claimed under.
    pub fn incarnation(&self) -> Incarnation {
        self.story().incarnation
    }

    /// Why it failed, was fenced or waits; for people.
    pub fn why(&self) -> Option<String> {
        self.story().why.clone()
    }

    /// Whether an answer to a request of `epoch` may be given to the guest now.
    ///
    /// For writes call [`Self::note_acked`] first and this after it: either this sees that the
    /// epoch is being given up, or the one who gives it up sees the write as unflushed.
    pub fn accepts(&self, epoch: u64) -> bool {
        self.view() == View { phase: Phase::Held, epoch }
    }

    /// Counts a write that is about to be completed to the guest by the channel `index`.
    pub fn note_acked(&self, index: u16) {
        let acked = &self.acked[usize::from(index)].0;
        // One writer: no read-modify-write needed, but the store must not pass the load of the
        // phase that follows it.
        acked.store(acked.load(SeqCst) + 1, SeqCst);
    }

    /// What a flush that is submitted now will cover; for [`Self::note_flushed`].
    pub fn flush_covers(&self) -> u64 {
        self.acked.iter().map(|acked| acked.0.load(SeqCst)).sum()
    }

    /// A flush completed that was submitted when [`Self::flush_covers`] gave `covers`.
    pub fn note_flushed(&self, covers: u64) {
        self.flushed.fetch_max(covers, SeqCst);
    }

    /// Whether the guest was told of writes that no completed flush covers.
    pub fn unflushed(&self) -> bool {
        self.flush_covers() > self.flushed.load(SeqCst)
    }

    /// Makes the channel `index` the one that speaks for the attachment, if nobody does.
    pub fn try_lead(&self, index: u16) -> bool {
        let me = u32::from(index);
        self.lead.compare_exchange(NO_LEAD, me, SeqCst, SeqCst).is_ok()
            || self.lead.load(SeqCst) == me
    }

    /// Gives the lead up; a channel that goes away does.
    pub fn release_lead(&self, index: u16) {
        let _ = self.lead.compare_exchange(u32::from(index), NO_LEAD, SeqCst, SeqCst);
    }

    /// From now on no answer of `epoch` is accepted; a new epoch is needed. `false` when that had
    /// already happened, or the attachment has ended.
    pub fn reclaim(&self, epoch: u64) -> bool {
        let held = pack(View { phase: Phase::Held, epoch });
        let unclaimed = pack(View { phase: Phase::Unclaimed, epoch });
        self.word.compare_exchange(held, unclaimed, SeqCst, SeqCst).is_ok()
    }

    /// The server gave `epoch` under `incarnation`. Only the lead calls this. `false` when the
    /// attachment has ended meanwhile.
    pub fn hold(&self, epoch: u64, incarnation: Incarnation) -> bool {
        let mut story = self.story();
        let before = self.view();
        if before.phase != Phase::Unclaimed {
            return false;
        }
        assert!(epoch > before.epoch, "a server issues each epoch once, and they grow");
        story.incarnation = incarnation;
        story.why = None;
        let after = pack(View { phase: Phase::Held, epoch });
        self.word.compare_exchange(pack(before), after, SeqCst, SeqCst).is_ok()
    }

    /// A successor has the attachment.
    pub fn fence(&self, why: impl Into<String>) {
        self.end(Phase::Fenced, Some(why.into()));
    }

    /// It cannot go on.
    pub fn fail(&self, why: impl Into<String>) {
        self.end(Phase::Failed, Some(why.into()));
    }

    /// The disk lets go of it.
    pub fn close(&self) {
        self.end(Phase::Closed, None);
    }

    /// Notes what is waited for, for `vrio status`. What ended it stays.
    pub fn waits(&self, why: impl Into<String>) {
        let mut story = self.story();
        if matches!(self.view().phase, Phase::Unclaimed | Phase::Held) {
            story.why = Some(why.into());
        }
    }

    /// Ends it once; a later end changes nothing, except that a failed or fenced one can be closed.
    fn end(&self, phase: Phase, why: Option<String>) {
        let mut story = self.story();
        let view = self.view();
        let ended = !matches!(view.phase, Phase::Unclaimed | Phase::Held);
        if ended {
            return;
        }
        if why.is_some() {
            story.why = why;
        }
        // Only this function ends an attachment and it holds the lock; a concurrent `reclaim`
        // changes the phase between two live ones, so try until the word stands still.
        let mut word = pack(view);
        while let Err(now) = self.word.compare_exchange(
            word,
            pack(View { phase, epoch: unpack(word).epoch }),
            SeqCst,
            SeqCst,
        ) {
            word = now;
        }
    }

    fn story(&self) -> std::sync::MutexGuard<'_, Story> {
        // Nothing that holds this lock can leave the story half-told.
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> Attachment {
        let options = AttachOptions::new(7);
        Attachment::new("alice", options)
    }

    #[test]
    fn accepts_only_the_epoch_that_is_held() {
        let it = attachment();
        assert!(!it.accepts(0));
        assert!(it.hold(4, Incarnation([1; 16])));
        assert!(it.accepts(4) && !it.accepts(3) && !it.accepts(5));
        assert!(it.reclaim(4));
        assert!(!it.reclaim(4), "once");
        assert!(!it.accepts(4));
        assert!(it.hold(5, Incarnation([2; 16])));
        assert!(it.accepts(5));
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it() {
        let it = attachment();
        it.note_acked(0);
        it.note_acked(3);
        let covers = it.flush_covers();
        it.note_acked(3);
        it.note_flushed(covers);
        assert!(it.unflushed(), "the third write came after the flush");
        it.note_flushed(it.flush_covers());
        assert!(!it.unflushed());
        it.note_flushed(covers);
        assert!(!it.unflushed(), "a late answer to an early flush takes nothing back");
    }

    #[test]
    fn an_end_is_final() {
        let it = attachment();
        it.hold(1, Incarnation::default());
        it.fence("successor");
        assert!(it.is_fenced());
        it.fail("later");
        assert!(it.is_fenced());
        assert!(!it.hold(2, Incarnation::default()));
        it.waits("a session was lost");
        assert_eq!(it.why().as_deref(), Some("successor"));
    }

    #[test]
    fn one_channel_leads() {
        let it = attachment();
        assert!(it.try_lead(2) && it.try_lead(2) && !it.try_lead(1));
        it.release_lead(1);
        assert!(!it.try_lead(1));
        it.release_lead(2);
        assert!(it.try_lead(1));
    }

    /// The handshake between `note_acked`+`accepts` and `reclaim`+`unflushed`, on real threads:
    /// an accepted write is always seen by the one who gives the epoch up.
    #[test]
    fn no_accepted_write_escapes_a_reclaim() {
        for _ in 0..200 {
            let it = attachment();
            it.hold(1, Incarnation::default());
            let seen = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let mut accepted = 0;
                    while it.accepts(1) {
                        it.note_acked(1);
                        accepted += u64::from(it.accepts(1));
                    }
                    accepted
                });
                it.reclaim(1);
                let seen = it.flush_covers();
                (seen, writer.join().expect("the writer does not panic"))
            });
            assert!(seen.0 >= seen.1, "{} accepted, {} seen", seen.1, seen.0);
        }
    }
}
