//! The object of a domain, and the part of it that all objects of the domain share.

use crate::abi::{FI_CLASS_DOMAIN, FidDomain};
use crate::gate::CallGate;
use crate::state::{ProviderState, WaitTarget};
use crate::wait::{WaitMethod, WaitStep};
use crate::{idle, object};
use std::sync::Arc;
use std::time::Duration;

/// A domain as C sees it.
#[repr(C)]
pub(crate) struct DomainObject {
    domain: FidDomain<Self>,
    shared: Arc<DomainShared>,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
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

/// The part of a domain that each of its objects refers to.
#[derive(Debug)]
pub(crate) struct DomainShared {
    /// The process's membership, in which endpoints are opened.
    pub(crate) domain: fabric::Domain,
    /// The version of libfabric's interface that the program asked for.
    pub(crate) version: u32,
    /// The program asked for `FI_MR_BASIC`: the provider chooses the keys of registered memory, and
    /// readers name its bytes by their addresses in its own process.
    pub(crate) has_virtual_addresses: bool,
    /// The objects of the domain.
    pub(crate) state: CallGate<ProviderState>,
    pub(super) _fabric: Arc<()>,
}

impl DomainShared {
    /// Prepares a wait by the descriptor, and returns the program's next step.
    pub(crate) fn prepare(&self, target: WaitTarget) -> WaitStep {
        self.state.with(|state| state.prepare(target, WaitMethod::Descriptor, &self.domain)).0
    }

    /// Lets a thread that waits by a call sleep until there may be something for it, or for so long
    /// at most. It does not sleep if the wait `is_over`. That is asked only when the alarm is
    /// armed, so that a thread that ends the wait, from outside of the gate, is seen here or rings
    /// the alarm. Returns the step that the thread has made.
    pub(crate) fn sleep(
        &self,
        target: WaitTarget,
        left: Option<Duration>,
        is_over: impl FnOnce() -> bool,
    ) -> WaitStep {
        let (step, sleeping) =
            self.state.with(|state| state.prepare(target, WaitMethod::Call, &self.domain));
        match &sleeping {
            _ if matches!(step, WaitStep::Look | WaitStep::Resend) || is_over() => {}
            Some(sleeping) => sleeping.alarm.wait(left),
            None => idle::nap(left),
        }
        if let Some(sleeping) = sleeping {
            self.state.with(|state| state.end_sleep(target, &sleeping));
        }
        step
    }
}
