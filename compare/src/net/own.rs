//! Figures of vrio alone that goals are about.

use std::time::Duration;

use anyhow::{Context, Result};
use sidecore::Idle;

use super::goals::{ADDS_GOAL, REST_GOAL};
use super::options::CardsOptions;
use crate::table::{OwnOutcome, OwnRow};
use bench::block::LinkKind;
use bench::block::floor::{Datagrams, echo_of};
use bench::net::ports::{self, Doing, PortsPlan, PortsReport};
use bench::net::{self, Crossings, NetOp, Path};
use bench::verdict::{self, Bound, Spread, Verdict};
use testbed::cleanup::Cleanup;
use testbed::machine::cores;
use testbed::pair::{PairLink, RoleCores};
use testbed::progress::Progress;
use testbed::stage::Stage;

/// Longer turns make none of these figures better; at rest, shorter ones see too little.
const SECONDS_MAX: f64 = 0.5;
const REST_SECONDS_MIN: f64 = 1.0;

/// The most processor time of an idle nic, in hundredths of a core.
const REST_PERCENT_MAX: f64 = 1.0;

/// The most time that the way from port to port may add to an echo and to a switch, in
/// microseconds.
const ADDS_US_MAX: f64 = 1.0;

/// Bytes of UDP each way, as netperf's UDP_RR has.
const PAYLOAD: u16 = 1;

/// The measurements without a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnCase {
    /// A node whose guests send nothing.
    Rest,
    /// The time that another node adds to one frame there and back.
    Adds,
}

/// The options and the helpers of a measurement.
pub(super) struct Measurer<'a> {
    pub(super) options: &'a CardsOptions,
    pub(super) cleanup: &'a Cleanup,
    pub(super) progress: &'a Progress,
}

impl OwnCase {
    pub(super) const ALL: [Self; 2] = [Self::Rest, Self::Adds];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rest => "ours, a nic at rest, idle adaptive",
            Self::Adds => "ours, what remote adds to a frame there and back, in clear",
        }
    }

    /// The name of its case.
    pub(super) fn case(self) -> &'static str {
        match self {
            Self::Rest => "no frame",
            Self::Adds => "1 B of UDP there and back",
        }
    }

    /// Turns of one round, for the estimate.
    pub(super) fn turns(self) -> u32 {
        match self {
            Self::Rest => 1,
            Self::Adds => 7,
        }
    }

    /// Measures it.
    pub(super) fn measure(self, measurer: &Measurer<'_>) -> Result<OwnOutcome> {
        let measured = match self {
            // No frame goes from core to core, so that the cores' distance does not matter.
            Self::Rest => measurer.rest().map(|rows| (rows, None)),
            Self::Adds => measurer.adds(),
        };
        let (rows, cache_line_rtt_ns) = measured.with_context(|| self.name())?;
        Ok(OwnOutcome { contest: self.name(), rows, cache_line_rtt_ns })
    }
}

/// One round of the time that another node adds, in microseconds: medians, of both links in turn.
#[derive(Clone, Debug)]
struct NodeTimeRound {
    local: f64,
    shm: LinkTimes,
    udp: LinkTimes,
    /// Guest to guest by the whole path, and the same on one node.
    whole: f64,
    whole_local: f64,
    trips_ns: Vec<u64>,
}

/// The time from port to port over a link, and of a bare echo of equal datagrams over the same
/// link.
#[derive(Clone, Copy, Debug)]
struct LinkTimes {
    ports: f64,
    echo: f64,
}

impl LinkTimes {
    fn adds(self, local: f64) -> f64 {
        self.ports - self.echo - local
    }
}

