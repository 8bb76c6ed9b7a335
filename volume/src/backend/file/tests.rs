mod foreign;

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl};
use sidecore::Services;
use tempfile::TempDir;

use super::shared::{ERROR_LOG_INTERVAL_NS, Syncs};
use super::*;
use crate::backend::{Remembered, ResizeError};
use crate::contract::{self, Buffer, ChannelBench, services_with_uring};
use crate::uring::Completion;
use crate::volume::{Durability, IO_BYTES_MAX, Op, RANGE_BYTES_MAX, Status};

const SIZE: u64 = 1 << 20;

struct Place {
    directory: TempDir,
    services: Services,
}

impl Place {
    /// A directory on a real file system, and an io_uring.
    fn new(test: &str) -> Option<Self> {
        let services = services_with_uring(test)?;
        // Beside the test itself: where it was built there is a real file system.
        let here = std::env::current_exe().expect("a path");
        let directory = TempDir::new_in(here.parent().expect("in a directory")).expect("room");
        Some(Self { directory, services })
    }

    /// A directory in memory, and an io_uring.
    fn in_memory(test: &str) -> Option<Self> {
        let services = services_with_uring(test)?;
        match TempDir::new_in("/dev/shm") {
            Ok(directory) => Some(Self { directory, services }),
            Err(error) => {
                println!("SKIP {test}: nothing can be made in /dev/shm: {error}");
                None
            }
        }
    }

    fn options(&self, name: &str) -> FileOptions {
        FileOptions {
            size_bytes: Some(SIZE),
            lock_timeout: Duration::from_millis(50),
            ..FileOptions::new(self.directory.path().join(name))
        }
    }

