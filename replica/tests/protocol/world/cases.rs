//! The cases whose states are all visited.

use replica::{MEMBERS_MAX, Pacing, Rule};

use super::action::Budget;
use super::{Case, Plan, SECTORS_MAX};

use Plan::{Claim, Flush, Read, Snapshot, Write};

/// The times of these cases, in ticks: as short as they can be, so that there are few states.
const PACING: Pacing = Pacing {
    lease_ns: 2,
    patience_ns: 2,
    silence_ns: 2,
    fetch_sectors_max: SECTORS_MAX as u32,
    fetches_max: 4,
    block_sectors: 1,
    members: MEMBERS_MAX,
};

/// A case of members in sync that write one sector.
fn case(members: u8, plans: &[&[Plan]], epochs: u64, budget: Budget) -> Case {
    Case {
        members,
        in_sync: (0..members).collect(),
        sectors: 1,
        plans: plans.iter().map(|plan| plan.to_vec()).collect(),
        budget,
        broken: None,
        pacing: Pacing { members: usize::from(members), ..PACING },
        epochs,
        counters: COUNTERS,
        is_calm: false,
        is_wild: false,
        is_slow: false,
    }
}

/// A member that joins and is dropped again makes operations without end: none above this.
const COUNTERS: u64 = 12;

/// No fault.
const NONE: Budget = Budget {
    restarts: 0,
    stops: 0,
    proofs: 0,
    disks: 0,
    pauses: 0,
    delays: 0,
    cuts: 0,
    unknown: 0,
    away: 0,
    restored: 0,
    losses: 0,
    recoveries: 0,
    stale: 0,
    moves: 0,
    mistakes: 0,
    again: 0,
    leaves: 0,
    damages: 0,
    rots: 0,
    scrubs: 0,
    haste: 0,
};

/// The cases by name, from small to large, and the case of a rule.
pub(crate) fn named(name: &str) -> Option<Case> {
    let one = [Write(0, 1), Flush, Read(0, 1)];
    let writes = [Write(0, 1), Read(0, 1)];
    let case = match name {
        // In CI: two members, one writer, a restart, a cut, and an unknown swap.
        "small" => case(2, &[&one], 6, Budget { restarts: 1, cuts: 1, unknown: 1, ..NONE }),
        // In CI: members end in order, one after the other, and start in any order.
        "stops" => case(2, &[&one], 6, Budget { stops: 2, ..NONE }),
        "joins and stops" => {
            joining(case(2, &[&writes], 4, Budget { stops: 1, delays: 1, ..NONE }))
        }
        "stops and kills" => {
            case(2, &[&one], 6, Budget { stops: 2, restarts: 1, unknown: 1, ..NONE })
        }
        "late stops" => case(2, &[&writes], 6, Budget { stops: 2, delays: 1, cuts: 1, ..NONE }),
        // In CI: the end of a process is proved, and heard at once or late.
        "proofs" => case(2, &[&writes], 6, Budget { restarts: 1, proofs: 2, unknown: 1, ..NONE }),
        "proofs and stops" => {
            case(2, &[&writes], 6, Budget { restarts: 1, stops: 1, proofs: 1, ..NONE })
        }
        "late proofs" => {
            let budget = Budget { restarts: 2, proofs: 2, delays: 1, cuts: 1, ..NONE };
            case(2, &[&one], 6, budget)
        }
        "proofs of three" => {
            calm(case(3, &[&writes], 6, Budget { restarts: 2, proofs: 2, delays: 1, ..NONE }))
        }
        "stops of three" => case(3, &[&one], 6, Budget { stops: 3, restarts: 1, ..NONE }),
        "delays" => case(2, &[&writes], 5, Budget { delays: 2, again: 1, ..NONE }),
        "pairs" => case(
            2,
            &[&one, &writes],
            6,
            Budget { restarts: 2, cuts: 1, delays: 1, unknown: 1, ..NONE },
        ),
        "moves" => {
            case(3, &[&writes], 6, Budget { moves: 1, cuts: 1, delays: 1, unknown: 1, ..NONE })
        }
        // Three members, two writers, a loss of volatile state each, a cut, a planned move, the
        // registry away.
        "three" => {
            case(3, &[&one, &writes], 7, Budget { restarts: 3, cuts: 1, away: 1, moves: 1, ..NONE })
        }
        // Two clients take epochs.
        "claims" => {
            case(2, &[&[Claim], &[Claim]], 6, Budget { restarts: 1, cuts: 1, unknown: 1, ..NONE })
        }
        // In CI: a snapshot beside writes, a member that joins, and a restart.
        "snapshots" => {
            let plans: &[&[Plan]] = &[&[Write(0, 1)], &[Snapshot]];
            joining(case(2, plans, 4, Budget { restarts: 1, ..NONE }))
        }
        "disks" => case(2, &[&one], 7, Budget { restarts: 1, disks: 1, delays: 1, ..NONE }),
        // A member that is not in sync at first.
        "joins" => joining(case(2, &[&writes], 4, Budget { restarts: 1, delays: 1, ..NONE })),
        "joins of three" => {
            calm(joining(case(3, &[&writes], 5, Budget { restarts: 2, cuts: 1, ..NONE })))
        }
        rule => {
            let found = Rule::ALL.into_iter().find(|one| format!("{one:?}") == rule).map(of_rule);
            return found.or_else(|| other(name));
        }
    };
    Some(case)
}

