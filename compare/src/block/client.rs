//! The clients that put requests in instead of our driver: fio, SPDK's NVMe/TCP initiator, and
//! SPDK's driver of virtio disks.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::peer::DISK_BYTES;
use super::requests::Requests;
use crate::contest::TurnSample;
use crate::running::{FOLDER, remains};
use bench::block::processor_time;
use bench::load::LoadPattern;
use testbed::cleanup::Cleanup;
use testbed::machine::{cache_line_round_trip_ns, cores};

/// How long fio runs before it counts, as our own driver does.
const WARM_UP: Duration = Duration::from_millis(300);

/// The most time that a client may take beside its measurement: to start, to fill a disk, to end.
const PATIENCE: Duration = Duration::from_secs(120);

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The time between two looks at all processor time; each look costs the machine some 100 us.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How long `spdk_nvme_perf` runs before it counts; it accepts no less.
const NVME_PERF_WARM_UP: Duration = Duration::from_secs(1);

/// Huge pages of SPDK's clients, in MiB. SPDK's driver was seen to count requests twice with less.
const NVME_PERF_MIB: &str = "256";
const BDEVPERF_MIB: &str = "300";

/// Queues that SPDK's driver asks for: another part of it holds the first one.
const BDEVPERF_QUEUES: u16 = 2;

/// A tool's turn.
pub(super) struct ToolTurn<'a> {
    pub(super) case: &'a Requests,
    pub(super) seconds: f64,
    /// The servers.
    pub(super) pids: Vec<u32>,
    /// The folder of its output.
    pub(super) folder: &'a Path,
    /// Whether all of the disk was written before.
    pub(super) filled: bool,
    /// The words that run a command on the client's host.
    pub(super) entry: Vec<String>,
    pub(super) cleanup: &'a Cleanup,
}

/// The output of a tool, and the cores that the tool and the servers used meanwhile.
struct Ran {
    said: String,
    cores_used: Option<f64>,
    trip_before_ns: Option<u64>,
}

/// The results of a tool.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ToolFigures {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

