//! The node's agent in the cluster: its reports, and questions to it about the records of
//! replicated volumes. The agent is a process of its own, since the node's process has neither TCP
//! nor certificates (`docs/decisions/080-registry.md`). A thread listens to it; only the threads of
//! volumes' members that may wait ask it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use api::agent::{AGENT_LINE_BYTES_MAX, AgentLine, RecordAsk, RecordOutcome, RecordQuestion};
use api::status::NodeClusterStatus;

/// How long a question waits for its answer: three members of etcd that are silent are asked for
/// 1 s each, and then for 8 s each.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// How long an agent may be silent. Its rounds are 3 s apart, and a round may wait 15 s for its
/// node, and several times 8 s for each of five members of etcd that do not answer.
const SILENCE_S_MAX: u64 = 180;

/// The last report about the cluster, and the way to its registry.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    heard: Arc<Mutex<Option<HeardReport>>>,
    questions: Arc<Mutex<OpenQuestions>>,
}

/// A volume whose record is asked for: its name, the text of its form, and the nodes with copies in
/// their order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordOf<'r> {
    pub(crate) volume: &'r str,
    pub(crate) form: &'r str,
    pub(crate) nodes: &'r [String],
}

/// The questions that wait for an answer.
#[derive(Debug, Default)]
struct OpenQuestions {
    agent: Option<UnixStream>,
    last: u64,
    /// By number. A question is forgotten when its time is over.
    waiting: BTreeMap<u64, (String, SyncSender<RecordOutcome>)>,
}

impl OpenQuestions {
    /// Hands a question to the agent.
    fn put(
        &mut self,
        of: RecordOf<'_>,
        ask: RecordAsk,
        answer: SyncSender<RecordOutcome>,
    ) -> io::Result<u64> {
        let Some(agent) = self.agent.as_ref() else {
            return Err(io::Error::other("the cluster's agent does not run"));
        };
        self.last += 1;
        let question = RecordQuestion {
            number: self.last,
            volume: of.volume.to_owned(),
            form: of.form.to_owned(),
            nodes: of.nodes.to_vec(),
            ask,
        };
        let mut line = serde_json::to_vec(&question)?;
        line.push(b'\n');
        // Never waited for: an agent of a node that has not joined reads no question.
        match send(agent, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == line.len() => {}
            Err(Errno::AGAIN) => return Err(io::Error::other("the cluster's agent does not read")),
            // A part of a line is as a question that the agent does not understand.
            Ok(_) => return Err(io::Error::other("the cluster's agent reads slowly")),
            Err(error) => return Err(error.into()),
        }
        self.waiting.insert(self.last, (of.volume.to_owned(), answer));
        Ok(self.last)
    }

    fn end(&mut self, number: u64, outcome: RecordOutcome) {
        // The answer to a question whose time was over is of no use.
        if let Some((_, answer)) = self.waiting.remove(&number) {
            let _ = answer.send(outcome);
        }
    }
}

#[derive(Debug)]
struct HeardReport {
    report: NodeClusterStatus,
    at: Instant,
    /// The agent has ended.
    ended: bool,
}

impl ClusterView {
    /// Listens to the agent of the node of this name, on a thread that ends with the agent. Without
    /// the thread the status says that no agent runs, and guests are served all the same.
    pub fn listen(&self, node: &str, agent: UnixStream) {
        let report = NodeClusterStatus {
            node: node.to_owned(),
            state: "away".to_owned(),
            detail: "the agent is starting".to_owned(),
            ..NodeClusterStatus::default()
        };
        *self.heard.lock() = Some(HeardReport { report, at: Instant::now(), ended: false });
        match agent.try_clone() {
            Ok(asked) => self.questions.lock().agent = Some(asked),
            Err(error) => tracing::error!(%error, "the cluster's agent cannot be asked"),
        }
        let view = self.clone();
        let listen = move || {
            view.hear(agent);
            view.note_end();
        };
        if let Err(error) = std::thread::Builder::new().name("cluster".to_owned()).spawn(listen) {
            tracing::error!(%error, "no thread that listens to the cluster's agent");
            self.note_end();
        }
    }

    /// Asks the registry about the record of a volume, for a thread that may wait.
    pub(crate) fn ask(&self, of: RecordOf<'_>, ask: RecordAsk) -> RecordOutcome {
        let (answer, answered) = sync_channel(1);
        let number = match self.questions.lock().put(of, ask, answer) {
            Ok(number) => number,
            Err(error) => return RecordOutcome::NoAnswer(error.to_string()),
        };
        answered.recv_timeout(ANSWER_TIME_MAX).unwrap_or_else(|_| {
            self.questions.lock().waiting.remove(&number);
            let text = "the cluster's agent has not answered, or has ended".to_owned();
            RecordOutcome::NoAnswer(text)
        })
    }

    /// Waits for no answer about a volume any more: this node does not serve it any longer.
    pub fn give_up(&self, volume: &str) {
        self.questions.lock().waiting.retain(|_, (of, _)| of != volume);
    }

    /// Asks nothing more: the node stops, and no thread waits for the agent any longer.
    pub fn close(&self) {
        let mut questions = self.questions.lock();
        questions.agent = None;
        questions.waiting.clear();
    }

    /// The node's part in its cluster, if it is in one.
    pub fn status(&self) -> Option<NodeClusterStatus> {
        let heard = self.heard.lock();
        let HeardReport { report, at, ended } = heard.as_ref()?;
        let heard_s = at.elapsed().as_secs();
        let mut status = NodeClusterStatus { heard_s, ..report.clone() };
        let why = match ended {
            true => Some("the agent has ended".to_owned()),
            false if heard_s > SILENCE_S_MAX => {
                Some(format!("the agent has told nothing for {heard_s} s"))
            }
            false => None,
        };
        if let Some(why) = why {
            status.state = "away".to_owned();
            status.detail = format!(
                "{why}; the log has the reason. `vrio node --take-over` starts another agent, and \
                 guests go on"
            );
        }
        Some(status)
    }
}

