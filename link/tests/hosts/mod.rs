//! Two network namespaces on a virtual cable, for links past the network stack.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

use link::{Udp, UdpConfig, Xdp, XdpInterface};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two hosts with a cable between them; gone when dropped.
pub(crate) struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// With a cable whose ends have so many queues to send by, and what the greater of them takes
    /// to receive by; `None` without the right to make namespaces.
    pub(crate) fn new(test: &str, mtu: &str, send_queues: [u32; 2]) -> Option<Self> {
        let name = |host| format!("vrio-xdp-{test}-{}-{host}", std::process::id());
        let hosts = Self { names: ["a", "b"].map(name) };
        for name in &hosts.names {
            if !ip(&["netns", "add", name]) {
                println!("SKIP {test}: no right to make a network namespace, or no `ip`");
                return None;
            }
        }
        let [a, b] = &hosts.names;
        let [one, other] = send_queues.map(|queues| queues.to_string());
        let queues = (&one).max(&other);
        let ends = ["link", "add", "cable", "netns", a, "mtu", mtu, "numrxqueues", queues];
        let more = ["numtxqueues", &one, "type", "veth", "peer", "name", "cable", "netns", b];
        let peer = ["mtu", mtu, "numrxqueues", queues, "numtxqueues", &other];
        assert!(ip(&[&ends[..], &more, &peer].concat()));
        for (host, address) in [(a, "10.9.3.1/24"), (b, "10.9.3.2/24")] {
            assert!(ip(&["-n", host, "addr", "add", address, "dev", "cable"]));
            assert!(ip(&["-n", host, "link", "set", "cable", "up"]));
            assert!(ip(&["-n", host, "link", "set", "lo", "up"]));
        }
        Some(hosts)
    }

    /// Runs `f` on a thread in host 0 or 1. Sockets that `f` opens stay there.
    pub(crate) fn inside<T: Send + 'static>(
        &self,
        host: usize,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.names[host])).expect("is there");
        let on_thread = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("the right to");
            f()
        };
        std::thread::spawn(on_thread).join().expect("it goes well")
    }

    pub(crate) fn address(host: usize, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 9, 3, host as u8 + 1], port))
    }

    /// A host's interface, with the program.
    pub(crate) fn attach(&self, host: usize) -> Arc<XdpInterface> {
        self.inside(host, move || {
            let interface = XdpInterface::attach(Self::address(host, 0)).expect("nobody else");
            assert_eq!(interface.name(), "cable");
            interface
        })
    }

    /// Links at it, one for each of its first `count` queues, in their order.
    pub(crate) fn xdp(&self, host: usize, at: &Arc<XdpInterface>, count: u32) -> Vec<Xdp> {
        let at = Arc::clone(at);
        self.inside(host, move || {
            let open = |queue| Xdp::new(bind(Self::address(host, 0)), &at, queue);
            (0..count).map(|queue| open(queue).map_err(|error| error.0).expect("free")).collect()
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

pub(crate) fn bind(listen: SocketAddr) -> Udp {
    Udp::bind(UdpConfig::new(listen)).expect("its own address")
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}
