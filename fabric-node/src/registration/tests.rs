//! Server and members in one process, and what unregistered clients may try.

mod hand_over;
mod liveness;
mod sleep;

use std::collections::{HashSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
};

use super::unregistered::UNREGISTERED_PER_USER_MAX;
use super::*;
use fabric::registration::KeyError;
use fabric::ring::Words;
use fabric::{
    Class, Domain, EndpointOptions, JoinError, MemoryPiece, Message, Receive, RequestContext,
};

const KEY: &str = "0123456789abcdef";
const OTHER_KEY: &str = "0123456789abcdeg";

/// Generous: the machine may be busy. Nothing that goes well waits for it.
const LONG: Duration = Duration::from_secs(30);

struct TestNode {
    server: RegistrationServer,
    path: PathBuf,
    _home: tempfile::TempDir,
}

fn node(endpoints_max: u16) -> TestNode {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("fabric");
    let server = RegistrationServer::open(&path, 77).unwrap();
    server.add(settings("blue", KEY, endpoints_max)).unwrap();
    // Most tests are processes of their own for each connection; this one does not end.
    server.believe_connections();
    TestNode { server, path, _home: home }
}

/// One whose members are processes.
fn node_that_watches_processes(endpoints_max: u16) -> TestNode {
    let node = node(endpoints_max);
    node.server.watch_processes();
    node
}

fn settings(name: &str, key: &str, endpoints_max: u16) -> DomainSettings {
    let (name, key) = (name.to_owned(), DomainKey::new(key).unwrap());
    DomainSettings { name, key, endpoints_max, gateways: 0 }
}

impl TestNode {
    fn join(&self) -> Domain {
        Domain::join(&self.path, "blue", KEY).unwrap()
    }

    fn try_join(&self) -> Result<Domain, JoinError> {
        Domain::join(&self.path, "blue", KEY)
    }

    fn report(&self) -> DomainReport {
        self.server.reports().remove(0)
    }

