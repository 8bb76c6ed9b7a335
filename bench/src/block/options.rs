//! The options of `vrio bench block`, and which of them make sense together.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde::{Serialize, Serializer};
use sidecore::Idle;
use volume::stage::{STAGES, StageConfig, StageKind};

use crate::load::{Load, LoadPattern};
use crate::measure::{Reuse, WaitMode};
use testbed::events::Role;
use testbed::machine::cores;
use testbed::pair::{LinkKind, PairLink, RoleCores};
use testbed::stage::Offloads;

/// The longest request: a volume takes no more in one piece.
pub const SIZE_BYTES_MAX: u32 = 1 << 20;

/// The most requests outstanding of one job: the driver's largest ring has room for as many.
pub const DEPTH_MAX: u16 = 1024;

/// The most requests a second that are asked for: more than a queue takes.
const IOPS_MAX: u32 = 100_000_000;

/// Queues of a disk.
pub const JOBS_MAX: u16 = 64;

/// The most disks of a measurement: more than one node serves with a sidecore or two.
pub const GUESTS_MAX: u16 = 64;

/// The way to the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// A VMhost's own volume.
    Local,
    /// A volume of an IOhost, by a VMhost.
    Remote,
    /// A volume of an IOhost, by a client in this process.
    Direct,
    /// A disk at this vhost-user socket, by any server.
    Socket(PathBuf),
    /// A volume in this process, on the thread that asks: the cost without any node.
    Bare,
}

/// The volume behind the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Volume {
    /// No storage: writes vanish, reads are zeroes.
    Null,
    /// The serving process's memory.
    Memory,
    /// A file. The measurement makes and removes it, if there is none.
    File(PathBuf),
    /// The same, past the page cache.
    DirectFile(PathBuf),
    /// A volume of a pool in this file, past the page cache where the file system allows it. The
    /// measurement makes the pool if the file has none, and removes the file if there was none.
    Pool(PathBuf),
}

impl Volume {
    /// The file, if it is one.
    pub fn file(&self) -> Option<&std::path::Path> {
        match self {
            Self::File(path) | Self::DirectFile(path) | Self::Pool(path) => Some(path),
            Self::Null | Self::Memory => None,
        }
    }
}

/// A stage of a volume's chain, under a key that is made for it if it takes one.
pub type ChainStage = &'static StageKind<StageConfig>;

/// The stages that measurements have.
pub fn stages() -> impl Iterator<Item = ChainStage> {
    STAGES.iter().filter(|kind| (kind.measured)(std::path::Path::new("")).is_some())
}

/// Stages by their names.
fn names<S: Serializer>(chain: &[ChainStage], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(chain.iter().map(|stage| stage.name))
}

/// The options of `vrio bench block`.
#[derive(Clone, Debug, Serialize)]
pub struct BlockOptions {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// The way to the disk.
    pub path: Path,
    /// The volume behind it, which is written once, unless it is null. For a socket this only says
    /// whether to write the disk.
    pub volume: Volume,
    /// The stages that its requests pass, the first one first; none unless said.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "names")]
    pub chain: Vec<ChainStage>,
    /// The kind of requests.
    pub op: LoadPattern,
    /// Bytes of every request.
    pub size_bytes: u32,
    /// Requests outstanding of each job.
    pub depth: u16,
    /// Disks of one node, each with a volume of its own.
    pub guests: u16,
    /// How many of these disks have work, the first of them; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<u16>,
    /// VMhosts that have them, each as many, with `sidecores` of its own.
    #[serde(skip_serializing_if = "is_one")]
    pub hosts: u16,
    /// Queues of each disk. Each queue has a driving thread, where there are cores for so many, or
    /// threads sleep. Else each thread drives several queues by turns.
    pub jobs: u16,
    /// How sessions travel.
    pub link: LinkKind,
    /// Whether they are sealed.
    pub encrypt: bool,
    /// Sidecores of each node.
    pub sidecores: u16,
    /// The behaviour of sidecores without work.
    #[serde(serialize_with = "as_text")]
    pub idle: Idle,
    /// The same of the IOhost's sidecores, where it differs from the others'.
    #[serde(serialize_with = "as_text_if_any", skip_serializing_if = "Option::is_none")]
    pub iohost_idle: Option<Idle>,
    /// How the driver learns of completions.
    pub driver: WaitMode,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// Which slots and descriptors the driver takes next.
    pub reuse: Reuse,
    /// How long the measurement takes.
    pub seconds: f64,
    /// Requests a second of all jobs together, due at equal distances; none: as many as the depth
    /// lets through. A request that is due waits while `depth` requests are outstanding, and its
    /// latency has this wait in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u32>,
    /// The processes behind a socket, for their processor time.
    pub pids: Vec<u32>,
    /// On the loopback device, also where two network namespaces would be allowed.
    pub loopback: bool,
    /// The longest packet of the virtual cable between the nodes; the system's default if none is
    /// given.
    pub mtu: Option<u32>,
    /// The groups of packets that the ends of that cable take uncut.
    #[serde(skip_serializing_if = "Offloads::is_usual")]
    pub offloads: Offloads,
    /// All of the volume's file is written already, so that it need not be written again.
    #[serde(skip)]
    pub filled: bool,
    /// The volume has four fifths of its pool, and was written often before the measurement: the
    /// pool collects all the time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub collects: bool,
}

