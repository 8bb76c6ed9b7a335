//! A remote volume with write-back, as a disk opens it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use block::Attach;
use block::attachment::{Attachment, Phase};
use parking_lot::Mutex;
use volume::{Channel, OpenArguments, OpenError, Size, VolumeInfo};

use super::Dirty;
use super::channel::{BELOW_MORE, WriteBackChannel};
use super::keeper::{self, DirtyKeeper};
use crate::plug::CachedRemote;

/// How long a guest that goes waits for the next dirty block to reach the remote volume: longer
/// than a node takes to come back after a kill.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct WriteBackVolume {
    below: Arc<dyn Attach>,
    remote: Arc<dyn CachedRemote>,
    dirty: Mutex<Option<Arc<Dirty>>>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl WriteBackVolume {
    /// A volume over `below`, which leads to `remote`. It is opened when it knows what is dirty.
    pub fn new(below: Arc<dyn Attach>, remote: Arc<dyn CachedRemote>) -> Arc<Self> {
        Arc::new(Self { below, remote, dirty: Mutex::default(), keeper: Mutex::default() })
    }

    /// These blocks are dirty. Once.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn begin(&self, dirty: Arc<Dirty>) -> std::io::Result<()> {
        *self.keeper.lock() = Some(keeper::start(DirtyKeeper::new(&dirty, &self.remote))?);
        *self.dirty.lock() = Some(dirty);
        Ok(())
    }

    /// The same without a thread: the caller does the keeper's steps.
    pub fn begin_unkept(&self, dirty: &Arc<Dirty>) -> DirtyKeeper {
        *self.dirty.lock() = Some(Arc::clone(dirty));
        DirtyKeeper::new(dirty, &self.remote)
    }

    /// Its dirty blocks, once they are known.
    pub fn dirty(&self) -> Option<Arc<Dirty>> {
        self.dirty.lock().clone()
    }
}

impl Drop for WriteBackVolume {
    fn drop(&mut self) {
        if let Some(dirty) = self.dirty() {
            dirty.end();
        }
        if let Some(thread) = self.keeper.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a dirty volume panicked");
        }
    }
}

impl Attach for WriteBackVolume {
    fn info(&self) -> VolumeInfo {
        self.below.info()
    }

    fn size(&self) -> Size {
        self.below.size()
    }

    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        let Some(dirty) = self.dirty() else {
            let source = std::io::Error::other("its dirty blocks are not known yet");
            return Err(OpenError::Io { what: "use a volume with write-back".to_owned(), source });
        };
        let depth = open.depth.saturating_add(BELOW_MORE);
        let lower = self.below.attach(attachment, index, &OpenArguments { depth, ..*open })?;
        let channel = WriteBackChannel::new(
            (lower, self.below.info(), self.below.size()),
            (Arc::clone(attachment), index),
            (open.services.clone(), open.depth),
            dirty,
        );
        Ok(Box::new(channel))
    }

    fn settle(&self, attachment: &Attachment) {
        let Some(dirty) = self.dirty() else { return };
        let is_over = || !matches!(attachment.view().phase, Phase::Held | Phase::Unclaimed);
        if !dirty.drain(PATIENCE, is_over) {
            tracing::warn!(
                attachment = attachment.name(),
                dirty_bytes = dirty.dirty_bytes(),
                "the volume's node has not got all writes of the guest: the attachment stays open, \
                 so that no other guest resumes without them; start the guest here again"
            );
        }
    }
}
