//! One receive queue of an interface, past the network stack: a socket of AF_XDP, its four rings,
//! and the frames that they speak of.
//!
//! ```text
//!   fill:    frames to receive in  ─▶ kernel ─▶  receive: packets that came
//!   send:    packets to go out     ─▶ kernel ─▶  sent:    their frames again
//! ```
//!
//! All of it is in two descriptors: the socket, and the file of the frames. A process that has both
//! can go on with the queue, because the rings themselves say where they are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpMmapOffsets, XdpOptionsFlags,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

use super::ring::{RingSide, XdpDescriptor, XdpFrames, XdpRing};
use super::{XdpError, system};

/// A frame: a page, the most that the kernel takes without huge pages.
pub(super) const FRAME_BYTES: usize = 4096;

/// The bytes that the kernel reserves before a packet.
pub(super) const HEADROOM_BYTES: usize = 256;

/// Frames to receive in, and packets that may wait to be received: 8 MiB, as [`crate::Udp`] asks
/// of its socket.
const RECEIVE_FRAMES: u32 = 2048;

/// The ring by which they are given to the kernel. It has twice the room: the kernel shows a packet
/// before it says that it has taken the frame.
const FILL_RING: u32 = 2 * RECEIVE_FRAMES;

/// Frames to send from: more than a round sends.
const SEND_FRAMES: u32 = 1024;

/// The file of all frames.
const MEMORY_BYTES: u64 = (RECEIVE_FRAMES + SEND_FRAMES) as u64 * FRAME_BYTES as u64;

/// A piece after which others of the same packet follow (`linux/if_xdp.h`).
const XDP_PKT_CONTD: u32 = 1;

/// In copy mode a system call sends some thirty packets: no round makes more calls than a full ring
/// takes.
const SEND_CALLS_MAX: u32 = SEND_FRAMES / 32;

/// How long the kernel may refuse a queue after its last holder has closed it: the kernel tidies up
/// after the close has returned.
const BUSY: Duration = Duration::from_millis(500);

/// When to try again to send what the kernel has not taken.
const RETRY_NS: u64 = 100_000;

/// The same while the interface is down, at most: it waits twice as long after each time.
const RETRY_DOWN_NS_MAX: u64 = 100_000_000;

/// The bytes that the kernel may have on their way for us, in copy mode.
const SEND_BUFFER_BYTES: usize = 8 << 20;

/// A part of a packet that came; it stays as it is until its frame is given back.
#[derive(Clone, Copy, Debug)]
pub struct XdpPart {
    /// Where it lies in this process.
    pub addr: *mut u8,
    /// How long it is.
    pub len: u32,
    /// No other part of the same packet follows.
    pub is_last: bool,
    /// For [`XdpQueue::give_back`].
    pub frame: u64,
}

/// The result of sending packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct XdpSent {
    /// System calls.
    pub calls: u64,
    /// The kernel's error when it took no packet.
    pub refused: Option<Errno>,
}

/// The descriptors of a queue, for the process that goes on with it.
#[derive(Debug)]
pub struct XdpQueueFds {
    /// The socket of AF_XDP.
    pub socket: OwnedFd,
    /// The file of its frames.
    pub memory: OwnedFd,
}

impl XdpQueueFds {
    /// The same descriptors again.
    ///
    /// # Errors
    /// When the system has no more of them.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, memory: self.memory.try_clone()? })
    }
}

/// See the module's text. Belongs to one thread.
#[derive(Debug)]
pub struct XdpQueue {
    // The rings go before the socket, and that before its frames.
    receive: XdpRing<XdpDescriptor>,
    send: XdpRing<XdpDescriptor>,
    fill: XdpRing<u64>,
    sent: XdpRing<u64>,
    fds: XdpQueueFds,
    frames: XdpFrames,
    /// Frames to send from.
    free: Vec<u64>,
    /// All that was sent before this one had the queue is back, and `free` is right.
    is_settled: bool,
    /// Frames were given back, and the kernel was not shown.
    has_given: bool,
    zero_copy: bool,
    /// The interface is down: when it is asked again, and how long that is after the last time.
    ask_at_ns: u64,
    down_ns: u64,
}