    /// Waits until so many are members, with so many endpoints.
    fn until(&self, members: usize, endpoints_live: usize) {
        let end = Instant::now() + LONG;
        loop {
            let report = self.report();
            if (report.members, report.endpoints_live) == (members, endpoints_live) {
                return;
            }
            assert!(Instant::now() < end, "{report:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Calls without saying anything.
fn call(path: &Path) -> OwnedFd {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let limit = Some(LONG);
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit)
        .unwrap();
    socket
}

fn say(socket: &OwnedFd, bytes: &[u8]) {
    // A client that was disconnected already learns it when it reads.
    let _ = send(socket, bytes, SendFlags::NOSIGNAL);
}

/// The server's next answer; none when it has hung up.
fn hear(socket: &OwnedFd) -> Option<RegistrationAnswer> {
    let mut bytes = [0; MESSAGE_BYTES];
    match recv(socket, &mut bytes, RecvFlags::empty()) {
        Ok((_, 0)) | Err(Errno::CONNRESET) => None,
        Ok((_, length)) => Some(RegistrationAnswer::from_bytes(&bytes[..length]).unwrap()),
        Err(errno) => panic!("neither an answer nor an end: {errno}"),
    }
}

fn hello(name: &str, key: &str) -> RegistrationRequest {
    RegistrationRequest::Hello {
        name: name.to_owned(),
        key: Box::new(*DomainKey::new(key).unwrap().bytes()),
    }
}

fn member(node: &TestNode) -> OwnedFd {
    let socket = call(&node.path);
    say(&socket, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&socket), Some(RegistrationAnswer::Welcome { host: 77 }));
    socket
}

fn new_grant(socket: &OwnedFd) -> SlotGrant {
    say(socket, &RegistrationRequest::NewEndpoint.to_bytes());
    match hear(socket) {
        Some(RegistrationAnswer::Endpoint { grant, process }) => {
            assert_eq!(process, std::process::id());
            grant
        }
        other => panic!("no endpoint, but {other:?}"),
    }
}

#[test]
fn members_of_one_domain_share_one_region_and_others_do_not() {
    let node = node(4);
    node.server.add(settings("red", OTHER_KEY, 4)).unwrap();
    let write = |domain: &Domain, slot: u16, word: u64| {
        domain.region().ring(slot).set_tail(word);
    };
    let (one, other) = (node.join(), node.join());
    assert_eq!((one.host(), other.host()), (77, 77));
    write(&one, 2, 4711);
    let tail = |domain: &Domain| domain.region().ring(2).tail();
    assert_eq!(tail(&other), 4711);
    let red = Domain::join(&node.path, "red", OTHER_KEY).unwrap();
    assert_eq!(tail(&red), 0);
    node.until(2, 0);
    drop((one, other));
    node.until(0, 0);
}

#[test]
fn a_wrong_key_and_an_unknown_domain_are_told_the_same() {
    let node = node(4);
    let refused = |name: &str, key: &str| {
        let socket = call(&node.path);
        say(&socket, &hello(name, key).to_bytes());
        let answer = hear(&socket);
        assert_eq!(hear(&socket), None, "and hung up on");
        answer
    };
    let wrong = refused("blue", OTHER_KEY);
    assert_eq!(wrong, Some(RegistrationAnswer::Refused(RegistrationRefusal::Denied)));
    assert_eq!(refused("green", KEY), wrong);
    let error = Domain::join(&node.path, "blue", OTHER_KEY).unwrap_err();
    assert!(matches!(error, JoinError::Denied(_)), "{error}");
    assert!(error.to_string().contains("vrio mpi env"), "{error}");
    // Another key from now on; members stay.
    let inside = member(&node);
    assert!(node.server.set_key("blue", DomainKey::new(OTHER_KEY).unwrap()));
    assert!(Domain::join(&node.path, "blue", KEY).is_err());
    Domain::join(&node.path, "blue", OTHER_KEY).unwrap();
    new_grant(&inside);
}

#[test]
fn slots_come_back_when_their_process_or_its_endpoint_has_gone() {
    let node = node(3);
    let one = member(&node);
    let grants = [new_grant(&one), new_grant(&one), new_grant(&one)];
    assert_eq!(grants.map(|grant| grant.slot).into_iter().collect::<HashSet<_>>().len(), 3);
    let other = member(&node);
    say(&other, &RegistrationRequest::NewEndpoint.to_bytes());
    assert_eq!(hear(&other), Some(RegistrationAnswer::Full));
    say(&one, &RegistrationRequest::CloseEndpoint(grants[1]).to_bytes());
    node.until(2, 2);
    let again = new_grant(&other);
    assert_eq!(again.slot, grants[1].slot);
    assert!(again.incarnation > grants[1].incarnation, "it differs from the former grant");
    drop(one);
    node.until(1, 1);
    let fresh: Vec<_> = [new_grant(&other), new_grant(&other)].into();
    assert!(fresh.iter().all(|grant| grant.incarnation == 2));
}

#[test]
fn a_member_that_breaks_the_rules_is_hung_up_on_and_no_other() {
    let node = node(4);
    let good = member(&node);
    let grant = new_grant(&good);
    let foreign = [
        hello("blue", KEY).to_bytes().to_vec(),
        RegistrationRequest::CloseEndpoint(grant).to_bytes().to_vec(),
        vec![0; MESSAGE_BYTES],
        vec![1],
        vec![7; 4 * MESSAGE_BYTES],
        RegistrationAnswer::Full.to_bytes().to_vec(),
    ];
    for bytes in foreign {
        let bad = member(&node);
        say(&bad, &bytes);
        assert_eq!(hear(&bad), None, "{bytes:?}");
    }
    // A client that asks for something before it has registered, too.
    let unregistered = call(&node.path);
    say(&unregistered, &RegistrationRequest::NewEndpoint.to_bytes());
    assert_eq!(hear(&unregistered), None);
    node.until(1, 1);
    new_grant(&good);
}

#[test]
fn a_process_of_another_version_is_told() {
    let node = node(4);
    let socket = call(&node.path);
    let mut bytes = hello("blue", KEY).to_bytes();
    bytes[8] = 9;
    say(&socket, &bytes);
    assert_eq!(hear(&socket), Some(RegistrationAnswer::Refused(RegistrationRefusal::Version)));
    assert_eq!(hear(&socket), None);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let node = node(2);
    let deaf = member(&node);
    // More answers than a socket holds; the server never waits for it.
    let end = Instant::now() + LONG;
    while send(&deaf, &RegistrationRequest::NewEndpoint.to_bytes(), SendFlags::NOSIGNAL).is_ok() {
        assert!(Instant::now() < end, "it was never hung up on");
    }
    node.until(0, 0);
    node.join();
}

#[test]
fn a_crowd_of_members_is_bounded() {
    let node = node(1);
    let _members = [node.join(), node.join()];
    let error = Domain::join(&node.path, "blue", KEY).unwrap_err();
    assert!(matches!(error, JoinError::Crowded), "{error}");
}

#[test]
fn a_crowd_of_silent_clients_keeps_no_client_out() {
    let node = node(4);
    // As many as one user may have, and one more: the first gives way, at once.
    let silent: Vec<_> = (0..=UNREGISTERED_PER_USER_MAX).map(|_| call(&node.path)).collect();
    assert_eq!(hear(&silent[0]), None);
    // The one that was silent for longest by now, not one that has spoken.
    let inside = member(&node);
    assert_eq!(hear(&silent[1]), None);
    let last = &silent[UNREGISTERED_PER_USER_MAX];
    say(last, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(last), Some(RegistrationAnswer::Welcome { host: 77 }));
    new_grant(&inside);
}

#[test]
fn a_process_that_had_to_give_way_calls_again() {
    let node = node(4);
    let (path, over) = (node.path.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut silent = VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                silent.push_back(call(&path));
                silent.truncate(2 * UNREGISTERED_PER_USER_MAX);
            }
        });
        let joined: Vec<_> = (0..8).map(|_| node.try_join()).collect();
        over.store(true, Ordering::Relaxed);
        let refused = joined.iter().filter(|joined| joined.is_err()).count();
        assert!(refused < 8, "{joined:?}");
    });
}

