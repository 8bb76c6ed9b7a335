//! `vrio vf ..`.

use clap::{Args, Subcommand};
use node::status::VfStatus;

use super::{Fields, NodeChoice, Remove, change, list, take_away};
use crate::failure::CommandFailure;
use crate::tables;

pub(crate) const VF_EXAMPLES: &str = "Examples:
  vrio vf add --domain science --socket alice.vf
  vrio vf list
  vrio vf remove alice --force        the VM keeps its endpoints until it ends or unplugs the device

QEMU's options:
  -chardev socket,id=vf,path=/run/vrio/alice.vf -device ivshmem-doorbell,chardev=vf
`vrio mpi env --vm` prints the environment for processes inside of the VM.";

#[derive(Debug, Subcommand)]
pub(crate) enum VfCommand {
    /// Let a virtual machine's processes join a domain, until the node is restarted.
    Add(VfAdd),
    /// Remove a window: no virtual machine can use it any more.
    Remove(Remove),
    /// List the virtual machines' windows into domains.
    List(NodeChoice),
}

#[derive(Debug, Args)]
pub(crate) struct VfAdd {
    /// Its name; default: the socket's name without the ending.
    name: Option<String>,
    /// The domain.
    #[arg(long, value_name = "NAME")]
    domain: String,
    /// The socket that QEMU connects to, in the sockets' directory.
    #[arg(long, value_name = "PATH")]
    socket: String,
    /// The former form of the name.
    #[arg(long = "name", value_name = "NAME", hide = true, conflicts_with = "name")]
    named: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

pub(crate) fn vf(command: &VfCommand) -> Result<(), CommandFailure> {
    match command {
        VfCommand::Add(add) => {
            let mut fields = Fields::default();
            fields.text("name", add.name.as_ref().or(add.named.as_ref()));
            fields.text("domain", Some(&add.domain));
            fields.text("socket", Some(&add.socket));
            change(&add.which, "POST", "/v1/vfs", &fields.0.into())
        }
        VfCommand::Remove(remove) => take_away("vfs", remove),
        VfCommand::List(which) => {
            list(which, "/v1/vfs", |all: &Vec<VfStatus>| tables::vf_list(all))
        }
    }
}
