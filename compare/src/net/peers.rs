//! Switches of others: which are installed, and their arguments.
//!
//! Both are DPDK's. They poll on the core that our sidecore has in its turn, and serve two
//! vhost-user sockets that our driver connects to. They keep their memory to themselves
//! (`--in-memory`), so that no file of it is left behind.

use std::path::{Path, PathBuf};
use std::process::Command;

use net::ether::ETHER_BYTES;
use net::nic::MTU;

use crate::running::{FOLDER, Ready, ServerProcess, Service, find};
use testbed::machine::cores;
use testbed::stage::VMHOST;

/// The names of peers, as tables have them and goals refer to them.
pub(super) mod name {
    pub(crate) const TESTPMD: &str = "DPDK testpmd between two vhost ports";
    /// Its version follows.
    pub(crate) const OVS: &str = "Open vSwitch with DPDK";
    pub(crate) const TAPS: &str = "tap and bridge, by one thread at both taps";
    pub(crate) const TCP: &str = "TCP over the same cable";
    /// Our contestants between nodes.
    pub(crate) const PORTS: &str = "vrio, port to port";
    pub(crate) const THROUGH: &str = "vrio through an IOhost";
}

/// The names of both guests' sockets, in the folder of a turn.
pub(super) const SOCKETS: [&str; 2] = ["one", "two"];

/// The longest frame that no peer has to cut.
pub(super) const WHOLE_BYTES_MAX: u32 = ETHER_BYTES as u32 + MTU as u32;

/// Huge pages, in MiB. Open vSwitch wants room for 262,144 packets, and works with less. testpmd
/// has room for 16,384.
const OVS_MIB: u64 = 1_100;
const TESTPMD_MIB: u64 = 300;

/// The options of DPDK's environment: no cards, and no files for memory.
const ALONE: [&str; 3] = ["--no-pci", "--in-memory", "--no-telemetry"];

/// The switch of Open vSwitch, and the sockets that appear when it is set up.
const BRIDGE: &str = "bench";
const OVS_READY: &[&str] = &["one", "two", "bench.mgmt"];
const DATABASE_READY: &[&str] = &["database"];

/// Debian's path of the one of two `ovs-vswitchd` that has DPDK, and the usual path of the schema
/// of its database.
const OVS_OF_DEBIAN: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const OVS_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// A switch as it is started.
#[derive(Clone, Debug)]
pub(super) struct SwitchPeer {
    /// Its name in tables.
    pub(super) name: String,
    /// Its servers.
    pub(super) service: Service,
    /// The longest frame that it lets through.
    pub(super) size_bytes_max: u32,
    /// Huge pages that it takes, in MiB.
    huge_mib: u64,
}

/// The peers that are installed, and those that are missing.
#[derive(Clone, Debug)]
pub(super) struct SwitchPeers {
    pub(super) found: Vec<SwitchPeer>,
    /// Names of peers that are not installed, and where they come from.
    pub(super) missing: Vec<String>,
}

impl SwitchPeers {
    /// Looks for programs.
    pub(super) fn find() -> Self {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let &[core, _, ..] = &cores()[..] else {
            let why = "they poll: they need a core besides the driver's";
            missing.push(format!("{}, {} ({why})", name::TESTPMD, name::OVS));
            return Self { found, missing };
        };
        match find("dpdk-testpmd") {
            Some(program) => found.push(testpmd(&program, core)),
            None => missing.push(format!("{} (Debian: dpdk-dev)", name::TESTPMD)),
        }
        match ovs(core) {
            Some(peer) => found.push(peer),
            None => missing.push(format!("{} (Debian: openvswitch-switch-dpdk)", name::OVS)),
        }
        Self { found, missing }
    }

    /// Huge pages for any of the peers that are there, in MiB.
    pub(super) fn huge_mib(&self) -> u64 {
        self.found.iter().map(|peer| peer.huge_mib).max().unwrap_or(0)
    }

    /// Removes all peers, for this reason.
    pub(super) fn without_huge_pages(&mut self, why: &str) {
        let lost = self.found.drain(..).map(|peer| format!("{} ({why})", peer.name));
        self.missing.extend(lost);
    }
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}

/// DPDK's testpmd, which forwards all frames of each port to the other one.
fn testpmd(program: &Path, core: usize) -> SwitchPeer {
    let program = program.display().to_string();
    // Its first thread sleeps, the second one polls.
    let threads = format!("0@{core},1@{core}");
    let port = |at: usize| {
        let socket = SOCKETS[at];
        format!("net_vhost{at},iface={FOLDER}/{socket},queues=1")
    };
    let ports = [port(0), port(1)];
    let memory = TESTPMD_MIB.to_string();
    let own = ["--lcores", &threads, "-m", &memory, "--vdev", &ports[0], "--vdev", &ports[1]];
    // Without a terminal it runs only as long as it has something to print: statistics, once an
    // hour.
    let more = ["--", "--forward-mode=io", "--nb-cores=1", "--stats-period=3600"];
    let packets = ["--total-num-mbufs=16384", "--mbcache=256", "--disable-link-check"];
    let all = [&*program].into_iter().chain(ALONE).chain(own).chain(more).chain(packets);
    let server = ServerProcess {
        words: words(all),
        ready: Ready::Sockets(&SOCKETS),
        pinned: true,
        host: VMHOST,
    };
    SwitchPeer {
        name: name::TESTPMD.to_owned(),
        service: Service { servers: vec![server], ..Service::default() },
        size_bytes_max: WHOLE_BYTES_MAX,
        huge_mib: TESTPMD_MIB,
    }
}

