//! The state of a disk, in one word and in a few.

use block::attachment::{Attachment, Phase};
use block::{DiskCore, Reach};
use cache::CacheSlot;
use config::DiskConfig;
use sessions::counted::{add_counters, remote_counters};
use sidecore::CounterText;
use virtio::ServerState;

use super::shown::{DiskSnapshot, DiskVolume, ServedDisk};
use crate::wiring::objects::Objects;
use crate::wiring::report::latency;
use api::status::{Counters, DiskState, DiskStatus, Origin, QueueStatus, ReachStatus, ShareStatus};

const NS_PER_S: u64 = 1_000_000_000;

/// The disks, in the order in which they were added.
pub(crate) fn status(objects: &Objects) -> Vec<DiskStatus> {
    let all = objects.disks.iter();
    all.map(|shown| of_disk(shown, objects.origin::<DiskConfig>(&shown.config.name))).collect()
}

fn of_disk(shown: &ServedDisk, origin: Origin) -> DiskStatus {
    let config = &shown.config;
    let look = shown.look();
    let (state, mut detail) = state(shown, &look);
    // A promise that does not hold is named beside any other detail.
    if let Some(why) = &look.forgets {
        let gap = if detail.is_empty() { "" } else { "; " };
        detail = format!("{detail}{gap}{why}");
    }
    let attachment = look.core.as_ref().and_then(|core| core.attachment());
    let view = attachment.map(|attachment| attachment.view());
    DiskStatus {
        name: config.name.clone(),
        socket: config.socket.display().to_string(),
        volume: shown.volume_ref().to_string(),
        placed: config.volume.is_placed,
        queues: config.queues,
        state,
        detail,
        size_bytes: shown.volume.size_bytes(),
        epoch: view.filter(|view| view.phase == Phase::Held).map(|view| view.epoch),
        counters: counters(shown, &look),
        latencies: look.core.as_deref().map(latency::of_disk).unwrap_or_default(),
        origin,
        front_end_pid: look.front_end,
        by_queue: by_queue(&look),
        by_sidecore: look.core.as_deref().map(by_sidecore).unwrap_or_default(),
        reach: reach(&shown.volume),
        cache: shown.cache.as_ref().and_then(CacheSlot::status),
    }
}

/// Whether the volume answers, for a volume of another node.
fn reach(volume: &DiskVolume) -> Option<ReachStatus> {
    let DiskVolume::Remote(volume) = volume else { return None };
    let outlook = volume.outlook();
    let state = match outlook.reach {
        Reach::Unknown => "unknown",
        Reach::Answers => "answers",
        Reach::Away => "away",
        Reach::Refused => "refused",
    };
    let for_ns = sidecore::now_ns().saturating_sub(outlook.since_ns);
    Some(ReachStatus {
        state: state.to_owned(),
        for_s: if outlook.reach == Reach::Unknown { 0 } else { for_ns / NS_PER_S },
        why: outlook.why,
        outages: outlook.outages,
    })
}

fn by_queue(look: &DiskSnapshot) -> Vec<QueueStatus> {
    let (Some(core), Some(placement)) = (&look.core, &look.placement) else { return Vec::new() };
    // A disk that is being changed has no queues for a moment.
    let running = placement.running().unwrap_or_default();
    let queues = (0..core.queues_max()).filter_map(|queue| {
        let counters = core.counters(queue);
        let map = [
            ("requests", &counters.requests),
            ("moves", &counters.moves),
            ("moves_refused", &counters.moves_refused),
        ];
        (counters.starts.get() > 0).then(|| QueueStatus {
            queue,
            running: running.iter().any(|(runs, _)| *runs == queue),
            sidecore: counters.sidecore.get() as usize,
            counters: map.map(|(name, counter)| (name.to_owned(), counter.get())).into(),
        })
    });
    queues.collect()
}

fn by_sidecore(core: &DiskCore) -> Vec<ShareStatus> {
    let shares = core.shares().into_iter().map(|share| {
        let map = Counters::from([("requests".to_owned(), share.requests.get())]);
        ShareStatus { sidecore: usize::from(share.sidecore()), counters: map }
    });
    shares.collect()
}

/// The state, in one word and in a few.
pub(crate) fn state(shown: &ServedDisk, look: &DiskSnapshot) -> (DiskState, String) {
    if look.leaves {
        return (DiskState::Waiting, LEAVING.to_owned());
    }
    if let Some(why) = &look.refused {
        return (DiskState::Waiting, why.clone());
    }
    let socket = shown.config.socket.display();
    match &look.server {
        None => (DiskState::Waiting, waits_for(shown)),
        Some(ServerState::Predecessor(holder)) => {
            let holder = holder.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            let text = format!("another process{holder} serves {socket}; waiting for its end");
            (DiskState::Waiting, text)
        }
        Some(ServerState::Failed(why)) => (DiskState::Failed, why.clone()),
        // Only nics have this state.
        Some(ServerState::Closed) => (DiskState::Waiting, format!("{socket} is closed")),
        Some(ServerState::Stopped) => (DiskState::Failed, "it was stopped".to_owned()),
        Some(ServerState::Waiting) => match &look.last_drop {
            Some(why) => ready(shown, &format!("{socket}; the last guest was dropped: {why}")),
            None => ready(shown, &format!("{socket}; no guest yet")),
        },
        Some(ServerState::Connected) => match &look.core {
            Some(core) => used(core, shown),
            None => ready(shown, &format!("{socket}; a guest is connecting")),
        },
    }
}

