//! A file as the backend of a volume: its keys, and all that the node asks of a backend.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use sidecore::CounterText;

use super::{FileCounters, FileOptions, FileVolume};
use crate::backend::kind::{
    BackendFile, BackendNeeds, BackendVolume, FileAt, HandedBlocks, Opening, Remembered, Resizable,
    ResizeError, VolumeBackend, volume_bytes,
};
use crate::record::{FileRecords, RecordError};
use crate::settings::{SettingKey, Settings};

/// `file = ".."`: a raw file or a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBackend {
    /// Its absolute path, inside of one of the volumes' directories.
    pub path: PathBuf,
    /// How much of it is used, and the size of a sparse file that is made where there is none.
    /// `None` for all of a file that is there.
    pub size_bytes: Option<u64>,
    /// Past the page cache.
    pub direct: bool,
    /// It is raw by the operator's word, also where it looks like an image of another format.
    pub raw: bool,
}

impl VolumeBackend for FileBackend {
    const NAME: &'static str = "file";
    const EXAMPLE: &'static str = "file = \"..\"";
    const KEYS: &'static [SettingKey] = &[
        SettingKey::new(
            "file",
            "A raw file or a block device, inside of one of `volumes`. On tmpfs the sidecore \
             copies by itself.",
        ),
        SettingKey::new(
            "size",
            "The volume's size, for `file` and `pool`. A file that is missing or empty is made, \
             sparse; a file that is shorter is refused. A volume that the pool does not have is \
             made; one that is smaller is made larger. Default: the length of the file, the \
             present size in the pool.",
        ),
        SettingKey::new("direct", "`true`, for `file`: requests go past the page cache."),
        SettingKey::new(
            "format",
            "`\"raw\"`, for `file`: serve a new volume's file byte by byte although it begins \
             like a qcow2, VMDK or VHDX image. Otherwise such a file is refused.",
        ),
    ];
    const NEEDS: BackendNeeds = BackendNeeds {
        uring: true,
        calls: &[
            libc::SYS_ftruncate,
            libc::SYS_fdatasync,
            libc::SYS_fallocate,
            // A failed flush is remembered in an attribute of the file.
            libc::SYS_fgetxattr,
            libc::SYS_fsetxattr,
            libc::SYS_fremovexattr,
        ],
    };
    const HAS_LAYOUT: bool = true;
    const COUNTERS: &'static [CounterText] = FileCounters::DECLARED;

    fn read(settings: &dyn Settings, file: FileAt<'_>) -> Option<Self> {
        let size_bytes = match settings.has("size") {
            true => Some(volume_bytes(settings, "size")?),
            false => None,
        };
        let direct = settings.flag("direct").unwrap_or(false);
        let raw = match settings.has("format") {
            false => false,
            true if settings.text("format")? == "raw" => true,
            true => {
                let text = "\"raw\" is the only format; convert images of other formats with \
                            qemu-img";
                settings.fail_key("format", format!("\"format\": {text}"));
                return None;
            }
        };
        Some(Self { path: file("file")?, size_bytes, direct, raw })
    }

    fn file(&self) -> Option<BackendFile<'_>> {
        Some(BackendFile { path: &self.path, size_bytes: self.size_bytes })
    }

    fn with_size(&self, size_bytes: u64) -> Option<Self> {
        Some(Self { size_bytes: Some(size_bytes), ..self.clone() })
    }

    fn open(
        &self,
        opening: &Opening<'_>,
        handed: Option<HandedBlocks>,
    ) -> Result<Box<dyn BackendVolume>, String> {
        let mut options = FileOptions::new(&self.path);
        options.size_bytes = self.size_bytes;
        options.direct = self.direct;
        options.read_only = opening.read_only;
        options.durability = opening.durability;
        options.topology = opening.topology;
        options.refuse_formats = !self.raw && opening.is_new;
        let volume = match handed.filter(|blocks| !blocks.volatile) {
            Some(blocks) => {
                let HandedBlocks { descriptor, incarnation, failed, .. } = blocks;
                FileVolume::adopt(&options, descriptor, incarnation, failed)
            }
            None => FileVolume::open(&options),
        };
        Ok(Box::new(volume.map_err(|error| error.to_string())?))
    }
}

impl BackendVolume for FileVolume {
    fn describe(&self) -> String {
        let how = if self.is_direct() { "direct" } else { "buffered" };
        let failed = if self.has_failed() { ", FAILED: a sync did not succeed" } else { "" };
        format!("file {} ({how}{failed})", self.path().display())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file())
    }

    fn path(&self) -> Option<&Path> {
        Some(Self::path(self))
    }

    fn has_failed(&self) -> bool {
        Self::has_failed(self)
    }

    fn counted(&self, put: &mut dyn FnMut(&str, u64)) {
        for (name, value) in self.counters().counted() {
            put(&format!("{}_{name}", FileBackend::NAME), value);
        }
    }

    fn remember_by(&mut self, records: &FileRecords, adopted: bool) -> Result<(), RecordError> {
        Self::remember_by(self, records, adopted)
    }

    fn as_resizable(&self) -> Option<&dyn Resizable> {
        Some(self)
    }
}

impl Resizable for FileVolume {
    fn resize(
        &self,
        size_bytes: u64,
        configured_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<Remembered, ResizeError> {
        Self::resize(self, size_bytes, configured_bytes, shrink)
    }
}
