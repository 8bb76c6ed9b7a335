//! MPI jobs whose ranks are in virtual machines: a stock Debian kernel, QEMU's own device, and
//! Open MPI as Debian has it, over a domain of the node on the host.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::guest::mpi::{self, Member, PATIENCE};
use testbed::guest::{BOOT_TIMEOUT, Builder, Guest, Image, scripts};
use testbed::installed;
use testbed::nodes::{Node, NodePlan};

use crate::mpi::built::{compile, exercise, said};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// How long the node may take to notice that a member is gone.
const NOTICE: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"[sidecores]
idle = "adaptive"
[[network]]
name = "between"
[[nic]]
socket = "one.sock"
network = "between"
mac = "52:54:00:00:00:01"
[[nic]]
socket = "two.sock"
network = "between"
mac = "52:54:00:00:00:02"
[[vf]]
domain = "blue"
socket = "one.vf"
[[vf]]
domain = "blue"
socket = "two.vf"
"#;

/// The program that Linux calls for new devices. Our rule makes it give the device to users.
const UDEV: &str = "/usr/bin/udevadm";

/// The guests' view of the region.
#[derive(Clone, Copy, PartialEq)]
enum Mapping {
    /// Through the device alone.
    Window,
    /// The same, and udev gives the device to users of the guest.
    Shared,
    /// Slots through an NVDIMM over the same memory.
    Cached,
}

/// A node with a domain, and two guests in it.
struct Stage {
    node: Node,
    guests: Vec<Guest>,
    _home: tempfile::TempDir,
}

/// Adds an NVDIMM over the domain's memory, as the node offers it.
fn with_nvdimm(builder: Builder, node: &Node) -> Builder {
    let status = node.status().expect("it answers");
    let memory = status["vfs"][0]["memory"].as_str().expect("it says where");
    let bytes = fs::metadata(memory).expect("it shows it").len();
    let file = format!("memory-backend-file,id=nv,share=on,mem-path={memory},size={bytes}");
    builder
        .arguments(&["-machine", "nvdimm=on", "-m", "slots=2,maxmem=4G", "-object", &file])
        .arguments(&["-device", "nvdimm,memdev=nv"])
}

/// Adds udev, and our rule for it.
fn with_udev(builder: Builder) -> Builder {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/60-vrio-vf.rules");
    builder.program(UDEV.as_ref()).expect("ldd knows its libraries").file("vf.rules", &rules)
}

fn write_key(path: &Path) {
    fs::write(path, format!("{KEY}\n")).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("ours");
}

