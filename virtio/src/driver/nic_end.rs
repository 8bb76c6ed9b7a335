//! A vhost-user-net front end: a guest's memory and the rings of its nic, handed to a back end.
//!
//! As QEMU's it keeps no inflight region. The control queue is not handed over: the test that plays
//! the guest enables the rings of as many pairs as it uses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::disk::{feature, has, mask, protocol};
use super::error::FrontEndError;
use super::event::signal;
use super::frames::FrameRing;
use super::front_end::Events;
use super::guest::{DriverGuest, GuestPlan};
use super::memory::GuestMemory;
use super::message::{Ask, Conversation, MessageBody};
use super::ring::RingOptions;
use super::socket::{FrontEndSocket, SocketRole};
use super::start;
use crate::ring::RingKind;

/// How long a back end may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// The settings of a front end.
#[derive(Clone, Debug)]
pub struct NicEndConfig {
    /// The way to the back end.
    pub role: SocketRole,
    /// Memory and queues; those are two for each pair.
    pub guest: GuestPlan,
    /// The features of virtio-net that are used where they are offered.
    pub features: u64,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// Events by index.
    pub event_idx: bool,
}

/// A guest with a nic.
#[derive(Debug)]
pub struct NicEnd {
    guest: DriverGuest,
    events: Vec<Events>,
    features: u64,
    conversation: Conversation,
}

impl NicEnd {
    /// Makes a guest and connects it, trying for at most `wait`, and starts all of its rings.
    ///
    /// # Errors
    /// When there is no back end in that time, or it lacks what is needed.
    pub fn connect(config: &NicEndConfig, wait: Duration) -> Result<Self, FrontEndError> {
        let guest = DriverGuest::new(&config.guest).map_err(FrontEndError::Memory)?;
        let queues = usize::from(config.guest.queues);
        let events = (0..queues).map(|_| Events::new()).collect::<Result<Vec<_>, _>>()?;
        let (door, deadline) = (FrontEndSocket::new(config.role.clone())?, Instant::now() + wait);
        let stream = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match door.enter(left) {
                Ok(stream) => break stream,
                Err(error) if !error.is_passing() || left.is_zero() => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        let mut conversation = Conversation::new(stream, ANSWER_TIMEOUT);
        let (features, protocol) = negotiate(&mut conversation, config)?;
        start::set_features(&conversation, features)?;
        start::set_memory(&conversation, protocol, std::iter::once(guest.memory()))?;
        let base = kind(features).base_fresh();
        for (layout, events) in guest.queues().iter().zip(&events) {
            start::set_ring(&conversation, guest.memory(), layout, base, events, false)?;
        }
        for index in 0..config.guest.queues {
            start::enable_ring(&conversation, index, true)?;
        }
        events.iter().for_each(|events| signal(&events.kick));
        Ok(Self { guest, events, features, conversation })
    }

    /// The features in use.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The guest's memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        self.guest.memory()
    }

    /// The driver of a queue; to be made once for each. Even ones are for frames that come in.
    pub fn ring(&self, index: u16) -> FrameRing {
        let events = &self.events[usize::from(index)];
        let options = RingOptions {
            kind: kind(self.features),
            event_idx: has(self.features, feature::EVENT_IDX),
            indirect: has(self.features, feature::INDIRECT_DESC),
            kick: Some(Arc::clone(&events.kick)),
            call: Some(Arc::clone(&events.call)),
            ..RingOptions::default()
        };
        let layout = &self.guest.queues()[usize::from(index)];
        FrameRing::new(Arc::clone(self.guest.memory()), layout, options, index.is_multiple_of(2))
    }

    /// The first bytes of the configuration space: address, status, pairs, MTU.
    ///
    /// # Errors
    /// When the back end does not answer.
    pub fn config(&self) -> Result<[u8; 12], FrontEndError> {
        let body = MessageBody::default().u32(0).u32(12).u32(0).zeroes(12);
        let answer = self.conversation.ask(Ask::GetConfig, &body)?;
        let why = "it is too short";
        let bad = FrontEndError::BadAnswer { ask: Ask::GetConfig.name(), why };
        answer.body.get(12..24).and_then(|config| config.first_chunk().copied()).ok_or(bad)
    }

    /// Stops a ring and asks where it stopped.
    ///
    /// # Errors
    /// When the back end does not answer.
    pub fn stop_ring(&self, index: u16) -> Result<u32, FrontEndError> {
        start::get_base(&self.conversation, index)
    }
}

fn kind(features: u64) -> RingKind {
    if has(features, feature::RING_PACKED) { RingKind::Packed } else { RingKind::Split }
}

/// Features and protocol features in use.
fn negotiate(
    conversation: &mut Conversation,
    config: &NicEndConfig,
) -> Result<(u64, u64), FrontEndError> {
    let none = MessageBody::default();
    let offered = conversation.ask(Ask::GetFeatures, &none)?.number()?;
    let needed = [feature::VERSION_1, feature::PROTOCOL_FEATURES];
    if needed.iter().any(|bit| !has(offered, *bit)) {
        return Err(FrontEndError::Missing("VERSION_1 and PROTOCOL_FEATURES"));
    }
    let optional = |wanted, bit| if wanted { mask(bit) } else { 0 };
    let features = offered
        & (config.features
            | needed.map(mask).iter().sum::<u64>()
            | mask(feature::INDIRECT_DESC)
            | optional(config.event_idx, feature::EVENT_IDX)
            | optional(config.packed, feature::RING_PACKED));
    let wanted = [protocol::MQ, protocol::REPLY_ACK, protocol::CONFIG].map(mask);
    let wanted = wanted.iter().sum::<u64>();
    let protocol = conversation.ask(Ask::GetProtocolFeatures, &none)?.number()? & wanted;
    conversation.tell(Ask::SetProtocolFeatures, &MessageBody::default().u64(protocol), &[])?;
    conversation.acknowledged = has(protocol, protocol::REPLY_ACK);
    let queues = config.guest.queues;
    let pairs = if has(protocol, protocol::MQ) {
        conversation.ask(Ask::GetQueueNum, &none)?.number()?
    } else {
        1
    };
    if u64::from(queues / 2) > pairs {
        let offered = 2 * pairs;
        return Err(FrontEndError::QueuesMissing { wanted: queues, offered });
    }
    conversation.tell(Ask::SetOwner, &none, &[])?;
    Ok((features, protocol))
}
