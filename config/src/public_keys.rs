//! Public keys in a configuration: those of peers, and those of `allow`.

use peer::{Allow, AttachmentKey};
use transport::PublicKey;

use crate::reader::Value;
use crate::values::name;

/// Reads an entry of a volume's `allow`.
pub(crate) fn allow(value: &Value<'_, '_>) -> Option<Allow> {
    if !value.is_table() {
        return name(value).map(|node| Allow { node, key: None });
    }
    let table = value.table(&["node", "key"])?;
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
