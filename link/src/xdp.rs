//! Datagrams past the system's network stack (AF_XDP), where there is a way: a program at the
//! interface hands those that are ours to a ring that we poll, and what we put into another ring
//! leaves by the interface. While both ends poll, receiving takes no system call at all.
//!
//! An [`Xdp`] wraps a [`Udp`] socket of the same address. The socket keeps the port, finds
//! neighbours and takes all datagrams that have no other way: the first datagram to a peer, peers
//! with IPv6 addresses, datagrams that came by another receive queue. The address of a peer's card
//! is learnt from its packets.
//!
//! The datagrams are the same as those of UDP, so the two ends need not use the same link.
//!
//! The parts of it serve others as well: an [`XdpQueue`] is a receive queue without a word about
//! what comes by it, an [`XdpCard`] a whole interface whose packets are all its holder's.

mod card;
mod packet;
mod program;
mod queue;
mod ring;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use sidecore::Progress;
use transport::{Pool, TransmitBatch};

use crate::inside::LinkInside;
use crate::interface::Interface;
use crate::{Arrival, Link, LinkCounters, SendOutcome, Udp};
pub use card::{Promiscuous, XdpCard, XdpCardFds};
use packet::{HEADER_BYTES, Mac, PacketRoute};
use program::Program;
use queue::{FRAME_BYTES, HEADROOM_BYTES};
pub use queue::{XdpPart, XdpQueue, XdpQueueFds, XdpSent};

/// Up to this size a packet lies in one frame on either side, and the program needs not know of
/// pieces. On a virtual cable that also keeps the other end from handing over many datagrams as one
/// (segmentation offload), which could not be told apart here.
const ONE_PIECE_MTU_MAX: usize = 3400;

/// The largest packet in pieces.
const PACKET_BYTES_MAX: usize = 9216 + 14;

/// Packets taken in a round: as many as are sent.
const BURST: usize = 256;

/// Peers whose cards are known; more forget the longest silent one.
const NEIGHBOURS_MAX: usize = 1024;

/// A peer that was silent for so long is looked for by the system again: its card may be another.
const NEIGHBOUR_NS: u64 = 1_000_000_000;

/// Receive queues of an interface that are polled as a whole: 12 MiB of frames each.
const QUEUES_MAX: u32 = 8;

/// Why a link cannot use AF_XDP.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The address does not name an interface of Ethernet.
    #[error("{0} is not the IPv4 address of one Ethernet interface")]
    Address(SocketAddr),
    /// There is no such interface, or it is none of Ethernet.
    #[error(
        "{0} is no Ethernet interface of this host (in this network namespace); `ip link` lists \
         them"
    )]
    Interface(String),
    /// The interface was made anew while a process had it open.
    #[error("{0} is another interface than the one that was open; try again in a second")]
    Another(String),
    /// The interface has more receive queues than the sidecores poll.
    #[error(
        "{interface} has {queues} receive queues, and at most {QUEUES_MAX} are polled; \
         `ethtool -L {interface} combined {QUEUES_MAX}`"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// Its number of receive queues.
        queues: u32,
    },
    /// The card takes tags off packets. A packet that had a tag then looks like one that had none.
    #[error(
        "{0} removes VLAN tags of received frames, and this cannot be switched off (`ethtool -K \
         {0} rxvlan off`): as an uplink it would mix VLANs; use another card, or a tap in a bridge"
    )]
    Tags(String),
    /// The opener, the process that opens interfaces for the node, has failed.
    #[error("{0}")]
    Opener(String),
    /// The interface's packets are too long.
    #[error(
        "{interface} takes packets of {mtu} bytes, and at most {PACKET_BYTES_MAX} can be taken"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its longest packet.
        mtu: usize,
    },
    /// The rings of an adopted socket cannot be mapped.
    #[error(
        "the opened sockets cannot be used: their interface is gone meanwhile, or this kernel is \
         older than Linux 6.4; a node with privileges = \"keep\" does not need this"
    )]
    NotToBeMapped,
    /// The system refuses something.
    #[error("{what}: {source}{}", hint(.source))]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (it takes the capabilities NET_ADMIN, NET_RAW and BPF)"
        }
        Some(libc::EBUSY) => " (another program is attached there, or uses that queue)",
        Some(libc::EMFILE) => {
            " (this process has too many; raise its limit, `ulimit -n` or LimitNOFILE= of its unit)"
        }
        Some(libc::ENFILE) => " (the system has too many; raise the sysctl fs.file-max)",
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            " (frames are locked into memory: give it the capability IPC_LOCK, or raise \
             `ulimit -l` or LimitMEMLOCK= of its unit; 12 MiB for each receive queue)"
        }
        _ => "",
    }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> XdpError {
    move |error| XdpError::System { what, source: error.into() }
}

