//! The parts of a guest, and the QEMU command that follows from them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use super::archive::Archive;
use super::console::Console;
use super::{Accelerator, Guest, GuestError, Image, Qemu};

const PRELUDE: &str = include_str!("../../../guest/scripts/prelude.sh");
/// The folder in which Debian's loader finds libraries; the image has it.
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// A disk behind a vhost-user socket.
#[derive(Debug, Clone)]
pub struct VhostDisk {
    /// The socket at which the daemon listens.
    pub socket: PathBuf,
    /// The number of virtqueues. More than the guest's processors make no sense.
    pub queues: u16,
    /// Whether the guest gets packed rings.
    pub packed: bool,
}

/// A network card behind a vhost-user socket.
#[derive(Debug, Clone)]
pub struct VhostNic {
    /// The socket at which the daemon listens.
    pub socket: PathBuf,
    /// The card's MAC address.
    pub mac: String,
    /// Whether the guest gets packed rings.
    pub packed: bool,
    /// Whether the guest leaves checksums and segmentation to the device, and takes large frames.
    pub offloads: bool,
    /// The number of pairs of queues. Linux uses as many as it has processors.
    pub pairs: u16,
}

/// Options of a card without offloads; receive buffers are merged all the same.
const NO_OFFLOADS: &str = ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,\
                           host_ufo=off,guest_csum=off,\
                           guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

/// The description of a guest.
#[derive(Debug)]
pub struct Builder {
    image: Image,
    qemu: Qemu,
    name: String,
    memory_mib: u32,
    processors: u16,
    accelerator: Option<Accelerator>,
    disks: Vec<VhostDisk>,
    nics: Vec<VhostNic>,
    vf: Option<PathBuf>,
    arguments: Vec<String>,
    prefix: Vec<String>,
    environment: Vec<(String, String)>,
    script: Option<String>,
    files: Vec<(String, PathBuf)>,
    archives: Vec<PathBuf>,
    console: Option<PathBuf>,
    boots_again: bool,
}

impl Builder {
    pub(super) fn new(image: Image) -> Self {
        Self {
            image,
            qemu: Qemu::installed(),
            name: "guest".to_owned(),
            memory_mib: 256,
            processors: 1,
            accelerator: None,
            disks: Vec::new(),
            nics: Vec::new(),
            vf: None,
            arguments: Vec::new(),
            prefix: Vec::new(),
            environment: Vec::new(),
            script: None,
            files: Vec::new(),
            archives: Vec::new(),
            console: None,
            boots_again: false,
        }
    }

    /// The guest's name in error texts.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The QEMU that runs the guest, instead of the installed one.
    #[must_use]
    pub fn qemu(mut self, qemu: &Qemu) -> Self {
        self.qemu = qemu.clone();
        self
    }

    /// The size of memory in MiB. The daemons that serve the disks share this memory.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// The number of virtual processors.
    #[must_use]
    pub fn processors(mut self, processors: u16) -> Self {
        self.processors = processors;
        self
    }

