//! A cpio archive in the "newc" form, which Linux unpacks as (a further part of) its initramfs.
//! Source: Documentation/driver-api/early-userspace/buffer-format.rst of Linux.

/// The alignment of names and contents.
const ALIGNMENT: usize = 4;
const REGULAR_FILE: u32 = 0o100_000;

/// An archive while it is written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    /// Adds a regular file. `path` is relative to the root, its folder must exist in the image, and
    /// `mode` are the permission bits.
    pub fn add(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        self.entry(path, REGULAR_FILE | mode, content);
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.files += 1;
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let length = u32::try_from(content.len()).expect("a guest's file is below 4 GiB");
        let name_length = path.len() as u32 + 1;
        let (inode, owner, links, time, device, checksum) = (self.files, 0, 1, 0, 0, 0);
        let fields = [
            inode,
            mode,
            owner,
            owner,
            links,
            time,
            length,
            device,
            device,
            device,
            device,
            name_length,
            checksum,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_format() {
        let mut archive = Archive::default();
        archive.add("script", 0o755, b"true\n");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        // Magic, inode 1, mode of an executable regular file.
        assert!(text.starts_with("07070100000001000081ED"), "{text}");
        // A header of 110 bytes, the name with its zero, padding to 120, then the content.
        assert_eq!(&bytes[110..117], b"script\0");
        assert_eq!(&bytes[120..125], b"true\n");
        assert_eq!(&bytes[128..134], b"070701");
        assert!(text.contains("TRAILER!!!"));
        assert_eq!(bytes.len() % ALIGNMENT, 0);
    }
}
