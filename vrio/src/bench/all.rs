//! `vrio bench all`: every benchmark for a short while, what each gave saved as soon as it is
//! there, and at the end a page of all of it.
//!
//! Each is a command of ours, run as a user would run it: one that fails, or finds a tool missing,
//! takes nothing from the others. An interruption ends the one that runs, which cleans up behind
//! itself, and what was finished is shown; a second one ends at once.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bench::progress::Progress;
use clap::ValueEnum;
use report::import;
use report::result::{Machine, Run};
use report::store::{Loaded, Store};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench all                                       a quarter of an hour, and a page at the end
  vrio bench all --seconds 0.2 -o results              shorter, saved in ./results
  vrio bench all --part block --part models
^C ends what runs, keeps what was finished and writes the page of that; a second ^C ends at once.";

/// How long one command may take beyond what is expected, as a multiple of it, and at least.
const PATIENCE: u32 = 5;
const PATIENCE_MIN: Duration = Duration::from_secs(120);

/// The page's directory, beside the runs.
const PAGE: &str = "page";

/// How long one may take to end that was asked to, until it is killed.
const ENDING: Duration = Duration::from_secs(20);

/// How often a running command is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Bytes of what a command prints: more than any report has.
const OUTPUT_MAX: u64 = 64 << 20;

/// What a shell expects of a program that ^C has ended.
const INTERRUPTED_STATUS: i32 = 130;

#[derive(Debug, clap::Args)]
pub(crate) struct AllArgs {
    /// How long each measurement takes; most have several.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Where runs are saved (the user's own results unless said), and the page, page/index.html.
    #[arg(short = 'o', long = "save", value_name = "DIRECTORY")]
    save: Option<PathBuf>,
    /// Only this part; may be said several times.
    #[arg(long = "part", value_enum)]
    parts: Vec<Part>,
    /// Few cases and short ones: to see whether all of it works.
    #[arg(long)]
    quick: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Block,
    Net,
    Models,
    Connections,
    Mpi,
}

impl Part {
    const ALL: [Self; 5] = [Self::Block, Self::Net, Self::Models, Self::Connections, Self::Mpi];

    fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Net => "net",
            Self::Models => "models",
            Self::Connections => "connections",
            Self::Mpi => "mpi",
        }
    }
}

/// A command that measures.
#[derive(Clone, Debug)]
struct Step {
    part: Part,
    /// What follows `vrio bench`, less `--json`.
    words: Vec<String>,
    /// About how long it takes.
    takes: Duration,
}

/// What a measurement takes besides itself: to start, to fill a disk, to warm up, to end.
const START_S: f64 = 2.0;

impl AllArgs {
    fn check(&self) -> Result<()> {
        if !(0.01..=60.0).contains(&self.seconds) {
            bail!("--seconds {}: from 0.01 to a minute's 60", self.seconds);
        }
        Ok(())
    }

    fn steps(&self) -> Vec<Step> {
        let all = Part::ALL.into_iter();
        let parts = all.filter(|part| self.parts.is_empty() || self.parts.contains(part));
        parts.flat_map(|part| self.steps_of(part)).collect()
    }

