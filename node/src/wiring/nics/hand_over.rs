//! Networks and nics that another process goes on with. What a switch has learned, which
//! conversations a filter keeps and what was counted begins anew there.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use net::uplink::tap::OpenTap;
use virtio::{Adopted, Parked, Parking};

use super::{Made, Nics, OpenedTap, live, make};
use crate::config::{Config, NicConfig, Uplink};
use crate::wiring::handover::{NicState, Received, Sent, UplinkState};
use crate::wiring::sidecores::Core;

/// A nic that is ready to be gone on with.
#[derive(Debug)]
pub(in crate::wiring) struct TakenNic {
    config: NicConfig,
    made: Made,
    /// Nothing for one that was not served.
    adopted: Option<Adopted>,
}

impl Nics {
    /// Has all nics come to a stand, and leaves the uplinks alone.
    pub(in crate::wiring) fn begin_park(&self, drain: Duration) -> Vec<(String, Parking)> {
        self.set_paused(true);
        let begin =
            |shown: &super::Shown| (shown.config.name.clone(), shown.server.begin_park(drain));
        self.nics.iter().map(begin).collect()
    }

    /// Whether uplinks are left alone.
    pub(in crate::wiring) fn set_paused(&self, paused: bool) {
        for live in &self.networks {
            if let Some(uplink) = &live.uplink {
                uplink.core.set_paused(paused);
                // Wakes its sidecore.
                let _ = live.network.look(|_| ());
            }
        }
    }

    /// The uplinks that are there.
    pub(in crate::wiring) fn take_down_uplinks(
        &self,
        sent: &mut Sent,
    ) -> io::Result<Vec<UplinkState>> {
        let mut states = Vec::new();
        for live in &self.networks {
            let Some(uplink) = &live.uplink else { continue };
            if let Some((fd, udp)) = uplink.core.copy()? {
                let (network, tap) = (live.config.name.clone(), sent.put(fd));
                states.push(UplinkState { network, tap, udp });
            }
        }
        Ok(states)
    }

    /// Makes networks and nics of what another process had. Its guests and uplinks are not touched
    /// before [`Self::go_on`].
    pub(in crate::wiring) fn adopt(
        config: &Config,
        cores: &[Core],
        (uplinks, nics): (Vec<UplinkState>, Vec<NicState>),
        fds: &mut Received,
    ) -> Result<(Self, Vec<TakenNic>), String> {
        let mut taps = HashMap::new();
        for UplinkState { network, tap, udp } in uplinks {
            let fd = fds.take(tap).map_err(|error| format!("network {network:?}: {error}"))?;
            taps.insert(network, (fd, udp));
        }
        let mut states: HashMap<_, _> =
            nics.into_iter().map(|NicState { name, served }| (name, served)).collect();
        let mut all = Self::default();
        for network in &config.networks {
            let named = |error: String| format!("network {:?}: {error}", network.name);
            let uplink = match (&network.uplink, taps.remove(&network.name)) {
                (None, _) => None,
                (Some(Uplink::Tap(name)), Some(tap)) => Some(OpenTap::adopt(name, tap)),
                (Some(_), None) => return Err(named("its uplink is away".to_owned())),
            };
            let sidecore = all.sidecore_for_next(cores.len());
            let live = live(network, sidecore, cores, uplink.map(OpenedTap)).map_err(named)?;
            all.networks.push(live);
        }
        let taken = config.nics.iter().map(|nic| {
            let named = |error: String| format!("nic {:?}: {error}", nic.name);
            // A mirror begins its file anew, which is the other one's still.
            let without = NicConfig { mirror: None, ..nic.clone() };
            let place = all.place(nic, cores).map_err(named)?;
            let (device, made) = make(&without, place).map_err(named)?;
            let adopted = states.remove(&nic.name).map(|served| {
                let served = fds.served(served).map_err(|error| error.to_string())?;
                let adopted = virtio::adopt(super::socket(nic), Box::new(device), served);
                adopted.map_err(|error| error.to_string())
            });
            let adopted = adopted.transpose().map_err(named)?;
            Ok(TakenNic { config: nic.clone(), made, adopted })
        });
        let taken = taken.collect::<Result<_, String>>()?;
        Ok((all, taken))
    }

    /// Goes on: all of it is this process's. One nic less is better than none.
    pub(in crate::wiring) fn go_on(&mut self, taken: Vec<TakenNic>, cores: &[Core]) {
        for TakenNic { config, made, adopted } in taken {
            let shown = match adopted {
                Some(adopted) => Ok(made.shown(&config, adopted.serve())),
                None => self.place(&config, cores).and_then(|place| super::show(&config, place)),
            };
            let changed = shown.and_then(|mut shown| {
                if config.mirror.is_some() && shown.watched.mirror.is_none() {
                    let without = NicConfig { mirror: None, ..config.clone() };
                    shown.watched.change(&shown.chain, Some(&without), &config)?;
                }
                Ok(shown)
            });
            match changed {
                Ok(shown) => self.nics.push(shown),
                Err(error) => tracing::error!(nic = config.name, error, "the nic is not served"),
            }
        }
        self.set_paused(false);
    }
}

/// What a nic that stands still is to another process: nothing if it was not served.
pub(in crate::wiring) fn nic_state(
    name: &str,
    parked: &mut Parked,
    sent: &mut Sent,
) -> Option<NicState> {
    let served = sent.served(parked.state.take()?);
    Some(NicState { name: name.to_owned(), served })
}
