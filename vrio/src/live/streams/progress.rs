//! How far a stream is, on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use node::config::show_size;
use node::store::block::BLOCK_BYTES;
use node::store::stream::{StreamCounts, StreamHeader};
use serde_json::json;

/// How often it is shown.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgressForm {
    None,
    /// One line, which is written over.
    Terminal,
    Lines,
    Json,
}

/// The progress of a stream.
pub(super) struct StreamProgress {
    form: ProgressForm,
    began: Instant,
    shown: Option<Instant>,
    start_block: u64,
    blocks: u64,
    expected_blocks: u64,
}

impl StreamProgress {
    /// Shows nothing unless a terminal, or an option, asks for it.
    pub(super) fn new(header: &StreamHeader, json: bool, wanted: bool) -> Self {
        let form = match (json, std::io::stderr().is_terminal(), wanted) {
            (true, ..) => ProgressForm::Json,
            (_, true, _) => ProgressForm::Terminal,
            (_, _, true) => ProgressForm::Lines,
            _ => ProgressForm::None,
        };
        Self {
            form,
            began: Instant::now(),
            shown: None,
            start_block: header.start_block,
            blocks: header.id.blocks,
            expected_blocks: header.expected_blocks,
        }
    }

    /// The stream has come to a block.
    pub(super) fn at(&mut self, next_block: u64, counts: StreamCounts) {
        if self.shown.is_none_or(|shown| shown.elapsed() >= PERIOD) {
            self.shown = Some(Instant::now());
            self.show(next_block, counts);
        }
    }

    /// It is complete.
    pub(super) fn end(&mut self, counts: StreamCounts) {
        self.show(self.blocks, counts);
        if self.form == ProgressForm::Terminal {
            let _ = writeln!(std::io::stderr());
        }
    }

    /// Seconds that are left, by the part that is done.
    fn left_s(&self, next_block: u64, counts: StreamCounts) -> Option<u64> {
        // The data say more than the place in the volume, if their count is known.
        let (done, all) = match self.expected_blocks {
            0 => (next_block - self.start_block, self.blocks - self.start_block),
            expected => (counts.data_blocks, expected),
        };
        let left = all.saturating_sub(done) as f64;
        (done > 0).then(|| (self.began.elapsed().as_secs_f64() * left / done as f64).ceil() as u64)
    }

    fn show(&self, next_block: u64, counts: StreamCounts) {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let (data, size) = (bytes(counts.data_blocks), bytes(self.blocks));
        let rate = data as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let (rate, left_s) = (rate as u64, self.left_s(next_block, counts));
        let mut out = std::io::stderr().lock();
        // Standard error may be gone, and this is no reason to end.
        let _ = match self.form {
            ProgressForm::None => Ok(()),
            ProgressForm::Json => {
                let line = json!({
                    "position_bytes": bytes(next_block), "size_bytes": size, "data_bytes": data,
                    "expected_bytes": bytes(self.expected_blocks), "bytes_per_second": rate,
                    "left_s": left_s,
                });
                writeln!(out, "{line}")
            }
            ProgressForm::Terminal | ProgressForm::Lines => {
                let (place, size, data) =
                    (show_size(bytes(next_block)), show_size(size), show_size(data));
                let left = left_s.map_or_else(String::new, |left_s| format!(", {left_s} s left"));
                let line = format!(
                    "{place} of {size}, {data} of data, {} in a second{left}",
                    show_size(rate)
                );
                match self.form {
                    ProgressForm::Terminal => write!(out, "\r{line:<70}"),
                    _ => writeln!(out, "{line}"),
                }
            }
        };
    }
}
