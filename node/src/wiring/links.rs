//! The ways of a node's datagrams: opened while it still has its rights.

use std::io::ErrorKind;
use std::net::SocketAddr;

use link::{Link, Udp, UdpConfig, Wire, Xdp, XdpInterface};

use super::StartError;
use crate::config::{Config, LinkKind};

/// A link for each sidecore: a socket, and where the configuration asks for it a way past the
/// system's network stack beside it. Sidecore `i` takes the interface's receive queue `i`.
///
/// # Errors
/// When the address is not ours, or taken.
pub(super) fn open(config: &Config) -> Result<Vec<Wire>, StartError> {
    let sockets = bind(config)?;
    let Some(listen) = sockets.first().map(Link::local_addr) else { return Ok(Vec::new()) };
    let attached = match config.link.kind {
        LinkKind::Udp => return Ok(sockets.into_iter().map(Wire::from).collect()),
        LinkKind::Xdp => XdpInterface::attach(listen),
        LinkKind::Auto => XdpInterface::attach_if_zero_copy(listen),
    };
    let interface = match attached {
        Ok(interface) => interface,
        Err(error) => {
            let why = error.to_string();
            match config.link.kind {
                LinkKind::Auto => tracing::info!(%listen, why, "datagrams go by UDP"),
                _ => tracing::warn!(%listen, why, "no AF_XDP here: datagrams go by UDP"),
            }
            return Ok(sockets.into_iter().map(Wire::from).collect());
        }
    };
    let past = |(queue, udp): (usize, Udp)| match Xdp::new(udp, &interface, queue as u32) {
        Ok(xdp) => {
            let (interface, zero_copy) = (interface.name(), xdp.is_zero_copy());
            tracing::info!(interface, queue, zero_copy, "datagrams go past the network stack");
            Wire::from(xdp)
        }
        Err(refused) => {
            let (error, udp) = *refused;
            let why = error.to_string();
            tracing::warn!(queue, why, "no AF_XDP for this sidecore: its datagrams go by UDP");
            Wire::from(udp)
        }
    };
    Ok(sockets.into_iter().enumerate().map(past).collect())
}

/// A socket for each sidecore: the first at the address that peers know, the others beside it or,
/// where that is taken, anywhere. None without an address.
///
/// # Errors
/// When the address is not ours, or taken.
fn bind(config: &Config) -> Result<Vec<Udp>, StartError> {
    let Some(listen) = config.listen else { return Ok(Vec::new()) };
    let refuse = |source| StartError::Listen {
        place: config.place(&config.lines, "listen"),
        source: Box::new(source),
    };
    // A predecessor's socket goes a moment after its locks.
    let first = crate::lock::patiently(|| match Udp::bind(UdpConfig::new(listen)) {
        Err(error) if error.source.kind() == ErrorKind::AddrInUse => None,
        bound => Some(bound),
    });
    let first = first.unwrap_or_else(|| Udp::bind(UdpConfig::new(listen))).map_err(refuse)?;
    let base = first.local_addr();
    let mut links = vec![first];
    for index in 1..config.sidecores.cores.len() {
        let beside = base.port().checked_add(index as u16);
        let at = |port| UdpConfig::new(SocketAddr::new(base.ip(), port));
        let link = beside.map(|port| Udp::bind(at(port)));
        match link {
            Some(Ok(link)) => links.push(link),
            _ => {
                let link = Udp::bind(at(0)).map_err(refuse)?;
                let (port, listen) = (link.local_addr().port(), base);
                tracing::info!(index, port, %listen, "the sidecore's port beside it is taken");
                links.push(link);
            }
        }
    }
    Ok(links)
}
