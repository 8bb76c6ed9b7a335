//! `vrio node drain`: a node takes no new users, and its present users are listed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use node::api::{Drain, SetDrain};

use crate::failure::CommandFailure;
use crate::live::{NodeChoice, ask, understood};
use crate::output::print;

pub(crate) const DRAIN_EXAMPLES: &str = "Examples:
  vrio node drain                     take no new users, and list the users that are left
  vrio node drain --wait 600          and wait until none is left, for ten minutes at most
  vrio node drain --undo              take new users again

The users that are left stay connected: migrate the guests or shut them down. The drain lasts until
it is undone or the node is restarted. Exit code 1: users are left after --wait.";

/// How often the node is asked for its users.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The longest wait: a day.
const WAIT_S_MAX: u64 = 86_400;

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// Wait until no user is left, for so many seconds at most.
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=WAIT_S_MAX))]
    wait: Option<u64>,
    /// Take new users again.
    #[arg(long, conflicts_with = "wait")]
    undo: bool,
    #[command(flatten)]
    which: NodeChoice,
}

/// `vrio node drain`.
pub(crate) fn drain(args: &DrainArgs) -> Result<(), CommandFailure> {
    let socket = args.which.socket()?;
    let wanted = serde_json::to_value(SetDrain { undo: args.undo }).expect("one flag");
    let mut answer = ask(&socket, "POST", "/v1/drain", Some(&wanted))?;
    let mut drain: Drain = understood(&answer)?;
    if let Some(seconds) = args.wait {
        if !args.which.json {
            print(&show(&drain))?;
        }
        (answer, drain) = wait(&socket, Duration::from_secs(seconds), answer, drain)?;
    }
    let text = if args.which.json { format!("{}\n", answer.trim_end()) } else { show(&drain) };
    if args.wait.is_some() && !drain.users.is_empty() {
        print(&text)?;
        return Err(CommandFailure::running(anyhow!(
            "the node still has users; migrate those guests or shut them down, then drain again"
        )));
    }
    print(&text)
}

/// Waits until the node has no users, the time is over, or another command has undone the drain.
fn wait(
    socket: &Path,
    limit: Duration,
    mut answer: String,
    mut drain: Drain,
) -> Result<(String, Drain), CommandFailure> {
    let until = Instant::now() + limit;
    while !drain.users.is_empty() && Instant::now() < until {
        std::thread::sleep(LOOK_AGAIN);
        answer = ask(socket, "GET", "/v1/drain", None)?;
        drain = understood(&answer)?;
        if !drain.draining {
            return Err(CommandFailure::running(anyhow!(
                "another command has undone the drain; drain again if the node must stay drained"
            )));
        }
    }
    Ok((answer, drain))
}

fn show(drain: &Drain) -> String {
    let mut text = match (drain.draining, drain.users.len()) {
        (false, _) => return "the node takes new users again\n".to_owned(),
        (true, 0) => return "the node takes no new users, and none is left\n".to_owned(),
        (true, users) => format!("the node takes no new users; users left: {users}\n"),
    };
    drain.users.iter().for_each(|user| text.push_str(&format!("  {user}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_that_are_left_are_listed() {
        let mut drain = Drain { draining: true, ..Drain::default() };
        assert_eq!(show(&drain), "the node takes no new users, and none is left\n");
        drain.users.push("disk \"a\": a guest (process 7)".to_owned());
        let text =
            "the node takes no new users; users left: 1\n  disk \"a\": a guest (process 7)\n";
        assert_eq!(show(&drain), text);
        assert_eq!(show(&Drain::default()), "the node takes new users again\n");
    }
}
