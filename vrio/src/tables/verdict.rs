//! The verdict of a status: its first lines say that all is well, or name each problem and the way
//! out.

use node::config::show_size;
use node::status::{
    CopyRole, CopyScrub, CopyStatus, DiskState, DiskStatus, DomainStatus, NetworkStatus, NicStatus,
    NodeClusterStatus, PoolDeviceStatus, PoolState, Status, StoragePoolStatus, VolumeStatus,
};

use super::layout::fold;

/// How long a refused peer, or a peer that was refused something, is a problem after it asked last:
/// as long as the log waits before it repeats the refusal.
const LATELY_S: u64 = 600;

/// The first lines of a node's status: one line, and one for each problem.
pub(crate) fn of_node(status: &Status) -> String {
    let name = &status.node.name;
    let (stuck, others) = (stuck(status), problems(status));
    let mut text: String = stuck.iter().map(|line| format!("{line}\n")).collect();
    text += &match stuck.len() + others.len() {
        0 => format!("node {name}: all is well{}\n", counts(status)),
        1 => format!("node {name}: 1 problem\n"),
        several => format!("node {name}: {several} problems\n"),
    };
    text.extend(others.iter().map(|problem| format!("{}\n", fold(problem, 2))));
    text
}

/// The first lines of a list: its problems, or that all is well.
pub(crate) fn of_list(kind: &str, count: usize, problems: &[String]) -> String {
    let plural = if count == 1 { "" } else { "s" };
    if problems.is_empty() {
        return match count {
            0 => format!("no {kind}s\n"),
            _ => format!("{count} {kind}{plural}: all is well\n"),
        };
    }
    let mut text = match problems.len() {
        1 => format!("{count} {kind}{plural}: 1 problem\n"),
        several => format!("{count} {kind}{plural}: {several} problems\n"),
    };
    for problem in problems {
        text += &format!("{}\n", fold(problem, 2));
    }
    text
}

/// Sidecores that are stuck: worse than everything else that a status can say.
fn stuck(status: &Status) -> Vec<String> {
    let stuck = status.sidecores.iter().filter_map(|core| Some((core.index, core.stuck.as_ref()?)));
    stuck
        .map(|(index, stuck)| {
            let seconds = stuck.for_ms as f64 / 1000.0;
            format!("STUCK: sidecore {index} for {seconds:.1} s: {}", stuck.what)
        })
        .collect()
}

/// Everything else, the worst first.
fn problems(status: &Status) -> Vec<String> {
    [
        pools(&status.pools),
        orphaned(&status.pools, &status.disks),
        volumes(&status.volumes),
        disks(&status.disks),
        nics(&status.nics),
        networks(&status.networks),
        domains(&status.domains),
        cluster(status),
        limits(status),
        strangers(status),
        drained(status),
    ]
    .concat()
}

/// A node that its cluster does not see.
fn cluster(status: &Status) -> Vec<String> {
    let part = status.cluster.as_ref().filter(|part| part.state != "present");
    let line = |part: &NodeClusterStatus| {
        format!("node {} is away for its cluster: {}", part.node, part.detail)
    };
    part.map(line).into_iter().collect()
}

/// The problems of disks: each disk that a guest could not use now.
pub(crate) fn disks(all: &[DiskStatus]) -> Vec<String> {
    let mut found: Vec<_> = all.iter().filter(|disk| is_wrong(disk.state)).collect();
    found.sort_by_key(|disk| u8::MAX - disk.state as u8);
    let line = |disk: &&DiskStatus| line("disk", &disk.name, disk.state, &disk.detail);
    let without_cache = all.iter().filter_map(without_cache);
    let unsent = all.iter().filter_map(unsent);
    let kept = all.iter().flat_map(stranded).chain(all.iter().filter_map(damaged));
    found.iter().map(line).chain(without_cache).chain(unsent).chain(kept).collect()
}

