//! Two real nodes that root starts and that give root's rights up. They serve a remote and a local
//! disk without any right that they do not need, over the network and over shared memory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use random::Random;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::Value;
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// A user that every system has, without rights.
const USER: &str = "nobody";
const UID: u32 = 65534;

const BLOCKS: u64 = 512;

/// The sidecores of each node that shares memory, and so the sessions of the two nodes.
const SIDECORES: usize = 2;

/// The kills of the IOhost whose memory the VMhost shares.
const SHARED_KILLS: usize = 3;

/// The requests that must be done before a node is killed, and those that must be outstanding then.
const COMPLETED_MIN: u64 = 2_000;
const OUTSTANDING_MIN: usize = 8;

/// Ports of these tests: apart from other tests' by process and number.
fn port(number: u16) -> u16 {
    20_000 + (std::process::id() % 1_200) as u16 * 10 + number
}

/// A directory that other users may enter, for nodes that run as another user.
fn open_home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    home
}

fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIP {test}: only root can become another user");
    }
    is_root
}

fn plan(home: &Path, name: &str, config: &str) -> NodePlan {
    let config = format!("user = \"{USER}\"\n{config}");
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, name, config);
    for path in [plan.home.clone(), plan.home.join("volumes")] {
        fs::create_dir(&path).expect("a directory");
        std::os::unix::fs::chown(&path, Some(UID), Some(UID)).expect("root may");
    }
    plan
}

/// Keys outside of all other directories, which only the node's user may read.
fn keys(home: &Path) -> NodeKeys {
    let etc = home.join("etc");
    fs::create_dir(&etc).expect("a directory");
    let keys = NodeKeys::make(&etc, &["io1", "vm1"]).expect("keys");
    for file in fs::read_dir(&etc).expect("just made").flatten() {
        std::os::unix::fs::chown(file.path(), Some(UID), Some(UID)).expect("root may");
    }
    keys
}

/// Checks the rights of every thread of a process, as the kernel lists them.
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
    let mut guest = StandIn::connect(socket, 2, Mix::OF_ALL, BLOCKS, random).expect("connects");
    work_on(&mut guest);
    guest
}

/// Works for at least a second, and until enough requests are done and enough are outstanding.
fn work_on(guest: &mut StandIn) {
    let until = Instant::now() + Duration::from_secs(1);
    let done = guest.workload.counts.completed + COMPLETED_MIN;
    let is_enough = |guest: &StandIn| {
        guest.workload.counts.completed >= done && guest.workload.outstanding() >= OUTSTANDING_MIN
    };
    guest.work(|guest| Instant::now() >= until && is_enough(guest)).expect("the promise is kept");
}

