//! A nic that announces its place: when its guest came from another host, switches outside must
//! learn to send its frames here, before the guest sends anything by itself.

use std::cell::Cell;
use std::rc::Rc;

use sidecore::{Progress, Wake};
use virtio::Segment;

use crate::ether::{Mac, TYPE_RARP};
use crate::frame::Burst;
use crate::port::{Chosen, Port};

/// The shortest frame of Ethernet, without its checksum.
const BYTES: usize = 60;

/// A question of reverse ARP (RFC 903) to everyone, as QEMU sends it for guests that cannot
/// announce themselves. It asks for the owner of this Ethernet address. No station answers, and
/// switches have learnt.
fn question(mac: Mac) -> [u8; BYTES] {
    let mut frame = [0; BYTES];
    frame[..6].copy_from_slice(&Mac::BROADCAST.0);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&TYPE_RARP.to_be_bytes());
    // Ethernet, for IPv4, addresses of 6 and 4 bytes, the question.
    frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac.0);
    frame[32..38].copy_from_slice(&mac.0);
    frame
}

/// A port that sends an announcement of its guest before anything else, when that is asked for.
#[derive(Debug)]
pub(super) struct Announced<P> {
    port: P,
    frame: [u8; BYTES],
    is_wanted: Rc<Cell<bool>>,
    /// The present burst is the announcement.
    is_ours: bool,
}

impl<P: Port> Announced<P> {
    /// The port of this address's guest. It is announced whenever `is_wanted` was set.
    pub(super) fn new(port: P, mac: Mac, is_wanted: Rc<Cell<bool>>) -> Self {
        Self { port, frame: question(mac), is_wanted, is_ours: false }
    }
}

impl<P: Port> Port for Announced<P> {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        if !self.is_wanted.get() {
            return self.port.receive(burst, now_ns);
        }
        self.is_wanted.set(false);
        let segment = Segment { addr: self.frame.as_mut_ptr(), len: BYTES as u32 };
        // SAFETY: the bytes are the port's own, and they are not written to meanwhile.
        let pushed = unsafe { burst.push(&[segment], 0) };
        self.is_ours = true;
        Progress::busy_if(pushed.is_ok())
    }

    fn release(&mut self, burst: &mut Burst) {
        if std::mem::take(&mut self.is_ours) {
            burst.clear();
        } else {
            self.port.release(burst);
        }
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64) {
        self.port.transmit(burst, chosen, now_ns);
    }

    fn flush(&mut self) {
        self.port.flush();
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let progress = self.port.arm(wake);
        if self.is_wanted.get() { Progress::Busy } else { progress }
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bridge::Bridge;
    use crate::switch::PortOptions;

    const OWN: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

    /// Says nothing, and keeps what it hears.
    #[derive(Debug, Default)]
    struct HeardFrames(Rc<std::cell::RefCell<Vec<Vec<u8>>>>);

    impl Port for HeardFrames {
        fn receive(&mut self, _: &mut Burst, _: u64) -> Progress {
            Progress::Idle
        }

        fn release(&mut self, burst: &mut Burst) {
            assert!(burst.is_empty(), "the announcement is not the guest's");
        }

        fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], _: u64) {
            let frames = chosen.iter().map(|it| &burst.frames()[usize::from(it.at)]);
            self.0.borrow_mut().extend(frames.map(|frame| burst.to_vec(frame)));
        }

        fn flush(&mut self) {}
    }

    #[test]
    fn everyone_hears_once_where_it_is() {
        let mut bridge = Bridge::new(1);
        let is_wanted = Rc::<Cell<bool>>::default();
        let port = Announced::new(HeardFrames::default(), OWN, Rc::clone(&is_wanted));
        bridge.add(PortOptions::of_guest(OWN), Box::new(port), Arc::default()).unwrap();
        let heard = Rc::default();
        let other = Box::new(HeardFrames(Rc::clone(&heard)));
        bridge.add(PortOptions::of_uplink(), other, Arc::default()).unwrap();
        let mut wake = Wake::new();
        assert_eq!((bridge.poll(1), bridge.arm(&mut wake)), (Progress::Idle, Progress::Idle));
        for turn in 1..4 {
            is_wanted.set(true);
            assert_eq!(bridge.arm(&mut wake), Progress::Busy);
            assert_eq!((bridge.poll(turn), bridge.poll(turn)), (Progress::Busy, Progress::Idle));
            let frame = heard.borrow_mut().pop().unwrap();
            assert_eq!(
                (&frame[..6], &frame[6..14]),
                (&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, 1, 0x80, 0x35][..])
            );
            assert_eq!(
                (&frame[22..28], &frame[32..38], frame.len()),
                (&OWN.0[..], &OWN.0[..], BYTES)
            );
            assert!(heard.borrow().is_empty(), "once");
        }
    }
}
