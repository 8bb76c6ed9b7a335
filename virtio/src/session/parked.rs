//! A session that stands still, so that another process can go on with it, or this one again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vhost::vhost_user::BackendReqHandler;

use super::{Session, SessionError, UserAddrs, Vring};
use crate::back_channel::BackChannel;
use crate::dirty::DirtyLog;
use crate::hand_over::{ConnectedFrontEnd, Inflight, Log, MemoryPart, RingState};
use crate::inflight::InflightRegion;
use crate::memory::{Memory, Region};
use crate::socket::ParkError;

impl Session {
    /// Stops the queues that run, as when the front end stops them, and takes down all that
    /// another process needs to start them again. With an error nothing has changed.
    pub(crate) fn park(
        &mut self,
        connection: BorrowedFd<'_>,
        drain: Duration,
    ) -> Result<ConnectedFrontEnd<OwnedFd>, ParkError> {
        let running = self.vrings.iter().enumerate().filter(|(_, vring)| vring.running);
        let running: Vec<_> = running.map(|(index, _)| index).collect();
        let kept = |index| self.inflight.as_ref().is_some_and(|region| region.covers(index));
        if self.device.leaves_requests() && !running.iter().copied().all(kept) {
            return Err(ParkError::NoInflight);
        }
        // First all that needs descriptors: when there are none left nothing has happened yet, and
        // what goes on here goes on with what it has.
        let ends = running.iter().map(|&index| self.vrings[index].ends());
        let ends = ends.collect::<io::Result<Vec<_>>>().map_err(ParkError::System)?;
        let mut state = self.take_down(connection).map_err(ParkError::System)?;
        let bases = self.device.pause(&running, drain);
        for ((index, base), ends) in running.into_iter().zip(bases).zip(ends) {
            let vring = &mut self.vrings[index];
            (vring.running, vring.base, vring.spare) = (false, Some(base), Some(ends));
            state.rings[index].base = Some(base);
        }
        Ok(state)
    }

    /// Starts again what [`Self::park`] has stopped, or what another process had.
    pub(crate) fn unpark(&mut self) -> Result<(), SessionError> {
        let started = (0..self.vrings.len()).try_for_each(|index| self.start(index));
        self.vrings.iter_mut().for_each(|vring| vring.spare = None);
        started
    }

