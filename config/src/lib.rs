//! A node's configuration: one TOML file, `docs/configuration.md` is its reference.
//!
//! Every key is known here or refused; every problem of a file is reported at once, with line,
//! object and what to do. A problem that only the running system can tell (a file that is
//! locked, a peer that does not answer) is found when the node starts, and says the same line.

mod address;
mod cache;
mod change;
mod checks;
mod config;
mod consistent;
mod difference;
mod document;
mod key_table;
mod kinds;
mod load;
pub mod manual;
mod object;
mod placed;
mod public_keys;
mod quantity;
mod reader;
mod request;
mod schedule;
mod sections;
mod values;

pub use address::PeerAddress;
pub use change::{Change, ChangeStep};
pub use config::Config;
pub use difference::{Revoked, changes, needs_restart, revoked};
pub use key_table::{KeyTable, SettingKey};
pub use kinds::configs::*;
pub use kinds::disk::{VolumeRef, WhenLost};
pub use kinds::network::RemotePorts;
pub use kinds::nic::{MirrorConfig, NIC_CHANGEABLE};
pub use kinds::peer::PeerKey;
pub use kinds::volume::{REPLICA_PLACES_MAX, REPLICAS_MAX};
pub use kinds::{Kind, ListedObject, ObjectConfigs};
pub use object::{AnyObject, InPlace, Object, PartOf};
pub use placed::placed_peers;
pub use quantity::{duration_ns, show_duration, size_bytes};
pub use reader::{ConfigError, Lines, Problem};
pub use request::{Resize, value};
pub use schedule::{SnapshotRule, show_snapshot_rules};
pub use sections::{
    ClusterConfig, Directories, FaultConfig, KEYS_PER_PEER_MAX, LinkConfig, LinkKind, MemoryConfig,
    NAME_BYTES_MAX, OBJECTS_MAX, Privileges, QUEUES_DEFAULT, QUEUES_MAX, Role,
    SESSION_BUFFERS_BYTES_DEFAULT, SIDECORES_MAX, SOCKET_PATH_BYTES_MAX, Sidecores, Trust,
    Watchdog,
};
pub use values::name_problem;
pub use volume::backend::BackendConfig;
pub use volume::settings::show_size;
pub use volume::stage::{StageConfig, encryption, show_chain};