/// Writes of a guest that its node's pool cannot read any more.
fn damaged(disk: &DiskStatus) -> Option<String> {
    let cache = disk.cache.as_ref()?;
    let it = cache.write_back.as_ref().filter(|it| it.damaged_blocks > 0)?;
    let places: Vec<_> = it.damaged_at_bytes.iter().map(u64::to_string).collect();
    let more = if it.damaged_blocks > places.len() as u64 { ", ..." } else { "" };
    Some(format!(
        "disk {}: {} dirty blocks cannot be read from pool {}, and are not written back (at bytes \
         {}{more}): have the guest write or discard them; or give them up: `vrio disk remove {} \
         --force`, and remove volume dirty.{}.* of the pool, with --force too",
        disk.name,
        it.damaged_blocks,
        cache.pool,
        places.join(", "),
        disk.name,
        disk.name
    ))
}

/// How much longer than its configuration says a write may wait before this is a problem.
const UNSENT_S_MAX: u64 = 10;

/// Writes of a guest that wait for its disk's volume for too long, or make the guest wait.
fn unsent(disk: &DiskStatus) -> Option<String> {
    let it = disk.cache.as_ref()?.write_back.as_ref()?;
    if let Some(why) = &it.why_waits {
        return Some(format!("disk {}: {why}", disk.name));
    }
    let has_guest = disk.front_end_pid.is_some() || disk.state == DiskState::Running;
    if it.dirty_bytes > 0 && !has_guest {
        return Some(format!(
            "disk {}: {} of a guest that is gone are only in this host's pool, for {} s or more: \
             start the guest, so that they are written back",
            disk.name,
            show_size(it.dirty_bytes),
            it.dirty_for_s
        ));
    }
    let is_late = it.dirty_bytes > 0 && it.dirty_for_s > it.dirty_age_max_s + UNSENT_S_MAX;
    is_late.then(|| {
        format!(
            "disk {}: {} of its writes could not be written back for {} s: see `vrio status` at \
             its volume's node",
            disk.name,
            show_size(it.dirty_bytes),
            it.dirty_for_s
        )
    })
}

/// Writes in a pool that were not written back, of a disk that this node has no more: only a disk
/// of that name and volume sends them.
fn orphaned(pools: &[StoragePoolStatus], disks: &[DiskStatus]) -> Vec<String> {
    let mut found = Vec::new();
    for pool in pools {
        let writes_back = |disk: &&DiskStatus| {
            let cache = disk.cache.as_ref().filter(|cache| cache.pool == pool.name);
            cache.is_some_and(|cache| cache.write_back.is_some())
        };
        let disks: Vec<_> = disks.iter().filter(writes_back).collect();
        for volume in pool.volumes.iter().filter(|volume| volume.owned_bytes > 0) {
            let Some(of) = volume.name.strip_prefix("dirty.") else { continue };
            // The name of the disk, then names, epoch and claimant.
            let Some(disk) = of.rsplitn(4, '.').nth(3) else { continue };
            if disks.iter().any(|it| it.name == disk) {
                continue;
            }
            found.push(format!(
                "pool {} has {} of writes of disk {disk} that were not written back, and this node \
                 has no such disk with write-back: add it again with the same volume, or remove \
                 them (`vrio volume remove {}:{} --data --force`)",
                pool.name,
                show_size(volume.owned_bytes),
                pool.name,
                volume.number
            ));
        }
    }
    found
}

/// Writes of a guest that are neither on its disk's volume nor will be.
fn stranded(disk: &DiskStatus) -> Vec<String> {
    let cache = disk.cache.iter();
    let all = cache.flat_map(|cache| cache.write_back.iter().map(move |it| (&cache.pool, it)));
    let line = |pool: &String, name: &String| {
        format!(
            "disk {}: writes that were not written back before its volume was used by another \
             client, rolled back or made smaller, or that an older copy of the pool had, are in \
             volume {name} of pool {pool}: look at them, then remove it (`vrio volume remove \
             {pool}:NUMBER --data --force`)",
            disk.name
        )
    };
    all.flat_map(|(pool, it)| it.stranded.iter().map(move |name| line(pool, name))).collect()
}

