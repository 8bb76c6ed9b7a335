//! Public keys in a configuration: those of peers, and those of `allow`.

use peer::{Allow, AttachmentKey};
use transport::PublicKey;

use crate::key_table::{SettingKey, key};
use crate::reader::Value;
use crate::values::name;

/// The keys of an entry of `allow`.
pub(crate) const ALLOW_KEYS: [SettingKey; 2] = [
    key("node", "The name of the other node."),
    key("key", "The public half of the attachment key that a disk or nic of that node must prove."),
];

/// Reads an entry of a volume's `allow`.
pub(crate) fn allow(value: &Value<'_, '_>) -> Option<Allow> {
    if !value.is_table() {
        return name(value).map(|node| Allow { node, key: None });
    }
    let table = value.table_of(&ALLOW_KEYS)?;
    let node = table.require("node", "{ node = \"vm1\", key = \"..\" }");
    let node = node.and_then(|value| name(&value));
    let key = table.require("key", "{ node = \"vm1\", key = \"..\" }");
    let key = key.and_then(|value| public_key(&value));
    Some(Allow { node: node?, key: Some(AttachmentKey(key?)) })
}

/// The bytes of a public key. The message does not repeat an unreadable text: it may be a secret.
pub(crate) fn public_key(value: &Value<'_, '_>) -> Option<[u8; 32]> {
    let key: Result<PublicKey, _> = value.str()?.parse();
    if key.is_err() {
        let text = "this is not a public key: it has 32 bytes in Base64 (44 characters, the last \
                    one is \"=\"), and `vrio key show FILE` prints it";
        value.fail(text.to_owned());
    }
    key.ok().map(|PublicKey(bytes)| bytes)
}
