//! The members of this node's networks, for observers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::cable::CableCore;
use super::server::MemberRight;
use super::wire::Join;
use crate::ether::Mac;
use crate::port::PortCounters;

/// One member.
#[derive(Clone, Debug)]
pub struct MemberInfo {
    /// Its network.
    pub network: String,
    /// Its node.
    pub peer: String,
    /// The nic's name there.
    pub nic: String,
    /// The nic's address.
    pub mac: Mac,
    /// The counters of its port.
    pub counters: Arc<PortCounters>,
    /// The counters of its cable.
    pub cable: Arc<CableCore>,
}

/// All of them, of all sidecores.
#[derive(Debug, Default)]
pub struct Members(Mutex<(u64, BTreeMap<u64, MemberInfo>)>);

impl Members {
    /// Those that there are, in the order in which they joined.
    pub fn list(&self) -> Vec<MemberInfo> {
        self.guard().1.values().cloned().collect()
    }

    pub(super) fn enter(
        self: &Arc<Self>,
        right: &MemberRight,
        join: &Join,
        counters: &Arc<PortCounters>,
        cable: &Arc<CableCore>,
    ) -> Member {
        let info = MemberInfo {
            network: right.network.clone(),
            peer: right.peer.clone(),
            nic: join.nic.clone(),
            mac: join.mac,
            counters: Arc::clone(counters),
            cable: Arc::clone(cable),
        };
        let mut guard = self.guard();
        guard.0 += 1;
        let number = guard.0;
        guard.1.insert(number, info);
        Member { members: Arc::clone(self), number }
    }

    fn guard(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, MemberInfo>)> {
        // Nothing that holds this lock can leave the list half-made.
        self.0.lock()
    }
}

/// A place in the list.
#[derive(Debug)]
pub(super) struct Member {
    members: Arc<Members>,
    number: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.members.guard().1.remove(&self.number);
    }
}
