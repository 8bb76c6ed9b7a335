//! Looking at a pool: proving all its blocks, and the difference of two snapshots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Kind, PoolConfig, duration_ns};
use copies::{SCRUB_RATE_BYTES, scrub_rate};
use serde::Deserialize;
use serde_json::Value;
use store::{ChangedRun, PoolVolume, ScrubPace, block::BLOCK_BYTES};
use volume::backend::store::{StorePool, snapshot_of};

use super::snapshots::{done, fields, refused};
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown_of;
use api::{API_VERSION, Done, Refused, RefusedKind, SnapshotDiff, SnapshotRun};

/// The most runs of an answer: a few megabytes.
const RUNS_MAX: usize = 32_768;

/// How long an answer may take to gather. The caller asks for the rest.
const GATHER_TIME: Duration = Duration::from_secs(5);

/// A request to prove all blocks.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Scrub {
    rate: Option<String>,
    within: Option<String>,
    pause: bool,
}

impl Scrub {
    /// The pace, if there is one.
    fn pace(&self) -> Result<Option<ScrubPace>, Refused> {
        let bad = |key: &str, error: String| {
            Refused::new(RefusedKind::Bad, format!("{key:?}: {error}"), "nothing was changed")
        };
        let rate = scrub_rate(self.rate.as_deref())?;
        let within_ns = self.within.as_deref().map(duration_ns).transpose();
        let within_ns = within_ns.map_err(|error| bad("within", error))?;
        if self.pause && (rate.is_some() || within_ns.is_some()) {
            return Err(bad("pause", "a scrub that rests has no pace; send it alone".to_owned()));
        }
        let pace = |bytes: u64| bytes / BLOCK_BYTES as u64;
        Ok(match (rate, within_ns) {
            (None, None) => None,
            (Some(rate), within_ns) => Some(ScrubPace { blocks_per_s_max: pace(rate), within_ns }),
            (None, Some(_)) => Some(ScrubPace { blocks_per_s_max: u64::MAX, within_ns }),
        })
    }

    /// The pace in words.
    fn words(&self) -> String {
        let rate = self.rate.as_ref().map(|rate| format!(" at most {rate} in a second"));
        let within = self.within.as_ref().map(|within| format!(" within {within}"));
        [within, rate].into_iter().flatten().collect::<Vec<_>>().join(",")
    }
}

impl Inside {
    /// Begins to read and prove all blocks of a pool, has that go on or rest, or changes its pace.
    pub(crate) fn scrub(&self, pool: &str, body: &Value) -> Result<Done, Refused> {
        let way_out = "{\"rate\": \"100MiB\"}, which is bytes in a second, {\"within\": \"7d\"} or \
                       {\"pause\": true}";
        let wanted: Scrub = fields(body, way_out)?;
        let pace = wanted.pace()?;
        let _turn = self.turn()?;
        let pool = self.open_pool(pool)?;
        let (status, name) = (pool.status(), pool.name());
        if let Some(why) = status.failed {
            let error = format!("pool {name:?} has failed: {why}");
            return Err(Refused::new(RefusedKind::Failed, error, "correct its cause first"));
        }
        let is_running = status.scrub.is_running;
        if wanted.pause {
            if !is_running {
                return Err(no_scrub(name));
            }
            pool.pause_scrub();
            return Ok(done(vec![format!("pause the scrub of pool {name:?}")]));
        }
        let goes_on = is_running && pace.is_none();
        let blocks_per_s = SCRUB_RATE_BYTES / BLOCK_BYTES as u64;
        pool.scrub(pace.or((!goes_on).then(|| ScrubPace::of(blocks_per_s))));
        let text = match (goes_on, pace) {
            (true, _) => format!("go on with the scrub of pool {name:?}, at its own pace"),
            (false, Some(_)) => format!("scrub pool {name:?}{}", wanted.words()),
            (false, None) => {
                let rate = config::show_size(SCRUB_RATE_BYTES);
                format!("scrub pool {name:?} at most {rate} in a second")
            }
        };
        Ok(done(vec![text]))
    }

