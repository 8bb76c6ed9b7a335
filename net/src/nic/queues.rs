//! A nic's queues on its sidecore.

use std::slice;
use std::sync::Arc;

use virtio::{Chain, ChainHead, Memory, Queue, RingError, Segment, Single, gather};

use super::core::NicCore;
use super::header::{self, feature};
use super::receiver::{FrameReceiver, PlaceError};
use crate::ether::{self, ETHER_BYTES, Mac, TCP, UDP};
use crate::finish::Finisher;
use crate::frame::{BURST_FRAMES_MAX, Burst, Frame};
use crate::offload::{HEADER_BYTES, Offers, Offload};
use crate::port::{Chosen, PortCounters};
use crate::reason::Reason;

/// A queue that brings frames from the guest.
#[derive(Debug)]
pub(super) struct FrameSender {
    pub(super) queue: Queue,
    pub(super) armed: bool,
    /// Of what the queue has tolerated so much is counted.
    tolerated: u64,
}

impl FrameSender {
    fn new(queue: Queue) -> Self {
        let tolerated = queue.tolerated();
        Self { queue, armed: false, tolerated }
    }

    /// The descriptors that the queue has tolerated since the last call.
    #[inline]
    fn tolerated(&mut self) -> u64 {
        let now = self.queue.tolerated();
        now - std::mem::replace(&mut self.tolerated, now)
    }
}

/// See the module's text. Its frames go through a [`super::NicPort`].
#[derive(Debug)]
pub struct NicQueues {
    pub(super) core: Arc<NicCore>,
    counters: Arc<PortCounters>,
    mtu: usize,
    /// By pair.
    pub(super) senders: Vec<Option<FrameSender>>,
    receivers: Vec<Option<FrameReceiver>>,
    /// The pairs whose receiving queue runs.
    active: Vec<u16>,
    /// Chains of senders that were taken for the present burst, in order, each with its pair.
    taken: Vec<(u16, ChainHead)>,
    chain: Chain,
    singles: Vec<Single>,
    /// Whose turn it is first.
    turn: usize,
    header_bytes: usize,
    from_guest: Offers,
    to_guest: Offers,
    mergeable: bool,
    finisher: Finisher,
}

impl NicQueues {
    /// A nic with room for this many queues, and none that runs.
    pub fn new(core: Arc<NicCore>, queues: usize, mtu: u16) -> Self {
        let pairs = queues / 2;
        Self {
            counters: Arc::clone(core.counters()),
            core,
            mtu: usize::from(mtu),
            senders: (0..pairs).map(|_| None).collect(),
            receivers: (0..pairs).map(|_| None).collect(),
            active: Vec::with_capacity(pairs),
            taken: Vec::with_capacity(BURST_FRAMES_MAX),
            chain: Chain::new(),
            singles: Vec::with_capacity(BURST_FRAMES_MAX),
            turn: 0,
            header_bytes: 12,
            from_guest: Offers::default(),
            to_guest: Offers::default(),
            mergeable: false,
            finisher: Finisher::new(),
        }
    }

    /// Serves a queue from now on, whose driver accepted these features.
    ///
    /// # Panics
    /// When the nic has no such queue.
    pub fn add_queue(&mut self, mut queue: Queue, acked: u64) {
        self.header_bytes = header::header_bytes(acked);
        self.from_guest = header::offers_of_guest(acked);
        self.to_guest = header::offers_to_guest(acked);
        self.mergeable = acked & feature::MRG_RXBUF != 0;
        queue.disarm();
        let (pair, is_sender) = (queue.index() / 2, queue.index() % 2 == 1);
        if is_sender {
            self.senders[pair] = Some(FrameSender::new(queue));
        } else {
            self.receivers[pair] = Some(FrameReceiver::new(queue));
            self.find_active();
        }
    }

    fn find_active(&mut self) {
        self.active.clear();
        let pairs = 0..self.receivers.len();
        let active = pairs.filter(|pair| self.receivers[*pair].is_some());
        self.active.extend(active.map(|pair| pair as u16));
    }