impl XdpQueue {
    /// Takes a queue of an interface. `pieces`: packets may lie in several frames.
    pub(super) fn open(interface_index: u32, queue: u32, pieces: bool) -> Result<Self, XdpError> {
        let socket = open_socket()?;
        let memory = memory().map_err(system("making frames"))?;
        let frames = XdpFrames::new(memory.as_fd(), MEMORY_BYTES as usize, FRAME_BYTES);
        let frames = frames.map_err(system("mapping frames"))?;
        prepare(&socket, &frames).map_err(system("giving the socket its frames"))?;
        let mut opened = Self::with(XdpQueueFds { socket, memory }, frames)?;
        // Before a card may look for them.
        (0..RECEIVE_FRAMES).for_each(|number| opened.fill.put(frame_at(number)));
        opened.fill.publish();
        let socket = &opened.fds.socket;
        if sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER_BYTES).is_err() {
            // Less is on its way at once, then.
            let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES);
        }
        let bound = bind(socket, interface_index, queue, pieces);
        bound.map_err(system("taking a queue of the interface"))?;
        opened.zero_copy = is_zero_copy(socket);
        Ok(opened)
    }

    /// Goes on with a queue that another process has opened.
    ///
    /// # Errors
    /// When it cannot be mapped.
    ///
    /// # Safety
    /// These are a queue's [`fds`](Self::fds), and the queue's former holder, in any process, does
    /// not use it after this call. Or the value that this returns is dropped without having been
    /// used.
    pub unsafe fn adopt(fds: XdpQueueFds) -> Result<Self, XdpError> {
        let frames = XdpFrames::new(fds.memory.as_fd(), MEMORY_BYTES as usize, FRAME_BYTES);
        let adopted = Self::with(fds, frames.map_err(system("mapping frames"))?);
        adopted.map_err(|error| match error {
            // For a socket whose interface is gone; and before Linux 6.4 for any that is bound.
            XdpError::System { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
                XdpError::NotToBeMapped
            }
            error => error,
        })
    }

    fn with(fds: XdpQueueFds, frames: XdpFrames) -> Result<Self, XdpError> {
        let mapped = || -> io::Result<_> {
            let XdpMmapOffsets { rx, tx, fr, cr } = sockopt::xdp_mmap_offsets(&fds.socket)?;
            let fd = fds.socket.as_fd();
            Ok((
                XdpRing::new(fd, XDP_PGOFF_RX_RING, &rx, RECEIVE_FRAMES, RingSide::Takes)?,
                XdpRing::new(fd, XDP_PGOFF_TX_RING, &tx, SEND_FRAMES, RingSide::Fills)?,
                XdpRing::new(fd, XDP_UMEM_PGOFF_FILL_RING, &fr, FILL_RING, RingSide::Fills)?,
                XdpRing::new(
                    fd,
                    XDP_UMEM_PGOFF_COMPLETION_RING,
                    &cr,
                    SEND_FRAMES,
                    RingSide::Takes,
                )?,
            ))
        };
        let mapped = mapped().map_err(system("mapping the socket's rings"))?;
        let (receive, send, fill, sent) = mapped;
        let zero_copy = is_zero_copy(&fds.socket);
        let free = Vec::with_capacity(SEND_FRAMES as usize);
        Ok(Self {
            receive,
            send,
            fill,
            sent,
            fds,
            frames,
            free,
            is_settled: false,
            has_given: false,
            zero_copy,
            ask_at_ns: 0,
            down_ns: 0,
        })
    }

    /// The queue's descriptors.
    pub fn fds(&self) -> &XdpQueueFds {
        &self.fds
    }

    /// Readable when something has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fds.socket.as_fd()
    }

    /// Whether the card reads and writes the frames itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether something has come that was not taken.
    pub fn has_any(&self) -> bool {
        self.receive.has_any()
    }

    /// Takes the next part of a packet that came. The caller must give its frame back.
    pub fn take(&mut self) -> Option<XdpPart> {
        let piece = self.take_piece()?;
        // A piece outside of all frames has no bytes.
        let (addr, len) = match self.frames.pointer(piece) {
            Some(addr) => (addr, piece.len),
            None => (std::ptr::dangling_mut(), 0),
        };
        Some(XdpPart { addr, len, is_last: is_last(piece), frame: piece.at })
    }

    pub(super) fn take_piece(&mut self) -> Option<XdpDescriptor> {
        self.receive.take()
    }

    /// The bytes of a piece; none if it is not inside a frame.
    pub(super) fn bytes(&self, piece: XdpDescriptor) -> Option<&[u8]> {
        self.frames.bytes(piece)
    }

    /// Gives a frame back.
    ///
    /// # Safety
    /// The frame was taken from this queue and is given back once, and its bytes are not used after
    /// the next [`release`](Self::release).
    pub unsafe fn give_back(&mut self, at: u64) {
        // Each frame is in one ring at a time, and this one has room for all.
        assert!(self.fill.has_room(1), "a frame came twice");
        self.fill.put(self.frames.frame_of(at));
        self.has_given = true;
    }

    /// Shows the kernel what was given back.
    pub fn release(&mut self) {
        self.release_counted();
    }

    /// The same; true when that took a system call.
    pub(super) fn release_counted(&mut self) -> bool {
        if !std::mem::take(&mut self.has_given) {
            return false;
        }
        self.receive.release();
        self.fill.publish();
        let needs_call = self.fill.needs_call();
        if needs_call {
            // A card that reads and writes our memory found no frame and waits to be told.
            let _ = rustix::net::recv(&self.fds.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
        needs_call
    }

    /// Takes frames back that have been sent.
    pub fn reclaim(&mut self) {
        if !self.is_settled {
            // A predecessor has sent from frames of which only their number is known: first they
            // all come back.
            if self.sent.count() != self.send.ahead_of(&self.sent) {
                return;
            }
            while self.sent.take().is_some() {}
            self.free.extend((RECEIVE_FRAMES..RECEIVE_FRAMES + SEND_FRAMES).map(frame_at));
            self.is_settled = true;
        }
        while let Some(at) = self.sent.take() {
            self.free.push(self.frames.frame_of(at));
        }
        self.sent.release();
    }

    /// Puts a packet of `len` bytes into the ring, which `write` writes, frame after frame; `false`
    /// when there is no room. It is sent by [`send`](Self::send).
    pub fn put(&mut self, len: usize, mut write: impl FnMut(&mut [u8])) -> bool {
        let count = len.div_ceil(FRAME_BYTES);
        if !self.send.has_room(count as u32) || self.free.len() < count {
            return false;
        }
        for index in 0..count {
            let len = FRAME_BYTES.min(len - index * FRAME_BYTES);
            let at = self.free.pop().expect("counted");
            write(self.frames.bytes_mut(at, len));
            let options = if index + 1 < count { XDP_PKT_CONTD } else { 0 };
            self.send.put(XdpDescriptor { at, len: len as u32, options });
        }
        true
    }

    /// Whether the kernel has taken all that was put in.
    pub fn is_taken(&self) -> bool {
        self.send.is_taken()
    }

    /// When to send again, at the latest, what was put in and is not taken; nothing if all is.
    pub fn retry_at_ns(&self, now_ns: u64) -> Option<u64> {
        (!self.is_taken()).then(|| self.ask_at_ns.max(now_ns + RETRY_NS))
    }

    /// Publishes the packets that were put in and has the kernel send them. If it does not take all
    /// of them now, it must be asked again, by the next round or at
    /// [`retry_at_ns`](Self::retry_at_ns). While the interface is down this does nothing most of
    /// the time.
    pub fn send(&mut self, now_ns: u64) -> XdpSent {
        self.send.publish();
        let mut done = XdpSent::default();
        for _ in 0..SEND_CALLS_MAX {
            if now_ns < self.ask_at_ns || self.send.is_taken() || !self.send.needs_call() {
                break;
            }
            let before = self.send.taken();
            done.calls += 1;
            // The call's result does not matter: only the ring shows whether the kernel has taken
            // some.
            let said = rustix::net::send(&self.fds.socket, &[], SendFlags::DONTWAIT);
            if self.send.taken() == before {
                done.refused = Some(said.err().unwrap_or(Errno::AGAIN));
                break;
            }
        }
        if done.calls > 0 {
            let is_down = done.refused == Some(Errno::NETDOWN);
            let longer_ns = (2 * self.down_ns).clamp(RETRY_NS, RETRY_DOWN_NS_MAX);
            self.down_ns = if is_down { longer_ns } else { 0 };
            self.ask_at_ns = if is_down { now_ns + longer_ns } else { 0 };
        }
        self.reclaim();
        done
    }
}

pub(super) fn is_last(piece: XdpDescriptor) -> bool {
    piece.options & XDP_PKT_CONTD == 0
}

/// Where a frame begins.
fn frame_at(number: u32) -> u64 {
    u64::from(number) * FRAME_BYTES as u64
}

fn memory() -> io::Result<OwnedFd> {
    let memory = memfd_create("vrio-xdp", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, MEMORY_BYTES)?;
    Ok(memory)
}

fn open_socket() -> Result<OwnedFd, XdpError> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let socket = socket_with(AddressFamily::XDP, kind, flags, None);
    socket.map_err(system("making a socket for AF_XDP"))
}

