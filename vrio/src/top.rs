//! `vrio top`: a node's disks, volumes, sessions and sidecores, a second at a time.
//!
//! ```text
//!   status ──▶ View (rates between two of them) ──▶ Page (lines that fit) ──▶ terminal, or text
//! ```

mod page;
mod screen;
mod view;

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use node::status::Status;

use crate::failure::CommandFailure;
use crate::nodes::Target;
use crate::{commands, output};
use view::NodeView;

/// How often the node is asked: as often as a person can follow.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(mut_arg("control", |arg| arg.visible_alias("socket")))]
pub(crate) struct TopArgs {
    #[command(flatten)]
    target: Target,
    /// Print one second as text and end; this is the default where the output is no terminal.
    #[arg(long)]
    once: bool,
    /// Print one second as JSON.
    #[arg(long)]
    json: bool,
}

/// A status and when it was asked for.
#[derive(Debug)]
struct StatusSample {
    at: Instant,
    status: Status,
}

impl StatusSample {
    fn take(socket: &Path) -> Result<Self, CommandFailure> {
        let status = commands::ask(socket)?;
        Ok(Self { at: Instant::now(), status })
    }

    /// The view of the time between an earlier sample and this one.
    fn since(&self, earlier: Option<&Self>) -> NodeView {
        // Another process of the same name has counted from zero.
        let earlier = earlier.filter(|earlier| earlier.status.node.pid == self.status.node.pid);
        let between = earlier.map(|earlier| (&earlier.status, self.at - earlier.at));
        NodeView::new(between, &self.status)
    }
}

/// Shows the node until the user ends it.
pub(crate) fn top(args: &TopArgs) -> Result<(), CommandFailure> {
    let socket = args.target.socket()?;
    let first = StatusSample::take(&socket)?;
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if terminal && !args.once && !args.json {
        return screen::run(&socket, first).map_err(CommandFailure::running);
    }
    std::thread::sleep(INTERVAL);
    let view = StatusSample::take(&socket)?.since(Some(&first));
    if args.json {
        let json = serde_json::to_string_pretty(&view).context("the view as JSON");
        return output::print(&format!("{}\n", json.map_err(CommandFailure::running)?));
    }
    output::print(&page::text(&view))
}
