//! `vrio pool ..`.

use std::path::{PathBuf, absolute};

use anyhow::Context;
use clap::{Args, Subcommand};
use node::config::size_bytes;
use node::pools::{PoolPlan, StorePool};
use node::status::StoragePoolStatus;
use serde_json::json;

use super::scrubs::ScrubWords;
use super::{Fields, Named, NodeChoice, Remove, change, delete, list, one, segment, take_away};
use crate::failure::CommandFailure;
use crate::output::print;
use crate::tables;

pub(crate) const POOL_EXAMPLES: &str = "Examples:
  vrio pool create /var/lib/vrio/p.pool --size 100GiB   make a file into a pool; needs no node
  vrio pool create /dev/sdb /dev/sdc                    or block devices: their content is lost
  vrio pool add p --devices p.pool                      a running node opens it
  vrio pool list
  vrio pool show p                                      is it full, and what is in it
  vrio pool grow p                                      use what its devices have become longer
  vrio pool grow p --add q.pool                         another device joins
  vrio pool grow p --add /var/lib/vrio/q.pool --size 100GiB   a file that is made for it
  vrio pool shrink p --remove q.pool                    empty a device, and let it go
  vrio pool scrub p --rate 200MiB                       read and prove all blocks of it
  vrio pool remove p                                    the node lets it go; the pool stays

A volume is cut from it by `vrio volume add NAME --pool p --size 20GiB`.";

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Make files or block devices into an empty pool. No node takes part.
    Create(PoolCreate),
    /// Open a pool until the node is restarted.
    Add(PoolAdd),
    /// Close a pool. Its devices and all that is in them stay.
    Remove(Remove),
    /// List the pools.
    List(NodeChoice),
    /// Make a pool larger: use the length that its devices have gained, or have a device join.
    Grow(PoolGrow),
    /// Empty a device of a pool in the background, and let it go; `vrio pool show` has the
    /// progress.
    Shrink(PoolShrink),
    /// Read and prove all blocks of a pool in the background; `vrio pool show` has the result.
    Scrub(PoolScrub),
    /// Show one pool: whether it works, its space, its volumes and snapshots, and its counters.
    Show(Named),
}

