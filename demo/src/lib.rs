//! The demo: a guest uses a disk that another node serves, while that node is killed.
//!
//! Everything is real: `vrio node` processes as a user would start them, a Linux guest under QEMU
//! (or the stand-in driver), kill -9. The demo removes everything that it makes.

mod compare;
mod linux;
mod mpi;
mod network;
mod options;
mod outage;
mod report;
mod scene;
mod stand_in;

use std::path::Path;

use anyhow::{Context, Result};

use testbed::cleanup::Cleanup;
use testbed::guest::Image;
use testbed::machine::Machine;
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::stage::Stage;

use mpi::JobSetup;

pub use compare::{Comparison, LoadRow, Speed};
pub use mpi::{AllToAll, Messages};
pub use network::Talk;
pub use options::DemoOptions;
pub use outage::{Outage, User};
pub use report::DemoReport;

/// Runs the demo, which prints its steps on standard error.
///
/// # Errors
/// When a step fails or data is wrong; the text names the place of the logs.
pub fn run(options: &DemoOptions) -> Result<DemoReport> {
    let image = options.guest.then(Image::find).transpose().context(
        "there is nothing to boot (`make demo` prepares it; \
         `vrio demo --no-guest` needs nothing)",
    )?;
    let cleanup = Cleanup::default();
    cleanup.on_signals()?;
    let progress = Progress::new();
    let mut stage = Stage::new("demo", options.program.clone(), true, cleanup.clone())?;
    let played = play(&mut stage, options, image.as_ref(), &progress);
    progress.end();
    if played.is_err() {
        cleanup.yield_to_interruption();
    }
    let failed = played
        .is_err()
        .then(|| std::env::temp_dir().join(format!("vrio-demo-{}-logs", std::process::id())));
    let Some(logs) = options.keep.clone().or(failed) else { return played };
    let kept = scene::keep_logs(&stage, &logs);
    match played {
        Ok(report) => kept.map(|()| DemoReport { logs: Some(logs), ..report }),
        Err(error) => Err(error.context(failure(&logs, kept))),
    }
}

fn failure(logs: &Path, kept: Result<()>) -> String {
    match kept {
        Ok(()) => format!("the demo failed; its logs are in {}", logs.display()),
        Err(error) => format!("the demo failed, and its logs could not be kept ({error:#})"),
    }
}

fn play(
    stage: &mut Stage,
    options: &DemoOptions,
    image: Option<&Image>,
    progress: &Progress,
) -> Result<DemoReport> {
    progress.doing("looking at the machine");
    let machine = Machine::look();
    if image.is_some() {
        stage.separate_if_allowed(progress);
    }
    if stage.has_namespaces() {
        stage.make_tap("io1", scene::TAP, &format!("{}/24", scene::HOST_ADDRESS))?;
    }
    progress.doing("building a program with an MPI");
    let troupe = JobSetup::gather(stage, options, image);
    let key = troupe.as_ref().ok().map(|troupe| troupe.key.as_path());
    progress.doing("starting two nodes");
    let io = stage.start(&scene::io_plan(stage))?;
    let mut vm = stage.start(&scene::vm_plan(stage, key))?;
    progress.done(format!(
        "two nodes run: io1 (pid {}) has the volume, vm1 (pid {}) shows it to a guest as a disk",
        io.pid(),
        vm.pid()
    ));
    let lived = match image {
        Some(image) => in_guests(stage, image, troupe, (io, &mut vm), progress),
        None => without_guests(stage, &options.program, troupe, (io, &mut vm), progress),
    };
    let (outage, talk, messages, io) = lived.map_err(|error| match vm.status() {
        Ok(_) => error,
        Err(_) => error.context("vm1, which the demo does not kill, does not answer any more"),
    })?;
    if let Err(why) = &messages {
        progress.done(format!("no MPI job: {why}"));
    }
    let (near, far) = (vm.wait_for_disk("near")?, vm.wait_for_disk("far")?);
    let comparison = compare::compare(&near, &far, progress)?;
    progress.doing("stopping the nodes");
    vm.stop()?;
    io.stop()?;
    progress.done("both nodes stopped in order; everything is removed");
    let lived = (outage, talk, messages);
    Ok(DemoReport::new(stage.network, lived, comparison, machine))
}

/// The results, and the IOhost after the outage. Without messages: the reason why there are none.
type OutageFindings = (Outage, Option<Talk>, Result<Messages, String>, Node);

fn in_guests(
    stage: &Stage,
    image: &Image,
    troupe: Result<JobSetup>,
    (io, vm): (Node, &mut Node),
    progress: &Progress,
) -> Result<OutageFindings> {
    let cast = (image, troupe.as_ref().ok());
    let linux::DemoFindings { outage, talk, messages, io } =
        linux::outage(stage, cast, io, vm, progress)?;
    let why = troupe.map_or_else(|why| format!("{why:#}"), |_| String::new());
    Ok((outage, Some(talk), messages.ok_or(why), io))
}

/// Without an MPI on this host there is no job. A job that fails is an error, as between guests.
fn without_guests(
    stage: &Stage,
    program: &Path,
    troupe: Result<JobSetup>,
    (io, vm): (Node, &mut Node),
    progress: &Progress,
) -> Result<OutageFindings> {
    let (outage, io) = stand_in::outage(stage, io, vm, progress)?;
    let messages = match troupe {
        Ok(troupe) => Ok(troupe.on_host(stage, program, vm, progress)?),
        Err(why) => Err(format!("{why:#}")),
    };
    Ok((outage, None, messages, io))
}
