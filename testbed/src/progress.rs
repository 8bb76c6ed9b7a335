//! What a long piece of work says meanwhile: a spinner on a terminal, plain lines elsewhere.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the spinner turns.
const TURN: Duration = Duration::from_millis(100);

/// Says what is done and what was done, on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Lines that stay are only for a terminal's reader.
    quiet: bool,
}

impl Progress {
    /// Begins to count the time.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed:>6.dim} {spinner:.green} {wide_msg}");
        bar.set_style(style.expect("a template of ours"));
        bar.enable_steady_tick(TURN);
        Self { bar, began: Instant::now(), quiet: false }
    }

    /// The same without any line that stays.
    pub fn quiet() -> Self {
        Self { quiet: true, ..Self::new() }
    }

    /// Says nothing: somebody else does.
    pub fn silent() -> Self {
        Self { bar: ProgressBar::hidden(), began: Instant::now(), quiet: true }
    }

    /// What is being done now; only shown on a terminal.
    pub fn doing(&self, what: impl Display) {
        self.bar.set_message(what.to_string());
    }

    /// What was done: a line that stays.
    pub fn done(&self, what: impl Display) {
        if self.quiet {
            return;
        }
        let line = format!("{:>5.1}s  {what}", self.began.elapsed().as_secs_f64());
        if self.bar.is_hidden() {
            // Nobody reads it any more: no reason to stop in the middle.
            let _ = writeln!(std::io::stderr(), "{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Takes the spinner away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
