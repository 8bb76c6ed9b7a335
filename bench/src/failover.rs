//! `vrio bench failover`: the pauses that a guest notices when nodes are killed, or replaced while
//! they run.
//!
//! The stand-in driver works on a disk that another node serves, and checks all data that it reads.
//! Meanwhile nodes go and come. The time line has the number of requests that were completed in
//! each hundredth of a second. No request may fail and no data may be lost: else there is an error
//! instead of a report.

mod report;
mod results;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;
use sidecore::Idle;

use random::Random;
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::Machine;
use testbed::nodes::Node;
use testbed::pair::{LinkKind, Pair, PairLink, RoleCores};
use testbed::progress::Progress;
use testbed::stage::Stage;
use testbed::stand_in::StandIn;
use workload::Mix;

pub use report::{FailoverReport, Interrupted};

/// A slice of the time line.
const SLICE: Duration = Duration::from_millis(10);

/// Slices of a time line: five minutes, more than even slow nodes take to start.
const SLICES_MAX: usize = 30_000;

/// Work at the end that shows that the guest goes on, in requests.
const WORK_AFTER: u64 = 100;

const QUEUES: u16 = 2;

/// Blocks of the checker's model: 16 MiB.
const BLOCKS: u64 = 4096;

/// The volume's file, and its size.
const FILE: &str = "guest.img";
const SIZE_MIB: u64 = 64;

const MIX: Mix = Mix::OF_ALL;

/// An event in the life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailoverEvent {
    /// The IOhost gets SIGKILL, and is started again later.
    Kill,
    /// Another process goes on in the IOhost's place (`vrio node --take-over`).
    HandOver,
    /// The same of the VMhost.
    HandOverVmhost,
}

impl FailoverEvent {
    /// All events, in the order in which they happen by default.
    pub const ALL: [Self; 3] = [Self::Kill, Self::HandOver, Self::HandOverVmhost];

    /// The names of its beginning and its end on the time line.
    fn words(self) -> [&'static str; 2] {
        match self {
            Self::Kill => ["io1 killed", "io1 runs again"],
            Self::HandOver => ["io1 hands over", "another io1 goes on"],
            Self::HandOverVmhost => ["vm1 hands over", "another vm1 goes on"],
        }
    }
}

/// The options of `vrio bench failover`.
#[derive(Clone, Debug, Serialize)]
pub struct FailoverOptions {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// The length of the time line, in seconds; events happen at equal distances in it.
    pub seconds: f64,
    /// The events, in this order.
    pub events: Vec<FailoverEvent>,
    /// The time for which a killed node is away before it starts again, in seconds.
    pub away_seconds: f64,
    /// Whether sessions are sealed.
    pub encrypt: bool,
}

impl FailoverOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and the values that would.
    pub fn check(&self) -> Result<()> {
        let Self { seconds, away_seconds, .. } = *self;
        ensure!((0.1..=60.0).contains(&seconds), "--seconds {seconds}: from 0.1 to a minute's 60");
        ensure!(
            (0.0..=5.0).contains(&away_seconds),
            "--away {away_seconds}: up to 5 seconds; the guest's client gives its host up after 10"
        );
        ensure!(!self.events.is_empty(), "no event is named: name one with --event");
        ensure!(self.events.len() <= EVENTS_MAX, "more than {EVENTS_MAX} events: a few tell all");
        Ok(())
    }
}

/// Events of one time line: each has a name on it.
const EVENTS_MAX: usize = 12;

