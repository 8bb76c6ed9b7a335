//! How a disk goes remote: a volume of another node, reached by sessions.
//!
//! [`RemoteVolume`] describes it; its channels live on a sidecore and use that sidecore's session
//! with the peer. The state of a channel is a `core::RemoteCore`, which the sidecore's
//! [`crate::plane::Plane`] also knows, because answers arrive while the disk is not looking.
//!
//! ```text
//!   disk ─submit▶ RemoteChannel ─▶ Core ─call▶ Endpoint ═▶ wire
//!   disk ◀poll─── RemoteChannel ◀─ Core ◀reply─ Plane ◀─── wire
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sidecore::{Progress, Wake};
use transport::Endpoint;

use crate::attach::Attach;
use crate::attachment::Attachment;
use crate::plane::Plane;
use volume::Size;
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, OpenArguments, OpenError, Topology,
    VolumeInfo, Zeroing,
};

pub(crate) mod calls;
pub(crate) mod clients;
pub(crate) mod core;
mod described;
mod held;
mod request;
mod route;

use self::core::RemoteCore;
pub use self::described::{Reach, RemoteCounters, RemoteVolume, VolumeReach};
use self::held::HeldRoute;
pub use self::route::ROUTE_PEERS_MAX;

impl Attach for RemoteVolume {
    /// Before the peer has answered: a volume of size 0, read-only, to which no disk attaches.
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

    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        let plane = open.services.get::<Plane>().ok_or(OpenError::NoService("block plane"))?;
        let (peers, endpoint) = {
            let plane = plane.borrow();
            (Rc::clone(plane.clients.peers()), Rc::clone(&plane.endpoint))
        };
        let route = HeldRoute::new(&self.route, &peers);
        if !route.is_known() {
            return Err(OpenError::NoService("way to this peer"));
        }
        let attached = (attachment, index);
        let core = RemoteCore::new((self, route), attached, open.depth, self.new_counters());
        let core = Rc::new(RefCell::new(core));
        let flow = plane.borrow_mut().clients.enlist(&core)?;
        core.borrow_mut().enlisted(flow);
        Ok(Box::new(RemoteChannel {
            plane,
            endpoint,
            core,
            flow,
            attachment: attachment.clone(),
            index,
        }))
    }
}

/// A disk's channel to a remote volume.
struct RemoteChannel {
    plane: Rc<RefCell<Plane>>,
    endpoint: Rc<RefCell<Endpoint>>,
    core: Rc<RefCell<RemoteCore>>,
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
        let mut core = self.core.borrow_mut();
        let mut endpoint = self.endpoint.borrow_mut();
        let session = core.follow(&mut endpoint);
        let driven = core.drive(now_ns, session, &mut endpoint);
        driven | core.hand_back(ios, &mut endpoint, done)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.core.borrow_mut().arm(wake)
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        self.core.borrow().is_open()
    }

    /// Waiting requests stay with those that were sent, so that they keep their order.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        let mut core = self.core.borrow_mut();
        let mut endpoint = self.endpoint.borrow_mut();
        let session = core.follow(&mut endpoint);
        core.abandon(ios, now_ns, session, &mut endpoint)
    }
}

impl Drop for RemoteChannel {
    fn drop(&mut self) {
        self.core.borrow_mut().discard(&mut self.endpoint.borrow_mut());
        self.plane.borrow_mut().clients.dismiss(self.flow);
        self.attachment.release_lead(self.index);
    }
}
