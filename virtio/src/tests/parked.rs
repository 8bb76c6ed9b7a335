//! A server that stands still: it goes on as if nothing had happened, or another one does.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserVringAddrFlags};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ring::{DATA, memory_file};
use super::server::*;
use super::session::{log_bits, log_of};
use crate::hand_over::{ConnectedFrontEnd, ServedDevice};
use crate::socket::{ParkError, Socket, adopt};

const DRAIN: Duration = Duration::from_millis(1);

/// As [`Bed::connect`] and [`Bed::start`], with an inflight region.
fn begin(bed: &Bed) -> Frontend {
    let mut front_end = bed.connect();
    let wanted = VhostUserInflight::new(0, 0, QUEUES as u16, 8);
    let (region, file) = front_end.get_inflight_fd(&wanted).unwrap();
    front_end.set_inflight_fd(&region, std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
    bed.start(&mut front_end, 1, 0);
    front_end
}

#[test]
fn a_parked_session_continues() {
    let mut bed = Bed::new();
    let front_end = begin(&bed);
    bed.round_trip(1, 3);
    for _ in 0..3 {
        let parked = bed.server().park(DRAIN).unwrap();
        assert!(bed.device.running().is_empty());
        let state = parked.state.as_ref().unwrap();
        assert!(state.listener.is_some() && state.lock.is_some());
        bed.ring.offer(4);
        drop(parked);
        until("it runs again", || bed.device.running() == [1]);
        assert_eq!(bed.device.poll(1), 1, "what came meanwhile is there");
        assert_eq!(bed.ring.reap(), Some((4, 7)));
    }
    // It listens, too.
    assert_ne!(front_end.get_features().unwrap(), 0);
    assert_eq!(bed.device.state().disconnects, 0);
}

#[test]
fn another_one_goes_on_with_the_same_front_end() {
    let mut bed = Bed::new();
    let mut front_end = begin(&bed);
    bed.round_trip(1, 3);
    let left = bed.device.take(1).len();
    assert_eq!(left, 0);
    let mut parked = bed.server().park(DRAIN).unwrap();
    let state = parked.state.take().unwrap();
    let mut other = Bed { device: TestDevice::default(), ..bed };
    other.device.state().acked = 0;
    // By a way that needs no lock: this process has it already.
    let way = Socket::Connect(other.path());
    let adopted = adopt(way, Box::new(other.device.clone()), state).unwrap();
    assert!(other.device.running().is_empty(), "not before it is told");
    assert_ne!(other.device.state().acked & OWN_FEATURE, 0, "what was agreed is agreed");
    let server = adopted.serve();
    until("it runs", || other.device.running() == [1]);
    for head in 0..8 {
        other.round_trip(1, head);
    }
    // The codec goes on in the middle of the conversation: acknowledgements, and what only an
    // agreement allows.
    assert_eq!(front_end.get_queue_num().unwrap(), QUEUES as u64);
    assert_eq!(front_end.get_max_mem_slots().unwrap(), crate::REGIONS_MAX as u64);
    assert_eq!(front_end.get_vring_base(1).unwrap(), 9);
    front_end.set_vring_base(1, 9).unwrap();
    front_end.set_vring_kick(1, &other.kick).unwrap();
    other.round_trip(1, 5);
    drop(server);
    assert_eq!(other.device.state().disconnects, 1);
    // Else the first server would be waited for while it waits.
    drop(parked);
}

/// Something that is not as it was.
type Change = fn(&mut ConnectedFrontEnd<OwnedFd>);

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let bed = Bed::new();
    let _front_end = begin(&bed);
    let refused = |change: Change| {
        let mut parked = bed.server().park(DRAIN).unwrap();
        let mut state = parked.state.take().unwrap();
        change(state.front_end.as_mut().unwrap());
        let device = Box::new(TestDevice::default());
        let way = Socket::Connect(bed.path());
        adopt(way, device, state).map(|_| ()).unwrap_err().to_string()
    };
    let changes: [(&str, Change); 2] = [
        ("knows 2 queues, the device has 3", |it| it.rings.truncate(2)),
        ("were accepted but never offered", |it| it.features |= 1 << 5),
    ];
    for (says, change) in changes {
        let text = refused(change);
        assert!(text.contains(says), "{says}: {text}");
        until("the other one goes on", || bed.device.running() == [1]);
    }
    let way = Socket::listen(bed.directory.path().join("other.sock"));
    let nothing = ServedDevice { listener: None, lock: None, front_end: None };
    let error = adopt(way, Box::new(TestDevice::default()), nothing).unwrap_err();
    assert_eq!(error.to_string(), "there is no lock");
}