sidecore::counters! {
    /// The counters of the rings. The link's own counters have all datagrams, of either way.
    pub struct XdpCounters {
        /// Datagrams sent by the ring.
        datagrams_sent,
        /// Datagrams received by the ring.
        datagrams_received,
        /// Bytes copied into frames, and out of those of packets in pieces.
        bytes_copied,
        /// Packets that were not what they said.
        malformed,
        /// Rounds in which the ring to send by was full.
        full,
        /// System calls to tell a card of frames, which had found none; copy mode needs none.
        fill_calls,
    }
}

/// An interface with the program; shared by the links of all sidecores that use it.
#[derive(Debug)]
pub struct XdpInterface {
    interface: Interface,
    /// Packets come in pieces.
    pieces: bool,
    program: Program,
}

impl XdpInterface {
    /// Attaches the program to the interface that has this address.
    ///
    /// # Errors
    /// What is in the way; UDP is the way out.
    pub fn attach(listen: SocketAddr) -> Result<Arc<Self>, XdpError> {
        let interface = find(listen)?;
        let pieces = in_pieces(interface.mtu);
        let program = Program::for_datagrams(interface.index, pieces);
        let program = program.map_err(system("attaching the program to the interface"))?;
        Ok(Arc::new(Self { interface, pieces, program }))
    }

    /// The same, if the card itself reads and writes our frames, as far as its first queue tells:
    /// of those that are used, [`Xdp::is_zero_copy`] says it. Where it does not, nothing has been
    /// changed at the interface.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), or the card cannot.
    pub fn attach_if_zero_copy(listen: SocketAddr) -> Result<Arc<Self>, XdpError> {
        let interface = find(listen)?;
        queue::try_zero_copy(interface.index, in_pieces(interface.mtu))?;
        Self::attach(listen)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.interface.name
    }
}

/// Whether packets of an interface may come in pieces.
fn in_pieces(mtu: usize) -> bool {
    mtu > ONE_PIECE_MTU_MAX
}

/// The interface that has this address, if its packets can be taken.
fn find(listen: SocketAddr) -> Result<Interface, XdpError> {
    let found = match listen.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() => Interface::with_address(IpAddr::V4(ip)),
        _ => Ok(None),
    };
    let found = found.map_err(system("looking for the interface"))?;
    let interface = found.filter(|found| found.mac.is_some());
    let interface = interface.ok_or(XdpError::Address(listen))?;
    let mtu = interface.mtu;
    if mtu + 14 > PACKET_BYTES_MAX {
        return Err(XdpError::Mtu { interface: interface.name, mtu });
    }
    Ok(interface)
}

/// A neighbour's card, and when it was last heard from.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Mac,
    heard_ns: u64,
}

/// A link past the network stack, with a UDP socket beside it.
pub struct Xdp {
    inner: Udp,
    own: SocketAddrV4,
    own_mac: Mac,
    queue: XdpQueue,
    /// A packet in pieces, put together.
    whole: Vec<u8>,
    pieces: bool,
    neighbours: BTreeMap<SocketAddrV4, Neighbour>,
    inside: LinkInside,
    now_ns: u64,
    epoll: OwnedFd,
    xdp_counters: Arc<XdpCounters>,
    _interface: Arc<XdpInterface>,
}

impl Xdp {
    /// Wraps a socket at an address of the interface; takes what comes for it by receive queue
    /// `queue`.
    ///
    /// # Errors
    /// What is in the way, and the socket back.
    pub fn new(
        inner: Udp,
        interface: &Arc<XdpInterface>,
        queue: u32,
    ) -> Result<Self, Box<(XdpError, Udp)>> {
        match XdpParts::open(&inner, interface, queue) {
            Ok(parts) => Ok(Self::with(inner, parts, Arc::clone(interface))),
            Err(error) => Err(Box::new((error, inner))),
        }
    }

    fn with(inner: Udp, parts: XdpParts, interface: Arc<XdpInterface>) -> Self {
        let XdpParts { own, queue, epoll } = parts;
        Self {
            own,
            own_mac: interface.interface.mac.expect("looked for when it was attached"),
            queue,
            whole: Vec::with_capacity(PACKET_BYTES_MAX),
            pieces: interface.pieces,
            neighbours: BTreeMap::new(),
            inside: LinkInside::default(),
            now_ns: 0,
            epoll,
            xdp_counters: Arc::default(),
            inner,
            _interface: interface,
        }
    }

