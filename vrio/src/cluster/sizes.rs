//! `vrio volume resize NAME SIZE --cluster`: a volume that the cluster has placed gets larger.

use ::cluster::registry::membership::ClusterContents;
use ::cluster::registry::{PlacedCopy, PlacementRecord};
use ::cluster::{ClusterVolumeStatus, ask_size, check_growth};
use anyhow::anyhow;
use node::api::{API_VERSION, Done};
use node::config::{show_size, size_bytes};

use super::ClusterPlace;
use super::volumes::{VolumeDesk, refuse_too_large, wrong};
use crate::failure::CommandFailure;

/// The unit of sizes of volumes of a pool.
const BLOCK_BYTES: u64 = 4096;

/// A volume and the size that it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrowthAsk<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: &'a str,
    /// The pools may have promised more than they have.
    pub(crate) overcommits: bool,
    /// How long to wait until users have the size; 0: not at all.
    pub(crate) wait_s: u64,
}

/// Has all copies of a volume grow, and waits until its users have the size.
pub(crate) fn grow(ask: &GrowthAsk<'_>, place: &ClusterPlace) -> Result<Done, CommandFailure> {
    let GrowthAsk { name, size, overcommits, wait_s } = *ask;
    let bytes = size_bytes(size).map_err(|why| wrong(format!("the size: {why}")))?;
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(wrong(format!("{bytes} bytes are no blocks of {BLOCK_BYTES}; round the size")));
    }
    refuse_too_large(bytes)?;
    let failed = |why: String| CommandFailure::running(anyhow!("volume {name:?}: {why}"));
    let mut desk = VolumeDesk::open(place)?;
    let contents = desk.contents()?;
    let placed = contents.placements.iter().find(|(known, _)| known == name);
    let Some((_, placement)) = placed else {
        return Err(CommandFailure::running(anyhow!(
            "the cluster has placed no volume {name:?}; `vrio cluster status` lists its volumes. \
             The size of a volume of the nodes' files is changed there: docs/replicas.md, \
             \"Changing the list\""
        )));
    };
    let before_bytes = placement.served_bytes();
    // A registry of a backup can be older than the last growth.
    let users_bytes = desk.find(name)?.and_then(|it| it.served_bytes).unwrap_or_default();
    if bytes < users_bytes && before_bytes < users_bytes {
        return Err(failed(format!(
            "its guests have {users_bytes}B, as the node tells that serves it, and the registry \
             knows {before_bytes}B: ask for the greater size, or a larger one"
        )));
    }
    let is_promise = overcommits && !placement.rules.overcommits;
    if !overcommits && !placement.rules.overcommits {
        check_growth(&contents, placement, bytes, show_size).map_err(failed)?;
    }
    desk.change(name, |placement, record| {
        ask_size(placement, record, bytes, show_size)?;
        // Its later copies need the room as well.
        placement.rules.overcommits |= overcommits;
        Ok(())
    })?;
    let mut done = Done { version: API_VERSION, ..Done::default() };
    done.applied.extend(applied(ask, placement, bytes));
    let promise = "its pools may promise more than they have from now on, for each later copy and \
                   size of it";
    done.notes.extend(is_promise.then(|| promise.to_owned()));
    if wait_s == 0 {
        let note = "its users have the size when all copies in sync have grown: `vrio cluster \
                    status` shows how far they are";
        done.notes.extend((before_bytes != bytes).then(|| note.to_owned()));
        return Ok(done);
    }
    // The node that serves may die when the size is in force, and before its users have it.
    let has_size = |it: Option<&ClusterVolumeStatus>| {
        it.is_some_and(|it| it.grows_to_bytes.is_none() && it.served_bytes >= Some(bytes))
    };
    match desk.wait(name, wait_s, has_size)? {
        Ok(()) => Ok(done),
        Err(why) => {
            let contents = desk.contents()?;
            let placed = contents.placements.iter().find(|(known, _)| known == name);
            let rest = placed.map(|(_, placement)| {
                left((name, placement), bytes, &pool_problems(&contents, placement))
            });
            let rest = rest.unwrap_or_else(|| "It was removed meanwhile".to_owned());
            Err(CommandFailure::running(anyhow!("{why}. {rest}")))
        }
    }
}