    /// A volume, unless this file system cannot do direct I/O.
    fn volume(&self, test: &str, direct: bool) -> Option<FileVolume> {
        match FileVolume::open(&FileOptions { direct, ..self.options("disk.img") }) {
            Ok(volume) => Some(volume),
            Err(FileError::NoDirectIo { path }) => {
                println!("SKIP {test} (direct): no direct I/O on {}", path.display());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn bench(&self, volume: &FileVolume) -> ChannelBench {
        ChannelBench::with_services(volume, 32, &self.services)
    }

    /// From now on results are what `fault` makes of them.
    fn set_fault(&self, fault: impl FnMut(Completion) -> i32 + Send + 'static) {
        let uring = self.services.get::<Uring>().expect("put there");
        uring.borrow_mut().set_fault(fault);
    }
}

/// Runs a test buffered and direct.
fn each(test: &str, mut body: impl FnMut(&Place, FileVolume)) {
    for direct in [false, true] {
        let Some(place) = Place::new(test) else { return };
        if let Some(volume) = place.volume(test, direct) {
            body(&place, volume);
        }
    }
}

#[test]
fn keeps_the_contract() {
    each("file keeps_the_contract", |place, volume| {
        contract::check_all_with(&volume, &place.services);
        let written = fs::read(volume.path()).expect("the file");
        assert!(written.iter().any(|byte| *byte != 0), "it is the file that was written");
    });
}

#[test]
fn requests_wait_in_the_kernel_rather_than_fail() {
    each("requests_wait_in_the_kernel", |_, volume| {
        let flags = fcntl_getfl(&volume.shared.file).expect("an open file");
        assert!(!flags.contains(OFlags::NONBLOCK));
        assert_eq!(flags.contains(OFlags::DIRECT), volume.is_direct());
    });
}

#[test]
fn a_file_in_memory_keeps_the_contract_and_leaves_the_ring_alone() {
    let test = "a_file_in_memory_keeps_the_contract_and_leaves_the_ring_alone";
    let Some(place) = Place::in_memory(test) else { return };
    let Some(volume) = place.volume(test, false) else { return };
    contract::check_all_with(&volume, &place.services);
    let uring = place.services.get::<Uring>().expect("put there").borrow().counters();
    let in_place = || volume.counters().in_place.load(Relaxed);
    let (before, enters) = (in_place(), uring.enters.get());
    let mut bench = place.bench(&volume);
    for place in 0..8 {
        assert_eq!(bench.write(place * 8192, &[7; 4096]), Status::Done);
        assert_eq!(bench.read(place * 8192, 4096), Ok(vec![7; 4096]));
    }
    assert_eq!(bench.write(0, &[8; 64 << 10]), Status::Done);
    assert_eq!((in_place() - before, uring.enters.get()), (17, enters));
    // Another process shortens it.
    File::options().write(true).open(volume.path()).unwrap().set_len(4096).unwrap();
    assert!(bench.read(4096, 4096).is_err());
    assert_eq!(bench.read(0, 4096), Ok(vec![8; 4096]));
}

/// A copy in place holds up all other channels of the sidecore.
#[test]
fn a_long_range_in_memory_is_zeroed_a_piece_at_a_round() {
    let test = "a_long_range_in_memory_is_zeroed_a_piece_at_a_round";
    let Some(place) = Place::in_memory(test) else { return };
    let len = u64::from(RANGE_BYTES_MAX);
    let options = FileOptions { size_bytes: Some(len), ..place.options("long.img") };
    let volume = FileVolume::open(&options).expect("a new file");
    let in_place = || volume.counters().in_place.load(Relaxed);
    let mut bench = place.bench(&volume);
    let pieces = len / u64::from(IO_BYTES_MAX);
    assert_eq!(bench.write(len - 4096, &[7; 4096]), Status::Done);
    assert_eq!(bench.zero(Op::WriteZeroes, false, 0, len), Status::Done);
    assert_eq!(bench.read(len - 4096, 4096), Ok(vec![0; 4096]));
    // Several ranges at once, as a peer sends them: each round copies so much of all of them.
    let ids: Vec<_> = (0..4).map(|_| bench.submit_range(Op::WriteZeroes, false, 0, len)).collect();
    let mut rounds = 0;
    while bench.done.len() < ids.len() {
        let before = in_place();
        bench.round();
        assert!(in_place() - before <= channel::HERE_BYTES_MAX / u64::from(IO_BYTES_MAX) + 1);
        rounds += 1;
    }
    assert!(rounds >= 4 * pieces / 3, "{rounds} rounds for {pieces} pieces four times");
    ids.into_iter().for_each(|id| assert_eq!(bench.wait(id), Status::Done));
}

#[test]
fn keeps_the_contract_write_through() {
    let test = "file keeps_the_contract_write_through";
    let Some(place) = Place::new(test) else { return };
    let options =
        FileOptions { durability: Durability::WriteThrough, ..place.options("through.img") };
    let volume = FileVolume::open(&options).expect("a new file");
    contract::check_all_with(&volume, &place.services);
    assert!(volume.counters().syncs.load(Relaxed) > 0, "buffered writes are synced");
}

#[test]
fn needs_an_io_uring() {
    let Some(place) = Place::new("needs_an_io_uring") else { return };
    let volume = FileVolume::open(&place.options("disk.img")).expect("a new file");
    let open = OpenArguments { services: &Services::new(), depth: 1 };
    let error = Volume::open(&volume, &open).expect_err("no service");
    assert!(error.to_string().contains("io_uring"), "{error}");
}

#[test]
fn misaligned_buffers_bounce_and_only_they() {
    let test = "misaligned_buffers_bounce_and_only_they";
    let Some(place) = Place::new(test) else { return };
    let Some(volume) = place.volume(test, true) else { return };
    let mut bench = place.bench(&volume);
    let block = volume.info().block_bytes as usize;
    let bytes: Vec<u8> = (0..16 * block).map(|at| (at / 3) as u8).collect();
    assert_eq!(bench.write(0, &bytes), Status::Done);
    assert_eq!(volume.counters().bounced.load(Relaxed), 0);
    bench.skew = 1;
    assert_eq!(bench.read(0, bytes.len()), Ok(bytes.clone()));
    assert_eq!(volume.counters().bounced.load(Relaxed), 1);
    bench.piece = block / 2 + 2;
    assert_eq!(bench.write_durable(SIZE / 2, &bytes), Status::Done);
    (bench.skew, bench.piece) = (0, usize::MAX);
    assert_eq!(bench.read(SIZE / 2, bytes.len()), Ok(bytes));
    assert_eq!(volume.counters().bounced.load(Relaxed), 2);
}

#[test]
fn more_misaligned_requests_than_buffers_wait_for_one() {
    let test = "more_misaligned_requests_than_buffers_wait_for_one";
    let Some(place) = Place::new(test) else { return };
    let Some(volume) = place.volume(test, true) else { return };
    let mut bench = place.bench(&volume);
    bench.skew = 1;
    let block = volume.info().block_bytes as usize;
    let buffers: Vec<_> = (0..32).map(|_| Buffer::new(block, 1)).collect();
    let ids: Vec<_> =
        buffers.iter().map(|buffer| bench.submit(Op::Read, 0, Some(buffer))).collect();
    ids.into_iter().for_each(|id| assert_eq!(bench.wait(id), Status::Done));
    assert_eq!(volume.counters().bounced.load(Relaxed), 32);
    assert_eq!(volume.counters().waited.load(Relaxed), 32 - bounce::BUFFERS_MAX as u64);
}

#[test]
fn a_full_ring_delays_and_loses_nothing() {
    let test = "a_full_ring_delays_and_loses_nothing";
    each(test, |place, volume| {
        let depth = 600;
        let mut bench = ChannelBench::with_services(&volume, depth, &place.services);
        let block = volume.info().block_bytes as usize;
        let buffers: Vec<_> = (0..depth).map(|_| Buffer::new(block, 0)).collect();
        let ids: Vec<_> =
            buffers.iter().map(|buffer| bench.submit(Op::Write, 0, Some(buffer))).collect();
        ids.into_iter().for_each(|id| assert_eq!(bench.wait(id), Status::Done));
        let waited = volume.counters().waited.load(Relaxed);
        assert_eq!(waited, u64::from(depth) - u64::from(crate::uring::ENTRIES));
    });
}

#[test]
fn partial_results_of_the_kernel_are_continued() {
    each("partial_results_of_the_kernel_are_continued", |place, volume| {
        let mut bench = place.bench(&volume);
        let block = volume.info().block_bytes as i32;
        let bytes: Vec<u8> = (0..12 * block).map(|at| (at / 5) as u8).collect();
        // Everything was done, but we are told of half: the rest is done again.
        place.set_fault(move |completion| match completion.result {
            all if all > block => all / 2 / block * block,
            other => other,
        });
        bench.piece = 3 * block as usize;
        assert_eq!(bench.write(0, &bytes), Status::Done);
        assert!(volume.counters().continued.load(Relaxed) >= 3);
        assert_eq!(bench.read(0, bytes.len()), Ok(bytes));
    });
}

#[test]
fn an_interrupted_request_is_tried_again_but_not_for_ever() {
    each("an_interrupted_request_is_tried_again", |place, volume| {
        let mut bench = place.bench(&volume);
        let left = Arc::new(AtomicU32::new(5));
        let faults = Arc::clone(&left);
        place.set_fault(move |completion| {
            if faults.load(Relaxed) == 0 {
                return completion.result;
            }
            faults.fetch_sub(1, Relaxed);
            -libc::EINTR
        });
        assert!(bench.read(0, 4096).is_ok());
        left.store(3, Relaxed);
        assert_eq!(bench.flush(), Status::Done);
        assert_eq!(left.load(Relaxed), 0);
        left.store(u32::MAX, Relaxed);
        assert_eq!(bench.read(0, 4096), Err(Status::Error));
        left.store(0, Relaxed);
        assert!(!volume.has_failed());
    });
}

#[test]
fn a_failing_disk_is_an_error_for_its_request_only() {
    for (error, no_space) in [(libc::ENOSPC, 1), (libc::EIO, 0)] {
        each("a_failing_disk_is_an_error_for_its_request_only", |place, volume| {
            let mut bench = place.bench(&volume);
            place.set_fault(move |_| -error);
            assert_eq!(bench.write(0, &[1; 4096]), Status::Error);
            place.set_fault(|completion| completion.result);
            assert_eq!(volume.counters().errors.load(Relaxed), 1);
            assert_eq!(volume.counters().no_space.load(Relaxed), no_space);
            assert!(!volume.has_failed());
            assert_eq!(bench.write(0, &[1; 4096]), Status::Done);
            assert_eq!(bench.flush(), Status::Done);
        });
    }
}

#[test]
fn errors_are_counted_and_logged_at_a_bounded_rate() {
    each("errors_are_counted_and_logged_at_a_bounded_rate", |place, volume| {
        let mut bench = place.bench(&volume);
        // A kernel that takes long has many rounds made, and the interval must not pass by them.
        bench.round_ns = 0;
        place.set_fault(|_| -libc::EIO);
        for _ in 0..20 {
            assert_eq!(bench.write(0, &[1; 4096]), Status::Error);
        }
        assert_eq!(volume.counters().errors.load(Relaxed), 20);
        assert_eq!(volume.shared.unlogged.load(Relaxed), 19);
        bench.now_ns += ERROR_LOG_INTERVAL_NS;
        assert_eq!(bench.write(0, &[1; 4096]), Status::Error);
        assert_eq!(volume.shared.unlogged.load(Relaxed), 0);
    });
}

#[test]
fn a_failed_sync_fails_the_volume_for_good_on_every_channel() {
    each("a_failed_sync_fails_the_volume_for_good", |place, volume| {
        let (mut one, mut two) = (place.bench(&volume), place.bench(&volume));
        assert_eq!(one.write(0, &[1; 4096]), Status::Done);
        place.set_fault(|completion| match completion.token {
            u32::MAX => -libc::EIO,
            _ => completion.result,
        });
        assert_eq!(one.flush(), Status::Error);
        place.set_fault(|completion| completion.result);
        assert!(volume.has_failed());
        for bench in [&mut one, &mut two] {
            assert_eq!(bench.flush(), Status::Error);
            assert_eq!(bench.write(0, &[1; 4096]), Status::Error);
            assert_eq!(bench.read(0, 4096), Err(Status::Error));
        }
    });
}

#[test]
fn a_failed_sync_makes_the_next_server_another_incarnation() {
    let Some(place) = Place::new("a_failed_sync_makes_another_incarnation") else { return };
    let options = place.options("disk.img");
    let volume = FileVolume::open(&options).expect("a new file");
    let before = volume.info().incarnation;
    place.set_fault(|_| -libc::EIO);
    assert_eq!(place.bench(&volume).flush(), Status::Error);
    place.set_fault(|completion| completion.result);
    drop(volume);
    let volume = FileVolume::open(&options).expect("nobody has it");
    assert_ne!(volume.info().incarnation, before);
    assert_eq!(place.bench(&volume).flush(), Status::Done);
}

/// Two sidecores, each with its ring: syncs take turns, no channel waits for ever, and each flush
/// is answered.
#[test]
fn channels_of_two_sidecores_flush_together() {
    let Some(place) = Place::new("channels_of_two_sidecores_flush_together") else { return };
    let volume = FileVolume::open(&place.options("disk.img")).expect("a new file");
    let work = |core: u64| {
        let services = services_with_uring("on its own thread").expect("there is one above");
        let mut bench = ChannelBench::with_services(&volume, 16, &services);
        for turn in 0..100u64 {
            let offset = (turn % 64) * 8192 + core * 4096;
            assert_eq!(bench.write(offset, &[turn as u8; 4096]), Status::Done);
            let flushes: Vec<_> = (0..4).map(|_| bench.submit(Op::Flush, 0, None)).collect();
            flushes.into_iter().for_each(|id| assert_eq!(bench.wait(id), Status::Done));
        }
        bench.abandon();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0));
        work(1);
    });
    let syncs = volume.counters().syncs.load(Relaxed);
    assert!((100..=200).contains(&syncs), "{syncs} syncs for 800 flushes in 200 groups");
}

