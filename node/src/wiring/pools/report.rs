//! The status of pools.

use config::{DiskConfig, PoolConfig};
use sidecore::CounterText;
use store::{
    DedupStatus, PoolStatus, PoolVolume, PoolVolumeKind, QuotaWait, ScrubStatus, VolumeId,
    block::BLOCK_BYTES,
};
use volume::backend::store::{PooledDevice, Pools, StorePool, reason_of_full};

use super::history;
use super::streams::progress;
use crate::wiring::objects::Objects;
use api::status::{
    Counters, Origin, PackedReport, PoolDeviceStatus, PoolState, PooledStatus, ScrubReport,
    SharedReport, StoragePoolStatus,
};

/// The pools, in the order in which they were added.
pub(crate) fn status(pools: &Pools, objects: &Objects) -> Vec<StoragePoolStatus> {
    let each = objects.config.pools.iter();
    each.map(|config| {
        let origin = objects.origin::<PoolConfig>(&config.name);
        let found = match pools.get(&config.name) {
            Some(Ok(pool)) => opened(&pool, objects),
            Some(Err(why)) => not_open(config, origin, objects, &why),
            None => not_open(config, origin, objects, "it is being removed"),
        };
        let (name, class) = (config.name.clone(), config.class.clone());
        StoragePoolStatus { name, class, origin, ..found }
    })
    .collect()
}

fn device(it: &PooledDevice, segment_blocks: u32) -> PoolDeviceStatus {
    PoolDeviceStatus {
        path: it.path.display().to_string(),
        number: it.device.number,
        size_bytes: bytes(u64::from(it.device.segments) * u64::from(segment_blocks)),
        used_bytes: bytes(it.device.live_blocks),
        leaving: it.device.is_leaving,
        stuck: it.device.is_stuck,
        left_s: it.left.map(|left| left.as_secs() + 1),
    }
}

fn not_open(
    config: &PoolConfig,
    origin: Origin,
    objects: &Objects,
    why: &str,
) -> StoragePoolStatus {
    let name = &config.name;
    let devices = config.devices.iter().map(|path| path.display().to_string()).collect();
    let again = match origin {
        Origin::File => "`vrio node reload`, or restart the node",
        Origin::Command => "`vrio pool add` and its volumes again, since the file has none of them",
    };
    let writes_back = |disk: &DiskConfig| {
        let cache = disk.cache.as_ref().filter(|cache| cache.pool == *name);
        cache.is_some_and(|cache| cache.write_back.is_some())
    };
    let detail = match objects.config.disks.iter().find(|disk| writes_back(disk)) {
        // The pool is not removed under it.
        Some(disk) => format!(
            "{why}. When that is done, restart the node: disk {:?} writes back from it",
            disk.name
        ),
        None => {
            format!("{why}. When that is done: `vrio pool remove {name} --force` and {again}")
        }
    };
    let state = PoolState::Failed;
    StoragePoolStatus { state, detail, devices, ..StoragePoolStatus::default() }
}

fn opened(pool: &StorePool, objects: &Objects) -> StoragePoolStatus {
    let (status, all) = (pool.status(), pool.volumes());
    let (state, detail) = verdict(&status);
    let mut counters: Counters =
        NOW.iter().map(|it| (it.name.to_owned(), (it.read)(&status))).collect();
    pool.counted(&mut |name, value| {
        counters.insert(name.to_owned(), value);
    });
    let served = |id: VolumeId| {
        objects.volumes.iter().any(|served| {
            let of = served.backend.in_pool();
            of.is_some_and(|(of, its)| std::ptr::eq(&**of, pool) && its == id)
        })
    };
    let volumes = all.iter().map(|it| PooledStatus {
        number: it.id.0,
        name: name_of(pool.name(), &all, it),
        kind: kind(it.kind).to_owned(),
        size_bytes: it.size_bytes(),
        from: it.parent.and_then(|parent| {
            let parent = all.iter().find(|it| it.id == parent)?;
            (parent.kind == PoolVolumeKind::Snapshot).then(|| name_of(pool.name(), &all, parent))
        }),
        taken: taken(it),
        served: served(it.id),
        owned_bytes: bytes(it.owned_blocks),
        referred_bytes: it.referred_blocks.map(bytes),
        account_bytes: bytes(it.account_blocks),
        reservation_bytes: bytes(it.reservation_blocks),
        limit_bytes: it.limit_blocks.map(bytes),
        waits: it.wait.map(|wait| waits(wait).to_owned()),
        key: it.seal.as_ref().map(|seal| seal.key_id.clone()),
        old_key_bytes: it.seal.as_ref().map_or(0, |seal| bytes(seal.old_blocks)),
        compression: it.compression.map(|compression| compression.to_string()),
        history: it.history.map(|history| history::report(history, bytes)),
        receiving: pool.receiving(it).map(|state| progress(&it.name, &state)),
    });
    let devices = pool.devices();
    let device_list: Vec<_> = devices.iter().map(|it| device(it, status.segment_blocks)).collect();
    let full_for = pool.full_for().filter(|_| state != PoolState::Ok);
    StoragePoolStatus {
        state,
        detail,
        full_for_s: full_for.map(|time| time.as_secs()),
        devices: device_list.iter().map(|it| it.path.clone()).collect(),
        device_list,
        size_bytes: bytes(status.size_blocks),
        used_bytes: bytes(status.used_blocks),
        packed: PackedReport {
            data_bytes: bytes(status.packed_pages),
            used_bytes: bytes(status.packed_blocks),
            all_bytes: bytes(status.data_blocks.saturating_sub(status.shared.saved())),
        },
        shared: shared(&status),
        volumes: volumes.collect(),
        scrub: scrub(pool, &status.scrub, &all),
        counters,
        ..StoragePoolStatus::default()
    }
}

