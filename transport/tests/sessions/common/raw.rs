//! Packets written by hand, after `docs/protocol.md` and not with the crate's own code.

pub(crate) const DATA: u8 = 0;
pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSED: u8 = 3;
pub(crate) const RESET: u8 = 5;

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A datagram with right lengths and checksums.
pub(crate) fn packet(
    kind: u8,
    session: u64,
    number: u64,
    frames: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.push(u8::from(kind == DATA));
    bytes.push(kind);
    bytes.extend_from_slice(&(32 + frames.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    let payload_crc = if payload.is_empty() { 0 } else { crc32c(payload) };
    bytes.extend_from_slice(&payload_crc.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(frames);
    let head_crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&head_crc.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

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

pub(crate) fn kind(datagram: &[u8]) -> u8 {
    datagram[5]
}

pub(crate) fn head_bytes(datagram: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([datagram[6], datagram[7]]))
}

/// The receiver's id for the session.
pub(crate) fn session(datagram: &[u8]) -> u64 {
    word(datagram, 8)
}

pub(crate) fn number(datagram: &[u8]) -> u64 {
    word(datagram, 16)
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
