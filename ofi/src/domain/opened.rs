//! A domain as C has it, and what its objects share.

use crate::abi::{FI_CLASS_DOMAIN, FidDomain};
use crate::gate::CallGate;
use crate::state::{ProviderState, WaitTarget};
use crate::wait::{WaitMethod, WaitStep};
use crate::{idle, object};
use std::sync::Arc;
use std::time::Duration;

/// A domain as C has it.
#[repr(C)]
pub(crate) struct DomainObject {
    domain: FidDomain<Self>,
    shared: Arc<DomainShared>,
}

// SAFETY: it begins with its `Fid`, as C has it; no other type says this class.
unsafe impl object::FidObject for DomainObject {
    const CLASS: usize = FI_CLASS_DOMAIN;
}

impl DomainObject {
    pub(super) fn new(domain: FidDomain<Self>, shared: DomainShared) -> Self {
        Self { domain, shared: Arc::new(shared) }
    }

    /// Whether nothing is open in it.
    pub(super) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    pub(crate) fn share(&self) -> Arc<DomainShared> {
        Arc::clone(&self.shared)
    }
}

/// What everything that is open in a domain holds on to.
#[derive(Debug)]
pub(crate) struct DomainShared {
    /// Of whom the endpoints are.
    pub(crate) domain: fabric::Domain,
    /// Which version of the interface the program speaks.
    pub(crate) version: u32,
    /// Registered memory has keys of ours, and is addressed as in its own process (the program's
    /// word: `FI_MR_BASIC`).
    pub(crate) has_virtual_addresses: bool,
    /// Endpoints, queues, counters, vectors.
    pub(crate) state: CallGate<ProviderState>,
    pub(super) _fabric: Arc<()>,
}

impl DomainShared {
    /// What somebody who waits for something by the descriptor is to do.
    pub(crate) fn prepare(&self, to: WaitTarget) -> WaitStep {
        self.state.with(|state| state.prepare(to, WaitMethod::Descriptor, &self.domain)).0
    }

    /// Has a thread that waits for something by a call sleep until there may be something, or for
    /// so long at most; not, if it `is_over` once it would be woken from outside the gate as well.
    pub(crate) fn sleep(
        &self,
        to: WaitTarget,
        left: Option<Duration>,
        is_over: impl FnOnce() -> bool,
    ) -> WaitStep {
        let (rest, asleep) =
            self.state.with(|state| state.prepare(to, WaitMethod::Call, &self.domain));
        match &asleep {
            _ if matches!(rest, WaitStep::Look | WaitStep::Resend) || is_over() => {}
            Some(asleep) => asleep.alarm.wait(left),
            None => idle::nap(left),
        }
        if let Some(asleep) = asleep {
            self.state.with(|state| state.end_sleep(to, &asleep));
        }
        rest
    }
}