    fn steps_of(&self, part: Part) -> Vec<Step> {
        let (seconds, quick) = (self.seconds, self.quick);
        let step = |words: &str, takes_s: f64| Step {
            part,
            words: words.split(' ').map(str::to_owned).collect(),
            takes: Duration::from_secs_f64(takes_s),
        };
        let one = START_S + seconds;
        match part {
            Part::Block => {
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
            Part::Net => {
                let paths: &[_] = if quick { &["local"] } else { &["local", "remote"] };
                let sizes: &[_] = if quick { &["64"] } else { &["64", "1500", "64k"] };
                let words = |path: &&str, size: &&str| {
                    format!("net --path {path} --size {size} --seconds {seconds}")
                };
                let of = |path| sizes.iter().map(move |size| step(&words(path, size), one));
                paths.iter().flat_map(of).collect()
            }
            Part::Models => {
                let (more, turns) = match quick {
                    true => (" --guests 1 --encrypt off --volume null --rounds 1", 12.0),
                    false => (" --rounds 3", 69.0),
                };
                let words = format!("models --seconds {seconds}{more}");
                vec![step(&words, turns * (START_S + 2.0 * seconds))]
            }
            Part::Connections => {
                let more = if quick { " --hosts 4 --sessions 10" } else { "" };
                vec![step(&format!("connections{more}"), 10.0)]
            }
            // Its cases are many, and each has a fifth of the time, as by itself.
            Part::Mpi => {
                let words = format!("mpi --quick --seconds {}", (seconds / 5.0).max(0.01));
                vec![step(&words, 60.0 + 200.0 * seconds)]
            }
        }
    }
}

/// Interruptions so far, and who is to be told of the first.
#[derive(Debug, Default)]
struct Interruption {
    came: AtomicBool,
    /// The process that measures; 0 while none does.
    child: AtomicI32,
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

    /// Asks it to end, as a terminal would; it leaves nothing behind.
    fn end_child(&self) {
        let child = Pid::from_raw(self.child.load(Ordering::Acquire));
        // It may have ended by itself.
        let _ = child.map(|child| kill_process(child, Signal::INT));
    }

    /// This one measures from now on.
    fn measures(&self, child: &Child) {
        self.child.store(i32::try_from(child.id()).unwrap_or(0), Ordering::Release);
        if self.came() {
            self.end_child();
        }
    }

    /// Nobody does.
    fn rests(&self) {
        self.child.store(0, Ordering::Release);
    }
}

/// Measures all parts, and gives the path of the page.
pub(super) fn all(args: &AllArgs) -> Result<(), Failure> {
    args.check().map_err(Failure::configuration)?;
    let store = match &args.save {
        Some(folder) => Store::at(&std::path::absolute(folder).map_err(Failure::running)?),
        None => Store::usual(|name| std::env::var_os(name).map(PathBuf::from))
            .map_err(Failure::configuration)?,
    };
    let Measured { text, interrupted } = measure(args, &store).map_err(Failure::running)?;
    crate::commands::print(&text)?;
    if interrupted {
        std::process::exit(INTERRUPTED_STATUS);
    }
    Ok(())
}

/// What is to be said at the end.
struct Measured {
    text: String,
    interrupted: bool,
}

fn measure(args: &AllArgs, store: &Store) -> Result<Measured> {
    let (interruption, progress) = (Interruption::listen()?, Progress::new());
    let steps = args.steps();
    let takes: Duration = steps.iter().map(|step| step.takes).sum();
    let folder = store.folder().display();
    let (count, minutes) = (steps.len(), takes.as_secs().div_ceil(60));
    progress.done(format!("{count} measurements, about {minutes} min; runs are saved in {folder}"));
    let (mut saved, mut missing) = (Vec::new(), Vec::new());
    let mut at = 0;
    for part in steps.chunk_by(|one, two| one.part == two.part) {
        let mut outputs = Vec::new();
        for step in part {
            if interruption.came() {
                break;
            }
            at += 1;
            let words = step.words.join(" ");
            progress.doing(format!("{at} of {count}: vrio bench {words}"));
            match output_of(step, &interruption) {
                Ok(text) => outputs.push((step, text)),
                Err(_) if interruption.came() => {}
                Err(why) => {
                    progress.done(format!("not measured: {words}: {why:#}"));
                    missing.push(format!("{words}: {why:#}"));
                }
            }
        }
        if !outputs.is_empty() {
            let run = save(store, &outputs, part.len(), interruption.came())?;
            progress.done(format!("{}: saved in {}", part[0].part.name(), run.display()));
            saved.push(run);
        }
    }
    progress.end();
    if saved.is_empty() {
        bail!(
            "nothing was measured{}",
            if missing.is_empty() { "" } else { ", for the reasons above" }
        );
    }
    let page = page_of(&saved, &store.folder().join(PAGE));
    let mut text: String = missing.iter().map(|why| format!("not measured: {why}\n")).collect();
    let interrupted = interruption.came();
    if interrupted {
        text.push_str("interrupted: the page has what was finished\n");
    }
    match page {
        Ok(page) => text.push_str(&format!("{}\n", page.display())),
        Err(why) => text.push_str(&format!("no page of the runs in {folder}: {why:#}\n")),
    }
    Ok(Measured { text, interrupted })
}

/// Has a page made of these runs, and gives its path.
fn page_of(runs: &[PathBuf], into: &Path) -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg("report").args(runs).arg("--output").arg(into).stdin(Stdio::null());
    // What runs is no measurement: a terminal's ^C is not for it.
    let output = command.process_group(0).output().context("starting vrio report")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.lines().next().unwrap_or("vrio report failed"));
    }
    Ok(into.join("index.html"))
}

