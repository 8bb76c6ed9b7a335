//! Programs of others that serve or measure disks: which are installed, and their arguments.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::peer::{DISK_BYTES, DiskClient, DiskPeer, PeerPort, SOCKET, name};
use super::spdk::{self, Spdk};
use crate::running::{Made, Ready, ServerProcess, Service, ServiceCable, find};
use testbed::machine::cores;
use testbed::stage::{IOHOST, VMHOST};

/// How long a thread of the daemon polls that has a core to itself: all the time.
const POLL_MAX_NS: u64 = 100_000_000;

/// The peers that are installed, and those that are missing.
#[derive(Clone, Debug)]
pub(super) struct DiskPeers {
    /// The daemon of `PATH`, and others: versions differ much.
    daemons: Vec<PathBuf>,
    nbdkit: Option<PathBuf>,
    fio: Option<PathBuf>,
    spdk: Option<Spdk>,
    /// Names of peers that are not installed, and where they come from.
    pub(super) missing: Vec<String>,
}

impl DiskPeers {
    /// Looks for programs; SPDK's also in a folder where it was built. Further daemons are given.
    pub(super) fn find(spdk: Option<&Path>, daemons: &[PathBuf]) -> Self {
        let mut missing = Vec::new();
        let mut look = |program: &str, from: &str| {
            let found = find(program);
            if found.is_none() {
                missing.push(format!("{program} ({from})"));
            }
            found
        };
        let daemon = look("qemu-storage-daemon", "Debian: qemu-utils");
        let nbdkit = look("nbdkit", "Debian: nbdkit");
        let fio = look("fio", "Debian: fio");
        let spdk = Spdk::find(spdk).map_err(|why| missing.push(why)).ok();
        missing.extend(spdk.iter().flat_map(Spdk::missing));
        let daemons = daemon.into_iter().chain(daemons.iter().cloned()).collect();
        Self { daemons, nbdkit, fio, spdk, missing }
    }

    /// Local null disks.
    pub(super) fn null(&self) -> Vec<DiskPeer> {
        let node = format!("driver=null-co,node-name=disk,size={DISK_BYTES},read-zeroes=off");
        let spdk = self.spdk.iter().flat_map(|spdk| spdk.vhosts(false));
        self.daemons.iter().map(|program| daemon(program, &node, None, 2)).chain(spdk).collect()
    }

    /// Local disks in a process's memory.
    pub(super) fn memory(&self) -> Vec<DiskPeer> {
        self.spdk.iter().flat_map(|spdk| spdk.vhosts(true)).collect()
    }

    /// Local disks in this file, through the page cache or around it; and the file itself.
    pub(super) fn file(&self, file: &Path, direct: bool) -> Vec<DiskPeer> {
        let (path, on) = (file.display(), if direct { "on" } else { "off" });
        let node =
            format!("driver=file,node-name=disk,filename={path},aio=io_uring,cache.direct={on}");
        let bare = |name: &str, engine: &str, depth_max| {
            let direct = format!("--direct={}", u8::from(direct));
            let engine = format!("--ioengine={engine}");
            let words = [&*engine, &format!("--filename={path}"), &direct];
            let client = DiskClient::fio(self.fio.as_ref()?, &words);
            let service = Service { file: Some(made(file)), ..Service::default() };
            Some(DiskPeer { name: name.to_owned(), service, client, depth_max })
        };
        let io_uring = bare(name::FIO, "io_uring", None);
        // Around the page cache it would be one more disk's latency.
        let psync = bare(name::FIO_PSYNC, "psync", Some(1)).filter(|_| !direct);
        let daemons = self.daemons.iter().map(|program| daemon(program, &node, Some(file), 2));
        daemons.chain(io_uring).chain(psync).collect()
    }

