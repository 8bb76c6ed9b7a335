//! QEMU's monitor. Through it a running guest is migrated, or gets memory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long QEMU may take for an answer. It holds its main lock while it starts devices.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause between two attempts to connect, or two questions.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A connection to the monitor of one QEMU.
#[derive(Debug)]
pub struct Monitor {
    stream: BufReader<UnixStream>,
}

/// QEMU's arguments for a monitor at this socket.
pub fn arguments(socket: &Path) -> [String; 2] {
    ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())]
}

impl Monitor {
    /// Connects to the monitor of a QEMU that has just been started.
    ///
    /// # Errors
    /// When the monitor does not listen in time.
    pub fn connect(socket: &Path) -> Result<Self> {
        let by = Instant::now() + ANSWER_TIMEOUT;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > by => return Err(error).context("QEMU's monitor"),
                Err(_) => thread::sleep(LOOK_AGAIN),
            }
        };
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        monitor.next()?;
        monitor.run("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Runs a command and gives its result.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn run(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{line}").context("to QEMU's monitor")?;
        loop {
            let mut answer = self.next()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            // Any other message is an event.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Migrates the guest to the QEMU that waits at `socket`, and gives QEMU's report of it. The
    /// guest may stand still for `downtime` at the end.
    ///
    /// # Errors
    /// When the migration fails, or takes longer than `timeout`.
    pub fn migrate(
        &mut self,
        socket: &Path,
        downtime: Duration,
        timeout: Duration,
    ) -> Result<Value> {
        let limits = json!({
            "downtime-limit": downtime.as_millis() as u64,
            "max-bandwidth": 1u64 << 30,
        });
        self.run("migrate-set-parameters", &limits)?;
        self.run("migrate", &json!({ "uri": uri(socket) }))?;
        let by = Instant::now() + timeout;
        loop {
            let state = self.run("query-migrate", &json!({}))?;
            match state["status"].as_str() {
                Some("completed") => return Ok(state),
                Some("failed" | "cancelled") => bail!("the migration ended with {state}"),
                _ if Instant::now() > by => bail!("no end of the migration: {state}"),
                _ => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).context("from QEMU's monitor")? == 0 {
            bail!("QEMU closed its monitor");
        }
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line:?}"))
    }
}

/// A socket's name for QEMU, as the aim of a migration and as its source (`-incoming`).
pub fn uri(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}
