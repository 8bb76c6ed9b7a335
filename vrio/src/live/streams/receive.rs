//! `vrio volume receive` and `vrio volume verify`.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::anyhow;
use clap::Args;
use node::api::ReceiveProgress;
use node::config::show_size;
use node::status::StoragePoolStatus;
use node::store::block::BLOCK_BYTES;
use node::store::stream::{StreamCounts, StreamDecoder, StreamHeader, StreamItem};
use serde_json::json;

use super::super::{NodeChoice, ask, show_done, understood};
use super::endpoint::{ReceivingVolume, StreamNode};
use super::progress::StreamProgress;
use super::{ends, fail, fill, open};
use crate::failure::CommandFailure;
use crate::output::print;

/// Parts that wait for the node: one is read while another is received.
const PARTS_AHEAD: usize = 1;

#[derive(Debug, Args)]
pub(crate) struct VolumeReceiveArgs {
    /// The pool of the volume.
    pool: String,
    /// The volume's name there: a new volume for a whole snapshot, or a volume that has the
    /// earlier snapshot and was not changed since. No disk uses it meanwhile.
    name: String,
    /// Print how far an interrupted stream is, and the token for `vrio volume send --resume`.
    #[arg(long)]
    status: bool,
    /// End an interrupted stream: a new volume goes, an old volume is again as its last snapshot.
    #[arg(long, conflicts_with = "status")]
    give_up: bool,
    /// Print the progress also if standard error is no terminal; with --json it is a line of JSON
    /// each second.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    which: NodeChoice,
}

/// The pieces of a stream that was read and proved.
enum ReadPiece {
    Part(Vec<u8>, StreamCounts, u64),
    End(StreamCounts),
    Failed(CommandFailure),
}

impl VolumeReceiveArgs {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let socket = self.which.socket()?;
        if self.status {
            return self.show_status();
        }
        let mut volume = ReceivingVolume::new(StreamNode::new(socket), &self.pool, &self.name)?;
        if self.give_up {
            return show_done(&volume.give_up()?, self.which.json);
        }
        if std::io::stdin().is_terminal() {
            let text = "there is no stream: read it from a file (< FILE) or a pipe (vrio volume \
                        send .. | vrio volume receive ..)";
            return Err(CommandFailure::configuration(anyhow!(text)));
        }
        let received = self.receive(&mut volume)?;
        if self.which.json {
            return print(&format!("{}\n", json!(received)));
        }
        print(&format!("done: receive {} into pool {:?}\n", received.snapshot, self.pool))
    }

    fn receive(&self, volume: &mut ReceivingVolume) -> Result<ReceiveProgress, CommandFailure> {
        let mut stream = std::io::stdin();
        let mut decoder = StreamDecoder::new();
        fill(&mut decoder, &mut stream)?;
        let first = decoder.filled().map_err(CommandFailure::running)?;
        let Some(StreamItem::Header(header)) = first else {
            unreachable!("a stream begins with its header")
        };
        let mut state = volume.begin(&header)?;
        let mut progress = StreamProgress::new(&header, self.which.json, self.progress);
        let (pieces, read) = sync_channel(PARTS_AHEAD);
        // It ends with the stream, or with the receiver of its pieces.
        thread::spawn(move || read_pieces(decoder, stream, &pieces));
        let received = receive_pieces(volume, &header, &read, &mut progress, &mut state);
        received.map_err(|failure| {
            let token = &state.token;
            if state.complete {
                return failure;
            }
            fail(format!(
                "{failure}. All before is kept: go on with `vrio volume send --resume {token}`, or \
                 end it with --give-up"
            ))
        })
    }

    /// How far the stream into this volume is.
    fn show_status(&self) -> Result<(), CommandFailure> {
        let pools = ask(&self.which.socket()?, "GET", "/v1/pools", None)?;
        let pools: Vec<StoragePoolStatus> = understood(&pools)?;
        let pool = pools.iter().find(|pool| pool.name == self.pool);
        let found = pool.and_then(|pool| {
            let mut volumes = pool.volumes.iter();
            volumes.find(|it| it.kind == "volume" && it.name == self.name)?.receiving.as_ref()
        });
        let Some(found) = found else {
            let (pool, name) = (&self.pool, &self.name);
            return Err(fail(format!(
                "no stream is being received into volume {name:?} of pool {pool:?}: it is \
                 complete, or never began; see `vrio volume snapshots {name}`"
            )));
        };
        if self.which.json {
            return print(&format!("{}\n", json!(found)));
        }
        let ReceiveProgress { snapshot, received_bytes, size_bytes, token, .. } = found;
        let (received, size) = (show_size(*received_bytes), show_size(*size_bytes));
        print(&format!(
            "{snapshot}: {received} of {size} received; go on with\nvrio volume send --resume \
             {token}\n"
        ))
    }
}

