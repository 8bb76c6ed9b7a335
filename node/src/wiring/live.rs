//! Changes of a running node: one at a time, each all or nothing.
//!
//! A command and a reload have the same result: a wanted configuration, whose difference from the
//! running one is a list of [`Change`]s. Each change is made here by the code that starts a node.

use std::path::Path;
use std::sync::Arc;

use config::{
    Change, ChangeStep, Config, DiskConfig, Kind, PeerConfig, Problem, Revoked, VolumeConfig,
    changes, encryption, needs_restart, revoked,
};
use serde_json::Value;
use sessions::{ConnectError, gateways, keys, peers, shared, sidecores};

use super::objects::{Objects, unknown, unknown_of};
use super::turns::{NoTurn, Turn};
use super::{Inside, ciphers, volumes};
use crate::api::{API_VERSION, Done, Plan, Planned, Refused, RefusedKind, Reload};
use crate::heap;
use crate::kinds::running_kind;

/// The note for an object that a command has added.
const UNTIL_RESTART: &str = "this lives until the node is restarted, unless the file has it too";

/// The note for a chain that a command has replaced.
const CHAIN_UNTIL_RESTART: &str =
    "this lives until the node is restarted or its file is reloaded, unless the file says it too";

/// The note for a nic that a command has changed.
pub(super) const NIC_UNTIL_RESTART: &str =
    "this lives until the node is restarted or its file is reloaded, unless the file says it too";

/// The note for an object of the file that a command has removed.
const BACK_AT_RESTART: &str =
    "the file still has it, so a restart or a reload brings it back; take it out there as well";

