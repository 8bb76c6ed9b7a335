//! The session against the `vhost` crate's front end.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserVringAddrFlags,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ring::*;
use super::server::*;
use crate::dirty::LOG_PAGE_BYTES;
use crate::{Mapping, REGIONS_MAX, ServerState, feature};

#[test]
fn offered_features() {
    let bed = Bed::new();
    let mut front_end = bed.connect();
    let features = front_end.get_features().unwrap();
    let ring = feature::VERSION_1 | feature::RING_INDIRECT_DESC | feature::RING_EVENT_IDX;
    let vhost_user = feature::PROTOCOL_FEATURES | feature::LOG_ALL;
    let all = OWN_FEATURE | ring | feature::RING_PACKED | vhost_user;
    assert_eq!(features, all);
    assert_eq!(front_end.get_queue_num().unwrap(), QUEUES as u64);
    assert_eq!(front_end.get_max_mem_slots().unwrap(), REGIONS_MAX as u64);
    assert_eq!(bed.device.state().acked, features & !feature::RING_PACKED);
    assert_eq!(bed.server().state(), ServerState::Connected);
}

#[test]
fn configuration_space_is_read_with_zeroes_behind_it() {
    let bed = Bed::new();
    let mut front_end = bed.connect();
    let flags = VhostUserConfigFlags::empty();
    let mut read =
        |offset, len| front_end.get_config(offset, len as u32, flags, &vec![0; len]).unwrap().1;
    assert_eq!(read(0, 8), (1..=8).collect::<Vec<u8>>());
    assert_eq!(read(6, 4), [7, 8, 0, 0]);
    assert_eq!(read(200, 2), [0, 0]);
    front_end.set_config(3, VhostUserConfigFlags::WRITABLE, &[9]).unwrap();
    assert_eq!(bed.device.state().written, [3, 9]);
}

/// The header of the next message on a back-channel, as words.
fn said(channel: &UnixStream) -> Option<[u32; 3]> {
    let mut message = [0; 12];
    channel.set_nonblocking(true).unwrap();
    match (&*channel).read(&mut message) {
        Ok(len) => assert_eq!(len, 12),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            return None;
        }
    }
    let word = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap());
    Some([word(0), word(4), word(8)])
}

#[test]
fn a_change_of_the_configuration_is_told_by_the_back_channel() {
    let bed = Bed::new();
    let change = || {
        let event = bed.device.state().event.clone().unwrap();
        rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
        until("the change is noticed", || {
            let mut fds = [PollFd::new(&event, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0
        });
    };
    let mut front_end = bed.connect();
    // Without a channel the message goes nowhere.
    change();
    let (ours, theirs) = UnixStream::pair().unwrap();
    front_end.set_backend_request_fd(&theirs).unwrap();
    drop(theirs);
    assert_eq!(said(&ours), None);
    change();
    // An answer comes after what was said before it.
    front_end.get_queue_num().unwrap();
    let config_change = [2, 1, 0];
    assert_eq!(said(&ours), Some(config_change));
    assert_eq!(said(&ours), None);
    // A front end that closes its end, and a later front end that does, harm nothing.
    drop(ours);
    change();
    front_end.get_queue_num().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    front_end.set_backend_request_fd(&theirs).unwrap();
    change();
    front_end.get_queue_num().unwrap();
    assert_eq!(said(&ours), Some(config_change));
    drop((front_end, theirs));
    bed.wait_for_disconnects(1);
    until("it goes with its front end", || matches!((&ours).read(&mut [0; 12]), Ok(0)));
}

#[test]
fn a_wrong_back_channel_ends_the_connection() {
    let bed = Bed::new();
    let mut front_end = bed.connect();
    let _ = front_end.set_backend_request_fd(&bed.kick);
    bed.wait_for_disconnects(1);
    bed.connect();
}

#[test]
fn a_ring_starts_and_stops_and_goes_on() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    bed.start(&mut front_end, 0, 0);
    assert_eq!(bed.device.running(), [0]);
    assert_eq!(bed.call.read().unwrap(), 1);
    (0..3).for_each(|head| bed.round_trip(0, head));
    assert_eq!(front_end.get_vring_base(0).unwrap(), 3);
    assert_eq!(bed.device.running(), [0; 0]);
    assert_eq!(front_end.get_vring_base(0).unwrap(), 3, "asking again changes nothing");
    // The kick starts it again, at the same place.
    front_end.set_vring_kick(0, &bed.kick).unwrap();
    bed.round_trip(0, 3);
    // Disabled it does not run, and it goes on where it was.
    front_end.set_vring_enable(0, false).unwrap();
    assert_eq!(bed.device.running(), [0; 0]);
    front_end.set_vring_enable(0, true).unwrap();
    bed.round_trip(0, 4);
    assert_eq!(front_end.get_vring_base(0).unwrap(), 5);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Memory,
    Num,
    Base,
    Addr,
    Kick,
    Enable,
}

fn say(bed: &Bed, front_end: &mut Frontend, queue: usize, step: Step) {
    match step {
        Step::Memory => front_end.set_mem_table(&bed.regions()).map(|_| ()),
        Step::Num => front_end.set_vring_num(queue, 8),
        Step::Base => front_end.set_vring_base(queue, bed.ring.avail_idx),
        Step::Addr => front_end.set_vring_addr(queue, &bed.addrs()),
        Step::Kick => front_end.set_vring_kick(queue, &bed.kick),
        Step::Enable => front_end.set_vring_enable(queue, true),
    }
    .unwrap_or_else(|error| panic!("{step:?}: {error}"));
}

/// All orders of the elements.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let without = |step| steps.iter().copied().filter(|&other| other != step).collect::<Vec<_>>();
    let first = |step| orders(&without(step)).into_iter().map(move |rest| [vec![step], rest]);
    steps.iter().flat_map(|&step| first(step).map(|parts| parts.concat())).collect()
}

