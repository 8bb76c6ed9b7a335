//! Which process an endpoint of this host is of, as the node says it.

use std::fmt;

/// The process of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointProcess {
    /// Its number, as this process has to say it.
    Is(u32),
    /// There is none that can be read from here.
    Nobodys,
    /// Asked, and not answered yet.
    NotKnown,
}

/// Says the process of an owner of a slot, without waiting.
pub(crate) struct Processes(pub(crate) Box<dyn FnMut(u16, u32) -> EndpointProcess + Send>);

impl Default for Processes {
    fn default() -> Self {
        Self(Box::new(|_, _| EndpointProcess::Nobodys))
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Processes(..)")
    }
}
