//! The offer, as an info that the program frees.
//!
//! The library frees every part of an info with `free`. When it copies an info, it copies each part
//! at the length that its own version knows. So each part comes from `calloc` and is longer than in
//! any version. libfabric's own allocator is not used: a provider that is linked to one release
//! would get that release's lengths inside of another release.

use super::{COUNT_MAX, DATA_BYTES, MESSAGE_BYTES_MAX, OUTSTANDING, WantedInfo};
use crate::abi::{
    ADDRESS_FORMAT, DomainAttr, EpAttr, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV,
    FI_EP_RDM, FI_INJECT, FI_INJECT_COMPLETE, FI_LOCAL_COMM, FI_MR_BASIC, FI_MR_SCALABLE, FI_MSG,
    FI_MULTI_RECV, FI_ORDER_SAS, FI_PROGRESS_MANUAL, FI_PROGRESS_UNSPEC, FI_RECV, FI_REMOTE_COMM,
    FI_RM_ENABLED, FI_SEND, FI_SOURCE, FI_TAGGED, FI_THREAD_SAFE, FI_THREAD_UNSPEC,
    FI_TRANSMIT_COMPLETE, Info, PROTOCOL, RxAttr, TAG_FORMAT, TAGGED_DIRECTED_RECV,
    TAGGED_DIRECTED_RECV_SINCE, TxAttr, version,
};
use fabric::{ADDRESS_BYTES, INJECT_BYTES_MAX, PARTS_MAX};
use std::ffi::{CStr, c_void};

/// Room for any part of an info, in bytes: twice the longest of 2.6.
const ROOM: usize = 512;
const _: () = assert!(size_of::<DomainAttr>() * 2 <= ROOM);

/// The name of the fabric, which is libfabric's word for a network. Domains are parts of it.
pub(super) const FABRIC: &CStr = c"vrio";

/// The capabilities of a domain.
pub(super) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Primary capabilities: a program gets those that it asks for.
const PRIMARY: u64 = FI_MSG | FI_TAGGED | FI_SEND | FI_RECV;
/// The capabilities of the sending half.
pub(super) const SEND: u64 = FI_MSG | FI_TAGGED | FI_SEND;
/// The capabilities of the receiving half.
pub(super) const RECEIVE: u64 =
    FI_MSG | FI_TAGGED | FI_RECV | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE;
/// Flags that an endpoint's calls may have by default. A completion always means delivery, the most
/// that these flags ask for: the message is in the receiver's ring, in memory that outlives its
/// sender, or in the receiver's buffer. (MPICH asks for that.)
pub(crate) const COMPLETION_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

/// Before this version there were two memory modes, and an offer names one of them.
const MODES_SINCE: u32 = version(1, 5);

/// All capabilities of an endpoint.
pub(crate) fn capabilities(version: u32) -> u64 {
    let newer = if version >= TAGGED_DIRECTED_RECV_SINCE { TAGGED_DIRECTED_RECV } else { 0 };
    SEND | RECEIVE | DOMAIN | newer
}

/// The capabilities that a program gets. It gets primary ones, and directed receives, which cost
/// time, only if it asks for them, and all others always.
fn granted(version: u32, wanted: u64) -> u64 {
    let all = capabilities(version);
    if wanted == 0 {
        return all;
    }
    let on_demand = PRIMARY | FI_DIRECTED_RECV | TAGGED_DIRECTED_RECV;
    let caps = (wanted & all) | (all & !on_demand);
    // A program that names no direction gets both.
    if caps & (FI_SEND | FI_RECV) == 0 { caps | FI_SEND | FI_RECV } else { caps }
}

/// A part of an info: zeroes, longer than any version has it.
fn part<T>() -> Option<*mut T> {
    const { assert!(size_of::<T>() <= ROOM) };
    // SAFETY: `calloc` takes any length.
    let part = unsafe { libc::calloc(1, ROOM) };
    (!part.is_null()).then_some(part.cast())
}

