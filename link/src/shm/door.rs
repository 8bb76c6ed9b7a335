//! How two processes come to share a region: one dials a Unix socket, the other answers.
//!
//! The dialling side makes everything (the region, an eventfd for each side) and sends it in one
//! message with the port of the sidecore that it means. The connection stays open and silent: that
//! it ends is how each side learns that the other is gone.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use sidecore::foreign;

use super::region::{RegionError, ShmRegion};

/// The first message has this magic number, the version and the sidecore's port.
const MAGIC: [u8; 8] = *b"vrio-shm";
const VERSION: u16 = 1;
const MESSAGE_BYTES: usize = 12;

/// The region, the dialling side's bell, the answering side's bell.
const MESSAGE_FDS: usize = 3;

/// How long a caller may take to say what it wants.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Callers that wait for their sidecore to take them in. More at once is a flood, and hung up on.
const WAITING_MAX: usize = 64;

/// A region with a peer at its other end.
#[derive(Debug)]
pub(super) struct ShmConnection {
    pub(super) region: Arc<ShmRegion>,
    /// Which side made it, and so which ring is whose.
    pub(super) dialled: bool,
    /// The peer rings ours; we ring the peer's. The peer holds both, so neither is read nor written
    /// but by [`foreign`].
    pub(super) own_bell: OwnedFd,
    pub(super) peer_bell: OwnedFd,
    /// Ends when the peer does.
    pub(super) connection: OwnedFd,
}

