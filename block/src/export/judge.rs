//! Whether a claim is granted: the rules of `docs/decisions/048-fenced-guests.md`.
//!
//! A claim is one of three. A *live* client asks for another epoch; its claimant tells it from all
//! others. A guest that *starts afresh* has nothing to lose, and could spoil only the work of the
//! present holder's guest: it waits until that guest is gone. A guest that *resumes* has the
//! volume's content in its memory: it may go on only where no guest has begun afresh since.

use std::sync::atomic::Ordering::SeqCst;

use super::{Entry, Export, ExportState, Refusal};
use crate::wire::{Claim, Outcome, Title};
use peer::AttachmentKey;
use volume::name::Name;
use volume::record::Record;
use volume::{Durability, VolumeInfo};

/// How long the holder of a volume must have been silent, after its last session was lost, before
/// a guest that starts afresh on another node may have it: much longer than a node takes to come
/// back after a kill. To notice that a session is lost takes up to 20 s more.
pub const HOLDER_SILENT_NS: u64 = 15_000_000_000;

/// The node of disks that are on the volume's own node: a name that no peer can have.
pub(super) const THIS_NODE: &str = "this node";

/// The client behind a claim, as its server knows it.
#[derive(Clone, Copy, Debug)]
pub struct Claimer<'a> {
    /// Its node.
    pub node: &'a str,
    /// The attachment key that it has proved.
    pub key: Option<AttachmentKey>,
    /// When it asks.
    pub now_ns: u64,
}

impl Claimer<'_> {
    /// A disk of the volume's own node.
    pub fn here(now_ns: u64) -> Self {
        Self { node: THIS_NODE, key: None, now_ns }
    }
}

/// The attachment that was granted the volume last, or the claim's own where it is shared.
struct Holder<'a> {
    name: &'a str,
    entry: &'a Entry,
    record: Record,
}

impl Holder<'_> {
    /// It was closed, or is being closed: all that its guest was told of is on its way to the
    /// storage, and a claim waits for that.
    fn has_released(&self) -> bool {
        self.record.clean || self.entry.is_ended
    }

    /// Records of older programs do not say where it is; then it is as it was with those.
    fn is_at(&self, node: &str) -> bool {
        self.record.node == Name::default() || self.record.node.as_str() == node
    }

    fn is_silent(&self, now_ns: u64) -> bool {
        let since_ns = self.entry.silent_since_ns;
        since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= HOLDER_SILENT_NS)
    }
}

impl ExportState {
    /// Notes which holders are live, and since when the others are silent.
    pub(super) fn look(&mut self, now_ns: u64) {
        for entry in self.entries.values_mut() {
            if entry.is_live() {
                entry.silent_since_ns = None;
            } else {
                entry.silent_since_ns.get_or_insert(now_ns);
            }
        }
    }

    fn holder(&self, attachment: &str, shared: bool) -> Option<Holder<'_>> {
        let all = self.entries.iter().filter(|(name, _)| !shared || *name == attachment);
        let all =
            all.filter_map(|(name, entry)| Some(Holder { name, entry, record: entry.record? }));
        all.max_by_key(|holder| holder.record.epoch)
    }
}

impl Export {
    /// Some of its attachments' sessions were lost.
    pub(crate) fn note_silence(&self, now_ns: u64) {
        self.state().look(now_ns);
    }

    /// Says once when a client has held a later epoch than the records have. Then they are old, or
    /// lost, and an attachment that was granted the volume meanwhile is not known.
    pub(super) fn look_at_epochs(
        &self,
        state: &mut ExportState,
        attachment: &str,
        (title, claim): (&Title, &Claim),
        by: &Claimer<'_>,
    ) {
        let (known, recorded) = (title.epoch.max(claim.known), state.epoch_last);
        if known > recorded && !std::mem::replace(&mut state.has_told_old, true) {
            tracing::warn!(
                volume = self.name,
                attachment,
                node = by.node,
                known,
                recorded,
                "a client has held a later epoch than the volume's records have: they are old, or \
                 were lost; stop guests that got the volume meanwhile"
            );
        }
    }