impl Measurer<'_> {
    fn seconds(&self) -> f64 {
        self.options.plan.seconds.min(SECONDS_MAX)
    }

    fn rest(&self) -> Result<Vec<OwnRow>> {
        let program = self.options.plan.program.clone();
        let asked = net::NetOptions {
            idle: Idle::Adaptive,
            seconds: self.options.plan.seconds.max(REST_SECONDS_MIN),
            ..net::NetOptions::new(program)
        };
        let rounds = 1..=self.options.plan.rounds;
        let shares = rounds.map(|round| {
            self.progress.doing(format!("{}: round {round}", OwnCase::Rest.name()));
            net::measure_rest(&asked, self.cleanup)
        });
        Ok(vec![rest_row(&shares.collect::<Result<Vec<_>>>()?)])
    }

    fn adds(&self) -> Result<(Vec<OwnRow>, Option<Spread>)> {
        let mut rounds = Vec::new();
        while verdict::wants_more(
            self.options.plan.rounds,
            rounds.len(),
            of_one_level(&rounds).len(),
        ) {
            self.progress.doing(format!("{}: round {}", OwnCase::Adds.name(), rounds.len() + 1));
            rounds.push(self.round()?);
        }
        let counted = of_one_level(&rounds);
        let is_of = |at: &usize| counted.is_empty() || counted.contains(at);
        let trips = (0..rounds.len()).filter(is_of).flat_map(|at| rounds[at].trips_ns.clone());
        Ok((adds_rows(&rounds), verdict::of_trips(&trips.collect::<Vec<_>>())))
    }

    fn round(&self) -> Result<NodeTimeRound> {
        let mut trips = Vec::new();
        let mut note = |report: &PortsReport| {
            trips.extend(report.trips_ns.into_iter().flatten());
            report.outcome.quantile_us(0.5)
        };
        let local = note(&ports::measure_local(&self.ports(LinkKind::Shm))?);
        let mut way = |link| -> Result<LinkTimes> {
            let report = ports::measure(&self.ports(link), self.cleanup)?;
            Ok(LinkTimes { ports: note(&report), echo: self.echo(link, report.datagram_bytes)? })
        };
        let (shm, udp) = (way(LinkKind::Shm)?, way(LinkKind::Udp)?);
        let whole = |path: Path| -> Result<f64> {
            let report = net::measure(&self.whole(path), self.cleanup, &Progress::silent())?;
            trips.extend(report.cache_line_rtts_ns.into_iter().flatten());
            Ok(report.latency_us.context("a frame that bounces takes some time")?.p50)
        };
        let (mut whole, both) = (whole, [Path::Remote, Path::Local]);
        let [whole, whole_local] = both.map(&mut whole);
        let (whole, whole_local) = (whole?, whole_local?);
        Ok(NodeTimeRound { local, shm, udp, whole, whole_local, trips_ns: trips })
    }

    fn ports(&self, link: LinkKind) -> PortsPlan {
        PortsPlan {
            program: self.options.plan.program.clone(),
            doing: Doing::Bounce { payload: usize::from(PAYLOAD) },
            link,
            loopback: true,
            seconds: self.seconds(),
        }
    }

    /// The time of an echo of datagrams as long as those that crossed.
    fn echo(&self, link: LinkKind, [ask, answer]: [usize; 2]) -> Result<f64> {
        let program = self.options.plan.program.clone();
        let stage = Stage::new("echo", program, false, self.cleanup.clone())?;
        let seats = RoleCores::new(&cores(), 0, 1, 1);
        let length = Duration::from_secs_f64(self.seconds());
        echo_of(link, Datagrams { ask, answer, body: 0 }, length, &seats, &stage)
    }

    /// Guest to guest, by netperf's UDP_RR. Both paths are adaptive, so that a ratio of the two is
    /// about the path. With an IOhost there are more threads than cores, so that sidecores that
    /// spin would wait for each other's cores. A local sidecore would not.
    fn whole(&self, path: Path) -> net::NetOptions {
        let is_remote = path == Path::Remote;
        net::NetOptions {
            op: NetOp::Bounce,
            payload: Some([PAYLOAD; 2]),
            crossings: if is_remote { Crossings::One } else { Crossings::Two },
            meeting: PairLink { encrypt: false, ..PairLink::default() },
            idle: Idle::Adaptive,
            seconds: self.seconds(),
            path,
            ..net::NetOptions::new(self.options.plan.program.clone())
        }
    }
}