/// Measures. The progress goes to standard error, if that is a terminal.
///
/// # Errors
/// When a request fails, data is lost, or a node does not start.
pub fn run(options: &FailoverOptions) -> Result<FailoverReport> {
    options.check()?;
    let progress = Progress::quiet();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

fn measure(
    options: &FailoverOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<FailoverReport> {
    let machine = Machine::look();
    let meeting = PairLink { encrypt: options.encrypt, ..PairLink::default() };
    progress.doing("starting two nodes");
    let stage = &meeting.stage(options.program.clone(), cleanup, progress)?;
    let io = stage.start(&stage.plan("io1", &iohost(stage)))?;
    let mut vm = stage.start(&stage.plan("vm1", &vmhost(stage)))?;
    let file = io.plan().file(FILE);
    let socket = vm.wait_for_disk("guest")?;
    let mut random = Random::new(u64::from(std::process::id()));
    let mut guest = StandIn::connect(&socket, QUEUES, MIX, BLOCKS, &mut random)?;
    progress.doing(format!("a disk is used for {} s, nodes go and come", options.seconds));
    let Lived { line, interrupted, nodes } = lived(options, stage, &mut guest, [io, vm])?;
    progress.doing("reading everything back");
    guest.read_all()?;
    guest.compare_image(&file)?;
    let counts = guest.workload.counts;
    ensure!(counts.errors == 0, "{} requests failed, which none may", counts.errors);
    guest.disconnect();
    // The VMhost first: it closes its attachment at the IOhost.
    for node in nodes.into_iter().rev() {
        node.stop()?;
    }
    Ok(FailoverReport::new(options, stage.network, line, interrupted, counts, machine))
}

/// The nodes' configurations.
fn pair(stage: &Stage, seats: &RoleCores) -> [String; 2] {
    let idle = Idle::Adaptive;
    let pair = Pair { link: LinkKind::Udp, stage, seats, sidecores: 1, idle };
    [pair.iohost(), pair.vmhost()]
}

fn iohost(stage: &Stage) -> String {
    let [top, _] = pair(stage, &RoleCores::default());
    let allow = stage.keys.allow(&["vm1"]);
    format!(
        "{top}[[volume]]\nname = \"guest\"\n\
         backend = {{ file = \"{FILE}\", size = \"{SIZE_MIB}MiB\" }}\n{allow}"
    )
}

fn vmhost(stage: &Stage) -> String {
    let [_, top] = pair(stage, &RoleCores::default());
    let key = stage.keys.disk();
    format!(
        "{top}[[disk]]\nsocket = \"guest.sock\"\nqueues = {QUEUES}\nvolume = \"io1/guest\"\n{key}"
    )
}

/// Completed requests by time.
#[derive(Clone, Debug)]
struct TimeLine {
    began: Instant,
    /// Requests of each slice.
    slices: Vec<u64>,
    /// The longest time without a completion: before the first event, and since each event.
    pauses: Vec<Duration>,
    completed: u64,
    moved: Instant,
}

impl TimeLine {
    fn new(began: Instant, completed: u64, events: usize) -> Self {
        let pauses = vec![Duration::ZERO; events + 1];
        Self { began, slices: Vec::new(), pauses, completed, moved: began }
    }

    /// So much was completed by now, and so many events have begun.
    fn look(&mut self, now: Instant, completed: u64, events: usize) {
        let at = now.saturating_duration_since(self.began).as_nanos() / SLICE.as_nanos();
        let at = usize::try_from(at).unwrap_or(SLICES_MAX).min(SLICES_MAX - 1);
        if at >= self.slices.len() {
            self.slices.resize(at + 1, 0);
        }
        let news = completed - self.completed;
        if news > 0 {
            self.slices[at] += news;
            self.completed = completed;
            let pause = now.saturating_duration_since(self.moved);
            let of = &mut self.pauses[events];
            *of = pause.max(*of);
            self.moved = now;
        }
    }
}

/// The progress of the events, which the thread of the nodes tells the thread of the guest.
#[derive(Default)]
struct EventProgress {
    /// Events that have begun.
    begun: AtomicUsize,
    /// All events are over.
    over: AtomicBool,
}

/// A guest's work while nodes were killed or replaced.
struct Lived {
    line: TimeLine,
    interrupted: Vec<Interrupted>,
    /// The nodes, the IOhost first.
    nodes: [Node; 2],
}

/// The guest works while everything happens.
fn lived(
    options: &FailoverOptions,
    stage: &Stage,
    guest: &mut StandIn,
    nodes: [Node; 2],
) -> Result<Lived> {
    let said = EventProgress::default();
    // Memory is mapped and places are found before the time line begins.
    let enough = guest.workload.counts.completed + WORK_AFTER;
    guest.work(|guest| guest.workload.counts.completed >= enough)?;
    let began = Instant::now();
    let mut line = TimeLine::new(began, guest.workload.counts.completed, options.events.len());
    let until = began + Duration::from_secs_f64(options.seconds);
    thread::scope(|scope| {
        let happening = scope.spawn(|| {
            let happened = happen(options, stage, nodes, began, &said);
            said.over.store(true, Ordering::Release);
            happened
        });
        let mut enough = None;
        let worked = guest.work(|guest| {
            let (now, completed) = (Instant::now(), guest.workload.counts.completed);
            line.look(now, completed, said.begun.load(Ordering::Acquire));
            if !said.over.load(Ordering::Acquire) {
                return false;
            }
            now >= until && completed >= *enough.get_or_insert(completed + WORK_AFTER)
        });
        let happened = happening.join().map_err(|_| anyhow!("a node's keeper panicked"))?;
        let (interrupted, nodes) = happened?;
        worked.context("the guest's work")?;
        if line.slices.len() == SLICES_MAX {
            bail!("it took more than {:?}: nodes were slow to start", SLICE * SLICES_MAX as u32);
        }
        let pauses = line.pauses.iter().skip(1);
        let interrupted =
            interrupted.into_iter().zip(pauses).map(|(it, pause)| it.with_pause(*pause));
        let interrupted = interrupted.collect();
        Ok(Lived { line, interrupted, nodes })
    })
}

/// Makes each event happen in its turn.
fn happen(
    options: &FailoverOptions,
    stage: &Stage,
    nodes: [Node; 2],
    began: Instant,
    said: &EventProgress,
) -> Result<(Vec<Interrupted>, [Node; 2])> {
    let [mut io, mut vm] = nodes;
    let each = options.seconds / (options.events.len() + 1) as f64;
    let mut interrupted = Vec::new();
    for (index, event) in options.events.iter().enumerate() {
        let at = began + Duration::from_secs_f64(each * (index + 1) as f64);
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let begins = began.elapsed();
        said.begun.store(index + 1, Ordering::Release);
        match event {
            FailoverEvent::Kill => {
                let plan = io.kill()?;
                thread::sleep(Duration::from_secs_f64(options.away_seconds));
                io = stage.start(&plan)?;
            }
            FailoverEvent::HandOver => io = io.hand_over()?,
            FailoverEvent::HandOverVmhost => vm = vm.hand_over()?,
        }
        interrupted.push(Interrupted::new(*event, begins, began.elapsed()));
    }
    Ok((interrupted, [io, vm]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_line_knows_when_nothing_was_completed_and_since_what() {
        let began = Instant::now();
        let mut line = TimeLine::new(began, 100, 1);
        let at = |ms| began + Duration::from_millis(ms);
        line.look(at(1), 110, 0);
        line.look(at(5), 110, 0);
        line.look(at(15), 130, 0);
        // An event begins. One request that was under way still completes, then there is a pause.
        line.look(at(16), 131, 1);
        line.look(at(45), 131, 1);
        line.look(at(66), 140, 1);
        line.look(at(70), 141, 1);
        assert_eq!(line.slices, [10, 21, 0, 0, 0, 0, 9, 1]);
        assert_eq!(line.pauses, [14, 50].map(Duration::from_millis));
    }

    #[test]
    fn invalid_options_are_refused_by_name() {
        let usual = FailoverOptions {
            program: PathBuf::from("vrio"),
            seconds: 4.0,
            events: FailoverEvent::ALL.to_vec(),
            away_seconds: 0.5,
            encrypt: true,
        };
        usual.check().unwrap();
        let refused = |wrong: FailoverOptions, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(FailoverOptions { seconds: 0.0, ..usual.clone() }, "--seconds");
        refused(FailoverOptions { away_seconds: 20.0, ..usual.clone() }, "--away");
        refused(FailoverOptions { events: Vec::new(), ..usual.clone() }, "event");
        refused(FailoverOptions { events: vec![FailoverEvent::Kill; 13], ..usual }, "events");
    }
}