#[test]
fn two_flushes_at_once_both_learn_of_the_failure() {
    each("two_flushes_at_once_both_learn_of_the_failure", |place, volume| {
        let (mut one, mut two) = (place.bench(&volume), place.bench(&volume));
        let failures = Cell::new(1);
        // As the kernel does it: the error is reported once, the next sync succeeds.
        place.set_fault(move |completion| match completion.token {
            u32::MAX if failures.replace(0) == 1 => -libc::EIO,
            _ => completion.result,
        });
        let (first, second) = (one.submit(Op::Flush, 0, None), two.submit(Op::Flush, 0, None));
        let mut statuses = [Status::Pending; 2];
        while statuses.contains(&Status::Pending) {
            // The second channel looks first at what has come back.
            for (at, bench, id) in [(1, &mut two, second), (0, &mut one, first)] {
                bench.round();
                if bench.done.contains(&id) {
                    statuses[at] = bench.ios[id].status;
                }
            }
        }
        assert_eq!(statuses, [Status::Error; 2]);
    });
}

#[test]
fn a_failed_durable_write_fails_the_volume_only_if_the_sync_may_have_failed() {
    each("a_failed_durable_write", |place, volume| {
        let mut bench = place.bench(&volume);
        place.set_fault(|_| -libc::ENOSPC);
        assert_eq!(bench.write_durable(0, &[1; 4096]), Status::Error);
        assert!(!volume.has_failed());
        place.set_fault(|completion| match completion.token {
            // Buffered, the sync is a step of its own.
            u32::MAX => -libc::EIO,
            _ if completion.result == 4096 => -libc::EIO,
            _ => completion.result,
        });
        assert_eq!(bench.write_durable(0, &[1; 4096]), Status::Error);
        assert_eq!(volume.has_failed(), volume.is_direct());
    });
}

