//! A stand-in guest without a connection: memory, queues and the rings on them.

use std::io;
use std::sync::Arc;

use super::layout::{GuestLayout, QueueLayout, RingShape};
use super::memory::{Backing, GUEST_BASE, GuestMemory, Regions};
use super::ring::{RingDriver, RingOptions};

/// The settings of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPlan {
    /// Its queues, all alike.
    pub queues: u16,
    /// Their size and that of their requests.
    pub shape: RingShape,
    /// Where its memory comes from.
    pub backing: Backing,
    /// How its memory is cut.
    pub regions: Regions,
}

impl Default for GuestPlan {
    fn default() -> Self {
        let (shape, backing, regions) = Default::default();
        Self { queues: 1, shape, backing, regions }
    }
}

/// A guest's memory and where its queues lie. Cheap to make: one mapping.
#[derive(Clone, Debug)]
pub struct DriverGuest {
    memory: Arc<GuestMemory>,
    queues: Arc<[QueueLayout]>,
}

impl DriverGuest {
    /// Maps the memory and lays the queues out in it.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor left.
    pub fn new(plan: &GuestPlan) -> io::Result<Self> {
        let cut = plan.regions != Regions::One;
        assert!(!cut || plan.backing == Backing::Memfd, "anonymous memory is not cut");
        let layout = GuestLayout::new(plan.queues, plan.shape);
        let mut memory = GuestMemory::new(plan.backing, GUEST_BASE, layout.len)?;
        memory.cut(plan.regions, &layout.seams);
        Ok(Self { memory: Arc::new(memory), queues: layout.queues.into() })
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The queues' places.
    pub fn queues(&self) -> &[QueueLayout] {
        &self.queues
    }

    /// The driver of a queue; to be made once for each.
    pub fn ring(&self, index: u16, options: RingOptions) -> RingDriver {
        RingDriver::new(Arc::clone(&self.memory), &self.queues[usize::from(index)], options)
    }
}
