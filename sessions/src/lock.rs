//! Locks that end with their holder, however it ends.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How long a killed predecessor may take to die: the kernel frees the memory of its guests first.
/// A service manager starts the next process at once.
pub const PREDECESSOR_TIME_MAX: Duration = Duration::from_secs(1);

/// How often its death is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Opens and locks a file. The file is made if it is missing, and never removed: after a removal
/// two processes could lock different files of this name. `None` when another process has the lock.
pub fn take(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let locked =
        patiently(|| match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Some(Ok(())),
            Err(Errno::WOULDBLOCK) => None,
            Err(error) => Some(Err(io::Error::from(error))),
        });
    locked.transpose().map(|locked| locked.map(|()| File::from(file)))
}

/// Tries until there is an answer, or until a killed predecessor would be dead.
pub fn patiently<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PREDECESSOR_TIME_MAX;
    loop {
        let answer = attempt();
        if answer.is_some() || Instant::now() >= until {
            return answer;
        }
        sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_had_once_and_again_when_its_holder_ends() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let first = take(&path).unwrap();
        assert!(first.is_some());
        assert!(take(&path).unwrap().is_none());
        let holder = std::thread::spawn(move || {
            sleep(LOOK_AGAIN);
            drop(first);
        });
        assert!(take(&path).unwrap().is_some(), "it is waited for");
        holder.join().unwrap();
        assert!(take(&home.path().join("none/lock")).is_err());
    }
}
