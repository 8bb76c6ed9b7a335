//! An MPI job at the end: its ranks are in the two guests, or processes of this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use compare::mpi::PROGRAM;
use compare::mpi::job::{tail, watch};
use compare::mpi::kinds::{self, Family, Mpi};
use testbed::guest::mpi::{Member, begin, lines_until, slim, with_member};
use testbed::guest::{BOOT_TIMEOUT, Builder, Guest, Image};
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::stage::Stage;

use super::options::DemoOptions;
use super::scene::{CARDS, DOMAIN};

/// Ranks of the job: two for each guest.
pub(super) const RANKS: u16 = 4;

/// Sizes of the messages that all ranks exchange, and the seconds of each size without a check of
/// the bytes.
const SIZES: [u32; 5] = [8, 1 << 10, 8 << 10, 64 << 10, 256 << 10];
const SECONDS_EACH: &str = "0.05";

/// How often the program exchanges messages and checks every byte before it measures.
const CHECKED_ROUNDS: u64 = 2;

/// The time limit of a job on this host, which takes seconds on an idle host.
const PATIENCE: Duration = Duration::from_secs(300);

/// A script that makes the MPI use a domain, as a user does, and becomes the job.
const JOIN: &str = "env=$(\"$1\" mpi env --mpi \"$2\" --control \"$3\" --domain \"$4\")\n\
                    eval \"$env\"\nshift 4\nexec \"$@\"\n";

/// The results of an MPI job.
#[derive(Clone, Debug, Serialize)]
pub struct Messages {
    /// The MPI, with its version.
    pub mpi: String,
    /// The number of ranks.
    pub ranks: u16,
    /// The number of guests; 0 if the ranks were processes of this host.
    pub guests: u16,
    /// Messages of which every byte was checked.
    pub verified: u64,
    /// The duration of an exchange between all ranks, by the messages' size.
    pub all_to_all: Vec<AllToAll>,
}

/// One size of messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AllToAll {
    /// Bytes of each message.
    pub bytes: u32,
    /// The median time in microseconds until all ranks had all messages.
    pub p50_us: f64,
}

/// The program, the provider and the key of a job.
#[derive(Debug)]
pub(super) struct JobSetup {
    mpi: Mpi,
    program: PathBuf,
    /// The provider's file.
    provider: PathBuf,
    /// The file of the domain's key, and its content.
    pub(super) key: PathBuf,
    secret: String,
}

impl JobSetup {
    /// Builds the program with an MPI of this machine; for guests with the MPI of their image.
    ///
    /// # Errors
    /// When a program is missing; the text names it.
    pub(super) fn gather(
        stage: &Stage,
        options: &DemoOptions,
        image: Option<&Image>,
    ) -> Result<Self> {
        let provider = options.provider.clone().map_err(|why| anyhow!(why))?;
        if let Some(image) = image {
            image.mpi()?;
        }
        let mut mpis = kinds::find(&[], &mut Vec::new())?;
        // Open MPI comes first, if it is installed.
        if image.is_some() {
            mpis.retain(|mpi| mpi.family == Family::OpenMpi);
        }
        let mpi = mpis.into_iter().next().context("there is no Open MPI in PATH")?;
        let (source, program) = (stage.path("messages.c"), stage.path("messages"));
        fs::write(&source, PROGRAM).with_context(|| format!("writing {}", source.display()))?;
        let mut compile = Command::new(&mpi.compile);
        compile.args(["-O2", "-o"]).arg(&program).arg(&source).stdin(Stdio::null());
        let built = {
            let _starting = stage.cleanup.start();
            compile.output().with_context(|| format!("running {}", mpi.compile.display()))?
        };
        let said = String::from_utf8_lossy(&built.stderr);
        ensure!(built.status.success(), "{}: {}", mpi.compile.display(), tail(&said));
        let (key, secret) = stage.make_domain_key()?;
        let provider = match image {
            Some(_) => slim(&provider, &stage.folder)?,
            None => provider,
        };
        Ok(Self { mpi, program, provider, key, secret })
    }

    /// The builder of a guest, with everything that the guest's part of the job needs.
    pub(super) fn with_window(
        &self,
        builder: Builder,
        image: &Image,
        vm: &Node,
        own: usize,
    ) -> Result<Builder> {
        let member = Member {
            addresses: [CARDS[own].address, CARDS[1 - own].address],
            domain: DOMAIN,
            key: &self.secret,
            vf: &vm.plan().home.join(CARDS[own].window()),
            provider: &self.provider,
        };
        Ok(with_member(builder, image, &member)?.file("bin/messages", &self.program))
    }

