//! How a disk goes remote: a volume of another node, reached by sessions.
//!
//! [`RemoteVolume`] describes it; its channels live on a sidecore and use that sidecore's session
//! with the peer. The state of a channel is a [`core::Core`], which the sidecore's
//! [`crate::plane::Plane`] also knows, because answers arrive while the disk is not looking.
//!
//! ```text
//!   disk ─submit▶ RemoteChannel ─▶ Core ─call▶ Endpoint ═▶ wire
//!   disk ◀poll─── RemoteChannel ◀─ Core ◀reply─ Plane ◀─── wire
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use sidecore::{Counter, Progress, Wake};
use transport::Endpoint;

use crate::attachment::Attachment;
use crate::plane::Plane;
use crate::proof::AttachmentSecret;
use crate::size::Size;
use crate::volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Open, OpenError, Topology, Volume, VolumeInfo,
    Zeroing,
};

pub(crate) mod clients;
pub(crate) mod core;
mod request;

use self::core::Core;

/// What a remote volume's channels count, over all sidecores that use one. Each channel has its
/// own; the writer is its sidecore.
#[derive(Debug, Default)]
pub struct RemoteCounters {
    /// Calls sent, repetitions included.
    pub calls: Counter,
    /// Requests sent again because their session or epoch was lost.
    pub resent: Counter,
    /// Answers that came too late to be believed.
    pub rejected: Counter,
    /// Requests that waited because no buffer or window was free.
    pub stalls: Counter,
    /// Channels opened anew because this process had been stopped for a while.
    pub pauses: Counter,
    /// Answers that were not in the protocol's form.
    pub malformed: Counter,
    /// Bytes copied: of writes into their stable copies, of answers into the guest's memory.
    pub bytes_copied: Counter,
}

#[derive(Debug, Default)]
struct Described {
    info: Option<VolumeInfo>,
    why: Option<String>,
    refused: bool,
}

/// A volume of a peer.
#[derive(Debug)]
pub struct RemoteVolume {
    peer: String,
    volume: String,
    key: Option<Arc<AttachmentSecret>>,
    described: Mutex<Described>,
    size: Size,
    counters: Mutex<Vec<Arc<RemoteCounters>>>,
}

impl RemoteVolume {
    /// The volume `volume` of the peer `peer`; not described yet.
    pub fn new(peer: &str, volume: &str) -> Arc<Self> {
        Self::with_key(peer, volume, None)
    }

    /// The same, for attachments that prove that they have this key.
    pub fn with_key(peer: &str, volume: &str, key: Option<Arc<AttachmentSecret>>) -> Arc<Self> {
        Arc::new(Self {
            peer: peer.to_owned(),
            volume: volume.to_owned(),
            key,
            described: Mutex::default(),
            size: Size::new(0),
            counters: Mutex::default(),
        })
    }

    /// The peer's name.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The volume's name at the peer.
    pub fn name(&self) -> &str {
        &self.volume
    }

    pub(crate) fn key(&self) -> Option<&Arc<AttachmentSecret>> {
        self.key.as_ref()
    }

    /// What it is, once the peer has told; a disk can be shown to a guest from then on.
    pub fn described(&self) -> Option<VolumeInfo> {
        self.story().info.clone()
    }

    /// What another process of this node was told by the peer: the same is true until the peer says
    /// otherwise.
    pub fn assume(&self, info: VolumeInfo) {
        self.describe(info);
    }

    /// Why it is not described yet, for people.
    pub fn why(&self) -> Option<String> {
        self.story().why.clone()
    }

    /// Whether the peer has answered, and would not tell: there is no such volume for us.
    pub fn is_refused(&self) -> bool {
        self.story().refused
    }

    /// The counters of its channels.
    pub fn counters(&self) -> Vec<Arc<RemoteCounters>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn describe(&self, info: VolumeInfo) {
        let size_bytes = info.size_bytes;
        let mut story = self.story();
        *story = Described { info: Some(info), ..Described::default() };
        drop(story);
        // Who is told looks at the description.
        self.size.set(size_bytes);
    }

    pub(crate) fn waits(&self, why: &str) {
        let mut story = self.story();
        story.why = Some(why.to_owned());
        story.refused = false;
    }

    pub(crate) fn refuses(&self, why: &str) {
        let mut story = self.story();
        story.why = Some(why.to_owned());
        story.refused = true;
    }

    fn new_counters(&self) -> Arc<RemoteCounters> {
        let counters = Arc::new(RemoteCounters::default());
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        // Channels that are gone hold theirs no longer; the list stays as long as the channels.
        all.retain(|counters| Arc::strong_count(counters) > 1);
        all.push(counters.clone());
        counters
    }

    fn story(&self) -> std::sync::MutexGuard<'_, Described> {
        self.described.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume for RemoteVolume {
    /// Before the peer has answered: a volume of size 0, read-only. Nobody attaches such a one.
    fn info(&self) -> VolumeInfo {
        self.described().unwrap_or(VolumeInfo {
            size_bytes: 0,
            block_bytes: 512,
            read_only: true,
            durability: Durability::Flush,
            volatile: false,
            incarnation: Incarnation::default(),
            zeroing: Zeroing::default(),
            topology: Topology::default(),
        })
    }

    fn size(&self) -> Size {
        self.size.clone()
    }

    fn open(&self, open: &Open<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let plane = open.services.get::<Plane>().ok_or(OpenError::NoService("block plane"))?;
        let (peer, endpoint) = {
            let plane = plane.borrow();
            let peer = plane.clients.peer(&self.peer);
            (peer.ok_or(OpenError::NoService("way to this peer"))?, plane.endpoint.clone())
        };
        let info = self.info();
        let core = Core::new(self, open, &info, self.new_counters());
        let core = Rc::new(RefCell::new(core));
        let flow = plane.borrow_mut().clients.enlist(peer, &core)?;
        core.borrow_mut().enlisted(flow);
        Ok(Box::new(RemoteChannel {
            plane,
            endpoint,
            core,
            peer,
            flow,
            attachment: open.attachment.clone(),
            index: open.index,
        }))
    }
}

/// A disk's channel to a remote volume.
struct RemoteChannel {
    plane: Rc<RefCell<Plane>>,
    endpoint: Rc<RefCell<Endpoint>>,
    core: Rc<RefCell<Core>>,
    peer: usize,
    flow: u16,
    attachment: Arc<Attachment>,
    index: u16,
}

impl std::fmt::Debug for RemoteChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The plane lists this channel's core: showing it here would go round in a circle.
        f.debug_struct("RemoteChannel").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Channel for RemoteChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        self.core.borrow_mut().take(ios, id);
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let session = self.plane.borrow().clients.session(self.peer);
        let mut core = self.core.borrow_mut();
        let mut endpoint = self.endpoint.borrow_mut();
        let driven = core.drive(now_ns, session, &mut endpoint);
        driven | core.hand_back(ios, &mut endpoint, done)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.core.borrow_mut().arm(wake)
    }

    fn is_open(&self) -> bool {
        self.core.borrow().is_open()
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        let session = self.plane.borrow().clients.session(self.peer);
        let mut core = self.core.borrow_mut();
        core.abandon(ios, now_ns, session, &mut self.endpoint.borrow_mut())
    }
}

impl Drop for RemoteChannel {
    fn drop(&mut self) {
        self.core.borrow_mut().discard(&mut self.endpoint.borrow_mut());
        self.plane.borrow_mut().clients.dismiss(self.flow);
        self.attachment.release_lead(self.index);
    }
}
