//! The messages of one member, by the plane of its host's sidecore.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use replica::{MemberId, Message};

use super::{ReplicaPlane, ReplicaRoute};
use crate::content::RangeContent;
use crate::form::VolumeForm;
use crate::host::MemberMail;

/// The routes of one member to the other members of its volume. They are closed when it is dropped.
#[derive(Debug)]
pub struct PlaneMail {
    plane: Rc<RefCell<ReplicaPlane>>,
    volume: String,
    form: VolumeForm,
    routes: BTreeMap<MemberId, ReplicaRoute>,
}

impl PlaneMail {
    /// Opens the routes to the other members, with the names of their nodes. `form` is the volume's
    /// form as this member says it ([`VolumeForm::said_by`]).
    pub fn new(
        plane: Rc<RefCell<ReplicaPlane>>,
        volume: &str,
        form: VolumeForm,
        peers: &BTreeMap<MemberId, String>,
    ) -> Self {
        let (volume, routes) = (volume.to_owned(), BTreeMap::new());
        let mut mail = Self { plane, volume, form, routes };
        mail.set_members(peers);
        mail
    }
}

impl MemberMail for PlaneMail {
    /// A record may name a member that the configuration does not have: its messages go nowhere.
    fn send(
        &mut self,
        now_ns: u64,
        to: MemberId,
        message: Message<RangeContent>,
    ) -> Result<(), Message<RangeContent>> {
        let Some(route) = self.routes.get(&to) else { return Ok(()) };
        self.plane.borrow_mut().send(now_ns, *route, message)
    }

    fn set_members(&mut self, others: &BTreeMap<MemberId, String>) {
        let mut plane = self.plane.borrow_mut();
        for (_, gone) in self.routes.extract_if(.., |member, _| !others.contains_key(member)) {
            plane.close(gone);
        }
        for (member, node) in others {
            let open = || plane.open(&self.volume, self.form, node);
            self.routes.entry(*member).or_insert_with(open);
        }
    }

    fn losses(&self, to: MemberId) -> u64 {
        self.routes.get(&to).map_or(0, |route| self.plane.borrow().losses(*route))
    }
}

impl Drop for PlaneMail {
    fn drop(&mut self) {
        let mut plane = self.plane.borrow_mut();
        self.routes.values().for_each(|route| plane.close(*route));
    }
}
