//! The parts of a measurement: the nodes, the way between them, and both guests.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use net::Mac;
use sidecore::now_ns;

use super::packet::{ACKNOWLEDGEMENT_BYTES, FrameAddresses, Packet};
use super::station::{Sends, Station, StationPlan};
use super::traffic::{self, TrafficResult};
use super::{Crossings, NetOp, NetOptions, Path};
use crate::measure::thread_cpu;
use testbed::cleanup::Cleanup;
use testbed::events::{EventsSnapshot, Role};
use testbed::machine::pin;
use testbed::nodes::Node;
use testbed::pair::{Pair, RoleCores};
use testbed::progress::Progress;
use testbed::stage::{self, NodeNetwork, Stage};

/// The two guests' addresses, and the names of their nics.
const MACS: [Mac; 2] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];
const NICS: [&str; 2] = ["one", "two"];

/// The network that both are in.
const NETWORK: &str = "[[network]]\nname = \"bench\"\n";

/// Everything that runs for a measurement.
#[derive(Debug)]
pub(super) struct NetSetup {
    /// None once it was stopped.
    stations: Option<[Station; 2]>,
    nodes: Vec<(Role, Node)>,
    /// Keeps the nodes' folder.
    stage: Option<Stage>,
    options: NetOptions,
    core: Option<usize>,
}

impl NetSetup {
    /// Starts it all.
    pub(super) fn start(
        options: &NetOptions,
        cleanup: &Cleanup,
        progress: &Progress,
    ) -> Result<Self> {
        let seats = options.seats();
        let (stations, nodes, stage, core) = (None, Vec::new(), None, seats.driver());
        let mut place = Self { stations, nodes, stage, options: options.clone(), core };
        let program = options.program.clone();
        let [one, two] = match &options.path {
            Path::Socket(one, two) => {
                [one, two].into_iter().try_for_each(|socket| stage::expect_socket(socket))?;
                [one.clone(), two.clone()]
            }
            path => {
                let stage = match path {
                    Path::Remote => options.meeting.stage(program, cleanup, progress)?,
                    _ => Stage::new("bench", program, false, cleanup.clone())?,
                };
                let stage = place.stage.insert(stage);
                let (nodes, nics) = start_nodes(options, stage, &seats)?;
                place.nodes = nodes;
                nics.map(|(socket, _)| socket)
            }
        };
        let near = Station::connect(&plan(options, 0, one))?;
        let far = Station::connect(&plan(options, 1, two))?;
        place.stations = Some([near, far]);
        Ok(place)
    }

    pub(super) fn look(&self) -> Result<EventsSnapshot> {
        EventsSnapshot::at(self.nodes.iter().map(|(role, node)| (*role, node)), &self.options.pids)
    }

    /// The network between the nodes, where there are two.
    pub(super) fn network(&self) -> Option<NodeNetwork> {
        let stage = self.stage.as_ref()?;
        (self.options.path == Path::Remote).then_some(stage.network)
    }

    /// Lets frames pass for so long, on a thread of its own. The length of `options`' frames must
    /// be the one that it was started with.
    pub(super) fn pass(
        &mut self,
        options: &NetOptions,
        duration: Duration,
    ) -> Result<TrafficResult> {
        let (core, waiting) = (self.core, options.driver);
        let stations = self.stations.as_mut().ok_or_else(|| anyhow!("it was stopped"))?;
        let drive = || -> Result<TrafficResult> {
            core.inspect(|core| pin(*core));
            let count = |stations: &[Station; 2]| {
                let add = |sum: [u64; 3], it: &Station| {
                    [sum[0] + it.kicks, sum[1] + it.foreign, sum[2] + it.calls()]
                };
                stations.iter().fold([0; 3], add)
            };
            let (began, began_ns, before) = (thread_cpu(), now_ns(), count(stations));
            let [one, two] = stations;
            let mut passed = match options.op {
                NetOp::Forward => traffic::forward(one, two, options.depth(), duration, waiting)?,
                NetOp::Bounce => traffic::bounce(one, two, duration, waiting)?,
                NetOp::Stream => traffic::stream(one, two, options.depth(), duration)?,
            };
            let [kicks, foreign, calls] = count(stations);
            passed.outcome.kicks = kicks - before[0];
            passed.tally.strange += foreign - before[1];
            passed.calls = calls - before[2];
            passed.outcome.driver_cpu.push(thread_cpu().saturating_sub(began));
            passed.drove = Duration::from_nanos(now_ns() - began_ns);
            Ok(passed)
        };
        std::thread::scope(|scope| scope.spawn(drive).join())
            .map_err(|_| anyhow!("the driving thread panicked"))?
    }