impl ShmConnection {
    /// Calls the node whose door is at `path`, for its sidecore with this port; does not wait.
    pub(super) fn dial(path: &Path, port: u16) -> Result<Self, DialError> {
        let system = |errno: Errno| DialError::System(errno);
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = rustix::net::socket_with(kind.0, kind.1, flags, None).map_err(system)?;
        let address = SocketAddrUnix::new(path).map_err(system)?;
        rustix::net::connect(&connection, &address).map_err(system)?;
        let (region, memory) = ShmRegion::create()?;
        let (own_bell, peer_bell) = (bell().map_err(system)?, bell().map_err(system)?);
        let mut message = [0; MESSAGE_BYTES];
        message[..8].copy_from_slice(&MAGIC);
        message[8..10].copy_from_slice(&VERSION.to_le_bytes());
        message[10..].copy_from_slice(&port.to_le_bytes());
        let fds = [memory.as_fd(), own_bell.as_fd(), peer_bell.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "room was made for them");
        let parts = [IoSlice::new(&message)];
        rustix::net::sendmsg(&connection, &parts, &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(system)?;
        let region = Arc::new(region);
        Ok(Self { region, dialled: true, own_bell, peer_bell, connection })
    }

    /// Takes in what a caller sent, and the port that it asked for.
    fn answer(connection: OwnedFd) -> Result<(u16, Self), AnswerError> {
        let readable = PollFd::new(&connection, PollFlags::IN);
        if poll(&mut [readable], Some(&PATIENCE))? == 0 {
            return Err(AnswerError::Silent);
        }
        let mut message = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let parts = &mut [IoSliceMut::new(&mut message)];
        let got = rustix::net::recvmsg(&connection, parts, &mut ancillary, flags)?;
        let mut fds = Vec::with_capacity(MESSAGE_FDS);
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        let is_whole = got.bytes == MESSAGE_BYTES && !got.flags.contains(ReturnFlags::CTRUNC);
        let is_ours = message[..8] == MAGIC && message[8..10] == VERSION.to_le_bytes();
        let Ok([memory, peer_bell, own_bell]) = <[OwnedFd; MESSAGE_FDS]>::try_from(fds) else {
            return Err(AnswerError::Foreign);
        };
        if !is_whole || !is_ours {
            return Err(AnswerError::Foreign);
        }
        let region = Arc::new(ShmRegion::of_peer(memory.as_fd())?);
        if !foreign::is_eventfd(own_bell.as_fd()) || !foreign::is_eventfd(peer_bell.as_fd()) {
            return Err(AnswerError::Foreign);
        }
        let port = u16::from_le_bytes([message[10], message[11]]);
        Ok((port, Self { region, dialled: false, own_bell, peer_bell, connection }))
    }

    /// Whether the peer has closed its end, or died.
    pub(super) fn is_hung_up(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recv(&self.connection, &mut byte, flags) {
            Ok((_, 0)) => true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }
}

/// Why a peer could not be called.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error(transparent)]
    System(Errno),
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Why a caller was hung up on.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum AnswerError {
    #[error("it sent nothing for a second")]
    Silent,
    #[error("it is not a vrio node, or a vrio node of another version")]
    Foreign,
    #[error(transparent)]
    System(#[from] Errno),
    #[error(transparent)]
    Region(#[from] RegionError),
}

fn bell() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// A sidecore's side of the door: callers that asked for this sidecore.
#[derive(Debug)]
pub struct Callers {
    waiting: Receiver<ShmConnection>,
    /// Set when a caller was put into the queue: looking costs a load.
    pub(super) news: Arc<AtomicBool>,
    /// Readable until the sidecore has looked.
    pub(super) bell: OwnedFd,
}

impl Callers {
    pub(super) fn next(&self) -> Option<ShmConnection> {
        self.waiting.try_recv().ok()
    }
}

/// The door's side of a sidecore.
#[derive(Debug)]
struct ListenerSide {
    port: u16,
    queue: SyncSender<ShmConnection>,
    news: Arc<AtomicBool>,
    bell: OwnedFd,
}

/// The socket at which other processes of this machine call, and the thread that answers. Dropped,
/// it takes both away; lines that are there stay.
#[derive(Debug)]
pub struct ShmListener {
    path: PathBuf,
    shared: Arc<ListenerShared>,
    thread: Option<JoinHandle<()>>,
}

/// State that the door and its thread share.
#[derive(Debug)]
struct ListenerShared {
    listener: OwnedFd,
    /// The thread holds the lock while it answers a caller.
    mode: Mutex<ListenerMode>,
    /// Rung when that has changed.
    changed: OwnedFd,
}

/// The treatment of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerMode {
    Answer,
    /// They wait in the socket's queue, with what they have said.
    LetWait,
    End,
}

impl ListenerShared {
    fn mode(&self) -> MutexGuard<'_, ListenerMode> {
        // A word is never half-written.
        self.mode.lock()
    }

    fn set(&self, mode: ListenerMode) {
        *self.mode() = mode;
        let _ = ring(self.changed.as_fd());
    }
}

impl ShmListener {
    /// Opens a door at `path` for the sidecores with these ports, in their order. A socket that a
    /// dead process left there is replaced; only this user may call.
    ///
    /// # Errors
    /// When the path is in use, is no socket, or the system refuses.
    pub fn open(path: &Path, ports: &[u16]) -> io::Result<(Self, Vec<Callers>)> {
        make_way(path)?;
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        // Set before the socket has a name, so that no other user can connect in between.
        rustix::fs::fchmod(&listener, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, WAITING_MAX as i32)?;
        let (door, callers) = Self::adopt(path, ports, listener)?;
        door.answer(true);
        Ok((door, callers))
    }

    /// Goes on with the door of another process: `listener` is its socket. Callers wait there until
    /// [`ShmListener::answer`] says that it is this process that answers.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn adopt(
        path: &Path,
        ports: &[u16],
        listener: OwnedFd,
    ) -> io::Result<(Self, Vec<Callers>)> {
        // Only one process answers at a time. If two did for a moment, a thread that finds the
        // queue empty must not wait for the next caller.
        let flags = rustix::fs::fcntl_getfl(&listener)?;
        rustix::fs::fcntl_setfl(&listener, flags | rustix::fs::OFlags::NONBLOCK)?;
        let (mut rooms, mut callers) = (Vec::new(), Vec::new());
        for &port in ports {
            let (queue, waiting) = sync_channel(WAITING_MAX);
            let news = Arc::new(AtomicBool::new(false));
            let rung = bell()?;
            let bell = rung.try_clone()?;
            callers.push(Callers { waiting, news: Arc::clone(&news), bell: rung });
            rooms.push(ListenerSide { port, queue, news, bell });
        }
        let mode = Mutex::new(ListenerMode::LetWait);
        let shared = Arc::new(ListenerShared { listener, mode, changed: bell()? });
        let answers = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("shm-door".to_owned())
            .spawn(move || answer_all(&answers, &rooms))?;
        Ok((Self { path: path.to_owned(), shared, thread: Some(thread) }, callers))
    }

    /// Whether callers are answered from now on, or wait until they are. When this returns it is
    /// so; that takes up to a second where a caller is slow to say what it wants.
    pub fn answer(&self, answers: bool) {
        self.shared.set(if answers { ListenerMode::Answer } else { ListenerMode::LetWait });
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its socket.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.shared.listener.as_fd()
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        self.shared.set(ListenerMode::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = ?self.path, %error, "the shared-memory socket stays behind");
        }
    }
}