#[test]
fn flushes_share_a_sync_that_began_after_them() {
    each("flushes_share_a_sync_that_began_after_them", |place, volume| {
        let mut bench = place.bench(&volume);
        let ids: Vec<_> = (0..20).map(|_| bench.submit(Op::Flush, 0, None)).collect();
        ids.into_iter().for_each(|id| assert_eq!(bench.wait(id), Status::Done));
        assert_eq!(volume.counters().syncs.load(Relaxed), 1);
        assert_eq!(bench.flush(), Status::Done);
        assert_eq!(volume.counters().syncs.load(Relaxed), 2);
    });
}

#[test]
fn a_sync_under_way_does_not_answer_a_later_flush() {
    let syncs = Syncs::default();
    let before = syncs.target();
    assert!(syncs.try_begin() && !syncs.try_begin());
    let during = syncs.target();
    syncs.end();
    assert!(syncs.now() >= before && syncs.now() < during);
    assert!(syncs.try_begin());
    syncs.cancel();
    assert!(syncs.now() < during);
    assert!(syncs.try_begin());
    syncs.end();
    assert!(syncs.now() >= during);
}

#[test]
fn a_file_that_was_shortened_is_an_error_and_no_endless_loop() {
    each("a_file_that_was_shortened", |place, volume| {
        File::options().write(true).open(volume.path()).unwrap().set_len(SIZE / 2).unwrap();
        let mut bench = place.bench(&volume);
        assert_eq!(bench.read(SIZE - 4096, 4096), Err(Status::Error));
        assert!(bench.read(0, 4096).is_ok());
    });
}

