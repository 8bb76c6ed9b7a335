//! Server and members in one process, and what strangers may try.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
};

use super::wire::{Answer, MESSAGE_BYTES, Refusal, Request, Seat};
use super::*;

const KEY: &str = "0123456789abcdef";
const OTHER_KEY: &str = "0123456789abcdeg";

/// Generous: the machine may be busy. Nothing that goes well waits for it.
const LONG: Duration = Duration::from_secs(30);

struct House {
    server: Server,
    path: PathBuf,
    _home: tempfile::TempDir,
}

fn house(endpoints_max: u16) -> House {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("fabric");
    let server = Server::open(&path, 77).unwrap();
    server.add(settings("blue", KEY, endpoints_max)).unwrap();
    House { server, path, _home: home }
}

fn settings(name: &str, key: &str, endpoints_max: u16) -> DomainSettings {
    let (name, key) = (name.to_owned(), Key::new(key).unwrap());
    DomainSettings { name, key, endpoints_max, gateways: 0 }
}

impl House {
    fn join(&self) -> Domain {
        Domain::join(&self.path, "blue", KEY).unwrap()
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
    // Who was hung up on already is told by what it hears.
    let _ = send(socket, bytes, SendFlags::NOSIGNAL);
}

/// What the server says; none when it has hung up.
fn hear(socket: &OwnedFd) -> Option<Answer> {
    let mut bytes = [0; MESSAGE_BYTES];
    match recv(socket, &mut bytes, RecvFlags::empty()) {
        Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => None,
        Ok((_, length)) => Some(Answer::from_bytes(&bytes[..length]).unwrap()),
        Err(errno) => panic!("neither an answer nor an end: {errno}"),
    }
}

fn hello(name: &str, key: &str) -> Request {
    Request::Hello { name: name.to_owned(), key: Box::new(*Key::new(key).unwrap().bytes()) }
}

fn member(house: &House) -> OwnedFd {
    let socket = call(&house.path);
    say(&socket, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&socket), Some(Answer::Welcome { host: 77 }));
    socket
}

fn new_seat(socket: &OwnedFd) -> Seat {
    say(socket, &Request::NewEndpoint.to_bytes());
    match hear(socket) {
        Some(Answer::Endpoint(seat)) => seat,
        other => panic!("no endpoint, but {other:?}"),
    }
}

#[test]
fn members_of_one_domain_share_one_region_and_others_do_not() {
    let house = house(4);
    house.server.add(settings("red", OTHER_KEY, 4)).unwrap();
    let write = |domain: &Domain, slot: u16, word: u64| {
        let region = domain.region();
        region.mapping().store(
            region.layout().pid(slot),
            word,
            std::sync::atomic::Ordering::SeqCst,
        );
    };
    let (one, other) = (house.join(), house.join());
    assert_eq!((one.host(), other.host()), (77, 77));
    write(&one, 2, 4711);
    assert_eq!(other.region().pid(2), 4711);
    let red = Domain::join(&house.path, "red", OTHER_KEY).unwrap();
    assert_eq!(red.region().pid(2), 0);
    house.until(2, 0);
    drop((one, other));
    house.until(0, 0);
}

#[test]
fn a_wrong_key_and_an_unknown_domain_are_told_the_same() {
    let house = house(4);
    let refused = |name: &str, key: &str| {
        let socket = call(&house.path);
        say(&socket, &hello(name, key).to_bytes());
        let answer = hear(&socket);
        assert_eq!(hear(&socket), None, "and hung up on");
        answer
    };
    let wrong = refused("blue", OTHER_KEY);
    assert_eq!(wrong, Some(Answer::Refused(Refusal::Denied)));
    assert_eq!(refused("green", KEY), wrong);
    let error = Domain::join(&house.path, "blue", OTHER_KEY).unwrap_err();
    assert!(matches!(error, JoinError::Denied(_)), "{error}");
    assert!(error.to_string().contains("vrio mpi env"), "{error}");
    // Another key from now on; who is in stays.
    let inside = member(&house);
    assert!(house.server.set_key("blue", Key::new(OTHER_KEY).unwrap()));
    assert!(Domain::join(&house.path, "blue", KEY).is_err());
    Domain::join(&house.path, "blue", OTHER_KEY).unwrap();
    new_seat(&inside);
}