    /// A disk in another process's memory, by NBD, as a third process shows it. The two are on the
    /// hosts of the cable, if there is one.
    pub(super) fn remote(&self, cable: Option<ServiceCable>) -> Vec<DiskPeer> {
        let (Some(nbdkit), Some(number)) = (self.nbdkit_server(), free_port()) else {
            return Vec::new();
        };
        let port = PeerPort { number, cable };
        let node = format!(
            "driver=nbd,node-name=disk,server.type=inet,server.host={},server.port={number}",
            port.address()
        );
        let peer = self.daemons.first().map(|program| {
            let mut peer = daemon(program, &node, None, 3);
            peer.name = name::DAEMON_NBD.to_owned();
            peer.service.servers.insert(0, nbdkit(port));
            peer.service.cable = cable;
            peer
        });
        peer.into_iter().collect()
    }

    /// The same where the client drives it itself.
    pub(super) fn direct(&self, cable: Option<ServiceCable>) -> Vec<DiskPeer> {
        let Some(number) = free_port() else { return Vec::new() };
        let port = PeerPort { number, cable };
        let nbdkit = self.nbdkit_server().zip(self.fio.as_ref()).map(|(nbdkit, fio)| {
            let words = ["--ioengine=nbd", &format!("--uri=nbd://{}/", port.socket())];
            DiskPeer {
                name: name::NBDKIT.to_owned(),
                service: Service { servers: vec![nbdkit(port)], cable, ..Service::default() },
                client: DiskClient::fio(fio, &words),
                depth_max: None,
            }
        });
        let spdk = self.spdk.as_ref().and_then(|spdk| spdk.nvme(port));
        [nbdkit, spdk].into_iter().flatten().collect()
    }

    /// Huge pages that the peers which are there need, in MiB.
    pub(super) fn huge_mib(&self) -> u64 {
        self.spdk.as_ref().map_or(0, |_| spdk::HUGE_MIB)
    }

    /// Removes the peers that need huge pages, for this reason.
    pub(super) fn without_huge_pages(&mut self, why: &str) {
        if self.spdk.take().is_some() {
            self.missing.push(format!("SPDK ({why})"));
        }
    }

    fn nbdkit_server(&self) -> Option<impl Fn(PeerPort) -> ServerProcess> {
        let program = self.nbdkit.as_ref()?.display().to_string();
        Some(move |port: PeerPort| {
            let (address, number) = (port.address().to_string(), port.number.to_string());
            let words = ["--foreground", "--exit-with-parent", "-i", &address, "-p"];
            let rest = [number.as_str(), "memory", &DISK_BYTES.to_string()].map(str::to_owned);
            let words = std::iter::once(program.clone())
                .chain(words.map(str::to_owned))
                .chain(rest)
                .collect();
            let ready = Ready::Listens(port.socket());
            ServerProcess { words, ready, pinned: false, host: IOHOST }
        })
    }
}

/// A daemon that exports a block node. Its thread polls where `busy` threads, the driver's among
/// them, have a core each. Where they share cores it sleeps, as our sidecores do not spin there
/// either.
pub(crate) fn daemon(program: &Path, node: &str, file: Option<&Path>, busy: usize) -> DiskPeer {
    let export = "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,\
                  addr.path=FOLDER/socket,writable=on,iothread=poller";
    let poll_max_ns = if cores().len() < busy { 0 } else { POLL_MAX_NS };
    let thread = format!("iothread,id=poller,poll-max-ns={poll_max_ns}");
    let words = ["--object", &thread, "--blockdev", node, "--export", export];
    let first = program.display().to_string();
    let words = std::iter::once(first).chain(words.map(str::to_owned)).collect();
    let ready = Ready::Sockets(&[SOCKET]);
    let servers = vec![ServerProcess { words, ready, pinned: false, host: VMHOST }];
    DiskPeer {
        name: format!("{} {}", name::DAEMON, version(program).unwrap_or_default()),
        service: Service { servers, file: file.map(made), ..Service::default() },
        client: DiskClient::Driver,
        depth_max: None,
    }
}

/// The version that a program of QEMU prints.
fn version(program: &Path) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    said.split_once(" version ")?.1.split_whitespace().next().map(str::to_owned)
}

/// A file for a disk.
fn made(path: &Path) -> Made {
    Made { path: path.to_owned(), bytes: DISK_BYTES }
}

/// A port that the system does not give to others, as our nodes' are.
fn free_port() -> Option<u16> {
    let first = 24_500 + (std::process::id() % 3_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..first + 100).find(is_free)
}
