//! Runs an MPI's programs: a node with a domain, ranks on cores of their own, an end in any case.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::kinds::{Family, Mpi};
use super::ways::Way;
use super::{Options, Running};
use crate::cleanup::Cleanup;
use crate::machine::cores;
use crate::nodes::{Node, status};
use crate::progress::Progress;
use crate::stage::Stage;

/// Endpoints of the domain that is made: one for each rank, and those of a job that ended badly
/// until the node has noticed.
const ENDPOINTS_MAX: u16 = 4 * super::RANKS_MAX;

/// Of the domain's key.
const KEY_BYTES: usize = 16;

/// How long a job may take besides what it measures, and how many times that: the warm-up, and
/// machines that are shared.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_TIMES: f64 = 20.0;

/// How long a launcher may take to end its ranks.
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Characters of what a failed job said that an error shows: launchers say much.
const SAID_MAX: usize = 600;

/// Variables that choose a way: only what a turn says is to be there.
const CHOICES: [&str; 7] = ["OMPI_MCA_", "MPIR_CVAR_", "I_MPI_", "FI_", "UCX_", "VRIO_", "PSM"];

/// Has the MPI use a domain, as a user does it, and becomes the job.
const JOIN: &str = "env=$(\"$1\" mpi env --mpi \"$2\" --control \"$3\" $4)\n\
                    eval \"$env\"\nshift 4\nexec \"$@\"\n";

/// Where ranks find their number on their host: Open MPI's, and that of MPICH's launcher.
const LOCAL_RANK: &str = "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_RANK:-0}}}";

/// A job of an MPI by one of its ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) mpi: &'a Mpi,
    pub(super) way: Way,
    pub(super) ranks: u16,
}

/// Where jobs run.
pub(super) struct Site<'a> {
    program: PathBuf,
    control: PathBuf,
    domain: Option<String>,
    stage: Stage,
    /// Ours, if we had to start one.
    _node: Option<Node>,
    cleanup: &'a Cleanup,
}

impl<'a> Site<'a> {
    /// A folder, and a node with a domain unless one is named.
    pub(super) fn new(
        options: &Options,
        cleanup: &'a Cleanup,
        progress: &Progress,
    ) -> Result<Self> {
        let program = options.program.clone();
        let stage = Stage::new("mpi", program.clone(), false, cleanup.clone())?;
        let (control, domain, node) = match &options.running {
            Some(Running { control, domain }) => (control.clone(), domain.clone(), None),
            None => {
                progress.doing("starting a node");
                let node = start_node(&stage)?;
                (node.plan().control(), None, Some(node))
            }
        };
        let site = Self { program, control, domain, stage, _node: node, cleanup };
        site.make_seats(options.ranks())?;
        Ok(site)
    }

    /// Builds our program for an MPI.
    pub(super) fn build(&self, mpi: &Mpi, source: &str) -> Result<()> {
        let file = self.stage.path("messages.c");
        fs::write(&file, source).with_context(|| format!("writing {}", file.display()))?;
        let mut compile = Command::new(&mpi.compile);
        compile.args(["-O2", "-o"]).arg(self.program(mpi)).arg(&file).stdin(Stdio::null());
        let _starting = self.cleanup.start();
        let done =
            compile.output().with_context(|| format!("running {}", mpi.compile.display()))?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{}: {}", mpi.compile.display(), tail(&said));
        Ok(())
    }

    /// What [`Self::build`] makes.
    pub(super) fn program(&self, mpi: &Mpi) -> PathBuf {
        self.stage.path(&format!("messages-{}-{}", mpi.family.word(), mpi.version))
    }

    /// Where ranks run, in words.
    pub(super) fn seating(&self, ranks: u16) -> String {
        let cores = cores();
        if has_seats(ranks) {
            format!("one rank on each core: {:?}", &cores[..usize::from(ranks)])
        } else {
            format!(
                "{ranks} ranks share {} cores: nobody is pinned, and polling costs",
                cores.len()
            )
        }
    }

