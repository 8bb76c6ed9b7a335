//! Who puts requests in, where that is not our driver: fio, and SPDK's NVMe/TCP initiator.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::peers::{DISK_BYTES, FOLDER};
use super::{Case, Sample, spdk};
use crate::block::processor_time;
use crate::cleanup::Cleanup;
use crate::load::Pattern;
use crate::machine::{cache_line_round_trip_ns, cores};

/// What fio does before it counts, as our own driver does.
const WARM_UP: Duration = Duration::from_millis(300);

/// What a client may take over what it should: to start, to fill a disk, to end.
const PATIENCE: Duration = Duration::from_secs(120);

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long the tools take before they put requests in: what they use of the processor is looked
/// at in the middle of what follows.
const FIO_STARTS: Duration = Duration::from_millis(600);
const NVME_PERF_STARTS: Duration = Duration::from_millis(1_500);

/// Huge pages of an initiator, in MiB.
const NVME_PERF_MIB: &str = "256";

/// Who puts requests in.
#[derive(Clone, Debug)]
pub(super) enum Client {
    /// Our driver, at the vhost-user socket.
    Driver,
    /// fio: its path, and its words for the disk.
    Fio(PathBuf, Vec<String>),
    /// SPDK's NVMe/TCP initiator.
    NvmePerf {
        /// Its path.
        program: PathBuf,
        /// Where the disk is, as it is told.
        target: String,
    },
}

impl Client {
    /// fio, with words for the disk.
    pub(super) fn fio(program: &Path, words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned());
        Self::Fio(program.to_owned(), words.collect())
    }
}

/// A tool's turn.
pub(super) struct Turn<'a> {
    pub(super) case: &'a Case,
    pub(super) seconds: f64,
    /// The servers.
    pub(super) pids: Vec<u32>,
    /// For its output.
    pub(super) folder: &'a Path,
    pub(super) cleanup: &'a Cleanup,
}

/// What a tool printed, and the cores that it and the servers used meanwhile.
struct Ran {
    said: String,
    cores_used: f64,
}

impl Turn<'_> {
    /// fio's measurement of a disk that is filled first.
    pub(super) fn fio(&self, program: &Path, words: &[String]) -> Result<Sample> {
        let words = words.iter().map(|word| word.replace(FOLDER, &self.folder.to_string_lossy()));
        let words: Vec<_> = words.chain([format!("--size={DISK_BYTES}")]).collect();
        let fill = [&fio_words("write", 1 << 20, 4)[..], &words].concat();
        self.run(program, &fill, Duration::ZERO)?;
        let Case { op, size_bytes, depth } = *self.case;
        let millis = |time: f64| format!("{:.0}ms", time * 1e3);
        let more = [
            "--time_based".to_owned(),
            format!("--runtime={}", millis(self.seconds)),
            format!("--ramp_time={}", millis(WARM_UP.as_secs_f64())),
            "--norandommap".to_owned(),
        ];
        let words = [&fio_words(op.name(), size_bytes, depth)[..], &more, &words].concat();
        let trip_before = cache_line_round_trip_ns();
        let ran = self.run(program, &words, FIO_STARTS)?;
        let (iops, p50_us) = fio_result(&ran.said, op)?;
        Ok(self.sample(&ran, iops, p50_us, trip_before))
    }

    /// SPDK's own tool on an NVMe/TCP disk. It counts whole seconds.
    pub(super) fn nvme_perf(&self, program: &Path, target: &str) -> Result<Sample> {
        let Case { op, size_bytes, depth } = *self.case;
        let core = format!("[{}]", client_core().unwrap_or(0));
        let (depth, size_bytes) = (depth.to_string(), size_bytes.to_string());
        let seconds = self.seconds.ceil().to_string();
        let words = [
            &["-s", NVME_PERF_MIB, "-c", &core, "-q", &depth, "-o", &size_bytes][..],
            &["-w", op.name(), "-t", &seconds, "-L", "-r", target],
        ];
        let words: Vec<_> = words.concat().into_iter().map(str::to_owned).collect();
        let trip_before = cache_line_round_trip_ns();
        let ran = self.run(program, &words, NVME_PERF_STARTS)?;
        let (iops, p50_us) = nvme_perf_result(&ran.said)?;
        Ok(self.sample(&ran, iops, p50_us, trip_before))
    }

    fn sample(&self, ran: &Ran, iops: f64, p50_us: f64, trip_before: Option<u64>) -> Sample {
        Sample {
            iops,
            p50_us,
            cpu_us_per_request: Some(ran.cores_used * 1e6 / iops),
            trips_ns: [trip_before, cache_line_round_trip_ns()],
        }
    }

    /// Runs a tool to its end. Processor time is that of half its work, `starts` after its start.
    fn run(&self, program: &Path, words: &[String], starts: Duration) -> Result<Ran> {
        let output = self.folder.join("client");
        let file = File::create(&output)?;
        let mut command = match client_core() {
            Some(core) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &core.to_string()]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(words).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.current_dir(self.folder);
        let starting = self.cleanup.start();
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        drop(starting);
        self.cleanup.path(spdk::remains(child.id()));
        let mut child = Ended(child);
        let mut cores_used = 0.0;
        if !starts.is_zero() {
            let half = Duration::from_secs_f64(self.seconds / 2.0);
            thread::sleep(starts);
            let (before, began) = (self.processor_time(&child.0), Instant::now());
            thread::sleep(half);
            let used = self.processor_time(&child.0).saturating_sub(before);
            cores_used = used.as_secs_f64() / began.elapsed().as_secs_f64();
        }
        let status = child.wait()?;
        let said = fs::read_to_string(&output)?;
        ensure!(status, "{} failed: {}", program.display(), said.trim());
        Ok(Ran { said, cores_used })
    }

    /// Of the servers and the client; one that has ended counts no more.
    fn processor_time(&self, client: &Child) -> Duration {
        let all = self.pids.iter().copied().chain([client.id()]);
        all.filter_map(|pid| processor_time(pid).ok()).sum()
    }
}

