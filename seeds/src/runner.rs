//! Runs seeds for hours, and counts them by commit.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{Tally, on_threads, processors};

/// Seeds of tests are below.
const FIRST_SEED: u64 = 1_000_000;

/// Seeds between two writes of the file.
const SEEDS_PER_WRITE: u64 = 200;

/// A runner of seeds. It may be stopped at any time, and started again.
#[derive(Debug)]
pub struct Runner {
    /// The counts. The file has a line for each commit: the commit, its seeds, and how many of them
    /// failed. A runner goes on behind all seeds of the file, so no seed is run twice.
    /// FILE.failures has a line for each seed that failed.
    pub file: PathBuf,
    /// Seeds that run at once; all processors if it is not said.
    pub threads: Option<usize>,
    /// When it stops by itself, after the seeds that run then; never if it is not said.
    pub time: Option<Duration>,
}

/// The content of the file: seeds and failures by commit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts(BTreeMap<String, (u64, u64)>);

/// The state that the threads share.
struct RunnerState {
    counts: Counts,
    next: u64,
    done: u64,
    tally: Tally,
}

impl Runner {
    /// Runs seeds until the time is up. Gives the events of all of them.
    ///
    /// # Errors
    /// If a file cannot be written.
    ///
    /// # Panics
    /// If a file becomes unwritable while seeds run.
    pub fn run<E: fmt::Display>(
        &self,
        run: impl Fn(u64) -> Result<Tally, E> + Sync,
    ) -> io::Result<Tally> {
        let (commit, begin) = (commit(), Instant::now());
        let counts = Counts::read(&self.file);
        let next = FIRST_SEED + counts.seeds();
        println!("{commit}: from seed {next} on");
        counts.write(&self.file)?;
        let tally = Tally::default();
        let progress = Mutex::new(RunnerState { counts, next, done: 0, tally });
        let is_over = || self.time.is_some_and(|time| begin.elapsed() >= time);
        on_threads(self.threads.unwrap_or_else(processors), || {
            loop {
                let seed = {
                    let mut progress = progress.lock().expect("nothing panics with it");
                    progress.next += 1;
                    progress.next - 1
                };
                let result = run(seed);
                let mut progress = progress.lock().expect("nothing panics with it");
                progress.note(&self.file, &commit, seed, result);
                if is_over() {
                    return;
                }
            }
        });
        let RunnerState { counts, tally, .. } =
            progress.into_inner().expect("nothing panics with it");
        counts.write(&self.file)?;
        Ok(tally)
    }
}

impl RunnerState {
    fn note<E: fmt::Display>(
        &mut self,
        file: &Path,
        commit: &str,
        seed: u64,
        result: Result<Tally, E>,
    ) {
        let (seeds, failed) = self.counts.0.entry(commit.to_owned()).or_default();
        *seeds += 1;
        match result {
            Ok(tally) => self.tally.merge(&tally),
            Err(failure) => {
                *failed += 1;
                println!("seed {seed}: {failure}");
                let line = format!("{commit} {seed} {failure}\n");
                let written = append(&with_suffix(file, "failures"), &line);
                written.expect("the file of the failures is writable");
            }
        }
        self.done += 1;
        if self.done.is_multiple_of(SEEDS_PER_WRITE) {
            self.counts.write(file).expect("the file of the counts is writable");
        }
    }
}

impl Counts {
    /// A file that is not there has no counts, and a line that is no count is left out.
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let commit = words.next()?.to_owned();
            Some((commit, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
        };
        Self(text.lines().filter_map(line).collect())
    }

    fn seeds(&self) -> u64 {
        self.0.values().map(|(seeds, _)| seeds).sum()
    }

    /// A runner that is stopped in the middle leaves the old file.
    fn write(&self, path: &Path) -> io::Result<()> {
        let line = |(commit, (seeds, failures)): (&String, &(u64, u64))| {
            format!("{commit} {seeds} {failures}\n")
        };
        let text: String = self.0.iter().map(line).collect();
        let new = with_suffix(path, "new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// The commit that runs, with a mark if files differ from it.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed of the runner fails; a second runner goes on behind the first.
    #[test]
    fn counts_are_added_and_no_seed_runs_twice() {
        let home = std::env::temp_dir().join(format!("vrio-seeds-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let file = home.join("counts");
        fs::write(&file, "older 7 1\n").unwrap();
        let seen = Mutex::new(Vec::new());
        let run = |seed| {
            seen.lock().unwrap().push(seed);
            if seed == FIRST_SEED + 8 { Err("broken") } else { Ok(Tally::default()) }
        };
        for _ in 0..3 {
            let (threads, time) = (Some(1), Some(Duration::ZERO));
            Runner { file: file.clone(), threads, time }.run(run).unwrap();
        }
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen, [7, 8, 9].map(|at| FIRST_SEED + at));
        let counts = Counts::read(&file);
        assert_eq!(counts.seeds(), 7 + 3);
        assert_eq!(counts.0.values().map(|(_, failed)| failed).sum::<u64>(), 2);
        let failures = fs::read_to_string(with_suffix(&file, "failures")).unwrap();
        assert!(failures.ends_with(&format!(" {} broken\n", FIRST_SEED + 8)), "{failures}");
        fs::remove_dir_all(home).unwrap();
    }
}