#[test]
fn a_ring_starts_with_its_messages_in_any_order() {
    let mut bed = Bed::new();
    let all = [Step::Memory, Step::Num, Step::Base, Step::Addr, Step::Kick, Step::Enable];
    let orders = orders(&all);
    assert_eq!(orders.len(), 720);
    for (count, order) in (1..).zip(&orders) {
        let queue = count % QUEUES;
        let mut front_end = bed.connect();
        for (done, &step) in (1..).zip(order) {
            say(&bed, &mut front_end, queue, step);
            let running = bed.device.running();
            assert_eq!(running == [queue], done == all.len(), "{order:?} after {step:?}");
        }
        bed.round_trip(queue, 3);
        drop(front_end);
        bed.wait_for_disconnects(count);
    }
    println!("{} orders", orders.len());
}

#[test]
fn rings_need_no_enabling_without_protocol_features() {
    let mut bed = Bed::new();
    let front_end = Frontend::connect(bed.path(), 1).unwrap();
    front_end.set_owner().unwrap();
    let features = front_end.get_features().unwrap() & !feature::PROTOCOL_FEATURES;
    let features = features & !feature::RING_PACKED;
    front_end.set_features(features).unwrap();
    front_end.set_mem_table(&bed.regions()).unwrap();
    front_end.set_vring_num(0, 8).unwrap();
    front_end.set_vring_addr(0, &bed.addrs()).unwrap();
    front_end.set_vring_base(0, 0).unwrap();
    front_end.set_vring_kick(0, &bed.kick).unwrap();
    until("the ring starts", || !bed.device.running().is_empty());
    bed.round_trip(0, 0);
}

#[test]
fn queues_are_told_apart() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    (0..QUEUES).for_each(|queue| bed.start(&mut front_end, queue, 0));
    assert_eq!(bed.device.running(), [0, 1, 2]);
    bed.round_trip(1, 5);
    assert_eq!(front_end.get_vring_base(1).unwrap(), 1);
    assert_eq!(front_end.get_vring_base(2).unwrap(), 0);
    assert_eq!(bed.device.running(), [0]);
}

/// The region of the first connection, shown again on each later one.
fn show_region(front_end: &mut Frontend, kept: &mut Option<(VhostUserInflight, std::fs::File)>) {
    let (region, file) = kept.get_or_insert_with(|| {
        let wanted = VhostUserInflight::new(0, 0, QUEUES as u16, 8);
        front_end.get_inflight_fd(&wanted).unwrap()
    });
    front_end.set_inflight_fd(region, file.as_raw_fd()).unwrap();
}

