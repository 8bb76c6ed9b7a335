//! The steps of a start: the messages to a back end, in QEMU's order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::disk::{BLK_KNOWN, CONFIG_BYTES, DiskInfo, feature, has, mask, protocol};
use super::error::FrontEndError;
use super::front_end::{Events, UsedFeatures};
use super::guest::GuestPlan;
use super::layout::QueueLayout;
use super::log::DirtyPages;
use super::memory::{GuestMemory, GuestRegion};
use super::message::{Ask, Conversation, DESCRIPTORS_MAX, MessageBody};

/// The agreement of front and back end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Negotiated {
    pub(super) features: u64,
    pub(super) protocol: u64,
    pub(super) disk: DiskInfo,
    offered: u64,
}

impl Negotiated {
    /// The agreement after a reconnect: a running guest cannot be told of other features.
    pub(super) fn resume(self, before: &Self) -> Result<Self, FrontEndError> {
        if before.features == 0 {
            return Ok(self);
        }
        match before.features & !self.offered {
            0 => Ok(Self { features: before.features, ..self }),
            lost => Err(FrontEndError::FeaturesLost(lost)),
        }
    }
}

/// The region in which a back end notes what it works on.
#[derive(Debug)]
pub(super) struct Inflight {
    pub(super) file: OwnedFd,
    mmap_size: u64,
    mmap_offset: u64,
    queues: u16,
    size: u16,
}

impl Inflight {
    fn body(&self) -> MessageBody {
        let body = MessageBody::default().u64(self.mmap_size).u64(self.mmap_offset);
        body.u16(self.queues).u16(self.size).zeroes(4)
    }
}

/// Finds out what the back end offers and settles what to use.
pub(super) fn negotiate(
    conversation: &mut Conversation,
    wanted: &UsedFeatures,
    queues: u16,
) -> Result<Negotiated, FrontEndError> {
    let none = MessageBody::default();
    let offered = conversation.ask(Ask::GetFeatures, &none)?.number()?;
    for (bit, name) in
        [(feature::VERSION_1, "VERSION_1"), (feature::PROTOCOL_FEATURES, "PROTOCOL_FEATURES")]
    {
        if !has(offered, bit) {
            return Err(FrontEndError::Missing(name));
        }
    }
    let offered_protocol = conversation.ask(Ask::GetProtocolFeatures, &none)?.number()?;
    let protocol = offered_protocol & wanted_protocol(wanted);
    if !has(protocol, protocol::CONFIG) {
        return Err(FrontEndError::Missing("the config space (CONFIG)"));
    }
    conversation.tell(Ask::SetProtocolFeatures, &MessageBody::default().u64(protocol), &[])?;
    conversation.acknowledged = has(protocol, protocol::REPLY_ACK);
    let queues_offered = if has(protocol, protocol::MQ) {
        conversation.ask(Ask::GetQueueNum, &none)?.number()?
    } else {
        1
    };
    if u64::from(queues) > queues_offered {
        return Err(FrontEndError::QueuesMissing { wanted: queues, offered: queues_offered });
    }
    conversation.tell(Ask::SetOwner, &none, &[])?;
    let disk = get_config(conversation, offered)?;
    let features = offered & wanted_features(wanted);
    Ok(Negotiated { features, protocol, disk, offered })
}

fn wanted_protocol(wanted: &UsedFeatures) -> u64 {
    let optional = |wanted, bit| if wanted { mask(bit) } else { 0 };
    mask(protocol::MQ)
        | mask(protocol::CONFIG)
        | optional(wanted.acknowledged, protocol::REPLY_ACK)
        | optional(wanted.back_channel, protocol::BACKEND_REQ)
        | optional(wanted.inflight, protocol::INFLIGHT_SHMFD)
        | optional(wanted.memory_slots, protocol::CONFIGURE_MEM_SLOTS)
        | optional(wanted.log, protocol::LOG_SHMFD)
}

fn wanted_features(wanted: &UsedFeatures) -> u64 {
    let optional = |wanted, bit| if wanted { mask(bit) } else { 0 };
    mask(feature::VERSION_1)
        | mask(feature::PROTOCOL_FEATURES)
        | (BLK_KNOWN & !mask(feature::BLK_FLUSH))
        | optional(wanted.flush, feature::BLK_FLUSH)
        | optional(wanted.event_idx, feature::EVENT_IDX)
        | optional(wanted.indirect, feature::INDIRECT_DESC)
        | optional(wanted.packed, feature::RING_PACKED)
}