    /// A job in the two guests, which have ended their talk; the guests end with the job.
    ///
    /// # Errors
    /// When a byte differs from the byte that was sent, or a guest fails.
    pub(super) fn in_guests(&self, guests: [Guest; 2], progress: &Progress) -> Result<Messages> {
        let mut guests = guests;
        for guest in &mut guests {
            guest.wait_for("ready", BOOT_TIMEOUT)?;
        }
        progress.doing(format!("{RANKS} ranks of {} in the two guests", self.mpi.name()));
        let each = usize::from(RANKS) / guests.len();
        let hosts = CARDS.map(|card| format!("{}:{each}", card.address)).join(",");
        let program = format!("messages {}", words().join(" "));
        begin(&mut guests[0], &hosts, RANKS.into(), &program)?;
        let (lines, status) = lines_until(&mut guests[0], "ended")?;
        ensure!(status == "0", "the job ended with {status}: {}", tail(&lines.join("\n")));
        let found = self.found(&lines, 2)?;
        for mut guest in guests {
            guest.type_line("end")?;
            guest.wait_success(BOOT_TIMEOUT)?;
        }
        progress.done(found.sentence());
        Ok(found)
    }

    /// A job of processes of this host.
    ///
    /// # Errors
    /// When a byte differs from the byte that was sent, or the job does not end.
    pub(super) fn on_host(
        &self,
        stage: &Stage,
        vrio: &Path,
        vm: &Node,
        progress: &Progress,
    ) -> Result<Messages> {
        progress.doing(format!("{RANKS} ranks of {} on this host", self.mpi.name()));
        let mut job = Command::new("sh");
        job.args(["-euc", JOIN, "sh"]).arg(vrio).arg(self.mpi.family.word());
        job.arg(vm.plan().control()).arg(DOMAIN).arg(&self.mpi.run);
        match self.mpi.family {
            Family::OpenMpi => job.args(["--oversubscribe", "--bind-to", "none"]),
            // The ranks of a host use the provider, and not the MPI's own shared memory.
            Family::Mpich => job.env("MPIR_CVAR_NOLOCAL", "1").args(["-bind-to", "none"]),
        };
        job.args(["-n", &RANKS.to_string()]).arg(&self.program).args(words());
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            job.env(name, "1");
        }
        let log = stage.path("said");
        job.env("TMPDIR", &stage.folder).stdin(Stdio::null()).stdout(Stdio::piped());
        job.stderr(fs::File::create(&log)?);
        let child = {
            let _starting = stage.cleanup.start();
            job.spawn().context("starting an MPI job")?
        };
        let (lines, ended) = watch(child, Instant::now() + PATIENCE, PATIENCE, || true);
        let said = || tail(&fs::read_to_string(&log).unwrap_or_default());
        let status = ended.with_context(|| format!("an MPI job: {}", said()))?;
        ensure!(status.success(), "an MPI job ended with {status}: {}", said());
        let found = self.found(&lines, 0)?;
        progress.done(found.sentence());
        Ok(found)
    }

    /// The results among the output's lines.
    fn found(&self, lines: &[String], guests: u16) -> Result<Messages> {
        let all_to_all: Vec<_> = lines.iter().filter_map(|line| all_to_all(line)).collect();
        ensure!(
            all_to_all.iter().map(|it| it.bytes).eq(SIZES),
            "the job's output has no complete results: {}",
            tail(&lines.join("\n"))
        );
        let pairs = u64::from(RANKS) * u64::from(RANKS - 1);
        let verified = CHECKED_ROUNDS * pairs * SIZES.len() as u64;
        Ok(Messages { mpi: self.mpi.name(), ranks: RANKS, guests, verified, all_to_all })
    }
}

impl Messages {
    /// The place of its ranks.
    pub(super) fn place(&self) -> &'static str {
        if self.guests > 0 { "in the two guests" } else { "on this host" }
    }

    fn sentence(&self) -> String {
        let Self { mpi, ranks, verified, .. } = self;
        let place = self.place();
        format!("{ranks} ranks of {mpi} {place}: {verified} messages, each byte as it was sent")
    }
}

/// The program's arguments.
fn words() -> Vec<String> {
    let kinds = SIZES.iter().map(|bytes| format!("alltoall:{bytes}"));
    // Every byte is checked. No other process's processor time is counted.
    [SECONDS_EACH, "1", "none"].map(str::to_owned).into_iter().chain(kinds).collect()
}

/// Reads a line of the program: the operation, bytes, operations, seconds, a median.
fn all_to_all(line: &str) -> Option<AllToAll> {
    let mut words = line.strip_prefix("alltoall ")?.split(' ');
    let bytes = words.next()?.parse().ok()?;
    Some(AllToAll { bytes, p50_us: words.nth(2)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_lines_are_found_among_others() {
        let line = "alltoall 1024 200 0.5 2500.5 9000";
        assert_eq!(all_to_all(line), Some(AllToAll { bytes: 1024, p50_us: 2500.5 }));
        for other in ["", "begin 4", "alltoall", "alltoall 8 1 1", "latency 8 1 1 1 1"] {
            assert_eq!(all_to_all(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_looks_at_so_many_rounds() {
        assert!(PROGRAM.contains(&format!("CHECKED_ROUNDS = {CHECKED_ROUNDS} ")), "in messages.c");
    }
}