#[test]
fn a_door_without_descriptors_lets_callers_wait_and_answers_members() {
    let Some(path) = std::env::var_os(STARVED) else {
        // In a process of its own, whose descriptors no other test shares.
        let home = tempfile::tempdir().unwrap();
        let test =
            "registration::tests::a_door_without_descriptors_lets_callers_wait_and_answers_members";
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(STARVED, home.path().join("fabric"))
            .output();
        let run = run.unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        return;
    };
    let server = RegistrationServer::open(Path::new(&path), 77).unwrap();
    server.add(settings("blue", KEY, 4)).unwrap();
    let inside = call(Path::new(&path));
    say(&inside, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&inside), Some(RegistrationAnswer::Welcome { host: 77 }));
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let waiting = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    let mut all = Vec::new();
    while let Ok(copy) = rustix::io::dup(&inside) {
        all.push(copy);
    }
    rustix::net::connect(&waiting, &SocketAddrUnix::new(Path::new(&path)).unwrap()).unwrap();
    say(&waiting, &hello("blue", KEY).to_bytes());
    let mut free = 0;
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(1));
        free += u32::from(server.is_free());
    }
    assert!(free > 100, "it does not sleep with everything locked: {free}");
    new_grant(&inside);
    drop(all);
    assert_eq!(hear(&waiting), Some(RegistrationAnswer::Welcome { host: 77 }));
}

#[test]
fn a_leaver_keeps_its_slots_from_others_until_its_process_ends() {
    let node = node_that_watches_processes(1);
    let mut victim = Victim::start(&node, "leaves");
    node.until(0, 0);
    // To others it is gone, and its slot is not free: it may still store there.
    let other = member(&node);
    say(&other, &RegistrationRequest::NewEndpoint.to_bytes());
    assert_eq!(hear(&other), Some(RegistrationAnswer::Full));
    victim.kill();
    let end = Instant::now() + LONG;
    let grant = loop {
        say(&other, &RegistrationRequest::NewEndpoint.to_bytes());
        match hear(&other) {
            Some(RegistrationAnswer::Endpoint { grant, .. }) => break grant,
            answer => assert_eq!(answer, Some(RegistrationAnswer::Full)),
        }
        assert!(Instant::now() < end, "it was never free");
    };
    assert_eq!(grant.incarnation, 2);
}

/// A child has neither its parent's memory of the domain nor a say about its endpoints.
#[test]
fn a_child_that_ends_takes_nothing_of_its_parents_along() {
    let node = node(2);
    let domain = node.join();
    let endpoint = domain.endpoint(EndpointOptions::default()).unwrap();
    // SAFETY: the child drops what it has of these, which takes no lock that another thread holds
    // (glibc's allocator is made for forks), and ends without anything else.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop((endpoint, domain));
        // SAFETY: it ends here.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "it did not touch what it has not");
    let _answered_behind_it = node.join();
    assert_eq!(node.report().endpoints_live, 1);
    // The flag "dc": not copied to children.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (kept, all) = maps.split("VmFlags:").zip(maps.split("VmFlags:").skip(1)).fold(
        (0, 0),
        |(kept, all), (before, after)| {
            let is_region = before.lines().any(|line| line.contains("memfd:vrio-fabric"));
            let flags = after.lines().next().unwrap_or_default();
            (kept + i32::from(is_region && flags.contains(" dc")), all + i32::from(is_region))
        },
    );
    assert!(kept >= 2 && all > kept, "members' are, the node's own is not: {kept} of {all}");
    drop((endpoint, domain));
}