#[test]
fn dropping_a_channel_waits_for_the_kernel() {
    each("dropping_a_channel_waits_for_the_kernel", |place, volume| {
        let buffer = Buffer::new(1 << 16, 0);
        let mut bench = place.bench(&volume);
        bench.submit(Op::Write, 0, Some(&buffer));
        bench.submit(Op::Flush, 0, None);
        bench.round();
        drop(bench);
        drop(buffer);
        assert_eq!(place.bench(&volume).flush(), Status::Done);
    });
}

#[test]
fn a_new_file_is_sparse_and_has_the_size() {
    let Some(place) = Place::new("a_new_file_is_sparse_and_has_the_size") else { return };
    let options = FileOptions { size_bytes: Some(1 << 34), ..place.options("big.img") };
    let volume = FileVolume::open(&options).expect("a new file");
    assert_eq!(volume.info().size_bytes, 1 << 34);
    let metadata = fs::metadata(&options.path).expect("it is there");
    assert_eq!(metadata.len(), 1 << 34);
    assert!(metadata.blocks() < 1_000, "sparse");
    drop(volume);
    let taken = FileOptions { size_bytes: None, ..options };
    assert_eq!(FileVolume::open(&taken).expect("as it is").info().size_bytes, 1 << 34);
}

#[test]
fn an_existing_file_keeps_its_bytes_and_its_incarnation() {
    let Some(place) = Place::new("an_existing_file_keeps_its_bytes") else { return };
    let options = place.options("disk.img");
    fs::write(&options.path, vec![5; SIZE as usize]).expect("room");
    let volume = FileVolume::open(&options).expect("long enough");
    assert_eq!(place.bench(&volume).read(SIZE - 512, 512), Ok(vec![5; 512]));
    let incarnation = volume.info().incarnation;
    drop(volume);
    let again = FileVolume::open(&options).expect("nobody has it");
    assert_eq!(again.info().incarnation, incarnation);
    let other = FileVolume::open(&place.options("other.img")).expect("a new file");
    assert_ne!(other.info().incarnation, incarnation);
}

