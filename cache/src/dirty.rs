//! Write-back: writes complete in a volume of a pool of the VMhost, and go to the remote volume
//! later.
//!
//! ```text
//!   write    ──▶ whole blocks, or dirty ones ──▶ dirty volume ──▶ done
//!            └─▶ else ──▶ remote volume ──▶ dirty volume, where a block is dirty ──▶ done
//!   read     ──▶ remote volume, unless all is dirty ──▶ dirty blocks over it ──▶ done
//!   flush    ──▶ dirty volume ──▶ remote volume, if it has unflushed writes ──▶ done
//!   a round  ──▶ dirty blocks ──▶ remote volume ──▶ flush ──▶ clean
//! ```
//!
//! The *dirty volume* has the dirty blocks and no others, so the pool's map is the record of what
//! is dirty. The dirty volume belongs to an epoch of the remote volume ([`DirtyOwner`]): its blocks
//! go over the remote volume's only if no other client can have written since.
//!
//! Why it is so: `docs/decisions/078-write-back.md`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use block::attachment::{Attachment, CHANNELS_MAX, Phase};
use parking_lot::{Condvar, Mutex};
use sidecore::Padded;
use volume::Volume;

use crate::counters::DirtyCounters;
use crate::gate::HeldEpoch;
use crate::map::Blocks;

mod channel;
mod keeper;
mod layer;
mod map;
mod pool;
mod rounds;
mod sweep;

pub use keeper::DirtyKeeper;
pub use layer::WriteBackVolume;
pub use pool::{DirtyStore, WRITE_BACK_DISK_NAME_MAX, kept_for, numbers_rounds_of, writes_of};
pub(crate) use pool::{attached, dirty_volume_name};
pub use rounds::{ANY_PEERS, RoundNotes};
pub(crate) use rounds::{OtherNote, as_written};

use map::DirtyMap;
use rounds::DirtyMark;

/// The client that has filled a dirty volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyOwner {
    /// The last epoch that it is known to have held.
    pub epoch: u64,
    /// The client.
    pub claimant: u64,
}

impl DirtyOwner {
    /// Whether no other client can have written to the remote volume between this owner and the
    /// holder of `held`. `is_judged`: the guard has granted the epoch by its own rules, which
    /// never grant one to a client that another client has replaced.
    pub fn is_followed_by(&self, held: &HeldEpoch, is_judged: bool) -> bool {
        held.epoch == self.epoch + 1 || (is_judged && held.claimant == self.claimant)
    }
}

/// The storage of a dirty volume, beside the volume that channels use.
pub trait DirtyStorage: Send + fmt::Debug {
    /// The volume, its owner, and the blocks that it has.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn load(&mut self) -> Result<DirtyRest, String>;

    /// The volumes that were put aside.
    fn stranded(&self) -> Vec<String>;

    /// Gives the volume an owner, which is durable when this returns.
    ///
    /// # Errors
    /// Why not.
    fn own(&mut self, owner: DirtyOwner) -> Result<(), String>;

    /// The last number that it was given. Asked before anything of it is loaded or made.
    fn last_number(&self) -> u64;

    /// Keeps the number of a round, durably when this returns.
    ///
    /// # Errors
    /// Why not.
    fn number(&mut self, number: u64) -> Result<(), String>;

    /// Puts the volume aside, as it is and under a name that is given, and makes an empty one.
    ///
    /// # Errors
    /// Why not. The volume is as it was.
    fn strand(&mut self) -> Result<(String, Arc<dyn Volume>), String>;
}

/// The content of a dirty volume as an earlier process left it.
#[derive(Debug)]
pub struct DirtyRest {
    /// The volume.
    pub volume: Arc<dyn Volume>,
    /// Its owner; none for a new dirty volume.
    pub owner: Option<DirtyOwner>,
    /// Its blocks, which are all dirty.
    pub blocks: Vec<Blocks>,
}

/// How much may be dirty, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyBounds {
    /// Blocks of the remote volume.
    pub blocks: u64,
    /// The most blocks that may be dirty.
    pub capacity: u64,
    /// A round begins at the latest when the oldest dirty block has waited for so long.
    pub age_ns: u64,
}

/// Damaged blocks that the status names.
const DAMAGED_NAMED: usize = 8;