impl Stage {
    fn new(image: &Image, mapping: Mapping) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let key = home.path().join("blue.key");
        write_key(&key);
        let domain =
            format!("{CONFIG}[[domain]]\nname = \"blue\"\nkey = {key:?}\nendpoints-max = 16\n");
        let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n", domain);
        let node = plan.start().expect("it starts");
        let provider = installed::provider().expect("the workspace's tests are built");
        let provider = mpi::slim(&provider, home.path()).expect("there is room");
        let (_kept, garbage) = compile("cc", "garbage", &["-lfabric"]);
        let start = |number: u8, name: &str| {
            let socket = node.plan().socket(name);
            let vf = socket.with_extension("vf");
            let nic = mpi::nic(socket, number);
            let [own, peer] = [number, 3 - number].map(|it| format!("10.9.0.{it}"));
            let builder = match mapping {
                Mapping::Window => Guest::builder(image),
                Mapping::Shared => with_udev(Guest::builder(image)),
                Mapping::Cached => with_nvdimm(Guest::builder(image), &node).set("CACHED", 1),
            };
            let member = Member {
                addresses: [&own, &peer],
                domain: "blue",
                key: KEY,
                vf: &vf,
                provider: &provider,
            };
            mpi::with_member(builder, image, &member)
                .expect("the caller has looked")
                .name(name)
                .nic(nic)
                .file("bin/exercise", exercise())
                .file("bin/garbage", &garbage)
                .script(scripts::MPI)
                .start()
                .expect("QEMU runs")
        };
        let mut guests = vec![start(1, "one"), start(2, "two")];
        for guest in &mut guests {
            let seen = guest.wait_for("ready", BOOT_TIMEOUT).expect("it boots");
            assert_eq!(seen.starts_with("/dev/dax"), mapping == Mapping::Cached, "{seen}");
        }
        Self { node, guests, _home: home }
    }

    /// Runs an exercise from the first guest. Gives its output, and how it ended.
    fn job(&mut self, hosts: &str, ranks: usize, what: &str) -> (String, String) {
        self.begin(hosts, ranks, what);
        self.lines_until("ended")
    }

    fn begin(&mut self, hosts: &str, ranks: usize, what: &str) {
        let program = format!("exercise {what}");
        mpi::begin(&mut self.guests[0], hosts, ranks, &program).expect("it runs");
    }

    /// The lines of the job up to one with this beginning, and the rest of that line.
    fn lines_until(&mut self, word: &str) -> (String, String) {
        let (lines, rest) = mpi::lines_until(&mut self.guests[0], word).expect("it goes on");
        (lines.join("\n"), rest)
    }

    fn lines_until_text(&mut self, text: &str) {
        while !self.guests[0].wait_for("job", PATIENCE).expect("it goes on").contains(text) {}
    }

    fn exercise(&mut self, hosts: &str, ranks: usize, what: &str) -> String {
        let (text, status) = self.job(hosts, ranks, what);
        let is_done = status == "0" && text.contains(&format!("ok {what}"));
        assert!(is_done, "{what} of {ranks}: {status}\n{text}\n{}", self.node.log_tail());
        println!("{what} on {hosts}: done\n{text}");
        text
    }

    /// Hands the node over to another process.
    fn hand_over(self) -> Self {
        let Self { node, guests, _home } = self;
        let node = node.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
        Self { node, guests, _home }
    }

    /// The node's status of each guest's window.
    fn vfs(&self) -> Vec<serde_json::Value> {
        self.node.status().expect("it answers")["vfs"].as_array().expect("two").clone()
    }

    fn endpoints(&self) -> u64 {
        self.vfs().iter().map(|vf| vf["endpoints"].as_u64().expect("a number")).sum()
    }

    fn until_empty(&self) {
        let end = Instant::now() + NOTICE;
        while self.endpoints() > 0 {
            assert!(Instant::now() < end, "somebody is still there: {:?}", self.vfs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

const BOTH: &str = "10.9.0.1:2,10.9.0.2:2";

#[test]
fn four_ranks_in_two_vms_find_everything_as_it_was_sent() {
    let test = "four_ranks_in_two_vms_find_everything_as_it_was_sent";
    let Some(image) = mpi::available(test) else { return };
    let mut stage = Stage::new(&image, Mapping::Window);
    assert!(stage.vfs().iter().all(|vf| vf["process"].is_number()), "{:?}", stage.vfs());
    let text = stage.exercise(BOTH, 4, "all-to-all");
    assert!(text.contains("a load of the domain's memory takes"), "it says what it costs: {text}");
    stage.until_empty();
    stage.exercise(BOTH, 4, "any-source");
    // A member that writes over its own slot harms only members that talk to it, and none does.
    stage.guests[1].type_line("garbage").expect("it runs");
    stage.guests[1].wait_for("garbage begins", PATIENCE).expect("it has a slot");
    stage.exercise(BOTH, 4, "all-to-all");
    // Its death is not noticed before another process of its VM joins.
    stage.guests[1].ask("stop", "stopped", PATIENCE).expect("it runs");
    assert_eq!(stage.endpoints(), 1, "{:?}", stage.vfs());
    stage.exercise(BOTH, 4, "all-to-all");
    stage.until_empty();
    for mut guest in stage.guests {
        guest.type_line("end").expect("it runs");
        guest.wait_success(PATIENCE).expect("it ends well");
    }
}

#[test]
fn libfabrics_tools_work_in_vms_for_users_that_udev_allows() {
    let test = "libfabrics_tools_work_in_vms_for_users_that_udev_allows";
    let Some(image) = mpi::available(test) else { return };
    if !Path::new(UDEV).is_file() {
        println!("SKIP {test}: {UDEV} is not installed");
        return;
    }
    let mut stage = Stage::new(&image, Mapping::Shared);
    let [one, other] = &mut stage.guests[..] else { panic!("there are two") };
    one.type_line("info").expect("it runs");
    let mut listed = String::new();
    while !listed.ends_with("\nend\n") {
        listed += &one.wait_for("info", PATIENCE).expect("it lists them");
        listed.push('\n');
    }
    assert!(listed.contains("provider: vrio") && listed.contains("FI_EP_RDM"), "{listed}");
    other.type_line("serve").expect("it runs");
    other.wait_for("serving", PATIENCE).expect("it listens");
    one.type_line("ask").expect("it runs");
    for guest in [one, other] {
        let last = guest.wait_for("ping-pong", PATIENCE).expect("its data are as they were sent");
        println!("{last}");
    }
    stage.until_empty();
}

#[test]
fn ranks_in_vms_with_an_nvdimm_find_everything_as_it_was_sent() {
    let test = "ranks_in_vms_with_an_nvdimm_find_everything_as_it_was_sent";
    let Some(image) = mpi::available(test) else { return };
    let mut stage = Stage::new(&image, Mapping::Cached);
    stage.exercise(BOTH, 4, "all-to-all");
    stage.until_empty();
}

#[test]
fn ranks_in_vms_notice_nothing_of_hand_overs() {
    let test = "ranks_in_vms_notice_nothing_of_hand_overs";
    let Some(image) = mpi::available(test) else { return };
    let mut stage = Stage::new(&image, Mapping::Window);
    let before = stage.vfs();
    stage.begin(BOTH, 4, "endless");
    stage.lines_until("going");
    for _ in 0..3 {
        stage = stage.hand_over();
        // All messages that were on their way have come, and more.
        for _ in 0..2 {
            stage.lines_until("going");
        }
        assert_eq!(stage.endpoints(), 4, "{:?}", stage.vfs());
    }
    stage.guests[0].type_line("stop").expect("it runs");
    stage.lines_until("ended");
    // Other members join through the same QEMUs, and find the slots of the ended ones.
    stage.exercise(BOTH, 4, "all-to-all");
    let after = stage.vfs();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before["process"], after["process"], "{after}");
        assert_ne!(before["memory"], after["memory"], "it is another process's file");
    }
    stage.until_empty();
}

#[test]
fn a_vm_that_is_killed_ends_its_job_with_mpis_error() {
    let test = "a_vm_that_is_killed_ends_its_job_with_mpis_error";
    let Some(image) = mpi::available(test) else { return };
    let mut stage = Stage::new(&image, Mapping::Window);
    stage.begin(BOTH, 4, "endless");
    stage.lines_until("going");
    stage.guests[1].kill();
    // MPI's call reports the death. The ranks do not wait for the dead ones; only the job's
    // launcher waits, for the daemon that it had there.
    stage.lines_until_text("was told: class");
    assert_eq!(stage.vfs()[1]["endpoints"], 0, "{:?}", stage.vfs());
    stage.guests[0].type_line("stop").expect("it runs");
    stage.lines_until("ended");
    let vfs = stage.vfs();
    assert!(vfs[0]["process"].is_number() && vfs[1]["process"].is_null(), "{vfs:?}");
    // The other guest goes on, and finds the slots of the ended members.
    stage.exercise("10.9.0.1:2", 2, "all-to-all");
    stage.until_empty();
}

#[test]
fn windows_come_and_go_while_the_node_runs() {
    let home = tempfile::tempdir().expect("a directory");
    let key = home.path().join("blue.key");
    write_key(&key);
    let domain = format!("[[domain]]\nname = \"blue\"\nkey = {key:?}\nendpoints-max = 4\n");
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n", domain.clone());
    let node = plan.start().expect("it starts");
    let vrio = |words: &[&str]| {
        let mut vrio = Command::new(env!("CARGO_BIN_EXE_vrio"));
        vrio.args(words).arg("--control").arg(node.plan().control());
        let ended = vrio.output().expect("it was built");
        (ended.status.success(), said(&ended))
    };
    let (done, text) = vrio(&["vf", "add", "--domain", "red", "--socket", "one.vf"]);
    assert!(!done && text.contains("no domain \"red\""), "{text}");
    let (done, text) = vrio(&["vf", "add", "--domain", "blue", "--socket", "one.vf"]);
    assert!(done, "{text}");
    // The first words to QEMU: the protocol's version, and QEMU's number.
    let socket = node.plan().socket("one").with_extension("vf");
    let mut qemu = UnixStream::connect(&socket).expect("it answers");
    let mut numbers = [0; 16];
    qemu.read_exact(&mut numbers).expect("it says them");
    assert_eq!(numbers, [[0, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat()[..]);
    let (done, text) = vrio(&["vf", "list"]);
    let pid = std::process::id().to_string();
    assert!(done && text.contains("blue") && text.contains(&pid), "{text}");
    let (done, text) = vrio(&["vf", "remove", "one"]);
    assert!(!done && text.contains("a VM (process") && text.contains("--force"), "{text}");
    let (done, text) = vrio(&["domain", "remove", "blue"]);
    assert!(!done && text.contains("used by a VM"), "{text}");
    let (done, text) = vrio(&["vf", "remove", "one", "--force"]);
    assert!(done && text.contains("keeps the endpoints"), "{text}");
    assert!(!socket.exists());
    drop(qemu);
    // The windows of the file come by a reload, and go with their domain.
    let config = format!("{domain}[[vf]]\ndomain = \"blue\"\nsocket = \"two.vf\"\n");
    NodePlan { config, ..plan.clone() }.write().expect("ours");
    let (done, text) = vrio(&["node", "reload", "--yes"]);
    assert!(done && text.contains("add vf \"two\" into domain blue"), "{text}");
    let (done, text) = vrio(&["mpi", "env", "--help"]);
    assert!(done && text.contains("--vm"), "{text}");
    let (done, text) = vrio(&["domain", "remove", "blue"]);
    assert!(done && text.contains("vf \"two\" was removed with its domain"), "{text}");
    assert!(node.status().expect("it answers").get("vfs").is_none());
}