/// Open vSwitch with a database of its own, a switch with two ports, and two flows.
fn ovs(core: usize) -> Option<SwitchPeer> {
    let tools = ["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-ofctl"];
    let tools: Vec<_> = tools.into_iter().map(find).collect::<Option<_>>()?;
    let tool = |at: usize| tools[at].display().to_string();
    let of_debian = Some(PathBuf::from(OVS_OF_DEBIAN)).filter(|file| file.is_file());
    let (program, version) = of_debian.into_iter().chain(find("ovs-vswitchd")).find_map(|it| {
        let version = with_dpdk(&it)?;
        Some((it.display().to_string(), version))
    })?;
    let folder = format!("OVS_RUNDIR={FOLDER}");
    let database = format!("unix:{FOLDER}/database");
    let step = |command: &[&str], ready| {
        let words = words(["env", &folder].into_iter().chain(command.iter().copied()));
        ServerProcess { words, ready, pinned: true, host: VMHOST }
    };
    let file = format!("{FOLDER}/configuration");
    let listens = format!("--remote=p{database}");
    let connects = format!("--db={database}");
    let (settings, vsctl) = (ovs_settings(core), tool(2));
    let set = [&*vsctl, &*connects, "--no-wait"];
    let set: Vec<_> = set.into_iter().chain(settings.iter().map(String::as_str)).collect();
    let core = core.to_string();
    // The switch is an interface of the kernel too, so it gets a network namespace of its own.
    let switch = ["unshare", "--net", "taskset", "-c", &core, &program, &database];
    let flow = |flow: &str| step(&[&tool(3), "add-flow", BRIDGE, flow], Ready::Ended);
    let servers = vec![
        step(&[&tool(0), "create", &file, OVS_SCHEMA], Ready::Ended),
        step(&[&tool(1), &file, &listens], Ready::Sockets(DATABASE_READY)),
        step(&[&vsctl, &connects, "--no-wait", "init"], Ready::Ended),
        step(&set, Ready::Ended),
        step(&switch, Ready::Sockets(OVS_READY)),
        flow("in_port=1,actions=output:2"),
        flow("in_port=2,actions=output:1"),
    ];
    Some(SwitchPeer {
        name: format!("{} {version}", name::OVS),
        service: Service { servers, ..Service::default() },
        size_bytes_max: WHOLE_BYTES_MAX,
        huge_mib: OVS_MIB,
    })
}

/// The settings of its database, for a thread that polls on this core.
fn ovs_settings(core: usize) -> Vec<String> {
    // A digit for four cores.
    let mask = format!("0x{:x}{}", 1 << (core % 4), "0".repeat(core / 4));
    let dpdk = ALONE.join(" ");
    let mut all = words(["set", "Open_vSwitch", ".", "other_config:dpdk-init=true"]);
    all.extend([
        format!("other_config:dpdk-lcore-mask={mask}"),
        format!("other_config:pmd-cpu-mask={mask}"),
        format!("other_config:dpdk-extra=\"{dpdk}\""),
    ]);
    all.extend(words(["--", "add-br", BRIDGE, "--", "set", "Bridge", BRIDGE]));
    all.extend(words(["datapath_type=netdev", "fail_mode=secure"]));
    for (port, number) in SOCKETS.into_iter().zip(1..) {
        all.extend(words(["--", "add-port", BRIDGE, port, "--", "set", "Interface", port]));
        // With this type Open vSwitch makes the socket itself, and our driver connects to it.
        all.push("type=dpdkvhostuser".to_owned());
        all.push(format!("ofport_request={number}"));
    }
    all
}

/// The version of a `ovs-vswitchd` that was built with DPDK.
fn with_dpdk(program: &Path) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?;
    version(&String::from_utf8(said.stdout).ok()?)
}

fn version(said: &str) -> Option<String> {
    let mut lines = said.lines();
    let version = lines.next()?.rsplit(' ').next()?.to_owned();
    lines.any(|line| line.starts_with("DPDK ")).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_vswitch_counts_that_has_dpdk() {
        let with = "ovs-vswitchd (Open vSwitch) 3.1.0\nDPDK 22.11.5\n";
        assert_eq!(version(with).as_deref(), Some("3.1.0"));
        assert_eq!(version("ovs-vswitchd (Open vSwitch) 3.1.0\n"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn both_poll_on_the_core_that_they_are_given() {
        let peer = testpmd(Path::new("/bin/testpmd"), 4);
        let [server] = &peer.service.servers[..] else { panic!("{peer:?}") };
        assert_eq!(server.words[0], "/bin/testpmd");
        assert!(server.words.contains(&"0@4,1@4".to_owned()), "{server:?}");
        assert!(server.words.contains(&"net_vhost1,iface=FOLDER/two,queues=1".to_owned()));
        let settings = ovs_settings(4);
        assert!(settings.contains(&"other_config:pmd-cpu-mask=0x10".to_owned()), "{settings:?}");
        let ports = settings.iter().filter(|it| *it == "type=dpdkvhostuser").count();
        assert_eq!(ports, 2);
    }

    #[test]
    fn without_huge_pages_both_are_named() {
        let found = vec![testpmd(Path::new("/bin/testpmd"), 0)];
        let mut peers = SwitchPeers { found, missing: Vec::new() };
        peers.without_huge_pages("none are left");
        assert!(peers.found.is_empty());
        assert_eq!(peers.missing, [format!("{} (none are left)", name::TESTPMD)]);
    }
}
