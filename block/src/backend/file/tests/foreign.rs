//! What others do to a volume's file: hold it, mount it, make it of another format, or fail when
//! they should zero it.

use super::*;

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
