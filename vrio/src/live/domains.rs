//! `vrio domain ..`.

use clap::{Args, Subcommand};
use node::status::DomainStatus;
use serde_json::Value;

use super::{Fields, NodeChoice, Remove, change, list, take_away};
use crate::failure::CommandFailure;
use crate::tables;

pub(crate) const DOMAIN_EXAMPLES: &str = "Examples:
  vrio domain add science --key /etc/vrio/science.key --endpoints-max 64
  vrio domain add science --key /etc/vrio/science.key --peers h2,h3
  vrio domain list                    also lists which peers are joined, and why others are not
  vrio domain remove science --force  also while processes use it: their MPI reports an error

A key is a line of 16 to 128 characters in a file that its owner and group may read, for instance
  (umask 027; openssl rand -hex 32 > /etc/vrio/science.key; chgrp science /etc/vrio/science.key)
`vrio mpi env` prints the environment that a process needs to join.";

#[derive(Debug, Subcommand)]
pub(crate) enum DomainCommand {
    /// Make a domain, in which processes share memory, until the node is restarted.
    Add(DomainAdd),
    /// Remove a domain.
    Remove(Remove),
    /// List the domains, with their endpoints and memory.
    List(NodeChoice),
}

#[derive(Debug, Args)]
pub(crate) struct DomainAdd {
    /// Its name.
    name: String,
    /// The file of the domain's key, a single line; processes need this key to join.
    #[arg(long, value_name = "FILE")]
    key: String,
    /// The most endpoints at once; usually each process of a job has one.
    #[arg(long, value_name = "COUNT")]
    endpoints_max: Option<u64>,
    /// Peers that have a domain of the same name and key; messages travel between these domains.
    #[arg(long, alias = "peer", value_name = "PEER", value_delimiter = ',')]
    peers: Vec<String>,
    #[command(flatten)]
    which: NodeChoice,
}

pub(crate) fn domain(command: &DomainCommand) -> Result<(), CommandFailure> {
    match command {
        DomainCommand::Add(add) => {
            let mut fields = Fields::default();
            fields.text("name", Some(&add.name));
            fields.text("key", Some(&add.key));
            fields.put("endpoints-max", add.endpoints_max.map(Value::from));
            let peers = add.peers.iter().cloned().map(Value::from).collect::<Vec<_>>();
            fields.put("peers", (!peers.is_empty()).then(|| Value::from(peers)));
            change(&add.which, "POST", "/v1/domains", &fields.0.into())
        }
        DomainCommand::Remove(remove) => take_away("domains", remove),
        DomainCommand::List(which) => {
            list(which, "/v1/domains", |all: &Vec<DomainStatus>| tables::domain_list(all))
        }
    }
}
