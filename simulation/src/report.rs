//! The counts of runs, and a run that broke a promise.

use std::fmt;

use simnet::NetworkCounts;
use volume::stage::Ciphered;
use workload::WorkloadCounts;

use super::fault::FaultCounts;
use super::nics::FrameCounts;
use super::storage::DiskCounts;

/// The counts of finished runs.
#[derive(Clone, Debug, Default)]
pub struct SimulationReport {
    /// Seeds run.
    pub runs: u64,
    /// Of these, how many had a volume that is encrypted.
    pub encrypted: u64,
    /// The guests' counts.
    pub guest: WorkloadCounts,
    /// How often each fault struck.
    pub faults: FaultCounts,
    /// The network's counts.
    pub network: NetworkCounts,
    /// The counts of frames.
    pub frames: FrameCounts,
    /// The disk's counts.
    pub disk: DiskCounts,
    /// Guests that were told that writes may be lost.
    pub disks_failed: u64,
    /// VMhosts that found out that they had been replaced.
    pub fenced: u64,
    /// Guests that were migrated by their VMM.
    pub migrated: u64,
    /// Guests that were started afresh elsewhere, since their VMhost was silent.
    pub started_elsewhere: u64,
    /// VMhosts that were started again after their guest went on elsewhere.
    pub returned: u64,
    /// Attachments closed clean.
    pub closed_clean: u64,
    /// Requests that were sent again.
    pub resent: u64,
    /// Queues that went over to another sidecore of their VMhost.
    pub moves: u64,
    /// Queues that were to and stayed: they did not drain in time, or their volume was paused.
    pub moves_refused: u64,
    /// VMhosts that were killed while a queue was between two sidecores.
    pub killed_between: u64,
    /// Writes to encrypted volumes that waited for memory for their ciphertext.
    pub waited: u64,
    /// Completions of encrypted volumes that were left to a later round.
    pub put_off: u64,
    /// Writes that waited so, and ranges that were zeroed in part, when the IOhost died.
    pub interrupted: u64,
    /// Simulated time.
    pub simulated_ns: u64,
}

impl SimulationReport {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.encrypted += other.encrypted;
        self.guest.submitted += other.guest.submitted;
        self.guest.completed += other.guest.completed;
        self.guest.zeroed += other.guest.zeroed;
        self.guest.errors += other.guest.errors;
        self.guest.blocks_checked += other.guest.blocks_checked;
        self.faults.add(&other.faults);
        self.network.add(&other.network);
        self.frames.add(&other.frames);
        self.disk.requests += other.disk.requests;
        self.disk.errors += other.disk.errors;
        self.disk.orphans += other.disk.orphans;
        self.disk.blocks_lost += other.disk.blocks_lost;
        self.disks_failed += other.disks_failed;
        self.fenced += other.fenced;
        self.migrated += other.migrated;
        self.started_elsewhere += other.started_elsewhere;
        self.returned += other.returned;
        self.closed_clean += other.closed_clean;
        self.resent += other.resent;
        self.moves += other.moves;
        self.moves_refused += other.moves_refused;
        self.killed_between += other.killed_between;
        self.waited += other.waited;
        self.put_off += other.put_off;
        self.interrupted += other.interrupted;
        self.simulated_ns += other.simulated_ns;
    }
}

impl SimulationReport {
    /// Adds the counts of a volume's encryption when its IOhost dies.
    pub(super) fn count_ciphered(&mut self, counted: &Ciphered) {
        self.waited += counted.waited;
        self.put_off += counted.put_off;
        self.interrupted += counted.interrupted;
    }

    /// Whether frames passed beside the disks.
    pub fn has_frames(&self) -> bool {
        self.frames.heard > 0
    }
}

impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.simulated_ns / 1_000_000_000;
        let Self { runs, encrypted, .. } = self;
        writeln!(f, "{runs} seeds ({encrypted} encrypted), {seconds} simulated seconds")?;
        writeln!(
            f,
            "guests: {} requests, {} done ({} zeroed ranges), {} errors, {} blocks read and \
             checked",
            self.guest.submitted,
            self.guest.completed,
            self.guest.zeroed,
            self.guest.errors,
            self.guest.blocks_checked
        )?;
        writeln!(f, "faults:\n{}", self.faults)?;
        writeln!(f, "{}\n{}", self.network, self.frames)?;
        let disk = &self.disk;
        writeln!(
            f,
            "disk: {} requests; {} failed, {} parts landed after their process had died, \
             {} blocks lost with the power",
            disk.requests, disk.errors, disk.orphans, disk.blocks_lost
        )?;
        writeln!(
            f,
            "{} requests sent again; {} guests told of a loss; {} replaced VMhosts fenced; \
             {} attachments closed clean",
            self.resent, self.disks_failed, self.fenced, self.closed_clean
        )?;
        writeln!(
            f,
            "{} guests migrated, {} started afresh elsewhere; {} VMhosts came back after that",
            self.migrated, self.started_elsewhere, self.returned
        )?;
        writeln!(
            f,
            "{} queues went over to another sidecore, {} stayed where they were; {} VMhosts were \
             killed in between",
            self.moves, self.moves_refused, self.killed_between
        )?;
        writeln!(
            f,
            "encrypted: {} writes waited for memory, {} completions for a later round; {} that \
             waited, or had zeroed a part of their range, died with their IOhost",
            self.waited, self.put_off, self.interrupted
        )
    }
}

/// A run that broke the promise.
#[derive(Clone, Debug)]
pub struct SimFailure {
    /// Runs it again.
    pub seed: u64,
    /// When, in simulated time.
    pub now_ns: u64,
    /// The broken promise.
    pub why: String,
    /// The last events before it, a line each.
    pub history: Vec<String>,
}

impl fmt::Display for SimFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {} at {} ns: {}", self.seed, self.now_ns, self.why)?;
        write!(f, "run it again with: make sim SEED={}", self.seed)
    }
}