    /// Lets go of a queue; gives where to go on.
    pub fn remove_queue(&mut self, index: usize) -> Option<u32> {
        if index % 2 == 1 {
            let sender = self.senders.get_mut(index / 2)?.take()?;
            return Some(sender.queue.base());
        }
        let receiver = self.receivers.get_mut(index / 2)?.take()?;
        self.find_active();
        Some(receiver.stop())
    }

    /// The queue of this index, to change where it signals.
    pub fn queue(&mut self, index: usize) -> Option<&mut Queue> {
        match index % 2 {
            1 => self.senders.get_mut(index / 2)?.as_mut().map(|sender| &mut sender.queue),
            _ => self.receivers.get_mut(index / 2)?.as_mut().map(FrameReceiver::queue),
        }
    }

    /// Looks chains up in this memory from now on.
    pub fn set_memory(&mut self, memory: &Arc<Memory>) {
        for index in 0..2 * self.senders.len() {
            let Some(queue) = self.queue(index) else { continue };
            if let Err(error) = queue.set_memory(Arc::clone(memory)) {
                self.core.broke(index, error.name(), &error);
            }
        }
    }

    /// Takes what the guest sends into `burst`. True when there was anything.
    pub(super) fn receive(&mut self, burst: &mut Burst) -> bool {
        let pairs = self.senders.len();
        if self.core.is_broken() {
            return false;
        }
        self.turn = (self.turn + 1) % pairs;
        for step in 0..pairs {
            self.receive_pair((self.turn + step) % pairs, burst);
        }
        !self.taken.is_empty()
    }

    fn receive_pair(&mut self, pair: usize, burst: &mut Burst) {
        let Some(sender) = &mut self.senders[pair] else { return };
        let read =
            ChainRead { header_bytes: self.header_bytes, offers: &self.from_guest, mtu: self.mtu };
        while self.taken.len() < BURST_FRAMES_MAX && !burst.is_full() {
            let (frames, bytes) = burst.room();
            let most = frames.min(BURST_FRAMES_MAX - self.taken.len());
            self.singles.clear();
            sender.queue.take_singles(false, most, bytes, &mut self.singles);
            for single in &self.singles {
                self.taken.push((pair as u16, single.head));
                if let Err(reason) = read.frame(slice::from_ref(&single.segment), burst) {
                    self.counters.drops_in.count(reason);
                }
            }
            if !self.singles.is_empty() {
                continue;
            }
            let head = match sender.queue.take(&mut self.chain) {
                Ok(Some(head)) => head,
                Ok(None) => return,
                Err(error) => return self.core.broke(2 * pair + 1, error.name(), &error),
            };
            let tolerated = sender.tolerated();
            if tolerated > 0 {
                self.core.tolerated.add(tolerated);
            }
            self.taken.push((pair as u16, head));
            if let Err(reason) = read.frame(&self.chain.readable, burst) {
                self.counters.drops_in.count(reason);
            }
        }
    }

