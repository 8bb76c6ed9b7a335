//! `vrio bench all` runs every benchmark for a short while. All of them are one run, which grows by
//! each report as soon as the report is there. At the end the run becomes a page.
//!
//! Each benchmark is a command of vrio, run as a user would run it. A command that fails, or finds
//! a tool missing, costs neither the others' results nor its own finished ones. An interruption
//! ends the running command, which cleans up after itself, and the page shows the finished results.
//! A second interruption ends everything at once.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::pace::{self, Pace};
use clap::ValueEnum;
use parking_lot::{Mutex, MutexGuard};
use report::import;
use report::merge::merge;
use report::store::{Loaded, RunStore};
use results::Run;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use testbed::progress::Progress;
use tokio::signal::unix::{SignalKind, signal};

use super::tools;
use crate::failure::CommandFailure;

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench all                                       takes a quarter of an hour, writes a page
  vrio bench all --seconds 0.2 -o results              shorter, saved in ./results
  vrio bench all --part block --part models
  vrio bench all && vrio report --with-published -o beside-others
Each result is saved at once and stays for `vrio report` when a later benchmark fails. ^C ends the
running benchmark and writes the page of the finished ones; a second ^C ends at once, and may leave
network namespaces called vrio-*.";

/// How long a command may print nothing: its expected time at the pace so far, times the first
/// number, and the second one more. Each case of a command has a limit of its own, so a command
/// that prints will also end.
const PATIENCE: f64 = 5.0;
const PATIENCE_MIN: Duration = Duration::from_secs(120);

/// The page's directory, beside the runs.
const PAGE: &str = "page";

/// How long a command may take to end after it was asked to. After that it is killed.
const ENDING: Duration = Duration::from_secs(20);

/// How often a running command is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often the remaining time is printed.
const SAY_AGAIN: Duration = Duration::from_secs(1);

/// The most bytes of a command's output that are read: more than any report has.
const OUTPUT_MAX: u64 = 64 << 20;

/// The most reports and lines of a command that wait to be handled. With more of them the command
/// waits.
const WAITING_MAX: usize = 64;

/// The exit status that a shell expects of a program that ^C has ended.
const INTERRUPTED_STATUS: i32 = 130;

#[derive(Debug, clap::Args)]
pub(crate) struct AllArgs {
    /// Seconds of each measurement; most benchmarks have several.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The directory for the runs and for the page, page/index.html; default: the user's results.
    #[arg(short = 'o', long = "save", visible_alias = "output", value_name = "DIRECTORY")]
    save: Option<PathBuf>,
    /// Run only this part; may be given several times.
    #[arg(long = "part", value_enum)]
    parts: Vec<BenchPart>,
    /// Run few and short cases, as a trial.
    #[arg(long)]
    quick: bool,
    /// Open the page in the desktop's browser at the end.
    #[arg(long)]
    open: bool,
}

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchPart {
    Block,
    Net,
    Models,
    Failover,
    Connections,
    Mpi,
}

impl BenchPart {
    const ALL: [Self; 6] =
        [Self::Block, Self::Net, Self::Models, Self::Failover, Self::Connections, Self::Mpi];

    fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Net => "net",
            Self::Models => "models",
            Self::Failover => "failover",
            Self::Connections => "connections",
            Self::Mpi => "mpi",
        }
    }
}

/// A command that measures.
#[derive(Clone, Debug)]
struct BenchStep {
    part: BenchPart,
    /// The words after `vrio bench`, without `--json`.
    words: Vec<String>,
    /// About how long it takes.
    takes: Duration,
}

/// The seconds of a measurement beyond the measured ones: to start, to fill a disk, to warm up and
/// to end.
const START_S: f64 = 2.0;

impl AllArgs {
    fn check(&self) -> Result<()> {
        if !(0.01..=60.0).contains(&self.seconds) {
            bail!("--seconds {}: it must be from 0.01 to 60", self.seconds);
        }
        Ok(())
    }

    fn steps(&self) -> Vec<BenchStep> {
        let all = BenchPart::ALL.into_iter();
        let parts = all.filter(|part| self.parts.is_empty() || self.parts.contains(part));
        parts.flat_map(|part| self.steps_of(part)).collect()
    }

