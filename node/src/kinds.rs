//! The running half of each kind of objects: adding, changing and removing one.
//!
//! The other half of a kind, its configuration, is in the crate `config`. The table here has a row
//! for each kind of that crate's table, in the same order; a kind without its running half does not
//! compile.

use std::any::Any;
use std::marker::PhantomData;

use config::{AnyObject, Config, InPlace, Kind, ListedObject, ObjectConfigs};
use serde::Serialize;
use sessions::ObjectError;
use sidecore::CounterText;

use crate::wiring::{Inside, Objects};
use api::Refused;
use api::status::Status;

/// The result of a change of a running node: notes for the operator, or the refusal, after which
/// nothing has changed.
pub(crate) type Changed = Result<Vec<String>, Refused>;

/// The texts of counters whose metrics' names begin with a part's name. The names are kept for the
/// life of the process: the metrics ask for them once.
pub(crate) fn with_prefix(
    prefix: &str,
    texts: &'static [CounterText],
) -> impl Iterator<Item = CounterText> {
    texts.iter().map(move |text| CounterText {
        name: format!("{prefix}{}", text.name).leak(),
        help: text.help,
    })
}

/// An object of a running node: how it is added, changed and removed.
pub(crate) trait RunningObject: ListedObject {
    /// The status of one object, which has a `name`. `GET` on the kind's path answers with a list
    /// of these.
    type Status: Serialize;

    /// The descriptions of the metrics of such objects, by their names without `vrio_` and the
    /// kind, and without what their unit and their type add.
    fn metrics() -> Vec<CounterText> {
        Vec::new()
    }

    /// Starts the objects of the file when the node starts. A kind that has more to start than its
    /// objects, or something that a sidecore needs, starts before. A successor does not call this:
    /// kinds whose objects run are started by `wiring/hand_over/take.rs`, with their descriptors.
    fn start(_node: &Inside, _config: &Config) -> Result<(), Vec<ObjectError>> {
        Ok(())
    }

    /// Refuses what [`Self::add`] would refuse for reasons that no other change of a reload takes
    /// away: asked before the first change.
    ///
    /// # Errors
    /// Why it cannot be added.
    fn check_addition(&self, _node: &Inside) -> Result<(), Refused> {
        Ok(())
    }

    /// Starts it on a running node, or leaves everything as it was.
    fn add(&self, node: &Inside) -> Changed;

    /// Gives the running object the part of this configuration that `step` names.
    fn change(&self, _step: &InPlace, _node: &Inside) -> Changed {
        unreachable!("an object of this kind cannot be changed in place")
    }

    /// Ends the access of nodes that this configuration no longer allows, on a running node.
    fn readmit(&self, _node: &Inside) {}

    /// The part of a removal by a command that may take minutes, before the removal has its turn:
    /// other changes go on meanwhile, and may remove the object, and add another object of its
    /// name. Gives a number that tells the object from that; `None` where nothing was waited for.
    ///
    /// # Errors
    /// Why it cannot be removed.
    fn end_users(_name: &str, _node: &Inside, _force: bool) -> Result<Option<u64>, Refused> {
        Ok(None)
    }

    /// The number of the present object of this name, for a kind with an [`Self::end_users`] that
    /// waits.
    fn number(_name: &str, _node: &Inside) -> Option<u64> {
        None
    }

    /// Removes the object of this name, which exists; with `force` also while it has users.
    fn remove(name: &str, node: &Inside, force: bool) -> Changed;

    /// The users that the removal of the object of this name would interrupt. `goes`: whether an
    /// object such as `disk "a"` is removed before it.
    fn users(_name: &str, _node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        Vec::new()
    }

    /// The status of each object of this kind on a running node, which has these objects.
    fn status(node: &Inside, objects: &Objects) -> Vec<Self::Status>;

    /// Puts the status of all objects into that of the node. Readers in this repository know some
    /// kinds by a field of [`Status`]; of the others they know only their JSON.
    fn report(found: Vec<Self::Status>, status: &mut Status) {
        if !found.is_empty() {
            let found = serde_json::to_value(found).expect(STATUS);
            status.others.insert(format!("{}s", Self::KEY), found);
        }
    }
}

