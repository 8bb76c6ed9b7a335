//! The history of a volume: moments of it, which the pool takes by itself.

use serde::{Deserialize, Serialize};

use pool_stream::VolumeId;

/// How far a history reaches back, and how close its moments are. It is logged and part of a
/// checkpoint, so a field's name is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryOptions {
    /// How far it reaches back, in milliseconds.
    pub reach_ms: u64,
    /// The least time between two moments, in milliseconds.
    pub step_ms: u64,
}

impl HistoryOptions {
    /// The least time between two moments: each is a record of the log, and 64 bytes of each
    /// checkpoint for as long as it is kept.
    pub const STEP_MS_MIN: u64 = 100;

    /// The most moments of a volume's history: two hours at a tenth of a second are 72,000. They
    /// are 5 MiB of each copy of a checkpoint's state.
    pub const MOMENTS_MAX: u64 = 80_000;

    /// The most moments of a pool, whose checkpoints write all of them: 10 MiB in each copy.
    pub const POOL_MOMENTS_MAX: u64 = 160_000;

    /// The furthest reach: ten years.
    pub const REACH_MS_MAX: u64 = 3_652 * 86_400_000;

    /// Whether a history may be so.
    ///
    /// # Errors
    /// The fault, and the way out.
    pub fn check(&self) -> Result<(), String> {
        let Self { reach_ms, step_ms } = *self;
        if step_ms < Self::STEP_MS_MIN {
            return Err(format!(
                "a step of {step_ms} ms is too short: take {} ms or more",
                Self::STEP_MS_MIN
            ));
        }
        if reach_ms < step_ms || reach_ms > Self::REACH_MS_MAX {
            let text = "a history reaches back for a step at least and ten years at most: choose a \
                        time between these";
            return Err(text.to_owned());
        }
        if reach_ms.div_ceil(step_ms) > Self::MOMENTS_MAX {
            return Err(format!(
                "a history has {} moments at most, and this history would have {}: make its step \
                 longer ({} ms for this time) or the time shorter",
                Self::MOMENTS_MAX,
                reach_ms.div_ceil(step_ms),
                reach_ms.div_ceil(Self::MOMENTS_MAX).max(Self::STEP_MS_MIN),
            ));
        }
        Ok(())
    }

    pub(crate) fn reach_ns(&self) -> u64 {
        self.reach_ms.saturating_mul(1_000_000)
    }

    pub(crate) fn step_ns(&self) -> u64 {
        self.step_ms.saturating_mul(1_000_000).max(1)
    }
}

/// A moment of a volume's history. It can be read and cloned as a snapshot can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMoment {
    /// Its number.
    pub id: VolumeId,
    /// Its time, in nanoseconds since 1970.
    pub at_ns: u64,
}

/// Why no moments are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryRest {
    /// The pool is nearly full.
    PoolFull,
    /// The volume is near its limit.
    Limit,
    /// The pool has had so many snapshots and moments that the rest are kept for snapshots.
    Generations,
    /// A stream is being received into the volume.
    Receiving,
}

/// The history of a volume, as a list has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolHistory {
    /// How it is kept; `None`: it is not kept any more, and its moments go.
    pub options: Option<HistoryOptions>,
    /// Its moments.
    pub moments: u64,
    /// The time of the oldest one, in nanoseconds since 1970; 0 without moments.
    pub oldest_ns: u64,
    /// The time of the newest one.
    pub newest_ns: u64,
    /// Blocks that it has, and neither the volume nor a snapshot.
    pub blocks: u64,
    /// The time of the last moment that had to give way to a full pool, or to the volume's limit;
    /// 0 if none had.
    pub shortened_ns: u64,
    /// Why no moments are taken now.
    pub rests: Option<HistoryRest>,
}

/// The history of a volume in a checkpoint; its moments are in a table of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeHistory {
    reach_ms: u64,
    step_ms: u64,
    /// The time of the last moment that had to give way.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) shortened_ns: u64,
}

impl VolumeHistory {
    pub(crate) fn new(options: HistoryOptions, shortened_ns: u64) -> Self {
        let HistoryOptions { reach_ms, step_ms } = options;
        Self { reach_ms, step_ms, shortened_ns }
    }

    pub(crate) fn options(&self) -> HistoryOptions {
        HistoryOptions { reach_ms: self.reach_ms, step_ms: self.step_ms }
    }
}

/// For fields that are left out.
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}
