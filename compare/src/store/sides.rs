//! The ways to keep a disk: which of them this machine has, and their files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};

use super::cases::file_in;
use super::goals::{FILE, QCOW2, RAW, STORE};
use crate::block::{DiskPeer, Requests, daemon};
use crate::contest::Contestant;
use crate::running::find;
use bench::block::{Volume, make_pool, snapshot_pool};
use bench::measure::{DISK_BYTES, fill_disk};
use testbed::cleanup::Cleanup;
use testbed::progress::Progress;

/// The file systems that are made in files of their own, with the packages that make them.
const FILE_SYSTEMS: [(&str, &str); 2] = [("xfs", "xfsprogs"), ("btrfs", "btrfs-progs")];

/// Other ways that a user could pick, and why they are not measured.
const NOT_MEASURED: [&str; 2] = [
    "LVM thin, VDO and ZFS (each needs a device of its own, and VDO and ZFS modules of the kernel \
     that distributions do not all have)",
    "SPDK's logical volumes (SPDK takes a whole NVMe device, or huge pages and a file of its own)",
];

/// The name of the snapshot.
const SNAPSHOT: &str = "before";

/// The keeper of a disk.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    /// A node of ours, in this volume.
    In(Volume),
    /// A server of others.
    By(Box<DiskPeer>),
}

/// How a side takes snapshots.
#[derive(Clone, Debug)]
enum Snapshots {
    InPool,
    /// By this `qemu-img`.
    InQcow2(PathBuf),
}

/// A way to keep a disk.
#[derive(Clone, Debug)]
pub(super) struct StoreSide {
    name: String,
    pub(super) kept: Kept,
    file: PathBuf,
    /// The file system that is made for it.
    file_system: Option<&'static str>,
    snapshots: Option<Snapshots>,
    /// A snapshot is taken before each turn.
    is_after_snapshot: bool,
}

impl Contestant for StoreSide {
    type Case = Requests;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_ours(&self) -> bool {
        self.name == STORE
    }

    fn takes_part(&self, case: &Requests) -> bool {
        !self.is_after_snapshot || case.op.writes() && !case.op.is_sequential()
    }

    fn is_slow(&self) -> bool {
        false
    }
}

impl StoreSide {
    fn of_ours(name: &str, volume: Volume, file: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            kept: Kept::In(volume),
            file,
            file_system: None,
            snapshots: None,
            is_after_snapshot: false,
        }
    }

    fn of_daemon(program: &Path, name: &str, node: &str, file: PathBuf) -> Self {
        let mut peer = daemon(program, node, None, 2);
        let version = peer.name.rsplit(' ').next().unwrap_or_default().to_owned();
        peer.name = format!("{name} {version}");
        let name = peer.name.clone();
        Self { kept: Kept::By(Box::new(peer)), ..Self::of_ours(&name, Volume::Memory, file) }
    }

    /// The volume of our own node. Of a server of others it says that the disk has storage.
    pub(super) fn volume(&self) -> Volume {
        match &self.kept {
            Kept::In(volume) => volume.clone(),
            Kept::By(_) => Volume::Memory,
        }
    }

    /// Takes the snapshot of a turn, if the side has one, in place of the last turn's.
    pub(super) fn snapshot(&self) -> Result<()> {
        match &self.snapshots {
            Some(Snapshots::InPool) if self.is_after_snapshot => snapshot_pool(&self.file),
            Some(Snapshots::InQcow2(program)) if self.is_after_snapshot => {
                let file = self.file.display().to_string();
                // The first turn has none to remove.
                let _ = run(program, &["snapshot", "-d", SNAPSHOT, &file]);
                run(program, &["snapshot", "-c", SNAPSHOT, &file])
            }
            _ => Ok(()),
        }
    }

    /// Makes the file, and writes all of the disk.
    fn prepare(&self, cleanup: &Cleanup, fill: &dyn Fn(&Self) -> Result<()>) -> Result<()> {
        if let Some(kind) = self.file_system {
            mount(kind, &self.file, cleanup)?;
        }
        cleanup.lasting(self.file.clone());
        match (&self.snapshots, &self.kept) {
            (Some(Snapshots::InPool), _) => {
                make_pool(&self.file, false)?;
                fill(self)
            }
            (Some(Snapshots::InQcow2(program)), _) => {
                let (file, bytes) = (self.file.display().to_string(), DISK_BYTES.to_string());
                // The daemon is killed after each turn, with clusters that no table has yet.
                let kept = "preallocation=metadata";
                run(program, &["create", "-q", "-f", "qcow2", "-o", kept, &file, &bytes])?;
                fill(self)
            }
            (None, _) => {
                let filled = fill_disk(&self.file);
                filled.with_context(|| format!("filling {}", self.file.display()))
            }
        }
    }
}

/// The sides of this machine.
pub(super) struct Sides<'a> {
    pub(super) all: Vec<StoreSide>,
    /// Names of those that it does not have, and why.
    pub(super) missing: Vec<String>,
    folder: PathBuf,
    cleanup: &'a Cleanup,
}

