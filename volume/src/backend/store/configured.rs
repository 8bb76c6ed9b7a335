//! A volume of a pool as the backend of a volume of the node: its keys, and finding or making it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sidecore::CounterText;
use store::{PoolChange, PoolVolume, PoolVolumeKind, VolumeId, block::BLOCK_BYTES};

use super::absent::AbsentVolume;
use super::compression::VolumeCompression;
use super::history::VolumeHistory;
use super::own_names::check_new_name;
use super::pool::StorePool;
use super::volume::StoreVolume;
use crate::backend::kind::{
    BackendNeeds, BackendPool, BackendVolume, FileAt, HandedBlocks, Opening, VolumeBackend,
    volume_bytes,
};
use crate::settings::{SettingKey, Settings, show_size};
use crate::stage::VolumeKey;

/// `pool = ".."`: a volume of a pool of the node. It has the volume's name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreBackend {
    /// The pool's name.
    pub pool: String,
    /// Its size if it is made, and the least size that it has.
    pub size_bytes: Option<u64>,
    /// The space that others cannot take.
    pub reservation_bytes: Option<u64>,
    /// The space that it and its snapshots may have.
    pub limit_bytes: Option<u64>,
    /// The snapshot that it begins as a copy of if it is made.
    pub from: Option<String>,
    /// The file of the key that encrypts it.
    pub key: Option<PathBuf>,
    /// Its compression; `None`: it keeps its compression.
    pub compression: Option<VolumeCompression>,
    /// Its history; `None`: it keeps its history.
    pub history: Option<VolumeHistory>,
}

