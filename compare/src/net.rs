//! `vrio bench compare net`: virtual machines' network cards.

mod frames;
mod goals;
mod options;
mod own;
mod peers;
mod taps;
pub(crate) mod tcp;

use anyhow::{Result, ensure};
use sidecore::Idle;

use super::comparison::Comparison;
use super::contest::{Contest, LOCAL, TurnSample};
use super::running::RunningServers;
use super::table::OwnOutcome;
use super::{Contests, huge};
use bench::block::LinkKind;
use bench::net::ports::{self, Doing, PortsPlan};
use bench::net::{self, NetReport, Path};
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::cores;
use testbed::pair::PairLink;
use testbed::progress::Progress;

use frames::Frames;
use goals::{CONTEST, PORTS, THROUGH};
use own::{Measurer, OwnCase};
use peers::{SOCKETS, SwitchPeer, SwitchPeers, name};

pub use options::CardsOptions;

/// The length of frames in contests between nodes.
const CABLE_BYTES: u32 = 64 << 10;

/// How often a frame crosses from node to node through an IOhost.
const THROUGH_CROSSINGS: f64 = 2.0;

/// Whether our sidecore, or a peer's thread, and the driver have a core each.
fn has_seats() -> bool {
    cores().len() > 1
}

/// A carrier of frames between two guests.
#[derive(Clone, Debug)]
enum NetContestant {
    /// Our own switch.
    Vrio,
    /// Two of our remote ports.
    Ports,
    /// Our own nodes, the switch on the other one.
    Through,
    /// The kernel's bridge, with a tap for each guest.
    Taps,
    /// The kernel's TCP, over the same cable as between our nodes.
    Tcp,
    /// A switch that we start.
    Peer(SwitchPeer),
}

impl super::Contestant for NetContestant {
    type Case = Frames;

    fn name(&self) -> String {
        match self {
            Self::Vrio => LOCAL.to_owned(),
            Self::Ports => name::PORTS.to_owned(),
            Self::Through => name::THROUGH.to_owned(),
            Self::Taps => name::TAPS.to_owned(),
            Self::Tcp => name::TCP.to_owned(),
            Self::Peer(peer) => peer.name.clone(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self, Self::Vrio | Self::Ports | Self::Through)
    }

    /// Whether it takes frames of that length uncut. A stream of TCP has the longest frames only.
    fn takes_part(&self, case: &Frames) -> bool {
        match self {
            Self::Peer(peer) => case.size_bytes <= peer.size_bytes_max,
            Self::Ports | Self::Through | Self::Tcp => case.size_bytes == CABLE_BYTES,
            Self::Vrio | Self::Taps => true,
        }
    }

    fn is_slow(&self) -> bool {
        matches!(self, Self::Peer(_))
    }
}

/// Runs the contest. The progress goes to standard error.
///
/// # Errors
/// When no contestant can be measured.
pub fn run(options: &CardsOptions) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &CardsOptions, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    let plan = &options.plan;
    let mut peers = SwitchPeers::find();
    if plan.wants_contest(CONTEST)
        && !peers.found.is_empty()
        && let Err(why) = huge::make_pages(peers.huge_mib(), cleanup)
    {
        peers.without_huge_pages(&format!("{why:#}"));
    }
    let taps = taps::may_be_made().then_some(NetContestant::Taps);
    if taps.is_none() {
        peers.missing.push(format!("{} (only root makes them)", name::TAPS));
    }
    let theirs = peers.found.into_iter().map(NetContestant::Peer).chain(taps);
    let contestants = [NetContestant::Vrio].into_iter().chain(theirs).collect();
    let mut contests = vec![Contest::new(CONTEST, contestants)];
    if taps::may_be_made() {
        contests.extend(
            [(PORTS, NetContestant::Ports), (THROUGH, NetContestant::Through)]
                .map(|(name, ours)| Contest::new(name, vec![ours, NetContestant::Tcp])),
        );
    } else {
        peers.missing.push(format!("{} (only root makes a virtual cable)", name::TCP));
    }
    let (subject, cases, missing) = (&goals::NICS, Frames::all(), peers.missing);
    let mut field = Contests { subject, plan, contests, cases, missing, cleanup, progress };
    field.narrow();
    let mut own = OwnCase::ALL.to_vec();
    own.retain(|own| plan.wants_contest(own.name()) && plan.wants_case(own.case()));
    field.check(!own.is_empty())?;
    field.announce(own.iter().map(|own| own.turns()).sum());
    let outcomes = field.run(&|case, contestant| turn(options, case, contestant, cleanup));
    let own = measure_own(&own, &Measurer { options, cleanup, progress }, &mut field.missing);
    field.result(options, outcomes, own)
}

