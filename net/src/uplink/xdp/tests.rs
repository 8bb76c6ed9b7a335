//! With a virtual cable in a network namespace of each test's own: one end is the uplink, at the
//! other one a socket sends and captures frames as they are on the wire. Where that is not allowed
//! a test says so and looks at nothing.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket, sockopt};
use sidecore::Waker;

use super::*;
use crate::ether::{Mac, TCP};
use crate::maker::FrameMaker;
use crate::offload::{Cut, Offload, checksum_of, pseudo_sum, sum_be};
use crate::testing::pushed;
use crate::uplink::{Keeper, OwnCards, UplinkCore, UplinkParts};

const OURS: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const FAR: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

/// How long a frame may take.
const PATIENCE: Duration = Duration::from_secs(10);

fn ip(arguments: &str) -> bool {
    let words = arguments.split_whitespace();
    Command::new("ip").args(words).status().is_ok_and(|status| status.success())
}

/// A cable from `vrio0` to `far`, whose ends hear nothing of the system's own.
fn plug(mtu: usize, queues: u32) -> bool {
    let end = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add vrio0 {end} type veth peer name far {end}"))
        && ip("link set far addrgenmode none")
        && ip("link set far up")
}

/// The other end of the cable.
struct Far(OwnedFd);

impl Far {
    fn new() -> Self {
        let socket = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
        // SAFETY: it has integers only, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = link::interface_index("far").unwrap() as i32;
        // SAFETY: an address of its family and as long as said.
        let bound = unsafe {
            let at = std::ptr::from_ref(&address).cast();
            libc::bind(socket.as_raw_fd(), at, size_of_val(&address) as u32)
        };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        Self(socket)
    }

    fn say(&self, bytes: &[u8]) {
        assert_eq!(send(&self.0, bytes, SendFlags::empty()).unwrap(), bytes.len());
    }

    /// The next frame of ours.
    fn hear(&self) -> Vec<u8> {
        let mut room = vec![0; 70_000];
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let (len, _) = recv(&self.0, &mut room[..], RecvFlags::empty()).expect("a frame");
            if room[6..12] == OURS.0 {
                room.truncate(len);
                return room;
            }
        }
        panic!("nothing came");
    }
}

fn cards() -> Arc<dyn Cards> {
    Arc::new(OwnCards)
}

fn uplink(interface: &str) -> XdpUplink {
    XdpUplink::read(interface).unwrap()
}

fn opened(interface: &str) -> Result<OpenUplink, String> {
    uplink(interface).open(&cards())
}

/// The state of an open interface for another process, and the descriptors that go along.
fn taken_down(core: &UplinkCore) -> (Value, ReceivedDescriptors) {
    let mut sent = SentDescriptors::default();
    let state = core.take_down(&mut sent).unwrap().unwrap();
    (state, sent.into_received())
}

/// The uplink with its keeper.
struct Rig {
    port: Box<dyn Port>,
    core: Arc<UplinkCore>,
    counters: Arc<PortCounters>,
    told: mpsc::Receiver<bool>,
    _keeper: Keeper,
}

impl Rig {
    /// `None` without the right to.
    fn new(test: &str, mtu: usize) -> Option<Self> {
        Self::with_queues(test, mtu, 1)
    }

    fn with_queues(test: &str, mtu: usize, queues: u32) -> Option<Self> {
        // SAFETY: only this thread, and those that it starts from now on, change their namespace.
        let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        if !is_apart || !plug(mtu, queues) {
            println!("SKIP {test}: a network namespace is not allowed here");
            return None;
        }
        let opened = match opened("vrio0") {
            Ok(opened) => opened,
            Err(error) => {
                println!("SKIP {test}: {error}");
                return None;
            }
        };
        let end = Instant::now() + PATIENCE;
        while !link::interface_is_running("vrio0").unwrap() {
            assert!(Instant::now() < end, "the cable is never plugged in");
        }
        Some(Self::with(opened))
    }

