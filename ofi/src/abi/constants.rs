//! libfabric's constants.

/// Defines constants, and for the tests a list of them.
macro_rules! constants {
    ($($(#[$meta:meta])* $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[$meta])* pub(crate) const $name: $kind = $value;)*

        /// Every constant's name in C and its value.
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

/// A version as libfabric packs it.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The provider's own form of addresses: the highest bit says that it is one, and two letters
/// ("vr") name it.
pub(crate) const ADDRESS_FORMAT: u32 = 1 << 31 | 0x7672;
/// The endpoint protocol, likewise the provider's own.
pub(crate) const PROTOCOL: u32 = 1 << 31 | 0x7672;
/// The format of tags: all 64 bits are the program's. libfabric's own providers have the same
/// value.
pub(crate) const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The capability of directed receives of tagged messages alone. 2.x has given the bit this name.
pub(crate) const TAGGED_DIRECTED_RECV: u64 = 1 << 45;
/// The first release that has it. In older releases the bit may mean something else.
pub(crate) const TAGGED_DIRECTED_RECV_SINCE: u32 = version(2, 0);
/// Control operations make progress with data operations. A name of 2.x.
pub(crate) const PROGRESS_CONTROL_UNIFIED: u32 = 3;
/// Another process broke the rules. A name of 2.x for the system's number.
pub(crate) const FI_EPROTO: i32 = libc::EPROTO;
/// Counters that count bytes. A name of 2.x.
pub(crate) const CNTR_EVENTS_BYTES: u32 = 1;

constants! {
    // Capabilities.
    FI_MSG: u64 = 1 << 1;
    FI_RMA: u64 = 1 << 2;
    FI_TAGGED: u64 = 1 << 3;
    FI_READ: u64 = 1 << 8;
    FI_RECV: u64 = 1 << 10;
    FI_SEND: u64 = 1 << 11;
    FI_REMOTE_READ: u64 = 1 << 12;
    FI_MULTI_RECV: u64 = 1 << 16;
    FI_LOCAL_COMM: u64 = 1 << 51;
    FI_REMOTE_COMM: u64 = 1 << 52;
    FI_SOURCE: u64 = 1 << 57;
    FI_DIRECTED_RECV: u64 = 1 << 59;

    // Flags of a call.
    FI_REMOTE_CQ_DATA: u64 = 1 << 17;
    FI_MORE: u64 = 1 << 18;
    FI_PEEK: u64 = 1 << 19;
    FI_COMPLETION: u64 = 1 << 24;
    FI_INJECT: u64 = 1 << 25;
    FI_INJECT_COMPLETE: u64 = 1 << 26;
    FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_MATCH_COMPLETE: u64 = 1 << 31;
    FI_DISCARD: u64 = 1 << 58;
    FI_CLAIM: u64 = 1 << 59;
    FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
    FI_SYNC_ERR: u64 = 1 << 58;
    FI_EVENT: u64 = 1 << 24;

    FI_ORDER_SAS: u64 = 1 << 8;
    FI_ADDR_UNSPEC: u64 = u64::MAX;
    FI_ADDR_NOTAVAIL: u64 = u64::MAX;

    // Enumerations.
    FI_AV_UNSPEC: u32 = 0;
    FI_AV_MAP: u32 = 1;
    FI_AV_TABLE: u32 = 2;
    FI_MR_BASIC: i32 = 1;
    FI_MR_SCALABLE: i32 = 2;
    FI_PROGRESS_UNSPEC: u32 = 0;
    FI_PROGRESS_MANUAL: u32 = 2;
    FI_THREAD_UNSPEC: u32 = 0;
    FI_THREAD_SAFE: u32 = 1;
    FI_THREAD_DOMAIN: u32 = 3;
    FI_THREAD_ENDPOINT: u32 = 5;
    FI_RM_ENABLED: u32 = 2;
    FI_EP_UNSPEC: u32 = 0;
    FI_EP_RDM: u32 = 3;
    FI_CQ_FORMAT_UNSPEC: u32 = 0;
    FI_CQ_FORMAT_CONTEXT: u32 = 1;
    FI_CQ_FORMAT_MSG: u32 = 2;
    FI_CQ_FORMAT_DATA: u32 = 3;
    FI_CQ_FORMAT_TAGGED: u32 = 4;
    FI_WAIT_NONE: u32 = 0;
    FI_WAIT_UNSPEC: u32 = 1;
    FI_WAIT_SET: u32 = 2;
    FI_WAIT_FD: u32 = 3;
    FI_WAIT_MUTEX_COND: u32 = 4;
    FI_WAIT_YIELD: u32 = 5;
    FI_WAIT_POLLFD: u32 = 6;
    FI_CNTR_EVENTS_COMP: u32 = 0;
    FI_HMEM_SYSTEM: u32 = 0;

    FI_CLASS_FABRIC: usize = 1;
    FI_CLASS_DOMAIN: usize = 2;
    FI_CLASS_EP: usize = 3;
    FI_CLASS_AV: usize = 11;
    FI_CLASS_MR: usize = 12;
    FI_CLASS_EQ: usize = 13;
    FI_CLASS_CQ: usize = 14;
    FI_CLASS_CNTR: usize = 15;

    FI_GETOPSFLAG: i32 = 2;
    FI_SETOPSFLAG: i32 = 3;
    FI_GETWAIT: i32 = 5;
    FI_ENABLE: i32 = 6;
    FI_GETWAITOBJ: i32 = 16;

    FI_OPT_ENDPOINT: i32 = 0;
    FI_OPT_MIN_MULTI_RECV: i32 = 0;
    FI_OPT_CM_DATA_SIZE: i32 = 1;

    // Errors. A call returns them as negative numbers.
    FI_EIO: i32 = 5;
    FI_EAGAIN: i32 = 11;
    FI_ENOMEM: i32 = 12;
    FI_EACCES: i32 = 13;
    FI_EBUSY: i32 = 16;
    FI_EINVAL: i32 = 22;
    FI_ENOENT: i32 = 2;
    FI_ENOSYS: i32 = 38;
    FI_ENOMSG: i32 = 42;
    FI_ENODATA: i32 = 61;
    FI_EMSGSIZE: i32 = 90;
    FI_ENOPROTOOPT: i32 = 92;
    FI_EOPNOTSUPP: i32 = 95;
    FI_ECONNRESET: i32 = 104;
    FI_ETIMEDOUT: i32 = 110;
    FI_EHOSTUNREACH: i32 = 113;
    FI_ECANCELED: i32 = 125;
    FI_ETOOSMALL: i32 = 257;
    FI_EOPBADSTATE: i32 = 258;
    FI_EAVAIL: i32 = 259;
    FI_EBADFLAGS: i32 = 260;
    FI_ENOCQ: i32 = 263;
    FI_ETRUNC: i32 = 265;
    FI_ENOKEY: i32 = 266;
    FI_ENOAV: i32 = 267;
}
