//! An Ethernet interface as an uplink, past the host's network stack (AF_XDP): all that comes to it
//! goes to the network, and the host itself hears nothing there any more.
//!
//! The interface does no work for a frame: the frame is cut and its checksum completed here, on its
//! way into the memory that the interface sends from, which is its only copy. A frame that comes
//! stays where the interface put it until a receiver has copied it.

use std::fmt;
use std::io;
use std::sync::Arc;

use handover::{DescriptorNumber, ReceivedDescriptors, SentDescriptors};
use link::{XdpCard, XdpCardFds, XdpError, XdpQueue, XdpQueueFds};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidecore::{Progress, Wake};
use virtio::{SEGMENTS_MAX, Segment};

use crate::ether::{ETHER_BYTES, TAG_BYTES};
use crate::finish::Finisher;
use crate::frame::{BURST_FRAMES_MAX, Burst, Frame, HEAD_BYTES_MAX};
use crate::offload::Offers;
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;

use super::cards::{Cards, InterfaceClaim};
use super::hand_over::{self, HandedInterface, InterfaceFds};
use super::interface::is_interface;
use super::keeper::{InterfaceState, KeeperPort, Source};
use super::kind::{NetworkUplink, UplinkNeeds};
use super::opened::OpenUplink;

/// Parts of packets that are taken in a turn: a burst of frames in three parts each, which the
/// longest packets are in.
const PARTS_MAX: usize = 3 * BURST_FRAMES_MAX;

/// An Ethernet interface past the network stack, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct XdpUplink {
    interface: String,
}

impl XdpUplink {
    fn named(&self) -> impl Fn(XdpError) -> String {
        move |error| format!("interface {}: {error}", self.interface)
    }
}

impl NetworkUplink for XdpUplink {
    const NAME: &'static str = "xdp";
    // An interface is looked at by the node and opened by the process behind `Cards`. Of ethtool's
    // requests the kernel lets only a process with the right to it change something.
    const NEEDS: UplinkNeeds = UplinkNeeds {
        devices: &[],
        calls: &[],
        ioctls: &[libc::SIOCGIFFLAGS, libc::SIOCGIFINDEX, libc::SIOCGIFMTU, link::SIOCETHTOOL],
    };

    fn read(place: &str) -> Option<Self> {
        is_interface(place).then(|| Self { interface: place.to_owned() })
    }

    fn place(&self) -> &str {
        &self.interface
    }