/// The state of a disk that no guest has started: a volume that is out of reach is out of reach for
/// the next guest, too.
fn ready(shown: &ServedDisk, detail: &str) -> (DiskState, String) {
    if let Some(why) = shown.cache.as_ref().and_then(CacheSlot::why_failed) {
        return (DiskState::Failed, format!("{why} ({detail})"));
    }
    match away(shown) {
        Some(why) => (DiskState::Lost, format!("{why} ({detail})")),
        None => (DiskState::Ready, detail.to_owned()),
    }
}

/// The disk ends, and other changes of the node go on meanwhile.
const LEAVING: &str = "it is being removed: its writes are written back";

/// The guest has gone, and the disk has not let go of its volume yet.
const DRAINING: &str = "its guest has gone: its writes are written back";

/// The state of a disk whose front end is there.
fn used(core: &DiskCore, shown: &ServedDisk) -> (DiskState, String) {
    if core.is_broken() {
        return (DiskState::Failed, core.broken_why().unwrap_or_default());
    }
    let Some(attachment) = core.attachment() else {
        return ready(shown, "a guest is connected and has not started it");
    };
    let why = |otherwise: &str| attachment.why().unwrap_or_else(|| otherwise.to_owned());
    match attachment.view().phase {
        Phase::Held => match away(shown) {
            Some(why) => (DiskState::Lost, why),
            None if shown.is_draining() => (DiskState::Running, DRAINING.to_owned()),
            None => (DiskState::Running, String::new()),
        },
        Phase::Unclaimed => (DiskState::Lost, why(lost(&attachment))),
        Phase::Fenced => (DiskState::Failed, why("a successor has taken it over")),
        Phase::Failed => (DiskState::Failed, why("the guest's driver has failed")),
        Phase::Closed => ready(shown, "a guest is connected and has stopped it"),
    }
}

fn lost(attachment: &Attachment) -> &'static str {
    if attachment.view().epoch == 0 { "waiting for its volume" } else { "its volume is away" }
}

/// Why the volume's node is out of reach, if it is.
fn away(shown: &ServedDisk) -> Option<String> {
    match &shown.volume {
        DiskVolume::Local(_) => None,
        DiskVolume::Remote(volume) => volume.why(),
    }
}

fn waits_for(shown: &ServedDisk) -> String {
    away(shown).unwrap_or_else(|| format!("waiting to hear what {} is", shown.volume_ref()))
}

fn counters(shown: &ServedDisk, look: &DiskSnapshot) -> Counters {
    let mut map = Counters::new();
    if let Some(core) = &look.core {
        queue_counters(core, &mut map);
    }
    if let DiskVolume::Remote(volume) = &shown.volume {
        remote_counters(volume, &mut map);
        let outlook = volume.outlook();
        let answers = outlook.reach == Reach::Answers;
        let known = outlook.reach != Reach::Unknown;
        let for_ns = sidecore::now_ns().saturating_sub(outlook.since_ns);
        let away_ns = if answers || !known { 0 } else { for_ns };
        map.insert("volume_answers_now".to_owned(), u64::from(answers));
        map.insert("volume_away_ns_now".to_owned(), away_ns);
        map.insert("volume_outages".to_owned(), outlook.outages);
    }
    if let Some(slot) = &shown.cache {
        let mut put = |name, value| {
            map.insert(name, value);
        };
        slot.count(&mut put);
        slot.count_dirty(&mut put);
    }
    map.insert("front_ends_turned_away".to_owned(), look.turned_away);
    map.insert("front_ends_too_costly".to_owned(), look.too_costly);
    map
}

fn queue_counters(core: &DiskCore, map: &mut Counters) {
    for queue in 0..core.queues_max() {
        add_counters(map, "", core.counters(queue).counted());
    }
    map.insert("orphans_now".to_owned(), core.orphans() as u64);
    for (name, count) in core.failures() {
        map.insert(format!("broken_{name}"), count);
    }
}

/// The metrics of a disk.
pub(crate) const DISK_METRICS: &[CounterText] = &[
    CounterText { name: "size_bytes", help: "The disk's size." },
    CounterText { name: "state", help: "1 for the state that the disk is in." },
    CounterText {
        name: "volume_answers",
        help: "Whether its volume on another node answers, asked every few seconds.",
    },
    CounterText {
        name: "volume_away",
        help: "The time for which its volume has not answered; 0 while it answers.",
    },
    CounterText { name: "volume_outages", help: "How often its volume has ceased to answer." },
    CounterText {
        name: "front_ends_turned_away",
        help: "Front ends that connected while the node was drained, or soon after a costly \
               front end.",
    },
    CounterText {
        name: "front_ends_too_costly",
        help: "Front ends that were dropped because signals to them took too long.",
    },
    CounterText {
        name: "latency",
        help: "Durations of the guest's requests, from taking them to answering.",
    },
    CounterText { name: "orphans", help: "Requests of stopped queues that have not ended." },
    CounterText { name: "queue_requests", help: "Requests of the guest on this queue." },
    CounterText {
        name: "queue_moves",
        help: "Times that the running queue moved to another sidecore.",
    },
    CounterText { name: "queue_moves_refused", help: "Moves that failed." },
    CounterText {
        name: "queue_sidecore",
        help: "The sidecore that serves the queue, or served it last.",
    },
    CounterText {
        name: "sidecore_requests",
        help: "Requests of the guest that this sidecore served.",
    },
];