/// Cases with damaged sectors, and cases in which an operator has a copy serve.
fn other(name: &str) -> Option<Case> {
    let one = [Write(0, 1), Flush, Read(0, 1)];
    let writes = [Write(0, 1), Read(0, 1)];
    let case = match name {
        // In CI: a sector is damaged, and a message of those that mend it is late.
        "damages" => case(2, &[&writes], 4, Budget { damages: 1, delays: 1, ..NONE }),
        "damages and joins" => {
            joining(case(2, &[&writes], 4, Budget { damages: 1, delays: 1, ..NONE }))
        }
        "damages and restarts" => {
            case(2, &[&one], 6, Budget { damages: 2, restarts: 1, cuts: 1, ..NONE })
        }
        // In CI: a scrub beside writes, of a backup whose device lies, or cannot read.
        "scrubs" => case(2, &[&writes], 4, Budget { scrubs: 1, rots: 1, delays: 1, ..NONE }),
        "scrubs and damages" => {
            let budget = Budget { scrubs: 1, damages: 1, delays: 1, ..NONE };
            case(2, &[&writes], 4, budget)
        }
        "slow scrubs" => slow(case(2, &[&writes], 4, Budget { scrubs: 1, rots: 1, ..NONE })),
        "scrubs and restarts" => {
            let budget = Budget { scrubs: 1, rots: 1, damages: 1, restarts: 1, ..NONE };
            case(2, &[&one], 5, budget)
        }
        "scrubs of three" => {
            let budget = Budget { scrubs: 1, rots: 1, damages: 1, cuts: 1, ..NONE };
            calm(case(3, &[&writes], 4, budget))
        }
        // In CI: the registry loses the record, and an operator has a copy serve.
        "recoveries" => case(2, &[&writes], 4, Budget { losses: 1, recoveries: 1, ..NONE }),
        "recoveries and restarts" => {
            let budget = Budget { losses: 1, recoveries: 1, restarts: 1, ..NONE };
            case(2, &[&writes], 4, budget)
        }
        "late recoveries" => {
            let budget = Budget { losses: 1, recoveries: 1, delays: 1, cuts: 1, ..NONE };
            case(2, &[&writes], 4, budget)
        }
        "recoveries and disks" => {
            calm(case(2, &[&one], 5, Budget { disks: 1, recoveries: 1, restarts: 1, ..NONE }))
        }
        "recoveries and joins" => {
            let budget = Budget { losses: 1, recoveries: 1, restarts: 1, ..NONE };
            calm(joining(case(2, &[&writes], 5, budget)))
        }
        // A member that ended in order starts after another copy was made to serve, and hears a
        // record of before.
        "recoveries and stops" => recoveries_and_stops(),
        "recoveries of three" => {
            let budget =
                Budget { losses: 1, recoveries: 2, restarts: 2, stops: 1, cuts: 1, ..NONE };
            calm(case(3, &[&writes], 6, budget))
        }
        _ => return None,
    };
    Some(case)
}

