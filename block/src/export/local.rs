//! A disk of this node on a volume of this node: the Elvis model.
//!
//! The same guard as for peers, without a wire: the channel claims and opens by calling the
//! export, then hands requests straight through.

use std::sync::Arc;

use sidecore::{Progress, Services, Wake};

use super::{Admitted, Claimer, Closing, Export, PendingClaim, PendingOpen, Refusal};
use crate::attach::Attach;
use crate::attachment::{Attachment, Phase};
use crate::wire::{Claim, Outcome, Title, attachment_id, says_elsewhere};
use volume::Size;
use volume::{Channel, IoId, IoTable, OpenArguments, OpenError, Status, VolumeInfo};

/// How often a claim that waits for a record or a drain looks again.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// How long a refused claim waits before it asks again.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// An export as a volume for this node's disks.
#[derive(Debug)]
pub struct LocalVolume(Arc<Export>);

impl LocalVolume {
    /// A way to `export` from this node.
    pub fn new(export: Arc<Export>) -> Arc<Self> {
        Arc::new(Self(export))
    }
}

impl Attach for LocalVolume {
    fn info(&self) -> VolumeInfo {
        self.0.volume().info()
    }

    fn size(&self) -> Size {
        self.0.volume().size()
    }

    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(LocalChannel {
            export: self.0.clone(),
            services: open.services.clone(),
            attachment: attachment.clone(),
            index,
            depth: open.depth,
            way: ExportConnection::None,
            ask_at_ns: 0,
            now_ns: 0,
            waiting: Vec::with_capacity(usize::from(open.depth)),
            closing: None,
        }))
    }
}

#[derive(Debug)]
enum ExportConnection {
    None,
    Claiming(PendingClaim),
    Opening(PendingOpen),
    Open(Box<Admitted>),
    /// Its epoch is over because the volume moved to another node, and requests have not ended.
    Leaving(Box<Admitted>),
}

#[derive(Debug)]
struct LocalChannel {
    export: Arc<Export>,
    services: Services,
    attachment: Arc<Attachment>,
    index: u16,
    depth: u16,
    way: ExportConnection,
    ask_at_ns: u64,
    now_ns: u64,
    waiting: Vec<IoId>,
    closing: Option<Closing>,
}

impl LocalChannel {
    fn title(&self) -> Title {
        Title {
            attachment: attachment_id(self.export.name(), self.attachment.name()),
            epoch: self.attachment.view().epoch,
            incarnation: self.attachment.incarnation(),
        }
    }

    /// Gets one step nearer to an open way; `true` when it did.
    fn approach(&mut self, now_ns: u64) -> bool {
        match (&mut self.way, self.attachment.view().phase) {
            (ExportConnection::None, Phase::Unclaimed) => self.ask(now_ns),
            (ExportConnection::Claiming(pending), _) => {
                let answer = self.export.poll_claim(pending, &self.services, now_ns);
                let Some(answer) = answer else { return false };
                self.way = ExportConnection::None;
                match answer {
                    Ok((epoch, incarnation)) => {
                        self.attachment.hold(epoch, incarnation);
                    }
                    Err(refusal) => self.refused(refusal, now_ns),
                }
                // Only now: another channel would claim once more.
                self.attachment.release_lead(self.index);
                true
            }
            (ExportConnection::None, Phase::Held) => {
                match self.export.open(self.attachment.name(), &self.title(), self.index) {
                    Ok(pending) => self.way = ExportConnection::Opening(pending),
                    Err(refusal) => self.attachment.fence(refusal.text),
                }
                true
            }
            (ExportConnection::Opening(pending), _) if self.export.poll_open(pending) => {
                self.enter()
            }
            _ => false,
        }
    }

