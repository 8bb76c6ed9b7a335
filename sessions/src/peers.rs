//! Makes peers known to every sidecore, and forgets them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use config::{Config, PeerConfig};
use peer::Planes;

use crate::cores::LinkedSidecore;
use crate::error::ConnectError;
use crate::keys::{self, SidecoreKeys};
use crate::shared::reach_from;

/// Makes a peer what this says, new or changed, with its keys. Gives the configuration with it;
/// none while a channel still needs the address that it had.
///
/// # Errors
/// The fault of a key file; nothing has changed then.
pub fn set(
    cores: &[LinkedSidecore],
    keys: &SidecoreKeys,
    running: &Config,
    peer: &PeerConfig,
) -> Result<Option<Config>, ConnectError> {
    let mut wanted = running.clone();
    let had = wanted.peers.iter_mut().find(|had| had.name == peer.name);
    let before = had.map(|had| std::mem::replace(had, peer.clone()));
    if before.is_none() {
        wanted.peers.push(peer.clone());
    }
    keys::apply(&wanted, keys, cores)?;
    let changed = match &before {
        Some(before) => change(cores, before, peer),
        None => {
            add(cores, peer);
            true
        }
    };
    Ok(changed.then_some(wanted))
}

/// Makes a peer known, if it can be reached. Sessions are opened when a disk needs one.
pub fn add(cores: &[LinkedSidecore], peer: &PeerConfig) {
    let Some(address) = peer.address.as_ref() else { return };
    let Ok(address) = reach_from(cores, address) else { return };
    for core in cores {
        let name = peer.name.clone();
        on_planes(core, move |planes, _| planes.peers().borrow_mut().add(&name, address));
    }
}

/// Makes the node itself known as a peer, for disks that are beside a copy of their volume. Nothing
/// of it is sent by a network: the address is one of this host.
pub(crate) fn add_own(cores: &[LinkedSidecore], own: &str) {
    let Some((mut address, _)) = cores.iter().find_map(|core| core.link.clone()) else { return };
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    for core in cores {
        let name = own.to_owned();
        on_planes(core, move |planes, _| planes.peers().borrow_mut().add(&name, address));
    }
}

/// Reaches a peer at another address. Disks that use it wait for the new session. `false`, and
/// nothing has changed, when it has no address any more and a channel still lets go of it.
pub fn change(cores: &[LinkedSidecore], before: &PeerConfig, peer: &PeerConfig) -> bool {
    let Some(address) = peer.address.as_ref() else { return remove(cores, before) };
    if before.address.as_ref() == Some(address) {
        return true;
    }
    let Ok(address) = reach_from(cores, address) else { return false };
    for core in cores {
        let name = peer.name.clone();
        on_planes(core, move |planes, now_ns| planes.move_peer(now_ns, &name, address));
    }
    true
}

/// Forgets a peer and ends its sessions. `false`, and it stays known, while a channel needs it.
pub fn remove(cores: &[LinkedSidecore], peer: &PeerConfig) -> bool {
    for (done, core) in cores.iter().enumerate() {
        let name = peer.name.clone();
        let removed = on_planes(core, move |planes, now_ns| planes.remove_peer(now_ns, &name));
        if removed == Some(false) {
            add(&cores[..done], peer);
            return false;
        }
    }
    true
}

/// Whether peers may open sessions: whether there is a volume that they may use.
pub fn set_accept(cores: &[LinkedSidecore], accept: bool) {
    for core in cores {
        on_planes(core, move |planes, _| planes.endpoint().borrow_mut().set_accept(accept));
    }
}

/// Runs `f` on a sidecore's planes, if it has any.
fn on_planes<R: Send + 'static>(
    core: &LinkedSidecore,
    f: impl FnOnce(&mut Planes, u64) -> R + Send + 'static,
) -> Option<R> {
    let asked = core.sidecore.call(move |local| {
        let now_ns = local.now_ns();
        let planes = local.services().get::<Planes>()?;
        let answer = f(&mut planes.borrow_mut(), now_ns);
        Some(answer)
    });
    asked.ok().flatten()
}