/// The present contents of the configuration space.
pub(super) fn get_config(
    conversation: &Conversation,
    features: u64,
) -> Result<DiskInfo, FrontEndError> {
    let body = MessageBody::default().u32(0).u32(CONFIG_BYTES).u32(0).zeroes(CONFIG_BYTES as usize);
    let answer = conversation.ask(Ask::GetConfig, &body)?;
    let bad = |why| FrontEndError::BadAnswer { ask: Ask::GetConfig.name(), why };
    if answer.u32_at(4)? != CONFIG_BYTES {
        return Err(bad("it has another size than asked for"));
    }
    let config = answer.body.get(12..12 + CONFIG_BYTES as usize).ok_or(bad("it is too short"))?;
    Ok(DiskInfo::read(config, features))
}

/// Tells the features in use.
pub(super) fn set_features(
    conversation: &Conversation,
    features: u64,
) -> Result<(), FrontEndError> {
    conversation.tell(Ask::SetFeatures, &MessageBody::default().u64(features), &[])
}

/// Hands one end of a back-channel over, and gives the other.
pub(super) fn set_back_channel(conversation: &Conversation) -> Result<OwnedFd, FrontEndError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.map_err(|errno| FrontEndError::Memory(errno.into()))?;
    conversation.tell(Ask::SetBackendReqFd, &MessageBody::default(), &[theirs.as_fd()])?;
    Ok(ours)
}

/// Asks for a new inflight region.
pub(super) fn get_inflight(
    conversation: &Conversation,
    plan: &GuestPlan,
) -> Result<Inflight, FrontEndError> {
    let (queues, size) = (plan.queues, plan.shape.size);
    let body = MessageBody::default().u64(0).u64(0).u16(queues).u16(size).zeroes(4);
    let mut answer = conversation.ask(Ask::GetInflightFd, &body)?;
    let (mmap_size, mmap_offset) = (answer.u64_at(0)?, answer.u64_at(8)?);
    let bad = |why| FrontEndError::BadAnswer { ask: Ask::GetInflightFd.name(), why };
    if mmap_size == 0 || answer.u16_at(16)? != queues || answer.u16_at(18)? != size {
        return Err(bad("the region is not for these queues"));
    }
    let file = answer.descriptors.pop().ok_or(bad("it carries no descriptor"))?;
    Ok(Inflight { file, mmap_size, mmap_offset, queues, size })
}

/// Hands the inflight region over.
pub(super) fn set_inflight(
    conversation: &Conversation,
    inflight: &Inflight,
) -> Result<(), FrontEndError> {
    conversation.tell(Ask::SetInflightFd, &inflight.body(), &[inflight.file.as_fd()])
}

/// Hands all memory over, region by region where the back end can, else as a table.
pub(super) fn set_memory<'a>(
    conversation: &Conversation,
    protocol_features: u64,
    memories: impl Iterator<Item = &'a Arc<GuestMemory>>,
) -> Result<(), FrontEndError> {
    if has(protocol_features, protocol::CONFIGURE_MEM_SLOTS) {
        let slots = conversation.ask(Ask::GetMaxMemSlots, &MessageBody::default())?.number()?;
        let mut regions = 0;
        for memory in memories {
            regions += memory.regions().len() as u64;
            if regions > slots {
                return Err(FrontEndError::Missing("enough slots for the guest's memory"));
            }
            add_memory(conversation, memory)?;
        }
        return Ok(());
    }
    let mut table = MessageBody::default();
    let mut files = Vec::new();
    for memory in memories {
        for region in memory.regions() {
            table = put_region(table, region);
            files.push(file(memory)?);
        }
    }
    if files.len() > DESCRIPTORS_MAX {
        return Err(FrontEndError::Missing("a table for so many regions (CONFIGURE_MEM_SLOTS)"));
    }
    let body = MessageBody::default().u32(files.len() as u32).u32(0).append(table);
    conversation.tell(Ask::SetMemTable, &body, &files)
}

