//! `vrio pool scrub` and `vrio volume scrub`: their common options, and the scrub of all copies of
//! a volume.

use std::thread::sleep;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use node::status::{CopyScrub, CopyStatus, VolumeStatus};
use serde_json::{Value, json};

use super::{Fields, NodeChoice, ask, segment, show_done, understood};
use crate::failure::CommandFailure;
use crate::output::print;
use crate::tables::scrubs::{of_copies, unproved};

/// The pause between two looks at a scrub.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) const SCRUB_EXAMPLES: &str = "Examples:
  vrio volume scrub max               on the node that serves it, while guests use it
  vrio volume scrub max --wait        and print what it has found
  vrio volume scrub max --rate 400MiB     also of a scrub that is under way
  vrio volume scrub max --pause       the same command without options has it go on
  vrio volume scrub max --stop
  vrio volume show max                how far it is, or what the last one has found

All copies in sync read their blocks and compare digests of them. A block that a copy cannot read,
or has with other content than the copy that serves, is written again. The rate is of each copy.
A volume without copies on other nodes is proved by `vrio pool scrub`.";

/// The options of all scrubs.
#[derive(Debug, Args)]
pub(crate) struct ScrubWords {
    /// The most to read in a second; default: 100MiB. Given again, it changes the pace of a scrub
    /// that is under way.
    #[arg(long, value_name = "SIZE")]
    rate: Option<String>,
    /// Have it rest. The same command without options has it go on.
    #[arg(long, conflicts_with = "rate")]
    pause: bool,
    /// Stop it before it is through.
    #[arg(long, conflicts_with_all = ["rate", "pause"])]
    pub(super) stop: bool,
}

impl ScrubWords {
    /// The fields of the request, but for the stop.
    pub(super) fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.text("rate", self.rate.as_ref());
        fields.flag("pause", self.pause);
        fields
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeScrub {
    /// The volume's name.
    name: String,
    #[command(flatten)]
    words: ScrubWords,
    /// Wait until it is through, and fail if it has not proved all copies.
    #[arg(long, conflicts_with_all = ["pause", "stop"])]
    wait: bool,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeScrub {
    pub(super) fn send(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/volumes/{}/copies", segment(&self.name)?);
        let mut fields = self.words.fields();
        fields.flag("stop", self.words.stop);
        let body = json!({ "scrub": Value::Object(fields.0) });
        let socket = self.which.socket()?;
        let answer = ask(&socket, "POST", &path, Some(&body)).map_err(of_old_release)?;
        if !self.wait {
            return show_done(&answer, self.which.json);
        }
        loop {
            let all: Vec<VolumeStatus> = understood(&ask(&socket, "GET", "/v1/volumes", None)?)?;
            let volume = all.into_iter().find(|volume| volume.name == self.name);
            let copy = volume.and_then(|volume| volume.copy);
            let scrubbed = copy.and_then(|copy| Some((copy.scrub.clone()?, copy)));
            let (scrub, copy) = scrubbed.ok_or_else(|| {
                let text = format!(
                    "this node does not serve volume {:?} any more, and its scrub has ended with \
                     that: scrub it on the node that serves it now, by `vrio cluster status`",
                    self.name
                );
                CommandFailure::running(anyhow!(text))
            })?;
            if !scrub.is_running {
                return self.end(&scrub, &copy);
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Prints what a scrub that has ended has found.
    fn end(&self, scrub: &CopyScrub, copy: &CopyStatus) -> Result<(), CommandFailure> {
        match self.which.json {
            true => print(&format!("{}\n", json!(scrub)))?,
            false => print(&format!("{}\n", of_copies(scrub)))?,
        }
        unproved(scrub, copy).map_or(Ok(()), |why| {
            let text = format!("not all copies of volume {:?} are proved: {why}", self.name);
            Err(CommandFailure::running(anyhow!(text)))
        })
    }
}

/// A node of a release before scrubs does not know the word.
fn of_old_release(failure: CommandFailure) -> CommandFailure {
    if !failure.to_string().contains("unknown variant `scrub`") {
        return failure;
    }
    CommandFailure::running(anyhow!(
        "the node is of a release that does not scrub copies; update it, or prove the pool of each \
         node by `vrio pool scrub`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_an_older_release_is_named_and_other_ones_stay() {
        let refused = "the request: unknown variant `scrub`, expected one of `primary`, `gone`";
        let told = of_old_release(CommandFailure::running(anyhow!(refused))).to_string();
        assert!(told.contains("of a release that does not scrub copies"), "{told}");
        let other = "this node does not serve volume \"max\": io2 serves it";
        assert_eq!(of_old_release(CommandFailure::running(anyhow!(other))).to_string(), other);
    }
}
