//! Descriptors that only a successor needs.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use tokio::sync::Notify;

/// Descriptors that only a successor needs, and the number of a successor that has the node.
#[derive(Debug)]
pub(crate) struct HandoverFds {
    pub(crate) control: OwnedFd,
    pub(crate) control_lock: OwnedFd,
    pub(crate) metrics: Option<OwnedFd>,
    /// A hand-over is under way.
    pub(crate) giving: AtomicBool,
    /// The process that has the node now; 0 for none.
    pub(crate) successor: AtomicU32,
    pub(crate) gone: Notify,
}

impl HandoverFds {
    pub(crate) fn new([control, control_lock]: [OwnedFd; 2], metrics: Option<OwnedFd>) -> Self {
        let (giving, successor) = (AtomicBool::new(false), AtomicU32::new(0));
        Self { control, control_lock, metrics, giving, successor, gone: Notify::new() }
    }

    /// Waits until another process has the node, and returns its number.
    pub(crate) async fn gone(&self) -> u32 {
        self.gone.notified().await;
        self.successor.load(SeqCst)
    }

    /// The process that has the node now.
    pub(crate) fn successor(&self) -> u32 {
        self.successor.load(SeqCst)
    }
}