    /// All that was taken goes back, in order.
    pub(super) fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        for (pair, head) in self.taken.drain(..) {
            let sender = self.senders[usize::from(pair)].as_mut();
            // A queue is removed between two rounds, and nothing is taken then.
            sender.expect("it was just taken from").queue.put(head, 0);
        }
    }

    /// Sends frames to the guest.
    pub(super) fn transmit(&mut self, burst: &Burst, chosen: &[Chosen]) {
        if let [only] = self.active[..]
            && let Some(receiver) = &mut self.receivers[usize::from(only)]
        {
            receiver.prepare(chosen.len());
        }
        let (mut frames, mut bytes) = (0, 0);
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            match self.send(frame, chosen.tci, burst) {
                Ok(()) => (frames, bytes) = (frames + 1, bytes + frame.len_bytes() as u64),
                Err(reason) => self.counters.drops_out.count(reason),
            }
        }
        self.counters.frames_out.add(frames);
        self.counters.bytes_out.add(bytes);
    }

    fn send(&mut self, frame: &Frame, tci: u16, burst: &Burst) -> Result<(), Reason> {
        if self.core.is_broken() {
            return Err(Reason::LinkDown);
        }
        let pair = match self.active[..] {
            [] => return Err(Reason::LinkDown),
            [only] => only,
            ref several => several[flow(frame) as usize % several.len()],
        };
        let receiver = self.receivers[usize::from(pair)].as_mut().expect("an active pair");
        let (header_bytes, mergeable) = (self.header_bytes, self.mergeable);
        let placed = self.finisher.each(frame, burst, &self.to_guest, &self.counters, |frame| {
            receiver.place(frame, tci, burst, header_bytes, mergeable)
        });
        match placed {
            Ok(()) => Ok(()),
            Err(PlaceError::Drop(reason)) => Err(reason),
            Err(PlaceError::Ring(error)) => Err(self.broke_receiver(pair, &error)),
            Err(PlaceError::NotWritable) => {
                let what = "a buffer for frames that cannot be written";
                self.core.broke(2 * usize::from(pair), "not_writable", &what);
                Err(Reason::LinkDown)
            }
        }
    }

    fn broke_receiver(&self, pair: u16, error: &RingError) -> Reason {
        self.core.broke(2 * usize::from(pair), error.name(), error);
        Reason::LinkDown
    }

    /// Shows the guest what was taken and what was brought.
    pub(super) fn flush(&mut self) {
        for sender in self.senders.iter_mut().flatten() {
            sender.queue.publish();
        }
        for receiver in self.receivers.iter_mut().flatten() {
            receiver.queue().publish();
        }
    }
}

/// How a chain is read.
struct ChainRead<'a> {
    header_bytes: usize,
    offers: &'a Offers,
    mtu: usize,
}

impl ChainRead<'_> {
    /// Adds the frame of a chain to the burst, which has these readable pieces.
    #[inline]
    fn frame(&self, segments: &[Segment], burst: &mut Burst) -> Result<(), Reason> {
        let mut header = [0; HEADER_BYTES];
        // SAFETY: the chain was just taken, and is put when the burst is cleared.
        let is_whole = unsafe {
            segments.first().is_some_and(|first| first.read(&mut header))
                || gather(segments, 0, &mut header) == HEADER_BYTES
        };
        if !is_whole {
            return Err(Reason::Short);
        }
        let offload = Offload::read(&header)?;
        // SAFETY: as above; the memory of a chain that is outstanding stays mapped.
        let frame = unsafe { burst.push(segments, self.header_bytes) }?;
        frame.offload = offload;
        let checked = frame.strip_tag().and_then(|()| frame.accept(self.offers));
        let checked = checked.and_then(|()| self.check_length(frame));
        if checked.is_err() {
            burst.pop();
        }
        checked
    }

    fn check_length(&self, frame: &Frame) -> Result<(), Reason> {
        let longest = frame.longest_bytes().saturating_sub(ETHER_BYTES);
        if longest > self.mtu { Err(Reason::OverMtu) } else { Ok(()) }
    }
}

/// A number that is the same for all frames of a flow.
fn flow(frame: &Frame) -> u32 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = match ether::packet(frame.head()) {
        Some(packet) => {
            let fold = |ip: ether::Ip| ip.0 as u64 ^ (ip.0 >> 64) as u64;
            let hash = mix(mix(0, fold(packet.ip.source)), fold(packet.ip.destination));
            let ports = match packet.ip.protocol {
                // A fragment goes where the rest of its packet goes.
                TCP | UDP if !packet.ip.is_fragment => packet.ports.unwrap_or_default(),
                _ => (0, 0),
            };
            mix(hash, u64::from(ports.0) << 16 | u64::from(ports.1))
        }
        None => {
            let (Mac(to), Mac(from)) = frame.addresses();
            mix(mix(0, u64::from(to[5])), u64::from(from[5]))
        }
    };
    (hash >> 32) as u32
}