    fn with(opened: OpenUplink) -> Self {
        let counters = Arc::<PortCounters>::default();
        let (tell, told) = mpsc::channel();
        let tell = move |is_up| {
            let _ = tell.send(is_up);
        };
        let parts = opened.into_parts(Arc::clone(&counters), Waker::none(), tell).unwrap();
        let UplinkParts { make, core, keeper: _keeper } = parts;
        Self { port: make(), core, counters, told, _keeper }
    }

    fn say(&mut self, bytes: &[u8], offload: Offload) {
        let mut burst = Burst::new();
        pushed(&mut burst, bytes, 700).offload = offload;
        burst.frames_mut()[0].accept(&Offers::ALL).unwrap();
        self.port.transmit(&burst, &[Chosen { at: 0, tci: 0 }], sidecore::now_ns());
        self.port.flush();
    }

    /// The next frame that comes, with its VLAN.
    fn hear(&mut self) -> (Vec<u8>, u16) {
        let mut burst = Burst::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let _ = self.port.receive(&mut burst, sidecore::now_ns());
            let ours = burst.frames().iter().find(|frame| frame.addresses().1 == FAR);
            let found = ours.map(|frame| (burst.to_vec(frame), frame.vlan()));
            self.port.release(&mut burst);
            if let Some(found) = found {
                return found;
            }
        }
        panic!("nothing came");
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&UplinkCore) -> bool) {
        let (mut burst, end) = (Burst::new(), Instant::now() + PATIENCE);
        while !is_so(&self.core) {
            let _ = self.port.receive(&mut burst, sidecore::now_ns());
            self.port.release(&mut burst);
            assert!(Instant::now() < end, "never {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn partial(start: u16, offset: u16) -> Offload {
    Offload {
        needs_checksum: true,
        checksum_start: start,
        checksum_offset: offset,
        ..Offload::default()
    }
}

/// Its payload, if all checksums and lengths of the packet are right.
fn payload(frame: &[u8]) -> &[u8] {
    let is_v4 = frame[12..14] == [0x08, 0];
    let (above_at, ends, protocol) =
        if is_v4 { (34, 26..34, frame[23]) } else { (54, 22..54, frame[20]) };
    let above = &frame[above_at..];
    if is_v4 {
        assert_eq!(checksum_of(sum_be(0, &frame[14..34])), 0, "IPv4's checksum");
        assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), frame.len() - 14);
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([frame[18], frame[19]])), above.len());
    }
    let pseudo = pseudo_sum(&frame[ends], protocol, above.len() as u32);
    assert_eq!(checksum_of(sum_be(pseudo, above)), 0, "the checksum above");
    &above[if protocol == TCP { 20 } else { 8 }..]
}

/// Hears segments of a large frame of TCP, and puts its payload together.
fn hear_segments(far: &Far, above_at: usize, mtu: usize, len: usize) -> Vec<u8> {
    let (mut all, mut first) = (Vec::new(), None);
    while all.len() < len {
        let frame = far.hear();
        assert!(frame.len() <= mtu + ETHER_BYTES, "{} bytes", frame.len());
        let sequence = u32::from_be_bytes(*frame[above_at + 4..].first_chunk().unwrap());
        let first = *first.get_or_insert(sequence);
        assert_eq!(sequence.wrapping_sub(first) as usize, all.len(), "in order");
        all.extend(payload(&frame));
    }
    all
}

