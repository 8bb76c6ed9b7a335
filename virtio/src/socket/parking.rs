//! A server that stands still, so that another process goes on in its place.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::{SocketShared, guard};
use crate::hand_over::ServedDevice;

/// How long a server may take to stand still, besides draining: until it has answered a message.
/// Only one that is there as a whole is begun, so the front end cannot make that longer. One that
/// stops queues takes 2 s (see [`crate::Device::stop`]), any other none to speak of.
pub(super) const PARK_TIME_MAX: Duration = Duration::from_secs(3);

/// The request to a server to stand still.
#[derive(Debug)]
pub(super) struct ParkRequest {
    pub(super) drain: Duration,
    pub(super) reply: SyncSender<Result<Option<ServedDevice<OwnedFd>>, ParkError>>,
    /// Ends when it may go on.
    pub(super) resume: Receiver<()>,
}

/// A server that comes to a stand. If this is dropped before its end, it goes on.
#[derive(Debug)]
pub struct Parking {
    pub(super) shared: Arc<SocketShared>,
    pub(super) answer: Receiver<Result<Option<ServedDevice<OwnedFd>>, ParkError>>,
    pub(super) hold: SyncSender<()>,
    pub(super) until: Instant,
    /// The server has ended: there is nothing to pause.
    pub(super) is_over: bool,
}

impl Parking {
    /// Waits until it stands still.
    ///
    /// # Errors
    /// Why it goes on.
    pub fn end(self) -> Result<ParkedServer, ParkError> {
        let Self { shared, answer, hold, until, is_over } = self;
        if is_over {
            return Ok(ParkedServer { state: None, _hold: None });
        }
        let answer = answer.recv_timeout(until.saturating_duration_since(Instant::now()));
        // A request that was not looked at is void; otherwise the server finds no caller to answer.
        drop(guard(&shared.park).take());
        let state = answer.unwrap_or(Err(ParkError::Silent))?;
        Ok(ParkedServer { state, _hold: Some(hold) })
    }
}

/// A server that stands still until this is dropped.
#[derive(Debug)]
pub struct ParkedServer {
    /// The state that another process needs to go on in this server's place; nothing where the
    /// server does not serve yet.
    pub state: Option<ServedDevice<OwnedFd>>,
    _hold: Option<SyncSender<()>>,
}

/// Why a server cannot stand still.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParkError {
    /// Requests that do not complete in time could not be told from others afterwards.
    #[error(
        "its front end keeps no inflight region for each of its queues (QEMU does), so they cannot \
         be handed over"
    )]
    NoInflight,
    /// A message of the front end takes longer than it may.
    #[error("a message of its front end is not answered within {PARK_TIME_MAX:?}")]
    Silent,
    /// The system refused.
    #[error("the system refused: {0}")]
    System(io::Error),
}
