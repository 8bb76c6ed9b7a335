//! Builds a chain of stages over a volume from its description in the configuration.

use std::sync::Arc;

use crate::stage::{EncryptVolume, Limit, LimitVolume, Meter, MeterVolume, VolumeKey};
use crate::volume::{STAGES_MAX, Volume};

mod swap;

pub use swap::{Swap, Turning};

/// One stage, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainSpec {
    /// Count and time requests.
    Meter,
    /// Hold requests back beyond a rate.
    Limit(Limit),
    /// Keep what is below it enciphered.
    Encrypt(Arc<VolumeKey>),
}

impl ChainSpec {
    /// The key of one that encrypts.
    fn key(&self) -> Option<&Arc<VolumeKey>> {
        if let Self::Encrypt(key) = self { Some(key) } else { None }
    }
}

/// Why a chain cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// Too many stages.
    #[error("a chain of {stages} stages; the longest has {max}", max = STAGES_MAX)]
    TooLong {
        /// How many were asked for.
        stages: usize,
    },
    /// A limit that limits nothing is a mistake.
    #[error("stage {stage}: a limit needs iops, bytes_per_second or both")]
    NoLimit {
        /// Which stage, from 1, as people count.
        stage: usize,
    },
    /// Twice is a mistake, too.
    #[error("{stages} stages encrypt; one is enough")]
    EncryptedTwice {
        /// How many.
        stages: usize,
    },
    /// The blocks stay as they are when a chain is replaced.
    #[error(
        "what encrypts a volume cannot change while it is there: what is on it would be read as \
         noise. Remove the volume and add it as it shall be, or copy its data to another one"
    )]
    OtherEncryption,
}

/// A volume with its stages around it.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The outermost stage, or the bare volume: what a disk opens.
    pub volume: Arc<dyn Volume>,
    /// The chain's meters, outermost first.
    pub meters: Vec<Arc<Meter>>,
    /// The chain's limits, outermost first.
    pub limits: Vec<Arc<LimitVolume>>,
    /// What keeps the blocks enciphered, if anything does.
    pub encrypt: Option<Arc<EncryptVolume>>,
    /// What is behind all stages.
    bare: Arc<dyn Volume>,
}

impl Chain {
    /// Wraps `volume` in `stages`. The first stage is the first to see a request: the outermost.
    ///
    /// # Errors
    /// When there are more than [`STAGES_MAX`], or one of them makes no sense.
    pub fn build(volume: Arc<dyn Volume>, stages: &[ChainSpec]) -> Result<Self, ChainError> {
        Self::bare(volume).around(stages, 0)
    }

    fn bare(volume: Arc<dyn Volume>) -> Self {
        let bare = Arc::clone(&volume);
        Self { volume, meters: Vec::new(), limits: Vec::new(), encrypt: None, bare }
    }

    /// Other stages around the same volume, at `now_ns` of the sidecores' clock. Stages that stay
    /// go on as they are: the first meter with what the first one counted, and so on; a limit with
    /// what it has saved up, that of the same rates before any other.
    ///
    /// # Errors
    /// As [`Chain::build`], and where the blocks would be under another key, or under none.
    pub fn rebuilt(&self, stages: &[ChainSpec], now_ns: u64) -> Result<Self, ChainError> {
        let mut keys = stages.iter().filter_map(ChainSpec::key);
        if keys.next() != self.key() {
            return Err(ChainError::OtherEncryption);
        }
        self.around(stages, now_ns)
    }

    /// What the blocks are enciphered with.
    pub fn key(&self) -> Option<&Arc<VolumeKey>> {
        self.encrypt.as_deref().map(EncryptVolume::key)
    }

    fn around(&self, stages: &[ChainSpec], now_ns: u64) -> Result<Self, ChainError> {
        if stages.len() > STAGES_MAX {
            return Err(ChainError::TooLong { stages: stages.len() });
        }
        let keys = stages.iter().filter_map(ChainSpec::key).count();
        if keys > 1 {
            return Err(ChainError::EncryptedTwice { stages: keys });
        }
        let mut earlier = self.earlier_limits(stages);
        let mut meters = stages.iter().filter(|stage| **stage == ChainSpec::Meter).count();
        let mut chain = Self::bare(Arc::clone(&self.bare));
        for (depth, stage) in stages.iter().enumerate().rev() {
            let inner = Arc::clone(&chain.volume);
            chain.volume = match stage {
                ChainSpec::Meter => {
                    meters -= 1;
                    let volume = Arc::new(match self.meters.get(meters) {
                        Some(meter) => MeterVolume::going_on(inner, depth, meter),
                        None => MeterVolume::new(inner, depth),
                    });
                    chain.meters.insert(0, volume.meter());
                    volume
                }
                ChainSpec::Limit(limit) => {
                    if limit.iops.is_none() && limit.bytes_per_second.is_none() {
                        return Err(ChainError::NoLimit { stage: depth + 1 });
                    }
                    let volume = Arc::new(match earlier[depth].take() {
                        Some(earlier) => LimitVolume::going_on(inner, *limit, &earlier, now_ns),
                        None => LimitVolume::new(inner, *limit),
                    });
                    chain.limits.insert(0, Arc::clone(&volume));
                    volume
                }
                ChainSpec::Encrypt(key) => {
                    let volume = Arc::new(match &self.encrypt {
                        Some(earlier) => EncryptVolume::going_on(inner, earlier),
                        None => EncryptVolume::new(inner, Arc::clone(key)),
                    });
                    chain.encrypt = Some(Arc::clone(&volume));
                    volume
                }
            };
        }
        Ok(chain)
    }