/// Gives a socket its frames and the sizes of its rings.
fn prepare(socket: &OwnedFd, frames: &XdpFrames) -> io::Result<()> {
    let area = XdpUmemReg {
        addr: frames.address(),
        len: frames.len(),
        chunk_size: FRAME_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, area)?;
    sockopt::set_xdp_umem_fill_ring_size(socket, FILL_RING)?;
    sockopt::set_xdp_umem_completion_ring_size(socket, SEND_FRAMES)?;
    sockopt::set_xdp_rx_ring_size(socket, RECEIVE_FRAMES)?;
    Ok(sockopt::set_xdp_tx_ring_size(socket, SEND_FRAMES)?)
}

/// Binds to a queue: without copies where the card can, else with.
fn bind(
    socket: &OwnedFd,
    interface_index: u32,
    queue: u32,
    pieces: bool,
) -> rustix::io::Result<()> {
    // Without a word about copies the kernel takes the better way that there is.
    let address = SocketAddrXdp::new(bind_flags(pieces), interface_index, queue);
    let until = Instant::now() + BUSY;
    loop {
        match rustix::net::bind(socket, &address) {
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(BUSY / 50),
            bound => return bound,
        }
    }
}

fn bind_flags(pieces: bool) -> SocketAddrXdpFlags {
    let in_pieces =
        if pieces { SocketAddrXdpFlags::XDP_USE_SG } else { SocketAddrXdpFlags::empty() };
    SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | in_pieces
}

fn is_zero_copy(socket: &OwnedFd) -> bool {
    let options = sockopt::xdp_options(socket).unwrap_or(XdpOptionsFlags::empty());
    options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY)
}

/// Whether the card can read and write our memory itself, at its first queue. Nothing is changed at
/// an interface that cannot.
pub(super) fn try_zero_copy(interface_index: u32, pieces: bool) -> Result<(), XdpError> {
    let memory = memory().map_err(system("making frames"))?;
    let frames = XdpFrames::new(memory.as_fd(), MEMORY_BYTES as usize, FRAME_BYTES);
    let frames = frames.map_err(system("mapping frames"))?;
    let socket = open_socket()?;
    prepare(&socket, &frames).map_err(system("giving the socket its frames"))?;
    let flags = bind_flags(pieces) | SocketAddrXdpFlags::XDP_ZEROCOPY;
    let bound = rustix::net::bind(&socket, &SocketAddrXdp::new(flags, interface_index, 0));
    bound.map_err(system("having the card read and write our memory"))
}
