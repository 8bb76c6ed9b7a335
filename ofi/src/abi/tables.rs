//! Tables of calls. What is not offered is refused by a call that says so, never by a hole: most
//! of the library's inline functions look at nothing before they call.

use super::MsgRma;
use super::calls::*;
use super::layout;
use super::{FI_ENOSYS, FI_EOPNOTSUPP};
use crate::{cq, eq};

/// There is no such call here.
pub(crate) extern "C" fn no_call() -> isize {
    -(FI_ENOSYS as isize)
}

/// There is no such thing here (writes to remote memory, atomics).
pub(crate) extern "C" fn not_offered() -> isize {
    -(FI_EOPNOTSUPP as isize)
}

layout! {
    #[derive(Debug)]
    FidOps = "fi_ops", 56 {
        size @ 0: usize,
        close @ 8: Close,
        bind @ 16: Bind,
        control @ 24: ControlCall,
        ops_open @ 32: Refuse,
        tostr @ 40: Refuse,
        ops_set @ 48: Refuse,
    }
}

layout! {
    FabricOps = "fi_ops_fabric", 56 {
        size @ 0: usize,
        domain @ 8: OpenDomain,
        passive_ep @ 16: Refuse,
        eq_open @ 24: OpenEq,
        wait_open @ 32: Refuse,
        trywait @ 40: TryWait,
        domain2 @ 48: OpenDomain2,
    }
}

layout! {
    DomainOps = "fi_ops_domain", 104 {
        size @ 0: usize,
        av_open @ 8: OpenAv,
        cq_open @ 16: OpenCq,
        endpoint @ 24: OpenEndpoint,
        scalable_ep @ 32: Refuse,
        cntr_open @ 40: OpenCntr,
        poll_open @ 48: Refuse,
        stx_ctx @ 56: Refuse,
        srx_ctx @ 64: Refuse,
        query_atomic @ 72: Refuse,
        query_collective @ 80: Refuse,
        endpoint2 @ 88: OpenEndpoint2,
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
    AvOps = "fi_ops_av", 96 {
        size @ 0: usize,
        insert @ 8: AvInsert,
        insertsvc @ 16: Refuse,
        insertsym @ 24: Refuse,
        remove @ 32: AvRemove,
        lookup @ 40: AvLookup,
        straddr @ 48: AvName,
        av_set @ 56: Refuse,
    } later {
        insert_auth_key @ 64: Refuse,
        lookup_auth_key @ 72: Refuse,
        set_user_id @ 80: Refuse,
        lookup2 @ 88: Refuse,
    }
}

layout! {
    CqOps = "fi_ops_cq", 72 {
        size @ 0: usize,
        read @ 8: CqRead,
        readfrom @ 16: CqReadFrom,
        readerr @ 24: CqReadErr,
        sread @ 32: CqWait,
        sreadfrom @ 40: CqWaitFrom,
        signal @ 48: CqSignal,
        strerror @ 56: StrError<cq::QueueObject>,
    } later {
        export_xpu @ 64: Refuse,
    }
}

layout! {
    CntrOps = "fi_ops_cntr", 72 {
        size @ 0: usize,
        read @ 8: CntrRead,
        readerr @ 16: CntrRead,
        add @ 24: CntrSet,
        set @ 32: CntrSet,
        wait @ 40: CntrWait,
        adderr @ 48: CntrSet,
        seterr @ 56: CntrSet,
    } later {
        export_xpu @ 64: Refuse,
    }
}

layout! {
    EqOps = "fi_ops_eq", 48 {
        size @ 0: usize,
        read @ 8: EqRead<eq::EventQueueObject>,
        readerr @ 16: Refuse,
        write @ 24: Refuse,
        sread @ 32: EqWait<eq::EventQueueObject>,
        strerror @ 40: StrError<eq::EventQueueObject>,
    }
}

layout! {
    EpOps = "fi_ops_ep", 72 {
        size @ 0: usize,
        cancel @ 8: Cancel,
        getopt @ 16: GetOpt,
        setopt @ 24: SetOpt,
        tx_ctx @ 32: Refuse,
        rx_ctx @ 40: Refuse,
        rx_size_left @ 48: Refuse,
        tx_size_left @ 56: Refuse,
    } later {
        export_xpu @ 64: Refuse,
    }
}

layout! {
    CmOps = "fi_ops_cm", 80 {
        size @ 0: usize,
        setname @ 8: Refuse,
        getname @ 16: GetName,
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
    MsgOps = "fi_ops_msg", 80 {
        size @ 0: usize,
        recv @ 8: Recv,
        recvv @ 16: RecvParts,
        recvmsg @ 24: UntaggedMsg,
        send @ 32: Send,
        sendv @ 40: RecvParts,
        sendmsg @ 48: UntaggedMsg,
        inject @ 56: Inject,
        senddata @ 64: SendData,
        injectdata @ 72: InjectWith,
    }
}

layout! {
    TaggedOps = "fi_ops_tagged", 80 {
        size @ 0: usize,
        recv @ 8: TaggedRecv,
        recvv @ 16: TaggedRecvParts,
        recvmsg @ 24: TaggedMsg,
        send @ 32: TaggedSend,
        sendv @ 40: TaggedSendParts,
        sendmsg @ 48: TaggedMsg,
        inject @ 56: InjectWith,
        senddata @ 64: TaggedSendData,
        injectdata @ 72: TaggedInjectData,
    }
}

layout! {
    /// Remote memory: only reads.
    RmaOps = "fi_ops_rma", 80 {
        size @ 0: usize,
        read @ 8: RmaRead,
        readv @ 16: RmaReadParts,
        readmsg @ 24: ByMsg<MsgRma>,
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