#[test]
fn slots_come_back_when_their_process_or_its_endpoint_has_gone() {
    let house = house(3);
    let one = member(&house);
    let seats = [new_seat(&one), new_seat(&one), new_seat(&one)];
    assert_eq!(seats.map(|seat| seat.slot).into_iter().collect::<HashSet<_>>().len(), 3);
    let other = member(&house);
    say(&other, &Request::NewEndpoint.to_bytes());
    assert_eq!(hear(&other), Some(Answer::Full));
    say(&one, &Request::CloseEndpoint(seats[1]).to_bytes());
    house.until(2, 2);
    let again = new_seat(&other);
    assert_eq!(again.slot, seats[1].slot);
    assert!(again.incarnation > seats[1].incarnation, "nobody takes it for the one before");
    drop(one);
    house.until(1, 1);
    let fresh: Vec<_> = [new_seat(&other), new_seat(&other)].into();
    assert!(fresh.iter().all(|seat| seat.incarnation == 2));
}

#[test]
fn a_member_that_breaks_the_rules_is_hung_up_on_and_no_other() {
    let house = house(4);
    let good = member(&house);
    let seat = new_seat(&good);
    let foreign = [
        hello("blue", KEY).to_bytes().to_vec(),
        Request::CloseEndpoint(seat).to_bytes().to_vec(),
        vec![0; MESSAGE_BYTES],
        vec![1],
        vec![7; 4 * MESSAGE_BYTES],
        Answer::Full.to_bytes().to_vec(),
    ];
    for bytes in foreign {
        let bad = member(&house);
        say(&bad, &bytes);
        assert_eq!(hear(&bad), None, "{bytes:?}");
    }
    // One who asks for something without having said who it is, too.
    let stranger = call(&house.path);
    say(&stranger, &Request::NewEndpoint.to_bytes());
    assert_eq!(hear(&stranger), None);
    house.until(1, 1);
    new_seat(&good);
}

#[test]
fn who_speaks_another_version_is_told() {
    let house = house(4);
    let socket = call(&house.path);
    let mut bytes = hello("blue", KEY).to_bytes();
    bytes[8] = 9;
    say(&socket, &bytes);
    assert_eq!(hear(&socket), Some(Answer::Refused(Refusal::Version)));
    assert_eq!(hear(&socket), None);
}

#[test]
fn who_does_not_read_is_hung_up_on() {
    let house = house(2);
    let deaf = member(&house);
    // More answers than a socket holds; the server never waits for it.
    let end = Instant::now() + LONG;
    while send(&deaf, &Request::NewEndpoint.to_bytes(), SendFlags::NOSIGNAL).is_ok() {
        assert!(Instant::now() < end, "it was never hung up on");
    }
    house.until(0, 0);
    house.join();
}

#[test]
fn a_crowd_of_members_is_bounded() {
    let house = house(1);
    let _members = [house.join(), house.join()];
    let error = Domain::join(&house.path, "blue", KEY).unwrap_err();
    assert!(matches!(error, JoinError::Crowded), "{error}");
}

#[test]
fn silent_strangers_are_hung_up_on_and_let_others_in() {
    let house = house(4);
    // As many as there is room for, and one more, that waits behind them.
    let silent: Vec<_> = (0..=server::STRANGERS_MAX).map(|_| call(&house.path)).collect();
    let begun = Instant::now();
    house.join();
    assert!(begun.elapsed() < LONG, "it waited for its turn only");
    assert_eq!(hear(&silent[0]), None);
}

#[test]
fn a_removed_domain_lets_go_of_its_members() {
    let house = house(4);
    house.server.add(settings("red", OTHER_KEY, 1)).unwrap();
    assert!(matches!(house.server.add(settings("red", KEY, 1)), Err(OpenError::Exists(_))));
    let socket = member(&house);
    new_seat(&socket);
    assert!(house.server.remove("blue") && !house.server.remove("blue"));
    assert_eq!(hear(&socket), None);
    assert_eq!(house.server.reports().len(), 1);
    assert!(matches!(Domain::join(&house.path, "blue", KEY), Err(JoinError::Denied(_))));
}

