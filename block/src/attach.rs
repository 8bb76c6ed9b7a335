//! What a disk or a direct client opens: a volume that is used under an attachment.
//!
//! Blocks know no attachments: a backend, a stage and the chain of them are opened with a
//! sidecore's services and a depth ([`crate::volume::Open`]). Two things have an epoch to claim
//! before a request may pass, and only these are attached: a volume of this node behind its guard
//! ([`crate::LocalVolume`]) and a volume of a peer ([`crate::RemoteVolume`]).

use std::fmt;
use std::sync::Arc;

use crate::attachment::Attachment;
use crate::size::Size;
use crate::volume::{Channel, Open, OpenError, VolumeInfo};

/// A volume that a disk can be on.
pub trait Attach: Send + Sync + fmt::Debug {
    /// What it is now. Cheap; may be called on a sidecore.
    fn info(&self) -> VolumeInfo;

    /// Its size, which callers keep and read again when the volume grows.
    fn size(&self) -> Size;

    /// Opens the attachment's channel `index`, which is the sidecore's index, on the calling
    /// sidecore. The channel claims the attachment by itself; what is submitted before it has an
    /// epoch waits.
    ///
    /// # Errors
    /// When the sidecore lacks what the volume needs, or the system refuses.
    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &Open<'_>,
    ) -> Result<Box<dyn Channel>, OpenError>;
}

/// A channel of an attachment, with what its user has to know about the volume.
#[derive(Debug)]
pub struct Attached {
    /// The channel.
    pub channel: Box<dyn Channel>,
    /// What the volume was when it was opened.
    pub info: VolumeInfo,
    /// How large it is.
    pub size: Size,
    /// Under which attachment it is used.
    pub attachment: Arc<Attachment>,
    /// Which channel of the attachment this is.
    pub index: u16,
    /// How many requests may be outstanding: the capacity of the user's table.
    pub depth: u16,
}

impl Attached {
    /// Opens the attachment's channel `index` of `volume`.
    ///
    /// # Errors
    /// As [`Attach::attach`].
    pub fn open(
        volume: &dyn Attach,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &Open<'_>,
    ) -> Result<Self, OpenError> {
        Ok(Self {
            channel: volume.attach(attachment, index, open)?,
            info: volume.info(),
            size: volume.size(),
            attachment: Arc::clone(attachment),
            index,
            depth: open.depth,
        })
    }
}
