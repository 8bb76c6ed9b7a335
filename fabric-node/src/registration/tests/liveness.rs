//! A process that sees nothing of a node but memory sees whether the node has ended.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Says to this test that it is the node; the folder for its sockets.
const NODE: &str = "VRIO_TEST_NODE";
const NAME: &str =
    "registration::tests::liveness::a_node_that_is_killed_is_gone_and_one_that_is_stopped_is_not";

fn serve(home: &Path) -> ! {
    let server = RegistrationServer::open(&home.join("fabric"), 77).unwrap();
    server.add(settings("blue", KEY, 4)).unwrap();
    let (name, domain, path) = ("one".to_owned(), "blue".to_owned(), home.join("vf"));
    server.add_vf(VfSettings { name, domain, path }).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_node_that_is_killed_is_gone_and_one_that_is_stopped_is_not() {
    if let Some(home) = std::env::var_os(NODE) {
        serve(Path::new(&home));
    }
    let home = tempfile::tempdir().unwrap();
    let me = std::env::current_exe().unwrap();
    let mut node = Command::new(me);
    node.args(["--exact", NAME]).env(NODE, home.path()).stdout(Stdio::null());
    let mut node = node.spawn().unwrap();
    let end = Instant::now() + LONG;
    // The last that it makes.
    while !home.path().join("vf").exists() {
        assert!(Instant::now() < end, "the node does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    let domain = Domain::join(&home.path().join("fabric"), "blue", KEY).unwrap();
    assert!(!domain.region().is_orphaned());
    let pid = Pid::from_child(&node);
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!domain.region().is_orphaned(), "it may go on");
    kill_process(pid, Signal::KILL).unwrap();
    node.wait().unwrap();
    assert!(domain.region().is_orphaned());
}

#[test]
fn a_stopped_process_is_missed_until_a_successor_comes() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("fabric");
    let begun = || {
        let server = RegistrationServer::open(&path, 77).unwrap();
        server.add(settings("blue", KEY, 4)).unwrap();
        let (name, domain) = ("one".to_owned(), "blue".to_owned());
        server.add_vf(VfSettings { name, domain, path: home.path().join("vf") }).unwrap();
        let domain = Domain::join(&path, "blue", KEY).unwrap();
        server.stop_accepting().unwrap();
        server.pause();
        (server, domain)
    };
    let (server, domain) = begun();
    assert!(!domain.region().is_orphaned());
    drop(server);
    assert!(domain.region().is_orphaned(), "the region has no successor");
    let (server, domain) = begun();
    server.release_liveness();
    drop(server);
    assert!(!domain.region().is_orphaned(), "another one may go on");
    // It goes on itself.
    let (server, domain) = begun();
    server.release_liveness();
    server.answer().unwrap();
    assert!(!domain.region().is_orphaned());
    drop(server);
    assert!(domain.region().is_orphaned());
}