/// Saves what the commands of a part printed, as a run, and gives its directory.
fn save(
    store: &Store,
    outputs: &[(&Step, String)],
    asked: usize,
    interrupted: bool,
) -> Result<PathBuf> {
    let part = outputs[0].0.part.name();
    let mut run = Run::now(part, &format!("vrio bench all: {part}"));
    run.command = std::env::args().collect();
    let mut measurements = Vec::new();
    for (step, text) in outputs {
        let name = match step.words.iter().position(|word| word == "--path") {
            Some(at) => format!("{part}, {}", step.words[at + 1]),
            None => part.to_owned(),
        };
        measurements.extend(import::import(&name, text)?);
        let of: Machined = serde_json::from_str(text).context("a report of ours")?;
        run.machine = Some(of.machine);
    }
    if outputs.len() < asked {
        let why = if interrupted { "it was interrupted" } else { "the others failed" };
        run.notes.push(format!("{} of {asked} measurements: {why}", outputs.len()));
    }
    let mut loaded = Loaded { run, measurements: import::merge(measurements) };
    Ok(store.save(&mut loaded)?)
}

/// What every report of ours has.
#[derive(Deserialize)]
struct Machined {
    machine: Machine,
}

/// Runs a command and gives what it printed.
fn output_of(step: &Step, interruption: &Interruption) -> Result<String> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg("bench").args(&step.words).arg("--json");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Of a group of its own: a terminal's ^C is ours to pass on, once.
    let mut child = command.process_group(0).spawn().context("starting vrio bench")?;
    interruption.measures(&child);
    let stdout = child.stdout.take().expect("it was asked for");
    let stderr = child.stderr.take().expect("it was asked for");
    let output = thread::spawn(move || {
        let mut text = String::new();
        stdout.take(OUTPUT_MAX).read_to_string(&mut text).map(|_| text)
    });
    let said = thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(std::io::Result::ok);
        lines.filter(|line| !line.trim().is_empty()).last().unwrap_or_default()
    });
    let ended = wait(&mut child, step.takes * PATIENCE + PATIENCE_MIN, interruption);
    interruption.rests();
    let text = output.join().map_err(|_| anyhow!("reading its output"))??;
    let said = said.join().map_err(|_| anyhow!("reading its errors"))?;
    match ended? {
        true => Ok(text),
        false => bail!("{}", said.trim_start_matches("vrio: ").trim_start_matches("error: ")),
    }
}

/// Whether it ends well, in that time.
fn wait(child: &mut Child, patience: Duration, interruption: &Interruption) -> Result<bool> {
    let mut by = Instant::now() + patience;
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            if asked && !interruption.came() {
                bail!("it took more than {patience:?} and was ended");
            }
            return Ok(status.success());
        }
        if Instant::now() > by {
            if asked {
                child.kill()?;
            } else {
                interruption.end_child();
                (asked, by) = (true, Instant::now() + ENDING);
            }
        }
        thread::sleep(LOOK_AGAIN);
    }
}
