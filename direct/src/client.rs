//! The client's way to the volume: one sidecore, one session, one channel. A front stands before
//! it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use block::attachment::Phase;
use block::ublk::{Front, FrontCore, Kernel, Shape};
use block::{Attach, Attachment, Plane, RemoteVolume};
use config::{Config, PeerConfig};
use sessions::counted::{self, Counters, SessionCounters};
use sessions::keys::{self, SidecoreKeys};
use sessions::sidecores::{self, PeerObjects};
use sessions::{LinkedSidecore, key_files, links, peers};
use sidecore::{Local, RoundStage, Sidecore};
use volume::OpenArguments;

use crate::error::DirectError;
use crate::plan::{AttachPeer, AttachPlan, attach_peer, nodes_of};

/// How long the peer may take to describe the volume and to give it, while no user of a disk waits.
/// The caller watches the command.
const FRESH_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a claim may be refused, by the session that has just described the volume, until the
/// refusal counts as the answer: the last client of the attachment may just have died.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(5);

/// How long the attachment may take to close.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(4);

/// How long a volume with several nodes may be refused for each of them: each is asked in a second,
/// and a node refuses until its copy is open.
const REFUSED_TIME: Duration = Duration::from_secs(2);

/// The time between two looks at the nodes of a placed volume, as a node's agent has it.
pub(crate) const FOLLOW: Duration = Duration::from_secs(3);

/// How often a wait checks its condition.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A client of a volume, on a sidecore of its own. [`DirectClient::stop`] must end it.
#[derive(Debug)]
pub struct DirectClient {
    pub(crate) cores: Vec<LinkedSidecore>,
    pub(crate) volume: Arc<RemoteVolume>,
    pub(crate) attachment: Arc<Attachment>,
    name: String,
    /// Kept until the process ends.
    keys: SidecoreKeys,
    /// Of a placed volume.
    places: Option<KnownPlaces>,
}

/// The nodes of a placed volume.
#[derive(Debug)]
struct KnownPlaces {
    /// The file in which the agent of a node keeps them.
    file: PathBuf,
    known: Mutex<KnownNodes>,
}

#[derive(Debug)]
struct KnownNodes {
    /// This client as it is now.
    config: Config,
    /// Nodes that could not be made peers: each is logged once.
    refused: BTreeSet<String>,
}

impl DirectClient {
    /// Starts the sidecore and its session, without a question to the peer. `resume`: the client
    /// goes on where an earlier client of the attachment was.
    ///
    /// # Errors
    /// The fault of the plan or its keys, or the system's refusal.
    pub fn new(plan: &AttachPlan, resume: bool) -> Result<Self, DirectError> {
        let config = plan.config()?;
        let attachment_key = match &plan.attachment_key {
            Some(path) => Some(Arc::new(key_files::read_attachment(path)?)),
            None => None,
        };
        let attachment = Arc::new(Attachment::new(&plan.attachment, plan.options(resume)?));
        let keys = SidecoreKeys::load(&config)?;
        let links = links::open(&config)?;
        let count = config.sidecores.cores.len();
        let objects = PeerObjects::new(&Arc::default(), &Arc::default(), count);
        let (cores, _) = sidecores::start(&config, &keys, links, &objects, &[])?;
        let names: Vec<_> = config.peers.iter().map(|peer| peer.name.clone()).collect();
        let volume = RemoteVolume::of_peers(&names, &plan.volume.volume, attachment_key);
        let places = plan.placements.clone();
        let known = Mutex::new(KnownNodes { config, refused: BTreeSet::new() });
        let places = places.map(|file| KnownPlaces { file, known });
        Ok(Self { cores, volume, attachment, name: plan.volume.to_string(), keys, places })
    }

    /// Asks the nodes that the volume has now, if the cluster has placed it. A list that was given
    /// stays.
    pub fn follow(&self) {
        let Some(KnownPlaces { file, known }) = &self.places else { return };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let KnownNodes { config, refused } = &mut *known;
        // A volume that the file does not have any more stays where it was.
        let Some(nodes) = nodes_of(file, self.volume.name(), &config.name) else { return };
        let mut names = Vec::new();
        for node in nodes {
            if self.is_peer(config, refused, &node) {
                names.push(node.name);
            }
        }
        if names.is_empty() || self.volume.peers() == names {
            return;
        }
        let (volume, nodes) = (&self.name, names.join(","));
        tracing::info!(volume, nodes, "the volume has other nodes");
        self.volume.set_peers(&names);
        self.forget_others(config, &names);
        self.cores.iter().for_each(|core| core.sidecore.waker().wake());
    }

