//! A tap interface as an uplink: frames go to the host's own network stack, with their offloads.
//!
//! The port reads and writes one frame by one system call, as the kernel wants it; an idle
//! interface is looked at every few microseconds only. An interface that vanishes is opened again
//! by the uplink's keeper; until then frames to it are dropped as [`Reason::LinkDown`].

mod copies;
mod open;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use sidecore::{Progress, Wake, Waker};
use virtio::Segment;

use crate::ether::TAG_BYTES;
use crate::finish::Finisher;
use crate::frame::{BURST_FRAMES_MAX, Burst, FRAME_BYTES_MAX, Frame, HEAD_BYTES_MAX};
use crate::offload::{HEADER_BYTES, Offers, Offload};
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;

use super::keeper::{self, InterfaceState, Keeper, KeeperPort, MakePort, Source, UplinkCore};
use super::{UplinkError, UplinkFds};
pub(crate) use copies::CopyTap;
pub use open::{TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ, TapError};

/// Where taps are opened.
pub const DEVICE: &str = "/dev/net/tun";

/// How long an interface that had nothing is not asked again while the sidecore spins: asking is a
/// system call, and what comes is not for it in the first place.
const PAUSE_NS: u64 = 5_000;

/// The most pieces of a body that are handed to the kernel as they are; a frame in more is put
/// together first.
const PIECES_MAX: usize = 64;

/// Room for a frame and the header before it.
const BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX;

/// An interface that was opened.
#[derive(Debug)]
pub(super) struct OpenedTap {
    fd: OwnedFd,
    /// It takes UDP that is still to be cut.
    udp: bool,
}

impl OpenedTap {
    /// The unfinished work that it takes.
    fn offers(&self) -> Offers {
        Offers { udp4: self.udp, udp6: self.udp, ..Offers::ALL }
    }
}

/// See the module's text.
pub struct Tap {
    kept: KeeperPort<OpenedTap>,
    counters: Arc<PortCounters>,
    interface: Option<OpenedTap>,
    /// Room for frames that are read, one after the other.
    buffers: Vec<Box<[u8]>>,
    /// Room for a frame in too many pieces.
    whole: Vec<u8>,
    finisher: Finisher,
    look_at_ns: u64,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("core", &self.kept.core).finish_non_exhaustive()
    }
}

/// Opens a tap.
#[derive(Debug)]
struct Taps(String);

impl Source for Taps {
    type Opened = OpenedTap;
    type Error = TapError;

    fn name(&self) -> &str {
        &self.0
    }

    fn open(&mut self) -> Result<OpenedTap, TapError> {
        open::open(&self.0)
    }

    fn fds(opened: &OpenedTap) -> io::Result<UplinkFds> {
        Ok(UplinkFds::Tap { fd: opened.fd.try_clone()?, udp: opened.udp })
    }

    /// Reading one that is gone fails; of one that is set down, which may be read, only writing
    /// does.
    fn look(&mut self) -> io::Result<Option<InterfaceState>> {
        match link::interface_is_running(&self.0) {
            Ok(true) => Ok(Some(InterfaceState::Up)),
            Ok(false) => Ok(Some(InterfaceState::Down)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A tap that was opened; see [`super::OpenUplink`].
pub struct OpenTap {
    name: String,
    first: OpenedTap,
    paused: bool,
}

impl std::fmt::Debug for OpenTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenTap").field("name", &self.name).finish_non_exhaustive()
    }
}

impl OpenTap {
    /// Opens the interface, which is made if there is none of that name, and sets it up.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(name: &str) -> Result<Self, TapError> {
        Ok(Self { name: name.to_owned(), first: open::open(name)?, paused: false })
    }

    /// The same interface as in another process, which gave [`UplinkFds::Tap`]. It is left alone
    /// until [`UplinkCore::set_paused`].
    pub fn adopt(name: &str, fd: OwnedFd, udp: bool) -> Self {
        Self { name: name.to_owned(), first: OpenedTap { fd, udp }, paused: true }
    }

    /// Its descriptor, for who reads and writes frames by himself: it does not block, and a header
    /// of [`HEADER_BYTES`] stands before each.
    pub fn into_fd(self) -> OwnedFd {
        self.first.fd
    }

    /// See [`super::OpenUplink::into_parts`].
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn into_parts(
        self,
        counters: Arc<PortCounters>,
        waker: Waker,
        told: impl Fn(bool) + Send + 'static,
    ) -> Result<(MakePort, Arc<UplinkCore>, Keeper), UplinkError> {
        let Self { name, first, paused } = self;
        let started = keeper::start(Taps(name), &first, paused, waker, told);
        let (kept, keeper) = started.map_err(UplinkError::Thread)?;
        let core = Arc::clone(&kept.core);
        let make = Box::new(move || {
            let room = || vec![0; BUFFER_BYTES].into();
            let port: Box<dyn Port> = Box::new(Tap {
                kept,
                counters,
                interface: Some(first),
                buffers: (0..BURST_FRAMES_MAX).map(|_| room()).collect(),
                whole: Vec::with_capacity(FRAME_BYTES_MAX),
                finisher: Finisher::new(),
                look_at_ns: 0,
            });
            port
        });
        Ok((make, core, keeper))
    }
}

impl Tap {
    /// The interface is gone: the keeper must look for it.
    fn lose(&mut self) {
        if let Some(interface) = self.interface.take() {
            self.kept.lose(interface);
        }
    }

