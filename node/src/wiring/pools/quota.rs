//! The space that a volume of a pool has for itself, and the most that it may have.

use config::{VolumeConfig, show_size, size_bytes};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use store::block::BLOCK_BYTES;
use store::{PoolChange, PoolVolume};

use super::snapshots::{done, fields, refused};
use crate::wiring::inside::Inside;
use api::{Done, Refused, RefusedKind};

/// A request for another quota: a key that is missing changes nothing, and null is none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetQuota {
    #[serde(default, deserialize_with = "given")]
    reservation: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    limit: Option<Option<String>>,
}

fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(from).map(Some)
}

impl Inside {
    /// Gives a volume of a pool another reservation or limit, while guests use it.
    pub(crate) fn set_quota(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let example = "{\"reservation\": \"5GiB\", \"limit\": null}";
        let SetQuota { reservation, limit } = fields(body, example)?;
        let bytes = |key: &str, text: Option<String>| match text.as_deref().map(size_bytes) {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(error)) => {
                let error = format!("{key:?}: {error}");
                Err(Refused::new(RefusedKind::Bad, error, "nothing was changed"))
            }
        };
        let reservation = reservation.map(|text| bytes("reservation", text)).transpose()?;
        let limit = limit.map(|text| bytes("limit", text)).transpose()?;
        let _turn = self.turn()?;
        self.change_quota(name, reservation, limit).map(|text| done(vec![text]))
    }

    /// Makes a volume's quota what its configuration says now.
    pub(crate) fn follow_quota(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let quota = volume.backend.pool().map(|pool| (pool.reservation_bytes, pool.limit_bytes));
        let (reservation, limit) = quota.unwrap_or_default();
        self.change_quota(&volume.name, reservation.map(Some), limit.map(Some))?;
        let mut objects = self.objects();
        let config = objects.volume_config(&volume.name).expect("the caller has the turn");
        config.backend.clone_from(&volume.backend);
        Ok(Vec::new())
    }

    fn change_quota(
        &self,
        name: &str,
        reservation: Option<Option<u64>>,
        limit: Option<Option<u64>>,
    ) -> Result<String, Refused> {
        let (_, pool, id) = self.pooled(name)?;
        let blocks = |bytes: u64| bytes.div_ceil(BLOCK_BYTES as u64);
        let found = pool.volumes().into_iter().find(|it| it.id == id);
        let now = found.map(|PoolVolume { reservation_blocks, limit_blocks, .. }| {
            (reservation_blocks, limit_blocks)
        });
        let (now_reservation, now_limit) = now.unwrap_or_default();
        let reservation = reservation.map_or(now_reservation, |bytes| bytes.map_or(0, blocks));
        let limit = limit.map_or(now_limit, |bytes| bytes.map(blocks));
        let changed = pool.change(PoolChange::Quota { volume: id, reservation, limit });
        changed.map_err(|error| refused(&format!("volume {name:?}"), &error))?;
        let shown = |blocks: u64| show_size(blocks * BLOCK_BYTES as u64);
        let limit =
            limit.map_or_else(|| "no limit".to_owned(), |it| format!("a limit of {}", shown(it)));
        Ok(format!("volume {name:?} has {} reserved, and {limit}", shown(reservation)))
    }
}