    fn steps_of(&self, part: BenchPart) -> Vec<BenchStep> {
        let (seconds, quick) = (self.seconds, self.quick);
        let step = |words: &str, takes_s: f64| BenchStep {
            part,
            words: words.split(' ').map(str::to_owned).collect(),
            takes: Duration::from_secs_f64(takes_s),
        };
        let one = START_S + seconds;
        match part {
            BenchPart::Block => {
                let paths: &[_] = if quick { &["local"] } else { &["local", "remote", "direct"] };
                let depths: &[_] = if quick { &[1, 32] } else { &[1, 8, 32] };
                let words = |path: &&str, depth: &i32| {
                    let volume = "--volume memory --encrypt off";
                    let volume = if *path == "local" { "--volume memory" } else { volume };
                    format!("block --path {path} {volume} --depth {depth} --seconds {seconds}")
                };
                let of = |path| depths.iter().map(move |depth| step(&words(path, depth), one));
                paths.iter().flat_map(of).collect()
            }
            BenchPart::Net => {
                let paths: &[_] = if quick { &["local"] } else { &["local", "remote"] };
                let sizes: &[_] = if quick { &["64"] } else { &["64", "1500", "64k"] };
                let words = |path: &&str, size: &&str| {
                    format!("net --path {path} --size {size} --seconds {seconds}")
                };
                let of = |path| sizes.iter().map(move |size| step(&words(path, size), one));
                paths.iter().flat_map(of).collect()
            }
            BenchPart::Models => {
                let (more, turns) = match quick {
                    true => (
                        " --guests 1 --encrypt off --stage off --volume null --rounds 1 \
                         --model elvis --model unpolled",
                        3.0,
                    ),
                    false => (" --rounds 3", 87.0),
                };
                let words = format!("models --part-by-part --seconds {seconds}{more}");
                vec![step(&words, turns * (START_S + 2.0 * seconds))]
            }
            // Each node needs some time to come back.
            BenchPart::Failover => {
                let line_s = (4.0 * seconds).clamp(2.0, 60.0);
                vec![step(&format!("failover --seconds {line_s}"), START_S + 2.0 * line_s)]
            }
            BenchPart::Connections => {
                let more = if quick { " --hosts 4 --processes 4 --sessions 10" } else { "" };
                vec![step(&format!("connections{more}"), 10.0)]
            }
            // Its cases are many, and each has a fifth of the time, as it has without `vrio bench
            // all`.
            BenchPart::Mpi => {
                let words = format!("mpi --quick --seconds {}", (seconds / 5.0).max(0.01));
                let takes_s = 30.0 + 180.0 * seconds;
                let mut steps = vec![step(&words, takes_s)];
                if !quick {
                    steps.push(step(&format!("{words} --hosts 2"), takes_s));
                }
                steps
            }
        }
    }
}

/// Whether an interruption has come, and the process that must end then.
#[derive(Debug, Default)]
struct Interruption {
    came: AtomicBool,
    /// The process that measures. It has not been waited for, so its number is not used again.
    child: Mutex<Option<Pid>>,
}

impl Interruption {
    /// Waits for ^C, a hang-up and SIGTERM on a thread of its own.
    fn listen() -> Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let signals = kinds.into_iter().map(signal).collect::<std::io::Result<Vec<_>>>();
        let mut signals = signals.context("waiting for signals")?;
        drop(entered);
        let this = Arc::new(Self::default());
        let told = Arc::clone(&this);
        let wait = move || loop {
            runtime.block_on(std::future::poll_fn(|context| {
                let came = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
                if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }));
            if told.came.swap(true, Ordering::AcqRel) {
                told.kill_all();
                std::process::exit(INTERRUPTED_STATUS);
            }
            told.end_child();
        };
        thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        Ok(this)
    }

    fn came(&self) -> bool {
        self.came.load(Ordering::Acquire)
    }

    fn child(&self) -> MutexGuard<'_, Option<Pid>> {
        self.child.lock()
    }

    /// Asks the measuring process to end, as a terminal's ^C would, so that it cleans up.
    fn end_child(&self) {
        // The process may have ended by itself.
        let _ = self.child().map(|child| kill_process(child, Signal::INT));
    }

    /// Ends the measuring process and all processes that it has started, at once.
    fn kill_all(&self) {
        let _ = self.child().map(|child| kill_process_group(child, Signal::KILL));
    }

    /// Starts the process that measures from now on. An interruption at this very moment waits
    /// until the process is noted here. So a second interruption leaves no process behind.
    fn start(&self, command: &mut Command) -> Result<Child> {
        let mut measuring = self.child();
        let child = command.spawn().context("starting vrio bench")?;
        *measuring = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        drop(measuring);
        if self.came() {
            self.end_child();
        }
        Ok(child)
    }

    /// Whether the measuring process has ended, and successfully. The processes that it left behind
    /// are ended too, since they would keep its output open.
    fn ended(&self, child: &mut Child) -> Result<Option<bool>> {
        let mut pid = self.child();
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = pid.map(|pid| waitid(WaitId::Pid(pid), look)).transpose()?.flatten();
        if ended.is_none() {
            return Ok(None);
        }
        // The process has not been waited for yet: the number is still its own.
        let _ = pid.take().map(|pid| kill_process_group(pid, Signal::KILL));
        Ok(Some(child.wait()?.success()))
    }
}

