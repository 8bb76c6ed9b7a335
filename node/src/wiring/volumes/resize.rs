//! Another size for a running volume. The block plane and the vhost-user sessions tell its users;
//! this code changes the size and makes peers ask again.

use std::sync::Arc;

use block::export::NotChanged;
use config::{BackendConfig, Config, DiskConfig, Resize, VolumeConfig, show_size};
use copies::ServedMember;
use serde_json::Value;
use volume::backend::{Remembered, ResizeError};

use crate::wiring::change::{bad, log};
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use api::{API_VERSION, Done, Refused, RefusedKind};

impl Inside {
    /// Makes the volume of a disk of this node larger or smaller.
    pub(crate) fn resize_disk(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let config = self.objects().config.clone();
        let Some(disk) = config.disks.iter().find(|disk| disk.name == name) else {
            return Err(unknown::<DiskConfig>(name, &config));
        };
        let volume = &disk.volume.volume;
        if !disk.volume.is_here() {
            let peer = disk.volume.peers.join(" or ");
            let error = format!("disk {name:?} has the size of volume {volume:?} of {peer}");
            let way_out = format!("run `vrio volume resize {volume} SIZE` on {peer}");
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        self.resize_volume(volume, body)
    }

    /// Makes a volume larger, or, while it is not in use, smaller.
    pub(crate) fn resize_volume(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let wanted = Config::resize(body).map_err(|problems| bad(&problems))?;
        let _turn = self.turn()?;
        let config = self.objects().config.clone();
        let Some(volume) = config.volumes.iter().find(|volume| volume.name == name) else {
            return Err(unknown::<VolumeConfig>(name, &config));
        };
        let before = self.size_of(name);
        let notes = self.resize(volume, &volume.backend, wanted)?;
        let mut done = Done { version: API_VERSION, notes, ..Done::default() };
        if before != wanted.size_bytes {
            let (before, after) = (show_size(before), show_size(wanted.size_bytes));
            done.applied.push(format!("resize volume {name:?} from {before} to {after}"));
        }
        log(&done);
        Ok(done)
    }

    /// Makes a volume as large as its configuration says now.
    pub(crate) fn change_size(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let size_bytes = volume.size_bytes();
        let size_bytes = size_bytes.expect("only a volume with a size is changed in place");
        // A pool may have it larger than the configuration asks for.
        let is_large = volume.backend.pool().is_some() && self.size_of(&volume.name) >= size_bytes;
        let wanted = Resize { size_bytes, shrink: false };
        let notes = match is_large {
            true => Vec::new(),
            false => self.resize(volume, &volume.backend, wanted)?,
        };
        let mut objects = self.objects();
        let config = objects.volume_config(&volume.name).expect("the caller has the turn");
        config.backend.clone_from(&volume.backend);
        Ok(notes)
    }

    fn size_of(&self, name: &str) -> u64 {
        let served = Arc::clone(self.objects().volume(name).expect("the caller has looked"));
        served.export.volume().info().size_bytes
    }

    /// Changes the size; `configured` is the backend of the next start.
    fn resize(
        &self,
        volume: &VolumeConfig,
        configured: &BackendConfig,
        wanted: Resize,
    ) -> Result<Vec<String>, Refused> {
        let name = &volume.name;
        let served = Arc::clone(self.objects().volume(name).expect("the caller has looked"));
        served.member.as_ref().map_or(Ok(()), ServedMember::refuse_resize)?;
        let Some(resizable) = served.backend.as_resizable() else {
            let error =
                format!("volume {name:?} is not in a file or a pool and keeps its first size");
            let way_out = "remove it and add it with the new size";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        };
        let size_bytes = wanted.size_bytes;
        let file_bytes = configured.file().and_then(|file| file.size_bytes);
        let resize = |shrink| resizable.resize(size_bytes, file_bytes, shrink);
        let now_bytes = self.size_of(name);
        let resized = if wanted.shrink && size_bytes < now_bytes {
            served
                .export
                .while_unused(|| resize(true))
                .map_err(|why| not_changed(name, "it cannot be made smaller", "try again", &why))?
        } else {
            resize(false)
        };
        let remembered = resized.map_err(|error| refused(name, &error))?;
        self.volumes.tell_changed(&served, &self.cores);
        let pool_bytes = configured.pool().map(|pool| pool.size_bytes);
        Ok(match pool_bytes {
            Some(least) => notes_of_pool(least, size_bytes),
            None => notes(file_bytes, size_bytes, remembered),
        })
    }
}

/// A refusal to change a volume's content while clients use it, or to record the change.
pub(crate) fn not_changed(name: &str, what: &str, otherwise: &str, why: &NotChanged) -> Refused {
    let holders = match why {
        NotChanged::InUse(holders) => holders,
        NotChanged::Record(why) => {
            let error = format!("volume {name:?}: its users cannot be told of the change: {why}");
            return Refused::new(RefusedKind::Failed, error, "look at the directory \"state\"");
        }
    };
    let users: Vec<_> =
        holders.iter().map(|it| format!("attachment {:?}", it.attachment)).collect();
    let users = if users.is_empty() { "requests under way".to_owned() } else { users.join(", ") };
    let error = format!("volume {name:?} is in use by {users}: {what}");
    let way_out = format!("stop the guest and remove the disk, then {otherwise}");
    Refused::new(RefusedKind::Conflict, error, way_out)
}

fn refused(name: &str, error: &ResizeError) -> Refused {
    let (kind, way_out) = match error {
        ResizeError::Shrinks { .. } => {
            (RefusedKind::Conflict, "use --shrink (\"shrink\": true) if this is intended")
        }
        ResizeError::NotWhole { .. } => (RefusedKind::Bad, "nothing was changed; round it"),
        _ => (RefusedKind::Failed, "nothing was changed"),
    };
    Refused::new(kind, format!("volume {name:?}: {error}"), way_out)
}

/// A size as it can be written into the configuration.
fn exact(bytes: u64) -> String {
    let shown = show_size(bytes);
    if shown.contains('.') { bytes.to_string() } else { shown }
}

/// Remarks about a new size of a volume of a pool, which the pool remembers.
fn notes_of_pool(least_bytes: Option<u64>, size_bytes: u64) -> Vec<String> {
    let least_bytes = least_bytes.filter(|least| *least > size_bytes);
    let note = least_bytes.map(|least_bytes| {
        format!(
            "the configuration says size = \"{}\", so the next start makes it that large again; \
             write size = \"{}\" there",
            exact(least_bytes),
            exact(size_bytes)
        )
    });
    note.into_iter().collect()
}

/// Remarks about a new size.
fn notes(configured_bytes: Option<u64>, size_bytes: u64, remembered: Remembered) -> Vec<String> {
    let Some(configured_bytes) = configured_bytes.filter(|configured| *configured != size_bytes)
    else {
        let lost = "after a restart the whole device is used, unless the configuration has a \
                    \"size\"";
        return (remembered == Remembered::No).then(|| lost.to_owned()).into_iter().collect();
    };
    let (configured, size) = (exact(configured_bytes), exact(size_bytes));
    vec![match remembered {
        Remembered::Yes => format!(
            "the configuration says size = \"{configured}\"; the new size is used, also after a \
             restart, until the configuration has another one"
        ),
        Remembered::No => format!(
            "the new size is lost when the node is restarted, because the file system keeps no \
             attributes; write size = \"{size}\" in the configuration"
        ),
    }]
}
