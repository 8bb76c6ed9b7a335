//! `vrio volume recover`: a copy serves again after the volume's record, or all copies in sync,
//! were lost. The copy asks the other copies what they know, says what would be lost, and begins.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::status::CopyRole;
use api::{Refused, RefusedKind};
use member::{MemberHost, RecoveryView};
use replica::{Input, Knowledge, MemberId, Place, RecoveryLoss, RecoveryPlan, RecoveryRefusal};
use serde::Deserialize;
use sessions::{LinkedSidecore, random};

use crate::served::ServedMember;

/// How long other copies may take to answer: a copy that can be reached answers in some
/// milliseconds.
const ANSWERS_TIME_MAX: Duration = Duration::from_secs(3);

/// How long the copy may take to serve: leases of a member that was drained, then a change of the
/// record, for which the agent asks the registry up to four times, each time for 8 s at most.
const SERVES_TIME_MAX: Duration = Duration::from_secs(40);

/// Records that the copy may hear of while it asks, each of which has it ask anew.
const RECORDS_MAX: u32 = 4;

/// The pause between two looks, and between two questions.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How far a recovery goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryStep {
    /// It says what would follow.
    Look,
    /// The copy here serves, if nothing that was flushed can be lost.
    Serve,
    /// The copy here serves, also with a loss.
    Force,
}