    fn take_down(&self, connection: BorrowedFd<'_>) -> io::Result<ConnectedFrontEnd<OwnedFd>> {
        let memory = self.memory.regions().iter().map(|region| {
            let (file, offset_bytes) = region.file()?;
            let (guest_addr, user_addr) = (region.guest_addr(), region.user_addr());
            let len_bytes = region.len_bytes();
            Ok(MemoryPart { guest_addr, user_addr, len_bytes, offset_bytes, file })
        });
        let rings = self.vrings.iter().map(Vring::take_down);
        Ok(ConnectedFrontEnd {
            connection: connection.try_clone_to_owned()?,
            features: self.acked,
            protocol_features: self.protocol,
            memory: memory.collect::<io::Result<_>>()?,
            rings: rings.collect::<io::Result<_>>()?,
            inflight: self.inflight.as_ref().map(InflightRegion::take_down).transpose()?,
            back_channel: self.back_channel.as_ref().map(BackChannel::take_down).transpose()?,
            log: self.log.as_ref().map(DirtyLog::take_down).transpose()?,
            log_signal: self.log_signal.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }

    /// Makes a fresh session what `state` says, up to starting the queues, and gives the handler of
    /// its messages.
    pub(crate) fn adopt(
        session: &Arc<Mutex<Self>>,
        state: ConnectedFrontEnd<OwnedFd>,
    ) -> Result<BackendReqHandler<Mutex<Self>>, AdoptError> {
        let handler = handler(session, &state)?;
        let mut session = session.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let queues = session.vrings.len();
        if state.rings.len() != queues {
            return Err(AdoptError::Queues { told: state.rings.len(), queues });
        }
        // The same rules as for what a front end hands over itself.
        let account = Arc::clone(&session.account);
        let parts = state.memory.into_iter().map(|part| {
            let MemoryPart { guest_addr, user_addr, len_bytes, offset_bytes, file } = part;
            let file = file.as_fd();
            let addrs = (guest_addr, user_addr);
            let region = Region::of(file, offset_bytes, addrs, len_bytes, Some(&account));
            Ok(Arc::new(region.map_err(SessionError::from)?))
        });
        let regions = parts.collect::<Result<Vec<_>, SessionError>>()?;
        session.memory = Arc::new(Memory::new(regions).map_err(SessionError::from)?);
        session.inflight = match state.inflight {
            None => None,
            Some(Inflight { file, offset_bytes, len_bytes, queues, size }) => {
                let shape = (session.ring_kind(), queues, size);
                let region = InflightRegion::of(
                    file.as_fd(),
                    offset_bytes,
                    len_bytes,
                    shape,
                    Some(&account),
                );
                Some(region.map_err(SessionError::from)?)
            }
        };
        session.back_channel = state.back_channel.map(BackChannel::new);
        session.log_signal = state.log_signal;
        if let Some(Log { file, offset_bytes, len_bytes }) = state.log {
            let log = DirtyLog::of(file.as_fd(), offset_bytes, len_bytes, Some(&account));
            session.use_log(log.map_err(SessionError::from)?)?;
        }
        let vrings = state.rings.into_iter().map(Vring::pick_up);
        session.vrings = vrings.collect::<io::Result<_>>()?;
        drop(session);
        Ok(handler)
    }
}

impl Vring {
    fn take_down(&self) -> io::Result<RingState<OwnedFd>> {
        let copy = |fd: Option<&OwnedFd>| fd.map(OwnedFd::try_clone).transpose();
        Ok(RingState {
            size: self.size,
            base: self.base,
            addrs: self.addrs.map(|UserAddrs { desc, avail, used }| [desc, avail, used]),
            kicked: self.kick.is_some(),
            kick: copy(self.kick.as_ref().and_then(Option::as_ref))?,
            call: copy(self.call.as_ref())?,
            err: copy(self.err.as_ref())?,
            enabled: self.enabled,
            logged_at: self.logged_at,
        })
    }

    /// With all that it takes to start it.
    fn pick_up(ring: RingState<OwnedFd>) -> io::Result<Self> {
        let mut vring = Self {
            size: ring.size,
            base: ring.base,
            addrs: ring.addrs.map(|[desc, avail, used]| UserAddrs { desc, avail, used }),
            kick: ring.kicked.then_some(ring.kick),
            call: ring.call,
            err: ring.err,
            enabled: ring.enabled,
            logged_at: ring.logged_at,
            spare: None,
            running: false,
        };
        vring.spare = Some(vring.ends()?);
        Ok(vring)
    }
}

/// Why another process's front end cannot be gone on with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// Its memory, its rings or its features are not what this program can serve.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The device has another number of queues.
    #[error("the front end knows {told} queues, the device has {queues}")]
    Queues {
        /// The number in the state.
        told: usize,
        /// The number of the device's queues.
        queues: usize,
    },
    /// The former agreement with the front end cannot be made again.
    #[error("the state of the front end's session is refused: {0}")]
    Agreement(String),
    /// The state lacks something.
    #[error("there is no {0}")]
    Missing(&'static str),
    /// The system refused.
    #[error("the system refused: {0}")]
    System(io::Error),
}

impl From<io::Error> for AdoptError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Requests of the protocol that agree on features.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;

/// Header flag: version 1 of the protocol.
const VERSION: u32 = 1;

/// A handler that knows what was agreed. The crate's keeps that to itself, so it hears it again: by
/// another stream, whose place the connection takes afterwards.
fn handler(
    session: &Arc<Mutex<Session>>,
    state: &ConnectedFrontEnd<OwnedFd>,
) -> Result<BackendReqHandler<Mutex<Session>>, AdoptError> {
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd};

    let (mut front_end, device) = UnixStream::pair()?;
    let mut handler = BackendReqHandler::from_stream(device, Arc::clone(session));
    let mut say = |request: u32, value: Option<u64>| {
        let body = value.map_or_else(Vec::new, |value| value.to_ne_bytes().to_vec());
        let head = [request, VERSION, body.len() as u32].map(u32::to_ne_bytes);
        front_end.write_all(&[head.as_flattened(), &body].concat())?;
        handler.handle_request().map_err(|error| AdoptError::Agreement(error.to_string()))?;
        if value.is_none() {
            // Head and 64 bits.
            front_end.read_exact(&mut [0; 20])?;
        }
        Ok::<_, AdoptError>(())
    };
    say(GET_FEATURES, None)?;
    say(SET_FEATURES, Some(state.features))?;
    say(GET_PROTOCOL_FEATURES, None)?;
    say(SET_PROTOCOL_FEATURES, Some(state.protocol_features))?;
    // SAFETY: the handler owns the descriptor and lives longer than this borrow of it, which is
    // never dropped; only what it refers to changes.
    let place = unsafe { OwnedFd::from_raw_fd(handler.as_raw_fd()) };
    let mut place = std::mem::ManuallyDrop::new(place);
    rustix::io::dup3(&state.connection, &mut place, rustix::io::DupFlags::CLOEXEC)
        .map_err(io::Error::from)?;
    Ok(handler)
}
