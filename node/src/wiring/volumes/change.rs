//! Volumes that come, go and change while the node runs.

use std::path::Path;
use std::sync::Arc;

use config::{Config, DiskConfig, InPlace, Object, VolumeConfig, changes, encryption};
use copies::COPY_METRICS;
use serde_json::Value;
use sessions::sidecores;
use sidecore::CounterText;
use volume::{backend::BACKENDS, stage::STAGES};

use super::ciphers;
use super::copy_commands::{self, refuse_replicated};
use super::report::{self, VOLUME_METRICS};
use crate::kinds::{Changed, RunningObject, with_prefix};
use crate::wiring::change::{bad, log, refuse_used, takes_restart};
use crate::wiring::inside::Inside;
use crate::wiring::objects::{Objects, unknown};
use api::status::{Status, VolumeStatus};
use api::{API_VERSION, Done, Refused, RefusedKind};

/// The note for a part of a volume that a command has replaced.
const UNTIL_RESTART: &str =
    "this is lost at a restart or a reload of the node; write it into the file to keep it";

impl RunningObject for VolumeConfig {
    type Status = VolumeStatus;

    fn metrics() -> Vec<CounterText> {
        let of_stages = STAGES.iter().flat_map(|kind| kind.counters);
        let of_stages = of_stages.map(|key| CounterText { name: key.name, help: key.text });
        let of_backends = BACKENDS.iter().flat_map(|kind| {
            let prefix = format!("{}_", kind.name);
            with_prefix(&prefix, kind.counters).collect::<Vec<_>>()
        });
        let of_copies = COPY_METRICS.iter().copied();
        let own = VOLUME_METRICS.iter().copied().chain(of_copies);
        own.chain(of_stages).chain(of_backends).collect()
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_volume(self)
    }

    fn change(&self, step: &InPlace, node: &Inside) -> Changed {
        match step.step {
            Self::ALLOW => node.change_allow(self),
            Self::SIZE => node.change_size(self),
            Self::QUOTA => node.follow_quota(self),
            Self::SNAPSHOTS => Ok(node.change_snapshots(self)),
            Self::KEY_FILE => node.follow_key_file(self),
            Self::COMPRESSION => node.change_compression(self),
            Self::HISTORY => node.follow_history(self),
            _ => node.change_chain(self),
        }
    }

    fn readmit(&self, node: &Inside) {
        node.readmit_to_volume(self);
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_volume(name, force)
    }

    fn users(name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut users = node.users_of_volume(name);
        users.retain(|user| !goes(user));
        users
    }

    fn status(node: &Inside, objects: &Objects) -> Vec<VolumeStatus> {
        let mut all = report::status(objects);
        for volume in &mut all {
            volume.snapshots_problem = node.timed.problem(&volume.name);
        }
        all
    }

    fn report(found: Vec<VolumeStatus>, status: &mut Status) {
        status.volumes = found;
    }
}

impl Inside {
    /// Puts another chain before a volume.
    pub(crate) fn set_chain(&self, name: &str, chain: &Value) -> Result<Done, Refused> {
        let chain = Config::chain(chain).map_err(|problems| bad(&problems))?;
        self.set_in_place(name, |volume| volume.chain = chain)
    }

    /// Gives a volume other rules for snapshots by time.
    pub(crate) fn set_snapshots(&self, name: &str, rules: &Value) -> Result<Done, Refused> {
        let rules = Config::snapshots(rules).map_err(|problems| bad(&problems))?;
        if !rules.is_empty() {
            let served = self.objects().volume(name).map(Arc::clone);
            if let Some(served) = served {
                refuse_replicated(&served, "its snapshots would be of this node's copy alone")?;
            }
            let objects = self.objects();
            let mut volumes = objects.config.volumes.iter();
            let volume = volumes.find(|volume| volume.name == name);
            if volume.is_some_and(|volume| volume.backend.pool().is_none()) {
                let error = format!("volume {name:?} is not a volume of a pool");
                let way_out = "docs/pools.md says how volumes get into a pool";
                return Err(Refused::new(RefusedKind::Conflict, error, way_out));
            }
        }
        self.set_in_place(name, |volume| volume.snapshots = rules)
    }