fn shared(status: &PoolStatus) -> SharedReport {
    let DedupStatus { is_on, index_pages, index_pages_max, walked_segments } = status.dedup;
    SharedReport {
        is_on,
        saved_bytes: bytes(status.shared.saved()),
        zero_bytes: bytes(status.shared.zeroes),
        looked_at_percent: (100 * walked_segments / status.segments.total.max(1)).min(100) as u8,
        known_bytes: bytes(index_pages),
        known_bytes_max: bytes(index_pages_max),
    }
}

fn scrub(pool: &StorePool, status: &ScrubStatus, all: &[PoolVolume]) -> ScrubReport {
    let left_s = pool.scrub_left(status).map(|left| left.as_secs_f64().ceil() as u64);
    let found = status.found.iter().map(|found| {
        let volume = all.iter().find(|it| it.id == found.volume);
        let name = volume.map_or_else(
            || format!("{}:{}", pool.name(), found.volume.0),
            |it| name_of(pool.name(), all, it),
        );
        format!("{name} at {}", bytes(found.block))
    });
    ScrubReport {
        is_running: status.is_running,
        is_paused: status.is_paused,
        passes: status.passes,
        checked_bytes: bytes(status.checked_blocks),
        total_bytes: bytes(status.total_blocks),
        left_s,
        unproved_bytes: bytes(status.unproved_blocks),
        damaged_blocks: status.damaged_blocks,
        damaged_map_blocks: status.damaged_map_blocks,
        found: found.collect(),
    }
}

/// A pool that has less left than this is full: its last requests are on their way, and the next
/// one may have 257 blocks.
const FULL_BLOCKS: u64 = 512;

fn verdict(status: &PoolStatus) -> (PoolState, String) {
    if let Some(why) = &status.failed {
        let detail = format!("{why}; correct the cause, then restart the node");
        return (PoolState::Failed, detail);
    }
    let is_used_up = status.used_blocks + FULL_BLOCKS >= status.size_blocks;
    let (state, what) = match (status.no_space, status.is_full) {
        (true, _) => (PoolState::Full, reason_of_full(status)),
        (false, true) if is_used_up => (PoolState::Full, reason_of_full(status)),
        (false, true) => (PoolState::Collecting, "writes wait until it has collected room"),
        (false, false) if status.devices.iter().any(|device| device.is_stuck) => {
            let what = "a device that was to leave cannot: remove snapshots or volumes, add \
                        another device, or keep it with `vrio pool shrink --stop`";
            (PoolState::Ok, what)
        }
        (false, false) => (PoolState::Ok, ""),
    };
    (state, what.to_owned())
}

fn waits(wait: QuotaWait) -> &'static str {
    match wait {
        QuotaWait::Limit => {
            "it has reached its limit: remove snapshots of it, have its guest discard (fstrim), or \
             raise the limit (vrio volume quota)"
        }
        QuotaWait::Reserved => {
            "the rest of the pool is reserved for other volumes: remove snapshots or volumes, \
             make the pool larger, or lower a reservation (vrio volume quota)"
        }
    }
}

fn kind(kind: PoolVolumeKind) -> &'static str {
    match kind {
        PoolVolumeKind::Volume => "volume",
        PoolVolumeKind::Snapshot => "snapshot",
        PoolVolumeKind::Removing => "removing",
    }
}

fn taken(volume: &PoolVolume) -> Option<String> {
    let at_s = i64::try_from(volume.at_s).ok().filter(|at_s| *at_s > 0)?;
    Some(jiff::Timestamp::from_second(at_s).ok()?.to_string())
}

/// As commands name it: by its name, or where it has none of its own, by its number.
fn name_of(pool: &str, all: &[PoolVolume], volume: &PoolVolume) -> String {
    let by_number = || format!("{pool}:{}", volume.id.0);
    match volume.kind {
        PoolVolumeKind::Volume => volume.name.clone(),
        PoolVolumeKind::Removing => by_number(),
        PoolVolumeKind::Snapshot => {
            let is_of =
                |it: &&PoolVolume| Some(it.id) == volume.of && it.kind == PoolVolumeKind::Volume;
            let of = all.iter().find(is_of);
            of.map_or_else(by_number, |of| format!("{}@{}", of.name, volume.name))
        }
    }
}

