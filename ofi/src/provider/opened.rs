//! The open provider as C has it.

use crate::abi::{FI_CLASS_FABRIC, FidFabric};
use crate::object;
use std::sync::Arc;

/// An open provider.
#[repr(C)]
pub(crate) struct ProviderObject {
    fabric: FidFabric<Self>,
    /// Whoever is open under it has one, so that it is not closed before them.
    open: Arc<()>,
}

// SAFETY: it begins with its `Fid`, as C has it; no other type says this class.
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

    /// Keeps it open.
    pub(crate) fn hold(&self) -> Arc<()> {
        Arc::clone(&self.open)
    }

    /// Which version of the interface the program speaks.
    pub(crate) fn version(&self) -> u32 {
        self.fabric.api_version
    }
}
