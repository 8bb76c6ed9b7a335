//! The kinds of objects that a node has: disks, volumes, peers and so on.
//!
//! A kind is a file below this one, which implements [`Object`], and two lines here: the module
//! and the line of `kinds!`, which makes [`ObjectConfigs`], [`TABLE`] and [`ListedObject`]. Code
//! that serves all kinds (reading the file, comparing two configurations, adding, removing, the
//! paths of the control socket) iterates over the table and names no kind.

pub(crate) mod disk;
pub(crate) mod domain;
pub(crate) mod network;
pub(crate) mod nic;
pub(crate) mod peer;
pub(crate) mod vf;
pub(crate) mod volume;

mod any;
mod order;

use std::fmt;

use ::peer::Allow;
use serde::Serialize;

pub(crate) use self::any::{Allowed, AnyKind, AnyObject, InPlace, Replaced};
use self::disk::DiskConfig;
use self::domain::DomainConfig;
use self::network::NetworkConfig;
use self::nic::NicConfig;
pub(crate) use self::order::{adding, removing};
use self::peer::PeerConfig;
use self::vf::VfConfig;
use self::volume::VolumeConfig;
use crate::api::Refused;
use crate::config::reader::{Lines, Reader, Value};
use crate::config::{Config, Directories};
use crate::wiring::Inside;

/// Makes the lists of a configuration, the table and the accessors from one line for each kind.
macro_rules! kinds {
    ($($(#[$of:meta])* $list:ident: $config:ty,)+) => {
        /// The objects of a configuration, each kind in the order of the file.
        #[derive(Clone, Debug, Default)]
        pub struct ObjectConfigs {
            $($(#[$of])* pub $list: Vec<$config>,)+
        }

        /// The kinds, in the order in which the status names them. The order in which objects are
        /// added and removed follows from what they need ([`order`]).
        static TABLE: &[&dyn AnyKind] = &[$(any::of::<$config>()),+];

        $(impl ListedObject for $config {
            fn all(objects: &ObjectConfigs) -> &Vec<Self> {
                &objects.$list
            }

            fn all_mut(objects: &mut ObjectConfigs) -> &mut Vec<Self> {
                &mut objects.$list
            }

            fn name(&self) -> &str {
                &self.name
            }

            fn lines(&self) -> &Lines {
                &self.lines
            }

            fn lines_mut(&mut self) -> &mut Lines {
                &mut self.lines
            }
        })+
    };
}

kinds! {
    /// The disks that this node offers to guests.
    disks: DiskConfig,
    /// The volumes that this node has.
    volumes: VolumeConfig,
    /// The nodes that this node's disks need.
    peers: PeerConfig,
    /// The networks that this node has.
    networks: NetworkConfig,
    /// The network cards that this node offers to guests.
    nics: NicConfig,
    /// The domains of the fabric.
    domains: DomainConfig,
    /// Virtual machines' windows into them.
    vfs: VfConfig,
}

/// The result of a change of a running node: notes for the operator, or the refusal, after which
/// nothing has changed.
pub(crate) type Changed = Result<Vec<String>, Refused>;

/// An object that is in a list of [`ObjectConfigs`]; `kinds!` writes this for each kind.
pub(crate) trait ListedObject: Sized {
    /// The objects of this kind in a configuration.
    fn all(objects: &ObjectConfigs) -> &Vec<Self>;

    /// The same list, for a change.
    fn all_mut(objects: &mut ObjectConfigs) -> &mut Vec<Self>;

    /// The object's name, unique in its kind.
    fn name(&self) -> &str;

    /// The lines of the object's keys in the file.
    fn lines(&self) -> &Lines;

    /// The same places, for a change.
    fn lines_mut(&mut self) -> &mut Lines;
}

/// One object of a configuration, and how a running node adds, changes and removes it.
pub(crate) trait Object:
    ListedObject + Clone + fmt::Debug + PartialEq + Send + Sync + 'static
{
    /// The name of the kind's table in the file, of its command, and, with an `s`, of its path.
    const KEY: &'static str;

    /// The keys of the table.
    const KEYS: &'static [&'static str];

    /// The keys of inner tables, where commands have an option for each.
    const KEYS_WITHIN: &'static [(&'static str, &'static [&'static str])] = &[];

    /// The kinds whose objects it may name: these are added before it and removed after it.
    const NEEDS: &'static [&'static str] = &[];

    /// Whether users notice the removal of an object, so that a reload needs `--force` for it.
    const INTERRUPTS: bool = true;

    /// The status of one object; `GET` on the kind's path answers with a list of these.
    type Status: Serialize;

    /// Reads one table of the file; its problems are noted in the reader.
    fn read(value: &Value<'_, '_>, directories: &Directories) -> Option<Self>;

    /// Notes objects that do not fit together; a name that is given twice has been noted before.
    /// `whole`: each object of the configuration could be read.
    fn consistent(reader: &Reader<'_>, config: &Config, whole: bool);

    /// The object that it is a part of: where that object is added again, so is this one.
    fn part_of(&self) -> Option<PartOf<'_>> {
        None
    }

    /// The other nodes that may use it.
    fn allow(&self) -> &[Allow] {
        &[]
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

    /// Starts it on a running node, or leaves everything as it was.
    fn add(&self, node: &Inside) -> Changed;

    /// Gives the running object the part of this configuration that `step` names.
    fn change(&self, _step: &InPlace, _node: &Inside) -> Changed {
        unreachable!("such an object has nothing that is changed in place")
    }

    /// Ends the access of nodes that this configuration no longer allows, on a running node.
    fn readmit(&self, _node: &Inside) {}

    /// Removes the object of this name, which exists; with `force` also while it has users.
    fn remove(name: &str, node: &Inside, force: bool) -> Changed;

    /// The users that the removal of the object of this name would interrupt. `goes`: whether an
    /// object such as `disk "a"` is removed before it.
    fn users(_name: &str, _node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        Vec::new()
    }

    /// The status of each object of this kind on a running node.
    fn status(node: &Inside) -> Vec<Self::Status>;

    /// The name of the object that a status describes.
    fn status_name(status: &Self::Status) -> &str;
}

/// The object that another one is a part of.
pub(crate) struct PartOf<'c> {
    /// The kind of that object, as the file calls it.
    pub(crate) kind: &'static str,
    pub(crate) name: &'c str,
    /// The plan's words for it, such as `its volume`.
    pub(crate) said: &'static str,
}

/// A kind of objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind(usize);

impl Kind {
    /// All kinds, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..TABLE.len()).map(Self)
    }

    /// The kind whose tables in the file have this name.
    pub fn named(key: &str) -> Option<Self> {
        Self::all().find(|kind| kind.key() == key)
    }

    /// The kind of objects of this type.
    pub(crate) fn of<T: Object>() -> Self {
        Self::named(T::KEY).expect("each kind is in the table")
    }

    /// The table's name in the file.
    pub fn key(self) -> &'static str {
        self.row().key()
    }

    /// The keys of the table in the file.
    pub fn keys(self) -> &'static [&'static str] {
        self.row().keys()
    }

    /// The keys of the inner table that is the value of `key`, where commands have an option for
    /// each of them.
    pub fn keys_within(self, key: &str) -> Option<&'static [&'static str]> {
        let within = self.row().keys_within().iter().find(|(of, _)| *of == key);
        within.map(|(_, keys)| *keys)
    }

    pub(crate) fn row(self) -> &'static dyn AnyKind {
        TABLE[self.0]
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}