#[test]
fn whose_an_endpoint_is_the_node_says_to_members() {
    let node = node(4);
    let (one, other) = (member(&node), member(&node));
    let grant = new_grant(&one);
    let ask = |grant: SlotGrant| {
        say(&other, &RegistrationRequest::Process(grant).to_bytes());
        hear(&other)
    };
    let process = std::process::id();
    assert_eq!(ask(grant), Some(RegistrationAnswer::Process { grant, process }));
    for grant in [
        SlotGrant { incarnation: 2, ..grant },
        SlotGrant { slot: 3, ..grant },
        SlotGrant { slot: 999, ..grant },
    ] {
        assert_eq!(ask(grant), Some(RegistrationAnswer::Process { grant, process: 0 }));
    }
    let unregistered = call(&node.path);
    say(&unregistered, &RegistrationRequest::Process(grant).to_bytes());
    assert_eq!(hear(&unregistered), None);
}

/// A large message is read out of its sender's memory once the node has named the sender's process;
/// the region's own words have no part in it.
#[test]
fn memory_is_read_of_the_process_that_the_node_names() {
    let node = node(4);
    let options = EndpointOptions {
        eager_bytes_max: 0,
        single_copy_bytes_min: 0,
        ..EndpointOptions::default()
    };
    let domains = [node.join(), node.join()];
    let [mut one, mut other] = [0, 1].map(|at| domains[at].endpoint(options).unwrap());
    let (sent, mut got) = (vec![7_u8; 50_000], vec![0_u8; 50_000]);
    let end = Instant::now() + LONG;
    while other.counters().single_copies == 0 {
        assert!(Instant::now() < end, "{:?}", other.counters());
        let (class, tag, context) = (Class::Tagged, 1, RequestContext(1));
        let (source, ignore, multi_min_bytes) = (None, 0, None);
        let receive = Receive { class, source, tag, ignore, context, multi_min_bytes };
        let to = other.address();
        let (data, inject, context) = (None, false, Some(context));
        let message = Message { to, class, tag, data, context, inject };
        got.fill(0);
        // SAFETY: both live until the completions, which are waited for.
        unsafe {
            other
                .receive(&receive, &[MemoryPiece { start: got.as_mut_ptr(), bytes: got.len() }])
                .unwrap();
            let start = sent.as_ptr().cast_mut();
            one.send(&message, &[MemoryPiece { start, bytes: sent.len() }]).unwrap();
        }
        while other.completion().is_none() {
            one.progress();
        }
        while one.completion().is_none() {
            other.progress();
        }
        assert!(got == sent);
    }
}

#[test]
fn a_removed_domain_lets_go_of_its_members() {
    let node = node(4);
    node.server.add(settings("red", OTHER_KEY, 1)).unwrap();
    assert!(matches!(node.server.add(settings("red", KEY, 1)), Err(OpenError::Exists(_))));
    let socket = member(&node);
    new_grant(&socket);
    assert!(node.server.remove("blue") && !node.server.remove("blue"));
    assert_eq!(hear(&socket), None);
    assert_eq!(node.server.reports().len(), 1);
    assert!(matches!(Domain::join(&node.path, "blue", KEY), Err(JoinError::Denied(_))));
}

#[test]
fn a_process_without_a_node_is_told_the_way_out() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("nothing");
    let error = Domain::join(&path, "blue", KEY).unwrap_err();
    assert!(matches!(error, JoinError::NoNode { .. }), "{error}");
    let node = node(1);
    assert!(RegistrationServer::open(&node.path, 1).is_err(), "the socket is in use");
    let path = node.path.clone();
    drop(node.server);
    assert!(!path.exists());
    assert!(matches!(Domain::join(&path, "", KEY), Err(JoinError::Name(_))));
    assert!(matches!(
        Domain::join(&path, "blue", "short"),
        Err(JoinError::DomainKey(KeyError::Form))
    ));
}

