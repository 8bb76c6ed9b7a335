//! Snapshots by time: how often a volume gets one, and how many of them stay.

use std::fmt;

use crate::key_table::{SettingKey, key};
use crate::quantity::show_duration;
use crate::reader::Value;

/// The most rules of a volume: minutes, hours, days, weeks, months and years are six.
const SNAPSHOT_RULES_MAX: usize = 8;

/// The most snapshots that a rule keeps. A pool has 16,384 volumes and snapshots in all.
const KEEP_MAX: u64 = 1000;

/// The shortest time between two snapshots: each is a sync of the pool's devices.
const EVERY_MIN_S: u64 = 60;

/// The longest time between two snapshots that a rule keeps: ten years.
const EVERY_MAX_S: u64 = 10 * 366 * 86_400;

const SECOND_NS: u64 = 1_000_000_000;

/// A rule for snapshots by time: one is taken in each period of `every_s` seconds, and the newest
/// `keep` of them stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRule {
    /// The length of a period, in seconds. Periods begin at multiples of it since 1970.
    pub every_s: u64,
    /// How many snapshots stay.
    pub keep: u32,
}

impl fmt::Display for SnapshotRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", show_duration(self.every_s * SECOND_NS), self.keep)
    }
}

/// The rules in words, for people.
pub fn show_snapshot_rules(rules: &[SnapshotRule]) -> String {
    let all: Vec<_> = rules.iter().map(ToString::to_string).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

/// The keys of a rule.
pub(crate) const SNAPSHOT_RULE_KEYS: [SettingKey; 2] = [
    key(
        "every",
        "The period, such as `\"1h\"` or `\"1d\"`: from 1 minute to 10 years. The first snapshot \
         of each period is kept by this rule.",
    ),
    key("keep", "How many of these snapshots stay, from 1 to 1000; the oldest ones go."),
];

/// Reads the rules of a volume.
pub(crate) fn snapshot_rules(value: &Value<'_, '_>) -> Option<Vec<SnapshotRule>> {
    let values = value.array()?;
    if values.len() > SNAPSHOT_RULES_MAX {
        value.fail(format!("{} rules are too many; at most {SNAPSHOT_RULES_MAX}", values.len()));
        return None;
    }
    let rules: Vec<_> = values.iter().filter_map(rule).collect();
    let is_twice = |rule: &SnapshotRule| {
        rules.iter().filter(|other| other.every_s == rule.every_s).count() > 1
    };
    if let Some(rule) = rules.iter().find(|rule| is_twice(rule)) {
        let every = show_duration(rule.every_s * SECOND_NS);
        value.fail(format!("two rules have the period {every:?}; write one of them"));
        return None;
    }
    Some(rules)
}

fn rule(value: &Value<'_, '_>) -> Option<SnapshotRule> {
    let example = "{ every = \"1h\", keep = 24 }";
    let table = value.table_of(&SNAPSHOT_RULE_KEYS)?;
    let every = table.require("every", example).and_then(|value| {
        let every_ns = value.duration_ns()?;
        let every_s = every_ns / SECOND_NS;
        if every_ns % SECOND_NS != 0 || !(EVERY_MIN_S..=EVERY_MAX_S).contains(&every_s) {
            value.fail("a period is a whole number of seconds, from 1min to 3660d".to_owned());
            return None;
        }
        Some(every_s)
    });
    let keep = table.require("keep", example).and_then(|value| value.integer(1..=KEEP_MAX));
    Some(SnapshotRule { every_s: every?, keep: u32::try_from(keep?).expect("at most KEEP_MAX") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Config;

    #[test]
    fn rules_are_read_and_shown() {
        let rules = json!([{ "every": "1h", "keep": 24 }, { "every": "1d", "keep": 30 }]);
        let rules = Config::snapshots(&rules).expect("rules");
        let hours = SnapshotRule { every_s: 3600, keep: 24 };
        assert_eq!(rules, [hours, SnapshotRule { every_s: 86_400, keep: 30 }]);
        assert_eq!(show_snapshot_rules(&rules), "1h:24 1d:30");
        assert_eq!(Config::snapshots(&json!([])), Ok(vec![]));
    }

    #[test]
    fn wrong_rules_are_refused_with_a_reason() {
        let many: Vec<_> =
            (1..=9).map(|h| json!({ "every": format!("{h}h"), "keep": 1 })).collect();
        for (rules, why) in [
            (json!([{ "every": "30s", "keep": 1 }]), "from 1min"),
            (json!([{ "every": "90500ms", "keep": 1 }]), "whole number of seconds"),
            (json!([{ "every": "4000d", "keep": 1 }]), "to 3660d"),
            (json!([{ "every": "99999999999d", "keep": 1 }]), "too big"),
            (json!([{ "every": "1h", "keep": 0 }]), "0"),
            (json!([{ "every": "1h", "keep": 1001 }]), "1001"),
            (json!([{ "every": "1h" }]), "keep"),
            (json!([{ "every": "1h", "keep": 1 }, { "every": "60min", "keep": 2 }]), "two rules"),
            (json!([{ "every": "1h", "keep": 1, "name": "x" }]), "name"),
            (json!("1h"), "snapshots"),
            (json!(many), "too many"),
        ] {
            let problems = Config::snapshots(&rules).unwrap_err();
            let text = problems.iter().map(|it| it.text.as_str()).collect::<Vec<_>>().join("; ");
            assert!(text.contains(why), "{rules}: {text}");
        }
    }
}
