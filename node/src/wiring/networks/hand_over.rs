//! Networks and nics with which another process goes on. The addresses that a switch has learned
//! and the counters begin anew there; the conversations that filters keep go over.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use config::{Config, NicConfig};
use handover::{ReceivedDescriptors, SentDescriptors};
use sessions::LinkedSidecore;
use virtio::{Adopted, ParkedServer, Parking};

use super::uplinks::adopt_uplink;
use super::{Nics, PreparedNic, live, make};
use crate::wiring::hand_over::state::{NicState, UplinkState};
use privilege::Opener;

/// More bytes than all conversations of a filter take.
const CONVERSATIONS_BYTES_MAX: u64 = 4 << 20;

/// A nic with which this process can go on.
#[derive(Debug)]
pub(crate) struct TakenNic {
    config: NicConfig,
    made: PreparedNic,
    /// `None` for a nic that was not served.
    adopted: Option<Adopted>,
}

impl Nics {
    /// Begins to stop all nics, and pauses the uplinks.
    pub(crate) fn begin_park(&self, drain: Duration) -> Vec<(String, Parking)> {
        self.set_paused(true);
        let begin =
            |shown: &super::ServedNic| (shown.config.name.clone(), shown.server.begin_park(drain));
        self.nics.iter().map(begin).collect()
    }

    /// Sets whether the uplinks are paused.
    pub(crate) fn set_paused(&self, paused: bool) {
        for live in &self.networks {
            if let Some(uplink) = &live.uplink {
                uplink.core.set_paused(paused);
                // This call wakes the sidecore of the network.
                let _ = live.network.look(|_| ());
            }
        }
    }

    /// The conversations that a nic's filter keeps, if it keeps any.
    pub(crate) fn conversations(&self, nic: &str) -> io::Result<Vec<u8>> {
        let shown = self.nics.iter().find(|shown| shown.config.name == nic);
        let Some(shown) = shown.filter(|shown| shown.watched.filter.is_some()) else {
            return Ok(Vec::new());
        };
        let kept = shown.chain.change(|stages| {
            let filter = stages.filter.as_ref();
            filter.map_or_else(Vec::new, |filter| filter.conversations(sidecore::now_ns()))
        });
        kept.map_err(io::Error::other)
    }

    /// The state of the uplinks that are there.
    pub(crate) fn take_down_uplinks(
        &self,
        sent: &mut SentDescriptors,
    ) -> io::Result<Vec<UplinkState>> {
        let mut states = Vec::new();
        for live in &self.networks {
            let Some(uplink) = &live.uplink else { continue };
            if let Some(open) = uplink.core.take_down(sent)? {
                states.push(UplinkState { network: live.config.name.clone(), open });
            }
        }
        Ok(states)
    }

    /// Makes networks and nics from another process's state. Its guests and uplinks are not touched
    /// before [`Self::go_on`].
    pub(crate) fn adopt(
        config: &Config,
        cores: &[LinkedSidecore],
        (uplinks, nics): (Vec<UplinkState>, Vec<NicState>),
        fds: &mut ReceivedDescriptors,
        opener: &Opener,
    ) -> Result<(Self, Vec<TakenNic>), String> {
        let mut opened: HashMap<_, _> =
            uplinks.into_iter().map(|state| (state.network, state.open)).collect();
        let mut states: HashMap<_, _> =
            nics.into_iter().map(|state| (state.name.clone(), state)).collect();
        let mut all = Self { opener: opener.clone(), ..Self::default() };
        for network in &config.networks {
            let named = |error: String| format!("network {:?}: {error}", network.name);
            let uplink = match (&network.uplink, opened.remove(&network.name)) {
                (None, _) => None,
                (Some(uplink), Some(open)) => {
                    Some(adopt_uplink(uplink, open, fds, opener).map_err(named)?)
                }
                (Some(_), None) => return Err(named("its uplink is away".to_owned())),
            };
            let sidecore = all.sidecore_for_next(cores.len());
            let live = live(network, sidecore, cores, uplink).map_err(named)?;
            all.networks.push(live);
        }
        let taken = config.nics.iter().map(|nic| {
            let named = |error: String| format!("nic {:?}: {error}", nic.name);
            // A mirror begins its file anew, and the file is still the other process's.
            let without = NicConfig { mirror: None, ..nic.clone() };
            let place = all.place(nic, cores).map_err(named)?;
            let (device, made) = make(&without, place).map_err(named)?;
            let adopted =
                states.remove(&nic.name).map(|NicState { served, conversations, .. }| {
                    if let Some(number) = conversations {
                        let kept = fds.take_bytes(number, CONVERSATIONS_BYTES_MAX);
                        let gone_on = kept.and_then(|kept| go_on_with(&made, kept));
                        gone_on.map_err(|error| format!("its filter: {error}"))?;
                    }
                    let served = served.with_descriptors(fds).map_err(|error| error.to_string())?;
                    let adopted = virtio::adopt(super::socket(nic), Box::new(device), served);
                    adopted.map_err(|error| error.to_string())
                });
            let adopted = adopted.transpose().map_err(named)?;
            Ok(TakenNic { config: nic.clone(), made, adopted })
        });
        let taken = taken.collect::<Result<_, String>>()?;
        Ok((all, taken))
    }

    /// Goes on, since everything belongs to this process now. A nic that fails is left out: one nic
    /// less is better than none.
    pub(crate) fn go_on(&mut self, taken: Vec<TakenNic>, cores: &[LinkedSidecore]) {
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

/// Gives a nic's filter the conversations of another process's filter.
fn go_on_with(made: &PreparedNic, conversations: Vec<u8>) -> io::Result<()> {
    let changed = made.chain.change(move |stages| {
        if let Some(filter) = &mut stages.filter {
            filter.go_on_with(&conversations, sidecore::now_ns());
        }
    });
    changed.map_err(io::Error::other)
}

/// The state of a stopped nic for another process: none if it was not served.
pub(crate) fn nic_state(
    name: &str,
    parked: &mut ParkedServer,
    kept: &[u8],
    sent: &mut SentDescriptors,
) -> io::Result<Option<NicState>> {
    let Some(served) = parked.state.take() else { return Ok(None) };
    let served = served.numbered(sent);
    let is_any = !kept.is_empty();
    let conversations = is_any.then(|| sent.put_bytes("conversations", kept)).transpose()?;
    Ok(Some(NicState { name: name.to_owned(), served, conversations }))
}
