//! Chains that change under guests that work.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use node::Node;
use node::status::DiskState;
use serde_json::json;
use virtio::driver::{Data, DriverOp, DriverRequest, RequestStatus as Outcome};

use super::control::done;
use super::{LOCAL, io1, load, vm1};
use crate::common::{Guest, Home, PATIENCE, address, wait_for, wait_for_disk};

/// More requests than this are a load.
const REQUESTS_MIN: u64 = 100;

/// Stages that come, go and change places under a guest that writes and reads all the time.
fn change_chains(node: &Node, socket: &Home, changes: usize) {
    let chains = [
        json!(["meter"]),
        json!(["meter", { "limit": { "iops": 100_000 } }]),
        json!([{ "limit": { "iops": 200_000, "burst": "1ms" } }, "meter"]),
        json!(["meter", "meter", { "limit": { "bytes-per-second": "1GiB" } }]),
    ];
    let stop = AtomicBool::new(false);
    let requests = thread::scope(|scope| {
        let guest = Guest::connect(socket.path("x.sock"), 2);
        let loaded = scope.spawn(|| load(guest, &stop));
        // On a busy machine the guest may have done nothing by then.
        let until = Instant::now() + PATIENCE;
        let mut change = 0;
        while change < changes || is_idle(node) && Instant::now() < until {
            done(node, "PUT", "/v1/volumes/a/chain", &chains[(change + 1) % 4]);
            change += 1;
        }
        // The last chain is the first one of the list again.
        done(node, "PUT", "/v1/volumes/a/chain", &chains[0]);
        stop.store(true, Relaxed);
        loaded.join().unwrap()
    });
    let counters = node.status().volumes[0].counters.clone();
    assert_eq!(counters["reads"] + counters["writes"], requests, "each was counted once");
    assert!(requests > REQUESTS_MIN, "there was a load: {requests}");
}

/// Whether the guest has done too little for a test of changes under load.
fn is_idle(node: &Node) -> bool {
    let counters = &node.status().volumes[0].counters;
    counters["reads"] + counters["writes"] <= REQUESTS_MIN
}

#[test]
fn a_chain_is_changed_two_hundred_times_under_a_local_guest() {
    let home = Home::new();
    let node = home.start(&format!("{LOCAL}[sidecores]\ncount = 2\n"));
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "x.sock", "queues": 2 }));
    change_chains(&node, &home, 200);
    assert_eq!(node.status().volumes[0].chain, ["meter"]);
    let same = done(&node, "PUT", "/v1/volumes/a/chain", &json!(["meter"]));
    assert!(same.applied.is_empty(), "it is so already: {same:?}");
    node.stop();
}

#[test]
fn a_chain_is_changed_two_hundred_times_under_a_remote_guest() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let volume = "[[volume]]\nname = \"a\"\nbackend = { file = \"a.img\", size = \"1MiB\" }\nchain \
                  = [\"meter\"]\nallow = [\"vm1\"]\n";
    let peer = format!("[[peer]]\nname = \"io1\"\naddress = \"{there}\"\n");
    let disk = "[[disk]]\nsocket = \"x.sock\"\nvolume = \"io1/a\"\nqueues = 2\n";
    let io1 = home.start(&format!("{}{volume}", io1(&there)));
    let vm1 = home.start(&format!("{}{peer}{disk}", vm1(&here)));
    wait_for_disk(&vm1, DiskState::Ready, "x.sock");
    change_chains(&io1, &home, 200);
    vm1.stop();
    io1.stop();
}

/// One request a second, and eight that wait: the change does not wait for them.
#[test]
fn a_limit_is_lifted_while_requests_wait_for_it() {
    let home = Home::new();
    let node = home.start(LOCAL);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "x.sock" }));
    let slow = json!([{ "limit": { "iops": 1, "burst": "1ms" } }]);
    done(&node, "PUT", "/v1/volumes/a/chain", &slow);
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    submit_reads(&mut guest, 32);
    wait_for(&node, "held back", |status| status.volumes[0].counters["delayed"] > 0);
    done(&node, "PUT", "/v1/volumes/a/chain", &json!([]));
    // At one a second this would take longer than a guest here waits.
    await_all(&mut guest, 32);
    node.stop();
}

/// Submits reads of as many blocks, and waits for none.
fn submit_reads(guest: &mut Guest, count: u64) {
    let ring = guest.0.ring(0);
    for block in 0..count {
        let slot = ring.take_slot().unwrap();
        let data = Data::Whole(4096);
        ring.submit(&DriverRequest {
            slot,
            op: DriverOp::Read,
            sector: block * 8,
            data,
            token: block,
        })
        .unwrap();
    }
    ring.publish();
}

/// Waits until as many requests have ended well.
fn await_all(guest: &mut Guest, count: usize) {
    let ring = guest.0.ring(0);
    for ended in 0..count {
        let done = loop {
            if let Some(done) = ring.complete().unwrap() {
                break done;
            }
            assert!(ring.wait(PATIENCE).unwrap(), "{ended} of {count} have ended");
        };
        assert_eq!(done.status, Outcome::Ok);
        ring.release(done.slot);
    }
}
