//! Real guests: a Debian kernel and our small image under QEMU, with vhost-user disks and network
//! cards, run by a test or by the demo.
//!
//! A guest runs one script and speaks to the host through lines on its serial console that begin
//! with `@vrio: `. Everything else there is kept for the error text. Waiting is always bounded, and
//! generously: an emulated guest on a busy machine takes ten times as long as usual.

pub mod accelerator;
pub mod archive;
pub mod builder;
pub mod console;
mod error;
pub mod image;
pub mod monitor;
pub mod mpi;
pub mod qemu;
pub mod talk;
pub mod words;

use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin};
use std::thread;
use std::time::{Duration, Instant};

pub use accelerator::Accelerator;
pub use agent::pattern::image_digest;
pub use builder::{Builder, VhostDisk, VhostNic};
pub use error::{GuestError, Tail};
pub use image::Image;
pub use monitor::Monitor;
pub use qemu::Qemu;

use console::Console;

/// How long a boot may take: 2 s on an idle machine, 30 s were seen on a busy one.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// How often the console is looked at while waiting.
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// How long a guest gets for an answer before the question is typed again.
const ANSWER_PERIOD: Duration = Duration::from_secs(5);
/// How long QEMU may take to end after its guest has powered off.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The image for a test that starts guests. Without an image or QEMU, it prints that `test` is
/// skipped, in the form that `scripts/test` repeats at its end, and gives nothing.
pub fn available(test: &str) -> Option<Image> {
    with_image(test, Image::find(), &Qemu::installed())
}

/// The same for tests that run their guest with this QEMU.
pub fn available_with(test: &str, qemu: &Qemu) -> Option<Image> {
    with_image(test, Image::find(), qemu)
}

/// The same with the newer kernel, for tests that need its features.
pub fn available_newer(test: &str) -> Option<Image> {
    with_image(test, Image::find_newer(), &Qemu::installed())
}

fn with_image(test: &str, image: Result<Image, GuestError>, qemu: &Qemu) -> Option<Image> {
    match (image, qemu.version()) {
        (Ok(image), Ok(_)) => return Some(image),
        (Err(why), _) | (_, Err(why)) => println!("SKIP {test}: {why}"),
    }
    None
}

/// Scripts that come with the guest, for [`Builder::script`], each with the variables that it
/// needs.
pub mod scripts {
    /// Makes ext4, writes, syncs, reads back and verifies: `FILES`, `FILE_KIB`.
    pub const FILESYSTEM: &str = include_str!("../../guest/scripts/filesystem.sh");
    /// Verifies what [`FILESYSTEM`] left on the disk.
    pub const VERIFY: &str = include_str!("../../guest/scripts/verify.sh");
    /// Writes and verifies until told to stop: `THREADS`, `SECONDS_MAX`, `SEED`.
    pub const CHURN: &str = include_str!("../../guest/scripts/churn.sh");
    /// Is an IOhost: `CONFIG`.
    pub const IOHOST: &str = include_str!("../../guest/scripts/iohost.sh");
    /// Makes ext4, writes files, works until told to stop, verifies: `FILES`, `FILE_KIB`,
    /// `WORK_KIB`, `THREADS`.
    pub const DEMO: &str = include_str!("../../guest/scripts/demo.sh");
    /// Fills the disk and gives space back, then waits for another size: `FILL_MIB`.
    pub const TRIM: &str = include_str!("../../guest/scripts/trim.sh");
    /// Writes and verifies while memory comes, and then in that memory: `BOOT_MIB`, `THREADS`.
    pub const MEMORY: &str = include_str!("../../guest/scripts/memory.sh");
    /// Attacks the disk's rings: `ROUNDS`, `SEED`.
    pub const HOSTILE: &str = include_str!("../../guest/scripts/hostile.sh");
    /// Is a direct client: `NODE`, `WRONG_NODE`, `OTHER_NODE`, `FILES`, `FILE_KIB`,
    /// `THREADS`.
    pub const ATTACH: &str = concat!(
        include_str!("../../guest/scripts/client.sh"),
        include_str!("../../guest/scripts/attach.sh")
    );
    /// Is a direct client that fio works on: `NODE`, `SIZE`, `DEPTH`.
    pub const FIO_CLIENT: &str = concat!(
        include_str!("../../guest/scripts/client.sh"),
        include_str!("../../guest/scripts/fio.sh"),
        include_str!("../../guest/scripts/fio_client.sh")
    );
    /// fio works on the disk until told to stop: `SIZE`, `DEPTH`.
    pub const FIO_DISK: &str = concat!(
        include_str!("../../guest/scripts/fio.sh"),
        include_str!("../../guest/scripts/fio_disk.sh")
    );
    /// Is one of two guests of a network, and obeys typed commands. It needs `ADDRESS`, `PEER` and
    /// `BYTES_KIB`; for the command "host" also `HOST`, and for "serve" and "stream" iperf3 as a
    /// program.
    pub const TALK: &str = include_str!("../../guest/scripts/talk.sh");
    /// Is one of two guests of MPI jobs, and obeys typed commands: `ADDRESS`, `PEER`, `DOMAIN`,
    /// `KEY`; see [`super::mpi::with_member`].
    pub const MPI: &str = include_str!("../../guest/scripts/mpi.sh");
    /// Both scripts in turn: a disk, then a network card.
    pub const DEMO_TALK: &str = concat!(
        include_str!("../../guest/scripts/demo.sh"),
        include_str!("../../guest/scripts/talk.sh")
    );
    /// Counts the events of requests that follow one another, on command: `KIND`, `DISK`,
    /// `ADDRESS`, `PEER`, `DRIVERS`, `INTERRUPTS`, `SECONDS_EACH`.
    pub const MODELS: &str = include_str!("../../guest/scripts/models.sh");
    /// The same of a direct client: `NODE`.
    pub const MODELS_ATTACH: &str = concat!(
        include_str!("../../guest/scripts/client.sh"),
        include_str!("../../guest/scripts/models.sh")
    );
    /// Reports throughput and latency: `SECONDS_EACH`, `DEPTH`, `WRITE`.
    pub const MEASURE: &str = include_str!("../../guest/scripts/measure.sh");
}

