//! Datagrams over a UDP socket.
//!
//! One sendmmsg and one recvmmsg per round. Datagrams of one length to one peer travel through the
//! network stack as one message where the kernel can (UDP_SEGMENT, UDP_GRO): 1 MiB over Ethernet
//! is some 720 datagrams but 17 trips. User space copies no payload to send it: the kernel gathers
//! heads and bodies itself.

mod address;
mod control;
mod group;
mod mtu;
mod system;

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt;
use transport::{Pool, TransmitBatch};

use crate::{Arrival, Link, LinkCounters, SendOutcome};
use group::{CALL_DATAGRAMS_MAX, Group, Outgoing, plan};
use system::{ReceiveCall, SendCall};

/// The largest payload of an IPv4 datagram: 65535 less the headers of IP (20) and UDP (8).
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The size that we ask for, for each of the socket's buffers: a few milliseconds of a fast
/// network, which is how long a sidecore may be away. A process that may not exceed the system's
/// limit gets less.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// How a UDP link is set up.
#[derive(Clone, Copy, Debug)]
pub struct UdpConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The largest datagram to send, without headers; each session finds out how much of it
    /// passes. `None` takes what fits the interface that `listen` names, or the widest one that
    /// leads out of this machine where it names none.
    pub datagram_bytes_max: Option<usize>,
    /// Let the kernel send and receive groups of datagrams as one, where it can.
    pub groups: bool,
}

impl UdpConfig {
    /// The usual set-up at an address.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, datagram_bytes_max: None, groups: true }
    }
}

/// A socket could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen} (UDP): {source}")]
pub struct BindError {
    /// The address.
    pub listen: SocketAddr,
    /// The system's answer.
    pub r#source: io::Error,
}

/// A link over one UDP socket. The thread that configures it binds it and then moves it to its
/// sidecore.
pub struct Udp {
    socket: UdpSocket,
    local_addr: SocketAddr,
    datagram_bytes_max: usize,
    receive_buffer_bytes: usize,
    /// When nothing was left to receive; 0 when that is not known.
    emptied_ns: u64,
    sender: SendState,
    send_call: SendCall,
    receive_call: ReceiveCall,
    counters: Arc<LinkCounters>,
}

impl Udp {
    /// Binds a socket.
    ///
    /// # Errors
    /// When the address is not ours, its port is in use, or the system has no more sockets.
    pub fn bind(config: UdpConfig) -> Result<Self, BindError> {
        let listen = config.listen;
        Self::open(config).map_err(|source| BindError { listen, source })
    }

    /// Goes on with the socket of another process, which neither sends nor receives any more.
    /// Datagrams that arrived meanwhile are in the socket, and its buffers keep their sizes.
    ///
    /// # Errors
    /// When it is no UDP socket.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let socket = UdpSocket::from(socket);
        let config = UdpConfig::new(socket.local_addr()?);
        Self::over(socket, config)
    }

    fn open(config: UdpConfig) -> io::Result<Self> {
        let socket = UdpSocket::bind(config.listen)?;
        enlarge_buffers(&socket);
        Self::over(socket, config)
    }

    fn over(socket: UdpSocket, config: UdpConfig) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let local_addr = socket.local_addr()?;
        system::forbid_fragments(socket.as_fd(), local_addr.is_ipv6())?;
        // The system doubles what it is asked for, to have room for its own bookkeeping.
        let receive_buffer_bytes = sockopt::socket_recv_buffer_size(&socket).unwrap_or(0) / 2;
        if config.groups && system::enable_groups(socket.as_fd()).is_err() {
            tracing::info!("this kernel hands over arriving datagrams one by one (no UDP_GRO)");
        }
        if system::enable_stamps(socket.as_fd()).is_err() {
            tracing::info!("this kernel does not say when datagrams arrived (no SO_TIMESTAMPNS)");
        }
        let datagram_bytes_max = config
            .datagram_bytes_max
            .unwrap_or_else(|| mtu::datagram_bytes_max(local_addr.ip()))
            .min(DATAGRAM_BYTES_MAX);
        let counters = Arc::new(LinkCounters::default());
        let segment_bytes_max = if config.groups { DATAGRAM_BYTES_MAX } else { 0 };
        Ok(Self {
            socket,
            local_addr,
            datagram_bytes_max,
            receive_buffer_bytes,
            emptied_ns: 0,
            sender: SendState::new(segment_bytes_max, Arc::clone(&counters)),
            send_call: SendCall::new(),
            receive_call: ReceiveCall::new(),
            counters,
        })
    }

    /// How much fits into the socket's receive buffer: peers had better not have more in flight.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Sends from the front of what waits; says how many datagrams are done with.
    fn send_from(&mut self, outgoing: &impl Outgoing) -> usize {
        if outgoing.count() == 0 {
            return 0;
        }
        self.sender.plan(outgoing);
        let socket_is_v6 = self.local_addr.is_ipv6();
        let (fd, groups) = (self.socket.as_fd(), &self.sender.groups);
        let result = self.send_call.run(fd, socket_is_v6, outgoing, groups);
        self.sender.settle(result)
    }
}

