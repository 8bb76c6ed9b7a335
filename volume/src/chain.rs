//! Builds a chain of stages over a volume from its description in the configuration.

use std::sync::Arc;

use crate::stage::{RunningStages, StageConfig, StagePosition, VolumeKey, encryption};
use crate::volume::{STAGES_MAX, Volume};

mod swap;

pub use crate::stage::kind::ChainError;
pub use swap::{Swap, SwapProgress};

/// A volume with its stages around it.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The outermost stage, or the bare volume. A disk opens this volume.
    pub volume: Arc<dyn Volume>,
    /// The stages, by kind.
    pub stages: RunningStages,
    /// The volume below all stages.
    bare: Arc<dyn Volume>,
}

impl Chain {
    /// Wraps `volume` in `stages`, which encrypt with `key` if one of them encrypts. The first
    /// stage is the first to see a request: the outermost.
    ///
    /// # Errors
    /// When there are more than [`STAGES_MAX`], or one of them makes no sense.
    pub fn build(
        volume: Arc<dyn Volume>,
        stages: &[StageConfig],
        key: Option<&Arc<VolumeKey>>,
    ) -> Result<Self, ChainError> {
        let bare = Arc::clone(&volume);
        Self { volume, stages: RunningStages::default(), bare }.around(stages, key, 0)
    }

    /// Other stages around the same volume, at `now_ns` of the sidecores' clock. Stages that stay
    /// go on as they are: the first meter with what the first one counted, and so on; a limit with
    /// what it has saved up, that of the same rates before any other.
    ///
    /// # Errors
    /// As [`Chain::build`], and where the blocks would be under another key, or under none.
    pub fn rebuilt(
        &self,
        stages: &[StageConfig],
        key: Option<&Arc<VolumeKey>>,
        now_ns: u64,
    ) -> Result<Self, ChainError> {
        let key = key.filter(|_| encryption(stages).is_some());
        if key != self.key() {
            return Err(ChainError::OtherEncryption);
        }
        self.around(stages, key, now_ns)
    }

    /// The key that enciphers the blocks.
    pub fn key(&self) -> Option<&Arc<VolumeKey>> {
        self.stages.encrypts.first().map(|encrypt| encrypt.key())
    }

    fn around(
        &self,
        stages: &[StageConfig],
        key: Option<&Arc<VolumeKey>>,
        now_ns: u64,
    ) -> Result<Self, ChainError> {
        if stages.len() > STAGES_MAX {
            return Err(ChainError::TooLong { stages: stages.len() });
        }
        let around = StagePosition { depth: 0, now_ns, key };
        let encrypts = stages.iter().filter(|it| matches!(it, StageConfig::Encrypt(_))).count();
        if encrypts > 1 {
            return Err(ChainError::EncryptedTwice { stages: encrypts });
        }
        let (volume, stages) = self.stages.around(Arc::clone(&self.bare), stages, &around)?;
        Ok(Self { volume, stages, bare: Arc::clone(&self.bare) })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::backend::MemoryVolume;
    use crate::contract::{self, ChannelBench};
    use crate::stage::{Limit, LimitVolume, Metering};
    use crate::volume::{Op, Status};

    fn memory() -> Arc<dyn Volume> {
        Arc::new(MemoryVolume::new(1 << 20).expect("memory"))
    }

    fn limit(iops: u64) -> StageConfig {
        StageConfig::Limit(Limit { iops: NonZeroU64::new(iops), ..Limit::default() })
    }

    #[test]
    fn every_chain_keeps_the_contract() {
        let longest = [limit(1 << 30), StageConfig::Meter(Metering)]
            .into_iter()
            .cycle()
            .take(STAGES_MAX)
            .collect::<Vec<_>>();
        for stages in [&[][..], &[StageConfig::Meter(Metering), limit(100_000)], &longest] {
            let chain = Chain::build(memory(), stages, None).expect("a good chain");
            contract::check_all(&*chain.volume);
        }
    }

    #[test]
    fn each_meter_counts_for_itself() {
        let stages = [StageConfig::Meter(Metering), limit(1_000), StageConfig::Meter(Metering)];
        let chain = Chain::build(memory(), &stages, None).expect("a good chain");
        assert_eq!((chain.stages.meters.len(), chain.stages.limits.len()), (2, 1));
        let mut bench = ChannelBench::new(&*chain.volume, 8);
        for _ in 0..2_000 {
            assert_eq!(bench.write(0, &[1; 512]), Status::Done);
        }
        let [outer, inner] =
            [0, 1].map(|at: usize| chain.stages.meters[at].meter().read(Op::Write));
        assert_eq!((outer.requests, inner.requests), (2_000, 2_000));
        // A delay by the limit is seen by the outer meter only.
        assert!(outer.latency_ns.max() > 500_000, "{}", outer.latency_ns.max());
        assert!(inner.latency_ns.max() < 500_000, "{}", inner.latency_ns.max());
        assert!(chain.stages.limits[0].delayed() > 500);
    }

    #[test]
    fn stages_that_stay_go_on_as_they_are() {
        let chain =
            Chain::build(memory(), &[StageConfig::Meter(Metering), limit(10), limit(500)], None);
        let chain = chain.expect("a good chain");
        let mut bench = ChannelBench::new(&*chain.volume, 8);
        for _ in 0..5 {
            bench.write(0, &[1; 512]);
        }
        let now_ns = bench.now_ns;
        let stages =
            [limit(500), StageConfig::Meter(Metering), StageConfig::Meter(Metering), limit(20)];
        let next = chain.rebuilt(&stages, None, now_ns).expect("a good chain");
        let counted =
            [0, 1].map(|at: usize| next.stages.meters[at].meter().read(Op::Write).requests);
        assert_eq!(counted, [5, 0]);
        let given_ns = |limit: &LimitVolume| limit.given_ns();
        assert_eq!(
            given_ns(&next.stages.limits[0]),
            given_ns(&chain.stages.limits[1]),
            "of the same rate"
        );
        assert_eq!(given_ns(&next.stages.limits[1]), given_ns(&chain.stages.limits[0]).min(now_ns));
        let last = next.rebuilt(&[], None, now_ns).expect("a good chain");
        assert!(last.stages.meters.is_empty() && last.stages.limits.is_empty());
    }

    #[test]
    fn a_bad_chain_is_refused_by_name() {
        let error =
            Chain::build(memory(), &vec![StageConfig::Meter(Metering); STAGES_MAX + 1], None);
        assert_eq!(error.err(), Some(ChainError::TooLong { stages: 9 }));
        let stages = [StageConfig::Meter(Metering), StageConfig::Limit(Limit::default())];
        assert_eq!(
            Chain::build(memory(), &stages, None).err(),
            Some(ChainError::NoLimit { stage: 2 })
        );
    }
}
