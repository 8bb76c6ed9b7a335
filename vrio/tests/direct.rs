//! Direct clients of volumes with copies on several real nodes, under a checked load. The kernel's
//! block layer is played by a stand-in, so no ublk is needed: `attach.rs` has the driver.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::ublk::abi::{ABORT, Descriptor, op};
use block::ublk::{FrontCore, Kernel};
use direct::{AttachPeer, AttachPlan, DirectClient, Idle, Shape};
use node::config::LinkKind;
use random::Random;
use testbed::nodes::Node;
use volume::uring::Completion;
use workload::checker::{Began, Checker, stamp};

use crate::placements::{start, vrio, wait_for_nodes, wait_for_state};
use crate::pools::told;
use crate::replicas::{PATIENCE, Rack, succeeds, wait_until_in_sync};

/// The blocks that the load uses.
const BLOCKS: u64 = 512;
const BLOCK_BYTES: usize = 4096;

const SHAPE: Shape = Shape { queues: 1, depth: 8 };

/// The next requests of the load.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Rest,
    Work,
    /// Each block from this one on is read once.
    Scan(u64),
}

#[derive(Debug)]
enum Doing {
    Write(u64),
    Read(Began, u64),
}

/// Reads and writes of single blocks, and the model of what reads may return.
#[derive(Debug)]
struct Load {
    checker: Checker,
    random: Random,
    turn: Turn,
    doing: Vec<Option<Doing>>,
    descriptors: Vec<Descriptor>,
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    mail: Vec<Completion>,
    stopping: bool,
    done: u64,
    wrong: Option<String>,
}

impl Load {
    fn new(seed: u64) -> Self {
        let places = SHAPE.places() as usize;
        Self {
            checker: Checker::new(BLOCKS),
            random: Random::new(seed),
            turn: Turn::Rest,
            doing: (0..places).map(|_| None).collect(),
            descriptors: vec![Descriptor::default(); places],
            buffers: vec![vec![0; BLOCK_BYTES]; places],
            free: Vec::new(),
            mail: Vec::new(),
            stopping: false,
            done: 0,
            wrong: None,
        }
    }

    fn begin(&mut self, place: u32) {
        let (block, writes) = match self.turn {
            Turn::Work => (self.random.below(BLOCKS), self.random.one_in(2)),
            Turn::Scan(block) if block < BLOCKS => {
                self.turn = Turn::Scan(block + 1);
                (block, false)
            }
            Turn::Rest | Turn::Scan(_) => return self.free.push(place),
        };
        let at = place as usize;
        let (doing, op_flags) = if writes {
            let number = self.checker.begin_write(block, 1);
            stamp(block, number, &mut self.buffers[at]);
            (Doing::Write(number), op::WRITE)
        } else {
            (Doing::Read(self.checker.begin_read(), block), op::READ)
        };
        let sectors = BLOCK_BYTES as u32 / 512;
        let start_sector = block * u64::from(sectors);
        self.doing[at] = Some(doing);
        self.descriptors[at] = Descriptor { op_flags, nr_sectors: sectors, start_sector, addr: 0 };
        self.mail.push(Completion { token: place, result: 0 });
    }

