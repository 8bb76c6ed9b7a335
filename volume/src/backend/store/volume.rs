//! A volume of a pool.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use aws_lc_rs::digest::{SHA256, digest};
use sidecore::CounterText;
use store::block::BLOCK_BYTES;
use store::{PoolChange, PoolError, PoolVolumeKind, VolumeId};

use super::channel::StoreChannel;
use super::failure::VolumeSigns;
use super::pool::{PoolInside, StorePool};
use crate::backend::kind::{BackendVolume, Opening, Remembered, Resizable, ResizeError};
use crate::record::{FileRecords, RecordError};
use crate::settings::show_size;
use crate::size::Size;
use crate::volume::{
    Channel, Incarnation, Io, OpenArguments, OpenError, Topology, Volume, VolumeInfo, Zeroing,
};

/// A failing disk fails many requests a second; one line in this time says enough.
const ERROR_LOG_INTERVAL_NS: u64 = 10_000_000_000;

sidecore::counters! {
    /// The counters of a volume of a pool. All its channels add to them, so they count rare events
    /// only.
    pub struct StoreCounters of AtomicU64 {
        errors: "Requests that the pool failed.",
        damaged: "Reads of blocks that are damaged on the medium. They are among the errors.",
        waited: "Requests that waited for the pool: it was full, or had too many at once.",
        waited_for_quota: "Requests that waited for the volume's limit, or for space that the pool \
                           reserves for other volumes. They are among the waited requests.",
        unaligned: "Requests that begin or end inside of a block of 4 KiB, which is read first.",
    }
}

/// The state that all channels of a volume share.
#[derive(Debug)]
pub(super) struct StoreShared {
    pool: Arc<StorePool>,
    pub(super) id: VolumeId,
    pub(super) info: VolumeInfo,
    pub(super) size: Size,
    pub(super) counters: StoreCounters,
    signs: Arc<VolumeSigns>,
    /// When an error was last logged; 0 before the first.
    logged_ns: AtomicU64,
}

impl StoreShared {
    pub(super) fn inside(&self) -> &Arc<PoolInside> {
        self.pool.inside()
    }

    /// Counts a failed request and logs it, unless one was logged lately.
    pub(super) fn note(&self, io: &Io, error: &PoolError, now_ns: u64) {
        self.counters.errors.fetch_add(1, Relaxed);
        if matches!(error, PoolError::Damaged { .. } | PoolError::MapDamaged) {
            self.counters.damaged.fetch_add(1, Relaxed);
        }
        let logged_ns = self.logged_ns.load(Relaxed);
        if logged_ns != 0 && now_ns.saturating_sub(logged_ns) < ERROR_LOG_INTERVAL_NS {
            return;
        }
        self.logged_ns.store(now_ns.max(1), Relaxed);
        tracing::error!(
            pool = self.pool.name(),
            volume = self.id.0,
            op = ?io.op,
            offset_bytes = io.offset_bytes,
            len_bytes = io.len_bytes,
            %error,
            "the pool failed a request; the guest sees an I/O error"
        );
    }
}

/// A volume or a snapshot of a pool that is open.
#[derive(Debug)]
pub struct StoreVolume {
    shared: Arc<StoreShared>,
    /// The incarnation of a volume that no record tells of.
    plain: Incarnation,
    is_encrypted: bool,
}

/// The ways in which a volume of a pool makes zeroes.
pub(super) fn zeroing(read_only: bool) -> Zeroing {
    match read_only {
        true => Zeroing::default(),
        false => Zeroing { unit_bytes: BLOCK_BYTES as u32, ..Zeroing::ALL },
    }
}

impl StoreVolume {
    /// Its counters.
    pub const COUNTERS: &'static [CounterText] = StoreCounters::DECLARED;

