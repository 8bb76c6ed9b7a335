//! Commands about the copies of a replicated volume, and the commands that it cannot have yet.

use serde_json::Value;

use api::{API_VERSION, Done, Refused, RefusedKind};
use config::VolumeConfig;
use copies::CopyCommand;

use super::ServedVolume;
use crate::wiring::change::log;
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use crate::wiring::pools::snapshots::fields;

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
        let command: CopyCommand =
            fields(body, "{\"primary\": \"io2\"}, {\"gone\": \"io2\"} or {\"list\": ..}")?;
        let turn = self.turn()?;
        let objects = self.objects().clone();
        let served = objects.volume(name);
        let served = served.ok_or_else(|| unknown::<VolumeConfig>(name, &objects.config))?;
        let Some(member) = &served.member else {
            return Err(command.without_copies(name));
        };
        // It changes no object of this node, and takes longer than other changes may wait.
        let _turn = Some(turn).filter(|_| !matches!(command, CopyCommand::Recover(_)));
        let mut done = Done { version: API_VERSION, ..Done::default() };
        let parts = (&self.cores[..], self.volumes.seats());
        let (applied, notes) = member.carry_out(parts, &objects.config.name, &command)?;
        if let CopyCommand::List(list) = &command {
            let mut objects = self.objects();
            let config = objects.volume_config(name).expect("it has just been found");
            config.replicas.clone_from(&list.nodes);
        }
        done.applied.extend(applied);
        done.notes.extend(notes);
        log(&done);
        Ok(done)
    }
}
