//! The facts about the machine that a reader needs to make sense of the numbers.

use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Round trips of one batch: few, since only an undisturbed batch counts, the fastest one.
const ROUND_TRIPS: u64 = 50;

/// How long batches are repeated.
const TRIED_FOR: Duration = Duration::from_millis(50);

/// The least number of batches. If the core were taken away during the only batch, the cores would
/// look as if they were milliseconds apart.
const BATCHES_MIN: u32 = 20;

/// The commit that the builder named at compile time. The environment at run time is not asked: it
/// may name the commit of another working tree.
const COMMIT: Option<&str> = option_env!("VRIO_COMMIT");

/// The text in place of a commit that was not named.
const UNKNOWN: &str = "unknown";

/// The machine and the build.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// The processor's model name.
    pub processor: String,
    /// How long a cache line takes from the first core to the last and back; nothing with one core.
    /// Where each has a core, the first is a node's and the last the driver's.
    pub cache_line_round_trip_ns: Option<u64>,
    /// The kernel's release.
    pub kernel: String,
    /// vrio's version.
    pub version: &'static str,
    /// The commit of the build, if `VRIO_COMMIT` named it at that time; else `unknown`.
    pub commit: &'static str,
    /// Whether the build is optimised: the numbers of a slow build mean nothing.
    pub optimised: bool,
}

impl Machine {
    /// Looks at the machine. Takes less than a tenth of a second.
    pub fn look() -> Self {
        let cores = cores();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find(|line| line.starts_with("model name"));
        let name = name.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name);
        Self {
            cache_line_round_trip_ns: round_trip_ns(&cores),
            cores: cores.len(),
            processor: name.trim().to_owned(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// The version and the commit, for a table.
    pub fn build(&self) -> String {
        name(self.version, self.commit)
    }
}

/// The name of this build: vrio's version, and the commit if that is known.
pub fn version() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| name(env!("CARGO_PKG_VERSION"), commit()));
    &NAME
}

fn commit() -> &'static str {
    COMMIT.filter(|commit| !commit.is_empty()).unwrap_or(UNKNOWN)
}

fn name(version: &str, commit: &str) -> String {
    match commit {
        UNKNOWN => format!("{version} (commit unknown)"),
        commit => format!("{version} {commit}"),
    }
}

/// How long a cache line takes between the first core and the last and back; nothing with one core.
/// Nodes and the servers of peers have the first cores, and the driver of a measurement has the
/// last.
pub fn cache_line_round_trip_ns() -> Option<u64> {
    round_trip_ns(&cores())
}

/// The cores that this process may use.
pub fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

/// Keeps the calling thread on a core.
pub fn pin(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    // Where pinning is refused, the number is of the cores that the threads happen to have.
    let _ = sched_setaffinity(None, &only);
}

/// Runs `f` with two of the cores for this thread and everything that `f` starts. A machine with
/// fewer cores runs it unchanged.
pub fn on_two_cores<T>(f: impl FnOnce() -> T) -> T {
    let Ok(before) = sched_getaffinity(None) else { return f() };
    let mut two = CpuSet::new();
    cores().into_iter().take(2).for_each(|core| two.set(core));
    // Where pinning is refused, `f` has all cores of the machine.
    let _ = sched_setaffinity(None, &two);
    let done = f();
    let _ = sched_setaffinity(None, &before);
    done
}

/// Two threads on the first core and the last answer each other through one cache line.
fn round_trip_ns(cores: &[usize]) -> Option<u64> {
    let &[one, .., two] = cores else { return None };
    let line = AtomicU64::new(0);
    let until = Instant::now() + TRIED_FOR;
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(two);
            echo(&line);
        });
        let asking = scope.spawn(|| {
            pin(one);
            ask(&line, until)
        });
        asking.join().ok()
    })
}

/// The last ball: a thread that sees it returns.
const OVER: u64 = u64::MAX;

fn echo(line: &AtomicU64) {
    let mut expected = 1;
    loop {
        match line.load(Ordering::Acquire) {
            OVER => return,
            ball if ball == expected => {
                line.store(ball + 1, Ordering::Release);
                expected = ball + 2;
            }
            _ => std::hint::spin_loop(),
        }
    }
}

fn ask(line: &AtomicU64, until: Instant) -> u64 {
    let (mut ball, mut best, mut batches) = (1, u64::MAX, 0);
    while batches < BATCHES_MIN || Instant::now() < until {
        let began = Instant::now();
        for _ in 0..ROUND_TRIPS {
            line.store(ball, Ordering::Release);
            while line.load(Ordering::Acquire) != ball + 1 {
                std::hint::spin_loop();
            }
            ball += 2;
        }
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        best = best.min(took / ROUND_TRIPS);
        batches += 1;
    }
    line.store(OVER, Ordering::Release);
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let machine = Machine::look();
        assert!(machine.cores >= 1);
        assert!(!machine.kernel.is_empty());
        assert_eq!(machine.cache_line_round_trip_ns.is_some(), machine.cores > 1);
    }

    #[test]
    fn two_cores_are_lent_and_given_back() {
        let before = cores();
        let lent = on_two_cores(cores);
        assert_eq!(lent, before[..before.len().min(2)]);
        assert_eq!(cores(), before);
    }

    #[test]
    fn the_commit_is_that_of_the_build() {
        let told = option_env!("VRIO_COMMIT").filter(|commit| !commit.is_empty());
        let machine = Machine::look();
        assert_eq!(machine.commit, told.unwrap_or("unknown"));
        let unknown = Machine { version: "1.2.3", commit: UNKNOWN, ..machine.clone() };
        assert_eq!(unknown.build(), "1.2.3 (commit unknown)");
        let known = Machine { version: "1.2.3", commit: "abc", ..machine };
        assert_eq!(known.build(), "1.2.3 abc");
        assert_eq!(version(), Machine::look().build());
    }
}
