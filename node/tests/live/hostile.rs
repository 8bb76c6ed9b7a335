//! A front end that attacks the node through its memory and its eventfds. Beside it a disk on the
//! same sidecore is written and read back all the time.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use node::Node;
use node::status::{GuestMemoryStatus, Status};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, ftruncate};
use virtio::driver::RequestStatus as Outcome;

use super::fuse::{FuseContent, FuseFile};
use super::raw::{
    MEMORY_BYTES, Raw, SET_INFLIGHT_FD, SET_LOG_BASE, SET_VRING_NUM, Tell, memory, region, words,
};
use crate::common::{Guest, Home, wait_for};

/// How long an event that must happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One sidecore for all disks; `memory` are lines of `[memory]`.
pub(crate) fn node(home: &Home, memory: &str) -> Node {
    node_that(home, "adaptive", &format!("[memory]\n{memory}"))
}

/// The same, with this idle policy and more of a configuration.
pub(crate) fn node_that(home: &Home, idle: &str, more: &str) -> Node {
    let disk = |name: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\n\
             backend = {{ file = \"{name}.img\", size = \"1MiB\" }}\n\
             [[disk]]\nsocket = \"{name}.sock\"\nvolume = \"{name}\"\n"
        )
    };
    let disks = ["hostile", "other", "honest"].map(disk).concat();
    home.start(&format!(
        "name = \"n\"\n[sidecores]\ncount = 1\nidle = \"{idle}\"\n\
         [directories]\nvolumes = \"HOME\"\nsockets = \"HOME\"\n{disks}{more}"
    ))
}

