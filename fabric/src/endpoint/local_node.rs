//! The node of a host, as an endpoint knows it: how it wakes others, and is woken.

use std::fmt;
use std::os::fd::OwnedFd;

/// The node of this host, as an endpoint knows it.
pub trait LocalNode: fmt::Debug + Send + Sync {
    /// Wakes a gateway that sleeps.
    fn wake(&self, gateway: u16);

    /// Wakes an endpoint of this host that sleeps. `false`: it cannot be done now; try again.
    fn ring(&self, slot: u16, incarnation: u32) -> bool;

    /// Opens a doorbell for an endpoint of this process, and returns the read end.
    ///
    /// # Errors
    /// Why there is none.
    fn open_doorbell(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, NoDoorbell>;

    /// Opens another doorbell for an endpoint of this process whose doorbell was shut down. The
    /// call asks the node and does not wait; a later call returns the read end once it has come.
    fn reopen_doorbell(&self, slot: u16, incarnation: u32) -> Option<OwnedFd>;

    /// Whether the node is still there: without it nothing goes to other hosts.
    fn is_there(&self) -> bool;
}

/// Why an endpoint has no doorbell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDoorbell {
    /// The process is inside of a VM.
    #[error("a process inside of a VM cannot be woken; let it poll")]
    InVm,
    /// The kernel makes no fences for others.
    #[error(
        "the kernel refuses membarrier(2), without which wake-ups would be lost; let the filter of \
         system calls pass it, or poll"
    )]
    NoBarrier,
    /// There is no node, or the node has gone.
    #[error("the node has gone; join the domain again when it is back")]
    NoNode,
    /// The node has no descriptor left, or this process has none.
    #[error(
        "no descriptor is left for a doorbell, in this process or the node; its log says which"
    )]
    NoDescriptor,
}
