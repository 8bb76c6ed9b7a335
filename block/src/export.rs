//! The server's side of an attachment: it decides which client may touch a volume now.
//!
//! An [`Export`] stands before a volume's chain, for disks of this node ([`local`]) and of others
//! ([`crate::server`]) alike. It issues epochs, keeps their durable record, and admits requests:
//! An [`Export`] stands before a volume's chain, for disks of this node ([`local`]) and of others
//! ([`crate::server`]) alike. It issues epochs, keeps their durable record, and admits requests:
//!
//! - a claim is answered only when every admitted request of an older epoch has completed at the
//!   backend, all of it was flushed and the record is durable: no earlier write can be lost under a
//!   new client;
//! - a channel that is opened anew (its session was lost) is answered only when every request that
//!   came by the old session has completed, so that a request that is sent again cannot be
//!   overtaken by its first copy;
//! - a request of an epoch that is over is refused.
//!
//! Claims, opens and closes take a lock; requests do not ([`admit::Admitted`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};
use peer::{Allow, AllowList, AttachmentKey, PeerLines};
use sidecore::{Progress, Services, Wake};
use transport::PeerIdentity;

use crate::attachment::{CHANNELS_MAX, EPOCH_END};
use crate::wire::{Claim, Outcome, Title, attachment_id};
use volume::name::Name;
use volume::record::{NoRecords, Record, RecordError, RecordStore, Ticket};
use volume::{Incarnation, OpenError, Status, Volume};

mod admit;
mod change;
mod close;
mod drain;
mod flush;
mod judge;
pub mod local;
mod place;
mod room;
#[cfg(test)]
mod tests;

pub use admit::Admitted;
use admit::{Gate, HeldEpoch};
pub use change::NotChanged;
pub use close::Closing;
use flush::Flushing;
pub use judge::{Claimer, HOLDER_SILENT_NS};
pub(crate) use place::places_taken;

/// How far ahead of our records a client's epoch may be, when these were lost: more claims than a
/// volume sees between two copies of them. A hostile peer needs 2^44 claims to use the epochs up.
const EPOCH_JUMP_MAX: u64 = 1 << 16;

/// Why a claim, an opening or a close was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// For the protocol.
    pub outcome: Outcome,
    /// For people.
    pub text: String,
}

impl Refusal {
    pub(crate) fn new(outcome: Outcome, text: impl Into<String>) -> Self {
        Self { outcome, text: text.into() }
    }
}

/// A claim that has been admitted but not answered: see [`Export::poll_claim`].
#[derive(Debug)]
pub struct PendingClaim {
    attachment: String,
    claimant: u64,
    epoch: u64,
    incarnation: Incarnation,
    ticket: Ticket,
    flush: Flush,
}

/// The flush between two epochs.
#[derive(Debug)]
enum Flush {
    Due,
    Sent(Flushing),
    Done,
}

impl PendingClaim {
    /// Before the sidecore sleeps.
    pub fn arm(&mut self, wake: &mut Wake) -> Progress {
        match &mut self.flush {
            Flush::Sent(flushing) => flushing.arm(wake),
            Flush::Due | Flush::Done => Progress::Idle,
        }
    }

    /// For a claim whose client is gone: whether it can be dropped without waiting for the kernel.
    pub(crate) fn has_ended(&mut self, now_ns: u64) -> bool {
        match &mut self.flush {
            Flush::Sent(flushing) => flushing.poll(now_ns).is_some(),
            Flush::Due | Flush::Done => true,
        }
    }

    /// Flushes what the older epochs wrote; they are drained. `None`: ask again.
    fn flush(
        &mut self,
        export: &Export,
        services: &Services,
        now_ns: u64,
    ) -> Option<Result<(), Refusal>> {
        let failed = |text| Some(Err(Refusal::new(Outcome::Refused, text)));
        if matches!(self.flush, Flush::Due) {
            match Flushing::new(&*export.volume, services) {
                Ok(flushing) => self.flush = Flush::Sent(flushing),
                Err(error) => return failed(error.to_string()),
            }
        }
        if let Flush::Sent(flushing) = &mut self.flush {
            if flushing.poll(now_ns)? != Status::Done {
                return failed(format!("volume {}: it cannot be flushed", export.name));
            }
            self.flush = Flush::Done;
        }
        Some(Ok(()))
    }
}

/// A channel that waits for the end of what came by an older way: see [`Export::poll_open`].
#[derive(Debug)]
pub struct PendingOpen {
    attachment: String,
    gate: Arc<Gate>,
    held: Arc<HeldEpoch>,
    admitted: bool,
}