#[test]
fn requests_in_flight_are_done_after_a_reconnect() {
    let mut bed = Bed::new();
    let mut region = None;
    let mut front_end = bed.connect();
    show_region(&mut front_end, &mut region);
    bed.start(&mut front_end, 1, 0);
    (0..4).for_each(|head| bed.ring.offer(head));
    let heads = bed.device.take(1);
    let publish_one = |head| {
        let mut state = bed.device.state();
        let queue = state.queues.get_mut(&1).unwrap();
        queue.put(head, 7);
        queue.publish();
    };
    publish_one(heads[2]);
    // The back end dies: nothing of what it had is handed back.
    bed.server.take().unwrap().stop();
    drop(front_end);
    bed.serve();
    let mut front_end = bed.connect();
    show_region(&mut front_end, &mut region);
    // QEMU then falls back to the used index; the region knows better.
    bed.start(&mut front_end, 1, 1);
    assert_eq!(bed.device.poll(1), 3);
    assert_eq!(bed.ring.reap(), Some((2, 7)));
    let again: Vec<u16> = std::iter::from_fn(|| bed.ring.reap()).map(|(head, _)| head).collect();
    assert_eq!(again, [0, 1, 3]);
    assert_eq!(front_end.get_vring_base(1).unwrap(), 4);
}

#[test]
fn memory_comes_and_goes_while_rings_run() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    front_end.add_mem_region(&bed.regions()[0]).unwrap();
    front_end.set_vring_num(0, 8).unwrap();
    front_end.set_vring_base(0, 0).unwrap();
    front_end.set_vring_addr(0, &bed.addrs()).unwrap();
    front_end.set_vring_kick(0, &bed.kick).unwrap();
    front_end.set_vring_enable(0, true).unwrap();
    bed.round_trip(0, 0);
    // A buffer in the second region, once it is there.
    front_end.add_mem_region(&bed.regions()[1]).unwrap();
    assert_eq!(bed.device.state().memories, 1);
    bed.ring.describe(1, descriptor(BASE + LEN as u64 + 100, 8, WRITE, 0));
    bed.ring.offer(1);
    let heads = bed.device.take(0);
    // It goes, but stays mapped for the request that is outstanding.
    front_end.remove_mem_region(&bed.regions()[1]).unwrap();
    let memory = bed.device.state().queues[&0].memory().clone();
    assert_eq!(memory.regions().len(), 1);
    let mut state = bed.device.state();
    let queue = state.queues.get_mut(&0).unwrap();
    queue.put(heads[0], 7);
    queue.publish();
    drop(state);
    assert_eq!(bed.ring.reap(), Some((1, 7)));
    // A table anew, over the same file.
    front_end.set_mem_table(&bed.regions()).unwrap();
    bed.round_trip(0, 1);
    // Without the region that has the ring, the ring has failed, and only the ring.
    front_end.remove_mem_region(&bed.regions()[0]).unwrap();
    assert!(bed.device.state().queues[&0].failed().is_some());
    assert_eq!(front_end.get_vring_base(0).unwrap(), 3);
}

#[test]
fn call_and_kick_can_be_exchanged() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    bed.start(&mut front_end, 0, 0);
    let other = EventFd::new(EFD_NONBLOCK).unwrap();
    front_end.set_vring_call(0, &other).unwrap();
    assert_eq!(other.read().unwrap(), 1, "one call may have gone to the old one");
    bed.call.read().unwrap();
    bed.round_trip(0, 0);
    assert_eq!(other.read().unwrap(), 1);
    assert!(bed.call.read().is_err());
    front_end.set_vring_kick(0, &other).unwrap();
    other.write(5).unwrap();
    bed.device.state().queues.get_mut(&0).unwrap().disarm();
    assert!(other.read().is_err(), "kicks are taken from the new one");
}

#[test]
fn front_ends_come_and_go() {
    let mut bed = Bed::new();
    for count in 1..=3 {
        let mut front_end = bed.connect();
        let base = bed.ring.avail_idx;
        bed.start(&mut front_end, 0, base);
        bed.round_trip(0, 6);
        drop(front_end);
        bed.wait_for_disconnects(count);
        assert_eq!(bed.device.running(), [0; 0]);
    }
    bed.wait_for(&ServerState::Waiting);
}

