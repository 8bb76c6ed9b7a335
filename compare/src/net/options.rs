//! The options of `vrio bench compare net`.

use anyhow::Result;
use serde::Serialize;
use sidecore::Idle;

use crate::contest::ComparisonPlan;
use bench::net;

/// The options of a comparison of network cards.
#[derive(Clone, Debug, Serialize)]
pub struct CardsOptions {
    /// The program and the extent of the comparison.
    #[serde(flatten)]
    pub plan: ComparisonPlan,
    /// The behaviour of our sidecore without work; adaptive instead of spin where it shares a core.
    #[serde(serialize_with = "bench::block::as_text")]
    pub idle: Idle,
}

impl CardsOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
    pub fn check(&self) -> Result<()> {
        self.plan.check()?;
        let seconds = self.plan.seconds;
        net::NetOptions { seconds, ..net::NetOptions::new(self.plan.program.clone()) }.check()
    }
}
