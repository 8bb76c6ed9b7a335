//! Commands about the copies of a replicated volume, and the commands that it cannot have yet.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use api::status::{CopyRole, CopyStatus};
use api::{API_VERSION, Done, Refused, RefusedKind};
use config::VolumeConfig;
use copies::{MemberOrder, ServedMember};

use super::ServedVolume;
use crate::wiring::change::log;
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use crate::wiring::pools::snapshots::fields;

/// How long a command waits for its effect: a planned move takes some milliseconds, and a change of
/// the record as long as the registry, which answers within 8 s or not at all.
const EFFECT_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause between two looks at the effect.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A command about copies: a node, by its name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum CopyCommand {
    /// It serves the volume from now on.
    Primary(String),
    /// Its copy is gone for good.
    Gone(String),
    /// The same, also if acknowledged writes go with it.
    GoneWithWrites(String),
}

/// Refuses a change of a volume's content or size that the protocol of its members does not carry.
///
/// # Errors
/// For a volume with copies on several nodes.
pub(crate) fn refuse_replicated(served: &ServedVolume, why: &str) -> Result<(), Refused> {
    if served.member.is_none() {
        return Ok(());
    }
    let error = format!("volume {:?} has copies on several nodes: {why}", served.export.name());
    let way_out = "docs/limits.md says what such a volume cannot do yet; nothing was changed";
    Err(Refused::new(RefusedKind::Conflict, error, way_out))
}

/// Starts the members of all volumes that have one. A member that cannot start is logged, and its
/// status says why: other volumes are served all the same.
pub(crate) fn start_all(node: &Inside) {
    let volumes = node.objects().volumes.clone();
    for served in volumes {
        start(&served, node);
    }
}

/// Starts the member of a volume, if it has one.
pub(crate) fn start(served: &ServedVolume, node: &Inside) {
    let Some(member) = &served.member else { return };
    let others = (&node.cluster, node.volumes.seats());
    if let Err(why) = member.start(&served.export, &node.cores, others) {
        tracing::error!(volume = served.export.name(), why, "its copy here does not work");
    }
}

impl Inside {
    /// Carries out a command about the copies of a volume.
    pub(crate) fn change_copies(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let command: CopyCommand = fields(body, "{\"primary\": \"io2\"} or {\"gone\": \"io2\"}")?;
        let _turn = self.turn()?;
        let objects = self.objects().clone();
        let served = objects.volume(name);
        let served = served.ok_or_else(|| unknown::<VolumeConfig>(name, &objects.config))?;
        let Some(member) = &served.member else {
            let error = format!("volume {name:?} has no copies on other nodes");
            let way_out = "docs/replicas.md says how a volume has them";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        };
        let mut done = Done { version: API_VERSION, ..Done::default() };
        match command {
            CopyCommand::Primary(node) => {
                self.make_primary(member, (name, &node))?;
                done.applied.push(format!("move volume {name} to {node}"));
            }
            CopyCommand::Gone(ref node) | CopyCommand::GoneWithWrites(ref node) => {
                let loses = matches!(command, CopyCommand::GoneWithWrites(_));
                done.notes.extend(self.evict(member, (name, node), loses)?);
                done.applied.push(format!("evict the copy of volume {name} on {node}"));
            }
        }
        log(&done);
        Ok(done)
    }

    fn make_primary(
        &self,
        member: &ServedMember,
        (name, node): (&str, &str),
    ) -> Result<(), Refused> {
        let to = member.place_of(node).ok_or_else(|| no_copy(member, (name, node)))?;
        let status = member.status();
        if status.role != CopyRole::Primary {
            return Err(not_here(&status, name));
        }
        if self.objects().config.name == node {
            return Ok(());
        }
        if !status.in_sync.iter().any(|it| it == node) {
            let error = format!("the copy of volume {name:?} on {node} lacks writes");
            let way_out = "`vrio status` says when it is in sync; nothing was changed";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        member.order(&self.cores, MemberOrder::Move(to));
        let has_moved = wait_until(|| !member.moves());
        let now = member.status();
        if has_moved && now.role == CopyRole::Backup && now.primary.as_deref() == Some(node) {
            return Ok(());
        }
        let error = format!("{node} does not serve volume {name:?} as far as this node knows");
        let way_out = "`vrio status` here and on that node says where it is served";
        Err(Refused::new(RefusedKind::Failed, error, way_out))
    }

    /// Takes a copy out of those that the volume waits for.
    fn evict(
        &self,
        member: &ServedMember,
        (name, node): (&str, &str),
        loses: bool,
    ) -> Result<Option<String>, Refused> {
        let place = member.place_of(node).ok_or_else(|| no_copy(member, (name, node)))?;
        if self.objects().config.name == node {
            let error = format!("{node} is this node, and its copy of volume {name:?} is here");
            let way_out = "run the command on a node with another copy";
            return Err(Refused::new(RefusedKind::Bad, error, way_out));
        }
        let status = member.status();
        if status.role == CopyRole::Backup || status.primary.is_none() && status.epoch == 0 {
            return Err(not_here(&status, name));
        }
        if status.role == CopyRole::Failed {
            let error = format!("the copy of volume {name:?} here has stopped: {}", status.why);
            let way_out = "run the command on a node with another copy";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        if !status.in_sync.iter().any(|it| it == node) {
            return Ok(Some(format!("the volume does not wait for the copy on {node}")));
        }
        let own = self.objects().config.name.clone();
        if status.role == CopyRole::Outside && !status.in_sync.contains(&own) {
            let error =
                format!("the copy of volume {name:?} here was not in sync, and cannot serve");
            let way_out = format!("run the command on one of {}", status.in_sync.join(", "));
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        if status.role == CopyRole::Outside && !loses {
            let error = format!(
                "volume {name:?} is not served, and acknowledged writes may be on {node} alone"
            );
            let way_out = "start that node; with --force they are given up, and guests are told";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        member.order(&self.cores, MemberOrder::Evict(place));
        let is_out = || !member.status().in_sync.iter().any(|it| it == node);
        Ok((!wait_until(is_out)).then(|| {
            format!(
                "the volume waits for {node} still: for the registry, for the end of leases, or \
                 for other copies in sync. Run the command again when `vrio status` shows no change"
            )
        }))
    }
}

fn no_copy(member: &ServedMember, (name, node): (&str, &str)) -> Refused {
    let error = format!("node {node:?} has no copy of volume {name:?}");
    let way_out = format!("its copies are on {}", member.nodes().join(", "));
    Refused::new(RefusedKind::Unknown, error, way_out)
}

fn not_here(status: &CopyStatus, name: &str) -> Refused {
    let (at, way_out) = match &status.primary {
        Some(node) => (format!("{node} serves it"), format!("run the command on {node}")),
        None => {
            let way_out = "`vrio cluster status` says whether the registry answers".to_owned();
            ("it is not known where it is served".to_owned(), way_out)
        }
    };
    let error = format!("this node does not serve volume {name:?}: {at}");
    Refused::new(RefusedKind::Conflict, error, way_out)
}

/// Waits for an effect, and says whether it came.
fn wait_until(mut is_there: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + EFFECT_TIME_MAX;
    loop {
        if is_there() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
