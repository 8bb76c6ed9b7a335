//! Damage of a pool's file under a volume with copies on two real nodes: its guest reads what the
//! other copy has, and an error only where both are damaged.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use random::Random;
use testbed::nodes::Node;

use crate::pools::told;
use crate::replicas::{Rack, connect, copy, wait_until_in_sync, work_on};
use crate::snapshots::take;

const BLOCK: usize = 4096;

/// The blocks of an image that have content.
pub(crate) fn blocks_of(image: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(image).expect("the command wrote it");
    let blocks = bytes.chunks_exact(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0));
    blocks.map(<[u8]>::to_vec).collect()
}

/// Damages blocks with this content in a pool's file, wherever the pool has them, and gives how
/// many it has found.
pub(crate) fn damage(pool: &Path, contents: &[Vec<u8>]) -> usize {
    let wanted: HashSet<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let bytes = fs::read(pool).expect("a pool's file");
    let file = File::options().write(true).open(pool).expect("a pool's file");
    let mut found = 0;
    for (at, block) in bytes.chunks_exact(BLOCK).enumerate() {
        if wanted.contains(block) {
            file.write_all_at(&[block[99] ^ 1], (at * BLOCK + 99) as u64).expect("it is written");
            found += 1;
        }
    }
    file.sync_all().expect("it is on the medium");
    found
}

/// The bytes that the node's copy has repaired, and the number of blocks that no copy has.
fn met(node: &Node) -> (u64, usize) {
    let copy = copy(node).expect("it has a copy");
    assert_eq!(copy["role"], "primary", "the copy goes on");
    let lost = copy["lost"].as_array().map_or(0, Vec::len);
    (copy["repaired_bytes"].as_u64().unwrap_or(0), lost)
}

#[test]
fn a_guest_reads_what_another_copy_has_of_damaged_blocks() {
    let mut random = Random::new(71);
    let (rack, list) = (Rack::new(14), ["io1", "io2"]);
    let nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    work_on(&mut guest, 500);
    let primary = wait_until_in_sync(&nodes);
    let node = nodes[primary].as_ref().expect("it runs");
    guest.drain().expect("the requests end");
    let snapshot = take(node, "alice", "all");
    let image = rack.path("all.raw");
    told(node, &format!("volume export {snapshot} {}", image.display()));
    let contents = blocks_of(&image);
    let pools = list.map(|name| rack.path(&format!("{name}.pool")));
    // Each block of the copy that serves is damaged.
    let found = damage(&pools[primary], &contents);
    assert!(found >= contents.len() && contents.len() > 50, "{found} of {}", contents.len());
    guest.read_all().expect("the other copy has all of it");
    let (repaired_bytes, lost) = met(node);
    assert!(repaired_bytes >= (contents.len() * BLOCK) as u64 && lost == 0, "{repaired_bytes}");
    // It was written again: nothing more is repaired.
    guest.read_all().expect("it is there");
    assert_eq!(met(node), (repaired_bytes, 0));
    work_on(&mut guest, 300);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    // A block that is damaged on both copies is an error of its reads, and is named.
    let snapshot = take(node, "alice", "more");
    let image = rack.path("more.raw");
    told(node, &format!("volume export {snapshot} {}", image.display()));
    let contents = blocks_of(&image);
    assert!(pools.iter().all(|pool| damage(pool, &contents[..1]) > 0));
    let error = guest.read_all().expect_err("no copy has it");
    assert!(error.to_string().contains("cannot be read"), "{error}");
    assert_eq!(met(node), (repaired_bytes, 1));
    assert!(told(node, "status").contains("damaged on all copies in sync"));
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}
