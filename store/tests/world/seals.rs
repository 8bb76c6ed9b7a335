//! Encrypted volumes: their keys, and the promise that no key and nonce are used twice.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;
use seeds::Tally;
use store::format::{LogRecord, RowHead, payload_places};
use store::{
    DeviceIo, DeviceOp, PoolChange, PoolError, PoolVolume, PoolVolumeKind, SealEntropy, VolumeId,
    WrappingKey,
};

use super::Failure;
use super::life::{Ask, Turn, World};

/// Rounds that a pool is open before it gets its keys.
const LOCKED_ROUNDS_MAX: u64 = 40;

/// The salt and the nonce of a sealed page of any family.
type SealedAt = (u64, u64, u64);

/// Looks at all that goes to the devices.
pub(crate) struct SealWatch {
    /// The key's name follows from its place.
    keys: [WrappingKey; 2],
    uuid: [u8; 16],
    sealed: BTreeMap<SealedAt, Vec<u8>>,
    /// Volumes that are or were encrypted.
    volumes: BTreeSet<VolumeId>,
}

impl SealWatch {
    pub(crate) fn new(uuid: [u8; 16]) -> Self {
        let key = |id: &str| WrappingKey::new(id, id.as_bytes());
        let keys = [key("first"), key("second")];
        Self { keys, uuid, sealed: BTreeMap::new(), volumes: BTreeSet::new() }
    }

    fn key(&self, id: &str) -> &WrappingKey {
        &self.keys[usize::from(id == "second")]
    }

    /// Notes which volumes are encrypted.
    pub(crate) fn know(&mut self, list: &[PoolVolume]) {
        let sealed = list.iter().filter(|volume| volume.seal.is_some());
        self.volumes.extend(sealed.map(|volume| volume.id));
    }

    /// A request for a device: no page of an encrypted volume is written in clear, and no nonce
    /// comes twice with another content.
    pub(crate) fn watch(&mut self, io: &DeviceIo, tally: &mut Tally) -> Result<(), Failure> {
        let DeviceOp::Write { buffer, blocks, .. } = &io.op else { return Ok(()) };
        let blocks = &buffer.blocks()[..*blocks as usize];
        let Ok(head) = RowHead::decode(&self.uuid, &blocks[0]) else { return Ok(()) };
        let places = payload_places(head.place, &head.records);
        for (record, at) in head.records.iter().zip(places) {
            let page = &blocks[usize::from(at.place.block - head.place.block)];
            let number = match *record {
                LogRecord::Write { volume, .. } if self.volumes.contains(&VolumeId(volume)) => {
                    return Err(Failure::new(
                        "an encrypted volume in clear",
                        format!("{record:?}"),
                    ));
                }
                LogRecord::Sealed { number, .. } => {
                    tally.add("sealed pages", 1);
                    number
                }
                LogRecord::Resealed { number, .. } => {
                    tally.add("pages that were sealed anew", 1);
                    number
                }
                _ => continue,
            };
            let at = (head.salt, number, head.sequence);
            // The first bytes of 16 blocks of the cipher tell two contents apart.
            let content = page.0[..256].to_vec();
            let known = self.sealed.entry(at).or_insert_with(|| content.clone());
            if *known != content {
                return Err(Failure::new("a nonce is used twice", format!("{at:?} {record:?}")));
            }
        }
        Ok(())
    }
}

pub(crate) fn entropy(random: &mut Random) -> SealEntropy {
    let mut bytes = [0; SealEntropy::BYTES];
    bytes.iter_mut().for_each(|byte| *byte = random.draw() as u8);
    SealEntropy::new(bytes.into())
}

impl World {
    /// The change that makes a volume, which may be encrypted.
    pub(crate) fn creation(&mut self, name: String, blocks: u64) -> PoolChange {
        if self.plan.key_rounds == 0 && !self.random.one_in(3) {
            return PoolChange::Create { name, blocks };
        }
        self.tally.add("encrypted volumes", 1);
        let entropy = entropy(&mut self.random);
        let key = &self.seals.keys[self.random.below(2) as usize];
        let engine = self.engine.as_ref().expect("the pool is open");
        engine.sealed_volume(&name, blocks, key, &entropy)
    }

    /// A new volume, or clone of an encrypted volume, is there: its family is open from now on.
    pub(crate) fn unlock_new(&mut self) -> Result<(), Failure> {
        let list = self.engine.as_ref().expect("the pool is open").volumes();
        self.seals.know(&list);
        self.unlock_all(&list)
    }