/// Measures all parts, and gives the path of the page.
pub(super) fn all(args: &AllArgs) -> Result<(), CommandFailure> {
    args.check().map_err(CommandFailure::configuration)?;
    let store = match &args.save {
        Some(folder) => {
            RunStore::at(&std::path::absolute(folder).map_err(CommandFailure::running)?)
        }
        None => RunStore::usual(|name| std::env::var_os(name).map(PathBuf::from))
            .map_err(CommandFailure::configuration)?,
    };
    let measured = measure(args, &store).map_err(CommandFailure::running)?;
    let Measured { text, page, interrupted } = measured;
    crate::output::print(&text)?;
    if let Some(page) = page.filter(|_| args.open) {
        crate::report::open_page(&page).map_err(CommandFailure::running)?;
    }
    if interrupted {
        std::process::exit(INTERRUPTED_STATUS);
    }
    Ok(())
}

/// The outcome of a run, which is printed at its end.
struct Measured {
    text: String,
    page: Option<PathBuf>,
    interrupted: bool,
}

fn measure(args: &AllArgs, store: &RunStore) -> Result<Measured> {
    let steps = args.steps();
    let takes: Duration = steps.iter().map(|step| step.takes).sum();
    let mut work = Work {
        interruption: Interruption::listen()?,
        progress: Progress::new(),
        pace: Pace::new(takes),
        kept: KeptRun::new(store),
        count: steps.len(),
        begun: 0,
    };
    let (count, takes, folder) = (steps.len(), pace::announced(takes), store.folder().display());
    work.progress.done(format!("{count} measurements, {takes}; each is saved in {folder} at once"));
    for part in steps.chunk_by(|one, two| one.part == two.part) {
        work.part(part);
        if work.interruption.came() {
            break;
        }
    }
    work.progress.end();
    let interrupted = work.interruption.came();
    let KeptRun { run, missing, place, .. } = work.kept;
    if run.is_none() {
        let why = if missing.is_empty() { "" } else { ", for the reasons above" };
        bail!("nothing was measured{why}");
    }
    let page = page_of(&place, &store.folder().join(PAGE));
    let mut text: String = missing.iter().map(|why| format!("not measured: {why}\n")).collect();
    if interrupted {
        let place = place.display();
        text.push_str(&format!("interrupted: the finished parts are in {place} and on the page\n"));
    }
    match &page {
        Ok(page) => text.push_str(&format!("{}\n", page.display())),
        Err(why) => text.push_str(&format!("no page of the run in {folder}: {why:#}\n")),
    }
    Ok(Measured { text, page: page.ok(), interrupted })
}

/// The steps of a run, and the state that they share.
struct Work<'a> {
    interruption: Arc<Interruption>,
    progress: Progress,
    pace: Pace,
    kept: KeptRun<'a>,
    /// The numbers of all steps, and of those that have begun.
    count: usize,
    begun: usize,
}