/// A front end's shared files can be others by now. The successor leaves such a front end, and no
/// other server waits for it.
#[test]
fn a_front_end_that_took_its_memory_away_is_left() {
    let changes: [fn(&Bed, &mut ConnectedFrontEnd<OwnedFd>); 3] = [
        |bed, _| rustix::fs::ftruncate(&bed.file, 4096).unwrap(),
        |_, it| it.memory[1].guest_addr -= 4096,
        |_, it| it.inflight.as_mut().unwrap().len_bytes = 1,
    ];
    for change in changes {
        let bed = Bed::new();
        let front_end = begin(&bed);
        let mut parked = bed.server().park(DRAIN).unwrap();
        let mut state = parked.state.take().unwrap();
        change(&bed, state.front_end.as_mut().unwrap());
        let device = TestDevice::default();
        let way = Socket::Connect(bed.directory.path().join("nobody"));
        let server = adopt(way, Box::new(device.clone()), state).unwrap().serve();
        assert_eq!(server.state(), crate::ServerState::Waiting);
        assert!(device.running().is_empty());
        drop((front_end, server, parked));
    }
}

#[test]
fn queues_without_an_inflight_region_go_on_where_they_are() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    bed.start(&mut front_end, 0, 0);
    let error = bed.server().park(DRAIN).unwrap_err();
    assert!(matches!(error, ParkError::NoInflight), "{error}");
    assert_eq!(bed.device.running(), [0]);
    bed.round_trip(0, 2);
    front_end.get_vring_base(0).unwrap();
    // Without queues there is nothing to lose.
    assert!(bed.server().park(DRAIN).is_ok());
}

