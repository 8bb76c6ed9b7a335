//! The guest's image, its scripts and the harness against a vhost-user server that is not ours. A
//! failure here is a fault of the tests, not of vrio.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::guest::{self, BOOT_TIMEOUT, Guest, VhostDisk, scripts};

const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);
const DISK_BYTES: u64 = 64 << 20;

/// A `qemu-storage-daemon` that serves one image.
struct Server {
    child: Child,
    image: PathBuf,
    disk: VhostDisk,
}

impl Server {
    /// Starts the daemon. Without the program it prints that the test is skipped, and gives
    /// nothing.
    fn start(test: &str, folder: &Path, queues: u16) -> Option<Self> {
        let image = folder.join("disk.img");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        let socket = folder.join("disk.sock");
        let child = Command::new("qemu-storage-daemon")
            .arg("--blockdev")
            .arg(format!("driver=file,node-name=file,filename={}", image.display()))
            .arg("--export")
            .arg(format!(
                "type=vhost-user-blk,id=disk,node-name=file,addr.type=unix,addr.path={},\
                 writable=on,num-queues={queues}",
                socket.display()
            ))
            .stdin(Stdio::null())
            .spawn();
        match child {
            Ok(child) => {
                Some(Self { child, image, disk: VhostDisk { socket, queues, packed: false } })
            }
            Err(why) => {
                println!("SKIP {test}: qemu-storage-daemon cannot be run: {why}");
                None
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_file_system_on_a_foreign_server_reads_back() {
    const TEST: &str = "a_file_system_on_a_foreign_server_reads_back";
    let Some(image) = guest::available(TEST) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(TEST, folder.path(), 1) else { return };
    let guest = Guest::builder(&image).name("foreign").disk(server.disk.clone());
    let mut guest = guest.script(scripts::FILESYSTEM).set("FILES", 4).start().unwrap();
    guest.wait_for("booted", BOOT_TIMEOUT).unwrap();
    guest.wait_for("filesystem done", SCRIPT_TIMEOUT).unwrap();
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    let guest = Guest::builder(&image).name("again").disk(server.disk.clone());
    let guest = guest.script(scripts::VERIFY).start().unwrap();
    guest.wait_success(BOOT_TIMEOUT).unwrap();
}

#[test]
fn churn_on_four_queues_leaves_the_image_that_the_guest_tells() {
    const TEST: &str = "churn_on_four_queues_leaves_the_image_that_the_guest_tells";
    let Some(image) = guest::available(TEST) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(TEST, folder.path(), 4) else { return };
    let guest = Guest::builder(&image).processors(4).disk(server.disk.clone());
    let mut guest = guest.script(scripts::CHURN).start().unwrap();
    let shape = guest.wait_for("churn", BOOT_TIMEOUT).unwrap();
    assert_eq!(shape, "queues=4 processors=4 packed=0");
    guest.wait_for("progress churn", SCRIPT_TIMEOUT).unwrap();
    let report = guest.ask("stop", "churned", SCRIPT_TIMEOUT).unwrap();
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    let digest = agent::pattern::image_digest(&server.image).unwrap();
    assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, image {digest:016x}");
}

#[test]
fn a_guest_that_fails_says_so_with_its_console() {
    let Some(image) = guest::available("a_guest_that_fails_says_so_with_its_console") else {
        return;
    };
    let guest = Guest::builder(&image).script("echo the reason\nsay fail on purpose\n");
    let error = guest.start().unwrap().wait_for("never", BOOT_TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("fail on purpose") && error.contains("the reason"), "{error}");
    let guest = Guest::builder(&image).script("exit 3").start().unwrap();
    let error = guest.wait_success(BOOT_TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("ended with 3"), "{error}");
    let guest = Guest::builder(&image).arguments(&["-device", "no-such-thing"]).start().unwrap();
    let error = guest.wait_success(BOOT_TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("QEMU ended") && error.contains("no-such-thing"), "{error}");
}
