//! From a volume's configuration to an export (backend, chain, guard), and back again.

pub(crate) mod change;
pub(crate) mod ciphers;
pub(crate) mod copy_commands;
pub(crate) mod hand_over;
pub(crate) mod report;
pub(crate) mod resize;
pub(crate) mod start;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::attachment::Remembered;
use block::server::Server;
use block::{Export, ExportOptions, Exports, Plane};
use cache::RoundNotes;
use config::{Config, Directories, StageConfig, VolumeConfig};
use copies::{MemberSeats, PlannedCopy, ServedMember};
use parking_lot::{Mutex, MutexGuard};
use peer::Allow;
use sessions::{LinkedSidecore, key_files};
use volume::backend::{BackendVolume, HandedBlocks, Opening};
use volume::chain::{Chain, Swap, SwapProgress};
use volume::record::{FileRecords, KeptRecords, RecordStore, RecordWriter, Ticket, make_private};
use volume::{Durability, Volume, stage::VolumeKey};

use self::ciphers::VolumeFile;
use super::error::StartError;
use super::pools::PoolStock;

/// How long a removed volume may take to drain, flush and note that its attachments ended clean: as
/// long as a disk may take to close.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(4);

/// How long the channels of a volume may take to drain before its chain is replaced. Guests wait
/// meanwhile, as long as they do when a disk is stopped.
const TURN_TIME_MAX: Duration = Duration::from_secs(2);

/// How often the channels are checked.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A volume with everything around it.
#[derive(Debug)]
pub(crate) struct ServedVolume {
    /// The volume as disks and peers use it.
    pub(crate) export: Arc<Export>,
    /// The chain behind the export, which can be replaced.
    swap: Arc<Swap>,
    /// Its stages, for their counters.
    chain: Mutex<Chain>,
    /// The member between the chain and the backend, of a volume with copies on several nodes.
    pub(crate) member: Option<ServedMember>,
    /// The volume behind the chain, as its backend opened it.
    pub(crate) backend: Arc<dyn BackendVolume>,
}

/// A volume of another process, which has stopped using it.
#[derive(Debug, Default)]
pub(crate) struct HandedVolume {
    /// Its blocks.
    pub(crate) blocks: Option<HandedBlocks>,
    /// The records of its attachments, where these are not in files.
    pub(crate) records: KeptRecords,
}

impl ServedVolume {
    /// Its stages as they are now.
    pub(crate) fn chain(&self) -> Chain {
        self.stages().clone()
    }

    /// The key that encrypts it.
    pub(crate) fn key(&self) -> Option<Arc<VolumeKey>> {
        self.stages().key().cloned()
    }

    fn stages(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock()
    }

    /// Replaces the chain while disks use it.
    ///
    /// # Errors
    /// When a stage cannot be opened, or requests do not complete in time. The old chain stays.
    pub(crate) fn set_chain(
        &self,
        chain: &[StageConfig],
        cores: &[LinkedSidecore],
    ) -> Result<(), String> {
        let now = self.chain();
        let next = now.rebuilt(chain, now.key(), sidecore::now_ns());
        let next = next.map_err(|error| error.to_string())?;
        self.swap.begin(Arc::clone(&next.volume));
        if let Err(text) = self.turn(cores) {
            self.swap.revert();
            wait_for_turn(&self.swap, cores);
            return Err(text);
        }
        *self.stages() = next;
        // The channels of the old chain close.
        wake(cores);
        Ok(())
    }

    fn turn(&self, cores: &[LinkedSidecore]) -> Result<(), String> {
        loop {
            match wait_for_turn(&self.swap, cores) {
                SwapProgress::Done if self.swap.settle() => return Ok(()),
                // A channel has just been opened.
                SwapProgress::Done => {}
                SwapProgress::Failed(why) => return Err(why),
                SwapProgress::Left(channels) => {
                    return Err(format!(
                        "{channels} of its channels did not drain within {TURN_TIME_MAX:?}; its \
                         storage may be stuck"
                    ));
                }
            }
        }
    }
}

/// Waits until every channel has the new chain, one cannot have it, or the time is over.
fn wait_for_turn(swap: &Swap, cores: &[LinkedSidecore]) -> SwapProgress {
    wake(cores);
    let until = Instant::now() + TURN_TIME_MAX;
    loop {
        match swap.turning() {
            SwapProgress::Left(_) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
            turning => return turning,
        }
    }
}

pub(crate) fn wake(cores: &[LinkedSidecore]) {
    cores.iter().for_each(|core| core.sidecore.waker().wake());
}

