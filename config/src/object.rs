//! The half of a kind of objects that needs no running node.

use std::any::Any;
use std::fmt;
use std::path::Path;

use peer::Allow;

use crate::checks::Surroundings;
use crate::key_table::{KeyTable, SettingKey};
use crate::reader::{Reader, Value};
use crate::sections::Directories;

/// An object of a configuration: its keys, reading and checking it, and how two of them differ. How
/// a running node adds, changes and removes it is said in the daemon's crate.
pub trait Object: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The name of the kind's table in the file, of its command, and, with an `s`, of its path.
    const KEY: &'static str;

    /// The kinds whose objects it may name: these are added before it and removed after it.
    const NEEDS: &'static [&'static str] = &[];

    /// Whether users notice the removal of an object, so that a reload needs `--force` for it.
    const INTERRUPTS: bool = true;

    /// The keys of the table, with their descriptions for the manual.
    fn keys() -> &'static [SettingKey];

    /// The keys of the inner table that is the value of `key`, where commands have an option for
    /// each of them.
    fn keys_within(_key: &str) -> Option<Vec<&'static str>> {
        None
    }

    /// The tables of the manual beside the object's own: values that are tables.
    fn inner_tables() -> Vec<KeyTable> {
        Vec::new()
    }

    /// Reads one table of the file; its problems are noted in the reader.
    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self>;

    /// Notes objects that do not fit together, or not to what is around them; a name that is given
    /// twice has been noted before.
    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>);

    /// The socket that is made for it.
    fn socket(&self) -> Option<&Path> {
        None
    }

    /// The object that it is a part of: where that object is added again, so is this one.
    fn part_of(&self) -> Option<PartOf<'_>> {
        None
    }

    /// The other nodes that may use it.
    fn allow(&self) -> &[Allow] {
        &[]
    }

    /// Whether other nodes have copies of it, so that disks of this node may find it there.
    fn has_copies(&self) -> bool {
        false
    }

    /// Replaces the list of nodes that may use it.
    fn set_allow(&mut self, _allow: Vec<Allow>) {}

    /// Whether other nodes have a reason to open sessions.
    fn is_for_peers(&self) -> bool {
        !self.allow().is_empty()
    }

    /// The keys that are different in `wanted` and cannot be changed in place.
    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str>;

    /// The parts of `wanted` that are different and can be changed in place; only asked where
    /// [`Object::replaced_for`] names no key.
    fn in_place(&self, _wanted: &Self) -> Vec<InPlace> {
        Vec::new()
    }

    /// The end of a plan's line for it, behind "add" and its name.
    fn added_to(&self) -> String {
        String::new()
    }
}

/// One object of any kind, as the configuration wants it.
pub trait AnyObject: Any + fmt::Debug + Send + Sync {}

impl<T: Object> AnyObject for T {}

/// The object that another one is a part of.
#[derive(Debug)]
pub struct PartOf<'c> {
    /// The kind of that object, as the file calls it.
    pub kind: &'static str,
    /// Its name.
    pub name: &'c str,
    /// The plan's words for it, such as `its volume`.
    pub said: &'static str,
}

/// A part of an object that is changed while it is used.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// The part, by a name that only its kind reads.
    pub step: &'static str,
    /// The plan's line for it, such as `change peer "io1": how it is reached`.
    pub text: String,
}

/// The keys that are different. `any`: something differs, perhaps in a key that the list does not
/// have.
pub(crate) fn keys(different: &[(&'static str, bool)], any: bool) -> Vec<&'static str> {
    let keys = different.iter().filter(|(_, different)| *different);
    let keys: Vec<_> = keys.map(|(key, _)| *key).collect();
    if keys.is_empty() && any { vec!["other keys"] } else { keys }
}
