//! Steps between a disk and its blocks. Each is a volume over a volume; see [`crate::chain`].

pub mod limit;
pub mod meter;

pub use limit::{Limit, LimitVolume};
pub use meter::{Meter, MeterVolume, Reading};
