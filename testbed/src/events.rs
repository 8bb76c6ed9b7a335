//! Events of a measurement besides the requests themselves, as nodes and the kernel count them.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node::status::{Counters, Status};

use crate::nodes::Node;

/// The part of a process in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The sender of the requests: the bench itself.
    Driver,
    /// The node that shows the disk, or the processes behind a socket.
    Vmhost,
    /// The node that has the volume.
    Iohost,
}

impl Role {
    /// Its name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Vmhost => "vmhost",
            Self::Iohost => "iohost",
        }
    }
}

/// A thread's processor time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    name: String,
    cpu_ns: u64,
}

/// One process at one time.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Its counters, by name.
    pub counters: Counters,
    /// Requests of guests and of peers, by the sidecore that took them.
    served: BTreeMap<usize, u64>,
    threads: BTreeMap<u32, Thread>,
}

impl Side {
    /// A node's counters, summed over its sidecores, disks and nics, and its threads.
    pub fn of_node(status: &Status) -> Result<Self> {
        let (mut counters, mut served) = (Counters::new(), BTreeMap::<usize, u64>::new());
        let of_peers = status.sidecores.iter().map(|it| (it.index, it.counters.get(OF_PEERS)));
        let shares = status.disks.iter().flat_map(|disk| &disk.by_sidecore);
        let of_guests = shares.map(|share| (share.sidecore, share.counters.get(OF_GUESTS)));
        for (sidecore, requests) in of_peers.chain(of_guests) {
            *served.entry(sidecore).or_default() += requests.copied().unwrap_or(0);
        }
        let sidecores = status.sidecores.iter().map(|sidecore| &sidecore.counters);
        let disks = status.disks.iter().map(|disk| &disk.counters);
        let nics = status.nics.iter().map(|nic| &nic.counters);
        for (name, value) in sidecores.chain(disks).chain(nics).flatten() {
            *counters.entry(name.clone()).or_default() += value;
        }
        // Bytes that crossed to and from nics of other nodes were copied by their ports here.
        let members = status.networks.iter().flat_map(|network| &network.members);
        for copied in members.filter_map(|member| member.counters.get("bytes_copied")) {
            *counters.entry(REMOTE_COPIES.to_owned()).or_default() += copied;
        }
        // Of a volume's counters only this one: disks count the rest as well.
        let in_place = status.volumes.iter().filter_map(|volume| volume.counters.get(IN_PLACE));
        *counters.entry(IN_PLACE.to_owned()).or_default() += in_place.sum::<u64>();
        // The rows of a pool are all that its devices write.
        let rows = ["guest_row_blocks", "moved_row_blocks", "map_row_blocks"];
        let of_pools = status.pools.iter().flat_map(|pool| {
            let written = rows.iter().filter_map(|name| pool.counters.get(*name)).sum();
            let of = |name: &str| pool.counters.get(name).copied().unwrap_or(0);
            [
                (POOL_BLOCKS_WRITTEN, written),
                (POOL_PAGES_MOVED, of("moved_pages")),
                (POOL_MAP_LOADS, of("map_loads")),
                (URING_ENTERS, of(URING_ENTERS)),
            ]
        });
        for (name, count) in of_pools {
            *counters.entry(name.to_owned()).or_default() += count;
        }
        Ok(Self { counters, served, ..Self::of_process(status.node.pid)? })
    }

    /// A process without counters: only the kernel tells something about it.
    pub fn of_process(pid: u32) -> Result<Self> {
        let tasks = format!("/proc/{pid}/task");
        let entries = fs::read_dir(&tasks).with_context(|| format!("looking at {tasks}"))?;
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // A thread may end while it is read.
        let threads = ids.filter_map(|id: u32| Some((id, thread(&format!("{tasks}/{id}"))?)));
        Ok(Self { threads: threads.collect(), ..Self::default() })
    }

    /// Adds another process of the same role.
    fn add(&mut self, other: Self) {
        for (name, value) in other.counters {
            *self.counters.entry(name).or_default() += value;
        }
        for (sidecore, count) in other.served {
            *self.served.entry(sidecore).or_default() += count;
        }
        self.threads.extend(other.threads);
    }

