//! Changes of a pool's devices by a hostile hand, which makes all checks right again.

use serde_json::Value;
use store::block::{BLOCK_BYTES, Block};
use store::format::{
    BlockPlace, LogRecord, PageEntry, RowHead, Superblock, TableKind, TagDomain, superblock_blocks,
    tag_crc,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::memory::MemoryDevices;
use crate::pool::{DEVICES, UUID};

const TABLE_ENTRIES: u64 = 128;
const INDEX_ENTRIES: usize = 127;
const ENTRY_BYTES: usize = 32;

/// The devices of a pool, and their checkpoint's state to be changed.
pub(crate) struct Forge {
    pub(crate) devices: MemoryDevices,
    pub(crate) superblock: Superblock,
    /// The map's state.
    pub(crate) json: Value,
    json_bytes: usize,
    /// The table of moments.
    pub(crate) moments: Vec<u8>,
    /// The records of segments.
    pub(crate) segments: Vec<u8>,
}

impl Forge {
    /// For a pool with a state that takes one index block.
    pub(crate) fn new(devices: MemoryDevices) -> Self {
        let superblock = devices.superblock();
        let mut forge = Self {
            devices,
            superblock,
            json: Value::Null,
            json_bytes: 0,
            moments: Vec::new(),
            segments: Vec::new(),
        };
        let mut bytes = Vec::new();
        for entry in forge.state_entries(0) {
            bytes.extend_from_slice(&forge.devices.at(place(&entry)).0);
        }
        bytes.truncate(superblock.state_bytes.get() as usize);
        let json_bytes = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        forge.json = serde_json::from_slice(&bytes[8..8 + json_bytes]).unwrap();
        forge.json_bytes = json_bytes;
        let moments = forge.json["catalog"]["moments"].as_u64().unwrap_or(0) as usize;
        let (moments, segments) = bytes[8 + json_bytes..].split_at(64 * moments);
        (forge.moments, forge.segments) = (moments.to_vec(), segments.to_vec());
        forge
    }

    fn state_entries(&mut self, copy: usize) -> Vec<PageEntry> {
        let blocks = (self.superblock.state_bytes.get() as usize).div_ceil(BLOCK_BYTES);
        assert!(blocks <= INDEX_ENTRIES);
        let index = self.devices.at(place(&self.superblock.state[copy])).clone();
        index
            .0
            .chunks_exact(ENTRY_BYTES)
            .take(blocks)
            .map(|at| PageEntry::read_from_bytes(at).unwrap())
            .collect()
    }

    /// Puts the state back, and makes its checks and the superblocks right. A state that became
    /// longer stays away.
    pub(crate) fn seal(mut self) -> MemoryDevices {
        let mut json = serde_json::to_vec(&self.json).unwrap();
        if json.len() <= self.json_bytes {
            json.resize(self.json_bytes, b' ');
            let length = (json.len() as u64).to_le_bytes();
            let mut bytes = [length.as_slice(), &json, &self.moments, &self.segments].concat();
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            for copy in [0, 1] {
                self.write_state(copy, &bytes);
            }
        }
        for device in 0..DEVICES as u8 {
            self.superblock.device = device;
            for block in superblock_blocks(self.superblock.checkpoint.get()) {
                self.superblock
                    .encode(&mut self.devices.blocks[usize::from(device)][block as usize]);
            }
        }
        self.devices
    }

    fn write_state(&mut self, copy: usize, bytes: &[u8]) {
        let mut entries = self.state_entries(copy);
        for (index, (entry, bytes)) in entries.iter_mut().zip(bytes.chunks(BLOCK_BYTES)).enumerate()
        {
            self.devices.at(place(entry)).0.copy_from_slice(bytes);
            set_crc(entry, TagDomain::State, index as u64, bytes);
        }
        let first = &mut self.superblock.state[copy];
        let block = self.devices.at(place(first));
        block.0[..entries.as_bytes().len()].copy_from_slice(entries.as_bytes());
        set_crc(first, TagDomain::State, LogRecord::STATE_INDEX, &block.0);
    }

    fn table(&mut self, kind: TableKind) -> &mut Value {
        let name = if kind == TableKind::Data { "data" } else { "nodes" };
        &mut self.json[name]
    }

    fn levels(&mut self, kind: TableKind) -> u8 {
        self.table(kind)["levels"].as_u64().unwrap() as u8
    }

    /// The page entry of a block of a table; `None` if it was never written.
    fn table_entry(&mut self, kind: TableKind, level: u8, index: u64) -> Option<PageEntry> {
        let entry = if level + 1 >= self.levels(kind) {
            let root = &self.table(kind)["root"];
            let word = |at: usize| root[at].as_u64().unwrap().into();
            PageEntry { place: word(0), crc: word(1), sequence: word(2), ..PageEntry::FREE }
        } else {
            self.entry_in(kind, level + 1, index)?
        };
        (!entry.is_free()).then_some(entry)
    }

    fn entry_in(&mut self, kind: TableKind, level: u8, index: u64) -> Option<PageEntry> {
        let block = self.table_entry(kind, level, index / TABLE_ENTRIES)?;
        let at = (index % TABLE_ENTRIES) as usize * ENTRY_BYTES;
        let bytes = &self.devices.at(block.place()?).0[at..at + ENTRY_BYTES];
        Some(PageEntry::read_from_bytes(bytes).unwrap())
    }

    fn set_entry_in(&mut self, kind: TableKind, level: u8, index: u64, entry: PageEntry) {
        let block_index = index / TABLE_ENTRIES;
        let Some(mut block) = self.table_entry(kind, level, block_index) else { return };
        let at = (index % TABLE_ENTRIES) as usize * ENTRY_BYTES;
        let content = self.devices.at(place(&block));
        content.0[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
        let number = block_index << 1 | kind as u64;
        set_crc(&mut block, TagDomain::Table(level), number, &content.0);
        if level + 1 >= self.levels(kind) {
            let words = [block.place.get(), block.crc.get(), block.sequence.get()];
            self.table(kind)["root"] = words.to_vec().into();
        } else {
            self.set_entry_in(kind, level + 1, block_index, block);
        }
    }

    /// The entry of a page.
    pub(crate) fn entry(&mut self, kind: TableKind, number: u64) -> Option<PageEntry> {
        self.entry_in(kind, 0, number).filter(|entry| entry.place().is_some())
    }

    /// Another entry of a page.
    pub(crate) fn set_entry(&mut self, kind: TableKind, number: u64, entry: PageEntry) {
        self.set_entry_in(kind, 0, number, entry);
    }

    /// The numbers of all pages of a table.
    pub(crate) fn numbers(&mut self, kind: TableKind) -> Vec<u64> {
        let blocks = self.table(kind)["blocks"].as_u64().unwrap();
        (0..blocks * TABLE_ENTRIES).filter(|&number| self.entry(kind, number).is_some()).collect()
    }

    /// Changes the words of a node.
    pub(crate) fn change_node(&mut self, number: u64, change: impl FnOnce(&mut [u64; 512])) {
        let Some(mut entry) = self.entry(TableKind::Nodes, number) else { return };
        let content = self.devices.at(place(&entry));
        let mut words: [u64; 512] = FromBytes::read_from_bytes(&content.0).unwrap();
        change(&mut words);
        content.0.copy_from_slice(words.as_bytes());
        set_crc(&mut entry, TagDomain::Node, number, &content.0);
        self.set_entry(TableKind::Nodes, number, entry);
    }

    /// The heads of the log.
    pub(crate) fn log(&self) -> Vec<RowHead> {
        self.devices.log()
    }

    /// Writes a head in its place.
    pub(crate) fn write_head(&mut self, head: &RowHead) {
        head.encode(&UUID, self.devices.at(head.place));
    }

    /// Changes the block of payload of a row's record, whose check will be right.
    pub(crate) fn change_payload(
        &mut self,
        head: &mut RowHead,
        at: usize,
        change: impl FnOnce(&mut Block) -> u16,
    ) {
        let before = head.records[..at].iter().filter(|record| record.has_payload()).count() as u16;
        let place = BlockPlace { block: head.place.block + 1 + before, ..head.place };
        if let LogRecord::Change { bytes, crc, .. } = &mut head.records[at] {
            let block = self.devices.at(place);
            *bytes = change(block);
            *crc = tag_crc(&UUID, TagDomain::Change, 0, head.sequence, &block.0);
        }
    }
}

fn place(entry: &PageEntry) -> BlockPlace {
    entry.place().expect("a page that was written")
}

fn set_crc(entry: &mut PageEntry, domain: TagDomain, number: u64, content: &[u8]) {
    entry.crc = tag_crc(&UUID, domain, number, entry.sequence.get(), content).into();
}
