//! The records of a cluster as they are stored: JSON with a version, for people with `etcdctl` as
//! well. `docs/cluster.md` describes each field.

use data_encoding::BASE64;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::RegistryError;
use crate::key::Key;

/// The version of all records. A program refuses a record of a version that it does not know; a
/// field that it does not know is not a reason, and is lost when the program changes the record.
const VERSION: u64 = 1;

/// A record of its kind with the version before it.
#[derive(Serialize, Deserialize)]
struct VersionedRecord<T> {
    version: u64,
    #[serde(flatten)]
    record: T,
}

#[derive(Deserialize)]
struct VersionAlone {
    version: u64,
}

/// The bytes of a record.
pub(crate) fn stored<T: Serialize>(record: &T) -> Vec<u8> {
    let whole = VersionedRecord { version: VERSION, record };
    serde_json::to_vec(&whole).expect("numbers and texts")
}

/// The record in the value of a key.
pub(crate) fn read<T: DeserializeOwned>(key: &Key, value: &[u8]) -> Result<T, RegistryError> {
    let damaged = |error: serde_json::Error| RegistryError::Damaged {
        place: key.to_string(),
        reason: error.to_string(),
    };
    let VersionAlone { version } = serde_json::from_slice(value).map_err(damaged)?;
    if version != VERSION {
        return Err(RegistryError::OtherVersion {
            place: key.to_string(),
            found: version,
            known: VERSION,
        });
    }
    let whole: VersionedRecord<T> = serde_json::from_slice(value).map_err(damaged)?;
    Ok(whole.record)
}

/// The cluster itself, at `/vrio/ID/cluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Its id: 16 random bytes in hexadecimal digits.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
}

/// A node that has joined, at `/vrio/ID/nodes/NAME`. It stays while the node is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// The public half of its key, as peers write it; none for a node without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it joined, in seconds since 1970.
    pub joined_s: u64,
    /// The id of the token that it has used.
    pub token: String,
}

/// A node that is there, at `/vrio/ID/present/NAME`, under a lease of its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceRecord {
    /// The agent that keeps it: a random number of its start. Two machines with one node's
    /// configuration are told apart by it.
    pub agent: String,
    /// Where peers reach the node; empty for a node without peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Its pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolSpace>,
    /// The version of its program.
    pub program: String,
    /// When it appeared, in seconds since 1970.
    pub since_s: u64,
    /// When the certificate of its agent ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends_s: Option<u64>,
}

/// The space of a pool. It is told in steps of a sixteenth, so that a busy pool is no busy
/// registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpace {
    /// The pool's name.
    pub name: String,
    /// The kind of its devices, as the node's configuration names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The most that it can hold.
    pub size_bytes: u64,
    /// How much of that is free, rounded down.
    pub free_bytes: u64,
}

impl PoolSpace {
    /// The space of a pool without a class.
    pub fn new(name: &str, size_bytes: u64, used_bytes: u64) -> Self {
        let (free, step) = (size_bytes.saturating_sub(used_bytes), (size_bytes / 16).max(1));
        Self { name: name.to_owned(), class: None, size_bytes, free_bytes: free / step * step }
    }
}

/// A right to join, at `/vrio/ID/tokens/TOKEN`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// When it ends, in seconds since 1970.
    pub ends_s: u64,
    /// The node that has used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_s: Option<u64>,
}

/// A volume, at `/vrio/ID/volumes/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Grows with each change.
    pub epoch: u64,
    /// The content on which the volume's members agree: bytes to the registry, in Base64.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub content: Vec<u8>,
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    BASE64.decode(text.as_bytes()).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("/vrio/1/x").unwrap()
    }

    /// The stored form stays: other releases read it.
    #[test]
    fn records_are_stored_as_they_are_documented() {
        let cluster = ClusterRecord { id: "ab".to_owned(), name: "rack".to_owned(), made_s: 5 };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let wanted = r#"{"version":1,"id":"ab","name":"rack","made_s":5}"#;
        assert_eq!(text(stored(&cluster)), wanted);
        let node =
            NodeRecord { name: "io1".to_owned(), key: None, joined_s: 7, token: "t".to_owned() };
        let wanted = r#"{"version":1,"name":"io1","joined_s":7,"token":"t"}"#;
        assert_eq!(text(stored(&node)), wanted);
        let token = TokenRecord { made_s: 1, ends_s: 2, used_by: None, used_s: None };
        assert_eq!(text(stored(&token)), r#"{"version":1,"made_s":1,"ends_s":2}"#);
        let present = PresenceRecord {
            agent: "a".to_owned(),
            addresses: vec!["10.0.0.1:4870".to_owned()],
            pools: vec![PoolSpace {
                class: Some("ssd".to_owned()),
                ..PoolSpace::new("p", 160, 75)
            }],
            program: "0.1.0".to_owned(),
            since_s: 3,
            certificate_ends_s: Some(4),
        };
        let wanted = concat!(
            r#"{"version":1,"agent":"a","addresses":["10.0.0.1:4870"],"#,
            r#""pools":[{"name":"p","class":"ssd","size_bytes":160,"free_bytes":80}],"#,
            r#""program":"0.1.0","since_s":3,"certificate_ends_s":4}"#
        );
        assert_eq!(text(stored(&present)), wanted);
        let volume = VolumeRecord { epoch: 9, content: b"\x00\xff".to_vec() };
        let bytes = stored(&volume);
        assert_eq!(text(bytes.clone()), r#"{"version":1,"epoch":9,"content":"AP8="}"#);
        assert_eq!(read::<VolumeRecord>(&key(), &bytes).unwrap(), volume);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_with_its_key() {
        for (value, wanted) in [
            ("", "/vrio/1/x is damaged"),
            ("{}", "/vrio/1/x is damaged"),
            ("[1]", "/vrio/1/x is damaged"),
            (r#"{"version":1}"#, "missing field"),
            (r#"{"version":1,"epoch":1,"content":"AP8"}"#, "/vrio/1/x is damaged"),
            (r#"{"version":1,"epoch":-1,"content":""}"#, "/vrio/1/x is damaged"),
            (r#"{"version":2,"else":true}"#, "/vrio/1/x has version 2"),
        ] {
            let error = read::<VolumeRecord>(&key(), value.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{value}: {error}");
        }
        let more = r#"{"version":1,"epoch":1,"content":"","colour":"red"}"#;
        assert_eq!(read::<VolumeRecord>(&key(), more.as_bytes()).unwrap().epoch, 1);
    }

    #[test]
    fn space_is_told_in_steps() {
        let free = |used| PoolSpace::new("p", 1600, used).free_bytes;
        assert_eq!(
            [free(0), free(1), free(99), free(101), free(1600), free(9999)],
            [1600, 1500, 1500, 1400, 0, 0]
        );
        assert_eq!(PoolSpace::new("p", 0, 0).free_bytes, 0);
    }
}
