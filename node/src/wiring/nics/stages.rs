//! The stages of a nic, as its configuration has them.

use std::sync::Arc;

use net::nic::NicChain;
use net::stage::{Filter, FilterCore, LimitCore, Limiter};

use super::{seed, text};
use crate::config::NicConfig;

/// What is seen of a nic's stages from outside.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) filter: Option<Arc<FilterCore>>,
    pub(super) limit: Option<Arc<LimitCore>>,
}

impl Watched {
    /// Gives the nic the stages that are `wanted`, between two rounds. What is what it was goes on
    /// with what it knows; a filter with other rules forgets which conversations it kept, for the
    /// new rules may not allow them.
    ///
    /// # Errors
    /// When the nic is gone; nothing is changed then.
    pub(super) fn change(
        &mut self,
        chain: &NicChain,
        now: Option<&NicConfig>,
        wanted: &NicConfig,
    ) -> Result<(), String> {
        let filter =
            (now.and_then(|now| now.filter.as_ref()) != wanted.filter.as_ref()).then(|| {
                let core = wanted.filter.as_ref().map(FilterCore::new);
                let filter = wanted.filter.clone().zip(core.clone());
                (core, filter.map(|(rules, core)| Filter::new(rules, core, seed())))
            });
        let (filter_core, filter) = filter.unzip();
        let limit_core = wanted.limit.map(|_| self.limit.clone().unwrap_or_default());
        let limit = wanted.limit.zip(limit_core.clone());
        let change = chain.change(move |stages| {
            match (&mut stages.limit, limit) {
                (Some(limiter), Some((limit, _))) => limiter.set((limit, limit)),
                (place, limit) => {
                    *place = limit.map(|(limit, core)| Limiter::new((limit, limit), core));
                }
            }
            // What is large is freed by who asked, not by the sidecore.
            filter.map(|filter| std::mem::replace(&mut stages.filter, filter))
        });
        drop(change.map_err(text)?);
        self.limit = limit_core;
        if let Some(core) = filter_core {
            self.filter = core;
        }
        Ok(())
    }
}
