//! Recognisable contents of messages, and a node in the same process, for tests.

/// Bytes that tell where they belong.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(31) + at * 7 + at / 251) as u8).collect()
}

/// A node in the same process, that gives slots of a region which this crate has mapped as well.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Node {
    table: fabric_node::SlotTable,
    region: std::sync::Arc<crate::Region>,
}

#[cfg(test)]
impl Node {
    pub(crate) fn new(options: &crate::RegionOptions) -> (Self, std::os::fd::OwnedFd) {
        let &crate::RegionOptions { slots, gateways, cells, buffers, buffer_bytes, host } = options;
        let theirs =
            fabric_node::RegionOptions { slots, gateways, cells, buffers, buffer_bytes, host };
        let (table, fd) = fabric_node::SlotTable::create(&theirs).expect("memory");
        let region = crate::Region::map_known(std::os::fd::AsFd::as_fd(&fd), options);
        (Self { table, region: region.expect("it was just made").into() }, fd)
    }

    /// This crate's mapping.
    pub(crate) fn region(&self) -> &std::sync::Arc<crate::Region> {
        &self.region
    }
}

#[cfg(test)]
impl std::ops::Deref for Node {
    type Target = fabric_node::SlotTable;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}
