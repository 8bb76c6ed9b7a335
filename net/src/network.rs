//! A network of a node, seen from its control side: a name, a sidecore, and the [`Bridge`] there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sidecore::{CallError, Local, Poll, PollerId, Progress, RoundStage, Services, Sidecore, Wake};

use crate::bridge::Bridge;
use crate::port::{Port, PortCounters};
use crate::switch::{AddError, PortOptions};

/// Numbers for networks; never used twice in a process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Why a port was not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The switch refused it.
    #[error("network {network}: {source}")]
    Switch {
        /// The network.
        network: String,
        /// Why.
        r#source: AddError,
    },
    /// The network's sidecore is gone.
    #[error("network {network}: {source}")]
    Sidecore {
        /// The network.
        network: String,
        /// The sidecore's error.
        r#source: CallError,
    },
}

struct Inner {
    name: String,
    id: u64,
    sidecore: Sidecore,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let id = self.id;
        // A sidecore that has stopped has dropped it already.
        let _ = self.sidecore.call(move |local| remove(local, id));
    }
}

/// A network. Clones are the same one; it goes when the last of them and of its ports has gone.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({})", self.0.name)
    }
}

impl Network {
    /// A network without ports, which lives on this sidecore. For the seed see
    /// [`crate::Switch::new`].
    ///
    /// # Errors
    /// When the sidecore is gone.
    pub fn new(name: &str, sidecore: Sidecore, seed: u64) -> Result<Self, CallError> {
        let id = NEXT.fetch_add(1, Relaxed);
        let network = name.to_owned();
        sidecore.call(move |local| insert(local, id, network, Bridge::new(seed)))?;
        Ok(Self(Arc::new(Inner { name: name.to_owned(), id, sidecore })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its number, for [`Bridges`].
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Where it lives.
    pub fn sidecore(&self) -> &Sidecore {
        &self.0.sidecore
    }

    /// Attaches a port, which is made on the network's sidecore.
    ///
    /// # Errors
    /// When the switch refuses it, or the sidecore is gone.
    pub fn attach(
        &self,
        options: PortOptions,
        counters: Arc<PortCounters>,
        make: impl FnOnce(&mut Local) -> Box<dyn Port> + Send + 'static,
    ) -> Result<Attached, AttachError> {
        let (id, network) = (self.0.id, self.0.name.clone());
        let added = self.0.sidecore.call(move |local| {
            let port = make(local);
            find(local, id).map(|bridge| bridge.borrow_mut().add(options, port, counters))
        });
        match added {
            Ok(Some(Ok(port))) => Ok(Attached { network: self.clone(), port }),
            Ok(Some(Err(source))) => Err(AttachError::Switch { network, source }),
            Ok(None) => Err(AttachError::Sidecore { network, source: CallError::Stopped }),
            Err(source) => Err(AttachError::Sidecore { network, source }),
        }
    }

    /// Runs `f` on the bridge, for a look at it. `None` when its sidecore is gone or does not
    /// answer.
    pub fn look<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Bridge) -> R + Send + 'static,
    ) -> Option<R> {
        let id = self.0.id;
        let look = move |local: &mut Local| find(local, id).map(|bridge| f(&bridge.borrow()));
        self.0.sidecore.ask(look).ok().flatten()
    }
}

/// A port in its network; dropped, it is taken out.
#[derive(Debug)]
pub struct Attached {
    network: Network,
    port: u16,
}

impl Attached {
    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Its number there.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let (id, port) = (self.network.0.id, self.port);
        let _ = self.network.0.sidecore.call(move |local| {
            if let Some(bridge) = find(local, id) {
                drop(bridge.borrow_mut().remove(port));
            }
        });
    }
}

struct BridgePoller {
    bridge: Rc<RefCell<Bridge>>,
    network: String,
}

impl Poll for BridgePoller {
    fn poll(&mut self, now_ns: u64) -> Progress {
        self.bridge.borrow_mut().poll(now_ns)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.bridge.borrow_mut().arm(wake)
    }

    fn disarm(&mut self) {
        self.bridge.borrow_mut().disarm();
    }

    fn label(&self) -> String {
        format!("network {:?}", self.network)
    }
}

/// All bridges on a sidecore, by number; a service of it.
#[derive(Debug, Default)]
pub struct Bridges(HashMap<u64, (Option<PollerId>, Rc<RefCell<Bridge>>)>);

impl Bridges {
    fn of(services: &Services) -> Rc<RefCell<Self>> {
        services.get::<Self>().unwrap_or_else(|| {
            let bridges = Rc::new(RefCell::new(Self::default()));
            services.insert(Rc::clone(&bridges));
            bridges
        })
    }

    /// The bridge of this number, if it lives here.
    pub fn find(services: &Services, id: u64) -> Option<Rc<RefCell<Bridge>>> {
        Self::of(services).borrow().0.get(&id).map(|(_, bridge)| Rc::clone(bridge))
    }

    /// Lists a bridge that its owner polls himself: a simulated sidecore's.
    pub fn insert(services: &Services, id: u64, bridge: Rc<RefCell<Bridge>>) {
        Self::of(services).borrow_mut().0.insert(id, (None, bridge));
    }
}

fn find(local: &Local, id: u64) -> Option<Rc<RefCell<Bridge>>> {
    Bridges::find(local.services(), id)
}

fn insert(local: &mut Local, id: u64, network: String, bridge: Bridge) {
    let bridge = Rc::new(RefCell::new(bridge));
    let poller = BridgePoller { bridge: Rc::clone(&bridge), network };
    let poller = local.add(RoundStage::Serve, Box::new(poller));
    Bridges::of(local.services()).borrow_mut().0.insert(id, (Some(poller), bridge));
}

fn remove(local: &mut Local, id: u64) {
    let removed = Bridges::of(local.services()).borrow_mut().0.remove(&id);
    if let Some((Some(poller), _)) = removed {
        local.remove(poller);
    }
}