#[test]
fn frames_pass_both_ways_cut_and_finished_on_their_way_out() {
    let Some(mut rig) = Rig::new("frames_pass_both_ways", 1500) else { return };
    let far = Far::new();
    // As it is; with the checksum unfinished.
    let maker = FrameMaker::udp4().from(OURS).to(FAR);
    rig.say(&maker.clone().payload(300).build(), Offload::default());
    assert_eq!(far.hear(), maker.clone().payload(300).build());
    rig.say(&maker.clone().partial().payload(1400).build(), partial(34, 6));
    let finished = far.hear();
    assert_eq!(finished, maker.clone().payload(1400).build());
    assert_eq!(payload(&finished).len(), 1400);
    // The longest frames that there are, again and again: many times the ring.
    for (maker, cut, segment_bytes, len) in [
        (FrameMaker::tcp4(), Cut::Tcp4, 1460, 65_495),
        (FrameMaker::tcp6(), Cut::Tcp6, 1440, 65_475),
    ] {
        let large = maker.from(OURS).to(FAR).partial().payload(len);
        let (bytes, above_at) = (large.build(), large.above_at());
        let offload = Offload { cut, segment_bytes, ..partial(above_at as u16, 16) };
        for _ in 0..30 {
            rig.say(&bytes, offload);
            let heard = hear_segments(&far, above_at, 1500, len);
            assert!(heard == bytes[large.header_bytes()..], "as it was sent");
        }
    }
    assert_eq!((rig.counters.frames_out.get(), rig.counters.cut_out.get()), (62, 60));
    assert_eq!(rig.counters.drops_out.total(), 0);
    // And back: all addresses, tags taken off.
    let maker = FrameMaker::udp4().from(FAR);
    for (to, len) in [(OURS, 20), (Mac([0x52, 0x54, 9, 9, 9, 9]), 700), (OURS, 1472)] {
        let frame = maker.clone().to(to).payload(len).build();
        far.say(&frame);
        assert_eq!(rig.hear(), (frame, 0));
    }
    far.say(&maker.clone().payload(100).tag(0x6005).build());
    assert_eq!(rig.hear(), (maker.clone().payload(100).build(), 5));
    // More than there are frames to receive in.
    for round in 0..5000 {
        let frame = maker.clone().payload(60 + round % 1000).build();
        far.say(&frame);
        assert_eq!(rig.hear().0, frame, "round {round}");
    }
}

#[test]
fn long_frames_are_dropped_by_name() {
    let Some(mut rig) = Rig::new("long_frames_are_dropped_by_name", 1500) else { return };
    let far = Far::new();
    let maker = FrameMaker::tcp4().from(OURS).to(FAR);
    rig.say(&maker.clone().payload(1461).build(), Offload::default());
    let offload = Offload { cut: Cut::Tcp4, segment_bytes: 1461, ..partial(34, 16) };
    rig.say(&maker.clone().partial().payload(20_000).build(), offload);
    assert_eq!(rig.counters.drops_out.get(Reason::OverMtu), 2);
    rig.say(&maker.clone().payload(1460).build(), Offload::default());
    assert_eq!(payload(&far.hear()).len(), 1460, "and nothing before it");
    assert_eq!((rig.counters.drops_out.total(), rig.counters.frames_out.get()), (2, 1));
}

#[test]
fn jumbo_frames_lie_in_several_pieces() {
    let Some(mut rig) = Rig::new("jumbo_frames_lie_in_several_pieces", 9000) else { return };
    let far = Far::new();
    let large = FrameMaker::tcp4().from(OURS).to(FAR).partial().payload(65_000);
    let offload = Offload { cut: Cut::Tcp4, segment_bytes: 8960, ..partial(34, 16) };
    rig.say(&large.build(), offload);
    assert!(hear_segments(&far, 34, 9000, 65_000) == large.build()[54..], "as it was sent");
    let maker = FrameMaker::udp4().from(OURS).to(FAR);
    for len in [4096 - 42, 4096 - 41, 8192 - 42, 8192 - 41, 8972] {
        rig.say(&maker.clone().partial().payload(len).build(), partial(34, 6));
        assert_eq!(far.hear(), maker.clone().payload(len).build());
        let back = FrameMaker::udp4().from(FAR).to(OURS).payload(len).build();
        for _ in 0..1000 {
            far.say(&back);
            assert!(rig.hear() == (back.clone(), 0), "{len} bytes");
        }
    }
}