    /// Whether a claim is granted, but for what may be lost by it.
    pub(super) fn judge(
        &self,
        state: &mut ExportState,
        attachment: &str,
        (title, claim): (&Title, &Claim),
        by: &Claimer<'_>,
    ) -> Result<(), Refusal> {
        state.look(by.now_ns);
        self.check_key(state, attachment, by.key)?;
        // A client that was overtaken is told so, and does not wait for the end of its successor.
        self.check_superseded(state, attachment, title, claim)?;
        self.check_in_use(state, attachment, claim)?;
        let is_first = title.epoch == 0 && !claim.take_over;
        match state.holder(attachment, self.shared).filter(|_| is_first) {
            None => Ok(()),
            Some(it) if it.name == attachment && it.record.claimant == claim.claimant => Ok(()),
            // `check_superseded` has looked at it.
            Some(it) if claim.resume && it.name != attachment => Ok(()),
            Some(it) if claim.resume => check_resuming(&it, claim, by),
            Some(it) => check_starting(&it, by),
        }
    }

    /// On a shared volume a name belongs to the first attachment key that claimed it, for as long
    /// as the volume's list has that key. Else one tenant could end the attachments of another.
    fn check_key(
        &self,
        state: &ExportState,
        attachment: &str,
        key: Option<AttachmentKey>,
    ) -> Result<(), Refusal> {
        let record = state.entries.get(attachment).and_then(|entry| entry.record);
        let owner = record.and_then(|record| record.key).filter(|key| self.allowed.lists(*key));
        if !self.shared || owner.is_none() || owner == key {
            return Ok(());
        }
        let text = format!(
            "attachment {attachment} belongs to another key; choose another name, or remove that \
             key from `allow`"
        );
        Err(Refusal::new(Outcome::Refused, text))
    }

    /// Whether calls of this node and key may be about an attachment: only those of its last
    /// claimant may. Epochs are small numbers, which others can guess.
    pub(crate) fn is_holder(
        &self,
        attachment: &str,
        node: &str,
        key: Option<AttachmentKey>,
    ) -> bool {
        let state = self.state();
        let record = state.entries.get(attachment).and_then(|entry| entry.record);
        record.is_some_and(|record| {
            let is_there = record.node == Name::default() || record.node.as_str() == node;
            is_there && (!self.shared || record.key == key)
        })
    }

    fn check_in_use(
        &self,
        state: &ExportState,
        attachment: &str,
        claim: &Claim,
    ) -> Result<(), Refusal> {
        if claim.take_over {
            return Ok(());
        }
        let other = state
            .entries
            .iter()
            .find(|(name, entry)| !self.shared && *name != attachment && entry.is_live());
        match other {
            None => Ok(()),
            Some((name, _)) => Err(Refusal::new(
                Outcome::Refused,
                format!("volume {} is in use by attachment {name}; detach it first", self.name),
            )),
        }
    }

    /// A client goes on only while no other client has claimed after it.
    fn check_superseded(
        &self,
        state: &ExportState,
        attachment: &str,
        title: &Title,
        claim: &Claim,
    ) -> Result<(), Refusal> {
        let record = state.entries.get(attachment).and_then(|entry| entry.record);
        let live = title.epoch != 0;
        if claim.take_over && !live {
            return Ok(());
        }
        let replaced = record.is_some_and(|record| {
            (live && record.claimant != claim.claimant) || record.has_replaced(claim.claimant)
        });
        // Its record went because others had come after it.
        if live && record.is_none() && title.epoch <= state.floor && !claim.accept_loss {
            let text = format!(
                "attachment {attachment} of volume {} was forgotten, because later attachments \
                 needed its record",
                self.name
            );
            return Err(Refusal::new(Outcome::Superseded, text));
        }
        let remembers = live || claim.resume;
        let mine = record.map_or(0, |record| record.epoch);
        let overtaken = remembers && !self.shared && state.epoch_last > mine;
        // Lost records (`mine` is 0) are judged by `check_loss`.
        if replaced || (overtaken && mine != 0 && !claim.accept_loss) {
            let holder = state.holder(attachment, self.shared);
            let holder = holder.expect("there is a record");
            // No client has the last epoch.
            if !replaced && holder.record.epoch == mine {
                let text = format!(
                    "volume {} was rolled back or made smaller since the guest of attachment \
                     {attachment} used it; start that guest afresh",
                    self.name
                );
                return Err(Refusal::new(Outcome::Superseded, text));
            }
            return Err(superseded(&holder));
        }
        Ok(())
    }