impl VolumeBackend for StoreBackend {
    const NAME: &'static str = "pool";
    const EXAMPLE: &'static str = "pool = \"..\"";
    const KEYS: &'static [SettingKey] = &[
        SettingKey::new("pool", "A [pool](#pool) of this node: a thin volume that has snapshots."),
        SettingKey::new(
            "size",
            "The volume's size, for `pool`. It is made larger if it is smaller.",
        ),
        SettingKey::new(
            "reservation",
            "For `pool`: the space that the volume and its snapshots have for themselves: \
             writes of others wait before they take it. Refused if the pool has not so much free. \
             Default: the pool remembers the last one, and has none at first.",
        ),
        SettingKey::new(
            "limit",
            "For `pool`: the space that the volume and its snapshots may have. When it is used up, \
             the volume's writes wait, and no others. Default: the pool remembers the last \
             one, and has none at first.",
        ),
        SettingKey::new(
            "from",
            "For `pool`: the snapshot, `\"golden@v1\"`, as whose copy the volume begins if the \
             pool does not have it yet. A snapshot whose volume is gone is `\"p:17\"`, by its \
             number in the pool.",
        ),
        SettingKey::new(
            "key",
            "For `pool`: the absolute path of the file of the key that \
             [encrypts](pools.md#encrypted-volumes) the volume (`vrio key new --volume`).",
        ),
        SettingKey::new(
            "compression",
            "For `pool`: `\"lz4\"`, `\"zstd:N\"` with a level from 1 to 9, or `\"none\"`. Blocks \
             are compressed later, when the pool moves them or is idle, never while a guest \
             waits. Without this key the volume keeps the compression that it has; a new one has \
             none, and a clone that of its snapshot.",
        ),
        SettingKey::new(
            "history",
            "For `pool`: how far back the volume's [history](pools.md#history) reaches, `\"2h\"`, \
             or `\"none\"`. The pool keeps overwritten data, and `vrio volume at` makes a clone of \
             the volume as it was. Without this key the volume keeps the history that it has; a \
             new one and a clone have none.",
        ),
        SettingKey::new(
            "history-step",
            "The least time between two moments of the history, `\"5s\"`; 100 ms or more. Default: \
             `\"1s\"`.",
        ),
    ];
    // A pool has an io_uring of its own, and the sidecores need none for it.
    const NEEDS: BackendNeeds = BackendNeeds {
        uring: false,
        // Opening a pool syncs its devices.
        calls: &[libc::SYS_fdatasync],
    };
    const COUNTERS: &'static [CounterText] = StoreVolume::COUNTERS;

    fn read(settings: &dyn Settings, _: FileAt<'_>) -> Option<Self> {
        let pool = settings.text("pool")?;
        let size_bytes = match settings.has("size") {
            true => Some(whole_blocks(settings, volume_bytes(settings, "size")?)?),
            false => None,
        };
        let from = match settings.has("from") {
            true => Some(settings.text("from")?),
            false => None,
        };
        let compression = match settings.has("compression") {
            true => match settings.text("compression")?.parse() {
                Ok(compression) => Some(compression),
                Err(text) => {
                    settings.fail_key("compression", format!("\"compression\": {text}"));
                    return None;
                }
            },
            false => None,
        };
        if let Some(from) = from.as_ref().filter(|from| !from.contains(['@', ':'])) {
            let text = format!("{from:?} names no snapshot; write VOLUME@SNAPSHOT or POOL:NUMBER");
            settings.fail_key("from", format!("\"from\": {text}"));
            return None;
        }
        let (reservation_bytes, limit_bytes) = quota_of(settings)?;
        let key = match settings.has("key") {
            true => Some(settings.path("key", "key = \"/etc/vrio/alice.key\"")?),
            false => None,
        };
        let history = VolumeHistory::read(settings)?;
        Some(Self {
            pool,
            size_bytes,
            reservation_bytes,
            limit_bytes,
            from,
            key,
            compression,
            history,
        })
    }

    fn pool(&self) -> Option<BackendPool<'_>> {
        Some(BackendPool {
            name: &self.pool,
            size_bytes: self.size_bytes,
            reservation_bytes: self.reservation_bytes,
            limit_bytes: self.limit_bytes,
            compression: self.compression,
            history: self.history,
        })
    }

    fn key_file(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    fn with_key(&self, key: &Path) -> Option<Self> {
        Some(Self { key: Some(key.to_owned()), ..self.clone() })
    }

    fn with_size(&self, size_bytes: u64) -> Option<Self> {
        Some(Self { size_bytes: Some(size_bytes), ..self.clone() })
    }

    fn open(
        &self,
        opening: &Opening<'_>,
        _: Option<HandedBlocks>,
    ) -> Result<Box<dyn BackendVolume>, String> {
        let absent = |why: &str| AbsentVolume::new(&self.pool, why, self.size_bytes, opening);
        let pool = match opening.pools.get(&self.pool) {
            Some(Ok(pool)) => pool,
            Some(Err(why)) => {
                let why = format!("its pool {:?} is not open: {why}", self.pool);
                return Ok(Box::new(absent(&why)));
            }
            None => return Err(format!("this node has no pool {:?}", self.pool)),
        };
        let volume = pool.volume_named(opening.name);
        let is_new = volume.is_none();
        if volume.as_ref().is_some_and(|volume| volume.receive.is_some()) {
            let why = "a stream is being received into it: let `vrio volume receive` go on or end \
                       it with --give-up, then remove the volume and add it again";
            return Ok(Box::new(absent(why)));
        }
        let locked = |why: &str| {
            let name = opening.name;
            absent(&format!(
                "{why}. When that is done: `vrio volume remove {name} --force` and `vrio node \
                 reload` (a volume that the node's file does not have: add it again by the same \
                 command), or restart the node"
            ))
        };
        let key = match opening.key.transpose() {
            Ok(key) => key,
            // A key that cannot be read stops this volume, and no other.
            Err(why) => return Ok(Box::new(locked(&without_key(why, volume.as_ref())))),
        };
        let id = self.find(&pool, key, opening)?;
        if let Err(why) = unlock(&pool, id, key) {
            return Ok(Box::new(locked(&why)));
        }
        if !opening.read_only
            && let Err(error) = self.set_quota(&pool, id)
        {
            if is_new {
                return Err(error);
            }
            // The pool is fuller than it was, or has another limit by a command: no reason to keep
            // guests from what is theirs.
            let name = opening.name;
            tracing::error!(volume = name, error, "it keeps the reservation and limit that it has");
        }
        Ok(Box::new(StoreVolume::open(&pool, id, opening)?))
    }
}