#[test]
fn a_device_that_refuses_ends_the_connection_only() {
    let bed = Bed::new();
    let mut front_end = bed.connect();
    bed.device.state().refuse = true;
    front_end.set_mem_table(&bed.regions()).unwrap();
    front_end.set_vring_num(0, 8).unwrap();
    front_end.set_vring_base(0, 0).unwrap();
    front_end.set_vring_addr(0, &bed.addrs()).unwrap();
    front_end.set_vring_enable(0, true).unwrap();
    front_end.set_vring_kick(0, &bed.kick).unwrap_err();
    front_end.get_features().unwrap_err();
    bed.wait_for_disconnects(1);
    bed.device.state().refuse = false;
    let mut front_end = bed.connect();
    bed.start(&mut front_end, 0, 0);
    assert_eq!(bed.device.running(), [0]);
}

/// A log for the guest's memory, as the message describes it.
pub(super) fn log_of(file: &std::os::fd::OwnedFd) -> VhostUserDirtyLogRegion {
    let mmap_size = (BASE + 2 * LEN as u64) / LOG_PAGE_BYTES / 8;
    VhostUserDirtyLogRegion { mmap_size, mmap_offset: 8, mmap_handle: file.as_raw_fd() }
}

/// The bytes of a log for the 16 pages from `BASE` on.
pub(super) fn log_bits(file: &std::os::fd::OwnedFd) -> u16 {
    let mut bytes = [0; 2];
    rustix::io::pread(file, &mut bytes, 8 + BASE / LOG_PAGE_BYTES / 8).unwrap();
    u16::from_le_bytes(bytes)
}

#[test]
fn pages_are_logged_while_the_front_end_wants_it() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    let file = memory_file(0x10000);
    bed.start(&mut front_end, 0, 0);
    let features = bed.device.state().acked & !feature::LOG_ALL;
    let used_page = 1 << 5;
    front_end.set_features(features).unwrap();
    front_end.set_log_base(0, Some(log_of(&file))).unwrap();
    bed.round_trip(0, 0);
    assert_eq!(log_bits(&file), 0, "nobody asked for it");
    let log_addr = Some(bed.ring.config(None).used);
    let flags = VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits();
    let addrs = vhost::VringConfigData { flags, log_addr, ..bed.addrs() };
    front_end.set_vring_addr(0, &addrs).unwrap();
    bed.round_trip(0, 1);
    assert_eq!(log_bits(&file), used_page);
    // This device marks no buffers: its own answer is marked all the same.
    front_end.set_features(features | feature::LOG_ALL).unwrap();
    let head = {
        bed.ring.offer(2);
        let head = bed.device.take(0)[0];
        let memory = bed.device.state().queues[&0].memory().clone();
        let mut segments = Vec::new();
        memory.translate(DATA, 8, &mut segments).unwrap();
        let mut state = bed.device.state();
        // SAFETY: the piece is of a chain that is outstanding.
        unsafe { state.queues.get_mut(&0).unwrap().answer(segments[0].addr, 1) };
        head
    };
    assert_eq!(log_bits(&file), used_page | 1 << 8);
    // From here on it is another log, and the changes of it are told.
    let other = memory_file(0x10000);
    front_end.set_log_base(0, Some(log_of(&other))).unwrap();
    let told = EventFd::new(EFD_NONBLOCK).unwrap();
    front_end.set_log_fd(told.as_raw_fd()).unwrap();
    assert!(told.read().is_err());
    {
        let mut state = bed.device.state();
        let queue = state.queues.get_mut(&0).unwrap();
        queue.put(head, 7);
        queue.publish();
    }
    assert_eq!(bed.ring.reap(), Some((2, 7)));
    assert_eq!((log_bits(&file), log_bits(&other)), (used_page | 1 << 8, used_page));
    assert_eq!(told.read().unwrap(), 1);
    // No more of it.
    front_end.set_features(features).unwrap();
    front_end.set_vring_addr(0, &bed.addrs()).unwrap();
    let empty = memory_file(0x10000);
    front_end.set_log_base(0, Some(log_of(&empty))).unwrap();
    bed.round_trip(0, 3);
    assert_eq!(log_bits(&empty), 0);
}

#[test]
fn mappings_end_with_the_front_end() {
    let bed = Bed::new();
    let mut front_end = bed.connect();
    bed.start(&mut front_end, 0, 0);
    let memory = {
        let state = bed.device.state();
        std::sync::Arc::downgrade(state.queues[&0].memory().regions()[0].mapping())
    };
    assert!(memory.upgrade().is_some() && Mapping::live() > 0);
    drop(front_end);
    bed.wait_for_disconnects(1);
    // The session forgets its table right after it told the device.
    until("the memory is unmapped", || memory.upgrade().is_none());
}
