//! The identity of a node's copy of a replicated volume. A member is known to the other members by
//! its place in a list, and its promises are in a private file; both mean something only together
//! with this node, this list, and this volume of this pool. So all three are noted beside the
//! private file when the copy is made, and compared at each start.

use std::io;
use std::path::{Path, PathBuf};

use config::VolumeConfig;
use serde::{Deserialize, Serialize};
use volume::record::file_name;

/// The ending of the note's name: the private file of the member has none, and no point in its
/// name.
const ENDING: &str = "copy";

/// The version of the note.
const VERSION: u32 = 1;

/// A copy, as its node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyIdentity {
    version: u32,
    /// The node that has the copy.
    node: String,
    /// The nodes of all copies, in their order; for a volume that the cluster has placed, this node
    /// alone, before it as many empty names as its place has places before it.
    nodes: Vec<String>,
    /// The number of the placement, for such a volume: its list changes, and a place in it has one
    /// node for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement: Option<u64>,
    /// The pool, by its uuid.
    pool: String,
    /// The volume's number in the pool.
    number: u32,
}

impl CopyIdentity {
    pub(crate) fn new(node: &str, wanted: &VolumeConfig, pool: [u8; 16], number: u32) -> Self {
        let VolumeConfig { replicas, placement, .. } = wanted;
        Self::of(node, replicas, *placement, (pool, number))
    }

    fn of(
        node: &str,
        list: &[String],
        placement: Option<u64>,
        (pool, number): ([u8; 16], u32),
    ) -> Self {
        let pool = pool.iter().map(|byte| format!("{byte:02x}")).collect();
        let own_only = |name: &String| if name == node { name.clone() } else { String::new() };
        let to_own = list.iter().position(|name| name == node).map_or(0, |at| at + 1);
        let nodes = match placement {
            None => list.to_vec(),
            Some(_) => list[..to_own].iter().map(own_only).collect(),
        };
        Self { version: VERSION, node: node.to_owned(), nodes, placement, pool, number }
    }

    /// Whether a directory has a note about a copy of this volume.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn is_noted(directory: &Path, volume: &str) -> io::Result<bool> {
        path_of(directory, volume).try_exists()
    }

    /// Compares it with the note, or notes it for a copy that is new: one without a state, and
    /// without content or first in the list.
    ///
    /// # Errors
    /// Why it is not the copy that it was, and the way out.
    pub(crate) fn verify(
        &self,
        directory: &Path,
        volume: &str,
        (has_state, has_content): (bool, bool),
    ) -> Result<(), String> {
        let path = path_of(directory, volume);
        let noted = match registry::private_file::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Self>(&bytes)
                .map_err(|error| format!("{path:?} is damaged: {error}"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_new(&path, (has_state, has_content))?;
                let text = serde_json::to_vec(self).expect("texts and numbers");
                return registry::private_file::replace(&path, &text)
                    .map_err(|error| format!("its copy cannot be noted in {path:?}: {error}"));
            }
            Err(error) => return Err(format!("{path:?}: {error}")),
        };
        if noted == *self {
            return Ok(());
        }
        Err(format!(
            "its copy on this node was made as that of node {:?} of {:?}, as volume {} of the pool \
             {}; now it is that of node {:?} of {:?}, as volume {} of the pool {}. Put the old \
             ones back: another member would take this copy for one that has all writes. To give \
             this copy up: docs/replicas.md",
            noted.node,
            noted.nodes,
            noted.number,
            noted.pool,
            self.node,
            self.nodes,
            self.number,
            self.pool
        ))
    }

    fn check_new(&self, path: &Path, (has_state, has_content): (bool, bool)) -> Result<(), String> {
        if has_state {
            return Err(format!(
                "{path:?} is missing, and the member has a state: restore the directory whole from \
                 a backup"
            ));
        }
        if has_content && self.placement.is_some() {
            return Err(
                "the volume has content, and the copies of a volume that the cluster places begin \
                 empty, but for a first copy that begins as a snapshot: remove it with `vrio \
                 volume remove --data`"
                    .to_owned(),
            );
        }
        if has_content && self.nodes.first() != Some(&self.node) {
            return Err(format!(
                "the volume has content, which would be replaced by that of node {:?}: remove it \
                 with `vrio volume remove --data`, or name this node first in \"replicas\" on all \
                 nodes",
                self.nodes.first().map_or("", String::as_str)
            ));
        }
        Ok(())
    }
}