    fn ask(&mut self, now_ns: u64) -> bool {
        if now_ns < self.ask_at_ns {
            return false;
        }
        match self.attachment.may_claim() {
            None => return false,
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.refused(Refusal::new(Outcome::Refused, error.to_string()), now_ns);
                return false;
            }
        }
        if !self.attachment.lead_claim(self.index) {
            return false;
        }
        let options = self.attachment.options();
        let claim = Claim {
            claimant: options.claimant,
            resume: options.resume,
            unflushed: self.attachment.unflushed(),
            accept_loss: options.accept_loss,
            take_over: self.attachment.takes_over(),
            known: options.known,
        };
        let by = Claimer::here(now_ns);
        match self.export.claim(self.attachment.name(), &self.title(), &claim, &by) {
            Ok(pending) => self.way = ExportConnection::Claiming(pending),
            Err(refusal) => {
                self.attachment.release_lead(self.index);
                self.refused(refusal, now_ns);
            }
        }
        true
    }

    fn refused(&mut self, refusal: Refusal, now_ns: u64) {
        match refusal.outcome {
            Outcome::Superseded => self.attachment.fence(refusal.text),
            Outcome::Lost => self.attachment.fail(refusal.text),
            outcome => {
                let text = match outcome {
                    Outcome::Elsewhere => says_elsewhere(&refusal.text),
                    _ => refusal.text,
                };
                self.attachment.waits(text);
                self.ask_at_ns = now_ns + ASK_AGAIN_NS;
            }
        }
    }

    fn enter(&mut self) -> bool {
        let ExportConnection::Opening(pending) =
            std::mem::replace(&mut self.way, ExportConnection::None)
        else {
            unreachable!("called in this state only");
        };
        let open = OpenArguments { services: &self.services, depth: self.depth };
        match self.export.admitted(pending, &open) {
            Ok(admitted) => self.way = ExportConnection::Open(Box::new(admitted)),
            Err(error) => self.attachment.fail(error.to_string()),
        }
        true
    }

    /// The volume is served elsewhere, or was: no other client has the epoch. Requests that were
    /// not done wait for the next epoch, as those of a client whose server is gone.
    fn leave(&mut self, ios: &IoTable, done: &mut Vec<IoId>, before: usize) -> Progress {
        let way = std::mem::replace(&mut self.way, ExportConnection::None);
        let (ExportConnection::Open(admitted) | ExportConnection::Leaving(admitted)) = way else {
            self.way = way;
            return Progress::Idle;
        };
        let ended = done.split_off(before);
        for id in ended {
            let is_back = ios[id].status == Status::Fenced;
            if is_back { self.waiting.push(id) } else { done.push(id) }
        }
        self.attachment.reclaim(admitted.epoch());
        if !admitted.is_empty() {
            self.way = ExportConnection::Leaving(admitted);
        }
        Progress::Busy
    }

    /// Ends what waits when the attachment has ended.
    fn end_waiting(&mut self, ios: &mut IoTable, done: &mut Vec<IoId>) -> Progress {
        let status = match self.attachment.view().phase {
            Phase::Unclaimed | Phase::Held | Phase::Closed => return Progress::Idle,
            Phase::Fenced => Status::Fenced,
            Phase::Failed => Status::Error,
        };
        let progress = Progress::busy_if(!self.waiting.is_empty());
        for id in self.waiting.drain(..) {
            ios[id].status = status;
            done.push(id);
        }
        progress
    }
}

impl Channel for LocalChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        match &mut self.way {
            ExportConnection::Open(admitted) => admitted.submit(ios, id),
            _ => self.waiting.push(id),
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        self.now_ns = now_ns;
        let before = done.len();
        if let ExportConnection::Leaving(admitted) = &mut self.way {
            let progress = admitted.poll(ios, now_ns, done);
            let has_moved = done.len() > before || admitted.is_empty();
            return if has_moved { self.leave(ios, done, before) } else { progress };
        }
        if let ExportConnection::Open(admitted) = &mut self.way {
            let mut progress = admitted.poll(ios, now_ns, done);
            let fenced = done[before..].iter().any(|&id| ios[id].status == Status::Fenced);
            if fenced && self.export.moves() {
                return self.leave(ios, done, before);
            }
            if fenced {
                self.attachment.fence("another disk has claimed the attachment");
            }
            for id in self.waiting.drain(..) {
                admitted.submit(ios, id);
                progress = Progress::Busy;
            }
            return progress;
        }
        if self.approach(now_ns) {
            return Progress::Busy;
        }
        self.end_waiting(ios, done)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(closing) = &mut self.closing {
            return closing.arm(wake, self.now_ns);
        }
        match &mut self.way {
            ExportConnection::Open(admitted) | ExportConnection::Leaving(admitted) => {
                admitted.arm(wake)
            }
            ExportConnection::Claiming(pending) => {
                wake.at(self.now_ns + LOOK_AGAIN_NS);
                pending.arm(wake)
            }
            ExportConnection::None | ExportConnection::Opening(_) => {
                let live = matches!(self.attachment.view().phase, Phase::Unclaimed | Phase::Held);
                if live {
                    wake.at(self.ask_at_ns.max(self.now_ns + LOOK_AGAIN_NS));
                }
                Progress::busy_if(!live && !self.waiting.is_empty())
            }
        }
    }

    fn disarm(&mut self) {
        if let ExportConnection::Open(admitted) | ExportConnection::Leaving(admitted) =
            &mut self.way
        {
            admitted.disarm();
        }
    }

    fn is_open(&self) -> bool {
        let held = self.attachment.view().phase == Phase::Held;
        held && matches!(&self.way, ExportConnection::Open(admitted) if admitted.is_open())
    }

    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        if let ExportConnection::Open(admitted) | ExportConnection::Leaving(admitted) =
            &mut self.way
        {
            admitted.recall(ios, back);
        }
        back.append(&mut self.waiting);
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        self.waiting.clear();
        if let ExportConnection::Open(admitted) | ExportConnection::Leaving(admitted) =
            &mut self.way
            && !admitted.abandon(ios, now_ns)
        {
            return false;
        }
        self.way = ExportConnection::None;
        let view = self.attachment.view();
        if view.phase != Phase::Closed || !self.attachment.try_lead(self.index) {
            return true;
        }
        let closing = self.closing.get_or_insert_with(|| {
            Closing::new(self.export.clone(), self.attachment.name(), view.epoch)
        });
        let Some(result) = closing.poll(&self.services, now_ns) else { return false };
        match result {
            Ok(()) => self.attachment.released(),
            Err(refusal) => {
                tracing::error!(attachment = self.attachment.name(), %refusal, "not closed clean");
            }
        }
        true
    }
}

impl Drop for LocalChannel {
    fn drop(&mut self) {
        self.attachment.release_lead(self.index);
    }
}