#[test]
fn a_busy_queue_does_not_starve_the_others() {
    let test = "a_busy_queue_does_not_starve_the_others";
    let Some(mut rig) = Rig::with_queues(test, 1500, 2) else { return };
    let far = Far::new();
    // By its ports the kernel chooses a queue for each of these.
    const FLOWS: u16 = 24;
    for _ in 0..8 * BURST_FRAMES_MAX / usize::from(FLOWS) {
        for flow in 0..FLOWS {
            far.say(&FrameMaker::udp4().from(FAR).to(OURS).ports(flow, 9).payload(20).build());
        }
    }
    let mut burst = Burst::new();
    let [first, second] = [(); 2].map(|()| {
        let _ = rig.port.receive(&mut burst, sidecore::now_ns());
        assert!(burst.is_full(), "each queue has more than a burst");
        let frames = burst.frames().iter().map(|frame| burst.to_vec(frame));
        let flows: BTreeSet<_> = frames.map(|frame| frame[34..36].to_vec()).collect();
        rig.port.release(&mut burst);
        flows
    });
    assert!(first.is_disjoint(&second), "{first:?} and {second:?} came by different queues");
}

#[test]
fn an_interface_that_is_down_is_asked_more_and_more_rarely() {
    let test = "an_interface_that_is_down_is_asked_more_and_more_rarely";
    let Some(mut rig) = Rig::new(test, 1500) else { return };
    let frame = FrameMaker::udp4().from(OURS).to(FAR).payload(99).build();
    // Its keeper may see that it is down before the frame is in the ring, which it is not then.
    let waits = (0..100).any(|_| {
        assert!(ip("link set vrio0 up"));
        rig.wait_until("up", UplinkCore::is_up);
        let before = rig.counters.drops_out.total();
        assert!(ip("link set vrio0 down"));
        rig.say(&frame, Offload::default());
        rig.counters.drops_out.total() == before
    });
    assert!(waits, "no frame in the ring");
    let (mut burst, mut wakes) = (Burst::new(), 0);
    let mut now_ns = sidecore::now_ns();
    let until_ns = now_ns + 10_000_000_000;
    while now_ns < until_ns {
        let mut wake = Wake::new();
        let _ = rig.port.receive(&mut burst, now_ns);
        rig.port.release(&mut burst);
        assert_eq!(rig.port.arm(&mut wake), Progress::Idle);
        let next_ns = wake.deadline_ns().expect("there is something to send");
        assert!(next_ns > now_ns, "no time passes");
        (now_ns, wakes) = (next_ns, wakes + 1);
    }
    assert!((100..200).contains(&wakes), "{wakes} wake-ups in ten seconds");
    // It is up again, and what waited goes.
    assert!(ip("link set vrio0 up"));
    let far = Far::new();
    let _ = rig.port.receive(&mut burst, now_ns);
    assert_eq!(far.hear(), frame);
    let mut wake = Wake::new();
    let _ = rig.port.arm(&mut wake);
    assert_eq!(wake.deadline_ns(), None);
}

#[test]
fn an_interface_that_is_down_or_gone_comes_back() {
    let Some(mut rig) = Rig::new("an_interface_that_is_down_or_gone", 1500) else { return };
    let frame = FrameMaker::udp4().from(OURS).to(FAR).payload(99).build();
    // Nothing is plugged in at the other end.
    assert!(ip("link set far down"));
    rig.wait_until("down", |core| !core.is_up());
    rig.say(&frame, Offload::default());
    assert_eq!(rig.counters.drops_out.get(Reason::LinkDown), 1);
    assert!(ip("link set far up"));
    rig.wait_until("up", UplinkCore::is_up);
    assert_eq!(rig.core.opened.load(Relaxed), 1, "it is the same one");
    let far = Far::new();
    rig.say(&frame, Offload::default());
    assert_eq!(far.hear(), frame);
    // Gone, and made again.
    assert!(ip("link del vrio0"));
    rig.wait_until("gone", |core| !core.is_up());
    rig.say(&frame, Offload::default());
    assert_eq!(rig.counters.drops_out.get(Reason::LinkDown), 2);
    assert!(plug(1500, 1));
    rig.wait_until("back", |core| core.opened.load(Relaxed) == 2 && core.is_up());
    let far = Far::new();
    let mut burst = Burst::new();
    let _ = rig.port.receive(&mut burst, sidecore::now_ns());
    rig.port.release(&mut burst);
    rig.say(&frame, Offload::default());
    assert_eq!(far.hear(), frame);
    let back = FrameMaker::udp4().from(FAR).to(OURS).payload(1).build();
    far.say(&back);
    assert_eq!(rig.hear().0, back);
    let told: Vec<_> = rig.told.try_iter().collect();
    assert_eq!(told, [false, true, false, true]);
}

