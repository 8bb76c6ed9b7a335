//! The contract between everything that frames go through: nics, uplinks, remote ports, stages.

use std::fmt;

use sidecore::{Progress, Wake};

use crate::frame::Burst;
use crate::reason::Drops;

/// A frame of a burst that a port must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Which frame of the burst.
    pub at: u16,
    /// The tag that it gets; zero for none.
    pub tci: u16,
}

/// A way for frames in and out. It lives on one sidecore; nothing here blocks or, once warm,
/// allocates.
///
/// The turn of a frame: `receive`, then `transmit` at the ports that must get it, then `release`. A
/// port that takes a frame has copied it when `transmit` returns.
pub trait Port: fmt::Debug {
    /// Adds frames that came in to `burst`, which is empty, until it is full or there are none.
    /// Their tags are taken off, and their descriptions of themselves were checked. A bad frame is
    /// dropped and counted.
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress;

    /// The frames that were received last were dealt with: buffers go back. The burst is empty
    /// then.
    fn release(&mut self, burst: &mut Burst);

    /// Sends these frames of another port's burst, in order. A frame that does not fit is dropped
    /// and counted: a receiver that is slow must not delay the others.
    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64);

    /// The round is over: shows the other side the frames and buffers that were taken or given
    /// back.
    fn flush(&mut self);

    /// Before the sidecore sleeps; see [`sidecore::Poll::arm`].
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let _ = wake;
        Progress::Idle
    }

    /// After the sidecore slept.
    fn disarm(&mut self) {}
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        (**self).receive(burst, now_ns)
    }

    fn release(&mut self, burst: &mut Burst) {
        (**self).release(burst);
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64) {
        (**self).transmit(burst, chosen, now_ns);
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        (**self).arm(wake)
    }

    fn disarm(&mut self) {
        (**self).disarm();
    }
}

sidecore::counters! {
    /// The counters of a port. Written by its sidecore only; directions are the switch's: in is the
    /// direction of frames that the port received.
    #[repr(align(128))]
    pub struct PortCounters {
        /// Frames that came in and were not dropped by the port itself.
        frames_in,
        /// Their bytes, without tags.
        bytes_in,
        /// Frames that went out.
        frames_out,
        /// Their bytes, without tags.
        bytes_out,
        /// Frames that went out in segments that were cut here.
        cut_out,
        /// Checksums that were completed here.
        checksums_out,
    }
    and {
        /// Frames that came in and went no further.
        pub drops_in: Drops,
        /// Frames that should have gone out and did not.
        pub drops_out: Drops,
    }
}
