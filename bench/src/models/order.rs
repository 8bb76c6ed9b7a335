//! Whether events come out in the order of the slides' table, and why their figures differ from the
//! slides'.

use std::fmt;

use serde::Serialize;

use super::cell::Column;
use super::model::{GuestDevice, Model};
use super::table::ModelTable;
use crate::verdict::{Bound, GoalState, Spread, Verdict};

/// The difference in events up to which two models count as equal. Now and then a thread is still
/// awake when it would be woken, and is not woken then.
const SAME: f64 = 0.25;

/// The slides' order.
const ORDER: [Model; 5] =
    [Model::Optimum, Model::Direct, Model::Elvis, Model::Unpolled, Model::Baseline];

/// Two models that may follow each other in the order, where those between them are not measured,
/// and the figure that is judged.
const STEPS: [(Model, Model, &str); 10] = [
    (Model::Optimum, Model::Direct, "vRIO direct less optimum (slides: 2 - 2)"),
    (Model::Direct, Model::Elvis, "Elvis less vRIO direct (slides: 4 - 2)"),
    (Model::Elvis, Model::Unpolled, "vRIO without polling less Elvis (slides: 6 - 4)"),
    (Model::Unpolled, Model::Baseline, "baseline less vRIO without polling (slides: 9 - 6)"),
    (Model::Optimum, Model::Elvis, "Elvis less optimum (slides: 4 - 2)"),
    (Model::Direct, Model::Unpolled, "vRIO without polling less vRIO direct (slides: 6 - 2)"),
    (Model::Elvis, Model::Baseline, "baseline less Elvis (slides: 9 - 4)"),
    (Model::Optimum, Model::Unpolled, "vRIO without polling less optimum (slides: 6 - 2)"),
    (Model::Direct, Model::Baseline, "baseline less vRIO direct (slides: 9 - 2)"),
    (Model::Optimum, Model::Baseline, "baseline less optimum (slides: 9 - 2)"),
];

/// The figure that compares host-side vRIO, without its IOhost, with Elvis.
const HOST_SIDE: &str = "vRIO host-side without the IOhost, less Elvis, either way";

/// The goals in words, by number from 1.
const TEXTS: [&str; 2] = [
    "events come in the slides' order: optimum, vRIO direct, Elvis, vRIO without polling, baseline",
    "host-side vRIO is Elvis plus the IOhost: the guest and its host have the same events",
];

/// Reasons why figures are not the slides', with the models of each reason. No cell has the slides'
/// figures.
const WHY: [(&[Model], &str); 6] = [
    (
        &ORDER,
        "The slides count a request of ApacheBench that a guest takes from its network card, and \
         the answer: 2 interrupts of the guest, one for received data and one for sent data. A \
         disk's request has one, of its completion; a frame has one, of its receiver, because \
         virtio's sender asks for none.",
    ),
    (
        &[Model::Elvis, Model::Baseline],
        "The 2 host interrupts of Elvis and of the baseline are those of a physical card. A volume \
         in memory has no device, and frames between two guests of a host meet no card; with \
         --volume direct:PATH the interrupts of the file's device are counted where the kernel \
         tells them, one of each request. Then a model that polls has them, and a model that \
         sleeps is woken by them.",
    ),
    (
        &[Model::Optimum],
        "The optimum's 2 are its card's interrupts, which reach the guest directly, and vRIO \
         direct has them too. A volume in memory answers at once and without an interrupt, so the \
         optimum has less than a client, whose answer comes in a datagram; a device wakes the \
         process that asked, once.",
    ),
    (
        &[Model::Unpolled, Model::HostSideUnpolled],
        "vRIO without polling has 4 on the slides' IOhost, two of each of its two cards. Here one \
         datagram wakes the IOhost for each request, and one the client; a request that comes \
         while it is awake wakes no process. The row host-side without polling has the VMhost's \
         events besides, which sleeps as well: the kick, and the answer.",
    ),
    (
        &[Model::Baseline],
        "Of the baseline's 3 exits one is the kick, which is counted; two are ends of interrupts, \
         and its 2 injections are as many exits again: both take KVM to be counted. Where \
         interrupts are posted by the processor there are none.",
    ),
    (
        &[Model::HostSide],
        "vRIO host-side has what Elvis has, since the guest has the same virtqueue, and a second \
         core polls besides: the IOhost's. So its events say nothing against it, and its polling \
         cores do.",
    ),
];

/// A goal, and whether it holds.
#[derive(Clone, Debug, Serialize)]
pub struct OrderGoal {
    /// Its number.
    pub goal: u8,
    /// The goal in words.
    pub text: &'static str,
    /// Whether the goal holds.
    pub standing: GoalState,
    /// The verdicts that decide the goal, with the title of the table of each.
    pub verdicts: Vec<(String, Verdict)>,
}