impl StoreBackend {
    /// The volume in the pool, which is made if it is missing, and is as large as configured.
    fn find(
        &self,
        pool: &Arc<StorePool>,
        key: Option<&VolumeKey>,
        opening: &Opening<'_>,
    ) -> Result<VolumeId, String> {
        let (name, all) = (opening.name, pool.volumes());
        let is_it = |it: &&PoolVolume| it.kind == PoolVolumeKind::Volume && it.name == name;
        let change = |change| pool.change(change).map_err(|error| error.to_string());
        let (id, now_bytes, now) = match (all.iter().find(is_it), &self.from, self.size_bytes) {
            (Some(found), ..) => (found.id, found.size_bytes(), found.compression),
            (None, ..) if opening.read_only => {
                let pool = &self.pool;
                return Err(format!(
                    "pool {pool:?} has no volume {name:?}, and a volume without \"read-only\" \
                     makes it"
                ));
            }
            (None, Some(from), _) => {
                check_new_name(name)?;
                let snapshot = &snapshot_or_moment(pool, &all, from)?;
                check_key(snapshot, key)?;
                let checked = key.map(|key| pool.check_key(snapshot.id, key)).transpose();
                checked.map_err(|error| error.to_string())?;
                if let Some(size) = self.size_bytes.filter(|it| *it < snapshot.size_bytes()) {
                    return Err(format!(
                        "{from} has {}, and a clone of {} would lose its end: leave the size out, \
                         or write a larger one",
                        show_size(snapshot.size_bytes()),
                        show_size(size)
                    ));
                }
                let id =
                    change(PoolChange::Clone { snapshot: snapshot.id, name: name.to_owned() })?;
                (id, snapshot.size_bytes(), snapshot.compression)
            }
            (None, None, Some(size_bytes)) => {
                check_new_name(name)?;
                let blocks = size_bytes / BLOCK_BYTES as u64;
                let id = match key {
                    Some(key) => pool.create_sealed(name, blocks, key),
                    None => pool.change(PoolChange::Create { name: name.to_owned(), blocks }),
                };
                (id.map_err(|error| error.to_string())?, size_bytes, None)
            }
            (None, None, None) => {
                let pool = &self.pool;
                return Err(format!(
                    "pool {pool:?} has no volume {name:?}; write size = \"20GiB\" beside \"pool\" \
                     to have it made, or from = \"VOLUME@SNAPSHOT\" for a copy of a snapshot"
                ));
            }
        };
        if let Some(size_bytes) = self.size_bytes.filter(|size_bytes| *size_bytes > now_bytes) {
            let blocks = size_bytes / BLOCK_BYTES as u64;
            change(PoolChange::Resize { volume: id, blocks })?;
        }
        if let Some(VolumeCompression(compression)) = self.compression
            && compression != now
        {
            change(PoolChange::Compression { volume: id, compression })?;
        }
        self.set_history(pool, id)?;
        Ok(id)
    }

    /// Gives the volume the history that is written, unless it has that already.
    fn set_history(&self, pool: &Arc<StorePool>, id: VolumeId) -> Result<(), String> {
        let Some(VolumeHistory(history)) = self.history else { return Ok(()) };
        let found = pool.volumes().into_iter().find(|it| it.id == id);
        if found.and_then(|it| it.history?.options) == history {
            return Ok(());
        }
        let change = PoolChange::History { volume: id, history };
        pool.change(change).map(drop).map_err(|error| error.to_string())
    }

    /// Gives the volume the quota that is written, unless it has that already.
    fn set_quota(&self, pool: &Arc<StorePool>, id: VolumeId) -> Result<(), String> {
        let blocks = |bytes: u64| bytes / BLOCK_BYTES as u64;
        let found = pool.volumes().into_iter().find(|it| it.id == id);
        let now = found.map(|it| (it.reservation_blocks, it.limit_blocks)).unwrap_or_default();
        let reservation = self.reservation_bytes.map_or(now.0, blocks);
        let limit = self.limit_bytes.map_or(now.1, |bytes| Some(blocks(bytes)));
        if (reservation, limit) == now {
            return Ok(());
        }
        let change = PoolChange::Quota { volume: id, reservation, limit };
        pool.change(change).map(drop).map_err(|error| error.to_string())
    }
}

