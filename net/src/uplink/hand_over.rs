//! The state of an uplink in a hand-over. A descriptor is a number in it: its place among those
//! that go along. Each uplink has its own state, which only its own file reads and writes; the node
//! passes it on as JSON. The names in it are a format between releases.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The number of a descriptor among those that go along.
pub type DescriptorNumber = usize;

/// Puts a descriptor to those that go along.
pub type PutDescriptor<'a> = &'a mut dyn FnMut(OwnedFd) -> DescriptorNumber;

/// Takes one of the descriptors that came; each once.
pub type TakeDescriptor<'a> = &'a mut dyn FnMut(DescriptorNumber) -> io::Result<OwnedFd>;

/// The descriptors of an open interface.
pub trait InterfaceFds: fmt::Debug + Send {
    /// Puts copies of them to those that go along, and gives the state that numbers them.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    fn put(&self, put: PutDescriptor<'_>) -> io::Result<Value>;
}

/// The state as JSON.
pub(super) fn written(state: &impl Serialize) -> io::Result<Value> {
    serde_json::to_value(state).map_err(io::Error::other)
}

/// An interface that another process has open, as [`super::UplinkCore::hand_over`] gave it there.
pub struct HandedInterface<'a> {
    state: Value,
    take: TakeDescriptor<'a>,
}

impl<'a> HandedInterface<'a> {
    /// The interface with this state, whose descriptors are taken by `take`.
    ///
    /// # Safety
    /// The other process uses the interface no more once an uplink goes on with it; or that uplink
    /// is dropped before its port is no longer paused.
    pub unsafe fn new(state: Value, take: TakeDescriptor<'a>) -> Self {
        Self { state, take }
    }

    /// The state, and the way to its descriptors.
    ///
    /// # Errors
    /// When it is the state of another kind of uplink.
    pub(super) fn read<S: DeserializeOwned>(self) -> Result<(S, TakeDescriptor<'a>), String> {
        let read = serde_json::from_value(self.state);
        let state = read.map_err(|_| "its uplink is of another kind".to_owned())?;
        Ok((state, self.take))
    }
}

impl fmt::Debug for HandedInterface<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedInterface").field("state", &self.state).finish_non_exhaustive()
    }
}