#[test]
fn a_node_of_nobody_serves_disks() {
    if !is_root("a_node_of_nobody_serves_disks") {
        return;
    }
    let (home, port) = (open_home(), port(8));
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
        // A restart under load: the second process takes over the files of the first one.
        vm = vm.kill().expect("it ran until now").start().expect("it starts again");
        work_on(&mut guest);
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

#[test]
fn the_check_reads_keys_as_the_node_will() {
    if !is_root("the_check_reads_keys_as_the_node_will") {
        return;
    }
    let home = open_home();
    let key = home.path().join("io1.key");
    NodeKeys::make(home.path(), &["io1"]).expect("keys");
    let config = home.path().join("io1.toml");
    let text = format!("name = \"io1\"\nkey = {key:?}\nuser = \"{USER}\"\n");
    let check = |text: &str| {
        fs::write(&config, text).expect("ours");
        let mut vrio = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = vrio.args(["node", "--check", "--config"]).arg(&config).output();
        let output = output.expect("the binary was built");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = check(&text);
    let says = "io1.toml:2: key: key file";
    assert!(code == Some(2) && error.contains(says) && error.contains("chown USER"), "{error}");
    std::os::unix::fs::chown(&key, Some(UID), Some(UID)).expect("root may");
    assert_eq!(check(&text), (Some(0), String::new()));
    let (code, error) = check(&text.replace(USER, "no-such-user"));
    assert!(code == Some(2) && error.contains("there is no user \"no-such-user\""), "{error}");
}

/// The sum of a counter over all sidecores of a node.
fn counted(node: &Node, name: &str) -> u64 {
    let status = node.status().expect("it answers");
    let sidecores = status["sidecores"].as_array().expect("a list").iter();
    sidecores.map(|core| core["counters"][name].as_u64().expect("a counter")).sum()
}

/// Checks that all datagrams of the two nodes go through shared memory, in both directions, and
/// sealed.
fn check_shared(io: &Node, vm: &mut Node) {
    // One session may connect later than the other one, which did the work meanwhile.
    let are_connected = |node: &Node| {
        let status = node.status().expect("it answers");
        let sessions = status["sessions"].as_array().expect("a list");
        assert!(sessions.iter().all(|session| session["address"] == "shm"), "{status}");
        let sealed = |session: &Value| session["cipher"] == "AES-256-GCM";
        let is_well = |it: &Value| it["state"] == "connected" && sealed(it);
        sessions.len() == SIDECORES && sessions.iter().all(is_well)
    };
    vm.wait_until("its sessions are sealed and in shared memory", are_connected).expect("so");
    for node in [io, &*vm] {
        let name = &node.plan().name;
        for direction in ["sent", "received"] {
            assert_eq!(counted(node, &format!("link_datagrams_{direction}")), 0, "{name}");
            assert!(counted(node, &format!("shm_datagrams_{direction}")) > 1_000, "{name}");
        }
        assert_eq!(counted(node, "shm_broken"), 0, "{name}");
        assert!(counted(node, "shm_lines_now") > 0, "{name}");
    }
}

#[test]
fn nodes_of_nobody_share_memory_and_one_is_killed() {
    if !is_root("nodes_of_nobody_share_memory_and_one_is_killed") {
        return;
    }
    let (home, port) = (open_home(), port(9));
    let keys = keys(home.path());
    let io1 = plan(
        home.path(),
        "io1",
        &format!(
            "listen = \"127.0.0.1:{port}\"\nshm = \"io1.shm\"\n{}{}\
             [sidecores]\ncount = {SIDECORES}\n[[volume]]\nname = \"root\"\n\
             backend = {{ file = \"root.img\", size = \"16MiB\" }}\n{}",
            keys.own("io1"),
            keys.clients(&["vm1"]),
            keys.allow(&["vm1"])
        ),
    );
    let door = home.path().join("io1/io1.shm");
    let vm1 = plan(
        home.path(),
        "vm1",
        &format!(
            "listen = \"127.0.0.1:0\"\n{}[sidecores]\ncount = {SIDECORES}\n\
             [[peer]]\nname = \"io1\"\naddress = \"shm:{}\"\n{}\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/root\"\n{}",
            keys.own("vm1"),
            door.display(),
            keys.peer("io1"),
            keys.disk()
        ),
    );
    let mut io = io1.start().expect("the IOhost starts");
    let mut vm = vm1.start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("far").expect("the disk is served");
    let mut guest = work(&socket, &mut Random::new(1));
    for _ in 0..SHARED_KILLS {
        check_rights(&io);
        check_shared(&io, &mut vm);
        let plan = io.kill().expect("it ran until now");
        let left = fs::metadata(&door).expect("who is killed leaves its door behind");
        assert_eq!((left.uid(), left.mode() & 0o777), (UID, 0o600));
        io = plan.start().expect("its successor takes the door's place");
        work_on(&mut guest);
    }
    check_rights(&vm);
    check_shared(&io, &mut vm);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a kill is a pause");
    guest.compare_image(&io.plan().file("root.img")).expect("the whole image is as promised");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
    assert!(!door.exists(), "who stops takes its door away");
    // The socket is as a node of root leaves it when it is killed.
    drop(std::os::unix::net::UnixListener::bind(&door).expect("a socket"));
    fs::set_permissions(&door, fs::Permissions::from_mode(0o600)).expect("ours");
    let refused = io1.start().expect_err("nobody may not see whether it lives").to_string();
    assert!(refused.contains("io1.shm") && refused.contains("another user's socket"), "{refused}");
}

fn ip(words: &str) -> Option<String> {
    let output = Command::new("ip").args(words.split(' ')).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The number of sockets that keep the cable's end promiscuous.
fn promiscuity() -> u32 {
    let shown = ip("-d link show vrio0").expect("it is there");
    let mut words = shown.split_whitespace().skip_while(|word| *word != "promiscuity");
    words.nth(1).and_then(|number| number.parse().ok()).expect("ip says it")
}

fn wait_for_promiscuity(wanted: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    while promiscuity() != wanted {
        assert!(Instant::now() < until, "{} keep it, not {wanted}", promiscuity());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The number of packet sockets of a process.
fn packet_sockets(pid: u32) -> usize {
    let all = fs::read_to_string(format!("/proc/{pid}/net/packet")).expect("it runs");
    let inodes = all.lines().skip(1).filter_map(|line| line.split_whitespace().last());
    let names: Vec<_> = inodes.map(|inode| format!("socket:[{inode}]")).collect();
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("root may").flatten();
    let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| names.iter().any(|name| link.as_os_str() == name.as_str())).count()
}

/// The process that opens interfaces for a node.
fn opener_of(node: &Node) -> u32 {
    let parent = format!("PPid:\t{}", node.pid());
    let is_child = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|status| status.lines().any(|line| line == parent))
    };
    let all = fs::read_dir("/proc").expect("it is there").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_child).expect("it was started")
}

#[test]
fn a_node_of_nobody_never_has_what_keeps_its_uplink_promiscuous() {
    let name = "a_node_of_nobody_never_has_what_keeps_its_uplink_promiscuous";
    // SAFETY: only this thread, and what it starts from now on, change their namespace.
    let is_apart = is_root(name) && unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_ok();
    if !is_apart || ip("link add vrio0 type veth peer name far").is_none() {
        return println!("SKIP {name}: no network namespace, or no virtual cable");
    }
    let home = open_home();
    let config = "[[network]]\nname = \"blue\"\nuplink = \"xdp:vrio0\"\n";
    let node = plan(home.path(), "n1", config).start().expect("the node starts");
    let check = |node: &Node| {
        check_rights(node);
        wait_for_promiscuity(1);
        assert_eq!((packet_sockets(node.pid()), packet_sockets(opener_of(node))), (0, 1));
    };
    check(&node);
    // The successor has a packet socket of its own before the node closes its socket.
    let is_over = AtomicBool::new(false);
    let node = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut seen = [0_u32; 3];
            while !is_over.load(SeqCst) {
                seen[promiscuity() as usize] += 1;
            }
            seen
        });
        let node = node.hand_over().expect("another process goes on");
        is_over.store(true, SeqCst);
        let seen = looks.join().expect("nobody else keeps it");
        assert!(seen[0] == 0 && seen[1] > 0, "{seen:?}");
        node
    });
    check(&node);
    let vrio = |words: &[&str]| {
        let mut vrio = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = vrio.args(words).arg("--control").arg(node.plan().control()).output();
        let output = output.expect("the binary was built");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    vrio(&["network", "remove", "blue"]);
    wait_for_promiscuity(0);
    vrio(&["network", "add", "blue", "--uplink", "xdp:vrio0"]);
    check(&node);
    node.kill().expect("it ran until now");
    wait_for_promiscuity(0);
}
