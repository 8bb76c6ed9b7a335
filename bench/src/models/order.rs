//! Whether events come out in the order of the slides' table, and why not in its figures.

use std::fmt;

use serde::Serialize;

use super::{Figures, Model, Table, table};
use crate::verdict::{Bound, Standing, Verdict};

/// By how much events of one kind may differ and still be the same: a thread that is still awake
/// when it would be woken is not, now and then.
const SAME: f64 = 0.25;

/// What the slides' order asks of two models that follow each other.
struct Step {
    less: Model,
    more: Model,
    figure: &'static str,
    /// By how much the second one has more, at least. Where the slides have more for an interrupt
    /// of a physical device, which not every machine's volume has, it is only not to have less.
    least: f64,
}

const STEPS: [Step; 4] = [
    Step {
        less: Model::Optimum,
        more: Model::Direct,
        figure: "vRIO direct less optimum (slides: 2 - 2)",
        least: -SAME,
    },
    Step {
        less: Model::Direct,
        more: Model::Elvis,
        figure: "Elvis less vRIO direct (slides: 4 - 2)",
        least: -SAME,
    },
    Step {
        less: Model::Elvis,
        more: Model::Unpolled,
        figure: "vRIO without polling less Elvis (slides: 6 - 4)",
        least: SAME,
    },
    Step {
        less: Model::Unpolled,
        more: Model::Baseline,
        figure: "baseline less vRIO without polling (slides: 9 - 6)",
        least: SAME,
    },
];

/// What we mean to reach, by number from 1.
const TEXTS: [&str; 2] = [
    "events come in the slides' order: optimum, vRIO direct, Elvis, vRIO without polling, baseline",
    "host-side vRIO is Elvis plus the IOhost: the guest and its host have the same events",
];

/// Why figures are not the slides'. Those are cited, and stand in no cell.
pub(super) const EXPLAINED: [&str; 6] = [
    "The slides count a request of ApacheBench that a guest takes from its network card, and the \
     answer: 2 interrupts of the guest, one for what came and one for what was sent. A disk's \
     request has one, of its completion; a frame has one, of whoever takes it, for virtio's sender \
     asks for none.",
    "The 2 host interrupts of Elvis and of the baseline are those of a physical card. A volume in \
     memory has no device, and frames between two guests of a host meet no card; with --volume \
     direct:PATH the interrupts of the file's device are counted where the kernel tells them, one \
     of each request. Then who polls has them, and who sleeps is woken by them.",
    "The optimum's 2 are its card's interrupts, which reach the guest directly. A volume in memory \
     answers at once and interrupts nobody; a device wakes who asked, once.",
    "vRIO without polling has 4 on the slides' IOhost, two of each of its two cards. Here one \
     datagram wakes the IOhost for each request, and one the client; a request that comes while it \
     is awake wakes nobody. The row host-side without polling has the VMhost's events besides, \
     which sleeps as well: the kick, and the answer.",
    "Of the baseline's 3 exits one is the kick, which is counted; two are ends of interrupts, and \
     its 2 injections are as many exits again: both take KVM to be counted. Where interrupts are \
     posted by the processor there are none.",
    "vRIO host-side has what Elvis has, since the guest has the same virtqueue, and a second core \
     polls besides: the IOhost's. So its events say nothing against it, and its polling cores do.",
];

/// A goal, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Reached {
    /// Its number.
    pub goal: u8,
    /// What we mean to reach.
    pub text: &'static str,
    /// What is to be said.
    pub standing: Standing,
    /// What it rests on, and of which table.
    pub verdicts: Vec<(String, Verdict)>,
}

