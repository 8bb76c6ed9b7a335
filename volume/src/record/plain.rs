//! Records of older programs, which have a checksum and no code.
//!
//! They are believed only while their directory was never written by a program that makes codes.

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::sealed::{Body, RecordBody};
use super::{REPLACED_MAX, Record};
use crate::name::{NAME_BYTES_MAX, Name};
use crate::volume::Incarnation;
use peer::AttachmentKey;

/// Version 1, and the beginning of version 2.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Plain {
    magic: [u8; 4],
    version: U32,
    epoch: U64,
    claimant: U64,
    incarnation: [u8; 16],
    replaced: [U64; REPLACED_MAX],
    clean: U32,
    /// CRC-32C of everything before it.
    crc: U32,
}

/// The fields that version 2 adds.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct VersionTwoFields {
    born: U64,
    node: [u8; NAME_BYTES_MAX + 1],
    key: [u8; 32],
    has_key: U32,
    /// CRC-32C of everything before it.
    crc: U32,
}

/// Whether the last four bytes are the checksum of all others.
fn is_sound(bytes: &[u8]) -> bool {
    let Some((said, crc)) = bytes.split_last_chunk::<4>() else { return false };
    checksum(Crc32Iscsi, said) == u64::from(u32::from_le_bytes(*crc))
}

/// The record in a sound file of an older program; `None` for any other file.
pub(super) fn read(bytes: &[u8]) -> Option<Record> {
    let (plain, rest) = Plain::read_from_prefix(bytes).ok()?;
    let (version, first) = (plain.version.get(), &bytes[..size_of::<Plain>()]);
    if plain.magic != RecordBody::KIND || !is_sound(first) {
        return None;
    }
    let mut record = Record {
        epoch: plain.epoch.get(),
        claimant: plain.claimant.get(),
        incarnation: Incarnation(plain.incarnation),
        replaced: plain.replaced.map(U64::get),
        clean: plain.clean.get() != 0,
        ..Record::default()
    };
    if version == 1 {
        return rest.is_empty().then_some(record);
    }
    let more = VersionTwoFields::read_from_bytes(rest).ok()?;
    if version != 2 || !is_sound(bytes) {
        return None;
    }
    record.born = more.born.get();
    record.node = Name::from_bytes(more.node).unwrap_or_default();
    record.key = (more.has_key.get() != 0).then_some(AttachmentKey(more.key));
    Some(record)
}

/// A file as older programs wrote it, for tests of its readers.
#[cfg(test)]
pub(super) fn write(version: u32, record: &Record) -> Vec<u8> {
    let with_crc = |mut bytes: Vec<u8>| {
        let crc = checksum(Crc32Iscsi, &bytes[..bytes.len() - 4]) as u32;
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    let plain = Plain {
        magic: RecordBody::KIND,
        version: version.into(),
        epoch: record.epoch.into(),
        claimant: record.claimant.into(),
        incarnation: record.incarnation.0,
        replaced: record.replaced.map(U64::new),
        clean: u32::from(record.clean).into(),
        crc: 0.into(),
    };
    let first = with_crc(plain.as_bytes().to_vec());
    if version == 1 {
        return first;
    }
    let more = VersionTwoFields {
        born: record.born.into(),
        node: *record.node.bytes(),
        key: record.key.map_or([0; 32], |key| key.0),
        has_key: u32::from(record.key.is_some()).into(),
        crc: 0.into(),
    };
    with_crc([first, more.as_bytes().to_vec()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_records_are_read_and_damaged_ones_are_not() {
        let mut record = Record {
            epoch: 7,
            claimant: 9,
            incarnation: Incarnation([3; 16]),
            clean: true,
            replaced: [5; REPLACED_MAX],
            ..Record::default()
        };
        for version in [1, 2] {
            let bytes = write(version, &record);
            assert_eq!(read(&bytes), Some(record));
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read(&other), None, "bit {bit} of version {version}");
            }
            for len in 0..bytes.len() {
                assert_eq!(read(&bytes[..len]), None, "{len} bytes of version {version}");
            }
            (record.born, record.node) = (4, Name::new("vm1"));
            record.key = Some(AttachmentKey([4; 32]));
        }
        assert_eq!(read(&write(3, &record)), None);
    }
}
