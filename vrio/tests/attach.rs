//! The direct client in a real guest, with the kernel's own ublk driver and an IOhost outside of
//! the guest; and the client's errors where there is no ublk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testbed::guest::{self, BOOT_TIMEOUT, Builder, Guest, scripts};
use testbed::nodes::{Node, NodeKeys, NodePlan};

/// The time limit of a script: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// Many more than the 8 requests that were outstanding at the last kill, so new requests have
/// passed.
const REQUESTS_BETWEEN_KILLS: u64 = 100;

/// Times that each of the three kinds of kill strikes, by tier.
fn kill_rounds() -> usize {
    match std::env::var("VRIO_TIER").as_deref() {
        Ok("long") => 100,
        Ok("nightly") => 20,
        _ => 1,
    }
}

/// The network card by which the guest reaches the IOhost.
#[derive(Clone, Copy)]
enum Card {
    Virtio,
    /// A virtual function of QEMU's emulated SR-IOV card.
    Igb,
}

impl Card {
    fn name(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::Igb => "igb",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Virtio => &["-device", "virtio-net-pci,netdev=net,romfile="],
            // Functions get their bus numbers from the port that the card is behind.
            Self::Igb => &[
                "-device",
                "pcie-root-port,id=root0",
                "-device",
                "igb,netdev=net,bus=root0,romfile=",
            ],
        }
    }
}

/// An IOhost with two volumes for the client web1, and the keys of both.
struct Rack {
    home: tempfile::TempDir,
    port: u16,
    keys: NodeKeys,
}

impl Rack {
    /// `number` keeps the tests' ports apart: a node has one for each of its two sidecores.
    fn new(number: u16) -> Self {
        let home = tempfile::tempdir().unwrap();
        let keys = NodeKeys::make(home.path(), &["io1", "web1", "web2", "stranger"]).unwrap();
        let port = 27_000 + (std::process::id() % 700) as u16 * 6 + number * 2;
        Self { home, port, keys }
    }

    fn plan(&self) -> NodePlan {
        let volume = |name: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\n\
                 backend = {{ file = \"{name}.img\", size = \"64MiB\" }}\n{}",
                self.keys.allow(&["web1", "web2"])
            )
        };
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n{}{}{}",
            self.port,
            self.keys.own("io1"),
            self.keys.clients(&["web1", "web2"]),
            volume("files"),
            volume("far"),
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), "io1", config)
    }

    /// A guest with the client's program and keys. QEMU's user network leads to the host's
    /// loopback.
    fn guest(&self, image: &guest::Image, card: Card) -> Builder {
        let node = |client: &str, key: &str| {
            format!(
                "--peer 10.0.2.2:{} --key /etc/{client}.key --peer-key {} \
                 --attachment-key /etc/disk.key",
                self.port,
                self.keys.public(key)
            )
        };
        // The program with its debug information takes 150 MB of the guest's root, which has half
        // of the guest's memory.
        let builder = Guest::builder(image).name("web1").memory_mib(1024).processors(2);
        let builder = builder.program(env!("CARGO_BIN_EXE_vrio").as_ref()).unwrap();
        builder
            .file("etc/web1.key", &self.keys.file("web1"))
            .file("etc/web2.key", &self.keys.file("web2"))
            .file("etc/disk.key", &self.keys.tenant_file())
            .arguments(&["-netdev", "user,id=net"])
            .arguments(card.arguments())
            .set("CARD", card.name())
            .set("NODE", node("web1", "io1"))
            .set("WRONG_NODE", node("web1", "stranger"))
            .set("OTHER_NODE", node("web2", "io1"))
    }
}

/// Waits until that program in the guest has completed so many requests. Gives the number that it
/// has completed by then.
fn wait_for_requests(guest: &mut Guest, who: &str, wanted: u64) -> u64 {
    loop {
        let line = guest.wait_for(&format!("progress {who}"), SCRIPT_TIMEOUT).unwrap();
        let requests: u64 = line.strip_prefix("requests=").unwrap().parse().unwrap();
        if requests >= wanted {
            return requests;
        }
    }
}

/// Kills the node, the client, or both, again and again while that program in the guest works.
fn kill_in_turn(mut io: Node, guest: &mut Guest, who: &str) -> Node {
    let mut requests = 0;
    for round in 0..kill_rounds() * 3 {
        requests = wait_for_requests(guest, who, requests + REQUESTS_BETWEEN_KILLS);
        let kill = format!("kill {}", round + 1);
        let killed = format!("killed {}", round + 1);
        match round % 3 {
            0 => io = io.kill().unwrap().start().unwrap(),
            1 => drop(guest.ask(&kill, &killed, SCRIPT_TIMEOUT).unwrap()),
            // Both: the client looks for its volume while the node is not there.
            _ => {
                let plan = io.kill().unwrap();
                guest.type_line(&kill).unwrap();
                io = plan.start().unwrap();
                guest.ask(&kill, &killed, SCRIPT_TIMEOUT).unwrap();
            }
        }
    }
    wait_for_requests(guest, who, requests + REQUESTS_BETWEEN_KILLS);
    io
}

#[test]
fn a_disk_of_a_direct_client_survives_kills_of_either_side() {
    attach_and_kill("a_disk_of_a_direct_client_survives_kills_of_either_side", Card::Virtio);
}

#[test]
fn the_same_over_a_virtual_function() {
    attach_and_kill("the_same_over_a_virtual_function", Card::Igb);
}

