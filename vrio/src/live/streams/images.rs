//! `vrio volume import` and `vrio volume export`.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use node::config::show_size;
use node::store::block::BLOCK_BYTES;
use node::store::stream::{PartBuilder, StreamHeader, StreamId, StreamPart, StreamTally};
use node::store::{ChangedRun, SnapshotOrigin};
use rustix::fs::OFlags;
use serde_json::json;

use super::super::{NodeChoice, volumes::reference};
use super::endpoint::{ReceivingVolume, StreamNode};
use super::fail;
use super::progress::StreamProgress;
use super::qcow2::{self, BesideFile, QCOW2_MAGIC};
use super::send::send_parts;
use crate::failure::CommandFailure;
use crate::output::{print, say};

/// Bytes that are read at once from a file.
const READ_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageFormat {
    Raw,
    Qcow2,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeImport {
    /// The new volume's name.
    name: String,
    /// The pool of the volume.
    #[arg(long)]
    pool: String,
    /// The file, or for "raw" a block device.
    file: PathBuf,
    /// The file's format.
    #[arg(long, value_enum)]
    format: Option<ImageFormat>,
    /// The name of the snapshot that the volume has at the end.
    #[arg(long, value_name = "SNAPSHOT", default_value = "imported")]
    snapshot: String,
    /// Print the progress also if standard error is no terminal.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeImport {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let node = StreamNode::new(self.which.socket()?);
        let mut volume = ReceivingVolume::new(node, &self.pool, &self.name)?;
        let (raw, size_bytes, _converted) = self.raw().map_err(CommandFailure::running)?;
        let blocks = size_bytes.div_ceil(BLOCK_BYTES as u64);
        let origin = invented().map_err(CommandFailure::running)?;
        let header = StreamHeader {
            id: StreamId { origin, base: None, blocks },
            name: self.snapshot.clone(),
            start_block: 0,
            expected_blocks: 0,
        };
        // It also says whether the name and the size are possible.
        StreamHeader::read(&header.to_bytes()).map_err(CommandFailure::configuration)?;
        volume.begin(&header).inspect_err(|_| {
            let (pool, name) = (&self.pool, &self.name);
            say(format_args!(
                "vrio: if an import of {name} was interrupted, end it with `vrio volume receive \
                 {pool} {name} --give-up`, and import again"
            ));
        })?;
        let received = self.send(&raw, &header, &mut volume);
        let done = match received.and_then(|()| volume.end(&header)) {
            Ok(done) => done,
            Err(failure) => {
                // Half an image is of no use, and another attempt has another identity.
                if let Err(error) = volume.give_up() {
                    say(format_args!("vrio: the half of the volume stays: {error}"));
                }
                return Err(failure);
            }
        };
        if self.which.json {
            return print(&format!("{}\n", json!(done)));
        }
        let (pool, name) = (&self.pool, &self.name);
        print(&format!(
            "done: import {} into pool {pool:?}; serve it with `vrio volume add {name} --pool \
             {pool}`\n",
            done.snapshot
        ))
    }

    /// The raw content, its size, and the file that goes with it.
    fn raw(&self) -> Result<(File, u64, Option<BesideFile>)> {
        let path = absolute(&self.file).with_context(|| format!("{:?}", self.file))?;
        // The opening of a pipe would wait for its other end.
        let opened = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path);
        let mut file = opened.with_context(|| format!("{path:?} cannot be opened"))?;
        let kind = file.metadata().with_context(|| format!("{path:?}"))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            bail!(
                "{path:?} is neither a file nor a block device: write the content to a file first"
            );
        }
        if self.format == Some(ImageFormat::Qcow2) {
            qcow2::check_image(&path, &mut file)?;
            let size_bytes = qcow2::content_bytes(&path, &mut file)?;
            let (beside, raw) = BesideFile::new(&path, "raw")?;
            raw.set_len(size_bytes).with_context(|| format!("{:?}", beside.path()))?;
            qcow2::to_raw(&path, beside.path())?;
            return Ok((raw, size_bytes, Some(beside)));
        }
        let mut front = [0; 4];
        let length = file.read(&mut front).with_context(|| format!("{path:?}: reading"))?;
        if self.format.is_none() && length == 4 && front == *QCOW2_MAGIC {
            bail!("{path:?} looks like a qcow2 image: say --format qcow2, or --format raw");
        }
        let size_bytes = file.seek(SeekFrom::End(0)).with_context(|| format!("{path:?}"))?;
        if size_bytes == 0 {
            bail!("{path:?} is empty, and a volume is not: choose another file");
        }
        Ok((file, size_bytes, None))
    }

    /// Sends the blocks of a raw file that are not zeroes.
    fn send(
        &self,
        raw: &File,
        header: &StreamHeader,
        volume: &mut ReceivingVolume,
    ) -> Result<(), CommandFailure> {
        let mut progress = StreamProgress::new(header, self.which.json, self.progress);
        let mut tally = StreamTally::new(header);
        let (mut data, mut next) = (Vec::new(), 0);
        while next < header.id.blocks {
            let mut part = PartBuilder::new(next);
            data.clear();
            next = gather(raw, header.id.blocks, next, &mut part, &mut data)
                .context("the file cannot be read")
                .map_err(CommandFailure::running)?;
            let bytes = part.finish(&header.id, next, &data);
            tally.part(&bytes).map_err(CommandFailure::running)?;
            volume.part(&bytes)?;
            progress.at(next, tally.counts());
        }
        progress.end(tally.counts());
        Ok(())
    }
}

