//! Disks, volumes, peers and chains come and go for a while, while one guest works. Every answer is
//! right, and in the end the processes have as many descriptors, threads, objects and as much
//! memory as before.
//!
//! `CHURN_S=n` sets the seconds, `CHURN_SEED=n` another run. In CI it takes twenty seconds. The
//! nightly tier takes ten minutes, in a release build, and is strict about memory.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::{Value, json};
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// The most helpers of the control thread: as many as there are questions at once, and some that
/// wait. If each of more than a thousand changes left one behind, there would be more.
const HELPERS_MAX: usize = 16;

/// How long descriptors, threads and sessions may take to be given back after the last change.
const SETTLE: Duration = Duration::from_secs(30);

/// Blocks of the disk that is under load all the time.
const BLOCKS: u64 = 1024;

/// Places for objects of each kind. An object that a change adds stays until a later change removes
/// it.
const PLACES: u64 = 4;

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

fn is_ci() -> bool {
    !matches!(std::env::var("VRIO_TIER").as_deref(), Ok("nightly" | "long"))
}

fn mix(depth: u16) -> Mix {
    Mix { blocks_max: 8, depth, hot_blocks: 16, ..Mix::OF_ALL }
}

/// Asks a node to change; gives the code and the answer.
pub(crate) fn ask(node: &Node, method: &str, path: &str, body: &Value) -> (u16, String) {
    let mut stream = UnixStream::connect(node.plan().control()).expect("the node listens");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: vrio\r\nContent-Length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("in whole");
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code"), body.to_owned())
}

pub(crate) fn done(node: &Node, method: &str, path: &str, body: &Value) {
    let (code, answer) = ask(node, method, path, body);
    assert_eq!(code, 200, "{method} {path} {body}: {answer}\n{}", node.log_tail());
}

/// The resources that a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    sockets: usize,
    disks: usize,
    volumes: usize,
    peers: usize,
    sessions: usize,
}

impl Held {
    fn by(node: &Node) -> Self {
        let entries = |what: &str| {
            fs::read_dir(format!("/proc/{}/{what}", node.pid())).expect("it runs").flatten()
        };
        // The kernel's own workers come and go with the load.
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        let ours = entries("task").filter_map(name).filter(|name| !name.starts_with("iou-"));
        // The control thread's helpers wait for more work for a while, and each question is work.
        let (helpers, ours) = ours.partition::<Vec<_>, _>(|name| name.starts_with("tokio"));
        assert!(helpers.len() <= HELPERS_MAX, "{} helpers of the control thread", helpers.len());
        let files = fs::read_dir(&node.plan().home).expect("its directory");
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let status = node.status().expect("it answers");
        let objects = |kind: &str| status[kind].as_array().expect("a list").len();
        // A node is not dumpable, so a user without the right to trace it does not see its
        // descriptors.
        let descriptors = fs::read_dir(format!("/proc/{}/fd", node.pid()));
        if descriptors.is_err() {
            println!("SKIP descriptors in churn: this user may not trace a node (be root)");
        }
        Self {
            descriptors: descriptors.map_or(0, Iterator::count),
            threads: ours.len(),
            sockets: names.filter(|name| name.ends_with(".sock")).count(),
            disks: objects("disks"),
            volumes: objects("volumes"),
            peers: objects("peers"),
            sessions: objects("sessions"),
        }
    }
}

fn resident_kib(node: &Node) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

struct Pair {
    io: Node,
    vm: Node,
}