    /// Changes a volume in place.
    fn set_in_place(
        &self,
        name: &str,
        set: impl FnOnce(&mut VolumeConfig),
    ) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        let mut wanted = self.objects().config.clone();
        let running = wanted.clone();
        let Some(volume) = wanted.volumes.iter_mut().find(|volume| volume.name == name) else {
            return Err(unknown::<VolumeConfig>(name, &running));
        };
        set(volume);
        let mut done = Done { version: API_VERSION, ..Done::default() };
        for change in changes(&running, &wanted) {
            done.notes.extend(self.apply(&change, false)?);
            done.applied.push(change.to_string());
            done.notes.push(UNTIL_RESTART.to_owned());
        }
        log(&done);
        Ok(done)
    }

    pub(crate) fn add_volume(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let refused = |text: String| {
            let error = format!("volume {:?}: {text}", volume.name);
            Refused::new(RefusedKind::Failed, error, "nothing was changed; try again afterwards")
        };
        self.refuse_while_drained()?;
        self.check_listens(volume.is_for_peers(), "other nodes use it")?;
        self.volumes.lock_state().map_err(|error| refused(error.to_string()))?;
        // A running node makes no ring: its filter of system calls would not let it.
        let has_uring = self.cores.iter().all(|core| core.uring.is_some());
        if sidecores::needs_uring(volume) && !has_uring {
            let why = "its sidecores have no io_uring (the log of the start says why)";
            return Err(takes_restart(why, "[directories] \"volumes\""));
        }
        let served = Arc::new(self.volumes.open(volume).map_err(refused)?);
        if let Some(error) = super::same_key(&served, &self.objects().volumes) {
            let error = format!("volume {:?}: {error}", volume.name);
            return Err(Refused::new(RefusedKind::Conflict, error, "nothing was changed"));
        }
        self.objects().add_volume(volume, Arc::clone(&served));
        copy_commands::start(&served, self);
        self.volumes.publish(&served);
        self.accept_as_allowed();
        let stopped = served.export.unusable();
        let note = |why| format!("volume {:?} takes no requests: {why}", volume.name);
        Ok(stopped.map(note).into_iter().collect())
    }

    pub(crate) fn remove_volume(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let users = {
            let objects = self.objects().clone();
            self.users_of_volume_in(&objects, name)
        };
        let (served, disks, own) = {
            let objects = self.objects();
            let disks = objects.disks_of_volume(name);
            let own = objects.attachments_of(&disks);
            let served = Arc::clone(objects.volume(name).expect("the caller has looked"));
            (served, disks, own)
        };
        refuse_used(
            &format!("volume {name:?}"),
            &users,
            force,
            "remove or stop these users first",
        )?;
        self.volumes.withdraw(&served, &own, &self.cores).map_err(|text| {
            let error = format!("volume {name:?}: {text}");
            Refused::new(RefusedKind::Failed, error, "check its storage, then try again")
        })?;
        let mut notes = Vec::new();
        for disk in disks {
            // Forced, since the caller has listed the users of the volume above.
            notes.extend(DiskConfig::remove(&disk, self, true)?);
            notes.push(format!("disk {disk:?} was removed with its volume"));
        }
        if let Some(member) = &served.member {
            copies::end_in_order(&[member], &self.cores, &self.cluster);
            let doors = self.volumes.seats().doors();
            member.stop(&self.cores, doors, &self.cluster).map_err(|text| {
                let error = format!("volume {name:?}: {text}");
                Refused::new(RefusedKind::Failed, error, "check its storage, then try again")
            })?;
        }
        self.objects().remove_volume(name);
        self.accept_as_allowed();
        Ok(notes)
    }

    pub(crate) fn change_allow(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        self.check_listens(!volume.allow.is_empty(), "other nodes may use it")?;
        let served = {
            let mut objects = self.objects();
            let config = objects.volume_config(&volume.name).expect("the caller has looked");
            config.allow.clone_from(&volume.allow);
            Arc::clone(objects.volume(&volume.name).expect("beside its configuration"))
        };
        self.volumes.set_allow(&served, &volume.allow, &self.cores);
        self.accept_as_allowed();
        Ok(Vec::new())
    }

    pub(crate) fn change_snapshots(&self, volume: &VolumeConfig) -> Vec<String> {
        let mut objects = self.objects();
        let config = objects.volume_config(&volume.name).expect("the caller has looked");
        config.snapshots.clone_from(&volume.snapshots);
        Vec::new()
    }

    pub(crate) fn change_chain(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let name = &volume.name;
        let (served, running) = {
            let mut objects = self.objects();
            let config = objects.volume_config(name).expect("the caller has looked");
            let running = encryption(&config.chain).map(Path::to_owned);
            (Arc::clone(objects.volume(name).expect("beside its configuration")), running)
        };
        let is_under =
            ciphers::is_under(served.key().as_deref(), running.as_deref(), &volume.chain);
        let is_under = is_under.map_err(|error| {
            let way_out = "its chain stays; name the file of its key";
            Refused::new(RefusedKind::Failed, format!("volume {name:?}: {error}"), way_out)
        })?;
        if !is_under {
            let error = format!("volume {name:?}: its encryption cannot change");
            let way_out = "its data would be unreadable, so its chain stays; copy its data to a \
                           new volume with the wanted encryption";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        served.set_chain(&volume.chain, &self.cores).map_err(|text| {
            let error = format!("volume {name:?}: {text}");
            let way_out = "the old chain stays and its users continue; check its storage";
            Refused::new(RefusedKind::Failed, error, way_out)
        })?;
        let mut objects = self.objects();
        let config = objects.volume_config(name).expect("the caller has the turn");
        config.chain.clone_from(&volume.chain);
        Ok(Vec::new())
    }

    pub(crate) fn users_of_volume(&self, volume: &str) -> Vec<String> {
        let objects = self.objects().clone();
        self.users_of_volume_in(&objects, volume)
    }

    /// Restricts the users of a volume to these; the caller notes the configuration.
    pub(crate) fn readmit_to_volume(&self, volume: &VolumeConfig) {
        let served = Arc::clone(self.objects().volume(&volume.name).expect("it is there"));
        self.volumes.set_allow(&served, &volume.allow, &self.cores);
    }

    /// The users that would be interrupted if the volume went: disks, attachments, and disks of
    /// other nodes without a guest at the moment.
    fn users_of_volume_in(&self, objects: &Objects, volume: &str) -> Vec<String> {
        let mut users = objects.users_of_volume(volume);
        let shown_by = super::shown_by(volume, &self.cores).into_iter();
        users.extend(shown_by.map(|peer| format!("a disk of node {peer:?}")));
        users
    }
}
