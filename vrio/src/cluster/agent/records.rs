//! Answers of the agent to its node's questions about the records of replicated volumes, on a
//! thread of its own: the node's presence does not wait for them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

use ::cluster::registry::Guarded;
use ::cluster::{ClusterDirectory, ClusterError};
use node::api::agent::{
    AgentLine, RecordAnswer, RecordAsk, RecordOutcome, RecordQuestion, RecordRemake,
};
use node::member::{
    RecordDesk, RecordDeskError, SwapOutcome, form_from_text, record_from_text, record_text,
};

use crate::cluster::clock::now_s;

/// Questions that wait. Each volume of the node asks one at a time; a question beyond these has no
/// answer, and is asked again.
const QUESTIONS_MAX: usize = 256;

/// Starts the thread, which ends with the process.
pub(super) fn start(directory: &Path) -> io::Result<SyncSender<RecordQuestion>> {
    let (questions, asked) = sync_channel::<RecordQuestion>(QUESTIONS_MAX);
    let mut office = RecordOffice { path: directory.to_owned(), opened: None };
    let work = move || {
        for RecordQuestion { number, volume, form, nodes, ask } in asked {
            let outcome = office.answer((&volume, &form, nodes), &ask);
            // Without a node there is nothing to answer, and the process ends.
            let _ = say(&AgentLine::Answer(RecordAnswer { number, outcome }));
        }
    };
    std::thread::Builder::new().name("records".to_owned()).spawn(work)?;
    Ok(questions)
}

/// The registry, opened at the first question, and again after each failure: a certificate may have
/// been renewed.
struct RecordOffice {
    path: PathBuf,
    opened: Option<(ClusterDirectory, Guarded)>,
}

impl RecordOffice {
    fn answer(
        &mut self,
        (volume, form, nodes): (&str, &str, Vec<String>),
        ask: &RecordAsk,
    ) -> RecordOutcome {
        let answered = self.open().map_err(|error| error.to_string()).and_then(|opened| {
            let (directory, registry) = opened;
            let desk = RecordDesk::new(directory.keys().clone(), volume, form_from_text(form)?);
            let is_placed = matches!(ask, RecordAsk::Remake(remake) if remake.placed);
            let desk = desk.with_nodes(nodes, now_s).placed(is_placed);
            asked(&desk, registry, ask)
        });
        let outcome = answered.unwrap_or_else(RecordOutcome::NoAnswer);
        if matches!(outcome, RecordOutcome::NoAnswer(_) | RecordOutcome::Refused(_)) {
            self.opened = None;
        }
        outcome
    }

    fn open(&mut self) -> Result<&mut (ClusterDirectory, Guarded), ClusterError> {
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => {
                let directory = ClusterDirectory::open(&self.path)?;
                let registry = directory.registry()?;
                (directory, registry)
            }
        };
        Ok(self.opened.insert(opened))
    }
}

fn asked(
    desk: &RecordDesk,
    registry: &mut Guarded,
    ask: &RecordAsk,
) -> Result<RecordOutcome, String> {
    let failed = |error: RecordDeskError| match error {
        RecordDeskError::OtherForm => Ok(RecordOutcome::OtherForm),
        error => Err(error.to_string()),
    };
    match ask {
        RecordAsk::Look => match desk.find(registry) {
            Ok(Some(record)) => Ok(RecordOutcome::Record(record_text(&record))),
            Ok(None) => Ok(RecordOutcome::NoRecord),
            Err(error) => failed(error),
        },
        RecordAsk::Create(text) => {
            let first = record_from_text(text)?;
            desk.create(registry, &first).map_or_else(failed, |()| Ok(RecordOutcome::Done))
        }
        RecordAsk::Swap(text) => match desk.swap(registry, &record_from_text(text)?) {
            SwapOutcome::Unknown => Err("the registry has not answered".to_owned()),
            outcome => Ok(swapped(outcome)),
        },
        RecordAsk::Remake(remake) => {
            Ok(remade(desk, registry, remake).map_or_else(RecordOutcome::Refused, swapped))
        }
    }
}

/// Makes a record anew. An error says that nothing was changed, and nothing will be.
fn remade(
    desk: &RecordDesk,
    registry: &mut Guarded,
    RecordRemake { known, record, heard, unheard, .. }: &RecordRemake,
) -> Result<SwapOutcome, String> {
    let records = (&record_from_text(known)?, &record_from_text(record)?);
    let members = (heard.as_deref(), &unheard[..]);
    desk.remake(registry, records, members).map_err(|error| error.to_string())
}

fn swapped(outcome: SwapOutcome) -> RecordOutcome {
    match outcome {
        SwapOutcome::Done => RecordOutcome::Done,
        SwapOutcome::Conflict(record) => RecordOutcome::Record(record_text(&record)),
        SwapOutcome::Unknown => RecordOutcome::Unknown,
        SwapOutcome::NoRecord => RecordOutcome::NoRecord,
    }
}

/// Says a line to the node. An error means that the node has ended.
pub(super) fn say(said: &AgentLine) -> io::Result<()> {
    let mut line = serde_json::to_vec(said).expect("texts and numbers");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