/// A guest that writes and reads back until it is dropped.
pub(crate) struct Bystander {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    pub(crate) fn new(home: &Home) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut guest = Guest::connect(home.path("honest.sock"), 1);
        let thread = {
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let round = rounds.fetch_add(1, SeqCst);
                    let block = round % 64;
                    assert_eq!(guest.write(0, block, round + 1), Outcome::Ok);
                    assert_eq!(guest.check(0, block, round + 1), Outcome::Ok);
                }
            })
        };
        let bystander = Self { stop, rounds, thread: Some(thread) };
        bystander.goes_on();
        bystander
    }

    /// Checks that its disk is still served, for some rounds from now on.
    pub(crate) fn goes_on(&self) {
        let (wanted, until) = (self.rounds.load(SeqCst) + 5, Instant::now() + PATIENCE);
        while self.rounds.load(SeqCst) < wanted {
            let fine = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            assert!(fine && Instant::now() < until, "the bystander is not served any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that all its data was right to the end.
    pub(crate) fn end(mut self) {
        self.goes_on();
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Checks that a well-behaved front end is served on the attacked disk.
fn is_served_again(home: &Home) {
    let file = memory(MEMORY_BYTES);
    let mut raw = Raw::connect(&home.path("hostile.sock"));
    assert!(raw.tell_memory(Tell::Table, region(0, MEMORY_BYTES), file.as_fd()));
    raw.start();
    raw.read(&File::from(file));
}

fn lost(node: &Node) -> u64 {
    let status = node.status();
    let disk = status.disks.iter().find(|disk| disk.name == "hostile").unwrap();
    disk.counters.get("broken_memory_lost").copied().unwrap_or(0)
}

/// Waits until the attacked disk has stopped because memory was lost.
fn wait_for_loss(node: &Node, losses: u64) {
    wait_for(node, "the disk stops", |status| {
        let disk = status.disks.iter().find(|disk| disk.name == "hostile").unwrap();
        let is_lost = disk.counters.get("broken_memory_lost").copied().unwrap_or(0) > losses;
        let file =
            "the front end's memory is lost: the file of its guest's memory has no page at byte";
        is_lost && disk.detail.contains(file)
    });
}

/// A sealed memory file with huge pages of 1 GiB, of which hardly any machine has a free one.
fn huge_file(test: &str) -> Option<OwnedFd> {
    let free = "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages";
    if std::fs::read_to_string(free).map_or(true, |free| free.trim() != "0") {
        println!("SKIP {test}: there are no huge pages of 1 GiB, or some are free");
        return None;
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = rustix::fs::memfd_create("huge", flags | MemfdFlags::HUGE_1GB).unwrap();
    ftruncate(&file, 1 << 30).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    Some(file)
}

#[test]
fn huge_memory_without_a_page_stops_its_own_disk_only() {
    let test = "huge_memory_without_a_page_stops_its_own_disk_only";
    let Some(file) = huge_file(test) else { return };
    let home = Home::new();
    let node = node(&home, "");
    let bystander = Bystander::new(&home);
    for how in [Tell::Table, Tell::Region] {
        let losses = lost(&node);
        let raw = Raw::connect(&home.path("hostile.sock"));
        assert!(raw.tell_memory(how, region(0, 1 << 30), file.as_fd()));
        raw.start();
        wait_for_loss(&node, losses);
        bystander.goes_on();
        drop(raw);
        is_served_again(&home);
    }
    bystander.end();
}

/// Also when so many clients have come and left before that the log has no more lines about them.
#[test]
fn the_status_names_the_message_for_which_a_front_end_was_dropped() {
    let home = Home::new();
    let node = node(&home, "");
    for _ in 0..30 {
        drop(Raw::connect(&home.path("hostile.sock")));
    }
    let raw = Raw::connect(&home.path("hostile.sock"));
    assert!(!raw.tell(SET_VRING_NUM, &[0; 4], &[]), "half a body");
    wait_for(&node, "the message is named", |status| {
        let disk = status.disks.iter().find(|disk| disk.name == "hostile").unwrap();
        let named =
            "was dropped: SET_VRING_NUM (message 8, 4 bytes, flags 0x9, without descriptors): ";
        disk.detail.contains(named) && disk.detail.contains("the vhost-user specification")
    });
    is_served_again(&home);
    let says_so = |status: &Status| {
        let disk = status.disks.iter().find(|disk| disk.name == "hostile").unwrap();
        disk.detail.contains("no guest yet")
    };
    wait_for(&node, "one has come and left", says_so);
}

#[test]
fn a_call_eventfd_that_is_full_and_blocks_stops_no_sidecore() {
    let home = Home::new();
    let node = node(&home, "");
    let bystander = Bystander::new(&home);
    let file = memory(MEMORY_BYTES);
    let mut raw = Raw::connect(&home.path("hostile.sock"));
    assert!(raw.tell_memory(Tell::Table, region(0, MEMORY_BYTES), file.as_fd()));
    raw.start();
    let file = File::from(file);
    raw.read(&file);
    let call = raw.call.try_clone().unwrap();
    let fill = |call: &OwnedFd| {
        fcntl_setfl(call, OFlags::NONBLOCK).unwrap();
        let _ = rustix::io::read(call, &mut [0; 8]);
        let _ = rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes());
        fcntl_setfl(call, OFlags::empty()).unwrap();
    };
    fill(&call);
    (0..3).for_each(|_| raw.read(&file));
    bystander.goes_on();
    // And while the flag and the counter change all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let changes = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(SeqCst) {
                fill(&call);
            }
        })
    };
    (0..500).for_each(|_| raw.read(&file));
    stop.store(true, SeqCst);
    changes.join().unwrap();
    for disk in node.status().disks {
        let mut broken = disk.counters.iter().filter(|(name, _)| name.starts_with("broken_"));
        assert!(broken.all(|(_, count)| *count == 0), "{:?}", disk.counters);
    }
    bystander.end();
}

/// The end of a page fault of a file in the test's own file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    /// It waits until the file system is unmounted.
    Stall,
    /// It fails.
    Fail,
}

/// A file of which no byte can be read.
struct FaultyContent {
    faults: Faults,
    /// How often the kernel asked the server about its file or file system.
    asked: Arc<AtomicU64>,
}

impl FaultyContent {
    fn new(faults: Faults) -> (Self, Arc<AtomicU64>) {
        let asked = Arc::new(AtomicU64::new(0));
        (Self { faults, asked: Arc::clone(&asked) }, asked)
    }
}

impl FuseContent for FaultyContent {
    fn asked(&mut self) {
        self.asked.fetch_add(1, SeqCst);
    }

