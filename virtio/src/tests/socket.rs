//! Serving a socket: locks, leftovers, and both directions of connecting.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;

use super::server::*;
use crate::socket::{ServerState, Socket, SocketError, release, serve};

fn listen(path: &Path) -> Result<crate::DeviceServer, SocketError> {
    serve(Socket::listen(path), Box::new(TestDevice::default()))
}

fn wait_for(server: &crate::DeviceServer, wanted: impl Fn(&ServerState) -> bool) {
    until("the server's state", || wanted(&server.state()));
}

#[test]
fn a_path_that_cannot_be_served_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let text = |error: SocketError| error.to_string();
    fs::write(&path, "important").unwrap();
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    assert!(text(error).contains(path.to_str().unwrap()));
    assert_eq!(fs::read(&path).unwrap(), b"important");

    let path = directory.path().join("missing/a.sock");
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SocketError::Directory { .. }), "{error}");

    let path = directory.path().join("x".repeat(120));
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SocketError::TooLong { .. }), "{error}");
}

#[test]
fn a_lock_is_given_up_when_no_process_serves_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.sock");
    assert!(!release(&path), "it was never served");
    let server = listen(&path).unwrap();
    assert!(!release(&path), "it is served");
    let stream = UnixStream::connect(&path).unwrap();
    wait_for(&server, |state| *state == ServerState::Connected);
    assert_eq!(server.front_end(), Some(std::process::id()));
    drop(stream);
    wait_for(&server, |state| *state == ServerState::Waiting);
    assert_eq!(server.front_end(), None);
    server.stop();
    let lock = File::open(directory.path().join("r.sock.lock")).unwrap();
    let mine = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert!(!mine(), "a stopped server keeps it");
    assert!(release(&path));
    assert!(mine(), "now another process could serve it");
    assert!(!release(&path), "once");
}

#[test]
fn another_program_on_the_path_is_an_error_and_its_leftover_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b.sock");
    let other = UnixListener::bind(&path).unwrap();
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SocketError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("b.sock") && error.to_string().contains("choose"));
    other.accept().unwrap();
    drop(other);
    assert!(path.exists(), "the leftover");
    let server = listen(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    server.stop();
    assert!(!path.exists());
    assert!(directory.path().join("b.sock.lock").exists());
}

