//! An uplink that was opened and is in no network yet. No thread looks after it yet: a thread that
//! starts before the process gives its rights up would keep them.

use std::fmt;
use std::io;
use std::sync::Arc;

use sidecore::Waker;

use super::keeper::{self, Keeper, LinkListener, Source, UplinkCore};
use crate::port::{Port, PortCounters};

/// Builds the port, on its sidecore.
pub type MakePort = Box<dyn FnOnce() -> Box<dyn Port> + Send>;

/// See the module's text.
pub struct OpenUplink {
    name: String,
    start: Box<StartUplink>,
}

type StartUplink =
    dyn FnOnce(Arc<PortCounters>, Waker, LinkListener) -> io::Result<UplinkParts> + Send;

/// An uplink as a network has it. The keeper is dropped after the port.
pub struct UplinkParts {
    /// Builds its port.
    pub make: MakePort,
    /// Its state, for other threads.
    pub core: Arc<UplinkCore>,
    /// The thread that looks after its interface.
    pub keeper: Keeper,
}

impl OpenUplink {
    /// An interface that `source` has opened, and opens again when it was gone. `paused`: the port
    /// leaves it alone until [`UplinkCore::set_paused`].
    pub(super) fn new<S: Source>(source: S, first: S::Opened, paused: bool) -> Self {
        let name = source.name().to_owned();
        let start = move |counters, waker, told| {
            let (kept, keeper) = keeper::start(source, &first, paused, waker, told)?;
            let core = Arc::clone(&kept.core);
            let make = Box::new(move || S::port(kept, first, counters));
            Ok(UplinkParts { make, core, keeper })
        };
        Self { name, start: Box::new(start) }
    }

    /// Starts to look after the interface, for a port that has these counters, on the sidecore that
    /// `waker` wakes. `told` hears that the interface is away (`false`) and that it is back, and
    /// must not be held up.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn into_parts(
        self,
        counters: Arc<PortCounters>,
        waker: Waker,
        told: impl Fn(bool) + Send + 'static,
    ) -> Result<UplinkParts, String> {
        let parts = (self.start)(counters, waker, Box::new(told));
        parts.map_err(|error| format!("no thread for the interface: {error}"))
    }
}

impl fmt::Debug for OpenUplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenUplink").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for UplinkParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UplinkParts").field("core", &self.core).finish_non_exhaustive()
    }
}
