//! A station in a guest's network. It hears all frames there, answers ARP requests and pings, and
//! sends pings itself: a driver of a nic without a system above it.

use std::path::Path;
use std::time::{Duration, Instant};

use virtio::driver::{
    Backing, FramePart, FrameRing, GuestPlan, NicEnd, NicEndConfig, Regions, RingShape, SocketRole,
};

/// Bytes of the header before each frame.
const HEADER: usize = 12;

/// Buffers are merged, so that frames may be longer than one.
const MRG_RXBUF: u64 = 1 << 15;

const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV4: u16 = 0x0800;

const EVERYONE: [u8; 6] = [0xff; 6];

/// How long an answer may take before the question is repeated.
const AGAIN: Duration = Duration::from_millis(500);

/// See the module's text.
pub(crate) struct Ear {
    // The connection lasts as long as this.
    _end: NicEnd,
    receive: FrameRing,
    send: FrameRing,
    mac: [u8; 6],
    address: [u8; 4],
    pings: u16,
}

/// The checksum of IPv4 and ICMP.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or_default();
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes()
}

fn kind(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[12], frame[13]])
}

impl Ear {
    /// Connects to a nic's socket, with the nic's address.
    pub(crate) fn new(socket: &Path, mac: [u8; 6], address: [u8; 4], wait: Duration) -> Self {
        let shape = RingShape { size: 256, slots: 256, transfer_bytes_max: 4096, segments_max: 4 };
        let guest = GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let role = SocketRole::Connect(socket.to_owned());
        let features = MRG_RXBUF;
        let config = NicEndConfig { role, guest, features, packed: false, event_idx: true };
        let end = NicEnd::connect(&config, wait).unwrap();
        let (receive, send) = (end.ring(0), end.ring(1));
        let mut ear = Self { _end: end, receive, send, mac, address, pings: 0 };
        ear.post_buffers();
        ear
    }

    /// Its IPv4 address.
    pub(crate) fn address(&self) -> [u8; 4] {
        self.address
    }

    fn post_buffers(&mut self) {
        while let Some(slot) = self.receive.take_slot() {
            assert!(self.receive.post(slot, &[FramePart { offset: 0, len: 2048 }], false));
        }
        self.receive.publish();
    }

    fn say(&mut self, to: [u8; 6], kind: u16, packet: &[u8]) {
        while let Some((slot, _)) = self.send.complete().unwrap() {
            self.send.release(slot);
        }
        let frame = [&[0; HEADER][..], &to, &self.mac, &kind.to_be_bytes(), packet].concat();
        let slot = self.send.take_slot().expect("what was said is taken");
        self.send.write(slot, 0, &frame);
        assert!(self.send.post(slot, &[FramePart { offset: 0, len: frame.len() as u32 }], false));
        self.send.publish();
    }

    /// Sends an ARP packet: a request (1) for an address, or an answer (2) to the station that
    /// asked.
    fn arp(&mut self, what: u8, to: [u8; 6], who: [u8; 6], address: [u8; 4]) {
        let head = [0, 1, 8, 0, 6, 4, 0, what];
        let packet = [&head[..], &self.mac, &self.address, &who, &address].concat();
        self.say(to, ARP, &packet);
    }

    /// All frames since the last call. Requests for this station's address are answered.
    pub(crate) fn hear(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((slot, written)) = self.receive.complete().unwrap() {
            let mut bytes = vec![0; written as usize];
            self.receive.read(slot, 0, &mut bytes);
            self.receive.release(slot);
            frames.push(bytes.split_off(HEADER));
        }
        self.post_buffers();
        for frame in &frames {
            let asks = kind(frame) == ARP && frame[20..22] == [0, 1];
            if asks && frame[38..42] == self.address {
                let (who, address) = (&frame[22..28], &frame[28..32]);
                let who = *who.first_chunk().expect("six bytes");
                self.arp(2, who, who, *address.first_chunk().expect("four bytes"));
            }
            let is_echo = kind(frame) == IPV4 && frame[23] == 1 && frame[34] == 8;
            if is_echo && frame[30..34] == self.address {
                let (who, address) = (frame[6..].first_chunk(), frame[26..].first_chunk());
                let number = [frame[40], frame[41]];
                self.echo(0, *who.expect("six bytes"), *address.expect("four bytes"), number);
            }
        }
        frames
    }

    /// Hears frames until `found` finds one.
    fn wait<T>(&mut self, wait: Duration, found: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if let Some(found) = self.hear().iter().find_map(|frame| found(frame)) {
                return Some(found);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Pings an address until it answers. Gives the Ethernet address behind it, if there is an
    /// answer in that time.
    pub(crate) fn ping(&mut self, address: [u8; 4], wait: Duration) -> Option<[u8; 6]> {
        let until = Instant::now() + wait;
        while Instant::now() < until {
            self.arp(1, EVERYONE, [0; 6], address);
            let answer = |frame: &[u8]| {
                let is_it = kind(frame) == ARP && frame[20..22] == [0, 2];
                (is_it && frame[28..32] == address).then(|| *frame[22..].first_chunk().unwrap())
            };
            let Some(mac) = self.wait(AGAIN, answer) else { continue };
            self.pings += 1;
            let number = self.pings.to_be_bytes();
            self.echo(8, mac, address, number);
            let echoed = |frame: &[u8]| {
                let is_echo = kind(frame) == IPV4 && frame[23] == 1 && frame[34] == 0;
                (is_echo && frame[40..42] == number).then_some(())
            };
            if self.wait(AGAIN, echoed).is_some() {
                return Some(mac);
            }
        }
        None
    }

    /// Sends an echo request (8), or a reply (0).
    fn echo(&mut self, what: u8, mac: [u8; 6], address: [u8; 4], number: [u8; 2]) {
        let mut echo = [&[what, 0, 0, 0, 0x76, 0x72], &number[..], &[7; 40]].concat();
        let sum = checksum(&echo);
        echo[2..4].copy_from_slice(&sum);
        let bytes = (20 + echo.len() as u16).to_be_bytes();
        let head = [0x45, 0, bytes[0], bytes[1], 0, 0, 0x40, 0, 64, 1, 0, 0];
        let mut packet = [&head[..], &self.address, &address].concat();
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum);
        packet.extend(&echo);
        self.say(mac, IPV4, &packet);
    }

    /// Waits until this Ethernet address was announced to everyone, by its node (reverse ARP) and
    /// by its own system (ARP for its own address), in either order.
    ///
    /// # Panics
    /// When one of the two announcements does not come.
    pub(crate) fn wait_for_announcements(&mut self, mac: [u8; 6], wait: Duration) {
        let until = Instant::now() + wait;
        let (mut by_node, mut by_guest) = (false, false);
        while !(by_node && by_guest) {
            assert!(Instant::now() < until, "by its node: {by_node}, by its guest: {by_guest}");
            for frame in self.hear() {
                let is_own = frame[..6] == EVERYONE && frame[6..12] == mac;
                by_node |= is_own && kind(&frame) == RARP;
                by_guest |= is_own && kind(&frame) == ARP && frame[28..32] == frame[38..42];
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
