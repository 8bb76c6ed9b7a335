//! The files a guest boots from, which `guest/build` makes.

use std::path::{Path, PathBuf};

use super::error::GuestError;

/// A kernel as an uncompressed ELF file and the initramfs that goes with it.
#[derive(Debug, Clone)]
pub struct Image {
    folder: PathBuf,
}

impl Image {
    /// The image in `folder`.
    ///
    /// # Errors
    /// The file that is missing.
    pub fn open(folder: &Path) -> Result<Self, GuestError> {
        let image = Self { folder: folder.to_owned() };
        for file in [image.kernel(), image.initramfs()] {
            if !file.is_file() {
                return Err(GuestError::NoImage(file.display().to_string()));
            }
        }
        Ok(image)
    }

    /// The image that belongs to this source tree: the folder that `VRIO_GUEST` names, else
    /// `guest/cache` of the workspace a test runs in, else of the current folder.
    ///
    /// # Errors
    /// The file that is missing.
    pub fn find() -> Result<Self, GuestError> {
        Self::open(&Self::folder())
    }

    /// The image with the newer kernel, which `guest/build newer` makes, inside that folder.
    ///
    /// # Errors
    /// The file that is missing.
    pub fn find_newer() -> Result<Self, GuestError> {
        Self::open(&Self::folder().join("newer"))
    }

    /// The folder of all that `guest/build` makes.
    pub(super) fn folder() -> PathBuf {
        if let Some(folder) = std::env::var_os("VRIO_GUEST") {
            return folder.into();
        }
        let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let workspace = package.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        workspace.join("guest/cache")
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    /// Open MPI and libfabric, which `guest/build mpi` makes, for [`super::Builder::archive`].
    ///
    /// # Errors
    /// The file that is missing.
    pub fn mpi(&self) -> Result<PathBuf, GuestError> {
        self.archive("mpi")
    }

    /// PostgreSQL, which `guest/build database` makes, for [`super::Builder::archive`].
    ///
    /// # Errors
    /// The file that is missing.
    pub fn database(&self) -> Result<PathBuf, GuestError> {
        self.archive("database")
    }

    fn archive(&self, name: &str) -> Result<PathBuf, GuestError> {
        let archive = self.folder.join(name).with_extension("cpio");
        let missing = || GuestError::NoImage(format!("{} (guest/build {name})", archive.display()));
        if archive.is_file() { Ok(archive) } else { Err(missing()) }
    }

    /// The archive that the kernel unpacks as its root.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs.cpio")
    }

    /// The file that keeps the result of the probe for hardware virtualisation.
    pub(super) fn accelerator_note(&self) -> PathBuf {
        self.folder.join("accelerator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_image_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vmlinux"), b"x").unwrap();
        let error = Image::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("initramfs.cpio") && error.contains("guest/build"), "{error}");
    }
}