/// A small case in which the breach of a rule is seen.
pub(crate) fn of_rule(rule: Rule) -> Case {
    let one: &[&[Plan]] = &[&[Write(0, 1)], &[Read(0, 1), Read(0, 1)]];
    let two: &[&[Plan]] = &[&[Write(0, 1), Read(0, 1)], &[Read(0, 1), Read(0, 1)]];
    let base = match rule {
        Rule::SwapBeforeAcknowledging => case(2, two, 5, Budget { cuts: 1, delays: 1, ..NONE }),
        Rule::KeepPromises => case(2, two, 5, Budget { delays: 2, ..NONE }),
        Rule::EqualTails => calm(case(3, one, 3, Budget { cuts: 1, restarts: 2, ..NONE })),
        Rule::NewerRecordsOnly => case(2, two, 5, Budget { stale: 1, cuts: 1, ..NONE }),
        Rule::NumbersOfOneReign => calm(case(3, one, 3, Budget { cuts: 1, restarts: 1, ..NONE })),
        Rule::RestartIsLoss => case(2, two, 5, Budget { restarts: 2, ..NONE }),
        Rule::OnlyMembersInSyncServe => case(2, two, 6, Budget { restarts: 2, ..NONE }),
        Rule::ReadsWaitForBackups => case(2, two, 2, Budget { delays: 1, cuts: 1, ..NONE }),
        Rule::ReadsNeedLeases => case(2, two, 5, Budget { pauses: 1, ..NONE }),
        Rule::LeasesCountFromSending => case(2, two, 2, Budget { delays: 1, pauses: 1, ..NONE }),
        Rule::RequestsOnce => {
            let plans: &[&[Plan]] = &[&[Write(0, 1), Read(0, 1)], &[Write(0, 1), Read(0, 1)]];
            case(2, plans, 4, Budget { again: 1, delays: 1, ..NONE })
        }
        Rule::UnknownSwapsMayHaveHappened => {
            case(2, two, 6, Budget { unknown: 1, cuts: 1, delays: 1, ..NONE })
        }
        Rule::RegistryNeverGoesBack => case(2, two, 6, Budget { restored: 1, cuts: 1, ..NONE }),
        Rule::AnswersOfOneAdmission => {
            calm(joining(case(2, one, 3, Budget { delays: 2, cuts: 1, restarts: 1, ..NONE })))
        }
        Rule::AdmissionsAreNotUndone => {
            joining(case(2, one, 3, Budget { delays: 1, restarts: 1, ..NONE }))
        }
        Rule::AdmittedWithAll => {
            calm(joining(case(2, one, 3, Budget { restarts: 1, delays: 2, ..NONE })))
        }
        Rule::FillsAreTail => {
            calm(joining(case(3, one, 4, Budget { restarts: 2, cuts: 1, ..NONE })))
        }
        Rule::LivesOnRequest => calm(case(2, &[], 6, Budget { restarts: 3, delays: 1, ..NONE })),
        Rule::MovedPrimariesAreSilent => {
            // A member is silent for less than a lease.
            let pacing = Pacing { lease_ns: 3, patience_ns: 3, ..PACING };
            let budget = Budget { moves: 1, pauses: 1, stale: 1, ..NONE };
            Case { pacing, ..case(2, &[], 3, budget) }
        }
        Rule::NotesComeWithAdmission => {
            calm(joining(case(2, &[&[Claim], &[Claim]], 4, Budget { restarts: 1, ..NONE })))
        }
        Rule::RestartsLetLeasesEnd => case(2, two, 5, Budget { restarts: 1, mistakes: 1, ..NONE }),
        Rule::EndsAreDurable => case(1, two, 4, Budget { stops: 1, ..NONE }),
        Rule::EndsAreUsedOnce => case(1, two, 5, Budget { stops: 1, restarts: 1, ..NONE }),
        Rule::ResumedMembersReignAnew => {
            calm(joining(case(2, two, 6, Budget { stops: 1, delays: 1, cuts: 1, ..NONE })))
        }
        Rule::ProofsAreOfOneLife => {
            joining(case(2, two, 5, Budget { restarts: 1, proofs: 1, ..NONE }))
        }
        Rule::LivesThatGoOnAreNotOver => case(2, two, 5, Budget { stops: 1, proofs: 1, ..NONE }),
        Rule::RecoveredEpochsAreNew
        | Rule::RemadeReignsLetLeasesEnd
        | Rule::AttemptsAreUnheard
        | Rule::OlderPrimariesMayGoOn
        | Rule::OlderCopiesByEpoch
        | Rule::ResumedMembersAskAnew
        | Rule::FillsAreMarked => of_recovery(rule),
        Rule::JoinsTakeNoSnapshots => {
            let plans: &[&[Plan]] = &[&[Write(0, 1), Write(0, 1), Snapshot]];
            joining(case(2, plans, 3, Budget { delays: 2, ..NONE }))
        }
        Rule::RefusalsAreOfThePast => case(2, two, 5, Budget { pauses: 1, restarts: 1, ..NONE }),
        rule => of_content(rule),
    };
    Case { broken: Some(rule), ..base }
}