/// Two models of a table whose events are compared.
struct ModelPair {
    more: Model,
    figure: &'static str,
    /// The second model's events less the first one's, of each round and column that both have
    /// counted.
    differences: Vec<[f64; Column::ALL.len()]>,
}

impl ModelPair {
    fn of(table: &ModelTable, less: Model, more: Model, figure: &'static str) -> Option<Self> {
        let of = |model| {
            let row = table.rows.iter().find(|row| row.model == model)?;
            Some(&row.figures.as_ref()?.rounds)
        };
        let differences = of(less)?.iter().zip(of(more)?).map(|(less, more)| {
            let mut columns = less.iter().zip(more);
            std::array::from_fn(|_| columns.next().map_or(0.0, |(less, more)| more.less(*less)))
        });
        Some(Self { more, figure, differences: differences.collect() })
    }

    /// All pairs of a table's models that follow each other.
    fn all(table: &ModelTable) -> Vec<Self> {
        // A client in a guest also waits for the guest's card, which QEMU carries, so it is left
        // out.
        let is_whole = |model: Model| table.setting.real_guest.is_none() || model.has_vmhost();
        let has = |model: &&Model| {
            if !is_whole(**model) {
                return false;
            }
            let row = table.rows.iter().find(|row| row.model == **model);
            row.is_some_and(|row| row.figures.is_some())
        };
        let measured: Vec<_> = ORDER.iter().filter(has).collect();
        let of = |pair: &[&Model]| {
            let (less, more) = (*pair[0], *pair[1]);
            let (.., figure) = STEPS.iter().find(|step| (step.0, step.1) == (less, more))?;
            Self::of(table, less, more, figure)
        };
        measured.windows(2).filter_map(of).collect()
    }

    /// The least difference of events that keeps the order. A model that does not poll must have
    /// more events, since its threads are woken. In the slides, other models have more events
    /// because of interrupts of a physical device. Not every machine's volume has such a device, so
    /// that these models must only not have less.
    fn least(&self) -> f64 {
        if self.more.waits() { SAME } else { -SAME }
    }

    fn sums(&self) -> Vec<f64> {
        self.differences.iter().map(|it| it.iter().sum()).collect()
    }

    /// The columns that make the difference, by the counts.
    fn explained(&self) -> String {
        let median = |at: usize| Spread::of(self.differences.iter().map(|it| it[at])).median;
        let columns = Column::ALL.into_iter().enumerate();
        let apart = columns.map(|(at, column)| (column.name(), median(at)));
        let apart = apart.filter(|(_, median)| median.abs() >= SAID);
        let words: Vec<_> = apart.map(|(name, median)| format!("{name} {median:+.2}")).collect();
        let words = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        let figure = self.figure.split(" (").next().unwrap_or(self.figure);
        format!("{figure}: {words}")
    }
}

/// The least difference of a column that is named.
const SAID: f64 = 0.05;

/// Whether the goals are about a table: of one guest's disk, or of two guests' cards.
fn is_judged(table: &ModelTable) -> bool {
    match table.setting.device {
        GuestDevice::Block => table.setting.guests == 1,
        GuestDevice::Net => true,
    }
}

/// The goals, judged by the tables of one guest's disk and of two guests' cards.
pub(super) fn goals(tables: &[ModelTable]) -> Vec<OrderGoal> {
    let mut verdicts = Vec::new();
    for table in tables.iter().filter(|table| is_judged(table)) {
        let title = || table.setting.title();
        for step in ModelPair::all(table) {
            let least = Bound::AtLeast(step.least());
            verdicts.push((title(), Verdict::of(1, step.figure, least, &step.sums(), false)));
        }
        let near = ModelPair::of(table, Model::Elvis, Model::HostSide, HOST_SIDE);
        verdicts.extend(near.map(|step| {
            let iohost = Column::IohostInterrupts as usize;
            let rounds = step.differences.iter();
            let near = rounds.map(|it| (it.iter().sum::<f64>() - it[iohost]).abs());
            let near: Vec<_> = near.collect();
            (title(), Verdict::of(2, step.figure, Bound::AtMost(SAME), &near, false))
        }));
    }
    let reached = |(goal, text): (u8, &'static str)| {
        let of = verdicts.iter().filter(|(_, verdict)| verdict.goal == goal);
        let verdicts: Vec<_> = of.cloned().collect();
        OrderGoal { goal, text, standing: standing(&verdicts), verdicts }
    };
    (1..).zip(TEXTS).map(reached).collect()
}