    /// The socket inside.
    pub fn inner(&self) -> &Udp {
        &self.inner
    }

    /// The socket inside, which goes on alone: the queue is given back.
    pub fn into_inner(self) -> Udp {
        self.inner
    }

    /// The counters of the rings.
    pub fn xdp_counters(&self) -> &Arc<XdpCounters> {
        &self.xdp_counters
    }

    /// Whether the card reads and writes the frames itself.
    pub fn is_zero_copy(&self) -> bool {
        self.queue.is_zero_copy()
    }

    /// The way to a peer, if its card is known.
    fn way_to(&self, to: SocketAddr) -> Option<PacketRoute> {
        let SocketAddr::V4(to) = to else { return None };
        let neighbour = self.neighbours.get(&to)?;
        let known = self.now_ns < neighbour.heard_ns + NEIGHBOUR_NS;
        let Self { own_mac: from_mac, own: from, .. } = *self;
        known.then_some(PacketRoute { from_mac, to_mac: neighbour.mac, from, to })
    }

    fn note_neighbour(&mut self, from: SocketAddrV4, mac: Mac) {
        // The node's own address is at no card: a packet that says so would have the packets of the
        // node to itself leave the host.
        if from.ip() == self.own.ip() {
            return;
        }
        let heard_ns = self.now_ns;
        if self.neighbours.len() == NEIGHBOURS_MAX && !self.neighbours.contains_key(&from) {
            let silent = self.neighbours.iter().min_by_key(|(_, one)| one.heard_ns);
            if let Some(silent) = silent.map(|(address, _)| *address) {
                self.neighbours.remove(&silent);
            }
        }
        self.neighbours.insert(from, Neighbour { mac, heard_ns });
    }

    /// Puts a packet into the ring; `false` when there is no room.
    fn put(&mut self, way: &PacketRoute, parts: [&[u8]; 2]) -> bool {
        let payload_bytes = parts[0].len() + parts[1].len();
        let packet_bytes = HEADER_BYTES + payload_bytes;
        let mut header = [0; HEADER_BYTES];
        packet::write(way, payload_bytes, &mut header);
        let mut rest = [&header[..], parts[0], parts[1]];
        let is_put = self.queue.put(packet_bytes, |into| gather(&mut rest, into));
        if is_put {
            self.xdp_counters.bytes_copied.add(packet_bytes as u64);
        }
        is_put
    }

    /// Has the kernel send the packets that were put in. If it does not take all of them now, it is
    /// asked again, by the next round or after a while.
    fn flush(&mut self) {
        let sent = self.queue.send(self.now_ns);
        let counters = self.inner.counters();
        counters.send_calls.add(sent.calls);
        counters.send_refused.add(u64::from(sent.refused.is_some()));
    }

    fn receive_from_ring(&mut self, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let (mut datagrams, mut bytes, mut packets) = (0, 0, 0);
        while packets < BURST {
            let Some(piece) = self.queue.take_piece() else { break };
            // SAFETY: it was just taken, and is shown to the kernel when its bytes have been read.
            unsafe { self.queue.give_back(piece.at) };
            let ends = queue::is_last(piece);
            packets += usize::from(ends);
            let Some(found) = self.queue.bytes(piece) else {
                self.xdp_counters.malformed.add(1);
                continue;
            };
            let packet = if ends && self.whole.is_empty() {
                found
            } else {
                let fits = self.whole.len() + found.len() <= PACKET_BYTES_MAX;
                self.whole.extend_from_slice(if fits { found } else { &[] });
                self.xdp_counters.bytes_copied.add(found.len() as u64);
                if !ends {
                    continue;
                }
                &self.whole
            };
            match packet::read(packet) {
                Some((way, payload)) => {
                    datagrams += 1;
                    bytes += payload.len();
                    let from = SocketAddr::V4(way.from);
                    f(Arrival { from, at_ns: self.now_ns, bytes: payload });
                    let (mac, from) = (way.from_mac, way.from);
                    self.whole.clear();
                    self.note_neighbour(from, mac);
                }
                None => {
                    self.whole.clear();
                    self.xdp_counters.malformed.add(1);
                }
            }
        }
        if self.queue.release_counted() {
            self.xdp_counters.fill_calls.add(1);
        }
        let counters = self.inner.counters();
        counters.receive_messages.add(datagrams as u64);
        counters.datagrams_received.add(datagrams as u64);
        counters.bytes_received.add(bytes as u64);
        self.xdp_counters.datagrams_received.add(datagrams as u64);
        datagrams
    }
}

