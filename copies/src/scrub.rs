//! `vrio volume scrub`: all copies in sync of a volume prove their blocks, are compared, and are
//! repaired.

use config::size_bytes;
use member::{MemberHost, ScrubOrder, ScrubStage, ScrubView};
use replica::MemberId;
use replica::wire::SECTOR_BYTES;
use serde::Deserialize;
use sessions::{LinkedSidecore, random};
use store::block::BLOCK_BYTES;

use api::status::{CopyDifference, CopyRole, CopyScrub};
use api::{Refused, RefusedKind};

use crate::commands::not_here;
use crate::served::ServedMember;

/// The rate of a scrub without another rate: an eighth of an NVMe drive's.
pub const SCRUB_RATE_BYTES: u64 = 100 << 20;

/// The least rate: a block in a second. `--pause` is for slower ones.
const RATE_BYTES_MIN: u64 = BLOCK_BYTES as u64;

/// The words of a request about a scrub.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScrubAsk {
    rate: Option<String>,
    pause: bool,
    stop: bool,
}

/// The bytes in a second of a scrub's rate, if there is one.
///
/// # Errors
/// When it is no size, or too small.
pub fn scrub_rate(rate: Option<&str>) -> Result<Option<u64>, Refused> {
    let bad = |error: String| {
        Refused::new(RefusedKind::Bad, format!("\"rate\": {error}"), "nothing was changed")
    };
    let bytes = rate.map(size_bytes).transpose().map_err(bad)?;
    if bytes.is_some_and(|bytes| bytes < RATE_BYTES_MIN) {
        let least = config::show_size(RATE_BYTES_MIN);
        return Err(bad(format!("it is at least {least} in a second")));
    }
    Ok(bytes)
}

impl ServedMember {
    /// Has the volume scrubbed, or has the scrub go on, rest or end. Gives what was done.
    ///
    /// # Errors
    /// When another node serves the volume, or the scrub cannot be changed as asked.
    pub(crate) fn scrub(
        &self,
        cores: &[LinkedSidecore],
        ask: &ScrubAsk,
    ) -> Result<String, Refused> {
        let (name, status) = (self.volume(), self.status());
        let ScrubAsk { rate, pause, stop } = ask;
        if [*pause, *stop, rate.is_some()].iter().filter(|given| **given).count() > 1 {
            let error = "a scrub that rests or ends has no rate".to_owned();
            return Err(Refused::new(RefusedKind::Bad, error, "send one of the keys alone"));
        }
        let bytes_per_s = scrub_rate(rate.as_deref())?;
        if status.role != CopyRole::Primary {
            return Err(not_here(&status, name));
        }
        let is_running = status.scrub.as_ref().is_some_and(|scrub| scrub.is_running);
        let at = |bytes| format!("at most {} in a second", config::show_size(bytes));
        let (done, order) = match (pause, stop) {
            (false, false) if is_running => {
                let pace = bytes_per_s.map_or_else(|| "at its own pace".to_owned(), at);
                let done = format!("go on with the scrub of volume {name:?}, {pace}");
                (done, ScrubOrder::GoOn { bytes_per_s })
            }
            (false, false) => {
                let bytes_per_s = bytes_per_s.unwrap_or(SCRUB_RATE_BYTES);
                self.start_scrub(cores, bytes_per_s)?;
                let others = self.status().scrub.map(|scrub| scrub.copies.len());
                let copies = others.map_or(1, |others| others + 1);
                let pace = at(bytes_per_s);
                return Ok(format!("scrub {copies} copies of volume {name:?}, {pace} of each"));
            }
            _ if !is_running => return Err(no_scrub(name)),
            (true, _) => (format!("pause the scrub of volume {name:?}"), ScrubOrder::Pause),
            (_, true) => (format!("stop the scrub of volume {name:?}"), ScrubOrder::Stop),
        };
        let give = move |host: &mut MemberHost| host.order_scrub(sidecore::now_ns(), order);
        self.with_host(cores, give).ok_or_else(|| self.has_ended())?;
        Ok(done)
    }

    fn start_scrub(&self, cores: &[LinkedSidecore], bytes_per_s: u64) -> Result<(), Refused> {
        let drawn = || random().map_err(|error| self.failed(&error.to_string()));
        let key = (u128::from(drawn()?) << 64 | u128::from(drawn()?)).to_le_bytes();
        let start =
            move |host: &mut MemberHost| host.start_scrub(sidecore::now_ns(), key, bytes_per_s);
        // It may be moving, or have stopped to serve since it was looked at.
        match self.with_host(cores, start).ok_or_else(|| self.has_ended())? {
            true => Ok(()),
            false => Err(self.failed("its copy here takes no requests at the moment")),
        }
    }

    fn has_ended(&self) -> Refused {
        self.failed("its copy here has ended")
    }

    fn failed(&self, why: &str) -> Refused {
        let error = format!("volume {:?} is not scrubbed: {why}", self.volume());
        Refused::new(RefusedKind::Conflict, error, "nothing was changed; try again")
    }

    /// A scrub for the node's status.
    pub(crate) fn scrub_status(&self, view: ScrubView) -> CopyScrub {
        let nodes = self.list().nodes;
        let named = |members: &[MemberId]| -> Vec<String> {
            members.iter().filter_map(|member| nodes.get(member).cloned()).collect()
        };
        let ScrubView { report, differing, left_s } = view;
        let differing = differing.iter().map(|finding| CopyDifference {
            offset_bytes: finding.block.first() * SECTOR_BYTES,
            nodes: named(&finding.differ),
            agree: finding.agree as u64,
        });
        CopyScrub {
            is_running: matches!(report.stage, ScrubStage::Runs | ScrubStage::Paused),
            is_paused: report.stage == ScrubStage::Paused,
            is_stopped: report.stage == ScrubStage::Stopped,
            checked_bytes: report.looked_at * SECTOR_BYTES,
            total_bytes: report.sectors * SECTOR_BYTES,
            left_s,
            copies: named(&report.members),
            left: named(&report.left),
            repaired_blocks: report.repaired,
            differed_blocks: report.differed,
            lost_blocks: report.lost,
            unsettled_blocks: report.unsettled,
            busy_blocks: report.busy,
            differing: differing.collect(),
        }
    }
}

fn no_scrub(volume: &str) -> Refused {
    let error = format!("volume {volume:?} is not being scrubbed");
    let way_out = "`vrio volume show` has the result of the last scrub; begin one with `vrio \
                   volume scrub`";
    Refused::new(RefusedKind::Conflict, error, way_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_size_of_a_block_at_least() {
        assert_eq!(scrub_rate(None).unwrap(), None);
        assert_eq!(scrub_rate(Some("100MiB")).unwrap(), Some(SCRUB_RATE_BYTES));
        for (rate, wanted) in [("much", "\"rate\""), ("4095B", "at least 4KiB"), ("0B", "at least")]
        {
            let refused = scrub_rate(Some(rate)).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
        }
    }
}
