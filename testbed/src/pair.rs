//! The VMhost and the IOhost of a measurement: the link between them, the cores of each, and the
//! parts of their configurations that follow from these. The measurement adds the disks and nics,
//! and the volumes and networks behind them.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::cleanup::Cleanup;
use crate::events::Events;
use crate::progress::Progress;
use crate::stage::{NodeNetwork, Offloads, Stage, VirtualCable};

/// The lengths of packets that a virtual cable may have: from the least that IPv6 asks of every
/// link to the longest possible packet.
const MTU: RangeInclusive<u32> = 1280..=65_535;

/// The least share of datagrams that must go past the stack where that way is measured. The others
/// resolve the neighbours' addresses.
const PAST_THE_STACK_MIN: f64 = 0.9;

/// The configuration's line for the way past the network stack.
const XDP: &str = "link = \"xdp\"\n";

/// The link of the nodes' sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// UDP, between two network namespaces where that is allowed, else on the loopback device.
    Udp,
    /// AF_XDP, between two network namespaces.
    Xdp,
    /// Memory that the two processes share.
    Shm,
}

/// The options for the link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PairLink {
    /// The link of their sessions.
    pub link: LinkKind,
    /// Whether the sessions are sealed.
    pub encrypt: bool,
    /// Whether the loopback device is used, also where two network namespaces would be allowed.
    pub loopback: bool,
    /// The longest packet of the virtual cable between them; without it, the system's default.
    pub mtu: Option<u32>,
    /// The groups of packets that the ends of that cable take uncut.
    #[serde(skip_serializing_if = "Offloads::is_usual")]
    pub offloads: Offloads,
}

impl Default for PairLink {
    /// Sealed, over UDP.
    fn default() -> Self {
        let (link, offloads) = (LinkKind::Udp, Offloads::All);
        Self { link, encrypt: true, loopback: false, mtu: None, offloads }
    }
}

impl PairLink {
    /// The names of the options. They mean nothing in a measurement without two nodes.
    pub const OPTIONS: [&str; 5] = ["link", "encrypt", "loopback", "mtu", "offloads"];

    /// Checks that the options fit together.
    ///
    /// # Errors
    /// The options that do not fit, and what would.
    pub fn check(&self) -> Result<()> {
        let Self { link, loopback, mtu, offloads, .. } = *self;
        ensure!(
            link != LinkKind::Xdp || !loopback,
            "--link xdp goes past the network stack of an Ethernet card: --loopback has none"
        );
        ensure!(
            mtu.is_none_or(|mtu| MTU.contains(&mtu)) && (mtu.is_none() || !loopback),
            "--mtu: from {} to {} bytes, of the virtual cable, which --loopback has not",
            MTU.start(),
            MTU.end()
        );
        ensure!(
            offloads.is_usual() || link == LinkKind::Udp && !loopback,
            "--offloads {}: of the virtual cable, which --loopback, --link shm and --link xdp do \
             without",
            offloads.name()
        );
        Ok(())
    }

    /// Makes the stage of the two nodes.
    pub fn stage(&self, program: PathBuf, cleanup: &Cleanup, progress: &Progress) -> Result<Stage> {
        let mut stage = Stage::new("bench", program, self.encrypt, cleanup.clone())?;
        if self.link != LinkKind::Shm && !self.loopback {
            stage.cable = VirtualCable { mtu: self.mtu, offloads: self.offloads };
            stage.separate_if_allowed(progress);
            let needs_cable = self.link == LinkKind::Xdp || stage.cable != VirtualCable::default();
            ensure!(
                stage.has_namespaces() || !needs_cable,
                "--link xdp, --mtu and --offloads are of a virtual cable between two network \
                 namespaces, which takes root and iproute2: drop them"
            );
        }
        Ok(stage)
    }

    /// Checks that datagrams took the wanted way.
    pub fn check_way(&self, events: &Events) -> Result<()> {
        let share = events.past_the_stack();
        if self.link == LinkKind::Xdp && share < PAST_THE_STACK_MIN {
            bail!(
                "only {:.0} % of the datagrams went past the network stack (AF_XDP): that needs \
                 root, iproute2, a kernel with XDP_SOCKETS, and a receive queue for each sidecore \
                 (a virtual cable has one)",
                share * 100.0
            );
        }
        Ok(())
    }
}

/// The cores of each role. If the machine has too few for all roles, the lists are empty, and no
/// thread is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleCores {
    /// The cores of the VMhost's sidecores.
    pub vmhost: Vec<usize>,
    /// The cores of the IOhost's sidecores.
    pub iohost: Vec<usize>,
    /// The cores of the threads that drive the disk or the nic.
    pub driver: Vec<usize>,
}

impl RoleCores {
    /// Seats for so many threads of each role.
    pub fn new(cores: &[usize], vmhost: usize, iohost: usize, driver: usize) -> Self {
        if cores.len() < vmhost + iohost + driver {
            return Self::default();
        }
        let (first, rest) = cores.split_at(vmhost);
        let (second, rest) = rest.split_at(iohost);
        let driver = rest[rest.len() - driver..].to_vec();
        Self { vmhost: first.to_vec(), iohost: second.to_vec(), driver }
    }

