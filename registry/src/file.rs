//! The registry of one machine: a file, and nothing to install.
//!
//! ```text
//!   DIRECTORY/lock             held by the process that works with the registry
//!   DIRECTORY/registry         the content: see `file/format.rs`
//!   DIRECTORY/registry.new     the next content, until it is whole
//! ```
//!
//! A change writes the next content, syncs it, gives it the name of the old one and syncs the
//! directory. A process that is killed anywhere leaves the old content or the new one.

mod format;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::time::{ClockId, clock_gettime};

use self::format::{FILE_BYTES_MAX, read_content, written};
use crate::error::RegistryError;
use crate::key::Key;
use crate::private_file;
use crate::registry::{EntryEvent, Found, LeaseId, Listing, Registry, RegistryWatch, Stamp};
use crate::state::{RegistryState, Tried};
use crate::swap::{Swap, SwapOutcome};

/// How long a process waits for its turn: the turn of another process is a write of some
/// kilobytes, and a disk that is busy takes a second for it.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often a process that waits looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The time since the machine was started, and which start that was: leases end with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BootTime {
    pub(crate) boot: String,
    pub(crate) now_ns: u64,
}

type BootClock = Arc<dyn Fn() -> io::Result<BootTime> + Send + Sync>;

/// The steps of a change, after each of which a process may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileStep {
    /// The lock is held.
    Locked,
    /// The file of the next content is made.
    Made,
    /// Half of the next content is written.
    HalfWritten,
    /// The next content is written.
    Written,
    /// It is on the device.
    Synced,
    /// It has the name of the content.
    Renamed,
    /// The name is on the device.
    Kept,
}

/// A handle on the registry in a directory.
#[derive(Clone)]
pub struct FileRegistry {
    directory: PathBuf,
    clock: BootClock,
    /// Ends a change after this step as a kill would; for tests.
    stop: Option<FileStep>,
}

impl fmt::Debug for FileRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRegistry").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// The end of a write.
enum Saved {
    Whole,
    /// The old content is there still.
    Not(RegistryError),
    /// The new content is there and may be gone after a loss of power.
    Unknown(String),
}

impl FileRegistry {
    /// Makes an empty registry with this id, which is random.
    ///
    /// # Errors
    /// When there is one, or the system refuses it.
    pub fn create(directory: &Path, store: u64) -> Result<Self, RegistryError> {
        private_file::make_directory(directory)
            .map_err(|error| RegistryError::away(directory, "make it", &error))?;
        let registry = Self::open(directory);
        let _turn = registry.take_turn()?;
        if registry.content_path().exists() {
            let what = format!("{} has a registry already", directory.display());
            return Err(RegistryError::Refused { what });
        }
        match registry.save(&RegistryState::new(store), &registry.now()?.boot) {
            Saved::Whole => {}
            Saved::Not(error) => return Err(error),
            Saved::Unknown(reason) => return Err(RegistryError::OutcomeUnknown { reason }),
        }
        Ok(registry)
    }

    /// Gives the registry another id, which is random: it was put back to an older state.
    ///
    /// # Errors
    /// When there is no registry, or the system refuses it.
    pub fn renew_store(&self, store: u64) -> Result<(), RegistryError> {
        self.with_state(|state, _| {
            state.store = store;
            Ok(())
        })
    }

