//! Packets written by hand, after `docs/protocol.md` and not with the crate's own code.

pub(crate) const DATA: u8 = 0;
pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSED: u8 = 3;
pub(crate) const RESET: u8 = 5;
pub(crate) const RETRY: u8 = 6;
pub(crate) const SEALED: u8 = 7;

/// The header of packets that are not sealed.
pub(crate) const HEADER: usize = 32;

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
    guard(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// Makes the checksum of the head right; there is no payload.
pub(crate) fn guard(bytes: &mut [u8]) {
    let head_crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&head_crc.to_le_bytes());
}

/// A handshake packet without what fills it up.
pub(crate) fn bare(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(HEADER + frames_bytes(&bytes));
    bytes[24..30].fill(0);
    guard(&mut bytes);
    bytes
}

pub(crate) fn kind(datagram: &[u8]) -> u8 {
    datagram[5]
}

/// Bytes of frames: of a sealed packet, of the others what the head has beside the header.
pub(crate) fn frames_bytes(datagram: &[u8]) -> usize {
    let bytes = usize::from(u16::from_le_bytes([datagram[6], datagram[7]]));
    if kind(datagram) == SEALED { bytes } else { bytes - HEADER }
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