/// Dirty blocks that the pool could not read in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamagedBlocks {
    /// How many.
    pub count: u64,
    /// Some of them.
    named: [u64; DAMAGED_NAMED],
}

impl DamagedBlocks {
    fn add(&mut self, block: u64) {
        if let Some(place) = self.named.get_mut(self.count as usize) {
            *place = block;
        }
        self.count += 1;
    }

    /// The places of some of them in the disk, in bytes.
    pub fn places_bytes(&self) -> Vec<u64> {
        let named = self.count.min(DAMAGED_NAMED as u64) as usize;
        let places = self.named[..named].iter().map(|block| block * crate::BLOCK_BYTES);
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        places
    }
}

/// The state that control threads share.
#[derive(Debug, Default)]
struct DirtyStory {
    attachment: Option<Arc<Attachment>>,
    /// The epoch for which the dirty volume shall be used.
    asked: Option<HeldEpoch>,
    /// The owner as the pool has it.
    owner: Option<DirtyOwner>,
    volume: Option<Arc<dyn Volume>>,
    why: Option<String>,
    /// The volumes that were put aside, as far as is known.
    stranded: Vec<String>,
    /// The blocks that the last round could not read.
    damaged: DamagedBlocks,
    /// Rounds that have looked at all blocks.
    rounds: u64,
    /// The pool has failed a change, so that this process does not know any more which blocks it
    /// has: its text for guests.
    failed: Option<String>,
    ends: bool,
}

/// The dirty blocks of a disk. All its channels share it.
#[derive(Debug)]
pub struct Dirty {
    map: DirtyMap,
    age_ns: u64,
    /// Changes with each opening and closing; odd while channels may use the dirty volume.
    word: AtomicU64,
    /// The last epoch that a channel has shown.
    shown: AtomicU64,
    /// The last number of a round that pool and memory have, and the number that they shall have.
    numbered: AtomicU64,
    wanted: AtomicU64,
    notes: Arc<RoundNotes>,
    mark: DirtyMark,
    /// The channel that sends dirty blocks to the remote volume.
    lead: AtomicUsize,
    /// When the oldest block became dirty that no round has seen; 0 for none.
    since_ns: AtomicU64,
    /// When the blocks of an earlier process were found.
    found_ns: u64,
    /// The same of the round that goes on.
    round_since_ns: AtomicU64,
    /// No block becomes dirty: it goes to the remote volume.
    through: AtomicBool,
    /// All that is dirty is sent, whether it is due or not.
    drains: AtomicBool,
    /// Changes that the remote volume has acknowledged, and those that a flush of it covers.
    passed: AtomicU64,
    flushed: AtomicU64,
    /// Requests in the dirty volume, by channel. Only the channel writes its word.
    inside: [Padded<AtomicU64>; CHANNELS_MAX],
    counters: Box<[Padded<DirtyCounters>]>,
    story: Mutex<DirtyStory>,
    stirred: Condvar,
    storage: Mutex<Box<dyn DirtyStorage>>,
}

/// The way out for a disk whose dirty blocks are missing.
pub(crate) const GIVE_UP: &str = "The disk's volume has older blocks in their places. Open the \
                                  pool that has these writes; or give them up: `vrio disk remove \
                                  DISK --force`, and add the disk again (`vrio node reload` if the \
                                  file has it)";

/// No channel leads.
const NO_LEAD: usize = usize::MAX;

/// How long a guest that goes waits for all of its dirty blocks: 60 GiB by a cable of 1 Gbit/s. A
/// peer that takes a block now and then must not hold a node's end up for ever.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(600);

/// How often that is looked at.
const DRAIN_LOOK_AGAIN: Duration = Duration::from_millis(2);

