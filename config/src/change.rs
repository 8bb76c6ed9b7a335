//! One step of the way from one configuration to another.

use std::fmt;
use std::sync::Arc;

use peer::Allow;

use crate::kinds::Kind;
use crate::object::{AnyObject, InPlace};

/// One step. In the order of [`crate::changes`], each step finds the objects that it needs.
#[derive(Clone, Debug)]
pub struct Change {
    kind: Kind,
    name: String,
    step: ChangeStep,
}

/// The fate of the object.
#[derive(Clone, Debug)]
pub enum ChangeStep {
    /// The object is removed. The keys are the reasons why it is added again; none if it is gone
    /// for good.
    Remove(Vec<&'static str>),
    /// The object is started; the text names the object that it becomes a part of.
    Add(Arc<dyn AnyObject>, String),
    /// The object is changed while it is used.
    InPlace(Arc<dyn AnyObject>, InPlace),
}

impl Change {
    /// Takes an object away; the keys for which it is added again, none if it is gone for good.
    pub fn remove(kind: Kind, name: &str, again: Vec<&'static str>) -> Self {
        Self { kind, name: name.to_owned(), step: ChangeStep::Remove(again) }
    }

    pub(crate) fn add(kind: Kind, name: &str, object: Arc<dyn AnyObject>, to: String) -> Self {
        Self { kind, name: name.to_owned(), step: ChangeStep::Add(object, to) }
    }

    pub(crate) fn in_place(
        kind: Kind,
        name: &str,
        object: Arc<dyn AnyObject>,
        part: InPlace,
    ) -> Self {
        Self { kind, name: name.to_owned(), step: ChangeStep::InPlace(object, part) }
    }

    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fate of the object.
    pub fn step(&self) -> &ChangeStep {
        &self.step
    }

    /// The object of the change, such as `disk "alice"`.
    pub fn object(&self) -> String {
        format!("{} {:?}", self.kind.key(), self.name)
    }

    /// Whether the change removes an object, for good or to add it again.
    pub fn removes(&self) -> bool {
        matches!(self.step, ChangeStep::Remove(_))
    }

    /// Whether a guest or a peer that uses the object notices: it waits, or needs `--force`.
    pub fn interrupts(&self) -> bool {
        self.removes() && self.kind.row().interrupts()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.object();
        match &self.step {
            ChangeStep::Remove(again) if again.is_empty() => write!(f, "remove {object}"),
            ChangeStep::Remove(again) => {
                let again = again.join(", ");
                write!(f, "remove {object}, to add it again below ({again} changed)")
            }
            ChangeStep::Add(_, to) => write!(f, "add {object}{to}"),
            ChangeStep::InPlace(_, part) => f.write_str(&part.text),
        }
    }
}

/// The nodes that both lists allow.
pub(crate) fn common(one: &[Allow], other: &[Allow]) -> Vec<Allow> {
    let lets_in = |list: &[Allow], entry: &Allow| {
        list.iter().any(|it| it.node == entry.node && (it.key.is_none() || it.key == entry.key))
    };
    let mut both: Vec<_> = one.iter().filter(|entry| lets_in(other, entry)).cloned().collect();
    for entry in other.iter().filter(|entry| lets_in(one, entry)) {
        if !both.contains(entry) {
            both.push(entry.clone());
        }
    }
    both
}
