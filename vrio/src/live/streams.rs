//! Snapshots as streams: `vrio volume send|receive|verify|import|export`.
//!
//! A stream of any length is many short requests, each for a part of 8 MiB at most. A request that
//! is lost is made again, so these commands go on when the node is restarted or handed over.

mod endpoint;
mod images;
mod progress;
mod qcow2;
mod receive;
mod send;

use std::io::{ErrorKind, Read};

use anyhow::{Context, anyhow};
use node::store::stream::{StreamDecoder, StreamError};

pub(crate) use images::{VolumeExport, VolumeImport};
pub(crate) use receive::{VolumeReceiveArgs, VolumeVerify};
pub(crate) use send::VolumeSend;

use crate::failure::CommandFailure;

fn fail(text: impl Into<String>) -> CommandFailure {
    CommandFailure::running(anyhow!(text.into()))
}

/// Fills the decoder's space from the stream.
///
/// # Errors
/// If the stream ends before, or cannot be read.
fn fill(decoder: &mut StreamDecoder, from: &mut impl Read) -> Result<(), CommandFailure> {
    match from.read_exact(decoder.space()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(CommandFailure::running(decoder.cut()))
        }
        Err(error) => Err(unread(error)),
    }
}

/// Nothing may follow the end of a stream.
fn ends(from: &mut impl Read) -> Result<(), CommandFailure> {
    match from.read(&mut [0]).map_err(unread)? {
        0 => Ok(()),
        _ => Err(CommandFailure::running(StreamError::Trailing)),
    }
}

fn unread(error: std::io::Error) -> CommandFailure {
    CommandFailure::running(anyhow::Error::new(error).context("the stream cannot be read"))
}

/// A file, for reading.
fn open(path: &std::path::Path) -> Result<std::fs::File, CommandFailure> {
    let opened = std::fs::File::open(path).with_context(|| format!("{path:?} cannot be opened"));
    opened.map_err(CommandFailure::running)
}
