//! The agent's command line: `agent churn DEVICE ...`, `agent measure DEVICE ...`,
//! `agent hostile DEVICE ...`, `agent digest IMAGE`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use agent::churn::{self, Churn};
use agent::hostile::{self, Hostile};
use agent::measure::{self, Measure};
use agent::options::Options;
use agent::{pattern, say};

const USAGE: &str = "usage: agent churn DEVICE [--seed N] [--threads N] [--seconds N] [--stop FILE]
       agent measure DEVICE [--write 0|1] [--blocks N] [--threads N] [--seconds N] [--name TEXT]
       agent hostile DEVICE [--seed N] [--rounds N]
       agent digest IMAGE";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((command, rest)) if command == "churn" => churn(rest),
        Some((command, rest)) if command == "measure" => measure(rest),
        Some((command, rest)) if command == "hostile" => hostile(rest),
        Some((command, rest)) if command == "digest" => digest(rest),
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
    let options = Options::parse(words, &["seed", "threads", "seconds", "stop"])?;
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
    let options = Options::parse(words, &["write", "blocks", "threads", "seconds", "name"])?;
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
    let options = Options::parse(words, &["seed", "rounds"])?;
    let hostile = Hostile {
        device: options.device().to_owned(),
        seed: options.number("seed", 1)?,
        rounds: options.number("rounds", 100)?,
    };
    let hear = || std::io::stdin().read_line(&mut String::new()).map(drop);
    let report = hostile::run(&hostile, |line| say(line), hear)?;
    say(format_args!("hostile done {report}"));
    Ok(())
}

fn digest(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &[])?;
    let digest = pattern::image_digest(options.device().as_ref());
    say(format_args!("digest={:016x}", digest.map_err(|error| error.to_string())?));
    Ok(())
}
