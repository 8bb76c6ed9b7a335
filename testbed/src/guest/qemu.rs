//! The program that runs a guest, and the differences between its versions.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::error::GuestError;
use super::image::Image;

/// How long QEMU waits before it connects again to a daemon that went away, as an option. Old
/// versions know whole seconds only.
const RECONNECT: &str = "reconnect-ms=500";
const RECONNECT_OLDER: &str = "reconnect=1";

/// The folders of the firmware in Debian's packages.
const FIRMWARE: [&str; 2] = ["/usr/share/qemu", "/usr/share/seabios"];

/// A QEMU: its program, and the files that it needs.
#[derive(Debug, Clone)]
pub struct Qemu {
    pub(super) program: PathBuf,
    /// The folder of its modules, if QEMU does not find them by itself.
    pub(super) modules: Option<PathBuf>,
    /// The folders of its firmware, likewise.
    pub(super) firmware: &'static [&'static str],
    pub(super) reconnect: &'static str,
}

impl Qemu {
    /// The QEMU in PATH, 10 or newer.
    pub fn installed() -> Self {
        let program = "qemu-system-x86_64".into();
        Self { program, modules: None, firmware: &[], reconnect: RECONNECT }
    }

    /// Debian 12's own, 7.2, which `guest/build older-qemu` fetches.
    pub fn older() -> Self {
        let folder = Image::folder().join("older-qemu");
        let program = folder.join("qemu-system-x86_64");
        let modules = Some(folder.join("modules"));
        Self { program, modules, firmware: &FIRMWARE, reconnect: RECONNECT_OLDER }
    }

    /// The first line in which QEMU names its version.
    ///
    /// # Errors
    /// QEMU cannot be run.
    pub fn version(&self) -> Result<String, GuestError> {
        let mut command = Command::new(&self.program);
        let doing = format!("run {} (scripts/install and guest/build)", self.program.display());
        let output = command.arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(GuestError::host(doing))?;
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }
}