/// Asks the system about an interface, by one of `<linux/ethtool.h>`'s structures.
fn ethtool<const N: usize>(name: &str, data: &mut [u32; N]) -> io::Result<()> {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    // SAFETY: it has integers and pointers only, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    // SAFETY: it reads the name and what `data` is said to be by its first word.
    match unsafe { libc::ioctl(socket.as_raw_fd(), link::SIOCETHTOOL, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `ethtool -L`: so many queues that receive.
fn set_receive_queues(name: &str, queues: u32) {
    let mut channels = [0; 9];
    channels[0] = 0x3c;
    ethtool(name, &mut channels).unwrap();
    (channels[0], channels[5]) = (0x3d, queues);
    ethtool(name, &mut channels).unwrap();
}

/// Whether tags are taken off what comes, as `ethtool -k` says.
fn takes_tags_off(name: &str) -> bool {
    let mut flags = [0x25, 0];
    ethtool(name, &mut flags).unwrap();
    flags[1] >> 8 & 1 == 1
}

#[test]
fn tags_are_left_in_what_comes() {
    let test = "tags_are_left_in_what_comes";
    // SAFETY: only this thread, and those that it starts from now on, change their namespace.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !is_apart || !plug(1500, 1) {
        return println!("SKIP {test}: a network namespace is not allowed here");
    }
    assert!(takes_tags_off("vrio0"), "a virtual cable does, and says so beside the packet");
    let opened = match opened("vrio0") {
        Ok(opened) => opened,
        Err(error) => return println!("SKIP {test}: {error}"),
    };
    assert!(!takes_tags_off("vrio0") && takes_tags_off("far"));
    drop(opened);
}

#[test]
fn other_queues_and_other_lengths_are_seen() {
    let test = "other_queues_and_other_lengths_are_seen";
    // SAFETY: only this thread, and those that it starts from now on, change their namespace.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !is_apart || !plug(1500, 2) {
        return println!("SKIP {test}: a network namespace is not allowed here");
    }
    // The other end sends by one only, so that this one may have one.
    let mut channels = [0; 9];
    channels[0] = 0x3c;
    ethtool("far", &mut channels).unwrap();
    (channels[0], channels[6]) = (0x3d, 1);
    ethtool("far", &mut channels).unwrap();
    set_receive_queues("vrio0", 1);
    let opened = match opened("vrio0") {
        Ok(opened) => opened,
        Err(error) => return println!("SKIP {test}: {error}"),
    };
    let mut rig = Rig::with(opened);
    let (state, _) = taken_down(&rig.core);
    assert_eq!(state["xdp"]["queues"].as_array().unwrap().len(), 1);
    let far = Far::new();
    // By its ports the kernel chooses a queue for each of these.
    let hear_all = |rig: &mut Rig| {
        for port in 0..40 {
            let frame = FrameMaker::udp4().from(FAR).to(OURS).ports(port, 9).payload(20).build();
            far.say(&frame);
            assert_eq!(rig.hear().0, frame, "{port}");
        }
    };
    rig.wait_until("up", UplinkCore::is_up);
    hear_all(&mut rig);
    set_receive_queues("vrio0", 2);
    (channels[0], channels[6]) = (0x3d, 2);
    ethtool("far", &mut channels).unwrap();
    rig.wait_until("opened anew", |core| core.opened.load(Relaxed) == 2 && core.is_up());
    hear_all(&mut rig);
    let maker = FrameMaker::udp4().from(OURS).to(FAR);
    rig.say(&maker.clone().payload(1400).build(), Offload::default());
    assert_eq!(far.hear(), maker.clone().payload(1400).build());
    assert!(ip("link set vrio0 mtu 1300"));
    rig.wait_until("opened anew", |core| core.opened.load(Relaxed) == 3 && core.is_up());
    let mut burst = Burst::new();
    let _ = rig.port.receive(&mut burst, sidecore::now_ns());
    rig.port.release(&mut burst);
    rig.say(&maker.payload(1400).build(), Offload::default());
    assert_eq!(rig.counters.drops_out.get(Reason::OverMtu), 1);
}

#[test]
fn another_one_goes_on_with_what_is_open() {
    let Some(mut first) = Rig::new("another_one_goes_on_with_what_is_open", 1500) else { return };
    let far = Far::new();
    let frame = FrameMaker::udp4().from(OURS).to(FAR).payload(99).build();
    let back = FrameMaker::udp4().from(FAR).to(OURS).payload(1).build();
    for _ in 0..3000 {
        first.say(&frame, Offload::default());
        assert_eq!(far.hear(), frame);
    }
    first.core.set_paused(true);
    // A frame that comes meanwhile waits.
    far.say(&back);
    let (state, mut received) = taken_down(&first.core);
    // SAFETY: the first one is paused, and goes before this one is not.
    let handed = unsafe { HandedInterface::new(state, &mut received) };
    let second = uplink("vrio0").adopt(handed, &cards());
    let mut second = Rig::with(second.unwrap());
    second.say(&frame, Offload::default());
    assert_eq!(second.counters.drops_out.get(Reason::LinkDown), 1, "it is the first one's");
    drop(first);
    second.core.set_paused(false);
    assert_eq!(second.hear().0, back);
    for round in 0..3000 {
        second.say(&frame, Offload::default());
        assert_eq!(far.hear(), frame, "round {round}");
        far.say(&back);
        assert_eq!(second.hear().0, back);
    }
    assert_eq!((second.core.opened.load(Relaxed), second.counters.drops_out.total()), (1, 1));
}

#[test]
fn a_gone_interface_cannot_be_resumed() {
    let Some(first) = Rig::new("a_gone_interface_cannot_be_resumed", 1500) else { return };
    let (state, mut received) = taken_down(&first.core);
    first.core.set_paused(true);
    assert!(ip("link del vrio0"));
    // SAFETY: the first one is paused until it goes.
    let handed = unsafe { HandedInterface::new(state, &mut received) };
    let error = uplink("vrio0").adopt(handed, &cards()).unwrap_err();
    assert!(error.contains("is gone meanwhile") && error.contains("Linux 6.4"), "{error}");
}

#[test]
fn a_failure_to_open_is_reported() {
    for (name, says) in [("no-such-vrio", "is no Ethernet interface"), ("lo", "is no Ethernet")] {
        let error = opened(name).unwrap_err();
        assert!(error.contains(name) && error.contains(says), "{error}");
    }
    let test = "a_failure_to_open_is_reported";
    let Some(_rig) = Rig::new(test, 1500) else { return };
    let again = opened("vrio0").unwrap_err();
    assert!(again.contains("another program is attached"), "{again}");
}

#[test]
fn the_state_of_an_interface_has_its_form() {
    let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let queue = || XdpQueueFds { socket: fd(), memory: fd() };
    let fds = XdpCardFds { index: 7, mtu: 1500, program: fd(), queues: vec![queue(), queue()] };
    let mut sent = SentDescriptors::default();
    let mut state = fds.take_down(&mut sent).unwrap();
    let expected = serde_json::json!({
        "xdp": { "index": 7, "mtu": 1500, "program": 0, "queues": [[1, 2], [3, 4]] }
    });
    assert_eq!((&state, sent.as_slice().len()), (&expected, 5));
    let state: XdpState = serde_json::from_value(state["xdp"].take()).unwrap();
    let taken = state.taken(&mut sent.into_received()).unwrap();
    assert_eq!((taken.index, taken.mtu, taken.queues.len()), (7, 1500, 2));
}
