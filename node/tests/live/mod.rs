//! A node that is changed while it runs, by commands and by its file.

mod chains;
mod commands;
pub(crate) mod control;
mod costly;
mod disk_peers;
mod domains;
mod drain;
mod encryption;
mod fuse;
mod hostile;
mod mirrors;
mod nics;
mod raw;
mod reload;
mod remote_nics;
mod resize;
mod sockets;
mod testpmd;
mod uplinks;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::common::{Guest, Home};
use node::{Config, Node};
use virtio::driver::RequestStatus as Outcome;

const LOCAL: &str = r#"
name = "vm1"
[directories]
volumes = "HOME"
sockets = "HOME"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
chain = ["meter"]
"#;

fn io1(address: &str) -> String {
    format!(
        r#"
name = "io1"
listen = "{address}"
[sidecores]
count = 2
[directories]
volumes = "HOME"
sockets = "HOME"
state = "HOME/state"
"#
    )
}

fn vm1(address: &str) -> String {
    format!(
        "name = \"vm1\"\nlisten = \"{address}\"\n[sidecores]\ncount = 2\n[directories]\nsockets = \
         \"HOME\"\n"
    )
}

/// Writes a configuration, with HOME put in.
fn write_file(home: &Home, name: &str, text: &str) {
    let text = text.replace("HOME", home.path("").to_str().unwrap().trim_end_matches('/'));
    std::fs::write(home.path(name), text).unwrap();
}

/// Starts a node from a file, which it can reload.
fn start_file(home: &Home, name: &str, text: &str) -> Node {
    write_file(home, name, text);
    let config = Config::load(&home.path(name)).unwrap_or_else(|error| panic!("{error}"));
    Node::start(&config).unwrap_or_else(|error| panic!("{error}"))
}

/// How many blocks of a volume of 1 MiB [`load`] uses.
const LOAD_BLOCKS: u64 = 200;

/// Writes and checks blocks on both queues in turn until it is stopped, then checks all that was
/// written. Gives the number of reads and writes, each of which was right.
fn load(mut guest: Guest, stop: &AtomicBool) -> u64 {
    let mut last = vec![None; LOAD_BLOCKS as usize];
    let (mut requests, mut seed) = (0, 1);
    while !stop.load(Relaxed) {
        let (block, queue) = (seed * 7 % LOAD_BLOCKS, (seed % 2) as u16);
        assert_eq!(guest.write(queue, block, seed), Outcome::Ok);
        last[block as usize] = Some(seed);
        let other = seed * 13 % LOAD_BLOCKS;
        requests += 1;
        if let Some(written) = last[other as usize] {
            assert_eq!(guest.check(1 - queue, other, written), Outcome::Ok);
            requests += 1;
        }
        if seed.is_multiple_of(16) {
            assert_eq!(guest.flush(queue), Outcome::Ok);
        }
        seed += 1;
    }
    for (block, written) in last.iter().enumerate() {
        if let Some(written) = written {
            assert_eq!(guest.check(0, block as u64, *written), Outcome::Ok);
            requests += 1;
        }
    }
    requests
}
