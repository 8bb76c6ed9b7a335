//! A node is killed again and again while all jobs of its pool go on: collection in a pool that is
//! nearly full, snapshots, clones, removals, a scrub that rests and goes on, a device that joins
//! and leaves, and a guest that writes and verifies.
//!
//! `POOL_KILLS=n` sets the number of kills, `POOL_KILL_SEED=n` the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::Node;

use crate::pools::{
    PATIENCE, VOLUME, check, connect, kills, mix, plan_with_pool, pool, told, told_to, work_a_while,
};

/// Snapshots that are kept. The guest's changes since each take up to 8 MiB, and with a snapshot
/// that only a clone keeps the pool is nearly full: a full one would stop guest and operator.
const SNAPSHOTS_MAX: usize = 2;

/// Clones that are kept.
const CLONES_MAX: usize = 1;

/// The size of the device that joins and leaves: the pool stays nearly full with it.
const SECOND_BYTES: u64 = 16 << 20;

/// The pause between two jobs, which leaves a core to the node.
const PAUSE: Duration = Duration::from_millis(3);

/// Sets a flag when it goes.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The operator of the pool, and what the pool must have after a kill.
struct Operator {
    control: PathBuf,
    random: Random,
    next: u64,
    /// Snapshots and clones that are there.
    there: BTreeSet<String>,
    /// Snapshots and clones whose removal was confirmed.
    gone: BTreeSet<String>,
    done: BTreeMap<&'static str, u64>,
}

impl Operator {
    /// Does jobs until the node is dead.
    fn work(&mut self, over: &AtomicBool, jobs: &AtomicU64) {
        while !over.load(Relaxed) {
            self.work_once();
            jobs.fetch_add(1, Relaxed);
            std::thread::sleep(PAUSE);
        }
    }

    fn names(&self, snapshots: bool) -> Vec<String> {
        self.there.iter().filter(|name| name.contains('@') == snapshots).cloned().collect()
    }

    fn pick(&mut self, names: &[String]) -> Option<String> {
        let at = self.random.below(names.len().max(1) as u64) as usize;
        names.get(at).cloned()
    }

    fn ask(&mut self, job: &'static str, words: &str) -> bool {
        let (is_done, _) = told_to(&self.control, words);
        *self.done.entry(job).or_default() += u64::from(is_done);
        is_done
    }

    fn work_once(&mut self) {
        let (snapshots, clones) = (self.names(true), self.names(false));
        self.next += 1;
        let number = self.next;
        match self.random.below(11) {
            0..3 if snapshots.len() < SNAPSHOTS_MAX => {
                let is_there =
                    self.ask("snapshots", &format!("volume snapshot a --name s{number}"));
                self.there.extend(is_there.then(|| format!("a@s{number}")));
            }
            3 if clones.len() < CLONES_MAX => {
                let Some(of) = self.pick(&snapshots) else { return };
                let is_there = self.ask("clones", &format!("volume clone {of} c{number}"));
                self.there.extend(is_there.then(|| format!("c{number}")));
            }
            4 => drop(self.ask("scrubs", "pool scrub p --rate 40MiB")),
            8 => drop(self.ask("pauses", "pool scrub p --pause")),
            9 => drop(self.ask("joins", "pool grow p --add q.pool")),
            10 => drop(self.ask("leaves", "pool shrink p --remove q.pool")),
            5 => drop(self.ask("lists", "volume snapshots")),
            kind => {
                let Some(name) = self.pick(if kind == 6 { &clones } else { &snapshots }) else {
                    return;
                };
                // From here on it may be gone, also if the node dies before it answers.
                self.there.remove(&name);
                let is_served = !name.contains(['@', ':']);
                let option = if is_served { " --data" } else { "" };
                if self.ask("removals", &format!("volume remove {name}{option}")) {
                    self.gone.insert(name);
                }
            }
        }
    }

