//! The links of a node, opened while it still has its rights.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use config::{Config, LinkKind};
use link::{Link, Udp, UdpConfig, Wire, Xdp, XdpInterface};

use crate::error::ConnectError;

/// A link for each sidecore: a socket, and where the configuration asks for it a way past the
/// system's network stack beside it. Sidecore `i` takes the interface's receive queue `i`.
///
/// # Errors
/// When the address is not ours, or taken.
pub fn open(config: &Config) -> Result<Vec<Wire>, ConnectError> {
    let sockets = bind(config)?;
    let Some(listen) = sockets.first().map(Link::local_addr) else { return Ok(Vec::new()) };
    let kind = config.link.kind;
    let attached = match kind {
        LinkKind::Udp => return Ok(through_the_stack(sockets)),
        LinkKind::Xdp => XdpInterface::attach(listen),
        LinkKind::Auto => XdpInterface::attach_if_zero_copy(listen),
    };
    let opened = match attached {
        Ok(interface) => past_the_stack(sockets, &interface, kind),
        Err(error) => Err((sockets, error.to_string())),
    };
    Ok(opened.unwrap_or_else(|(sockets, why)| {
        match kind {
            LinkKind::Auto => tracing::info!(%listen, why, "datagrams go by UDP"),
            _ => tracing::warn!(%listen, why, "no AF_XDP here: datagrams go by UDP"),
        }
        through_the_stack(sockets)
    }))
}

fn through_the_stack(sockets: Vec<Udp>) -> Vec<Wire> {
    sockets.into_iter().map(Wire::from).collect()
}

/// Gives each socket the receive queue of its number. A socket whose queue cannot be had uses UDP.
///
/// # Errors
/// The sockets and the reason, where the configuration refuses copies and a queue would copy. A
/// card shows whether it copies only when a queue is bound, for this queue only.
fn past_the_stack(
    sockets: Vec<Udp>,
    interface: &Arc<XdpInterface>,
    kind: LinkKind,
) -> Result<Vec<Wire>, (Vec<Udp>, String)> {
    let past = |(queue, udp): (usize, Udp)| match Xdp::new(udp, interface, queue as u32) {
        Ok(xdp) => Wire::from(xdp),
        Err(refused) => {
            let (error, udp) = *refused;
            let why = error.to_string();
            tracing::warn!(queue, why, "no AF_XDP for this sidecore: its datagrams go by UDP");
            Wire::from(udp)
        }
    };
    let wires: Vec<_> = sockets.into_iter().enumerate().map(past).collect();
    let taken = wires.iter().enumerate().filter_map(|(queue, wire)| Some((queue, wire.xdp()?)));
    let copies = taken.clone().find(|(_, xdp)| !xdp.is_zero_copy()).map(|(queue, _)| queue);
    if let (LinkKind::Auto, Some(queue)) = (kind, copies) {
        let why = format!(
            "{} copies the frames of its queue {queue}; link = \"xdp\" would accept that",
            interface.name()
        );
        return Err((wires.into_iter().map(Wire::into_udp).collect(), why));
    }
    for (queue, xdp) in taken {
        let (interface, zero_copy) = (interface.name(), xdp.is_zero_copy());
        tracing::info!(interface, queue, zero_copy, "datagrams go past the network stack");
    }
    Ok(wires)
}

/// A socket for each sidecore: the first at the address that peers know, the others beside it or,
/// where that address is taken, anywhere. None without an address.
///
/// # Errors
/// When the address is not ours, or taken.
fn bind(config: &Config) -> Result<Vec<Udp>, ConnectError> {
    let Some(listen) = config.listen else { return Ok(Vec::new()) };
    let refuse = |source| ConnectError::Listen {
        place: config.place(&config.lines, "listen"),
        source: Box::new(source),
    };
    // A killed predecessor's socket goes a moment after its locks.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const LISTEN: &str = "10.9.5.1:0";

    fn ip(words: &str) -> bool {
        Command::new("ip").args(words.split(' ')).status().is_ok_and(|status| status.success())
    }

    /// A virtual cable with two receive queues, which copies, in a network namespace of this
    /// thread.
    fn cable() -> bool {
        // SAFETY: only this thread changes its namespace.
        let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        is_apart
            && ip("link add near numrxqueues 2 numtxqueues 2 type veth peer name far")
            && ip("addr add 10.9.5.1/24 dev near")
            && ip("link set far up")
            && ip("link set near up")
    }

    #[test]
    fn a_queue_that_copies_is_refused_where_zero_copy_is_wanted() {
        if !rustix::process::geteuid().is_root() || !cable() {
            let name = "a_queue_that_copies_is_refused_where_zero_copy_is_wanted";
            return println!("SKIP {name}: no network namespace, or no virtual cable");
        }
        let sockets =
            || [(); 2].map(|()| Udp::bind(UdpConfig::new(LISTEN.parse().unwrap())).unwrap());
        let interface = XdpInterface::attach(LISTEN.parse().unwrap()).unwrap();
        let two = sockets();
        let addresses = two.each_ref().map(Link::local_addr);
        let refused = past_the_stack(two.into(), &interface, LinkKind::Auto);
        let (left, why) = refused.map(|wires| wires.len()).unwrap_err();
        assert!(why.contains("near copies the frames of its queue 0"), "{why}");
        assert!(left.iter().map(Link::local_addr).eq(addresses), "the same sockets, in order");
        // Both queues are free again, and a caller that permits copies gets them.
        let taken = past_the_stack(sockets().into(), &interface, LinkKind::Xdp).unwrap();
        assert!(taken.iter().all(|wire| wire.xdp().is_some()), "{taken:?}");
        drop((left, taken, interface));
        // No driver is asked for an interface that cannot do it.
        let refused = XdpInterface::attach_if_zero_copy(LISTEN.parse().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("read and write our memory"), "{refused}");
    }
}
