//! The provider's offer to a program (`fi_getinfo`).
//!
//! The provider offers reliable endpoints without connections, and nothing else. A program, or a
//! provider that layers over others, may ask for something else. The answer is "no data", so that
//! the library goes on to other providers. `VRIO_FI_LOG=1` says what was missing.

mod offer;
#[cfg(test)]
mod tests;

use crate::abi::{
    ADDRESS_FORMAT, DomainAttr, EpAttr, FI_EINVAL, FI_ENODATA, FI_ENOMEM, FI_EP_RDM, FI_EP_UNSPEC,
    FI_ORDER_SAS, FI_PROGRESS_MANUAL, FI_PROGRESS_UNSPEC, FI_THREAD_ENDPOINT, FabricAttr, Info,
    PROGRESS_CONTROL_UNIFIED, PROTOCOL, RxAttr, TxAttr,
};
use crate::log::say;
use fabric::{ADDRESS_BYTES, INJECT_BYTES_MAX, PARTS_MAX};
use std::ffi::{CStr, CString, c_char, c_int};

pub(crate) use offer::COMPLETION_FLAGS;
use offer::{FABRIC, RECEIVE, SEND, capabilities};

/// The longest message: as long as the memory of a program can be. The provider has no limit of its
/// own.
const MESSAGE_BYTES_MAX: usize = isize::MAX.cast_unsigned();
/// Operations that may be outstanding, for a program that asks for no number.
const OUTSTANDING: usize = 1024;
/// The largest number that a program may ask for.
const OUTSTANDING_MAX: usize = 1 << 20;
/// Bytes of the word that a message carries for its receiver's completion.
const DATA_BYTES: usize = size_of::<u64>();
/// Counters of a domain at most, and pieces of registered memory.
pub(crate) const COUNT_MAX: usize = 1 << 16;

/// The hints of a program. A part is none if the program gives no hints about it.
#[derive(Clone, Copy, Default)]
struct WantedInfo<'a> {
    info: Option<&'a Info>,
    tx: Option<&'a TxAttr>,
    rx: Option<&'a RxAttr>,
    ep: Option<&'a EpAttr>,
    domain: Option<&'a DomainAttr>,
    fabric: Option<&'a FabricAttr>,
}

impl<'a> WantedInfo<'a> {
    /// # Safety
    /// `hints` is null, or an info whose attributes are valid or null.
    unsafe fn new(hints: *const Info) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let Some(info) = hints.as_ref::<'a>() else { return Self::default() };
            Self {
                info: Some(info),
                tx: info.tx_attr.as_ref(),
                rx: info.rx_attr.as_ref(),
                ep: info.ep_attr.as_ref(),
                domain: info.domain_attr.as_ref(),
                fabric: info.fabric_attr.as_ref(),
            }
        }
    }
}

/// `fi_getinfo`, which the library calls for each provider in turn.
///
/// # Safety
/// Names and hints are valid or null; there is room for a pointer at `to`.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    _service: *const c_char,
    flags: u64,
    hints: *const Info,
    to: *mut *mut Info,
) -> c_int {
    if to.is_null() {
        return -FI_EINVAL;
    }
    // SAFETY: the caller's.
    let wanted = unsafe { WantedInfo::new(hints) };
    let Some(domain) = domain_name() else { return -FI_ENODATA };
    if !node.is_null() && flags & crate::abi::FI_SOURCE == 0 {
        say!("no offer: endpoints have addresses of their own, and none by a host's name");
        return -FI_ENODATA;
    }
    // SAFETY: names in the hints are C strings.
    if let Err(missing) = unsafe { check(version, &wanted, &domain) } {
        say!("no offer: the hints ask for {missing}");
        return -FI_ENODATA;
    }
    // SAFETY: the hints were checked.
    let Some(info) = (unsafe { offer::make(version, &wanted, &domain) }) else {
        return -FI_ENOMEM;
    };
    // SAFETY: the caller's.
    unsafe { to.write(info) };
    0
}

/// The name of the environment's domain, if all variables are set that joining it takes.
fn domain_name() -> Option<CString> {
    match fabric::Invitation::from_environment() {
        Ok(invitation) => CString::new(invitation.domain().to_owned()).ok(),
        Err(error) => {
            say!("{error}");
            None
        }
    }
}

