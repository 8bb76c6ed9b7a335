//! The control socket: versioned JSON over HTTP on a Unix socket, on a thread of its own.
//!
//! A process that can open the socket sees everything, so the socket is the owner's alone (mode
//! 0600). A lock beside it, which ends with its holder, tells a socket that is in use from one that
//! a dead process left behind.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::oneshot;

use api::status::Status;

mod answer;
mod body;
mod error;
mod places;
mod routes;
mod service;
mod streams;

pub use self::error::ControlError;
pub use self::service::Service;

/// How long a status may take to gather. Sidecores answer between two rounds, and one that does not
/// is left out after a second, or as soon as the watchdog has found it stuck; on a busy machine all
/// of that takes longer.
const GATHER_TIME_MAX: Duration = Duration::from_secs(10);

/// How many callers may wait to be accepted: people and scripts, not a load.
const BACKLOG: i32 = 16;

/// Gathers a status; called on a thread that may wait.
pub type Gather = Arc<dyn Fn() -> Status + Send + Sync>;

/// A control socket on which no thread answers yet. Dropping it removes the socket.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    listener: UnixListener,
    ours: OwnedSocket,
}

/// The socket's name, as long as it is ours.
#[derive(Debug)]
struct OwnedSocket {
    path: PathBuf,
    lock: File,
    /// It is another process's still.
    stays: bool,
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = ?self.path, %error, "the control socket stays behind");
        }
    }
}

impl Claim {
    /// Makes the socket, in place of one that a dead process left behind.
    ///
    /// # Errors
    /// When it is in use or cannot be made.
    pub fn new(path: &Path) -> Result<Self, ControlError> {
        let lock = lock(path)?;
        let listener = listen(path)?;
        let ours = OwnedSocket { path: path.to_owned(), lock, stays: false };
        Ok(Self { path: path.to_owned(), listener, ours })
    }

    /// Goes on with the socket of another process, and with its lock. Both belong to that process
    /// until [`Standby::serve`]: dropping the claim before leaves the socket where it is.
    pub fn adopt(path: &Path, listener: OwnedFd, lock: OwnedFd) -> Self {
        let ours = OwnedSocket { path: path.to_owned(), lock: lock.into(), stays: true };
        Self { path: path.to_owned(), listener: listener.into(), ours }
    }

    /// Descriptors of the socket and of its lock, for a process that goes on in this one's place.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn copies(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.listener.try_clone()?.into(), self.ours.lock.try_clone()?.into()])
    }

    /// Gets everything ready to answer on the socket, on a thread of its own; with a listener for
    /// metrics, also over TCP.
    ///
    /// # Errors
    /// When the system refuses a thread or another resource.
    pub fn prepare(self, metrics_listener: Option<TcpListener>) -> Result<Standby, ControlError> {
        let Self { path, listener, ours } = self;
        let refuse = |what| {
            let path = path.clone();
            move |source| ControlError::Io { path, what, source }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(refuse("start its runtime"))?;
        // The sockets may be those of another process. A descriptor that is no such socket is an
        // error here; the runtime would panic.
        let sockets = listener.local_addr().and_then(|_| listener.set_nonblocking(true));
        sockets.map_err(refuse("listen"))?;
        if let Some(metrics) = &metrics_listener {
            let sockets = metrics.local_addr().and_then(|_| metrics.set_nonblocking(true));
            sockets.map_err(refuse("listen for metrics"))?;
        }
        let (listener, metrics) = {
            let _inside = runtime.enter();
            let metrics = metrics_listener.map(tokio::net::TcpListener::from_std).transpose();
            let listener = tokio::net::UnixListener::from_std(listener);
            (listener.map_err(refuse("listen"))?, metrics.map_err(refuse("listen for metrics"))?)
        };
        let (go, service) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        let answer = move || {
            // The sender was dropped, so the API is never served.
            let Ok(service) = service.recv() else { return };
            runtime.block_on(answer(service, listener, metrics, stopped));
            runtime.shutdown_timeout(GATHER_TIME_MAX);
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(answer);
        let thread = Some(thread.map_err(refuse("start its thread"))?);
        Ok(Standby { go, control: Control { stop: Some(stop), thread, ours } })
    }

    /// The same, and answers.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn serve(
        self,
        service: Arc<dyn Service>,
        metrics_listener: Option<TcpListener>,
    ) -> Result<Control, ControlError> {
        Ok(self.prepare(metrics_listener)?.serve(service))
    }
}