    /// Ends everything in order.
    pub(super) fn stop(mut self) -> Result<()> {
        self.stations = None;
        // The VMhost first: it leaves the IOhost's network.
        while let Some((_, node)) = self.nodes.pop() {
            node.stop()?;
        }
        Ok(())
    }
}

/// Nodes, and the socket and the address of each nic that they have.
pub(crate) type ShownNics = (Vec<(Role, Node)>, [(PathBuf, String); 2]);

/// Starts the nodes of a way that has any.
pub(crate) fn start_nodes(
    options: &NetOptions,
    stage: &Stage,
    seats: &RoleCores,
) -> Result<ShownNics> {
    let (cast, mut nodes) = (NetNodes { options, stage, seats }, Vec::new());
    let [one, two] = match options.path {
        Path::Remote => cast.remote(&mut nodes)?,
        _ => cast.local(&mut nodes)?,
    };
    let [first, second] = MACS.map(|mac| mac.to_string());
    Ok((nodes, [(one, first), (two, second)]))
}

/// The nodes' configurations.
struct NetNodes<'a> {
    options: &'a NetOptions,
    stage: &'a Stage,
    seats: &'a RoleCores,
}

impl NetNodes<'_> {
    fn pair(&self) -> Pair<'_> {
        let NetOptions { meeting, idle, .. } = *self.options;
        Pair { link: meeting.link, stage: self.stage, seats: self.seats, sidecores: 1, idle }
    }

    /// A node with both nics. Gives their sockets, as the next one does.
    fn local(&self, nodes: &mut Vec<(Role, Node)>) -> Result<[PathBuf; 2]> {
        let nics = [0, 1].map(|index| nic(index, "bench", "")).concat();
        let config = format!("{}{NETWORK}{nics}", self.pair().vmhost_alone());
        let plan = self.stage.plan("vm1", &config);
        nodes.push((Role::Vmhost, self.stage.start(&plan)?));
        Ok(NICS.map(|name| plan.socket(name)))
    }

    /// The network on the IOhost, and nics on the VMhost that are members of it: both, or one, and
    /// the other guest on the IOhost itself.
    fn remote(&self, nodes: &mut Vec<(Role, Node)>) -> Result<[PathBuf; 2]> {
        let (pair, keys) = (self.pair(), &self.stage.keys);
        let member = |index| nic(index, "io1/bench", &keys.disk());
        let (there, here) = match self.options.crossings {
            Crossings::One => (nic(1, "bench", ""), member(0)),
            Crossings::Two => (String::new(), [member(0), member(1)].concat()),
        };
        let network = format!("{NETWORK}{}{there}", keys.allow(&["vm1"]));
        let iohost = self.stage.plan("io1", &format!("{}{network}", pair.iohost()));
        let vmhost = self.stage.plan("vm1", &format!("{}{here}", pair.vmhost()));
        nodes.push((Role::Iohost, self.stage.start(&iohost)?));
        let mut node = self.stage.start(&vmhost)?;
        node.wait_until("its nics have joined their network", have_joined)?;
        nodes.push((Role::Vmhost, node));
        let far = if self.options.crossings == Crossings::One { &iohost } else { &vmhost };
        Ok([vmhost.socket(NICS[0]), far.socket(NICS[1])])
    }
}

/// A nic's table.
fn nic(index: usize, network: &str, key: &str) -> String {
    let (name, mac) = (NICS[index], MACS[index]);
    format!("[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"{network}\"\nmac = \"{mac}\"\n{key}")
}

/// Whether all nics of a node have joined their networks on other nodes.
fn have_joined(node: &Node) -> bool {
    let Ok(status) = node.status() else { return false };
    status["nics"].as_array().is_some_and(|nics| {
        let has = |nic: &serde_json::Value| nic["counters"]["remote_joins"].as_u64() > Some(0);
        nics.iter().all(|nic| has(nic) && nic["detail"] == "")
    })
}

/// The plan of the first guest or the second one.
fn plan(options: &NetOptions, index: usize, socket: PathBuf) -> StationPlan {
    let ends = FrameAddresses { from: MACS[index], to: MACS[1 - index] };
    let longest = options.frame_bytes_max();
    let (sends, expects_bytes) = match (options.op, options.payload) {
        (NetOp::Stream, _) if index == 0 => {
            let (bytes, most) = (options.size_bytes as usize, options.writes_per_frame());
            (Sends::Writes { bytes, most }, ACKNOWLEDGEMENT_BYTES)
        }
        (NetOp::Stream, _) => (Sends::Packet(Packet::acknowledgement(ends)), longest),
        (_, Some(payload)) => {
            let packet = Packet::datagram(ends, usize::from(payload[index]));
            (Sends::Packet(packet), longest)
        }
        (_, None) => (Sends::Packet(Packet::of_bytes(ends, longest)), longest),
    };
    StationPlan { socket, ends, sends, expects_bytes, packed: options.packed }
}