/// Signals an eventfd of this process's own. That its counter is full is as good.
fn ring(bell: BorrowedFd<'_>) -> Result<(), Errno> {
    match rustix::io::write(bell, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Takes the signal of an eventfd of this process's own back. `false`: there was none.
pub(super) fn hush(bell: BorrowedFd<'_>) -> bool {
    rustix::io::read(bell, &mut [0; 8]).is_ok()
}

/// Removes the socket that a dead process left at `path`.
///
/// # Errors
/// When another process answers there (`AddrInUse`), when what is there is no socket (the same), or
/// when the system refuses.
pub fn make_way(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let taken = |text| Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    if !metadata.file_type().is_socket() {
        return taken("the path exists and is not a socket");
    }
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let probe = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        // Only that user can tell whether the socket's process lives.
        Err(Errno::ACCESS) => {
            let text = "the path has another user's socket; remove it if its process has ended";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
        // A socket of another kind has an owner, too.
        _ => taken("another process has this socket"),
    }
}

/// The door's thread: one caller after the other, each for at most a second.
fn answer_all(shared: &ListenerShared, rooms: &[ListenerSide]) {
    loop {
        let listens =
            if *shared.mode() == ListenerMode::Answer { PollFlags::IN } else { PollFlags::empty() };
        let changed = PollFd::new(&shared.changed, PollFlags::IN);
        match poll(&mut [changed, PollFd::new(&shared.listener, listens)], None) {
            Err(Errno::INTR) => continue,
            Err(errno) => panic!("poll of our own descriptors: {errno}"),
            Ok(_) => {}
        }
        hush(shared.changed.as_fd());
        // Held until the caller is answered. So when [`ListenerMode::LetWait`] is set, no caller is
        // let in afterwards.
        let mode = shared.mode();
        match *mode {
            ListenerMode::Answer => {}
            ListenerMode::LetWait => continue,
            ListenerMode::End => return,
        }
        let connection = match rustix::net::accept_with(&shared.listener, SocketFlags::CLOEXEC) {
            Ok(connection) => connection,
            Err(Errno::AGAIN) => continue,
            Err(_) => {
                drop(mode);
                // No descriptors left, most likely: not for ever, and not in a circle.
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            }
        };
        match ShmConnection::answer(connection) {
            Ok((port, line)) => show_in(rooms, port, line),
            Err(error) => tracing::warn!(%error, "a caller on the shared-memory socket is refused"),
        }
    }
}

/// Hands a caller to its sidecore; port 0 means the first.
fn show_in(rooms: &[ListenerSide], port: u16, line: ShmConnection) {
    let Some(room) = rooms.iter().find(|room| port == 0 || room.port == port) else { return };
    if room.queue.try_send(line).is_ok() {
        room.news.store(true, Release);
        let _ = ring(room.bell.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a caller comes within this time; takes its connection.
    fn comes(callers: &Callers, limit_ms: i64) -> Option<ShmConnection> {
        let limit = Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(&callers.bell, PollFlags::IN)], Some(&limit)).unwrap();
        hush(callers.bell.as_fd());
        callers.next()
    }

    #[test]
    fn callers_wait_until_a_node_answers() {
        const LONG_MS: i64 = 20_000;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("door");
        let (first, at_first) = ShmListener::open(&path, &[1]).unwrap();
        let listener = first.listener().try_clone_to_owned().unwrap();
        let (second, at_second) = ShmListener::adopt(&path, &[1], listener).unwrap();
        let call = || ShmConnection::dial(&path, 0).unwrap();
        let _early = call();
        assert!(comes(&at_first[0], LONG_MS).is_some(), "the one who has it answers");
        first.answer(false);
        let line = call();
        let nobody = || comes(&at_first[0], 50).is_none() && comes(&at_second[0], 50).is_none();
        assert!(nobody() && !line.is_hung_up());
        second.answer(true);
        let taken_in = comes(&at_second[0], LONG_MS);
        assert!(taken_in.is_some() && nobody() && !line.is_hung_up(), "once");
        // And back.
        second.answer(false);
        let _late = call();
        assert!(nobody());
        first.answer(true);
        assert!(comes(&at_first[0], LONG_MS).is_some());
    }
}
