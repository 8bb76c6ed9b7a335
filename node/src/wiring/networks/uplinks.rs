//! The uplinks of networks: opened, attached, watched.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::{Config, NetworkConfig};
use handover::ReceivedDescriptors;
use net::uplink::{
    Cards, HandedInterface, Keeper, OpenUplink, UplinkConfig, UplinkCore, UplinkParts,
};
use net::{Attached, Network, PortCounters, PortOptions};
use serde_json::Value;

use super::cables::Cables;
use crate::wiring::ObjectError;
use privilege::Opener;

/// An uplink that was opened while the process had more rights.
#[derive(Debug)]
pub(crate) struct OpenedUplink(OpenUplink);

/// Opens the uplinks of the file. Interfaces that vanish are opened again by `opener`.
///
/// # Errors
/// The uplinks that cannot be opened, and the way out.
pub(crate) fn open_uplinks(
    config: &Config,
    opener: &Opener,
) -> Result<BTreeMap<String, OpenedUplink>, Vec<ObjectError>> {
    let (mut opened, mut errors) = (BTreeMap::new(), Vec::new());
    for network in &config.networks {
        match open_uplink(network, opener) {
            Ok(None) => {}
            Ok(Some(uplink)) => {
                opened.insert(network.name.clone(), uplink);
            }
            Err(error) => errors.push(ObjectError {
                place: config.place(&network.lines, "uplink"),
                object: format!("network {:?}", network.name),
                text: error,
            }),
        }
    }
    if errors.is_empty() { Ok(opened) } else { Err(errors) }
}

pub(crate) fn open_uplink(
    network: &NetworkConfig,
    opener: &Opener,
) -> Result<Option<OpenedUplink>, String> {
    let Some(uplink) = &network.uplink else { return Ok(None) };
    uplink.open(&cards(opener)).map(|opened| Some(OpenedUplink(opened)))
}

fn cards(opener: &Opener) -> Arc<dyn Cards> {
    Arc::new(opener.clone())
}

/// Goes on with the interface that another process has open.
pub(crate) fn adopt_uplink(
    uplink: &UplinkConfig,
    state: Value,
    received: &mut ReceivedDescriptors,
    opener: &Opener,
) -> Result<OpenedUplink, String> {
    // SAFETY: the other process has set it to be paused before it told of it, and goes on with it
    // only where it has not said that it is ours. Before that it is paused here, and it is dropped
    // if that is never said.
    let handed = unsafe { HandedInterface::new(state, received) };
    uplink.adopt(handed, &cards(opener)).map(OpenedUplink)
}

/// An attached uplink. The fields are dropped in this order: the port before its keeper.
#[derive(Debug)]
pub(crate) struct AttachedUplink {
    _port: Attached,
    _keeper: Keeper,
    pub(crate) core: Arc<UplinkCore>,
    pub(crate) counters: Arc<PortCounters>,
}

impl AttachedUplink {
    /// Attaches an uplink to its network, whose cables are pulled while it is away.
    pub(crate) fn new(
        OpenedUplink(uplink): OpenedUplink,
        network: &Network,
        cables: &Arc<Cables>,
    ) -> Result<Self, String> {
        let (counters, shared) = (Arc::<PortCounters>::default(), Arc::clone(cables));
        let told = move |is_there| shared.set_uplink(is_there);
        let waker = network.sidecore().waker();
        let parts = uplink.into_parts(Arc::clone(&counters), waker, told);
        let UplinkParts { make, core, keeper } = parts?;
        let shared = Arc::clone(&counters);
        let port = network
            .attach(PortOptions::of_uplink(), shared, move |_| make())
            .map_err(|error| error.to_string())?;
        Ok(Self { _port: port, _keeper: keeper, core, counters })
    }
}