impl Link for Udp {
    fn send_first(
        &mut self,
        batch: &mut TransmitBatch,
        pool: &Pool,
        count_max: usize,
    ) -> SendOutcome {
        let datagrams = self.send_from(&Pending { batch, pool, count_max });
        batch.consume(datagrams);
        SendOutcome { datagrams, left: batch.len() }
    }

    fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let counters = &self.counters;
        counters.receive_calls.add(1);
        let messages = match self.receive_call.run(self.socket.as_fd()) {
            Ok(messages) => messages,
            Err(Errno::AGAIN | Errno::INTR) => {
                self.emptied_ns = now_ns;
                return 0;
            }
            Err(error) => {
                let late = matches!(error, Errno::CONNREFUSED | Errno::HOSTUNREACH);
                if late { &counters.errors_late } else { &counters.errors_other }.add(1);
                return 0;
            }
        };
        let clocks = Clocks::read(now_ns, self.emptied_ns);
        self.emptied_ns = if messages < system::RECEIVE_MESSAGES_MAX { now_ns } else { 0 };
        let (mut datagrams, mut bytes) = (0, 0);
        for index in 0..messages {
            let Some(message) = self.receive_call.message(index) else {
                counters.receive_dropped.add(1);
                continue;
            };
            bytes += message.bytes.len();
            let (from, at_ns) = (message.from, clocks.arrival_ns(message.told.stamp_ns));
            let Some(segment_bytes) = message.told.segment_bytes else {
                datagrams += 1;
                f(Arrival { from, at_ns, bytes: message.bytes });
                continue;
            };
            counters.receive_groups.add(1);
            for bytes in message.bytes.chunks(segment_bytes) {
                datagrams += 1;
                f(Arrival { from, at_ns, bytes });
            }
        }
        counters.receive_messages.add(messages as u64);
        counters.datagrams_received.add(datagrams as u64);
        counters.bytes_received.add(bytes as u64);
        datagrams
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn datagram_max(&self) -> usize {
        self.datagram_bytes_max
    }

    fn counters(&self) -> &Arc<LinkCounters> {
        &self.counters
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Udp({})", self.local_addr)
    }
}

/// Asks for larger buffers, best effort.
fn enlarge_buffers(socket: &UdpSocket) {
    // Forcing needs a privilege; the plain way is cut to the system's limit. Neither is needed.
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
}

/// From the kernel's stamps, which are in Unix time, to our clock.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// Now, by both.
    monotonic_ns: u64,
    unix_ns: u64,
    /// No datagram arrived earlier or later.
    earliest_ns: u64,
    latest_ns: u64,
}

