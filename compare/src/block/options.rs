//! The options of `vrio bench compare block`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::contest::ComparisonPlan;
use bench::block;
use bench::measure::Reuse;
use testbed::pair::PairLink;
use testbed::stage::Offloads;

/// The options of a comparison of disks.
#[derive(Clone, Debug, Serialize)]
pub struct DisksOptions {
    /// The program and the extent of the comparison.
    #[serde(flatten)]
    pub plan: ComparisonPlan,
    /// The behaviour of our sidecores without work; adaptive instead of spin where sidecores share
    /// cores.
    #[serde(serialize_with = "block::as_text")]
    pub idle: Idle,
    /// The slots and descriptors that our driver takes next, with every server.
    pub reuse: Reuse,
    /// Whether our sessions are sealed; the sessions of peers are in clear.
    pub encrypt: bool,
    /// The longest packets of the cables on which disks of another host are compared, a contest
    /// for each. None: the loopback device.
    pub cables: Vec<u32>,
    /// The groups of packets that the ends of the cables take uncut.
    #[serde(skip_serializing_if = "Offloads::is_usual")]
    pub offloads: Offloads,
    /// A folder for files in memory (tmpfs).
    pub folder: PathBuf,
    /// A folder for files on a disk, which are opened around the page cache.
    pub disk_folder: PathBuf,
    /// Where SPDK was built, unless it is installed.
    pub spdk: Option<PathBuf>,
    /// Other versions of qemu-storage-daemon than that in `PATH`.
    pub storage_daemons: Vec<PathBuf>,
    /// Further vhost-user-blk servers, which run already: names and sockets.
    pub sockets: Vec<(String, PathBuf)>,
}

impl DisksOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
    pub fn check(&self) -> Result<()> {
        let Self { plan, sockets, cables, offloads, .. } = self;
        plan.check()?;
        for &mtu in cables {
            let offloads = *offloads;
            PairLink { mtu: Some(mtu), offloads, ..PairLink::default() }.check()?;
        }
        ensure!(
            offloads.is_usual() || !cables.is_empty(),
            "--offloads {}: of virtual cables, and there are none without root, or with --loopback",
            offloads.name()
        );
        let one = block::BlockOptions {
            seconds: plan.seconds,
            ..block::BlockOptions::new(plan.program.clone())
        };
        one.check()?;
        let folders = [("--folder", &self.folder), ("--disk-folder", &self.disk_folder)];
        for (name, folder) in folders.into_iter().chain(self.spdk.iter().map(|it| ("--spdk", it))) {
            ensure!(
                folder.is_absolute() && folder.is_dir(),
                "{name} {}: a folder that is there, by its absolute path",
                folder.display()
            );
        }
        let mut names: Vec<_> = sockets.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        ensure!(names.len() == sockets.len(), "--socket: two servers have one name");
        Ok(())
    }
}
