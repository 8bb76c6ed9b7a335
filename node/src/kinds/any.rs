//! The rows of the table of kinds: an [`Object`] without its type.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use peer::Allow;

use super::{Changed, Kind, Object, ObjectConfigs};
use crate::config::change::{Change, common};
use crate::config::read::objects;
use crate::config::reader::{Lines, Reader, Table};
use crate::config::{Config, Directories, check};
use crate::wiring::Inside;

/// By kind and name, the keys for which an object is removed and added again.
pub(crate) type Replaced = HashMap<(&'static str, String), Vec<&'static str>>;

/// A part of an object that is changed while it is used.
#[derive(Clone, Debug)]
pub(crate) struct InPlace {
    /// The part, by a name that only its kind reads.
    pub(crate) step: &'static str,
    /// The plan's line for it, such as `change peer "io1": how it is reached`.
    pub(crate) text: String,
}

/// One object of any kind, as the configuration wants it.
pub(crate) trait AnyObject: fmt::Debug + Send + Sync {
    /// See [`Object::add`].
    fn add(&self, node: &Inside) -> Changed;
    /// See [`Object::change`].
    fn change(&self, step: &InPlace, node: &Inside) -> Changed;
}

impl<T: Object> AnyObject for T {
    fn add(&self, node: &Inside) -> Changed {
        Object::add(self, node)
    }

    fn change(&self, step: &InPlace, node: &Inside) -> Changed {
        Object::change(self, step, node)
    }
}

/// An object with an `allow`: its name for messages, the lines of its keys, the nodes allowed.
pub(crate) struct Allowed<'c> {
    pub(crate) object: String,
    pub(crate) lines: &'c Lines,
    pub(crate) allow: &'c [Allow],
}

/// A row of the table: [`Object`] without its type.
pub(crate) trait AnyKind: Sync {
    fn key(&self) -> &'static str;
    fn keys(&self) -> &'static [&'static str];
    fn keys_within(&self) -> &'static [(&'static str, &'static [&'static str])];
    fn needs(&self) -> &'static [&'static str];
    fn interrupts(&self) -> bool;

    /// Reads all tables of this kind that the file has.
    fn read(&self, file: &Table<'_, '_>, directories: &Directories, into: &mut ObjectConfigs);
    /// Notes what does not fit together.
    fn consistent(&self, reader: &Reader<'_>, config: &Config, whole: bool);
    fn names<'c>(&self, objects: &'c ObjectConfigs) -> Vec<&'c str>;
    /// Clears the lines of the last object: it came by a request, whose lines mean nothing later.
    fn forget_lines_of_last(&self, objects: &mut ObjectConfigs);
    /// Takes an object out of its list.
    fn forget(&self, objects: &mut ObjectConfigs, name: &str);
    /// Adds objects of another configuration that are missing and that `keep` names.
    fn keep(&self, from: &ObjectConfigs, into: &mut ObjectConfigs, keep: &dyn Fn(&str) -> bool);
    fn allowed<'c>(&self, objects: &'c ObjectConfigs) -> Vec<Allowed<'c>>;
    fn is_for_peers(&self, objects: &ObjectConfigs) -> bool;
    /// Leaves only nodes that both configurations allow; the changes, in words.
    fn revoke(&self, running: &mut ObjectConfigs, wanted: &ObjectConfigs) -> Vec<String>;

    /// Notes the objects that must be removed and added again.
    fn replaced(&self, running: &ObjectConfigs, wanted: &ObjectConfigs, replaced: &mut Replaced);
    /// The removals, also of objects that are added again.
    fn removals(
        &self,
        running: &ObjectConfigs,
        wanted: &ObjectConfigs,
        replaced: &Replaced,
    ) -> Vec<Change>;
    /// The additions and the changes in place.
    fn additions(
        &self,
        running: &ObjectConfigs,
        wanted: &ObjectConfigs,
        replaced: &Replaced,
    ) -> Vec<Change>;

    /// Ends the access of nodes that `before` allowed and `left` does not.
    fn readmit(&self, before: &ObjectConfigs, left: &ObjectConfigs, node: &Inside);
    /// See [`Object::remove`].
    fn remove(&self, name: &str, node: &Inside, force: bool) -> Changed;
    /// See [`Object::users`].
    fn users(&self, name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String>;
    /// The status of all objects of a running node, as a list in JSON.
    fn status(&self, node: &Inside) -> String;
    /// The status of one object, as JSON.
    fn status_of(&self, name: &str, node: &Inside) -> Option<String>;
}

const STATUS: &str = "a status is texts and numbers";

/// The row of a kind.
pub(super) const fn of<T: Object>() -> &'static dyn AnyKind {
    const { &KindRow::<T>(PhantomData) }
}

struct KindRow<T>(PhantomData<fn() -> T>);

fn find<'c, T: Object>(objects: &'c ObjectConfigs, name: &str) -> Option<&'c T> {
    T::all(objects).iter().find(|it| it.name() == name)
}

fn again<T: Object>(replaced: &Replaced, object: &T) -> Vec<&'static str> {
    replaced.get(&(T::KEY, object.name().to_owned())).cloned().unwrap_or_default()
}