/// A row of the table: [`RunningObject`] without its type.
pub(crate) trait RunningKind: Sync {
    /// See [`RunningObject::check_addition`]. The object is of this kind.
    fn check_addition(&self, object: &dyn AnyObject, node: &Inside) -> Result<(), Refused>;
    /// See [`RunningObject::add`]. The object is of this kind.
    fn add(&self, object: &dyn AnyObject, node: &Inside) -> Changed;
    /// See [`RunningObject::change`]. The object is of this kind.
    fn change(&self, object: &dyn AnyObject, step: &InPlace, node: &Inside) -> Changed;
    /// Ends the access of nodes that `before` allowed and `left` does not.
    fn readmit(&self, before: &ObjectConfigs, left: &ObjectConfigs, node: &Inside);
    /// See [`RunningObject::end_users`].
    fn end_users(&self, name: &str, node: &Inside, force: bool) -> Result<Option<u64>, Refused>;
    /// See [`RunningObject::number`].
    fn number(&self, name: &str, node: &Inside) -> Option<u64>;
    /// See [`RunningObject::remove`].
    fn remove(&self, name: &str, node: &Inside, force: bool) -> Changed;
    /// See [`RunningObject::users`].
    fn users(&self, name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String>;
    /// See [`RunningObject::metrics`].
    fn metrics(&self) -> Vec<CounterText>;
    /// See [`RunningObject::start`].
    fn start(&self, node: &Inside, config: &Config) -> Result<(), Vec<ObjectError>>;
    /// See [`RunningObject::report`].
    fn report(&self, node: &Inside, objects: &Objects, status: &mut Status);
    /// The status of all objects of a running node, as a list in JSON.
    fn status(&self, node: &Inside) -> String;
    /// The status of one object, as JSON.
    fn status_of(&self, name: &str, node: &Inside) -> Option<String>;
}

/// The running half of a kind.
pub(crate) fn running_kind(kind: Kind) -> &'static dyn RunningKind {
    let mut rows = Kind::all().zip(TABLE);
    let (_, row) = rows.find(|(of, _)| *of == kind).expect("each kind is in the table");
    *row
}

/// Makes the table from the kinds' types.
macro_rules! table {
    ($($config:ty),+) => {
        static TABLE: &[&dyn RunningKind] = &[$(&RunningRow::<$config>(PhantomData)),+];
    };
}

config::for_each_kind! { table }

const STATUS: &str = "a status is texts and numbers";

struct RunningRow<T>(PhantomData<fn() -> T>);

fn of_kind<T: RunningObject>(object: &dyn AnyObject) -> &T {
    (object as &dyn Any).downcast_ref().expect("an object of the row's kind")
}

impl<T: RunningObject> RunningKind for RunningRow<T> {
    fn check_addition(&self, object: &dyn AnyObject, node: &Inside) -> Result<(), Refused> {
        of_kind::<T>(object).check_addition(node)
    }

    fn add(&self, object: &dyn AnyObject, node: &Inside) -> Changed {
        of_kind::<T>(object).add(node)
    }

    fn change(&self, object: &dyn AnyObject, step: &InPlace, node: &Inside) -> Changed {
        of_kind::<T>(object).change(step, node)
    }

    fn readmit(&self, before: &ObjectConfigs, left: &ObjectConfigs, node: &Inside) {
        for left in T::all(left) {
            let before = T::all(before).iter().find(|it| it.name() == left.name());
            if before.is_some_and(|it| it.allow() != left.allow()) {
                left.readmit(node);
            }
        }
    }

    fn end_users(&self, name: &str, node: &Inside, force: bool) -> Result<Option<u64>, Refused> {
        T::end_users(name, node, force)
    }

    fn number(&self, name: &str, node: &Inside) -> Option<u64> {
        T::number(name, node)
    }

    fn remove(&self, name: &str, node: &Inside, force: bool) -> Changed {
        T::remove(name, node, force)
    }

    fn users(&self, name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        T::users(name, node, goes)
    }

    fn metrics(&self) -> Vec<CounterText> {
        T::metrics()
    }

    fn start(&self, node: &Inside, config: &Config) -> Result<(), Vec<ObjectError>> {
        T::start(node, config)
    }

    fn report(&self, node: &Inside, objects: &Objects, status: &mut Status) {
        T::report(T::status(node, objects), status);
    }

    fn status(&self, node: &Inside) -> String {
        // A copy: reading the rest may take a while, and changes must not wait for it.
        let objects = node.objects().clone();
        serde_json::to_string(&T::status(node, &objects)).expect(STATUS)
    }

    fn status_of(&self, name: &str, node: &Inside) -> Option<String> {
        let objects = node.objects().clone();
        let all = T::status(node, &objects);
        let is_it = |status: &&T::Status| {
            serde_json::to_value(status).expect(STATUS)["name"].as_str() == Some(name)
        };
        Some(serde_json::to_string(all.iter().find(is_it)?).expect(STATUS))
    }
}
