//! Images of other formats, which are hardly ever meant to be served byte by byte: the guest would
//! see a header where its disk begins, and its writes would destroy the image.
//!
//! Not LUKS: a disk that its guest has encrypted as a whole begins like that, and is raw.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;

use super::bounce::Buffer;
use super::open::FileError;

/// How much of the image is looked at: a block, since direct I/O reads nothing less.
const HEADER_BYTES: usize = 4096;

/// The formats: where an image has its mark, the mark, and the format's name.
const FORMATS: [(usize, &[u8], &str); 10] = [
    (0, b"QFI\xfb", "qcow2"),
    (0, b"QED\0", "QED"),
    (0, b"KDMV", "VMDK"),
    (0, b"COWD", "VMDK"),
    (0, b"# Disk DescriptorFile", "VMDK"),
    (0, b"vhdxfile", "VHDX"),
    (0, b"conectix", "VHD"),
    (64, b"\x7f\x10\xda\xbe", "VDI"),
    (0, b"WithoutFreeSpace", "Parallels"),
    (0, b"WithouFreSpacExt", "Parallels"),
];

/// The format that the first bytes of an image say.
fn of(header: &[u8]) -> Option<&'static str> {
    let has = |at: usize, bytes: &[u8]| header.get(at..).is_some_and(|it| it.starts_with(bytes));
    FORMATS.iter().find(|(at, bytes, _)| has(*at, bytes)).map(|(_, _, format)| *format)
}

/// Refuses what is an image of another format.
///
/// # Errors
/// Which one, and what to do; or when it cannot be read.
pub(super) fn refuse(file: &OwnedFd, path: &Path) -> Result<(), FileError> {
    let system = |source: Errno| super::open::system_error(path, "read its first block", source);
    let buffer = Buffer::new().map_err(|_| system(Errno::NOMEM))?;
    // SAFETY: the buffer is ours alone, zeroed, aligned for direct I/O and longer than this.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.start(), HEADER_BYTES) };
    let read = match rustix::io::pread(file, &mut *bytes, 0) {
        // A file that is shorter than a block, or not in the blocks of direct I/O: the code that
        // opens it reports that.
        Err(Errno::INVAL) => 0,
        read => read.map_err(system)?,
    };
    match of(&bytes[..read]) {
        Some(format) => Err(FileError::Format { path: path.to_owned(), format }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_known_by_its_first_bytes_and_raw_by_none() {
        for (at, bytes, format) in FORMATS {
            let header = [&vec![0; at][..], bytes, &[0; 512]].concat();
            assert_eq!(of(&header), Some(format));
            assert_eq!(of(&header[..at + bytes.len() - 1]), None, "cut");
        }
        assert_eq!(of(&[0; 4096]), None);
        assert_eq!(of(b"LUKS\xba\xbe"), None, "a guest's own disk");
        assert_eq!(of(&[]), None);
    }
}
