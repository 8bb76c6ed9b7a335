//! Volumes that another process goes on with.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use config::Config;
use handover::{DescriptorNumber, ReceivedDescriptors, SentDescriptors};
use volume::Incarnation;
use volume::backend::HandedBlocks;
use volume::record::KeptRecords;

use super::{HandedVolume, ServedVolume, Volumes};
use crate::wiring::hand_over::state::VolumeState;

/// The states that a successor is told of the volumes. `in_files`: it reads the records itself.
pub(crate) fn states(
    volumes: &[Arc<ServedVolume>],
    in_files: bool,
    sent: &mut SentDescriptors,
) -> io::Result<Vec<VolumeState>> {
    let volumes = volumes.iter().map(|served| {
        let export = &served.export;
        let records = if in_files { HashMap::new() } else { export.records() };
        let records = records.into_iter().map(|(name, record)| (name, record.into()));
        let backend = &served.backend;
        let blocks = backend.descriptor().map(|blocks| sent.put_copy(blocks)).transpose()?;
        let is_memory = export.volume().info().volatile;
        Ok(VolumeState {
            name: export.name().to_owned(),
            file: blocks.filter(|_| !is_memory),
            failed: backend.has_failed(),
            memory: blocks.filter(|_| is_memory),
            incarnation: export.volume().info().incarnation.0,
            records: records.collect(),
            key_check: served.key().map(|key| key.check()),
        })
    });
    volumes.collect()
}

/// The volumes of the file, as a predecessor had them.
///
/// # Errors
/// Which volume cannot be gone on with.
pub(crate) fn adopt(
    config: &Config,
    all: &Volumes,
    states: Vec<VolumeState>,
    fds: &mut ReceivedDescriptors,
) -> Result<Vec<Arc<ServedVolume>>, String> {
    let mut states: HashMap<_, _> =
        states.into_iter().map(|state| (state.name.clone(), state)).collect();
    let volumes = config.volumes.iter().map(|volume| {
        let named = |error: &dyn std::fmt::Display| format!("volume {:?}: {error}", volume.name);
        let state = states.remove(&volume.name).ok_or_else(|| named(&"the node has it not"))?;
        let mut take =
            |number: Option<DescriptorNumber>| fds.take_any(number).map_err(|error| named(&error));
        let (incarnation, failed) = (Incarnation(state.incarnation), state.failed);
        let blocks =
            |volatile| move |descriptor| HandedBlocks { descriptor, incarnation, volatile, failed };
        let file = take(state.file)?.map(blocks(false));
        let memory = take(state.memory)?.map(blocks(true));
        let records = state.records.into_iter().map(|(name, record)| (name, record.into()));
        let records = KeptRecords(records.collect());
        let handed = HandedVolume { blocks: file.or(memory), records };
        let served = all.adopt(volume, handed).map_err(|text| named(&text))?;
        if served.key().map(|key| key.check()) != state.key_check {
            return Err(named(&"it would be encrypted with another key; restore its key file"));
        }
        if served.export.volume().info().incarnation.0 != state.incarnation {
            return Err(named(&"it would be another incarnation"));
        }
        Ok(Arc::new(served))
    });
    volumes.collect()
}
