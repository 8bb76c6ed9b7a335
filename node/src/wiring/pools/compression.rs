//! The compression of a volume of a pool, while guests use it.

use config::VolumeConfig;
use serde::Deserialize;
use serde_json::Value;
use store::PoolChange;
use volume::backend::store::VolumeCompression;

use super::snapshots::{done, fields, refused};
use crate::wiring::inside::Inside;
use api::{Done, Refused, RefusedKind};

/// A request for another compression.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compress {
    compression: String,
}

impl Inside {
    /// Gives a volume another compression. The pool keeps it.
    pub(crate) fn compress(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let example = "{\"compression\": \"lz4\"}";
        let Compress { compression } = fields(body, example)?;
        let wanted: VolumeCompression = compression.parse().map_err(|error: String| {
            Refused::new(RefusedKind::Bad, error, format!("send {example}"))
        })?;
        let _turn = self.turn()?;
        if !self.set_compression(name, wanted)? {
            return Ok(done(Vec::new()));
        }
        let mut done = done(vec![format!("the compression of volume {name:?} is now {wanted}")]);
        let objects = self.objects();
        let config = objects.config.volumes.iter().find(|volume| volume.name == name);
        let configured = config.and_then(|volume| volume.backend.pool()?.compression);
        if let Some(configured) = configured.filter(|configured| *configured != wanted) {
            done.notes.push(format!(
                "the configuration says {configured}, which comes back at a restart or reload; \
                 write {wanted} there to keep it"
            ));
        }
        Ok(done)
    }

    /// Gives a volume the compression that its configuration says now.
    pub(crate) fn change_compression(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let wanted = volume.backend.pool().and_then(|pool| pool.compression);
        self.set_compression(&volume.name, wanted.expect("only a configured one is changed"))?;
        let mut objects = self.objects();
        let config = objects.volume_config(&volume.name).expect("the caller has the turn");
        config.backend.clone_from(&volume.backend);
        Ok(Vec::new())
    }

    /// Changes the pool's volume; whether it was another compression before.
    fn set_compression(&self, name: &str, wanted: VolumeCompression) -> Result<bool, Refused> {
        let (_, pool, id) = self.pooled(name)?;
        let all = pool.volumes();
        let now = all.iter().find(|it| it.id == id).and_then(|it| it.compression);
        let VolumeCompression(compression) = wanted;
        if now == compression {
            return Ok(false);
        }
        let changed = pool.change(PoolChange::Compression { volume: id, compression });
        changed.map_err(|error| refused(&format!("volume {name:?}"), &error))?;
        Ok(true)
    }
}