/// Opens volumes and removes them.
#[derive(Debug)]
pub(crate) struct Volumes {
    directories: Directories,
    /// See [`Config::memory_directory`].
    memory: PathBuf,
    node: String,
    /// The volumes that peers find.
    exports: Arc<Exports>,
    writer: RecordWriter,
    stock: Arc<PoolStock>,
    seats: MemberSeats,
    /// Held for as long as the records are ours, from the first volume on.
    lock: Mutex<Option<File>>,
}

/// The node's memory of its own disks' attachments: see [`Config::memory_directory`].
#[derive(Clone, Debug)]
pub(crate) struct OwnDisks {
    directory: PathBuf,
    node: String,
    writer: RecordWriter,
}

/// The directory among the volumes' records. It cannot be a volume's, since those have no dot in
/// their files' names.
const OWN_DISKS: &str = "own.disks";

/// Records of volumes, by the volume as a disk names it.
type NamedRecords = Vec<(String, Arc<dyn RecordStore>)>;

impl OwnDisks {
    /// The record of an attachment to this volume, as a disk names the volume.
    ///
    /// # Errors
    /// Why there can be no record, what follows from that, and the way out. The volume's node knows
    /// its holder by this node's name alone then.
    pub(crate) fn remembered(
        &self,
        volume: &str,
        attachment: &str,
    ) -> Result<Arc<Remembered>, String> {
        let store = self.store(volume).map_err(|error| {
            format!(
                "this node cannot record how it holds the volume ({:?}: {error}): after a restart, \
                 a guest that was replaced may take the volume back, and write-back does not \
                 notice an older copy of its pool; give the directory to the node's user, or name \
                 another one as \"state\" in [directories]",
                self.directory
            )
        })?;
        Ok(Remembered::load(attachment, store))
    }

    /// The numbers of the rounds that write such a disk back. A node that cannot keep them serves
    /// the disk all the same: [`Self::remembered`] says so.
    ///
    /// # Errors
    /// Why the record cannot be believed, and the way out: then an older copy of the pool could go
    /// over newer content.
    pub(crate) fn rounds(&self, volume: &str, attachment: &str) -> Result<Arc<RoundNotes>, String> {
        match self.store(volume) {
            Ok(store) => {
                let notes = RoundNotes::load(store, attachment, self.kin(volume)?);
                notes.map_err(|error| error.to_string())
            }
            Err(_) => Ok(RoundNotes::nowhere()),
        }
    }

    /// The records of volumes of the same name under other lists of peers, by the volume as a disk
    /// names it.
    fn kin(&self, volume: &str) -> Result<NamedRecords, String> {
        let name = |text: &str| text.rsplit_once('/').map(|it| it.1.to_owned());
        let is_kin = |other: &String| other != volume && name(other) == name(volume);
        let all = FileRecords::volumes_in(&self.directory).map_err(|error| error.to_string())?;
        let own = format!("{}:", self.node);
        let all = all.iter().filter_map(|it| it.strip_prefix(&own)).map(str::to_owned);
        let opened = |volume: String| {
            let store: Arc<dyn RecordStore> = self.store(&volume)?;
            Ok((volume, store))
        };
        all.filter(is_kin).map(opened).collect()
    }

    fn store(&self, volume: &str) -> Result<Arc<FileRecords>, String> {
        let within = format!("{}:{volume}", self.node);
        // The directory above it is ours as well.
        let above = self.directory.parent().map_or(Ok(()), make_private);
        above.map_err(|error| error.to_string()).and_then(|()| {
            let opened = FileRecords::open(&self.directory, &within, self.writer.clone());
            opened.map_err(|error| error.to_string())
        })
    }
}

/// Starts the parts that volumes share, without a volume.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(config: &Config) -> Result<Volumes, StartError> {
    let writer = RecordWriter::start()
        .map_err(|source| StartError::System { what: "start the writer of records", source })?;
    let seats = MemberSeats::new(config.sidecores.cores.len())
        .map_err(|source| StartError::System { what: "make the sidecores' wakers", source })?;
    Ok(Volumes {
        directories: config.directories.clone(),
        memory: config.memory_directory(),
        node: config.name.clone(),
        exports: Arc::default(),
        writer,
        stock: Arc::new(PoolStock::new(config)),
        seats,
        lock: Mutex::default(),
    })
}

impl Volumes {
    /// Where this node remembers the attachments of its own disks.
    pub(crate) fn own_disks(&self) -> OwnDisks {
        let directory = self.memory.join(OWN_DISKS);
        OwnDisks { directory, node: self.node.clone(), writer: self.writer.clone() }
    }

