//! Does for a receiver what a frame's sender has left undone and the receiver does not do itself.

use crate::frame::{Burst, Frame};
use crate::offload::{Cut, Offers};
use crate::port::PortCounters;

/// Room for one frame that is made of another one.
#[derive(Debug)]
pub struct Finisher(Box<Frame>);

impl Finisher {
    /// Room for a frame.
    pub fn new() -> Self {
        Self(Box::new(Frame::empty()))
    }

    /// Hands the frame to `take` in a form that a receiver with these `offers` can use: as it is,
    /// or as segments, or with its checksum completed. Stops at the first error.
    ///
    /// # Errors
    /// What `take` says.
    #[inline]
    pub fn each<E>(
        &mut self,
        frame: &Frame,
        burst: &Burst,
        offers: &Offers,
        counters: &PortCounters,
        mut take: impl FnMut(&Frame) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_plain = frame.offload.cut == Cut::None && !frame.offload.needs_checksum;
        let must_be_cut = !is_plain && frame.must_be_cut(offers);
        if is_plain || (!must_be_cut && offers.checksum) {
            return take(frame);
        }
        let segments = if must_be_cut { frame.segments() } else { 1 };
        counters.cut_out.add(u64::from(must_be_cut));
        for number in 0..segments {
            frame.segment(number, &mut self.0);
            if !offers.checksum {
                self.0.complete_checksum(burst);
                counters.checksums_out.add(1);
            }
            take(&self.0)?;
        }
        Ok(())
    }
}

impl Default for Finisher {
    fn default() -> Self {
        Self::new()
    }
}