impl Inside {
    pub(super) fn turn(&self) -> Result<Turn<'_>, Refused> {
        // A change waits for sidecores: it would wait for as long as the sidecore is stuck, and
        // other changes would wait for it.
        if let Some((index, stuck)) = self.watchdog.first_stuck() {
            let error = format!("sidecore {index} is stuck ({}): nothing is changed", stuck.what);
            let way_out = "try again when it goes on, or restart the node: guests reconnect";
            return Err(Refused::new(RefusedKind::Busy, error, way_out));
        }
        self.turns.take().map_err(|error| {
            let way_out = match error {
                NoTurn::Full => "try again when they are done",
                NoTurn::Closed => "change it when it runs again",
                NoTurn::GivenAway => "ask that one: its control socket is the same",
            };
            Refused::new(RefusedKind::Busy, error.to_string(), way_out)
        })
    }

    /// Adds the object that a request describes.
    pub(super) fn add(&self, kind: Kind, body: &Value) -> Result<Done, Refused> {
        let Some(fields) = body.as_object() else {
            let key = kind.key();
            let way_out = format!("send the fields of a [[{key}]] as a JSON object");
            return Err(Refused::new(RefusedKind::Bad, "this is no JSON object", way_out));
        };
        let _turn = self.turn()?;
        let running = self.objects().config.clone();
        let wanted = running.with(kind, fields).map_err(|problems| bad(&problems))?;
        let mut done = Done { version: API_VERSION, ..Done::default() };
        for change in changes(&running, &wanted) {
            done.notes.extend(self.apply(&change, false)?);
            done.applied.push(change.to_string());
        }
        let names = wanted.names(kind);
        self.objects().came_by_command(kind, names.last().expect("it was just added"));
        done.notes.push(UNTIL_RESTART.to_owned());
        log(&done);
        Ok(done)
    }

    /// Removes an object; with `force` also one that is in use.
    pub(super) fn remove(&self, kind: Kind, name: &str, force: bool) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        let change = {
            let objects = self.objects();
            let known = objects.config.names(kind);
            if !known.contains(&name) {
                return Err(unknown_of(kind, name, &known));
            }
            Change::remove(kind, name, Vec::new())
        };
        let notes = self.apply(&change, force)?;
        let mut done = Done { version: API_VERSION, applied: vec![change.to_string()], notes };
        if self.objects().file_has(kind, name) {
            done.notes.push(BACK_AT_RESTART.to_owned());
        }
        log(&done);
        Ok(done)
    }

    /// Puts another chain before a volume.
    pub(super) fn set_chain(&self, name: &str, chain: &Value) -> Result<Done, Refused> {
        let chain = Config::chain(chain).map_err(|problems| bad(&problems))?;
        let _turn = self.turn()?;
        let mut wanted = self.objects().config.clone();
        let running = wanted.clone();
        let Some(volume) = wanted.volumes.iter_mut().find(|volume| volume.name == name) else {
            return Err(unknown::<VolumeConfig>(name, &running));
        };
        volume.chain = chain;
        let mut done = Done { version: API_VERSION, ..Done::default() };
        for change in changes(&running, &wanted) {
            done.notes.extend(self.apply(&change, false)?);
            done.applied.push(change.to_string());
            done.notes.push(CHAIN_UNTIL_RESTART.to_owned());
        }
        log(&done);
        Ok(done)
    }

    /// Reads the file again and lists the changes that it would make.
    pub(super) fn plan(&self) -> Result<Plan, Refused> {
        let objects = self.objects().clone();
        Ok(self.read(&objects)?.plan)
    }

    /// Reads the file again and makes the node what the file describes. Nodes that are no longer
    /// allowed lose their access first, also when later changes fail. The first failure ends the
    /// reload: changes before it stay, and changes after it are not tried.
    pub(super) fn reload(&self, wanted: &Reload) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        let objects = self.objects().clone();
        let Read { file, target, revoked, changes, plan } = self.read(&objects)?;
        if wanted.digest.as_ref().is_some_and(|digest| *digest != plan.digest) {
            let error = "what would change is not what it was when you looked";
            return Err(Refused::new(RefusedKind::Conflict, error, "look again"));
        }
        // All keys of the file are read first, also those of peers that come later, so that a
        // faulty key file changes nothing.
        keys::wanted(&target, &self.keys).map_err(|error| no_key_changed(&error))?;
        self.revoke(&objects.config, revoked.config)?;
        self.objects().file_read(file);
        let mut done = Done { version: API_VERSION, applied: revoked.changes, notes: Vec::new() };
        if wanted.revoke_only {
            done.notes.extend(changes.iter().map(|change| format!("not done: {change}")));
            log(&done);
            return Ok(done);
        }
        for (at, change) in changes.iter().enumerate() {
            match self.apply(change, wanted.force) {
                Ok(notes) => done.notes.extend(notes),
                Err(refused) => {
                    let untried = changes[at + 1..].iter().map(ToString::to_string).collect();
                    let error = format!("could not {change}: {}", refused.error);
                    let refused = Refused { error, applied: done.applied, untried, ..refused };
                    let applied = refused.applied.join("; ");
                    let untried = refused.untried.join("; ");
                    let text = "the reload was not completed";
                    tracing::error!(error = %refused, applied, untried, "{text}");
                    return Err(refused);
                }
            }
            done.applied.push(change.to_string());
        }
        done.notes.extend(self.domains.read_keys(&self.objects().config.domains));
        done.notes.extend(
            plan.needs_restart.iter().map(|key| {
                format!("{key} of the file is different and takes a restart of the node")
            }),
        );
        log(&done);
        Ok(done)
    }

    /// Makes one change, or leaves everything as it was. It returns remarks for the caller.
    /// `force`: also where the object is in use.
    pub(super) fn apply(&self, change: &Change, force: bool) -> Result<Vec<String>, Refused> {
        let row = running_kind(change.kind());
        let done = match change.step() {
            ChangeStep::Remove(_) => row.remove(change.name(), self, force),
            ChangeStep::Add(object, _) => row.add(&**object, self),
            ChangeStep::InPlace(object, part) => row.change(&**object, part, self),
        };
        if change.removes() {
            heap::give_back();
        }
        done
    }

    pub(crate) fn add_disk(&self, disk: &DiskConfig) -> Result<Vec<String>, Refused> {
        self.refuse_while_drained()?;
        let (source, home) = {
            let objects = self.objects();
            (objects.source(disk), objects.config.directories.sockets.clone())
        };
        let source = source.map_err(|error| {
            let error = format!("{}: {}", error.object, error.text);
            Refused::new(RefusedKind::Failed, error, "nothing was changed; try again after that")
        })?;
        if home.is_none_or(|home| !disk.socket.starts_with(home)) {
            return Err(takes_restart("its socket is in another directory", "[directories]"));
        }
        let shown = self.disks.show(disk, source).map_err(|text| {
            let way_out = "nothing was changed; try again when that is done";
            Refused::new(RefusedKind::Failed, format!("disk {:?}: {text}", disk.name), way_out)
        })?;
        self.objects().add_disk(disk, shown);
        Ok(Vec::new())
    }

    pub(crate) fn remove_disk(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let (shown, users) = {
            let objects = self.objects();
            let shown = objects.disk(name).expect("the caller has looked");
            (Arc::clone(shown), objects.user_of_disk(name))
        };
        refuse_used(&format!("disk {name:?}"), &users, force, "stop the guest or unplug the disk")?;
        let closed = self.disks.remove(&shown);
        self.objects().remove_disk(name);
        let note = format!(
            "disk {name:?} is gone, but its attachment could not be closed clean in time: its \
             volume {} sees it as torn off",
            shown.config.volume
        );
        Ok(if closed { Vec::new() } else { vec![note] })
    }

    pub(crate) fn add_volume(&self, volume: &VolumeConfig) -> Result<Vec<String>, Refused> {
        let refused = |text: String| {
            let error = format!("volume {:?}: {text}", volume.name);
            Refused::new(RefusedKind::Failed, error, "nothing was changed; try again after that")
        };
        self.refuse_while_drained()?;
        self.check_listens(!volume.allow.is_empty(), "other nodes may use it")?;
        self.volumes.lock_state().map_err(|error| refused(error.to_string()))?;
        // A running node makes no ring: its filter of system calls would not let it.
        let has_uring = self.cores.iter().all(|core| core.uring.is_some());
        if sidecores::needs_uring(volume) && !has_uring {
            let why = "its sidecores have no io_uring (the log of the start says why)";
            return Err(takes_restart(why, "[directories] \"volumes\""));
        }
        let served = Arc::new(self.volumes.open(volume).map_err(refused)?);
        if let Some(error) = volumes::same_key(&served, &self.objects().volumes) {
            let error = format!("volume {:?}: {error}", volume.name);
            return Err(Refused::new(RefusedKind::Conflict, error, "nothing was changed"));
        }
        self.objects().add_volume(volume, Arc::clone(&served));
        self.volumes.publish(&served);
        self.accept_as_allowed();
        Ok(Vec::new())
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
        refuse_used(&format!("volume {name:?}"), &users, force, "remove or stop those first")?;
        self.volumes.withdraw(&served, &own, &self.cores).map_err(|text| {
            let error = format!("volume {name:?}: {text}");
            Refused::new(RefusedKind::Failed, error, "look at its storage, then try again")
        })?;
        let mut notes = Vec::new();
        for disk in disks {
            // Forced, since the caller has listed the users of the volume above.
            notes.extend(self.remove_disk(&disk, true)?);
            notes.push(format!("disk {disk:?} was removed with its volume"));
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
            let way_out = "its chain stays; name the file in which its key is";
            Refused::new(RefusedKind::Failed, format!("volume {name:?}: {error}"), way_out)
        })?;
        if !is_under {
            let error =
                format!("volume {name:?}: what encrypts it cannot change while it is there");
            let way_out = "what is on it would be read as noise, so its chain stays; copy its data \
                           to a volume that is encrypted as it shall be";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        served.set_chain(&volume.chain, &self.cores).map_err(|text| {
            let error = format!("volume {name:?}: {text}");
            let way_out = "the old chain stays and its users go on; look at its storage";
            Refused::new(RefusedKind::Failed, error, way_out)
        })?;
        let mut objects = self.objects();
        let config = objects.volume_config(name).expect("the caller has the turn");
        config.chain.clone_from(&volume.chain);
        Ok(Vec::new())
    }

    pub(crate) fn set_peer(&self, peer: &PeerConfig) -> Result<Vec<String>, Refused> {
        self.check_listens(true, "peers answer to an address")?;
        if let Some(address) = &peer.address {
            let reached = shared::reach_from(&self.cores, address);
            reached.map_err(|why| takes_restart(why, "\"shm\", or the peer's \"address\","))?;
        }
        let mut wanted = self.objects().config.clone();
        let had = wanted.peers.iter_mut().find(|had| had.name == peer.name);
        let before = had.map(|had| std::mem::replace(had, peer.clone()));
        if before.is_none() {
            wanted.peers.push(peer.clone());
        }
        self.read_keys(&wanted)?;
        let changed = match &before {
            Some(before) => peers::change(&self.cores, before, peer),
            None => {
                peers::add(&self.cores, peer);
                true
            }
        };
        if !changed {
            return Err(self.still_needed(&peer.name));
        }
        self.objects().config.objects.peers = wanted.objects.peers;
        Ok(Vec::new())
    }

    pub(crate) fn remove_peer(&self, name: &str) -> Result<Vec<String>, Refused> {
        let (users, mut wanted) = {
            let objects = self.objects();
            (objects.disks_of_peer(name), objects.config.clone())
        };
        let users: Vec<_> = users.iter().map(|disk| format!("disk {disk:?}")).collect();
        // Even with force: these objects cannot exist without the peer.
        refuse_used(&format!("peer {name:?}"), &users, false, "remove those first")?;
        let at = wanted.peers.iter().position(|peer| peer.name == name);
        let peer = wanted.peers.remove(at.expect("the caller has looked"));
        self.read_keys(&wanted)?;
        // The peer leaves all domains, too.
        let domains = self.objects().take_peer_from_domains(name);
        domains.iter().for_each(|domain| self.domains.set_peers(domain));
        gateways::look_for_sessions(&self.cores);
        if !peers::remove(&self.cores, &peer) {
            return Err(self.still_needed(name));
        }
        self.objects().forget::<PeerConfig>(name);
        Ok(Vec::new())
    }

    /// The error for a peer that cannot be removed yet: its keys stay.
    fn still_needed(&self, name: &str) -> Refused {
        let config = self.objects().config.clone();
        if let Err(refused) = self.read_keys(&config) {
            tracing::error!(error = %refused, "the keys that were in use cannot be read again");
        }
        let error = format!("peer {name:?}: a disk that was removed still lets go of it");
        Refused::new(RefusedKind::Conflict, error, "try again in a few seconds")
    }

    /// Gives every sidecore the keys of a configuration.
    fn read_keys(&self, wanted: &Config) -> Result<(), Refused> {
        keys::apply(wanted, &self.keys, &self.cores).map_err(|error| no_key_changed(&error))
    }

    /// Takes over a configuration that admits no new node, and notes it, so that later changes
    /// start from it. With an error nothing has changed.
    fn revoke(&self, running: &Config, left: Config) -> Result<(), Refused> {
        self.read_keys(&left)?;
        for kind in Kind::all() {
            running_kind(kind).readmit(&running.objects, &left.objects, self);
        }
        self.objects().config = left;
        self.accept_as_allowed();
        Ok(())
    }

    /// Peers may open sessions when there is something for them.
    pub(super) fn accept_as_allowed(&self) {
        let accept = self.objects().config.is_for_peers();
        peers::set_accept(&self.cores, accept);
    }

    pub(super) fn check_listens(&self, needed: bool, why: &str) -> Result<(), Refused> {
        if needed && self.objects().config.listen.is_none() {
            return Err(takes_restart(&format!("this node has no address ({why})"), "\"listen\""));
        }
        Ok(())
    }
}