/// A tool that is killed if nobody waits for it any more.
struct Ended(Child);

impl Ended {
    /// Whether it ended well.
    fn wait(&mut self) -> Result<bool> {
        let by = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.success());
            }
            if Instant::now() > by {
                bail!("it does not end after {PATIENCE:?}");
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last core, as our driver's, where the servers have another one.
fn client_core() -> Option<usize> {
    cores().get(1..).and_then(<[usize]>::last).copied()
}

fn fio_words(op: &str, size_bytes: u32, depth: u16) -> Vec<String> {
    let words = ["--name=bench", "--thread", "--output-format=json", "--lat_percentiles=1"];
    let more = [format!("--rw={op}"), format!("--bs={size_bytes}"), format!("--iodepth={depth}")];
    words.map(str::to_owned).into_iter().chain(more).collect()
}

/// Requests per second and the median latency in microseconds, of fio's JSON.
fn fio_result(said: &str, op: Pattern) -> Result<(f64, f64)> {
    // What it warns of comes first.
    let json = said.find('{').map(|at| &said[at..]).context("fio printed no JSON")?;
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let report = values.next().context("fio printed no JSON")??;
    let of = &report["jobs"][0][if op.writes() { "write" } else { "read" }];
    let iops = of["iops"].as_f64().filter(|iops| *iops > 0.0);
    let p50_ns = of["lat_ns"]["percentile"]["50.000000"].as_f64();
    iops.zip(p50_ns.map(|ns| ns / 1e3)).with_context(|| format!("fio counted nothing: {of}"))
}

/// The same, of the table of `spdk_nvme_perf`.
fn nvme_perf_result(said: &str) -> Result<(f64, f64)> {
    let after = |word: &str| {
        let line = said.lines().find(|line| line.trim_start().starts_with(word))?;
        line.split_once(':')?.1.split_whitespace().next()?.trim_end_matches("us").parse().ok()
    };
    let iops = after("Total").filter(|iops: &f64| *iops > 0.0);
    let both = iops.zip(after("50.00000%"));
    both.with_context(|| format!("spdk_nvme_perf counted nothing: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_is_understood() {
        let said = r#"fio: a warning
            {"jobs": [{"read": {"iops": 1234.5, "lat_ns": {"percentile": {"50.000000": 2500}}},
                       "write": {"iops": 0.0, "lat_ns": {}}}]}
            more"#;
        assert_eq!(fio_result(said, Pattern::RandRead).unwrap(), (1234.5, 2.5));
        assert!(fio_result(said, Pattern::Write).is_err());
        assert!(fio_result("fio: no such engine", Pattern::Read).is_err());
    }

    #[test]
    fn what_nvme_perf_says_is_understood() {
        let said = "Device Information    :       IOPS      MiB/s    Average      min      max\n\
            TCP (addr:127.0.0.1) from core  1:   43000.10     167.97      22.30   9.1  99.0\n\
            ========\n\
            Total                     :   43000.10     167.97      22.30      9.10    99.00\n\
            \n\
            Summary latency data for TCP from core 1:\n\
            =====\n  1.00000% :    15.000us\n 50.00000% :    22.105us\n";
        assert_eq!(nvme_perf_result(said).unwrap(), (43000.10, 22.105));
        assert!(nvme_perf_result("nothing").is_err());
    }
}
