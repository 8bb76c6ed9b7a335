//! A peer as it is started: its servers, and the client that puts requests in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::running::{Service, ServiceCable};
use testbed::stage::IO_ADDRESS;

pub(super) use bench::measure::DISK_BYTES;

/// The name of a disk's socket, in the folder of a turn.
pub(crate) const SOCKET: &str = "socket";

/// The names of peers, as tables have them and goals refer to them.
pub(super) mod name {
    /// Its version follows.
    pub(crate) const DAEMON: &str = "qemu-storage-daemon";
    pub(crate) const DAEMON_NBD: &str = "nbdkit + qemu-storage-daemon";
    pub(crate) const NBDKIT: &str = "nbdkit, by fio's NBD client";
    pub(crate) const FIO: &str = "fio io_uring, without a server";
    /// For information: nothing is faster than a copy on the asking thread.
    pub(crate) const FIO_PSYNC: &str = "fio psync, without a server";
    pub(crate) const SPDK_VHOST: &str = "SPDK vhost";
    /// For information: another driver on the same server.
    pub(crate) const SPDK_BDEVPERF: &str = "SPDK vhost, by SPDK's own driver";
    pub(crate) const SPDK_NVME: &str = "SPDK NVMe/TCP, by its own client";
}

/// The port at which a peer's server of another host listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerPort {
    /// Its number.
    pub(super) number: u16,
    /// The cable to its host; without it, the server listens on the loopback device.
    pub(super) cable: Option<ServiceCable>,
}

impl PeerPort {
    /// The server's address.
    pub(super) fn address(self) -> IpAddr {
        let far = IO_ADDRESS.parse().expect("the constant is an address");
        if self.cable.is_some() { far } else { Ipv4Addr::LOCALHOST.into() }
    }

    /// The address with the port.
    pub(super) fn socket(self) -> SocketAddr {
        (self.address(), self.number).into()
    }
}

/// A peer as it is started.
#[derive(Clone, Debug)]
pub(crate) struct DiskPeer {
    /// Its name in tables.
    pub(crate) name: String,
    /// Its servers.
    pub(crate) service: Service,
    /// The client that puts requests in.
    pub(super) client: DiskClient,
    /// Its client has no more requests outstanding.
    pub(super) depth_max: Option<u16>,
}

impl DiskPeer {
    /// Whether it is one of SPDK's, which take long to start.
    pub(super) fn is_slow(&self) -> bool {
        self.service.config.is_some()
    }
}

/// The client that puts requests in.
#[derive(Clone, Debug)]
pub(super) enum DiskClient {
    /// Our driver, at the vhost-user socket.
    Driver,
    /// fio: its path, and its words for the disk.
    Fio(PathBuf, Vec<String>),
    /// SPDK's NVMe/TCP initiator.
    NvmePerf {
        /// Its path.
        program: PathBuf,
        /// The address of the disk, in the tool's own form.
        target: String,
    },
    /// SPDK's driver, at the vhost-user socket.
    BdevPerf(PathBuf),
}

impl DiskClient {
    /// fio, with words for the disk.
    pub(super) fn fio(program: &Path, words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned());
        Self::Fio(program.to_owned(), words.collect())
    }
}
