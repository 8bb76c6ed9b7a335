//! Steps between a disk and its blocks. Each is a volume over a volume; see [`crate::chain`].

pub mod encrypt;
pub mod limit;
pub mod meter;

pub use encrypt::{Ciphered, EncryptVolume, Sizes, VolumeKey};
pub use limit::{Limit, LimitVolume};
pub use meter::{Meter, MeterVolume, Reading};