    /// Runs a program by a way, which is to take so many seconds; gives the lines of its output.
    pub(super) fn run(
        &self,
        job: &Job<'_>,
        program: &Path,
        words: &[String],
        seconds: f64,
    ) -> Result<Vec<String>> {
        let mut command = self.command(job);
        command.args(launch(job.mpi, job.ranks));
        if has_seats(job.ranks) {
            command.arg(self.seats());
        }
        command.arg(program).args(words);
        let log = self.stage.path("said");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let child = {
            let _starting = self.cleanup.start();
            command.spawn().with_context(|| format!("starting {}", job.mpi.run.display()))?
        };
        let by = Instant::now() + PATIENCE + Duration::from_secs_f64(seconds * PATIENCE_TIMES);
        let explain = |error: anyhow::Error, lines: &[String]| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            anyhow!("{error:#}; it said: {}", tail(&format!("{}\n{said}", lines.join("\n"))))
        };
        let (lines, ended) = watch(child, by, || self.are_there(job));
        match ended {
            Ok(status) if status.success() => Ok(lines),
            Ok(status) => Err(explain(anyhow!("it ended with {status}"), &lines)),
            Err(error) => Err(explain(error, &lines)),
        }
    }

    /// All of the command before the launcher's words.
    fn command(&self, job: &Job<'_>) -> Command {
        let mut command;
        if job.way == Way::Vrio {
            command = Command::new("sh");
            command.args(["-euc", JOIN, "sh"]).arg(&self.program).arg(job.mpi.family.word());
            let domain = self.domain.iter().map(|name| format!("--domain={name}"));
            command.arg(&self.control).arg(domain.collect::<String>()).arg(&job.mpi.run);
        } else {
            command = Command::new(&job.mpi.run);
        }
        for (name, _) in std::env::vars_os() {
            if CHOICES.iter().any(|it| name.to_string_lossy().starts_with(it)) {
                command.env_remove(name);
            }
        }
        command.envs(job.way.variables(job.mpi));
        // Files of its own, and not those of another job of this user.
        command.env("TMPDIR", &self.stage.folder);
        if rustix::process::geteuid().is_root() {
            for prefix in ["OMPI", "PRTE"] {
                for more in ["", "_CONFIRM"] {
                    command.env(format!("{prefix}_ALLOW_RUN_AS_ROOT{more}"), "1");
                }
            }
        }
        command
    }

    /// Whether all ranks are where their messages are to go.
    fn are_there(&self, job: &Job<'_>) -> bool {
        if job.way != Way::Vrio {
            return true;
        }
        let Ok(status) = status(&self.control) else { return false };
        let domains = status["domains"].as_array().map_or(&[][..], Vec::as_slice);
        let is_ours = |it: &&Value| self.domain.as_ref().is_none_or(|name| it["name"] == **name);
        let members = domains.iter().filter(is_ours).filter_map(|it| it["members"].as_u64());
        members.sum::<u64>() >= job.ranks.into()
    }

    fn seats(&self) -> PathBuf {
        self.stage.path("seat")
    }

    /// A script that becomes a rank's program, on the core of that rank.
    fn make_seats(&self, ranks: u16) -> Result<()> {
        let seats = cores().into_iter().take(ranks.into()).enumerate();
        let seats = seats.map(|(rank, core)| format!("    {rank}) core={core} ;;\n"));
        let script = format!(
            "#!/bin/sh\ncase {LOCAL_RANK} in\n{}    *) exec \"$@\" ;;\nesac\n\
             exec taskset -c \"$core\" \"$@\"\n",
            seats.collect::<String>()
        );
        let file = self.seats();
        fs::write(&file, script).with_context(|| format!("writing {}", file.display()))?;
        Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?)
    }
}

/// Whether each rank has a core to itself.
fn has_seats(ranks: u16) -> bool {
    cores().len() >= ranks.into()
}

/// A launcher's words. Where ranks sit is our part, for all alike.
fn launch(mpi: &Mpi, ranks: u16) -> Vec<String> {
    let words: &[&str] = match mpi.family {
        Family::OpenMpi => &["--oversubscribe", "--bind-to", "none", "-n"],
        Family::Mpich => &["-bind-to", "none", "-n"],
    };
    words.iter().map(ToString::to_string).chain([ranks.to_string()]).collect()
}