#[test]
fn impossible_volumes_are_refused_by_name() {
    let Some(place) = Place::new("what_cannot_be_a_volume") else { return };
    let message = |options: &FileOptions| {
        let error = FileVolume::open(options).expect_err("refused").to_string();
        assert!(error.contains(options.path.to_str().unwrap()), "{error}");
        error
    };
    let missing = FileOptions { size_bytes: None, ..place.options("missing.img") };
    assert!(message(&missing).contains("no such file; create it, or give the volume a size"));
    assert!(message(&place.options("no/such/disk.img")).contains("directory does not exist"));
    assert!(message(&place.options("")).contains("is a directory"));
    let small = place.options("small.img");
    fs::write(&small.path, [0; 4096]).expect("room");
    assert!(message(&small).contains("too small: 4096 bytes"));
    let odd = FileOptions { size_bytes: Some(1000), ..small.clone() };
    assert!(message(&odd).contains("not a multiple"));
    fs::write(&small.path, []).expect("room");
    let empty = FileOptions { size_bytes: None, ..small };
    assert!(message(&empty).contains("empty; give the volume a size"));
    assert!(message(&FileOptions::new("/dev/zero")).contains("neither a regular file"));
    assert!(message(&FileOptions::new("/dev/full")).contains("neither a regular file"));
    let pipe = FileOptions { size_bytes: None, read_only: true, ..place.options("pipe") };
    let made = rustix::fs::mknodat(CWD, &pipe.path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
    made.expect("anyone may make a pipe");
    assert!(message(&pipe).contains("neither a regular file"), "and opening it does not hang");
}

#[test]
fn a_file_that_may_not_be_written_says_so() {
    let Some(place) = Place::new("a_file_that_may_not_be_written") else { return };
    let options = place.options("disk.img");
    fs::write(&options.path, vec![0; SIZE as usize]).expect("room");
    fs::set_permissions(&options.path, fs::Permissions::from_mode(0o444)).expect("our own file");
    // Root may write everything, so a thread of another user tries.
    let error = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        if rustix::process::geteuid().is_root() {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        }
        FileVolume::open(&options).expect_err("read-only").to_string()
    });
    let error = error.join().expect("no panic");
    assert!(error.contains("not writable") && error.contains("make the volume read-only"));
}

#[test]
fn a_locked_file_is_waited_for_and_then_refused_by_name() {
    let Some(place) = Place::new("a_locked_file_is_waited_for") else { return };
    let options = place.options("disk.img");
    let first = FileVolume::open(&options).expect("a new file");
    let error = FileVolume::open(&options).expect_err("locked").to_string();
    assert!(error.contains("locked by another volume of this node"), "{error}");
    let reader = FileOptions { read_only: true, ..options.clone() };
    assert!(FileVolume::open(&reader).is_err(), "nobody reads beside a writer");
    // A predecessor that goes away while its successor waits.
    let patient = FileOptions { lock_timeout: Duration::from_secs(600), ..options.clone() };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| FileVolume::open(&patient).map(drop));
        drop(first);
        waits.join().expect("no panic").expect("the lock was free in the end");
    });
    let readers = [FileVolume::open(&reader), FileVolume::open(&reader)];
    assert!(readers.iter().all(Result::is_ok), "readers share");
    assert!(FileVolume::open(&options).is_err(), "nobody writes beside readers");
}

#[test]
fn a_read_only_volume_refuses_writes_and_reads() {
    let Some(place) = Place::new("a_read_only_volume_refuses_writes") else { return };
    let options = FileOptions { read_only: true, ..place.options("disk.img") };
    fs::write(&options.path, vec![9; SIZE as usize]).expect("room");
    let volume = FileVolume::open(&options).expect("readable");
    let mut bench = place.bench(&volume);
    assert_eq!(bench.write(0, &[1; 512]), Status::Invalid);
    assert_eq!(bench.read(512, 512), Ok(vec![9; 512]));
    assert_eq!(bench.flush(), Status::Done);
}

/// A loop device stands in for a disk; needs root.
struct LoopDevice(String);

impl LoopDevice {
    fn new(image: &Path) -> Result<Self, String> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(Self(text(&output.stdout))),
            false => Err(text(&output.stderr)),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays behind", self.0);
    }
}

