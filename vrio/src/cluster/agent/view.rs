//! The node as its agent tells the cluster about it: its pools, and its copies that are used, or
//! not in order.

use std::collections::BTreeMap;

use ::cluster::NodeView;
use ::cluster::registry::{COPY_REPORTS_MAX, CopyReport, PoolSpace, reported};
use node::config::ClusterConfig;
use node::status::{CopyRole, PoolState, Status, StoragePoolStatus, VolumeStatus};

use crate::cluster::clock::now_s;

/// The pools that a node tells the cluster: their record is far from a value's limit.
const POOLS_MAX: usize = 64;

/// The node by its status, with the placed volumes that it does not open.
pub(super) fn of(
    status: Status,
    cluster: &ClusterConfig,
    refused: &BTreeMap<String, String>,
) -> NodeView {
    // Copies and sessions go by the node's own name: a node of another name gets no copies.
    let takes_copies = status.node.name == cluster.name;
    let all = if takes_copies { &status.pools[..] } else { &[] };
    NodeView {
        pools: pools(all, cluster.pools.as_deref()),
        copies: copies(&status, refused),
        domain: cluster.domain.clone(),
        since_s: now_s().saturating_sub(status.node.uptime_s),
        addresses: status.node.listen.into_iter().collect(),
        program: status.node.release,
    }
}

/// The pools that the cluster sees. A pool that is not open has no size.
fn pools(all: &[StoragePoolStatus], wanted: Option<&[String]>) -> Vec<PoolSpace> {
    let is_wanted = |pool: &&StoragePoolStatus| {
        (pool.size_bytes > 0 || pool.state == PoolState::Failed)
            && wanted.is_none_or(|wanted| wanted.contains(&pool.name))
    };
    let told = all.iter().filter(is_wanted).map(|pool| PoolSpace {
        class: pool.class.clone(),
        problem: problem(pool),
        ..PoolSpace::new(&pool.name, pool.size_bytes, pool.used_bytes)
    });
    told.take(POOLS_MAX).collect()
}

/// Why a pool takes no writes. A pool that collects takes them in a moment.
fn problem(pool: &StoragePoolStatus) -> String {
    match (pool.state, &*pool.detail) {
        (PoolState::Ok | PoolState::Collecting, _) => String::new(),
        (state, "") => format!("it is {state}"),
        (state, detail) => reported(&format!("it is {state}: {detail}")),
    }
}

/// The copies that are not in order, stopped copies first, and the copies that are used.
fn copies(status: &Status, refused: &BTreeMap<String, String>) -> Vec<CopyReport> {
    let is_open = |name: &str| status.volumes.iter().any(|it| it.name == name && it.copy.is_some());
    let closed = refused.iter().filter(|(volume, _)| !is_open(volume));
    let closed = closed.map(|(volume, why)| CopyReport {
        volume: volume.clone(),
        role: "closed".to_owned(),
        why: reported(why),
        ..CopyReport::default()
    });
    let why = |volume: &VolumeStatus| refused.get(&volume.name).map(String::as_str);
    let open = status.volumes.iter();
    let open = open.filter_map(|volume| copy(volume, &status.pools, why(volume)));
    let mut told: Vec<_> = closed.chain(open).collect();
    told.sort_by_key(|copy| match &*copy.role {
        "failed" | "closed" => 0,
        _ if !copy.why.is_empty() => 1,
        "outside" | "takes-over" => 2,
        _ => 3,
    });
    told.truncate(COPY_REPORTS_MAX);
    told
}

/// A copy, if there is something to tell about it. `refused` is why it is not as it must be.
fn copy(
    volume: &VolumeStatus,
    pools: &[StoragePoolStatus],
    refused: Option<&str>,
) -> Option<CopyReport> {
    let users = u32::try_from(volume.attachments.len()).unwrap_or(u32::MAX);
    let report = CopyReport {
        volume: volume.name.clone(),
        size_bytes: volume.size_bytes,
        users,
        ..CopyReport::default()
    };
    let Some(copy) = &volume.copy else {
        // A copy that is not opened is a volume that takes no requests.
        let why = reported(volume.stopped.as_deref()?);
        return Some(CopyReport { role: "closed".to_owned(), why, ..report });
    };
    let waits = pools.iter().flat_map(|pool| &pool.volumes);
    let waits = waits.filter(|it| it.served && it.name == volume.name && it.kind == "volume");
    let waits = waits.filter_map(|it| it.waits.as_deref()).next();
    let otherwise = waits.or(refused).unwrap_or_default();
    let why = if copy.why.is_empty() { otherwise } else { &copy.why };
    let role = match copy.role {
        CopyRole::Outside => "outside",
        CopyRole::Backup => "backup",
        CopyRole::TakesOver => "takes-over",
        CopyRole::Primary => "primary",
        CopyRole::Failed => "failed",
    };
    let is_told = users > 0 || !why.is_empty() || copy.role != CopyRole::Backup;
    let (role, why, filling) = (role.to_owned(), reported(why), copy.filling.clone());
    is_told.then_some(CopyReport { role, why, filling, ..report })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_sees_the_pools_that_are_open_and_named() {
        let pool = |name: &str, size_bytes| StoragePoolStatus {
            name: name.to_owned(),
            class: Some("ssd".to_owned()),
            size_bytes,
            ..StoragePoolStatus::default()
        };
        let all = [pool("a", 160), pool("b", 0), pool("c", 320)];
        let names = |wanted: Option<&[String]>| -> Vec<String> {
            pools(&all, wanted).into_iter().map(|pool| pool.name).collect()
        };
        assert_eq!(names(None), ["a", "c"]);
        assert_eq!(names(Some(&["c".to_owned(), "b".to_owned()])), ["c"]);
        assert_eq!(pools(&all, None)[0].class.as_deref(), Some("ssd"));
        assert_eq!(pools(&vec![pool("p", 16); 2 * POOLS_MAX], None).len(), POOLS_MAX);
    }
}
