//! The associations of a domain with other hosts. The domain's gateways, which are on threads of
//! their own, share them.
//!
//! An association is between two runs of nodes, and each side counts how often it has given the
//! other up. A side that receives another run, or another count, ends the association of before. So
//! either both sides agree which message was the last, or the endpoints of each side are told that
//! the endpoints of the other are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use parking_lot::{Mutex, MutexGuard};

use crate::SlotTable;
use crate::hand_over::{AssociationsState, PeerState, TakerState, ThereState, Unfit, ensure};
use fabric::{GATEWAYS_MAX, HOST_ENDED};

/// Another host's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct There {
    pub(super) host: u64,
    pub(super) epoch: u32,
    /// Its place in the region's table.
    pub(super) index: u16,
}

/// A peer, as `vrio domain list` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The peer's name.
    pub peer: String,
    /// Its host's name in addresses, if it was joined with.
    pub host: Option<u64>,
    /// How many gateways may send to it.
    pub joined: usize,
    /// Why a gateway may not.
    pub why: Option<String>,
}

#[derive(Debug)]
struct AssociatedPeer {
    /// Our own count: another one each time that it was given up, or taken out and put back.
    epoch: u32,
    there: Option<There>,
    /// Which of our gateways takes what each of its gateways sends.
    takers: BTreeMap<u16, u16>,
    /// Of each of our gateways: none while it may send.
    why: BTreeMap<u16, Option<String>>,
}

/// See the module.
#[derive(Debug)]
pub struct Associations {
    table: Arc<SlotTable>,
    /// The count that the next to be met, or to be given up, gets: none has one that another had,
    /// or the same one before.
    epoch_next: AtomicU32,
    peers: Mutex<BTreeMap<String, AssociatedPeer>>,
    generation: AtomicU64,
}

