//! A job that exchanges messages of all lengths, looks at each byte, and goes on until it is told
//! to end.

use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The job. It is ended when dropped.
pub(crate) struct Busy {
    pub(crate) job: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Busy {
    /// Runs "exercise busy" by this command.
    pub(crate) fn start(mut run: Command) -> Self {
        let job = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut job = job.spawn().expect("sh is everywhere");
        let lines = BufReader::new(job.stdout.take().expect("it is piped")).lines();
        let mut busy = Self { job, lines };
        busy.go_on();
        busy
    }

    /// Waits until all messages that are on their way now have come, and messages of all lengths
    /// after them.
    pub(crate) fn go_on(&mut self) {
        for _ in 0..2 {
            let line = self.lines.next().map(|line| line.expect("in letters"));
            assert_eq!(line.as_deref(), Some("busy"), "{}", self.why());
        }
    }

    /// Ends the job, and checks that it found no fault.
    pub(crate) fn end(mut self) {
        drop(self.job.stdin.take());
        let lines: Vec<_> = self.lines.by_ref().map(|line| line.expect("in letters")).collect();
        let ended = self.job.wait().expect("it was begun");
        let is_done = ended.success() && lines.iter().any(|line| line == "ok busy");
        assert!(is_done, "{ended}: {lines:?}\n{}", self.why());
    }

    fn why(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.job.stderr.take() {
            let _ = errors.read_to_string(&mut text);
        }
        text
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.job.kill();
        let _ = self.job.wait();
    }
}
