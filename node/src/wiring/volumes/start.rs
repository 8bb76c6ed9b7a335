//! Opens the volumes of the file when a node starts.

use std::sync::Arc;

use config::Config;
use sessions::ObjectError;

use super::{ServedVolume, Volumes, same_key};
use crate::wiring::error::StartError;

/// Opens the volumes of the file.
pub(crate) fn open_all(
    config: &Config,
    volumes: &Volumes,
) -> Result<Vec<Arc<ServedVolume>>, StartError> {
    if !config.volumes.is_empty() {
        volumes.lock_state().map_err(|error| StartError::Directory {
            place: config.place(&config.lines, "directories"),
            path: error.path,
            source: error.source,
            way_out: error.way_out.to_owned(),
        })?;
    }
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for volume in &config.volumes {
        let opened =
            volumes.open(volume).and_then(|served| same_key(&served, &all).map_or(Ok(served), Err));
        match opened {
            Ok(served) => all.push(Arc::new(served)),
            Err(text) => errors.push(ObjectError {
                place: config.place(&volume.lines, "backend"),
                object: format!("volume {:?}", volume.name),
                text,
            }),
        }
    }
    if !errors.is_empty() {
        return Err(errors.into());
    }
    all.iter().for_each(|served| volumes.publish(served));
    Ok(all)
}