    fn card(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn open(&self, cards: &Arc<dyn Cards>) -> Result<OpenUplink, String> {
        let (first, hold) = cards.open(&self.interface).map_err(self.named())?;
        let zero_copy = first.queues().iter().all(XdpQueue::is_zero_copy);
        let (queues, mtu) = (first.queues().len(), first.mtu());
        let interface = &self.interface;
        tracing::info!(interface, queues, mtu, zero_copy, "the network has the interface");
        let again = Reopened::new(interface, Arc::clone(cards), &first, hold);
        Ok(OpenUplink::new(again, first, false))
    }

    /// The interface stays promiscuous from now on, also when the other process lets go of it.
    fn adopt(
        &self,
        handed: HandedInterface<'_>,
        cards: &Arc<dyn Cards>,
    ) -> Result<OpenUplink, String> {
        let (state, received) = handed.read::<XdpState>(Self::NAME)?;
        let fds = state.taken(received).map_err(|error| error.to_string())?;
        // SAFETY: the promise of `HandedInterface::new`; while it is paused the port does not touch
        // it.
        let first = unsafe { XdpCard::adopt(fds) }.map_err(self.named())?;
        let hold = cards.hold(&self.interface, first.index()).map_err(self.named())?;
        let again = Reopened::new(&self.interface, Arc::clone(cards), &first, hold);
        Ok(OpenUplink::new(again, first, true))
    }
}

/// An interface in a hand-over.
#[derive(Debug, Serialize, Deserialize)]
struct XdpState {
    /// The interface's number.
    index: u32,
    /// The longest packet that it takes.
    mtu: u32,
    /// Keeps the program attached.
    program: DescriptorNumber,
    /// The receive queues.
    queues: Vec<XdpQueueState>,
}

handover::array_state! {
    /// A receive queue in a hand-over.
    #[derive(Debug)]
    struct XdpQueueState {
        socket: DescriptorNumber,
        /// The memory of its frames.
        memory: DescriptorNumber,
    }
}

impl XdpState {
    fn taken(self, received: &mut ReceivedDescriptors) -> io::Result<XdpCardFds> {
        let Self { index, mtu, program, queues } = self;
        let program = received.take(program)?;
        let queues = queues.into_iter().map(|XdpQueueState { socket, memory }| {
            let (socket, memory) = (received.take(socket)?, received.take(memory)?);
            Ok(XdpQueueFds { socket, memory })
        });
        let queues = queues.collect::<io::Result<_>>()?;
        Ok(XdpCardFds { index, mtu, program, queues })
    }
}

impl InterfaceFds for XdpCardFds {
    fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<Value> {
        let program = sent.put_copy(&self.program)?;
        let queues = self.queues.iter().map(|queue| {
            let (socket, memory) = (sent.put_copy(&queue.socket)?, sent.put_copy(&queue.memory)?);
            Ok(XdpQueueState { socket, memory })
        });
        let queues = queues.collect::<io::Result<_>>()?;
        let (index, mtu) = (self.index, self.mtu);
        hand_over::written(XdpUplink::NAME, &XdpState { index, mtu, program, queues })
    }
}

/// The properties of an interface when it was opened. It has to be opened anew if it is another
/// interface, has other queues, of which some would not be polled, or takes longer or shorter
/// packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InterfaceFacts {
    index: u32,
    queues: usize,
    mtu: usize,
}

impl InterfaceFacts {
    fn of(card: &XdpCard) -> Self {
        Self { index: card.index(), queues: card.queues().len(), mtu: card.mtu() }
    }

    fn now(name: &str) -> io::Result<Self> {
        Ok(Self {
            index: link::interface_index(name)?,
            queues: link::interface_receive_queues(name)? as usize,
            mtu: link::interface_mtu(name)?,
        })
    }
}

/// Opens one interface again and again.
struct Reopened {
    name: String,
    cards: Arc<dyn Cards>,
    /// Of the one that is open.
    facts: InterfaceFacts,
    /// Of the one that is open. It is the keeper's, not the port's: to let go may take a while.
    hold: Option<InterfaceClaim>,
}

impl Source for Reopened {
    type Opened = XdpCard;
    type Error = XdpError;

    fn name(&self) -> &str {
        &self.name
    }

    fn open(&mut self) -> Result<XdpCard, XdpError> {
        self.hold = None;
        let (card, hold) = self.cards.open(&self.name)?;
        (self.facts, self.hold) = (InterfaceFacts::of(&card), Some(hold));
        Ok(card)
    }

    fn fds(card: &XdpCard) -> io::Result<Box<dyn InterfaceFds>> {
        Ok(Box::new(card.fds()?))
    }

    fn port(
        kept: KeeperPort<XdpCard>,
        first: XdpCard,
        counters: Arc<PortCounters>,
    ) -> Box<dyn Port> {
        Box::new(Xdp {
            kept,
            counters,
            card: Some(first),
            taken: Vec::with_capacity(PARTS_MAX + SEGMENTS_MAX),
            turn: 0,
            parts: Vec::with_capacity(SEGMENTS_MAX),
            finisher: Finisher::new(),
            has_put: false,
            now_ns: 0,
        })
    }