impl Drop for PendingOpen {
    fn drop(&mut self) {
        if !self.admitted {
            self.gate.close();
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    record: Option<Record>,
    held: Arc<HeldEpoch>,
    gates: Vec<Arc<Gate>>,
    /// Since when no channel of it is open.
    silent_since_ns: Option<u64>,
    /// Closed by its last holder; the record may not say so yet.
    is_ended: bool,
}

impl Entry {
    /// Its epoch is over, if it has one.
    fn end(&self) {
        self.held.epoch.store(0, SeqCst);
        self.gates.iter().for_each(|gate| gate.close());
    }

    fn is_live(&self) -> bool {
        self.gates.iter().any(|gate| !gate.is_closed())
    }

    /// Whether nothing that `of` picks is still on its way; forgets what has ended.
    fn drained(&mut self, of: impl Fn(&Gate) -> bool) -> bool {
        self.gates.retain(|gate| !(gate.is_closed() && gate.is_empty()));
        self.gates.iter().all(|gate| gate.is_empty() || !of(gate))
    }
}

#[derive(Debug, Default)]
struct ExportState {
    /// The last epoch by all records.
    epoch_last: u64,
    /// The last epoch that this guard has issued, whether it was granted or not.
    issued: u64,
    /// The last epoch of any attachment that was forgotten, or of a change of the content.
    floor: u64,
    /// It was said that the records are older than what clients know.
    has_told_old: bool,
    /// The volume is being made smaller or rolled back: no client may begin to use it.
    shrinking: bool,
    /// While the node is drained: the attachments that were there when that began.
    stays: Option<BTreeSet<String>>,
    /// The node that serves the volume, if it is another node.
    elsewhere: Option<String>,
    /// Another node has served it, or may have: it is one of several members.
    moves: bool,
    /// Ways from before the volume was served here again, with requests on them.
    leaving: Vec<Arc<Gate>>,
    entries: BTreeMap<String, Entry>,
}

/// The clients that an export admits.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Peers that may attach; disks of this node always may.
    pub allow: Vec<Allow>,
    /// Several attachments at once, for guests with a cluster file system.
    pub shared: bool,
}

/// A volume with its guard.
#[derive(Debug)]
pub struct Export {
    name: String,
    volume: Arc<dyn Volume>,
    allowed: AllowList,
    shared: bool,
    records: Arc<dyn RecordStore>,
    unusable: Option<String>,
    /// The value of [`places_taken`] when this node took the volume over last.
    taken: AtomicU64,
    state: Mutex<ExportState>,
}

/// An attachment that was claimed and not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub attachment: String,
    /// Its epoch.
    pub epoch: u64,
    /// Whether a channel of it is open: its node is there.
    pub live: bool,
}

impl Export {
    /// Puts a guard before `volume` and reads its attachments' records.
    ///
    /// # Errors
    /// When the records cannot be read, or not be believed.
    pub fn new(
        name: &str,
        volume: Arc<dyn Volume>,
        options: ExportOptions,
        records: Arc<dyn RecordStore>,
    ) -> Result<Arc<Self>, RecordError> {
        let floor = records.floor()?;
        let mut state = ExportState { epoch_last: floor, floor, ..ExportState::default() };
        for (attachment, record) in records.load()? {
            state.epoch_last = state.epoch_last.max(record.epoch);
            let entry = Entry { record: Some(record), ..Entry::default() };
            state.entries.insert(attachment, entry);
        }
        Ok(Arc::new(Self::with(name, volume, options, records, state)))
    }

    /// A guard that admits no client, since the volume's records cannot be believed or its storage
    /// is not there, and tells each of them so. Other volumes are not affected.
    pub fn closed(
        name: &str,
        volume: Arc<dyn Volume>,
        options: ExportOptions,
        why: &dyn fmt::Display,
    ) -> Arc<Self> {
        let mut export =
            Self::with(name, volume, options, Arc::new(NoRecords), ExportState::default());
        export.unusable = Some(format!("volume {name} is not served: {why}"));
        Arc::new(export)
    }