/// The problems of the pools of a volume's copies.
fn pool_problems(contents: &ClusterContents, placement: &PlacementRecord) -> String {
    let problem = |(_, copy): (u8, &PlacedCopy)| {
        let node = contents.nodes.iter().find(|it| it.record.name == copy.node)?;
        let pools = &node.presence.as_ref()?.pools;
        let pool = pools.iter().find(|it| it.name == copy.pool && !it.problem.is_empty())?;
        Some(format!("pool {} of node {}: {}", copy.pool, copy.node, pool.problem))
    };
    placement.members().filter_map(problem).collect::<Vec<_>>().join("; ")
}

/// The state of a growth after its wait has ended early, and the way on.
fn left((name, placement): (&str, &PlacementRecord), bytes: u64, pools: &str) -> String {
    let (served_bytes, shows) = (placement.served_bytes(), "`vrio cluster status` shows");
    if placement.size_bytes != bytes {
        let other = show_size(placement.size_bytes);
        return format!("Another command has asked for {other} meanwhile; {shows} how far it is");
    }
    let (asked, had) = (show_size(bytes), show_size(served_bytes));
    match (served_bytes == bytes, pools) {
        (true, "") => format!(
            "All copies in sync have grown, so {asked} stay, and no smaller size can be asked for. \
             The guests have it in a moment, by itself; {shows} when"
        ),
        (true, pools) => format!(
            "All copies in sync have grown, so {asked} stay, and no smaller size can be asked for. \
             The guests have it when the nodes have noted it, which is a write and waits as theirs \
             do: {pools}. Make room there, and both go on by themselves; {shows} when"
        ),
        (false, pools) => {
            let room = match pools {
                "" => String::new(),
                pools => format!(
                    ": {pools}. Make room there, or have that copy elsewhere (`vrio volume copies \
                     {name} --replace NODE`)"
                ),
            };
            format!(
                "The guests have {had} until all copies in sync have grown{room}. The nodes go on \
                 by themselves, and {shows} how far they are; `vrio volume resize {name} \
                 {served_bytes}B --cluster` takes the growth back"
            )
        }
    }
}

/// The change in words, if there is one.
fn applied(ask: &GrowthAsk<'_>, placement: &PlacementRecord, bytes: u64) -> Option<String> {
    let (name, asked_bytes) = (ask.name, placement.size_bytes);
    let [before, after] = [placement.served_bytes(), bytes].map(show_size);
    match bytes == placement.served_bytes() {
        true if bytes < asked_bytes => Some(format!(
            "volume {name:?} keeps {bytes}B: the growth to {asked_bytes}B is taken back"
        )),
        true => None,
        false if ask.wait_s == 0 => {
            Some(format!("ask for volume {name:?} to grow from {before} to {after}"))
        }
        false => Some(format!("resize volume {name:?} from {before} to {after}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_that_waits_says_what_for_and_whether_it_can_be_taken_back() {
        let told = |size_bytes, serves_bytes, pools| {
            let placement =
                PlacementRecord { size_bytes, serves_bytes, ..PlacementRecord::default() };
            left(("alice", &placement), 8192, pools)
        };
        let full = "pool fast of node io2: it is full";
        let back = "`vrio volume resize alice 4096B --cluster` takes the growth back";
        let waits = told(8192, Some(4096), full);
        assert!(waits.contains(back) && waits.contains("have grown: pool fast"), "{waits}");
        let waits = told(8192, Some(4096), "");
        assert!(waits.contains(back) && !waits.contains("Make room"), "{waits}");
        for (pools, wanted) in [(full, "it is full. Make room there"), ("", "in a moment")] {
            let stays = told(8192, None, pools);
            assert!(stays.contains("so 8KiB stay") && stays.contains(wanted), "{stays}");
            assert!(!stays.contains("takes the growth back"), "{stays}");
        }
        assert!(told(4096, None, "").contains("asked for 4KiB meanwhile"));
    }

    #[test]
    fn a_growth_that_is_taken_back_or_only_asked_for_is_told_so() {
        let told = |serves_bytes, bytes, wait_s| {
            let ask = GrowthAsk { name: "alice", size: "", overcommits: false, wait_s };
            let placement =
                PlacementRecord { size_bytes: 8192, serves_bytes, ..PlacementRecord::default() };
            applied(&ask, &placement, bytes).unwrap_or_default()
        };
        assert_eq!(told(None, 8192, 300), "");
        let back = "volume \"alice\" keeps 4096B: the growth to 8192B is taken back";
        assert_eq!(told(Some(4096), 4096, 0), back);
        assert_eq!(told(None, 12288, 300), "resize volume \"alice\" from 8KiB to 12KiB");
        assert_eq!(told(None, 12288, 0), "ask for volume \"alice\" to grow from 8KiB to 12KiB");
    }
}
