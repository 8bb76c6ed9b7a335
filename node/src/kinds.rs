//! The running half of each kind of objects: adding, changing and removing one.
//!
//! The other half of a kind, its configuration, is in the crate `config`. The table here has a row
//! for each kind of that crate's table, in the same order; a kind without its running half does not
//! compile.

use std::any::Any;
use std::marker::PhantomData;

use config::{AnyObject, InPlace, Kind, ListedObject, ObjectConfigs};
use serde::Serialize;

use crate::api::Refused;
use crate::wiring::Inside;

/// The result of a change of a running node: notes for the operator, or the refusal, after which
/// nothing has changed.
pub(crate) type Changed = Result<Vec<String>, Refused>;

/// An object of a running node: how it is added, changed and removed.
pub(crate) trait RunningObject: ListedObject {
    /// The status of one object; `GET` on the kind's path answers with a list of these.
    type Status: Serialize;

    /// Starts it on a running node, or leaves everything as it was.
    fn add(&self, node: &Inside) -> Changed;

    /// Gives the running object the part of this configuration that `step` names.
    fn change(&self, _step: &InPlace, _node: &Inside) -> Changed {
        unreachable!("an object of this kind cannot be changed in place")
    }

    /// Ends the access of nodes that this configuration no longer allows, on a running node.
    fn readmit(&self, _node: &Inside) {}

    /// Removes the object of this name, which exists; with `force` also while it has users.
    fn remove(name: &str, node: &Inside, force: bool) -> Changed;

    /// The users that the removal of the object of this name would interrupt. `goes`: whether an
    /// object such as `disk "a"` is removed before it.
    fn users(_name: &str, _node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        Vec::new()
    }

    /// The status of each object of this kind on a running node.
    fn status(node: &Inside) -> Vec<Self::Status>;

    /// The name of the object that a status describes.
    fn status_name(status: &Self::Status) -> &str;
}

/// A row of the table: [`RunningObject`] without its type.
pub(crate) trait RunningKind: Sync {
    /// See [`RunningObject::add`]. The object is of this kind.
    fn add(&self, object: &dyn AnyObject, node: &Inside) -> Changed;
    /// See [`RunningObject::change`]. The object is of this kind.
    fn change(&self, object: &dyn AnyObject, step: &InPlace, node: &Inside) -> Changed;
    /// Ends the access of nodes that `before` allowed and `left` does not.
    fn readmit(&self, before: &ObjectConfigs, left: &ObjectConfigs, node: &Inside);
    /// See [`RunningObject::remove`].
    fn remove(&self, name: &str, node: &Inside, force: bool) -> Changed;
    /// See [`RunningObject::users`].
    fn users(&self, name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String>;
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

    fn remove(&self, name: &str, node: &Inside, force: bool) -> Changed {
        T::remove(name, node, force)
    }

    fn users(&self, name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        T::users(name, node, goes)
    }

    fn status(&self, node: &Inside) -> String {
        serde_json::to_string(&T::status(node)).expect(STATUS)
    }

    fn status_of(&self, name: &str, node: &Inside) -> Option<String> {
        let all = T::status(node);
        let found = all.iter().find(|status| T::status_name(status) == name)?;
        Some(serde_json::to_string(found).expect(STATUS))
    }
}