fn rest_row(shares: &[f64]) -> OwnRow {
    let (figure, bound) = ("% of a core", Bound::AtMost(REST_PERCENT_MAX));
    let percent: Vec<_> = shares.iter().map(|share| 100.0 * share).collect();
    let verdict = Verdict::of(REST_GOAL, figure, bound, &percent, false);
    let (case, rounds) = (OwnCase::Rest.case().to_owned(), shares.len());
    OwnRow { case, figure, value: verdict.value, rounds, tried: rounds, verdict: Some(verdict) }
}

fn of_one_level(rounds: &[NodeTimeRound]) -> Vec<usize> {
    verdict::of_one_level(&rounds.iter().map(|round| round.trips_ns.clone()).collect::<Vec<_>>())
}

fn adds_rows(rounds: &[NodeTimeRound]) -> Vec<OwnRow> {
    let counted = of_one_level(rounds);
    let of = |number: &dyn Fn(&NodeTimeRound) -> f64| -> Vec<f64> {
        match &counted[..] {
            [] => rounds.iter().map(number).collect(),
            counted => counted.iter().map(|&at| number(&rounds[at])).collect(),
        }
    };
    let row = |figure, number: &dyn Fn(&NodeTimeRound) -> f64| OwnRow {
        case: OwnCase::Adds.case().to_owned(),
        figure,
        value: Spread::of(of(number)),
        rounds: counted.len(),
        tried: rounds.len(),
        verdict: None,
    };
    let adds = |round: &NodeTimeRound| round.shm.adds(round.local);
    let bound = Bound::AtMost(ADDS_US_MAX);
    let verdict = Verdict::of(ADDS_GOAL, "adds, us", bound, &of(&adds), counted.is_empty());
    let judged = OwnRow { verdict: Some(verdict), ..row("remote adds, us, shm", &adds) };
    vec![
        row("two ports of one bridge, us", &|round| round.local),
        row("bare echo, us, shm", &|round| round.shm.echo),
        row("port to port, us, shm", &|round| round.shm.ports),
        judged,
        row("bare echo, us, UDP", &|round| round.udp.echo),
        row("port to port, us, UDP", &|round| round.udp.ports),
        row("remote adds, us, UDP", &|round| round.udp.adds(round.local)),
        row("guest to guest, us, UDP, adaptive", &|round| round.whole),
        row("guest to guest, us, local, adaptive", &|round| round.whole_local),
        row("remote / local (the paper: 1.18)", &|round| round.whole / round.whole_local),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::verdict::GoalState;

    fn round(ports: f64, trips_ns: [u64; 2]) -> NodeTimeRound {
        let way = |ports| LinkTimes { ports, echo: 2.0 };
        NodeTimeRound {
            local: 0.25,
            shm: way(ports),
            udp: way(20.0),
            whole: 60.0,
            whole_local: 1.0,
            trips_ns: trips_ns.to_vec(),
        }
    }

    #[test]
    fn the_remote_overhead_is_the_time_beyond_an_echo_and_a_switch() {
        let mut rounds = vec![round(3.0, [50, 52]); 3];
        rounds.push(round(9.0, [50, 480]));
        let rows = adds_rows(&rounds);
        let judged: Vec<_> = rows.iter().filter_map(|row| row.verdict.as_ref()).collect();
        let [adds] = &judged[..] else { panic!("{rows:?}") };
        assert_eq!((adds.goal, adds.standing), (ADDS_GOAL, GoalState::Holds));
        assert_eq!((adds.value.max, rows[3].rounds, rows[3].tried), (0.75, 3, 4));
        assert_eq!(rows[9].value.median, 60.0);
        let slow = adds_rows(&vec![round(4.0, [50, 52]); 3]);
        assert_eq!(slow[3].verdict.as_ref().unwrap().standing, GoalState::DoesNotHold);
    }

    #[test]
    fn a_nic_at_rest_is_judged_by_its_share_of_a_core() {
        let standing = |shares: &[f64]| rest_row(shares).verdict.unwrap().standing;
        assert_eq!(standing(&[0.001, 0.002, 0.009]), GoalState::Holds);
        assert_eq!(standing(&[0.02; 3]), GoalState::DoesNotHold);
    }
}
