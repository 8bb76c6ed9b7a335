//! The agent's command line: `agent churn DEVICE ...`, `agent measure DEVICE ...`,
//! `agent hostile DEVICE ...`, `agent digest IMAGE`, `agent send ADDRESS:PORT ...`,
//! `agent receive PORT ...`.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use agent::churn::{self, Churn};
use agent::hostile::{self, HostChannel, Hostile};
use agent::measure::{self, Measure};
use agent::options::AgentOptions;
use agent::{pattern, say, stream};

const USAGE: &str = "usage: agent churn DEVICE [--seed N] [--threads N] [--seconds N] [--stop FILE]
       agent measure DEVICE [--write 0|1] [--blocks N] [--threads N] [--seconds N] [--name TEXT]
       agent hostile DEVICE [--seed N] [--rounds N]
       agent digest IMAGE
       agent send ADDRESS:PORT (--from FILE | --blocks N)
       agent receive PORT [--into FILE]    (blocks if no file is named)";

/// Lines that the host has typed and the agent has not taken yet; more wait in the console.
const TYPED_MAX: usize = 16;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((command, rest)) if command == "churn" => churn(rest),
        Some((command, rest)) if command == "measure" => measure(rest),
        Some((command, rest)) if command == "hostile" => hostile(rest),
        Some((command, rest)) if command == "digest" => digest(rest),
        Some((command, rest)) if command == "send" => send(rest),
        Some((command, rest)) if command == "receive" => receive(rest),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(format_args!("fail {why}"));
            ExitCode::FAILURE
        }
    }
}

fn churn(words: &[String]) -> Result<(), String> {
    let options = AgentOptions::parse(words, &["seed", "threads", "seconds", "stop"])?;
    let churn = Churn {
        device: options.device().into(),
        seed: options.number("seed", 1)?,
        threads: options.number("threads", 16)?,
        duration: Duration::from_secs(options.number("seconds", 10)?),
        stop_file: options.text("stop").map(Into::into),
    };
    let report = churn::run(&churn, |line| say(line)).map_err(|failure| failure.to_string())?;
    say(format_args!("churned {report}"));
    Ok(())
}

fn measure(words: &[String]) -> Result<(), String> {
    let options = AgentOptions::parse(words, &["write", "blocks", "threads", "seconds", "name"])?;
    let measure = Measure {
        device: options.device().into(),
        write: options.number("write", 0)? != 0,
        request_blocks: options.number("blocks", 1)?,
        threads: options.number("threads", 1)?,
        duration: Duration::from_secs(options.number("seconds", 3)?),
    };
    let speed = measure::run(&measure).map_err(|failure| failure.to_string())?;
    say(format_args!("measured {} {speed}", options.text("name").unwrap_or("disk")));
    Ok(())
}

fn hostile(words: &[String]) -> Result<(), String> {
    let options = AgentOptions::parse(words, &["seed", "rounds"])?;
    let hostile = Hostile {
        device: options.device().to_owned(),
        seed: options.number("seed", 1)?,
        rounds: options.number("rounds", 100)?,
    };
    let report = hostile::run(&hostile, &Console::open())?;
    say(format_args!("hostile done {report}"));
    Ok(())
}

/// The serial console as the way to the host and back.
struct Console {
    typed: Receiver<String>,
}

impl Console {
    /// Starts a thread that waits for lines, since a read waits for ever.
    fn open() -> Self {
        let (line, typed) = mpsc::sync_channel(TYPED_MAX);
        std::thread::spawn(move || {
            let mut lines = std::io::stdin().lines().map_while(Result::ok);
            lines.all(|it| line.send(it).is_ok())
        });
        Self { typed }
    }
}

impl HostChannel for Console {
    fn say(&self, line: fmt::Arguments<'_>) {
        say(line);
    }

    fn hear(&self, patience: Duration) -> Result<Option<String>, String> {
        match self.typed.recv_timeout(patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("the console has ended".to_owned()),
        }
    }
}

fn digest(words: &[String]) -> Result<(), String> {
    let options = AgentOptions::parse(words, &[])?;
    let digest = pattern::image_digest(options.device().as_ref());
    say(format_args!("digest={:016x}", digest.map_err(|error| error.to_string())?));
    Ok(())
}

fn send(words: &[String]) -> Result<(), String> {
    let options = AgentOptions::parse(words, &["from", "blocks"])?;
    let receiver = options.device();
    let address = receiver.parse().map_err(|_| format!("'{receiver}' is not ADDRESS:PORT"))?;
    let sent = match options.text("from") {
        Some(path) => {
            let mut source = File::open(path).map_err(|error| format!("{path}: {error}"))?;
            stream::send(address, &mut source).map(drop)
        }
        None => stream::send_blocks(address, options.number("blocks", 1)?),
    };
    sent.map_err(|error| format!("send to {receiver}: {error}"))
}

fn receive(words: &[String]) -> Result<(), String> {
    let options = AgentOptions::parse(words, &["into"])?;
    let text = options.device();
    let port: u16 = text.parse().map_err(|_| format!("'{text}' is not a port"))?;
    let named = |error: &dyn fmt::Display| format!("receive at port {port}: {error}");
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|error| named(&error))?;
    match options.text("into") {
        Some(path) => {
            let mut sink = File::create(path).map_err(|error| format!("{path}: {error}"))?;
            stream::receive(&listener, &mut sink).map_err(|error| named(&error))?;
        }
        None => {
            let blocks = stream::receive_blocks(&listener).map_err(|error| named(&error))?;
            say(format_args!("checked {blocks}"));
        }
    }
    Ok(())
}
