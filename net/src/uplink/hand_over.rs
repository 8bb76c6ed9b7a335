//! The state of an uplink in a hand-over. Each uplink has its own state, which only its own file
//! reads and writes; the node passes it on as JSON under the uplink's name. The names in it are a
//! format between releases.

use std::fmt;
use std::io;

use handover::{ReceivedDescriptors, SentDescriptors};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The descriptors of an open interface.
pub trait InterfaceFds: fmt::Debug + Send {
    /// The state for the successor, which gets copies of the descriptors.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<Value>;
}

/// The state of an uplink of this kind ([`super::NetworkUplink::NAME`]) as JSON.
pub(super) fn written(kind: &str, state: &impl Serialize) -> io::Result<Value> {
    let state = serde_json::to_value(state).map_err(io::Error::other)?;
    Ok(Value::Object([(kind.to_owned(), state)].into_iter().collect()))
}

/// An interface that another process has open, as [`super::UplinkCore::take_down`] gave it there.
pub struct HandedInterface<'a> {
    state: Value,
    received: &'a mut ReceivedDescriptors,
}

impl<'a> HandedInterface<'a> {
    /// The interface with this state, whose descriptors have come.
    ///
    /// # Safety
    /// The other process uses the interface no more once an uplink goes on with it; or that uplink
    /// is dropped before its port is no longer paused.
    pub unsafe fn new(state: Value, received: &'a mut ReceivedDescriptors) -> Self {
        Self { state, received }
    }

    /// The state of an uplink of this kind, and the descriptors that came.
    ///
    /// # Errors
    /// When it is the state of another kind of uplink, or lacks something.
    pub(super) fn read<S: DeserializeOwned>(
        mut self,
        kind: &str,
    ) -> Result<(S, &'a mut ReceivedDescriptors), String> {
        let state = self.state.get_mut(kind).map(Value::take);
        let state = state.ok_or("its uplink is of another kind")?;
        let state = serde_json::from_value(state);
        let state = state.map_err(|error| format!("the state of its {kind} uplink: {error}"))?;
        Ok((state, self.received))
    }
}

impl fmt::Debug for HandedInterface<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedInterface").field("state", &self.state).finish_non_exhaustive()
    }
}