    fn read(&mut self, _: u64, _: usize) -> Option<Result<Vec<u8>, i32>> {
        (self.faults == Faults::Fail).then_some(Err(libc::EIO))
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Option<Result<(), i32>> {
        Some(Err(libc::EIO))
    }

    fn sync(&mut self) -> Option<Result<(), i32>> {
        Some(Err(libc::EIO))
    }
}

/// A file of 4 KiB pages that cannot be read, and how often the kernel has asked about it.
fn faulty(test: &str, home: &Home, faults: Faults) -> Option<(FuseFile, File, Arc<AtomicU64>)> {
    let (content, asked) = FaultyContent::new(faults);
    let path = home.path("faulty");
    let fuse = FuseFile::mount(test, &path, MEMORY_BYTES, content)?;
    let file = File::options().read(true).write(true).open(path).unwrap();
    Some((fuse, file, asked))
}

#[test]
fn memory_on_a_file_system_that_stalls_is_refused_unasked() {
    let home = Home::new();
    let test = "memory_on_a_file_system_that_stalls_is_refused_unasked";
    let Some((_fuse, file, asked)) = faulty(test, &home, Faults::Stall) else { return };
    let node = node(&home, "");
    let bystander = Bystander::new(&home);
    let before = asked.load(SeqCst);
    for how in [Tell::Table, Tell::Region] {
        let raw = Raw::connect(&home.path("hostile.sock"));
        assert!(!raw.tell_memory(how, region(0, MEMORY_BYTES), file.as_fd()), "{how:?}");
        bystander.goes_on();
    }
    // An inflight region for a queue of eight, and a dirty log: length and offset first.
    let inflight = [&words(&[4096, 0])[..], &1_u16.to_ne_bytes(), &8_u16.to_ne_bytes()].concat();
    for (request, body) in [(SET_INFLIGHT_FD, inflight), (SET_LOG_BASE, words(&[4096, 0]))] {
        let raw = Raw::connect(&home.path("hostile.sock"));
        assert!(!raw.tell(request, &body, &[file.as_fd()]), "request {request}");
        bystander.goes_on();
    }
    assert_eq!(asked.load(SeqCst), before, "the node asks a file system that may not answer");
    is_served_again(&home);
    assert_eq!(lost(&node), 0);
    bystander.end();
}

/// The file system says that its blocks have 1 GiB, and fails each page fault.
#[test]
fn a_sidecore_in_a_page_fault_that_does_not_end_is_named_until_it_goes_on() {
    let home = Home::new();
    let test = "a_sidecore_in_a_page_fault_that_does_not_end_is_named_until_it_goes_on";
    let node = node(&home, "guest-files = \"any\"\n");
    let bystander = Bystander::new(&home);
    // Dropped before the node is stopped, also when the test fails: a process in such a fault
    // cannot end.
    let Some((fuse, file, _)) = faulty(test, &home, Faults::Stall) else { return };
    let raw = Raw::connect(&home.path("hostile.sock"));
    assert!(raw.tell_memory(Tell::Table, region(0, MEMORY_BYTES), file.as_fd()));
    // One of its messages gets no answer as long as the sidecore is stuck.
    let starts = std::thread::spawn(move || raw.try_start());
    let found = wait_for(&node, "it is stuck", |status| status.sidecores[0].stuck.is_some());
    let found = found.sidecores[0].stuck.as_ref().expect("so it is");
    let what = "in a change to disk \"hostile\", blocked in ";
    assert!(found.what.starts_with(what), "{found:?}");
    drop(fuse);
    bystander.goes_on();
    starts.join().expect("it says whether it was refused");
    let after = wait_for(&node, "it goes on", |status| status.sidecores[0].stuck.is_none());
    let counters = &after.sidecores[0].counters;
    assert!(counters["stalls"] >= 1 && counters["stalled_ns"] > 0, "{counters:?}");
    is_served_again(&home);
    bystander.end();
}

#[test]
fn a_fault_on_a_file_system_with_huge_blocks_harms_no_other_memory() {
    let home = Home::new();
    let test = "a_fault_on_a_file_system_with_huge_blocks_harms_no_other_memory";
    let Some((_fuse, file, _)) = faulty(test, &home, Faults::Fail) else { return };
    let node = node(&home, "guest-files = \"any\"\n");
    let bystander = Bystander::new(&home);
    for _ in 0..3 {
        let losses = lost(&node);
        let raw = Raw::connect(&home.path("hostile.sock"));
        assert!(raw.tell_memory(Tell::Table, region(0, MEMORY_BYTES), file.as_fd()));
        let neighbour = Neighbour::below(&home.path("faulty"));
        raw.start();
        wait_for_loss(&node, losses);
        bystander.goes_on();
        assert!(neighbour.is_whole(), "memory below the lost mapping was replaced");
    }
    is_served_again(&home);
    bystander.end();
}

/// A page of memory right below the node's mapping of a file: another guest's memory may be there.
struct Neighbour(*mut u8);

impl Neighbour {
    const BYTES: usize = 4096;

