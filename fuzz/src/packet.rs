//! Packets written by hand, after `docs/protocol.md` and not with the transport's own code.

/// The header in front of every datagram.
pub(crate) const HEADER_BYTES: usize = 32;

pub(crate) const DATA: u8 = 0;

/// Frames in this and the next two bytes of the header.
pub(crate) const AT_KIND: usize = 5;
const AT_HEAD_BYTES: usize = 6;
const AT_SESSION: usize = 8;
const AT_NUMBER: usize = 16;
const AT_PAYLOAD_CRC: usize = 24;
const AT_PAYLOAD_BYTES: usize = 28;

/// CRC32C as the protocol uses it.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(crc).expect("a CRC of 32 bits")
}

/// A datagram with right lengths and checksums.
pub(crate) fn packet(
    (version, kind): (u8, u8),
    session: u64,
    number: u64,
    frames: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[4] = version;
    bytes[AT_KIND] = kind;
    bytes[AT_SESSION..AT_NUMBER].copy_from_slice(&session.to_le_bytes());
    bytes[AT_NUMBER..AT_PAYLOAD_CRC].copy_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(frames);
    bytes.extend_from_slice(payload);
    seal(&mut bytes, HEADER_BYTES + frames.len());
    bytes
}

/// Makes lengths and checksums right, with so many bytes of header and frames.
pub(crate) fn seal(bytes: &mut [u8], head_bytes: usize) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let head_bytes = head_bytes.clamp(HEADER_BYTES, bytes.len());
    let (head, payload) = bytes.split_at_mut(head_bytes);
    let payload_crc = if payload.is_empty() { 0 } else { crc32c(payload) };
    // A datagram has at most 65507 bytes.
    head[AT_HEAD_BYTES..AT_SESSION].copy_from_slice(&(head_bytes as u16).to_le_bytes());
    head[AT_PAYLOAD_CRC..AT_PAYLOAD_BYTES].copy_from_slice(&payload_crc.to_le_bytes());
    let payload_bytes = payload.len() as u16;
    head[AT_PAYLOAD_BYTES..AT_PAYLOAD_BYTES + 2].copy_from_slice(&payload_bytes.to_le_bytes());
    let head_crc = crc32c(&head[4..]);
    head[..4].copy_from_slice(&head_crc.to_le_bytes());
}

/// The bytes of header and frames that a datagram says it has.
pub(crate) fn head_bytes(datagram: &[u8]) -> usize {
    let said = [datagram.get(AT_HEAD_BYTES), datagram.get(AT_HEAD_BYTES + 1)];
    let [low, high] = said.map(|byte| byte.copied().unwrap_or_default());
    usize::from(u16::from_le_bytes([low, high]))
}

/// The receiver's id for the session, of a datagram that has a header.
pub(crate) fn session(datagram: &[u8]) -> u64 {
    word(datagram, AT_SESSION)
}

/// Its number.
pub(crate) fn number(datagram: &[u8]) -> u64 {
    word(datagram, AT_NUMBER)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