impl<'a> Sides<'a> {
    /// Looks for programs.
    pub(super) fn find(folder: &Path, cleanup: &'a Cleanup) -> Self {
        let mut missing: Vec<_> = NOT_MEASURED.map(str::to_owned).into();
        let (pool, file) = (file_in(folder, "store.pool"), file_in(folder, "file.img"));
        let mut store = StoreSide::of_ours(STORE, Volume::Pool(pool.clone()), pool);
        store.snapshots = Some(Snapshots::InPool);
        let mut all = vec![store];
        all.push(StoreSide::of_ours(FILE, Volume::DirectFile(file.clone()), file));
        match find("qemu-storage-daemon") {
            Some(program) => all.extend(of_qemu(&program, folder, &mut missing)),
            None => missing.push("qemu-storage-daemon (Debian: qemu-utils)".to_owned()),
        }
        for (kind, package) in FILE_SYSTEMS {
            if find(&format!("mkfs.{kind}")).is_none() {
                missing.push(format!("{kind} (Debian: {package})"));
                continue;
            }
            let file = file_in(folder, kind).join("file.img");
            let name = format!("{FILE}, on {kind} in a file");
            let mut side = StoreSide::of_ours(&name, Volume::DirectFile(file.clone()), file);
            side.file_system = Some(kind);
            all.push(side);
        }
        Self { all, missing, folder: folder.to_owned(), cleanup }
    }

    /// Those that have snapshots, each after one.
    pub(super) fn with_snapshots(&self) -> Vec<StoreSide> {
        let with = self.all.iter().filter(|side| side.snapshots.is_some());
        with.map(|side| StoreSide { is_after_snapshot: true, ..side.clone() }).collect()
    }

    /// The side of this name.
    pub(super) fn of(&self, name: &str) -> Result<&StoreSide> {
        let found = self.all.iter().find(|side| side.name == name);
        found.with_context(|| format!("{name} could not be prepared"))
    }

    /// A file of this comparison, which is removed at its end.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        let file = file_in(&self.folder, name);
        self.cleanup.lasting(file.clone());
        file
    }

    /// Makes and fills the files. A side that cannot be prepared is named, and takes no part.
    pub(super) fn prepare(&mut self, progress: &Progress, fill: &dyn Fn(&StoreSide) -> Result<()>) {
        let Self { all, missing, cleanup, .. } = self;
        all.retain(|side| {
            progress.doing(format!("{}: filling {}", side.name, side.file.display()));
            let Err(error) = side.prepare(cleanup, fill) else { return true };
            cleanup.yield_to_interruption();
            missing.push(format!("{} ({error:#})", side.name));
            false
        });
    }
}

/// Disks of the daemon: in a raw file, and in a qcow2 file.
fn of_qemu(program: &Path, folder: &Path, missing: &mut Vec<String>) -> Vec<StoreSide> {
    let (raw, qcow2) = (file_in(folder, "raw.img"), file_in(folder, "disk.qcow2"));
    let direct = "aio=io_uring,cache.direct=on";
    let node = format!("driver=file,node-name=disk,filename={},{direct}", raw.display());
    let mut all = vec![StoreSide::of_daemon(program, RAW, &node, raw)];
    let Some(image) = find("qemu-img") else {
        missing.push("qemu-img (Debian: qemu-utils)".to_owned());
        return all;
    };
    let node = format!(
        "driver=qcow2,node-name=disk,file.driver=file,file.filename={},file.aio=io_uring,\
         file.cache.direct=on",
        qcow2.display()
    );
    let mut side = StoreSide::of_daemon(program, QCOW2, &node, qcow2);
    side.snapshots = Some(Snapshots::InQcow2(image));
    all.push(side);
    all
}

/// XFS is made in no less than 300 MB.
const FILE_SYSTEM_BYTES_MIN: u64 = 512 << 20;

/// Makes a file system in a file and mounts it where the disk's file will be.
fn mount(kind: &str, disk: &Path, cleanup: &Cleanup) -> Result<()> {
    let folder = disk.parent().context("a file is in a folder")?;
    let image = folder.with_extension(kind);
    cleanup.lasting(image.clone());
    let file = File::create(&image).with_context(|| format!("making {}", image.display()))?;
    let bytes = (2 * DISK_BYTES).max(FILE_SYSTEM_BYTES_MIN);
    fallocate(&file, FallocateFlags::empty(), 0, bytes).context("reserving its space")?;
    fs::create_dir_all(folder)?;
    let (image, folder_name) = (image.display().to_string(), folder.display().to_string());
    run(Path::new(&format!("mkfs.{kind}")), &["-q", &image])?;
    cleanup.mount(folder.to_owned());
    run(Path::new("mount"), &["-o", "loop", &image, &folder_name])
}

fn run(program: &Path, words: &[&str]) -> Result<()> {
    let name = program.display();
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("starting {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} {}: {}", words.join(" "), said.trim());
    Ok(())
}
