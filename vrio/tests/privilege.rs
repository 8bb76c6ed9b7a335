//! Two real nodes that root starts and that give root's rights up: they serve a remote and a local
//! disk with nothing left that they do not need.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bench::nodes::{Keys, Node, NodePlan};
use bench::sim::Random;
use bench::stand_in::StandIn;
use bench::workload::Mix;

/// A user that every system has and that may do nothing.
const USER: &str = "nobody";
const UID: u32 = 65534;

const BLOCKS: u64 = 512;

fn plan(home: &Path, name: &str, config: &str) -> NodePlan {
    let home = home.join(name);
    fs::create_dir(&home).expect("a directory");
    let volumes = home.join("volumes");
    fs::create_dir(&volumes).expect("a directory");
    for path in [&home, &volumes] {
        std::os::unix::fs::chown(path, Some(UID), Some(UID)).expect("root may");
    }
    NodePlan {
        program: PathBuf::from(env!("CARGO_BIN_EXE_vrio")),
        name: name.to_owned(),
        home,
        config: format!("user = \"{USER}\"\n{config}"),
        namespace: None,
    }
}

/// Keys outside of all other directories, which the node's user may read and nobody else.
fn keys(home: &Path) -> Keys {
    let etc = home.join("etc");
    fs::create_dir(&etc).expect("a directory");
    let keys = Keys::make(&etc, &["io1", "vm1"]).expect("keys");
    for file in fs::read_dir(&etc).expect("just made").flatten() {
        std::os::unix::fs::chown(file.path(), Some(UID), Some(UID)).expect("root may");
    }
    keys
}

/// What the kernel says of every thread of a process.
fn check_rights(node: &Node) {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.pid())).expect("it runs");
    let mut threads = 0;
    for task in tasks.flatten() {
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.expect("the kernel tells it").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let none = "0000000000000000";
        for name in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(line(name), none, "{name} of {}", line("Name:"));
        }
        assert_eq!(line("Uid:"), [UID; 4].map(|uid| uid.to_string()).join(" "));
        assert_eq!(line("Gid:"), [UID; 4].map(|gid| gid.to_string()).join(" "));
        assert_eq!(line("NoNewPrivs:"), "1");
        assert_eq!(line("Seccomp:"), "2", "{}", line("Name:"));
        threads += 1;
    }
    assert!(threads >= 3, "the main one, a sidecore, the control API");
}

fn work(socket: &Path, random: &mut Random) -> StandIn {
    let mix = Mix {
        block_bytes: 4096,
        blocks_max: 16,
        depth: 16,
        reads_ppm: 400_000,
        flushes_ppm: 20_000,
        hot_blocks: 64,
    };
    let mut guest = StandIn::connect(socket, 2, mix, BLOCKS, random).expect("connects");
    let until = Instant::now() + Duration::from_secs(1);
    guest.work(|_| Instant::now() >= until).expect("the promise is kept");
    guest
}

#[test]
fn a_node_of_nobody_serves_disks() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP a_node_of_nobody_serves_disks: only root can become another user");
    }
    let home = tempfile::tempdir().expect("a directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let port = 20_000 + (std::process::id() % 3_000) as u16 * 10 + 8;
    let keys = keys(home.path());
    let io1 = plan(
        home.path(),
        "io1",
        &format!(
            "listen = \"127.0.0.1:{port}\"\nmetrics-listen = \"127.0.0.1:0\"\n{}{}\
             [[volume]]\nname = \"root\"\nbackend = {{ file = \"root.img\", size = \"16MiB\" }}\n\
             chain = [\"meter\"]\n{}",
            keys.own("io1"),
            keys.clients(&["vm1"]),
            keys.allow(&["vm1"])
        ),
    );
    let vm1 = plan(
        home.path(),
        "vm1",
        &format!(
            "listen = \"127.0.0.1:0\"\n{}[sidecores]\ncount = 2\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{port}\"\n{}\
             [[volume]]\nname = \"here\"\nbackend = {{ file = \"here.img\", size = \"16MiB\" }}\n\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/root\"\n{}\
             [[disk]]\nsocket = \"near.sock\"\nvolume = \"here\"\n",
            keys.own("vm1"),
            keys.peer("io1"),
            keys.disk()
        ),
    );
    let mut random = Random::new(1);
    let io = io1.start().expect("the IOhost starts");
    let mut vm = vm1.start().expect("the VMhost starts");
    for disk in ["far", "near"] {
        let socket = vm.wait_for_disk(disk).expect("the disk is served");
        let mut guest = work(&socket, &mut random);
        check_rights(&io);
        check_rights(&vm);
        // A restart under load: what the first process left is the second one's.
        vm = vm.kill().expect("it ran until now").start().expect("it starts again");
        let until = Instant::now() + Duration::from_secs(1);
        guest.work(|_| Instant::now() >= until).expect("the promise is kept");
        guest.read_all().expect("all of the disk is as promised");
        assert_eq!(guest.workload.counts.errors, 0);
        guest.disconnect();
    }
    let made = fs::metadata(io.plan().file("root.img")).expect("the volume's file");
    assert_eq!(made.uid(), UID);
    assert!(fs::metadata(vm.plan().control()).is_ok_and(|socket| socket.uid() == UID));
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}