    /// Ends it before it is through.
    pub(crate) fn stop_scrub(&self, pool: &str) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        let pool = self.open_pool(pool)?;
        if !pool.status().scrub.is_running {
            return Err(no_scrub(pool.name()));
        }
        pool.stop_scrub();
        Ok(done(vec![format!("stop the scrub of pool {:?}", pool.name())]))
    }

    /// A part of the difference of two snapshots; `from` may be missing.
    pub(crate) fn diff(
        &self,
        from: Option<&str>,
        to: &str,
        start: u64,
    ) -> Result<SnapshotDiff, Refused> {
        let (pool, to) = self.snapshot(to)?;
        let from = from.map(|from| self.snapshot_beside(&pool, from)).transpose()?;
        let from = from.map(|from| from.id);
        let block_bytes = BLOCK_BYTES as u64;
        let (began, mut runs, mut next) = (Instant::now(), Vec::new(), Some(start / block_bytes));
        while let Some(block) = next
            && runs.len() < RUNS_MAX
            && began.elapsed() < GATHER_TIME
        {
            let found = pool.changed(from, to.id, block);
            let found = found.map_err(|error| refused("the difference", &error))?;
            runs.extend(found.runs.iter().map(run));
            next = found.next_block;
        }
        let next_bytes = next.map(|block| block * block_bytes);
        let size_bytes = to.size_bytes();
        Ok(SnapshotDiff { version: API_VERSION, size_bytes, runs, next_bytes })
    }

    /// A snapshot of the same pool as another snapshot.
    pub(super) fn snapshot_beside(
        &self,
        pool: &Arc<StorePool>,
        words: &str,
    ) -> Result<PoolVolume, Refused> {
        let (other, found) = self.snapshot(words)?;
        if !Arc::ptr_eq(&other, pool) {
            let error =
                format!("one is in pool {:?}, the other in pool {:?}", other.name(), pool.name());
            return Err(Refused::new(RefusedKind::Conflict, error, "name two of one pool"));
        }
        Ok(found)
    }

    /// A snapshot of any pool.
    pub(super) fn snapshot(&self, words: &str) -> Result<(Arc<StorePool>, PoolVolume), Refused> {
        let pools = self.volumes.stock().pools().opened();
        let found = pools.into_iter().find_map(|pool| {
            let all = pool.volumes();
            let found = snapshot_of(pool.name(), &all, words).ok().cloned()?;
            Some((pool, found))
        });
        found.ok_or_else(|| {
            let error = format!("there is no snapshot {words:?}");
            let way_out = "`vrio volume snapshots` lists them: VOLUME@SNAPSHOT, or POOL:NUMBER";
            Refused::new(RefusedKind::Unknown, error, way_out)
        })
    }

    /// A pool that is open.
    pub(crate) fn open_pool(&self, name: &str) -> Result<Arc<StorePool>, Refused> {
        match self.volumes.stock().pools().get(name) {
            Some(Ok(pool)) => Ok(pool),
            Some(Err(why)) => {
                let error = format!("pool {name:?} is not open: {why}");
                Err(Refused::new(RefusedKind::Failed, error, "nothing was changed"))
            }
            None => {
                let kind = Kind::of::<PoolConfig>();
                let config = self.objects().config.clone();
                Err(unknown_of(kind, name, &config.names(kind)))
            }
        }
    }
}

fn no_scrub(pool: &str) -> Refused {
    let error = format!("pool {pool:?} is not being scrubbed");
    let way_out = "`vrio pool show` has the result of the last scrub; begin one with `vrio pool \
                   scrub`";
    Refused::new(RefusedKind::Conflict, error, way_out)
}

fn run(run: &ChangedRun) -> SnapshotRun {
    let block_bytes = BLOCK_BYTES as u64;
    SnapshotRun {
        offset_bytes: run.block * block_bytes,
        length_bytes: run.blocks * block_bytes,
        zeroes: run.is_hole,
    }
}
