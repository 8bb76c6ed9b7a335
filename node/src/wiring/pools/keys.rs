//! Keys of encrypted volumes of a pool: changing them, and shredding volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::VolumeConfig;
use serde::Deserialize;
use serde_json::Value;
use sessions::key_files;
use store::{PoolChange, VolumeId};
use volume::backend::store::StorePool;

use super::snapshots::{done, fields, refused};
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use api::{Done, Refused, RefusedKind};

/// A request for other keys of a volume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetKey {
    key: Option<PathBuf>,
    #[serde(default)]
    data: bool,
}

/// A request to forget the key of a volume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shred {
    #[serde(default)]
    all: bool,
    /// Nothing is done: the answer says whether it could be if the node did not serve the volume.
    #[serde(default)]
    check: bool,
}

impl Inside {
    /// Puts an encrypted volume under another key, or gives it another data key.
    pub(crate) fn set_key(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        let example = "{\"key\": \"/etc/vrio/new.key\"}, {\"data\": true}, or both";
        let SetKey { key: path, data } = fields(body, example)?;
        let bad = |error: String| Refused::new(RefusedKind::Bad, error, format!("send {example}"));
        if path.is_none() && !data {
            return Err(bad("neither another key nor another data key is asked for".to_owned()));
        }
        if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
            return Err(bad(format!("{path:?} is no absolute path")));
        }
        let _turn = self.turn()?;
        let (_, pool, id) = self.pooled(volume)?;
        let conflict = |error: String| {
            Refused::new(RefusedKind::Conflict, error, "the volume has the keys that it had")
        };
        let running = {
            let objects = self.objects();
            let all = &objects.config.volumes;
            let found = all.iter().find(|it| it.name == volume);
            let found = found.ok_or_else(|| unknown::<VolumeConfig>(volume, &objects.config))?;
            found.backend.key_file().map(PathBuf::from)
        };
        let Some(running) = running else {
            return Err(conflict(format!(
                "volume {volume:?} is not encrypted: a volume is encrypted from its beginning on"
            )));
        };
        let object = format!("volume {volume:?}");
        let mut applied = Vec::new();
        let mut notes = Vec::new();
        if let Some(path) = &path {
            let key = key_files::read_volume(path).map_err(|error| conflict(error.to_string()))?;
            pool.change_key(id, &key).map_err(|error| refused(&object, &error))?;
            applied.push(format!("put volume {volume:?} under the key {}", key.check()));
            notes.extend(self.follow_key(&pool, volume, id, path));
        }
        if data {
            let path = path.unwrap_or(running);
            let key = key_files::read_volume(&path).map_err(|error| conflict(error.to_string()))?;
            pool.change_data_key(id, &key).map_err(|error| refused(&object, &error))?;
            applied.push(format!("give volume {volume:?} another data key"));
            notes.push(format!(
                "its blocks are encrypted anew in the background; `vrio pool show {}` says how \
                 many are left",
                pool.name()
            ));
        }
        Ok(Done { notes, ..done(applied) })
    }

    /// Takes over another path of a volume's key file, if that has the volume's key: the next start
    /// opens the volume by it.
    pub(crate) fn follow_key_file(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let name = &volume.name;
        let (_, pool, id) = self.pooled(name).map_err(|why| {
            let way_out = format!(
                "for this key file to be used: `vrio volume remove {name} --force`, and reload \
                 again; or restart the node"
            );
            Refused::new(RefusedKind::Conflict, why.error, way_out)
        })?;
        let opens = match volume.backend.key_file() {
            Some(path) => key_files::read_volume(path)
                .map_err(|error| error.to_string())
                .and_then(|key| pool.check_key(id, &key).map_err(|error| error.to_string())),
            None => Err("it is encrypted in its pool, and no key file is named".to_owned()),
        };
        opens.map_err(|error| {
            let error = format!("volume {name:?}: {error}");
            let way_out = "the volume keeps the key that it has, and the next start would not open \
                           it: correct \"key\" in the file; after `vrio volume rekey --key` it is \
                           the path of the new key";
            Refused::new(RefusedKind::Conflict, error, way_out)
        })?;
        let mut objects = self.objects();
        let config = objects.volume_config(name).expect("the caller has the turn");
        config.backend.clone_from(&volume.backend);
        Ok(Vec::new())
    }

    /// The running configuration names the file of the new key, for all volumes that need it; and
    /// notes of what the operator must write.
    fn follow_key(&self, pool: &StorePool, volume: &str, id: VolumeId, path: &Path) -> Vec<String> {
        let family = pool.relatives(id);
        let mut objects = self.objects();
        let relatives: Vec<String> = objects
            .volumes
            .iter()
            .filter(|served| {
                let of = served.backend.in_pool();
                of.is_some_and(|(of, its)| std::ptr::eq(&**of, pool) && family.contains(&its))
            })
            .map(|served| served.export.name().to_owned())
            .collect();
        for name in &relatives {
            if let Some(config) = objects.volume_config(name)
                && let Some(backend) = config.backend.with_key(path)
            {
                config.backend = backend;
            }
        }
        let others: Vec<&String> = relatives.iter().filter(|name| *name != volume).collect();
        let mut notes = vec![format!(
            "write key = {path:?} into the configuration of volume {volume:?}, and keep the old \
             key's file as long as backups of the pool need it"
        )];
        if !others.is_empty() {
            let others: Vec<_> = others.iter().map(|name| format!("{name:?}")).collect();
            notes.push(format!(
                "of the same family, which needs the new key in the configuration as well: volume \
                 {}",
                others.join(", ")
            ));
        }
        notes
    }

    /// Forgets the data key of an encrypted volume or snapshot, and removes all that has it.
    pub(crate) fn shred(&self, pool: &str, number: u32, body: &Value) -> Result<Done, Refused> {
        let Shred { all, check } = fields(body, "{} or {\"all\": true}")?;
        let _turn = self.turn()?;
        let pool = self.open_pool(pool)?;
        let id = VolumeId(number);
        let relatives = pool.relatives(id);
        let volumes = pool.volumes();
        let name = volumes.iter().find(|it| it.id == id).map(|it| it.name.clone());
        let what = match name {
            Some(name) => format!("shred {name:?} of pool {:?}", pool.name()),
            None => format!("shred number {number} of pool {:?}", pool.name()),
        };
        let change = PoolChange::Shred { volume: id, all };
        pool.check(&change).map_err(|error| refused(&what, &error))?;
        let served = self.objects().volumes.clone();
        let of_family = served.iter().find(|it| {
            it.backend.in_pool().is_some_and(|(of, its)| {
                Arc::ptr_eq(of, &pool) && relatives.contains(&its) && !(check && its == id)
            })
        });
        if let Some(served) = of_family {
            let error = format!(
                "this node serves volume {:?}, which has this data key",
                served.export.name()
            );
            let way_out = "remove that volume first; `vrio volume remove --shred` does both";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        if check {
            return Ok(done(Vec::new()));
        }
        pool.change(change).map_err(|error| refused(&what, &error))?;
        let notes = vec![
            "the pool has forgotten the data key; old copies of it, in parts of the log that are \
             not written over yet and in backups of the pool, open with the volume's key: delete \
             that key's file as well if no other volume needs it"
                .to_owned(),
            "if the file of the configuration names the volume, take it out: otherwise the next \
             start makes an empty volume of this name"
                .to_owned(),
        ];
        Ok(Done { notes, ..done(vec![what]) })
    }
}