impl Dirty {
    /// The dirty blocks that `storage` has.
    ///
    /// # Errors
    /// The reason why the blocks are not known. Then the remote volume must not be used: it may
    /// be older than the writes that its guest was told of.
    pub fn load(
        bounds: DirtyBounds,
        mut storage: Box<dyn DirtyStorage>,
        notes: Arc<RoundNotes>,
        now_ns: u64,
    ) -> Result<Arc<Self>, String> {
        let number = storage.last_number();
        if notes.is_missing(number) {
            return Err(format!(
                "the pool has not got the last writes that the guest was told of (its round is \
                 {number}, and the last was {}): it was made anew, or is an older copy. {GIVE_UP}",
                notes.last()
            ));
        }
        let rest = Self::load_present(&mut *storage, number, &notes)?;
        let number = number.max(notes.last());
        let map = DirtyMap::new(bounds.blocks, bounds.capacity);
        rest.blocks.iter().for_each(|blocks| map.blocks.restore(*blocks));
        let found: u64 = rest.blocks.iter().map(|blocks| blocks.count).sum();
        if found != map.blocks.used() {
            return Err("the volume has become shorter than the writes that only this node has: \
                        make it longer again; or give them up, and remove them from the pool"
                .to_owned());
        }
        let story =
            DirtyStory { owner: rest.owner, volume: Some(rest.volume), ..DirtyStory::default() };
        Ok(Arc::new(Self {
            map,
            age_ns: bounds.age_ns,
            word: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            numbered: AtomicU64::new(number),
            wanted: AtomicU64::new(number),
            mark: DirtyMark::new(notes.are_kept()),
            notes,
            lead: AtomicUsize::new(NO_LEAD),
            // As old as can be: the first round begins at once.
            since_ns: AtomicU64::new(u64::from(found > 0)),
            found_ns: now_ns,
            round_since_ns: AtomicU64::new(0),
            through: AtomicBool::new(false),
            drains: AtomicBool::new(false),
            // Of an earlier process, which is not known.
            passed: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            inside: std::array::from_fn(|_| Padded(AtomicU64::new(0))),
            counters: (0..CHANNELS_MAX).map(|_| Padded::default()).collect(),
            story: Mutex::new(story),
            stirred: Condvar::new(),
            storage: Mutex::new(storage),
        }))
    }

    /// The content of the dirty volume. An older copy of it is put aside: rounds that came after it
    /// have given the remote volume newer content.
    fn load_present(
        storage: &mut dyn DirtyStorage,
        number: u64,
        notes: &RoundNotes,
    ) -> Result<DirtyRest, String> {
        let (rest, last_round) = (storage.load()?, notes.last());
        if number >= last_round {
            return Ok(rest);
        }
        if rest.blocks.is_empty() {
            storage.number(last_round)?;
            return Ok(rest);
        }
        let (name, volume) = storage.strand()?;
        // Before any block is dirty: else the next process would put that aside as well.
        storage.number(last_round)?;
        let bytes = rest.blocks.iter().map(|it| it.count * crate::BLOCK_BYTES).sum::<u64>();
        tracing::error!(
            volume = name,
            bytes,
            round = number,
            last_round,
            "an older copy of the pool was put back: its writes are not written over newer ones, \
             and are kept in this volume of the pool"
        );
        Ok(DirtyRest { volume, owner: None, blocks: Vec::new() })
    }

    /// Asks for the next number of a round, in the pool and in this node's memory.
    fn ask_number(&self) -> u64 {
        let _story = self.story.lock();
        let next = self.numbered.load(SeqCst) + 1;
        self.wanted.store(next, SeqCst);
        self.stirred.notify_all();
        next
    }

    /// Whether pool and memory have a number.
    fn has_number(&self, number: u64) -> bool {
        self.numbered.load(SeqCst) >= number
    }

    /// Whether blocks may become dirty. Asked after their space was reserved.
    #[inline]
    fn is_marked(&self) -> bool {
        self.mark.is_there()
    }

    /// Asks for the mark in this node's memory, without which no block becomes dirty.
    fn ask_mark(&self) {
        if self.mark.wish(true) {
            self.ask_number();
        }
    }

    /// All was written back for a guest that has gone: asks for a note of that.
    pub fn note_drained(&self) {
        self.mark.wish(false);
        self.ask_number();
    }

    /// Channels of this attachment are about to use the dirty volume. Those of an earlier one are
    /// gone.
    fn begin(&self, attachment: &Arc<Attachment>) {
        let mut story = self.story.lock();
        if story.attachment.as_ref().is_some_and(|it| Arc::ptr_eq(it, attachment)) {
            return;
        }
        story.attachment = Some(Arc::clone(attachment));
        story.asked = None;
        self.shown.store(0, SeqCst);
        self.drains.store(false, SeqCst);
        self.passed.fetch_add(1, SeqCst);
        self.close_now();
        if let Some(why) = &story.failed {
            attachment.fail(why.clone());
        }
    }