/// A guest's disk that should have a cache and reads everything from its volume's node.
fn without_cache(disk: &DiskStatus) -> Option<String> {
    let cache = disk.cache.as_ref().filter(|_| disk.state == DiskState::Running)?;
    let why = cache.why_unused.as_ref()?;
    Some(format!("disk {} works without its cache in pool {}: {why}", disk.name, cache.pool))
}

/// Damaged blocks of a pool that a problem names.
const DAMAGED_SHOWN: usize = 4;

/// Whether a scrub has found damage, or a read since the pool was opened.
fn is_damaged(pool: &StoragePoolStatus) -> bool {
    let by_reads = pool.counters.get("damaged_blocks").is_some_and(|blocks| *blocks > 0);
    by_reads || pool.scrub.damaged_blocks > 0 || pool.scrub.damaged_map_blocks > 0
}

/// How long a pool may wait for its collection before this is a problem: it ends within
/// milliseconds where there is anything to collect.
const COLLECTING_S_MAX: u64 = 10;

/// A pool that takes no data; for a pool that only collects, one that has done so for long.
fn takes_nothing(pool: &StoragePoolStatus) -> Option<String> {
    let StoragePoolStatus { name, state, detail, full_for_s, .. } = pool;
    match state {
        PoolState::Ok => None,
        PoolState::Full | PoolState::Failed => Some(format!("pool {name} is {state}: {detail}")),
        PoolState::Collecting => {
            let seconds = full_for_s.filter(|seconds| *seconds >= COLLECTING_S_MAX)?;
            Some(format!(
                "pool {name} has taken no writes for {seconds} s: {detail}; remove snapshots or \
                 volumes, have guests discard (fstrim), or make it larger (vrio pool grow)"
            ))
        }
    }
}

/// The problems of pools: those that take no data, damage, devices that cannot leave, and volumes
/// whose writes wait.
pub(crate) fn pools(all: &[StoragePoolStatus]) -> Vec<String> {
    let states = all.iter().filter_map(takes_nothing);
    let damaged = all.iter().filter(|pool| is_damaged(pool)).map(|pool| {
        let found = &pool.scrub.found;
        let more = match found.len().saturating_sub(DAMAGED_SHOWN) {
            0 => String::new(),
            more => format!(", and {more} more (`vrio pool show {} --json`)", pool.name),
        };
        let shown = found[..found.len().min(DAMAGED_SHOWN)].join(", ");
        let places = if found.is_empty() {
            format!("`vrio pool scrub {}` finds their places", pool.name)
        } else {
            format!("{shown}{more}")
        };
        format!(
            "pool {} has damaged blocks: write them again, or restore them from a snapshot or \
             backup: {places}",
            pool.name,
        )
    });
    let stuck = all.iter().flat_map(|pool| {
        let stuck = pool.device_list.iter().filter(|device| device.stuck);
        stuck.map(|PoolDeviceStatus { path, .. }| {
            format!(
                "{path} cannot leave pool {}: the other devices have no room (remove snapshots, \
                 or add a device), or damage holds blocks on it",
                pool.name
            )
        })
    });
    let pooled = all.iter().flat_map(|pool| &pool.volumes);
    let waiting = pooled.filter_map(|it| Some((&it.name, it.waits.as_ref()?)));
    let waiting = waiting.map(|(name, waits)| format!("writes of volume {name} wait: {waits}"));
    states.chain(damaged).chain(stuck).chain(waiting).collect()
}