    /// Makes a node a peer, if it is none or has changed. `false` when it cannot be one.
    fn is_peer(
        &self,
        config: &mut Config,
        refused: &mut BTreeSet<String>,
        node: &PeerConfig,
    ) -> bool {
        let known = config.peer(&node.name);
        if known.is_some_and(|it| (&it.address, &it.keys) == (&node.address, &node.keys)) {
            return true;
        }
        let other_has = |it: &PeerConfig| {
            it.name != node.name && node.keys.iter().any(|own| it.has_key(Some(own.key)))
        };
        let why = match config.peers.iter().find(|it| other_has(it)) {
            Some(other) => format!("it has the key of {}", other.name),
            None => match peers::set(&self.cores, &self.keys, config, node) {
                Ok(Some(changed)) => {
                    *config = changed;
                    refused.remove(&node.name);
                    return true;
                }
                Ok(None) => "a channel still needs its last address".to_owned(),
                Err(error) => error.to_string(),
            },
        };
        if refused.insert(node.name.clone()) {
            let (volume, node) = (&self.name, &node.name);
            tracing::error!(volume, node, why, "a node of the volume is no peer");
        }
        // It stays a peer by what was known of it.
        config.peer(&node.name).is_some()
    }

    /// Forgets the nodes that have no copy any more, with their keys.
    fn forget_others(&self, config: &mut Config, names: &[String]) {
        let mut wanted = config.clone();
        // A peer of which a channel lets go stays known until the nodes change again.
        wanted.peers.retain(|it| names.contains(&it.name) || !peers::remove(&self.cores, it));
        if let Err(error) = keys::apply(&wanted, &self.keys, &self.cores) {
            tracing::warn!(%error, "keys of nodes without a copy stay known");
        }
        *config = wanted;
    }

    /// The nodes of a placed volume as they are known now.
    pub(crate) fn nodes(&self) -> BTreeMap<String, AttachPeer> {
        let Some(KnownPlaces { known, .. }) = &self.places else { return BTreeMap::new() };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.volume.peers();
        let peers = known.config.peers.iter().filter(|it| names.contains(&it.name));
        peers.map(attach_peer).collect()
    }

    /// The sidecore.
    pub fn sidecore(&self) -> &Sidecore {
        &self.cores[0].sidecore
    }

    /// Counters of the client and its channel, by the names of a node's status.
    pub fn counters(&self) -> Counters {
        let core = &self.cores[0];
        let mut counters = counted::of_core(core, &SessionCounters::ask(core));
        counted::remote_counters(&self.volume, &mut counters);
        counters
    }

    /// Asks the peer for the volume's description. `patient`: without a limit of time.
    ///
    /// # Errors
    /// The peer does not answer, or does not give the volume.
    pub fn describe(&self, patient: bool) -> Result<(), DirectError> {
        let volume = Arc::clone(&self.volume);
        let asked = self.sidecore().call(move |local| {
            let plane = local.services().get::<Plane>().expect("a sidecore with a link");
            assert!(plane.borrow_mut().clients.describe(volume), "the plan names the peer");
        });
        asked.expect("a sidecore that has just started");
        let asked_at = Instant::now();
        let nodes = u32::try_from(self.volume.peers().len()).unwrap_or(u32::MAX);
        let all_asked = || nodes == 1 || asked_at.elapsed() >= REFUSED_TIME * nodes;
        let refused = || !patient && self.volume.is_refused() && all_asked();
        let settled = || self.volume.described().is_some() || refused();
        let told = self.wait(FRESH_TIME_MAX, patient, settled, || self.volume.why());
        let told = told.and_then(|()| match self.volume.described() {
            Some(_) => Ok(()),
            None => Err(self.volume.why().unwrap_or_default()),
        });
        let volume = self.name.clone();
        told.map_err(|why| match self.volume.is_refused() {
            true => DirectError::Refused { volume, why },
            false => DirectError::NotDescribed { volume, why },
        })
    }

    /// The volume's size, once it is described.
    pub fn size_bytes(&self) -> Option<u64> {
        self.volume.described().map(|info| info.size_bytes)
    }

