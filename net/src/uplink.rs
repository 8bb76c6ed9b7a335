//! Ways from a network to what is outside of the node.

mod cards;
mod keeper;
pub mod tap;
pub mod xdp;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use link::{XdpCardFds, XdpError};
use sidecore::Waker;

use crate::port::PortCounters;
pub use cards::{Cards, Hold, OwnCards};
pub use keeper::{Keeper, MakePort, UplinkCore};
pub use tap::{OpenTap, Tap, TapError};
pub use xdp::{OpenXdp, Xdp};

/// Why there is no uplink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UplinkError {
    /// No tap.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// No interface by AF_XDP.
    #[error("interface {interface}: {source}")]
    Xdp {
        /// The interface.
        interface: String,
        /// What is in the way.
        r#source: XdpError,
    },
    /// The system has no thread.
    #[error("no thread to look after the interface: {0}")]
    Thread(io::Error),
}

/// What is open of an uplink, for whoever goes on with it.
#[derive(Debug)]
pub enum UplinkFds {
    /// A tap.
    Tap {
        /// Where frames are read and written.
        fd: OwnedFd,
        /// It takes UDP that is still to be cut.
        udp: bool,
    },
    /// An interface past the network stack.
    Xdp(XdpCardFds),
}

impl UplinkFds {
    /// The same descriptors again.
    ///
    /// # Errors
    /// When the system has no more of them.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tap { fd, udp } => Ok(Self::Tap { fd: fd.try_clone()?, udp: *udp }),
            Self::Xdp(fds) => Ok(Self::Xdp(fds.try_clone()?)),
        }
    }
}

/// An uplink that was opened and is in no network yet. There is no thread yet that looks after it:
/// one that is started before the process gives rights up would keep them.
#[derive(Debug)]
pub enum OpenUplink {
    /// A tap.
    Tap(OpenTap),
    /// An interface past the network stack.
    Xdp(OpenXdp),
}

impl OpenUplink {
    /// The way to build its port, which has these counters, on the sidecore that `waker` wakes;
    /// what others may know of it; and who looks after the interface, to be kept as long as the
    /// port.
    /// That one says when the interface is away (`false`) and when it is back, and must not be held
    /// up.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn into_parts(
        self,
        counters: Arc<PortCounters>,
        waker: Waker,
        told: impl Fn(bool) + Send + 'static,
    ) -> Result<(MakePort, Arc<UplinkCore>, Keeper), UplinkError> {
        match self {
            Self::Tap(tap) => tap.into_parts(counters, waker, told),
            Self::Xdp(xdp) => xdp.into_parts(counters, waker, told),
        }
    }
}

impl From<OpenTap> for OpenUplink {
    fn from(tap: OpenTap) -> Self {
        Self::Tap(tap)
    }
}

impl From<OpenXdp> for OpenUplink {
    fn from(xdp: OpenXdp) -> Self {
        Self::Xdp(xdp)
    }
}
