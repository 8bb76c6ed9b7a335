//! Disks that another process goes on with.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use block::attachment::AttachmentSnapshot;
use config::Config;
use handover::{ReceivedDescriptors, SentDescriptors};
use virtio::ParkedServer;
use volume::VolumeInfo;

use super::Disks;
use super::shown::{DiskView, DiskVolume, ServedDisk};
use crate::wiring::hand_over::state::DiskState;
use crate::wiring::objects::Objects;

/// A disk of which nothing moves. Dropped, it goes on.
pub(crate) struct StillDisk {
    pub(crate) shown: Arc<ServedDisk>,
    parked: ParkedServer,
    /// The state of its attachment, once the attachment is closed.
    standing: Option<AttachmentSnapshot>,
}

/// Has the disks come to a stand, all at once: each drains for a while. Those that do are put into
/// `still`, also with an error.
///
/// # Errors
/// Which disk does not.
pub(crate) fn park(
    disks: &[Arc<ServedDisk>],
    drain: Duration,
    still: &mut Vec<StillDisk>,
) -> Result<(), String> {
    let begin = |shown: &Arc<ServedDisk>| (Arc::clone(shown), shown.begin_park(drain));
    let parking: Vec<_> = disks.iter().map(begin).collect();
    let mut error = None;
    for (shown, parking) in parking {
        match parking.map(|parking| parking.end()).transpose() {
            Ok(Some(parked)) => still.push(StillDisk { shown, parked, standing: None }),
            Ok(None) => {}
            Err(why) => error = Some(format!("disk {:?}: {why}", shown.config.name)),
        }
    }
    error.map_or(Ok(()), Err)
}

impl StillDisk {
    /// Notes where the attachment stands. It may have ended while its disk came to a stand.
    pub(crate) fn look_at_attachment(&mut self) -> Result<(), String> {
        let look = self.shown.look();
        let name = &self.shown.config.name;
        let standing = look.placement.map_or(Ok(None), |placement| placement.standing());
        self.standing = standing.map_err(|ended| format!("disk {name:?}: {ended}"))?;
        // A guest that broke its ring's rules does not hold up the node: its front end stays
        // behind, and begins anew with the successor, as it may at any time.
        if look.core.is_some_and(|core| core.is_broken()) {
            let state = self.parked.state.as_mut();
            let left = state.and_then(|served| served.front_end.take());
            self.standing = None;
            tracing::warn!(
                disk = name,
                was_there = left.is_some(),
                "not handed over: its guest broke its ring's rules"
            );
        }
        Ok(())
    }

    /// The state that a successor is told of the disk.
    pub(crate) fn state(&mut self, sent: &mut SentDescriptors) -> DiskState {
        let described = match &self.shown.volume {
            DiskVolume::Local(_) => None,
            DiskVolume::Remote(volume) => volume.described().map(Into::into),
        };
        let (name, standing) = (self.shown.config.name.clone(), self.standing.map(Into::into));
        let served = self.parked.state.take().map(|served| served.numbered(sent));
        DiskState { name, described, standing, served }
    }
}

/// A disk that a successor has, and what it serves it with if it was served.
pub(crate) type TakenDisk = (Arc<ServedDisk>, Option<(virtio::Adopted, DiskView)>);

/// The disks of the file, as a predecessor had them. None is served yet.
///
/// # Errors
/// Which disk cannot be gone on with.
pub(crate) fn adopt(
    config: &Config,
    all: &Disks,
    objects: &Objects,
    states: Vec<DiskState>,
    fds: &mut ReceivedDescriptors,
) -> Result<Vec<TakenDisk>, String> {
    let mut states: HashMap<_, _> =
        states.into_iter().map(|state| (state.name.clone(), state)).collect();
    let disks = config.disks.iter().map(|disk| {
        let named = |error: &dyn std::fmt::Display| format!("disk {:?}: {error}", disk.name);
        let source = objects.source(disk).map_err(|error| error.to_string())?;
        let shown = ServedDisk::new(disk, source);
        let Some(state) = states.remove(&disk.name) else { return Ok((shown, None)) };
        let Some(served) = state.served else { return Ok((shown, None)) };
        let served = served.with_descriptors(fds).map_err(|error| named(&error))?;
        let described = state.described.map(VolumeInfo::from);
        let standing = state.standing.map(AttachmentSnapshot::from);
        let adopted = all.adopt(&shown, (described, standing), served);
        let adopted = adopted.map_err(|error| named(&error))?;
        Ok((shown, Some(adopted)))
    });
    disks.collect()
}
