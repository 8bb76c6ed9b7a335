//! `vrio key`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use node::keys::{self, KeyError, KeyKind, KeyProblem};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::output;

const NEW_EXAMPLES: &str = "Examples:
  vrio key new /etc/vrio/io1.key                   a node's key; prints its public half
  vrio key new --attachment /etc/vrio/alice.key    the key of an attachment's owner
  vrio key new --volume /etc/vrio/alice.xts        the key that encrypts a volume

The public half of a node's key goes into the [[peer]] of the nodes that it speaks with; the public
half of an attachment's key goes into the `allow` of its volumes. The file is secret: it stays on
its host. A volume's key has no public half; the printed value only tells keys apart. Keep a copy
of the file of a volume's key: without it the volume can never be read again.";

const SHOW_EXAMPLES: &str = "Examples:
  vrio key show /etc/vrio/io1.key
  vrio key show /etc/vrio/alice.key --json | jq -r .public";

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a secret key in a new file (mode 0600) and print its public half.
    #[command(after_help = NEW_EXAMPLES)]
    New {
        /// Make an attachment's key, which proves a disk's owner, instead of a node's key.
        #[arg(long)]
        attachment: bool,
        /// Make a key that encrypts a volume, for a stage `{ encrypt = { key = FILE } }`.
        #[arg(long, conflicts_with = "attachment")]
        volume: bool,
        /// The new file; an existing file is never overwritten.
        file: PathBuf,
    },
    /// Show a key file's kind, its public half, and the configurations that need this half.
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The key file.
        file: PathBuf,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The output of `vrio key` about a key file.
#[derive(Debug, Serialize)]
struct ShownKey {
    kind: String,
    public: String,
    file: PathBuf,
}

/// Makes or shows a key.
pub(crate) fn key(command: &KeyCommand) -> Result<(), CommandFailure> {
    match command {
        KeyCommand::New { attachment, volume, file } => {
            let kind = match (attachment, volume) {
                (true, _) => KeyKind::Attachment,
                (_, true) => KeyKind::Volume,
                _ => KeyKind::Node,
            };
            let key = keys::create(file, kind).map_err(refused)?;
            output::print(&format!("{}\n", key.public()))
        }
        KeyCommand::Show { file, json } => {
            let key = keys::read(file).map_err(refused)?;
            // A configuration wants an absolute path.
            let path = std::path::absolute(file).context("the working directory is gone");
            let file = path.map_err(CommandFailure::running)?;
            let shown = ShownKey { kind: key.kind().to_string(), public: key.public(), file };
            let text = if *json {
                let json = serde_json::to_string_pretty(&shown).context("a key as JSON");
                json.map_err(CommandFailure::running)?
            } else {
                recipe(key.kind(), &shown)
            };
            output::print(&format!("{}\n", text.trim_end()))
        }
    }
}

/// The caller must mend a file with wrong content. An error of the system is not the caller's
/// fault.
fn refused(error: KeyError) -> CommandFailure {
    match error.problem {
        KeyProblem::Io { .. } => CommandFailure::running(error),
        _ => CommandFailure::configuration(error),
    }
}

/// Kind, public half, and the lines of both configurations that it takes.
fn recipe(kind: KeyKind, shown: &ShownKey) -> String {
    let ShownKey { public, file, .. } = shown;
    match kind {
        KeyKind::Node => format!(
            "a node's key\n\npublic   {public}\n\n\
             here     key = {file:?}\n\
             there    in the [[peer]] of each node that speaks with this one:\n         \
             key = \"{public}\"\n"
        ),
        KeyKind::Attachment => format!(
            "an attachment's key\n\npublic   {public}\n\n\
             here     in each [[disk]] of its owner:\n         \
             attachment-key = {file:?}\n\
             there    in the [[volume]] that only its owner may use:\n         \
             allow = [{{ node = \"vm1\", key = \"{public}\" }}]\n"
        ),
        KeyKind::Volume => format!(
            "a volume's encryption key\n\ncheck    {public}\n\n\
             here     in its [[volume]], and in no other:\n         \
             chain = [{{ encrypt = {{ key = {file:?} }} }}]\n\
             or, of a pool, in as many as need it:\n         \
             backend = {{ pool = \"p\", size = \"20GiB\", key = {file:?} }}\n\
             Keep a copy of the file elsewhere: without it the volume can never be read again.\n"
        ),
    }
}
