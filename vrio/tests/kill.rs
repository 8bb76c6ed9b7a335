//! The checker against real processes: kill -9 and SIGSTOP under load.
//!
//! `KILLS=n` sets the number of kills, `KILL_SEED=n` another run.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::{RingKind, StandIn};
use workload::Mix;

/// The kills of one run: as many as CI has time for.
const KILLS: u64 = 200;

/// Requests that must be outstanding when a process is killed.
const OUTSTANDING_MIN: usize = 16;

/// The disk's blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 2048;

/// How long the test watches that a VMhost that is stopped, or was replaced, does no harm.
const WATCHED: Duration = Duration::from_secs(3);

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Ports of this test's nodes: apart from each other and from other tests' by process and number.
fn port(number: u16) -> u16 {
    20_000 + (std::process::id() % 200) as u16 * 60 + number * 4
}

struct Pair {
    home: tempfile::TempDir,
    io: u16,
    keys: NodeKeys,
}

impl Pair {
    fn plain(number: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self { home, io: port(number), keys: NodeKeys::plain() }
    }

    fn sealed(number: u16) -> Self {
        let plain = Self::plain(number);
        let keys = NodeKeys::make(plain.home.path(), &["io1", "vm1", "vm2"]).expect("keys");
        Self { keys, ..plain }
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    /// The limit keeps requests waiting in the IOhost, so that a kill always meets some. It has
    /// one sidecore more than the VMhosts.
    fn io_plan(&self) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\ncount = 3\nidle = \"adaptive\"\n{}\
             [[volume]]\nname = \"root\"\nbackend = {{ file = \"root.img\", size = \"64MiB\" }}\n\
             chain = [\"meter\", {{ limit = {{ iops = 6000, burst = \"5ms\" }} }}]\n\
             {}",
            self.io,
            self.keys.own("io1"),
            self.keys.clients(&["vm1", "vm2"]),
            self.keys.allow(&["vm1", "vm2"])
        );
        self.plan("io1", config)
    }

    fn vm_plan(&self, name: &str, listen: u16) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{listen}\"\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n{}\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/root\"\nqueues = 4\n{}",
            self.keys.own(name),
            self.io,
            self.keys.peer("io1"),
            self.keys.disk()
        );
        self.plan(name, config)
    }
}

/// Works until enough requests are outstanding, for a random while.
fn work_a_while(guest: &mut StandIn, random: &mut Random, longest_ms: u64) {
    let until = Instant::now() + Duration::from_micros(random.between(500, longest_ms * 1000));
    let worked = guest
        .work(|guest| Instant::now() >= until && guest.workload.outstanding() >= OUTSTANDING_MIN);
    worked.expect("the promise is kept");
}

/// Works until a request was answered.
fn wait_until_served(guest: &mut StandIn) {
    guest.work(|guest| guest.workload.counts.completed > 0).expect("the disk is served");
}

#[test]
fn nothing_is_lost_when_processes_are_killed() {
    lose_nothing(&Pair::sealed(0), RingKind::Split, number("KILLS", KILLS), 1);
}

/// The same where the guest's rings are packed.
#[test]
fn nothing_of_packed_rings_is_lost_when_processes_are_killed() {
    lose_nothing(&Pair::sealed(2), RingKind::Packed, number("KILLS", KILLS).div_ceil(2), 3);
}

/// The same without sealed sessions, and with fewer kills, since only the sessions differ.
#[test]
fn nothing_is_lost_when_processes_of_plain_sessions_are_killed() {
    lose_nothing(&Pair::plain(10), RingKind::Split, number("KILLS", KILLS).div_ceil(10), 11);
}

