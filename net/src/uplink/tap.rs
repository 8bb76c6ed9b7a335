//! A tap interface as an uplink: frames go to the host's own network stack, with their offloads.
//!
//! The port reads and writes one frame by one system call, as the kernel wants it; what is idle is
//! looked at every few microseconds only. An interface that vanishes is opened again by a thread of
//! the uplink's own, for that may wait for the kernel's network lock; until then frames to it are
//! dropped as [`Reason::LinkDown`].

mod open;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, Thread};
use std::time::Duration;

use rustix::io::Errno;
use sidecore::mailbox::{self, Receiver, Sender};
use sidecore::{Progress, Wake, Waker};
use virtio::Segment;

use crate::ether::TAG_BYTES;
use crate::finish::Finisher;
use crate::frame::{BURST_FRAMES_MAX, Burst, FRAME_BYTES_MAX, Frame, HEAD_BYTES_MAX};
use crate::offload::{HEADER_BYTES, Offers, Offload};
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;

pub use open::{TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ, TapError};

/// Where taps are opened.
pub const DEVICE: &str = "/dev/net/tun";

/// How long an interface that had nothing is not asked again while the sidecore spins: asking is a
/// system call, and what comes is not for it in the first place.
const PAUSE_NS: u64 = 5_000;

/// How often an interface that is gone is looked for.
const RETRY: Duration = Duration::from_millis(500);

/// The most pieces of a body that are handed to the kernel as they are; a frame in more is put
/// together first.
const PIECES_MAX: usize = 64;

/// Room for a frame and the header before it.
const BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX;

/// What others may know of a tap.
#[derive(Debug, Default)]
pub struct TapCore {
    up: AtomicBool,
    /// How often it was opened.
    pub opened: AtomicU64,
    /// Nothing is read or written: another process may have it.
    paused: AtomicBool,
    /// What is open, for another process.
    copy: Mutex<Option<Opened>>,
    /// Somebody is to open it.
    wanted: AtomicBool,
    ended: AtomicBool,
}

impl TapCore {
    /// Whether the interface is left alone from now on, or is not any more. Whoever says so looks
    /// at the port's network after that, which wakes its sidecore.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
    }

    /// A descriptor of what is open, and whether it takes UDP that is still to be cut: for
    /// [`OpenTap::adopt`] in another process. Nothing while the interface is away.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn copy(&self) -> io::Result<Option<(OwnedFd, bool)>> {
        let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = copy.as_ref().map(|it| Ok((it.fd.try_clone()?, it.udp)));
        copy.transpose()
    }

    /// Notes what is open. Without descriptors there is no copy, and so no hand-over.
    fn note(&self, opened: Option<&Opened>) {
        let copy = opened.and_then(|it| Some(Opened { fd: it.fd.try_clone().ok()?, udp: it.udp }));
        *self.copy.lock().unwrap_or_else(PoisonError::into_inner) = copy;
    }

    /// Whether there is an interface to write to.
    pub fn is_up(&self) -> bool {
        self.up.load(SeqCst)
    }
}

/// An interface that was opened.
#[derive(Debug)]
struct Opened {
    fd: OwnedFd,
    /// It takes UDP that is still to be cut.
    udp: bool,
}

/// See the module's text.
pub struct Tap {
    core: Arc<TapCore>,
    counters: Arc<PortCounters>,
    interface: Option<Opened>,
    incoming: Receiver<Opened>,
    keeper: Thread,
    /// Room for frames that are read, one after the other.
    buffers: Vec<Box<[u8]>>,
    /// Room for a frame in too many pieces.
    whole: Vec<u8>,
    finisher: Finisher,
    look_at_ns: u64,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("core", &self.core).finish_non_exhaustive()
    }
}

/// Looks for the interface whenever it is wanted; ends when it is dropped.
#[derive(Debug)]
pub struct TapKeeper {
    core: Arc<TapCore>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for TapKeeper {
    fn drop(&mut self) {
        self.core.ended.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It sleeps, or opens an interface; a panic of its was told already.
            let _ = thread.join();
        }
    }
}

/// A tap that was opened and is in no network yet. There is no thread yet that looks after it: one
/// that is started before the process gives rights up would keep them.
pub struct OpenTap {
    name: String,
    first: Opened,
    paused: bool,
}