impl BlockOptions {
    /// The defaults of the command line.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            path: Path::Local,
            volume: Volume::Null,
            chain: Vec::new(),
            op: LoadPattern::RandRead,
            size_bytes: 4096,
            depth: 1,
            guests: 1,
            busy: None,
            hosts: 1,
            jobs: 1,
            link: LinkKind::Udp,
            encrypt: true,
            sidecores: 1,
            idle: Idle::Adaptive,
            iohost_idle: None,
            driver: WaitMode::Polls,
            packed: false,
            reuse: Reuse::InOrder,
            seconds: 3.0,
            iops: None,
            pids: Vec::new(),
            loopback: false,
            mtu: None,
            offloads: Offloads::All,
            filled: false,
            collects: false,
        }
    }

    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and the values that would.
    pub fn check(&self) -> Result<()> {
        let Self { size_bytes, depth, guests, jobs, seconds, .. } = *self;
        let size = 512..=SIZE_BYTES_MAX;
        ensure!(
            size.contains(&size_bytes) && size_bytes.is_power_of_two(),
            "--size {size_bytes}: a power of two from 512 bytes to 1MiB"
        );
        ensure!((1..=DEPTH_MAX).contains(&depth), "--depth {depth}: from 1 to {DEPTH_MAX}");
        ensure!((1..=JOBS_MAX).contains(&jobs), "--jobs {jobs}: from 1 to {JOBS_MAX}");
        ensure!((1..=GUESTS_MAX).contains(&guests), "--guests {guests}: from 1 to {GUESTS_MAX}");
        ensure!(
            guests == 1
                || self.volume.file().is_none() && matches!(self.path, Path::Local | Path::Remote)
                || self.volume.file().is_none() && self.path == Path::Direct && !self.encrypt,
            "--guests {guests}: for null and memory volumes, of which each guest has one, local, \
             remote, or direct with --encrypt off"
        );
        let busy = self.busy.unwrap_or(guests);
        ensure!((1..=guests).contains(&busy), "{busy} of {guests} guests have work: from 1 to all");
        ensure!(
            self.hosts == 1 || self.path == Path::Local && guests.is_multiple_of(self.hosts),
            "{} hosts of {guests} guests: local disks, as many of them on each",
            self.hosts
        );
        ensure!(
            self.sidecores >= 1 && self.sidecores <= JOBS_MAX,
            "--sidecores {}: from 1 to {JOBS_MAX}",
            self.sidecores
        );
        ensure!(
            (0.01..=3600.0).contains(&seconds),
            "--seconds {seconds}: from 0.01 to an hour's 3600"
        );
        self.meeting().check()?;
        ensure!(
            self.pids.is_empty() || matches!(self.path, Path::Socket(_)),
            "--pid is for --path socket: our own nodes' processes are known"
        );
        ensure!(
            self.chain.is_empty() || !matches!(self.path, Path::Socket(_)),
            "--chain is for volumes of ours, and a socket's has the stages that it has"
        );
        for stage in &self.chain {
            let is_twice = self.chain.iter().filter(|it| *it == stage).count() > 1;
            if let Some(text) = stage.twice.filter(|_| is_twice) {
                bail!("--chain: {text}");
            }
        }
        self.check_pool()?;
        if self.is_generated() {
            let path = &self.path;
            ensure!(jobs == 1, "--path {path} has one job: the client's one thread is the driver");
            ensure!(
                self.driver == WaitMode::Polls && !self.packed && self.reuse == Reuse::InOrder,
                "--path {path} has no ring: --driver, --packed and --reuse do not apply"
            );
        }
        Ok(())
    }

    fn check_pool(&self) -> Result<()> {
        let has_pool = matches!(self.volume, Volume::Pool(_));
        ensure!(
            !has_pool || !matches!(self.path, Path::Bare | Path::Socket(_)),
            "--volume {}: a node has the pool; --path local, remote or direct",
            self.volume
        );
        ensure!(
            !self.collects || has_pool && self.op.writes() && !self.op.is_sequential(),
            "--collect is about random writes to a pool: --volume pool:PATH --op randwrite or \
             zipfwrite"
        );
        if let Some(iops) = self.iops {
            ensure!((1..=IOPS_MAX).contains(&iops), "--iops {iops}: from 1 to {IOPS_MAX}");
            ensure!(
                !self.is_generated() && self.driver == WaitMode::Polls,
                "--iops: a driver of a ring that polls keeps the time; --path local or remote, \
                 and no --driver sleeps"
            );
        }
        Ok(())
    }

    /// Busy threads of a driver that has so many cores.
    pub(super) fn driver_threads(&self, cores: usize) -> usize {
        let queues = usize::from(self.guests) * usize::from(self.jobs);
        match (&self.path, self.driver) {
            (Path::Direct, _) => usize::from(self.guests),
            (Path::Bare, _) => 1,
            (_, WaitMode::Sleeps) => queues,
            (_, WaitMode::Polls) => queues.min(cores.max(1)),
        }
    }

    /// Whether requests come from a generator on the thread that asks, and there is no ring.
    pub(super) fn is_generated(&self) -> bool {
        matches!(self.path, Path::Direct | Path::Bare)
    }

    /// Whether two nodes communicate.
    pub(super) fn has_sessions(&self) -> bool {
        matches!(self.path, Path::Remote | Path::Direct)
    }

    /// The role that serves the volume: interrupts of the storage device count as events of this
    /// role.
    pub(crate) fn storage(&self) -> Role {
        match self.path {
            Path::Bare => Role::Driver,
            Path::Local => Role::Vmhost,
            _ => Role::Iohost,
        }
    }

    /// The cable and the sessions between both nodes.
    pub(super) fn meeting(&self) -> PairLink {
        let Self { link, encrypt, loopback, mtu, offloads, .. } = *self;
        PairLink { link, encrypt, loopback, mtu, offloads }
    }

    /// Seats for all threads of the measurement.
    pub(super) fn seats(&self) -> RoleCores {
        let sidecores = usize::from(self.sidecores);
        let (vmhost, iohost) = match self.path {
            Path::Local => (sidecores * usize::from(self.hosts), 0),
            Path::Remote => (sidecores, sidecores),
            Path::Direct => (0, sidecores),
            Path::Bare => (0, 0),
            // A core for each of the server's processes, wherever those are.
            Path::Socket(_) => (self.pids.len().max(1), 0),
        };
        let cores = cores();
        let left = cores.len().saturating_sub(vmhost + iohost);
        RoleCores::new(&cores, vmhost, iohost, self.driver_threads(left))
    }

    pub(super) fn load(&self, depth: u16) -> Load {
        let duration = Duration::from_secs_f64(self.seconds);
        let jobs = u32::from(self.busy.unwrap_or(self.guests)) * u32::from(self.jobs);
        let interval =
            self.iops.map(|iops| Duration::from_secs(1) * jobs * u32::from(self.hosts) / iops);
        Load { pattern: self.op, depth, duration, interval }
    }
}