/// A copy that the program frees.
fn copy(bytes: &[u8]) -> Option<*mut c_void> {
    // SAFETY: `calloc` takes any length.
    let room = unsafe { libc::calloc(1, bytes.len().max(1)) };
    if room.is_null() {
        return None;
    }
    // SAFETY: the room is as long, and it was allocated just now.
    unsafe { room.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Some(room)
}

fn text(text: &CStr) -> Option<*mut std::ffi::c_char> {
    copy(text.to_bytes_with_nul()).map(<*mut c_void>::cast)
}

/// Makes the offer. None: there is no memory.
///
/// # Safety
/// The hints' address, if there is one, is as long as ours are.
pub(super) unsafe fn make(
    version: u32,
    wanted: &WantedInfo<'_>,
    domain: &CStr,
) -> Option<*mut Info> {
    let info = part::<Info>()?;
    // SAFETY: `part` has made it of zeroes, which every field of an info can be.
    if unsafe { fill(&mut *info, version, wanted, domain) }.is_none() {
        // SAFETY: it was made above, and the program does not have it.
        unsafe { free(info) };
        return None;
    }
    Some(info)
}

/// Fills the offer. None: there is no memory.
///
/// # Safety
/// As for [`make`].
unsafe fn fill(
    info: &mut Info,
    version: u32,
    wanted: &WantedInfo<'_>,
    domain: &CStr,
) -> Option<()> {
    info.caps = granted(version, wanted.info.map_or(0, |info| info.caps));
    info.addr_format = ADDRESS_FORMAT;
    if let Some(hints) = wanted.info.filter(|hints| !hints.dest_addr.is_null()) {
        // SAFETY: the caller's.
        let address = unsafe { &*hints.dest_addr.cast::<[u8; ADDRESS_BYTES]>() };
        info.dest_addr = copy(address)?;
        info.dest_addrlen = address.len();
    }
    info.tx_attr = part()?;
    info.rx_attr = part()?;
    info.ep_attr = part()?;
    info.domain_attr = part()?;
    info.fabric_attr = part()?;
    // SAFETY: `part` has made each of them of zeroes, which every field can be.
    unsafe {
        fill_tx(&mut *info.tx_attr, info.caps, wanted.tx);
        fill_rx(&mut *info.rx_attr, info.caps, wanted.rx);
        fill_ep(&mut *info.ep_attr, wanted.ep);
        fill_domain(&mut *info.domain_attr, version, wanted.domain);
        (*info.domain_attr).name = text(domain)?;
        (*info.fabric_attr).name = text(FABRIC)?;
    }
    Some(())
}

fn fill_tx(tx: &mut TxAttr, caps: u64, wanted: Option<&TxAttr>) {
    tx.caps = caps & SEND;
    tx.msg_order = FI_ORDER_SAS;
    tx.inject_size = INJECT_BYTES_MAX;
    tx.size = OUTSTANDING;
    tx.iov_limit = PARTS_MAX;
    if let Some(wanted) = wanted {
        tx.op_flags = wanted.op_flags;
        tx.size = if wanted.size == 0 { OUTSTANDING } else { wanted.size };
    }
}

fn fill_rx(rx: &mut RxAttr, caps: u64, wanted: Option<&RxAttr>) {
    rx.caps = caps & (RECEIVE | TAGGED_DIRECTED_RECV);
    rx.msg_order = FI_ORDER_SAS;
    rx.size = OUTSTANDING;
    rx.iov_limit = PARTS_MAX;
    if let Some(wanted) = wanted {
        rx.op_flags = wanted.op_flags;
        rx.size = if wanted.size == 0 { OUTSTANDING } else { wanted.size };
        // Memory is the only bound.
        rx.total_buffered_recv = wanted.total_buffered_recv;
    }
}

fn fill_ep(ep: &mut EpAttr, wanted: Option<&EpAttr>) {
    ep.r#type = FI_EP_RDM;
    ep.protocol = PROTOCOL;
    ep.protocol_version = 1;
    ep.max_msg_size = MESSAGE_BYTES_MAX;
    ep.mem_tag_format = TAG_FORMAT;
    ep.tx_ctx_cnt = wanted.map_or(1, |ep| ep.tx_ctx_cnt.max(1));
    ep.rx_ctx_cnt = wanted.map_or(1, |ep| ep.rx_ctx_cnt.max(1));
}

fn fill_domain(attr: &mut DomainAttr, version: u32, wanted: Option<&DomainAttr>) {
    let asked = |field: fn(&DomainAttr) -> u32, none, otherwise| match wanted.map(field) {
        Some(asked) if asked != none => asked,
        _ => otherwise,
    };
    attr.threading = asked(|attr| attr.threading, FI_THREAD_UNSPEC, FI_THREAD_SAFE);
    let manual = FI_PROGRESS_MANUAL;
    attr.control_progress = asked(|attr| attr.control_progress, FI_PROGRESS_UNSPEC, manual);
    attr.data_progress = asked(|attr| attr.data_progress, FI_PROGRESS_UNSPEC, manual);
    attr.resource_mgmt = FI_RM_ENABLED;
    // Both kinds are offered, so the program keeps its choice.
    attr.av_type = wanted.map_or(0, |attr| attr.av_type);
    let modes = wanted.map_or(0, |attr| attr.mr_mode) & (FI_MR_BASIC | FI_MR_SCALABLE);
    attr.mr_mode = match modes {
        0 if version < MODES_SINCE => FI_MR_SCALABLE,
        modes => modes,
    };
    attr.mr_key_size = size_of::<u64>();
    attr.cq_data_size = DATA_BYTES;
    attr.cq_cnt = COUNT_MAX;
    attr.ep_cnt = COUNT_MAX;
    attr.tx_ctx_cnt = COUNT_MAX;
    attr.rx_ctx_cnt = COUNT_MAX;
    attr.max_ep_tx_ctx = 1;
    attr.max_ep_rx_ctx = 1;
    attr.cntr_cnt = COUNT_MAX;
    attr.mr_iov_limit = PARTS_MAX;
    attr.caps = DOMAIN;
    attr.mr_cnt = COUNT_MAX;
    // Fields of 2.x, which older versions do not read.
    attr.max_cntr_value = u64::MAX;
    attr.max_err_cntr_value = u64::MAX;
}

/// Frees an offer that the program did not get.
///
/// # Safety
/// [`make`] has made it, and it is not used any more.
pub(super) unsafe fn free(info: *mut Info) {
    // SAFETY: the caller's; a part that is not there is null, which `free` takes.
    unsafe {
        let Info { dest_addr, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, .. } = *info;
        if let Some(attr) = domain_attr.as_ref() {
            libc::free(attr.name.cast());
        }
        if let Some(attr) = fabric_attr.as_ref() {
            libc::free(attr.name.cast());
        }
        libc::free(dest_addr);
        libc::free(tx_attr.cast());
        libc::free(rx_attr.cast());
        libc::free(ep_attr.cast());
        libc::free(domain_attr.cast());
        libc::free(fabric_attr.cast());
        libc::free(info.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_beyond_the_wanted_ones_are_given_where_they_cost_nothing() {
        let tagged = granted(version(1, 5), FI_TAGGED);
        assert_eq!(tagged & (FI_MSG | FI_TAGGED), FI_TAGGED);
        assert_eq!(tagged & FI_DIRECTED_RECV, 0, "directed receives cost time");
        assert_eq!(tagged & (FI_SEND | FI_RECV | DOMAIN), FI_SEND | FI_RECV | DOMAIN);
        let sends = granted(version(1, 5), FI_MSG | FI_SEND);
        assert_eq!(sends & (FI_SEND | FI_RECV), FI_SEND);
        assert_eq!(granted(version(1, 17), 0) & TAGGED_DIRECTED_RECV, 0);
        assert_eq!(granted(version(2, 5), 0), capabilities(version(2, 5)));
    }
}
