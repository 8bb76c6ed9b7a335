//! Images of the format qcow2, by `qemu-img`.
//!
//! An image may come from a stranger, and it can name other files: a backing file, or a file that
//! has its data. `qemu-img` would read those with the rights of its user. So the image's own header
//! is looked at before `qemu-img` sees it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The front of every image.
pub(super) const QCOW2_MAGIC: &[u8; 4] = b"QFI\xfb";

/// Features of an image that say how its own tables are read: it was not closed (bit 0), its
/// clusters are compressed in another way (bit 3), and they have subclusters (bit 4).
const FEATURES_KNOWN: u64 = 1 | 1 << 3 | 1 << 4;

/// The exit code of `qemu-img check` for an image whose content is whole, and which has clusters
/// that nothing refers to.
const CHECK_LEAKS: i32 = 3;

const NO_QEMU_IMG: &str = "qemu-img cannot be run, which reads and writes qcow2: install it \
                           (qemu-utils), or use --format raw";

/// Refuses an image that refers to another file, and an encrypted image.
pub(super) fn check_image(path: &Path, file: &mut File) -> Result<()> {
    let mut head = [0; 104];
    let length = file.take(104).read(&mut head).with_context(|| format!("{path:?}: reading"))?;
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    if length < 72 || head[..4] != QCOW2_MAGIC[..] {
        bail!("{path:?} is no qcow2 image; if it is a raw one, say --format raw");
    }
    let version = word(4);
    if !(2..=3).contains(&version) {
        bail!("{path:?} is a qcow image of version {version}, and only 2 and 3 are read");
    }
    if long(8) != 0 || word(16) != 0 {
        bail!(
            "{path:?} has a backing file, which may be any file of this host: make a whole image \
             of it where it comes from, with `qemu-img convert -O qcow2 OLD NEW`"
        );
    }
    if word(32) != 0 {
        bail!("{path:?} is encrypted: convert it where its key is, with `qemu-img convert`");
    }
    if version == 3 && long(72) & !FEATURES_KNOWN != 0 {
        bail!(
            "{path:?} has its data in another file, is marked as damaged, or has features that are \
             not known: make a whole image of it with `qemu-img convert -O qcow2 OLD NEW`"
        );
    }
    Ok(())
}

/// A file beside the image, which is removed when the work is done.
#[derive(Debug)]
pub(super) struct BesideFile {
    path: PathBuf,
    stays: bool,
}

impl BesideFile {
    /// A new empty file with this name and an ending.
    pub(super) fn new(beside: &Path, ending: &str) -> Result<(Self, File)> {
        let mut name = beside.file_name().context("a path ends with a file's name")?.to_owned();
        name.push(format!(".{}.{ending}", std::process::id()));
        let path = beside.with_file_name(name);
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("{path:?} cannot be made"))?;
        Ok((Self { path, stays: false }, file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Becomes the file `path`, which must not be there.
    pub(super) fn become_file(mut self, path: &Path) -> Result<()> {
        std::fs::hard_link(&self.path, path)
            .with_context(|| format!("{path:?} cannot be made; choose another name"))?;
        self.stays = std::fs::remove_file(&self.path).is_ok();
        Ok(())
    }
}

impl Drop for BesideFile {
    fn drop(&mut self) {
        if !self.stays {
            // It stays behind if the directory is gone, say.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Converts an image whose header was checked to a raw file, and nothing but this image. An image
/// that is cut off or damaged is refused: `qemu-img convert` reads zeroes beyond its end.
pub(super) fn to_raw(image: &Path, raw: &Path) -> Result<()> {
    let from = serde_json::json!({
        "driver": "qcow2", "backing": null,
        "file": { "driver": "file", "filename": image },
    });
    let from = format!("json:{from}");
    let mut check = Command::new("qemu-img");
    let done = check.arg("check").arg(&from).output().context(NO_QEMU_IMG)?;
    if !matches!(done.status.code(), Some(0 | CHECK_LEAKS)) {
        let said = [&done.stdout[..], &done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let first: Vec<_> = said.lines().filter(|line| !line.is_empty()).take(2).collect();
        bail!(
            "{image:?} is damaged or cut off; get a whole copy of it (`qemu-img check` says: {})",
            first.join("; ")
        );
    }
    convert(&["-n", "--target-is-zero"], &from, raw, "raw")
}

/// Converts a raw image to qcow2.
pub(super) fn to_qcow2(raw: &Path, image: &Path) -> Result<()> {
    let from = serde_json::json!({
        "driver": "raw", "file": { "driver": "file", "filename": raw },
    });
    convert(&[], &format!("json:{from}"), image, "qcow2")
}

fn convert(options: &[&str], from: &str, to: &Path, format: &str) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.arg("convert").args(options).arg("-O").arg(format).arg(from).arg(to);
    let done = command.output().context(NO_QEMU_IMG)?;
    if !done.status.success() {
        bail!("qemu-img: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// The size of an image's content, from its checked header.
pub(super) fn content_bytes(path: &Path, file: &mut File) -> Result<u64> {
    let mut size = [0; 8];
    file.read_exact_at(&mut size, 24).with_context(|| format!("{path:?}: reading"))?;
    Ok(u64::from_be_bytes(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: &[(u64, &[u8])]) -> String {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.qcow2");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        file.write_all_at(QCOW2_MAGIC, 0).unwrap();
        file.write_all_at(&3u32.to_be_bytes(), 4).unwrap();
        for (at, bytes) in change {
            file.write_all_at(bytes, *at).unwrap();
        }
        check_image(&path, &mut file).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn an_image_that_refers_to_other_files_is_refused() {
        assert_eq!(refusal(&[]), "");
        assert_eq!(refusal(&[(79, &[1 | 1 << 3 | 1 << 4])]), "");
        assert!(refusal(&[(15, &[104])]).contains("has a backing file"));
        assert!(refusal(&[(19, &[9])]).contains("has a backing file"));
        assert!(refusal(&[(79, &[1 << 2])]).contains("in another file"));
        assert!(refusal(&[(79, &[1 << 1])]).contains("damaged"));
        assert!(refusal(&[(72, &[1])]).contains("not known"));
        assert!(refusal(&[(35, &[2])]).contains("is encrypted"));
        assert!(refusal(&[(7, &[4])]).contains("version 4"));
        assert!(refusal(&[(0, b"QED")]).contains("no qcow2 image"));
    }
}