    fn with(
        name: &str,
        volume: Arc<dyn Volume>,
        options: ExportOptions,
        records: Arc<dyn RecordStore>,
        state: ExportState,
    ) -> Self {
        Self {
            name: name.to_owned(),
            volume,
            allowed: AllowList::new(options.allow),
            shared: options.shared,
            records,
            unusable: None,
            taken: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// The reason why no client is admitted until the volume is opened again: its records cannot be
    /// believed, or its storage is not there.
    pub fn unusable(&self) -> Option<&str> {
        self.unusable.as_deref()
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it admits one attachment at a time.
    pub fn is_sole(&self) -> bool {
        !self.shared
    }

    /// The guarded volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    /// Whether an attachment of the peer that has proved `key`, if any, may attach.
    pub fn allows(&self, peer: &str, key: Option<AttachmentKey>) -> bool {
        self.allowed.allows(peer, key)
    }

    /// Whether any attachment of the peer may attach, with a key or without.
    pub(crate) fn names(&self, peer: &str) -> bool {
        self.allowed.names(peer)
    }

    /// The peers that may attach.
    pub fn allow(&self) -> Vec<Allow> {
        self.allowed.list()
    }

    /// Replaces the list of peers that may attach. Servers end the channels of peers that may no
    /// longer in their next round: their requests on the way complete, and no more are admitted.
    pub fn set_allow(&self, allow: Vec<Allow>) {
        self.allowed.set(allow);
    }

    /// Changes with each [`Export::set_allow`].
    pub(crate) fn allow_generation(&self) -> u64 {
        self.allowed.generation()
    }

    /// The attachments that hold an epoch: of disks that use the volume now, or whose nodes are
    /// away and may come back.
    pub fn holders(&self) -> Vec<Holder> {
        let state = self.state();
        let held = state.entries.iter().filter_map(|(name, entry)| {
            let epoch = entry.held.epoch.load(SeqCst);
            let holder = Holder { attachment: name.clone(), epoch, live: entry.is_live() };
            (epoch != 0).then_some(holder)
        });
        held.collect()
    }

    /// The records of its attachments.
    pub fn records(&self) -> HashMap<String, Record> {
        let state = self.state();
        let entries = state.entries.iter();
        entries.filter_map(|(name, entry)| Some((name.clone(), entry.record?))).collect()
    }

    /// Whether nothing of any attachment is on its way.
    pub fn is_quiet(&self) -> bool {
        let mut state = self.state();
        // All of them are looked at, so that all forget what has ended.
        let busy = state.entries.values_mut().map(|entry| !entry.drained(|_| true));
        busy.filter(|busy| *busy).count() == 0 && state.has_left()
    }

    /// Names of the attachments that have an open channel, for people.
    pub fn attached(&self) -> Vec<String> {
        let state = self.state();
        let live = state.entries.iter().filter(|(_, entry)| entry.is_live());
        let mut names: Vec<_> = live.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Begins a claim. From the return on, requests of older epochs are refused.
    ///
    /// # Errors
    /// [`Outcome::Superseded`] for a client that a successor has replaced, [`Outcome::Lost`] when
    /// acknowledged writes may be missing, [`Outcome::Elsewhere`] if another node serves the
    /// volume, [`Outcome::Refused`] otherwise.
    pub fn claim(
        &self,
        attachment: &str,
        title: &Title,
        claim: &Claim,
        by: &Claimer<'_>,
    ) -> Result<PendingClaim, Refusal> {
        let mut state = self.state();
        state.check_here()?;
        if let Some(text) = &self.unusable {
            return Err(Refusal::new(Outcome::Refused, text));
        }
        // Under the lock: the incarnation is of the term in which the volume is served here.
        let info = self.volume.info();
        if state.shrinking {
            let text = format!("volume {} is being made smaller or rolled back", self.name);
            return Err(Refusal::new(Outcome::Refused, text));
        }
        self.look_at_epochs(&mut state, attachment, (title, claim), by);
        self.judge(&mut state, attachment, (title, claim), by)?;
        let record = state.entries.get(attachment).and_then(|entry| entry.record);
        self.check_loss(attachment, &info, record, title, claim)?;
        if !state.entries.contains_key(attachment) {
            self.make_room(&mut state, by.node)?;
        }
        // A client may know a later epoch than we do when our records were lost; but no claim may
        // use the epochs up.
        if title.epoch > state.epoch_last.saturating_add(EPOCH_JUMP_MAX) {
            return Err(Refusal::new(Outcome::Refused, "the claim's epoch is impossible"));
        }
        let epoch = state.issued.max(state.epoch_last).max(title.epoch) + 1;
        if epoch >= EPOCH_END {
            return Err(Refusal::new(Outcome::Refused, "the volume's epochs are used up"));
        }
        (state.epoch_last, state.issued) = (epoch, epoch);
        if !self.shared {
            // Each earlier holder loses the volume, under any attachment.
            state.entries.values().for_each(Entry::end);
        }
        let entry = state.entries.entry(attachment.to_owned()).or_default();
        entry.end();
        let incarnation = info.incarnation;
        let before = entry.record.unwrap_or_default();
        let is_born = title.epoch == 0 && (!claim.resume || claim.take_over);
        let record = Record {
            epoch,
            claimant: claim.claimant,
            incarnation,
            clean: false,
            replaced: before.replaced_by(claim.claimant),
            born: if is_born { epoch } else { before.born },
            node: Name::new(by.node),
            key: by.key,
        };
        entry.record = Some(record);
        (entry.is_ended, entry.silent_since_ns) = (false, None);
        entry.held.epoch.store(epoch, SeqCst);
        let ticket = self.records.write(attachment, record);
        let attachment = attachment.to_owned();
        // Of a write-through volume, too: a successor may see what a predecessor's unanswered
        // write left in a cache, and what it has seen must not vanish with the power.
        let (claimant, flush) = (claim.claimant, Flush::Due);
        Ok(PendingClaim { attachment, claimant, epoch, incarnation, ticket, flush })
    }

    /// Whether a claim can be answered: its epoch and incarnation, or why not. `None`: ask again.
    pub fn poll_claim(
        &self,
        claim: &mut PendingClaim,
        services: &Services,
        now_ns: u64,
    ) -> Option<Result<(u64, Incarnation), Refusal>> {
        if let Err(refusal) = self.check_present(claim) {
            return Some(Err(refusal));
        }
        if !self.is_drained_for(claim) {
            return None;
        }
        if let Err(refusal) = claim.flush(self, services, now_ns)? {
            return Some(Err(refusal));
        }
        Some(match claim.ticket.result()? {
            Ok(()) => Ok((claim.epoch, claim.incarnation)),
            Err(error) => Err(Refusal::new(Outcome::Refused, error.to_string())),
        })
    }

    /// Whether nothing is on its way that the claim's requests could be overtaken by.
    fn is_drained_for(&self, claim: &PendingClaim) -> bool {
        let shared = self.shared;
        let mut state = self.state();
        let mine = |name: &String| !shared || *name == claim.attachment;
        let entries = state.entries.iter_mut().filter(|(name, _)| mine(name));
        // All of them are looked at, so that all forget what has ended.
        let drained = entries.fold(true, |drained, (_, entry)| {
            entry.drained(|gate| gate.epoch() < claim.epoch) && drained
        });
        drained && state.has_left()
    }

    fn check_present(&self, claim: &PendingClaim) -> Result<(), Refusal> {
        let state = self.state();
        let entry = state.entries.get(&claim.attachment);
        if entry.is_some_and(|entry| entry.held.epoch.load(SeqCst) == claim.epoch) {
            return Ok(());
        }
        // A client that gave up a session claims by the next one, and may hear of its first claim
        // after that: no other client has replaced it.
        let is_same = entry
            .and_then(|entry| entry.record)
            .is_some_and(|record| record.claimant == claim.claimant);
        let (outcome, by) = match is_same {
            true => (Outcome::Refused, " by the same client"),
            false => (Outcome::Superseded, ""),
        };
        let text = format!("attachment {} was claimed again{by} meanwhile", claim.attachment);
        Err(Refusal::new(outcome, text))
    }

    /// Begins to open the channel `channel` of a claimed attachment. An older way of the same
    /// channel is closed.
    ///
    /// # Errors
    /// [`Outcome::EpochOver`] or [`Outcome::IncarnationOver`]: claim first.
    pub fn open(
        &self,
        attachment: &str,
        title: &Title,
        channel: u16,
    ) -> Result<PendingOpen, Refusal> {
        let mut state = self.state();
        let over = || Refusal::new(Outcome::EpochOver, "the epoch is over");
        if usize::from(channel) >= CHANNELS_MAX {
            let text = format!("an attachment has at most {CHANNELS_MAX} channels");
            return Err(Refusal::new(Outcome::Refused, text));
        }
        let entry = state.entries.get_mut(attachment).ok_or_else(over)?;
        if title.attachment != attachment_id(&self.name, attachment)
            || entry.held.epoch.load(SeqCst) != title.epoch
            || title.epoch == 0
        {
            return Err(over());
        }
        if title.incarnation != self.volume.info().incarnation {
            return Err(Refusal::new(Outcome::IncarnationOver, "the incarnation is over"));
        }
        for gate in entry.gates.iter().filter(|gate| gate.channel() == channel) {
            gate.close();
        }
        entry.drained(|_| true);
        entry.silent_since_ns = None;
        let gate = Arc::new(Gate::new(title.epoch, channel));
        entry.gates.push(gate.clone());
        let held = entry.held.clone();
        Ok(PendingOpen { attachment: attachment.to_owned(), gate, held, admitted: false })
    }

    /// Whether everything that came by an older way of this channel has completed.
    pub fn poll_open(&self, open: &PendingOpen) -> bool {
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(&open.attachment) else { return true };
        entry.drained(|gate| {
            gate.channel() == open.gate.channel() && !std::ptr::eq(gate, &raw const *open.gate)
        })
    }

    /// The way to the volume for an opened channel.
    ///
    /// # Errors
    /// When the volume's own channel cannot be opened.
    pub fn admitted(
        &self,
        mut pending: PendingOpen,
        open: &volume::OpenArguments<'_>,
    ) -> Result<Admitted, OpenError> {
        let inner = self.volume.open(open)?;
        pending.admitted = true;
        let (gate, held) = (pending.gate.clone(), pending.held.clone());
        Ok(Admitted::new(inner, (self.volume.info(), self.volume.size()), gate, held))
    }

    /// Ends the epoch of an attachment, as the first step of closing it. `false` when a successor
    /// has it already.
    fn end_epoch(&self, attachment: &str, epoch: u64) -> bool {
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(attachment) else { return false };
        if epoch == 0 || entry.held.epoch.load(SeqCst) != epoch {
            return false;
        }
        entry.end_by_holder();
        true
    }

    /// Whether nothing of the attachment up to `epoch` is on its way.
    fn is_drained(&self, attachment: &str, epoch: u64) -> bool {
        let mut state = self.state();
        if !state.has_left() {
            return false;
        }
        let Some(entry) = state.entries.get_mut(attachment) else { return true };
        entry.drained(|gate| gate.epoch() <= epoch)
    }

    /// Remembers that the attachment ended clean, unless a successor has claimed it meanwhile.
    fn write_clean(&self, attachment: &str, epoch: u64) -> Option<Ticket> {
        let mut state = self.state();
        let entry = state.entries.get_mut(attachment)?;
        let record = entry.record.as_mut().filter(|record| record.epoch == epoch)?;
        record.clean = true;
        Some(self.records.write(attachment, *record))
    }

    fn state(&self) -> MutexGuard<'_, ExportState> {
        // The state is consistent between any two statements that can panic (none is known to).
        self.state.lock()
    }
}

/// The volumes that a node exports, by name. Shared by its sidecores; control path only.
#[derive(Debug, Default)]
pub struct Exports {
    by_name: Mutex<HashMap<String, Arc<Export>>>,
    /// The process of each peer that connected last, by the peer's name.
    processes: Mutex<HashMap<String, u64>>,
    /// The log lines that peers cause, by all sidecores' sessions.
    lines: Mutex<PeerLines>,
}

/// Peers whose process is remembered: names come from peers, memory must not.
const PROCESSES_MAX: usize = 4096;

impl Exports {
    /// Adds one; gives back what had the name before.
    pub fn insert(&self, export: Arc<Export>) -> Option<Arc<Export>> {
        self.map().insert(export.name().to_owned(), export)
    }

    /// Removes an export; its users keep it.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        self.map().remove(name)
    }

    /// The export called `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Export>> {
        self.map().get(name).cloned()
    }

    /// All, by name.
    pub fn all(&self) -> Vec<Arc<Export>> {
        let mut all: Vec<_> = self.map().values().cloned().collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Arc<Export>>> {
        self.by_name.lock()
    }

    /// Whether a peer may cause a line of the log; see [`PeerLines::may`].
    pub(crate) fn may_log(
        &self,
        now_ns: u64,
        peer: &PeerIdentity,
        about: &str,
        why: &'static str,
    ) -> Option<u64> {
        let mut lines = self.lines.lock();
        lines.may(now_ns, peer, about, why)
    }

    /// A process of `peer` has connected, on any sidecore.
    pub(crate) fn note_process(&self, peer: &str, process_nonce: u64) {
        let mut processes = self.processes.lock();
        if processes.len() >= PROCESSES_MAX {
            // A process that is forgotten is not refused.
            processes.clear();
        }
        processes.insert(peer.to_owned(), process_nonce);
    }

    /// A session of this process was lost: if it was the last that connected, none is known.
    pub(crate) fn forget_process(&self, peer: &str, process_nonce: u64) {
        let mut processes = self.processes.lock();
        if processes.get(peer) == Some(&process_nonce) {
            processes.remove(peer);
        }
    }

    /// Whether another process of `peer` has connected since this one. Then the requests of this
    /// one are late, and may have been overtaken.
    pub(crate) fn is_late(&self, peer: &str, process_nonce: u64) -> bool {
        let processes = self.processes.lock();
        processes.get(peer).is_some_and(|&last| last != process_nonce)
    }
}