    /// Its rings say nothing when it is gone, nor does its socket.
    fn look(&mut self) -> io::Result<Option<InterfaceState>> {
        let found = InterfaceFacts::now(&self.name);
        let found = found.and_then(|facts| Ok((facts, link::interface_is_running(&self.name)?)));
        match found {
            Ok((facts, _)) if facts != self.facts => {
                let (interface, before) = (&self.name, self.facts);
                tracing::info!(interface, ?before, now = ?facts, "it must be opened again");
                Ok(Some(InterfaceState::Gone))
            }
            Ok((_, is_running)) => {
                Ok(Some(if is_running { InterfaceState::Up } else { InterfaceState::Down }))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                Ok(Some(InterfaceState::Gone))
            }
            // Without a descriptor for the question, say, it is there as before.
            Err(error) => Err(error),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.cards.trouble()
    }
}

impl Reopened {
    fn new(name: &str, cards: Arc<dyn Cards>, first: &XdpCard, hold: InterfaceClaim) -> Self {
        Self { name: name.to_owned(), cards, facts: InterfaceFacts::of(first), hold: Some(hold) }
    }
}

/// See the module's text.
pub struct Xdp {
    kept: KeeperPort<XdpCard>,
    counters: Arc<PortCounters>,
    card: Option<XdpCard>,
    /// The frames that the burst points into: the queue's number, and the frame's place.
    taken: Vec<(usize, u64)>,
    /// The queue whose turn it is first.
    turn: usize,
    /// The parts of one packet.
    parts: Vec<Segment>,
    finisher: Finisher,
    /// Packets were put in, and the kernel was not shown.
    has_put: bool,
    /// The round's time.
    now_ns: u64,
}

impl fmt::Debug for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xdp").field("core", &self.kept.core).finish_non_exhaustive()
    }
}

impl Xdp {
    /// Lets go of an interface that is gone, and takes the next one.
    fn exchange(&mut self) {
        debug_assert!(self.taken.is_empty(), "no burst points into its frames");
        self.kept.exchange(&mut self.card);
    }

    /// To unmap and close a card takes long: not here.
    fn give_back(&mut self) {
        if let Some(card) = self.card.take() {
            self.kept.give_back(card);
        }
    }

    /// Has the kernel send what was put in.
    fn send(&mut self) {
        let Some(card) = &mut self.card else { return };
        let refused = card.sender().send(self.now_ns).refused;
        if matches!(refused, Some(Errno::NXIO | Errno::NODEV)) {
            debug_assert!(self.taken.is_empty(), "no burst points into its frames");
            self.kept.lose(self.card.take().expect("it was just asked"));
        }
    }

    /// Takes packets from a queue until there are none, or room for no more.
    fn take(&mut self, number: usize, burst: &mut Burst) {
        let Some(card) = &mut self.card else { return };
        let queue = &mut card.queues_mut()[number];
        while !burst.is_full() && self.taken.len() < PARTS_MAX {
            let mut fits = true;
            self.parts.clear();
            // The kernel shows a packet with all its parts, or not at all.
            while let Some(part) = queue.take() {
                self.taken.push((number, part.frame));
                fits &= self.parts.len() < SEGMENTS_MAX;
                if fits {
                    self.parts.push(Segment { addr: part.addr, len: part.len });
                }
                if part.is_last || self.taken.len() == self.taken.capacity() {
                    break;
                }
            }
            if self.parts.is_empty() {
                break;
            }
            let added = if fits { add(&self.parts, burst) } else { Err(Reason::TooLong) };
            if let Err(reason) = added {
                self.counters.drops_in.count(reason);
            }
        }
    }
}

/// Adds the frame that is in these parts to the burst.
fn add(parts: &[Segment], burst: &mut Burst) -> Result<(), Reason> {
    // SAFETY: the parts lie in frames that were taken from a queue's ring. They are not written to
    // before they are given back; that is done when the port gets the burst back.
    let frame = unsafe { burst.push(parts, 0) }?;
    let checked = frame.strip_tag();
    if checked.is_err() {
        burst.pop();
    }
    checked
}

