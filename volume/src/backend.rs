//! What holds the blocks at last: memory, nothing at all (for measuring), or a file.

pub mod file;
pub mod memory;
pub mod null;

pub use file::{FileError, FileOptions, FileVolume, Remembered, ResizeError};
pub use memory::MemoryVolume;
pub use null::NullVolume;