#[test]
fn a_path_is_served_once_and_again_after_a_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.sock");
    let server = listen(&path).unwrap();
    let dotted = directory.path().join("./c.sock");
    for path in [&dotted, &path] {
        let error = listen(path).unwrap_err();
        assert!(matches!(error, SocketError::Twice { .. }), "{error}");
    }
    server.stop();
    let server = listen(&path).unwrap();
    assert_eq!(server.state(), ServerState::Waiting);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_successor_waits_until_the_lock_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.sock");
    // Another open file has the lock, as another process would.
    let lock = File::create(directory.path().join("d.sock.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    fs::write(directory.path().join("d.sock.lock"), "4711\n").unwrap();
    let stale = UnixListener::bind(&path).unwrap();
    let server = listen(&path).unwrap();
    assert_eq!(server.state(), ServerState::Predecessor(Some(4711)));
    drop(stale);
    drop(lock);
    wait_for(&server, |state| *state == ServerState::Waiting);
    let front_end = Frontend::connect(&path, 1).unwrap();
    front_end.get_features().unwrap();
}

#[test]
fn waiting_for_a_predecessor_can_be_stopped_and_can_fail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e.sock");
    let lock = File::create(directory.path().join("e.sock.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    listen(&path).unwrap().stop();
    let server = listen(&path).unwrap();
    // A program that knows nothing of the lock is quicker.
    let _other = UnixListener::bind(&path).unwrap();
    drop(lock);
    wait_for(&server, |state| matches!(state, ServerState::Failed(_)));
    let ServerState::Failed(text) = server.state() else { panic!("no longer failed") };
    assert!(text.contains("in use"), "{text}");
    server.stop();
    assert!(path.exists(), "it was not ours to remove");
}

#[test]
fn the_front_end_may_be_the_one_that_listens() {
    let bed = Bed::new();
    let path = bed.directory.path().join("front.sock");
    let device = TestDevice::default();
    // There is no front end yet; then there is one, which leaves and comes back.
    let server = serve(Socket::Connect(path.clone()), Box::new(device.clone())).unwrap();
    assert_eq!(server.state(), ServerState::Waiting);
    for count in 0..2 {
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        drop(listener);
        let front_end = Frontend::from_stream(stream, 1);
        assert!(front_end.get_features().unwrap() & OWN_FEATURE != 0);
        assert_eq!(device.state().disconnects, count);
        drop(front_end);
        until("the front end is missed", || device.state().disconnects > count);
    }
    server.stop();
    assert!(path.exists(), "the front end's socket is its own");
}

/// DPDK's and Open vSwitch's server dies of a connection that ends at once.
#[test]
fn a_front_end_that_listens_is_left_alone_by_a_server_that_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("front.sock");
    let listener = UnixListener::bind(&path).unwrap();
    for _ in 0..10 {
        let server = serve(Socket::Connect(path.clone()), Box::new(TestDevice::default())).unwrap();
        let (front_end, _) = listener.accept().unwrap();
        wait_for(&server, |state| *state == ServerState::Connected);
        server.stop();
        drop(front_end);
        listener.set_nonblocking(true).unwrap();
        let error = listener.accept().map(|_| "it came again").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        listener.set_nonblocking(false).unwrap();
    }
}

/// Waits until a front end that does not read is sent no more answers; how many bytes there are.
fn answers_that_wait(stream: &UnixStream) -> u64 {
    let waiting = || rustix::io::ioctl_fionread(stream).unwrap();
    until("there are answers", || waiting() > 0);
    loop {
        let before = waiting();
        std::thread::sleep(std::time::Duration::from_millis(100));
        if waiting() == before {
            return before;
        }
    }
}

#[test]
fn a_front_end_that_asks_and_never_reads_holds_up_no_other() {
    const QUESTIONS: usize = 2_000;
    const ANSWER_BYTES: usize = 20;
    let mut bed = Bed::new();
    let mut stream = UnixStream::connect(bed.path()).unwrap();
    // GET_FEATURES, version 1, no body. The answers do not fit into the socket's buffer.
    let questions = [1_u32, 1, 0].map(u32::to_ne_bytes).concat().repeat(QUESTIONS);
    stream.write_all(&questions).unwrap();
    assert!(answers_that_wait(&stream) < (QUESTIONS * ANSWER_BYTES) as u64, "they do not fit");
    let parked = bed.server().park(std::time::Duration::ZERO).unwrap();
    assert!(parked.state.as_ref().unwrap().front_end.is_some());
    drop(parked);
    // It reads after all: nothing is lost.
    stream.read_exact(&mut [0; QUESTIONS * ANSWER_BYTES]).unwrap();
    stream.write_all(&questions).unwrap();
    answers_that_wait(&stream);
    let server = bed.server.take().unwrap();
    let stopping = std::thread::spawn(|| server.stop());
    until("it stops", || stopping.is_finished());
    assert_eq!(bed.device.state().disconnects, 1);
}

#[test]
fn a_socket_that_is_closed_has_no_front_end_and_is_there_again_when_it_is_opened() {
    let bed = Bed::new();
    for count in 1..4 {
        // Half a message delays nothing.
        let mut front_end = UnixStream::connect(bed.path()).unwrap();
        bed.wait_for(&ServerState::Connected);
        front_end.write_all(&[1, 0, 0]).unwrap();
        bed.server().closer().set_closed(true);
        bed.wait_for(&ServerState::Closed);
        assert_eq!(bed.device.state().disconnects, count);
        // The state is told a moment before the path goes.
        until("its path is gone", || !bed.path().exists());
        // Like any other it can stand still, and has nothing to hand over.
        let parked = bed.server().park(std::time::Duration::ZERO).unwrap();
        assert!(parked.state.is_none());
        drop(parked);
        bed.server().closer().set_closed(false);
        bed.wait_for(&ServerState::Waiting);
    }
}

/// How many front ends wait at a drained server that stands still.
const BACKLOG: u64 = 64;

fn backlog(bed: &Bed) -> Vec<UnixStream> {
    bed.server().set_turning_away(true);
    (0..BACKLOG).map(|_| UnixStream::connect(bed.path()).unwrap()).collect()
}

/// Time enough for another thread to ask for something; where it is not, the test tries again.
fn pause(tries: u64) {
    std::thread::sleep(std::time::Duration::from_millis(10 << tries));
}

#[test]
fn a_drained_server_stands_still_before_all_were_turned_away() {
    let stands_still_early = |tries| {
        let bed = Bed::new();
        let server = bed.server();
        let first = server.park(std::time::Duration::ZERO).unwrap();
        let _waiting = backlog(&bed);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let parked = server.park(std::time::Duration::ZERO).unwrap();
                let turned_away = server.turned_away();
                drop(parked);
                turned_away
            });
            pause(tries);
            drop(first);
            second.join().unwrap() < BACKLOG
        })
    };
    assert!((0..6).any(stands_still_early));
}

#[test]
fn a_drained_server_stops_before_all_were_turned_away() {
    let stops_early = |tries| {
        let mut bed = Bed::new();
        let parked = bed.server().park(std::time::Duration::ZERO).unwrap();
        let waiting = backlog(&bed);
        let server = bed.server.take().unwrap();
        let stopping = std::thread::spawn(|| server.stop());
        pause(tries);
        drop(parked);
        stopping.join().unwrap();
        // A front end that was never accepted sees a reset, not an end.
        waiting.into_iter().any(|mut stream| stream.read(&mut [0]).is_err())
    };
    assert!((0..6).any(stops_early));
}
