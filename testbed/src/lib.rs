//! The surroundings of nodes in tests, measurements and the demo: guests under QEMU, nodes as
//! processes, network namespaces between them, and the removal of all of it.

pub mod cleanup;
pub mod etcd;
pub mod events;
pub mod guest;
pub mod hosts;
pub mod installed;
pub mod interrupts;
pub mod machine;
pub mod nodes;
pub mod pair;
pub mod progress;
pub mod rack;
pub mod stage;
pub mod stand_in;