/// `vm_port` is the number of the VMhost's port.
fn lose_nothing(pair: &Pair, kind: RingKind, kills: u64, vm_port: u16) {
    let seed = number("KILL_SEED", 1);
    println!("KILL_SEED={seed} KILLS={kills}");
    let mut random = Random::new(seed);
    let mut io = Some(pair.io_plan().start().expect("the IOhost starts"));
    let mut vm = Some(pair.vm_plan("vm1", port(vm_port)).start().expect("the VMhost starts"));
    let socket = vm.as_mut().map(|vm| vm.wait_for_disk("alice")).expect("runs");
    let socket = socket.expect("the disk is served");
    let guest = StandIn::connect_with(&socket, kind, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let mut outstanding = Vec::new();
    let (mut io_kills, mut vm_kills) = (0, 0);
    while io_kills + vm_kills < kills {
        work_a_while(&mut guest, &mut random, 40);
        outstanding.push(guest.workload.outstanding());
        let victims = random.below(5);
        let io_plan = (victims < 3).then(|| kill(&mut io));
        let vm_plan = (victims >= 2).then(|| kill(&mut vm));
        io_kills += u64::from(io_plan.is_some());
        vm_kills += u64::from(vm_plan.is_some());
        if let Some(plan) = io_plan {
            io = Some(plan.start().expect("the IOhost starts again"));
        }
        if let Some(plan) = vm_plan {
            vm = Some(plan.start().expect("the VMhost starts again"));
        }
    }
    guest.read_all().expect("all of the disk is as promised");
    let image = pair.io_plan().file("root.img");
    let counts = guest.workload.counts;
    println!(
        "{io_kills} kills of the IOhost, {vm_kills} of the VMhost, {} reconnects; {} requests, \
         {} blocks checked; outstanding at a kill: at least {}",
        guest.reconnects(),
        counts.completed,
        counts.blocks_checked,
        outstanding.iter().min().expect("some kills")
    );
    assert!(outstanding.iter().all(|&outstanding| outstanding >= OUTSTANDING_MIN));
    assert_eq!(counts.errors, 0, "a kill is a pause, not an error");
    guest.compare_image(&image).expect("the whole image is as promised");
    guest.disconnect();
    vm.expect("runs").stop().expect("the VMhost stops in order");
    io.expect("runs").stop().expect("the IOhost stops in order");
}

/// Moves a queue to another sidecore, again and again, until it is told to stop, and counts the
/// moves. A node that is away is asked again.
fn keep_moving(plan: &NodePlan, stop: &AtomicBool, moves: &AtomicU64) {
    let control = plan.control();
    while !stop.load(Relaxed) {
        let done = moves.load(Relaxed);
        let (queue, to) = ((done / 2 % 4).to_string(), ((done + 1) % 2).to_string());
        let words = ["disk", "move", "alice", "--queue", &queue, "--sidecore", &to, "--control"];
        let moved = Command::new(&plan.program).args(words).arg(&control).output();
        moves.fetch_add(moved.expect("the program is there").status.success().into(), Relaxed);
    }
}

/// A VMhost is killed again and again while its queues go from sidecore to sidecore.
#[test]
fn nothing_is_lost_when_a_vmhost_is_killed_while_its_queues_move() {
    let kills = number("KILLS", KILLS).div_ceil(10);
    let seed = number("KILL_SEED", 1);
    println!("KILL_SEED={seed}, {kills} kills");
    let mut random = Random::new(seed);
    let pair = Pair::plain(8);
    // Without its limit, requests end soon enough for queues to drain.
    let mut io_plan = pair.io_plan();
    io_plan.config = io_plan.config.replace("iops = 6000", "iops = 600000");
    let io = io_plan.start().expect("the IOhost starts");
    let vm_plan = pair.vm_plan("vm1", port(9));
    let mut vm = Some(vm_plan.start().expect("the VMhost starts"));
    let socket = vm.as_mut().map(|vm| vm.wait_for_disk("alice")).expect("runs");
    let socket = socket.expect("the disk is served");
    let guest = StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let (stop, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| keep_moving(&vm_plan, &stop, &moves));
        for killed in 1..=kills {
            work_a_while(&mut guest, &mut random, 200);
            // On a busy machine the command that moves a queue takes longer than the kills.
            guest.work(|_| moves.load(Relaxed) >= killed).expect("queues move while a guest works");
            let plan = kill(&mut vm);
            vm = Some(plan.start().expect("the VMhost starts again"));
        }
        guest.read_all().expect("all of the disk is as promised");
        stop.store(true, Relaxed);
        moving.join().expect("no panic");
    });
    println!("{} moves, {} requests", moves.into_inner(), guest.workload.counts.completed);
    assert_eq!(guest.workload.counts.errors, 0, "a kill is a pause, not an error");
    guest.compare_image(&pair.io_plan().file("root.img")).expect("the whole image is as promised");
    guest.disconnect();
    vm.expect("runs").stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

fn kill(node: &mut Option<Node>) -> NodePlan {
    node.take().expect("both run between two kills").kill().expect("it ran until now")
}

