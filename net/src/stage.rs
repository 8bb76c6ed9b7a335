//! The stages that may stand between a port and its network: a [`FrameStage`] looks at frames one
//! by one, and [`Staged`] is a port with all of its own.

pub mod chain;
pub mod filter;
pub mod limit;
pub mod meter;
pub mod mirror;

use std::fmt;

use crate::frame::{Burst, Frame};
use crate::reason::Reason;

pub use chain::{Staged, Stages};
pub use filter::{Action, Filter, FilterCore, Rules};
pub use limit::{Limit, LimitCore, Limiter};
pub use meter::{Meter, MeterCore};
pub use mirror::{Mirror, MirrorCore};

/// The direction of a frame, seen from the port's guest, or from the station behind the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the port into the network.
    Sent,
    /// From the network to the port.
    Received,
}

/// Looks at frames one by one.
pub trait FrameStage: fmt::Debug {
    /// Whether the frame goes on. Its body is in the burst.
    ///
    /// # Errors
    /// Why not; it is dropped, and counted at the port.
    fn pass(
        &mut self,
        direction: Direction,
        frame: &Frame,
        burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason>;
}