/// Builds the port, on its sidecore.
pub type MakeTap = Box<dyn FnOnce() -> Box<dyn Port> + Send>;

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

    /// The same interface as in another process, which gave [`TapCore::copy`]. It is left alone
    /// until [`TapCore::set_paused`].
    pub fn adopt(name: &str, (fd, udp): (OwnedFd, bool)) -> Self {
        Self { name: name.to_owned(), first: Opened { fd, udp }, paused: true }
    }

    /// The way to build its port, which has these counters, on a sidecore; what others may know of
    /// it; and who looks after the interface, to be kept as long as the port. That one says when
    /// the interface vanishes (`false`) and when it is back, and must not be held up.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn into_parts(
        self,
        counters: Arc<PortCounters>,
        told: impl Fn(bool) + Send + 'static,
    ) -> Result<(MakeTap, Arc<TapCore>, TapKeeper), TapError> {
        let Self { name, first, paused } = self;
        let core = Arc::<TapCore>::default();
        core.set_paused(paused);
        core.note(Some(&first));
        let (mut sender, incoming) = mailbox::channel(1, Waker::none());
        core.opened.fetch_add(1, Relaxed);
        core.up.store(true, SeqCst);
        let shared = Arc::clone(&core);
        let keep = move || keep(&name, &shared, &mut sender, &told);
        let thread = Builder::new().name("tap".into()).spawn(keep).map_err(TapError::Thread)?;
        let handle = thread.thread().clone();
        let keeper = TapKeeper { core: Arc::clone(&core), thread: Some(thread) };
        let for_port = Arc::clone(&core);
        let make = Box::new(move || {
            let room = || vec![0; BUFFER_BYTES].into();
            let port: Box<dyn Port> = Box::new(Tap {
                core: for_port,
                counters,
                interface: Some(first),
                incoming,
                keeper: handle,
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
    /// The interface is gone: somebody is to look for it.
    fn lose(&mut self) {
        self.interface = None;
        self.core.up.store(false, SeqCst);
        self.core.wanted.store(true, SeqCst);
        self.keeper.unpark();
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

/// The keeper's thread.
fn keep(name: &str, core: &TapCore, port: &mut Sender<Opened>, told: &impl Fn(bool)) {
    let mut is_up = true;
    while !core.ended.load(SeqCst) && !port.is_abandoned() {
        if !core.wanted.load(SeqCst) {
            std::thread::park();
            continue;
        }
        if std::mem::take(&mut is_up) {
            core.note(None);
            told(false);
        }
        match open::open(name) {
            Ok(opened) => {
                tracing::info!(interface = name, "the uplink is back");
                is_up = true;
                core.note(Some(&opened));
                core.wanted.store(false, SeqCst);
                core.opened.fetch_add(1, Relaxed);
                // The port has taken the one before, or it would not want another.
                let _ = port.put(opened);
                told(true);
            }
            Err(error) => {
                tracing::debug!(interface = name, %error, "no uplink yet");
                std::thread::park_timeout(RETRY);
            }
        }
    }
}

impl Port for Tap {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        if now_ns < self.look_at_ns || self.core.paused.load(Relaxed) {
            return Progress::Idle;
        }
        if let Some(opened) = self.incoming.receive() {
            self.interface = Some(opened);
            self.core.up.store(true, SeqCst);
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
            let is_ours = !self.core.paused.load(Relaxed);
            let Some(interface) = self.interface.as_ref().filter(|_| is_ours) else {
                self.counters.drops_out.count(Reason::LinkDown);
                continue;
            };
            let offers = Offers { udp4: interface.udp, udp6: interface.udp, ..Offers::ALL };
            let (whole, counters) = (&mut self.whole, &self.counters);
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

    /// An interface that is looked for is asked for now and then: its keeper cannot wake us.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.look_at_ns = 0;
        match self.interface.as_ref().filter(|_| !self.core.paused.load(Relaxed)) {
            Some(interface) => wake.on_readable(interface.fd.as_fd()),
            None => wake.at(sidecore::now_ns() + RETRY.as_nanos() as u64),
        }
        Progress::busy_if(!self.incoming.is_empty())
    }
}

/// Writes one frame.
fn write(
    interface: &Opened,
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