/// The problems of volumes: those that take no requests, and snapshots by time that are not taken.
pub(crate) fn volumes(all: &[VolumeStatus]) -> Vec<String> {
    let stopped = all.iter().filter_map(|it| Some((it, it.stopped.as_ref()?)));
    let stopped = stopped.map(|(volume, why)| format!("volume {} is stopped: {why}", volume.name));
    let untaken = all.iter().filter_map(|it| Some((it, it.snapshots_problem.as_ref()?)));
    let untaken = untaken.map(|(volume, problem)| format!("volume {}: {problem}", volume.name));
    let copies = all.iter().filter_map(|it| Some((&*it.name, it.copy.as_ref()?)));
    let copies = copies.filter_map(|(name, copy)| Some(format!("volume {name}: {}", lacks(copy)?)));
    let lost = all.iter().filter_map(|it| Some((&*it.name, it.copy.as_ref()?)));
    let lost = lost.filter_map(|(name, copy)| Some(format!("volume {name}: {}", has_lost(copy)?)));
    let differ = all.iter().filter_map(|it| Some((&*it.name, it.copy.as_ref()?.scrub.as_ref()?)));
    let differ =
        differ.filter_map(|(name, scrub)| Some(format!("volume {name}: {}", has_differed(scrub)?)));
    stopped.chain(copies).chain(lost).chain(differ).chain(untaken).collect()
}

/// Copies that had other content than they were given: they are whole again, and a device, or a
/// program, is not to be trusted.
fn has_differed(scrub: &CopyScrub) -> Option<String> {
    let settled = scrub.differing.iter().find(|block| !block.nodes.is_empty());
    let Some(first) = settled else {
        let first = scrub.differing.first()?;
        return Some(format!(
            "{} blocks are damaged on the copy that serves and different on other copies, the \
             first at byte {}: a device lies, so replace its copy, and restore the files in them \
             from a backup",
            scrub.unsettled_blocks, first.offset_bytes
        ));
    };
    Some(format!(
        "blocks of copies had other content than they were given, the first at byte {} on {}, and \
         {} blocks were repaired: a device lies, so replace it, and scrub once more",
        first.offset_bytes,
        first.nodes.join(", "),
        scrub.differed_blocks
    ))
}

/// The damage that no copy makes up for, as the node that serves has met it. Another node may have
/// served when the copies here were other ones.
fn has_lost(copy: &CopyStatus) -> Option<String> {
    let first = copy.lost.first().filter(|_| copy.role == CopyRole::Primary)?;
    Some(format!(
        "{} blocks of 4 KiB are damaged on all copies in sync, the first at byte {first}: reads of \
         them fail until they are written again. Restore the files in them from a backup, or bring \
         back a copy that is away",
        copy.lost.len()
    ))
}

/// The lack of a volume with copies on several nodes, as this node knows it.
fn lacks(copy: &CopyStatus) -> Option<String> {
    let missing = copy.missing.join(", ");
    match (copy.role, &copy.primary) {
        (CopyRole::Failed, _) if copy.why.is_empty() => {
            Some("its copy here did not start: the node's log has the reason".to_owned())
        }
        (CopyRole::Failed, _) => Some(format!(
            "its copy here has stopped: {}. Start the node again when that is mended",
            copy.why
        )),
        _ if !copy.why.is_empty() => Some(format!("its copy here waits: {}", copy.why)),
        (_, None) if !copy.in_sync.is_empty() => Some(format!(
            "no node serves it: the copies of {} had all writes, and must all be back (`vrio \
             volume evict` gives one up)",
            copy.in_sync.join(", ")
        )),
        (_, None) => Some(
            "it is not known where it is served: the registry has not answered yet (`vrio cluster \
             status`), or the first node of \"replicas\" has not started"
                .to_owned(),
        ),
        (CopyRole::TakesOver, _) => Some("its copies are being made equal".to_owned()),
        (CopyRole::Outside, Some(node)) => {
            Some(format!("the copy here lacks writes; {node} has them, if it can be reached"))
        }
        (CopyRole::Backup | CopyRole::Primary, _) if !missing.is_empty() => {
            Some(format!("the copies of {missing} lack writes: look there"))
        }
        (CopyRole::Backup | CopyRole::Primary, _) => None,
    }
}

/// The problems of nics.
pub(crate) fn nics(all: &[NicStatus]) -> Vec<String> {
    let found = all.iter().filter(|nic| is_wrong(nic.state));
    found.map(|nic| line("nic", &nic.name, nic.state, &nic.detail)).collect()
}