impl Clocks {
    /// Reads both clocks, which takes no system call. Nothing arrived before `earliest_ns`. An
    /// arrival after `latest_ns` counts as one at `latest_ns`.
    fn read(latest_ns: u64, earliest_ns: u64) -> Self {
        let unix = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let unix_ns =
            (unix.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(unix.tv_nsec as u64);
        Self { monotonic_ns: sidecore::now_ns(), unix_ns, earliest_ns, latest_ns }
    }

    /// A step of Unix time between the arrival and now is as good as no stamp.
    fn arrival_ns(&self, stamp_ns: Option<u64>) -> u64 {
        let Some(stamp_ns) = stamp_ns else { return self.latest_ns };
        let ago_ns = self.unix_ns.saturating_sub(stamp_ns);
        self.monotonic_ns.saturating_sub(ago_ns).max(self.earliest_ns).min(self.latest_ns)
    }
}

/// A transport's batch, as something to send.
struct Pending<'a> {
    batch: &'a TransmitBatch,
    pool: &'a Pool,
    count_max: usize,
}

impl Outgoing for Pending<'_> {
    fn count(&self) -> usize {
        self.batch.len().min(self.count_max)
    }

    fn to(&self, index: usize) -> SocketAddr {
        self.batch.datagram(index).to()
    }

    fn head(&self, index: usize) -> &[u8] {
        self.batch.datagram(index).head()
    }

    fn body(&self, index: usize) -> &[u8] {
        self.batch.datagram(index).body(self.pool)
    }

    fn len_bytes(&self, index: usize) -> usize {
        self.batch.datagram(index).len_bytes()
    }
}

/// The state of sending, without the system call.
struct SendState {
    /// Longer datagrams are not grouped: 0 when none can be.
    segment_bytes_max: usize,
    groups: Vec<Group>,
    counters: Arc<LinkCounters>,
}

impl SendState {
    fn new(segment_bytes_max: usize, counters: Arc<LinkCounters>) -> Self {
        Self { segment_bytes_max, groups: Vec::with_capacity(CALL_DATAGRAMS_MAX), counters }
    }

    fn plan(&mut self, outgoing: &impl Outgoing) {
        plan(outgoing, self.segment_bytes_max, &mut self.groups);
    }

    /// Takes the result of sending the planned groups, and returns how many datagrams are done. The
    /// next round plans the others again, with the lessons of this result.
    fn settle(&mut self, result: Result<usize, Errno>) -> usize {
        let counters = &self.counters;
        counters.send_calls.add(1);
        match result {
            Ok(sent) => self.count_sent(sent),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                counters.send_refused.add(1);
                0
            }
            // About an earlier datagram; this call sent nothing.
            Err(Errno::CONNREFUSED) => {
                counters.errors_late.add(1);
                0
            }
            Err(error) => self.refuse_first(error),
        }
    }

    fn count_sent(&self, sent: usize) -> usize {
        let counters = &self.counters;
        let (mut datagrams, mut bytes, mut groups) = (0, 0, 0);
        for group in &self.groups[..sent] {
            datagrams += group.count;
            bytes += group.bytes;
            groups += u64::from(group.count > 1);
        }
        counters.send_messages.add(sent as u64);
        counters.send_groups.add(groups);
        counters.datagrams_sent.add(datagrams as u64);
        counters.bytes_sent.add(bytes as u64);
        if sent < self.groups.len() {
            counters.send_refused.add(1);
        }
        datagrams
    }

    /// The first group cannot be sent. If it is one, groups may be to blame: EIO is a network card
    /// that cannot compute their checksums, the others are segments longer than the path's MTU.
    /// Otherwise that datagram never will be; the transport takes it for lost.
    fn refuse_first(&mut self, error: Errno) -> usize {
        let first = self.groups[0];
        let grouped = first.count > 1;
        match error {
            Errno::IO if grouped => self.segment_bytes_max = 0,
            Errno::INVAL | Errno::MSGSIZE if grouped => {
                self.segment_bytes_max = first.segment_bytes - 1;
            }
            _ => {
                self.counters.send_dropped.add(first.count as u64);
                return first.count;
            }
        }
        self.counters.grouping_reduced.add(1);
        0
    }
}

#[cfg(test)]
mod tests;
