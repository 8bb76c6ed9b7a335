//! The processes of this host's endpoints, as the node says them.

use std::fmt;

/// The process of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointProcess {
    /// The number of the process in this process's namespace.
    Is(u32),
    /// No process that can be read from here.
    Nobodys,
    /// The node was asked, and has not answered yet.
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