/// Adds regions to what the back end has.
pub(super) fn add_memory(
    conversation: &Conversation,
    memory: &GuestMemory,
) -> Result<(), FrontEndError> {
    memory.regions().iter().try_for_each(|region| {
        let body = put_region(MessageBody::default().u64(0), region);
        conversation.tell(Ask::AddMemReg, &body, &[file(memory)?])
    })
}

/// Takes regions away from the back end.
pub(super) fn remove_memory(
    conversation: &Conversation,
    memory: &GuestMemory,
) -> Result<(), FrontEndError> {
    memory.regions().iter().try_for_each(|region| {
        let body = put_region(MessageBody::default().u64(0), region);
        conversation.tell(Ask::RemMemReg, &body, &[])
    })
}

fn file(memory: &GuestMemory) -> Result<std::os::fd::BorrowedFd<'_>, FrontEndError> {
    memory.file().ok_or_else(|| {
        FrontEndError::Memory(std::io::Error::other("anonymous memory cannot be handed over"))
    })
}

fn put_region(body: MessageBody, region: &GuestRegion) -> MessageBody {
    let body = body.u64(region.guest_address).u64(region.len);
    body.u64(region.host_address).u64(region.file_offset)
}

/// Describes a ring and says where to start in it.
pub(super) fn set_ring(
    conversation: &Conversation,
    memory: &GuestMemory,
    layout: &QueueLayout,
    base: u32,
    events: &Events,
    logged: bool,
) -> Result<(), FrontEndError> {
    let index = layout.index;
    let size = MessageBody::ring(index, layout.shape.size.into());
    conversation.tell(Ask::SetVringNum, &size, &[])?;
    conversation.tell(Ask::SetVringBase, &MessageBody::ring(index, base), &[])?;
    set_addresses(conversation, memory, layout, logged)?;
    let number = || MessageBody::default().u64(index.into());
    conversation.tell(Ask::SetVringErr, &number(), &[events.err.as_fd()])?;
    conversation.tell(Ask::SetVringKick, &number(), &[events.kick.as_fd()])?;
    conversation.tell(Ask::SetVringCall, &number(), &[events.call.as_fd()])
}

/// Says where a ring is, and whether writes to it must be marked.
pub(super) fn set_addresses(
    conversation: &Conversation,
    memory: &GuestMemory,
    layout: &QueueLayout,
    logged: bool,
) -> Result<(), FrontEndError> {
    let at = layout.host_addresses(memory);
    // The flag is VHOST_VRING_F_LOG.
    let addresses = MessageBody::ring(layout.index, logged.into());
    let addresses = addresses.u64(at.descriptors).u64(at.used).u64(at.available);
    let log = if logged { layout.guest_addresses(memory).used } else { 0 };
    conversation.tell(Ask::SetVringAddr, &addresses.u64(log), &[])
}

/// Hands a log over; when it is answered, the one before is used no more.
pub(super) fn set_log(conversation: &Conversation, log: &DirtyPages) -> Result<(), FrontEndError> {
    let body = MessageBody::default().u64(log.len_bytes()).u64(0);
    conversation.ask_with(Ask::SetLogBase, &body, &[log.file()]).map(|_| ())
}

/// Wants to be told when pages were marked.
pub(super) fn set_log_signal(
    conversation: &Conversation,
    event: &OwnedFd,
) -> Result<(), FrontEndError> {
    conversation.tell(Ask::SetLogFd, &MessageBody::default(), &[event.as_fd()])
}

/// Starts or stops a ring's processing.
pub(super) fn enable_ring(
    conversation: &Conversation,
    index: u16,
    enable: bool,
) -> Result<(), FrontEndError> {
    conversation.tell(Ask::SetVringEnable, &MessageBody::ring(index, enable.into()), &[])
}

/// Stops a ring for good and asks where it stopped.
pub(super) fn get_base(conversation: &Conversation, index: u16) -> Result<u32, FrontEndError> {
    let answer = conversation.ask(Ask::GetVringBase, &MessageBody::ring(index, 0))?;
    let bad = |why| FrontEndError::BadAnswer { ask: Ask::GetVringBase.name(), why };
    if answer.u32_at(0)? != u32::from(index) {
        return Err(bad("it is about another ring"));
    }
    answer.u32_at(4)
}
