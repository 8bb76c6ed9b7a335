//! Ways out of networks: opened, attached, looked after.

use std::collections::BTreeMap;
use std::sync::Arc;

use net::uplink::{Keeper, OpenTap, OpenUplink, OpenXdp, UplinkCore, UplinkError, UplinkFds};
use net::{Attached, Network, PortCounters, PortOptions};

use super::cables::Cables;
use super::text;
use crate::config::{Config, NetworkConfig, Uplink};
use crate::privilege::Opener;
use crate::wiring::ObjectError;

/// An uplink that was opened while the process had more rights.
#[derive(Debug)]
pub(in crate::wiring) struct OpenedUplink(OpenUplink);

/// Opens the uplinks of the file. Interfaces that vanish are opened again by `opener`.
///
/// # Errors
/// Those that cannot be opened, and what to do.
pub(in crate::wiring) fn open_uplinks(
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
                text: error.to_string(),
            }),
        }
    }
    if errors.is_empty() { Ok(opened) } else { Err(errors) }
}

pub(super) fn open_uplink(
    network: &NetworkConfig,
    opener: &Opener,
) -> Result<Option<OpenedUplink>, UplinkError> {
    let opened: OpenUplink = match &network.uplink {
        None => return Ok(None),
        Some(Uplink::Tap(interface)) => OpenTap::new(interface)?.into(),
        Some(Uplink::Xdp(interface)) => OpenXdp::new(interface, Arc::new(opener.clone()))?.into(),
    };
    Ok(Some(OpenedUplink(opened)))
}

/// Goes on with what another process has opened.
pub(super) fn adopt_uplink(
    uplink: &Uplink,
    fds: UplinkFds,
    opener: &Opener,
) -> Result<OpenedUplink, String> {
    let adopted: OpenUplink = match (uplink, fds) {
        (Uplink::Tap(name), UplinkFds::Tap { fd, udp }) => OpenTap::adopt(name, fd, udp).into(),
        (Uplink::Xdp(name), UplinkFds::Xdp(fds)) => {
            // SAFETY: the other process has set it to be paused before it told of it, and goes on
            // with it only where it has not said that it is ours. Before that it is paused here,
            // and it is dropped if that is never said.
            let adopted = unsafe { OpenXdp::adopt(name, fds, Arc::new(opener.clone())) };
            adopted.map_err(text)?.into()
        }
        _ => return Err("its uplink is of another kind".to_owned()),
    };
    Ok(OpenedUplink(adopted))
}

/// An uplink that is attached. Fields go in this order: the port before who looks after it.
#[derive(Debug)]
pub(super) struct Attachment {
    _port: Attached,
    _keeper: Keeper,
    pub(super) core: Arc<UplinkCore>,
    pub(super) counters: Arc<PortCounters>,
}

impl Attachment {
    /// Attaches an uplink to its network, whose cables are pulled while it is away.
    pub(super) fn new(
        OpenedUplink(uplink): OpenedUplink,
        network: &Network,
        cables: &Arc<Cables>,
    ) -> Result<Self, String> {
        let (counters, shared) = (Arc::<PortCounters>::default(), Arc::clone(cables));
        let told = move |is_there| shared.set_uplink(is_there);
        let waker = network.sidecore().waker();
        let parts = uplink.into_parts(Arc::clone(&counters), waker, told);
        let (make, core, keeper) = parts.map_err(text)?;
        let shared = Arc::clone(&counters);
        let port =
            network.attach(PortOptions::of_uplink(), shared, move |_| make()).map_err(text)?;
        Ok(Self { _port: port, _keeper: keeper, core, counters })
    }
}
