//! The nodes of a measurement of replicas.

use anyhow::{Context, Result, bail};
use testbed::cleanup::Cleanup;
use testbed::etcd::EtcdMember;
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::rack::{CopyFile, IOHOSTS, Rack, VOLUME, wait_until_in_sync};
use testbed::stage::NodeNetwork;

use super::options::{BenchRegistry, ReplicasOptions};

/// The volume with copies that is measured beside the volume without copies.
pub(super) const MEASURED: &str = "bob";

/// Elections until a member leads that should: each of the two other members wins as often.
const LEADERS_MAX: u32 = 20;

/// The volume without copies.
pub(super) const ALONE: &str = "carol";

/// The nodes, while everything happens.
pub(super) struct BenchRack {
    pub(super) rack: Rack,
    pub(super) network: NodeNetwork,
    /// By their places in the list of copies; none while a node is away.
    pub(super) members: Vec<Option<Node>>,
    pub(super) vm: Node,
    /// The members of etcd, by their IOhosts; none with a registry in a file.
    pub(super) etcd: Vec<Option<EtcdMember>>,
}

impl BenchRack {
    /// Starts the nodes, and waits until all copies are in sync.
    pub(super) fn start(
        options: &ReplicasOptions,
        cleanup: &Cleanup,
        progress: &Progress,
    ) -> Result<Self> {
        let name = format!("vrio-replicas-{}", std::process::id());
        let [folder, pools] =
            [std::env::temp_dir(), options.folder.clone()].map(|parent| parent.join(&name));
        for folder in [&folder, &pools] {
            cleanup.path(folder.clone());
            // Both may be the same.
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making {}", folder.display()))?;
        }
        let port = 20_000 + (std::process::id() % 500) as u16 * 16;
        let mut rack = match options.registry {
            BenchRegistry::File => Rack::new(&options.program, &folder, port)?,
            BenchRegistry::Etcd => {
                Rack::separated(&options.program, &folder, Some(options.mtu), cleanup)?
            }
        };
        (rack.pools, rack.volume_size, rack.sidecores) = (pools, "64MiB", 1);
        rack.pool_size = if options.volumes > 100 { "4GiB" } else { "512MiB" };
        let (network, etcd) = match options.registry {
            BenchRegistry::File => (separate(options, &mut rack, cleanup, progress), Vec::new()),
            BenchRegistry::Etcd => {
                progress.doing("starting three members of etcd");
                let _starting = cleanup.start();
                (NodeNetwork::Namespaces, rack.start_etcd_of_all()?)
            }
        };
        progress.doing(format!("starting {} nodes", options.copies + 1));
        let list = options.list();
        let more = volumes(options, &rack);
        let mut members = Vec::new();
        for node in list {
            let pool = format!("{node}.pool");
            let only = if *node == list[0] { rack.volume(ALONE, &[]) } else { String::new() };
            let _starting = cleanup.start();
            let file = CopyFile { node, list, pool: &pool };
            members.push(Some(rack.start_member(file, &(more.clone() + &only))?));
        }
        let disks = rack.disk(MEASURED, list) + &rack.disk(ALONE, &list[..1]);
        let vm = {
            let _starting = cleanup.start();
            rack.client(list, &disks).start()?
        };
        progress.doing("waiting until all copies are in sync");
        for volume in [VOLUME, MEASURED].map(str::to_owned).into_iter().chain(options.idle()) {
            wait_until_in_sync(&members, &volume)?;
        }
        Ok(Self { rack, network, members, vm, etcd })
    }

    /// Has etcd be led by the member of this IOhost, or by another member: a leader that is started
    /// again leads no more.
    pub(super) fn lead(&mut self, place: usize, leads: bool) -> Result<()> {
        for _ in 0..LEADERS_MAX {
            let leader = self.rack.wait_for_etcd()?;
            if (leader == place) == leads {
                return Ok(());
            }
            self.etcd[leader] = None;
            self.start_etcd(leader)?;
        }
        bail!("etcd has another leader after {LEADERS_MAX} elections")
    }

    /// Starts the member of an IOhost again.
    pub(super) fn start_etcd(&mut self, place: usize) -> Result<()> {
        self.etcd[place] = Some(self.rack.start_etcd(IOHOSTS[place])?);
        Ok(())
    }
}

/// The volumes with copies, beside the volume that each member has.
fn volumes(options: &ReplicasOptions, rack: &Rack) -> String {
    let list = options.list();
    let idle = options.idle().map(|name| rack.volume(&name, list));
    [rack.volume(MEASURED, list)].into_iter().chain(idle).collect()
}

fn separate(
    options: &ReplicasOptions,
    rack: &mut Rack,
    cleanup: &Cleanup,
    progress: &Progress,
) -> NodeNetwork {
    if options.loopback || !rustix::process::geteuid().is_root() {
        progress.done("the nodes meet on the loopback device: no network is like that");
        return NodeNetwork::Loopback;
    }
    match rack.separate(Some(options.mtu), cleanup) {
        Ok(()) => NodeNetwork::Namespaces,
        Err(error) => {
            progress.done(format!("no namespaces ({error:#}): loopback instead"));
            NodeNetwork::Loopback
        }
    }
}