fn attach_and_kill(test: &str, card: Card) {
    let Some(image) = guest::available_newer(test) else { return };
    let rack = Rack::new(card as u16);
    let io = rack.plan().start().unwrap();
    let mut guest = rack.guest(&image, card).script(scripts::ATTACH).start().unwrap();
    guest.wait_for("booted", BOOT_TIMEOUT).unwrap();
    if matches!(card, Card::Igb) {
        assert_eq!(guest.wait_for("function of", SCRIPT_TIMEOUT).unwrap(), "igbvf");
    }
    guest.wait_for("filesystem done", SCRIPT_TIMEOUT).unwrap();
    println!("start: {}", guest.wait_for("cost start", SCRIPT_TIMEOUT).unwrap());
    for at in ["idle", "depth1", "depth8"] {
        println!("{at}: {}", guest.wait_for(&format!("cost {at}"), SCRIPT_TIMEOUT).unwrap());
    }
    let io = kill_in_turn(io, &mut guest, "churn");
    let report = guest.ask("stop", "churned", SCRIPT_TIMEOUT).unwrap();
    println!("end:   {}", guest.wait_for("cost end", SCRIPT_TIMEOUT).unwrap());
    guest.wait_for("detached", SCRIPT_TIMEOUT).unwrap();
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    // The attachments were closed and not torn off: the volume keeps none that may come back.
    let status = io.status().unwrap();
    let volumes = status["volumes"].as_array().unwrap();
    assert!(volumes.iter().all(|it| it["attachments"] == serde_json::json!([])), "{status}");
    io.stop().unwrap();
    let digest = guest::image_digest(&rack.plan().file("far.img")).unwrap();
    assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, image {digest:016x}");
    println!("{report}");
}

/// The program `fio` of Debian's package.
pub(crate) fn fio() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|place| place.join("fio")).find(|file| file.is_file())
}

/// fio verifies its own writes, in the guest and then in the volume's file on the IOhost.
#[test]
fn fio_verifies_its_disk_while_either_side_is_killed() {
    const TEST: &str = "fio_verifies_its_disk_while_either_side_is_killed";
    const SIZE: &str = "8M";
    let Some(image) = guest::available_newer(TEST) else { return };
    let Some(fio) = fio() else { return println!("SKIP {TEST}: fio is not installed") };
    let rack = Rack::new(2);
    let io = rack.plan().start().unwrap();
    let builder = rack.guest(&image, Card::Virtio).program(&fio).unwrap();
    // Debian's fio comes with the libraries of every storage it knows, 80 MB of them.
    let builder = builder.memory_mib(1536).set("SIZE", SIZE).script(scripts::FIO_CLIENT);
    let mut guest = builder.start().unwrap();
    let io = kill_in_turn(io, &mut guest, "fio");
    guest.type_line("stop").unwrap();
    let passes = guest.wait_for("verified", SCRIPT_TIMEOUT).unwrap();
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    io.stop().unwrap();
    let file = rack.plan().file("far.img");
    let here = Command::new(fio)
        .current_dir(rack.home.path())
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={SIZE}"))
        .args(["--name=here", "--rw=read", "--bs=4k", "--verify=crc32c", "--verify_fatal=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&here.stdout);
    assert!(here.status.success() && said.contains("err= 0"), "{here:?}");
    println!("{passes}");
}

/// Runs `vrio` and gives its exit code and its output.
fn vrio(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vrio")).args(words).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn invalid_options_are_refused_before_a_start() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("attach").display().to_string();
    let refused = |words: &[&str], code: i32, wanted: &str| {
        let words = [words, &["--directory", &directory]].concat();
        let (ended, said) = vrio(&words);
        assert_eq!(ended, Some(code), "{words:?}: {said}");
        assert!(said.contains(wanted), "{words:?}: {said}");
    };
    let node = ["--peer", "127.0.0.1:4870", "--name", "web1"];
    refused(&[&["attach", "alice"][..], &node].concat(), 2, "write NODE/VOLUME");
    refused(&["attach", "io1/alice", "--name", "web1"], 2, "--peer");
    refused(&[&["attach", "io1,io2/alice"][..], &node].concat(), 2, "give it for each of them");
    let alone = ["attach", "alice", "--name", "web1", "--placements", "/nowhere"];
    refused(&alone, 2, "knows no node of volume");
    refused(&[&["attach", "io1/a", "--queues", "0"][..], &node].concat(), 2, "at least one queue");
    refused(&[&["attach", "io1/a", "--idle", "doze"][..], &node].concat(), 2, "\"adaptive\"");
    refused(&["attach", "io1/a", "--peer", "nowhere", "--name", "web1"], 2, "HOST:PORT");
    let key = ["--key", "/nowhere/web1.key"];
    refused(&[&["attach", "io1/a"][..], &node, &key].concat(), 2, "--peer-key");
    refused(&["detach", "io1/alice"], 1, "not attached on this machine");
    refused(&["attach", "--list"], 0, "no disk is attached here");
    refused(&["attach", "--list", "--json"], 0, "[]");
    assert!(!home.path().join("attach").exists(), "nothing was made");
}

#[test]
fn a_kernel_without_ublk_is_named_with_what_to_do() {
    const TEST: &str = "a_kernel_without_ublk_is_named_with_what_to_do";
    if Path::new("/dev/ublk-control").exists() {
        return println!("SKIP {TEST}: this kernel has ublk");
    }
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().display().to_string();
    for foreground in [&["--foreground"][..], &[]] {
        let words = ["attach", "io1/a", "--peer", "127.0.0.1:4870", "--directory", &directory];
        let (code, said) = vrio(&[&words[..], &["--name", "web1"], foreground].concat());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.starts_with("vrio: this kernel ("), "{said}");
        for wanted in ["has no ublk", "/dev/ublk-control is missing", "modprobe ublk_drv"] {
            assert!(said.contains(wanted), "{said}");
        }
    }
    assert_eq!(
        vrio(&["attach", "--list", "--directory", &directory]).1,
        "no disk is attached here\n"
    );
}