/// The outstanding requests of a queue without a part of its own could not be told from the rest.
#[test]
fn queues_beyond_the_inflight_region_go_on_where_they_are() {
    let mut bed = Bed::new();
    let mut front_end = bed.connect();
    let wanted = VhostUserInflight::new(0, 0, 1, 8);
    let (region, file) = front_end.get_inflight_fd(&wanted).unwrap();
    front_end.set_inflight_fd(&region, std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
    bed.start(&mut front_end, 1, 0);
    let error = bed.server().park(DRAIN).unwrap_err();
    assert!(matches!(error, ParkError::NoInflight), "{error}");
    assert_eq!(bed.device.running(), [1]);
    bed.round_trip(1, 2);
}

/// An unfinished message does not keep the node from going on in another process. Its bytes wait in
/// the socket for the process that is there when the rest comes.
#[test]
fn a_front_end_in_the_middle_of_a_message_goes_over_with_it() {
    // SET_VRING_NUM with its body, then GET_FEATURES.
    let message = [8_u32, 1, 8, 0, 8, 1, 1, 0].map(u32::to_ne_bytes);
    let message = message.as_flattened();
    for split in 1..message.len() {
        let bed = Bed::new();
        let mut stream = UnixStream::connect(bed.path()).unwrap();
        stream.write_all(&message[..split]).unwrap();
        bed.wait_for(&crate::ServerState::Connected);
        // Once for nothing, then another one goes on.
        drop(bed.server().park(DRAIN).unwrap());
        let mut parked = bed.server().park(DRAIN).unwrap();
        let state = parked.state.take().unwrap();
        assert!(state.front_end.is_some(), "{split}");
        let other = TestDevice::default();
        let way = Socket::Connect(bed.path());
        let server = adopt(way, Box::new(other.clone()), state).unwrap().serve();
        stream.write_all(&message[split..]).unwrap();
        std::io::Read::read_exact(&mut stream, &mut [0; 20]).unwrap();
        assert_eq!(other.state().disconnects, 0, "{split}");
        drop((server, parked));
    }
}

/// It may also never come.
#[test]
fn a_message_that_ends_in_its_middle_ends_the_conversation() {
    let bed = Bed::new();
    for (number, bytes) in [5, 12, 19].into_iter().enumerate() {
        let mut stream = UnixStream::connect(bed.path()).unwrap();
        let message = [8_u32, 1, 8, 0, 8].map(u32::to_ne_bytes);
        stream.write_all(&message.as_flattened()[..bytes]).unwrap();
        // The other half of the conversation stays open.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        bed.wait_for_disconnects(number + 1);
    }
}

/// A front end that has it stop its queues is answered first, and that may take two seconds.
#[test]
fn a_message_that_takes_its_time_is_waited_for() {
    let bed = Bed::new();
    let front_end = begin(&bed);
    bed.device.state().slow = Duration::from_millis(1500);
    std::thread::scope(|scope| {
        scope.spawn(|| front_end.get_vring_base(1).unwrap());
        until("it stops", || bed.device.state().stops == 1);
        let parked = bed.server().park(DRAIN).unwrap();
        assert!(bed.device.running().is_empty());
        assert!(parked.state.is_some());
    });
}

#[test]
fn servers_come_to_a_stand_beside_each_other() {
    let beds = [Bed::new(), Bed::new()];
    let _front_ends = [0, 1].map(|at: usize| begin(&beds[at]));
    let parking = [0, 1].map(|at: usize| beds[at].server().begin_park(DRAIN));
    until("both stand still", || beds.iter().all(|bed| bed.device.running().is_empty()));
    let [first, second] = parking;
    let first = first.end().unwrap();
    assert!(first.state.is_some());
    // The requester has given up on the second server.
    drop(second);
    until("it goes on", || beds[1].device.running() == [1]);
    assert!(beds[0].device.running().is_empty());
    drop(first);
    until("and the other one", || beds[0].device.running() == [1]);
}

/// The guest is migrated while its device goes over.
#[test]
fn the_log_of_dirty_pages_goes_over() {
    let mut bed = Bed::new();
    let front_end = begin(&bed);
    let file = memory_file(0x10000);
    front_end.set_log_base(0, Some(log_of(&file))).unwrap();
    let told = EventFd::new(EFD_NONBLOCK).unwrap();
    front_end.set_log_fd(std::os::fd::AsRawFd::as_raw_fd(&told)).unwrap();
    let log_addr = Some(bed.ring.config(None).used);
    let flags = VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits();
    let addrs = vhost::VringConfigData { flags, log_addr, ..bed.addrs() };
    front_end.set_vring_addr(1, &addrs).unwrap();
    let used_page = 1 << 5;
    let is_logged = |bed: &mut Bed, head| {
        rustix::io::pwrite(&file, &[0; 0x10000], 0).unwrap();
        let _ = told.read();
        bed.round_trip(1, head);
        assert_eq!((log_bits(&file), told.read().unwrap()), (used_page, 1));
        // The device's own answer is marked where the guest has everything marked.
        bed.ring.offer(head);
        let head = bed.device.take(1)[0];
        let mut state = bed.device.state();
        let queue = state.queues.get_mut(&1).unwrap();
        let mut segments = Vec::new();
        queue.memory().translate(DATA, 8, &mut segments).unwrap();
        // SAFETY: the piece is of a chain that is outstanding.
        unsafe { queue.answer(segments[0].addr, 1) };
        queue.put(head, 7);
        queue.publish();
        drop(state);
        assert_eq!(log_bits(&file), used_page | 1 << 8);
        assert!(bed.ring.reap().is_some());
    };
    is_logged(&mut bed, 1);
    drop(bed.server().park(DRAIN).unwrap());
    until("it runs again", || bed.device.running() == [1]);
    is_logged(&mut bed, 2);
    let mut parked = bed.server().park(DRAIN).unwrap();
    let state = parked.state.take().unwrap();
    let mut other = Bed { device: TestDevice::default(), ..bed };
    let way = Socket::Connect(other.path());
    let server = adopt(way, Box::new(other.device.clone()), state).unwrap().serve();
    // The next server that goes away waits for the first one, but not while the first one waits.
    let held = parked;
    until("it runs", || other.device.running() == [1]);
    is_logged(&mut other, 3);
    // The front end goes on to speak of it: from here on it is another log.
    let another = memory_file(0x10000);
    front_end.set_log_base(0, Some(log_of(&another))).unwrap();
    let _ = told.read();
    other.round_trip(1, 4);
    assert_eq!((log_bits(&another), told.read().unwrap()), (used_page, 1));
    drop(server);
    drop(held);
}
