//! The thread of a dirty volume: it decides whether the blocks of an earlier process or attachment
//! go over the remote volume's, and keeps the record of the volume's owner.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sidecore::now_ns;
use volume::record::Ticket;

use super::{Dirty, DirtyOwner};
use crate::plug::CachedRemote;

/// How soon the thread looks again for what the peer says of the volume.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How soon it looks again for a note that is being written.
const LOOK_FOR_NOTE: Duration = Duration::from_millis(1);

/// How often it looks while there is nothing to do: a change wakes it.
const REST: Duration = Duration::from_secs(1);

/// How soon a pool that failed is tried again.
const TRY_AGAIN_NS: u64 = 5_000_000_000;

/// The work of the thread, for a caller that does it itself.
#[derive(Debug)]
pub struct DirtyKeeper {
    dirty: Arc<Dirty>,
    remote: Arc<dyn CachedRemote>,
    try_at_ns: u64,
    /// A number that the pool has, while the memory gets it, with or without the mark.
    noting: Option<(u64, bool, Ticket)>,
    /// When a number is tried again.
    number_at_ns: u64,
}

/// Starts the thread.
pub(super) fn start(mut keeper: DirtyKeeper) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("write-back".to_owned()).spawn(move || keeper.run())
}

impl DirtyKeeper {
    pub(super) fn new(dirty: &Arc<Dirty>, remote: &Arc<dyn CachedRemote>) -> Self {
        let (dirty, remote) = (Arc::clone(dirty), Arc::clone(remote));
        Self { dirty, remote, try_at_ns: 0, noting: None, number_at_ns: 0 }
    }

    fn run(&mut self) {
        while !self.dirty.story.lock().ends {
            let pause = self.step(now_ns());
            let mut story = self.dirty.story.lock();
            let is_asked = self.noting.is_none() && self.wants_number(now_ns());
            if !story.ends && !is_asked {
                self.dirty.stirred.wait_for(&mut story, pause);
            }
        }
    }

    /// Does what can be done now, and says when to look again.
    pub fn step(&mut self, now_ns: u64) -> Duration {
        let pause = self.number(now_ns);
        self.follow(now_ns).min(pause)
    }

    fn wants_number(&self, now_ns: u64) -> bool {
        let wanted = self.dirty.wanted.load(SeqCst);
        let is_wished = self.dirty.notes.are_kept() && self.dirty.mark.is_wished();
        (is_wished || !self.dirty.has_number(wanted)) && now_ns >= self.number_at_ns
    }

    /// Gives the pool, and then this node's memory, the number that was asked for.
    fn number(&mut self, now_ns: u64) -> Duration {
        if self.noting.is_none() && self.wants_number(now_ns) {
            let numbered = self.dirty.numbered.load(SeqCst);
            let number = self.dirty.wanted.load(SeqCst).max(numbered + 1);
            if !self.dirty.notes.are_kept() {
                self.dirty.numbered.store(number, SeqCst);
                return REST;
            }
            let numbered = self.dirty.storage.lock().number(number);
            match numbered {
                Ok(()) => {
                    let notes = &self.dirty.notes;
                    let is_marked = self.dirty.mark.next(notes, || self.dirty.is_clean());
                    let begun = notes.write(number, is_marked);
                    self.noting = begun.map(|ticket| (number, is_marked, ticket));
                }
                Err(why) => self.number_failed(now_ns, why),
            }
        }
        let Some((number, is_marked, ticket)) = &self.noting else { return REST };
        let (number, is_marked, ended) = (*number, *is_marked, ticket.result());
        if let Some(ended) = &ended {
            self.dirty.mark.noted(is_marked, ended.is_ok());
        }
        match ended {
            None => return LOOK_FOR_NOTE,
            Some(Ok(())) => {
                self.dirty.numbered.store(number, SeqCst);
                if std::mem::take(&mut self.number_at_ns) != 0 {
                    self.dirty.story.lock().why = None;
                }
            }
            Some(Err(error)) => self.number_failed(now_ns, error.to_string()),
        }
        self.noting = None;
        REST
    }