/// What the tables say of the goals: of one guest, where all models can be measured.
pub(super) fn goals(tables: &[Table]) -> Vec<Reached> {
    let mut verdicts = Vec::new();
    for table in tables {
        let of = |model| {
            let row = table.rows.iter().find(|row| row.model == model)?;
            row.figures.as_ref()
        };
        let mut note = |verdict: Option<Verdict>| {
            verdicts.extend(verdict.map(|it| (table::title(&table.setting), it)));
        };
        for Step { less, more, figure, least } in STEPS {
            let differences = differences(of(less), of(more), |it| &it.sums);
            let verdict = |it: Vec<f64>| Verdict::of(1, figure, Bound::AtLeast(least), &it, false);
            note(differences.map(verdict));
        }
        let near = differences(of(Model::Elvis), of(Model::HostSide), |it| &it.near_sums);
        let figure = "vRIO host-side without the IOhost, less Elvis, either way";
        let verdict = |it: Vec<f64>| {
            let apart: Vec<_> = it.iter().map(|it| it.abs()).collect();
            Verdict::of(2, figure, Bound::AtMost(SAME), &apart, false)
        };
        note(near.map(verdict));
    }
    let reached = |(goal, text): (u8, &'static str)| {
        let of = verdicts.iter().filter(|(_, verdict)| verdict.goal == goal);
        let verdicts: Vec<_> = of.cloned().collect();
        Reached { goal, text, standing: standing(&verdicts), verdicts }
    };
    (1..).zip(TEXTS).map(reached).collect()
}

/// The second one's less the first one's, of each round that both have.
fn differences(
    less: Option<&Figures>,
    more: Option<&Figures>,
    of: fn(&Figures) -> &Vec<f64>,
) -> Option<Vec<f64>> {
    let (less, more) = (of(less?), of(more?));
    Some(less.iter().zip(more).map(|(less, more)| more - less).collect())
}

fn standing(verdicts: &[(String, Verdict)]) -> Standing {
    let has = |standing| verdicts.iter().any(|(_, verdict)| verdict.standing == standing);
    match () {
        () if verdicts.is_empty() => Standing::NotMeasured,
        () if has(Standing::DoesNotHold) => Standing::DoesNotHold,
        () if has(Standing::Undecided) => Standing::Undecided,
        () => Standing::Holds,
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { goal, text, standing, verdicts } = self;
        writeln!(f, "  {goal:>2}  {standing:14}{text}")?;
        for (table, verdict) in verdicts {
            let Verdict { figure, value, bound, standing, why, .. } = verdict;
            write!(f, "{:20}{figure}: {value}, {bound}: {standing}", "")?;
            why.iter().try_for_each(|why| write!(f, " ({why})"))?;
            writeln!(f, "; {table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Count, Sample, figures, tests::sample};
    use super::super::{Device, Row, Setting};
    use super::*;

    fn row(model: Model, near: f64, iohost: f64) -> Row {
        let counts = [0.0, near, 0.0, 0.0, iohost].map(Count::Of);
        let samples: Vec<Sample> = (0..3).map(|_| sample(counts)).collect();
        let (name, polling_cores) = (model.name(), model.polling_cores());
        let figures = Some(figures(&samples, true));
        Row { model, name, polling_cores, figures, empty: None }
    }

    fn standings(rows: Vec<Row>) -> Vec<Standing> {
        let setting = Setting { device: Device::Block, guests: 1, encrypt: false, again: false };
        let table = Table { setting, rows };
        goals(&[table]).iter().map(|goal| goal.standing).collect()
    }

    #[test]
    fn the_order_of_the_slides_holds_or_does_not() {
        use Model::{Baseline, Direct, Elvis, HostSide, Optimum, Unpolled};
        let of = |unpolled, host_side| {
            let rows = [
                row(Optimum, 0.0, 0.0),
                row(Direct, 1.0, 0.0),
                row(Elvis, 0.9, 0.0),
                row(Unpolled, 1.0, unpolled),
                row(Baseline, 3.0, 0.0),
                row(HostSide, host_side, 5.0),
            ];
            standings(rows.into())
        };
        assert_eq!(of(1.0, 1.0), [Standing::Holds, Standing::Holds]);
        assert_eq!(of(2.0, 1.0), [Standing::DoesNotHold, Standing::Holds]);
        assert_eq!(of(1.0, 2.0), [Standing::Holds, Standing::DoesNotHold]);
        let missing = standings(vec![row(Baseline, 3.0, 0.0)]);
        assert_eq!(missing, [Standing::NotMeasured, Standing::NotMeasured]);
    }
}