/// Puts a frame that needs nothing any more into the interface's ring.
fn put(card: &mut XdpCard, frame: &Frame, tci: u16, burst: &Burst) -> Result<(), Reason> {
    let mut head = [0; HEAD_BYTES_MAX + TAG_BYTES];
    let head_len = frame.write_head(tci, &mut head);
    let len = head_len + frame.body_bytes();
    let tag_bytes = if tci == 0 { 0 } else { TAG_BYTES };
    if len > card.mtu() + ETHER_BYTES + tag_bytes {
        return Err(Reason::OverMtu);
    }
    let mut at = 0;
    let write = |into: &mut [u8]| {
        let from_head = head_len.saturating_sub(at).min(into.len());
        let (first, rest) = into.split_at_mut(from_head);
        first.copy_from_slice(&head[at.min(head_len)..][..from_head]);
        if !rest.is_empty() {
            let read = burst.read_body(frame, at + from_head - head_len, rest);
            debug_assert_eq!(read, rest.len(), "the frame has as much");
        }
        at += into.len();
    };
    if card.sender().put(len, write) { Ok(()) } else { Err(Reason::NoRoom) }
}

impl Drop for Xdp {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Port for Xdp {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        if self.kept.core.is_paused() {
            return Progress::Idle;
        }
        self.exchange();
        let Some(card) = &mut self.card else { return Progress::Idle };
        let queues = card.queues().len();
        if !card.sender().is_taken() {
            self.send();
        }
        // A busy queue fills the burst alone, so each of them has its turn to.
        for step in 0..queues {
            self.take((self.turn + step) % queues, burst);
        }
        self.turn = (self.turn + 1) % queues;
        Progress::busy_if(!self.taken.is_empty())
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        let Some(card) = &mut self.card else { return };
        for (number, frame) in self.taken.drain(..) {
            // SAFETY: it was taken from there, is not noted any more, and the burst that pointed
            // into it was cleared.
            unsafe { card.queues_mut()[number].give_back(frame) };
        }
        card.queues_mut().iter_mut().for_each(XdpQueue::release);
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64) {
        self.now_ns = now_ns;
        let Self { kept, counters, card, finisher, has_put, .. } = self;
        let is_up = kept.core.is_up() && !kept.core.is_paused();
        // A ring that is full is emptied once in a turn; a frame that does not fit then is dropped.
        let mut was_emptied = false;
        for chosen in chosen {
            let Some(card) = card.as_mut().filter(|_| is_up) else {
                counters.drops_out.count(Reason::LinkDown);
                continue;
            };
            let frame = &burst.frames()[usize::from(chosen.at)];
            *has_put = true;
            let sent = finisher.each(frame, burst, &Offers::default(), counters, |frame| {
                let is_put = put(card, frame, chosen.tci, burst);
                if is_put != Err(Reason::NoRoom) || std::mem::replace(&mut was_emptied, true) {
                    return is_put;
                }
                card.sender().send(now_ns);
                put(card, frame, chosen.tci, burst)
            });
            match sent {
                Ok(()) => {
                    counters.frames_out.add(1);
                    counters.bytes_out.add(frame.len_bytes() as u64);
                }
                Err(reason) => counters.drops_out.count(reason),
            }
        }
    }

    fn flush(&mut self) {
        // Frames that were put in before the pause still go: no other process knows of them, and
        // the process that paused waits for the end of the round.
        if std::mem::take(&mut self.has_put) || !self.kept.core.is_paused() {
            self.send();
        }
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.kept.core.is_paused() {
            return Progress::Idle;
        }
        // The keeper wakes us when it puts an interface in, or takes it away.
        let mut is_busy = !self.kept.incoming.is_empty();
        if let Some(card) = &mut self.card {
            is_busy |= self.kept.core.is_wanted();
            for queue in card.queues() {
                wake.on_readable(queue.fd());
                is_busy |= queue.has_any();
            }
            if let Some(at_ns) = card.sender().retry_at_ns(self.now_ns) {
                wake.at(at_ns);
            }
        }
        Progress::busy_if(is_busy)
    }
}

#[cfg(test)]
mod tests;