#[derive(Debug, Args)]
pub(crate) struct PoolCreate {
    /// The files, which are made if they are missing, or block devices.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The size of each file, such as "100GiB"; its space is taken from the file system at once.
    #[arg(long)]
    size: Option<String>,
    /// The size of a segment, from 256KiB; the default suits the size of the pool.
    #[arg(long, value_name = "SIZE")]
    segment: Option<String>,
    /// Overwrite what is there, also another pool.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PoolGrow {
    /// Its name.
    name: String,
    /// A file or block device that joins the pool, inside of the volumes' directories.
    #[arg(long, value_name = "PATH")]
    add: Option<String>,
    /// Make the file, of this size; its space is taken from the file system at once.
    #[arg(long, requires = "add")]
    size: Option<String>,
    /// Overwrite what the device has.
    #[arg(long, requires = "add")]
    force: bool,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct PoolShrink {
    /// Its name.
    name: String,
    /// The device that leaves.
    #[arg(long, value_name = "PATH")]
    remove: String,
    /// Keep the device after all; moved data stays where it is.
    #[arg(long)]
    stop: bool,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct PoolScrub {
    /// Its name.
    name: String,
    #[command(flatten)]
    words: ScrubWords,
    /// Read as slowly as it takes to end within this time, such as "7d"; without --rate as fast as
    /// that needs. The time in which the pool is closed does not count.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["pause", "stop"])]
    within: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct PoolAdd {
    /// Its name on the node.
    name: String,
    /// Its files and block devices, inside of the volumes' directories; with commas between them.
    #[arg(long, required = true, value_name = "PATH", value_delimiter = ',')]
    devices: Vec<String>,
    /// A word for the kind of its devices, for a cluster: ssd.
    #[arg(long, value_name = "WORD")]
    class: Option<String>,
    /// The most memory for its map; default: 64MiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// The most that is written between two checkpoints; default: 1GiB.
    #[arg(long, value_name = "SIZE")]
    log: Option<String>,
    /// Have blocks with the same content share its space.
    #[arg(long)]
    deduplication: bool,
    /// The most memory for finding such blocks; default: 64MiB.
    #[arg(long, value_name = "SIZE", requires = "deduplication")]
    deduplication_memory: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

/// Carries a command about pools out.
pub(crate) fn pool(command: &PoolCommand) -> Result<(), CommandFailure> {
    match command {
        PoolCommand::Create(create) => create.run(),
        PoolCommand::Add(add) => {
            let mut fields = Fields::default();
            fields.text("name", Some(&add.name));
            fields.put("devices", Some(json!(add.devices)));
            fields.text("class", add.class.as_ref());
            fields.text("memory", add.memory.as_ref());
            fields.text("log", add.log.as_ref());
            fields.put("deduplication", add.deduplication.then_some(json!(true)));
            fields.text("deduplication-memory", add.deduplication_memory.as_ref());
            change(&add.which, "POST", "/v1/pools", &fields.0.into())
        }
        PoolCommand::Grow(grow) => grow.run(),
        PoolCommand::Shrink(shrink) => {
            let path = format!("/v1/pools/{}/devices", segment(&shrink.name)?);
            let word = if shrink.stop { "keep" } else { "remove" };
            let body = json!({ word: { "device": shrink.remove } });
            change(&shrink.which, "PUT", &path, &body)
        }
        PoolCommand::Scrub(scrub) => {
            let path = format!("/v1/pools/{}/scrub", segment(&scrub.name)?);
            if scrub.words.stop {
                return delete(&scrub.which, &path);
            }
            let mut fields = scrub.words.fields();
            fields.text("within", scrub.within.as_ref());
            change(&scrub.which, "POST", &path, &fields.0.into())
        }
        PoolCommand::Remove(remove) => take_away("pools", remove),
        PoolCommand::List(which) => {
            list(which, "/v1/pools", |all: &Vec<StoragePoolStatus>| tables::pool_list(all))
        }
        PoolCommand::Show(show) => one(show, "pool", tables::pool_alone),
    }
}

/// The bytes of an option.
fn size(option: &str, text: Option<&String>) -> Result<Option<u64>, CommandFailure> {
    let bytes = text.map(|text| size_bytes(text)).transpose();
    bytes.map_err(|error| CommandFailure::configuration(anyhow::anyhow!("{option}: {error}")))
}

impl PoolGrow {
    fn run(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/pools/{}/devices", segment(&self.name)?);
        let Some(device) = &self.add else {
            return change(&self.which, "PUT", &path, &json!({ "grow": {} }));
        };
        let mut device = device.clone();
        let mut made = None;
        if let Some(size_bytes) = size("--size", self.size.as_ref())? {
            // A node has no right to make files.
            let file = absolute(&device).context("find the working directory");
            let file = file.map_err(CommandFailure::running)?;
            StorePool::make_device(&file, size_bytes).map_err(CommandFailure::running)?;
            device = file.display().to_string();
            made = Some(file);
        }
        let body = json!({ "add": { "device": device, "force": self.force } });
        let changed = change(&self.which, "PUT", &path, &body);
        if let (Err(_), Some(file)) = (&changed, made) {
            // It was made for the pool alone; the error that is told is the first error.
            let _ = std::fs::remove_file(file);
        }
        changed
    }
}

impl PoolCreate {
    fn run(&self) -> Result<(), CommandFailure> {
        let plan = PoolPlan {
            paths: self.paths.clone(),
            size_bytes: size("--size", self.size.as_ref())?,
            segment_bytes: size("--segment", self.segment.as_ref())?,
            force: self.force,
        };
        StorePool::create(&plan).map_err(CommandFailure::running)?;
        let devices = self.paths.iter().map(absolute).collect::<Result<Vec<_>, _>>();
        let devices = devices.context("find the working directory");
        let devices = devices.map_err(CommandFailure::running)?;
        if self.json {
            return print(&format!("{}\n", json!({ "devices": devices })));
        }
        let names: Vec<_> = devices.iter().map(|path| format!("{path:?}")).collect();
        let listed: Vec<_> = devices.iter().map(|path| path.display().to_string()).collect();
        print(&format!(
            "done: made a pool\n\
             A node has it with these lines of its file, where \"volumes\" has the directory:\n\
             \x20 [[pool]]\n\
             \x20 name = \"p\"\n\
             \x20 devices = [{}]\n\
             or until its restart with: vrio pool add p --devices {}\n\
             The node's user must be able to read and write it.\n",
            names.join(", "),
            listed.join(","),
        ))
    }
}
