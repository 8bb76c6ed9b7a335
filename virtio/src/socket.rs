//! A device's socket: the process that may serve it, how front ends come and go, and the thread
//! that talks to them.
//!
//! A front end either connects to us ([`Socket::Listen`]) or listens itself
//! ([`Socket::Connect`]). There is one front end at a time; when it leaves, the next is awaited.
//!
//! Beside a socket that we listen on is a lock file, held until the process dies. A server that was
//! stopped (SIGSTOP) in the middle of a store to a guest's ring would finish that store when it
//! goes on. So no other process serves the guest before the server is dead.

mod parking;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use sidecore::LogLines;
use tracing::{error, info, warn};
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

pub use crate::access::Access;
use crate::ahead::{self, MessageHeader, NextMessage};
use crate::back_channel::BackChannel;
use crate::device::Device;
use crate::hand_over::ServedDevice;
use crate::lock::{self, SocketClaim};
use crate::session::{AdoptError, COSTLY_PAUSE, Session, SessionError};

pub use crate::lock::{SocketError, release};
use parking::{PARK_TIME_MAX, ParkRequest};
pub use parking::{ParkError, ParkedServer, Parking};

/// How often a predecessor's lock is tried: a successor must be there at once when the predecessor
/// dies, and waiting for a lock can not be called off.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// How often a front end that listens is tried.
const CONNECT_RETRY: Duration = Duration::from_millis(100);

/// How long the rest of a message that has come in part is waited for, before it is looked again:
/// twice as long each time. A socket is readable with any part of it, so there is nothing to sleep
/// on; front ends send messages as a whole.
const REST_PAUSE_MIN: Duration = Duration::from_millis(1);
const REST_PAUSE_MAX: Duration = Duration::from_millis(64);

/// Lines that front ends of one socket may cause in the log in a minute: a line when one comes and
/// one when it leaves, so a front end that does nothing else does not fill it.
const LOG_LINES_MAX: u32 = 20;

/// The pause after a conversation that ended with an error, so that a front end that repeats its
/// mistake for ever costs nothing. The tests of mistakes make hundreds.
const ERROR_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 100 });

/// Which side of the socket is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// We make the socket, for these; front ends connect.
    Listen(PathBuf, Access),
    /// The front end makes the socket (QEMU: `server=on`); we connect, for as long as it takes.
    Connect(PathBuf),
}

impl Socket {
    /// We make the socket, with the system's usual access.
    pub fn listen(path: impl Into<PathBuf>) -> Self {
        Self::Listen(path.into(), Access::default())
    }
}

/// The present state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Another process holds the socket's lock; with its process id where it is known.
    Predecessor(Option<u32>),
    /// No front end is there.
    Waiting,
    /// A front end is there.
    Connected,
    /// None is wanted: its guest's cable is pulled.
    Closed,
    /// It gave up, for this reason. Only while waiting for a predecessor's socket.
    Failed(String),
    /// It was stopped.
    Stopped,
}

#[derive(Debug)]
struct SocketShared {
    state: Mutex<ServerState>,
    /// Readable for ever once the server must stop.
    stop: OwnedFd,
    /// The present connection, to be torn down by `stop` when the front end is silent in the
    /// middle of a message.
    connection: Mutex<Option<UnixStream>>,
    /// Readable while the server is asked to pause, or to look at something else.
    park_bell: Arc<OwnedFd>,
    park: Mutex<Option<ParkRequest>>,
    /// No front end is taken that is not there.
    turns_away: AtomicBool,
    turned_away: AtomicU64,
    /// Nor until then: the last one's signals cost too much.
    refuses_until: Mutex<Option<Instant>>,
    /// Why the last front end was dropped, unless one has left by itself since.
    last_drop: Mutex<Option<String>>,
    /// How many front ends were dropped for what their signals cost.
    too_costly: AtomicU64,
    /// No front end is wanted, not even the one that is there.
    closed: AtomicBool,
}

