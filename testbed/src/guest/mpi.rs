//! MPI jobs in guests: each guest has a window into a domain, runs [`super::scripts::MPI`] and
//! obeys typed commands.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Builder, Guest, GuestError, Image, VhostNic};

/// Memory of a guest that has Open MPI in its root, in MiB.
const MEMORY_MIB: u32 = 512;

/// How long a job may take before it is ended, in seconds of the guest. An emulated guest on a busy
/// machine may have a clock that runs ten times too fast.
const JOB_S: u64 = 6000;

/// How long a reader waits for a line of such a job.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The image for a test of such guests; without one, the test says that it is skipped.
pub fn available(test: &str) -> Option<Image> {
    let image = super::available(test)?;
    match image.mpi() {
        Ok(_) => Some(image),
        Err(why) => {
            println!("SKIP {test}: {why}");
            None
        }
    }
}

/// The MAC address of a guest's card, by the guest's number from 1 on.
pub fn mac(number: u8) -> String {
    format!("52:54:00:00:00:{number:02x}")
}

/// A guest's card, by the guest's number.
pub fn nic(socket: PathBuf, number: u8) -> VhostNic {
    VhostNic { socket, mac: mac(number), packed: false, offloads: true, pairs: 1 }
}

/// A guest's part in a domain, and in the network by which its job is started.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its IP address, and that of the other guest.
    pub addresses: [&'a str; 2],
    /// The domain's name.
    pub domain: &'a str,
    /// The content of the key's file.
    pub key: &'a str,
    /// The socket at which the node serves the window.
    pub vf: &'a Path,
    /// The provider's file; [`slim`] makes it.
    pub provider: &'a Path,
}

/// The description of a guest that is a member. Programs of jobs go to `bin`.
///
/// # Errors
/// When the image has no Open MPI.
pub fn with_member(
    builder: Builder,
    image: &Image,
    member: &Member<'_>,
) -> Result<Builder, GuestError> {
    let [own, peer] = member.addresses;
    Ok(builder
        .memory_mib(MEMORY_MIB)
        .vf(member.vf)
        .archive(&image.mpi()?)
        .file("libvrio-fi.so", member.provider)
        .set("ADDRESS", own)
        .set("PEER", peer)
        .set("DOMAIN", member.domain)
        .set("KEY", member.key))
}

/// A copy of the provider in a folder, without symbols for debuggers, so that it fits into a guest.
///
/// # Errors
/// When the provider cannot be copied.
pub fn slim(provider: &Path, folder: &Path) -> Result<PathBuf, GuestError> {
    let small = folder.join("libvrio-fi.so");
    let strip = Command::new("strip").arg("-o").arg(&small).arg(provider).output();
    // `strip` is part of the tools that link Rust programs, but a system may lack it.
    if !strip.is_ok_and(|strip| strip.status.success()) {
        let doing = format!("copy {} to {}", provider.display(), small.display());
        std::fs::copy(provider, &small).map_err(GuestError::host(doing))?;
    }
    Ok(small)
}

/// Starts a job from a guest: on hosts in the form of `mpirun --host`, a program of its `bin` and
/// that program's arguments.
///
/// # Errors
/// QEMU is gone.
pub fn begin(
    guest: &mut Guest,
    hosts: &str,
    ranks: usize,
    program: &str,
) -> Result<(), GuestError> {
    guest.type_line(&format!("job {JOB_S} {hosts} {ranks} {program}"))
}

/// The lines of the job before the line that begins with `word`, and the rest of that line. The
/// job's last line begins with `ended`, followed by the status of `mpirun`.
///
/// # Errors
/// When the line does not come.
pub fn lines_until(guest: &mut Guest, word: &str) -> Result<(Vec<String>, String), GuestError> {
    let mut lines = Vec::new();
    loop {
        let line = guest.wait_for("job", PATIENCE)?;
        if let Some(rest) = line.strip_prefix(word) {
            return Ok((lines, rest.trim().to_owned()));
        }
        lines.push(line);
    }
}
