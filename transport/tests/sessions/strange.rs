//! Parts of plain packets that no honest node sends.

pub(crate) const MOVED: u8 = 4;

/// The frame in front of a fragment.
pub(crate) fn fragment(
    kind: u8,
    head: u8,
    flow: u16,
    body: u32,
    id: u64,
    fragment: u16,
) -> Vec<u8> {
    let mut bytes = vec![kind, head];
    bytes.extend_from_slice(&flow.to_le_bytes());
    bytes.extend_from_slice(&body.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&fragment.to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes
}

/// The frames of a Hello, from a peer that claims to be anyone.
pub(crate) fn greeting(
    name: &str,
    session: u64,
    nonce: u64,
    versions: (u8, u8),
    index: u16,
) -> Vec<u8> {
    let mut bytes = vec![versions.0, versions.1, 0, name.len() as u8];
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes.extend_from_slice(&1u16.to_le_bytes());
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.extend_from_slice(&nonce.to_le_bytes());
    bytes.extend_from_slice(&8972u32.to_le_bytes());
    bytes.extend_from_slice(&(4u32 << 20).to_le_bytes());
    bytes.extend_from_slice(&(8u32 << 20).to_le_bytes());
    bytes.extend_from_slice(&1024u16.to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(104, 0);
    bytes
}
