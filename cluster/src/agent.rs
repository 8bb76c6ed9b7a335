//! The agent of a node: it keeps the node's presence in the registry for as long as the node
//! answers. Its caller asks the node, waits between the rounds and tells what has changed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use registry::membership::{Kept, PRESENCE_S, PresenceKeeper};
use registry::{CopyReport, Guarded, PoolSpace, PresenceRecord, RegistryError};

use crate::directory::ClusterDirectory;
use crate::error::ClusterError;

/// The time between two rounds: a presence survives a round that waits for a member in vain.
pub const ROUND: Duration = Duration::from_secs(PRESENCE_S / 5);

/// A node that does not answer for so many rounds is away: a service manager starts it again
/// sooner.
const SILENT_ROUNDS_MAX: u32 = 3;

/// A node tells how long it runs in whole seconds, so its start moves by as much from round to
/// round. A record that changed with it would be a change of the registry each time.
const SINCE_S_ERROR: u64 = 2;

/// A node, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Where peers reach it.
    pub addresses: Vec<String>,
    /// Its pools.
    pub pools: Vec<PoolSpace>,
    /// Its copies that are not in order, or are used.
    pub copies: Vec<CopyReport>,
    /// Where it is, by the kind of place.
    pub domain: BTreeMap<String, String>,
    /// When it was started, in seconds since 1970.
    pub since_s: u64,
    /// The version of its program.
    pub program: String,
}

/// The outcome of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentRound {
    /// The node is present.
    Present,
    /// The node does not answer.
    NodeSilent,
    /// Another agent has the node's name: the text says which.
    Elsewhere(String),
    /// The presence was not kept in this round, for this reason.
    NotKept(String),
}

/// An agent.
#[derive(Debug)]
pub struct Agent {
    path: std::path::PathBuf,
    name: String,
    key: Option<String>,
    id: String,
    registry: Option<OpenedRegistry>,
    keeper: PresenceKeeper,
    silent_rounds: u32,
    last: Option<PresenceRecord>,
}

/// The registry, and the state of the directory that it was opened with.
#[derive(Debug)]
struct OpenedRegistry {
    guarded: Guarded,
    certificate_ends_s: Option<u64>,
    /// When the certificate's file was changed last: a renewed one is taken at once.
    changed: Option<SystemTime>,
}

impl Agent {
    /// An agent for the node of this name and key. `random` tells agents apart.
    pub fn new(directory: &ClusterDirectory, name: &str, key: Option<String>, random: u64) -> Self {
        Self {
            path: directory.path().to_owned(),
            name: name.to_owned(),
            key,
            id: format!("{random:016x}"),
            registry: None,
            keeper: PresenceKeeper::new(directory.keys().clone(), name),
            silent_rounds: 0,
            last: None,
        }
    }

    /// A round: the node, if it has answered.
    pub fn round(&mut self, node: Option<&NodeView>) -> AgentRound {
        match self.try_round(node) {
            Ok(round) => round,
            Err(error) => AgentRound::NotKept(error.to_string()),
        }
    }

    fn try_round(&mut self, node: Option<&NodeView>) -> Result<AgentRound, ClusterError> {
        self.open()?;
        let Self { registry, keeper, .. } = self;
        let opened = registry.as_mut().expect("it was opened");
        let wanted = match node {
            Some(view) => {
                self.silent_rounds = 0;
                let last_s = self.last.as_ref().map(|last| last.since_s);
                let is_same = |last_s: &u64| last_s.abs_diff(view.since_s) <= SINCE_S_ERROR;
                PresenceRecord {
                    agent: self.id.clone(),
                    addresses: view.addresses.clone(),
                    pools: view.pools.clone(),
                    copies: view.copies.clone(),
                    domain: view.domain.clone(),
                    program: view.program.clone(),
                    since_s: last_s.filter(is_same).unwrap_or(view.since_s),
                    certificate_ends_s: opened.certificate_ends_s,
                }
            }
            None => {
                self.silent_rounds = self.silent_rounds.saturating_add(1);
                match self.last.clone().filter(|_| self.silent_rounds < SILENT_ROUNDS_MAX) {
                    Some(last) => last,
                    None => {
                        keeper.leave(&mut opened.guarded)?;
                        return Ok(AgentRound::NodeSilent);
                    }
                }
            }
        };
        let kept = keeper.keep(&mut opened.guarded, self.key.as_deref(), &wanted)?;
        self.last = Some(wanted);
        Ok(match kept {
            Kept::Present => AgentRound::Present,
            Kept::Later => AgentRound::NotKept("the registry did not take it yet".to_owned()),
            Kept::Elsewhere(other) => AgentRound::Elsewhere(format!(
                "another agent keeps node {:?} present, at {}: this node's last agent for {} s at \
                 most, or another machine with this node's configuration",
                self.name,
                other.addresses.first().map_or("no address", String::as_str),
                PRESENCE_S
            )),
        })
    }

    /// Opens the registry, again where the certificate was renewed.
    fn open(&mut self) -> Result<(), ClusterError> {
        let changed = std::fs::metadata(self.path.join("client.pem")).and_then(|it| it.modified());
        let changed = changed.ok();
        if self.registry.as_ref().is_some_and(|opened| opened.changed == changed) {
            return Ok(());
        }
        let directory = ClusterDirectory::open(&self.path)?;
        let guarded = directory.registry()?;
        let certificate_ends_s = directory.file().certificate_ends_s;
        self.registry = Some(OpenedRegistry { guarded, certificate_ends_s, changed });
        Ok(())
    }

    /// Has the node be away at once: the agent ends.
    ///
    /// # Errors
    /// When the registry does not answer; the presence then ends by itself.
    pub fn leave(mut self) -> Result<(), RegistryError> {
        match &mut self.registry {
            Some(opened) => self.keeper.leave(&mut opened.guarded),
            None => Ok(()),
        }
    }
}
