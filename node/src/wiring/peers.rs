//! Peers that come, go and change while the node runs.

use config::{InPlace, PeerConfig};
use sessions::{gateways, peers, shared};

use super::change::{no_key_changed, refuse_used, takes_restart};
use super::inside::Inside;
use super::objects::Objects;
use crate::kinds::{Changed, RunningObject};
use api::status::{PeerStatus, Status};
use api::{Refused, RefusedKind};

impl RunningObject for PeerConfig {
    type Status = PeerStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.set_peer(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.set_peer(self)
    }

    fn remove(name: &str, node: &Inside, _force: bool) -> Changed {
        node.remove_peer(name)
    }

    fn status(_node: &Inside, objects: &Objects) -> Vec<PeerStatus> {
        let peers = objects.config.peers.iter();
        peers
            .map(|peer| PeerStatus {
                name: peer.name.clone(),
                address: peer.address.as_ref().map(|address| address.to_string()),
                origin: objects.origin::<Self>(&peer.name),
                disks: objects.disks_of_peer(&peer.name),
            })
            .collect()
    }

    fn report(found: Vec<PeerStatus>, status: &mut Status) {
        status.peers = found;
    }
}

impl Inside {
    pub(crate) fn set_peer(&self, peer: &PeerConfig) -> Result<Vec<String>, Refused> {
        self.check_listens(true, "peers answer to an address")?;
        if let Some(address) = &peer.address {
            let reached = shared::reach_from(&self.cores, address);
            reached.map_err(|why| takes_restart(why, "\"shm\", or the peer's \"address\","))?;
        }
        let running = self.objects().config.clone();
        let set = peers::set(&self.cores, &self.keys, &running, peer);
        let Some(wanted) = set.map_err(|error| no_key_changed(&error))? else {
            return Err(self.still_needed(&peer.name));
        };
        self.objects().config.objects.peers = wanted.objects.peers;
        Ok(Vec::new())
    }

    pub(crate) fn remove_peer(&self, name: &str) -> Result<Vec<String>, Refused> {
        let (users, mut wanted) = {
            let objects = self.objects();
            (objects.disks_of_peer(name), objects.config.clone())
        };
        let users: Vec<_> = users.iter().map(|disk| format!("disk {disk:?}")).collect();
        // Even with force: these objects cannot exist without the peer.
        refuse_used(&format!("peer {name:?}"), &users, false, "remove those first")?;
        let at = wanted.peers.iter().position(|peer| peer.name == name);
        let peer = wanted.peers.remove(at.expect("the caller has looked"));
        self.read_keys(&wanted)?;
        // The peer leaves all domains, too.
        let domains = self.objects().take_peer_from_domains(name);
        domains.iter().for_each(|domain| self.domains.set_peers(domain));
        gateways::look_for_sessions(&self.cores);
        if !peers::remove(&self.cores, &peer) {
            return Err(self.still_needed(name));
        }
        self.objects().forget::<PeerConfig>(name);
        Ok(Vec::new())
    }

    /// The error for a peer that cannot be removed yet: its keys stay.
    fn still_needed(&self, name: &str) -> Refused {
        let config = self.objects().config.clone();
        if let Err(refused) = self.read_keys(&config) {
            tracing::error!(error = %refused, "the keys that were in use cannot be read again");
        }
        let error = format!("peer {name:?}: a disk that was removed still uses it");
        Refused::new(RefusedKind::Conflict, error, "try again in a few seconds")
    }
}