impl SocketShared {
    fn new(state: ServerState) -> io::Result<Self> {
        Ok(Self {
            state: Mutex::new(state),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            connection: Mutex::default(),
            park_bell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            park: Mutex::default(),
            turns_away: AtomicBool::new(false),
            turned_away: AtomicU64::new(0),
            refuses_until: Mutex::default(),
            last_drop: Mutex::default(),
            too_costly: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    fn set(&self, state: ServerState) {
        *guard(&self.state) = state;
    }

    /// Has the server look for what is wanted of it.
    fn ring(&self) {
        rustix::io::write(&*self.park_bell, &1u64.to_ne_bytes())
            .expect("one write fits an eventfd's counter");
    }

    /// The front end that is there has cost too much: none is taken for a while.
    fn refuse(&self) {
        self.too_costly.fetch_add(1, Relaxed);
        *guard(&self.refuses_until) = Some(Instant::now() + COSTLY_PAUSE);
    }

    fn is_refusing(&self) -> bool {
        guard(&self.refuses_until).is_some_and(|until| Instant::now() < until)
    }

    /// Tears the present connection down, also in the middle of a message. Only the reading side:
    /// an answer on its way may still go out. An error means that the front end was faster.
    fn hang_up(&self) {
        if let Some(connection) = &*guard(&self.connection) {
            let _ = connection.shutdown(std::net::Shutdown::Read);
        }
    }

    /// Waits until `fd` can be read or the server must stop, at most for `limit`. True to stop.
    fn wait(&self, fd: Option<BorrowedFd<'_>>, limit: Option<Duration>) -> bool {
        self.poll(&[Some(self.stop.as_fd()), fd].map(readable), limit)[0]
    }

    /// Waits until any of `wanted` is ready, or the server must stop or stand still; at most for
    /// `limit`.
    fn wait_for_any(&self, wanted: [WaitCondition<'_>; 2], limit: Option<Duration>) -> Woken {
        let [first, second] = wanted;
        let [stop, park] = [&self.stop, &*self.park_bell].map(|fd| readable(Some(fd.as_fd())));
        match self.poll(&[stop, park, first, second], limit)[..] {
            [true, ..] => Woken::Stop,
            [_, true, ..] => Woken::Park,
            _ => {
                let ready = self.poll(&wanted, Some(Duration::ZERO));
                Woken::Ready([ready[0], ready[1]])
            }
        }
    }

    /// Which of these are ready, after waiting for one of them, at most for `limit`.
    fn poll(&self, wanted: &[WaitCondition<'_>], limit: Option<Duration>) -> Vec<bool> {
        let there = wanted.iter().flatten();
        let mut fds: Vec<_> = there.map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        loop {
            match poll(&mut fds, limit.as_ref()) {
                Err(Errno::INTR) => {}
                Err(errno) => panic!("poll of our own descriptors: {errno}"),
                Ok(_) => break,
            }
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        wanted.iter().map(|fd| fd.is_some() && ready.next().is_some_and(|it| it)).collect()
    }
}

/// A descriptor to wait for, and the condition that ends the wait.
type WaitCondition<'a> = Option<(BorrowedFd<'a>, PollFlags)>;

fn readable(fd: Option<BorrowedFd<'_>>) -> WaitCondition<'_> {
    fd.map(|fd| (fd, PollFlags::IN))
}

/// Why a server does not wait any more.
enum Woken {
    Stop,
    Park,
    Ready([bool; 2]),
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device being served. Dropping it stops serving.
pub struct DeviceServer {
    shared: Arc<SocketShared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for DeviceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl DeviceServer {
    /// The server's present state.
    pub fn state(&self) -> ServerState {
        guard(&self.shared.state).clone()
    }

    /// The process of the front end that is there, as the system knows it.
    pub fn front_end(&self) -> Option<u32> {
        let connection = guard(&self.shared.connection);
        let peer = rustix::net::sockopt::socket_peercred(connection.as_ref()?).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Whether front ends that come from now on are turned away: their connection is closed at
    /// once. A connected front end stays.
    pub fn set_turning_away(&self, turns_away: bool) {
        self.shared.turns_away.store(turns_away, Relaxed);
    }

    /// How many front ends were turned away, for that or after one that was too costly.
    pub fn turned_away(&self) -> u64 {
        self.shared.turned_away.load(Relaxed)
    }

    /// Why the last front end was dropped that was; none since one has stayed and left.
    pub fn last_drop(&self) -> Option<String> {
        guard(&self.shared.last_drop).clone()
    }

    /// How many front ends were dropped because signals to them cost too much.
    pub fn too_costly(&self) -> u64 {
        self.shared.too_costly.load(Relaxed)
    }

    /// A handle with which its holder may close the socket and open it again.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }

    /// Has the server stand still, within a bounded time: queues drain for at most `drain` and
    /// stop, the front end stays connected and is not listened to. As soon as the returned value is
    /// dropped, the server goes on as if nothing had happened.
    ///
    /// # Errors
    /// Why it goes on.
    pub fn park(&self, drain: Duration) -> Result<ParkedServer, ParkError> {
        self.begin_park(drain).end()
    }

    /// The same in two steps, for several servers at once. Needs neither thread nor descriptor.
    pub fn begin_park(&self, drain: Duration) -> Parking {
        let ((reply, answer), (hold, resume)) = (sync_channel(1), sync_channel(0));
        let is_over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        if !is_over {
            *guard(&self.shared.park) = Some(ParkRequest { drain, reply, resume });
            self.shared.ring();
        }
        let (shared, until) = (Arc::clone(&self.shared), Instant::now() + drain + PARK_TIME_MAX);
        Parking { shared, answer, hold, until, is_over }
    }

    /// Stops: the device is told that its front end went away and is dropped, the connection is
    /// closed, a socket of ours is removed. Waits for all of that.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes())
            .expect("one write fits an eventfd's counter");
        self.shared.hang_up();
        if thread.join().is_err() {
            error!("the thread of a vhost-user socket panicked");
        }
        self.shared.set(ServerState::Stopped);
    }
}

/// Closes a server's socket, and opens it again.
#[derive(Clone, Debug)]
pub struct Closer(Arc<SocketShared>);

impl Closer {
    /// While it is closed there is no front end, and a connected front end is dropped. A socket of
    /// ours has no name then, so a new front end cannot connect. Comes back at once.
    pub fn set_closed(&self, closed: bool) {
        if self.0.closed.swap(closed, Relaxed) == closed {
            return;
        }
        self.0.ring();
        if closed {
            self.0.hang_up();
        }
    }
}

impl Drop for DeviceServer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Another process's socket and front end, ready to be gone on with. Dropped, nothing has happened.
pub struct Adopted {
    /// Goes first: without it the server's thread ends.
    go: SyncSender<()>,
    server: DeviceServer,
    path: String,
}

impl fmt::Debug for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopted").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Gets everything ready to serve the device in the place of another process, whose server stands
/// still: its memory is mapped, its agreement repeated, the thread is there. No ring is touched.
///
/// A front end whose memory, inflight region or log is not what it brought any more does not keep
/// the others from being gone on with: its connection is closed, and the next one is awaited.
///
/// # Errors
/// When this program cannot serve what was agreed with the front end, or the system refuses.
pub fn adopt(
    socket: Socket,
    device: Box<dyn Device>,
    state: ServedDevice<OwnedFd>,
) -> Result<Adopted, AdoptError> {
    let refused = |error: SocketError| AdoptError::System(io::Error::other(error));
    let ServedDevice { listener, lock, front_end } = state;
    let way = match socket {
        Socket::Connect(path) => FrontEndSource::Connect(path),
        Socket::Listen(path, access) => {
            let claim = SocketClaim::new(path, access).map_err(refused)?;
            claim.adopt(lock.ok_or(AdoptError::Missing("lock"))?).map_err(refused)?;
            FrontEndSource::Listen(
                listener.ok_or(AdoptError::Missing("listening socket"))?.into(),
                claim,
            )
        }
    };
    let path = way.path().display().to_string();
    let shared = Arc::new(SocketShared::new(ServerState::Waiting)?);
    let bell = Arc::clone(&shared.park_bell);
    let session = Arc::new(Mutex::new(Session::new(device, path.clone(), bell)));
    let handler = match front_end.map(|it| Session::adopt(&session, it)).transpose() {
        Err(AdoptError::Session(error)) if error.is_of_shared_files() => {
            // They were sound when the front end brought them: it has changed them since.
            warn!(socket = path, %error, "the front end's session is not resumed; it may connect \
                                          again");
            guard(&session).disconnected();
            None
        }
        other => other?,
    };
    if handler.is_some() {
        shared.set(ServerState::Connected);
    }
    let (go, gone) = sync_channel(1);
    let serve = {
        let (shared, path) = (Arc::clone(&shared), path.clone());
        move || {
            if gone.recv().is_err() {
                return;
            }
            if let FrontEndSource::Listen(_, claim) = &way {
                claim.sign();
            }
            run(&shared, way, &session, &path, handler);
        }
    };
    let thread = Some(spawn(serve)?);
    Ok(Adopted { go, server: DeviceServer { shared, thread }, path })
}

impl Adopted {
    /// Goes on. The caller promises that no other process touches the front end's rings any more.
    pub fn serve(self) -> DeviceServer {
        // The thread waits for it as long as this is here.
        let _ = self.go.send(());
        self.server
    }
}

type Handler = BackendReqHandler<Mutex<Session>>;

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name("vhost-user".into()).spawn(run)
}

/// Serves the device on the socket, on a thread of its own, until the server is stopped. Comes
/// back at once, also where a predecessor has to die first or a front end is not there yet.
///
/// # Errors
/// When the path cannot be served: its directory is missing, something else is there, another
/// program answers on it, or this process serves it already.
pub fn serve(socket: Socket, device: Box<dyn Device>) -> Result<DeviceServer, SocketError> {
    let (way, state) = match socket {
        Socket::Connect(path) => {
            lock::check_length(&path)?;
            (FrontEndSource::Connect(path), ServerState::Waiting)
        }
        Socket::Listen(path, access) => {
            let claim = SocketClaim::new(path, access)?;
            if claim.try_lock()? {
                (FrontEndSource::Listen(claim.listen()?, claim), ServerState::Waiting)
            } else {
                let holder = claim.holder();
                warn!(
                    socket = %claim.path().display(), holder,
                    "waiting for another server of this socket to end; stop it, or give this \
                     disk another socket"
                );
                (FrontEndSource::Wait(claim), ServerState::Predecessor(holder))
            }
        }
    };
    let shared = Arc::new(SocketShared::new(state).map_err(SocketError::Thread)?);
    let path = way.path().display().to_string();
    let bell = Arc::clone(&shared.park_bell);
    let session = Arc::new(Mutex::new(Session::new(device, path.clone(), bell)));
    let serve = {
        let shared = Arc::clone(&shared);
        move || run(&shared, way, &session, &path, None)
    };
    let thread = Some(spawn(serve).map_err(SocketError::Thread)?);
    Ok(DeviceServer { shared, thread })
}

/// Serves one front end that is connected already, on the caller's thread, until it leaves or does
/// something wrong. The device is then told that it went away, and dropped.
///
/// # Errors
/// What the front end did wrong.
pub fn serve_stream(stream: UnixStream, device: Box<dyn Device>) -> io::Result<()> {
    let shared = SocketShared::new(ServerState::Connected)?;
    let bell = Arc::clone(&shared.park_bell);
    let session = Arc::new(Mutex::new(Session::new(device, "a stream".into(), bell)));
    let handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
    let result = converse(&shared, None, handler, &session);
    result.map_err(|error| io::Error::other(error.to_string()))
}

/// How front ends are come by.
enum FrontEndSource {
    /// A predecessor has to die first.
    Wait(SocketClaim),
    Listen(UnixListener, SocketClaim),
    /// Closed: no front end may come.
    Closed(SocketClaim),
    Connect(PathBuf),
}

impl FrontEndSource {
    fn path(&self) -> &std::path::Path {
        match self {
            Self::Wait(claim) | Self::Listen(_, claim) | Self::Closed(claim) => claim.path(),
            Self::Connect(path) => path,
        }
    }
}

fn run(
    shared: &SocketShared,
    way: FrontEndSource,
    session: &Arc<Mutex<Session>>,
    path: &str,
    handler: Option<Handler>,
) {
    let mut way = match way {
        FrontEndSource::Wait(claim) => match wait_for_predecessor(shared, claim) {
            Ok(Some(way)) => way,
            Ok(None) => return,
            Err(error) => {
                error!(socket = path, %error, "not served");
                shared.set(ServerState::Failed(error.to_string()));
                return;
            }
        },
        other => other,
    };
    let mut adopted = handler;
    // Why a front end was dropped is not lost among lines about those that come and leave.
    let (mut log, mut drops) = (LogLines::new(LOG_LINES_MAX), LogLines::new(LOG_LINES_MAX));
    loop {
        let handler = match adopted.take() {
            Some(handler) => {
                info!(socket = path, "the front end stays connected");
                handler
            }
            None => {
                let Some(stream) = next_front_end(shared, &mut way, path) else { break };
                if may_log(&mut log, path) {
                    info!(socket = path, "front end connected");
                }
                BackendReqHandler::from_stream(stream, Arc::clone(session))
            }
        };
        shared.set(ServerState::Connected);
        let result = converse(shared, Some(&way), handler, session);
        shared.set(ServerState::Waiting);
        let pause = match (&result, &way) {
            (Err(_), _) => Some(ERROR_PAUSE),
            // It is tried again as often as one that is not there.
            (Ok(()), FrontEndSource::Connect(_)) => Some(CONNECT_RETRY),
            (Ok(()), _) => None,
        };
        match result {
            Ok(()) => {
                *guard(&shared.last_drop) = None;
                if may_log(&mut log, path) {
                    info!(socket = path, "front end left");
                }
            }
            Err(error) => {
                *guard(&shared.last_drop) = Some(error.to_string());
                if may_log(&mut drops, path) {
                    warn!(socket = path, %error, "front end dropped");
                }
            }
        }
        if pause.is_some_and(|pause| shared.wait(None, Some(pause))) {
            break;
        }
    }
    if let FrontEndSource::Listen(_, claim) = &way {
        claim.remove_socket();
    }
}

/// Whether another line about front ends is written; the last of a minute says that it is.
fn may_log(log: &mut LogLines, path: &str) -> bool {
    let may = log.may(sidecore::now_ns());
    if may && log.is_last() {
        warn!(
            socket = path,
            "front ends connect and leave very often: no more lines about them for a minute; `vrio \
             status` has the reason of the last drop"
        );
    }
    may
}

/// None: the server must stop.
fn wait_for_predecessor(
    shared: &SocketShared,
    claim: SocketClaim,
) -> Result<Option<FrontEndSource>, SocketError> {
    loop {
        // First, so that a server that was not parked yet does not come to serve meanwhile.
        stay_parked(shared, None, None);
        if claim.try_lock()? {
            break;
        }
        shared.set(ServerState::Predecessor(claim.holder()));
        if shared.wait(None, Some(LOCK_RETRY)) {
            return Ok(None);
        }
    }
    let listener = claim.listen()?;
    info!(socket = %claim.path().display(), "the other server has ended");
    shared.set(ServerState::Waiting);
    Ok(Some(FrontEndSource::Listen(listener, claim)))
}

/// Stays closed for as long as that is wanted. False: the server must stop.
fn stay_closed(shared: &SocketShared, way: &mut FrontEndSource) -> bool {
    shared.set(ServerState::Closed);
    *way = match std::mem::replace(way, FrontEndSource::Connect(PathBuf::new())) {
        FrontEndSource::Listen(listener, claim) => {
            claim.remove_socket();
            drop(listener);
            FrontEndSource::Closed(claim)
        }
        other => other,
    };
    while shared.closed.load(Relaxed) {
        match shared.wait_for_any([None, None], None) {
            Woken::Stop => return false,
            Woken::Park => stay_parked(shared, Some(way), None),
            Woken::Ready(_) => {}
        }
    }
    while let FrontEndSource::Closed(claim) = way {
        match claim.listen() {
            Ok(listener) => {
                let FrontEndSource::Closed(claim) =
                    std::mem::replace(way, FrontEndSource::Connect(PathBuf::new()))
                else {
                    unreachable!("it was just looked at")
                };
                *way = FrontEndSource::Listen(listener, claim);
            }
            Err(error) => {
                warn!(%error, "the socket cannot be opened again yet; the node keeps trying");
                if shared.wait(None, Some(CONNECT_RETRY)) {
                    return false;
                }
            }
        }
    }
    shared.set(ServerState::Waiting);
    true
}

/// None: the server must stop.
fn next_front_end(
    shared: &SocketShared,
    way: &mut FrontEndSource,
    path: &str,
) -> Option<UnixStream> {
    let mut told = None;
    loop {
        // Before it is looked for one: a front end that listens (DPDK's) may not bear a connection
        // that ends at once.
        if shared.wait(None, Some(Duration::ZERO)) {
            return None;
        }
        if shared.closed.load(Relaxed) && !stay_closed(shared, way) {
            return None;
        }
        let is_drained = shared.turns_away.load(Relaxed);
        let turns_away = is_drained || shared.is_refusing();
        if turns_away && matches!(way, FrontEndSource::Connect(_)) {
            stay_parked(shared, Some(way), None);
            if shared.wait(None, Some(CONNECT_RETRY)) {
                return None;
            }
            continue;
        }
        let (result, fd, pause) = match &*way {
            FrontEndSource::Wait(_) | FrontEndSource::Closed(_) => {
                unreachable!("it was waited for")
            }
            FrontEndSource::Listen(listener, _) => {
                (listener.accept().map(|(stream, _)| stream), Some(listener.as_fd()), None)
            }
            FrontEndSource::Connect(path) => (lock::connect(path), None, Some(CONNECT_RETRY)),
        };
        if turns_away && result.is_ok() {
            // One line says enough of a front end that comes back ten times a second.
            if shared.turned_away.fetch_add(1, Relaxed) == 0 && is_drained {
                warn!(socket = path, "a front end was refused: the node is drained");
            }
            // As many as come do not keep us from what the node wants.
            stay_parked(shared, Some(way), None);
            continue;
        }
        let error = match result.and_then(|stream| stream.set_nonblocking(false).map(|()| stream)) {
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        // A path without a listener is the usual case. Any other error is told once, and costs a
        // pause, for it may come again at once.
        let nobody = pause.is_none() && error.kind() == io::ErrorKind::WouldBlock;
        if !nobody && told != Some(error.kind()) {
            told = Some(error.kind());
            info!(socket = path, %error, "no front end yet; the node keeps trying");
        }
        if !nobody {
            stay_parked(shared, Some(way), None);
            if shared.wait(None, Some(CONNECT_RETRY)) {
                return None;
            }
            continue;
        }
        match shared.wait_for_any([readable(fd), None], None) {
            Woken::Stop => return None,
            Woken::Park => stay_parked(shared, Some(way), None),
            Woken::Ready(_) => {}
        }
    }
}

/// Stands still if a request to park is there, until the requester ends it. The requester gets the
/// listener, the lock and the front end's state.
fn stay_parked(
    shared: &SocketShared,
    way: Option<&FrontEndSource>,
    front_end: Option<(&Mutex<Session>, BorrowedFd<'_>)>,
) {
    // It does not block.
    let _ = rustix::io::read(&*shared.park_bell, &mut [0u8; 8]);
    let Some(ParkRequest { drain, reply, resume }) = guard(&shared.park).take() else { return };
    let take_down = || {
        let (mut listener, mut lock) = (None, None);
        if let Some(FrontEndSource::Listen(listens, claim)) = way {
            listener = Some(listens.try_clone().map_err(ParkError::System)?.into());
            lock = Some(claim.take_down().map_err(ParkError::System)?);
        }
        let front_end = front_end.map(|(session, fd)| guard(session).park(fd, drain));
        let front_end = front_end.transpose()?;
        let is_served = listener.is_some() || front_end.is_some();
        Ok(is_served.then_some(ServedDevice { listener, lock, front_end }))
    };
    if reply.send(take_down()).is_ok() {
        // It ends when the other side is dropped; nothing is ever sent.
        let _ = resume.recv();
    }
}

/// Why a front end is dropped.
#[derive(Debug)]
struct DropError {
    /// The message that could not be honoured, where it was one.
    message: Option<MessageHeader>,
    error: VhostError,
}

impl DropError {
    fn new(message: Option<MessageHeader>, error: VhostError) -> Self {
        Self { message, error }
    }
}

impl fmt::Display for DropError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(message) = &self.message {
            write!(f, "{message}: ")?;
        }
        match &self.error {
            // Ours, said as it is.
            VhostError::ReqHandlerError(error) => write!(f, "{error}"),
            VhostError::InvalidMessage => f.write_str(
                "the size of its body, its flags, a value or the number of its descriptors is not \
                 what the vhost-user specification has for it",
            ),
            error => write!(f, "{error}"),
        }
    }
}

/// Talks to one front end until it leaves, errs, or the server must stop.
fn converse(
    shared: &SocketShared,
    way: Option<&FrontEndSource>,
    mut handler: Handler,
    session: &Arc<Mutex<Session>>,
) -> Result<(), DropError> {
    keep_connection(shared, &handler)?;
    // SAFETY: `handler` owns the descriptor, keeps it, and outlives this borrow of it.
    let fd = unsafe { BorrowedFd::borrow_raw(handler.as_raw_fd()) };
    let config_event = guard(session).config_event();
    let config_fd = config_event.as_ref().map(AsFd::as_fd);
    // Rings that another process had; there are none otherwise.
    let mut started = guard(session).unpark();
    // Some: the message that comes next is there in part.
    let mut rest_pause = None;
    let result = loop {
        match started {
            Err(error) => break Err(DropError::new(None, error.into())),
            Ok(()) if shared.closed.load(Relaxed) => break Ok(()),
            Ok(()) => {}
        }
        if let Err(error) = may_go_on(shared, session) {
            break Err(DropError::new(None, error.into()));
        }
        // Answers are sent blocking. A socket is writable while most of its buffer is free: one
        // answer, at most 4 KiB, fits. So a front end that asks and does not read waits alone.
        let (writable, hung_up) = (Some((fd, PollFlags::OUT)), Some((fd, PollFlags::RDHUP)));
        let can_answer = shared.poll(&[writable], Some(Duration::ZERO))[0];
        let wanted = match rest_pause {
            _ if !can_answer => writable,
            Some(_) => hung_up,
            None => readable(Some(fd)),
        };
        let woken = shared.wait_for_any([wanted, readable(config_fd)], rest_pause);
        let [is_ready, has_changed] = match woken {
            Woken::Stop => break Ok(()),
            Woken::Park => {
                stay_parked(shared, way, Some((session, fd)));
                started = guard(session).unpark();
                continue;
            }
            Woken::Ready(ready) => ready,
        };
        if has_changed && let Some(event) = &config_event {
            tell_config(session, event);
        }
        if !can_answer || !(is_ready || rest_pause.is_some()) {
            continue;
        }
        match ahead::is_whole(fd) {
            // After the end of what comes there is no rest, and the crate says so.
            Ok(false) if !shared.poll(&[hung_up], Some(Duration::ZERO))[0] => {
                rest_pause = Some(longer(rest_pause));
                continue;
            }
            Ok(_) => rest_pause = None,
            Err(error) => break Err(DropError::new(None, VhostError::SocketError(error))),
        }
        let header = MessageHeader::peek(fd);
        match hear(&mut handler, session, fd) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(DropError::new(header, error)),
        }
    };
    // The queues stop before the front end sees us go: it may look at its rings then.
    guard(session).disconnected();
    *guard(&shared.connection) = None;
    result
}

/// Keeps the front end's connection where the server finds it, to end it.
fn keep_connection(shared: &SocketShared, handler: &Handler) -> Result<(), DropError> {
    let clone = handler.try_clone_connection();
    let clone = clone.map_err(|error| DropError::new(None, VhostError::SocketError(error)))?;
    *guard(&shared.connection) = Some(clone);
    Ok(())
}

/// Tells the front end that the device's configuration has changed.
fn tell_config(session: &Mutex<Session>, event: impl AsFd) {
    // It does not block, and all changes until now are one.
    let _ = rustix::io::read(event, &mut [0u8; 8]);
    guard(session).config_changed();
}

/// How long it is waited for the rest of a message, after it was waited for it before.
fn longer(pause: Option<Duration>) -> Duration {
    pause.map_or(REST_PAUSE_MIN, |it| REST_PAUSE_MAX.min(2 * it))
}

/// A front end whose signals cost too much is not served any more, nor another one for a while.
fn may_go_on(shared: &SocketShared, session: &Mutex<Session>) -> Result<(), SessionError> {
    if guard(session).is_too_costly() {
        shared.refuse();
        return Err(SessionError::CostlySignals);
    }
    Ok(())
}

/// Takes the next message, all of which is there. False: the front end has left.
fn hear(
    handler: &mut Handler,
    session: &Mutex<Session>,
    fd: BorrowedFd<'_>,
) -> Result<bool, VhostError> {
    let back_channel = match NextMessage::peek(fd) {
        Some(NextMessage::LogSignal(message)) => {
            return guard(session).set_log_signal(&message, fd).map(|()| true);
        }
        Some(NextMessage::Enable(message)) if guard(session).enable_early(message, fd)? => {
            return Ok(true);
        }
        Some(NextMessage::BackChannel(socket)) => Some(BackChannel::new(socket)),
        Some(NextMessage::Enable(_)) | None => None,
    };
    match handler.handle_request() {
        Ok(()) => {
            // The crate has looked at the descriptor: it is a stream of the right kind.
            back_channel.into_iter().for_each(|it| guard(session).set_back_channel(it));
            Ok(true)
        }
        Err(VhostError::Disconnected) => Ok(false),
        Err(error) => Err(error),
    }
}