impl ToolTurn<'_> {
    /// fio's measurement of a disk, which is filled first unless it is already.
    pub(super) fn fio(&self, program: &Path, words: &[String]) -> Result<TurnSample> {
        let words = words.iter().map(|word| word.replace(FOLDER, &self.folder.to_string_lossy()));
        let words: Vec<_> = words.chain([format!("--size={DISK_BYTES}")]).collect();
        if !self.filled {
            let fill = [&fio_words("write", 1 << 20, 4)[..], &words].concat();
            self.run(program, &fill, Duration::ZERO)?;
        }
        let Requests { op, size_bytes, depth } = *self.case;
        let millis = |time: f64| format!("{:.0}ms", time * 1e3);
        let more = [
            "--time_based".to_owned(),
            format!("--runtime={}", millis(self.seconds)),
            format!("--ramp_time={}", millis(WARM_UP.as_secs_f64())),
            "--norandommap".to_owned(),
        ];
        let words = [&fio_words(op.name(), size_bytes, depth)[..], &more, &words].concat();
        let ran = self.run(program, &words, Duration::from_secs_f64(self.seconds))?;
        Ok(ran.sample(fio_result(&ran.said, op)?))
    }

    /// SPDK's own tool on an NVMe/TCP disk. It counts whole seconds.
    pub(super) fn nvme_perf(&self, program: &Path, target: &str) -> Result<TurnSample> {
        let warm_up = NVME_PERF_WARM_UP.as_secs().to_string();
        let words = ["-L", "-s", NVME_PERF_MIB, "-c", &client_mask(), "-a", &warm_up, "-r", target];
        let words = [self.spdk_words(), words.map(str::to_owned).to_vec()].concat();
        let ran = self.run(program, &words, self.spdk_measures())?;
        Ok(ran.sample(spdk_result(&ran.said)?))
    }

    /// SPDK's own tool with its own driver, on the disk at the socket. It counts whole seconds, and
    /// has no warm-up.
    pub(super) fn bdevperf(&self, program: &Path) -> Result<TurnSample> {
        let folder = self.folder.display().to_string();
        let (config, rpc) = (format!("{folder}/client.json"), format!("{folder}/client-rpc"));
        let disk = json!({
            "name": "Disk", "trtype": "user", "traddr": format!("{folder}/socket"),
            "dev_type": "blk", "vq_count": BDEVPERF_QUEUES, "vq_size": 512
        });
        let disk = json!({"method": "bdev_virtio_attach_controller", "params": disk});
        let disks = json!({"subsystems": [{"subsystem": "bdev", "config": [disk]}]});
        fs::write(&config, disks.to_string())?;
        // Memory of one piece: a server takes eight at most.
        let words = ["-l", "-s", BDEVPERF_MIB, "-m", &client_mask(), "-g", "--no-pci", "-r", &rpc];
        let words = words.into_iter().chain(["-c", &config]).map(str::to_owned).collect();
        let words = [self.spdk_words(), words].concat();
        let ran = self.run(program, &words, self.spdk_measures())?;
        Ok(ran.sample(spdk_result(&ran.said)?))
    }

    /// The measured time of SPDK's tools, which count whole seconds.
    fn spdk_measures(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.ceil())
    }

    /// The arguments that both of SPDK's tools take.
    fn spdk_words(&self) -> Vec<String> {
        let Requests { op, size_bytes, depth } = *self.case;
        let (depth, size_bytes) = (depth.to_string(), size_bytes.to_string());
        let seconds = self.spdk_measures().as_secs().to_string();
        let words = ["-q", &depth, "-o", &size_bytes, "-w", op.name(), "-t", &seconds];
        words.map(str::to_owned).to_vec()
    }

    /// Runs a tool to its end. The tool measures for this time, and then ends at once.
    fn run(&self, program: &Path, words: &[String], measures: Duration) -> Result<Ran> {
        let trip_before_ns = cache_line_round_trip_ns();
        let output = self.folder.join("client");
        let file = File::create(&output)?;
        let mut all = self.entry.clone();
        if let Some(core) = client_core() {
            all.extend(["taskset".to_owned(), "-c".to_owned(), core.to_string()]);
        }
        all.push(program.display().to_string());
        let (first, rest) = all.split_first().context("a program")?;
        let mut command = Command::new(first);
        command.args(rest).args(words);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.current_dir(self.folder);
        let starting = self.cleanup.start();
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        drop(starting);
        self.cleanup.path(remains(child.id()));
        let mut child = Ended(child);
        let (status, looks) = child.wait(|child| self.processor_time(child))?;
        let said = fs::read_to_string(&output)?;
        ensure!(status, "{} failed: {}", program.display(), said.trim());
        Ok(Ran { said, cores_used: cores_used(&looks, measures), trip_before_ns })
    }

    /// The processor time of the servers and the client. The time of a process that has ended is
    /// lost.
    fn processor_time(&self, client: &Child) -> Duration {
        let all = self.pids.iter().copied().chain([client.id()]);
        all.filter_map(|pid| processor_time(pid).ok()).sum()
    }
}

impl Ran {
    fn sample(&self, ToolFigures { iops, p50_us, p99_us }: ToolFigures) -> TurnSample {
        TurnSample {
            rate: iops,
            p50_us: Some(p50_us),
            p99_us: Some(p99_us),
            cpu_us: self.cores_used.map(|cores| cores * 1e6 / iops),
            core_share: None,
            waited_share: None,
            trips_ns: [self.trip_before_ns, cache_line_round_trip_ns()],
        }
    }
}

