//! Other programs and a volume's file: they hold it, mount it, make it of another format, or fail
//! to zero it.

use std::path::PathBuf;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::*;
use crate::record::{FileRecords, RecordWriter};

#[test]
fn an_image_of_another_format_is_refused_until_it_is_said_to_be_raw() {
    let test = "an_image_of_another_format_is_refused";
    for direct in [false, true] {
        let Some(place) = Place::new(test) else { return };
        let options = FileOptions { direct, refuse_formats: true, ..place.options("disk.img") };
        if place.volume(test, direct).is_none() {
            continue;
        }
        let mut bytes = vec![0; SIZE as usize];
        bytes[..4].copy_from_slice(b"QFI\xfb");
        fs::write(&options.path, bytes).expect("room");
        let error = FileVolume::open(&options).expect_err("a qcow2").to_string();
        let parts = ["is a qcow2 image", "qemu-img convert -O raw", "format = \"raw\""];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        let raw = FileOptions { refuse_formats: false, ..options.clone() };
        drop(FileVolume::open(&raw).expect("by the operator's word"));
        fs::write(&options.path, vec![0; SIZE as usize]).expect("room");
        drop(FileVolume::open(&options).expect("raw"));
    }
}

/// As QEMU and `lockf` do: not by flock.
#[test]
fn a_file_that_another_program_has_locked_is_refused_and_ours_is_locked_for_it() {
    let Some(place) = Place::new("a_file_that_another_program_has_locked") else { return };
    let options = place.options("disk.img");
    let reader = FileOptions { read_only: true, ..options.clone() };
    drop(FileVolume::open(&options).expect("a new file"));
    let open = || File::options().read(true).write(true).open(&options.path).expect("there");
    for options in [&options, &reader] {
        // Anew each time: it ends with any descriptor of the file that its process closes.
        let other = open();
        fcntl_lock(&other, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
        let error = FileVolume::open(options).expect_err("locked").to_string();
        assert!(error.contains("locked by"), "{error}");
    }
    let writer = FileVolume::open(&options).expect("free again");
    let other = open();
    for lock in [FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingLockShared] {
        assert!(fcntl_lock(&other, lock).is_err(), "{lock:?} beside a writer");
    }
    drop(writer);
    let readers = [FileVolume::open(&reader), FileVolume::open(&reader)];
    assert!(readers.iter().all(Result::is_ok), "readers share");
    fcntl_lock(&other, FlockOperation::NonBlockingLockExclusive).expect_err("they read");
}

/// A file system on a loop device, mounted.
struct Mounted {
    device: LoopDevice,
    at: PathBuf,
}

impl Mounted {
    fn new(place: &Place) -> Result<Self, String> {
        let [image, at] = ["fs.img", "mounted"].map(|name| place.directory.path().join(name));
        File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("room");
        let device = LoopDevice::new(&image)?;
        fs::create_dir(&at).expect("room");
        run(Command::new("mkfs.ext4").args(["-q", &device.0]))?;
        let mounted = Self { device, at };
        mounted.mount()?;
        Ok(mounted)
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").arg(&self.device.0).arg(&self.at))
    }

    fn unmount(&self) -> Result<(), String> {
        run(Command::new("umount").arg(&self.at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may not be mounted now.
        let _ = self.unmount();
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or(format!("{command:?}: {said}"))
}

#[test]
fn a_device_that_is_mounted_or_in_use_is_refused() {
    let test = "a_device_that_is_mounted_or_in_use_is_refused";
    let Some(place) = Place::new(test) else { return };
    let mounted = match Mounted::new(&place) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIP {test}: nothing can be mounted here: {why}"),
    };
    let device = &mounted.device.0;
    let options =
        FileOptions { lock_timeout: Duration::from_millis(50), ..FileOptions::new(device) };
    let reader = FileOptions { read_only: true, ..options.clone() };
    for options in [&options, &reader] {
        let error = FileVolume::open(options).expect_err("mounted").to_string();
        assert!(error.contains("in use by a mount at") && error.contains("unmount"), "{error}");
    }
    mounted.unmount().expect("it is mounted");
    let volume = FileVolume::open(&options).expect("free");
    let error = mounted.mount().expect_err("it is a volume");
    assert!(error.contains("already mounted") || error.contains("busy"), "{error}");
    // By another name of the same device.
    let again = place.directory.path().join("again");
    let number = fs::metadata(device).expect("there").rdev();
    rustix::fs::mknodat(CWD, &again, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, number)
        .expect("root may");
    let again = FileOptions { path: again, ..options };
    let error = FileVolume::open(&again).expect_err("exported").to_string();
    assert!(error.contains("in use by"), "{error}");
    drop(volume);
    drop(FileVolume::open(&again).expect("free"));
}

#[test]
fn a_file_system_that_was_mounted_again_is_another_incarnation() {
    let test = "a_file_system_that_was_mounted_again_is_another_incarnation";
    let Some(place) = Place::new(test) else { return };
    let mounted = match Mounted::new(&place) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIP {test}: nothing can be mounted here: {why}"),
    };
    let writer = RecordWriter::start().expect("a thread");
    let home = place.directory.path().join("state");
    let options = FileOptions { path: mounted.at.join("disk.img"), ..place.options("disk.img") };
    let incarnation = || {
        let mut volume = FileVolume::open(&options).expect("nobody has it");
        let records = FileRecords::open(&home, "root", writer.clone()).expect("opens");
        volume.remember_by(&records, false).expect("kept");
        volume.info().incarnation
    };
    let first = incarnation();
    assert_eq!(incarnation(), first, "the same mount");
    mounted.unmount().expect("it is mounted");
    mounted.mount().expect("it was mounted");
    let second = incarnation();
    assert_ne!(second, first, "what was not on the device is gone");
    assert_eq!(incarnation(), second);
}

#[test]
fn a_failed_sync_is_remembered_beside_the_file() {
    let Some(place) = Place::new("a_failed_sync_is_remembered_beside_the_file") else { return };
    let writer = RecordWriter::start().expect("a thread");
    let home = place.directory.path().join("state");
    let options = place.options("disk.img");
    let open = || {
        let mut volume = FileVolume::open(&options).expect("nobody has it");
        let records = FileRecords::open(&home, "root", writer.clone()).expect("opens");
        volume.remember_by(&records, false).expect("kept");
        volume
    };
    let volume = open();
    let before = volume.info().incarnation;
    place.set_fault(|_| -libc::EIO);
    assert_eq!(place.bench(&volume).flush(), Status::Error);
    place.set_fault(|completion| completion.result);
    // As on a device, or where the attribute could not be written.
    rustix::fs::fremovexattr(volume.file(), "user.vrio.failures").expect("it was noted");
    drop(volume);
    assert_ne!(open().info().incarnation, before);
}

/// Buffered: there the kernel drops the range's pages, and then may fail.
#[test]
fn zeroing_that_fails_brings_no_older_value_back() {
    let test = "zeroing_that_fails_brings_no_older_value_back";
    let Some(place) = Place::new(test) else { return };
    let volume = place.volume(test, false).expect("buffered");
    let mut bench = place.bench(&volume);
    assert_eq!(bench.write(0, &[7; 65536]), Status::Done);
    // How many have ended, and which of them fail how.
    let faults = |first: i32, second: i32, rest: i32| {
        let ended = Cell::new(0);
        place.set_fault(move |completion| {
            ended.set(ended.get() + 1);
            match [first, second].get(ended.get() - 1).copied().unwrap_or(rest) {
                0 => completion.result,
                error => -error,
            }
        });
    };
    // No space: the range was not touched.
    faults(libc::ENOSPC, 0, 0);
    assert_eq!(bench.zero(Op::WriteZeroes, false, 0, 4096), Status::Error);
    assert!(!volume.has_failed());
    assert_eq!(bench.read(0, 4096), Ok(vec![7; 4096]));
    // It had its space, and failed all the same.
    for (at, error) in [(0, libc::ENOSPC), (8192, libc::EIO)] {
        faults(0, error, 0);
        assert_eq!(bench.zero(Op::WriteZeroes, false, at, 4096), Status::Done);
        assert_eq!(bench.read(at, 4096), Ok(vec![0; 4096]));
        assert!(!volume.has_failed());
    }
    assert_eq!(volume.counters().zeroes_written.load(Relaxed), 2);
    if volume.info().zeroing.discard {
        faults(libc::EIO, 0, 0);
        assert_eq!(bench.zero(Op::Discard, false, 16384, 4096), Status::Done);
        assert_eq!(bench.read(16384, 4096), Ok(vec![0; 4096]));
    }
    assert_eq!(bench.read(32768, 4096), Ok(vec![7; 4096]), "nothing else was touched");
    // And the zeroes cannot be written either.
    faults(0, libc::EIO, libc::EIO);
    assert_eq!(bench.zero(Op::WriteZeroes, false, 0, 4096), Status::Error);
    assert!(volume.has_failed(), "nobody knows what it holds");
}
