//! A pool's disk that fails by order: a file of a FUSE file system, which the test serves from
//! another file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use testbed::rack::Rack;

use super::fuse::{FuseContent, FuseFile};

const EIO: i32 = 5;

struct PoolContent {
    file: File,
    fails: Arc<AtomicBool>,
}

impl PoolContent {
    fn answer<T>(&self, done: std::io::Result<T>) -> Option<Result<T, i32>> {
        match self.fails.load(SeqCst) {
            true => Some(Err(EIO)),
            false => Some(done.map_err(|error| error.raw_os_error().unwrap_or(EIO))),
        }
    }
}

impl FuseContent for PoolContent {
    fn asked(&mut self) {}

    fn read(&mut self, offset: u64, length: usize) -> Option<Result<Vec<u8>, i32>> {
        let mut bytes = vec![0; length];
        let done = self.file.read_at(&mut bytes, offset).map(|read| {
            bytes.truncate(read);
            bytes
        });
        self.answer(done)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Result<(), i32>> {
        if self.fails.load(SeqCst) {
            return Some(Err(EIO));
        }
        self.answer(self.file.write_all_at(bytes, offset))
    }

    fn sync(&mut self) -> Option<Result<(), i32>> {
        self.answer(Ok(()))
    }
}

/// See the module's text.
pub(super) struct PoolDisk {
    path: PathBuf,
    fails: Arc<AtomicBool>,
    _fuse: FuseFile,
}

impl PoolDisk {
    /// Makes a pool of a node. None, with a line that says so, where FUSE is not allowed.
    pub(super) fn make(test: &str, rack: &Rack, name: &str) -> Option<Self> {
        let behind = format!("{name}.content");
        rack.make_pool(&behind).expect("a pool");
        let file = File::options().read(true).write(true).open(rack.path(&behind)).expect("made");
        let bytes = file.metadata().expect("a file").len();
        let (path, fails) = (rack.path(&format!("{name}.pool")), Arc::<AtomicBool>::default());
        let content = PoolContent { file, fails: Arc::clone(&fails) };
        let _fuse = FuseFile::mount(test, &path, bytes, content)?;
        Some(Self { path, fails, _fuse })
    }

    /// The file of the pool.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// From now on all requests fail.
    pub(super) fn fail(&self) {
        self.fails.store(true, SeqCst);
    }

    /// No request fails from now on. Gives whether they have failed.
    pub(super) fn mend(&self) -> bool {
        self.fails.swap(false, SeqCst)
    }
}