impl Pair {
    fn start(home: &Path) -> Self {
        let port = 20_000 + (std::process::id() % 1_200) as u16 * 10;
        let plan = |name, config| NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, name, config);
        let io = format!(
            "listen = \"127.0.0.1:{port}\"\n[sidecores]\ncount = 2\n[[volume]]\nname = \"keep\"\n\
             backend = {{ file = \"keep.img\", size = \"16MiB\" }}\nchain = [\"meter\"]\n\
             allow = [\"vm1\"]\n"
        );
        let vm = format!(
            "listen = \"127.0.0.1:{}\"\n[sidecores]\ncount = 2\n[[peer]]\nname = \"io1\"\n\
             address = \"127.0.0.1:{port}\"\n[[disk]]\nsocket = \"keep.sock\"\n\
             volume = \"io1/keep\"\nqueues = 2\n",
            port + 4
        );
        let [io, vm] = [plan("io1", io), plan("vm1", vm)];
        Self { io: io.start().expect("the IOhost starts"), vm: vm.start().expect("and the VMhost") }
    }

    /// One change of a random kind at one of a few places: adds the object, or removes it.
    fn change(&self, random: &mut Random, there: &mut [[bool; PLACES as usize]; 3]) {
        let place = random.below(PLACES) as usize;
        match random.below(6) {
            0 => self.local(random, place, &mut there[0][place]),
            1 => self.remote(random, place, &mut there[1][place]),
            2 => self.peer(place, &mut there[2][place]),
            3 | 4 => self.chain(random),
            _ => self.bad(place),
        }
    }

    /// A volume and a disk of the VMhost's own, used for a moment.
    fn local(&self, random: &mut Random, place: usize, there: &mut bool) {
        let name = format!("l{place}");
        if *there {
            done(&self.vm, "DELETE", &format!("/v1/volumes/{name}?force=true"), &Value::Null);
        } else {
            let backend = match place % 2 {
                0 => json!({ "file": format!("{name}.img"), "size": "1MiB" }),
                _ => json!({ "memory": "1MiB" }),
            };
            // A file has what an earlier disk wrote, and the model begins with zeroes.
            let _ = fs::remove_file(self.vm.plan().file(&format!("{name}.img")));
            let volume = json!({ "name": name, "backend": backend, "chain": ["meter"] });
            done(&self.vm, "POST", "/v1/volumes", &volume);
            let disk = json!({ "volume": name, "socket": format!("{name}.sock"), "queues": 2 });
            done(&self.vm, "POST", "/v1/disks", &disk);
            self.visit(random, &name);
        }
        *there = !*there;
    }

    /// A volume of the IOhost and a disk of the VMhost on it.
    fn remote(&self, random: &mut Random, place: usize, there: &mut bool) {
        let name = format!("r{place}");
        if *there {
            // In either order: a disk whose volume is gone waits, and can be taken away.
            let volume = || {
                let path = format!("/v1/volumes/{name}?force=true");
                done(&self.io, "DELETE", &path, &Value::Null);
            };
            let first = random.below(2) == 0;
            first.then(volume);
            done(&self.vm, "DELETE", &format!("/v1/disks/{name}?force=true"), &Value::Null);
            (!first).then(volume);
        } else {
            let volume = json!({ "name": name, "backend": { "memory": "1MiB" }, "allow": ["vm1"] });
            done(&self.io, "POST", "/v1/volumes", &volume);
            let socket = format!("{name}.sock");
            let disk = json!({ "volume": format!("io1/{name}"), "socket": socket, "queues": 2 });
            done(&self.vm, "POST", "/v1/disks", &disk);
            let socket = self.vm.plan().socket(&name);
            let until = Instant::now() + SETTLE;
            while !socket.exists() {
                assert!(Instant::now() < until, "{name} never came:\n{}", self.vm.log_tail());
                std::thread::sleep(Duration::from_millis(2));
            }
            self.visit(random, &name);
        }
        *there = !*there;
    }

    /// A peer that does not answer, with a disk that waits for it.
    fn peer(&self, place: usize, there: &mut bool) {
        let name = format!("p{place}");
        if *there {
            done(&self.vm, "DELETE", &format!("/v1/disks/{name}"), &Value::Null);
            done(&self.vm, "DELETE", &format!("/v1/peers/{name}"), &Value::Null);
        } else {
            let peer = json!({ "name": name, "address": "127.0.0.2:9" });
            done(&self.vm, "POST", "/v1/peers", &peer);
            let disk = json!({ "volume": format!("{name}/x"), "socket": format!("{name}.sock") });
            done(&self.vm, "POST", "/v1/disks", &disk);
        }
        *there = !*there;
    }

    /// Another chain under the guest that works.
    fn chain(&self, random: &mut Random) {
        let chains = [
            json!(["meter"]),
            json!(["meter", { "limit": { "iops": 100_000 } }]),
            json!([{ "limit": { "bytes-per-second": "1GiB" } }, "meter"]),
        ];
        let chain = &chains[random.below(3) as usize];
        let (code, answer) = ask(&self.io, "PUT", "/v1/volumes/keep/chain", chain);
        // A flush of the machine's own storage may take seconds. Then the old chain stays.
        let is_slow = code == 500 && answer.contains("did not drain within");
        assert!(code == 200 || is_slow, "{chain}: {answer}\n{}", self.io.log_tail());
    }

    /// Changes that fail half-way: the volume is refused when it is opened, the disk by its name.
    fn bad(&self, place: usize) {
        let volume = json!({ "name": "bad", "backend": { "file": "none.img" } });
        assert_eq!(ask(&self.io, "POST", "/v1/volumes", &volume).0, 500);
        let disk = json!({ "volume": "io1/keep", "socket": format!("bad{place}.sock") });
        let mut again = disk.clone();
        again["attachment"] = json!("keep");
        assert_eq!(ask(&self.vm, "POST", "/v1/disks", &again).0, 400);
        assert_eq!(ask(&self.vm, "DELETE", "/v1/disks/none", &Value::Null).0, 404);
    }

    /// A guest that comes, works a little, and goes.
    fn visit(&self, random: &mut Random, disk: &str) {
        let socket = self.vm.plan().socket(disk);
        // One queue: on two sidecores, overlapping requests to memory may mix their bytes.
        let mut guest = StandIn::connect(&socket, 1, mix(4), 64, random).expect("connects");
        guest.work(|guest| guest.workload.counts.completed > 50).expect("the promise is kept");
        guest.read_all().expect("all is as promised");
        guest.disconnect();
    }

    /// Removes all objects that are left.
    fn clear(&self, random: &mut Random, there: &mut [[bool; PLACES as usize]; 3]) {
        let [local, remote, peers] = std::mem::take(there);
        for (place, _) in local.iter().enumerate().filter(|(_, there)| **there) {
            self.local(random, place, &mut true);
        }
        for (place, _) in remote.iter().enumerate().filter(|(_, there)| **there) {
            self.remote(random, place, &mut true);
        }
        for (place, _) in peers.iter().enumerate().filter(|(_, there)| **there) {
            self.peer(place, &mut true);
        }
        done(&self.io, "PUT", "/v1/volumes/keep/chain", &json!(["meter"]));
    }

    /// Waits until both nodes hold the same resources as before, and no more.
    fn wait_for(&self, before: &[Held; 2]) {
        let until = Instant::now() + SETTLE;
        loop {
            let now = [Held::by(&self.io), Held::by(&self.vm)];
            let same = now.iter().zip(before).all(|(now, before)| {
                // A connection or a helper of the control thread may have been ending before, or
                // work for us now. A leak that grows with the changes is more than one.
                let near = |now: usize, before: usize| {
                    if now <= before + 1 { before } else { now }
                };
                let threads = near(now.threads, before.threads);
                let descriptors = near(now.descriptors, before.descriptors);
                Held { threads, descriptors, ..now.clone() } == *before
            });
            if same {
                return;
            }
            assert!(Instant::now() < until, "before: {before:#?}\nnow: {now:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Changes for a while, then removes everything again. Gives the number of changes.
    fn churn(&self, random: &mut Random, time: Duration) -> u64 {
        let mut there = <[[bool; PLACES as usize]; 3]>::default();
        let (until, mut changes) = (Instant::now() + time, 0);
        while Instant::now() < until {
            self.change(random, &mut there);
            changes += 1;
        }
        self.clear(random, &mut there);
        changes
    }
}

/// Sets the flag when it is dropped.
struct Ends<'s>(&'s AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn nothing_grows_while_everything_comes_and_goes() {
    let time = Duration::from_secs(number("CHURN_S", if is_ci() { 20 } else { 600 }));
    let seed = number("CHURN_SEED", 1);
    println!("CHURN_SEED={seed} CHURN_S={}", time.as_secs());
    let mut random = Random::new(seed);
    let home = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::start(home.path());
    let socket = pair.vm.wait_for_disk("keep").expect("the disk is served");
    let stop = AtomicBool::new(false);
    let mut guest =
        StandIn::connect(&socket, 2, mix(8), BLOCKS, &mut random.fork()).expect("connects");
    let pair = &pair;
    std::thread::scope(|scope| {
        // The flag must be set also when something below fails: the guest would work for ever.
        let _ends = Ends(&stop);
        let loaded = scope.spawn(|| {
            guest.work(|_| stop.load(Relaxed)).expect("the promise is kept");
            guest.read_all().expect("all of the disk is as promised");
            assert_eq!(guest.workload.counts.errors, 0);
            guest.workload.counts.completed
        });
        // The stacks of threads, the pools and the tables reach their size here.
        pair.churn(&mut random, time / 5);
        let before = [Held::by(&pair.io), Held::by(&pair.vm)];
        let before_kib = [resident_kib(&pair.io), resident_kib(&pair.vm)];
        let changes = pair.churn(&mut random, time);
        let after_kib = [resident_kib(&pair.io), resident_kib(&pair.vm)];
        println!("{changes} changes; resident KiB before {before_kib:?}, after {after_kib:?}");
        pair.wait_for(&before);
        stop.store(true, Relaxed);
        let requests = loaded.join().expect("the guest was right all the time");
        println!("{requests} requests; {before:?}");
        // A short run is hardly warm, so this only keeps it from running away.
        let percent = if is_ci() { 25 } else { 5 };
        for (before, after) in before_kib.into_iter().zip(after_kib) {
            assert!(after <= before + before * percent / 100, "{before} KiB became {after} KiB");
        }
    });
    guest.compare_image(&pair.io.plan().file("keep.img")).expect("the image is as promised");
}
