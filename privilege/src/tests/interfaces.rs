//! The process that opens interfaces, with virtual cables in a network namespace of each test's
//! own.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use net::uplink::Cards;
use rustix::process::{Resource, Rlimit};

use super::*;

/// How long an event in another process may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// More descriptors than a test has.
const FDS_MAX: i32 = 4096;

/// A cable's end `vrio0`, and a shell in its namespace, which keeps the rights that the test gives
/// up.
struct Cable {
    asks: ChildStdin,
    says: BufReader<ChildStdout>,
    /// The shell ends when its input is closed. A filtered process may not wait for that.
    _shell: Child,
}

impl Cable {
    /// `None` without the right to do so.
    fn plug_in() -> Option<Self> {
        // SAFETY: this process has no other thread that works, and gets a network of its own.
        let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        let shell = Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut shell = shell.unwrap();
        let (asks, says) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let mut cable = Self { asks, says: BufReader::new(says), _shell: shell };
        (is_apart && cable.plug()).then_some(cable)
    }

    /// Has the shell run a command; returns its output of one line.
    fn ask(&mut self, what: &str) -> String {
        self.asks.write_all(format!("{what}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Makes the cable, anew if it is there.
    fn plug(&mut self) -> bool {
        let make = "ip link add vrio0 type veth peer name far && echo made || echo none";
        self.ask(&format!("ip link del vrio0 2>/dev/null; {make}")) == "made"
    }

    /// How many sockets keep the cable's end promiscuous.
    fn promiscuity(&mut self) -> u32 {
        let said = self.ask("ip -d link show vrio0 | grep -o 'promiscuity [0-9]*' || echo none");
        let number = said.strip_prefix("promiscuity ").and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{said:?}"))
    }

    /// Waits until so many sockets do, and checks that the number stays.
    fn wait_for_promiscuity(&mut self, wanted: u32) {
        let until = Instant::now() + PATIENCE;
        while self.promiscuity() != wanted {
            assert!(Instant::now() < until, "{} and not {wanted} keep it", self.promiscuity());
            sleep(Duration::from_millis(10));
        }
        sleep(Duration::from_millis(50));
        assert_eq!(self.promiscuity(), wanted);
    }
}

/// Runs the test of this name in a process of its own, with a home that no other user owns.
fn in_nobodys_home(name: &str) {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP {name}: not root");
    }
    let home = home();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(home.path(), open).unwrap();
    for directory in [".", "volumes"] {
        let path = home.path().join(directory);
        rustix::fs::chown(path, Some(Uid::from_raw(NOBODY)), None).unwrap();
    }
    assert_success(&in_child(&format!("interfaces::{name}"), home.path()));
}

/// The configuration of a node that may open the interface `vrio0`.
fn config_of_nobody(home: &Path, networks: &str) -> Config {
    let mut config = config(home, networks);
    config.user = Some("nobody".to_owned());
    config
}

const NETWORKS: &str = "[[network]]\nname = \"blue\"\nuplink = \"xdp:vrio0\"\n";

/// Gives everything up.
fn give_up(config: &Config) {
    drop(config).unwrap();
    filter(config).unwrap();
    assert!(!rustix::process::geteuid().is_root());
}

/// Sockets of this process that could be bound to any interface.
fn packet_sockets() -> usize {
    let is_one = |fd: &i32| {
        let (mut domain, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
        let into = (&raw mut domain).cast();
        // SAFETY: an integer is written, and its length. A descriptor of another kind gives an
        // error.
        let asked = unsafe { libc::getsockopt(*fd, level, option, into, &raw mut len) };
        asked == 0 && domain == libc::AF_PACKET
    };
    (0..FDS_MAX).filter(is_one).count()
}

#[test]
fn an_interface_is_opened_for_a_node_without_rights_and_no_other() {
    let name = "an_interface_is_opened_for_a_node_without_rights_and_no_other";
    let Some(path) = child_home() else { return in_nobodys_home(name) };
    let Some(mut cable) = Cable::plug_in() else {
        return println!("SKIP {name}: no network namespace, or no virtual cable");
    };
    let config = config_of_nobody(&path, NETWORKS);
    let opener = Opener::start(&config).unwrap();
    give_up(&config);
    let (card, hold) = opener.open("vrio0").unwrap();
    let index = card.index();
    assert_eq!((card.mtu(), card.queues().len()), (1500, 1));
    // The interface is this process's alone.
    let taken = opener.open("vrio0").unwrap_err().to_string();
    assert!(taken.contains("another program is attached"), "{taken}");
    let other = opener.open("far").unwrap_err().to_string();
    assert!(other.contains("name the interface in an uplink of the node's file"), "{other}");
    cable.wait_for_promiscuity(1);
    // The cable goes, and is made again.
    assert!(cable.plug());
    let (again, held) = opener.open("vrio0").unwrap();
    assert_ne!(again.index(), index);
    // Dropping the hold of the first interface does not touch the second.
    std::mem::drop((card, hold));
    cable.wait_for_promiscuity(1);
    std::mem::drop((again, held));
    cable.wait_for_promiscuity(0);
    opener.open("vrio0").expect("whoever lets go of one leaves nothing behind");
}

#[test]
fn the_socket_that_keeps_an_interface_promiscuous_is_not_the_nodes() {
    let name = "the_socket_that_keeps_an_interface_promiscuous_is_not_the_nodes";
    let Some(path) = child_home() else { return in_nobodys_home(name) };
    let Some(mut cable) = Cable::plug_in() else {
        return println!("SKIP {name}: no network namespace, or no virtual cable");
    };
    let own = net::uplink::OwnCards.open("vrio0").unwrap();
    assert_eq!((packet_sockets(), cable.promiscuity()), (1, 1), "they are found");
    std::mem::drop(own);
    let config = config_of_nobody(&path, NETWORKS);
    let openers = [(); 2].map(|()| Opener::start(&config).unwrap());
    give_up(&config);
    let (card, hold) = openers[0].open("vrio0").unwrap();
    let index = card.index();
    assert_eq!((packet_sockets(), cable.promiscuity()), (0, 1));
    // A successor has its own hold before the predecessor lets go.
    let wrong = openers[1].hold("vrio0", index + 1).unwrap_err().to_string();
    assert!(wrong.contains("is another interface"), "{wrong}");
    let next = openers[1].hold("vrio0", index).unwrap();
    assert_eq!((packet_sockets(), cable.promiscuity()), (0, 2));
    std::mem::drop((card, hold));
    cable.wait_for_promiscuity(1);
    // A successor that does not take over lets go.
    std::mem::drop(next);
    cable.wait_for_promiscuity(0);
}

#[test]
fn the_end_of_the_opener_of_interfaces_is_seen_and_logged() {
    let name = "the_end_of_the_opener_of_interfaces_is_seen_and_logged";
    let Some(path) = child_home() else { return in_nobodys_home(name) };
    let Some(mut cable) = Cable::plug_in() else {
        return println!("SKIP {name}: no network namespace, or no virtual cable");
    };
    let config = config_of_nobody(&path, NETWORKS);
    let opener = Opener::start(&config).unwrap();
    give_up(&config);
    let _held = opener.open("vrio0").unwrap();
    assert_eq!(opener.trouble(), None);
    // The shell's siblings: there is one.
    let find = "grep -lE \"^PPid:.$PPID$\" /proc/[0-9]*/status | grep -v \"/$$/\"";
    let found = cable.ask(&format!("{find} | cut -d/ -f3 | tr '\\n' ' '; echo"));
    let pid: u32 = found.trim().parse().unwrap_or_else(|_| panic!("{found:?}"));
    assert_eq!(cable.ask(&format!("kill -9 {pid}; echo killed")), "killed");
    let until = Instant::now() + PATIENCE;
    let trouble = loop {
        match opener.trouble() {
            Some(trouble) => break trouble,
            None => assert!(Instant::now() < until, "its end is not seen"),
        }
        sleep(Duration::from_millis(10));
    };
    assert!(trouble.contains("ended by signal 9") && trouble.contains("start the"), "{trouble}");
    let there = cable.ask(&format!("[ -d /proc/{pid} ] && echo there || echo gone"));
    assert_eq!((there.as_str(), cable.promiscuity()), ("gone", 0), "it is buried");
    let error = opener.open("vrio0").unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
}

#[test]
fn a_node_that_had_no_interface_at_its_start_says_so() {
    let name = "a_node_that_had_no_interface_at_its_start_says_so";
    let Some(path) = child_home() else { return in_nobodys_home(name) };
    let config = config_of_nobody(&path, "");
    let opener = Opener::start(&config).unwrap();
    give_up(&config);
    for refused in [opener.open("lo").err(), opener.hold("lo", 1).err()] {
        let text = refused.unwrap().to_string();
        assert!(
            text.contains("name the interface in an uplink of the node's file and restart"),
            "{text}"
        );
    }
}

/// This process may have descriptors below that number only.
fn limit_descriptors(current: u64) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let limit = Rlimit { current: Some(current), ..limit };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn a_process_with_too_many_descriptors_hears_that_and_can_ask_again() {
    let name = "a_process_with_too_many_descriptors_hears_that_and_can_ask_again";
    let Some(path) = child_home() else { return in_nobodys_home(name) };
    let Some(mut cable) = Cable::plug_in() else {
        return println!("SKIP {name}: no network namespace, or no virtual cable");
    };
    let config = config_of_nobody(&path, NETWORKS);
    let opener = Opener::start(&config).unwrap();
    // Without the filter, which does not let a node change its limits.
    drop(&config).unwrap();
    let next = File::open("/proc/self/status").unwrap().as_raw_fd() as u64;
    // Room for none, and for some of what an interface consists of.
    for more in 0..3 {
        limit_descriptors(next + more);
        let error = opener.open("vrio0").unwrap_err().to_string();
        limit_descriptors(1024);
        assert!(error.contains("LimitNOFILE="), "{error}");
        cable.wait_for_promiscuity(0);
    }
    let (card, _hold) = opener.open("vrio0").expect("nothing of the others is left");
    assert_eq!(card.queues().len(), 1);
    cable.wait_for_promiscuity(1);
}