    pub(super) fn check_loss(
        &self,
        attachment: &str,
        info: &VolumeInfo,
        record: Option<Record>,
        title: &Title,
        claim: &Claim,
    ) -> Result<(), Refusal> {
        let write_through = info.durability == Durability::WriteThrough;
        let lost = if title.epoch != 0 {
            let changed = title.incarnation != info.incarnation;
            // A close of that very epoch has flushed all that the client can have been told of.
            let closed = record.is_some_and(|it| it.clean && it.epoch == title.epoch);
            changed && (info.volatile || (claim.unflushed && !closed && !write_through))
        } else if claim.resume {
            record.is_none_or(|record| {
                let changed = record.incarnation != info.incarnation;
                // An old record in the place of a newer one: that end was not the last.
                let clean = record.clean && claim.known <= record.epoch;
                changed && (info.volatile || !(clean || write_through))
            })
        } else {
            false
        };
        if !lost || claim.accept_loss {
            return Ok(());
        }
        let name = &self.name;
        let text = match record {
            None => format!("volume {name} has no record of {attachment}, whose guest resumes"),
            Some(_) => format!(
                "volume {name}: writes acknowledged to {attachment} but not flushed may be lost \
                 (incarnation is now {})",
                info.incarnation
            ),
        };
        Err(Refusal::new(Outcome::Lost, text))
    }
}

/// A guest that resumes with another claimant than the holder's.
fn check_resuming(holder: &Holder<'_>, claim: &Claim, by: &Claimer<'_>) -> Result<(), Refusal> {
    let Record { epoch, born, node, .. } = holder.record;
    // A node claims for the guest that started there last, so this one started after the holder: it
    // was answered before its first claim was (by `error-after`, say), and its node was killed.
    if claim.known == epoch || node.as_str() == by.node {
        return Ok(());
    }
    if !holder.has_released() && !holder.is_at(by.node) {
        return Err(held(holder, ""));
    }
    // Where the node has never had the attachment, its guest was moved there by its VMM, from
    // where it was let go.
    if claim.known != 0 && claim.known < born {
        return Err(superseded(holder));
    }
    Ok(())
}

/// A guest that starts afresh while another claimant was the last one.
fn check_starting(holder: &Holder<'_>, by: &Claimer<'_>) -> Result<(), Refusal> {
    // Not because it has closed: its node may be about to go on (a hand-over, an upgrade).
    if holder.is_at(by.node) || holder.is_silent(by.now_ns) {
        return Ok(());
    }
    Err(held(holder, if holder.has_released() { ", closed just now" } else { ", active lately" }))
}

fn held(holder: &Holder<'_>, how: &str) -> Refusal {
    let Holder { name, record: Record { node, epoch, .. }, .. } = holder;
    // A text that is too long for a reply is cut at its end.
    let text = format!(
        "{node} holds attachment {name} (epoch {epoch}{how}); stop its guest there, or \
         `vrio disk take` here"
    );
    Refusal::new(Outcome::Refused, text)
}

fn superseded(holder: &Holder<'_>) -> Refusal {
    let Holder { name, record: Record { node, epoch, .. }, .. } = holder;
    let text = format!(
        "a successor on {node} took attachment {name} (epoch {epoch}); `vrio disk take` here \
         takes it back"
    );
    Refusal::new(Outcome::Superseded, text)
}

impl Entry {
    /// Its holder has ended its epoch.
    pub(super) fn end_by_holder(&mut self) {
        self.held.epoch.store(0, SeqCst);
        self.is_ended = true;
        self.gates.iter().for_each(|gate| gate.close());
    }
}
