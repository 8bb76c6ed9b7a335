//! The outage as a Linux guest sees it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use testbed::guest::words::{number, text};
use testbed::guest::{Accelerator, BOOT_TIMEOUT, Guest, Image, VhostDisk, image_digest, scripts};
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::stage::Stage;

use super::mpi::{JobSetup, Messages};
use super::network::{self, GuestSetup, Talk};
use super::outage::{Outage, User, ms, pause_after};
use super::scene::kill_and_start;

const KILLS: u32 = 3;

/// Requests that the guest completes between two kills: many more than are outstanding at a time.
const REQUESTS_BETWEEN_KILLS: u64 = 300;

/// The time limit of each of the guest's steps: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

const FILES: u64 = 8;
const WORK_KIB: u64 = 16 << 10;
const THREADS: u64 = 16;

/// The results in guests, and the IOhost after the outage.
pub(super) struct DemoFindings {
    pub(super) outage: Outage,
    pub(super) talk: Talk,
    pub(super) messages: Option<Messages>,
    pub(super) io: Node,
}

/// Boots a guest on the disk `alice` of the VMhost and kills the IOhost while the guest works. Then
/// the guest talks to a second guest, and an MPI job runs in both.
///
/// # Errors
/// When the guest or the host reads other data than was written, or a node does not start.
pub(super) fn outage(
    stage: &Stage,
    (image, troupe): (&Image, Option<&JobSetup>),
    mut io: Node,
    vm: &mut Node,
    progress: &Progress,
) -> Result<DemoFindings> {
    progress.doing("looking whether hardware virtualisation works (a probing guest)");
    let accelerator = Accelerator::choose(image);
    let socket = vm.wait_for_disk("alice")?;
    let cast = GuestSetup { stage, image, accelerator, troupe, vm };
    let (mut guest, kernel) = boot(&cast, socket, progress)?;
    progress.doing("the guest makes a file system");
    guest.wait_for("demo made", SCRIPT_TIMEOUT)?;
    progress.doing("the guest writes files");
    guest.wait_for("demo wrote", SCRIPT_TIMEOUT)?;
    progress.done(format!("the guest made ext4 on its disk, wrote {FILES} files, and synced"));
    let (mut requests, mut away_longest) = (0, Duration::ZERO);
    for kill in 1..=KILLS {
        let what = format!("the guest works: {THREADS} threads write, read and verify");
        requests = work(&mut guest, requests + REQUESTS_BETWEEN_KILLS, &what, progress)?;
        let pid = io.pid();
        let away;
        (io, away) = kill_and_start(stage, io, pause_after(kill, KILLS))?;
        away_longest = away_longest.max(away);
        let what = format!("io1 was killed (pid {pid}) and runs again; the guest goes on");
        requests = work(&mut guest, requests + REQUESTS_BETWEEN_KILLS, &what, progress)?;
        progress.done(format!(
            "kill {kill} of {KILLS}: io1 (pid {pid}) killed -9 while {THREADS} threads write; \
             back after {} ms, they go on",
            away.as_millis()
        ));
    }
    progress.doing("the guest reads everything back and verifies it");
    let report = guest.ask("stop", "churned", SCRIPT_TIMEOUT)?;
    guest.wait_for("demo verified", SCRIPT_TIMEOUT)?;
    progress.done("the guest read everything back: as written; its file system is clean");
    let (talk, io, guests) = network::talk(&cast, guest, io, progress)?;
    let messages = part(guests, troupe, progress)?;
    progress.doing("comparing the volume's image on io1");
    let image_bytes = compare(stage, &io.plan().file("alice.img"), text(&report, "digest")?)?;
    progress.done("the volume's image on io1 holds the same, by an independent tool (e2fsprogs)");
    let outage = Outage {
        user: User::Guest { accelerator: accelerator.name(), kernel },
        kills: KILLS,
        outstanding_at_kills_min: None,
        away_longest_ms: ms(away_longest),
        pause_longest_ms: number(&report, "longest_ms")?,
        writes_verified: number(&report, "writes")?,
        reads_verified: number(&report, "reads")?,
        errors: 0,
        files_verified: FILES,
        image_bytes_verified: image_bytes,
    };
    Ok(DemoFindings { outage, talk, messages, io })
}

/// The MPI job in the guests, if there is one, and the guests' end.
fn part(
    guests: [Guest; 2],
    troupe: Option<&JobSetup>,
    progress: &Progress,
) -> Result<Option<Messages>> {
    let Some(troupe) = troupe else {
        for guest in guests {
            guest.wait_success(SCRIPT_TIMEOUT)?;
        }
        return Ok(None);
    };
    troupe.in_guests(guests, progress).map(Some)
}

fn boot(cast: &GuestSetup<'_>, socket: PathBuf, progress: &Progress) -> Result<(Guest, String)> {
    let accelerator = cast.accelerator;
    progress.doing("booting a Linux guest under QEMU");
    let builder = Guest::builder(cast.image)
        .name("alice")
        .processors(2)
        .disk(VhostDisk { socket, queues: 2, packed: false })
        .set("FILES", FILES)
        .set("WORK_KIB", WORK_KIB)
        .set("THREADS", THREADS);
    let builder = network::with_card(builder, cast, scripts::DEMO_TALK, 0)?;
    let mut guest = {
        let _starting = cast.stage.cleanup.start();
        builder.start()?
    };
    let booted = guest.wait_for("booted", BOOT_TIMEOUT)?;
    let kernel = booted.split_whitespace().next().unwrap_or("Linux").to_owned();
    progress.done(format!(
        "a guest runs: Linux {kernel} under QEMU ({}), its disk is vm1's vhost-user socket",
        accelerator.name()
    ));
    Ok((guest, kernel))
}

/// Waits until the guest has completed this many requests, and prints their number meanwhile.
fn work(guest: &mut Guest, wanted: u64, what: &str, progress: &Progress) -> Result<u64> {
    progress.doing(what);
    loop {
        let line = guest.wait_for("progress churn", SCRIPT_TIMEOUT)?;
        let requests = number(&line, "requests")?;
        progress.doing(format!("{what} ({requests} requests done)"));
        if requests >= wanted {
            return Ok(requests);
        }
    }
}

/// Checks the image's file system and the file that the guest worked in; gives its bytes.
fn compare(stage: &Stage, image: &Path, digest: &str) -> Result<u64> {
    run("e2fsck", &["-fn".as_ref(), image.as_os_str()])?;
    let work = stage.path("work");
    let dump = format!("dump /work {}", work.display());
    run("debugfs", &["-R".as_ref(), dump.as_ref(), image.as_os_str()])?;
    let found = image_digest(&work).context("reading the file from the image")?;
    ensure!(
        format!("{found:016x}") == digest,
        "the image on io1 differs from what the guest wrote: digest {found:016x}, not {digest}"
    );
    Ok(work.metadata()?.len())
}

/// Runs a tool of e2fsprogs.
fn run(tool: &str, words: &[&std::ffi::OsStr]) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(tool)
        .args(words)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output()
        .with_context(|| format!("running {tool} (scripts/install has it)"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout);
        bail!("{tool} finds faults in the image ({}): {}", output.status, said.trim());
    }
    Ok(())
}