    /// The core of the first driver, if it has one.
    pub fn driver(&self) -> Option<usize> {
        self.driver.first().copied()
    }

    /// The core of the IOhost's first sidecore, if it has one.
    pub fn iohost(&self) -> Option<usize> {
        self.iohost.first().copied()
    }
}

/// The link between the nodes, and whether its traffic is sealed, in a report's words.
pub fn between(network: Option<NodeNetwork>, encrypt: bool) -> &'static str {
    match (network, encrypt) {
        (None, _) => "",
        (Some(_), true) => ", sealed",
        (Some(_), false) => ", in clear",
    }
}

/// The settings from which the configurations of the two nodes, `vm1` and `io1`, are made.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The link of their sessions.
    pub link: LinkKind,
    /// The folder and network of the two.
    pub stage: &'a Stage,
    /// The cores of each role.
    pub seats: &'a RoleCores,
    /// The number of sidecores of each node.
    pub sidecores: u16,
    /// The idle policy of these sidecores.
    pub idle: Idle,
}

impl Pair<'_> {
    /// The IOhost's configuration. The caller appends what the IOhost has.
    pub fn iohost(&self) -> String {
        let Stage { io_listen, keys, .. } = self.stage;
        let link = match self.link {
            LinkKind::Shm => "shm = \"io1.shm\"\n",
            LinkKind::Xdp => XDP,
            LinkKind::Udp => "",
        };
        let sidecores = self.sidecores(&self.seats.iohost);
        format!("listen = \"{io_listen}\"\n{link}{sidecores}{}", keys.clients(&["vm1"]))
    }

    /// The VMhost's configuration. The caller appends what the VMhost shows.
    pub fn vmhost(&self) -> String {
        let Stage { vm_listen, keys, .. } = self.stage;
        let link = if self.link == LinkKind::Xdp { XDP } else { "" };
        format!(
            "listen = \"{vm_listen}\"\n{link}{}[[peer]]\nname = \"io1\"\naddress = \"{}\"\n{}",
            self.vmhost_alone(),
            self.address(),
            keys.peer("io1")
        )
    }

    /// The configuration of a VMhost without an IOhost.
    pub fn vmhost_alone(&self) -> String {
        self.sidecores(&self.seats.vmhost)
    }

    /// The address of the IOhost.
    pub fn address(&self) -> String {
        match self.link {
            LinkKind::Udp | LinkKind::Xdp => self.stage.io_listen.clone(),
            LinkKind::Shm => format!("shm:{}", self.stage.path("io1/io1.shm").display()),
        }
    }

    fn sidecores(&self, seats: &[usize]) -> String {
        let cores = match seats {
            [] => format!("count = {}", self.sidecores),
            seats => format!("cores = {seats:?}"),
        };
        format!("[sidecores]\n{cores}\nidle = \"{}\"\n", self.idle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::events::{EventsSnapshot, Role, Side};

    #[test]
    fn all_processes_have_a_seat_or_none() {
        let all = RoleCores::new(&[0, 1, 2, 3], 1, 1, 1);
        assert_eq!(all, RoleCores { vmhost: vec![0], iohost: vec![1], driver: vec![3] });
        assert_eq!(RoleCores::new(&[4, 5], 1, 1, 1), RoleCores::default());
        let two = RoleCores::new(&[4, 5], 0, 1, 1);
        assert_eq!((two.iohost, two.driver), (vec![4], vec![5]));
    }

    #[test]
    fn datagrams_through_the_kernel_give_no_figure_of_xdp() {
        let look = |[all, past]: [u64; 2]| {
            let counters = [("link_datagrams_sent", all), ("xdp_datagrams_sent", past)];
            let mut side = Side::default();
            side.counters = counters.map(|(name, count)| (name.to_owned(), count)).into();
            EventsSnapshot { at: Instant::now(), sides: [(Role::Iohost, side)].into() }
        };
        let check = |link, sent| {
            PairLink { link, ..PairLink::default() }.check_way(&look(sent).since(&look([0, 0])))
        };
        check(LinkKind::Xdp, [1000, 950]).unwrap();
        let text = check(LinkKind::Xdp, [1000, 800]).unwrap_err().to_string();
        assert!(text.contains("only 80 %"), "{text}");
        check(LinkKind::Udp, [1000, 0]).unwrap();
    }

    #[test]
    fn a_meeting_that_makes_no_sense_is_refused_by_name() {
        let meeting = PairLink::default();
        meeting.check().unwrap();
        let refused = |wrong: PairLink, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(PairLink { mtu: Some(600), ..meeting }, "--mtu");
        let (tcp, shm) = (Offloads::Tcp, LinkKind::Shm);
        refused(PairLink { offloads: tcp, loopback: true, ..meeting }, "--offloads tcp");
        refused(PairLink { offloads: tcp, link: shm, ..meeting }, "--offloads tcp");
        refused(PairLink { mtu: Some(9000), loopback: true, ..meeting }, "--mtu");
        refused(PairLink { link: LinkKind::Xdp, loopback: true, ..meeting }, "--link xdp");
    }
}
