//! Networks, their uplinks and nics, and the fabric's domains. A count of dropped frames has its
//! direction and its reason in labels; a count of a filter's rule has the rule's number.

use super::page::{MetricValue, Page, labels};
use api::status::{Counters, Status};

/// How the status begins the names of an uplink's counters, which are the network's there.
const UPLINK: &str = "uplink_";

pub(super) fn add(page: &mut Page, status: &Status) {
    for nic in &status.nics {
        let object = [("nic", nic.name.as_str()), ("network", nic.network.as_str())];
        port(page, "nic", &object, &nic.counters);
        page.gauge("vrio_nic_link_up", &labels(&object), MetricValue::Count(u64::from(nic.link)));
        page.state("nic", &nic.name, nic.state);
    }
    for network in &status.networks {
        let (of_uplink, own): (Counters, Counters) =
            network.counters.clone().into_iter().partition(|(name, _)| name.starts_with(UPLINK));
        let object = [("network", network.name.as_str())];
        page.counters("network", &labels(&object), &own);
        let nics = MetricValue::Count(network.nics.len() as u64);
        page.gauge("vrio_network_nics", &labels(&object), nics);
        let Some(uplink) = &network.uplink else { continue };
        let object = [("network", network.name.as_str()), ("uplink", uplink.as_str())];
        let own = of_uplink.iter().map(|(name, value)| (name[UPLINK.len()..].to_owned(), *value));
        port(page, "uplink", &object, &own.collect());
        let up = MetricValue::Count(u64::from(network.uplink_up == Some(true)));
        page.gauge("vrio_uplink_up", &labels(&object), up);
    }
    for domain in &status.domains {
        let object = labels(&[("domain", domain.name.as_str())]);
        let mut gauge = |name: &str, value: u64| {
            page.gauge(&format!("vrio_domain_{name}"), &object, MetricValue::Count(value));
        };
        gauge("endpoints", domain.endpoints as u64);
        gauge("endpoints_max", domain.endpoints_max as u64);
        gauge("members", domain.members as u64);
        gauge("region_bytes", domain.region_bytes);
        gauge("used_bytes", domain.used_bytes);
        page.counters("domain", &object, &domain.counters);
    }
    for vf in &status.vfs {
        let object = labels(&[("vf", vf.name.as_str()), ("domain", vf.domain.as_str())]);
        let connected = MetricValue::Count(u64::from(vf.process.is_some()));
        page.gauge("vrio_vf_connected", &object, connected);
        page.gauge("vrio_vf_endpoints", &object, MetricValue::Count(vf.endpoints as u64));
        let denied = Counters::from([("denied".to_owned(), vf.denied)]);
        page.counters("vf", &object, &denied);
    }
}

fn port(page: &mut Page, kind: &str, object: &[(&str, &str)], counters: &Counters) {
    let mut plain = Counters::new();
    for (name, value) in counters {
        let one = Counters::from([(String::new(), *value)]);
        if let Some((direction, reason)) = dropped(name) {
            // Their sum is what the labels add up to.
            if let Some(reason) = reason {
                let labelled = [object, &[("direction", direction), ("reason", reason)]].concat();
                page.counters(&format!("{kind}_drops"), &labels(&labelled), &one);
            }
        } else if let Some((rule, what)) = of_rule(name) {
            let labelled = [object, &[("rule", rule)]].concat();
            page.counters(&format!("{kind}_filter_rule_{what}"), &labels(&labelled), &one);
        } else {
            plain.insert(name.clone(), *value);
        }
    }
    page.counters(kind, &labels(object), &plain);
}

/// Which way what was dropped went, and why; without a reason it is the sum.
fn dropped(name: &str) -> Option<(&str, Option<&str>)> {
    let rest = name.strip_prefix("drops_")?;
    Some(match rest.split_once('_') {
        Some((direction, reason)) => (direction, Some(reason)),
        None => (rest, None),
    })
}

/// The number of a filter's rule, and what is counted of it.
fn of_rule(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("filter_rule_")?.split_once('_')
}
