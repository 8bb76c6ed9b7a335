//! A domain (`fi_domain`): the membership of a process, and the objects that it opens in it.

mod opened;

pub(crate) use opened::{DomainObject, DomainShared};

use crate::abi::{
    DomainOps, FI_EBUSY, FI_EINVAL, FI_ENODATA, FI_ENOSYS, FI_MR_BASIC, FI_THREAD_DOMAIN, Fid,
    FidDomain, FidOps, Info, no_call, not_offered,
};
use crate::gate::CallGate;
use crate::log::{self, say};
use crate::provider::ProviderObject;
use crate::state::ProviderState;
use crate::{av, cntr, cq, endpoint, mr, object};
use std::ffi::{c_int, c_void};

static FID: FidOps = object::only_close(close);

static OPS: DomainOps<DomainObject> = DomainOps {
    size: size_of::<DomainOps<DomainObject>>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: endpoint::open,
    scalable_ep: no_call,
    cntr_open: cntr::open,
    poll_open: no_call,
    stx_ctx: no_call,
    srx_ctx: no_call,
    query_atomic: not_offered,
    query_collective: not_offered,
    endpoint2,
    xpu_ctx: no_call,
};

/// `fi_domain`: joins the domain that the environment names.
///
/// # Safety
/// An info (or null by mistake), and room for a pointer.
pub(crate) unsafe fn open(
    fabric: &ProviderObject,
    info: *mut Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let Some(info) = (unsafe { info.as_ref() }) else { return -FI_EINVAL };
    // SAFETY: an info's attributes are there or null.
    let attr = unsafe { info.domain_attr.as_ref() };
    let promises = attr.is_some_and(|attr| attr.threading == FI_THREAD_DOMAIN);
    if let Some(refused) = refused_protocol(std::env::var(PROTOCOL_VARIABLE).ok().as_deref()) {
        eprintln!("libvrio-fi.so: {refused}");
        return -FI_ENODATA;
    }
    let domain = match fabric::Domain::from_environment() {
        Ok(domain) => domain,
        Err(error) => {
            // The variables of the environment are set here, since `fi_getinfo` has offered the
            // domain. Without this line MPI would only say that there is no data.
            eprintln!("libvrio-fi.so: {error}");
            return -FI_ENODATA;
        }
    };
    report_load_cost(&domain);
    say!("a domain is open, {}", if promises { "one thread at a time" } else { "with a lock" });
    let shared = DomainShared {
        domain,
        version: fabric.version(),
        has_virtual_addresses: attr.is_some_and(|attr| attr.mr_mode == FI_MR_BASIC),
        state: CallGate::new(ProviderState::new(), promises),
        _fabric: fabric.hold(),
    };
    let domain =
        FidDomain { fid: object::fid::<DomainObject>(context, &FID), ops: &OPS, mr: &mr::OPS };
    // SAFETY: the caller's.
    unsafe { object::hand_out(DomainObject::new(domain, shared), to) }
}

/// The variable that chooses how MPICH sends long messages.
const PROTOCOL_VARIABLE: &str = "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL";

/// Why a value of that variable is refused. MPICH does not look at the provider's offer before it
/// obeys the variable, and would wait for ever.
fn refused_protocol(wanted: Option<&str>) -> Option<String> {
    (wanted == Some("write")).then(|| {
        format!(
            "{PROTOCOL_VARIABLE}=write needs writes to memory of other processes, which are not \
             offered; leave it unset, or set it to read or pipeline"
        )
    })
}

/// Warns of memory that is mapped uncached. Inside of a VM the region is a device's memory, for
/// which that can happen. Then all messages are slow, and the user sees no reason.
fn report_load_cost(domain: &fabric::Domain) {
    let Some(cost_ns) = domain.load_cost_ns() else { return };
    let limit_ns = fabric::LOAD_COST_CACHED_NS_MAX;
    say!("a load of the domain's memory takes {cost_ns:.1} ns");
    if cost_ns > limit_ns && !log::is_silenced() {
        eprintln!(
            "libvrio-fi.so: a load of the domain's memory takes {cost_ns:.0} ns, a cached one \
             less than {limit_ns:.0}: this host maps the VM's device uncached, and messages are \
             slow (docs/mpi.md, \"Processes inside of VMs\"); VRIO_FI_LOG=0 silences this"
        );
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &DomainObject| if object.is_unused() { Ok(()) } else { Err(-FI_EBUSY) };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<DomainObject>(fid, leave) }
}

/// The same with flags, of which none is offered.
unsafe extern "C" fn endpoint2(
    domain: &DomainObject,
    info: *mut Info,
    to: *mut *mut Fid,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_ENOSYS;
    }
    // SAFETY: libfabric's contract, as without flags.
    unsafe { endpoint::open(domain, info, to, context) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_that_needs_writes_is_refused_with_the_way_out() {
        for fine in [None, Some(""), Some("auto"), Some("pipeline"), Some("read"), Some("direct")] {
            assert_eq!(refused_protocol(fine), None);
        }
        assert!(refused_protocol(Some("write")).is_some_and(|it| it.contains("read or pipeline")));
    }
}