/// Cores in use in the busiest half of the time for which a tool measured. The time that a tool
/// takes to start and to end differs from machine to machine, and a tool is less busy in it. None
/// where the measurement was too short to tell.
fn cores_used(looks: &[(Instant, Duration)], measures: Duration) -> Option<f64> {
    let used = |&(began, before): &(Instant, Duration)| {
        let long = |(at, _): &&(Instant, Duration)| *at >= began + measures / 2;
        let &(ended, after) = looks.iter().find(long)?;
        Some(after.saturating_sub(before).as_secs_f64() / (ended - began).as_secs_f64())
    };
    looks.iter().filter_map(used).max_by(f64::total_cmp)
}

/// A tool that is killed when it is dropped.
struct Ended(Child);

impl Ended {
    /// Whether the tool ended well, and the results of `look` meanwhile with their times.
    fn wait<T>(&mut self, look: impl Fn(&Child) -> T) -> Result<(bool, Vec<(Instant, T)>)> {
        let by = Instant::now() + PATIENCE;
        let mut looks = Vec::new();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok((status.success(), looks));
            }
            let now = Instant::now();
            if now > by {
                bail!("it does not end after {PATIENCE:?}");
            }
            if looks.last().is_none_or(|(at, _)| now - *at >= LOOK_PERIOD) {
                looks.push((now, look(&self.0)));
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

/// The same core, as SPDK's programs take it.
fn client_mask() -> String {
    format!("[{}]", client_core().unwrap_or(0))
}

fn fio_words(op: &str, size_bytes: u32, depth: u16) -> Vec<String> {
    let words = ["--name=bench", "--thread", "--output-format=json", "--lat_percentiles=1"];
    let more = [format!("--rw={op}"), format!("--bs={size_bytes}"), format!("--iodepth={depth}")];
    words.map(str::to_owned).into_iter().chain(more).collect()
}

/// Reads fio's JSON.
fn fio_result(said: &str, op: LoadPattern) -> Result<ToolFigures> {
    // Warnings come first.
    let json = said.find('{').map(|at| &said[at..]).context("fio printed no JSON")?;
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let report = values.next().context("fio printed no JSON")??;
    let of = &report["jobs"][0][if op.writes() { "write" } else { "read" }];
    let us = |share: &str| Some(of["lat_ns"]["percentile"][share].as_f64()? / 1e3);
    let iops = of["iops"].as_f64().filter(|iops| *iops > 0.0);
    let figures = (|| {
        let (p50_us, p99_us) = (us("50.000000")?, us("99.000000")?);
        Some(ToolFigures { iops: iops?, p50_us, p99_us })
    })();
    figures.with_context(|| format!("fio counted nothing: {of}"))
}

/// Reads the tables of SPDK's tools. A request that failed is an error.
fn spdk_result(said: &str) -> Result<ToolFigures> {
    let number = |word: &str| word.trim_end_matches("us").parse::<f64>().ok();
    let after = |word: &str| -> Option<Vec<f64>> {
        let line = said.lines().find(|line| line.trim_start().starts_with(word))?;
        Some(line.split_once(':')?.1.split_whitespace().filter_map(number).collect())
    };
    let first = |word: &str| after(word)?.first().copied();
    let figures = (|| {
        let iops = first("Total").filter(|iops| *iops > 0.0)?;
        let (p50_us, p99_us) = (first("50.00000%")?, first("99.00000%")?);
        Some(ToolFigures { iops, p50_us, p99_us })
    })();
    // Only the table of `bdevperf` has a column for them: the third of its totals.
    let failed = said.contains("Fail/s").then(|| after("Total")).flatten();
    let failed = failed.and_then(|totals| totals.get(2).copied()).unwrap_or(0.0);
    ensure!(failed == 0.0, "{failed} requests per second failed: {}", said.trim());
    figures.with_context(|| format!("SPDK's client counted nothing: {}", said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_busiest_half_whenever_a_tool_starts() {
        let began = Instant::now();
        // Two cores from 300 to 1300 ms of 2000; the server has one all the time.
        let looks: Vec<_> = (0..=100u64)
            .map(|at| {
                let ms = at * 20;
                let used = ms + ms.clamp(300, 1300) - 300;
                (began + Duration::from_millis(ms), Duration::from_millis(used))
            })
            .collect();
        let second = Duration::from_secs(1);
        assert!((cores_used(&looks, second).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!((cores_used(&looks, 5 * second), cores_used(&[], second)), (None, None));
    }

    #[test]
    fn fios_output_is_understood() {
        let said = r#"fio: a warning
            {"jobs": [{"read": {"iops": 1234.5, "lat_ns": {"percentile":
                                {"50.000000": 2500, "99.000000": 4000}}},
                       "write": {"iops": 0.0, "lat_ns": {}}}]}
            more"#;
        let figures = ToolFigures { iops: 1234.5, p50_us: 2.5, p99_us: 4.0 };
        assert_eq!(fio_result(said, LoadPattern::RandRead).unwrap(), figures);
        assert!(fio_result(said, LoadPattern::Write).is_err());
        assert!(fio_result("fio: no such engine", LoadPattern::Read).is_err());
        let old = r#"{"jobs": [{"read": {"iops": 1.0, "lat_ns": {"percentile": {}}}}]}"#;
        let error = fio_result(old, LoadPattern::Read).unwrap_err().to_string();
        assert!(error.contains("counted nothing"), "{error}");
    }

    /// As version 26.09-pre printed it; long rows of signs and some percentiles are left out.
    const NVME_PERF: &str = "\
[2026-11-22 09:27:32.875524] nvme_qpair.c: 914:spdk_nvme_qpair_process_completions: *ERROR*: [x]
Initializing NVMe Controllers
Attached to NVMeoF Controller at TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:bench)
Associating TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:bench) NSID 1 with lcore 1
Initialization complete. Launching workers.
========
                                                              Latency(us)
Device Information                                                       :       IOPS      MiB/s
TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:bench) NSID 1 from core  1:     578.87     578.87
========
Total                                                                    :     578.87     578.87

Summary latency data for TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.s from core 1:
========
  1.00000% :   589.194us
 50.00000% :  1298.117us
 98.00000% : 28230.892us
 99.00000% : 29440.788us
 99.50000% : 32263.877us
";

    /// The same of its other tool.
    const BDEVPERF: &str = "\
Running I/O for 1 seconds...
    12492.00 IOPS, 12492.00 MiB/s\r
\r Device Information          : runtime(s)       IOPS      MiB/s     Fail/s     TO/s    Average
\r Job: Disk (Core Mask 0x2, workload: read, depth: 4, IO size: 1048576)
\t Disk                :       1.00   12476.49   12476.49       0.00     0.00     318.94      30.33
\r ========
\r Total                       :              12476.49   12476.49       0.00     0.00     318.94

 Latency summary
\r ========
\r Job: Disk (Core Mask 0x2)
  1.00000% :   118.942us
 50.00000% :   126.818us
 99.00000% :  4612.726us
";

    #[test]
    fn spdks_output_is_understood() {
        let nvme = ToolFigures { iops: 578.87, p50_us: 1298.117, p99_us: 29_440.788 };
        assert_eq!(spdk_result(NVME_PERF).unwrap(), nvme);
        let virtio = ToolFigures { iops: 12_476.49, p50_us: 126.818, p99_us: 4612.726 };
        assert_eq!(spdk_result(BDEVPERF).unwrap(), virtio);
        let refused = |said: &str, word: &str| {
            let error = spdk_result(said).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused("nothing", "counted nothing");
        refused(&NVME_PERF.replace(":     578.87", ":       0.00"), "counted nothing");
        refused(NVME_PERF.split("Summary").next().unwrap(), "counted nothing");
        let total = "12476.49   12476.49       0.00     0.00     318.94\n\n";
        assert!(BDEVPERF.contains(total));
        let failing =
            BDEVPERF.replace(total, "12476.49   12476.49       7.00     0.00  318.94\n\n");
        refused(&failing, "7 requests per second failed");
    }
}
