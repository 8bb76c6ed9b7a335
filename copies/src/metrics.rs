//! The numbers of a copy. Names that end in `_now` may fall.

use api::status::CopyRole;
use sidecore::CounterText;

use crate::served::ServedMember;

/// The metrics of a copy, with their help.
pub const COPY_METRICS: &[CounterText] = &[
    CounterText {
        name: "copy_epoch",
        help: "The number of the record of a replicated volume: each change of the copies in sync \
               has one.",
    },
    CounterText {
        name: "copy_serves_now",
        help: "1 on the node that serves a replicated volume, 0 on the others.",
    },
    CounterText {
        name: "copy_lacks_writes_now",
        help: "1 where this node's copy of a replicated volume lacks writes.",
    },
    CounterText {
        name: "copy_stopped_now",
        help: "1 where this node's copy of a replicated volume has stopped; the status has the \
               reason.",
    },
    CounterText {
        name: "copy_waits_now",
        help: "1 where this node's copy of a replicated volume waits for its pool.",
    },
    CounterText {
        name: "copy_repaired_bytes",
        help: "Bytes of damaged blocks of a replicated volume that this node has repaired from \
               other copies.",
    },
    CounterText {
        name: "copy_lost_blocks_now",
        help: "Blocks of a replicated volume that no copy in sync can be read at, as far as reads \
               have met them, and 64 at most.",
    },
    CounterText {
        name: "copy_scrubbing_now",
        help: "1 while all copies of a replicated volume are proved and compared.",
    },
    CounterText {
        name: "copy_scrub_checked_bytes_now",
        help: "Bytes of a replicated volume that its last scrub has looked at, on each copy.",
    },
    CounterText {
        name: "copy_scrub_total_bytes_now",
        help: "Bytes of the volume when that scrub began.",
    },
    CounterText {
        name: "copy_scrub_repaired_blocks_now",
        help: "Damaged blocks of copies that it has repaired.",
    },
    CounterText {
        name: "copy_scrub_differed_blocks_now",
        help: "Blocks that copies had with other content, and that it has repaired: a device lies.",
    },
    CounterText {
        name: "copy_scrub_unproved_blocks_now",
        help: "Blocks that it could not prove: no copy has them, copies differ in them where the \
               copy that serves cannot read them, or they were busy.",
    },
    CounterText {
        name: "copies_in_sync_now",
        help: "Copies of a replicated volume that have each acknowledged write, as far as this \
               node knows.",
    },
    CounterText {
        name: "copies_lacking_now",
        help: "Copies of a replicated volume that lack writes, as far as this node knows.",
    },
];

impl ServedMember {
    /// Tells each of [`COPY_METRICS`].
    pub fn counted(&self, tell: &mut dyn FnMut(&str, u64)) {
        let copy = self.status();
        let has_stopped = copy.role == CopyRole::Failed;
        tell("copy_epoch", copy.epoch);
        tell("copy_serves_now", u64::from(copy.role == CopyRole::Primary));
        tell("copy_lacks_writes_now", u64::from(copy.role == CopyRole::Outside));
        tell("copy_stopped_now", u64::from(has_stopped));
        tell("copy_waits_now", u64::from(!has_stopped && !copy.why.is_empty()));
        tell("copy_repaired_bytes", copy.repaired_bytes);
        tell("copy_lost_blocks_now", copy.lost.len() as u64);
        let scrub = copy.scrub.unwrap_or_default();
        tell("copy_scrubbing_now", u64::from(scrub.is_running));
        tell("copy_scrub_checked_bytes_now", scrub.checked_bytes);
        tell("copy_scrub_total_bytes_now", scrub.total_bytes);
        tell("copy_scrub_repaired_blocks_now", scrub.repaired_blocks);
        tell("copy_scrub_differed_blocks_now", scrub.differed_blocks);
        let unproved = scrub.lost_blocks + scrub.unsettled_blocks + scrub.busy_blocks;
        tell("copy_scrub_unproved_blocks_now", unproved);
        tell("copies_in_sync_now", copy.in_sync.len() as u64);
        tell("copies_lacking_now", copy.missing.len() as u64);
    }
}