    /// Holds the pool to the jobs that were confirmed before the kill, and takes over its list.
    fn check(&mut self, node: &Node) {
        let listed = pool(node)["volumes"].as_array().expect("a list").clone();
        let of_kind = |kind: &'static str| listed.iter().filter(move |it| it["kind"] == kind);
        let name = |it: &Value| it["name"].as_str().expect("a text").to_owned();
        let snapshots: BTreeSet<String> = of_kind("snapshot").map(name).collect();
        // The new node does not serve the clones, so they are named by their numbers.
        let clones: BTreeSet<String> = of_kind("volume")
            .filter(|it| it["served"] == false)
            .map(|it| format!("p:{}", it["number"]))
            .collect();
        let missing: Vec<_> =
            self.names(true).into_iter().filter(|name| !snapshots.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?} are lost: {listed:?}");
        let back: Vec<_> = snapshots.intersection(&self.gone).collect();
        assert!(back.is_empty(), "{back:?} are back: {listed:?}");
        assert!(clones.len() >= self.names(false).len(), "clones are lost: {listed:?}");
        self.there = snapshots.into_iter().chain(clones).collect();
    }
}

/// A whole pass over the pool finds no damage.
fn scrub(node: &Node) {
    told(node, "pool scrub p --rate 1GiB");
    let until = Instant::now() + PATIENCE;
    while pool(node)["scrub"]["is_running"] == true {
        assert!(Instant::now() < until, "{}", pool(node));
        std::thread::sleep(Duration::from_millis(20));
    }
    let scrub = pool(node)["scrub"].clone();
    assert!(scrub["passes"].as_u64() > Some(0), "{scrub}");
    let damaged = (&scrub["damaged_blocks"], &scrub["damaged_map_blocks"]);
    assert_eq!(damaged, (&0.into(), &0.into()), "{scrub}");
}

#[test]
fn kills_in_the_middle_of_all_jobs_lose_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let seed = std::env::var("POOL_KILL_SEED").ok().and_then(|text| text.parse().ok());
    let mut random = Random::new(seed.unwrap_or(1));
    let mut plan = plan_with_pool(home.path(), "72MiB", VOLUME);
    // The file names a device that the pool has for some of the time.
    assert!(plan.config.contains("\"p.pool\""), "{}", plan.config);
    plan.config = plan.config.replace("\"p.pool\"", "\"p.pool\", \"q.pool\"");
    File::create(plan.file("q.pool")).and_then(|it| it.set_len(SECOND_BYTES)).expect("a file");
    let mut node = plan.start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    let control = node.plan().control();
    let (there, gone, done) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut operator = Operator { control, random: random.fork(), next: 0, there, gone, done };
    let (mut collected, mut busy) = (0, BTreeMap::<String, u64>::new());
    let begin = Instant::now();
    for kill in 1..=kills() {
        let (over, jobs) = (AtomicBool::new(false), AtomicU64::new(0));
        let enough = guest.checker.checked + random.between(50, 1500);
        let jobs_min = random.below(6);
        node = std::thread::scope(|scope| {
            let worker = scope.spawn(|| operator.work(&over, &jobs));
            // A failure here ends the operator's work as well.
            let _ends = SetAtEnd(&over);
            let worked = guest.work(|guest| {
                let is_enough = guest.checker.checked >= enough && jobs.load(Relaxed) >= jobs_min;
                is_enough && guest.workload.outstanding() >= 4
            });
            let last = pool(&node);
            let of_last = last["counters"]["collected_segments"].as_u64();
            collected += of_last.unwrap_or_else(|| panic!("kill {kill}: {last}"));
            *busy.entry(last["state"].to_string()).or_default() += 1;
            let plan = node.kill().expect("it ran");
            over.store(true, Relaxed);
            worker.join().expect("the operator does not panic");
            worked.unwrap_or_else(|error| panic!("kill {kill}, {error:#}: {last}"));
            plan.start().expect("it opens the pool again")
        });
        operator.check(&node);
        work_a_while(&mut guest, 100);
        if kill % 50 == 0 {
            println!("{kill} kills in {} s", begin.elapsed().as_secs());
        }
    }
    check(&mut guest);
    assert_eq!(guest.reconnects(), kills());
    scrub(&node);
    assert!(collected > 0, "the pool was never so full that a segment was collected");
    println!(
        "{} kills in {} s: {:?}, {collected} segments collected, states {busy:?}",
        kills(),
        begin.elapsed().as_secs(),
        operator.done
    );
    node.stop().expect("an orderly end");
}