    /// Opens the channel, which claims the attachment by itself, behind a front for a `K`.
    /// `prepare` runs before, on the sidecore, and makes the parts that a `K` needs.
    ///
    /// # Errors
    /// The part that the sidecore lacks.
    pub fn open_front<K: Kernel + 'static>(
        &self,
        shape: Shape,
        prepare: impl FnOnce(&mut Local) -> Result<(), String> + Send + 'static,
    ) -> Result<Arc<FrontCore>, DirectError> {
        let (volume, attachment) = (Arc::clone(&self.volume), Arc::clone(&self.attachment));
        let opened = self.sidecore().call(move |local| -> Result<_, String> {
            prepare(local)?;
            let services = local.services().clone();
            let open = OpenArguments { services: &services, depth: shape.channel_depth() };
            let channel =
                volume.attach(&attachment, 0, &open).map_err(|error| error.to_string())?;
            let front = Front::<K>::new(channel, volume.info(), shape);
            let core = front.core();
            let front = Rc::new(RefCell::new(front));
            services.insert(Rc::clone(&front));
            local.add(RoundStage::Serve, Box::new(front));
            Ok(core)
        });
        opened.expect("a sidecore that has just started").map_err(DirectError::Client)
    }

    /// Waits until the epoch is held. `patient`: without a limit of time.
    ///
    /// # Errors
    /// The peer refuses the volume.
    pub fn claim(&self, patient: bool) -> Result<(), DirectError> {
        let phase = || self.attachment.view().phase;
        let settled = || phase() != Phase::Unclaimed;
        let why = || self.attachment.why();
        let held = self.wait(CLAIM_TIME_MAX, patient, settled, why);
        let held = held.and_then(|()| match phase() {
            Phase::Held => Ok(()),
            _ => Err(why().unwrap_or_default()),
        });
        held.map_err(|why| DirectError::Refused { volume: self.name.clone(), why })
    }

    /// Puts a `K` before the front, which was opened for this type. `make` runs on the sidecore.
    ///
    /// # Panics
    /// When there was no such front.
    pub fn show<K: Kernel + 'static>(&self, make: impl FnOnce(&Local) -> K + Send + 'static) {
        let shown = self.sidecore().call(move |local| {
            let front = local.services().get::<Front<K>>().expect("opened before");
            front.borrow_mut().show(make(local));
        });
        shown.expect("the sidecore runs");
    }

    /// Closes the attachment and releases the channel, once the `K` has returned all its commands.
    /// Bounded; `false` when the volume will see the attachment as torn off.
    pub fn close<K: Kernel + 'static>(&self, front: &FrontCore) -> bool {
        self.attachment.close();
        let let_go = self.sidecore().call(|local| {
            let front = local.services().get::<Front<K>>().expect("put there at the start");
            front.borrow_mut().let_go();
        });
        // A sidecore that is gone holds no channel.
        let_go.is_err() || until(CLOSE_TIME_MAX, || front.is_gone())
    }

    /// Ends the session and the sidecore.
    pub fn stop(&self) {
        sidecores::stop(&self.cores);
    }

    /// Waits until something `is`, without a limit if `patient`: the log tells what the client
    /// waits for.
    fn wait(
        &self,
        limit: Duration,
        patient: bool,
        is: impl Fn() -> bool,
        why: impl Fn() -> Option<String>,
    ) -> Result<(), String> {
        let by = Instant::now() + limit;
        let mut said = None;
        let mut follow_at = Instant::now() + FOLLOW;
        while !is() {
            if Instant::now() >= follow_at {
                self.follow();
                follow_at = Instant::now() + FOLLOW;
            }
            let reason = why();
            if patient && reason.is_some() && reason != said {
                let volume = &self.name;
                tracing::warn!(volume, why = reason, "the disk waits for its volume");
                said = reason;
            } else if !patient && Instant::now() >= by {
                return Err(reason.unwrap_or_else(|| "its node does not answer".to_owned()));
            }
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

/// Waits for a bounded time for a condition; `true` if it was met.
fn until(limit: Duration, is: impl Fn() -> bool) -> bool {
    let by = Instant::now() + limit;
    while !is() {
        if Instant::now() >= by {
            return false;
        }
        sleep(LOOK_AGAIN);
    }
    true
}
