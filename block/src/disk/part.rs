//! A disk's share on a sidecore's thread: waits for the start to be complete, opens the channel,
//! polls, tells the control side what has stopped, and goes when all is over.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};

use sidecore::{Later, Local, Poll, PollerId, Progress, RoundStage, Services, Wake};
use virtio::{Memory, Queue};

use super::core::DiskCore;
use super::queues::{DiskQueues, NotMoved, Stopped};
use crate::attach::{Attach, Attached};
use crate::attachment::Attachment;
use volume::OpenArguments;

/// How long a start waits for further queues while none of those that came shows that the guest
/// goes on where it was. The attachment must know, and it is asked for once, for all queues; a
/// front end starts them within a few milliseconds of each other.
pub(super) const START_GRACE_NS: u64 = 50_000_000;

/// How soon to look again while waiting for other queues or sidecores.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Makes the attachment of a start; `true` when the guest goes on where it was.
pub(super) type NewAttachment = Box<dyn Fn(bool) -> Arc<Attachment> + Send + Sync>;

/// One start of the guest: from the first queue that starts to the last that stops.
pub(super) struct Start {
    pub(super) core: Arc<DiskCore>,
    pub(super) volume: Arc<dyn Attach>,
    pub(super) depth: u16,
    /// The guest will not flush.
    pub(super) durable: bool,
    pub(super) new_attachment: NewAttachment,
    pub(super) attachment: OnceLock<Arc<Attachment>>,
    pub(super) resume: AtomicBool,
    pub(super) queues: AtomicUsize,
    pub(super) latest_ns: AtomicU64,
}

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start")
            .field("disk", &self.core.name)
            .field("resume", &self.resume)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

impl Start {
    fn note_queue(&self, queue: &Queue, now_ns: u64) {
        self.latest_ns.fetch_max(now_ns, Relaxed);
        if queue.resumes() {
            self.resume.store(true, SeqCst);
        }
        self.queues.fetch_add(1, SeqCst);
    }

    /// The attachment, once it is known how to make it and the start before has let go.
    fn attachment(&self, now_ns: u64) -> Option<&Arc<Attachment>> {
        if let Some(attachment) = self.attachment.get() {
            return Some(attachment);
        }
        if self.core.channels.load(SeqCst) > 0 {
            // An earlier start: one of this start's would have needed the attachment.
            return None;
        }
        let grace_over = now_ns >= self.latest_ns.load(Relaxed).saturating_add(START_GRACE_NS);
        let all = self.queues.load(SeqCst) >= self.core.queues_max();
        if !(self.resume.load(SeqCst) || all || grace_over) {
            return None;
        }
        Some(self.attachment.get_or_init(|| {
            let attachment = (self.new_attachment)(self.resume.load(SeqCst));
            self.core.set_attachment(Arc::clone(&attachment));
            attachment
        }))
    }
}

enum PartState {
    /// Queues that wait for the attachment.
    Starting(Vec<Queue>),
    Serving(Box<DiskQueues>),
    /// The channel could not be opened; the disk is broken.
    Failed(Vec<Queue>),
}

/// The share of one start on one sidecore.
pub(super) struct DiskPart {
    start: Arc<Start>,
    services: Services,
    index: u16,
    state: PartState,
    replies: Vec<(usize, SyncSender<Stopped>)>,
    /// Callers that wait for a queue to leave.
    movers: Vec<(usize, SyncSender<Result<Queue, NotMoved>>)>,
    letting_go: bool,
    gone: bool,
    now_ns: u64,
    later: Later,
    id: u64,
}

impl DiskPart {
    fn add(&mut self, queue: Queue, now_ns: u64) {
        self.start.note_queue(&queue, now_ns);
        self.try_again();
        match &mut self.state {
            PartState::Starting(idle) | PartState::Failed(idle) => idle.push(queue),
            PartState::Serving(queues) => queues.add_queue(queue),
        }
    }

    /// A channel that could not be opened while no queue needed it, or after the last one that did
    /// was stopped, may be tried again.
    fn try_again(&mut self) {
        if matches!(&self.state, PartState::Failed(idle) if idle.is_empty()) && !self.letting_go {
            self.state = PartState::Starting(Vec::new());
        }
    }

    /// Whether queues that run may come here.
    fn is_open(&self) -> bool {
        matches!(&self.state, PartState::Serving(queues) if queues.is_open())
    }

