//! Real guests on volumes of a pool: a snapshot under their work, going back, clones, and space
//! that they give back.

use std::path::Path;
use std::time::{Duration, Instant};

use random::Random;
use testbed::guest::{self, BOOT_TIMEOUT, Guest, Image, VhostDisk, scripts};
use testbed::nodes::Node;
use testbed::stand_in::StandIn;
use workload::Mix;

use crate::pools::{PATIENCE, plan_with_pool, pool, told};

/// The time limit of a script: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// The size of a guest's big file.
const BIG_MIB: u64 = 16;

/// Clones of one golden image.
const CLONES: usize = 100;

/// All that so many clones may take: their names, and no block of the image.
const CLONES_MIB_MAX: u64 = 2;

/// A volume of the pool, with a disk.
const GOLDEN: &str = "[[volume]]\nname = \"golden\"\nbackend = { pool = \"p\", size = \"48MiB\" }\n\
                      [[disk]]\nvolume = \"golden\"\nsocket = \"golden.sock\"\n";

/// Mounts the disk of another boot, whose journal may have to be replayed, and verifies its files.
/// Then it writes a big file, removes it and gives the space back.
const VERIFY_AND_TRIM: &str = "
mount -t ext4 \"$DISK\" /mnt
(cd /mnt && sha256sum -c SUMS >/tmp/verdict 2>&1) || {
    say \"fail verify: $(grep -v ': OK$' /tmp/verdict | head -n 3 | tr '\\n' ' ')\"
    exit 1
}
wait_for() {
    while read -r line; do
        [ \"$line\" != \"$1\" ] || return 0
    done
}
head -c $((BIG_MIB << 20)) /dev/urandom >/mnt/big
sync
say 'step filled'
wait_for trim
rm /mnt/big
sync
fstrim /mnt
sync
umount /mnt
/bin/e2fsck -fn \"$DISK\" >/tmp/fsck 2>&1 || {
    say \"fail e2fsck: $(tr '\\n' ' ' </tmp/fsck)\"
    exit 1
}
say 'step trimmed'
";

fn start(image: &Image, name: &str, socket: &Path, script: &str) -> Guest {
    let disk = VhostDisk { socket: socket.to_owned(), queues: 1, packed: false };
    Guest::builder(image).name(name).disk(disk).script(script).start().unwrap()
}

fn used_mib(node: &Node) -> u64 {
    pool(node)["used_bytes"].as_u64().expect("a number") >> 20
}

/// Waits until the pool uses at most so much: space comes back in the background.
fn wait_for_space(node: &Node, mib: u64) {
    let until = Instant::now() + PATIENCE;
    while used_mib(node) > mib {
        assert!(Instant::now() < until, "{} MiB are used, {mib} awaited", used_mib(node));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Writes over all of a disk's beginning.
fn destroy(node: &mut Node, disk: &str) {
    let mix = Mix { blocks_max: 8, depth: 8, reads_ppm: 0, ..Mix::OF_ALL };
    let socket = node.wait_for_disk(disk).expect("its socket");
    let guest = StandIn::connect(&socket, 1, mix, 2048, &mut Random::new(1));
    let mut guest = guest.expect("the disk");
    guest.work(|guest| guest.workload.counts.completed > 2000).expect("it writes");
    guest.drain().expect("all requests end");
    guest.disconnect();
}

#[test]
fn a_snapshot_under_a_guests_work_is_a_disk_that_it_boots_from() {
    const TEST: &str = "a_snapshot_under_a_guests_work_is_a_disk_that_it_boots_from";
    let Some(image) = guest::available(TEST) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let mut node = plan_with_pool(home.path(), "256MiB", GOLDEN).start().expect("a node");
    let golden = node.wait_for_disk("golden").expect("its socket");
    let script = format!("FILES=6\nWORK_KIB=8192\n{}", scripts::DEMO);
    let mut guest = start(&image, "golden", &golden, &script);
    guest.wait_for("demo wrote", BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    for _ in 0..3 {
        guest.wait_for("progress churn", SCRIPT_TIMEOUT).unwrap();
    }
    told(&node, "volume snapshot golden --name live");
    guest.wait_for("progress churn", SCRIPT_TIMEOUT).unwrap();
    guest.ask("stop", "demo verified", SCRIPT_TIMEOUT).unwrap();
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();

    // A clone is what a power cut would have left.
    told(&node, "volume clone golden@live web");
    told(&node, "disk add --volume web --socket web.sock");
    let web = node.wait_for_disk("web").expect("its socket");
    let script = format!("BIG_MIB={BIG_MIB}\n{VERIFY_AND_TRIM}");
    let before = used_mib(&node);
    let mut guest = start(&image, "web", &web, &script);
    guest.wait_for("step filled", BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    let filled = used_mib(&node);
    assert!(filled >= before + BIG_MIB, "from {before} to {filled} MiB");
    guest.ask("trim", "step trimmed", SCRIPT_TIMEOUT).unwrap();
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    wait_for_space(&node, before + BIG_MIB / 4);
    println!("{before} MiB, with a big file {filled}, after fstrim {}", used_mib(&node));

    // The first disk is destroyed, and goes back.
    destroy(&mut node, "golden");
    told(&node, "disk remove golden --force");
    told(&node, "volume rollback golden live");
    told(&node, "disk add --volume golden --socket golden.sock");
    let golden = node.wait_for_disk("golden").expect("its socket");
    let guest = start(&image, "golden again", &golden, scripts::VERIFY);
    guest.wait_success(BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    node.stop().expect("an orderly end");
}

#[test]
fn a_hundred_clones_of_a_golden_image_share_its_space() {
    const TEST: &str = "a_hundred_clones_of_a_golden_image_share_its_space";
    let Some(image) = guest::available(TEST) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let mut node = plan_with_pool(home.path(), "128MiB", GOLDEN).start().expect("a node");
    let golden = node.wait_for_disk("golden").expect("its socket");
    let guest = start(&image, "golden", &golden, scripts::FILESYSTEM);
    guest.wait_success(BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    told(&node, "volume snapshot golden --name v1");
    let before = used_mib(&node);
    for number in 0..CLONES {
        told(&node, &format!("volume clone golden@v1 web{number}"));
    }
    let used = used_mib(&node);
    assert!(before >= 4, "the image itself takes {before} MiB");
    assert!(used <= before + CLONES_MIB_MAX, "{CLONES} clones: from {before} to {used} MiB");
    let shown = told(&node, "pool show p");
    assert!(shown.contains("web99"), "{shown}");
    told(&node, "disk add --volume web57 --socket web57.sock");
    let socket = node.wait_for_disk("web57").expect("its socket");
    let guest = start(&image, "web57", &socket, scripts::VERIFY);
    guest.wait_success(BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    let booted = used_mib(&node);
    assert!(booted <= used + CLONES_MIB_MAX, "a boot: from {used} to {booted} MiB");
    println!("{before} MiB, with {CLONES} clones {used}, after the boot of one {booted}");
    node.stop().expect("an orderly end");
}
