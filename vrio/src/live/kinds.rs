//! `vrio KIND ..`: the commands of all kinds of objects, over the table of kinds. A kind has a row
//! here for commands of its own, or else the commands that its keys say.

use std::fmt;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, Error, FromArgMatches, Subcommand};
use node::config::Kind;

use super::any_kind::{AnyKindCommand, any_kind_command};
use super::domains::{DOMAIN_EXAMPLES, DomainCommand, domain};
use super::nics::{NETWORK_EXAMPLES, NIC_EXAMPLES, NetworkCommand, NicCommand, network, nic};
use super::pools::{POOL_EXAMPLES, PoolCommand, pool};
use super::vfs::{VF_EXAMPLES, VfCommand, vf};
use super::volumes::{VOLUME_EXAMPLES, VolumeCommand, volume};
use super::{DISK_EXAMPLES, DiskCommand, PEER_EXAMPLES, PeerCommand, disk, peer};
use crate::failure::CommandFailure;

/// Makes the table: for each kind with commands of its own their type, what carries them out, and
/// their words in the help.
macro_rules! commands {
    ($($kind:literal: $command:ident, $run:ident, $examples:ident, $about:literal;)+) => {
        $(impl KindCommand for $command {
            fn run(&self) -> Result<(), CommandFailure> {
                $run(self)
            }
        })+

        static TABLE: &[CommandRow] = &[$(CommandRow {
            kind: $kind,
            about: $about,
            examples: $examples,
            augment: <$command as Subcommand>::augment_subcommands,
            read: read::<$command>,
        }),+];
    };
}

commands! {
    "disk": DiskCommand, disk, DISK_EXAMPLES,
        "Add, remove, resize and list the disks of a running node";
    "volume": VolumeCommand, volume, VOLUME_EXAMPLES,
        "Add, remove, resize, snapshot and list the volumes of a running node";
    "pool": PoolCommand, pool, POOL_EXAMPLES,
        "Make pools of thin volumes with snapshots; add, remove and list those of a running node";
    "peer": PeerCommand, peer, PEER_EXAMPLES,
        "Add, remove and list the nodes that a running node knows";
    "network": NetworkCommand, network, NETWORK_EXAMPLES,
        "Add, remove and list the networks of a running node";
    "nic": NicCommand, nic, NIC_EXAMPLES,
        "Add, remove, change and list the network cards of a running node";
    "domain": DomainCommand, domain, DOMAIN_EXAMPLES,
        "Add, remove and list the domains in which processes of a running node's host share memory";
    "vf": VfCommand, vf, VF_EXAMPLES,
        "Add, remove and list virtual machines' windows into domains";
}

/// A command about objects of one kind, as it was given.
trait KindCommand: fmt::Debug {
    fn run(&self) -> Result<(), CommandFailure>;
}

impl KindCommand for AnyKindCommand {
    fn run(&self) -> Result<(), CommandFailure> {
        self.run()
    }
}

/// A row of the table.
struct CommandRow {
    kind: &'static str,
    about: &'static str,
    examples: &'static str,
    augment: fn(Command) -> Command,
    read: fn(&ArgMatches) -> Result<Box<dyn KindCommand>, Error>,
}

fn read<C: KindCommand + FromArgMatches + 'static>(
    matches: &ArgMatches,
) -> Result<Box<dyn KindCommand>, Error> {
    Ok(Box::new(C::from_arg_matches(matches)?))
}

fn row(kind: Kind) -> Option<&'static CommandRow> {
    TABLE.iter().find(|row| row.kind == kind.key())
}

/// The command of a kind, with those below it.
fn command(kind: Kind) -> Command {
    let command = match row(kind) {
        Some(row) => {
            let command = Command::new(row.kind).about(row.about).after_help(row.examples);
            (row.augment)(command)
        }
        None => any_kind_command(kind),
    };
    command.subcommand_required(true).arg_required_else_help(true)
}

/// A command about an object of any kind.
#[derive(Debug)]
pub(crate) struct ObjectCommand(Box<dyn KindCommand>);

impl ObjectCommand {
    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        self.0.run()
    }
}

impl FromArgMatches for ObjectCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = matches.subcommand();
        let given = given.and_then(|(name, matches)| Some((Kind::named(name)?, matches)));
        let (kind, matches) = given.ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
        match row(kind) {
            Some(row) => (row.read)(matches).map(Self),
            None => Ok(Self(Box::new(AnyKindCommand::read(kind, matches)?))),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for ObjectCommand {
    fn augment_subcommands(whole: Command) -> Command {
        Kind::all().fold(whole, |whole, kind| whole.subcommand(command(kind)))
    }

    fn augment_subcommands_for_update(whole: Command) -> Command {
        Self::augment_subcommands(whole)
    }

    fn has_subcommand(name: &str) -> bool {
        Kind::named(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_of_a_kind() {
        for row in TABLE {
            assert!(Kind::named(row.kind).is_some(), "{} is no kind", row.kind);
        }
    }
}