impl Work<'_> {
    /// Measures a part, unless an interruption comes, and notes the results that are missing.
    fn part(&mut self, part: &[BenchStep]) {
        let (name, before, mut done) = (part[0].part.name(), self.kept.count, 0);
        for step in part {
            if self.interruption.came() {
                break;
            }
            match self.step(step) {
                Ok(()) => done += 1,
                Err(_) if self.interruption.came() => {}
                Err(why) => self.missing(format!("{}: {why:#}", step.words.join(" "))),
            }
        }
        let (all, interrupted) = (part.len(), self.interruption.came());
        if interrupted && done < all {
            let why = format!("{name}: interrupted after {done} of {all}");
            self.kept.missing.push(why);
        }
        if let Err(why) = self.kept.note() {
            self.progress.done(format!("{name}: the missing parts are not noted: {why:#}"));
        }
        if self.kept.count > before {
            let is_over = self.begun == self.count || interrupted;
            let left = pace::minutes(self.pace.left(Duration::ZERO, Duration::ZERO));
            let left = if is_over { String::new() } else { format!("; {left} left") };
            self.progress.done(format!("{name}: saved in {}{left}", self.kept.place.display()));
        }
    }

    /// Runs a step, and keeps each of its reports at once.
    fn step(&mut self, step: &BenchStep) -> Result<()> {
        self.begun += 1;
        let Self { progress, pace, kept, count, begun, .. } = self;
        let words = step.words.join(" ");
        let say = |ran| {
            let left = pace::minutes(pace.left(step.takes, ran));
            progress.doing(format!("{begun} of {count}, {left} left: vrio bench {words}"));
        };
        let keep = |report: String| {
            if let Err(why) = kept.add(step, &report) {
                let why = format!("{}: measured, but not saved: {why:#}", step.part.name());
                progress.done(&why);
                kept.missing.push(why);
            }
        };
        let rate = pace.rate(Duration::ZERO, Duration::ZERO);
        let patience = step.takes.mul_f64(PATIENCE * rate) + PATIENCE_MIN;
        let began = Instant::now();
        let running = RunningCommand::start(step, patience, &self.interruption);
        let ended = running.and_then(|mut running| running.follow(say, keep));
        match ended {
            Ok(()) => self.pace.ended(step.takes, began.elapsed()),
            Err(_) => self.pace.failed(step.takes),
        }
        ended
    }

    fn missing(&mut self, why: String) {
        self.progress.done(format!("not measured: {why}"));
        self.kept.missing.push(why);
    }
}

/// Has `vrio report` make a page of a run, and gives the page's path.
fn page_of(run: &Path, into: &Path) -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg("report").arg(run).arg("--output").arg(into).stdin(Stdio::null());
    // `vrio report` measures nothing, so a terminal's ^C must not end it.
    let output = command.process_group(0).output().context("starting vrio report")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.lines().next().unwrap_or("vrio report failed"));
    }
    Ok(into.join("index.html"))
}

/// The run that grows by each report. A report is on the disk at once, so no later failure loses
/// it.
struct KeptRun<'a> {
    store: &'a RunStore,
    run: Option<Loaded>,
    /// Its directory.
    place: PathBuf,
    /// Reports that are in it.
    count: usize,
    /// The results that are missing from it, each with the reason.
    missing: Vec<String>,
    /// The run's description, made at its begin.
    began: Run,
}

impl<'a> KeptRun<'a> {
    fn new(store: &'a RunStore) -> Self {
        let mut began = Run::now("all", "vrio bench all");
        began.command = std::env::args().collect();
        began.tools = tools::versions();
        Self { store, run: None, place: PathBuf::new(), count: 0, missing: Vec::new(), began }
    }

    /// Adds a report of a step.
    fn add(&mut self, step: &BenchStep, report: &str) -> Result<()> {
        let part = step.part.name();
        let name = match step.words.iter().position(|word| word == "--path") {
            Some(at) => format!("{part}, {}", step.words[at + 1]),
            // A contest has a name of its own.
            None if step.part == BenchPart::Mpi => String::new(),
            None => part.to_owned(),
        };
        let Loaded { run: Run { machine, .. }, measurements } =
            import::import_report(report, &name)?;
        match &mut self.run {
            Some(loaded) => self.store.add(loaded, measurements)?,
            None => {
                let run = Run { machine, ..self.began.clone() };
                let mut loaded = Loaded { run, measurements: merge(measurements) };
                self.place = self.store.save(&mut loaded)?;
                self.run = Some(loaded);
            }
        }
        self.count += 1;
        Ok(())
    }