/// An identity that no snapshot has.
fn invented() -> Result<SnapshotOrigin> {
    let mut pool = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut pool));
    read.context("there are no random numbers (/dev/urandom)")?;
    let at_s = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    Ok(SnapshotOrigin { pool, id: 0, generation: 0, at_s })
}

/// Puts blocks of a file into a part, from a block on, until it is full or there are no more. Gives
/// the block at which it ends. Holes of the file are not read, and blocks of zeroes not sent.
fn gather(
    file: &File,
    blocks: u64,
    start: u64,
    part: &mut PartBuilder,
    data: &mut Vec<u8>,
) -> std::io::Result<u64> {
    let block_bytes = BLOCK_BYTES as u64;
    let mut at = start;
    let mut buffer = vec![0; READ_BYTES as usize];
    while at < blocks {
        let Some(found) = next_data(file, at * block_bytes)? else { return Ok(blocks) };
        at = at.max(found / block_bytes);
        let length = read_some(file, at * block_bytes, &mut buffer)?;
        let count = (length as u64).div_ceil(block_bytes).min(blocks - at);
        if count == 0 {
            // The file has become shorter: the rest is zeroes.
            return Ok(blocks);
        }
        buffer[length..].fill(0);
        for (block, bytes) in (at..at + count).zip(buffer.chunks_exact(BLOCK_BYTES)) {
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            if let Some(end) = part.push(&ChangedRun { block, blocks: 1, is_hole: false }) {
                return Ok(end);
            }
            data.extend(bytes);
        }
        at += count;
    }
    Ok(blocks)
}

/// The first byte of data from a place on; `None` if only holes follow.
fn next_data(file: &File, from: u64) -> std::io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        // A device or file system that knows no holes.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(Some(from)),
        Err(error) => Err(error.into()),
    }
}

/// Fills the buffer as far as the file goes.
fn read_some(file: &File, from: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], from + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[derive(Debug, Args)]
pub(crate) struct VolumeExport {
    /// The snapshot: "ann@monday", or by its number "p:17".
    snapshot: String,
    /// The file, which must not be there.
    file: PathBuf,
    /// The file's format.
    #[arg(long, value_enum, default_value = "raw")]
    format: ImageFormat,
    /// Print the progress also if standard error is no terminal.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeExport {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let path = absolute(&self.file).map_err(CommandFailure::running)?;
        if path.exists() {
            return Err(fail(format!("{path:?} is there already: remove it, or choose another")));
        }
        let mut node = StreamNode::new(self.which.socket()?);
        let header = node.header(&format!("to={}", reference(&self.snapshot)?))?;
        let (beside, raw) = BesideFile::new(&path, "raw").map_err(CommandFailure::running)?;
        let size_bytes = header.id.blocks * BLOCK_BYTES as u64;
        raw.set_len(size_bytes).map_err(CommandFailure::running)?;
        let mut progress = StreamProgress::new(&header, self.which.json, self.progress);
        let id = header.id;
        send_parts(&mut node, &header, &mut progress, |bytes| {
            // The header and the end are no parts, and have nothing for the file.
            let Ok(part) = StreamPart::read(&id, &bytes) else { return Ok(()) };
            let written = write_part(&raw, &part).context("the file cannot be written");
            written.map_err(CommandFailure::running)
        })?;
        self.finish(&path, beside, &raw).map_err(CommandFailure::running)?;
        if self.which.json {
            let answer = json!({ "file": path, "size_bytes": size_bytes });
            return print(&format!("{answer}\n"));
        }
        let size = show_size(size_bytes);
        print(&format!("done: export {} to {path:?}, {size}\n", self.snapshot))
    }

    /// The file is whole and durable before it has its name.
    fn finish(&self, path: &Path, beside: BesideFile, raw: &File) -> Result<()> {
        raw.sync_all().with_context(|| format!("{path:?} cannot be written"))?;
        if self.format == ImageFormat::Raw {
            return beside.become_file(path);
        }
        let (image, file) = BesideFile::new(path, "qcow2")?;
        qcow2::to_qcow2(beside.path(), image.path())?;
        file.sync_all().with_context(|| format!("{path:?} cannot be written"))?;
        image.become_file(path)
    }
}

fn write_part(file: &File, part: &StreamPart<'_>) -> Result<()> {
    let mut data = part.data;
    for run in part.runs.iter().filter(|run| !run.is_hole) {
        let length = run.blocks as usize * BLOCK_BYTES;
        let Some((now, rest)) = data.split_at_checked(length) else {
            return Err(anyhow!("a part has less data than its runs"));
        };
        file.write_all_at(now, run.block * BLOCK_BYTES as u64)?;
        data = rest;
    }
    Ok(())
}