/// Whether no guest could use a disk or nic now.
pub(super) fn is_wrong(state: DiskState) -> bool {
    matches!(state, DiskState::Failed | DiskState::Lost | DiskState::Waiting)
}

fn line(kind: &str, name: &str, state: DiskState, detail: &str) -> String {
    let detail = if detail.is_empty() { "see the node's log" } else { detail };
    format!("{kind} {name} is {state}: {detail}")
}

/// The problems of networks: uplinks that carry nothing.
pub(crate) fn networks(all: &[NetworkStatus]) -> Vec<String> {
    let down = all.iter().filter(|network| network.uplink_up == Some(false));
    down.map(|network| {
        let uplink = network.uplink.as_deref().unwrap_or_default();
        let why = network.uplink_why.as_deref().unwrap_or("it is down");
        format!("network {}: its uplink {uplink} carries no frames: {why}", network.name)
    })
    .collect()
}

/// The problems of domains: peers that are not joined.
pub(crate) fn domains(all: &[DomainStatus]) -> Vec<String> {
    let peers = all.iter().flat_map(|domain| domain.peers.iter().map(move |peer| (domain, peer)));
    let away = peers.filter(|(_, peer)| !peer.is_joined);
    away.map(|(domain, peer)| {
        let why = peer.why.as_deref().unwrap_or("it has not answered yet");
        format!("domain {}: {} is not joined: {why}", domain.name, peer.name)
    })
    .collect()
}

fn limits(status: &Status) -> Vec<String> {
    let at_limit = status.quotas.iter().filter(|quota| quota.at_limit);
    at_limit
        .map(|quota| {
            let has = match quota.resource.strip_suffix("_bytes") {
                Some(resource) => format!("{} of {resource}", show_size(quota.has)),
                None => format!("{} {}", quota.has, quota.resource),
            };
            format!("peer {} is at a limit: it has {has}, and gets no more", quota.peer)
        })
        .collect()
}

/// One line for each reason, however many strangers there are.
fn strangers(status: &Status) -> Vec<String> {
    let lately = status.strangers.iter().filter_map(|of| Some((of, of.latest.first()?)));
    let lately = lately.filter(|(_, latest)| latest.ago_s < LATELY_S);
    lately
        .map(|(of, latest)| {
            let name = latest.name.as_ref().map(|it| format!(" ({})", it.escape_debug()));
            format!(
                "a peer at {}{} was refused ({}); the table STRANGERS below says how to admit it",
                latest.address,
                name.unwrap_or_default(),
                of.reason
            )
        })
        .collect()
}

fn drained(status: &Status) -> Vec<String> {
    let line = "it is drained: it takes no new users (`vrio node drain` lists the users that are \
                left, --undo ends the drain)";
    status.node.draining.then(|| line.to_owned()).into_iter().collect()
}