/// Reads all of a stream behind its header.
fn read_pieces(mut decoder: StreamDecoder, mut stream: impl Read, to: &SyncSender<ReadPiece>) {
    let mut counts = StreamCounts::default();
    loop {
        let piece = match next_piece(&mut decoder, &mut stream, &mut counts) {
            Ok(None) => continue,
            Ok(Some(piece)) => piece,
            Err(failure) => ReadPiece::Failed(failure),
        };
        let is_last = !matches!(piece, ReadPiece::Part(..));
        if to.send(piece).is_err() || is_last {
            return;
        }
    }
}

fn next_piece(
    decoder: &mut StreamDecoder,
    stream: &mut impl Read,
    counts: &mut StreamCounts,
) -> Result<Option<ReadPiece>, CommandFailure> {
    fill(decoder, stream)?;
    Ok(match decoder.filled().map_err(CommandFailure::running)? {
        None | Some(StreamItem::Header(_)) => None,
        Some(StreamItem::Part(part, bytes)) => {
            let (data_blocks, zero_blocks) = part.counts();
            counts.data_blocks += data_blocks;
            counts.zero_blocks += zero_blocks;
            counts.parts += 1;
            Some(ReadPiece::Part(bytes.to_vec(), *counts, part.end))
        }
        Some(StreamItem::End(counts)) => {
            ends(stream)?;
            Some(ReadPiece::End(counts))
        }
    })
}

fn receive_pieces(
    volume: &mut ReceivingVolume,
    header: &StreamHeader,
    read: &Receiver<ReadPiece>,
    progress: &mut StreamProgress,
    state: &mut ReceiveProgress,
) -> Result<ReceiveProgress, CommandFailure> {
    loop {
        match read.recv() {
            Ok(ReadPiece::Part(bytes, counts, next_block)) => {
                // Parts that are there already are not sent again, and none of it if all is there.
                if next_block * BLOCK_BYTES as u64 > state.received_bytes {
                    *state = volume.part(&bytes)?;
                }
                progress.at(next_block, counts);
            }
            Ok(ReadPiece::End(counts)) => {
                progress.end(counts);
                return volume.end(header);
            }
            Ok(ReadPiece::Failed(failure)) => return Err(failure),
            Err(_) => return Err(fail("the reader of the stream has ended without a reason")),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeVerify {
    /// The file with the stream; default: standard input.
    file: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl VolumeVerify {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let (header, counts) = match &self.file {
            Some(path) => prove(&mut open(path)?)?,
            None => prove(&mut std::io::stdin().lock())?,
        };
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let (data, zeroes) = (bytes(counts.data_blocks), bytes(counts.zero_blocks));
        let (start, size) = (bytes(header.start_block), bytes(header.id.blocks));
        let is_difference = header.id.base.is_some();
        if self.json {
            let answer = json!({
                "snapshot": header.name, "origin": header.id.origin, "base": header.id.base,
                "start_bytes": start, "size_bytes": size, "data_bytes": data,
                "zero_bytes": zeroes, "parts": counts.parts,
            });
            return print(&format!("{answer}\n"));
        }
        let kind = if is_difference { "a difference to" } else { "all of" };
        let rest =
            if start > 0 { format!(", from {} on", show_size(start)) } else { String::new() };
        print(&format!(
            "whole: {kind} a snapshot {:?} of {}{rest}, with {} of data and {} of zeroes\n",
            header.name,
            show_size(size),
            show_size(data),
            show_size(zeroes)
        ))
    }
}

/// Proves all of a stream.
fn prove(stream: &mut impl Read) -> Result<(StreamHeader, StreamCounts), CommandFailure> {
    let (mut decoder, mut header) = (StreamDecoder::new(), None);
    loop {
        fill(&mut decoder, stream)?;
        match decoder.filled().map_err(CommandFailure::running)? {
            Some(StreamItem::Header(found)) => header = Some(found),
            Some(StreamItem::End(counts)) => {
                ends(stream)?;
                return Ok((header.expect("it comes first"), counts));
            }
            None | Some(StreamItem::Part(..)) => {}
        }
    }
}
