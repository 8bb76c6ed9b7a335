//! The form of a replicated volume: the parts that all of its members must have alike.

use std::collections::BTreeMap;

use replica::MemberId;
use replica::wire::WIRE_FORM_BYTES;
use volume::Incarnation;

/// A digest of the list of a volume's nodes, its size, and its settings. A member is known by its
/// place in the list, and an operation must fit each copy; so members of different forms take no
/// messages of each other. The list and the size of a volume that the cluster has placed may
/// change, and a place in the list has one node for ever: such a form has the number of the
/// placement instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeForm(pub(crate) [u8; WIRE_FORM_BYTES]);

impl VolumeForm {
    /// The form of a volume with these members and this size. `settings` are all other parts that
    /// its members must have alike, each as text. Without nodes, and with a size of 0, they have
    /// the placement.
    pub fn of(nodes: &BTreeMap<MemberId, String>, size_bytes: u64, settings: &[String]) -> Self {
        let (size, members) = (size_bytes.to_le_bytes(), [nodes.len() as u8]);
        let mut parts: Vec<&[u8]> = vec![&size, &members];
        for (member, node) in nodes {
            parts.extend([std::slice::from_ref(member), node.as_bytes()]);
        }
        parts.extend(settings.iter().map(String::as_bytes));
        Self(Incarnation::digest(&parts).0)
    }
}

impl VolumeForm {
    /// The form as this member says it to other members. They know a member by its node, and its
    /// place in their lists must be the place that the member has: a copy of before a node left
    /// and came back would count as the node's present copy.
    #[must_use]
    pub fn said_by(self, member: MemberId) -> Self {
        Self(Incarnation::digest(&[&self.0, &[member]]).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_another_form() {
        let list = |nodes: &[&str]| (0..).zip(nodes.iter().map(|it| (*it).to_owned())).collect();
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let form = VolumeForm::of(&list(&["io1", "io2"]), 4096, &texts(&["a", "b"]));
        assert_eq!(form, VolumeForm::of(&list(&["io1", "io2"]), 4096, &texts(&["a", "b"])));
        for other in [
            VolumeForm::of(&list(&["io2", "io1"]), 4096, &texts(&["a", "b"])),
            VolumeForm::of(&list(&["io1", "io2", "io3"]), 4096, &texts(&["a", "b"])),
            VolumeForm::of(&list(&["io1"]), 4096, &texts(&["io2", "a", "b"])),
            VolumeForm::of(&list(&["io1", "io2"]), 8192, &texts(&["a", "b"])),
            VolumeForm::of(&list(&["io1", "io2"]), 4096, &texts(&["a"])),
            VolumeForm::of(&list(&["io1", "io2"]), 4096, &texts(&["ab"])),
            VolumeForm::of(&list(&["io1", "io2"]), 4096, &texts(&["b", "a"])),
        ] {
            assert_ne!(form, other);
        }
        assert_ne!(form.said_by(0), form.said_by(1));
        assert_eq!(form.said_by(1), form.said_by(1));
    }
}