    /// Notes what is missing so far.
    fn note(&mut self) -> Result<()> {
        let Some(loaded) = &mut self.run else { return Ok(()) };
        loaded.run.notes = self.missing.iter().map(|why| format!("not measured: {why}")).collect();
        Ok(self.store.add(loaded, Vec::new())?)
    }
}

/// An output of a running command.
enum CommandOutput {
    /// On standard output.
    Report(String),
    /// On standard error.
    Line(String),
}

/// A command that measures.
struct RunningCommand<'a> {
    interruption: &'a Interruption,
    child: Child,
    said: Receiver<CommandOutput>,
    /// How long it may print nothing.
    patience: Duration,
    /// The last line of its errors.
    last: String,
}

impl<'a> RunningCommand<'a> {
    fn start(step: &BenchStep, patience: Duration, interruption: &'a Interruption) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.arg("bench").args(&step.words).arg("--json");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The command has a process group of its own: a terminal's ^C reaches only us, and we pass
        // it on.
        let mut child = interruption.start(command.process_group(0))?;
        let stdout = child.stdout.take().expect("it was asked for");
        let stderr = child.stderr.take().expect("it was asked for");
        let (say, said) = mpsc::sync_channel(WAITING_MAX);
        let say_too = say.clone();
        thread::spawn(move || send_reports(stdout, &say));
        thread::spawn(move || send_lines(stderr, &say_too));
        Ok(Self { interruption, child, said, patience, last: String::new() })
    }

    /// Calls `keep` with each report as it comes, until the command has ended.
    fn follow(
        &mut self,
        mut say: impl FnMut(Duration),
        mut keep: impl FnMut(String),
    ) -> Result<()> {
        let began = Instant::now();
        let (mut by, mut say_at) = (began + self.patience, began);
        let mut asked = false;
        loop {
            if Instant::now() >= say_at {
                say(began.elapsed());
                say_at = Instant::now() + SAY_AGAIN;
            }
            match self.said.recv_timeout(LOOK_AGAIN) {
                Ok(said) => {
                    self.take(said, &mut keep);
                    by = if asked { by } else { Instant::now() + self.patience };
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Both outputs of the command are closed, so it will end.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(LOOK_AGAIN),
            }
            if let Some(well) = self.interruption.ended(&mut self.child)? {
                // The command's whole group has ended, so both of its outputs end.
                while let Ok(said) = self.said.recv() {
                    self.take(said, &mut keep);
                }
                return self.outcome(well, asked);
            }
            if Instant::now() > by {
                if asked {
                    self.interruption.kill_all();
                } else {
                    self.interruption.end_child();
                    (asked, by) = (true, Instant::now() + ENDING);
                }
            }
        }
    }

    fn take(&mut self, said: CommandOutput, keep: &mut impl FnMut(String)) {
        match said {
            CommandOutput::Report(report) => keep(report),
            CommandOutput::Line(line) => self.last = line,
        }
    }

    fn outcome(&self, well: bool, asked: bool) -> Result<()> {
        if asked && !self.interruption.came() {
            bail!("it printed nothing for {:?} and was ended", self.patience);
        }
        if well {
            return Ok(());
        }
        let last = &self.last;
        match last.strip_prefix("vrio: ").or_else(|| last.strip_prefix("error: ")) {
            Some(why) => bail!("{why}"),
            None => bail!("it was killed, or stopped early; its last line: {last:?}"),
        }
    }
}

/// Sends the reports of a command until its output ends. A report that is cut off is left out.
fn send_reports(stdout: impl Read, say: &SyncSender<CommandOutput>) {
    let read = BufReader::new(stdout.take(OUTPUT_MAX));
    let values = serde_json::Deserializer::from_reader(read).into_iter::<serde_json::Value>();
    for value in values.map_while(Result::ok) {
        if say.send(CommandOutput::Report(value.to_string())).is_err() {
            return;
        }
    }
}

/// Sends the lines that a command prints on standard error.
fn send_lines(stderr: impl Read, say: &SyncSender<CommandOutput>) {
    let lines = BufReader::new(stderr).lines().map_while(std::io::Result::ok);
    for line in lines.filter(|line| !line.trim().is_empty()) {
        if say.send(CommandOutput::Line(line)).is_err() {
            return;
        }
    }
}
