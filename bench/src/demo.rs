//! The demo: a guest uses a disk that another node serves, while that node is killed.
//!
//! Everything is real: `vrio node` processes as a user would start them, a Linux guest under QEMU
//! (or the stand-in driver), kill -9. What it makes, it removes again.

mod compare;
mod linux;
mod network;
mod outage;
mod report;
mod scene;
mod stand_in;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cleanup::Cleanup;
use crate::guest::Image;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stage::Stage;

pub use compare::{Comparison, Row, Speed};
pub use network::Talk;
pub use outage::{Outage, User};
pub use report::Report;

/// What is wanted of the demo.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `vrio` program that the nodes run.
    pub program: PathBuf,
    /// With a guest under QEMU; else with the stand-in driver.
    pub guest: bool,
    /// Where the logs are kept. Without it they are kept only if the demo fails.
    pub keep: Option<PathBuf>,
}

/// Runs the demo. It says on standard error what it does.
///
/// # Errors
/// When anything is not as it should be; the text says where the logs are.
pub fn run(options: &Options) -> Result<Report> {
    let image = options.guest.then(Image::find).transpose().context(
        "there is nothing to boot (`make demo` prepares it; \
         `vrio demo --no-guest` needs nothing)",
    )?;
    let cleanup = Cleanup::default();
    cleanup.on_signals()?;
    let progress = Progress::new();
    let mut stage = Stage::new("demo", options.program.clone(), true, cleanup.clone())?;
    let played = play(&mut stage, image.as_ref(), &progress);
    progress.end();
    if played.is_err() {
        cleanup.yield_to_interruption();
    }
    let failed = played
        .is_err()
        .then(|| std::env::temp_dir().join(format!("vrio-demo-{}-logs", std::process::id())));
    let Some(logs) = options.keep.clone().or(failed) else { return played };
    let kept = stage.keep_logs(&logs);
    match played {
        Ok(report) => kept.map(|()| Report { logs: Some(logs), ..report }),
        Err(error) => Err(error.context(failure(&logs, kept))),
    }
}

fn failure(logs: &Path, kept: Result<()>) -> String {
    match kept {
        Ok(()) => format!("the demo failed; its logs are in {}", logs.display()),
        Err(error) => format!("the demo failed, and its logs could not be kept ({error:#})"),
    }
}

fn play(stage: &mut Stage, image: Option<&Image>, progress: &Progress) -> Result<Report> {
    progress.doing("looking at the machine");
    let machine = Machine::look();
    if image.is_some() {
        stage.separate_if_allowed(progress);
    }
    if stage.has_namespaces() {
        stage.make_tap("io1", scene::TAP, &format!("{}/24", scene::HOST_ADDRESS))?;
    }
    progress.doing("starting two nodes");
    let mut io = stage.start(&stage.io_plan())?;
    let mut vm = stage.start(&stage.vm_plan())?;
    progress.done(format!(
        "two nodes run: io1 (pid {}) has the volume, vm1 (pid {}) shows it to a guest as a disk",
        io.pid(),
        vm.pid()
    ));
    let (outage, talk);
    let lived = match image {
        Some(image) => linux::outage(stage, image, io, &mut vm, progress)
            .map(|(outage, talk, io)| (outage, Some(talk), io)),
        None => {
            stand_in::outage(stage, io, &mut vm, progress).map(|(outage, io)| (outage, None, io))
        }
    };
    (outage, talk, io) = lived.map_err(|error| match vm.status() {
        Ok(_) => error,
        Err(_) => error.context("vm1, which nobody was to kill, does not answer any more"),
    })?;
    let (near, far) = (vm.wait_for_disk("near")?, vm.wait_for_disk("far")?);
    let comparison = compare::compare(&near, &far, progress)?;
    progress.doing("stopping the nodes");
    vm.stop()?;
    io.stop()?;
    progress.done("both nodes stopped in order; nothing is left behind");
    Ok(Report::new(stage.network, outage, talk, comparison, machine))
}