    /// Has a queue leave for another sidecore; `reply` gets it when it has drained.
    ///
    /// # Errors
    /// Why it stays.
    pub(super) fn begin_leave(
        &mut self,
        index: usize,
        deadline_ns: u64,
        reply: SyncSender<Result<Queue, NotMoved>>,
    ) -> Result<(), NotMoved> {
        let PartState::Serving(queues) = &mut self.state else { return Err(NotMoved::Paused) };
        queues.begin_leave(index, deadline_ns)?;
        self.movers.push((index, reply));
        Ok(())
    }

    /// Goes on with a queue that has left another share of the same start.
    fn adopt(&mut self, queue: Queue) {
        match &mut self.state {
            PartState::Starting(idle) | PartState::Failed(idle) => idle.push(queue),
            PartState::Serving(queues) => queues.adopt(queue),
        }
    }

    /// Stops a queue; `reply` gets its base when it has drained.
    pub(super) fn begin_stop(
        &mut self,
        index: usize,
        deadline_ns: u64,
        reply: SyncSender<Stopped>,
    ) {
        match &mut self.state {
            PartState::Starting(idle) | PartState::Failed(idle) => {
                let place = idle.iter().position(|queue| queue.index() == index);
                let base = place.map_or(0, |place| idle.swap_remove(place).base());
                // The caller may have gone; then the reply is not needed.
                let _ = reply.try_send(Stopped { index, base, left: 0 });
            }
            PartState::Serving(queues) => {
                // If it is not served any more it was fenced, and has stopped already.
                let _ = queues.begin_stop(index, deadline_ns);
                self.replies.push((index, reply));
                self.tell_stopped();
            }
        }
    }

    pub(super) fn set_memory(&mut self, memory: &Arc<Memory>) {
        match &mut self.state {
            PartState::Starting(idle) | PartState::Failed(idle) => {
                for queue in idle {
                    if let Err(error) = queue.set_memory(Arc::clone(memory)) {
                        self.start.core.broke(queue.index(), error.name(), &error);
                    }
                }
            }
            PartState::Serving(queues) => queues.set_memory(memory),
        }
    }

    pub(super) fn queue(&mut self, index: usize) -> Option<&mut Queue> {
        match &mut self.state {
            PartState::Starting(idle) | PartState::Failed(idle) => {
                idle.iter_mut().find(|queue| queue.index() == index)
            }
            PartState::Serving(queues) => queues.queue(index),
        }
    }

    /// The attachment was closed, or will never be: ends this share.
    pub(super) fn let_go(&mut self) {
        self.letting_go = true;
        if let PartState::Serving(queues) = &mut self.state {
            queues.let_go();
        }
    }

    fn is_over(&self) -> bool {
        match &self.state {
            PartState::Serving(queues) => queues.is_gone(),
            PartState::Starting(_) | PartState::Failed(_) => true,
        }
    }

    fn try_open(&mut self) -> Progress {
        let Some(attachment) = self.start.attachment(self.now_ns) else { return Progress::Idle };
        let PartState::Starting(idle) = &mut self.state else { return Progress::Idle };
        let open = OpenArguments { services: &self.services, depth: self.start.depth };
        match Attached::open(&*self.start.volume, attachment, self.index, &open) {
            Ok(attached) => {
                let core = Arc::clone(&self.start.core);
                let mut queues = DiskQueues::new(core, attached, self.start.durable);
                self.start.core.channels.fetch_add(1, SeqCst);
                idle.drain(..).for_each(|queue| queues.add_queue(queue));
                self.state = PartState::Serving(Box::new(queues));
            }
            Err(error) => {
                // Where no queue waits for it, nothing is lost but a place to move to.
                if !idle.is_empty() {
                    self.start.core.cannot_open(&error);
                }
                self.state = PartState::Failed(std::mem::take(idle));
            }
        }
        Progress::Busy
    }

    fn tell_stopped(&mut self) {
        let PartState::Serving(queues) = &mut self.state else { return };
        self.replies.retain(|(index, reply)| match queues.take_stopped(*index) {
            Some(stopped) => {
                let _ = reply.try_send(stopped);
                false
            }
            None => true,
        });
    }

    fn tell_left(&mut self) {
        let PartState::Serving(queues) = &mut self.state else { return };
        self.movers.retain(|(index, reply)| {
            let Some(left) = queues.take_left(*index) else { return true };
            // The caller has gone: the queue goes on where it was.
            if let Err(TrySendError::Full(Ok(queue)) | TrySendError::Disconnected(Ok(queue))) =
                reply.try_send(left)
            {
                queues.adopt(queue);
            }
            false
        });
    }

    /// The channel, if there was one, is gone: a later start may open its own.
    fn leave(&mut self) {
        if matches!(self.state, PartState::Serving(_)) {
            self.start.core.channels.fetch_sub(1, SeqCst);
        }
        self.state = PartState::Failed(Vec::new());
    }
}

