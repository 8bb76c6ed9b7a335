//! What the provider offers (`fi_getinfo`), and to whom.
//!
//! It offers one thing: reliable endpoints without connections. Everything else that a program, or
//! a provider that wants to be layered over ours, asks for is answered by "no data", so that the
//! library goes on to others; `VRIO_FI_LOG=1` says what was missing.

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

/// The longest message. Bounded by what a program can have, and by nothing of ours.
const MESSAGE_BYTES_MAX: usize = isize::MAX.cast_unsigned();
/// Operations that may be outstanding: said when nobody asks, and at most.
const OUTSTANDING: usize = 1024;
const OUTSTANDING_MAX: usize = 1 << 20;
/// Bytes of a message's word for its receiver.
const DATA_BYTES: usize = size_of::<u64>();
/// Counters, and registered memory, of a domain.
pub(crate) const COUNT_MAX: usize = 1 << 16;

/// What a program wants, if it says so.
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
    /// Null, or an info with attributes that are null or there.
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

/// `fi_getinfo`, as the library asks each provider in turn.
///
/// # Safety
/// Names and hints are null or there; there is room for a pointer at `to`.
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
        say!("endpoints are found by the addresses that they tell, not by a host's name");
        return -FI_ENODATA;
    }
    // SAFETY: names in the hints are texts of C's.
    if let Err(missing) = unsafe { check(version, &wanted, &domain) } {
        say!("not what is asked for: {missing}");
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

/// The domain that the environment names, if it names all that it takes to join one.
fn domain_name() -> Option<CString> {
    match fabric::Invitation::from_environment() {
        Ok(invitation) => CString::new(invitation.domain().to_owned()).ok(),
        Err(error) => {
            say!("{error}");
            None
        }
    }
}

/// Whether the hints are content with what we offer; else what is not.
///
/// # Safety
/// Names are null or texts of C's.
unsafe fn check(version: u32, wanted: &WantedInfo<'_>, domain: &CStr) -> Result<(), &'static str> {
    if let Some(info) = wanted.info {
        need(info.caps & !capabilities(version) == 0, "a capability")?;
        need(matches!(info.addr_format, 0 | ADDRESS_FORMAT), "an address format")?;
        need(info.dest_addr.is_null() || info.dest_addrlen == ADDRESS_BYTES, "an address")?;
    }
    if let Some(fabric) = wanted.fabric {
        // SAFETY: the caller's.
        need(unsafe { same(fabric.name, FABRIC) }, "another fabric's name")?;
    }
    if let Some(ep) = wanted.ep {
        check_endpoint(ep)?;
    }
    if let Some(attr) = wanted.domain {
        // SAFETY: the caller's.
        need(unsafe { same(attr.name, domain) }, "another domain's name")?;
        check_domain(attr)?;
    }
    if let Some(tx) = wanted.tx {
        need(tx.caps & !(SEND | capabilities(version)) == 0, "a capability to send")?;
        need(tx.op_flags & !COMPLETION_FLAGS == 0, "a flag of what is sent")?;
        need(tx.msg_order & !FI_ORDER_SAS == 0, "an order of what is sent")?;
        need(tx.comp_order == 0, "an order of completions")?;
        need(tx.inject_size <= INJECT_BYTES_MAX, "the length of what is injected")?;
        need(tx.size <= OUTSTANDING_MAX, "the number of messages outstanding")?;
        need(tx.iov_limit <= PARTS_MAX, "the number of a message's parts")?;
    }
    if let Some(rx) = wanted.rx {
        need(rx.caps & !(RECEIVE | capabilities(version)) == 0, "a capability to receive")?;
        need(rx.op_flags & !COMPLETION_FLAGS == 0, "a flag of what is received")?;
        need(rx.msg_order & !FI_ORDER_SAS == 0, "an order of what is received")?;
        need(rx.comp_order == 0, "an order of completions")?;
        need(rx.size <= OUTSTANDING_MAX, "the number of receives outstanding")?;
        need(rx.iov_limit <= PARTS_MAX, "the number of a buffer's parts")?;
    }
    Ok(())
}

/// What kind of endpoint. Providers that want to be layered over ours ask for the other kinds.
fn check_endpoint(ep: &EpAttr) -> Result<(), &'static str> {
    need(matches!(ep.r#type, FI_EP_UNSPEC | FI_EP_RDM), "a kind of endpoint other than RDM")?;
    need(matches!(ep.protocol, 0 | PROTOCOL), "a protocol")?;
    need(ep.protocol_version <= 1, "a version of the protocol")?;
    need(ep.max_msg_size <= MESSAGE_BYTES_MAX, "the length of a message")?;
    need(ep.tx_ctx_cnt <= 1 && ep.rx_ctx_cnt <= 1, "endpoints with several contexts")?;
    need(ep.auth_key_size == 0, "a key: the environment has it")
}

fn check_domain(attr: &DomainAttr) -> Result<(), &'static str> {
    let progress = [FI_PROGRESS_UNSPEC, FI_PROGRESS_MANUAL, PROGRESS_CONTROL_UNIFIED];
    need(attr.threading <= FI_THREAD_ENDPOINT, "a threading model")?;
    need(progress.contains(&attr.control_progress), "progress without calls")?;
    need(progress.contains(&attr.data_progress), "progress without calls")?;
    need(attr.av_type <= crate::abi::FI_AV_TABLE, "a kind of address vector")?;
    need(attr.cq_data_size <= DATA_BYTES, "the length of a message's data")?;
    need(attr.caps & !offer::DOMAIN == 0, "a capability of the domain")?;
    need(
        attr.cntr_cnt <= COUNT_MAX && attr.mr_cnt <= COUNT_MAX,
        "a number of counters or regions",
    )?;
    need(attr.max_err_data == 0, "data of errors")?;
    need(attr.auth_key_size == 0, "a key: the environment has it")
}

fn need(given: bool, what: &'static str) -> Result<(), &'static str> {
    if given { Ok(()) } else { Err(what) }
}

/// Whether a name is ours, or none.
///
/// # Safety
/// It is null or a text of C's.
unsafe fn same(name: *const c_char, ours: &CStr) -> bool {
    // SAFETY: the caller's.
    name.is_null() || unsafe { CStr::from_ptr(name) } == ours
}