#[test]
fn a_block_device_is_a_volume() {
    let test = "a_block_device_is_a_volume";
    let Some(place) = Place::new(test) else { return };
    let image = place.directory.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(SIZE)).expect("room");
    let device = match LoopDevice::new(&image) {
        Ok(device) => device,
        Err(why) => return println!("SKIP {test}: no loop device here: {why}"),
    };
    for direct in [false, true] {
        let options = FileOptions { direct, ..FileOptions::new(&device.0) };
        let volume = FileVolume::open(&options).expect("a block device");
        assert_eq!(volume.info().size_bytes, SIZE);
        contract::check_all_with(&volume, &place.services);
    }
    let options = FileOptions { size_bytes: Some(2 * SIZE), ..FileOptions::new(&device.0) };
    let error = FileVolume::open(&options).expect_err("too small").to_string();
    assert!(error.contains("too small"), "{error}");
}

/// Space that the file takes.
fn stored_bytes(volume: &FileVolume) -> u64 {
    fs::metadata(volume.path()).expect("the file").blocks() * 512
}

#[test]
fn a_discard_gives_space_back_and_zeroes_keep_it() {
    each("a_discard_gives_space_back_and_zeroes_keep_it", |place, volume| {
        if !volume.info().zeroing.discard {
            println!("SKIP: no holes on {}", volume.path().display());
            return;
        }
        let mut bench = place.bench(&volume);
        assert_eq!(bench.write(0, &[7; SIZE as usize]), Status::Done);
        assert_eq!(bench.flush(), Status::Done);
        let full_bytes = stored_bytes(&volume);
        assert!(full_bytes >= SIZE, "{full_bytes}");
        assert_eq!(bench.zero(Op::WriteZeroes, true, 0, SIZE / 2), Status::Done);
        assert!(stored_bytes(&volume) >= SIZE, "zeroes take space");
        assert_eq!(bench.read(0, SIZE as usize / 2), Ok(vec![0; SIZE as usize / 2]));
        let syncs = volume.counters().syncs.load(Relaxed);
        assert_eq!(bench.zero(Op::Discard, true, SIZE / 2, SIZE / 4), Status::Done);
        assert_eq!(volume.counters().syncs.load(Relaxed), syncs + 1, "it is durable");
        assert!(stored_bytes(&volume) <= SIZE * 3 / 4 + 65536, "{}", stored_bytes(&volume));
        let expected: Vec<_> = [vec![0; SIZE as usize / 4], vec![7; SIZE as usize / 4]].concat();
        assert_eq!(bench.read(SIZE / 2, SIZE as usize / 2), Ok(expected));
        assert_eq!(fs::metadata(volume.path()).expect("the file").len(), SIZE, "as long as ever");
        assert_eq!(volume.counters().zeroes_written.load(Relaxed), 0);
    });
}

#[test]
fn zeroes_are_written_where_the_file_system_has_no_better_way() {
    each("zeroes_are_written_where_the_file_system", |place, volume| {
        let mut bench = place.bench(&volume);
        let block = u64::from(volume.info().block_bytes);
        assert_eq!(bench.write(0, &[7; SIZE as usize / 2]), Status::Done);
        let refused = Cell::new(false);
        place.set_fault(
            move |completion| {
                if refused.replace(true) { completion.result } else { -libc::EOPNOTSUPP }
            },
        );
        // The fault comes after the file system has zeroed the range, and the bytes written instead
        // count.
        assert_eq!(bench.zero(Op::WriteZeroes, false, block, SIZE / 2 - 2 * block), Status::Done);
        assert_eq!(volume.counters().zeroes_written.load(Relaxed), 1);
        assert_eq!(bench.zero(Op::WriteZeroes, true, SIZE / 2, SIZE / 2), Status::Done);
        assert_eq!(volume.counters().zeroes_written.load(Relaxed), 2, "it is not tried again");
        let read = bench.read(0, SIZE as usize / 2).expect("inside");
        let (first, rest) = read.split_at(block as usize);
        let (zeroes, last) = rest.split_at(rest.len() - block as usize);
        assert!(first.iter().chain(last).all(|byte| *byte == 7));
        assert!(zeroes.iter().all(|byte| *byte == 0));
        assert_eq!(volume.counters().errors.load(Relaxed), 0);
        place.set_fault(|_| -libc::EOPNOTSUPP);
        assert_eq!(bench.zero(Op::Discard, false, 0, block), Status::Unsupported);
    });
}