/// A node with a domain, and with a key that nobody else can read.
fn start_node(stage: &Stage) -> Result<Node> {
    let (key, mut secret) = (stage.path("domain.key"), [0_u8; KEY_BYTES]);
    aws_lc_rs::rand::fill(&mut secret)
        .map_err(|_| anyhow!("the system gives no random numbers"))?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&key)?;
    file.write_all(secret.as_bytes())?;
    let config =
        format!("[[domain]]\nname = \"bench\"\nkey = {key:?}\nendpoints-max = {ENDPOINTS_MAX}\n");
    stage.start(&stage.plan("n", &config))
}

/// Collects what a job says until it ends. With its first line its ranks have begun, and until then
/// they have to be there, which is asked no more after they were once. Who is not at its end in
/// time is ended.
fn watch(
    mut child: Child,
    by: Instant,
    are_there: impl Fn() -> bool,
) -> (Vec<String>, Result<ExitStatus>) {
    let out = child.stdout.take().expect("it is piped");
    let (sender, receiver) = mpsc::channel();
    // It ends with the job, whose output it reads.
    thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let (mut lines, mut were_there) = (Vec::new(), false);
    let failed = loop {
        let left = by.saturating_duration_since(Instant::now());
        let patience = if were_there { left } else { left.min(LOOK_AGAIN) };
        let came = receiver.recv_timeout(patience);
        were_there = were_there || are_there();
        match came {
            Ok(_) if !were_there => break "its ranks are not in the domain: they go another way",
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Timeout) if Instant::now() < by => {}
            Err(RecvTimeoutError::Timeout) => break "it did not end in time, and was ended",
            Err(RecvTimeoutError::Disconnected) => match wait(&mut child, by) {
                Some(ended) => return (lines, ended),
                None => break "it said its last word and did not end in time",
            },
        }
    };
    end(&mut child);
    (lines, Err(anyhow!(failed)))
}

/// How it ended, if it did by then.
fn wait(child: &mut Child, by: Instant) -> Option<Result<ExitStatus>> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(Ok(status)),
            Err(error) => return Some(Err(error.into())),
            Ok(None) if Instant::now() > by => return None,
            Ok(None) => thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Asks a launcher to end its ranks and itself; then it is killed.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // It may have ended by itself.
    pid.map(|pid| kill_process(pid, Signal::TERM));
    if wait(child, Instant::now() + END_PATIENCE).is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The end of what somebody said, in one line.
fn tail(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric));
    let line = lines.collect::<Vec<_>>().join(" / ");
    let from = line.char_indices().rev().nth(SAID_MAX - 1).map_or(0, |(at, _)| at);
    line[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell's job.
    fn job(script: &str) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn by(millis: u64) -> Instant {
        Instant::now() + Duration::from_millis(millis)
    }

    #[test]
    fn a_job_is_read_to_its_end() {
        let (lines, ended) = watch(job("echo one; echo two; exit 3"), by(60_000), || true);
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(ended.unwrap().code(), Some(3));
    }

    #[test]
    fn who_does_not_end_is_ended() {
        let (lines, ended) = watch(job("echo one; exec sleep 600"), by(500), || true);
        assert_eq!(lines, ["one"]);
        assert!(ended.unwrap_err().to_string().contains("in time"));
        let closed = watch(job("exec sleep 600 >&-"), by(100), || true).1;
        assert!(closed.unwrap_err().to_string().contains("did not end in time"));
    }

    #[test]
    fn who_goes_another_way_is_ended() {
        let (lines, ended) = watch(job("echo one; exec sleep 600"), by(60_000), || false);
        assert!(lines.is_empty() && ended.unwrap_err().to_string().contains("another way"));
        // Asked until they are there, and no more.
        let asked = std::cell::Cell::new(0);
        let third_time = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        let ended = watch(job("sleep 1; echo one; echo two"), by(60_000), third_time).1;
        assert!(ended.unwrap().success() && asked.get() == 3);
    }

    #[test]
    fn the_end_of_what_was_said_is_one_line() {
        assert_eq!(tail("-----\n a \n\n b\n****\n"), "a / b");
        assert_eq!(tail(&"é".repeat(SAID_MAX + 5)).chars().count(), SAID_MAX);
        assert_eq!(tail(""), "");
    }
}