    /// The accelerator, instead of the choice of [`Accelerator::choose`].
    #[must_use]
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.accelerator = Some(accelerator);
        self
    }

    /// Adds a disk: `/dev/vda`, then `/dev/vdb` and so on.
    #[must_use]
    pub fn disk(mut self, disk: VhostDisk) -> Self {
        self.disks.push(disk);
        self
    }

    /// Adds a network card: `eth0`, then `eth1` and so on.
    #[must_use]
    pub fn nic(mut self, nic: VhostNic) -> Self {
        self.nics.push(nic);
        self
    }

    /// Adds a window into a domain: the socket where a node serves it.
    #[must_use]
    pub fn vf(mut self, socket: &Path) -> Self {
        self.vf = Some(socket.to_owned());
        self
    }

    /// Adds words to QEMU's command line: other disks, other cards, a monitor.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&word| word.to_owned()));
        self
    }

    /// Puts words before QEMU's name, for instance `ip netns exec vm1`.
    #[must_use]
    pub fn prefix(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets a variable for the script.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// The script that the guest runs; see [`super::scripts`].
    #[must_use]
    pub fn script(mut self, script: &str) -> Self {
        self.script = Some(script.to_owned());
        self
    }

    /// Puts a copy of a file of the host into the guest. The folder must exist in the image: `bin`,
    /// `etc`, `mnt`, or the root.
    #[must_use]
    pub fn file(mut self, path_in_guest: &str, path: &Path) -> Self {
        self.files.push((path_in_guest.to_owned(), path.to_owned()));
        self
    }

    /// Unpacks another archive of `guest/build` over the image.
    #[must_use]
    pub fn archive(mut self, path: &Path) -> Self {
        self.archives.push(path.to_owned());
        self
    }

    /// Lets a guest that reboots boot again, in the same QEMU with the same cards. Otherwise a
    /// reboot ends the guest.
    #[must_use]
    pub fn boots_again(mut self) -> Self {
        self.boots_again = true;
        self
    }

    /// Keeps the console in this file, instead of a file that is removed with the guest.
    #[must_use]
    pub fn console(mut self, path: &Path) -> Self {
        self.console = Some(path.to_owned());
        self
    }

    /// Starts QEMU. The guest is booting when this returns.
    ///
    /// # Errors
    /// The file or program that cannot be read, written or run.
    pub fn start(mut self) -> Result<Guest, GuestError> {
        let accelerator = self.accelerator.unwrap_or_else(|| Accelerator::choose(&self.image));
        let folder = Folder::new().map_err(GuestError::host("make a temporary folder"))?;
        let initramfs = folder.0.join("initramfs.cpio");
        self.write_initramfs(&initramfs)?;
        let console = self.console.take().unwrap_or_else(|| folder.0.join("console"));
        let output = File::create(&console)
            .map_err(GuestError::host(format!("create {}", console.display())))?;
        // One description for both outputs, so that QEMU's own errors stand in the order of events.
        let errors = output.try_clone().map_err(GuestError::host("share the console"))?;
        let mut words = self.prefix.clone();
        words.push(self.qemu.program.display().to_string());
        words.extend(self.command_line(accelerator, &initramfs));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .envs(self.qemu.modules.as_ref().map(|folder| ("QEMU_MODULE_DIR", folder)))
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(GuestError::host(format!("run {} (scripts/install has it)", words[0])))?;
        let input = child.stdin.take().expect("it was asked for");
        let console = Console::open(&console).map_err(GuestError::host("open the console"))?;
        Ok(Guest { name: self.name, child, input, console, _folder: folder })
    }

    fn command_line(&self, accelerator: Accelerator, initramfs: &Path) -> Vec<String> {
        let (accelerated, processor) = match accelerator {
            Accelerator::Kvm => ("kvm", "host"),
            Accelerator::Tcg => ("tcg,thread=multi", "max"),
        };
        // A panic ends QEMU instead of rebooting; the rest saves time under emulation.
        let append = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on \
                      no_timer_check tsc=reliable";
        let mut words: Vec<String> = [
            "-accel",
            accelerated,
            "-machine",
            "q35,memory-backend=memory",
            "-cpu",
            processor,
            "-display",
            "none",
            "-nodefaults",
            "-no-user-config",
            "-action",
            if self.boots_again { "reboot=reset" } else { "reboot=shutdown" },
            "-chardev",
            "stdio,id=console,signal=off",
            "-serial",
            "chardev:console",
            "-append",
            append,
        ]
        .map(str::to_owned)
        .into();
        let firmware = self.qemu.firmware.iter().flat_map(|folder| ["-L", folder]);
        words.extend(firmware.map(str::to_owned));
        let mib = self.memory_mib;
        words.extend([
            "-object".to_owned(),
            format!("memory-backend-memfd,id=memory,size={mib}M,share=on"),
            "-m".to_owned(),
            format!("{mib}M"),
            "-smp".to_owned(),
            self.processor_words(),
            "-kernel".to_owned(),
            self.image.kernel().display().to_string(),
            "-initrd".to_owned(),
            initramfs.display().to_string(),
        ]);
        for (index, VhostDisk { socket, queues, packed }) in self.disks.iter().enumerate() {
            let socket = escaped(socket);
            let packed = if *packed { ",packed=on" } else { "" };
            words.extend([
                "-chardev".to_owned(),
                format!("socket,id=disk{index},path={socket},{}", self.qemu.reconnect),
                "-device".to_owned(),
                format!("vhost-user-blk-pci,chardev=disk{index},num-queues={queues}{packed}"),
            ]);
        }
        for (index, nic) in self.nics.iter().enumerate() {
            words.extend(self.nic_words(index, nic));
        }
        if let Some(socket) = &self.vf {
            words.extend([
                "-chardev".to_owned(),
                format!("socket,id=vf,path={}", escaped(socket)),
                "-device".to_owned(),
                "ivshmem-doorbell,chardev=vf".to_owned(),
            ]);
        }
        words.extend(self.arguments.iter().cloned());
        words
    }

    /// The processors of the guest. With room for a second processor, emulation keeps the guest's
    /// atomic operations atomic. Another guest relies on them in memory that the two share.
    fn processor_words(&self) -> String {
        match (self.processors, &self.vf) {
            (1, Some(_)) => "1,maxcpus=2".to_owned(),
            (processors, _) => processors.to_string(),
        }
    }

    fn nic_words(&self, index: usize, nic: &VhostNic) -> [String; 6] {
        let VhostNic { socket, mac, packed, offloads, pairs } = nic;
        let (socket, reconnect) = (escaped(socket), self.qemu.reconnect);
        let packed = if *packed { ",packed=on" } else { "" };
        let offloads = if *offloads { "" } else { NO_OFFLOADS };
        let (queues, several) = match *pairs {
            1 => (String::new(), String::new()),
            // An interrupt for each queue, for changes and for the control queue.
            pairs => (format!(",queues={pairs}"), format!(",mq=on,vectors={}", 2 * pairs + 2)),
        };
        [
            "-chardev".to_owned(),
            format!("socket,id=nic{index},path={socket},{reconnect}"),
            "-netdev".to_owned(),
            format!("vhost-user,id=net{index},chardev=nic{index}{queues}"),
            "-device".to_owned(),
            // The empty `romfile` leaves the boot ROM out: guests do not boot from the network.
            format!(
                "virtio-net-pci,netdev=net{index},mac={mac},romfile={packed}{offloads}{several}"
            ),
        ]
    }

    /// The image with this guest's own files behind it. Linux unpacks both.
    fn write_initramfs(&self, path: &Path) -> Result<(), GuestError> {
        let mut archive = Archive::default();
        if let Some(script) = &self.script {
            archive.add("script", 0o755, self.whole_script(script).as_bytes());
        }
        for (path_in_guest, path) in &self.files {
            let doing = GuestError::host(format!("read {}", path.display()));
            let content = fs::read(path).map_err(doing)?;
            archive.add(path_in_guest, 0o755, &content);
        }
        let image = self.image.initramfs();
        let doing = || GuestError::host(format!("write {}", path.display()));
        fs::copy(&image, path).map_err(doing())?;
        let mut file = File::options().append(true).open(path).map_err(doing())?;
        for archive in &self.archives {
            let doing = || GuestError::host(format!("add {}", archive.display()));
            let mut more = File::open(archive).map_err(doing())?;
            io::copy(&mut more, &mut file).map_err(doing())?;
        }
        io::Write::write_all(&mut file, &archive.finish()).map_err(doing())
    }

    fn whole_script(&self, script: &str) -> String {
        let variables: String = self
            .environment
            .iter()
            .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', "'\\''")))
            .collect();
        format!("{variables}{PRELUDE}{script}")
    }

    /// Puts a program of the host into the guest's `bin` folder, with the libraries it needs.
    ///
    /// # Errors
    /// When `ldd` cannot name these.
    pub fn program(self, program: &Path) -> Result<Self, GuestError> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.program_as(program, &name)
    }

    /// The same under another name: a script in the guest knows the name that the program has when
    /// it is installed.
    ///
    /// # Errors
    /// When `ldd` cannot name the libraries.
    pub fn program_as(mut self, program: &Path, name: &str) -> Result<Self, GuestError> {
        let doing = || GuestError::host(format!("find the libraries of {}", program.display()));
        let output = Command::new("ldd").arg(program).output().map_err(doing())?;
        let listed = String::from_utf8_lossy(&output.stdout);
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            let library = Path::new(library);
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            let inside = format!("{LIBRARY_FOLDER}/{name}");
            // The loader itself is in the image, at the one place where programs expect it. Two
            // programs share many libraries.
            if !name.starts_with("ld-linux") && self.files.iter().all(|(path, _)| *path != inside) {
                self.files.push((inside, library.to_owned()));
            }
        }
        Ok(self.file(&format!("bin/{name}"), program))
    }
}