async fn answer(
    service: Arc<dyn Service>,
    listener: tokio::net::UnixListener,
    metrics: Option<tokio::net::TcpListener>,
    stopped: oneshot::Receiver<()>,
) {
    if let Some(listener) = metrics {
        let service = Arc::clone(&service);
        let gather: Gather = Arc::new(move || service.status());
        tokio::spawn(async move {
            let ended = crate::metrics::listen::serve(listener, gather).await;
            let error = ended.err().map(tracing::field::display);
            tracing::error!(error, "metrics-listen ended");
        });
    }
    let served = axum::serve(listener, routes::router(service));
    tokio::select! {
        ended = served.into_future() => {
            let error = ended.err().map(tracing::field::display);
            tracing::error!(error, "the control API ended");
        }
        _ = stopped => {}
    }
}

/// The control API before it answers. Nothing can fail any more.
pub struct Standby {
    /// Goes first: without it the thread ends.
    go: std::sync::mpsc::SyncSender<Arc<dyn Service>>,
    control: Control,
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby").field("control", &self.control).finish_non_exhaustive()
    }
}

impl Standby {
    /// Answers. The socket is this process's alone.
    pub fn serve(self, service: Arc<dyn Service>) -> Control {
        let Self { go, mut control } = self;
        control.ours.stays = false;
        // The thread waits for it as long as this is here.
        let _ = go.send(service);
        control
    }
}

/// The running control API. Dropped, it takes its socket away.
#[derive(Debug)]
pub struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    ours: OwnedSocket,
}

