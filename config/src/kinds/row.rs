//! The rows of the table of kinds: an [`Object`] without its type.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use peer::Allow;

use super::{Kind, ListedObject, ObjectConfigs};
use crate::change::{Change, common};
use crate::checks::{Surroundings, unique};
use crate::key_table::{KeyTable, SettingKey};
use crate::reader::{Lines, Reader, TableReader};
use crate::sections::Directories;
use crate::values::objects;

/// By kind and name, the keys for which an object is removed and added again.
pub(crate) type Replaced = HashMap<(&'static str, String), Vec<&'static str>>;

/// An object with an `allow`: its name for messages, the lines of its keys, the nodes allowed.
#[derive(Debug)]
pub struct Allowed<'c> {
    pub object: String,
    pub lines: &'c Lines,
    pub allow: &'c [Allow],
    /// Whether the node itself may be among the nodes.
    pub may_be_own: bool,
}

/// A row of the table: [`Object`] without its type.
pub trait AnyKind: Sync {
    fn key(&self) -> &'static str;
    fn keys(&self) -> &'static [SettingKey];
    fn keys_within(&self, key: &str) -> Option<Vec<&'static str>>;
    /// The tables of the manual, the object's own first.
    fn manual(&self) -> Vec<KeyTable>;
    fn needs(&self) -> &'static [&'static str];
    fn interrupts(&self) -> bool;

    /// Reads all tables of this kind that the file has.
    fn read(&self, file: &TableReader<'_, '_>, directories: &Directories, into: &mut ObjectConfigs);
    /// Notes what does not fit together.
    fn consistent(&self, reader: &Reader<'_>, objects: &ObjectConfigs, around: &Surroundings<'_>);
    /// The objects' names.
    fn names<'c>(&self, objects: &'c ObjectConfigs) -> Vec<&'c str>;
    /// The objects' sockets.
    fn sockets<'c>(&self, objects: &'c ObjectConfigs) -> Vec<&'c Path>;
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
}

/// The row of a kind.
pub(super) const fn of<T: ListedObject>() -> &'static dyn AnyKind {
    const { &KindRow::<T>(PhantomData) }
}

struct KindRow<T>(PhantomData<fn() -> T>);

fn find<'c, T: ListedObject>(objects: &'c ObjectConfigs, name: &str) -> Option<&'c T> {
    T::all(objects).iter().find(|it| it.name() == name)
}

fn again<T: ListedObject>(replaced: &Replaced, object: &T) -> Vec<&'static str> {
    replaced.get(&(T::KEY, object.name().to_owned())).cloned().unwrap_or_default()
}

impl<T: ListedObject> AnyKind for KindRow<T> {
    fn key(&self) -> &'static str {
        T::KEY
    }

    fn keys(&self) -> &'static [SettingKey] {
        T::keys()
    }

    fn keys_within(&self, key: &str) -> Option<Vec<&'static str>> {
        T::keys_within(key)
    }

    fn manual(&self) -> Vec<KeyTable> {
        let table = format!("[[{}]]", T::KEY);
        let own = KeyTable::new(&table, &format!("{table}\n?"), T::keys());
        [own].into_iter().chain(T::inner_tables()).collect()
    }

    fn needs(&self) -> &'static [&'static str] {
        T::NEEDS
    }

    fn interrupts(&self) -> bool {
        T::INTERRUPTS
    }

    fn read(
        &self,
        file: &TableReader<'_, '_>,
        directories: &Directories,
        into: &mut ObjectConfigs,
    ) {
        T::all_mut(into).extend(objects(file, T::KEY, |value| T::read(&value, directories)));
    }

    fn consistent(&self, reader: &Reader<'_>, objects: &ObjectConfigs, around: &Surroundings<'_>) {
        let all = T::all(objects);
        unique(reader, T::KEY, "name", all.iter().map(|it| (it.name(), it.lines())));
        T::consistent(reader, all, around);
    }

    fn names<'c>(&self, objects: &'c ObjectConfigs) -> Vec<&'c str> {
        T::all(objects).iter().map(T::name).collect()
    }

    fn sockets<'c>(&self, objects: &'c ObjectConfigs) -> Vec<&'c Path> {
        T::all(objects).iter().filter_map(T::socket).collect()
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
            may_be_own: it.has_copies(),
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
                changes.push(format!(
                    "revoke rights that \"allow\" of {kind} {name:?} no longer \
                                      has"
                ));
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
}