    /// Processor time of all its threads.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.threads.values().map(|thread| thread.cpu_ns).sum())
    }

    /// Keeps only the threads of this name.
    pub fn only(mut self, name: &str) -> Self {
        self.threads.retain(|_, thread| thread.name == name);
        self
    }
}

fn thread(task: &str) -> Option<Thread> {
    let name = fs::read_to_string(format!("{task}/comm")).ok()?.trim().to_owned();
    let times = fs::read_to_string(format!("{task}/schedstat")).ok()?;
    let cpu_ns = times.split_whitespace().next()?.parse().ok()?;
    Some(Thread { name, cpu_ns })
}

/// The state of all processes at one time.
#[derive(Clone, Debug)]
pub struct EventsSnapshot {
    /// The time of the look.
    pub at: Instant,
    /// The processes of each role.
    pub sides: BTreeMap<Role, Side>,
}

impl EventsSnapshot {
    /// Reads these nodes, or processes behind a socket, which take the VMhost's place.
    pub fn at<'a>(nodes: impl IntoIterator<Item = (Role, &'a Node)>, pids: &[u32]) -> Result<Self> {
        let mut sides = BTreeMap::new();
        for (role, node) in nodes {
            let status: Status = serde_json::from_value(node.status()?)?;
            let side: &mut Side = sides.entry(role).or_default();
            side.add(Side::of_node(&status)?);
        }
        if !pids.is_empty() {
            let mut all = Side::default();
            for pid in pids {
                all.threads.extend(Side::of_process(*pid)?.threads);
            }
            sides.insert(Role::Vmhost, all);
        }
        Ok(Self { at: Instant::now(), sides })
    }
}

/// The events between two looks.
#[derive(Clone, Debug)]
pub struct Events {
    /// The time between the two looks.
    pub took: Duration,
    counters: BTreeMap<Role, Counters>,
    served: BTreeMap<Role, BTreeMap<usize, u64>>,
    /// Processor time by role and thread, named `sidecore-0` and so on.
    pub threads: BTreeMap<Role, BTreeMap<String, Duration>>,
}

impl EventsSnapshot {
    /// The events since an earlier look.
    pub fn since(&self, earlier: &Self) -> Events {
        let (mut counters, mut threads) = (BTreeMap::new(), BTreeMap::new());
        let mut served = BTreeMap::new();
        for (role, side) in &self.sides {
            let before = earlier.sides.get(role).cloned().unwrap_or_default();
            let grown = side.counters.iter().map(|(name, value)| {
                let grown = value.saturating_sub(before.counters.get(name).copied().unwrap_or(0));
                (name.clone(), grown)
            });
            counters.insert(*role, grown.collect::<Counters>());
            let grown = side.served.iter().map(|(sidecore, count)| {
                (*sidecore, count.saturating_sub(before.served.get(sidecore).copied().unwrap_or(0)))
            });
            served.insert(*role, grown.collect::<BTreeMap<_, _>>());
            let mut times = BTreeMap::<String, Duration>::new();
            for (id, thread) in &side.threads {
                let earlier_ns = before.threads.get(id).map_or(0, |thread| thread.cpu_ns);
                let spent = Duration::from_nanos(thread.cpu_ns.saturating_sub(earlier_ns));
                *times.entry(thread.name.clone()).or_default() += spent;
            }
            threads.insert(*role, times);
        }
        Events { took: self.at.duration_since(earlier.at), counters, served, threads }
    }
}

/// A volume's counter of requests that a sidecore did by itself, with a system call each.
const IN_PLACE: &str = "file_in_place";

/// Interrupts of the device behind a volume's file, for the role that has the volume.
pub const DEVICE_INTERRUPTS: &str = "device_interrupts";

/// Entries into the kernel: a sidecore's for files, and a pool's for its devices.
const URING_ENTERS: &str = "uring_enters";

/// Blocks that a pool wrote to its devices, its pages that collection moved, and reads of its map.
pub const POOL_BLOCKS_WRITTEN: &str = "pool_blocks_written";
const POOL_PAGES_MOVED: &str = "pool_pages_moved";
const POOL_MAP_LOADS: &str = "pool_map_loads";

