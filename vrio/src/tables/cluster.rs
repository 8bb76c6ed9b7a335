//! The state of a cluster as text: the verdict with its problems, then etcd's members and the
//! nodes.

use ::cluster::registry::PoolSpace;
use ::cluster::{
    ClusterNodeStatus, ClusterStatus, ClusterVerdict, ClusterVolumeStatus, EtcdMemberStatus,
};
use comfy_table::Table;
use node::config::show_size;
use node::status::NodeClusterStatus;

use super::layout::{fold, section, table, uptime, words};

/// A key's part that tells it apart from other keys.
const KEY_SHOWN: usize = 12;

/// The state of a cluster.
pub(crate) fn cluster(status: &ClusterStatus) -> String {
    let ClusterStatus { name, problems, nodes, registry, .. } = status;
    let verdict = match status.verdict {
        ClusterVerdict::Well => "all is well".to_owned(),
        ClusterVerdict::Degraded => "degraded".to_owned(),
        ClusterVerdict::Frozen => "FROZEN: no changes; I/O goes on".to_owned(),
        ClusterVerdict::Away => "AWAY: the registry does not answer; I/O goes on".to_owned(),
    };
    let mut text = format!("cluster {name}: {verdict}\n");
    problems.iter().for_each(|problem| text += &format!("{}\n", fold(problem, 2)));
    let present = nodes.iter().filter(|node| node.state == "present").count();
    let place = match &registry.file {
        Some(file) => format!("in {file}"),
        None => {
            let there = registry.members.iter().filter(|member| member.state != "away").count();
            format!("on etcd, {there} of {} members", registry.members.len())
        }
    };
    text += &format!("\n   id {}\n   registry {place}", status.id);
    if let Some(revision) = registry.revision {
        text += &format!(", revision {revision}");
    }
    text += &format!(
        "\n   nodes: {present} of {} present; tokens: {}; volumes: {}\n",
        nodes.len(),
        status.tokens,
        status.volumes.len()
    );
    section(&mut text, "etcd", members(&registry.members));
    section(&mut text, "nodes", node_table(nodes));
    section(&mut text, "pools", pool_table(nodes));
    section(&mut text, "volumes", volume_table(&status.volumes));
    text
}

/// The lines about a node's part in its cluster.
pub(crate) fn of_node(part: &NodeClusterStatus) -> String {
    let NodeClusterStatus { cluster, node, state, verdict, problems, .. } = part;
    let name = if cluster.is_empty() { "none yet" } else { cluster };
    let verdict = match verdict.as_str() {
        "" => String::new(),
        "well" => "; all is well there".to_owned(),
        verdict => format!("; the cluster is {verdict}:"),
    };
    let restarts = match part.agent_restarts {
        0 => String::new(),
        1 => ", its agent was started again once".to_owned(),
        count => format!(", its agent was started again {count} times"),
    };
    let mut text = format!("cluster: {name}, {state} as {node}{restarts}{verdict}\n");
    problems.iter().for_each(|problem| text += &format!("{}\n", fold(problem, 3)));
    text
}

fn members(all: &[EtcdMemberStatus]) -> Table {
    let mut table = table(&["member", "state", "release", "revision", "size"], 3);
    for EtcdMemberStatus { endpoint, state, release, revision, bytes, .. } in all {
        let is_away = release.is_empty();
        let number = |text: String| if is_away { "-".to_owned() } else { text };
        table.add_row(vec![
            endpoint.clone(),
            state.clone(),
            number(release.clone()),
            number(revision.to_string()),
            number(show_size(*bytes)),
        ]);
    }
    table
}

fn node_table(all: &[ClusterNodeStatus]) -> Table {
    let mut table =
        table(&["name", "state", "release", "addresses", "key", "free", "of", "for"], 5);
    for node in all {
        let sum = |bytes: fn(&PoolSpace) -> u64| {
            // Any client can write any numbers.
            let sum = node.pools.iter().map(bytes).fold(0, u64::saturating_add);
            if node.pools.is_empty() { "-".to_owned() } else { show_size(sum) }
        };
        let key =
            node.key.as_ref().map_or("-".to_owned(), |key| key.chars().take(KEY_SHOWN).collect());
        table.add_row(vec![
            node.name.clone(),
            node.state.clone(),
            if node.release.is_empty() { "-".to_owned() } else { node.release.clone() },
            words(&node.addresses),
            key,
            sum(|pool| pool.free_bytes),
            sum(|pool| pool.size_bytes),
            node.present_s.map_or("-".to_owned(), uptime),
        ]);
    }
    table
}

