//! Runs an MPI's programs, to an end in any case.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::kinds::{Family, Mpi};
use super::site::Site;
use super::ways::MpiTransport;
use testbed::stage::CABLE;

/// How long a job may take: this time, and so many times the seconds of its measurement. The margin
/// is for the warm-up, and for machines that are shared.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_TIMES: f64 = 20.0;

/// The longest time that a launcher may take to end its ranks.
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long the node may take to list a domain's members once a job has begun: the node is busy
/// with the job.
const ASK_PATIENCE: Duration = Duration::from_secs(10);

/// The most characters of a failed job's output in an error: launchers print much.
const SAID_MAX: usize = 600;

/// Variables that choose a way: a job gets those of its turn and no others.
const CHOICES: [&str; 7] = ["OMPI_MCA_", "MPIR_CVAR_", "I_MPI_", "FI_", "UCX_", "VRIO_", "PSM"];

/// A job of an MPI by one of its ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct MpiJob<'a> {
    pub(super) mpi: &'a Mpi,
    pub(super) way: MpiTransport,
    pub(super) ranks: u16,
}

impl Site<'_> {
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

    /// The program that [`Self::build`] makes.
    pub(super) fn program(&self, mpi: &Mpi) -> PathBuf {
        self.stage.path(&format!("messages-{}-{}", mpi.family.word(), mpi.version))
    }

    /// Runs a program by a way. The program will take so many seconds; the result is the lines of
    /// its output.
    pub(super) fn run(
        &self,
        job: &MpiJob<'_>,
        program: &Path,
        words: &[String],
        seconds: f64,
    ) -> Result<Vec<String>> {
        let mut command = self.command(job);
        command.args(self.rank(job)).arg(program).args(words);
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
        let (lines, ended) = watch(child, by, ASK_PATIENCE, || self.are_there(job));
        match ended {
            Ok(status) if status.success() => Ok(lines),
            Ok(status) => Err(explain(anyhow!("it ended with {status}"), &lines)),
            Err(error) => Err(explain(error, &lines)),
        }
    }

    /// A launcher's command, up to the words of the program.
    fn command(&self, job: &MpiJob<'_>) -> Command {
        let mut command = self.begin(&job.mpi.run);
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
        let (reach, of_each) = (self.reach(), self.of_each(job.ranks));
        if reach.is_some() {
            // libfabric's tcp may tell the address of the loopback device, which each host has.
            command.env("FI_TCP_IFACE", CABLE);
        }
        match job.mpi.family {
            // Where ranks sit is our part, for all alike.
            Family::OpenMpi => {
                command.args(["--bind-to", "none"]);
                if let Some((enter, addresses)) = &reach {
                    let slots = addresses.iter().map(|it| format!("{it}:{of_each}"));
                    // The names of Open MPI 4 and 5 for the program that starts their daemons.
                    command.env("OMPI_MCA_plm_rsh_agent", enter);
                    command.env("PRTE_MCA_plm_ssh_agent", enter);
                    command.env("OMPI_MCA_oob_tcp_if_include", CABLE);
                    command.args(["--host", &slots.collect::<Vec<_>>().join(",")]);
                } else {
                    command.arg("--oversubscribe");
                }
            }
            Family::Mpich => {
                command.args(["-bind-to", "none"]);
                if let Some((enter, addresses)) = &reach {
                    command.args(["-launcher", "ssh", "-launcher-exec"]).arg(enter);
                    command.args(["-iface", CABLE, "-hosts", &addresses.join(",")]);
                    command.args(["-ppn", &of_each.to_string()]);
                }
            }
        }
        command.args(["-n", &job.ranks.to_string()]);
        command
    }
}

/// Collects the output of a job until it ends. Its first line shows that its ranks have begun. Then
/// the ranks must be there within `patience`, and before the job ends; once they were there,
/// `are_there` is not asked again. A job that has not ended at `by` is killed.
pub fn watch(
    mut child: Child,
    by: Instant,
    patience: Duration,
    are_there: impl Fn() -> bool,
) -> (Vec<String>, Result<ExitStatus>) {
    let out = child.stdout.take().expect("it is piped");
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the job, whose output it reads.
    thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    const ASTRAY: &str = "its ranks are not in the domain: they go another way";
    let (mut lines, mut were_there, mut ask_until) = (Vec::new(), false, None);
    let failed = loop {
        let left = by.saturating_duration_since(Instant::now());
        let look_again = if were_there { left } else { left.min(LOOK_AGAIN) };
        let came = receiver.recv_timeout(look_again);
        were_there = were_there || are_there();
        if !were_there && ask_until.is_some_and(|until| Instant::now() > until) {
            break ASTRAY;
        }
        match came {
            Ok(line) => {
                lines.push(line);
                ask_until = ask_until.or_else(|| Some(Instant::now() + patience));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < by => {}
            Err(RecvTimeoutError::Timeout) => break "it did not end in time, and was ended",
            Err(RecvTimeoutError::Disconnected) => match wait(&mut child, by) {
                Some(Ok(status)) if status.success() && !were_there => break ASTRAY,
                Some(ended) => return (lines, ended),
                None => break "it said its last word and did not end in time",
            },
        }
    };
    end(&mut child);
    (lines, Err(anyhow!(failed)))
}

/// The job's status, if the job ended by then.
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

/// The end of some output, in one line.
pub fn tail(said: &str) -> String {
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
        let (lines, ended) =
            watch(job("echo one; echo two; exit 3"), by(60_000), ASK_PATIENCE, || true);
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(ended.unwrap().code(), Some(3));
    }

    #[test]
    fn a_job_that_does_not_end_is_ended() {
        let (lines, ended) = watch(job("echo one; exec sleep 600"), by(500), ASK_PATIENCE, || true);
        assert_eq!(lines, ["one"]);
        assert!(ended.unwrap_err().to_string().contains("in time"));
        let closed = watch(job("exec sleep 600 >&-"), by(100), ASK_PATIENCE, || true).1;
        assert!(closed.unwrap_err().to_string().contains("did not end in time"));
    }

    #[test]
    fn a_job_that_goes_another_way_is_ended() {
        let (lines, ended) = watch(job("echo one; sleep 1"), by(60_000), ASK_PATIENCE, || false);
        assert_eq!(lines, ["one"]);
        assert!(ended.unwrap_err().to_string().contains("another way"));
        // The same for a job that would not end by itself.
        let patience = Duration::from_millis(20);
        let begun = Instant::now();
        let (lines, ended) = watch(job("echo one; exec sleep 600"), by(60_000), patience, || false);
        assert_eq!(lines, ["one"]);
        assert!(ended.unwrap_err().to_string().contains("another way"));
        assert!(begun.elapsed() < Duration::from_secs(60), "it was waited for");
        // `are_there` is asked until the ranks are there, and no more.
        let asked = std::cell::Cell::new(0);
        let third_time = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        let ended =
            watch(job("sleep 1; echo one; echo two"), by(60_000), ASK_PATIENCE, third_time).1;
        assert!(ended.unwrap().success() && asked.get() == 3);
        // A job that begins before the node has answered is not astray.
        asked.set(0);
        let (lines, ended) =
            watch(job("echo one; sleep 1; echo two"), by(60_000), ASK_PATIENCE, third_time);
        assert!(ended.unwrap().success() && asked.get() == 3);
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn the_end_of_what_was_said_is_one_line() {
        assert_eq!(tail("-----\n a \n\n b\n****\n"), "a / b");
        assert_eq!(tail(&"é".repeat(SAID_MAX + 5)).chars().count(), SAID_MAX);
        assert_eq!(tail(""), "");
    }
}
