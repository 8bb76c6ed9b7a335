//! Pools: their space and their counters.

use super::page::{MetricValue, Page, labels};
use api::status::{PoolState, StoragePoolStatus};

const STATES: [PoolState; 4] =
    [PoolState::Ok, PoolState::Collecting, PoolState::Full, PoolState::Failed];

pub(super) fn add(page: &mut Page, pools: &[StoragePoolStatus]) {
    for pool in pools {
        let object = labels(&[("pool", &pool.name)]);
        page.counters("pool", &object, &pool.counters);
        for (name, value) in [
            ("size_bytes", pool.size_bytes),
            ("used_bytes", pool.used_bytes),
            ("volumes", pool.volumes.len() as u64),
        ] {
            page.gauge(&format!("vrio_pool_{name}"), &object, MetricValue::Count(value));
        }
        for state in STATES {
            let object = labels(&[("pool", &pool.name), ("state", &state.to_string())]);
            let is = MetricValue::Count(u64::from(pool.state == state));
            page.gauge("vrio_pool_state", &object, is);
        }
    }
}