/// The reservation and the limit that are written.
fn quota_of(settings: &dyn Settings) -> Option<(Option<u64>, Option<u64>)> {
    let quota = |key| match settings.has(key) {
        true => whole_blocks_of(settings, key, volume_bytes(settings, key)?).map(Some),
        false => Some(None),
    };
    let (reservation_bytes, limit_bytes) = (quota("reservation")?, quota("limit")?);
    if limit_bytes.is_some_and(|limit_bytes| Some(limit_bytes) < reservation_bytes) {
        let text = "it is less than the reservation; make it larger";
        settings.fail_key("limit", format!("\"limit\": {text}"));
        return None;
    }
    Some((reservation_bytes, limit_bytes))
}

/// Whether a volume or snapshot is encrypted as its user says: a clone has the key of its snapshot.
fn check_key(volume: &PoolVolume, key: Option<&VolumeKey>) -> Result<(), String> {
    match (&volume.seal, key) {
        (Some(seal), None) => Err(format!(
            "it is encrypted under the key {}, and no key is named; write key = FILE beside \
             \"pool\" (`vrio key show FILE` prints a file's key)",
            seal.key_id
        )),
        (None, Some(key)) => Err(format!(
            "it is not encrypted in the pool, and the key {} is named for it; remove \"key\", or \
             copy its data into a new volume with a key",
            key.check()
        )),
        _ => Ok(()),
    }
}

/// Why a volume's key cannot be read, and for a volume that is encrypted already, which key it is.
fn without_key(why: &str, volume: Option<&PoolVolume>) -> String {
    match volume.and_then(|volume| volume.seal.as_ref()) {
        Some(seal) => format!(
            "{why}; the volume is encrypted under the key {}, and a new key does not open it: \
             bring the file of that key back",
            seal.key_id
        ),
        None => why.to_owned(),
    }
}

/// Gives the pool the key of an encrypted volume.
fn unlock(pool: &StorePool, id: VolumeId, key: Option<&VolumeKey>) -> Result<(), String> {
    let all = pool.volumes();
    let volume = all.iter().find(|it| it.id == id);
    volume.map_or(Ok(()), |volume| check_key(volume, key))?;
    let unlocked = key.map(|key| pool.unlock(id, key)).transpose();
    unlocked.map(drop).map_err(|error| error.to_string())
}

/// A size that a volume of a pool can have.
fn whole_blocks(settings: &dyn Settings, size_bytes: u64) -> Option<u64> {
    whole_blocks_of(settings, "size", size_bytes)
}

fn whole_blocks_of(settings: &dyn Settings, key: &str, size_bytes: u64) -> Option<u64> {
    if size_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Some(size_bytes);
    }
    let text = format!("a volume of a pool has whole blocks of {BLOCK_BYTES} bytes; round it");
    settings.fail_key(key, format!("{key:?}: {}: {text}", show_size(size_bytes)));
    None
}

/// The snapshot that a new volume begins as a copy of; or a moment of a history, which has only a
/// number.
fn snapshot_or_moment(
    pool: &StorePool,
    all: &[PoolVolume],
    words: &str,
) -> Result<PoolVolume, String> {
    let number = words.split_once(':').filter(|(of, _)| *of == pool.name());
    let number = number.and_then(|(_, number)| number.parse().ok());
    match number.and_then(|number| pool.moment(VolumeId(number))) {
        Some(moment) => Ok(moment),
        None => snapshot_of(pool.name(), all, words).cloned(),
    }
}

/// A snapshot by the words of people: `VOLUME@SNAPSHOT`, or `POOL:NUMBER`.
///
/// # Errors
/// Why it is none, and which there are.
pub fn snapshot_of<'a>(
    pool: &str,
    all: &'a [PoolVolume],
    words: &str,
) -> Result<&'a PoolVolume, String> {
    let mut snapshots = all.iter().filter(|it| it.kind == PoolVolumeKind::Snapshot);
    let found = match (words.split_once('@'), words.split_once(':')) {
        (Some((volume, name)), _) => {
            let is_of = |it: &PoolVolume| {
                let of = all.iter().find(|of| Some(of.id) == it.of);
                of.is_some_and(|of| of.kind == PoolVolumeKind::Volume && of.name == volume)
            };
            snapshots.find(|it| it.name == name && is_of(it))
        }
        (None, Some((of, number))) if of == pool => {
            snapshots.find(|it| number.parse() == Ok(it.id.0))
        }
        _ => None,
    };
    found.ok_or_else(|| {
        format!("pool {pool:?} has no snapshot {words:?}; `vrio pool show {pool}` lists them")
    })
}
