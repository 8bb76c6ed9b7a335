//! A remote volume that is in memory.

use std::sync::Arc;

use block::Attach;
use block::attachment::Attachment;
use cache::CachedRemote;
use volume::backend::MemoryVolume;
use volume::{Channel, OpenArguments, OpenError, Size, Volume, VolumeInfo};

#[derive(Debug)]
pub(crate) struct Far(pub(crate) Arc<MemoryVolume>);

impl Attach for Far {
    fn info(&self) -> VolumeInfo {
        self.0.info()
    }

    fn size(&self) -> Size {
        self.0.size()
    }

    fn attach(
        &self,
        _attachment: &Arc<Attachment>,
        _index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        self.0.open(open)
    }
}

impl CachedRemote for Far {
    fn is_sole(&self) -> Option<bool> {
        Some(true)
    }
}
