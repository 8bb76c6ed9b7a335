//! The client's side of an attachment: one disk on one volume, across all its channels, sessions
//! and reconnects.
//!
//! Channels of several sidecores share one [`Attachment`]. It answers three questions without a
//! lock: *may this answer be given to the guest* ([`Attachment::accepts`]), *are there writes that
//! the guest was told of and no flush covers* ([`Attachment::unflushed`]), and *which channel asks
//! the server for an epoch* ([`Attachment::try_lead`]). The promise that it keeps is in
//! `docs/decisions/003-epochs.md`.
//!
//! ```text
//!              claimed                        superseded
//!  Unclaimed ───────────▶ Held ──┐  Unclaimed ───────────▶ Fenced   (rings are left alone)
//!      ▲                         │  Unclaimed ───────────▶ Failed   (every request is an error)
//!      └── reclaim: restart, ────┘       any  ───────────▶ Closed
//!          time-out, pause
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};
use volume::Incarnation;
use volume::record::RecordError;

mod remembered;

pub use remembered::Remembered;
pub use volume::name::{NAME_BYTES_MAX, Name};

/// The most channels of one attachment: one per sidecore, and no host has more sidecores.
pub const CHANNELS_MAX: usize = 64;

/// Epochs stay below this: they share a word with a phase.
pub const EPOCH_END: u64 = 1 << 60;

/// No channel leads.
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

/// The behaviour of an attachment; from the disk's configuration and the way its rings started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// Rings did not start at zero: the guest remembers answers that an earlier client gave it.
    pub resume: bool,
    /// The operator accepts that acknowledged, unflushed writes may be gone.
    pub accept_loss: bool,
    /// The volume is claimed although another attachment uses it, and ends that attachment.
    pub take_over: bool,
    /// Requests end in an error after this time without their server; `None` waits for ever.
    pub error_after_ns: Option<u64>,
    /// Random: tells this client from any other that claims the same attachment. A guest that
    /// resumes on the node that held its attachment last goes on under the same claimant.
    pub claimant: u64,
    /// The last epoch that this node held the attachment under, as it remembers; 0 for none. For
    /// guests that resume.
    pub known: u64,
}

impl AttachOptions {
    /// Of a client that comes for the first time, accepts nothing and waits for ever.
    pub fn new(claimant: u64) -> Self {
        Self {
            resume: false,
            accept_loss: false,
            take_over: false,
            error_after_ns: None,
            claimant,
            known: 0,
        }
    }
}

/// The state that a successor needs to go on with an attachment. The successor is another process
/// that was handed the guest's rings as they are, or this process, which has only paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachmentSnapshot {
    /// The last epoch that was held, 0 for none.
    pub epoch: u64,
    /// The incarnation of that claim.
    pub incarnation: Incarnation,
    /// The client of that claim; see [`AttachOptions::claimant`].
    pub claimant: u64,
    /// See [`AttachOptions::resume`].
    pub resume: bool,
    /// The guest was told of writes that no flush of its own covers.
    pub unflushed: bool,
}

/// Counts that only one channel writes; a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Acked(AtomicU64);

#[derive(Debug, Default)]
struct AttachmentHistory {
    incarnation: Incarnation,
    why: Option<String>,
}