/// A file and the changes that it leads to.
struct Read {
    file: Config,
    /// The file with what commands have added.
    target: Config,
    revoked: Revoked,
    /// The changes after the revocations.
    changes: Vec<Change>,
    plan: Plan,
}

impl Inside {
    /// Reads the file that the node was started with, and compares.
    fn read(&self, objects: &Objects) -> Result<Read, Refused> {
        let refused = |error: crate::ConfigError| {
            let way_out = "nothing was changed; correct the file and reload it again";
            Refused::new(RefusedKind::Bad, error.to_string(), way_out)
        };
        let file = Config::load(objects.path()).map_err(refused)?;
        let target = objects.wanted(&file).map_err(refused)?;
        let revoked = revoked(&objects.config, &target);
        let changes = changes(&revoked.config, &target);
        let goes = |object: &str| {
            changes.iter().any(|change| change.removes() && change.object() == object)
        };
        let planned = |change: &Change| Planned {
            what: change.to_string(),
            used_by: match change.removes() {
                true => running_kind(change.kind()).users(change.name(), self, &goes),
                false => Vec::new(),
            },
        };
        let restart = needs_restart(&objects.config, &target);
        let plan = Plan {
            version: API_VERSION,
            file: objects.path().display().to_string(),
            digest: digest(&revoked, &changes, &restart),
            revokes: revoked.changes.clone(),
            changes: changes.iter().map(planned).collect(),
            needs_restart: restart.into_iter().map(str::to_owned).collect(),
            reads_keys: target.key.is_some(),
        };
        Ok(Read { file, target, revoked, changes, plan })
    }