/// Figures of vrio alone. A figure that cannot be measured is named in `missing`.
fn measure_own(own: &[OwnCase], by: &Measurer<'_>, missing: &mut Vec<String>) -> Vec<OwnOutcome> {
    let measured = own.iter().map(|own| own.measure(by));
    super::own_outcomes(measured, by.cleanup, by.progress, missing)
}

fn turn(
    options: &CardsOptions,
    case: &Frames,
    contestant: &NetContestant,
    cleanup: &Cleanup,
) -> Result<TurnSample> {
    let mut asked = net::NetOptions {
        op: case.op,
        size_bytes: case.size_bytes,
        idle: options.idle,
        seconds: options.plan.seconds,
        ..net::NetOptions::new(options.plan.program.clone())
    };
    match contestant {
        NetContestant::Vrio => {
            if asked.idle == Idle::Spin && !has_seats() {
                // Spinning threads that share cores only keep each other from them.
                asked.idle = Idle::Adaptive;
            }
            drive(&asked, cleanup)
        }
        NetContestant::Ports => port_to_port(options, cleanup),
        NetContestant::Through => {
            asked.path = Path::Remote;
            asked.meeting = PairLink { encrypt: false, ..PairLink::default() };
            if cores().len() < 3 {
                // So many threads poll.
                asked.idle = Idle::Adaptive;
            }
            let report = net::measure(&asked, cleanup, &Progress::silent())?;
            let cpu_us = report.nodes_cpu_us_per_frame().map(|us| us / THROUGH_CROSSINGS);
            Ok(TurnSample { cpu_us, core_share: None, ..sample(&report) })
        }
        NetContestant::Taps => taps::measure(case, options.plan.seconds, cleanup),
        NetContestant::Tcp => tcp::measure(options, case.size_bytes, cleanup),
        NetContestant::Peer(peer) => {
            let running = RunningServers::start(&peer.service, cleanup)?;
            let [one, two] = SOCKETS.map(|name| running.folder.join(name));
            (asked.path, asked.pids) = (Path::Socket(one, two), running.pids());
            drive(&asked, cleanup).map_err(|error| running.explain(error))
        }
    }
}

/// Runs our driver.
fn drive(asked: &net::NetOptions, cleanup: &Cleanup) -> Result<TurnSample> {
    Ok(sample(&net::measure(asked, cleanup, &Progress::silent())?))
}

fn sample(report: &NetReport) -> TurnSample {
    let core_share = report.core_share.get("driver-0").copied();
    // The rate is over the whole turn, where most of it was spent waiting, and not over the time
    // between two time-outs.
    let whole_s = report.seconds + report.waited_s;
    TurnSample {
        rate: report.frames_per_s.unwrap_or(report.frames as f64 / whole_s),
        p50_us: report.latency_us.map(|latency| latency.p50),
        p99_us: report.latency_us.map(|latency| latency.p99),
        cpu_us: report.cpu_us_per_frame(),
        // Where cores are shared, a share of a core says nothing.
        core_share: core_share.filter(|_| has_seats()),
        waited_share: report.disturbed.then_some(report.waited_share),
        trips_ns: report.cache_line_rtts_ns,
    }
}

/// Measures frames between two sidecores, over the virtual cable.
fn port_to_port(options: &CardsOptions, cleanup: &Cleanup) -> Result<TurnSample> {
    let size_bytes = CABLE_BYTES as usize;
    let depth =
        net::NetOptions { size_bytes: CABLE_BYTES, ..net::NetOptions::new("vrio".into()) }.depth();
    let plan = PortsPlan {
        program: options.plan.program.clone(),
        doing: Doing::Forward { size_bytes, depth: u64::from(depth) },
        link: LinkKind::Udp,
        loopback: false,
        seconds: options.plan.seconds,
    };
    let report = ports::measure(&plan, cleanup)?;
    ensure!(report.has_namespaces, "only root makes a virtual cable");
    let (frames, took) = (report.frames as f64, report.took.as_secs_f64());
    let waited_s = report.waited.as_secs_f64();
    Ok(TurnSample {
        rate: frames / took,
        p50_us: None,
        p99_us: None,
        cpu_us: Some(report.cpu.as_secs_f64() * 1e6 / frames),
        core_share: None,
        waited_share: net::disturbed(waited_s, (took - waited_s).max(0.0)),
        trips_ns: report.trips_ns,
    })
}