#[test]
fn keys_are_read_from_files_without_other_readers() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("key");
    std::fs::write(&path, format!("{KEY}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(DomainKey::read(&path).unwrap(), DomainKey::new(KEY).unwrap());
    assert_ne!(DomainKey::read(&path).unwrap(), DomainKey::new(OTHER_KEY).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(DomainKey::read(&path), Err(KeyError::Open { mode: 0o644, .. })));
    let long = home.path().join("long");
    std::fs::write(&long, "x".repeat(KEY_BYTES_MAX + 1)).unwrap();
    std::fs::set_permissions(&long, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(DomainKey::read(&long), Err(KeyError::Form)));
    assert!(matches!(DomainKey::read(home.path()), Err(KeyError::NotAFile(_))));
    assert!(matches!(DomainKey::read(&home.path().join("none")), Err(KeyError::Read { .. })));
    assert_eq!(format!("{:?}", DomainKey::new(KEY).unwrap()), "Key(..)", "nothing of it is shown");
    assert!(DomainKey::new("sixteen and a space").is_err() && DomainKey::new("tooshort").is_err());
}

#[test]
fn a_thousand_processes_die_and_their_slots_are_used_again() {
    let node = node(4);
    let mut incarnations = HashSet::new();
    for _ in 0..1000 {
        let socket = member(&node);
        let grant = new_grant(&socket);
        assert!(incarnations.insert((grant.slot, grant.incarnation)), "never twice: {grant:?}");
    }
    node.until(0, 0);
}

/// The socket that the victim of a test must call, and its role; set for that process only.
const VICTIM: &str = "VRIO_TEST_VICTIM";
const VICTIM_DOES: &str = "VRIO_TEST_VICTIM_DOES";
/// The path of a server that has no descriptors left.
const STARVED: &str = "VRIO_TEST_STARVED";

/// Joins, takes a slot, and leaves its connection to a child as well, or hangs up and goes on. Does
/// nothing in a test run.
#[test]
fn be_the_victim() {
    let Some(path) = std::env::var_os(VICTIM) else { return };
    let socket = call(Path::new(&path));
    say(&socket, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&socket), Some(RegistrationAnswer::Welcome { host: 77 }));
    new_grant(&socket);
    if std::env::var(VICTIM_DOES).unwrap() == "leaves" {
        drop(socket);
        println!("did 0");
        std::thread::sleep(LONG);
        return;
    }
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
    let mut heir = Command::new("sleep").arg("1000").spawn().unwrap();
    println!("did {}", heir.id());
    let _ = heir.wait();
}

struct Victim {
    process: std::process::Child,
    /// Its child's.
    heir: Option<rustix::process::Pid>,
}

impl Victim {
    fn start(node: &TestNode, does: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "registration::tests::be_the_victim", "--nocapture"])
            .env(VICTIM, &node.path)
            .env(VICTIM_DOES, does)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut did = lines.filter_map(|line| Some(line.split_once("did ")?.1.parse().unwrap()));
        let heir = did.next().expect("it tells what it did");
        Self { process, heir: rustix::process::Pid::from_raw(heir) }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(heir) = self.heir {
            let _ = rustix::process::kill_process(heir, rustix::process::Signal::KILL);
        }
    }
}

#[test]
fn a_process_that_is_killed_is_noticed_even_if_its_child_has_the_connection() {
    let node = node_that_watches_processes(2);
    let mut victim = Victim::start(&node, "bequeaths");
    node.until(1, 1);
    victim.kill();
    node.until(0, 0);
}

/// Bytes that clients may send, among them whole messages with wrong bytes.
fn talk() -> impl Strategy<Value = Vec<u8>> {
    let valid = prop_oneof![
        Just(hello("blue", KEY).to_bytes().to_vec()),
        Just(hello("green", KEY).to_bytes().to_vec()),
        Just(RegistrationRequest::NewEndpoint.to_bytes().to_vec()),
        (0_u16..5, 0_u32..3).prop_map(|(slot, incarnation)| {
            RegistrationRequest::CloseEndpoint(SlotGrant { slot, incarnation }).to_bytes().to_vec()
        }),
    ];
    let flaw = (0_usize..3, 0..MESSAGE_BYTES, any::<u8>());
    let flawed = (valid, flaw).prop_map(|(mut bytes, (kind, at, by))| {
        match kind {
            0 => {}
            1 => bytes[at] = by,
            _ => bytes.truncate(at + 1),
        }
        bytes
    });
    prop_oneof![3 => flawed, 1 => proptest::collection::vec(any::<u8>(), 1..600)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Clients send anything, a bystander is served, and all slots come back.
    #[test]
    fn nonsense_harms_its_sender_alone(talks in proptest::collection::vec(talk(), 1..20)) {
        let node = node(3);
        let bystander = member(&node);
        new_grant(&bystander);
        let clients = [call(&node.path), call(&node.path)];
        for (number, bytes) in talks.iter().enumerate() {
            say(&clients[number % 2], bytes);
        }
        drop(clients);
        node.until(1, 1);
        let grants = [new_grant(&bystander), new_grant(&bystander)];
        prop_assert!(grants[0].slot != grants[1].slot);
    }
}
