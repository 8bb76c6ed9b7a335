//! `vrio volume copies`: changes of the copies of a volume that the cluster has placed.

use ::cluster::registry::{PlacedCopy, PlacementRecord};
use ::cluster::{ClusterVolumeStatus, CopyStep, another_copy};
use anyhow::anyhow;
use node::config::{duration_ns, show_size};

use super::volumes::{VolumeDesk, wrong};
use super::{ClusterPlace, now_s};
use crate::failure::CommandFailure;
use crate::output::print;

pub(crate) const COPIES_EXAMPLES: &str = "Examples:
  vrio volume copies alice --add                  on the node that suits best
  vrio volume copies alice --add io3
  vrio volume copies alice --replace io2          io2 goes when the new copy is in sync
  vrio volume copies alice --replace io2 --by io3
  vrio volume copies alice --remove io2
  vrio volume copies --all --replace io2          all copies of io2: it is emptied
  vrio volume copies alice --rebuild-after 30min  if a node is away for so long; never: by hand

Guests go on meanwhile. `vrio cluster status` shows how far it is.";

const NANOS: u64 = 1_000_000_000;

/// `vrio volume copies`
#[derive(Debug, clap::Args)]
pub(crate) struct VolumeCopies {
    /// The volume.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// All volumes that have a copy on the node of --replace or --remove.
    #[arg(long)]
    all: bool,
    /// One more copy, on this node or where the rules of the volume want it.
    #[arg(long, value_name = "NODE", num_args = 0..=1, default_missing_value = "",
          conflicts_with_all = ["all", "remove", "replace"])]
    add: Option<String>,
    /// The copy of this node goes, with its data.
    #[arg(long, value_name = "NODE", conflicts_with = "replace")]
    remove: Option<String>,
    /// Another copy is made, and when it is in sync the copy of this node goes with its data.
    #[arg(long, value_name = "NODE")]
    replace: Option<String>,
    /// The node of the other copy.
    #[arg(long, value_name = "NODE", requires = "replace")]
    by: Option<String>,
    /// After how long away a node's copy is made anew elsewhere ("30min"); "never": by hand.
    #[arg(long, value_name = "TIME")]
    rebuild_after: Option<String>,
    /// How long to wait until the copies are as they must be; 0: not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    wait: u64,
    #[command(flatten)]
    place: ClusterPlace,
}

/// Reads the delay of a rebuild: none is never.
pub(super) fn rebuild_after_s(text: &str) -> Result<Option<u64>, CommandFailure> {
    if text == "never" {
        return Ok(None);
    }
    let ns = duration_ns(text).map_err(|why| wrong(format!("--rebuild-after: {why}")))?;
    if ns < NANOS {
        return Err(wrong(
            "--rebuild-after: a second at least; a node's restart takes some".to_owned(),
        ));
    }
    Ok(Some(ns / NANOS))
}

impl VolumeCopies {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let changes = [&self.add, &self.remove, &self.replace, &self.rebuild_after];
        if changes.iter().all(|it| it.is_none()) {
            return Err(wrong(
                "say what must change: --add, --remove, --replace or --rebuild-after; `vrio \
                 cluster status` shows the copies"
                    .to_owned(),
            ));
        }
        let mut desk = VolumeDesk::open(&self.place)?;
        let names = self.names(&mut desk)?;
        if let Some(text) = &self.rebuild_after {
            let after_s = rebuild_after_s(text)?;
            for name in &names {
                desk.change(name, |placement, _| {
                    placement.rules.rebuild_after_s = after_s;
                    Ok(())
                })?;
            }
        }
        let (mut changed, mut failed) = (Vec::new(), Vec::new());
        for name in &names {
            match self.change(&mut desk, name) {
                Ok(Some(text)) => {
                    print(&format!("volume {name}: {text}\n"))?;
                    changed.push(name);
                }
                Ok(None) => {}
                // The other volumes change all the same.
                Err(error) if self.all => failed.push(format!("volume {name}: {error}")),
                Err(error) => return Err(error),
            }
        }
        let changed = if self.wait == 0 { Vec::new() } else { changed };
        let is_well = |it: Option<&ClusterVolumeStatus>| it.is_some_and(|it| it.state == "well");
        for name in changed {
            if let Err(why) = desk.wait(name, self.wait, is_well)? {
                return Err(CommandFailure::running(anyhow!(
                    "{why}. The nodes go on with it; `vrio cluster status` shows how far they are"
                )));
            }
            print(&format!("volume {name}: all copies are in sync\n"))?;
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(CommandFailure::running(anyhow!("{}", failed.join("\n")))),
        }
    }

    /// The volumes that change.
    fn names(&self, desk: &mut VolumeDesk) -> Result<Vec<String>, CommandFailure> {
        if let Some(name) = &self.name {
            return Ok(vec![name.clone()]);
        }
        let Some(node) = self.remove.as_ref().or(self.replace.as_ref()) else {
            return Err(wrong("--all goes with --replace or --remove".to_owned()));
        };
        let contents = desk.contents()?;
        let stays = |it: &PlacementRecord| {
            it.removing.is_none() && it.copy_of(node).is_some_and(|(_, copy)| copy.leaves.is_none())
        };
        let all = contents.placements.into_iter().filter(|(_, it)| stays(it));
        Ok(all.map(|(name, _)| name).collect())
    }

    /// Changes the copies of one volume. Gives what happens now.
    fn change(&self, desk: &mut VolumeDesk, name: &str) -> Result<Option<String>, CommandFailure> {
        let contents = desk.contents()?;
        let placed = contents.placements.iter().find(|(known, _)| known == name);
        let Some((_, placement)) = placed else {
            return Err(CommandFailure::running(anyhow!(
                "the cluster has placed no volume {name:?}; `vrio cluster status` lists its \
                 volumes. The copies of a volume of the nodes' files are changed there: \
                 docs/replicas.md"
            )));
        };
        let find = |node: &str| {
            let found = placement.copy_of(node).map(|(at, _)| at);
            found.ok_or_else(|| wrong(format!("node {node:?} has no copy of volume {name:?}")))
        };
        let another = |on: Option<&str>, replaces: Option<u8>| {
            let chosen = another_copy(&contents, placement, (on, replaces), (now_s(), show_size));
            chosen.map_err(|why| CommandFailure::running(anyhow!(why)))
        };
        let shown =
            |copy: &PlacedCopy| format!("a copy is made on {} (pool {})", copy.node, copy.pool);
        let (step, text) = match (&self.add, &self.remove, &self.replace) {
            (Some(on), ..) => {
                let copy = another(Some(&**on).filter(|on| !on.is_empty()), None)?;
                let text = shown(&copy);
                (CopyStep::Add(copy), text)
            }
            (_, Some(node), _) => {
                (CopyStep::Leave(find(node)?), format!("its copy on {node} goes"))
            }
            (_, _, Some(node)) => {
                let at = find(node)?;
                if let Some(other) = placement.replacement_of(at) {
                    let text = format!("its copy on {node} is being replaced by {}", other.node);
                    return Ok(Some(text));
                }
                let copy = another(self.by.as_deref(), Some(at))?;
                let text = format!("{}, then the copy on {node} goes", shown(&copy));
                (CopyStep::Add(copy), text)
            }
            (None, None, None) => return Ok(None),
        };
        desk.change(name, |placement, record| step.take(placement, record))?;
        Ok(Some(text))
    }
}
