//! `vrio pool ..`.

use std::path::{PathBuf, absolute};

use anyhow::Context;
use clap::{Args, Subcommand};
use node::config::size_bytes;
use node::pools::{PoolPlan, StorePool};
use node::status::StoragePoolStatus;
use serde_json::json;

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
pub(crate) struct PoolScrub {
    /// Its name.
    name: String,
    /// How much to read in a second; default: 100MiB. Given again, it changes the rate.
    #[arg(long, value_name = "SIZE", conflicts_with = "stop")]
    rate: Option<String>,
    /// Stop it before it is through.
    #[arg(long)]
    stop: bool,
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
    /// The most memory for its map; default: 64MiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// The most that is written between two checkpoints; default: 1GiB.
    #[arg(long, value_name = "SIZE")]
    log: Option<String>,
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
            fields.text("memory", add.memory.as_ref());
            fields.text("log", add.log.as_ref());
            change(&add.which, "POST", "/v1/pools", &fields.0.into())
        }
        PoolCommand::Scrub(scrub) => {
            let path = format!("/v1/pools/{}/scrub", segment(&scrub.name)?);
            if scrub.stop {
                return delete(&scrub.which, &path);
            }
            let mut fields = Fields::default();
            fields.text("rate", scrub.rate.as_ref());
            change(&scrub.which, "POST", &path, &fields.0.into())
        }
        PoolCommand::Remove(remove) => take_away("pools", remove),
        PoolCommand::List(which) => {
            list(which, "/v1/pools", |all: &Vec<StoragePoolStatus>| tables::pool_list(all))
        }
        PoolCommand::Show(show) => one(show, "pool", tables::pool_alone),
    }
}

impl PoolCreate {
    fn run(&self) -> Result<(), CommandFailure> {
        let size = |option: &str, text: Option<&String>| {
            let bytes = text.map(|text| size_bytes(text)).transpose();
            let refused =
                |error| CommandFailure::configuration(anyhow::anyhow!("{option}: {error}"));
            bytes.map_err(refused)
        };
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