impl Drop for DiskPart {
    fn drop(&mut self) {
        // The sidecore ends first: the channel waits for the kernel, if it must.
        self.leave();
    }
}

impl Poll for DiskPart {
    fn poll(&mut self, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        if self.gone {
            return Progress::Idle;
        }
        let progress = match &mut self.state {
            PartState::Starting(_) if !self.letting_go => self.try_open(),
            PartState::Serving(queues) => queues.poll(now_ns),
            PartState::Starting(_) | PartState::Failed(_) => Progress::Idle,
        };
        if !self.replies.is_empty() {
            self.tell_stopped();
        }
        if !self.movers.is_empty() {
            self.tell_left();
        }
        if self.letting_go && self.is_over() {
            self.gone = true;
            self.leave();
            let id = self.id;
            self.later.run(move |local| remove(local, id));
            return Progress::Busy;
        }
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        match &mut self.state {
            PartState::Starting(_) if !self.letting_go => {
                wake.at(self.now_ns + LOOK_AGAIN_NS);
                Progress::Idle
            }
            PartState::Serving(queues) => queues.arm(wake),
            PartState::Starting(_) | PartState::Failed(_) => Progress::Idle,
        }
    }

    fn disarm(&mut self) {
        if let PartState::Serving(queues) = &mut self.state {
            queues.disarm();
        }
    }

    fn label(&self) -> String {
        self.start.core.label()
    }
}

/// All shares on a sidecore, by number: how closures from control threads find theirs. The
/// pollers own them: a share knows the services, so these must not own the share.
#[derive(Default)]
struct DiskParts(HashMap<u64, (PollerId, Weak<RefCell<DiskPart>>)>);

fn parts(local: &Local) -> Rc<RefCell<DiskParts>> {
    local.services().get::<DiskParts>().unwrap_or_else(|| {
        let parts = Rc::new(RefCell::new(DiskParts::default()));
        local.services().insert(Rc::clone(&parts));
        parts
    })
}

fn find(local: &Local, id: u64) -> Option<Rc<RefCell<DiskPart>>> {
    parts(local).borrow().0.get(&id).and_then(|(_, part)| part.upgrade())
}

/// The share `id` of a start on this sidecore, which is made if it is not there.
fn find_or_make(local: &mut Local, id: u64, start: &Arc<Start>) -> Rc<RefCell<DiskPart>> {
    if let Some(part) = find(local, id) {
        return part;
    }
    let part = Rc::new(RefCell::new(DiskPart {
        start: Arc::clone(start),
        services: local.services().clone(),
        index: local.index() as u16,
        state: PartState::Starting(Vec::new()),
        replies: Vec::new(),
        movers: Vec::new(),
        letting_go: false,
        gone: false,
        now_ns: local.now_ns(),
        later: local.later(),
        id,
    }));
    let poller = local.add(RoundStage::Serve, Box::new(Rc::clone(&part)));
    parts(local).borrow_mut().0.insert(id, (poller, Rc::downgrade(&part)));
    part
}

/// Gives a queue to the share `id` of a start on this sidecore, which is made if it is the first.
pub(super) fn add_queue(local: &mut Local, id: u64, start: &Arc<Start>, queue: Queue) {
    let now_ns = local.now_ns();
    find_or_make(local, id, start).borrow_mut().add(queue, now_ns);
}

/// Makes the share `id` of a start on this sidecore ready for queues from others; whether it is.
pub(super) fn prepare(local: &mut Local, id: u64, start: &Arc<Start>) -> bool {
    let part = find_or_make(local, id, start);
    let mut part = part.borrow_mut();
    part.try_again();
    part.is_open()
}

/// Gives a queue that has left another share to the share `id` on this sidecore, which was
/// prepared.
pub(super) fn adopt(local: &mut Local, id: u64, start: &Arc<Start>, queue: Queue) {
    find_or_make(local, id, start).borrow_mut().adopt(queue);
}

/// Runs `f` on the share `id` of this sidecore, if it is there.
pub(super) fn with<R>(local: &Local, id: u64, f: impl FnOnce(&mut DiskPart) -> R) -> Option<R> {
    let part = find(local, id)?;
    let mut part = part.borrow_mut();
    local.changes(|| part.start.core.label());
    Some(f(&mut part))
}

fn remove(local: &mut Local, id: u64) {
    let removed = parts(local).borrow_mut().0.remove(&id);
    if let Some((poller, _)) = removed {
        local.remove(poller);
    }
}