impl<T: Object> AnyKind for KindRow<T> {
    fn key(&self) -> &'static str {
        T::KEY
    }

    fn keys(&self) -> &'static [&'static str] {
        T::KEYS
    }

    fn keys_within(&self) -> &'static [(&'static str, &'static [&'static str])] {
        T::KEYS_WITHIN
    }

    fn needs(&self) -> &'static [&'static str] {
        T::NEEDS
    }

    fn interrupts(&self) -> bool {
        T::INTERRUPTS
    }

    fn read(&self, file: &Table<'_, '_>, directories: &Directories, into: &mut ObjectConfigs) {
        T::all_mut(into).extend(objects(file, T::KEY, |value| T::read(&value, directories)));
    }

    fn consistent(&self, reader: &Reader<'_>, config: &Config, whole: bool) {
        let names = T::all(config).iter().map(|it| (it.name(), it.lines()));
        check::unique(reader, T::KEY, "name", names);
        T::consistent(reader, config, whole);
    }

    fn names<'c>(&self, objects: &'c ObjectConfigs) -> Vec<&'c str> {
        T::all(objects).iter().map(T::name).collect()
    }

    fn forget_lines_of_last(&self, objects: &mut ObjectConfigs) {
        let last = T::all_mut(objects).last_mut();
        last.into_iter().for_each(|last| *last.lines_mut() = Lines::default());
    }

    fn forget(&self, objects: &mut ObjectConfigs, name: &str) {
        T::all_mut(objects).retain(|it| it.name() != name);
    }

    fn keep(&self, from: &ObjectConfigs, into: &mut ObjectConfigs, keep: &dyn Fn(&str) -> bool) {
        let kept = T::all(from).iter().filter(|it| keep(it.name()));
        let missing = kept.filter(|it| find::<T>(into, it.name()).is_none());
        let missing: Vec<T> = missing.cloned().collect();
        T::all_mut(into).extend(missing);
    }

    fn allowed<'c>(&self, objects: &'c ObjectConfigs) -> Vec<Allowed<'c>> {
        let all = T::all(objects).iter().filter(|it| !it.allow().is_empty());
        let allowed = all.map(|it| Allowed {
            object: format!("{} {:?}", T::KEY, it.name()),
            lines: it.lines(),
            allow: it.allow(),
        });
        allowed.collect()
    }

    fn is_for_peers(&self, objects: &ObjectConfigs) -> bool {
        T::all(objects).iter().any(T::is_for_peers)
    }

    fn revoke(&self, running: &mut ObjectConfigs, wanted: &ObjectConfigs) -> Vec<String> {
        let mut changes = Vec::new();
        for object in T::all_mut(running) {
            let Some(wanted) = find::<T>(wanted, object.name()) else { continue };
            let left = common(object.allow(), wanted.allow());
            if left != object.allow() {
                let (kind, name) = (T::KEY, object.name());
                changes.push(format!("revoke what \"allow\" of {kind} {name:?} no longer says"));
                object.set_allow(left);
            }
        }
        changes
    }

    fn replaced(&self, running: &ObjectConfigs, wanted: &ObjectConfigs, replaced: &mut Replaced) {
        for now in T::all(running) {
            let Some(wanted) = find::<T>(wanted, now.name()) else { continue };
            let mut keys = now.replaced_for(wanted);
            if keys.is_empty()
                && let Some(whole) = now.part_of()
                && replaced.contains_key(&(whole.kind, whole.name.to_owned()))
            {
                keys.push(whole.said);
            }
            if !keys.is_empty() {
                replaced.insert((T::KEY, now.name().to_owned()), keys);
            }
        }
    }

    fn removals(
        &self,
        running: &ObjectConfigs,
        wanted: &ObjectConfigs,
        replaced: &Replaced,
    ) -> Vec<Change> {
        let going = T::all(running).iter().map(|now| (now, again(replaced, now)));
        let going = going
            .filter(|(now, again)| find::<T>(wanted, now.name()).is_none() || !again.is_empty());
        let kind = Kind::of::<T>();
        going.map(|(now, again)| Change::remove(kind, now.name(), again)).collect()
    }

    fn additions(
        &self,
        running: &ObjectConfigs,
        wanted: &ObjectConfigs,
        replaced: &Replaced,
    ) -> Vec<Change> {
        let (kind, mut changes) = (Kind::of::<T>(), Vec::new());
        for object in T::all(wanted) {
            let now = find::<T>(running, object.name());
            let shared = || Arc::new(object.clone());
            match now.filter(|now| again(replaced, *now).is_empty()) {
                None => changes.push(Change::add(kind, object.name(), shared(), object.added_to())),
                Some(now) => {
                    let in_place = now.in_place(object).into_iter();
                    changes.extend(
                        in_place.map(|it| Change::in_place(kind, object.name(), shared(), it)),
                    );
                }
            }
        }
        changes
    }

    fn readmit(&self, before: &ObjectConfigs, left: &ObjectConfigs, node: &Inside) {
        for left in T::all(left) {
            if find::<T>(before, left.name()).is_some_and(|it| it.allow() != left.allow()) {
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