    /// The pools that volumes are cut from.
    pub(crate) fn stock(&self) -> &Arc<PoolStock> {
        &self.stock
    }

    /// The volumes that peers find.
    pub(crate) fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// Makes the records' directory ours, if there is one and it is not ours yet.
    ///
    /// # Errors
    /// The directory that cannot be used, the reason, and the way out.
    pub(crate) fn lock_state(&self) -> Result<(), StateError> {
        let mut lock = self.lock.lock();
        if let (None, Some(state)) = (&*lock, &self.directories.state) {
            *lock = Some(lock_state(state)?);
        }
        Ok(())
    }

    /// Opens a volume. Peers do not find it before [`Self::publish`].
    ///
    /// # Errors
    /// The fault and the way out; nothing is left open.
    pub(crate) fn open(&self, wanted: &VolumeConfig) -> Result<ServedVolume, String> {
        self.adopt(wanted, HandedVolume::default())
    }

    /// The same for a volume of another process, as far as it was handed over.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn adopt(
        &self,
        wanted: &VolumeConfig,
        handed: HandedVolume,
    ) -> Result<ServedVolume, String> {
        let HandedVolume { blocks, records: kept } = handed;
        let is_handed = blocks.is_some();
        let (name, state) = (&wanted.name, self.directories.state.as_deref());
        let opened = state.map(|state| FileRecords::open(state, name, self.writer.clone()));
        let opened = opened.transpose();
        // A volume that guests have used is raw, even if its first blocks look like another format.
        let is_new = opened.as_ref().is_ok_and(|it| it.as_ref().is_none_or(|it| it.is_empty()));
        let mut backend = self.open_backend(wanted, is_new, blocks)?;
        let opened = match opened {
            Ok(Some(opened)) => backend.remember_by(&opened, is_handed).map(|()| Some(opened)),
            opened => opened,
        };
        let backend: Arc<dyn BackendVolume> = Arc::from(backend);
        let records = opened.as_ref().map(Option::as_deref).map_err(ToString::to_string);
        let key = ciphers::read(&wanted.chain)?;
        let (member, refused) = match self.member_of(wanted, &backend, records, key.as_deref()) {
            Ok(member) => (member, None),
            Err(why) => (None, Some(why)),
        };
        let bare = match &member {
            Some(member) => member.front() as Arc<dyn Volume>,
            None => Arc::clone(&backend) as Arc<dyn Volume>,
        };
        let chain =
            Chain::build(bare, &wanted.chain, key.as_ref()).map_err(|error| error.to_string())?;
        let swap = Swap::new(Arc::clone(&chain.volume));
        let guarded = Arc::clone(&swap) as Arc<dyn Volume>;
        let options = ExportOptions { allow: wanted.allow.clone(), shared: wanted.shared };
        let closed = backend.absent().or(refused);
        let early = closed_or_copy(wanted, &guarded, &options, (closed, member.as_ref()))?;
        if let Some(export) = early {
            return Ok(ServedVolume { export, swap, chain: Mutex::new(chain), member, backend });
        }
        let export = |store| Export::new(name, Arc::clone(&guarded), options.clone(), store);
        let export = match (opened, state, VolumeFile::of(&backend)) {
            (Err(error), ..) => Err(error),
            (Ok(Some(opened)), Some(state), Some(file)) => {
                let note = ciphers::verify(wanted, &file, state, key.as_deref(), &*opened)?;
                export(opened.after(Arc::new(note)))
            }
            (Ok(Some(opened)), ..) => export(opened),
            // Without volumes' directories there are no files.
            (Ok(None), ..) => export(Arc::new(kept)),
        };
        let export = match export {
            // The other process goes on with the records that it has read.
            Err(error) if is_handed => return Err(error.to_string()),
            // Records that cannot be believed stop this volume, and no other.
            Err(error) => {
                tracing::error!(volume = name, %error, "the volume is not served");
                Export::closed(name, guarded, options, &error)
            }
            Ok(export) => export,
        };
        Ok(ServedVolume { export, swap, chain: Mutex::new(chain), member, backend })
    }

    /// The member of a volume with copies on several nodes.
    fn member_of(
        &self,
        wanted: &VolumeConfig,
        backend: &Arc<dyn BackendVolume>,
        records: Result<Option<&FileRecords>, String>,
        key: Option<&VolumeKey>,
    ) -> Result<Option<ServedMember>, String> {
        let Some(state) = &self.directories.state else { return Ok(None) };
        if wanted.replicas.is_empty() {
            return copies::refuse_plain(state, &wanted.name).map(|()| None);
        }
        // A backend that is absent says why, and no member is made over it.
        if backend.absent().is_some() {
            return Ok(None);
        }
        let records = records?;
        let copy = PlannedCopy { wanted, node: &self.node, backend, records, key, state };
        self.seats.plan(&copy).map(Some)
    }

    /// The parts of the node that members of replicated volumes share.
    pub(crate) fn seats(&self) -> &MemberSeats {
        &self.seats
    }

    /// Opens a volume's backend, or goes on with the blocks of another process.
    fn open_backend(
        &self,
        wanted: &VolumeConfig,
        is_new: bool,
        handed: Option<HandedBlocks>,
    ) -> Result<Box<dyn BackendVolume>, String> {
        if let Some(file) = wanted.backend.file() {
            inside(file.path, &self.directories.volumes)?;
        }
        let durability =
            if wanted.write_through { Durability::WriteThrough } else { Durability::Flush };
        let (read_only, topology) = (wanted.read_only, wanted.topology);
        let (name, pools) = (wanted.name.as_str(), self.stock.pools());
        let key = wanted.backend.key_file().map(|path| {
            let key = key_files::read_volume(path);
            key.map_err(|error| error.to_string())
        });
        let key = key.as_ref().map(|key| key.as_ref().map_err(String::as_str));
        let opening = Opening { name, pools, durability, read_only, topology, is_new, key };
        wanted.backend.open(&opening, handed)
    }

    /// A descriptor of the lock of the records' directory, if it is ours.
    pub(crate) fn state_lock(&self) -> std::io::Result<Option<OwnedFd>> {
        let lock = self.lock.lock();
        let copy = lock.as_ref().map(|lock| lock.try_clone().map(OwnedFd::from));
        copy.transpose()
    }

    /// Goes on with the lock of another process.
    pub(crate) fn adopt_state_lock(&self, lock: OwnedFd) {
        *self.lock.lock() = Some(lock.into());
    }

    /// Whether the records are in files.
    pub(crate) fn keeps_records(&self) -> bool {
        self.directories.state.is_some()
    }

    /// Returns a ticket that ends when every record that was written until now is durable.
    pub(crate) fn settle(&self) -> Ticket {
        self.writer.settle()
    }

    /// Lets peers find a volume.
    pub(crate) fn publish(&self, served: &ServedVolume) {
        self.exports.insert(Arc::clone(&served.export));
    }

    /// Sets the nodes that may use a volume. A user that is no longer allowed is cut off.
    pub(crate) fn set_allow(
        &self,
        served: &ServedVolume,
        allow: &[Allow],
        cores: &[LinkedSidecore],
    ) {
        served.export.set_allow(allow.to_vec());
        // The servers of peers read the lists in each round.
        wake(cores);
    }

    /// Makes all peers that have a description of the volume ask for it again.
    pub(crate) fn tell_changed(&self, served: &ServedVolume, cores: &[LinkedSidecore]) {
        for core in cores {
            let name = served.export.name().to_owned();
            on_server(core, move |server| server.changed(&name));
        }
        wake(cores);
    }

    /// Takes a volume from the peers that use it. They no longer find it, requests under way
    /// complete, and each attachment is closed clean. Attachments of `own` disks close themselves.
    ///
    /// # Errors
    /// When the storage does not complete in time. Peers find the volume again then, and go on with
    /// it.
    pub(crate) fn withdraw(
        &self,
        served: &ServedVolume,
        own: &[String],
        cores: &[LinkedSidecore],
    ) -> Result<(), String> {
        let export = &served.export;
        self.exports.remove(export.name());
        for core in cores {
            let export = Arc::clone(export);
            on_server(core, move |server| server.retire(&export));
        }
        let holders = export.holders().into_iter();
        for holder in holders.filter(|holder| !own.contains(&holder.attachment)) {
            let export = Arc::clone(export);
            on_server(&cores[0], move |server| {
                server.close(&export, &holder.attachment, holder.epoch);
            });
        }
        let until = Instant::now() + DRAIN_TIME_MAX;
        while !is_withdrawn(export, own, cores) {
            if Instant::now() >= until {
                self.publish(served);
                return Err(format!(
                    "requests of its attachments have not completed within {DRAIN_TIME_MAX:?}; its \
                     storage may be stuck. The volume stays, and its users continue"
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

/// The export of a volume that is closed for a reason, or has copies on several nodes.
fn closed_or_copy(
    wanted: &VolumeConfig,
    guarded: &Arc<dyn Volume>,
    options: &ExportOptions,
    (closed, member): (Option<String>, Option<&ServedMember>),
) -> Result<Option<Arc<Export>>, String> {
    let (name, volume, options) = (&wanted.name, Arc::clone(guarded), options.clone());
    let export = match (closed, member) {
        (Some(why), _) => {
            tracing::error!(volume = name, why, "the volume is not served");
            Export::closed(name, volume, options, &why)
        }
        (None, Some(member)) => Export::new(name, volume, options, member.records())
            .map_err(|error| error.to_string())?,
        (None, None) => return Ok(None),
    };
    // No client is admitted before the member serves, with the records of the last one; and a
    // client that can have the volume from another node must not wait here.
    if !wanted.replicas.is_empty() {
        export.set_elsewhere(Some(""));
    }
    Ok(Some(export))
}

/// Nodes that have a disk of the volume, which would be lost with it, also a disk without a guest
/// at the moment.
pub(crate) fn shown_by(volume: &str, cores: &[LinkedSidecore]) -> BTreeSet<String> {
    let now_ns = sidecore::now_ns();
    let ask = |core: &LinkedSidecore| {
        let volume = volume.to_owned();
        on_server(core, move |server| server.shown_by(now_ns, &volume))
    };
    cores.iter().filter_map(ask).flatten().collect()
}

/// Whether no peer has a part of the volume, and every close has ended.
fn is_withdrawn(export: &Arc<Export>, own: &[String], cores: &[LinkedSidecore]) -> bool {
    let closings: usize = cores
        .iter()
        .filter_map(|core| {
            let export = Arc::clone(export);
            on_server(core, move |server| server.closings(&export))
        })
        .sum();
    // Disks of this node may go on while the peers' requests drain.
    closings == 0 && (!own.is_empty() || export.is_quiet())
}

/// Runs `f` on a sidecore's server of peers, if it has one.
fn on_server<R: Send + 'static>(
    core: &LinkedSidecore,
    f: impl FnOnce(&mut Server) -> R + Send + 'static,
) -> Option<R> {
    let asked = core.sidecore.call(move |local| {
        let plane = local.services().get::<Plane>()?;
        let answer = f(&mut plane.borrow_mut().server);
        Some(answer)
    });
    asked.ok().flatten()
}

/// Why a volume cannot be beside these others with its key.
pub(crate) fn same_key(served: &ServedVolume, others: &[Arc<ServedVolume>]) -> Option<String> {
    let keys: Vec<_> = others.iter().filter_map(|it| Some((it.export.name(), it.key()?))).collect();
    ciphers::same_key(served.key().as_deref(), keys.iter().map(|(name, key)| (*name, &**key)))
}

/// A symbolic link must not lead out of the directories that the configuration names.
pub(crate) fn inside(path: &Path, homes: &[PathBuf]) -> Result<(), String> {
    // A file that will be made lies in the directory of its path.
    let real = path.canonicalize().or_else(|_| {
        let directory = path.parent().unwrap_or(path).canonicalize();
        directory.map(|directory| directory.join(path.file_name().unwrap_or_default()))
    });
    let Ok(real) = real else {
        // Opening the file gives a better message.
        return Ok(());
    };
    let mut homes = homes.iter().filter_map(|home| home.canonicalize().ok());
    if homes.any(|home| real.starts_with(home)) {
        return Ok(());
    }
    Err(format!(
        "{path:?} leads to {real:?}, which is outside the directories that \"volumes\" names; add \
         {:?} to them if this is intended",
        real.parent().unwrap_or(&real)
    ))
}

/// Why the records' directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("[directories]: cannot use {path:?}: {source}; {way_out}")]
pub(crate) struct StateError {
    pub(crate) path: PathBuf,
    pub(crate) r#source: std::io::Error,
    pub(crate) way_out: &'static str,
}

/// Two nodes that write the same records would break each other's promises.
fn lock_state(state: &Path) -> Result<File, StateError> {
    let refuse =
        |source: std::io::Error, way_out| StateError { path: state.to_owned(), source, way_out };
    let usable = "it holds the records of attachments, and must belong to this user alone";
    // Names of guests are private, and a user that can write there decides what is believed of lost
    // writes.
    make_private(state).map_err(|source| refuse(source, usable))?;
    let taken =
        sessions::lock::take(&state.join(".lock")).map_err(|source| refuse(source, usable))?;
    taken.ok_or_else(|| {
        let other = "another node keeps its records there; stop that node, or give this node \
                     another \"state\"";
        refuse(std::io::ErrorKind::ResourceBusy.into(), other)
    })
}