#[test]
fn a_stopped_vmhost_that_was_replaced_touches_nothing() {
    let mut random = Random::new(number("KILL_SEED", 1));
    let pair = Pair::sealed(5);
    let io = pair.io_plan().start().expect("the IOhost starts");
    let mut old = pair.vm_plan("vm1", port(6)).start().expect("the VMhost starts");
    let socket = old.wait_for_disk("alice").expect("the disk is served");
    let mut guest =
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects");
    work_a_while(&mut guest, &mut random, 500);
    old.halt().expect("it runs");
    let left_behind = guest.workload.outstanding();
    assert!(left_behind >= OUTSTANDING_MIN, "{left_behind} requests were on their way");
    let mut before = guest.digest();

    let mut new = pair.vm_plan("vm2", port(7)).start().expect("the successor starts");
    let socket = new.wait_for_disk("alice").expect("the disk is served");
    let mut successor =
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects");
    // The volume is the same: it keeps the writes of the first guest.
    guest.checker.settle();
    guest.workload.forget();
    std::mem::swap(&mut successor.checker, &mut guest.checker);
    // Its guest starts afresh, and has the volume after the other node was silent for long enough.
    wait_until_served(&mut successor);
    let until = Instant::now() + WATCHED;
    successor.work(|_| Instant::now() >= until).expect("the successor's disk is as promised");
    assert_eq!(guest.digest(), before, "a stopped process touches nothing");
    old.resume().expect("it is stopped");
    old.wait_until("it knows that it was replaced", |node| {
        node.status().is_ok_and(|status| status.to_string().contains("successor"))
    })
    .expect("the old one learns of the new one");
    // A process that takes over from the old node may not serve either: it would take the volume
    // back.
    let heir = old.plan().spawn(&["--take-over"]).expect("it starts");
    let refused = heir.wait_for_end().expect_err("it is refused").to_string();
    assert!(refused.contains("has failed for its guest"), "{refused}");
    let after = guest.digest();
    if after != before {
        // A stop can fall into the round that publishes completions. Then that round is finished
        // after the stop, and nothing more.
        println!("the stop fell into a round: it was finished after the stop");
        before = after;
    }
    let until = Instant::now() + WATCHED;
    successor.work(|_| Instant::now() >= until).expect("no write of the old one lands");
    assert_eq!(guest.digest(), before, "the old one touches no ring again");
    successor.read_all().expect("all of the disk is as promised");
    successor.compare_image(&pair.io_plan().file("root.img")).expect("and the image");
    println!("{left_behind} requests were left behind in the stopped VMhost");
    drop((guest, successor));
    new.stop().expect("the successor stops in order");
    drop(old);
    io.stop().expect("the IOhost stops in order");
}

/// The same, but the old node hands over in the moment before it can know that it was replaced.
#[test]
fn a_replaced_vmhost_hands_over_nothing_but_its_end() {
    let mut random = Random::new(number("KILL_SEED", 1));
    let pair = Pair::sealed(4);
    let io = pair.io_plan().start().expect("the IOhost starts");
    let mut old = pair.vm_plan("vm1", port(12)).start().expect("the VMhost starts");
    let socket = old.wait_for_disk("alice").expect("the disk is served");
    let mut guest =
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects");
    work_a_while(&mut guest, &mut random, 500);
    old.halt().expect("it runs");
    let mut new = pair.vm_plan("vm2", port(13)).start().expect("the successor starts");
    let socket = new.wait_for_disk("alice").expect("the disk is served");
    let mut successor =
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects");
    guest.checker.settle();
    guest.workload.forget();
    std::mem::swap(&mut successor.checker, &mut guest.checker);
    // The old node has not been silent for long, so an operator has the new node take the volume.
    let words = ["disk", "take", "alice", "--control"];
    let mut take = Command::new(&new.plan().program);
    let taken = take.args(words).arg(new.plan().control()).output().expect("the program is there");
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    wait_until_served(&mut successor);
    work_a_while(&mut successor, &mut random, 500);
    // While the IOhost stands still, no node can tell that it was replaced.
    io.halt().expect("it runs");
    old.resume().expect("it is stopped");
    let mut heir = old.hand_over().expect("it knows of nothing");
    io.resume().expect("it is stopped");
    heir.wait_until("it knows that it was replaced", |node| {
        node.status().is_ok_and(|status| status.to_string().contains("successor"))
    })
    .expect("the heir learns of the successor");
    let until = Instant::now() + WATCHED;
    successor.work(|_| Instant::now() >= until).expect("nobody takes its volume away");
    successor.read_all().expect("all of the disk is as promised");
    assert_eq!(successor.workload.counts.errors, 0);
    successor.compare_image(&pair.io_plan().file("root.img")).expect("and the image");
    drop((guest, successor));
    new.stop().expect("the successor stops in order");
    drop(heir);
    io.stop().expect("the IOhost stops in order");
}