/// Counters of requests that a sidecore took: from peers, and from guests in a disk's share.
const OF_PEERS: &str = "server_requests";
const OF_GUESTS: &str = "requests";

/// Counters of system calls of a sidecore: each event is one call. Not among them are calls to a
/// direct client's ublk driver beside its ring, calls that wake another sidecore of the same node,
/// a nic's kicks, and the check before a call through a descriptor that may block.
const SYSTEM_CALLS: [&str; 14] = [
    URING_ENTERS,
    IN_PLACE,
    "link_send_calls",
    "link_receive_calls",
    "shm_bells_rung",
    "shm_bell_reads",
    "xdp_fill_calls",
    "uring_event_reads",
    "bell_reads",
    "kick_reads",
    "yields",
    "naps",
    "sleeps",
    "calls",
];

/// Bytes copied between a session's buffers and disks' channels, or frames.
const REMOTE_COPIES: &str = "remote_bytes_copied";

/// Counters of copied bytes: by the session, beside it, through shared memory, past the stack. A
/// backend's copies are part of its storage, and the kernel's copies at its sockets are not
/// counted.
const COPIES: [&str; 4] =
    ["sessions_bytes_copied", REMOTE_COPIES, "shm_bytes_copied", "xdp_bytes_copied"];

/// Events of the kernel's sockets, and of sessions: a *message* is a datagram or a group of
/// datagrams that passes the network stack as one. Bytes are those of bodies.
const OF_LINKS_AND_SESSIONS: [(&str, &[&str]); 5] = [
    ("messages_sent", &["link_send_messages"]),
    ("messages_received", &["link_receive_messages"]),
    ("receive_calls", &["link_receive_calls"]),
    ("bytes_checksummed", &["sessions_bytes_checksummed"]),
    ("bytes_ciphered", &["sessions_bytes_sealed", "sessions_bytes_opened"]),
];

impl Events {
    fn sum(&self, role: Role, names: &[&str]) -> Option<u64> {
        let counters = self.counters.get(&role).filter(|counters| !counters.is_empty())?;
        Some(names.iter().map(|name| counters.get(*name).copied().unwrap_or(0)).sum())
    }

    /// The sum of these counters, or nothing where one is missing: a missing counter is not zero.
    fn counted(&self, role: Role, names: &[&str]) -> Option<u64> {
        let counters = self.counters.get(&role)?;
        names.iter().map(|name| counters.get(*name).copied()).sum()
    }

    /// Datagrams that the kernel carried: neither shared memory nor the way past the stack.
    fn through_the_kernel(&self, role: Role) -> Option<u64> {
        let all = self.sum(role, &["link_datagrams_sent"])?;
        Some(all.saturating_sub(self.sum(role, &["xdp_datagrams_sent"])?))
    }

    /// Bytes that a role copied. It is nothing for a role without sessions, shared memory or nics
    /// of other nodes: other copies are not counted.
    fn copied(&self, role: Role) -> Option<u64> {
        let counters = self.counters.get(&role)?;
        let counts = COPIES.iter().any(|name| counters.contains_key(*name));
        if counts { self.sum(role, &COPIES) } else { None }
    }

    /// Requests that each sidecore took, by role and sidecore.
    pub fn by_sidecore(&self) -> BTreeMap<String, u64> {
        let each = self.served.iter().flat_map(|(role, served)| {
            let name = role.name();
            served.iter().map(move |(index, count)| (format!("{name}-sidecore-{index}"), *count))
        });
        each.collect()
    }