    /// The node runs in this process, so that its mappings are in this list.
    fn below(file: &Path) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with(file.to_str().unwrap()));
        let start = line.expect("the node maps the file").split('-').next().unwrap();
        let start = usize::from_str_radix(start, 16).unwrap();
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        let places = (1..100_000).map(|page| start - page * Self::BYTES);
        let mut pages = places.filter_map(|at| {
            let at = std::ptr::without_provenance_mut(at);
            // SAFETY: a new mapping, which is refused where there is another one.
            let page = unsafe { libc::mmap(at, Self::BYTES, protection, flags, -1, 0) };
            (page != libc::MAP_FAILED).then_some(page.cast::<u8>())
        });
        let page = pages.next().expect("some page below it is free");
        // SAFETY: the page was just mapped, for reading and writing, and no other code uses it.
        unsafe { page.write_bytes(7, Self::BYTES) };
        Self(page)
    }

    fn is_whole(&self) -> bool {
        // SAFETY: as above; it stays mapped to the end of the process.
        (0..Self::BYTES).all(|at| unsafe { self.0.add(at).read_volatile() } == 7)
    }
}

#[test]
fn sparse_memory_is_refused_beyond_the_front_ends_and_the_nodes_part() {
    const TIB: u64 = 1 << 40;
    let home = Home::new();
    let rules = "guest-addresses-max = \"9TiB\"\nfront-end-mappings-max = 10\n";
    let node = node(&home, rules);
    let bystander = Bystander::new(&home);
    let used = || -> GuestMemoryStatus { node.status().node.guest_memory };
    let before = used();
    assert_eq!((before.addresses_bytes_max, before.refused), (9 * TIB, 0));
    assert!(before.addresses_bytes > 0 && before.mappings > 0, "the bystander's");
    let sparse = memory(16 * TIB);
    let connect = |disk: &str| Raw::connect(&home.path(disk));
    let say = |raw: &Raw, at: u64, bytes: u64| {
        raw.tell_memory(Tell::Region, region(at, bytes), sparse.as_fd())
    };
    // More than one front end may map: by one region, and by several.
    assert!(!say(&connect("hostile.sock"), 0, 5 * TIB));
    bystander.goes_on();
    let raw = connect("hostile.sock");
    assert!(say(&raw, 0, 3 * TIB));
    assert!(!say(&raw, 8 * TIB, 2 * TIB));
    bystander.goes_on();
    // More mappings than it may have.
    let raw = connect("hostile.sock");
    assert!((0..10).all(|at| say(&raw, at << 30, 4096)));
    assert!(!say(&raw, 10 << 30, 4096));
    // Together more than half of the node's, and so more than an eighth of what is left, until
    // there is room again. A guest of usual size is not refused.
    let raw = connect("hostile.sock");
    assert!(say(&raw, 0, 3 * TIB));
    let other = connect("other.sock");
    assert!(!say(&other, 0, 3 * TIB));
    assert!(say(&connect("other.sock"), 0, TIB / 4));
    bystander.goes_on();
    assert_eq!(used().refused, 4);
    assert!(used().addresses_bytes >= 3 * TIB);
    drop(raw);
    wait_for(&node, "the first one's memory is given back", |status| {
        status.node.guest_memory.addresses_bytes == before.addresses_bytes
    });
    assert!(say(&connect("other.sock"), 0, 3 * TIB));
    is_served_again(&home);
    bystander.end();
}
