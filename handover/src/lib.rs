//! The one way in which parts of a node hand their state over to a successor.
//!
//! A part that goes over has a state: a type with serde, in the part's own crate. A descriptor in a
//! state is a [`DescriptorNumber`], and each part has the same two functions:
//!
//! ```text
//!   node        part.take_down(&mut SentDescriptors)         ──▶ its state
//!                      all states as JSON, and all descriptors beside them
//!   successor   Part::adopt(state, &mut ReceivedDescriptors) ──▶ the part, which does not work yet
//! ```
//!
//! The node numbers the descriptors of all parts in one list and sends all states in one message
//! (`node/src/wiring/hand_over.rs`). The message has one version, [`STATE_VERSION`]. The names of a
//! state's fields are a format between releases: where a field's name has changed, `serde(rename)`
//! keeps the old one.

pub mod channel;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

/// The version of all states. A node hands over only to a program with the same version. A change
/// of a field's meaning takes a new version; a new field with a default does not.
///
/// | version | new in it |
/// | --- | --- |
/// | 3 | networks and nics |
/// | 4 | an interface that a network has by AF_XDP |
/// | 5 | the registration socket of domains |
/// | 6 | conversations of filters |
/// | 7 | domains with their members, and the checks of volumes' keys |
pub const STATE_VERSION: u32 = 7;

/// The number of a descriptor: its place among those that go along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DescriptorNumber(usize);

impl DescriptorNumber {
    /// The number of the descriptor at this place.
    pub const fn new(place: usize) -> Self {
        Self(place)
    }
}

/// Descriptors that go along, in the order of their numbers.
#[derive(Debug, Default)]
pub struct SentDescriptors(Vec<OwnedFd>);

impl SentDescriptors {
    /// Puts a descriptor to those that go along.
    pub fn put(&mut self, descriptor: OwnedFd) -> DescriptorNumber {
        self.0.push(descriptor);
        DescriptorNumber(self.0.len() - 1)
    }

    /// Puts a copy of a descriptor to those that go along.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn put_copy(&mut self, descriptor: impl AsFd) -> io::Result<DescriptorNumber> {
        Ok(self.put(descriptor.as_fd().try_clone_to_owned()?))
    }

    /// Puts bytes that are too many for the JSON into a memory file, which goes along.
    ///
    /// # Errors
    /// When the system has no memory, or the process no more descriptors.
    pub fn put_bytes(&mut self, file_name: &str, bytes: &[u8]) -> io::Result<DescriptorNumber> {
        let mut file = File::from(memfd_create(file_name, MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(self.put(file.into()))
    }

    /// The descriptors, in the order of their numbers.
    pub fn as_slice(&self) -> &[OwnedFd] {
        &self.0
    }

    /// The descriptors as the successor receives them.
    pub fn into_received(self) -> ReceivedDescriptors {
        ReceivedDescriptors::new(self.0)
    }
}

/// Descriptors that came. Each is taken once.
#[derive(Debug, Default)]
pub struct ReceivedDescriptors(Vec<Option<OwnedFd>>);

impl ReceivedDescriptors {
    /// Descriptors in the order of their numbers.
    pub fn new(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors.into_iter().map(Some).collect())
    }

    /// Takes a descriptor.
    ///
    /// # Errors
    /// When it has not arrived, or was taken before.
    pub fn take(&mut self, number: DescriptorNumber) -> io::Result<OwnedFd> {
        let DescriptorNumber(place) = number;
        let descriptor = self.0.get_mut(place).and_then(Option::take);
        descriptor.ok_or_else(|| io::Error::other(format!("descriptor {place} has not arrived")))
    }

    /// Takes a descriptor, if the state has its number.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_any(&mut self, number: Option<DescriptorNumber>) -> io::Result<Option<OwnedFd>> {
        number.map(|number| self.take(number)).transpose()
    }

    /// Takes the bytes that [`SentDescriptors::put_bytes`] has put, at most `bytes_max`.
    ///
    /// # Errors
    /// When the file has not arrived, or cannot be read.
    pub fn take_bytes(&mut self, number: DescriptorNumber, bytes_max: u64) -> io::Result<Vec<u8>> {
        let (mut file, mut bytes) = (File::from(self.take(number)?), Vec::new());
        file.rewind()?;
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[doc(hidden)]
pub use serde;

/// Declares a part of a state that is an array in JSON, as a tuple is, and whose fields have names
/// in the program.
///
/// ```
/// handover::array_state! {
///     /// A place in a house.
///     #[derive(Debug, PartialEq)]
///     pub struct RoomPlace {
///         /// The floor.
///         pub floor: u16,
///         /// The door.
///         pub door: u32,
///     }
/// }
///
/// let place = RoomPlace { floor: 1, door: 2 };
/// assert_eq!(serde_json::to_string(&place).unwrap(), "[1,2]");
/// assert_eq!(serde_json::from_str::<RoomPlace>("[1,2]").unwrap(), place);
/// ```
#[macro_export]
macro_rules! array_state {
    (
        $(#[$attribute:meta])*
        $seen:vis struct $state:ident {
            $($(#[$field_attribute:meta])* $field_seen:vis $field:ident: $kind:ty,)*
        }
    ) => {
        $(#[$attribute])*
        $seen struct $state {
            $($(#[$field_attribute])* $field_seen $field: $kind,)*
        }

        impl $crate::serde::Serialize for $state {
            fn serialize<S: $crate::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                $crate::serde::Serialize::serialize(&($(&self.$field,)*), serializer)
            }
        }

        impl<'de> $crate::serde::Deserialize<'de> for $state {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                let ($($field,)*) = $crate::serde::Deserialize::deserialize(deserializer)?;
                Ok(Self { $($field,)* })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_is_taken_once_by_its_number() {
        let mut sent = SentDescriptors::default();
        let numbers = [b"one", b"two"].map(|bytes| sent.put_bytes("test", bytes).unwrap());
        let copy = sent.put_copy(sent.as_slice()[1].try_clone().unwrap()).unwrap();
        assert_eq!(sent.as_slice().len(), 3);
        let mut received = sent.into_received();
        assert_eq!(received.take_bytes(copy, 99).unwrap(), b"two");
        assert_eq!(received.take_bytes(numbers[0], 2).unwrap(), b"on", "not more than may be");
        assert_eq!(received.take_bytes(numbers[1], 99).unwrap(), b"two");
        assert!(received.take_any(None).unwrap().is_none());
        for gone in [numbers[0], DescriptorNumber::new(3)] {
            let error = received.take(gone).unwrap_err().to_string();
            assert!(error.contains("has not arrived"), "{error}");
        }
    }

    #[test]
    fn a_number_is_a_number_in_json() {
        assert_eq!(serde_json::to_string(&DescriptorNumber::new(7)).unwrap(), "7");
        assert_eq!(serde_json::from_str::<DescriptorNumber>("7").unwrap().0, 7);
    }
}