/// The columns that make the differences, and then the reasons why the figures are not the slides'.
pub(super) fn explained(tables: &[ModelTable]) -> Vec<String> {
    let of = |table: &ModelTable| {
        let words: Vec<_> = ModelPair::all(table).iter().map(ModelPair::explained).collect();
        (!words.is_empty()).then(|| format!("{}: {}", table.setting.title(), words.join("; ")))
    };
    let counted = tables.iter().filter(|table| is_judged(table)).filter_map(of);
    let rows = || tables.iter().flat_map(|table| &table.rows);
    let has = |model: &Model| rows().any(|row| row.model == *model && row.figures.is_some());
    let why = WHY.iter().filter(|(models, _)| models.iter().any(has));
    counted.chain(why.map(|(_, text)| (*text).to_owned())).collect()
}

fn standing(verdicts: &[(String, Verdict)]) -> GoalState {
    let has = |standing| verdicts.iter().any(|(_, verdict)| verdict.standing == standing);
    match () {
        () if verdicts.is_empty() => GoalState::NotMeasured,
        () if has(GoalState::DoesNotHold) => GoalState::DoesNotHold,
        () if has(GoalState::Undecided) => GoalState::Undecided,
        () => GoalState::Holds,
    }
}

impl fmt::Display for OrderGoal {
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
    use super::super::cell::{Count, Counts, tests::sample};
    use super::super::{Setting, turns::row};
    use super::*;

    /// A table in which all rounds have counted the same.
    fn table(device: GuestDevice, guests: u16, rows: &[(Model, Counts)]) -> ModelTable {
        let setting = Setting::of(device, guests);
        let of = |(model, counts): &(Model, Counts)| {
            row(*model, Ok((0..3).map(|_| sample(*counts)).collect()), true)
        };
        ModelTable { setting, rows: rows.iter().map(of).collect() }
    }

    fn counts(near: f64, iohost: f64) -> Counts {
        [0.0, near, 0.0, 0.0, iohost].map(Count::Of)
    }

    fn standings(rows: &[(Model, Counts)]) -> Vec<GoalState> {
        goals(&[table(GuestDevice::Block, 1, rows)]).iter().map(|goal| goal.standing).collect()
    }

    #[test]
    fn the_order_of_the_slides_holds_or_does_not() {
        use Model::{Baseline, Direct, Elvis, HostSide, Optimum, Unpolled};
        let of = |unpolled, host_side| {
            standings(&[
                (Optimum, counts(0.0, 0.0)),
                (Direct, counts(1.0, 0.0)),
                (Elvis, counts(0.9, 0.0)),
                (Unpolled, counts(1.0, unpolled)),
                (Baseline, counts(3.0, 0.0)),
                (HostSide, counts(host_side, 5.0)),
            ])
        };
        assert_eq!(of(1.0, 1.0), [GoalState::Holds, GoalState::Holds]);
        assert_eq!(of(2.0, 1.0), [GoalState::DoesNotHold, GoalState::Holds]);
        assert_eq!(of(1.0, 2.0), [GoalState::Holds, GoalState::DoesNotHold]);
        let missing = standings(&[(Baseline, counts(3.0, 0.0))]);
        assert_eq!(missing, [GoalState::NotMeasured, GoalState::NotMeasured]);
    }

    #[test]
    fn an_unmeasured_model_is_skipped_and_each_table_is_named() {
        use Model::{Baseline, Elvis};
        let rows = |more| [(Elvis, counts(0.5, 0.0)), (Baseline, counts(more, 0.0))];
        let tables = [
            table(GuestDevice::Block, 1, &rows(3.0)),
            table(GuestDevice::Block, 4, &rows(0.0)),
            table(GuestDevice::Net, 2, &rows(2.0)),
        ];
        let goals = goals(&tables);
        assert_eq!(goals[0].standing, GoalState::Holds, "of four guests nothing is asked");
        let judged = |(table, verdict): &(String, Verdict)| (table.clone(), verdict.figure);
        let judged: Vec<_> = goals[0].verdicts.iter().map(judged).collect();
        let step = "baseline less Elvis (slides: 9 - 4)";
        let titles = ["block, 1 guest, sessions in clear", "net, 2 guests, sessions in clear"];
        assert_eq!(judged, titles.map(|title| (title.to_owned(), step)));
        let said = explained(&tables);
        assert_eq!(
            said[0],
            "block, 1 guest, sessions in clear: baseline less Elvis: guest interrupts +2.50"
        );
        assert!(said[1].starts_with("net") && said.iter().any(|it| it.contains("ApacheBench")));
        assert!(!said.iter().any(|it| it.contains("optimum's 2")), "nobody measured it");
    }

    #[test]
    fn uncounted_events_of_one_of_two_models_make_no_difference() {
        let mut elvis = counts(1.0, 0.0);
        elvis[3] = Count::Empty("no device");
        let mut baseline = counts(1.0, 0.0);
        baseline[3] = Count::Of(9.0);
        let rows = [(Model::Elvis, elvis), (Model::Baseline, baseline)];
        assert_eq!(standings(&rows)[0], GoalState::DoesNotHold);
    }
}