    fn unlock_all(&mut self, list: &[PoolVolume]) -> Result<(), Failure> {
        let engine = self.engine.as_mut().expect("the pool is open");
        for volume in list.iter().filter(|volume| volume.kind != PoolVolumeKind::Removing) {
            let Some(seal) = &volume.seal else { continue };
            let key = self.seals.key(&seal.key_id);
            if engine.is_locked(volume.id)
                && let Err(error) = engine.unlock(volume.id, key)
            {
                return Err(Failure::new("a right key is refused", error.to_string()));
            }
        }
        Ok(())
    }

    /// The pool gets its keys after an opening, at once or after some rounds without them.
    pub(crate) fn unlock(&mut self) -> Result<Turn, Failure> {
        let list = self.engine.as_ref().expect("the pool is open").volumes();
        // A number of a volume that a crash took back may be given to another volume.
        self.seals.volumes.clear();
        self.seals.know(&list);
        let sealed = list
            .iter()
            .find(|volume| volume.seal.is_some() && volume.kind != PoolVolumeKind::Removing);
        if let Some(volume) = sealed
            && self.random.one_in(2)
        {
            self.tally.add("openings without keys", 1);
            self.stay_locked(volume)?;
            for _ in 0..self.random.below(LOCKED_ROUNDS_MAX) {
                if self.turn()? == Turn::Crashed {
                    return Ok(Turn::Crashed);
                }
            }
        }
        self.unlock_all(&list)?;
        Ok(Turn::Alive)
    }

    /// Nothing of an encrypted volume is read or written without its key.
    fn stay_locked(&mut self, volume: &PoolVolume) -> Result<(), Failure> {
        let seal = volume.seal.as_ref().expect("the volume is encrypted");
        let other = &self.seals.keys[usize::from(seal.key_id == "first")];
        let engine = self.engine.as_mut().expect("the pool is open");
        if !matches!(engine.unlock(volume.id, other), Err(PoolError::WrongKey { .. })) {
            return Err(Failure::new("a wrong key opens a volume", format!("{volume:?}")));
        }
        self.ask_wrong(|engine, tag| engine.read(tag, volume.id, 0, 1));
        if volume.kind == PoolVolumeKind::Volume {
            self.ask_wrong(|engine, tag| engine.write(tag, volume.id, 0, 1, &mut |_, _| {}));
            self.ask_wrong(|engine, tag| engine.write_part(tag, volume.id, 0, 3, &[1]));
        }
        Ok(())
    }

    /// A change of keys, if an encrypted volume is there and no change is under way.
    pub(crate) fn change_keys(&mut self) {
        let list = self.engine.as_ref().expect("the pool is open").volumes();
        let is_changing =
            self.requests.values().any(|request| matches!(request.ask, Ask::Change(_)));
        let sealed: Vec<_> = list
            .iter()
            .filter(|volume| volume.kind != PoolVolumeKind::Removing && volume.seal.is_some())
            .filter(|volume| {
                let known = self.model.volumes.get(&volume.id);
                known.is_some_and(|known| !known.is_hidden && !known.is_changing)
            })
            .collect();
        if is_changing || sealed.is_empty() {
            return;
        }
        let volume = sealed[self.random.below(sealed.len() as u64) as usize];
        let seal = volume.seal.as_ref().expect("the volume is encrypted");
        let relatives = list.iter().filter(|other| {
            other.kind != PoolVolumeKind::Removing
                && other.seal.as_ref().is_some_and(|other| other.family == seal.family)
        });
        let is_alone = relatives.count() == 1;
        let entropy = [entropy(&mut self.random), entropy(&mut self.random)];
        let engine = self.engine.as_mut().expect("the pool is open");
        let (change, what) = match self.random.below(4) {
            0 if is_alone => {
                (Ok(PoolChange::Shred { volume: volume.id, all: false }), "shredded volumes")
            }
            1 => {
                let key = &self.seals.keys[self.random.below(2) as usize];
                (engine.rewrapped(volume.id, key, &entropy), "changes of a wrapping key")
            }
            _ if seal.is_resealing => return,
            _ => {
                let key = self.seals.key(&seal.key_id);
                (engine.rekeyed(volume.id, key, &entropy[0]), "changes of a data key")
            }
        };
        let change = change.expect("the volume is open");
        if self.change(change) {
            self.tally.add(what, 1);
        }
    }
}