impl ServedMember {
    /// Carries a step out. Gives whether the copy here serves now, and what is known.
    ///
    /// # Errors
    /// Why nothing was changed, or the copy does not serve yet.
    pub(crate) fn recover(
        &self,
        cores: &[LinkedSidecore],
        own: &str,
        step: RecoveryStep,
    ) -> Result<(bool, Vec<String>), Refused> {
        let name = self.volume();
        let view = self.survey(cores).ok_or_else(|| {
            let error = format!("the copy of volume {name:?} here has stopped, or has not started");
            Refused::new(RefusedKind::Conflict, error, "`vrio status` says why; start it again")
        })?;
        let mut told = self.tell(&view);
        let plan = view.plan.map_err(|why| self.refusal(why, &told))?;
        let list = self.list().nodes;
        for id in plan.unheard.iter().filter(|id| !list.contains_key(id)) {
            told.push(format!("place {id}: in sync by a record, and no node is known for it"));
        }
        let mut text = loss_text(plan.loss).to_owned();
        if !plan.unheard.is_empty() && plan.loss > RecoveryLoss::Unflushed {
            text += ". ";
            text += ENDED;
        }
        let needs_force = plan.loss > RecoveryLoss::Unflushed;
        if step == RecoveryStep::Look {
            if view.own.reigns {
                told.push(format!(
                    "{own} serves, as far as it knows: nothing is needed unless `vrio cluster \
                     status` or the guests say otherwise"
                ));
            }
            let option = if needs_force { "--force" } else { "--serve" };
            told.push(format!("{own} can serve. {text}: `vrio volume recover {name} {option}`"));
            return Ok((false, told));
        }
        if needs_force && step != RecoveryStep::Force {
            let error = format!("{}. {text}", told.join(". "));
            let way_out = "have the other nodes with copies started; or, if that cannot be, make \
                           sure that their processes have ended, and use --force";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        self.begin(cores, &plan, view.recovery)?;
        told.push(text);
        Ok((true, told))
    }

    /// Asks the other copies, and waits for the answers of all of them, or for some time.
    fn survey(&self, cores: &[LinkedSidecore]) -> Option<RecoveryView> {
        if self.status().role == CopyRole::Failed {
            return None;
        }
        let number = sidecore::boot_ns();
        let mut until = Instant::now() + ANSWERS_TIME_MAX;
        let (mut asked_epoch, mut records) = (None, 0);
        loop {
            let view = self.with_host(cores, move |host| {
                host.ask_members(sidecore::now_ns(), number);
                host.recovery()
            })?;
            // The copy has heard of another record: all are asked anew, and need their time.
            if asked_epoch.replace(view.recovery.asked_epoch) != Some(view.recovery.asked_epoch)
                && records < RECORDS_MAX
            {
                records += 1;
                until = Instant::now() + ANSWERS_TIME_MAX;
            }
            let is_whole = view.recovery.answers.len() == view.recovery.members.len();
            if is_whole || Instant::now() >= until {
                return Some(view);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn begin(
        &self,
        cores: &[LinkedSidecore],
        plan: &RecoveryPlan,
        mut recovery: replica::Recovery,
    ) -> Result<(), Refused> {
        // The member looks again at what may be lost.
        recovery.accepts = plan.loss.max(RecoveryLoss::Unflushed);
        let random = random().map_err(|error| {
            let way_out = "nothing was changed: run the command again";
            Refused::new(RefusedKind::Failed, error.to_string(), way_out.to_owned())
        })?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        recovery.draw = since_1970.as_secs() << 8 | random & 0xff;
        let _ = self.with_host(cores, move |host| {
            host.order(sidecore::now_ns(), Input::Recover(recovery));
        });
        let until = Instant::now() + SERVES_TIME_MAX;
        let failed = |error: String, way_out: &str| {
            Err(Refused::new(RefusedKind::Failed, error, way_out.to_owned()))
        };
        loop {
            let status = self.status();
            if status.role == CopyRole::Primary && status.epoch > plan.known.epoch {
                return Ok(());
            }
            let view = self.with_host(cores, MemberHost::recovery);
            if let Some(why) = view.as_ref().and_then(|view| view.refused.clone()) {
                return failed(why, "nothing was changed");
            }
            if view.is_none() {
                return failed(
                    format!("the copy of volume {:?} here has stopped meanwhile", self.volume()),
                    "`vrio status` says why; whether the registry has the new record is not known: \
                     start the copy again and look with `vrio volume recover`",
                );
            }
            // A primary of the new record waits for the end of leases, and then serves.
            let is_over = view.is_none_or(|view| !view.goes_on && !view.own.reigns);
            if is_over {
                return failed(
                    format!("the copy of volume {:?} here has heard news meanwhile", self.volume()),
                    "nothing was changed by it: look again with `vrio volume recover`",
                );
            }
            if Instant::now() >= until {
                return failed(
                    format!("the copy of volume {:?} here does not serve yet", self.volume()),
                    "the copy goes on to ask for 30 s in all, and what it asks for may still be \
                     made; `vrio status` says when it serves, `vrio cluster status` whether the \
                     registry answers. To give it up, restart this node. To go on, run the command \
                     again a minute later",
                );
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn node(&self, member: MemberId) -> String {
        self.list().nodes.get(&member).cloned().unwrap_or_else(|| format!("place {member}"))
    }

    /// The knowledge of each copy, for people.
    fn tell(&self, view: &RecoveryView) -> Vec<String> {
        let mut told = Vec::new();
        for (member, node) in self.list().nodes {
            let known = match self.is_own(member) {
                true => Some(&view.own),
                false => view.recovery.answers.get(&member),
            };
            told.push(match known {
                None => format!("{node}: has not answered"),
                Some(known) => format!("{node}: {}", self.knowledge_text(member, known)),
            });
        }
        told
    }

    fn knowledge_text(&self, member: MemberId, known: &Knowledge) -> String {
        let Some(record) = &known.record else {
            return "has answered, and has no content".to_owned();
        };
        let in_sync: Vec<_> = record.in_sync.keys().map(|id| self.node(*id)).collect();
        let part = match record.in_sync.get(&member) {
            _ if known.reigns => "it serves",
            Some(life) if *life == known.life => "it has each write",
            _ if known.filled_since == Some(Place::default()) && known.cut.is_none() => {
                "it has no content"
            }
            _ if known.filled_since.is_some() => {
                "it was being filled, or may have been by an older release: old and new blocks"
            }
            Some(_) => "it has each flushed write",
            None => "it lacks writes",
        };
        let waits = if known.asks {
            "; it waits for the registry's answer to a change (a restart of its node gives that up)"
        } else {
            ""
        };
        let cut = known.cut.map_or_else(String::new, |it| {
            format!("; it was in sync at {}.{} at least", it.reign, it.counter)
        });
        format!(
            "knows the record {} (in sync: {}), by which {part}{cut}{waits}",
            record.epoch,
            in_sync.join(", ")
        )
    }

    fn refusal(&self, why: RecoveryRefusal, told: &[String]) -> Refused {
        let name = self.volume();
        let (error, way_out) = match why {
            RecoveryRefusal::NothingKnown => (
                "no copy that has answered has ever had the volume's content".to_owned(),
                "start the other nodes with copies".to_owned(),
            ),
            RecoveryRefusal::Serves(member) => {
                let node = self.node(member);
                let way_out = format!("run the command on {node}: its copy loses nothing");
                (format!("{node} serves volume {name:?}, or is about to"), way_out)
            }
            RecoveryRefusal::ServesOlder(member) => {
                let node = self.node(member);
                let way_out = format!(
                    "if the copy on {node} was made anew, or is otherwise not to be kept, stop \
                     {node} and run the command here again; to keep it, stop this node, and run \
                     the command on {node}"
                );
                let error = format!("{node} serves volume {name:?} by an older record");
                (error, way_out)
            }
            RecoveryRefusal::Better(member) => {
                let node = self.node(member);
                let way_out = format!("run the command on {node}");
                (format!("the copy on {node} has more than the copy here"), way_out)
            }
            RecoveryRefusal::News => (
                format!("the copy of volume {name:?} here has heard news meanwhile"),
                "run the command again".to_owned(),
            ),
            RecoveryRefusal::NoEpochLeft => (
                "a copy says that it knows an epoch that no volume has".to_owned(),
                "one of the nodes is not to be trusted: stop it".to_owned(),
            ),
        };
        let error = format!("{}. {error}", told.join(". "));
        Refused::new(RefusedKind::Conflict, error, way_out)
    }
}

/// The condition under which copies may be given up that were not heard.
const ENDED: &str = "The processes of the copies that have not answered, or wait for the registry, \
                     must have ended: one that is cut off could go on serving its guests, and a \
                     node that has not joined a registry that was rebuilt is present nowhere";

fn loss_text(loss: RecoveryLoss) -> &'static str {
    match loss {
        RecoveryLoss::Nothing => "Nothing is lost",
        RecoveryLoss::Unflushed => {
            "No flushed write is lost; disks with writes that were not flushed fail by name until \
             they are reset"
        }
        RecoveryLoss::Unheard => {
            "By all that is known nothing flushed is lost; but a copy that has not answered, or \
             waits for the registry, or has another record of the same number, may have newer \
             writes, and these would be lost"
        }
        RecoveryLoss::Newer => "The writes since this copy was in sync are lost, flushed or not",
        RecoveryLoss::Mixed => {
            "This copy was being filled, or is empty: it has old and new blocks beside each other, \
             which no guest has ever written so, and the other copies become as it is. Check or \
             repair all that is on it before it is used"
        }
    }
}