fn pool_table(all: &[ClusterNodeStatus]) -> Table {
    let mut table = table(&["node", "pool", "class", "free", "of"], 3);
    for (node, pool) in all.iter().flat_map(|node| node.pools.iter().map(move |it| (node, it))) {
        table.add_row(vec![
            node.name.clone(),
            pool.name.clone(),
            pool.class.clone().unwrap_or_else(|| "-".to_owned()),
            show_size(pool.free_bytes),
            show_size(pool.size_bytes),
        ]);
    }
    table
}

fn volume_table(all: &[ClusterVolumeStatus]) -> Table {
    let mut table =
        table(&["name", "state", "served by", "in sync", "lack writes", "size", "disks"], 5);
    for volume in all {
        let lacking = volume.faults.iter().filter(|fault| fault.lacks_writes);
        let lacking: Vec<_> = lacking
            .map(|fault| match fault.filled_percent {
                Some(percent) => format!("{} ({percent} %)", fault.node),
                None => fault.node.clone(),
            })
            .collect();
        let size = volume.size_bytes.map_or("-".to_owned(), show_size);
        let size = match volume.grows_to_bytes {
            Some(bytes) => format!("{size} to {}", show_size(bytes)),
            None => size,
        };
        table.add_row(vec![
            volume.name.clone(),
            volume.state.clone(),
            volume.primary.clone(),
            words(&volume.in_sync),
            words(&lacking),
            size,
            volume.users.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use ::cluster::{CopyFault, RegistryStatus};

    use super::*;

    #[test]
    fn the_verdict_comes_first_and_the_tables_follow() {
        let member = |endpoint: &str, state: &str| EtcdMemberStatus {
            endpoint: endpoint.to_owned(),
            state: state.to_owned(),
            detail: String::new(),
            revision: 7,
            bytes: 1 << 20,
            release: "3.4.23".to_owned(),
        };
        let status = ClusterStatus {
            version: 1,
            id: "ab".to_owned(),
            name: "rack1".to_owned(),
            verdict: ClusterVerdict::Degraded,
            problems: vec!["etcd's member b does not answer".to_owned()],
            registry: RegistryStatus {
                kind: "etcd".to_owned(),
                file: None,
                store: None,
                revision: Some(7),
                members: vec![member("https://10.0.0.1:2379", "leader"), member("b", "away")],
            },
            nodes: vec![ClusterNodeStatus {
                name: "io1".to_owned(),
                state: "present".to_owned(),
                key: Some("7Zk1x0eWabcdefgh".to_owned()),
                addresses: vec!["10.0.0.9:4870".to_owned()],
                pools: vec![PoolSpace {
                    class: Some("ssd".to_owned()),
                    ..PoolSpace::new("p", 16 << 30, 4 << 30)
                }],
                release: "0.1.0".to_owned(),
                joined_s: 1,
                present_s: Some(61),
            }],
            tokens: 1,
            volumes: vec![ClusterVolumeStatus {
                name: "alice".to_owned(),
                state: "degraded".to_owned(),
                primary: "io1".to_owned(),
                in_sync: vec!["io1".to_owned()],
                faults: vec![CopyFault {
                    node: "io2".to_owned(),
                    lacks_writes: true,
                    filled_percent: Some(40),
                    ..CopyFault::default()
                }],
                ..ClusterVolumeStatus::default()
            }],
        };
        let text = cluster(&status);
        let wanted = "cluster rack1: degraded\n  etcd's member b does not answer\n\n   id ab\n   \
                      registry on etcd, 1 of 2 members, revision 7\n   nodes: 1 of 1 present; \
                      tokens: 1; volumes: 1\n\nETCD\n";
        assert!(text.starts_with(wanted), "{text}");
        for part in
            ["NODES", "7Zk1x0eWabcd ", "12GiB", "16GiB", "1MiB", "ssd", "VOLUMES", "io2 (40 %)"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_node_tells_its_part_and_the_problems_of_its_cluster() {
        let mut part = NodeClusterStatus {
            node: "io1".to_owned(),
            state: "away".to_owned(),
            ..NodeClusterStatus::default()
        };
        assert_eq!(of_node(&part), "cluster: none yet, away as io1\n");
        (part.cluster, part.state) = ("rack1".to_owned(), "present".to_owned());
        part.verdict = "well".to_owned();
        assert_eq!(of_node(&part), "cluster: rack1, present as io1; all is well there\n");
        part.verdict = "degraded".to_owned();
        part.problems = vec!["node io2 is away".to_owned()];
        let wanted = "cluster: rack1, present as io1; the cluster is degraded:\n   node io2 is \
                      away\n";
        assert_eq!(of_node(&part), wanted);
    }
}