    /// The volume of this number of the pool. A snapshot is for reading only.
    ///
    /// # Errors
    /// The problem and the way out, for the operator.
    pub fn open(
        pool: &Arc<StorePool>,
        id: VolumeId,
        opening: &Opening<'_>,
    ) -> Result<Self, String> {
        let inside = pool.inside();
        let Some((found, size)) = inside.size_of(id) else {
            return Err(format!("pool {:?} has no volume with the number {}", pool.name(), id.0));
        };
        match found.kind {
            PoolVolumeKind::Snapshot if !opening.read_only => {
                return Err(format!(
                    "{:?} is a snapshot, which is never written: set read-only = true, or clone it",
                    found.name
                ));
            }
            PoolVolumeKind::Removing => {
                return Err(format!("{:?} is being removed from its pool", found.name));
            }
            PoolVolumeKind::Snapshot | PoolVolumeKind::Volume => {}
        }
        if found.receive.is_some() {
            return Err(format!(
                "a stream is being received into {:?}: let `vrio volume receive` go on, or end it \
                 with --give-up",
                found.name
            ));
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.map_err(|error| format!("cannot read the host's boot id: {error}"))?;
        let plain = incarnation(boot.trim(), inside.uuid(), id);
        let block_bytes = BLOCK_BYTES as u32;
        let known = |bytes: u32, otherwise| if bytes == 0 { otherwise } else { bytes };
        let info = VolumeInfo {
            size_bytes: size.get(),
            block_bytes: 512,
            read_only: opening.read_only,
            durability: opening.durability,
            volatile: false,
            incarnation: plain,
            zeroing: zeroing(opening.read_only),
            topology: Topology {
                physical_bytes: known(opening.topology.physical_bytes, block_bytes),
                optimal_bytes: opening.topology.optimal_bytes,
            },
        };
        let signs = Arc::default();
        inside.watch(&signs);
        let shared = StoreShared {
            pool: Arc::clone(pool),
            id,
            info,
            size,
            counters: StoreCounters::default(),
            signs,
            logged_ns: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), plain, is_encrypted: found.seal.is_some() })
    }
}

/// Nothing that was acknowledged is lost while the host runs: a row is on its device before its
/// requests complete. So the incarnation is the host's boot, and the same in a successor.
fn incarnation(boot: &str, pool: &[u8; 16], id: VolumeId) -> Incarnation {
    let mut text = boot.as_bytes().to_vec();
    text.extend(pool);
    text.extend(id.0.to_le_bytes());
    let hash = digest(&SHA256, &text);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    Incarnation(bytes)
}

impl Volume for StoreVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.shared.size.get(), ..self.shared.info.clone() }
    }

    fn size(&self) -> Size {
        self.shared.size.clone()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let channel = StoreChannel::open(Arc::clone(&self.shared), open.depth)?;
        Ok(Box::new(channel))
    }
}

impl BackendVolume for StoreVolume {
    fn describe(&self) -> String {
        let pool = &self.shared.pool;
        let how = if pool.is_direct() { "direct" } else { "buffered" };
        let state = match (self.has_failed(), pool.status().is_full) {
            (true, _) => ", FAILED: a device did not do its work",
            (false, true) => ", FULL: writes wait for space",
            (false, false) => "",
        };
        let sealed = if self.is_encrypted { ", encrypted" } else { "" };
        format!("pool {} ({how}{sealed}{state})", pool.name())
    }

    /// A successor opens the pool itself, by its configuration.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_failed(&self) -> bool {
        self.shared.signs.has_failed() || self.shared.inside().signs.has_failed()
    }

    fn in_pool(&self) -> Option<(&Arc<StorePool>, VolumeId)> {
        Some((&self.shared.pool, self.shared.id))
    }

    fn counted(&self, put: &mut dyn FnMut(&str, u64)) {
        for (name, value) in self.shared.counters.counted() {
            put(&format!("pool_{name}"), value);
        }
    }

    fn remember_by(&mut self, records: &FileRecords, adopted: bool) -> Result<(), RecordError> {
        let shared = Arc::get_mut(&mut self.shared).expect("no disk uses it yet");
        let (seen, now) = (self.plain.0, shared.info.incarnation);
        let (incarnation, note) = if adopted {
            (now, records.keep_incarnation(seen, now, shared.signs.has_failed())?)
        } else {
            records.incarnation(seen, now)?
        };
        shared.info.incarnation = incarnation;
        shared.signs.note_in(note);
        Ok(())
    }

    fn as_resizable(&self) -> Option<&dyn Resizable> {
        Some(self)
    }
}

impl Resizable for StoreVolume {
    /// The pool remembers the size; the configured one is only for a volume that is made.
    fn resize(
        &self,
        size_bytes: u64,
        _configured_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<Remembered, ResizeError> {
        let (block_bytes, now_bytes) = (BLOCK_BYTES as u32, self.shared.size.get());
        if self.shared.info.read_only {
            return Err(ResizeError::ReadOnly);
        }
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) || size_bytes == 0 {
            return Err(ResizeError::NotWhole { size_bytes, block_bytes });
        }
        if size_bytes < now_bytes && !shrink {
            return Err(ResizeError::Shrinks { now_bytes });
        }
        let blocks = size_bytes / u64::from(block_bytes);
        let change = PoolChange::Resize { volume: self.shared.id, blocks };
        self.shared.pool.change(change).map_err(|error| ResizeError::System {
            what: "change the size in the pool",
            source: std::io::Error::other(error.to_string()),
        })?;
        tracing::info!(volume = self.shared.id.0, size = show_size(size_bytes), "resized");
        Ok(Remembered::Yes)
    }
}