/// Fills `into` from the front of some parts, and takes that off them.
fn gather(parts: &mut [&[u8]], into: &mut [u8]) {
    let mut at = 0;
    for part in parts {
        let len = part.len().min(into.len() - at);
        let (now, later) = part.split_at(len);
        into[at..at + len].copy_from_slice(now);
        at += len;
        *part = later;
    }
    assert_eq!(at, into.len(), "the parts have as much");
}

impl Link for Xdp {
    fn send_first(
        &mut self,
        batch: &mut TransmitBatch,
        pool: &Pool,
        count_max: usize,
    ) -> SendOutcome {
        self.queue.reclaim();
        let (mut datagrams, mut by_ring, mut bytes) = (0, 0, 0);
        while datagrams < count_max && !batch.is_empty() {
            let next = batch.datagram(0);
            let Some(way) = self.way_to(next.to()) else {
                // Everything up to the next one that has a way of ours.
                let others = (0..batch.len().min(count_max - datagrams))
                    .take_while(|&index| self.way_to(batch.datagram(index).to()).is_none());
                let count = others.count();
                let sent = self.inner.send_first(batch, pool, count);
                datagrams += sent.datagrams;
                if sent.datagrams < count {
                    break;
                }
                continue;
            };
            let parts = [next.head(), next.body(pool)];
            let len = parts[0].len() + parts[1].len();
            if !self.put(&way, parts) {
                self.xdp_counters.full.add(1);
                break;
            }
            batch.consume(1);
            (datagrams, by_ring, bytes) = (datagrams + 1, by_ring + 1, bytes + len);
        }
        if by_ring > 0 {
            self.flush();
        }
        let counters = self.inner.counters();
        counters.send_messages.add(by_ring);
        counters.datagrams_sent.add(by_ring);
        counters.bytes_sent.add(bytes as u64);
        self.xdp_counters.datagrams_sent.add(by_ring);
        SendOutcome { datagrams, left: batch.len() }
    }

    fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        self.now_ns = now_ns;
        if !self.queue.is_taken() {
            self.flush();
        }
        let datagrams = self.receive_from_ring(f);
        if !self.inside.is_due(now_ns) {
            return datagrams;
        }
        let inside = self.inner.receive(now_ns, f);
        self.inside.found(now_ns, inside);
        datagrams + inside
    }

    fn next_ns(&self) -> Option<u64> {
        self.queue.retry_at_ns(self.now_ns)
    }

    fn arm(&mut self) -> Progress {
        // A datagram that waits at the socket inside makes the descriptor readable. The round after
        // the sleep looks there.
        self.inside.look_next();
        Progress::busy_if(self.queue.has_any())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn datagram_max(&self) -> usize {
        let frame = FRAME_BYTES - HEADROOM_BYTES - HEADER_BYTES;
        let most = if self.pieces { PACKET_BYTES_MAX - HEADER_BYTES } else { frame };
        self.inner.datagram_max().min(most)
    }

    fn counters(&self) -> &Arc<LinkCounters> {
        self.inner.counters()
    }
}

impl fmt::Debug for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xdp({}, {})", self._interface.name(), self.inner.local_addr())
    }
}

/// The parts of a link before it is built.
struct XdpParts {
    own: SocketAddrV4,
    queue: XdpQueue,
    epoll: OwnedFd,
}

impl XdpParts {
    fn open(inner: &Udp, interface: &XdpInterface, queue: u32) -> Result<Self, XdpError> {
        let SocketAddr::V4(own) = inner.local_addr() else {
            return Err(XdpError::Address(inner.local_addr()));
        };
        let number = queue;
        let queue = XdpQueue::open(interface.interface.index, number, interface.pieces)?;
        let watched = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for fd in [queue.fd(), inner.fd()] {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&epoll, fd, data, epoll::EventFlags::IN)?;
            }
            Ok(epoll)
        };
        let epoll = watched().map_err(system("waiting for two sockets at once"))?;
        let served = interface.program.serve(own, number, queue.fd());
        served.map_err(system("telling the program of the socket"))?;
        Ok(Self { own, queue, epoll })
    }
}