#[test]
fn who_finds_no_node_is_told_what_to_look_at() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("nothing");
    let error = Domain::join(&path, "blue", KEY).unwrap_err();
    assert!(matches!(error, JoinError::NoNode { .. }), "{error}");
    let house = house(1);
    assert!(Server::open(&house.path, 1).is_err(), "somebody is there");
    let path = house.path.clone();
    drop(house.server);
    assert!(!path.exists());
    assert!(matches!(Domain::join(&path, "", KEY), Err(JoinError::Name(_))));
    assert!(matches!(Domain::join(&path, "blue", "short"), Err(JoinError::Key(KeyError::Form))));
}

#[test]
fn keys_are_read_from_files_that_are_nobody_elses() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("key");
    std::fs::write(&path, format!("{KEY}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(Key::read(&path).unwrap(), Key::new(KEY).unwrap());
    assert_ne!(Key::read(&path).unwrap(), Key::new(OTHER_KEY).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Key::read(&path), Err(KeyError::Open { mode: 0o644, .. })));
    let long = home.path().join("long");
    std::fs::write(&long, "x".repeat(KEY_BYTES_MAX + 1)).unwrap();
    std::fs::set_permissions(&long, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(Key::read(&long), Err(KeyError::Form)));
    assert!(matches!(Key::read(home.path()), Err(KeyError::NotAFile(_))));
    assert!(matches!(Key::read(&home.path().join("none")), Err(KeyError::Read { .. })));
    assert_eq!(format!("{:?}", Key::new(KEY).unwrap()), "Key(..)", "nothing of it is shown");
    assert!(Key::new("sixteen and a space").is_err() && Key::new("tooshort").is_err());
}

#[test]
fn a_thousand_processes_die_and_their_slots_are_used_again() {
    let house = house(4);
    let mut incarnations = HashSet::new();
    for _ in 0..1000 {
        let socket = member(&house);
        let seat = new_seat(&socket);
        assert!(incarnations.insert((seat.slot, seat.incarnation)), "never twice: {seat:?}");
    }
    house.until(0, 0);
}

/// Where the victim of the next test is to call; set for that process only.
const VICTIM: &str = "VRIO_TEST_VICTIM";

/// Joins, takes a slot, and leaves its connection to a child as well. Does nothing in a test run.
#[test]
fn be_the_victim() {
    let Some(path) = std::env::var_os(VICTIM) else { return };
    let socket = call(Path::new(&path));
    say(&socket, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&socket), Some(Answer::Welcome { host: 77 }));
    new_seat(&socket);
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
    let mut heir = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    println!("heir {}", heir.id());
    let _ = heir.wait();
}

#[test]
fn a_process_that_is_killed_is_noticed_even_if_its_child_has_the_connection() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let house = house(2);
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "door::tests::be_the_victim", "--nocapture"])
        .env(VICTIM, &house.path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let heir = lines.filter_map(|line| Some(line.split_once("heir ")?.1.parse::<i32>().unwrap()));
    let heir = { heir }.next().expect("it tells who inherits");
    house.until(1, 1);
    victim.kill().unwrap();
    victim.wait().unwrap();
    house.until(0, 0);
    let heir = rustix::process::Pid::from_raw(heir).unwrap();
    rustix::process::kill_process(heir, rustix::process::Signal::KILL).unwrap();
}

/// What strangers and members may say, whole messages with wrong bytes among it.
fn talk() -> impl Strategy<Value = Vec<u8>> {
    let valid = prop_oneof![
        Just(hello("blue", KEY).to_bytes().to_vec()),
        Just(hello("green", KEY).to_bytes().to_vec()),
        Just(Request::NewEndpoint.to_bytes().to_vec()),
        (0_u16..5, 0_u32..3).prop_map(|(slot, incarnation)| {
            Request::CloseEndpoint(Seat { slot, incarnation }).to_bytes().to_vec()
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

    /// Whatever is said by whomever, a bystander is served, and all slots come back.
    #[test]
    fn nonsense_harms_nobody_else(talks in proptest::collection::vec(talk(), 1..20)) {
        let house = house(3);
        let bystander = member(&house);
        new_seat(&bystander);
        let clients = [call(&house.path), call(&house.path)];
        for (number, bytes) in talks.iter().enumerate() {
            say(&clients[number % 2], bytes);
        }
        drop(clients);
        house.until(1, 1);
        let seats = [new_seat(&bystander), new_seat(&bystander)];
        prop_assert!(seats[0].slot != seats[1].slot);
    }
}