    /// For each of `stages` the limit of this chain that it goes on from.
    fn earlier_limits(&self, stages: &[ChainSpec]) -> Vec<Option<Arc<LimitVolume>>> {
        let mut left = self.limits.clone();
        let mut earlier = vec![None; stages.len()];
        for (stage, earlier) in stages.iter().zip(&mut earlier) {
            let same = |limit: &Arc<LimitVolume>| *stage == ChainSpec::Limit(*limit.limit());
            *earlier = left.iter().position(same).map(|at| left.remove(at));
        }
        for (stage, earlier) in stages.iter().zip(&mut earlier) {
            if earlier.is_none() && matches!(stage, ChainSpec::Limit(_)) && !left.is_empty() {
                *earlier = Some(left.remove(0));
            }
        }
        earlier
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::backend::MemoryVolume;
    use crate::contract::{self, Bench};
    use crate::volume::{Op, Status};

    fn memory() -> Arc<dyn Volume> {
        Arc::new(MemoryVolume::new(1 << 20).expect("memory"))
    }

    fn limit(iops: u64) -> ChainSpec {
        ChainSpec::Limit(Limit { iops: NonZeroU64::new(iops), ..Limit::default() })
    }

    #[test]
    fn every_chain_keeps_the_contract() {
        let longest = [limit(1 << 30), ChainSpec::Meter]
            .into_iter()
            .cycle()
            .take(STAGES_MAX)
            .collect::<Vec<_>>();
        for stages in [&[][..], &[ChainSpec::Meter, limit(100_000)], &longest] {
            let chain = Chain::build(memory(), stages).expect("a good chain");
            contract::check_all(&*chain.volume);
        }
    }

    #[test]
    fn each_meter_counts_for_itself() {
        let stages = [ChainSpec::Meter, limit(1_000), ChainSpec::Meter];
        let chain = Chain::build(memory(), &stages).expect("a good chain");
        assert_eq!((chain.meters.len(), chain.limits.len()), (2, 1));
        let mut bench = Bench::new(&*chain.volume, 8);
        for _ in 0..2_000 {
            assert_eq!(bench.write(0, &[1; 512]), Status::Done);
        }
        let [outer, inner] = [0, 1].map(|at: usize| chain.meters[at].read(Op::Write));
        assert_eq!((outer.requests, inner.requests), (2_000, 2_000));
        // What the limit holds back is seen from outside only.
        assert!(outer.latency_ns.max() > 500_000, "{}", outer.latency_ns.max());
        assert!(inner.latency_ns.max() < 500_000, "{}", inner.latency_ns.max());
        assert!(chain.limits[0].delayed() > 500);
    }

    #[test]
    fn stages_that_stay_go_on_as_they_are() {
        let chain = Chain::build(memory(), &[ChainSpec::Meter, limit(10), limit(500)]);
        let chain = chain.expect("a good chain");
        let mut bench = Bench::new(&*chain.volume, 8);
        for _ in 0..5 {
            bench.write(0, &[1; 512]);
        }
        let now_ns = bench.now_ns;
        let stages = [limit(500), ChainSpec::Meter, ChainSpec::Meter, limit(20)];
        let next = chain.rebuilt(&stages, now_ns).expect("a good chain");
        let counted = [0, 1].map(|at: usize| next.meters[at].read(Op::Write).requests);
        assert_eq!(counted, [5, 0]);
        let given_ns = |limit: &LimitVolume| limit.given_ns();
        assert_eq!(given_ns(&next.limits[0]), given_ns(&chain.limits[1]), "of the same rate");
        assert_eq!(given_ns(&next.limits[1]), given_ns(&chain.limits[0]).min(now_ns));
        let last = next.rebuilt(&[], now_ns).expect("a good chain");
        assert!(last.meters.is_empty() && last.limits.is_empty());
    }

    #[test]
    fn a_bad_chain_is_refused_by_name() {
        let error = Chain::build(memory(), &vec![ChainSpec::Meter; STAGES_MAX + 1]);
        assert_eq!(error.err(), Some(ChainError::TooLong { stages: 9 }));
        let stages = [ChainSpec::Meter, ChainSpec::Limit(Limit::default())];
        assert_eq!(Chain::build(memory(), &stages).err(), Some(ChainError::NoLimit { stage: 2 }));
    }
}
