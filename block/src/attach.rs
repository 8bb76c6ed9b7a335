//! A volume as a disk or a direct client opens it: under an attachment.
//!
//! Blocks know no attachments: a backend, a stage and the chain of them are opened with a
//! sidecore's services and a depth ([`volume::OpenArguments`]). Two things have an epoch to claim
//! before a request may pass, and only these are attached: a volume of this node behind its guard
//! ([`crate::LocalVolume`]) and a volume of a peer ([`crate::RemoteVolume`]).

use std::fmt;
use std::sync::Arc;

use crate::attachment::Attachment;
use volume::Size;
use volume::{Channel, OpenArguments, OpenError, VolumeInfo};

/// A volume that a disk can be on.
pub trait Attach: Send + Sync + fmt::Debug {
    /// The properties as they are now. Cheap; may be called on a sidecore.
    fn info(&self) -> VolumeInfo;

    /// Its size, which callers keep and read again when the volume grows.
    fn size(&self) -> Size;

    /// Opens the attachment's channel `index`, which is the sidecore's index, on the calling
    /// sidecore. The channel claims the attachment by itself. Requests that are submitted before it
    /// has an epoch wait.
    ///
    /// # Errors
    /// When the sidecore lacks what the volume needs, or the system refuses.
    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError>;

    /// The guest has stopped, its channels are there, and the attachment is about to be closed.
    /// Waits, for a bounded time, until the volume has all writes that the guest was told of. For
    /// control threads.
    fn settle(&self, attachment: &Attachment) {
        let _ = attachment;
    }
}

/// A channel of an attachment, with what its user has to know about the volume.
#[derive(Debug)]
pub struct Attached {
    /// The channel.
    pub channel: Box<dyn Channel>,
    /// The volume's properties when it was opened.
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
        open: &OpenArguments<'_>,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sidecore::Services;
    use volume::backend::MemoryVolume;
    use volume::layer::Layer;
    use volume::record::NoRecords;
    use volume::{Io, Op, OpenArguments, Status, io_table};

    use super::Attach;
    use crate::attachment::{AttachOptions, Attachment};
    use crate::{Export, ExportOptions, LocalVolume};

    /// Each of the volumes below may have an attachment and epochs of its own.
    #[test]
    fn a_layer_is_over_volumes_that_are_attached() {
        let volumes = ["a", "b"].map(|name| {
            let memory = Arc::new(MemoryVolume::new(1 << 20).expect("memory"));
            let export = Export::new(name, memory, ExportOptions::default(), Arc::new(NoRecords));
            LocalVolume::new(export.expect("no records"))
        });
        let attach = |volumes: &[Arc<LocalVolume>], claimant| {
            volumes.iter().fold(Layer::new(1), |layer, volume| {
                let attachment = Arc::new(Attachment::new("layer", AttachOptions::new(claimant)));
                let open = OpenArguments { services: &Services::new(), depth: 1 };
                layer.with(volume.attach(&attachment, 0, &open).expect("it opens"), 1)
            })
        };
        let mut ios = io_table(1);
        let parent = ios.take();
        let flush = |io: &mut Io| {
            io.op = Op::Flush;
            true
        };
        let end = |layer: &mut Layer, channels: usize| {
            (0..channels).for_each(|at| assert!(layer.begin(at, parent, flush)));
            let (mut now_ns, mut settled) = (1, Vec::new());
            while settled.is_empty() {
                now_ns += 1_000_000;
                let _ = layer.poll(now_ns, |_, _| (), &mut settled);
            }
            settled[0].status
        };
        let mut both = attach(&volumes, 1);
        assert!(!both.is_open(), "nothing is claimed");
        assert_eq!(end(&mut both, 2), Status::Done);
        assert!(both.is_open());
        // A successor has one of them.
        assert_eq!(end(&mut attach(&volumes[1..], 2), 1), Status::Done);
        assert_eq!(end(&mut both, 2), Status::Fenced);
    }
}