    pub(crate) fn users_of_volume(&self, volume: &str) -> Vec<String> {
        let objects = self.objects().clone();
        self.users_of_volume_in(&objects, volume)
    }

    pub(crate) fn user_of_disk(&self, disk: &str) -> Vec<String> {
        self.objects().user_of_disk(disk)
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
        let shown_by = volumes::shown_by(volume, &self.cores).into_iter();
        users.extend(shown_by.map(|peer| format!("a disk of node {peer:?}")));
        users
    }
}

/// A digest of a list of changes with all its content. It need not be cryptographic: the content is
/// not secret, and two lists that were made to have one digest deceive only their maker.
fn digest(revoked: &Revoked, changes: &[Change], restart: &[&str]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    let keys: Vec<_> = revoked.config.peers.iter().map(|peer| &peer.keys).collect();
    let objects = &revoked.config.objects;
    let allow: Vec<_> = Kind::all().flat_map(|kind| kind.row().allowed(objects)).collect();
    let allow: Vec<_> = allow.iter().map(|it| (&it.object, it.allow)).collect();
    format!("{keys:?} {allow:?} {changes:?} {restart:?}").hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

pub(super) fn refuse_used(
    object: &str,
    users: &[String],
    force: bool,
    instead: &str,
) -> Result<(), Refused> {
    if users.is_empty() || force {
        return Ok(());
    }
    let error = format!("{object} is used by {}", users.join(", "));
    let forced = match object.starts_with("peer") {
        true => String::new(),
        false => "; or say --force (force=true), which takes it from them".to_owned(),
    };
    Err(Refused::new(RefusedKind::Conflict, error, format!("{instead}{forced}")))
}

pub(super) fn takes_restart(why: &str, key: &str) -> Refused {
    let way_out = format!("set {key} in the file and restart the node");
    Refused::new(RefusedKind::Failed, why, way_out)
}

fn no_key_changed(error: &ConnectError) -> Refused {
    let way_out = "no key was changed; correct that, then try again";
    Refused::new(RefusedKind::Failed, error.to_string(), way_out)
}

pub(super) fn bad(problems: &[Problem]) -> Refused {
    let texts = problems.iter().map(|problem| match problem.object.as_str() {
        "" => problem.text.clone(),
        object => format!("{object}: {}", problem.text),
    });
    let way_out = "nothing was changed; the keys are those of the configuration's file";
    Refused::new(RefusedKind::Bad, texts.collect::<Vec<_>>().join("\n"), way_out)
}

pub(super) fn log(done: &Done) {
    for what in &done.applied {
        tracing::info!(what, "changed");
    }
}
