//! The status of a direct client.

use block::attachment::Phase;
use block::disk::QueueCounters;
use serde::{Deserialize, Serialize};
use sidecore::Counter;

use crate::direct::Direct;

/// One attached volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectStatus {
    /// The volume, as `peer/volume`.
    pub volume: String,
    /// The attachment's name in the volume's records.
    pub attachment: String,
    /// The disk.
    pub device: String,
    /// Its client's process.
    pub pid: u32,
    /// `ready`, `waiting` (for the volume's node), `taken-over`, `failed`; `orphaned` is a disk
    /// without a client.
    pub state: String,
    /// Why, where there is a reason.
    pub detail: String,
    /// The epoch under which the attachment is held.
    pub epoch: Option<u64>,
    /// The disk's size.
    pub size_bytes: Option<u64>,
    /// Requests that are not answered.
    pub outstanding: usize,
    /// The disk's counters.
    pub counters: Vec<(String, u64)>,
}

impl Direct {
    /// The present status.
    pub fn status(&self) -> DirectStatus {
        let view = self.client.attachment.view();
        let away = self.client.volume.why();
        let state = match view.phase {
            Phase::Held if away.is_none() => "ready",
            Phase::Held | Phase::Unclaimed => "waiting",
            Phase::Fenced => "taken-over",
            Phase::Failed => "failed",
            Phase::Closed => "closing",
        };
        DirectStatus {
            volume: self.record.volume.clone(),
            attachment: self.record.attachment.clone(),
            device: self.device(),
            pid: self.record.pid,
            state: state.to_owned(),
            detail: match state {
                "ready" => String::new(),
                _ => away.or_else(|| self.client.attachment.why()).unwrap_or_default(),
            },
            epoch: (view.phase == Phase::Held).then_some(view.epoch),
            size_bytes: self.client.volume.described().map(|info| info.size_bytes),
            outstanding: self.front.outstanding(),
            counters: self.counters(),
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        let mut note = |name: &str, value: u64| all.push((name.to_owned(), value));
        let sum = |of: fn(&QueueCounters) -> &Counter| {
            self.front.counters().iter().map(|queue| of(queue).get()).sum::<u64>()
        };
        note("requests", sum(|queue| &queue.requests));
        note("read_bytes", sum(|queue| &queue.read_bytes));
        note("written_bytes", sum(|queue| &queue.written_bytes));
        note("flushes", sum(|queue| &queue.flushes));
        note("errors", sum(|queue| &queue.errors));
        let core = self.client.sidecore().counters();
        note("rounds", core.rounds.get());
        note("rounds_busy", core.rounds_busy.get());
        note("naps", core.naps.get());
        note("sleeps", core.sleeps.get());
        note("wakeups", core.wakeups.get());
        note("busy_ns", core.busy_ns.get());
        note("idle_ns", core.idle_ns.get());
        note("asleep_ns", core.asleep_ns.get());
        for remote in self.client.volume.counters() {
            note("calls", remote.calls.get());
            note("resent", remote.resent.get());
            note("stalls", remote.stalls.get());
            note("rejected", remote.rejected.get());
            note("malformed", remote.malformed.get());
        }
        if let Some((_, link)) = &self.client.cores[0].link {
            note("send_calls", link.send_calls.get());
            note("receive_calls", link.receive_calls.get());
        }
        note("uring_enters", self.uring.enters.get());
        all
    }
}
