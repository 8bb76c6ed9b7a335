//! The stages of a nic, as its configuration has them.

use std::sync::Arc;

use config::{MirrorConfig, NicConfig};
use net::nic::NicChain;
use net::stage::mirror::MirrorOptions;
use net::stage::{
    Filter, FilterCore, LimitCore, Limiter, Meter, MeterCore, Mirror, MirrorCore, Stages,
};
use sessions::seed;

/// The states of a nic's stages that other threads read.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchedStages {
    pub(crate) meter: Option<Arc<MeterCore>>,
    pub(crate) mirror: Option<Arc<MirrorCore>>,
    pub(crate) filter: Option<Arc<FilterCore>>,
    pub(crate) limit: Option<Arc<LimitCore>>,
}

/// The change of one stage; `None` leaves it as it is.
type StageChange<T> = Option<Option<T>>;

impl WatchedStages {
    /// Gives the nic the stages that are `wanted`, between two rounds. A stage that does not change
    /// keeps its state. A filter with other rules keeps the conversations that these rules would
    /// have kept as well, and a new mirror goes on with its file.
    ///
    /// # Errors
    /// When a mirror's file cannot be made, or the nic is gone; nothing is changed then. A tap may
    /// be away.
    pub(crate) fn change(
        &mut self,
        chain: &NicChain,
        now: Option<&NicConfig>,
        wanted: &NicConfig,
    ) -> Result<(), String> {
        let mut watched = self.clone();
        let mut meter: StageChange<Meter> = None;
        if now.is_some_and(|now| now.meter) != wanted.meter {
            watched.meter = wanted.meter.then(Arc::default);
            meter = Some(watched.meter.clone().map(Meter::new));
        }
        let mut mirror: StageChange<Mirror> = None;
        if now.and_then(|now| now.mirror.as_ref()) != wanted.mirror.as_ref() {
            let opened = wanted.mirror.as_ref().map(open).transpose()?;
            let (core, stage) = opened.unzip();
            (watched.mirror, mirror) = (core, Some(stage));
        }
        let mut filter: StageChange<Filter> = None;
        if now.and_then(|now| now.filter.as_ref()) != wanted.filter.as_ref() {
            watched.filter = wanted.filter.as_ref().map(FilterCore::new);
            let parts = wanted.filter.clone().zip(watched.filter.clone());
            filter = Some(parts.map(|(rules, core)| Filter::new(rules, core, seed())));
        }
        watched.limit = wanted.limit.map(|_| self.limit.clone().unwrap_or_default());
        let limit = wanted.limit.zip(watched.limit.clone());
        let change = chain.change(move |stages: &mut Stages| {
            match (&mut stages.limit, limit) {
                (Some(limiter), Some((limit, _))) => limiter.set((limit, limit)),
                (place, limit) => {
                    *place = limit.map(|(limit, core)| Limiter::new((limit, limit), core));
                }
            }
            if let Some(meter) = meter {
                stages.meter = meter;
            }
            // The caller frees the large parts, so that the sidecore need not.
            let mirror = mirror.map(|mirror| std::mem::replace(&mut stages.mirror, mirror));
            let filter = filter.map(|mut filter| {
                if let (Some(filter), Some(before)) = (&mut filter, &mut stages.filter) {
                    filter.inherit(before);
                }
                std::mem::replace(&mut stages.filter, filter)
            });
            (mirror, filter)
        });
        drop(change.map_err(|error| error.to_string())?);
        *self = watched;
        Ok(())
    }
}

fn open(config: &MirrorConfig) -> Result<(Arc<MirrorCore>, Mirror), String> {
    let core = Arc::<MirrorCore>::default();
    let mirror = match config {
        MirrorConfig::File { file, size_bytes, frame_bytes } => {
            let options = MirrorOptions { snap_bytes: *frame_bytes, file_bytes_max: *size_bytes };
            Mirror::to_file(file, options, Arc::clone(&core))
                .map_err(|error| format!("the mirror's file {file:?} cannot be made: {error}"))?
        }
        MirrorConfig::Tap(interface) => Mirror::to_tap(interface, Arc::clone(&core))
            .map_err(|error| format!("no thread for the mirror to {interface}: {error}"))?,
    };
    Ok((core, mirror))
}
