//! Changes of a running node: one at a time, each all or nothing.
//!
//! A command and a reload have the same result: a wanted configuration, whose difference from the
//! running one is a list of [`Change`]s. Each change is made here by the code that starts a node.

use config::{Change, ChangeStep, Config, Kind, Revoked, changes, needs_restart, revoked};
use serde_json::Value;
use sessions::keys;

use super::change::{bad, log, no_key_changed};
use super::inside::Inside;
use super::objects::{Objects, unknown_of};
use crate::heap;
use crate::kinds::running_kind;
use api::{API_VERSION, Done, Planned, Refused, RefusedKind, Reload, ReloadPlan};

/// The note for an object that a command has added.
const UNTIL_RESTART: &str = "this is lost when the node is restarted; write it into the file to \
                             keep it";

/// The note for an object that a command has added, and of whose name the file has one.
const FILE_AT_RESTART: &str = "the file has an object of this name as well: a restart or a reload \
                               makes this one as it is there";

/// The note for an object of the file that a command has removed.
const BACK_AT_RESTART: &str =
    "the file still has it, so a restart or a reload adds it again; remove it there as well";

impl Inside {
    /// Adds the object that a request describes.
    pub(crate) fn add(&self, kind: Kind, body: &Value) -> Result<Done, Refused> {
        let Some(fields) = body.as_object() else {
            let key = kind.key();
            let way_out = format!("send the fields of a [[{key}]] as a JSON object");
            return Err(Refused::new(RefusedKind::Bad, "this is not a JSON object", way_out));
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
        let name = names.last().expect("it was just added");
        self.objects().came_by_command(kind, name);
        let in_file = self.objects().file_has(kind, name);
        done.notes.push(if in_file { FILE_AT_RESTART } else { UNTIL_RESTART }.to_owned());
        log(&done);
        Ok(done)
    }

    /// Removes an object; with `force` also one that is in use.
    pub(crate) fn remove(&self, kind: Kind, name: &str, force: bool) -> Result<Done, Refused> {
        running_kind(kind).end_users(name, self, force)?;
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

    /// Reads the file again and lists the changes that it would make.
    pub(crate) fn plan(&self) -> Result<ReloadPlan, Refused> {
        self.follow_devices();
        let objects = self.objects().clone();
        Ok(self.read(&objects)?.plan)
    }

    /// Reads the file again and makes the node what the file describes. Nodes that are no longer
    /// allowed lose their access first, also when later changes fail. The first failure ends the
    /// reload: changes before it stay, and changes after it are not tried.
    pub(crate) fn reload(&self, wanted: &Reload) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        self.follow_devices();
        let objects = self.objects().clone();
        let Read { file, target, revoked, changes, plan } = self.read(&objects)?;
        if wanted.digest.as_ref().is_some_and(|digest| *digest != plan.digest) {
            let error = "the changes are not the ones that were shown";
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
        let checked = self.check_additions(&changes);
        checked.map_err(|(change, refused)| not_completed(change, refused, &done, &changes))?;
        for (at, change) in changes.iter().enumerate() {
            let made = self.apply(change, wanted.force);
            let fails = |refused| not_completed(change, refused, &done, &changes[at + 1..]);
            let notes = made.map_err(fails)?;
            done.notes.extend(notes);
            done.applied.push(change.to_string());
        }
        done.notes.extend(self.domains.read_keys(&self.objects().config.domains));
        done.notes.extend(
            plan.needs_restart.iter().map(|key| {
                format!("{key} has changed in the file and takes a restart of the node")
            }),
        );
        log(&done);
        Ok(done)
    }

    /// Refuses changes of which an addition cannot be made, before the first of them: an object
    /// that is added again is not taken away then. Gives the change.
    pub(crate) fn check_additions<'c>(
        &self,
        changes: &'c [Change],
    ) -> Result<(), (&'c Change, Refused)> {
        changes.iter().try_for_each(|change| {
            let checked = match change.step() {
                ChangeStep::Remove(again) if !again.is_empty() && change.interrupts() => {
                    self.refuse_while_drained()
                }
                ChangeStep::Add(object, _) => {
                    running_kind(change.kind()).check_addition(&**object, self)
                }
                _ => Ok(()),
            };
            checked.map_err(|refused| (change, refused))
        })
    }

    /// Makes one change, or leaves everything as it was. It returns remarks for the caller.
    /// `force`: also where the object is in use.
    pub(crate) fn apply(&self, change: &Change, force: bool) -> Result<Vec<String>, Refused> {
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
}

/// A change of a reload was refused, and the rest was not tried.
fn not_completed(change: &Change, refused: Refused, done: &Done, untried: &[Change]) -> Refused {
    let error = format!("could not {change}: {}", refused.error);
    let untried = untried.iter().map(ToString::to_string).collect();
    let refused = Refused { error, applied: done.applied.clone(), untried, ..refused };
    let (applied, untried) = (refused.applied.join("; "), refused.untried.join("; "));
    tracing::error!(error = %refused, applied, untried, "the reload was not completed");
    refused
}

/// A file and the changes that it leads to.
struct Read {
    file: Config,
    /// The file with what commands have added.
    target: Config,
    revoked: Revoked,
    /// The changes after the revocations.
    changes: Vec<Change>,
    plan: ReloadPlan,
}

impl Inside {
    /// Reads the file that the node was started with, and compares.
    fn read(&self, objects: &Objects) -> Result<Read, Refused> {
        let refused = |error: crate::ConfigError| {
            let way_out = "nothing was changed; correct the file and reload it again";
            Refused::new(RefusedKind::Bad, error.to_string(), way_out)
        };
        let file = Config::load(objects.path()).map_err(refused)?;
        let mut target = objects.wanted(&file).map_err(refused)?;
        self.keep_devices(&objects.config, &mut target)?;
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
        let plan = ReloadPlan {
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
