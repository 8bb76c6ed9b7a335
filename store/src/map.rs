//! stub
use crate::api::*;
use crate::block::Block;
use crate::format::*;
use serde::{Deserialize, Serialize};
pub trait LiveBlocks {
    fn gain(&mut self, place: BlockPlace);
    fn lose(&mut self, place: BlockPlace);
}
#[derive(Debug)]
pub enum MapError {
    Missing,
    Damaged,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapPage {
    Node(u64),
    Table { kind: TableKind, level: u8, index: u64 },
}
impl MapPage {
    pub fn record(&self, _crc: u64) -> LogRecord {
        unimplemented!()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapPass {
    Nodes,
    Tables(u8),
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteToken(u64);
pub enum Located {
    Hole,
    Page { number: u64, entry: PageEntry },
    Lost,
}
pub enum Applied {
    Done,
    Dropped,
}
#[derive(Debug)]
pub struct PoolMap;
#[derive(Debug, Serialize, Deserialize)]
pub struct MapState {}
#[derive(Debug, Clone)]
pub struct PoolVolume {}
#[derive(Debug, Clone)]
pub struct PoolVolumeKind {}
impl PoolMap {
    pub fn new(_uuid: [u8; 16], _cache_blocks_max: usize) -> Self {
        Self
    }
    pub fn from_state(_uuid: [u8; 16], _cache: usize, _state: MapState) -> Result<Self, String> {
        Ok(Self)
    }
    pub fn state(&self) -> MapState {
        unimplemented!()
    }
    pub fn locate(&mut self, _volume: VolumeId, _block: u64) -> Result<Located, MapError> {
        unimplemented!()
    }
    pub fn entry(&mut self, _number: u64) -> Result<PageEntry, MapError> {
        unimplemented!()
    }
    pub fn take_number(&mut self) -> Result<u64, MapError> {
        unimplemented!()
    }
    pub fn apply(
        &mut self,
        _record: &LogRecord,
        _place: BlockPlace,
        _sequence: u64,
        _change: Option<&PoolChange>,
        _live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        unimplemented!()
    }
    pub fn check(&self, _change: &PoolChange) -> Result<VolumeId, PoolError> {
        unimplemented!()
    }
    pub fn make_dirty(
        &mut self,
        _record: &LogRecord,
        _place: BlockPlace,
    ) -> Result<bool, MapError> {
        unimplemented!()
    }
    pub fn removal_step(&mut self) -> Result<Option<LogRecord>, MapError> {
        unimplemented!()
    }
    pub fn next_load(&mut self) -> Option<(MapPage, PageEntry)> {
        unimplemented!()
    }
    pub fn loaded(&mut self, _page: MapPage, _content: Option<&Block>) {
        unimplemented!()
    }
    pub fn next_dirty(&mut self, _pass: MapPass) -> Result<Option<MapPage>, MapError> {
        unimplemented!()
    }
    pub fn begin_pass(&mut self) {}
    pub fn copy_out(&mut self, _page: MapPage, _into: &mut Block) -> WriteToken {
        unimplemented!()
    }
    pub fn written(
        &mut self,
        _page: MapPage,
        _token: WriteToken,
        _entry: PageEntry,
        _live: &mut dyn LiveBlocks,
    ) {
    }
    pub fn dirty_blocks(&self) -> usize {
        0
    }
    pub fn cached_blocks(&self) -> usize {
        0
    }
    pub fn tables_levels(&self) -> u8 {
        0
    }
    pub fn evict(&mut self) {}
    pub fn volumes(&self) -> Vec<PoolVolume> {
        unimplemented!()
    }
    pub fn volume_blocks(&self, _v: VolumeId) -> Option<u64> {
        unimplemented!()
    }
    pub fn used_pages(&self) -> u64 {
        0
    }
    pub fn volume_count(&self) -> usize {
        0
    }
    pub fn is_head(&self, _v: VolumeId) -> bool {
        true
    }
    pub fn has_removal(&self) -> bool {
        true
    }
}
