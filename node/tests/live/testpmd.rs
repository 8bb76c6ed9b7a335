//! A virtio-net driver of another project on a nic: DPDK's virtio-user port in testpmd, which sends
//! each frame back to its sender.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use net::maker::FrameMaker;
use node::status::DiskState;

use super::nics::{Guest, mac};
use crate::common::{Home, PATIENCE, wait_for};

const NODE: &str = r#"
name = "vm1"
privileges = "keep"
[sidecores]
count = 1
idle = "adaptive"
[directories]
sockets = "HOME"
[[network]]
name = "blue"
[[nic]]
socket = "one.sock"
network = "blue"
mac = "52:54:00:00:00:01"
[[nic]]
socket = "two.sock"
network = "blue"
mac = "52:54:00:00:00:02"
"#;

/// Frames that are on their way at once: fewer than either ring has room for.
const BURST: u16 = 64;

/// The driver's process. It ends when this is dropped.
struct Testpmd(Child);

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The cores of this process, in the form that both the kernel and DPDK use.
fn cores() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("Linux says it").trim().to_owned()
}

impl Testpmd {
    /// Starts it on a nic's socket, with these options of its port. It needs neither huge pages nor
    /// root.
    fn start(home: &Home, options: &str) -> Self {
        Self::start_with(home, options, &[])
    }

    /// The same with more options of its own.
    fn start_with(home: &Home, options: &str, more: &[&str]) -> Self {
        let (cores, socket) = (cores(), home.path("one.sock"));
        let port = format!(
            "net_virtio_user0,path={},mac=52:54:00:00:00:01,queues=1,queue_size=256{options}",
            socket.display()
        );
        let log = || fs::OpenOptions::new().create(true).append(true).open(home.path("log"));
        let child = Command::new("dpdk-testpmd")
            .args(["--no-huge", "-m", "192", "--no-pci", "--no-telemetry", "--no-shconf"])
            .args(["--lcores", &format!("0@({cores}),1@({cores})"), "--vdev", &port, "--"])
            .args(["--forward-mode=macswap", "--port-topology=loop", "--nb-cores=1"])
            .args(["--total-num-mbufs=2048", "--mbcache=64"])
            .args(more)
            // It ends when its input is closed.
            .stdin(Stdio::piped())
            .stdout(log().unwrap())
            .stderr(log().unwrap())
            .spawn();
        Self(child.unwrap())
    }
}

impl Testpmd {
    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

fn frame(number: u16, to_driver: bool) -> Vec<u8> {
    let (from, to) = if to_driver { (2, 1) } else { (1, 2) };
    let bytes = usize::from(number) * 37 % 1458;
    FrameMaker::udp4().from(mac(from)).to(mac(to)).ports(number, 9).payload(bytes).build()
}

/// Waits until the driver sends frames back.
fn wait_until_it_answers(guest: &mut Guest) {
    let until = Instant::now() + PATIENCE;
    let mut said = 0;
    loop {
        guest.say(&frame(0, true));
        said += 1;
        std::thread::sleep(Duration::from_millis(50));
        if guest.try_hear().is_some() {
            break;
        }
        assert!(Instant::now() < until, "the driver sends nothing back");
    }
    // Most of the frames that waited for the driver come back as well.
    while said > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        let heard = std::iter::from_fn(|| guest.try_hear()).count();
        said = if heard == 0 { 0 } else { said - 1 };
    }
}

/// Whether the program is installed.
fn is_there(test: &str) -> bool {
    let is = Command::new("dpdk-testpmd").arg("--help").output().is_ok();
    if !is {
        println!("SKIP {test}: dpdk-testpmd not installed");
    }
    is
}

/// A driver that serves the socket is there before and after the node. A node that ends leaves it
/// alive, and the next node goes on at the position of the ring, in spite of the driver's own
/// count.
#[test]
fn a_foreign_driver_that_serves_the_socket_outlives_its_node() {
    if !is_there("a_foreign_driver_that_serves_the_socket_outlives_its_node") {
        return;
    }
    let config =
        NODE.replacen("socket = \"one.sock\"", "socket = \"one.sock\"\nrole = \"connect\"", 1);
    for options in ["", ",in_order=0,mrg_rxbuf=0", ",packed_vq=1"] {
        let home = Home::new();
        let mut driver = Testpmd::start(&home, &format!(",server=1{options}"));
        for life in 0..3 {
            let node = home.start(&config);
            wait_for(&node, "started", |status| status.nics[0].state == DiskState::Running);
            let mut guest = Guest::new(&home, "two.sock", false);
            wait_until_it_answers(&mut guest);
            // More frames than the ring has places, so that its position is in the middle.
            for number in 0..300 {
                guest.say(&frame(number, true));
                assert_eq!(guest.hear(), frame(number, false), "{options}, life {life}");
            }
            let after = node.status().nics[0].counters.clone();
            assert!(!after.keys().any(|name| name.starts_with("ring_")), "{after:?}");
            node.stop();
            // Time enough for a second connection, which would end the driver.
            std::thread::sleep(Duration::from_millis(300));
            assert!(driver.lives(), "{options}, life {life}");
        }
    }
}

#[test]
fn a_foreign_driver_gets_and_sends_all_frames_on_rings_of_either_kind() {
    if !is_there("a_foreign_driver_gets_and_sends_all_frames_on_rings_of_either_kind") {
        return;
    }
    let home = Home::new();
    let node = home.start(NODE);
    let mut guest = Guest::new(&home, "two.sock", false);
    let mut frames = 0;
    // Mergeable buffers or not, and each of its ways to fill rings. In pieces, it puts frames into
    // indirect tables, and on packed rings marks the header there as to be written.
    let pieces = ["--mbuf-size=512", "--enable-scatter"];
    let ways: [(&str, &[&str]); 6] = [
        ("", &[]),
        (",packed_vq=1", &[]),
        (",mrg_rxbuf=0,in_order=0", &[]),
        (",packed_vq=1,mrg_rxbuf=0", &[]),
        ("", &pieces),
        (",packed_vq=1", &pieces),
    ];
    for (options, more) in ways {
        wait_for(&node, "left alone", |status| status.nics[0].state == DiskState::Ready);
        let driver = Testpmd::start_with(&home, options, more);
        wait_for(&node, "started", |status| status.nics[0].state == DiskState::Running);
        wait_until_it_answers(&mut guest);
        let before = node.status().nics[0].counters.clone();
        for burst in 0..40 {
            let numbers = burst * BURST..(burst + 1) * BURST;
            numbers.clone().for_each(|number| guest.say(&frame(number, true)));
            for number in numbers {
                assert_eq!(guest.hear(), frame(number, false), "{options}, frame {number}");
                frames += 1;
            }
        }
        let after = node.status().nics[0].counters.clone();
        let counted = |name: &str| after[name] - before[name];
        let sent = 40 * u64::from(BURST);
        assert_eq!((counted("frames_in"), counted("frames_out")), (sent, sent), "{options}");
        assert_eq!((counted("drops_in"), counted("drops_out")), (0, 0), "{options}");
        assert!(!after.keys().any(|name| name.starts_with("ring_")), "{after:?}");
        let tolerates = options.contains("packed") && !more.is_empty();
        assert_eq!(counted("tolerated_in") > 0, tolerates, "{options}");
        // It is killed in the middle of its work.
        drop(driver);
    }
    assert_eq!(frames, 6 * 40 * u32::from(BURST));
}