/// The value as the command line writes it.
pub fn as_text<S: Serializer>(
    value: &impl std::fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Whether serde leaves the count out.
fn is_one(count: &u16) -> bool {
    *count == 1
}

fn as_text_if_any<S: Serializer>(
    value: &Option<impl std::fmt::Display>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused_by_name() {
        let options = BlockOptions::new(PathBuf::from("vrio"));
        options.check().unwrap();
        let refused = |wrong: BlockOptions, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(BlockOptions { size_bytes: 5000, ..options.clone() }, "--size 5000");
        refused(BlockOptions { size_bytes: 2 << 20, ..options.clone() }, "--size");
        refused(BlockOptions { depth: 0, ..options.clone() }, "--depth 0");
        refused(BlockOptions { jobs: 65, ..options.clone() }, "--jobs 65");
        refused(BlockOptions { guests: 65, ..options.clone() }, "--guests 65");
        let one_file = Volume::File(PathBuf::from("/disk"));
        refused(BlockOptions { guests: 2, volume: one_file, ..options.clone() }, "--guests 2");
        let pool = Volume::Pool(PathBuf::from("/pool"));
        let bare = BlockOptions { path: Path::Bare, volume: pool.clone(), ..options.clone() };
        refused(bare, "a node has the pool");
        refused(BlockOptions { collects: true, volume: pool, ..options.clone() }, "--collect");
        refused(BlockOptions { sidecores: 0, ..options.clone() }, "--sidecores 0");
        refused(BlockOptions { mtu: Some(600), ..options.clone() }, "--mtu");
        refused(BlockOptions { seconds: f64::NAN, ..options.clone() }, "--seconds");
        refused(BlockOptions { iops: Some(0), ..options.clone() }, "--iops 0");
        let sleeps = WaitMode::Sleeps;
        refused(BlockOptions { iops: Some(9), driver: sleeps, ..options.clone() }, "polls");
        let direct = BlockOptions { path: Path::Direct, ..options.clone() };
        direct.check().unwrap();
        refused(BlockOptions { jobs: 2, ..direct.clone() }, "one job");
        refused(BlockOptions { packed: true, ..direct.clone() }, "no ring");
        refused(BlockOptions { iops: Some(9), ..direct.clone() }, "--iops");
        refused(BlockOptions { reuse: Reuse::AsLinux, ..direct }, "no ring");
    }
}
