//! The object of an open provider.

use crate::abi::{FI_CLASS_FABRIC, FidFabric};
use crate::object;
use std::sync::Arc;

/// The open provider as C sees it.
#[repr(C)]
pub(crate) struct ProviderObject {
    fabric: FidFabric<Self>,
    /// Each domain and event queue has a copy, so that the provider is not closed before them.
    open: Arc<()>,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for ProviderObject {
    const CLASS: usize = FI_CLASS_FABRIC;
}

impl ProviderObject {
    pub(super) fn new(fabric: FidFabric<Self>) -> Self {
        Self { fabric, open: Arc::new(()) }
    }

    /// Whether nothing is open under it.
    pub(super) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.open) == 1
    }

    /// Keeps the provider open as long as the result lives.
    pub(crate) fn hold(&self) -> Arc<()> {
        Arc::clone(&self.open)
    }

    /// The version of libfabric's interface that the program asked for.
    pub(crate) fn version(&self) -> u32 {
        self.fabric.api_version
    }
}
