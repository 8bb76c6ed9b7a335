//! The demo's two nodes: what each of them has.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::nodes::{Node, NodePlan};
use crate::stage::Stage;

/// The size of each volume.
pub(super) const VOLUME_MIB: u64 = 64;

/// What the nodes' files are called that are worth keeping.
const LOGS: [&str; 2] = ["log", "node.toml"];

/// The guest's console, in the folder.
pub(super) const CONSOLE: &str = "guest.console";

impl Stage {
    /// The IOhost: a volume for the guest, and one to measure with.
    pub(super) fn io_plan(&self) -> NodePlan {
        let volume = |name| {
            format!(
                "[[volume]]\nname = \"{name}\"\nchain = [\"meter\"]\n{}\
                 backend = {{ file = \"{name}.img\", size = \"{VOLUME_MIB}MiB\" }}\n",
                self.keys.allow(&["vm1"])
            )
        };
        let vm1 = self.keys.clients(&["vm1"]);
        let config = format!("{vm1}{}{}", volume("alice"), volume("far"));
        self.plan("io1", &format!("{}{config}", top(&self.io_listen)))
    }

    /// The VMhost: the guest's disk, and two to measure: `near` here and `far` on the IOhost.
    pub(super) fn vm_plan(&self) -> NodePlan {
        let tenant = self.keys.disk();
        let config = format!(
            "[[peer]]\nname = \"io1\"\naddress = \"{}\"\n{}\
             [[volume]]\nname = \"near\"\nchain = [\"meter\"]\n\
             backend = {{ file = \"near.img\", size = \"{VOLUME_MIB}MiB\" }}\n\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/alice\"\nqueues = 2\n{tenant}\
             [[disk]]\nsocket = \"near.sock\"\nvolume = \"near\"\n\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/far\"\n{tenant}",
            self.io_listen,
            self.keys.peer("io1"),
        );
        self.plan("vm1", &format!("{}{config}", top(&self.vm_listen)))
    }

    /// kill -9, and a new process after some time. Also says how long the node was away.
    ///
    /// # Errors
    /// When the node was not running, or does not start again.
    pub(super) fn kill_and_start(&self, node: Node, pause: Duration) -> Result<(Node, Duration)> {
        let plan = node.kill()?;
        let died = Instant::now();
        thread::sleep(pause);
        Ok((self.start(&plan)?, died.elapsed()))
    }

    /// Copies logs, configurations and the guest's console.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn keep_logs(&self, into: &Path) -> Result<()> {
        for name in ["io1", "vm1"] {
            for log in LOGS {
                copy(&self.folder.join(name).join(log), &into.join(name).join(log))?;
            }
        }
        copy(&self.path(CONSOLE), &into.join(CONSOLE))
    }
}

/// The first lines of a node's configuration.
fn top(listen: &str) -> String {
    format!("listen = \"{listen}\"\n[sidecores]\ncount = 1\nidle = \"adaptive\"\n")
}

/// Copies a file, if it is there.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("writing {}", to.display()))?;
    Ok(())
}
