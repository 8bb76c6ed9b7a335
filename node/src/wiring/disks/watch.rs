//! Logs when the volume of a served disk is out of reach, and when it is back, each once. Whether a
//! guest uses the disk makes no difference.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::attachment::Phase;
use block::{Reach, RemoteVolume, VolumeReach};
use config::WhenLost;
use sidecore::Sidecore;

use super::report::state;
use super::shown::{DiskSidecores, DiskVolume, ServedDisk};
use api::status::DiskState;

/// How often served disks are checked: as soon as a person looks.
pub(crate) const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// A served disk of a peer's volume.
pub(crate) struct WatchedDisk {
    disk: Arc<ServedDisk>,
    told: LoggedState,
    /// Outages of the volume that the log has reported.
    outages: u64,
    /// The time since when the disk has been lost although its volume answers: a claim is under
    /// way.
    claims_since: Option<Instant>,
    /// At the last look the volume had another incarnation than the attachment.
    differed: bool,
}

/// The latest line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LoggedState {
    /// The volume answers.
    Fine,
    /// The volume does not answer.
    Lost {
        /// The kind of the outage; a change is logged again.
        reach: Reach,
        since: Instant,
    },
    /// The disk has failed for its guest for good.
    Failed,
}

impl WatchedDisk {
    pub(crate) fn new(disk: Arc<ServedDisk>) -> Self {
        let outages = match &disk.volume {
            DiskVolume::Remote(volume) => volume.outlook().outages,
            DiskVolume::Local(_) => 0,
        };
        Self { disk, told: LoggedState::Fine, outages, claims_since: None, differed: false }
    }

    /// Checks the disk: `true` when it was removed. The log gets changes only.
    pub(crate) fn step(&mut self, ground: &DiskSidecores) -> bool {
        let disk = Arc::clone(&self.disk);
        let DiskVolume::Remote(remote) = &disk.volume else { return true };
        if disk.state().removed {
            return true;
        }
        disk.have_cache(ground);
        let outlook = remote.outlook();
        let (state, why) = state(&disk, &disk.look());
        match state {
            DiskState::Failed => self.failed(&why),
            DiskState::Lost => self.lost(&outlook, &why),
            _ => self.fine(&outlook),
        }
        if outlook.reach == Reach::Answers {
            self.have_claimed_anew(remote, &ground.sidecores);
        }
        false
    }

    fn failed(&mut self, why: &str) {
        if self.told != LoggedState::Failed {
            let (name, volume) = (&self.disk.config.name, self.disk.volume_ref());
            tracing::error!(disk = name, %volume, why, "the disk has failed for its guest");
            self.told = LoggedState::Failed;
        }
    }

    fn lost(&mut self, outlook: &VolumeReach, why: &str) {
        if outlook.reach == Reach::Answers {
            // A claim takes a moment; a claim that is refused stays refused.
            let since = *self.claims_since.get_or_insert_with(Instant::now);
            if since.elapsed() < WATCH_AGAIN {
                return;
            }
        }
        self.outages = outlook.outages;
        let (before, since) = match self.told {
            LoggedState::Lost { reach, since } => (Some(reach), since),
            LoggedState::Fine | LoggedState::Failed => (None, Instant::now()),
        };
        if before == Some(outlook.reach) {
            return;
        }
        let (name, volume) = (&self.disk.config.name, self.disk.volume_ref());
        let requests = match self.disk.config.when_lost {
            WhenLost::Wait => "wait".to_owned(),
            WhenLost::ErrorAfterNs(ns) => format!("fail after {:?}", Duration::from_nanos(ns)),
        };
        let text = match outlook.reach {
            Reach::Refused => "the volume's node refuses the volume to this disk",
            Reach::Answers => "the volume's node answers, and refuses the disk",
            Reach::Away | Reach::Unknown => "the disk's volume is out of reach",
        };
        tracing::warn!(disk = name, %volume, why, requests, "{text}");
        self.told = LoggedState::Lost { reach: outlook.reach, since };
    }

    fn fine(&mut self, outlook: &VolumeReach) {
        self.claims_since = None;
        let (name, volume) = (&self.disk.config.name, self.disk.volume_ref());
        let outage = Duration::from_nanos(outlook.outage_ns);
        if let LoggedState::Lost { since, .. } = self.told {
            let after_s = since.elapsed().as_secs();
            tracing::info!(disk = name, %volume, after_s, "the disk's volume is back");
        } else if self.told == LoggedState::Failed {
            tracing::info!(disk = name, %volume, "the disk that had failed was started again");
        } else if outlook.outages > self.outages {
            let (outages, why) = (outlook.outages - self.outages, &outlook.outage_why);
            let (after_ms, why) = (outage.as_millis(), why.as_deref().unwrap_or_default());
            let text = "the disk's volume was out of reach for a moment and is back";
            tracing::warn!(disk = name, %volume, after_ms, outages, why, "{text}");
        }
        self.outages = outlook.outages;
        self.told = LoggedState::Fine;
    }

    /// Makes the attachment claim again when a volume that answers may be another one than before:
    /// it was replaced, or its node restarted. An attachment with no requests would not notice. The
    /// answer to the claim says whether the guest may go on. The difference must be seen twice in a
    /// row, since a description may be older than the claim for a moment.
    fn have_claimed_anew(&mut self, remote: &RemoteVolume, sidecores: &[Sidecore]) {
        let core = self.disk.look().core;
        let Some(attachment) = core.as_ref().and_then(|core| core.attachment()) else { return };
        let view = attachment.view();
        let described = remote.described().map(|info| info.incarnation);
        let differs = view.phase == Phase::Held && described != Some(attachment.incarnation());
        if differs && self.differed && attachment.reclaim(view.epoch) {
            sidecores.iter().for_each(|sidecore| sidecore.waker().wake());
        }
        self.differed = differs;
    }
}