/// A running guest. Dropping it ends it at once, as a power cut would.
#[derive(Debug)]
pub struct Guest {
    name: String,
    child: Child,
    input: ChildStdin,
    console: Console,
    /// A folder that is removed with the guest. It holds the appended archive, and the console
    /// unless that is kept elsewhere.
    _folder: builder::Folder,
}

impl Guest {
    /// Begins the description of a guest with this image.
    pub fn builder(image: &Image) -> Builder {
        Builder::new(image.clone())
    }

    /// The process id of QEMU.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The file that holds everything on the console so far.
    pub fn console_path(&self) -> &Path {
        self.console.path()
    }

    /// Waits for the guest's next line that begins with `marker` (behind `@vrio: `) and gives the
    /// rest of that line. Lines before it are passed over, but `fail ...` is an error.
    ///
    /// # Errors
    /// The guest failed, ended, or did not print the line within `timeout`.
    pub fn wait_for(&mut self, marker: &str, timeout: Duration) -> Result<String, GuestError> {
        let deadline = Instant::now() + timeout;
        loop {
            let line = self.next_line(marker, timeout, deadline)?;
            if let Some(rest) = line.strip_prefix(marker) {
                return Ok(rest.trim_start().to_owned());
            }
            if let Some(status) = line.strip_prefix("exit ") {
                let line = format!("its script ended with {status} before it said '{marker}'");
                return Err(self.failed(line));
            }
        }
    }

    /// Waits for the next line for the host, of any content.
    ///
    /// # Errors
    /// As for [`Guest::wait_for`].
    pub fn next(&mut self, timeout: Duration) -> Result<String, GuestError> {
        self.next_line("", timeout, Instant::now() + timeout)
    }

    /// Waits until the script has ended with status 0 and the guest has powered off.
    ///
    /// # Errors
    /// Another status, or as for [`Guest::wait_for`].
    pub fn wait_success(mut self, timeout: Duration) -> Result<(), GuestError> {
        let status = self.wait_for("exit", timeout)?;
        if status != "0" {
            return Err(self.failed(format!("its script ended with {status}")));
        }
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < deadline {
            let ended = self.child.try_wait().map_err(GuestError::host("wait for QEMU"))?;
            if ended.is_some() {
                return Ok(());
            }
            thread::sleep(POLL_PERIOD);
        }
        Err(self.timeout("power off", EXIT_TIMEOUT))
    }

    /// Types a line on the guest's console. The line can get lost there: see [`Guest::ask`].
    ///
    /// # Errors
    /// QEMU is gone.
    pub fn type_line(&mut self, line: &str) -> Result<(), GuestError> {
        let typed = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        typed.map_err(GuestError::host(format!("type on the console of guest {}", self.name)))
    }

    /// Types a line again and again until the guest answers with a line that begins with `marker`.
    /// Gives the rest of the answer. On a busy machine, typed characters can get lost on a serial
    /// console.
    ///
    /// # Errors
    /// As for [`Guest::wait_for`].
    pub fn ask(
        &mut self,
        line: &str,
        marker: &str,
        timeout: Duration,
    ) -> Result<String, GuestError> {
        let deadline = Instant::now() + timeout;
        loop {
            self.type_line(line)?;
            match self.wait_for(marker, ANSWER_PERIOD) {
                Err(GuestError::Timeout { .. }) if Instant::now() < deadline => {}
                answered => return answered,
            }
        }
    }

    /// Ends the guest at once, as a power cut would. Nothing happens if it has ended already.
    pub fn kill(&mut self) {
        // An error means that QEMU is gone already, which is the wanted state.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn next_line(
        &mut self,
        marker: &str,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<String, GuestError> {
        loop {
            // The state of QEMU is asked before the console is read. So QEMU's last lines are read
            // before its end is reported.
            let ended = self.child.try_wait().map_err(GuestError::host("wait for QEMU"))?;
            self.console.read().map_err(GuestError::host("read the console"))?;
            while let Some(line) = self.console.pop() {
                if let Some(line) = line.strip_prefix(agent::MARKER) {
                    if line.starts_with("fail ") && !marker.starts_with("fail") {
                        return Err(self.failed(line.to_owned()));
                    }
                    return Ok(line.to_owned());
                }
                if line.contains("Kernel panic - not syncing") {
                    return Err(self.failed(line));
                }
            }
            if let Some(status) = ended {
                return Err(GuestError::Ended {
                    name: self.name.clone(),
                    status: status.to_string(),
                    marker: marker.to_owned(),
                    tail: self.tail(),
                });
            }
            if Instant::now() >= deadline {
                return Err(self.timeout(marker, timeout));
            }
            thread::sleep(POLL_PERIOD);
        }
    }

    fn tail(&mut self) -> Tail {
        // The rest of a panic or of QEMU's last lines may still be on its way.
        thread::sleep(POLL_PERIOD);
        let _ = self.console.read();
        Tail(self.console.tail())
    }

    fn failed(&mut self, line: String) -> GuestError {
        GuestError::Failed { name: self.name.clone(), line, tail: self.tail() }
    }

    fn timeout(&mut self, marker: &str, waited: Duration) -> GuestError {
        let (name, marker) = (self.name.clone(), marker.to_owned());
        GuestError::Timeout { name, marker, waited, tail: self.tail() }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}
