//! The peers' parts of resources that all peers share.

use super::page::{MetricValue, Page, labels};
use api::status::{Counters, QuotaStatus};

/// One series for each peer, sidecore and resource.
pub(super) fn add(page: &mut Page, quotas: &[QuotaStatus]) {
    for quota in quotas {
        let labels = labels(&[
            ("peer", &quota.peer),
            ("address", quota.address.as_deref().unwrap_or_default()),
            ("sidecore", &quota.sidecore.to_string()),
            ("resource", &quota.resource),
        ]);
        for (name, value) in
            [("used", quota.has), ("max", quota.has_max), ("at_limit", u64::from(quota.at_limit))]
        {
            page.gauge(&format!("vrio_peer_quota_{name}"), &labels, MetricValue::Count(value));
        }
        let refused = Counters::from([("refused".to_owned(), quota.refused)]);
        page.counters("peer_quota", &labels, &refused);
    }
}