    /// Without a number nothing is written back, and without a mark nothing becomes dirty.
    fn number_failed(&mut self, now_ns: u64, why: String) {
        self.number_at_ns = now_ns + TRY_AGAIN_NS;
        tracing::error!(why, "nothing is written back: the number of the round cannot be kept");
        let mut story = self.dirty.story.lock();
        if let Some(attachment) = story.attachment.as_ref().filter(|_| !self.dirty.is_open()) {
            attachment.waits(format!("write-back: {why}"));
        }
        story.why = Some(why);
    }

    fn follow(&mut self, now_ns: u64) -> Duration {
        let (asked, owner, attachment) = {
            let story = self.dirty.story.lock();
            (story.asked, story.owner, story.attachment.clone())
        };
        let (Some(held), Some(attachment)) = (asked, attachment) else { return REST };
        let next = DirtyOwner { epoch: held.epoch, claimant: held.claimant };
        let is_open = self.dirty.is_open();
        if now_ns < self.try_at_ns || (is_open && owner == Some(next)) {
            return REST;
        }
        if !is_open && let Some(pause) = self.wait_for_sole() {
            return pause;
        }
        if !is_open && !self.dirty.through.load(SeqCst) && !self.dirty.is_marked() {
            self.dirty.ask_mark();
            return LOOK_FOR_NOTE;
        }
        // A live client that the guard has granted another epoch goes on.
        let is_judged = is_open || !attachment.has_taken_over();
        let follows = owner.is_some_and(|owner| owner.is_followed_by(&held, is_judged));
        let done = match is_open || follows || self.dirty.map.blocks.used() == 0 {
            true => Ok(()),
            false => self.strand(owner),
        };
        match done.and_then(|()| self.dirty.storage.lock().own(next)) {
            Ok(()) => self.open(held, next),
            Err(why) => {
                self.try_at_ns = now_ns + TRY_AGAIN_NS;
                tracing::error!(why, "a disk with write-back waits: its pool did not do its work");
                attachment.waits(format!("write-back: {why}"));
                self.dirty.story.lock().why = Some(why);
                REST
            }
        }
    }

    fn open(&self, held: crate::HeldEpoch, owner: DirtyOwner) -> Duration {
        let mut story = self.dirty.story.lock();
        story.owner = Some(owner);
        if story.asked == Some(held) && !self.dirty.is_open() && !story.ends {
            if !self.dirty.through.load(SeqCst) {
                story.why = None;
            }
            self.dirty.word.fetch_add(1, SeqCst);
        }
        // Another epoch may have been shown meanwhile.
        if story.asked == Some(held) { REST } else { LOOK_AGAIN }
    }

    /// Whether no other attachment can write during the epoch; a pause where that is not known, or
    /// nothing may be done.
    fn wait_for_sole(&self) -> Option<Duration> {
        let sole = self.remote.is_sole();
        let why = match sole {
            Some(true) => {
                self.dirty.through.store(false, SeqCst);
                return None;
            }
            Some(false) => "the volume is shared: writes complete on its node",
            None => "the volume's node has not said that a single attachment uses it at a time",
        };
        self.dirty.through.store(true, SeqCst);
        self.dirty.story.lock().why = Some(why.to_owned());
        if sole == Some(false) && self.dirty.map.blocks.used() == 0 {
            None
        } else {
            Some(LOOK_AGAIN)
        }
    }

    /// Another client may have written to the remote volume: nothing of the rest goes over that.
    fn strand(&self, owner: Option<DirtyOwner>) -> Result<(), String> {
        let bytes = self.dirty.dirty_bytes();
        let (name, volume) = self.dirty.storage.lock().strand()?;
        let epoch = owner.map_or(0, |owner| owner.epoch);
        tracing::error!(
            volume = name,
            bytes,
            epoch,
            "the remote volume may have newer content, of another client, a rollback or a \
             smaller size: writes that only this VMhost has are not written over it, and are kept \
             in this volume of the pool"
        );
        self.dirty.map.blocks.clear();
        self.dirty.since_ns.store(0, SeqCst);
        let mut story = self.dirty.story.lock();
        (story.volume, story.owner) = (Some(volume), None);
        Ok(())
    }
}
