//! The history of a volume of a pool: it is kept or not, and it has moments.

use std::time::SystemTime;

use config::{VolumeConfig, duration_ns};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use store::{PoolChange, PoolError, PoolHistory};
use volume::backend::store::VolumeHistory;

use super::snapshots::{done, fields, refused};
use crate::wiring::inside::Inside;
use api::status::HistoryReport;
use api::{API_VERSION, Done, MomentReport, Refused, RefusedKind};

/// A request for another history.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeepHistory {
    history: String,
    step: Option<String>,
}

/// The question which moment a history has at a time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindMoment {
    at: String,
}

impl Inside {
    /// Has a volume keep a history, or another history, or no history. The pool remembers it.
    pub(crate) fn keep_history(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let example = "{\"history\": \"2h\", \"step\": \"1s\"}";
        let KeepHistory { history, step } = fields(body, example)?;
        let wanted = wanted(&history, step.as_deref());
        let wanted = wanted.map_err(|error| {
            Refused::new(RefusedKind::Bad, error, format!("send {example}, or \"none\""))
        })?;
        let _turn = self.turn()?;
        if !self.set_history(name, wanted)? {
            return Ok(done(Vec::new()));
        }
        let mut done = done(vec![format!("the history of volume {name:?} is now {wanted}")]);
        let objects = self.objects();
        let config = objects.config.volumes.iter().find(|volume| volume.name == name);
        let configured = config.and_then(|volume| volume.backend.pool()?.history);
        if let Some(configured) = configured.filter(|configured| *configured != wanted) {
            done.notes.push(format!(
                "the configuration says {configured}, which comes back at a restart or reload; \
                 write {wanted} there to keep it"
            ));
        }
        Ok(done)
    }

    /// Gives a volume the history that its configuration says now.
    pub(crate) fn follow_history(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let wanted = volume.backend.pool().and_then(|pool| pool.history);
        self.set_history(&volume.name, wanted.expect("only a configured one is changed"))?;
        let mut objects = self.objects();
        let config = objects.volume_config(&volume.name).expect("the caller has the turn");
        config.backend.clone_from(&volume.backend);
        Ok(Vec::new())
    }

    /// Changes the pool's volume; whether it was another history before.
    fn set_history(&self, name: &str, wanted: VolumeHistory) -> Result<bool, Refused> {
        let (_, pool, id) = self.pooled(name)?;
        let VolumeHistory(history) = wanted;
        let all = pool.volumes();
        let now = all.iter().find(|it| it.id == id).and_then(|it| it.history?.options);
        if now == history {
            return Ok(false);
        }
        let changed = pool.change(PoolChange::History { volume: id, history });
        changed.map_err(|error| refused(&format!("volume {name:?}"), &error))?;
        Ok(true)
    }

    /// The last moment of a volume's history at a time or before it.
    pub(crate) fn find_moment(&self, name: &str, body: &Value) -> Result<MomentReport, Refused> {
        let FindMoment { at } = fields(body, "{\"at\": \"2026-11-28T21:00:00Z\"}")?;
        let at_ns = time_ns(&at, utc_ns())
            .map_err(|error| Refused::new(RefusedKind::Bad, error, "nothing was changed"))?;
        let (_, pool, id) = self.pooled(name)?;
        let found = pool.moment_at(id, at_ns).map_err(|error| no_moment(name, at_ns, &error))?;
        Ok(MomentReport {
            version: API_VERSION,
            pool: pool.name().to_owned(),
            number: found.id.0,
            time: show_time(found.at_ns),
        })
    }
}

fn no_moment(name: &str, at_ns: u64, error: &PoolError) -> Refused {
    let (error, way_out) = match error {
        PoolError::NoHistory(_) => (
            format!("volume {name:?} has no history"),
            format!("`vrio volume history {name} 2h` has it keep one from now on"),
        ),
        PoolError::BeforeHistory { oldest_ns } => {
            let (at, oldest) = (show_time(at_ns), show_time(*oldest_ns));
            let error = format!("{at} is before the history of volume {name:?}, from {oldest} on");
            (error, format!("ask for {oldest} or later; `vrio pool show` says why"))
        }
        error => return refused(&format!("volume {name:?}"), error),
    };
    Refused::new(RefusedKind::Conflict, error, way_out)
}

