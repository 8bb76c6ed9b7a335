//! The state that a process gives to its successor, which goes on with a device's socket: the
//! socket, its lock, the front end that is there and the settings that were agreed with it.
//!
//! `F` stands for a descriptor. It is an [`OwnedFd`] while a server stands still, since another
//! thread takes the state down, and a [`DescriptorNumber`] in the message to the successor.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;

use handover::{DescriptorNumber, ReceivedDescriptors, SentDescriptors};
use serde::{Deserialize, Serialize};

/// A device's socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServedDevice<F> {
    /// The listening socket, where it is ours.
    pub listener: Option<F>,
    /// The lock beside it: the locked description itself, so that the lock is never free.
    pub lock: Option<F>,
    /// The front end, if one is there.
    pub front_end: Option<ConnectedFrontEnd<F>>,
}

/// A front end that is connected.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectedFrontEnd<F> {
    /// Its connection; between two messages, or with the next one unread.
    pub connection: F,
    /// Features that it accepted.
    pub features: u64,
    /// The same of the protocol.
    pub protocol_features: u64,
    /// The guest's memory, by guest address.
    pub memory: Vec<MemoryPart<F>>,
    /// The rings, by index; none of them runs.
    pub rings: Vec<RingState<F>>,
    /// Which requests were taken and not given back.
    pub inflight: Option<Inflight<F>>,
    /// Where the front end is told of changes.
    pub back_channel: Option<F>,
    /// The log of dirty pages, while the guest is migrated.
    pub log: Option<Log<F>>,
    /// Where the front end is told of changes of the log.
    pub log_signal: Option<F>,
}

/// A region of the guest's memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemoryPart<F> {
    /// Where it is in the guest.
    pub guest_addr: u64,
    /// Where the front end has it.
    pub user_addr: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// Where it begins in its file.
    pub offset_bytes: u64,
    /// The file.
    pub file: F,
}

/// A ring, as far as the front end has told about it.
#[derive(Debug, Serialize, Deserialize)]
pub struct RingState<F> {
    /// How many descriptors.
    pub size: Option<u16>,
    /// Where to go on, in the form of SET_VRING_BASE.
    pub base: Option<u32>,
    /// Descriptors, the driver's part, the device's part, as the front end has them.
    pub addrs: Option<[u64; 3]>,
    /// Whether the message about its kick has come.
    pub kicked: bool,
    /// The descriptor of that message.
    pub kick: Option<F>,
    /// Where the driver is called.
    pub call: Option<F>,
    /// Where a failure is told.
    pub err: Option<F>,
    /// Whether it may run.
    pub enabled: bool,
    /// Some: writes to the ring are marked as dirty, its used part at this address.
    pub logged_at: Option<u64>,
}

/// The inflight region.
#[derive(Debug, Serialize, Deserialize)]
pub struct Inflight<F> {
    /// Its file.
    pub file: F,
    /// Where it begins there.
    pub offset_bytes: u64,
    /// How long the front end says that it is.
    pub len_bytes: u64,
    /// Its queues.
    pub queues: u16,
    /// Descriptors of each.
    pub size: u16,
}

/// A log of dirty pages.
#[derive(Debug, Serialize, Deserialize)]
pub struct Log<F> {
    /// Its file.
    pub file: F,
    /// Where it begins there.
    pub offset_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
}

impl ServedDevice<OwnedFd> {
    /// The state for the message; the descriptors are put to those that go along.
    pub fn numbered(self, sent: &mut SentDescriptors) -> ServedDevice<DescriptorNumber> {
        let numbered = self.try_map(&mut |descriptor| Ok::<_, Infallible>(sent.put(descriptor)));
        match numbered {
            Ok(numbered) => numbered,
            Err(never) => match never {},
        }
    }
}

impl ServedDevice<DescriptorNumber> {
    /// The state with the descriptors that came.
    ///
    /// # Errors
    /// When one of them has not arrived.
    pub fn with_descriptors(
        self,
        received: &mut ReceivedDescriptors,
    ) -> io::Result<ServedDevice<OwnedFd>> {
        self.try_map(&mut |number| received.take(number))
    }
}

impl<F> ServedDevice<F> {
    /// Gives each descriptor another form, in one order.
    fn try_map<G, E>(self, f: &mut dyn FnMut(F) -> Result<G, E>) -> Result<ServedDevice<G>, E> {
        Ok(ServedDevice {
            listener: self.listener.map(&mut *f).transpose()?,
            lock: self.lock.map(&mut *f).transpose()?,
            front_end: self.front_end.map(|it| it.try_map(f)).transpose()?,
        })
    }
}

impl<F> ConnectedFrontEnd<F> {
    fn try_map<G, E>(
        self,
        f: &mut dyn FnMut(F) -> Result<G, E>,
    ) -> Result<ConnectedFrontEnd<G>, E> {
        let connection = f(self.connection)?;
        let memory = self.memory.into_iter().map(|part| {
            let MemoryPart { guest_addr, user_addr, len_bytes, offset_bytes, file } = part;
            let file = f(file)?;
            Ok(MemoryPart { guest_addr, user_addr, len_bytes, offset_bytes, file })
        });
        let memory = memory.collect::<Result<_, E>>()?;
        let rings = self.rings.into_iter().map(|ring| {
            let RingState { size, base, addrs, kicked, kick, call, err, enabled, logged_at } = ring;
            let kick = kick.map(&mut *f).transpose()?;
            let call = call.map(&mut *f).transpose()?;
            let err = err.map(&mut *f).transpose()?;
            Ok(RingState { size, base, addrs, kicked, kick, call, err, enabled, logged_at })
        });
        let rings = rings.collect::<Result<_, E>>()?;
        let inflight = self.inflight.map(|region| {
            let Inflight { file, offset_bytes, len_bytes, queues, size } = region;
            Ok(Inflight { file: f(file)?, offset_bytes, len_bytes, queues, size })
        });
        let log = self.log.map(|log| {
            let Log { file, offset_bytes, len_bytes } = log;
            Ok(Log { file: f(file)?, offset_bytes, len_bytes })
        });
        Ok(ConnectedFrontEnd {
            connection,
            features: self.features,
            protocol_features: self.protocol_features,
            memory,
            rings,
            inflight: inflight.transpose()?,
            back_channel: self.back_channel.map(&mut *f).transpose()?,
            log: log.transpose()?,
            log_signal: self.log_signal.map(f).transpose()?,
        })
    }
}
