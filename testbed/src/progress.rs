//! The progress of long work: a spinner on a terminal, plain lines elsewhere.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the spinner turns.
const TURN: Duration = Duration::from_millis(100);

/// Prints the present and the finished work on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Whether lines that stay are left out.
    quiet: bool,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed:>6.dim} {spinner:.green} {wide_msg}");
        bar.set_style(style.expect("a template of ours"));
        bar.enable_steady_tick(TURN);
        Self { bar, began: Instant::now(), quiet: false }
    }

    /// The same without lines that stay.
    pub fn quiet() -> Self {
        Self { quiet: true, ..Self::new() }
    }

    /// Shows nothing, for work whose caller reports its progress.
    pub fn silent() -> Self {
        Self { bar: ProgressBar::hidden(), began: Instant::now(), quiet: true }
    }

    /// Shows the present piece of work, on a terminal only.
    pub fn doing(&self, what: impl Display) {
        self.bar.set_message(what.to_string());
    }

    /// Prints a line about a finished piece of work. The line stays.
    pub fn done(&self, what: impl Display) {
        if self.quiet {
            return;
        }
        let line = format!("{:>5.1}s  {what}", self.began.elapsed().as_secs_f64());
        if self.bar.is_hidden() {
            // An error means that the reader has gone, which is no reason to stop the work.
            let _ = writeln!(std::io::stderr(), "{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Removes the spinner.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