    /// Named numbers for each request, of all roles that have counters.
    pub fn per_request(&self, requests: u64) -> BTreeMap<String, f64> {
        let mut all = BTreeMap::new();
        let mut note = |name: String, count: Option<u64>| {
            if let Some(count) = count {
                all.insert(name, count as f64 / requests as f64);
            }
        };
        // An IOhost may have a guest as well.
        let hosts = [Role::Vmhost, Role::Iohost].into_iter();
        let calls: Vec<_> = hosts.filter_map(|role| self.counted(role, &["calls"])).collect();
        note("calls".to_owned(), (!calls.is_empty()).then(|| calls.iter().sum()));
        for role in [Role::Driver, Role::Vmhost, Role::Iohost] {
            let name = role.name();
            note(format!("{name}_wakeups"), self.counted(role, &["sleeps", "naps"]));
            note(format!("{name}_system_calls"), self.sum(role, &SYSTEM_CALLS));
            note(format!("{name}_uring_enters"), self.sum(role, &[URING_ENTERS]));
            note(format!("{name}_bytes_copied"), self.copied(role));
            let datagrams = ["link_datagrams_sent", "shm_datagrams_sent"];
            note(format!("{name}_datagrams_sent"), self.sum(role, &datagrams));
            note(format!("{name}_kernel_datagrams_sent"), self.through_the_kernel(role));
            // Shared memory counts no bytes of datagrams, only those it copies.
            let bytes = self.sum(role, &["link_bytes_sent"]).filter(|bytes| *bytes > 0);
            note(format!("{name}_link_bytes_sent"), bytes);
            note(format!("{name}_send_calls"), self.sum(role, &["link_send_calls"]));
            for (event, counters) in OF_LINKS_AND_SESSIONS {
                note(format!("{name}_{event}"), self.counted(role, counters));
            }
            let counters = self.counters.get(&role);
            let interrupts = counters.and_then(|it| it.get(DEVICE_INTERRUPTS).copied());
            note(format!("{name}_{DEVICE_INTERRUPTS}"), interrupts);
        }
        for name in [POOL_BLOCKS_WRITTEN, POOL_PAGES_MOVED, POOL_MAP_LOADS] {
            let hosts = [Role::Vmhost, Role::Iohost].into_iter();
            let counts: Vec<_> = hosts.filter_map(|role| self.counted(role, &[name])).collect();
            note(name.to_owned(), (!counts.is_empty()).then(|| counts.iter().sum()));
        }
        all
    }

    /// The share of datagrams that were sent past the network stack, on the side with the smaller
    /// share.
    pub fn past_the_stack(&self) -> f64 {
        let of = |counters: &Counters, name| counters.get(name).copied().unwrap_or(0) as f64;
        let sides = self.counters.values().filter(|it| of(it, "link_datagrams_sent") > 0.0);
        let shares = sides.map(|it| of(it, "xdp_datagrams_sent") / of(it, "link_datagrams_sent"));
        shares.fold(1.0, f64::min)
    }

    /// The share of a core that each busy thread got, by role and thread. For the driver's threads,
    /// `driver` has their processor times, and they had work during `took`.
    pub fn core_share(&self, driver: &[Duration], took: Duration) -> BTreeMap<String, f64> {
        let of = |time: &Duration, of: Duration| time.as_secs_f64() / of.as_secs_f64();
        let drivers = driver.iter().enumerate();
        let mut shares: BTreeMap<_, _> =
            drivers.map(|(job, time)| (format!("driver-{job}"), of(time, took))).collect();
        for (role, threads) in &self.threads {
            let busy = threads.iter().filter(|(name, _)| name.starts_with("sidecore-"));
            // The sidecores of a direct client are the driver, whose times were given.
            let busy = busy.filter(|_| *role != Role::Driver);
            let name = role.name();
            let share =
                |(thread, time): (&String, _)| (format!("{name}-{thread}"), of(time, self.took));
            shares.extend(busy.map(share));
        }
        shares
    }

    /// Processor time of a role's threads together.
    pub fn cpu(&self, role: Role) -> Option<Duration> {
        self.threads.get(&role).map(|threads| threads.values().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(counters: &[(&str, u64)], threads: &[(u32, &str, u64)]) -> Side {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value));
        let thread = |name: &str, cpu_ns| Thread { name: name.to_owned(), cpu_ns };
        Side {
            counters: counters.collect(),
            threads: threads.iter().map(|(id, name, ns)| (*id, thread(name, *ns))).collect(),
            ..Side::default()
        }
    }

