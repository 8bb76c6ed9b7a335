use super::*;
use crate::abi::{
    FI_AV_MAP, FI_AV_TABLE, FI_COMPLETION, FI_DIRECTED_RECV, FI_LOCAL_COMM, FI_MR_SCALABLE, FI_MSG,
    FI_MULTI_RECV, FI_REMOTE_COMM, FI_TAGGED, FI_THREAD_DOMAIN, FI_THREAD_SAFE, version,
};
use std::mem::zeroed;
use std::ptr;

/// Debian's release, and a later one.
const VERSIONS: [u32; 3] = [version(1, 5), version(1, 17), version(2, 5)];
const DOMAIN: &CStr = c"blue";

/// Hints as `fi_allocinfo` makes them: all there, all zero.
struct Hints {
    info: Box<Info>,
    tx: Box<TxAttr>,
    rx: Box<RxAttr>,
    ep: Box<EpAttr>,
    domain: Box<DomainAttr>,
    fabric: Box<FabricAttr>,
}

impl Hints {
    fn new() -> Self {
        // SAFETY: numbers and pointers, all of which can be zero.
        unsafe {
            Self {
                info: Box::new(zeroed()),
                tx: Box::new(zeroed()),
                rx: Box::new(zeroed()),
                ep: Box::new(zeroed()),
                domain: Box::new(zeroed()),
                fabric: Box::new(zeroed()),
            }
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut hints = Self::new();
        change(&mut hints);
        hints
    }

    fn wanted(&self) -> WantedInfo<'_> {
        WantedInfo {
            info: Some(&self.info),
            tx: Some(&self.tx),
            rx: Some(&self.rx),
            ep: Some(&self.ep),
            domain: Some(&self.domain),
            fabric: Some(&self.fabric),
        }
    }

    /// The hint for which they are refused.
    fn refused(&self) -> Option<&'static str> {
        // SAFETY: the names are null or constants of the test.
        unsafe { check(version(1, 17), &self.wanted(), DOMAIN) }.err()
    }
}

/// The offer for hints, looked at and freed.
fn offered(
    version: u32,
    hints: &Hints,
    look: impl FnOnce(&Info, &TxAttr, &RxAttr, &EpAttr, &DomainAttr),
) {
    // SAFETY: the hints are there, and their names as above; an offer is whole, and freed once.
    unsafe {
        check(version, &hints.wanted(), DOMAIN).expect("it is what we offer");
        let info = offer::make(version, &hints.wanted(), DOMAIN).expect("memory");
        let Info { tx_attr, rx_attr, ep_attr, domain_attr, .. } = *info;
        look(&*info, &*tx_attr, &*rx_attr, &*ep_attr, &*domain_attr);
        offer::free(info);
    }
}

/// The hints of Open MPI's `mtl/ofi`, as its trace shows them.
fn open_mpi() -> Hints {
    Hints::with(|hints| {
        hints.info.caps = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
        hints.info.mode = 1 << 59 | 1 << 52;
        hints.ep.r#type = FI_EP_RDM;
        hints.tx.op_flags = FI_COMPLETION;
        hints.tx.msg_order = FI_ORDER_SAS;
        hints.rx.op_flags = FI_COMPLETION;
        hints.rx.msg_order = FI_ORDER_SAS;
        hints.domain.threading = FI_THREAD_DOMAIN;
        hints.domain.av_type = FI_AV_MAP;
    })
}