/// Forgets the copies whose volume of a pool goes: their notes, and the promises of their members.
/// Afterwards the copy of such a node is a new one, which the other members fill.
///
/// # Errors
/// When a file cannot be read or removed.
pub(crate) fn forget_copies(directory: &Path, (pool, number): ([u8; 16], u32)) -> io::Result<()> {
    let pool: String = pool.iter().map(|byte| format!("{byte:02x}")).collect();
    let listed = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for entry in listed {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        // A damaged note is of no known volume, and its copy is refused by name.
        let noted = serde_json::from_slice::<CopyIdentity>(&registry::private_file::read(&path)?);
        if !noted.is_ok_and(|noted| noted.pool == pool && noted.number == number) {
            continue;
        }
        for gone in [path.with_extension(""), path] {
            match std::fs::remove_file(&gone) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The private file of the member of a volume, among the files of other volumes.
pub(crate) fn state_path(directory: &Path, volume: &str) -> PathBuf {
    directory.join(file_name(volume))
}

fn path_of(directory: &Path, volume: &str) -> PathBuf {
    directory.join(format!("{}.{ENDING}", file_name(volume)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn files_of_volumes_with_points_in_their_names_are_apart() {
        let (home, mut all) = (Path::new("/d"), BTreeSet::new());
        let names = ["a", "a.copy", "a.new", "a.copy.new", "a%2ecopy"];
        for name in names {
            for path in [state_path(home, name), path_of(home, name)] {
                // A file is replaced by way of one with this ending.
                let beside = path.with_file_name(format!(
                    "{}.new",
                    path.file_name().and_then(|name| name.to_str()).unwrap()
                ));
                assert!(all.insert(path) && all.insert(beside), "{name}");
            }
        }
    }

    #[test]
    fn a_placed_copy_stays_what_it_was_while_its_list_changes() {
        let home = tempfile::tempdir().unwrap();
        let of = |list: &[&str], placement| {
            let list: Vec<_> = list.iter().map(|it| (*it).to_owned()).collect();
            CopyIdentity::of("io2", &list, Some(placement), ([1; 16], 3))
        };
        of(&["io1", "io2"], 7).verify(home.path(), "a", (false, false)).unwrap();
        of(&["", "io2", "io3"], 7).verify(home.path(), "a", (true, true)).unwrap();
        for other in [of(&["io2", "io1"], 7), of(&["io1", "", "io2"], 7), of(&["io1", "io2"], 8)] {
            let error = other.verify(home.path(), "a", (true, true)).unwrap_err();
            assert!(error.contains("Put the old ones back"), "{error}");
        }
        // All of its copies begin empty, also the first one.
        let first = CopyIdentity::of("io2", &["io2".to_owned()], Some(7), ([1; 16], 4));
        let error = first.verify(home.path(), "b", (false, true)).unwrap_err();
        assert!(error.contains("has content"), "{error}");
    }

    #[test]
    fn a_copy_is_what_it_was_or_it_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let nodes = ["io1", "io2"].map(str::to_owned);
        let copy = CopyIdentity::of("io2", &nodes, None, ([1; 16], 3));
        assert!(!CopyIdentity::is_noted(home.path(), "a").unwrap());
        let error = copy.verify(home.path(), "a", (true, false)).unwrap_err();
        assert!(error.contains("is missing"), "{error}");
        let error = copy.verify(home.path(), "a", (false, true)).unwrap_err();
        assert!(error.contains("would be replaced by that of node \"io1\""), "{error}");
        assert_eq!(copy.verify(home.path(), "a", (false, false)), Ok(()));
        assert!(CopyIdentity::is_noted(home.path(), "a").unwrap());
        // From now on it may have both.
        assert_eq!(copy.verify(home.path(), "a", (true, true)), Ok(()));
        let reordered = ["io2", "io1"].map(str::to_owned);
        for other in [
            CopyIdentity::of("io2", &reordered, None, ([1; 16], 3)),
            CopyIdentity::of("io1", &nodes, None, ([1; 16], 3)),
            CopyIdentity::of("io2", &nodes, None, ([2; 16], 3)),
            CopyIdentity::of("io2", &nodes, None, ([1; 16], 4)),
            CopyIdentity::of("io2", &nodes, Some(9), ([1; 16], 3)),
        ] {
            let error = other.verify(home.path(), "a", (true, true)).unwrap_err();
            assert!(error.contains("Put the old ones back"), "{error}");
        }
        // The first node of a list may bring the content.
        let first = CopyIdentity::of("io1", &nodes, None, ([1; 16], 3));
        assert_eq!(first.verify(home.path(), "b", (false, true)), Ok(()));
        // The data of another volume is removed, then its own.
        std::fs::write(state_path(home.path(), "a"), "promises").unwrap();
        for other in [([1; 16], 4), ([2; 16], 3)] {
            forget_copies(home.path(), other).unwrap();
            assert!(CopyIdentity::is_noted(home.path(), "a").unwrap());
        }
        std::fs::write(home.path().join("damaged.copy"), "x").unwrap();
        forget_copies(home.path(), ([1; 16], 3)).unwrap();
        assert!(!CopyIdentity::is_noted(home.path(), "a").unwrap());
        assert!(!state_path(home.path(), "a").exists());
        forget_copies(&home.path().join("none"), ([1; 16], 3)).unwrap();
        std::fs::write(home.path().join("a.copy"), "x").unwrap();
        let error = copy.verify(home.path(), "a", (true, true)).unwrap_err();
        assert!(error.contains("is damaged"), "{error}");
    }
}