#[test]
fn a_read_only_file_zeroes_nothing() {
    let Some(place) = Place::new("a_read_only_file_zeroes_nothing") else { return };
    FileVolume::open(&place.options("disk.img")).expect("a new file");
    let options = FileOptions { read_only: true, ..place.options("disk.img") };
    let volume = FileVolume::open(&options).expect("the file");
    assert_eq!(volume.info().zeroing, crate::volume::Zeroing::default());
    let mut bench = place.bench(&volume);
    assert_eq!(bench.zero(Op::Discard, false, 0, 4096), Status::Invalid);
}

#[test]
fn the_topology_is_the_file_systems_unless_the_operator_says_better() {
    let Some(place) = Place::new("the_topology_is_the_file_systems") else { return };
    let volume = FileVolume::open(&place.options("disk.img")).expect("a new file");
    let block = fs::metadata(volume.path()).expect("the file").blksize();
    assert_eq!(u64::from(volume.info().topology.physical_bytes), block);
    drop(volume);
    let topology = crate::volume::Topology { physical_bytes: 16384, optimal_bytes: 1 << 20 };
    let options = FileOptions { topology, ..place.options("disk.img") };
    let volume = FileVolume::open(&options).expect("the file");
    assert_eq!(volume.info().topology, topology);
}

#[test]
fn a_file_grows_and_shrinks_and_is_known_by_its_new_size() {
    let Some(place) = Place::new("a_file_grows_and_shrinks") else { return };
    let options = place.options("disk.img");
    let volume = FileVolume::open(&options).expect("a new file");
    let mut bench = place.bench(&volume);
    assert_eq!(bench.write(SIZE, &[5; 4096]), Status::Invalid);
    assert_eq!(volume.resize(2 * SIZE, Some(SIZE), false).ok(), Some(Remembered::Yes));
    assert_eq!(bench.write(SIZE, &[5; 4096]), Status::Done, "the open channel has it, too");
    assert_eq!((volume.info().size_bytes, volume.size().get()), (2 * SIZE, 2 * SIZE));
    for (size_bytes, says) in [(SIZE, "would be lost"), (3 * SIZE + 1, "multiple"), (0, "multiple")]
    {
        let error = volume.resize(size_bytes, Some(SIZE), false).expect_err("refused");
        assert!(error.to_string().contains(says), "{error}");
    }
    drop((bench, volume));
    let volume = FileVolume::open(&options).expect("the file");
    assert_eq!(volume.info().size_bytes, 2 * SIZE, "the configuration says what it said then");
    assert_eq!(volume.resize(SIZE / 2, Some(SIZE), true).ok(), Some(Remembered::Yes));
    assert_eq!(fs::metadata(volume.path()).expect("the file").len(), SIZE / 2);
    let mut bench = place.bench(&volume);
    assert_eq!(bench.zero(Op::Discard, false, SIZE / 2, 4096), Status::Invalid);
    assert_eq!(volume.resize(SIZE, Some(SIZE), false).ok(), Some(Remembered::Yes));
    assert_eq!(bench.read(SIZE / 2, 4096), Ok(vec![0; 4096]), "what was cut off is gone");
    drop((bench, volume));
    let other = FileOptions { size_bytes: Some(SIZE / 4), ..options };
    let volume = FileVolume::open(&other).expect("the file");
    assert_eq!(volume.info().size_bytes, SIZE / 4, "a part of the file, as it says");
    assert_eq!(volume.resize(SIZE / 8, Some(SIZE / 4), true).ok(), Some(Remembered::Yes));
    assert_eq!(fs::metadata(volume.path()).expect("the file").len(), SIZE, "not the volume's");
}

#[test]
fn a_read_only_file_keeps_its_size() {
    let Some(place) = Place::new("a_read_only_file_keeps_its_size") else { return };
    FileVolume::open(&place.options("disk.img")).expect("a new file");
    let options = FileOptions { read_only: true, ..place.options("disk.img") };
    let volume = FileVolume::open(&options).expect("the file");
    assert!(matches!(volume.resize(2 * SIZE, None, false), Err(ResizeError::ReadOnly)));
}