/// Checks that the offer satisfies the hints. The error names the first hint that it does not.
///
/// # Safety
/// Names are null or C strings.
unsafe fn check(version: u32, wanted: &WantedInfo<'_>, domain: &CStr) -> Result<(), &'static str> {
    if let Some(info) = wanted.info {
        need(info.caps & !capabilities(version) == 0, "a capability that is not offered")?;
        need(matches!(info.addr_format, 0 | ADDRESS_FORMAT), "another form of addresses")?;
        need(
            info.dest_addr.is_null() || info.dest_addrlen == ADDRESS_BYTES,
            "an address of another length",
        )?;
    }
    if let Some(fabric) = wanted.fabric {
        // SAFETY: the caller's.
        need(unsafe { same(fabric.name, FABRIC) }, "another fabric")?;
    }
    if let Some(ep) = wanted.ep {
        check_endpoint(ep)?;
    }
    if let Some(attr) = wanted.domain {
        // SAFETY: the caller's.
        need(unsafe { same(attr.name, domain) }, "another domain")?;
        check_domain(attr)?;
    }
    if let Some(tx) = wanted.tx {
        need(
            tx.caps & !(SEND | capabilities(version)) == 0,
            "a capability of sends that is not offered",
        )?;
        need(tx.op_flags & !COMPLETION_FLAGS == 0, "a flag of sends that is not offered")?;
        need(tx.msg_order & !FI_ORDER_SAS == 0, "an order of sends that is not offered")?;
        need(tx.comp_order == 0, "an order of completions")?;
        need(tx.inject_size <= INJECT_BYTES_MAX, "longer injected messages")?;
        need(tx.size <= OUTSTANDING_MAX, "more sends outstanding")?;
        need(tx.iov_limit <= PARTS_MAX, "more pieces of a message")?;
    }
    if let Some(rx) = wanted.rx {
        need(
            rx.caps & !(RECEIVE | capabilities(version)) == 0,
            "a capability of receives that is not offered",
        )?;
        need(rx.op_flags & !COMPLETION_FLAGS == 0, "a flag of receives that is not offered")?;
        need(rx.msg_order & !FI_ORDER_SAS == 0, "an order of receives that is not offered")?;
        need(rx.comp_order == 0, "an order of completions")?;
        need(rx.size <= OUTSTANDING_MAX, "more receives outstanding")?;
        need(rx.iov_limit <= PARTS_MAX, "more pieces of a buffer")?;
    }
    Ok(())
}

/// Checks the kind of endpoint. Providers that layer over others ask for the other kinds.
fn check_endpoint(ep: &EpAttr) -> Result<(), &'static str> {
    need(matches!(ep.r#type, FI_EP_UNSPEC | FI_EP_RDM), "a kind of endpoint other than RDM")?;
    need(matches!(ep.protocol, 0 | PROTOCOL), "another protocol")?;
    need(ep.protocol_version <= 1, "a newer version of the protocol")?;
    need(ep.max_msg_size <= MESSAGE_BYTES_MAX, "longer messages")?;
    need(ep.tx_ctx_cnt <= 1 && ep.rx_ctx_cnt <= 1, "endpoints with several contexts")?;
    need(ep.auth_key_size == 0, "a key, which only the environment gives")
}

fn check_domain(attr: &DomainAttr) -> Result<(), &'static str> {
    let progress = [FI_PROGRESS_UNSPEC, FI_PROGRESS_MANUAL, PROGRESS_CONTROL_UNIFIED];
    need(attr.threading <= FI_THREAD_ENDPOINT, "another threading model")?;
    need(progress.contains(&attr.control_progress), "progress without calls")?;
    need(progress.contains(&attr.data_progress), "progress without calls")?;
    need(attr.av_type <= crate::abi::FI_AV_TABLE, "another kind of address vector")?;
    need(attr.cq_data_size <= DATA_BYTES, "longer data with messages")?;
    need(attr.caps & !offer::DOMAIN == 0, "a capability of the domain that is not offered")?;
    need(
        attr.cntr_cnt <= COUNT_MAX && attr.mr_cnt <= COUNT_MAX,
        "more counters or registered memory",
    )?;
    need(attr.max_err_data == 0, "data of errors")?;
    need(attr.auth_key_size == 0, "a key, which only the environment gives")
}

/// Fails with the name of a hint unless it is satisfied.
fn need(is_satisfied: bool, hint: &'static str) -> Result<(), &'static str> {
    if is_satisfied { Ok(()) } else { Err(hint) }
}

/// Whether a name is null or ours.
///
/// # Safety
/// The name is null or a C string.
unsafe fn same(name: *const c_char, ours: &CStr) -> bool {
    // SAFETY: the caller's.
    name.is_null() || unsafe { CStr::from_ptr(name) } == ours
}
