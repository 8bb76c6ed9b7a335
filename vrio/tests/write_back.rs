//! Write-back with real processes: nodes that are killed, handed over and stopped with writes that
//! only the VMhost has, an IOhost that is away, and a volume that another node takes.

use testbed::nodes::Node;

use crate::caches::{Pair, cache, connect, work_with_hits};
use crate::pools::{refused, told};

/// Nothing is sent before an hour has passed, or half of 64 MiB is dirty: more than the guest has.
const LATE: &str = "cache = { pool = \"local\", size = \"16MiB\", mode = \"write-back\", \
                    dirty = \"64MiB\", dirty-age = \"1h\" }\n";

/// Everything is sent at once.
const EARLY: &str = "cache = { pool = \"local\", size = \"16MiB\", mode = \"write-back\", \
                     dirty = \"1MiB\", dirty-age = \"1ms\" }\n";

fn dirty_bytes(node: &Node) -> u64 {
    cache(node)["write_back"]["dirty_bytes"].as_u64().expect("it has write-back")
}

fn stranded(node: &Node) -> usize {
    cache(node)["write_back"]["stranded"].as_array().map_or(0, Vec::len)
}

#[test]
fn writes_that_only_the_vmhost_has_are_there_after_kills_and_go_back_at_a_stop() {
    let (pair, mut random) = (Pair::new(3), random::Random::new(4));
    let mut io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    for turn in 0..4 {
        work_with_hits(&mut guest, &vm, 100);
        assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
        match turn {
            0 => vm = vm.kill().expect("it ran").start().expect("it starts again"),
            1 => vm = vm.hand_over().expect("it hands over"),
            2 => io = io.kill().expect("it ran").start().expect("it starts again"),
            _ => vm = vm.kill().expect("it ran").start().expect("it starts again"),
        }
    }
    guest.read_all().expect("all of the disk is as promised");
    assert!(dirty_bytes(&vm) > 0 && stranded(&vm) == 0, "{}", cache(&vm));
    let shown = told(&vm, "disk show alice");
    assert!(shown.contains("only on this host"), "{shown}");
    refused(&vm, "pool remove local --force", "alice");
    refused(&vm, "disk cache alice pool=local,size=16MiB", "alice");
    assert_eq!(guest.workload.counts.errors, 0, "a kill is a pause, not an error");
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn writes_go_back_while_the_guest_works() {
    let (pair, mut random) = (Pair::new(4), random::Random::new(5));
    let mut io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", EARLY).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    for _ in 0..2 {
        work_with_hits(&mut guest, &vm, 200);
        io = io.kill().expect("it ran").start().expect("it starts again");
        work_with_hits(&mut guest, &vm, 200);
        vm = vm.kill().expect("it ran").start().expect("it starts again");
    }
    guest.read_all().expect("all of the disk is as promised");
    vm.wait_until("nothing is dirty", |vm| dirty_bytes(vm) == 0).expect("it is sent");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    // The guest goes, and the disk with its volumes.
    guest.disconnect();
    told(&vm, "disk remove alice");
    let pool = told(&vm, "pool show local");
    assert!(!pool.contains("dirty.alice") && !pool.contains("cache.alice"), "{pool}");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn writes_that_come_too_late_are_kept_and_not_written_over_another_nodes() {
    let (pair, mut random) = (Pair::new(5), random::Random::new(6));
    let io = pair.io().start().expect("the IOhost starts");
    let mut first = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut second = pair.vm("vm2", LATE).start().expect("the other VMhost starts");
    // The first node is killed with writes that only it has, and its guest is gone.
    let mut guest = connect(&mut first, &mut random);
    let checked = guest.checker.checked + 300;
    guest.work(|guest| guest.checker.checked >= checked).expect("the promise is kept");
    assert!(dirty_bytes(&first) > 0);
    let killed = first.kill().expect("it ran");
    drop(guest);
    // Nothing was sent, so the guest on the other node finds zeroes, and fills the disk anew.
    let mut other = connect(&mut second, &mut random);
    told(&second, "disk take alice");
    work_with_hits(&mut other, &second, 100);
    other.read_all().expect("all of the disk is as promised");
    other.checker.settle();
    second.stop().expect("the other VMhost stops in order");
    other.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    // Back on the first node: its old writes are put aside.
    let mut first = killed.start().expect("it starts again");
    assert!(dirty_bytes(&first) > 0);
    let mut guest = connect(&mut first, &mut random);
    std::mem::swap(&mut other.checker, &mut guest.checker);
    told(&first, "disk take alice");
    work_with_hits(&mut guest, &first, 100);
    guest.read_all().expect("all of the disk is as the other guest left it");
    assert_eq!(stranded(&first), 1, "{}", cache(&first));
    assert!(told(&first, "status").contains("were not written back"));
    assert!(told(&first, "pool show local").contains("rest.alice.1"));
    first.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}