    /// With the story's lock held.
    fn close_now(&self) {
        if self.opening() % 2 == 1 {
            self.word.fetch_add(1, SeqCst);
        }
    }

    /// The number of the opening; odd if it is open.
    #[inline]
    fn opening(&self) -> u64 {
        self.word.load(SeqCst)
    }

    /// The dirty volume and the number of its opening, if it is open.
    fn opened(&self) -> Option<(u64, Arc<dyn Volume>)> {
        let story = self.story.lock();
        let number = self.opening();
        (number % 2 == 1).then(|| Some((number, Arc::clone(story.volume.as_ref()?))))?
    }

    #[inline]
    fn knows(&self, epoch: u64) -> bool {
        self.shown.load(SeqCst) == epoch
    }

    /// A channel shows the epoch that its attachment holds.
    fn show(&self, attachment: &Attachment) {
        let mut story = self.story.lock();
        let view = attachment.view();
        if view.phase == Phase::Held && !self.knows(view.epoch) {
            self.shown.store(view.epoch, SeqCst);
            story.asked = Some(HeldEpoch::of(attachment, view.epoch));
            self.stirred.notify_all();
        }
    }

    /// It is not used again: the node ends, or what the pool has is not known.
    fn end(&self) {
        let mut story = self.story.lock();
        (story.ends, story.asked) = (true, None);
        self.close_now();
        self.stirred.notify_all();
    }

    /// The pool has failed a change: the disk cannot go on, since another write may be lost. The
    /// pool may have the block all the same, and no later write may go past that: only the next
    /// process, which reads what is there, uses it again.
    fn fail(&self, attachment: &Attachment, why: &str) {
        tracing::error!(attachment = attachment.name(), why, "the disk fails");
        let text = format!("write-back: {why}; mend the pool, and restart the node");
        let mut story = self.story.lock();
        story.why = Some(why.to_owned());
        story.failed = Some(text.clone());
        attachment.fail(text);
    }

    fn counters(&self, index: u16) -> &DirtyCounters {
        &self.counters[usize::from(index)]
    }

    #[inline]
    fn enter(&self, index: u16) {
        let inside = &self.inside[usize::from(index)];
        inside.store(inside.load(SeqCst) + 1, SeqCst);
    }

    #[inline]
    fn leave(&self, index: u16) {
        let inside = &self.inside[usize::from(index)];
        inside.store(inside.load(SeqCst) - 1, SeqCst);
    }

    fn is_quiet(&self) -> bool {
        self.inside.iter().all(|inside| inside.load(SeqCst) == 0)
    }

    /// Whether the remote volume has everything, and no request can change that now.
    pub fn is_clean(&self) -> bool {
        self.is_quiet() && self.map.blocks.used() == 0
    }

    #[inline]
    fn note_dirty(&self, now_ns: u64) {
        if self.since_ns.load(SeqCst) == 0 {
            let _ = self.since_ns.compare_exchange(0, now_ns.max(1), SeqCst, SeqCst);
        }
    }

    /// Whether a round should begin.
    fn is_due(&self, now_ns: u64) -> bool {
        let blocks = &self.map.blocks;
        if blocks.used() == 0 {
            return false;
        }
        let since_ns = self.since_ns.load(SeqCst);
        // 0: the first block is on its way into the pool.
        let is_old = since_ns != 0 && now_ns.saturating_sub(since_ns) >= self.age_ns;
        is_old || self.drains.load(SeqCst) || blocks.used() > blocks.capacity() / 2
    }

    fn try_lead(&self, index: u16) -> bool {
        self.lead.compare_exchange(NO_LEAD, usize::from(index), SeqCst, SeqCst).is_ok()
    }

    fn release_lead(&self, index: u16) {
        let _ = self.lead.compare_exchange(usize::from(index), NO_LEAD, SeqCst, SeqCst);
    }

    /// A round begins.
    fn begin_round(&self) {
        self.round_since_ns.store(self.since_ns.swap(0, SeqCst), SeqCst);
    }

