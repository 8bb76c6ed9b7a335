//! The kinds of objects that a node has: disks, volumes, peers and so on.
//!
//! A kind is a file below this one, which implements [`Object`], and two lines here: the module
//! and the line of `kinds!`, which makes [`ObjectConfigs`], [`TABLE`] and [`ListedObject`]. Code
//! that serves all kinds (reading the file, comparing two configurations) iterates over the table
//! and names no kind.
//!
//! The other half of a kind, which adds, changes and removes its objects on a running node, is in
//! the daemon's crate. `for_each_kind` makes the table of those halves from the same lines.

pub(crate) mod disk;
pub(crate) mod domain;
pub(crate) mod network;
pub(crate) mod nic;
pub(crate) mod peer;
pub(crate) mod pool;
pub(crate) mod vf;
pub(crate) mod volume;

pub(crate) mod order;
pub(crate) mod row;

use std::fmt;

use self::row::AnyKind;
use crate::key_table::SettingKey;
use crate::object::Object;
use crate::reader::Lines;

/// Makes the lists of a configuration, the table and the accessors from one line for each kind.
macro_rules! kinds {
    ($dollar:tt $($(#[$of:meta])* $list:ident: $kind:ident::$config:ident,)+) => {
        /// The objects of a configuration, each kind in the order of the file.
        #[derive(Clone, Debug, Default)]
        pub struct ObjectConfigs {
            $($(#[$of])* pub $list: Vec<$kind::$config>,)+
        }

        /// The kinds, in the order in which the status names them. The order in which objects are
        /// added and removed follows from what they need ([`order`]).
        static TABLE: &[&dyn AnyKind] = &[$(row::of::<$kind::$config>()),+];

        /// The configuration of an object of each kind.
        pub(crate) mod configs {
            $(pub use crate::kinds::$kind::$config;)+
        }

        /// Calls a macro with the types of the kinds' objects, in the order of the table. The
        /// caller knows this crate by its name.
        #[macro_export]
        macro_rules! for_each_kind {
            ($dollar then:ident) => {
                $dollar then! { $(::config::$config),+ }
            };
        }

        $(impl ListedObject for $kind::$config {
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

kinds! { $
    /// The disks that this node offers to guests.
    disks: disk::DiskConfig,
    /// The volumes that this node has.
    volumes: volume::VolumeConfig,
    /// The pools that volumes are cut from.
    pools: pool::PoolConfig,
    /// The nodes that this node's disks need.
    peers: peer::PeerConfig,
    /// The networks that this node has.
    networks: network::NetworkConfig,
    /// The network cards that this node offers to guests.
    nics: nic::NicConfig,
    /// The domains of the fabric.
    domains: domain::DomainConfig,
    /// Virtual machines' windows into them.
    vfs: vf::VfConfig,
}

/// An object that is in a list of [`ObjectConfigs`]; `kinds!` writes this for each kind.
pub trait ListedObject: Object {
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
    pub fn of<T: Object>() -> Self {
        Self::named(T::KEY).expect("each kind is in the table")
    }

    /// The table's name in the file.
    pub fn key(self) -> &'static str {
        self.row().key()
    }

    /// The keys of the table in the file.
    pub fn keys(self) -> &'static [SettingKey] {
        self.row().keys()
    }

    /// The keys of the inner table that is the value of `key`, where commands have an option for
    /// each of them.
    pub fn keys_within(self, key: &str) -> Option<Vec<&'static str>> {
        self.row().keys_within(key)
    }

    /// The kind's row of the table.
    pub fn row(self) -> &'static dyn AnyKind {
        TABLE[self.0]
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}