impl Control {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.ours.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The receiver is gone when the thread has ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A status, or the answer that says why there is none.
pub(crate) async fn gathered(gather: Gather) -> Result<Status, Response> {
    let gathered = tokio::task::spawn_blocking(move || gather());
    match tokio::time::timeout(GATHER_TIME_MAX, gathered).await {
        Ok(Ok(status)) => Ok(status),
        Ok(Err(error)) => {
            let text = format!("the status could not be gathered: {error}\n");
            Err((StatusCode::INTERNAL_SERVER_ERROR, text).into_response())
        }
        Err(_) => {
            let text = "a sidecore does not answer; is the process stopped or overloaded?\n";
            Err((StatusCode::SERVICE_UNAVAILABLE, text).into_response())
        }
    }
}

/// Takes the lock beside the socket; it goes when the process does, however it ends.
fn lock(path: &Path) -> Result<File, ControlError> {
    let refuse = |what| move |source| ControlError::Io { path: path.to_owned(), what, source };
    if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
        privilege::make_shown(directory).map_err(refuse("make its directory"))?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let taken =
        sessions::lock::take(Path::new(&name)).map_err(refuse("lock the file beside it"))?;
    taken.ok_or_else(|| ControlError::InUse { path: path.to_owned() })
}

/// Makes the socket, in place of one that a dead process left. The lock is held.
fn listen(path: &Path) -> Result<UnixListener, ControlError> {
    let refuse = |what| move |source| ControlError::Io { path: path.to_owned(), what, source };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ControlError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            // A process without our lock answers there.
            return Err(ControlError::InUse { path: path.to_owned() });
        }
        Ok(_) => {
            std::fs::remove_file(path).map_err(refuse("remove the socket of a dead process"))?
        }
        Err(_) => {}
    }
    let bind = || -> rustix::io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The mode is set before the socket has a name, so that at no moment another user can open
        // it.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    bind().map_err(|error| refuse("listen")(error.into()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use config::Kind;
    use serde_json::Value;

    use super::*;
    use api::status::{NodeStatus, STATUS_VERSION};
    use api::{
        Done, Drain, HandOver, MomentReport, ReceiveProgress, ReceiveStep, Refused, RefusedKind,
        Reload, ReloadPlan, SnapshotDiff, WantedStream,
    };

    /// A node of one name, which repeats what is asked of it.
    struct EchoService;

    impl Service for EchoService {
        fn status(&self) -> Status {
            let node = NodeStatus { name: "io1".to_owned(), ..NodeStatus::default() };
            Status { version: STATUS_VERSION, node, ..Status::default() }
        }

        fn list(&self, kind: Kind) -> String {
            match kind.key() {
                "disk" => "[{\"name\":\"a\"}]".to_owned(),
                "nic" => "[{\"name\":\"n\"}]".to_owned(),
                _ => "[]".to_owned(),
            }
        }

        fn show(&self, kind: Kind, name: &str) -> Option<String> {
            let is_known = (kind.key(), name) == ("disk", "a");
            is_known.then(|| "{\"name\":\"a\"}".to_owned())
        }

        fn set_nic(&self, name: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("set nic {name} {body}")))
        }

        fn add(&self, kind: Kind, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("add {} {body}", kind.key())))
        }

        fn remove(&self, kind: Kind, name: &str, force: bool) -> Result<Done, Refused> {
            Ok(said(format!("remove {} {name} {force}", kind.key())))
        }

        fn set_chain(&self, volume: &str, chain: &Value) -> Result<Done, Refused> {
            Ok(said(format!("chain {volume} {chain}")))
        }

        fn set_quota(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("quota of {volume} {body}")))
        }

        fn set_snapshots(&self, volume: &str, rules: &Value) -> Result<Done, Refused> {
            Ok(said(format!("snapshots {volume} {rules}")))
        }

        fn keep_history(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("history of {volume} {body}")))
        }

        fn find_moment(&self, volume: &str, body: &Value) -> Result<MomentReport, Refused> {
            Ok(MomentReport { time: format!("{volume} {body}"), ..MomentReport::default() })
        }

        fn compress(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("compress {volume} {body}")))
        }

        fn resize_disk(&self, name: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("resize disk {name} {body}")))
        }

        fn resize_volume(&self, name: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("resize volume {name} {body}")))
        }

        fn take_snapshot(&self, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("snapshot {body}")))
        }

        fn roll_back(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("roll back {volume} {body}")))
        }

        fn change_copies(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("copies of {volume} {body}")))
        }

        fn set_key(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("key of {volume} {body}")))
        }

        fn shred(&self, pool: &str, number: u32, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("shred {number} of {pool} {body}")))
        }

        fn remove_from_pool(&self, pool: &str, number: u32, force: bool) -> Result<Done, Refused> {
            Ok(said(format!("remove {number} from {pool} {force}")))
        }

        fn change_devices(&self, pool: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("devices of {pool} {body}")))
        }

        fn scrub(&self, pool: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("scrub {pool} {body}")))
        }

        fn stop_scrub(&self, pool: &str) -> Result<Done, Refused> {
            Ok(said(format!("stop the scrub of {pool}")))
        }

        fn diff(&self, from: Option<&str>, to: &str, start: u64) -> Result<SnapshotDiff, Refused> {
            let error = format!("{from:?} {to} {start}");
            Err(Refused::new(RefusedKind::Conflict, error, "ask another one"))
        }

        fn stream_header(&self, wanted: &WantedStream) -> Result<Vec<u8>, Refused> {
            Ok(format!("{wanted:?}").into_bytes())
        }

        fn stream_part(&self, token: &str) -> Result<Vec<u8>, Refused> {
            Ok(format!("part {token}").into_bytes())
        }

        fn receive(
            &self,
            step: ReceiveStep,
            (pool, name): (&str, &str),
            bytes: &[u8],
        ) -> Result<ReceiveProgress, Refused> {
            let snapshot = format!("{step:?} {pool} {name} {}", bytes.len());
            Ok(ReceiveProgress { snapshot, ..ReceiveProgress::default() })
        }

        fn give_up_receive(&self, pool: &str, name: &str) -> Result<Done, Refused> {
            Ok(said(format!("give up {pool} {name}")))
        }

        fn move_queue(&self, disk: &str, queue: usize, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("move {disk} {queue} {body}")))
        }

        fn take_disk(&self, disk: &str) -> Result<Done, Refused> {
            Ok(said(format!("take {disk}")))
        }

        fn set_disk_cache(&self, disk: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("cache of {disk} {body}")))
        }

        fn set_disk_peers(&self, disk: &str, body: &Value) -> Result<Done, Refused> {
            Ok(said(format!("peers of {disk} {body}")))
        }

        fn plan(&self) -> Result<ReloadPlan, Refused> {
            Err(Refused::new(RefusedKind::Conflict, "no", "ask another one"))
        }

        fn reload(&self, wanted: &Reload) -> Result<Done, Refused> {
            Ok(said(format!("reload {:?} {}", wanted.digest, wanted.force)))
        }

        fn drain(&self) -> Drain {
            Drain { users: vec!["a guest".to_owned()], ..Drain::default() }
        }

        fn set_draining(&self, draining: bool) -> Result<Drain, Refused> {
            Ok(Drain { draining, ..self.drain() })
        }

        fn hand_over(&self, wanted: &HandOver) -> Result<(), Refused> {
            Err(Refused::new(RefusedKind::Busy, format!("not to {}", wanted.pid), "wait"))
        }
    }

    fn said(text: String) -> Done {
        Done { applied: vec![text], ..Done::default() }
    }

    fn parrot() -> Arc<dyn Service> {
        Arc::new(EchoService)
    }

    fn ask(path: &Path, request: &str) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn status_is_answered_and_the_socket_goes_at_the_end() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("made/node.control");
        let control = Claim::new(&path).unwrap().serve(parrot(), None).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let request = "GET /v1/status HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n\r\n";
        let answer = ask(&path, request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        let status: Status = serde_json::from_str(body).unwrap();
        assert_eq!(status, parrot().status());
        assert_eq!(control.path(), path);
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn each_request_arrives_as_it_was_meant() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let _control = Claim::new(&path).unwrap().serve(parrot(), None).unwrap();
        for (line, body, code, says) in [
            ("GET /v1/disks", "", 200, "\"name\":\"a\""),
            ("GET /v1/disks/a", "", 200, "\"name\":\"a\""),
            ("GET /v1/disks/b", "", 404, "no such disk"),
            ("GET /v1/volumes", "", 200, "[]"),
            ("GET /v1/volumes/v", "", 404, "no such volume"),
            ("GET /v1/things", "", 404, "no such path"),
            ("POST /v1/disks", "{\"queues\": 2}", 200, "add disk {\\\"queues\\\":2}"),
            ("POST /v1/volumes", "{}", 200, "add volume {}"),
            ("POST /v1/peers", "", 200, "add peer {}"),
            ("GET /v1/networks", "", 200, "[]"),
            ("GET /v1/nics", "", 200, "\"name\":\"n\""),
            ("POST /v1/networks", "{}", 200, "add network {}"),
            ("POST /v1/nics", "{}", 200, "add nic {}"),
            ("GET /v1/domains", "", 200, "[]"),
            ("POST /v1/domains", "{}", 200, "add domain {}"),
            ("DELETE /v1/domains/d", "", 200, "remove domain d false"),
            ("GET /v1/pools", "", 200, "[]"),
            ("POST /v1/snapshots", "{}", 200, "snapshot {}"),
            ("POST /v1/volumes/v/rollback", "{}", 200, "roll back v {}"),
            ("POST /v1/volumes/v/copies", "{}", 200, "copies of v {}"),
            ("PUT /v1/volumes/v/key", "{}", 200, "key of v {}"),
            ("POST /v1/pools/p/volumes/7/shred", "{}", 200, "shred 7 of p {}"),
            ("PUT /v1/volumes/v/compression", "{}", 200, "compress v {}"),
            ("PUT /v1/volumes/v/history", "{}", 200, "history of v {}"),
            ("POST /v1/volumes/v/moment", "{}", 200, "\"time\":\"v {}\""),
            ("DELETE /v1/pools/p/volumes/7", "", 200, "remove 7 from p false"),
            ("DELETE /v1/pools/p/volumes/7?force=true", "", 200, "remove 7 from p true"),
            ("DELETE /v1/pools/p/volumes/7?all=true", "", 400, "only parameter"),
            ("PUT /v1/volumes/v/quota", "{}", 200, "quota of v {}"),
            ("PUT /v1/pools/p/devices", "{}", 200, "devices of p {}"),
            ("POST /v1/pools/p/scrub", "{}", 200, "scrub p {}"),
            ("DELETE /v1/pools/p/scrub", "", 200, "stop the scrub of p"),
            ("GET /v1/diff?from=a@x&to=a@y&start=4096", "", 409, "a@y 4096"),
            ("GET /v1/diff?to=a@y", "", 409, "None a@y 0"),
            ("GET /v1/diff?from=a@x", "", 400, "to="),
            ("GET /v1/vfs", "", 200, "[]"),
            ("POST /v1/vfs", "{}", 200, "add vf {}"),
            ("DELETE /v1/vfs/v", "", 200, "remove vf v false"),
            ("PUT /v1/nics/n", "{\"link\": \"up\"}", 200, "set nic n {\\\"link\\\":\\\"up\\\"}"),
            ("DELETE /v1/nics/n", "", 200, "remove nic n false"),
            ("DELETE /v1/networks/b?force=true", "", 200, "remove network b true"),
            ("POST /v1/peers", "{", 400, "this is not JSON"),
            ("DELETE /v1/disks/a", "", 200, "remove disk a false"),
            ("DELETE /v1/volumes/v?force=true", "", 200, "remove volume v true"),
            ("DELETE /v1/peers/p?force=yes", "", 400, "the only parameter is force=true"),
            ("PUT /v1/volumes/v/chain", "[\"meter\"]", 200, "chain v [\\\"meter\\\"]"),
            ("PUT /v1/volumes/v/snapshots", "[]", 200, "snapshots v []"),
            ("PUT /v1/disks/a/queues/1", "{\"sidecore\": 2}", 200, "move a 1 {\\\"sidecore\\\":2}"),
            ("PUT /v1/disks/a/queues/x", "{}", 400, "x"),
            ("POST /v1/disks/a/take", "", 200, "take a"),
            ("PUT /v1/disks/a/cache", "{}", 200, "cache of a {}"),
            ("GET /v1/reload", "", 409, "\"way_out\":\"ask another one\""),
            ("POST /v1/reload", "{\"force\": true}", 200, "reload None true"),
            ("POST /v1/reload", "{\"forse\": true}", 400, "unknown field `forse`"),
            ("GET /v1/drain", "", 200, "\"draining\":false,\"users\":[\"a guest\"]"),
            ("POST /v1/drain", "", 200, "\"draining\":true"),
            ("POST /v1/drain", "{\"undo\": true}", 200, "\"draining\":false"),
            ("POST /v1/drain", "{\"undo\": 1}", 400, "expected a boolean"),
            ("POST /v1/hand-over", "{\"pid\": 7}", 503, "not to 7"),
            ("PATCH /v1/disks", "", 405, "this path does not take PATCH"),
            ("GET /v1/disks/%ff", "", 400, "\"way_out\":\"write each name as UTF-8"),
        ] {
            check_answer(&path, line, body, code, says);
        }
    }

    #[test]
    fn requests_for_streams_arrive_as_they_were_meant() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let _control = Claim::new(&path).unwrap().serve(parrot(), None).unwrap();
        for (line, body, code, says) in [
            ("GET /v1/streams?to=a@y", "", 200, "Named { to: \"a@y\", from: None }"),
            ("GET /v1/streams?from=a@x&to=a@y", "", 200, "from: Some(\"a@x\")"),
            ("GET /v1/streams?to=a%40y", "", 200, "Named { to: \"a@y\", from: None }"),
            ("GET /v1/streams?to=%ff", "", 400, "to="),
            ("GET /v1/streams?token=t", "", 200, "Rest(\"t\")"),
            ("GET /v1/streams?from=a@x", "", 400, "to="),
            ("GET /v1/streams/part?token=t", "", 200, "part t"),
            ("GET /v1/streams/part", "", 400, "token="),
            ("POST /v1/pools/p/receive/v", "header", 200, "Begin p v 6"),
            ("PUT /v1/pools/p/receive/v", "part", 200, "Part p v 4"),
            ("POST /v1/pools/p/receive/v/end", "header", 200, "End p v 6"),
            ("DELETE /v1/pools/p/receive/v", "", 200, "give up p v"),
        ] {
            check_answer(&path, line, body, code, says);
        }
    }

    fn check_answer(path: &Path, line: &str, body: &str, code: u16, says: &str) {
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n");
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        let answer = ask(path, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{line}: {answer}");
        assert!(answer.contains(says), "{line}: {says:?} is missing in {answer}");
    }

    #[test]
    fn descriptors_that_are_no_sockets_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let socket = OwnedFd::from(UnixListener::bind(&path).unwrap());
        let error = Claim::adopt(&path, null(), null()).prepare(None).unwrap_err().to_string();
        assert!(error.contains("cannot listen: Socket operation on non-socket"), "{error}");
        let metrics = TcpListener::from(null());
        let claim = Claim::adopt(&path, socket, null());
        let error = claim.prepare(Some(metrics)).unwrap_err().to_string();
        assert!(error.contains("cannot listen for metrics: Socket operation"), "{error}");
        assert!(path.exists(), "the socket is that of another process");
    }

    #[test]
    fn a_request_that_is_too_big_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let _control = Claim::new(&path).unwrap().serve(parrot(), None).unwrap();
        let length = 70_000;
        let body = " ".repeat(length);
        let head = "POST /v1/disks HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n";
        let answer = ask(&path, &format!("{head}Content-Length: {length}\r\n\r\n{body}"));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("at most 65536 bytes"), "{answer}");
    }

    #[test]
    fn other_paths_are_not_found() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let _control = Claim::new(&path).unwrap().serve(parrot(), None).unwrap();
        let answer = ask(&path, "GET /v2/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }

    #[test]
    fn a_second_node_is_refused_and_a_dead_one_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let first = Claim::new(&path).unwrap().serve(parrot(), None).unwrap();
        let error = Claim::new(&path).unwrap_err();
        assert!(matches!(error, ControlError::InUse { .. }), "{error}");
        drop(first);
        // A killed process leaves the name of a socket on which no process listens.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Claim::new(&path).unwrap().serve(parrot(), None).unwrap());
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.control");
        let foreign = UnixListener::bind(&path).unwrap();
        let error = Claim::new(&path).unwrap_err();
        assert!(matches!(error, ControlError::InUse { .. }), "{error}");
        drop(foreign);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let error = Claim::new(&path).unwrap_err();
        assert!(matches!(error, ControlError::NotASocket { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
