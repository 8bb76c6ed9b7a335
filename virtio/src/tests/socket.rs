//! Who serves a socket: locks, leftovers, and both directions of connecting.

use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;

use super::server::*;
use crate::socket::{ServerState, Socket, SocketError, release, serve};

fn listen(path: &Path) -> Result<crate::Server, SocketError> {
    serve(Socket::Listen(path.into()), Box::new(TestDevice::default()))
}

fn wait_for(server: &crate::Server, wanted: impl Fn(&ServerState) -> bool) {
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
fn a_lock_is_given_up_when_nobody_serves_the_socket() {
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
    // Nobody is there yet; then somebody is, leaves, and is there again.
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
