//! Tables of calls. A call that is not offered has a function that refuses it, and not a null
//! pointer: most of the library's inline functions call without a check.

use super::calls::*;
use super::data::{AvAttr, CntrAttr, CqAttr, EqAttr, Msg, MsgRma, MsgTagged};
use super::info::Info;
use super::layout::layout;
use super::refused::Refuse;
use std::ffi::{c_char, c_void};

layout! {
    FabricOps<P> = "fi_ops_fabric", 56 {
        size @ 0: usize,
        domain @ 8: OpenCall<P, Info>,
        passive_ep @ 16: Refuse,
        eq_open @ 24: OpenCall<P, EqAttr>,
        wait_open @ 32: Refuse,
        trywait @ 40: TryWait<P>,
        domain2 @ 48: OpenCall2<P>,
    }
}

layout! {
    DomainOps<P> = "fi_ops_domain", 104 {
        size @ 0: usize,
        av_open @ 8: OpenCall<P, AvAttr>,
        cq_open @ 16: OpenCall<P, CqAttr>,
        endpoint @ 24: OpenCall<P, Info>,
        scalable_ep @ 32: Refuse,
        cntr_open @ 40: OpenCall<P, CntrAttr>,
        poll_open @ 48: Refuse,
        stx_ctx @ 56: Refuse,
        srx_ctx @ 64: Refuse,
        query_atomic @ 72: Refuse,
        query_collective @ 80: Refuse,
        endpoint2 @ 88: OpenCall2<P>,
    } later {
        xpu_ctx @ 96: Refuse,
    }
}

layout! {
    MrOps = "fi_ops_mr", 32 {
        size @ 0: usize,
        reg @ 8: Register,
        regv @ 16: RegisterParts,
        regattr @ 24: RegisterBy,
    }
}

layout! {
    AvOps<O> = "fi_ops_av", 96 {
        size @ 0: usize,
        insert @ 8: AvInsert<O>,
        insertsvc @ 16: Refuse,
        insertsym @ 24: Refuse,
        remove @ 32: AvRemove<O>,
        lookup @ 40: AvLookup<O>,
        straddr @ 48: AvName<O>,
        av_set @ 56: Refuse,
    } later {
        insert_auth_key @ 64: Refuse,
        lookup_auth_key @ 72: Refuse,
        set_user_id @ 80: Refuse,
        lookup2 @ 88: Refuse,
    }
}

layout! {
    CqOps<O> = "fi_ops_cq", 72 {
        size @ 0: usize,
        read @ 8: CqRead<O>,
        readfrom @ 16: CqReadFrom<O>,
        readerr @ 24: CqReadErr<O>,
        sread @ 32: CqWait<O>,
        sreadfrom @ 40: CqWaitFrom<O>,
        signal @ 48: CqSignal<O>,
        strerror @ 56: StrError<O>,
    } later {
        export_xpu @ 64: Refuse,
    }
}

layout! {
    CntrOps<O> = "fi_ops_cntr", 72 {
        size @ 0: usize,
        read @ 8: CntrRead<O>,
        readerr @ 16: CntrRead<O>,
        add @ 24: CntrSet<O>,
        set @ 32: CntrSet<O>,
        wait @ 40: CntrWait<O>,
        adderr @ 48: CntrSet<O>,
        seterr @ 56: CntrSet<O>,
    } later {
        export_xpu @ 64: Refuse,
    }
}

layout! {
    EqOps<O> = "fi_ops_eq", 48 {
        size @ 0: usize,
        read @ 8: EqRead<O>,
        readerr @ 16: Refuse,
        write @ 24: Refuse,
        sread @ 32: EqWait<O>,
        strerror @ 40: StrError<O>,
    }
}

layout! {
    EpOps<O> = "fi_ops_ep", 72 {
        size @ 0: usize,
        cancel @ 8: Cancel<O>,
        getopt @ 16: GetOpt<O>,
        setopt @ 24: SetOpt<O>,
        tx_ctx @ 32: Refuse,
        rx_ctx @ 40: Refuse,
        rx_size_left @ 48: Refuse,
        tx_size_left @ 56: Refuse,
    } later {
        export_xpu @ 64: Refuse,
    }
}

