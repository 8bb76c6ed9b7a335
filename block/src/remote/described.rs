//! A volume of a peer: its description, whether it answers, and the counters of its channels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};
use peer::AttachmentSecret;

use super::route::PeerRoute;
use volume::Size;
use volume::VolumeInfo;

sidecore::counters! {
    /// Counters of a channel of a remote volume. Each channel has its own; its sidecore is the only
    /// writer.
    pub struct RemoteCounters {
        /// Calls sent, repetitions included.
        calls,
        /// Requests sent again because their session or epoch was lost.
        resent,
        /// Answers that came too late to be believed.
        rejected,
        /// Requests that waited because no buffer or window was free.
        stalls,
        /// Channels opened anew because this process had been stopped for a while.
        pauses,
        /// Answers that were not in the protocol's form.
        malformed,
        /// Bytes copied: of writes into their stable copies, of answers into the guest's memory.
        bytes_copied,
    }
}

/// Whether a peer's volume answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Nothing is known: the peer was not asked yet.
    #[default]
    Unknown,
    /// The peer has said what the volume is, and confirms it every few seconds.
    Answers,
    /// The peer does not answer.
    Away,
    /// The peer answers that it has no such volume for this node.
    Refused,
}

/// How a peer's volume was found when it was last asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeReach {
    /// Whether it answers.
    pub reach: Reach,
    /// Since when it answers, or does not, by the sidecores' clock.
    pub since_ns: u64,
    /// Why it does not answer, for people.
    pub why: Option<String>,
    /// How often it has ceased to answer after it had.
    pub outages: u64,
    /// How long the last outage took that is over.
    pub outage_ns: u64,
    /// Why there was that outage, for people.
    pub outage_why: Option<String>,
}

impl VolumeReach {
    /// The peer has confirmed the volume.
    fn answers(&mut self, now_ns: u64) {
        if self.reach == Reach::Answers {
            return;
        }
        if self.outages > 0 {
            self.outage_ns = now_ns.saturating_sub(self.since_ns);
            self.outage_why = self.why.take();
        }
        (self.reach, self.since_ns, self.why) = (Reach::Answers, now_ns, None);
    }

    /// The volume cannot be used: `reach` says how.
    fn fails(&mut self, now_ns: u64, reach: Reach, why: &str) {
        match self.reach {
            Reach::Answers => (self.outages, self.since_ns) = (self.outages + 1, now_ns),
            Reach::Unknown => self.since_ns = now_ns,
            Reach::Away | Reach::Refused => {}
        }
        self.reach = reach;
        if self.why.as_deref() != Some(why) {
            self.why = Some(why.to_owned());
        }
    }
}

/// The peer's word on whether one attachment at a time uses the volume; 0 for none yet.
#[derive(Clone, Debug, Default)]
pub(super) struct SoleWord(Arc<AtomicU8>);

impl SoleWord {
    const NO: u8 = 1;
    const YES: u8 = 2;

    pub(super) fn set(&self, is_sole: bool) {
        self.0.store(if is_sole { Self::YES } else { Self::NO }, SeqCst);
    }
}

#[derive(Debug, Default)]
struct Described {
    info: Option<VolumeInfo>,
    outlook: VolumeReach,
}

/// A volume of a peer, or a replicated volume whose members are on several peers.
#[derive(Debug)]
pub struct RemoteVolume {
    pub(super) route: Arc<PeerRoute>,
    volume: String,
    key: Option<Arc<AttachmentSecret>>,
    described: Mutex<Described>,
    pub(super) size: Size,
    pub(super) sole: SoleWord,
    counters: Mutex<Vec<Arc<RemoteCounters>>>,
}

impl RemoteVolume {
    /// The volume `volume` of the peer `peer`; not described yet.
    pub fn new(peer: &str, volume: &str) -> Arc<Self> {
        Self::of_peers(&[peer.to_owned()], volume, None)
    }