/// The counts of objects of a node without a problem.
fn counts(status: &Status) -> String {
    let sessions = status.sessions.iter().filter(|session| session.state == "connected").count();
    let counts = [
        ("disk", status.disks.len()),
        ("volume", status.volumes.len()),
        ("pool", status.pools.len()),
        ("nic", status.nics.len()),
        ("network", status.networks.len()),
        ("domain", status.domains.len()),
        ("session", sessions),
    ];
    let some = counts.into_iter().filter(|(_, count)| *count > 0);
    let words = some.map(|(kind, count)| match count {
        1 => format!("1 {kind}"),
        _ => format!("{count} {kind}s"),
    });
    let words = words.collect::<Vec<_>>().join(", ");
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use node::status::{
        CacheStatus, DomainPeerStatus, NodeStatus, PooledStatus, QuotaStatus, SidecoreStatus,
        StrangerStatus, StrangersStatus, StuckStatus, WriteBackStatus,
    };

    use super::*;

    fn disk(name: &str, state: DiskState, detail: &str) -> DiskStatus {
        DiskStatus {
            name: name.to_owned(),
            state,
            detail: detail.to_owned(),
            ..DiskStatus::default()
        }
    }

    fn node(name: &str) -> Status {
        let node = NodeStatus { name: name.to_owned(), ..NodeStatus::default() };
        Status { version: 1, node, ..Status::default() }
    }

    #[test]
    fn a_node_without_a_problem_says_so_in_its_first_line() {
        let disks = vec![disk("a", DiskState::Running, ""), disk("b", DiskState::Ready, "")];
        let status = Status { disks, ..node("vm1") };
        assert_eq!(of_node(&status), "node vm1: all is well (2 disks)\n");
        assert_eq!(of_node(&node("n")), "node n: all is well\n");
    }

    #[test]
    fn problems_come_first_the_worst_first_in_80_columns() {
        let text = |text: &str| text.to_owned();
        let stuck = StuckStatus { for_ms: 2500, what: text("in the system call pwritev2") };
        let quota = QuotaStatus {
            peer: text("vm3"),
            resource: text("replies_bytes"),
            has: 96 << 20,
            at_limit: true,
            ..QuotaStatus::default()
        };
        let stranger = |ago_s| StrangersStatus {
            reason: text("unknown-key"),
            refused: 9000,
            latest: vec![StrangerStatus {
                address: text("10.0.0.7:4870"),
                name: Some(text("x\u{1b}[2J")),
                ago_s,
                ..StrangerStatus::default()
            }],
        };
        let peer = |name: &str, is_joined| DomainPeerStatus {
            name: text(name),
            is_joined,
            host: None,
            why: Some(text("no session with it yet")),
        };
        let mut status = node("vm1");
        status.sidecores =
            vec![SidecoreStatus { index: 1, stuck: Some(stuck), ..SidecoreStatus::default() }];
        status.disks = vec![
            disk("a", DiskState::Waiting, "waits for io1 at 10.0.0.9:4870 to answer"),
            disk("b", DiskState::Running, ""),
            disk("c", DiskState::Failed, "another attachment has taken the volume; remove it"),
        ];
        status.networks = vec![NetworkStatus {
            name: text("blue"),
            uplink: Some(text("tap:vrio0")),
            uplink_up: Some(false),
            uplink_why: Some(text("it is set down; ip link set vrio0 up")),
            ..NetworkStatus::default()
        }];
        status.domains = vec![DomainStatus {
            name: text("science"),
            peers: vec![peer("n2", true), peer("n3", false)],
            ..DomainStatus::default()
        }];
        status.quotas = vec![quota];
        status.strangers = vec![stranger(3), stranger(9999)];
        status.node.draining = true;
        let told = of_node(&status);
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        expect![[r#"
            STUCK: sidecore 1 for 2.5 s: in the system call pwritev2
            node vm1: 8 problems
              disk c is failed: another attachment has taken the volume; remove it
              disk a is waiting: waits for io1 at 10.0.0.9:4870 to answer
              network blue: its uplink tap:vrio0 carries no frames: it is set down; ip link
                set vrio0 up
              domain science: n3 is not joined: no session with it yet
              peer vm3 is at a limit: it has 96MiB of replies, and gets no more
              a peer at 10.0.0.7:4870 (x\u{1b}[2J) was refused (unknown-key); the table
                STRANGERS below says how to admit it
              it is drained: it takes no new users (`vrio node drain` lists the users that
                are left, --undo ends the drain)
        "#]]
        .assert_eq(&told);
    }

    #[test]
    fn damage_that_reads_have_found_is_a_problem() {
        let mut pool = StoragePoolStatus { name: "p".to_owned(), ..StoragePoolStatus::default() };
        pool.counters.insert("damaged_blocks".to_owned(), 0);
        assert!(pools(std::slice::from_ref(&pool)).is_empty());
        pool.counters.insert("damaged_blocks".to_owned(), 7);
        let told = pools(&[pool]).concat();
        assert!(told.contains("`vrio pool scrub p` finds their places"), "{told}");
    }

    /// Writes whose disk is gone, and writes that their volume does not take.
    #[test]
    fn writes_that_are_not_written_back_are_a_problem() {
        let volume = PooledStatus {
            number: 7,
            name: "dirty.a.b.nnnnnnnn.2.3".to_owned(),
            owned_bytes: 8 << 20,
            ..PooledStatus::default()
        };
        let pool = StoragePoolStatus {
            name: "local".to_owned(),
            volumes: vec![volume],
            ..StoragePoolStatus::default()
        };
        let told = orphaned(std::slice::from_ref(&pool), &[]).concat();
        assert!(told.starts_with("pool local has 8MiB of writes of disk a.b that"), "{told}");
        assert!(told.contains("`vrio volume remove local:7 --data --force`"), "{told}");
        let write_back = WriteBackStatus {
            dirty_bytes: 4 << 20,
            dirty_age_max_s: 5,
            dirty_for_s: 15,
            ..WriteBackStatus::default()
        };
        let disk = |write_back: &WriteBackStatus| {
            let write_back = Some(write_back.clone());
            let cache = CacheStatus { pool: "local".to_owned(), write_back, ..Default::default() };
            DiskStatus { cache: Some(cache), ..disk("a.b", DiskState::Running, "") }
        };
        assert!(orphaned(&[pool], &[disk(&write_back)]).is_empty());
        assert!(disks(&[disk(&write_back)]).is_empty());
        let late = WriteBackStatus { dirty_for_s: 16, ..write_back.clone() };
        let told = disks(&[disk(&late)]).concat();
        assert!(told.contains("4MiB of its writes could not be written back for 16 s"), "{told}");
        let waits = WriteBackStatus { why_waits: Some("no room".to_owned()), ..write_back };
        assert_eq!(disks(&[disk(&waits)]), ["disk a.b: no room"]);
    }

    /// A pool collects for a moment without a problem, but not for long.
    #[test]
    fn a_pool_that_takes_no_writes_for_long_is_a_problem() {
        let pool = |full_for_s| StoragePoolStatus {
            name: "p".to_owned(),
            state: PoolState::Collecting,
            detail: "writes wait".to_owned(),
            full_for_s,
            ..StoragePoolStatus::default()
        };
        assert!(pools(&[pool(None), pool(Some(COLLECTING_S_MAX - 1))]).is_empty());
        let told = pools(&[pool(Some(40))]).concat();
        assert!(told.starts_with("pool p has taken no writes for 40 s: writes wait; "), "{told}");
        assert!(told.contains("vrio pool grow"), "{told}");
    }

    #[test]
    fn a_stopped_volume_is_a_problem() {
        let stopped = Some("its key is missing".to_owned());
        let volume = VolumeStatus { name: "v".to_owned(), stopped, ..VolumeStatus::default() };
        let told = of_node(&Status { volumes: vec![volume], ..node("vm1") });
        assert_eq!(told, "node vm1: 1 problem\n  volume v is stopped: its key is missing\n");
    }

    #[test]
    fn each_of_many_problems_has_a_line() {
        let all = (0..1000).map(|n| disk(&format!("d{n}"), DiskState::Lost, "its volume is away"));
        let told = of_node(&Status { disks: all.collect(), ..node("vm1") });
        assert!(told.starts_with("node vm1: 1000 problems\n"), "{told}");
        assert_eq!(told.lines().count(), 1001);
    }

    #[test]
    fn a_list_begins_with_what_is_wrong_in_it() {
        assert_eq!(of_list("disk", 0, &[]), "no disks\n");
        assert_eq!(of_list("peer", 1, &[]), "1 peer: all is well\n");
        let problems =
            disks(&[disk("a", DiskState::Failed, "over"), disk("b", DiskState::Ready, "")]);
        let told = of_list("disk", 2, &problems);
        assert_eq!(told, "2 disks: 1 problem\n  disk a is failed: over\n");
    }
}