impl Associations {
    /// Without peers. `epoch` is a random number, not zero, that no run with a host of this name
    /// had before.
    pub fn new(table: Arc<SlotTable>, epoch: u32) -> Arc<Self> {
        let (peers, generation) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { table, epoch_next: AtomicU32::new(epoch), peers, generation })
    }

    /// Those that another process had with the same region. Nothing is written there.
    ///
    /// # Errors
    /// When the state contradicts itself, or the region's table of hosts.
    pub fn adopt(
        table: Arc<SlotTable>,
        state: AssociationsState,
        names: &[String],
    ) -> Result<Arc<Self>, Unfit> {
        let AssociationsState { epoch_next, peers } = state;
        let (mut known, mut places) = (BTreeMap::new(), BTreeSet::new());
        let gateways = table.region().options().gateways;
        for PeerState { name, epoch, there, takers } in peers {
            ensure(names.contains(&name), "it is joined with a node that is not its peer")?;
            let there = there.map(|ThereState { host, epoch, index }| There { host, epoch, index });
            if let Some(There { host, index, .. }) = there {
                let is_new = places.insert((true, u64::from(index))) & places.insert((false, host));
                let is_other = ![0, HOST_ENDED, table.region().options().host].contains(&host);
                ensure(is_new && is_other, "two of its hosts are the same")?;
                ensure(table.has_host(index), "a host has no place")?;
            }
            let is_one = |it: &TakerState| it.theirs < GATEWAYS_MAX && it.ours < gateways;
            ensure(takers.iter().all(is_one), "a gateway does not exist")?;
            let takers =
                takers.into_iter().map(|TakerState { theirs, ours }| (theirs, ours)).collect();
            let why = BTreeMap::new();
            let is_new = known.insert(name, AssociatedPeer { epoch, there, takers, why }).is_none();
            ensure(is_new, "a peer is listed twice")?;
        }
        let (epoch_next, peers) = (AtomicU32::new(epoch_next), Mutex::new(known));
        let generation = AtomicU64::new(0);
        Ok(Arc::new(Self { table, epoch_next, peers, generation }))
    }

    /// The state for [`Associations::adopt`]. No gateway may be at work.
    pub fn take_down(&self) -> AssociationsState {
        let peers = self.peers();
        let peer = |(name, peer): (&String, &AssociatedPeer)| {
            let there =
                peer.there.map(|There { host, epoch, index }| ThereState { host, epoch, index });
            let takers = peer.takers.iter();
            let takers = takers.map(|(&theirs, &ours)| TakerState { theirs, ours }).collect();
            PeerState { name: name.clone(), epoch: peer.epoch, there, takers }
        };
        let (epoch_next, peers) = (self.epoch_next.load(Relaxed), peers.iter().map(peer).collect());
        AssociationsState { epoch_next, peers }
    }

    /// The region's slot table.
    pub fn table(&self) -> &Arc<SlotTable> {
        &self.table
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<String, AssociatedPeer>> {
        // A peer is changed as a whole.
        self.peers.lock()
    }

    /// Never 0, which is no epoch.
    fn epoch(&self) -> u32 {
        match self.epoch_next.fetch_add(1, Relaxed) {
            0 => self.epoch_next.fetch_add(1, Relaxed),
            epoch => epoch,
        }
    }

    /// Sets the domain's peers. Associations with other nodes end.
    pub fn set_peers(&self, names: &[String]) {
        let mut peers = self.peers();
        for (_, gone) in peers.extract_if(.., |name, _| !names.contains(name)) {
            if let Some(there) = gone.there {
                self.table.end_host(there.index);
            }
        }
        for name in names {
            peers.entry(name.clone()).or_insert_with(|| AssociatedPeer {
                epoch: self.epoch(),
                there: None,
                takers: BTreeMap::new(),
                why: BTreeMap::new(),
            });
        }
        self.generation.fetch_add(1, Release);
    }

    /// How the association with each peer is doing.
    pub fn reports(&self) -> Vec<PeerReport> {
        let report = |(name, peer): (&String, &AssociatedPeer)| PeerReport {
            peer: name.clone(),
            host: peer.there.map(|there| there.host),
            joined: peer.why.values().filter(|why| why.is_none()).count(),
            why: peer.why.values().flatten().next().cloned(),
        };
        self.peers().iter().map(report).collect()
    }

    /// The peers' names.
    pub fn names(&self) -> Vec<String> {
        self.peers().keys().cloned().collect()
    }

    /// Another number whenever a peer, or its host, is another one.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// A peer's host as it is known, and our own count.
    pub(super) fn look(&self, peer: &str) -> Option<(Option<There>, u32)> {
        let peers = self.peers();
        let peer = peers.get(peer)?;
        Some((peer.there, peer.epoch))
    }

    /// A peer says that it is this host, with this count. The host or run that it was before
    /// is over.
    pub(super) fn meet(&self, peer: &str, host: u64, epoch: u32) -> Result<There, String> {
        let mut peers = self.peers();
        let is_taken = |(name, other): (&String, &AssociatedPeer)| {
            name != peer && other.there.is_some_and(|there| there.host == host)
        };
        if host == self.table.region().options().host || peers.iter().any(is_taken) {
            return Err(format!("{peer} names a host that belongs to another node"));
        }
        let gone = || format!("{peer} is not a peer of the domain on this node");
        let known = peers.get_mut(peer).ok_or_else(gone)?;
        if let Some(there) = known.there {
            if (there.host, there.epoch) == (host, epoch) {
                return Ok(there);
            }
            self.table.end_host(there.index);
            (known.there, known.takers) = (None, BTreeMap::new());
            self.generation.fetch_add(1, Release);
        }
        let index = self.table.add_host(host).map_err(|error| error.to_string())?;
        let there = There { host, epoch, index };
        known.there = Some(there);
        self.generation.fetch_add(1, Release);
        Ok(there)
    }

    /// The peer has been out of reach for too long: its association is over.
    pub(super) fn give_up(&self, peer: &str, there: There) {
        let mut peers = self.peers();
        let known = peers.get_mut(peer).filter(|known| known.there == Some(there));
        let Some(known) = known else { return };
        self.table.end_host(there.index);
        (known.there, known.takers) = (None, BTreeMap::new());
        known.epoch = self.epoch();
        self.generation.fetch_add(1, Release);
    }

    /// Which of our gateways takes what this gateway of a peer sends: the first that was asked, for
    /// as long as the two hosts are joined, for it knows what has come.
    pub(super) fn taker(&self, peer: &str, gateway: u16, wants: u16) -> u16 {
        let mut peers = self.peers();
        let known = peers.get_mut(peer);
        known.map_or(wants, |known| *known.takers.entry(gateway).or_insert(wants))
    }

    /// Whether one of our gateways may send to a peer, or why not.
    pub(super) fn note(&self, peer: &str, gateway: u16, why: Option<String>) {
        if let Some(known) = self.peers().get_mut(peer) {
            known.why.insert(gateway, why);
        }
    }
}