    /// The volume `volume` of one of these peers, the first of which is asked first: one to
    /// [`ROUTE_PEERS_MAX`](super::ROUTE_PEERS_MAX) of them. Attachments prove that they have the
    /// key, if there is one.
    pub fn of_peers(
        peers: &[String],
        volume: &str,
        key: Option<Arc<AttachmentSecret>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            route: Arc::new(PeerRoute::new(peers)),
            volume: volume.to_owned(),
            key,
            described: Mutex::default(),
            size: Size::new(0),
            sole: SoleWord::default(),
            counters: Mutex::default(),
        })
    }

    /// The name of the peer that is asked now.
    pub fn peer(&self) -> String {
        self.route.asked()
    }

    /// The names of the peers that may serve it.
    pub fn peers(&self) -> Vec<String> {
        self.route.names()
    }

    /// Replaces the peers that may serve it, one to [`ROUTE_PEERS_MAX`](super::ROUTE_PEERS_MAX) of
    /// them, while disks use it. Requests that are under way at a peer of both lists go on; a
    /// request at a peer that has left is sent again to the peer that serves. The sidecores follow
    /// in their next round: wake them.
    pub fn set_peers(&self, peers: &[String]) {
        self.route.set(peers);
    }

    /// The volume's name at the peer.
    pub fn name(&self) -> &str {
        &self.volume
    }

    pub(crate) fn key(&self) -> Option<&Arc<AttachmentSecret>> {
        self.key.as_ref()
    }

    /// The description, once the peer has given one; a disk can be shown to a guest from then on.
    pub fn described(&self) -> Option<VolumeInfo> {
        self.story().info.clone()
    }

    /// Takes the description that the peer gave to another process of this node. The description is
    /// true until the peer gives another one.
    pub fn assume(&self, now_ns: u64, info: VolumeInfo) {
        self.describe(now_ns, info);
    }

    /// Why it does not answer, for people; `None` while it does.
    pub fn why(&self) -> Option<String> {
        self.story().outlook.why.clone()
    }

    /// Whether the peer has answered, and would not tell: there is no such volume for us.
    pub fn is_refused(&self) -> bool {
        self.story().outlook.reach == Reach::Refused
    }

    /// Whether it answers, since when, and why not.
    pub fn outlook(&self) -> VolumeReach {
        self.story().outlook.clone()
    }

    /// The counters of its channels.
    pub fn counters(&self) -> Vec<Arc<RemoteCounters>> {
        self.counters.lock().clone()
    }

    pub(crate) fn describe(&self, now_ns: u64, info: VolumeInfo) {
        let size_bytes = info.size_bytes;
        let mut story = self.story();
        story.info = Some(info);
        story.outlook.answers(now_ns);
        drop(story);
        // The readers of the size look at the description.
        self.size.set(size_bytes);
    }

    pub(crate) fn waits(&self, now_ns: u64, why: &str) {
        self.story().outlook.fails(now_ns, Reach::Away, why);
    }

    pub(crate) fn refuses(&self, now_ns: u64, why: &str) {
        self.story().outlook.fails(now_ns, Reach::Refused, why);
    }

    /// Whether one attachment at a time uses it; `None` until the peer has said so or not. As of
    /// the last answer to a claim, or the last description.
    pub fn is_sole(&self) -> Option<bool> {
        match self.sole.0.load(SeqCst) {
            0 => None,
            word => Some(word == SoleWord::YES),
        }
    }

    pub(super) fn new_counters(&self) -> Arc<RemoteCounters> {
        let counters = Arc::new(RemoteCounters::default());
        let mut all = self.counters.lock();
        // Channels that are gone hold theirs no longer; the list stays as long as the channels.
        all.retain(|counters| Arc::strong_count(counters) > 1);
        all.push(counters.clone());
        counters
    }

    fn story(&self) -> MutexGuard<'_, Described> {
        self.described.lock()
    }
}