#[test]
fn the_hints_of_mpi_are_satisfied() {
    for version in VERSIONS {
        offered(version, &open_mpi(), |info, tx, rx, ep, domain| {
            assert_eq!(info.caps & open_mpi().info.caps, open_mpi().info.caps);
            assert_eq!(info.caps & FI_MSG, 0, "not asked for");
            assert_eq!(info.mode, 0, "nothing is asked of the program");
            assert_eq!((tx.op_flags, rx.op_flags), (FI_COMPLETION, FI_COMPLETION));
            assert_eq!((tx.msg_order, rx.msg_order), (FI_ORDER_SAS, FI_ORDER_SAS));
            assert_eq!(ep.r#type, FI_EP_RDM);
            assert!(ep.max_msg_size > 1 << 40, "longer ones would be errors");
            assert_eq!((domain.threading, domain.av_type), (FI_THREAD_DOMAIN, FI_AV_MAP));
            assert!(domain.cq_data_size >= 4);
            // SAFETY: a C string.
            assert_eq!(unsafe { CStr::from_ptr(domain.name) }, DOMAIN);
        });
    }
}

#[test]
fn without_hints_all_is_offered() {
    for version in VERSIONS {
        offered(version, &Hints::new(), |info, _, rx, ep, domain| {
            assert_eq!(info.caps, capabilities(version));
            assert_eq!(rx.caps & FI_MULTI_RECV, FI_MULTI_RECV);
            assert_eq!((ep.tx_ctx_cnt, ep.rx_ctx_cnt), (1, 1));
            assert_eq!(domain.threading, FI_THREAD_SAFE);
            assert_eq!(domain.mr_mode, 0);
        });
    }
    // Intel MPI begins with version 0.0, where there were only two modes.
    offered(0, &Hints::new(), |_, _, _, _, domain| assert_eq!(domain.mr_mode, FI_MR_SCALABLE));
}

#[test]
fn providers_cannot_layer_over_it() {
    const FI_EP_MSG: u32 = 1;
    const FI_EP_DGRAM: u32 = 2;
    for kind in [FI_EP_MSG, FI_EP_DGRAM, 7] {
        let hints = Hints::with(|hints| hints.ep.r#type = kind);
        assert!(hints.refused().is_some_and(|why| why.contains("RDM")), "{kind}");
    }
}

#[test]
fn missing_features_are_not_offered() {
    const FI_RMA: u64 = 1 << 2;
    const FI_ATOMIC: u64 = 1 << 4;
    const FI_HMEM: u64 = 1 << 47;
    const FI_MATCH_COMPLETE: u64 = 1 << 31;
    const FI_PROGRESS_AUTO: u32 = 1;
    let refused: [fn(&mut Hints); 16] = [
        |hints| hints.info.caps = FI_TAGGED | FI_RMA,
        |hints| hints.info.caps = FI_ATOMIC,
        |hints| hints.info.caps = FI_HMEM | FI_MSG,
        |hints| hints.info.addr_format = 1,
        |hints| hints.tx.caps = FI_RMA,
        |hints| hints.tx.op_flags = FI_MATCH_COMPLETE,
        |hints| hints.tx.msg_order = 0x1ff,
        |hints| hints.tx.inject_size = INJECT_BYTES_MAX + 1,
        |hints| hints.tx.iov_limit = PARTS_MAX + 1,
        |hints| hints.rx.msg_order = 1,
        |hints| hints.rx.iov_limit = PARTS_MAX + 1,
        |hints| hints.domain.data_progress = FI_PROGRESS_AUTO,
        |hints| hints.domain.av_type = FI_AV_TABLE + 1,
        |hints| hints.domain.name = c"red".as_ptr().cast_mut(),
        |hints| hints.fabric.name = c"tcp".as_ptr().cast_mut(),
        |hints| hints.ep.rx_ctx_cnt = usize::MAX,
    ];
    for (index, change) in refused.into_iter().enumerate() {
        assert!(Hints::with(change).refused().is_some(), "number {index}");
    }
    let same = Hints::with(|hints| {
        hints.domain.name = DOMAIN.as_ptr().cast_mut();
        hints.fabric.name = FABRIC.as_ptr().cast_mut();
    });
    assert_eq!(same.refused(), None);
}

#[test]
fn an_address_in_the_hints_is_in_the_offer() {
    let mut address = [7_u8; ADDRESS_BYTES];
    let hints = Hints::with(|hints| {
        hints.info.dest_addr = address.as_mut_ptr().cast();
        hints.info.dest_addrlen = address.len();
        hints.info.addr_format = ADDRESS_FORMAT;
    });
    offered(version(1, 17), &hints, |info, _, _, _, _| {
        assert_eq!(info.dest_addrlen, ADDRESS_BYTES);
        assert!(
            !ptr::eq(info.dest_addr, address.as_ptr().cast()),
            "a copy, which the program frees"
        );
        // SAFETY: it is so long.
        assert_eq!(unsafe { *info.dest_addr.cast::<[u8; ADDRESS_BYTES]>() }, address);
    });
    let short = Hints::with(|hints| {
        hints.info.dest_addr = address.as_mut_ptr().cast();
        hints.info.dest_addrlen = 4;
    });
    assert!(short.refused().is_some());
}
