//! The encryption of a simulated volume, in a third of the runs, with so little memory and such
//! short pieces that faults strike while writes wait, and between two pieces of a range.

use std::sync::Arc;

use sidecore::Services;
use virtio::Segment;
use volume::backend::MemoryVolume;
use volume::stage::{Ciphered, EncryptVolume, Sizes, VolumeKey};
use volume::{Op, OpenArguments, Status, Volume, io_table};
use zeroize::Zeroizing;

use random::Random;
use workload::{Mix, Workload};

/// One run in so many is encrypted.
const EVERY: u64 = 3;

/// Guests' longest requests are of [`super::world::REQUEST_BLOCKS_MAX`] blocks, three pages.
const SIZES: Sizes = Sizes { pool_bytes: 4 * 4096, zeroes_bytes: 1024, round_bytes: 4096 };

/// The key of a run's volume, if the volume is encrypted.
#[derive(Clone, Debug)]
pub(super) struct Encryption(Option<Arc<VolumeKey>>);

impl Encryption {
    /// That of a seed. Nothing is drawn for it: all else of a seed is as it would be without.
    pub(super) fn of(seed: u64) -> Self {
        let key = |seed: u64| {
            let bytes =
                Zeroizing::new(std::array::from_fn(|at| (seed >> (at % 8)) as u8 ^ at as u8));
            Arc::new(VolumeKey::from_bytes(&bytes).expect("two different halves"))
        };
        Self(seed.is_multiple_of(EVERY).then(|| key(seed)))
    }

    /// Whether it is.
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The guests' workload. It has no discards on an encrypted disk.
    pub(super) fn workload(&self, random: Random, mix: Mix) -> Workload {
        let mut workload = Workload::new(random, mix);
        workload.discards = !self.is_on();
        workload
    }

    /// The stages before the disk.
    pub(super) fn chain(&self, disk: Arc<dyn Volume>) -> Guarded {
        match self.0.clone() {
            None => Guarded { volume: disk, stage: None },
            Some(key) => {
                let stage = Arc::new(EncryptVolume::new(disk, key).with_sizes(SIZES));
                Guarded { volume: Arc::clone(&stage) as Arc<dyn Volume>, stage: Some(stage) }
            }
        }
    }

    /// The content of a disk of this length from which a guest reads zeroes. The guests' checker
    /// begins with zeroes.
    pub(super) fn blank(&self, len_bytes: u32) -> Vec<u8> {
        let memory = MemoryVolume::new(u64::from(len_bytes)).expect("some kilobytes");
        let memory: Arc<dyn Volume> = Arc::new(memory);
        let mut blank = vec![0; len_bytes as usize];
        if self.is_on() {
            one(&*self.chain(Arc::clone(&memory)).volume, Op::WriteZeroes, &mut blank);
            one(&*memory, Op::Read, &mut blank);
        }
        blank
    }
}

/// A disk behind what encrypts it.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) volume: Arc<dyn Volume>,
    stage: Option<Arc<EncryptVolume>>,
}

impl Guarded {
    /// The counts of the stage that encrypts.
    pub(super) fn counted(&self) -> Ciphered {
        self.stage.as_ref().map(|stage| stage.counted()).unwrap_or_default()
    }
}

/// Does one request of all that there is.
fn one(volume: &dyn Volume, op: Op, buffer: &mut [u8]) {
    let open = OpenArguments { services: &Services::new(), depth: 1 };
    let mut channel = volume.open(&open).expect("memory opens");
    let mut ios = io_table(1);
    let id = ios.take().expect("room for one");
    (ios[id].op, ios[id].len_bytes) = (op, u32::try_from(buffer.len()).expect("small"));
    if op.moves_data() {
        let (addr, len) = (buffer.as_mut_ptr(), ios[id].len_bytes);
        ios[id].segments.push(Segment { addr, len });
    }
    channel.submit(&mut ios, id);
    let mut done = Vec::new();
    for now_ns in 1.. {
        if !done.is_empty() {
            break;
        }
        let _ = channel.poll(&mut ios, now_ns, &mut done);
    }
    assert_eq!(ios[id].status, Status::Done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_disk_reads_as_zeroes_and_holds_none_where_it_is_encrypted() {
        for seed in 0..6 {
            let encryption = Encryption::of(seed);
            let blank = encryption.blank(8192);
            assert_eq!(blank.contains(&1), encryption.is_on(), "seed {seed}");
            let memory = MemoryVolume::new(8192).expect("memory");
            let memory: Arc<dyn Volume> = Arc::new(memory);
            one(&*memory, Op::Write, &mut blank.clone());
            let mut read = vec![1; 8192];
            one(&*encryption.chain(memory).volume, Op::Read, &mut read);
            assert_eq!(read, vec![0; 8192], "seed {seed}");
        }
    }
}