    fn end(&mut self, place: u32, answer: i32) {
        let at = place as usize;
        self.done += 1;
        let is_done = answer >= 0;
        if !is_done {
            self.wrong.get_or_insert(format!("a request has failed: {answer}"));
        }
        match self.doing[at].take().expect("it was begun") {
            Doing::Write(number) => self.checker.end_write(number, is_done),
            Doing::Read(began, _) if !is_done => self.checker.drop_read(began),
            Doing::Read(began, block) => {
                let read = self.checker.end_read(began, block, &self.buffers[at], BLOCK_BYTES);
                if let Err(breach) = read {
                    self.wrong.get_or_insert(breach.to_string());
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.doing.len()
    }

    fn set(&mut self, turn: Turn) {
        self.turn = turn;
        for place in std::mem::take(&mut self.free) {
            self.begin(place);
        }
    }
}

/// The load in the place of the kernel's block layer.
#[derive(Debug)]
struct StandInKernel(Rc<RefCell<Load>>);

impl Kernel for StandInKernel {
    fn shape(&self) -> Shape {
        SHAPE
    }

    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool {
        let mut load = self.0.borrow_mut();
        if let Some(answer) = answer {
            load.end(place, answer);
        }
        match load.stopping {
            true => load.mail.push(Completion { token: place, result: ABORT }),
            false => load.begin(place),
        }
        true
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.0.borrow_mut().mail);
    }

    fn has_mail(&self) -> bool {
        !self.0.borrow().mail.is_empty()
    }

    fn descriptor(&self, place: u32) -> Descriptor {
        self.0.borrow().descriptors[place as usize]
    }

    fn buffer(&self, place: u32) -> *mut u8 {
        self.0.borrow_mut().buffers[place as usize].as_mut_ptr()
    }
}

/// A direct client at work.
struct DirectGuest {
    client: DirectClient,
    front: Arc<FrontCore>,
}

impl DirectGuest {
    fn attach(plan: &AttachPlan) -> Self {
        let client = DirectClient::new(plan, false).expect("the plan is sound");
        client.describe(true).expect("a node describes the volume");
        let front = client.open_front::<StandInKernel>(SHAPE, |_| Ok(())).expect("a front");
        client.claim(true).expect("the volume is free");
        client.show(|local| {
            let load = Rc::new(RefCell::new(Load::new(23)));
            local.services().insert(Rc::clone(&load));
            StandInKernel(load)
        });
        Self { client, front }
    }

    /// Runs `f` on the load, on its sidecore.
    fn on<T: Send + 'static>(&self, f: impl FnOnce(&mut Load) -> T + Send + 'static) -> T {
        let ran = self.client.sidecore().call(|local| {
            let load = local.services().get::<Load>().expect("it is shown");
            let mut load = load.borrow_mut();
            if let Some(wrong) = &load.wrong {
                panic!("{wrong}");
            }
            f(&mut load)
        });
        ran.expect("no request was wrong")
    }

    /// Waits until the load is so, and follows the volume meanwhile, as `vrio attach` does.
    fn wait(&self, what: &str, is: impl Fn(&Load) -> bool + Copy + Send + 'static) {
        let until = Instant::now() + PATIENCE;
        while !self.on(move |load| is(load)) {
            self.client.follow();
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// So many more requests end.
    fn work_on(&self, requests: u64) {
        let wanted = self.on(move |load| {
            load.set(Turn::Work);
            load.done + requests
        });
        self.wait("its requests end", move |load| load.done >= wanted);
    }

    /// Reads each block of the load once more.
    fn read_all(&self) {
        self.on(|load| load.turn = Turn::Rest);
        self.wait("its requests end", Load::is_idle);
        self.on(|load| load.set(Turn::Scan(0)));
        self.wait("all is read", |load| load.is_idle() && matches!(load.turn, Turn::Scan(BLOCKS)));
    }

    fn detach(self) {
        self.on(|load| {
            load.stopping = true;
            let free = std::mem::take(&mut load.free);
            let aborted = free.into_iter().map(|token| Completion { token, result: ABORT });
            load.mail.extend(aborted);
        });
        assert!(self.client.close::<StandInKernel>(&self.front), "it is closed in order");
        self.client.stop();
    }
}

fn plan(rack: &Rack, (name, volume): (&str, &str)) -> AttachPlan {
    AttachPlan {
        name: name.to_owned(),
        volume: AttachPlan::volume_of(volume).expect("a name"),
        peers: Vec::new(),
        placements: None,
        key: Some(rack.keys.file(name)),
        trust_network: false,
        attachment: name.to_owned(),
        attachment_key: None,
        shape: SHAPE,
        idle: Idle::Adaptive,
        link: LinkKind::Udp,
        core: None,
        take_over: false,
        accept_loss: false,
        error_after_ns: None,
        directory: rack.path("attach"),
    }
}

#[test]
fn a_direct_client_goes_on_with_each_node_of_its_list() {
    let (rack, list) = (Rack::new(18), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    let primary = wait_until_in_sync(&nodes);
    // The node that does not serve is asked first.
    let order = [1 - primary, primary].map(|at| list[at]);
    let peer = |name: &str| AttachPeer {
        address: rack.address(name),
        key: Some(rack.keys.public(name).to_owned()),
    };
    let guest = DirectGuest::attach(&AttachPlan {
        peers: order.map(peer).into(),
        attachment_key: Some(rack.keys.tenant_file()),
        ..plan(&rack, ("vm1", &format!("{}/alice", order.join(","))))
    });
    guest.work_on(500);
    for _ in 0..2 {
        let primary = wait_until_in_sync(&nodes);
        let plan = nodes[primary].take().expect("it runs").kill().expect("it ran until now");
        guest.work_on(500);
        nodes[primary] = Some(plan.start().expect("the node starts again"));
        guest.work_on(100);
    }
    let primary = wait_until_in_sync(&nodes);
    let node = nodes[primary].as_ref().expect("it runs");
    told(node, &format!("volume move alice {}", list[1 - primary]));
    guest.work_on(500);
    guest.read_all();
    guest.detach();
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a node stops in order");
    }
}

/// A name of the cluster that no node has: a direct client's.
fn join_client(rack: &Rack, name: &str) {
    let config = format!("[cluster]\ndirectory = {:?}\n", rack.path(&format!("of-{name}")));
    rack.join_by(&rack.plan(name, &config).write().expect("a file"));
}

/// Waits until the file in which an agent keeps placements is so.
fn wait_for(file: &PathBuf, is: impl Fn(&str) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        if is(&kept) {
            return;
        }
        assert!(Instant::now() < until, "{file:?} stays so: {kept}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_direct_client_follows_a_placed_volume_to_other_nodes() {
    let rack = Rack::new(19);
    let [mut io1, mut io2, io3] = ["io1", "io2", "io3"].map(|name| start(&rack, name));
    let vm1 = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
    let vm1 = vm1.start().expect("the VMhost starts");
    rack.join(&vm1);
    join_client(&rack, "web1");
    wait_for_nodes(&rack, 4);
    let create = "volume create alice --size 16MiB --on io1,io2 --allow vm1,web1";
    succeeds(&vrio(&rack, create, "operator"));
    let placements = vm1.plan().home.join("volumes/.vrio/own.cluster/placements.json");
    wait_for(&placements, |kept| kept.contains("alice"));
    let knows = |node: &Node| {
        let status = node.status().expect("it answers");
        let peers = status["peers"].as_array().expect("a list").clone();
        peers.iter().any(|peer| peer["name"] == "web1")
    };
    for node in [&mut io1, &mut io2] {
        node.wait_until("the client is a peer", knows).expect("its agent adds it");
    }
    let guest = DirectGuest::attach(&AttachPlan {
        placements: Some(placements.clone()),
        ..plan(&rack, ("web1", "alice"))
    });
    guest.work_on(500);
    let plan = io1.kill().expect("it ran until now");
    guest.work_on(500);
    let io1 = plan.start().expect("the node starts again");
    wait_for_state(&rack, "alice", "well");
    told(&io2, "volume move alice io1");
    guest.work_on(500);
    // The volume gets a node that the client has never heard of, and then only that node has it.
    std::thread::scope(|scope| {
        let replace = || vrio(&rack, "volume copies alice --replace io1 --by io3", "operator");
        let running = scope.spawn(replace);
        while !running.is_finished() {
            guest.work_on(20);
        }
        succeeds(&running.join().expect("the command ends"));
    });
    wait_for(&placements, |kept| {
        let copies = serde_json::from_str::<serde_json::Value>(kept).unwrap_or_default();
        let copies = copies["volumes"]["alice"]["copies"].as_array().cloned().unwrap_or_default();
        let of = |node| move |it: &&serde_json::Value| it["node"] == node && it["leaves"] != "out";
        copies.iter().any(|it| of("io3")(&it)) && !copies.iter().any(|it| of("io1")(&it))
    });
    guest.work_on(200);
    let plan = io2.kill().expect("it ran until now");
    guest.work_on(500);
    guest.read_all();
    let io2 = plan.start().expect("the node starts again");
    wait_for_state(&rack, "alice", "well");
    guest.detach();
    for node in [io1, io2, io3, vm1] {
        node.stop().expect("a node stops in order");
    }
}
