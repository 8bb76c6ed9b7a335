//! `vrio volume send`.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, anyhow};
use clap::Args;
use node::store::stream::{StreamHeader, StreamTally, StreamToken};

use super::super::{NodeChoice, volumes::reference};
use super::endpoint::StreamNode;
use super::fail;
use super::progress::StreamProgress;
use crate::failure::CommandFailure;

/// Parts that wait for the writer: one is fetched while another is written.
const PARTS_AHEAD: usize = 1;

#[derive(Debug, Args)]
pub(crate) struct VolumeSend {
    /// The snapshot: "ann@monday", or by its number "p:17".
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    snapshot: Option<String>,
    /// An earlier snapshot that the receiver has: only the difference is sent.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "resume")]
    from: Option<String>,
    /// Send the rest of a stream that was interrupted: `vrio volume receive --status` prints it.
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
    /// Print the progress also if standard error is no terminal; with --json it is a line of JSON
    /// each second.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeSend {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        if std::io::stdout().is_terminal() {
            let text = "the stream is no text for a terminal: write it to a file (> FILE), or into \
                        a pipe (| vrio volume receive ..)";
            return Err(CommandFailure::configuration(anyhow!(text)));
        }
        let mut node = StreamNode::new(self.which.socket()?);
        let header = node.header(&self.query()?)?;
        let mut progress = StreamProgress::new(&header, self.which.json, self.progress);
        let (parts, to_write) = sync_channel::<Vec<u8>>(PARTS_AHEAD);
        let writer = thread::spawn(move || {
            let mut out = std::io::stdout().lock();
            to_write.iter().try_for_each(|bytes| out.write_all(&bytes)).and_then(|()| out.flush())
        });
        let sent = send_parts(&mut node, &header, &mut progress, |bytes| {
            // If the writer has ended, its error says more.
            parts.send(bytes).map_err(|_| fail("the stream cannot be written"))
        });
        drop(parts);
        let written = writer.join().map_err(|_| fail("the writer of the stream has panicked"))?;
        written.context("the stream cannot be written").map_err(CommandFailure::running)?;
        sent
    }

    fn query(&self) -> Result<String, CommandFailure> {
        if let Some(token) = &self.resume {
            let token: StreamToken = token.parse().map_err(CommandFailure::configuration)?;
            return Ok(format!("token={token}"));
        }
        let snapshot = self.snapshot.as_deref().unwrap_or_default();
        let to = format!("to={}", reference(snapshot)?);
        Ok(match &self.from {
            Some(from) => format!("{to}&from={}", reference(from)?),
            None => to,
        })
    }
}

/// Fetches and proves all parts of a stream, and gives its bytes, with its header and its end.
pub(super) fn send_parts(
    node: &mut StreamNode,
    header: &StreamHeader,
    progress: &mut StreamProgress,
    mut put: impl FnMut(Vec<u8>) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut tally = StreamTally::new(header);
    put(header.to_bytes().to_vec())?;
    while !tally.is_complete() {
        let bytes = node.part(header, tally.next_block())?;
        tally.part(&bytes).map_err(CommandFailure::running)?;
        put(bytes)?;
        progress.at(tally.next_block(), tally.counts());
    }
    put(tally.end().to_vec())?;
    progress.end(tally.counts());
    Ok(())
}
