//! The registry on etcd, with real members: Debian's etcd-server, three of them on this machine.

mod etcd;
mod members;