/// A write to another sector of a damaged block.
fn mending() -> Case {
    let plans: &[&[Plan]] = &[&[Read(0, 1)], &[Write(1, 1), Read(1, 1)]];
    let pacing = Pacing { block_sectors: 2, ..PACING };
    let budget = Budget { damages: 1, delays: 1, ..NONE };
    Case { sectors: 2, pacing, ..case(2, plans, 2, budget) }
}

/// The cases of rules about content that operations change.
fn of_content(rule: Rule) -> Case {
    let two: &[&[Plan]] = &[&[Write(0, 1), Read(0, 1)], &[Read(0, 1), Read(0, 1)]];
    match rule {
        Rule::RepairsAreOfNow => slow(case(2, two, 2, Budget { scrubs: 1, rots: 1, ..NONE })),
        Rule::ProofsAreOfNow => case(2, two, 2, Budget { scrubs: 1, delays: 1, ..NONE }),
        Rule::MendsAreOfNow => case(2, two, 2, Budget { damages: 1, delays: 2, ..NONE }),
        Rule::MendsWaitForOperations => mending(),
        Rule::HalfEqualMembersGoBack => {
            let plans: &[&[Plan]] = &[&[Write(0, 1), Read(0, 1)]];
            calm(case(3, plans, 5, Budget { pauses: 3, cuts: 3, again: 1, ..NONE }))
        }
        _ => unreachable!("it is of another case"),
    }
}

fn recoveries_and_stops() -> Case {
    joining(case(2, &[], 5, Budget { stops: 2, stale: 1, recoveries: 1, ..NONE }))
}

/// The cases of rules about recoveries.
fn of_recovery(rule: Rule) -> Case {
    let two: &[&[Plan]] = &[&[Write(0, 1), Read(0, 1)], &[Read(0, 1), Read(0, 1)]];
    match rule {
        Rule::RecoveredEpochsAreNew => {
            let budget = Budget { stops: 1, cuts: 1, losses: 1, recoveries: 1, ..NONE };
            calm(case(2, two, 5, budget))
        }
        Rule::RemadeReignsLetLeasesEnd => case(2, &[], 5, Budget { recoveries: 1, ..NONE }),
        Rule::AttemptsAreUnheard | Rule::OlderPrimariesMayGoOn => {
            let budget = Budget { stops: 1, delays: 1, losses: 1, recoveries: 1, ..NONE };
            calm(case(2, &[], 5, budget))
        }
        Rule::ResumedMembersAskAnew => recoveries_and_stops(),
        Rule::OlderCopiesByEpoch => {
            calm(case(3, &[], 5, Budget { stops: 2, disks: 1, recoveries: 1, ..NONE }))
        }
        Rule::FillsAreMarked => {
            let budget = Budget { stops: 2, restarts: 1, delays: 1, recoveries: 1, ..NONE };
            calm(case(3, &[], 5, budget))
        }
        _ => unreachable!("it is of another case"),
    }
}

/// The second member is not in sync at first.
fn joining(mut case: Case) -> Case {
    case.in_sync.retain(|id| *id != 1);
    case
}

/// Storage takes time, and clients do not wait for it.
fn slow(case: Case) -> Case {
    Case { is_slow: true, ..case }
}

/// Faults come only when nothing else can happen, so that there are fewer states.
fn calm(case: Case) -> Case {
    Case { is_calm: true, ..case }
}
