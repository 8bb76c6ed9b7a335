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

use handover::{DescriptorNumber, SentDescriptors};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidecore::{Progress, Wake};
use virtio::Segment;

use crate::ether::TAG_BYTES;
use crate::finish::Finisher;
use crate::frame::{BURST_FRAMES_MAX, Burst, FRAME_BYTES_MAX, Frame, HEAD_BYTES_MAX};
use crate::offload::{HEADER_BYTES, Offers, Offload};
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;

use super::cards::Cards;
use super::hand_over::{self, HandedInterface, InterfaceFds};
use super::interface::is_interface;
use super::keeper::{InterfaceState, KeeperPort, Source};
use super::kind::{NetworkUplink, UplinkNeeds};
use super::opened::OpenUplink;
pub(crate) use copies::CopyTap;
pub use open::TapError;
use open::{TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ};

/// Where taps are opened.
const DEVICE: &str = "/dev/net/tun";

/// How long an interface that had nothing is not asked again while the sidecore spins: asking is a
/// system call, and what comes is not for it in the first place.
const PAUSE_NS: u64 = 5_000;

/// The most pieces of a body that are handed to the kernel as they are; a frame in more is put
/// together first.
const PIECES_MAX: usize = 64;

/// Room for a frame and the header before it.
const BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX;

/// A tap as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TapUplink {
    interface: String,
}

impl TapUplink {
    /// The tap with this name.
    pub fn new(interface: &str) -> Self {
        Self { interface: interface.to_owned() }
    }
}

impl NetworkUplink for TapUplink {
    const NAME: &'static str = "tap";
    // A tap of the node's own user is opened again without further rights.
    const NEEDS: UplinkNeeds = UplinkNeeds {
        devices: &[DEVICE],
        calls: &[],
        ioctls: &[
            TUNSETIFF,
            TUNSETOFFLOAD,
            TUNSETVNETHDRSZ,
            libc::SIOCGIFFLAGS,
            libc::SIOCSIFFLAGS,
        ],
    };

    fn read(place: &str) -> Option<Self> {
        is_interface(place).then(|| Self::new(place))
    }

    fn place(&self) -> &str {
        &self.interface
    }

    fn open(&self, _cards: &Arc<dyn Cards>) -> Result<OpenUplink, String> {
        let first = open::open(&self.interface).map_err(|error| error.to_string())?;
        Ok(OpenUplink::new(Taps(self.interface.clone()), first, false))
    }

    fn adopt(
        &self,
        handed: HandedInterface<'_>,
        _cards: &Arc<dyn Cards>,
    ) -> Result<OpenUplink, String> {
        let (TapState { tap, udp }, received) = handed.read(Self::NAME)?;
        let fd = received.take(tap).map_err(|error| error.to_string())?;
        let first = OpenedTap { fd, udp };
        Ok(OpenUplink::new(Taps(self.interface.clone()), first, true))
    }
}

/// A tap in a hand-over.
#[derive(Debug, Serialize, Deserialize)]
struct TapState {
    tap: DescriptorNumber,
    /// It takes UDP that is still to be cut.
    udp: bool,
}

/// Opens the tap with this name, which is made if there is none, and sets it up. It is for a caller
/// that reads and writes frames itself: the descriptor does not block, and a header of
/// [`HEADER_BYTES`] stands before each frame.
///
/// # Errors
/// When it cannot be opened.
pub fn open_frames(name: &str) -> Result<OwnedFd, TapError> {
    open::open(name).map(|opened| opened.fd)
}

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

impl InterfaceFds for OpenedTap {
    fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<Value> {
        let tap = sent.put_copy(&self.fd)?;
        hand_over::written(TapUplink::NAME, &TapState { tap, udp: self.udp })
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

    fn fds(opened: &OpenedTap) -> io::Result<Box<dyn InterfaceFds>> {
        Ok(Box::new(OpenedTap { fd: opened.fd.try_clone()?, udp: opened.udp }))
    }

    fn port(
        kept: KeeperPort<OpenedTap>,
        first: OpenedTap,
        counters: Arc<PortCounters>,
    ) -> Box<dyn Port> {
        let room = || vec![0; BUFFER_BYTES].into();
        Box::new(Tap {
            kept,
            counters,
            interface: Some(first),
            buffers: (0..BURST_FRAMES_MAX).map(|_| room()).collect(),
            whole: Vec::with_capacity(FRAME_BYTES_MAX),
            finisher: Finisher::new(),
            look_at_ns: 0,
        })
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
                tracing::warn!(%error, "an uplink's interface is gone; the node looks for it");
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
