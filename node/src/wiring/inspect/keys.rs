//! Key files that a node of this configuration reads and that are no sound ones.

use std::sync::Arc;

use config::{Config, VolumeConfig};
use sessions::{ConnectError, ObjectError, key_files, keys::SidecoreKeys};
use volume::stage::VolumeKey;

use crate::wiring::disks::shown::attachment_key;
use crate::wiring::volumes::ciphers;

/// Each key file that a node of this configuration reads and that is not sound, by line.
pub(crate) fn problems(config: &Config) -> Vec<ObjectError> {
    let mut problems = match SidecoreKeys::load(config) {
        Err(ConnectError::Keys(problems)) => problems,
        _ => Vec::new(),
    };
    problems.extend(config.disks.iter().filter_map(|disk| attachment_key(config, disk).err()));
    for nic in &config.nics {
        let Some(path) = &nic.attachment_key else { continue };
        problems.extend(key_files::read_attachment(path).err().map(|error| ObjectError {
            place: config.place(&nic.lines, "attachment-key"),
            object: format!("nic {:?}", nic.name),
            text: error.to_string(),
        }));
    }
    problems.extend(encryption(config));
    for volume in &config.volumes {
        let Some(path) = volume.backend.key_file() else { continue };
        problems.extend(key_files::read_volume(path).err().map(|error| ObjectError {
            place: config.place(&volume.lines, "backend"),
            object: format!("volume {:?}", volume.name),
            text: error.to_string(),
        }));
    }
    problems
}

/// Faults of the keys that encrypt volumes.
fn encryption(config: &Config) -> Vec<ObjectError> {
    let mut found: Vec<(&str, Arc<VolumeKey>)> = Vec::new();
    let problem = |volume: &VolumeConfig, text| ObjectError {
        place: config.place(&volume.lines, "chain"),
        object: format!("volume {:?}", volume.name),
        text,
    };
    let mut problems = Vec::new();
    for volume in &config.volumes {
        match ciphers::read(&volume.chain) {
            Ok(None) => {}
            Ok(Some(key)) => {
                let others = found.iter().map(|(name, key)| (*name, &**key));
                let same = ciphers::same_key(Some(&key), others);
                problems.extend(same.map(|text| problem(volume, text)));
                found.push((&volume.name, key));
            }
            Err(text) => problems.push(problem(volume, text)),
        }
    }
    problems
}