impl ClusterView {
    /// The agent has ended: nothing that was asked will be answered.
    fn note_end(&self) {
        if let Some(heard) = self.heard.lock().as_mut() {
            heard.ended = true;
        }
        let mut questions = self.questions.lock();
        questions.agent = None;
        // The threads that wait hear of it by the end of their channels.
        questions.waiting.clear();
    }

    /// Notes each line until the agent ends, or says a line that no agent says.
    fn hear(&self, agent: UnixStream) {
        let mut agent = BufReader::new(agent);
        loop {
            let mut line = Vec::new();
            match (&mut agent).take(AGENT_LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return tracing::warn!(%error, "the cluster's agent cannot be heard"),
            }
            match serde_json::from_slice::<AgentLine>(&line) {
                Ok(AgentLine::Report(report)) => {
                    let heard = HeardReport { report, at: Instant::now(), ended: false };
                    *self.heard.lock() = Some(heard);
                }
                Ok(AgentLine::Answer(answer)) => {
                    self.questions.lock().end(answer.number, answer.outcome);
                }
                Err(error) => {
                    return tracing::error!(%error, "the cluster's agent says what no agent says");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use api::agent::RecordAnswer;

    use super::*;

    const A: RecordOf<'static> = RecordOf { volume: "a", form: "07", nodes: &[] };

    /// Waits until the view is so; only a fault takes longer.
    fn wait(view: &ClusterView, is: impl Fn(&NodeClusterStatus) -> bool) -> NodeClusterStatus {
        loop {
            match view.status().filter(&is) {
                Some(found) => return found,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn the_last_report_is_shown_and_the_end_of_the_agent_is_told() {
        let view = ClusterView::default();
        assert_eq!(view.status(), None, "a node of no cluster");
        let (agent, node) = UnixStream::pair().unwrap();
        view.listen("io1", node);
        assert_eq!(view.status().unwrap().state, "away");
        let report = NodeClusterStatus {
            cluster: "rack".to_owned(),
            node: "io1".to_owned(),
            state: "present".to_owned(),
            verdict: "well".to_owned(),
            ..NodeClusterStatus::default()
        };
        let mut line = serde_json::to_vec(&AgentLine::Report(report)).unwrap();
        line.push(b'\n');
        (&agent).write_all(&line).unwrap();
        assert_eq!(wait(&view, |it| it.state == "present").verdict, "well");
        drop(agent);
        let ended = wait(&view, |it| it.state == "away");
        assert!(ended.detail.contains("the agent has ended"), "{ended:?}");
        assert_eq!(ended.cluster, "rack");
    }

    #[test]
    fn an_agent_that_says_what_none_says_is_not_heard_any_more() {
        for said in [&b"x\n"[..], b"{}\n", &[b'x'; 2 * AGENT_LINE_BYTES_MAX as usize]] {
            let view = ClusterView::default();
            let (agent, node) = UnixStream::pair().unwrap();
            view.listen("io1", node);
            // The node may have closed its end before all is written.
            let _ = (&agent).write_all(said);
            wait(&view, |it| it.detail.contains("the agent has ended"));
        }
    }

    #[test]
    fn a_question_is_answered_by_its_number_or_by_the_end_of_the_agent() {
        let view = ClusterView::default();
        let is_refused = |outcome| matches!(outcome, RecordOutcome::NoAnswer(_));
        assert!(is_refused(view.ask(A, RecordAsk::Look)), "there is no agent");
        let (agent, node) = UnixStream::pair().unwrap();
        view.listen("io1", node);
        let answering = std::thread::spawn(move || {
            let mut questions = BufReader::new(&agent);
            let mut line = String::new();
            questions.read_line(&mut line).unwrap();
            let asked: RecordQuestion = serde_json::from_str(&line).unwrap();
            assert_eq!((&*asked.volume, asked.ask), ("a", RecordAsk::Look));
            // No question waits for the first of these answers.
            for number in [asked.number + 7, asked.number] {
                let outcome = RecordOutcome::Record(format!("{number}"));
                let answer = AgentLine::Answer(RecordAnswer { number, outcome });
                let mut said = serde_json::to_vec(&answer).unwrap();
                said.push(b'\n');
                (&agent).write_all(&said).unwrap();
            }
            // It ends with the next question.
            line.clear();
            questions.read_line(&mut line).unwrap();
        });
        assert_eq!(view.ask(A, RecordAsk::Look), RecordOutcome::Record("1".to_owned()));
        assert!(is_refused(view.ask(A, RecordAsk::Swap("00".to_owned()))), "it has ended");
        answering.join().unwrap();
        assert!(is_refused(view.ask(A, RecordAsk::Look)), "it has ended");
    }

    #[test]
    fn an_agent_that_does_not_read_for_long_is_asked_again_later() {
        let view = ClusterView::default();
        let (agent, node) = UnixStream::pair().unwrap();
        view.listen("io1", node);
        let asked = Arc::clone(&view.questions);
        let put = || asked.lock().put(A, RecordAsk::Look, sync_channel(1).0);
        let refused = (0..100_000).find_map(|_| put().err()).expect("a socket has a bound");
        assert!(refused.to_string().contains("agent"), "{refused}");
        let mut questions = BufReader::new(&agent);
        let mut line = String::new();
        while let Err(error) = put() {
            assert!(error.to_string().contains("agent"), "{error}");
            line.clear();
            questions.read_line(&mut line).unwrap();
        }
    }
}