    /// The round is over. If it has failed, blocks are dirty that it should have sent; else at most
    /// those that were written meanwhile.
    fn end_round(&self, now_ns: u64, has_failed: bool) {
        let before_ns = self.round_since_ns.swap(0, SeqCst);
        let oldest_ns = if has_failed && before_ns != 0 { before_ns } else { now_ns };
        let since_ns = self.since_ns.load(SeqCst);
        let is_left = has_failed || self.map.blocks.used() > 0;
        if is_left && (since_ns == 0 || oldest_ns < since_ns) {
            self.since_ns.store(oldest_ns.max(1), SeqCst);
        }
        // So that a copy of the pool that was taken during the round is an older one.
        self.ask_number();
    }

    /// A round has looked at all blocks, and could not read these. Gives whether there are any.
    fn note_damaged(&self, damaged: DamagedBlocks) -> bool {
        let mut story = self.story.lock();
        if damaged.count > 0 && damaged.count != story.damaged.count {
            tracing::error!(
                blocks = damaged.count,
                at_bytes = ?damaged.places_bytes(),
                "dirty blocks cannot be read from the pool, and are not written back: have the \
                 guest write or discard them"
            );
        }
        story.damaged = damaged;
        story.rounds += 1;
        damaged.count > 0
    }

    /// The dirty blocks that the last round could not read.
    pub fn damaged(&self) -> DamagedBlocks {
        match self.map.blocks.used() {
            0 => DamagedBlocks::default(),
            _ => self.story.lock().damaged,
        }
    }

    /// Whether rounds have sent all but damaged blocks, since so many of them.
    fn has_sent_rest(&self, rounds_before: u64) -> bool {
        let story = self.story.lock();
        // The first one may have begun before the caller counted.
        let has_looked = story.rounds >= rounds_before + 2;
        let damaged = story.damaged.count;
        has_looked && damaged > 0 && self.is_quiet() && self.map.blocks.used() == damaged
    }

    /// Has everything sent to the remote volume now, or only what is due.
    pub fn set_draining(&self, drains: bool) {
        self.drains.store(drains, SeqCst);
    }

    /// Sends everything to the remote volume, for a disk whose guest has gone: waits until it is
    /// done, no block comes forward for so long, or `is_over`. Gives whether it is done.
    fn drain(&self, patience: Duration, is_over: impl Fn() -> bool) -> bool {
        self.set_draining(true);
        let is_done = self.wait_until_clean(patience, &is_over);
        self.set_draining(false);
        if !is_done {
            return false;
        }
        self.note_drained();
        let began = Instant::now();
        while !self.has_number(self.wanted.load(SeqCst)) {
            if began.elapsed() >= patience {
                return false;
            }
            if is_over() {
                break;
            }
            std::thread::sleep(DRAIN_LOOK_AGAIN);
        }
        self.is_clean()
    }

    fn wait_until_clean(&self, patience: Duration, is_over: impl Fn() -> bool) -> bool {
        let rounds = self.story.lock().rounds;
        let began = Instant::now();
        let (mut left, mut since) = (u64::MAX, began);
        // Also the number of the last round: a copy of the pool from before it is an older one.
        while !self.is_clean() || !self.has_number(self.wanted.load(SeqCst)) {
            let now = self.map.blocks.used();
            if now < left {
                (left, since) = (now, Instant::now());
            }
            let is_late = since.elapsed() >= patience || began.elapsed() >= DRAIN_TIME_MAX;
            if is_late || is_over() || self.has_sent_rest(rounds) {
                return false;
            }
            std::thread::sleep(DRAIN_LOOK_AGAIN);
        }
        true
    }

    /// Bytes that only this VMhost has.
    pub fn dirty_bytes(&self) -> u64 {
        self.map.blocks.used() * crate::BLOCK_BYTES
    }

    /// Whether everything is being sent to the remote volume, for a guest that has gone.
    pub fn is_draining(&self) -> bool {
        self.drains.load(SeqCst) && self.map.blocks.used() > 0
    }

