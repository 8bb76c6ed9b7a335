//! A volume without a guard, for tests of what is in front of one.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use volume::{Channel, OpenArguments, OpenError, Size, Volume, VolumeInfo};

use crate::attach::Attach;
use crate::attachment::{AttachOptions, Attachment};

/// An attachment of a test's disk.
pub(crate) fn attachment() -> Arc<Attachment> {
    let options = AttachOptions::new(1);
    Arc::new(Attachment::new("test", options))
}

/// A volume whose attachments are never claimed.
#[derive(Debug)]
pub(crate) struct Unguarded<V>(pub(crate) V);

impl<V: Deref<Target: Volume> + fmt::Debug + Send + Sync> Attach for Unguarded<V> {
    fn info(&self) -> VolumeInfo {
        self.0.info()
    }

    fn size(&self) -> Size {
        self.0.size()
    }

    fn attach(
        &self,
        _: &Arc<Attachment>,
        _: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        self.0.open(open)
    }
}
