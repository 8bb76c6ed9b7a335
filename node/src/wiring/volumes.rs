//! From a volume's configuration to an export: backend, chain, guard.

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::num::NonZeroU64;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::backend::{FileOptions, FileVolume, MemoryVolume, NullVolume};
use block::chain::{Chain, ChainSpec};
use block::record::{FileRecords, Record, RecordError, RecordStore, RecordWriter, Ticket};
use block::stage::Limit;
use block::{Durability, Export, ExportOptions, Volume};

use super::{ObjectError, StartError};
use crate::config::{Backend, Config, StageConfig, VolumeConfig};

/// A volume with everything around it.
#[derive(Debug)]
pub(super) struct Served {
    /// What disks and peers use.
    pub(super) export: Arc<Export>,
    /// Its stages, for their counters.
    pub(super) chain: Chain,
    /// The file behind it, if there is one, for its counters.
    pub(super) file: Option<FileVolume>,
}

/// All volumes of a node.
#[derive(Debug)]
pub(super) struct Volumes {
    /// In the configuration's order.
    pub(super) all: Vec<Served>,
    /// Held as long as the records are ours.
    _lock: Option<File>,
}

/// Opens every volume.
///
/// # Errors
/// All volumes that cannot be opened, each by line and name.
pub(super) fn start(config: &Config) -> Result<Volumes, StartError> {
    let state = config.directories.state.as_deref().filter(|_| !config.volumes.is_empty());
    let lock = state.map(|state| lock_state(config, state)).transpose()?;
    let writer = RecordWriter::start()
        .map_err(|source| StartError::System { what: "start the writer of records", source })?;
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for volume in &config.volumes {
        match serve(config, volume, state, &writer) {
            Ok(served) => all.push(served),
            Err(text) => errors.push(ObjectError {
                place: config.place(&volume.lines, "backend"),
                object: format!("volume {:?}", volume.name),
                text,
            }),
        }
    }
    if errors.is_empty() { Ok(Volumes { all, _lock: lock }) } else { Err(errors.into()) }
}

fn serve(
    config: &Config,
    wanted: &VolumeConfig,
    state: Option<&Path>,
    writer: &RecordWriter,
) -> Result<Served, String> {
    let (bare, file) = open(config, wanted)?;
    let stages: Vec<_> = wanted.chain.iter().map(stage).collect();
    let chain = Chain::build(bare, &stages).map_err(|error| error.to_string())?;
    let records: Arc<dyn RecordStore> = match state {
        Some(state) => FileRecords::open(state, &wanted.name, writer.clone()).map_err(records)?,
        None => Arc::new(NoRecords),
    };
    let options = ExportOptions { allow: wanted.allow.clone(), shared: wanted.shared };
    let export = Export::new(&wanted.name, Arc::clone(&chain.volume), options, records);
    let export = export.map_err(|error| error.to_string())?;
    Ok(Served { export, chain, file })
}

fn records(error: RecordError) -> String {
    format!("{error}; the records of attachments are in the directory \"state\"")
}

type Bare = (Arc<dyn Volume>, Option<FileVolume>);

fn open(config: &Config, wanted: &VolumeConfig) -> Result<Bare, String> {
    let durability =
        if wanted.write_through { Durability::WriteThrough } else { Durability::Flush };
    match &wanted.backend {
        Backend::File { path, size_bytes, direct } => {
            inside(path, &config.directories.volumes)?;
            let mut options = FileOptions::new(path);
            options.size_bytes = *size_bytes;
            options.direct = *direct;
            options.read_only = wanted.read_only;
            options.durability = durability;
            let file = FileVolume::open(&options).map_err(|error| error.to_string())?;
            Ok((Arc::new(file.clone()), Some(file)))
        }
        Backend::Memory { size_bytes } => {
            let memory = MemoryVolume::new(*size_bytes)
                .map_err(|error| format!("no memory for it: {error}; make it smaller"))?;
            let memory = memory.with_durability(durability);
            let memory = if wanted.read_only { memory.read_only() } else { memory };
            Ok((Arc::new(memory), None))
        }
        Backend::Null { size_bytes } => Ok((Arc::new(NullVolume::new(*size_bytes)), None)),
    }
}

/// A symbolic link must not lead out of the directories that the configuration names.
fn inside(path: &Path, homes: &[PathBuf]) -> Result<(), String> {
    // A file that is to be made is where its directory is.
    let real = path.canonicalize().or_else(|_| {
        let directory = path.parent().unwrap_or(path).canonicalize();
        directory.map(|directory| directory.join(path.file_name().unwrap_or_default()))
    });
    let Ok(real) = real else {
        // Opening it says better what is wrong.
        return Ok(());
    };
    let mut homes = homes.iter().filter_map(|home| home.canonicalize().ok());
    if homes.any(|home| real.starts_with(home)) {
        return Ok(());
    }
    Err(format!(
        "{path:?} leads to {real:?}, which is outside the directories that \"volumes\" names; add \
         {:?} to them if that is meant",
        real.parent().unwrap_or(&real)
    ))
}

fn stage(stage: &StageConfig) -> ChainSpec {
    match *stage {
        StageConfig::Meter => ChainSpec::Meter,
        StageConfig::Limit { iops, bytes_per_second, burst_ns } => ChainSpec::Limit(Limit {
            iops: iops.and_then(NonZeroU64::new),
            bytes_per_second: bytes_per_second.and_then(NonZeroU64::new),
            burst_ns,
        }),
    }
}

/// Two nodes that write the same records would break each other's promises.
fn lock_state(config: &Config, state: &Path) -> Result<File, StartError> {
    let refuse = |source: std::io::Error, way_out: &str| StartError::Directory {
        place: config.place(&config.lines, "directories"),
        path: state.to_owned(),
        source,
        way_out: way_out.to_owned(),
    };
    let usable = "it holds the records of attachments and has to be writable";
    // What guests are called is nobody else's business.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
    made.map_err(|source| refuse(source, usable))?;
    let taken = crate::lock::take(&state.join(".lock")).map_err(|source| refuse(source, usable))?;
    taken.ok_or_else(|| {
        let other = "another node keeps its records there; stop that one, or give this one another \
                     \"state\"";
        refuse(std::io::ErrorKind::ResourceBusy.into(), other)
    })
}

/// For volumes that do not outlive the process, on a node without a place for records: without one
/// a guest that resumes is told that its writes are gone, which they are.
#[derive(Debug)]
struct NoRecords;

impl RecordStore for NoRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(HashMap::new())
    }

    fn write(&self, _attachment: &str, _record: Record) -> Ticket {
        let ticket = Ticket::new();
        ticket.end(Ok(()));
        ticket
    }
}