fn wanted(history: &str, step: Option<&str>) -> Result<VolumeHistory, String> {
    let step_ns = step.map(duration_ns).transpose()?;
    match history {
        "none" => Ok(VolumeHistory(None)),
        reach => VolumeHistory::new(duration_ns(reach)?, step_ns),
    }
}

fn utc_ns() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A time as people write it: by RFC 3339, or so long ago. In nanoseconds since 1970.
fn time_ns(text: &str, now_ns: u64) -> Result<u64, String> {
    let ago = text.strip_prefix('-').or_else(|| text.strip_suffix(" ago"));
    if let Some(ago) = ago {
        return duration_ns(ago.trim()).map(|ago_ns| now_ns.saturating_sub(ago_ns));
    }
    let time = text.parse::<Timestamp>().ok();
    let time = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
    time.ok_or_else(|| {
        format!(
            "{text:?} is no time; write it with its zone, \"2026-11-28T21:00:00Z\", or how long \
             ago, \"-10min\""
        )
    })
}

fn show_time(at_ns: u64) -> String {
    let time = Timestamp::from_nanosecond(at_ns.into());
    time.map_or_else(|_| format!("{at_ns} ns after 1970"), |time| time.to_string())
}

/// The history of a volume for the status.
pub(super) fn report(history: PoolHistory, bytes: impl Fn(u64) -> u64) -> HistoryReport {
    let PoolHistory { options, moments, oldest_ns, newest_ns, blocks, shortened_ns, rests } =
        history;
    let time = |at_ns: u64| (at_ns > 0).then(|| show_time(at_ns));
    let reach_ns = options.map_or(0, |options| options.reach_ms.saturating_mul(1_000_000));
    // A history that was shortened long ago has its whole length again.
    let is_short = shortened_ns.saturating_add(reach_ns) > newest_ns;
    HistoryReport {
        keeps: VolumeHistory(options).to_string(),
        moments,
        oldest: time(oldest_ns),
        newest: time(newest_ns),
        bytes: bytes(blocks),
        shortened: time(shortened_ns).filter(|_| is_short),
        rests: rests.map(|rests| words(rests).to_owned()),
    }
}

fn words(rests: store::HistoryRest) -> &'static str {
    use store::HistoryRest::{Generations, Limit, PoolFull, Receiving};
    match rests {
        PoolFull => "the pool is nearly full",
        Limit => "the volume is near its limit",
        Generations => "the pool has had its most moments; a new pool has room for as many",
        Receiving => "a stream is being received into the volume",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_by_the_calendar_and_by_their_distance() {
        let now_ns = 1_790_000_000_500_000_000;
        assert_eq!(time_ns("2026-09-21T14:13:20Z", now_ns), Ok(1_790_000_000_000_000_000));
        assert_eq!(time_ns("2026-09-21T16:13:20.25+02:00", now_ns), Ok(1_790_000_000_250_000_000));
        assert_eq!(time_ns("-10min", now_ns), Ok(now_ns - 600_000_000_000));
        assert_eq!(time_ns("2h ago", now_ns), Ok(now_ns - 7_200_000_000_000));
        assert_eq!(time_ns("-99999999d", now_ns), Err(duration_ns("99999999d").unwrap_err()));
        for text in
            ["", "now", "10min", "-", "-10", "yesterday ago", "2026-09-21", "1969-01-01T00:00:00Z"]
        {
            assert!(time_ns(text, now_ns).is_err(), "{text:?} is a time");
        }
        assert_eq!(show_time(1_790_000_000_250_000_000), "2026-09-21T14:13:20.25Z");
    }
}