    /// A handle on the registry in this directory. Whether there is one is found by its first use.
    pub fn open(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), clock: Arc::new(boot_time), stop: None }
    }

    fn content_path(&self) -> PathBuf {
        self.directory.join("registry")
    }

    fn now(&self) -> Result<BootTime, RegistryError> {
        (self.clock)()
            .map_err(|error| RegistryError::away(&self.directory, "tell the time", &error))
    }

    /// Waits for the lock, which ends with the file or with the process.
    fn take_turn(&self) -> Result<File, RegistryError> {
        let path = self.directory.join("lock");
        let lock = private_file::open(&path)
            .map_err(|error| RegistryError::away(&path, "open it", &error))?;
        let until = Instant::now() + TURN_WAIT_MAX;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(RegistryError::away(&path, "lock it", &error.into())),
            }
            if Instant::now() >= until {
                let reason = format!("another process holds {} for too long", path.display());
                return Err(RegistryError::Away { reason });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn load(&self, now: &BootTime) -> Result<RegistryState, RegistryError> {
        let path = self.content_path();
        let mut content = Vec::new();
        let read = private_file::open_to_read(&path)
            .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut content));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RegistryError::Away {
                reason: format!(
                    "there is no registry in {}; `vrio cluster init` makes one, or restore a \
                     backup",
                    self.directory.display()
                ),
            },
            _ => RegistryError::away(&path, "read it", &error),
        })?;
        read_content(&path, &content, now)
    }

    fn reached(&self, step: FileStep) -> io::Result<()> {
        match self.stop == Some(step) {
            true => Err(io::Error::other(format!("a test stops it after {step:?}"))),
            false => Ok(()),
        }
    }

    fn save(&self, state: &RegistryState, boot: &str) -> Saved {
        let [old, new] = ["registry", "registry.new"].map(|name| self.directory.join(name));
        let content = written(state, boot);
        let write = || -> io::Result<()> {
            let mut file = private_file::open(&new)?;
            file.set_len(0)?;
            self.reached(FileStep::Made)?;
            let (head, rest) = content.split_at(content.len() / 2);
            file.write_all(head)?;
            self.reached(FileStep::HalfWritten)?;
            file.write_all(rest)?;
            self.reached(FileStep::Written)?;
            file.sync_all()?;
            self.reached(FileStep::Synced)?;
            std::fs::rename(&new, &old)
        };
        if let Err(error) = write() {
            return Saved::Not(match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    RegistryError::OutOfSpace {
                        reason: format!("{}: {error}", new.display()),
                        way_out: "make room in its file system".to_owned(),
                    }
                }
                _ => RegistryError::away(&new, "write it", &error),
            });
        }
        let keep = || -> io::Result<()> {
            self.reached(FileStep::Renamed)?;
            File::open(&self.directory)?.sync_all()?;
            self.reached(FileStep::Kept)
        };
        match keep() {
            Ok(()) => Saved::Whole,
            Err(error) => {
                Saved::Unknown(format!("{}: cannot sync it: {error}", self.directory.display()))
            }
        }
    }

    /// Works with the content, and keeps it if it has changed.
    fn with<T>(
        &self,
        ask: impl FnOnce(&mut RegistryState, u64) -> Result<T, RegistryError>,
    ) -> Result<(T, Saved), RegistryError> {
        let _turn = self.take_turn()?;
        let stopped = self.reached(FileStep::Locked);
        stopped.map_err(|error| RegistryError::away(&self.directory, "go on", &error))?;
        let now = self.now()?;
        let mut state = self.load(&now)?;
        let before = state.clone();
        state.expire(now.now_ns);
        let answer = ask(&mut state, now.now_ns)?;
        let saved = if state == before { Saved::Whole } else { self.save(&state, &now.boot) };
        Ok((answer, saved))
    }

    /// The same for a change that is no swap, or for a question: leases that have ended are removed
    /// by any process.
    fn with_state<T>(
        &self,
        ask: impl FnOnce(&mut RegistryState, u64) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        match self.with(ask)? {
            (answer, Saved::Whole) => Ok(answer),
            (_, Saved::Not(error)) => Err(error),
            (_, Saved::Unknown(reason)) => Err(RegistryError::Away { reason }),
        }
    }
}

/// The id of the machine's boot. It is read once, since a process does not outlive its boot: a
/// process that gives up its files, as a node's agent does, calls this before.
///
/// # Errors
/// When the system does not tell it.
pub fn know_boot() -> io::Result<&'static str> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Ok(boot);
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT.get_or_init(|| boot.trim().to_owned()))
}

/// The machine's own clock.
fn boot_time() -> io::Result<BootTime> {
    let boot = know_boot()?.to_owned();
    let now = clock_gettime(ClockId::Boottime);
    let ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    Ok(BootTime { boot, now_ns: ns })
}

impl Registry for FileRegistry {
    fn stamp(&mut self) -> Result<Stamp, RegistryError> {
        self.with_state(|state, _| Ok(state.stamp()))
    }

    fn get(&mut self, key: &Key) -> Result<Found, RegistryError> {
        self.with_state(|state, _| Ok(state.get(key)))
    }

    fn list(&mut self, above: &Key) -> Result<Listing, RegistryError> {
        self.with_state(|state, _| Ok(state.list(above)))
    }

    fn watch(&mut self, above: &Key, after: u64) -> Result<Box<dyn RegistryWatch>, RegistryError> {
        let watch = FileWatch { registry: self.clone(), above: above.clone(), after };
        self.stamp()?;
        Ok(Box::new(watch))
    }

    fn swap(&mut self, swap: &Swap) -> Result<SwapOutcome, RegistryError> {
        let (tried, saved) = self.with(|state, _| state.swap(swap))?;
        match (tried, saved) {
            (_, Saved::Not(error)) => Err(error),
            (Tried::Lost, _) => Ok(SwapOutcome::Lost),
            (Tried::Made(revision), Saved::Whole) => Ok(SwapOutcome::Made { revision }),
            (Tried::Made(_), Saved::Unknown(reason)) => Ok(SwapOutcome::Unknown { reason }),
        }
    }

    fn grant(&mut self, seconds: u64) -> Result<LeaseId, RegistryError> {
        self.with_state(|state, now_ns| state.grant(seconds, now_ns))
    }

    fn renew(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.with_state(|state, now_ns| state.renew(lease, now_ns))
    }

    fn revoke(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.with_state(|state, _| {
            state.revoke(lease);
            Ok(())
        })
    }
}

/// Looks at the file again and again: a registry of one machine has few changes.
#[derive(Debug)]
struct FileWatch {
    registry: FileRegistry,
    above: Key,
    after: u64,
}

impl RegistryWatch for FileWatch {
    fn next(&mut self, patience: Duration) -> Result<Vec<EntryEvent>, RegistryError> {
        let until = Instant::now() + patience;
        loop {
            let Self { registry, above, after } = self;
            let events = registry.with_state(|state, _| state.events(above, *after))?;
            if let Some(last) = events.last() {
                self.after = last.revision;
                return Ok(events);
            }
            if Instant::now() >= until {
                return Ok(events);
            }
            std::thread::sleep(LOOK_AGAIN.min(until.saturating_duration_since(Instant::now())));
        }
    }
}

#[cfg(test)]
mod tests;