/// QEMU's options are separated by commas, so a comma in a path is doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// A temporary folder that is removed with its owner.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vrio-guest-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // In the worst case the folder stays in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        let folder = tempfile::tempdir().unwrap();
        for file in ["vmlinux", "initramfs.cpio"] {
            fs::write(folder.path().join(file), b"").unwrap();
        }
        Builder::new(Image::open(folder.path()).unwrap())
    }

    #[test]
    fn the_command_line_says_what_was_asked_for() {
        let socket = PathBuf::from("/run/a,b.sock");
        let builder = builder().processors(4).memory_mib(512).arguments(&["-qmp", "none"]);
        let nic = VhostNic {
            socket: socket.clone(),
            mac: "52:54:00:00:00:01".to_owned(),
            packed: false,
            offloads: false,
            pairs: 2,
        };
        let builder = builder.disk(VhostDisk { socket, queues: 4, packed: true }).nic(nic);
        let words = builder.command_line(Accelerator::Tcg, Path::new("initrd")).join(" ");
        for wanted in [
            "-accel tcg,thread=multi",
            "-cpu max",
            "size=512M,share=on",
            "-smp 4",
            "path=/run/a,,b.sock,reconnect-ms=500",
            "vhost-user-blk-pci,chardev=disk0,num-queues=4,packed=on",
            "b.sock,reconnect-ms=500 -netdev vhost-user,id=net0,chardev=nic0,queues=2 ",
            ",guest_ufo=off,mq=on,vectors=6",
            "virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile=,csum=off,gso=off,",
            "-qmp none",
        ] {
            assert!(words.contains(wanted), "'{wanted}' is missing in: {words}");
        }
        let builder = builder.qemu(&Qemu::older());
        let words = builder.command_line(Accelerator::Kvm, Path::new("initrd")).join(" ");
        assert!(words.contains("path=/run/a,,b.sock,reconnect=1 "), "{words}");
        assert!(words.contains("-accel kvm") && words.contains("-cpu host"), "{words}");
    }

    #[test]
    fn variables_are_quoted_and_come_first() {
        let script = builder().set("SEED", 5).set("ODD", "it's").whole_script("echo $SEED\n");
        assert!(script.starts_with("export SEED='5'\nexport ODD='it'\\''s'\n"), "{script}");
        assert!(script.ends_with("echo $SEED\n"), "{script}");
        assert!(script.contains("say()"), "{script}");
    }
}