    /// Reads frames until there are none, or room for no more.
    fn read(&mut self, burst: &mut Burst) -> Result<usize, Errno> {
        let Some(interface) = &self.interface else { return Ok(0) };
        let mut count = 0;
        for buffer in &mut self.buffers {
            if burst.is_full() {
                break;
            }
            let len = match rustix::io::read(&interface.fd, &mut buffer[..]) {
                Ok(len) => len,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno),
            };
            count += 1;
            if let Err(reason) = take(&mut buffer[..len], burst) {
                self.counters.drops_in.count(reason);
            }
        }
        Ok(count)
    }
}

/// Adds the frame in `buffer`, behind its header, to the burst.
fn take(buffer: &mut [u8], burst: &mut Burst) -> Result<(), Reason> {
    let header = buffer.first_chunk().ok_or(Reason::Short)?;
    let offload = Offload::read(header)?;
    let segment = Segment { addr: buffer.as_mut_ptr(), len: buffer.len() as u32 };
    // SAFETY: the buffer is the port's own, and is not touched before the port gets the burst back.
    let frame = unsafe { burst.push(&[segment], HEADER_BYTES) }?;
    frame.offload = offload;
    let checked = frame.strip_tag().and_then(|()| frame.accept(&Offers::ALL));
    if checked.is_err() {
        burst.pop();
    }
    checked
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(interface) = self.interface.take() {
            self.kept.give_back(interface);
        }
    }
}

impl Port for Tap {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        if now_ns < self.look_at_ns || self.kept.core.is_paused() {
            return Progress::Idle;
        }
        if let Some(opened) = self.kept.incoming.receive() {
            self.interface = Some(opened);
        }
        match self.read(burst) {
            Ok(0) => {
                self.look_at_ns = now_ns + PAUSE_NS;
                Progress::Idle
            }
            Ok(_) => Progress::Busy,
            Err(error) => {
                tracing::warn!(%error, "an uplink's interface is gone; it is looked for");
                self.lose();
                Progress::busy_if(!burst.is_empty())
            }
        }
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], _now_ns: u64) {
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            let is_ours = !self.kept.core.is_paused();
            let Some(interface) = self.interface.as_ref().filter(|_| is_ours) else {
                self.counters.drops_out.count(Reason::LinkDown);
                continue;
            };
            let (offers, whole, counters) = (interface.offers(), &mut self.whole, &self.counters);
            let written = self.finisher.each(frame, burst, &offers, counters, |frame| {
                write(interface, frame, chosen.tci, burst, whole)
            });
            match written {
                Ok(()) => {
                    self.counters.frames_out.add(1);
                    self.counters.bytes_out.add(frame.len_bytes() as u64);
                }
                Err(Errno::AGAIN) => self.counters.drops_out.count(Reason::NoRoom),
                // It is there, and set down.
                Err(Errno::IO) => self.counters.drops_out.count(Reason::LinkDown),
                Err(Errno::BADFD | Errno::NODEV | Errno::BADF) => {
                    self.counters.drops_out.count(Reason::LinkDown);
                    self.lose();
                }
                Err(_) => self.counters.drops_out.count(Reason::Refused),
            }
        }
    }

    fn flush(&mut self) {}

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.look_at_ns = 0;
        if self.kept.core.is_paused() {
            return Progress::Idle;
        }
        if let Some(interface) = &self.interface {
            wake.on_readable(interface.fd.as_fd());
        }
        // The keeper wakes us when it puts an interface in.
        Progress::busy_if(!self.kept.incoming.is_empty())
    }
}

/// Writes one frame.
fn write(
    interface: &OpenedTap,
    frame: &Frame,
    tci: u16,
    burst: &Burst,
    whole: &mut Vec<u8>,
) -> Result<(), Errno> {
    let mut first = [0; HEADER_BYTES + HEAD_BYTES_MAX + TAG_BYTES];
    let tag_bytes = if tci == 0 { 0 } else { TAG_BYTES as u16 };
    let header: &mut [u8; HEADER_BYTES] = first.first_chunk_mut().expect("the array is longer");
    frame.offload.write(frame.head(), tag_bytes, header);
    let len = HEADER_BYTES + frame.write_head(tci, &mut first[HEADER_BYTES..]);
    let vector =
        |at: *const u8, len: usize| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
    let mut vectors = [vector(std::ptr::null(), 0); PIECES_MAX + 1];
    vectors[0] = vector(first.as_ptr(), len);
    let mut count = 1;
    let mut fits = true;
    burst.each_piece(frame, |piece| {
        fits &= count <= PIECES_MAX;
        if fits {
            vectors[count] = vector(piece.addr, piece.len as usize);
            count += 1;
        }
    });
    if !fits {
        whole.clear();
        whole.resize(frame.body_bytes(), 0);
        burst.read_body(frame, 0, whole);
        vectors[1] = vector(whole.as_ptr(), whole.len());
        count = 2;
    }
    // SAFETY: the vectors name our own memory, and pieces of a burst's frame, which are valid until
    // it is cleared. The guest may change those meanwhile: only the kernel reads them, once, and
    // there is no reference to them.
    let written =
        unsafe { libc::writev(interface.fd.as_raw_fd(), vectors.as_ptr(), count as libc::c_int) };
    if written >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests;
