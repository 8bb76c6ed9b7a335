//! The devices of a pool that is open: longer ones, other ones, and fewer.

use std::path::PathBuf;

use config::{Config, PoolConfig};
use serde::Deserialize;
use serde_json::Value;
use volume::backend::store::StorePoolError;

use super::snapshots::{done, fields};
use crate::wiring::inside::Inside;
use crate::wiring::volumes::inside;
use api::{Done, Refused, RefusedKind};

/// A request about the devices of a pool.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum DeviceRequest {
    /// Devices that have become longer are used.
    Grow {},
    /// Another device joins.
    Add {
        device: String,
        #[serde(default)]
        force: bool,
    },
    /// A device is emptied, and leaves.
    Remove { device: String },
    /// It stays after all.
    Keep { device: String },
}

impl Inside {
    /// Changes the devices of a pool.
    pub(crate) fn change_devices(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let example = "{\"grow\": {}}, {\"add\": {\"device\": \"q.pool\"}}, {\"remove\": \
                       {\"device\": \"q.pool\"}} or {\"keep\": {\"device\": \"q.pool\"}}";
        let wanted = fields(body, example)?;
        let _turn = self.turn()?;
        let pool = self.open_pool(name)?;
        let refused = |error: StorePoolError| {
            Refused::new(RefusedKind::Conflict, error.to_string(), "nothing was changed")
        };
        let what = match wanted {
            DeviceRequest::Grow {} => {
                let grown = pool.grow().map_err(refused)?;
                let grown: Vec<_> = grown.iter().map(|path| path.display().to_string()).collect();
                format!("use the whole of {} for pool {name:?}", grown.join(", "))
            }
            DeviceRequest::Add { device, force } => {
                let path = self.device_path(&device)?;
                pool.add_device(&path, force).map_err(|error| match error {
                    StorePoolError::Missing { path } => {
                        let error = format!("{}: no such file", path.display());
                        let way_out = "`vrio pool grow --add FILE --size SIZE` makes it; nothing \
                                       was changed";
                        Refused::new(RefusedKind::Conflict, error, way_out)
                    }
                    error => refused(error),
                })?;
                let path = path.display();
                format!(
                    "add {path} to pool {name:?}; name it in \"devices\" of the node's file, or \
                     the pool is not opened at the next start"
                )
            }
            DeviceRequest::Remove { device } => {
                let path = self.device_path(&device)?;
                pool.remove_device(&path).map_err(refused)?;
                let path = path.display();
                format!(
                    "begin to empty {path}; `vrio pool show {name}` says how far that is, and \
                     until it is not listed there, it must stay"
                )
            }
            DeviceRequest::Keep { device } => {
                let path = self.device_path(&device)?;
                pool.keep_device(&path).map_err(refused)?;
                format!("keep {} in pool {name:?}", path.display())
            }
        };
        self.follow_devices();
        Ok(done(vec![what]))
    }

    /// A device as a file of a configuration would name it.
    fn device_path(&self, device: &str) -> Result<PathBuf, Refused> {
        let homes = self.volumes.stock().homes();
        let path = homes.first().map(|home| home.join(device)).unwrap_or_default();
        match inside(&path, homes) {
            Ok(()) => Ok(path),
            Err(error) => Err(Refused::new(RefusedKind::Bad, error, "nothing was changed")),
        }
    }

    /// Makes the running configuration name the devices that pools have by now: they join by
    /// commands, and leave when they are empty.
    pub(crate) fn follow_devices(&self) {
        for pool in self.volumes.stock().pools().opened() {
            let devices: Vec<PathBuf> = pool.devices().into_iter().map(|it| it.path).collect();
            let mut objects = self.objects();
            let known = objects.config.pools.iter().find(|it| it.name == pool.name());
            let Some(config) = known.filter(|_| !devices.is_empty()) else { continue };
            let is_same = devices.len() == config.devices.len()
                && devices.iter().all(|device| config.devices.contains(device));
            if !is_same {
                let config = PoolConfig { devices, ..config.clone() };
                objects.replace(&config);
            }
        }
    }
    /// A pool that is open has all of its devices, and a file says only where to look for them at
    /// the next opening. So a file that names more of them changes nothing, and a file that does
    /// not name all is refused: with it the pool could not be opened. A file of which all devices
    /// have left the pool is such a one.
    pub(crate) fn keep_devices(&self, now: &Config, target: &mut Config) -> Result<(), Refused> {
        let pools = self.volumes.stock().pools();
        for wanted in &mut target.pools {
            let is_open = pools.get(&wanted.name).is_some_and(|pool| pool.is_ok());
            let now = now.pools.iter().find(|pool| is_open && pool.name == wanted.name);
            let Some(PoolConfig { name, devices, .. }) = now else { continue };
            let missing: Vec<_> =
                devices.iter().filter(|device| !wanted.devices.contains(device)).collect();
            if missing.is_empty() {
                let others = wanted.devices.iter().filter(|device| !devices.contains(device));
                for device in others {
                    let path = device.display();
                    tracing::warn!(
                        pool = name, %path,
                        "the file names a device that the pool does not have: take it out of \
                         \"devices\", or have it join with `vrio pool grow`"
                    );
                }
                wanted.devices.clone_from(devices);
                continue;
            }
            let also = if missing.len() < devices.len() { " also" } else { "" };
            let missing: Vec<_> = missing.iter().map(|it| it.display().to_string()).collect();
            let error =
                format!("pool {name:?}{also} has {}: add that to \"devices\"", missing.join(", "));
            let way_out = match also {
                "" => {
                    "nothing was changed; for other paths of the pool's devices, or another \
                       pool of this name, `vrio pool remove --force` before the reload"
                }
                _ => "nothing was changed; correct the file and reload it again",
            };
            return Err(Refused::new(RefusedKind::Bad, error, way_out));
        }
        Ok(())
    }
}