/// The metrics of a pool beside its counters.
const POOL_METRICS: [CounterText; 4] = [
    CounterText { name: "size_bytes", help: "The most that the pool can hold." },
    CounterText { name: "used_bytes", help: "How much of that is in use." },
    CounterText { name: "state", help: "1 for the state that the pool is in." },
    CounterText { name: "volumes", help: "Its volumes and snapshots." },
];

/// The descriptions of all metrics of a pool.
pub(crate) fn metrics() -> Vec<CounterText> {
    let now = NOW.iter().map(|it| CounterText { name: bare(it.name), help: it.help });
    POOL_METRICS.into_iter().chain(now).chain(StorePool::COUNTERS.iter().copied()).collect()
}

/// The name of a counter's metric.
fn bare(name: &'static str) -> &'static str {
    name.strip_suffix("_now").unwrap_or(name)
}

/// A number about a pool that goes up and down.
struct PoolNumber {
    name: &'static str,
    help: &'static str,
    read: fn(&PoolStatus) -> u64,
}

const fn number(
    name: &'static str,
    help: &'static str,
    read: fn(&PoolStatus) -> u64,
) -> PoolNumber {
    PoolNumber { name, help, read }
}

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

const NOW: [PoolNumber; 19] = [
    number("data_bytes_now", "Guests' data, as large as guests see it.", |it| {
        bytes(it.data_blocks)
    }),
    number("compressed_data_bytes_now", "The part of it that is compressed.", |it| {
        bytes(it.packed_pages)
    }),
    number("compressed_bytes_now", "The space that the compressed part takes.", |it| {
        bytes(it.packed_blocks)
    }),
    number(
        "deduplicated_bytes_now",
        "Data that would take space and shares that of other data.",
        |it| bytes(it.shared.saved()),
    ),
    number("deduplication_known_bytes_now", "Data whose content the search for it knows.", |it| {
        bytes(it.dedup.index_pages)
    }),
    number(
        "deduplication_looked_at_segments_now",
        "Segments that the search of the idle pool has come past, of all.",
        |it| it.dedup.walked_segments,
    ),
    number("segments_now", "Segments of the pool.", |it| it.segments.total),
    number("segments_free_now", "Segments that can be written.", |it| it.segments.free),
    number("segments_emptied_now", "Segments that the next checkpoint frees.", |it| {
        it.segments.emptied
    }),
    number("segments_kept_now", "Segments that a damaged head keeps from being freed.", |it| {
        it.segments.kept
    }),
    number(
        "log_bytes_now",
        "The log since the checkpoint, which an opening after a crash reads.",
        |it| bytes(it.log_blocks),
    ),
    number("map_memory_bytes_now", "Pages of the map in memory.", |it| bytes(it.cached_blocks)),
    number("map_changed_bytes_now", "Those that changed since the checkpoint.", |it| {
        bytes(it.dirty_blocks)
    }),
    number("removing_now", "1 while a removed volume or snapshot is being freed.", |it| {
        u64::from(it.is_removing)
    }),
    number("scrubbing_now", "1 while all blocks are read and proved.", |it| {
        u64::from(it.scrub.is_running)
    }),
    number("scrub_checked_bytes_now", "Bytes that the last scrub has proved.", |it| {
        bytes(it.scrub.checked_blocks)
    }),
    number("scrub_total_bytes_now", "Bytes that there were when it began.", |it| {
        bytes(it.scrub.total_blocks)
    }),
    number("scrub_damaged_now", "Damaged blocks that it has found.", |it| {
        it.scrub.damaged_blocks + it.scrub.damaged_map_blocks
    }),
    number("collecting_now", "1 while a segment is being collected.", |it| {
        u64::from(it.is_collecting)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(id: u32, name: &str, kind: PoolVolumeKind, of: Option<u32>) -> PoolVolume {
        let of = of.map(VolumeId);
        let name = name.to_owned();
        PoolVolume {
            id: VolumeId(id),
            name,
            kind,
            of,
            parent: None,
            blocks: 1,
            at_s: 0,
            generation: 0,
            compression: None,
            history: None,
            origin: None,
            receive: None,
            owned_blocks: 0,
            referred_blocks: None,
            account_blocks: 0,
            reservation_blocks: 0,
            limit_blocks: None,
            wait: None,
            seal: None,
        }
    }

    #[test]
    fn a_snapshot_is_named_by_its_volume_and_without_one_by_its_number() {
        let all = [
            pooled(1, "alice", PoolVolumeKind::Volume, None),
            pooled(2, "monday", PoolVolumeKind::Snapshot, Some(1)),
            pooled(3, "monday", PoolVolumeKind::Snapshot, Some(9)),
            pooled(4, "", PoolVolumeKind::Removing, None),
        ];
        let names: Vec<_> = all.iter().map(|it| name_of("p", &all, it)).collect();
        assert_eq!(names, ["alice", "alice@monday", "p:3", "p:4"]);
    }
}
