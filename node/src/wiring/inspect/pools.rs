//! The devices of pools, as a start would find them.

use std::io;
use std::path::Path;

use config::Config;
use rustix::fs::{Access, access};
use sessions::ObjectError;

use crate::wiring::volumes::inside;

/// Devices that are missing, or that the node may not use. Their content is not read: a running
/// node may be writing it.
pub(super) fn problems(config: &Config) -> impl Iterator<Item = ObjectError> {
    config.pools.iter().flat_map(move |pool| {
        let texts = pool.devices.iter().filter_map(|path| device(config, path));
        texts.map(move |text| ObjectError {
            place: config.place(&pool.lines, "devices"),
            object: format!("pool {:?}", pool.name),
            text,
        })
    })
}

fn device(config: &Config, path: &Path) -> Option<String> {
    if let Err(text) = inside(path, &config.directories.volumes) {
        return Some(text);
    }
    let found = access(path, Access::READ_OK | Access::WRITE_OK).map_err(io::Error::from);
    let error = found.err()?;
    Some(match error.kind() {
        io::ErrorKind::NotFound => {
            let path = path.display();
            format!(
                "{path} is missing; plug the device in, mount its file system, or correct the path \
                 (only a pool that never was is made with `vrio pool create`)"
            )
        }
        _ => format!("cannot use {path:?}: {error}; make it the node's user's"),
    })
}