layout! {
    CmOps<O> = "fi_ops_cm", 80 {
        size @ 0: usize,
        setname @ 8: Refuse,
        getname @ 16: GetName<O>,
        getpeer @ 24: Refuse,
        connect @ 32: Refuse,
        listen @ 40: Refuse,
        accept @ 48: Refuse,
        reject @ 56: Refuse,
        shutdown @ 64: Refuse,
        join @ 72: Refuse,
    }
}

layout! {
    MsgOps<O> = "fi_ops_msg", 80 {
        size @ 0: usize,
        recv @ 8: Recv<O>,
        recvv @ 16: RecvParts<O>,
        recvmsg @ 24: ByMsg<O, Msg>,
        send @ 32: Send<O>,
        sendv @ 40: RecvParts<O>,
        sendmsg @ 48: ByMsg<O, Msg>,
        inject @ 56: Inject<O>,
        senddata @ 64: SendData<O>,
        injectdata @ 72: InjectWith<O>,
    }
}

layout! {
    TaggedOps<O> = "fi_ops_tagged", 80 {
        size @ 0: usize,
        recv @ 8: TaggedRecv<O>,
        recvv @ 16: TaggedRecvParts<O>,
        recvmsg @ 24: ByMsg<O, MsgTagged>,
        send @ 32: TaggedSend<O>,
        sendv @ 40: TaggedSendParts<O>,
        sendmsg @ 48: ByMsg<O, MsgTagged>,
        inject @ 56: InjectWith<O>,
        senddata @ 64: TaggedSendData<O>,
        injectdata @ 72: TaggedInjectData<O>,
    }
}

layout! {
    /// Operations on remote memory. Only reads are offered.
    RmaOps<O> = "fi_ops_rma", 80 {
        size @ 0: usize,
        read @ 8: RmaRead<O>,
        readv @ 16: RmaReadParts<O>,
        readmsg @ 24: ByMsg<O, MsgRma>,
        write @ 32: Refuse,
        writev @ 40: Refuse,
        writemsg @ 48: Refuse,
        inject @ 56: Refuse,
        writedata @ 64: Refuse,
        injectdata @ 72: Refuse,
    }
}

layout! {
    /// Atomics on remote memory: not offered.
    AtomicOps = "fi_ops_atomic", 112 {
        size @ 0: usize,
        write @ 8: Refuse,
        writev @ 16: Refuse,
        writemsg @ 24: Refuse,
        inject @ 32: Refuse,
        readwrite @ 40: Refuse,
        readwritev @ 48: Refuse,
        readwritemsg @ 56: Refuse,
        compwrite @ 64: Refuse,
        compwritev @ 72: Refuse,
        compwritemsg @ 80: Refuse,
        writevalid @ 88: Refuse,
        readwritevalid @ 96: Refuse,
        compwritevalid @ 104: Refuse,
    }
}

layout! {
    /// Collective operations by the provider: not offered, MPI makes them of messages.
    CollectiveOps = "fi_ops_collective", 96 {
        size @ 0: usize,
        barrier @ 8: Refuse,
        broadcast @ 16: Refuse,
        alltoall @ 24: Refuse,
        allreduce @ 32: Refuse,
        allgather @ 40: Refuse,
        reduce_scatter @ 48: Refuse,
        reduce @ 56: Refuse,
        scatter @ 64: Refuse,
        gather @ 72: Refuse,
        msg @ 80: Refuse,
        barrier2 @ 88: Refuse,
    }
}

layout! {
    /// A provider, as it describes itself to the library.
    Provider = "fi_provider", 72 {
        version @ 0: u32,
        fi_version @ 4: u32,
        /// For the library's own use.
        context @ 8: [*mut c_void; 4],
        name @ 40: *const c_char,
        getinfo @ 48: GetInfo,
        fabric @ 56: OpenFabric,
        cleanup @ 64: extern "C" fn(),
    }
}
