//! Why a front end has no device.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why a connection to a back end was not made, or was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontEndError {
    /// There is no guest memory or no eventfd to be had.
    #[error("guest memory: {0}")]
    Memory(io::Error),
    /// No back end answers at the socket, or none came to it.
    #[error("{}: {source}", path.display())]
    Socket {
        /// The socket's file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The back end did not answer in time.
    #[error("{ask}: no answer within {timeout_ms} ms")]
    Timeout {
        /// The message.
        ask: &'static str,
        /// How long we waited.
        timeout_ms: u128,
    },
    /// The back end closed the connection or died.
    #[error("{ask}: the back end hung up")]
    HungUp {
        /// The message that found out.
        ask: &'static str,
    },
    /// The connection failed in another way.
    #[error("{ask}: {source}")]
    Connection {
        /// The message.
        ask: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The back end acknowledged a message negatively.
    #[error("{ask}: refused by the back end with {code}")]
    Refused {
        /// The message.
        ask: &'static str,
        /// The code in its acknowledgement.
        code: u64,
    },
    /// The back end's answer is not one.
    #[error("{ask}: bad answer, {why}")]
    BadAnswer {
        /// The message.
        ask: &'static str,
        /// The fault of the answer.
        why: &'static str,
    },
    /// The back end does not offer what we cannot do without.
    #[error("the back end does not offer {0}")]
    Missing(&'static str),
    /// The back end has fewer queues than wanted.
    #[error("{wanted} queues wanted, the back end offers {offered}")]
    QueuesMissing {
        /// The number that the caller asked for.
        wanted: u16,
        /// The number of queues that the back end has.
        offered: u64,
    },
    /// After a reconnect the back end no longer offers features that the guest uses.
    #[error("after the reconnect the back end lacks the features {0:#x}")]
    FeaturesLost(u64),
    /// After a reconnect, requests are outstanding and the back end keeps no inflight region, so it
    /// is unknown which of them were done.
    #[error(
        "queue {queue}: {outstanding} requests outstanding, and the back end has no inflight \
         region to say which of them were done"
    )]
    ResumeUnsafe {
        /// The first such queue.
        queue: u16,
        /// Its requests.
        outstanding: u16,
    },
}

impl FrontEndError {
    pub(super) fn socket(ask: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::HungUp { ask },
            errno => Self::Connection { ask, source: errno.into() },
        }
    }

    /// Whether trying again can help: the back end is not there, or went away.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Socket { .. }
                | Self::Timeout { .. }
                | Self::HungUp { .. }
                | Self::Connection { .. }
        )
    }
}