    #[test]
    fn only_what_was_added_counts() {
        let at = Instant::now();
        let before = side(&[("sleeps", 5), ("uring_enters", 7)], &[(1, "sidecore-0", 100)]);
        let after = side(
            &[("sleeps", 8), ("naps", 1), ("uring_enters", 9), ("remote_bytes_copied", 8192)],
            &[(1, "sidecore-0", 1100), (2, "control", 10)],
        );
        let look = |side, at| EventsSnapshot { at, sides: [(Role::Vmhost, side)].into() };
        let events = look(after, at + Duration::from_secs(1)).since(&look(before, at));
        let each = events.per_request(2);
        assert_eq!(each["vmhost_wakeups"], 2.0);
        // Two enters, three sleeps, one nap.
        assert_eq!(each["vmhost_system_calls"], 3.0);
        assert_eq!(each["vmhost_bytes_copied"], 4096.0);
        assert_eq!(each["vmhost_uring_enters"], 1.0);
        assert!(!each.contains_key("iohost_wakeups"), "who does not count, is not there");
        assert_eq!(events.cpu(Role::Vmhost), Some(Duration::from_nanos(1010)));
        assert_eq!(events.threads[&Role::Vmhost]["sidecore-0"], Duration::from_nanos(1000));
        assert_eq!(events.cpu(Role::Iohost), None);
    }

    /// Without a counter of copies, "no copies" would be an empty claim.
    #[test]
    fn a_process_without_counted_copies_claims_none() {
        let at = Instant::now();
        let look = |side| EventsSnapshot { at, sides: [(Role::Vmhost, side)].into() };
        let nothing = look(side(&[], &[]));
        let alone = look(side(&[("sleeps", 1)], &[])).since(&nothing).per_request(1);
        assert!(!alone.contains_key("vmhost_bytes_copied"), "{alone:?}");
        let sessions = look(side(&[("sessions_bytes_copied", 0)], &[]));
        assert_eq!(sessions.since(&nothing).per_request(1)["vmhost_bytes_copied"], 0.0);
    }

    #[test]
    fn the_share_of_each_link_is_known() {
        let at = Instant::now();
        let took = |served: &[(usize, u64)]| {
            let side = Side { served: served.iter().copied().collect(), ..Side::default() };
            EventsSnapshot { at, sides: [(Role::Vmhost, side)].into() }
        };
        let by = took(&[(0, 7), (1, 5)]).since(&took(&[(0, 4)])).by_sidecore();
        assert_eq!((by["vmhost-sidecore-0"], by["vmhost-sidecore-1"]), (3, 5));
    }

    #[test]
    fn a_datagram_is_the_kernels_or_not() {
        let at = Instant::now();
        let sent = [
            ("link_datagrams_sent", 8),
            ("xdp_datagrams_sent", 6),
            ("shm_datagrams_sent", 4),
            ("link_send_calls", 1),
        ];
        let look = |side| EventsSnapshot { at, sides: [(Role::Iohost, side)].into() };
        let each = look(side(&sent, &[])).since(&look(side(&[], &[]))).per_request(2);
        assert_eq!(each["iohost_datagrams_sent"], 6.0);
        assert_eq!(each["iohost_kernel_datagrams_sent"], 1.0);
        assert_eq!(each["iohost_send_calls"], 0.5);
    }

    #[test]
    fn groups_and_passes_are_counted_where_all_of_their_counters_are() {
        let at = Instant::now();
        let look = |side| EventsSnapshot { at, sides: [(Role::Driver, side)].into() };
        let counters = [
            ("link_send_messages", 6),
            ("sessions_bytes_sealed", 4096),
            ("sessions_bytes_opened", 64),
        ];
        let each = look(side(&counters, &[])).since(&look(side(&[], &[]))).per_request(2);
        assert_eq!(each["driver_messages_sent"], 3.0);
        assert_eq!(each["driver_bytes_ciphered"], 2080.0);
        assert!(!each.contains_key("driver_bytes_checksummed"), "it is not counted: {each:?}");
    }

    #[test]
    fn this_process_has_threads() {
        let side = Side::of_process(std::process::id()).unwrap();
        assert!(!side.threads.is_empty());
        assert!(side.only("no such thread").threads.is_empty());
    }
}
