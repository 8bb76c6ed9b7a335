//! The object of an endpoint.

use crate::abi::{FI_CLASS_EP, FidEp};
use crate::domain::DomainShared;
use crate::object;
use std::sync::Arc;

/// An endpoint as C sees it.
#[repr(C)]
pub(crate) struct EndpointObject {
    pub(super) ep: FidEp<Self>,
    pub(super) domain: Arc<DomainShared>,
    pub(super) number: usize,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for EndpointObject {
    const CLASS: usize = FI_CLASS_EP;
}