/// One disk on one volume.
#[derive(Debug)]
pub struct Attachment {
    name: String,
    options: AttachOptions,
    /// Epoch and phase in one word, so that a single load decides.
    word: AtomicU64,
    lead: AtomicU32,
    /// Writes whose completion was given to the guest, by channel.
    acked: [Acked; CHANNELS_MAX],
    /// The largest sum of `acked` that a completed flush is known to cover.
    flushed: AtomicU64,
    /// This process stood still: the guest is left alone until a claim has been answered.
    doubtful: AtomicBool,
    /// An operator has said so while the attachment waited: see [`AttachOptions::take_over`].
    takes: AtomicBool,
    /// Its epoch was taken from another client by an operator's word.
    has_taken: AtomicBool,
    /// Its volume has not got all writes that the guest was told of: see [`Self::withhold`].
    withheld: AtomicBool,
    /// The records of it that this node keeps across its processes.
    remembered: Option<Arc<Remembered>>,
    /// Control path only.
    story: Mutex<AttachmentHistory>,
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
            doubtful: AtomicBool::new(false),
            takes: AtomicBool::new(options.take_over),
            has_taken: AtomicBool::new(false),
            withheld: AtomicBool::new(false),
            remembered: None,
            story: Mutex::new(AttachmentHistory::default()),
        }
    }

    /// The same, remembered there.
    #[must_use]
    pub fn remembered_in(mut self, remembered: Option<Arc<Remembered>>) -> Self {
        self.remembered = remembered;
        self
    }

    /// Whether a claim may be sent: the node's record of it is durable. `None`: not yet. After an
    /// error the record is written again.
    pub fn may_claim(&self) -> Option<Result<(), RecordError>> {
        self.remembered.as_ref().map_or(Some(Ok(())), |it| it.is_durable())
    }

    /// The server has closed it: it may go on anywhere.
    pub fn released(&self) {
        if let Some(remembered) = &self.remembered {
            remembered.released(self.options.claimant, self.view().epoch, self.incarnation());
        }
    }

    /// An operator says that it is claimed although another node or attachment holds it. Only for
    /// the first claim: one that has held it and lost it does not take it back.
    pub fn take_over(&self) {
        self.takes.store(true, SeqCst);
    }

    /// Whether it is claimed although another one holds it.
    pub fn takes_over(&self) -> bool {
        self.takes.load(SeqCst) && self.view().epoch == 0
    }

    /// Whether it was claimed although another client held it, so that the guard's other rules say
    /// nothing about clients in between.
    pub fn has_taken_over(&self) -> bool {
        self.has_taken.load(SeqCst)
    }

    /// The server is not told that the disk lets go: another guest that resumed would not find all
    /// writes. This node's next client goes on under the same attachment.
    pub fn withhold(&self) {
        self.withheld.store(true, SeqCst);
    }

    /// Whether the server may be told that the disk lets go.
    pub(crate) fn may_close(&self) -> bool {
        !self.withheld.load(SeqCst)
    }

    /// This process stood still, and may have been replaced meanwhile: nothing of the guest is
    /// touched until a claim has been answered.
    pub fn doubt(&self) {
        let story = self.story();
        let view = self.view();
        if view.phase == Phase::Held && self.reclaim(view.epoch) {
            self.doubtful.store(true, SeqCst);
        }
        drop(story);
    }

    /// Whether the guest is left alone for now.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(SeqCst)
    }

    /// One that goes on where another one of this name stood: unclaimed, with that one's claimant.
    /// The server tells it from any other client, and it knows what to ask for. `None` when no
    /// server can have issued that epoch.
    ///
    /// # Panics
    /// As [`Attachment::new`].
    pub fn going_on(
        name: &str,
        options: AttachOptions,
        standing: &AttachmentSnapshot,
    ) -> Option<Self> {
        let AttachmentSnapshot { epoch, incarnation, claimant, resume, unflushed } = *standing;
        if epoch >= EPOCH_END {
            return None;
        }
        let mut it = Self::new(name, AttachOptions { claimant, resume, ..options });
        it.word = AtomicU64::new(pack(View { phase: Phase::Unclaimed, epoch }));
        it.story().incarnation = incarnation;
        // As many as it takes; whichever channel counts further.
        *it.acked[0].0.get_mut() = u64::from(unflushed);
        Some(it)
    }

    /// The state that a successor needs to go on with it. The count of acknowledged writes is final
    /// only when the channels have let go. `None` when the attachment has ended, so that no
    /// successor can go on with it.
    pub fn standing(&self) -> Option<AttachmentSnapshot> {
        let View { phase, epoch } = self.view();
        let AttachOptions { claimant, resume, .. } = self.options;
        let (incarnation, unflushed) = (self.incarnation(), self.unflushed());
        let is_over = matches!(phase, Phase::Fenced | Phase::Failed);
        (!is_over).then_some(AttachmentSnapshot { epoch, incarnation, claimant, resume, unflushed })
    }

    /// The same for a start in this process after a pause. One that has ended stays so.
    pub(crate) fn go_on(self: &Arc<Self>) -> Arc<Self> {
        let standing = self.standing().filter(|_| self.view().phase == Phase::Closed);
        let next = standing.and_then(|it| Self::going_on(&self.name, self.options, &it));
        let next = next.map(|it| it.remembered_in(self.remembered.clone()));
        next.map_or_else(|| Arc::clone(self), Arc::new)
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
    /// epoch is being given up, or the channel that gives it up sees the write as unflushed.
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

    /// The writes that a flush covers which is submitted now; for [`Self::note_flushed`].
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

    /// Makes the channel `index` the one that speaks for the attachment, if it has no such channel.
    pub fn try_lead(&self, index: u16) -> bool {
        let me = u32::from(index);
        self.lead.compare_exchange(NO_LEAD, me, SeqCst, SeqCst).is_ok()
            || self.lead.load(SeqCst) == me
    }

    /// The same for a channel that is about to claim. The channel that led until just now may have
    /// claimed since the caller looked: a second claim would end the epoch that the others have
    /// begun to use.
    pub fn lead_claim(&self, index: u16) -> bool {
        if !self.try_lead(index) {
            return false;
        }
        let is_due = self.view().phase == Phase::Unclaimed;
        if !is_due {
            self.release_lead(index);
        }
        is_due
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
        let is_held = self.word.compare_exchange(pack(before), after, SeqCst, SeqCst).is_ok();
        if is_held {
            self.doubtful.store(false, SeqCst);
            if self.takes.swap(false, SeqCst) && before.epoch == 0 {
                self.has_taken.store(true, SeqCst);
            }
            if let Some(remembered) = &self.remembered {
                remembered.held(self.options.claimant, epoch, incarnation);
            }
        }
        is_held
    }

    /// A successor has the attachment.
    pub fn fence(&self, why: impl Into<String>) {
        self.end(Phase::Fenced, Some(why.into()));
    }

    /// It cannot go on.
    pub fn fail(&self, why: impl Into<String>) {
        // No other client has it: the guest is told.
        self.doubtful.store(false, SeqCst);
        self.end(Phase::Failed, Some(why.into()));
    }

    /// The disk lets go of it.
    pub fn close(&self) {
        self.end(Phase::Closed, None);
    }

    /// Notes the reason for waiting, for `vrio status`. The reason of an end stays.
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

    fn story(&self) -> MutexGuard<'_, AttachmentHistory> {
        // Nothing that holds this lock can leave the story half-told.
        self.story.lock()
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
    fn a_successor_knows_its_predecessors_state() {
        let it = Arc::new(attachment());
        let fresh = it.standing().unwrap();
        assert_eq!((fresh.epoch, fresh.unflushed, fresh.claimant), (0, false, 7));
        it.hold(4, Incarnation([1; 16]));
        it.note_acked(3);
        assert!(Arc::ptr_eq(&it.go_on(), &it), "it goes on itself");
        it.close();
        let standing = it.standing().unwrap();
        assert_eq!((standing.epoch, standing.unflushed), (4, true));
        let options = AttachOptions { error_after_ns: Some(1), ..AttachOptions::new(9) };
        let next = Arc::new(Attachment::going_on("alice", options, &standing).unwrap());
        assert_eq!(next.view(), View { phase: Phase::Unclaimed, epoch: 4 });
        assert_eq!(next.options(), &AttachOptions { claimant: 7, ..options });
        assert_eq!((next.incarnation(), next.unflushed()), (Incarnation([1; 16]), true));
        assert_eq!(next.standing(), Some(standing), "as often as it takes");
        assert!(next.hold(5, Incarnation([2; 16])));
        next.note_flushed(next.flush_covers());
        next.close();
        assert_eq!(next.go_on().standing(), next.standing());
        assert!(!next.go_on().unflushed() && next.go_on().view().phase == Phase::Unclaimed);
        let impossible = AttachmentSnapshot { epoch: EPOCH_END, ..standing };
        assert!(Attachment::going_on("alice", options, &impossible).is_none());
    }

    #[test]
    fn an_ended_attachment_is_not_resumed() {
        let it = Arc::new(attachment());
        it.hold(4, Incarnation::default());
        it.fence("successor");
        it.close();
        assert!(it.standing().is_none() && Arc::ptr_eq(&it.go_on(), &it));
        assert!(it.go_on().is_fenced());
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

    #[test]
    fn a_channel_that_looked_before_another_claimed_does_not_claim_again() {
        let it = attachment();
        assert!(it.lead_claim(0));
        assert_eq!(it.view().phase, Phase::Unclaimed, "the second one looks");
        assert!(!it.lead_claim(1));
        it.hold(4, Incarnation::default());
        it.release_lead(0);
        assert!(!it.lead_claim(1), "and goes on by what it saw");
        assert!(it.try_lead(2), "nobody leads");
        it.release_lead(2);
        it.reclaim(4);
        assert!(it.lead_claim(1));
    }

    /// The handshake between `note_acked`+`accepts` and `reclaim`+`unflushed`, on real threads: the
    /// channel that gives the epoch up sees every accepted write.
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