    /// For how long the oldest of them are dirty, as far as this process knows.
    pub fn oldest_ns(&self, now_ns: u64) -> u64 {
        let all = [&self.since_ns, &self.round_since_ns].map(|since| since.load(SeqCst));
        // 1: of an earlier process, since when is not known.
        let oldest = all.into_iter().filter(|since| *since > 0).min();
        let oldest = oldest.map(|since| if since == 1 { self.found_ns } else { since });
        oldest.filter(|_| self.dirty_bytes() > 0).map_or(0, |since| now_ns.saturating_sub(since))
    }

    /// Why the disk's requests wait, or no block becomes dirty.
    pub fn why(&self) -> Option<String> {
        self.story.lock().why.clone()
    }

    /// Why the disk fails for each guest, if it does.
    pub(crate) fn why_failed(&self) -> Option<String> {
        self.story.lock().failed.clone()
    }

    /// Volumes of the pool that were put aside. The last answer while the pool is at work.
    pub fn stranded(&self) -> Vec<String> {
        let now = self.storage.try_lock().map(|storage| storage.stranded());
        let mut story = self.story.lock();
        if let Some(now) = now {
            story.stranded = now;
        }
        story.stranded.clone()
    }

    /// Whether channels use the dirty volume.
    pub fn is_open(&self) -> bool {
        self.opening() % 2 == 1
    }

    /// Its counters, summed over all channels.
    pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = DirtyCounters::DECLARED.iter().map(|text| text.name).enumerate();
        names.map(|(at, name)| {
            let values = self.counters.iter().filter_map(|it| it.counted().nth(at));
            (name, values.map(|(_, value)| value).sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NewStorage;

    impl DirtyStorage for NewStorage {
        fn load(&mut self) -> Result<DirtyRest, String> {
            let volume = Arc::new(volume::backend::NullVolume::new(100 * crate::BLOCK_BYTES));
            Ok(DirtyRest { volume, owner: None, blocks: Vec::new() })
        }

        fn last_number(&self) -> u64 {
            0
        }

        fn stranded(&self) -> Vec<String> {
            Vec::new()
        }

        fn own(&mut self, _owner: DirtyOwner) -> Result<(), String> {
            Ok(())
        }

        fn number(&mut self, _number: u64) -> Result<(), String> {
            Ok(())
        }

        fn strand(&mut self) -> Result<(String, Arc<dyn Volume>), String> {
            Err("there is nothing".to_owned())
        }
    }

    #[test]
    fn a_pool_that_has_failed_fails_each_guest_by_name() {
        let bounds = DirtyBounds { blocks: 100, capacity: 100, age_ns: 1 };
        let dirty =
            Dirty::load(bounds, Box::new(NewStorage), RoundNotes::nowhere(), 1).expect("a new one");
        assert_eq!(dirty.why_failed(), None);
        let options = block::attachment::AttachOptions::new(1);
        dirty.fail(&Attachment::new("a", options), "its pool has failed a write");
        let why = dirty.why_failed().expect("it is told without a guest");
        assert!(why.contains("failed a write") && why.contains("restart the node"), "{why}");
    }

    /// The clock counts from the host's start, which is long ago.
    #[test]
    fn a_round_begins_when_the_oldest_block_has_waited() {
        let (age_ns, began_ns) = (1_000, 1 << 60);
        let bounds = DirtyBounds { blocks: 100, capacity: 100, age_ns };
        let dirty =
            Dirty::load(bounds, Box::new(NewStorage), RoundNotes::nowhere(), 1).expect("a new one");
        let is_due_after = |ns| dirty.is_due(began_ns + ns);
        assert!(dirty.map.blocks.reserve(1));
        assert!(!is_due_after(0), "the pool has not answered yet");
        dirty.note_dirty(began_ns);
        dirty.note_dirty(began_ns + 500);
        assert!(!is_due_after(999) && is_due_after(1_000));
        dirty.begin_round();
        assert!(!is_due_after(1_000));
        assert_eq!(dirty.oldest_ns(began_ns + 1_200), 1_200);
        // A block is dirty that was written while it was sent.
        dirty.end_round(began_ns + 2_000, false);
        assert!(!is_due_after(2_999) && is_due_after(3_000));
        dirty.begin_round();
        dirty.end_round(began_ns + 5_000, true);
        assert!(is_due_after(3_000), "it is as old as before the round that failed");
        assert!(dirty.map.blocks.reserve(50));
        dirty.begin_round();
        assert!(is_due_after(0), "half of the space is used");
    }
}
