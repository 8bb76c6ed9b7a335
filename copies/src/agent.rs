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

use api::agent::{
    AGENT_LINE_BYTES_MAX, AgentLine, CopyLives, LIVES_MAX, NodeLine, RecordAsk, RecordOutcome,
    RecordQuestion,
};
use api::status::NodeClusterStatus;
use member::{ErrandEnd, MemberList};
use replica::Life;
use sidecore::mailbox;

/// How long a question waits for its answer: three members of etcd that are silent are asked for
/// 1 s each, and then for 8 s each.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// How long an agent may be silent. Its rounds are 3 s apart, and a round may wait 15 s for its
/// node, and several times 8 s for each of five members of etcd that do not answer.
const SILENCE_S_MAX: u64 = 180;

/// How long a copy that ends in order waits until its agent has the word that its life goes on. An
/// agent reads at once; a busy host delays it.
const FORGET_TIME_MAX: Duration = Duration::from_secs(1);

/// The pause between two tries to give an agent this word.
const SAY_AGAIN: Duration = Duration::from_millis(1);

/// The last report about the cluster, and the way to its registry.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    heard: Arc<Mutex<Option<HeardReport>>>,
    questions: Arc<Mutex<OpenQuestions>>,
    members: Arc<Mutex<BTreeMap<String, EndsOfOthers>>>,
}

/// The way of the ends of other nodes' processes to the member of a volume.
#[derive(Debug)]
pub(crate) struct EndsOfOthers {
    /// The nodes with copies.
    pub(crate) list: Arc<Mutex<MemberList>>,
    pub(crate) news: mailbox::Sender<ErrandEnd>,
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
    /// The lives of members that end with this process, by volume.
    lives: BTreeMap<String, Life>,
    /// The agent may know other lives: it was not told the present ones.
    is_unsure: bool,
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
        let mut line = serde_json::to_vec(&NodeLine::Question(question))?;
        line.push(b'\n');
        say(agent, &line)?;
        self.waiting.insert(self.last, (of.volume.to_owned(), answer));
        Ok(self.last)
    }

    /// Tells the agent all lives that end with this process.
    fn tell_lives(&mut self) {
        let Some(agent) = self.agent.as_ref() else { return };
        let lives = self.lives.iter().take(LIVES_MAX);
        let lives = lives.map(|(volume, life)| (volume.clone(), format!("{life:016x}"))).collect();
        // The empty line ends a line of which a part was sent.
        let mut line = b"\n".to_vec();
        line.extend(serde_json::to_vec(&NodeLine::Lives(lives)).expect("texts"));
        line.push(b'\n');
        self.is_unsure = match say(agent, &line) {
            Ok(()) => false,
            // An agent that has ended tells no end.
            Err(error) => error.kind() != io::ErrorKind::BrokenPipe,
        };
    }

    fn end(&mut self, number: u64, outcome: RecordOutcome) {
        // The answer to a question whose time was over is of no use.
        if let Some((_, answer)) = self.waiting.remove(&number) {
            let _ = answer.send(outcome);
        }
    }
}

/// Says a line to the agent. It is never waited for: an agent of a node that has not joined reads
/// nothing.
fn say(agent: &UnixStream, line: &[u8]) -> io::Result<()> {
    match send(agent, line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(sent) if sent == line.len() => Ok(()),
        Err(Errno::AGAIN) => Err(io::Error::other("the cluster's agent does not read")),
        // A part of a line is as a line that the agent does not understand.
        Ok(_) => Err(io::Error::other("the cluster's agent reads slowly")),
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug)]
struct HeardReport {
    report: NodeClusterStatus,
    at: Instant,
    /// The agent has ended.
    ended: bool,
    /// The last agent that has reported, and how many came before it.
    agent_pid: u32,
    restarts: u64,
}

impl HeardReport {
    fn new(report: NodeClusterStatus) -> Self {
        let agent_pid = report.agent_pid;
        Self { report, at: Instant::now(), ended: false, agent_pid, restarts: 0 }
    }

    /// The next report. While there is no agent, its starter reports.
    fn next(&self, report: NodeClusterStatus) -> Self {
        let mut next = Self::new(report);
        if next.agent_pid == 0 {
            next.agent_pid = self.agent_pid;
        }
        let is_another = self.agent_pid != 0 && next.agent_pid != self.agent_pid;
        Self { restarts: self.restarts + u64::from(is_another), ..next }
    }
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
        *self.heard.lock() = Some(HeardReport::new(report));
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

    /// The member of a volume takes part with this life: the agent tells when the life ends with
    /// this process. The member hears of such ends of others.
    pub(crate) fn follow_ends(&self, volume: &str, life: Life, others: EndsOfOthers) {
        self.members.lock().insert(volume.to_owned(), others);
        let mut questions = self.questions.lock();
        questions.lives.insert(volume.to_owned(), life);
        questions.tell_lives();
    }

    /// Has the agent tell nothing of the lives of these volumes' members, since the next process
    /// may go on with them. Returns whether that is sure: then the agent has the word before it
    /// sees the end of this process.
    pub(crate) fn forget_lives<'v>(&self, volumes: impl Iterator<Item = &'v str>) -> bool {
        let until = Instant::now() + FORGET_TIME_MAX;
        let mut is_told = true;
        for volume in volumes {
            is_told &= self.questions.lock().lives.remove(volume).is_none();
        }
        loop {
            let mut questions = self.questions.lock();
            if !std::mem::replace(&mut is_told, true) || questions.is_unsure {
                questions.tell_lives();
            }
            if !questions.is_unsure {
                return true;
            }
            drop(questions);
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(SAY_AGAIN);
        }
    }

    /// Passes the end of a process of another node on to the members that may have known it.
    fn pass_on(&self, node: &str, lives: &CopyLives) {
        let mut members = self.members.lock();
        for (volume, life) in lives {
            let (Some(of), Ok(life)) = (members.get_mut(volume), Life::from_str_radix(life, 16))
            else {
                continue;
            };
            if let Some(member) = of.list.lock().place_of(node) {
                // Without room the leases end by themselves.
                let _ = of.news.send(ErrandEnd::Over(member, life));
            }
        }
    }

    /// Waits for no answer about a volume any more: this node does not serve it any longer.
    pub fn give_up(&self, volume: &str) {
        self.members.lock().remove(volume);
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
        let HeardReport { report, at, ended, restarts, .. } = heard.as_ref()?;
        let heard_s = at.elapsed().as_secs();
        let agent_restarts = *restarts;
        let mut status = NodeClusterStatus { heard_s, agent_restarts, ..report.clone() };
        let why = match ended {
            true => Some("the agent has ended".to_owned()),
            false if heard_s > SILENCE_S_MAX => {
                Some(format!("the agent has told nothing for {heard_s} s"))
            }
            false => None,
        };
        if let Some(why) = why {
            status.state = "away".to_owned();
            status.agent_pid = 0;
            status.detail = format!(
                "{why}; the log has the reason. Restart the node; if it has no copies of \
                 replicated volumes, `vrio node --take-over` starts another agent as well, and \
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
        // An agent that is not heard any more may still see the end of this process.
        questions.lives.clear();
        questions.tell_lives();
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
                    let pid = report.agent_pid;
                    let mut heard = self.heard.lock();
                    let next = match &*heard {
                        Some(last) => last.next(report),
                        None => HeardReport::new(report),
                    };
                    let last = heard.replace(next);
                    drop(heard);
                    // An agent that was started again knows no lives.
                    if last.is_none_or(|last| last.report.agent_pid != pid) {
                        self.questions.lock().tell_lives();
                    }
                }
                Ok(AgentLine::Over { node, lives }) => self.pass_on(&node, &lives),
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
        let say = |report: NodeClusterStatus| {
            let mut line = serde_json::to_vec(&AgentLine::Report(report)).unwrap();
            line.push(b'\n');
            (&agent).write_all(&line).unwrap();
        };
        say(report.clone());
        assert_eq!(wait(&view, |it| it.state == "present").verdict, "well");
        // Process 7 is the first agent. It dies, and its starter reports until there is another.
        for (agent_pid, restarts) in [(7, 0), (7, 0), (0, 0), (8, 1), (0, 1), (9, 2)] {
            say(NodeClusterStatus { agent_pid, ..report.clone() });
            let told = wait(&view, |it| it.agent_pid == agent_pid);
            assert_eq!(told.agent_restarts, restarts, "{told:?}");
        }
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
            let NodeLine::Question(asked) = serde_json::from_str(&line).unwrap() else {
                panic!("{line}");
            };
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

    fn others() -> (EndsOfOthers, mailbox::Receiver<ErrandEnd>) {
        let (news, heard) = mailbox::channel(2, sidecore::Waker::none());
        let nodes = (0..).zip(["io1", "io2"].map(str::to_owned)).collect();
        let list = Arc::new(Mutex::new(MemberList::new(nodes)));
        (EndsOfOthers { list, news }, heard)
    }

    /// The next lives that the node tells.
    fn lives(lines: &mut impl BufRead) -> CopyLives {
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            if let Ok(NodeLine::Lives(lives)) = serde_json::from_str(&line) {
                return lives;
            }
        }
    }

    #[test]
    fn the_agent_knows_the_lives_that_end_with_the_process_and_no_others() {
        let view = ClusterView::default();
        let (agent, node) = UnixStream::pair().unwrap();
        view.listen("io1", node);
        let mut lines = BufReader::new(&agent);
        view.follow_ends("a", 7, others().0);
        assert_eq!(lives(&mut lines), [("a".to_owned(), "0000000000000007".to_owned())].into());
        view.follow_ends("b", 8, others().0);
        let both = lives(&mut lines);
        assert_eq!(both.len(), 2);
        // Another agent is told by its first report, and after that no more.
        let report = NodeClusterStatus { agent_pid: 5, ..NodeClusterStatus::default() };
        let mut line = serde_json::to_vec(&AgentLine::Report(report)).unwrap();
        line.push(b'\n');
        (&agent).write_all(&line.repeat(2)).unwrap();
        assert_eq!(lives(&mut lines), both);
        assert!(view.forget_lives(["a"].into_iter()));
        assert_eq!(lives(&mut lines), [("b".to_owned(), "0000000000000008".to_owned())].into());
        // An agent that is not heard any more may see the end of the process all the same.
        (&agent).write_all(b"x\n").unwrap();
        assert_eq!(lives(&mut lines), CopyLives::new());
        wait(&view, |it| it.detail.contains("the agent has ended"));
        assert!(view.forget_lives(["b"].into_iter()));
    }

    #[test]
    fn a_life_goes_on_only_if_no_agent_tells_its_end() {
        let view = ClusterView::default();
        view.follow_ends("a", 7, others().0);
        assert!(view.forget_lives(["a"].into_iter()), "there is no agent");
        let (agent, node) = UnixStream::pair().unwrap();
        view.listen("io1", node);
        view.follow_ends("a", 7, others().0);
        let put = || view.questions.lock().put(A, RecordAsk::Look, sync_channel(1).0);
        while put().is_ok() {}
        assert!(!view.forget_lives(["a"].into_iter()), "it does not read, and knows the life");
        assert!(!view.forget_lives(["a"].into_iter()), "it was not told meanwhile");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut lines = BufReader::new(&agent);
                while !lives(&mut lines).is_empty() {}
            });
            assert!(view.forget_lives(["a"].into_iter()));
        });
        // A process that has ended tells nothing.
        view.follow_ends("a", 7, others().0);
        drop(agent);
        wait(&view, |it| it.detail.contains("the agent has ended"));
        assert!(view.forget_lives(["a"].into_iter()));
    }

    #[test]
    fn an_end_is_passed_on_to_the_member_of_its_volume_and_its_node() {
        let view = ClusterView::default();
        let (agent, node) = UnixStream::pair().unwrap();
        view.listen("io1", node);
        let (others, mut heard) = others();
        view.follow_ends("a", 7, others);
        let lives = |volume: &str, life: &str| [(volume.to_owned(), life.to_owned())].into();
        for (node, lives) in [
            ("io3", lives("a", "01")),
            ("io2", lives("b", "02")),
            ("io2", lives("a", "x")),
            ("io2", lives("a", "ff")),
            // Of these many there is room for one more.
            ("io2", lives("a", "fe")),
            ("io2", lives("a", "fd")),
        ] {
            let over = AgentLine::Over { node: node.to_owned(), lives };
            let mut line = serde_json::to_vec(&over).unwrap();
            line.push(b'\n');
            (&agent).write_all(&line).unwrap();
        }
        drop(agent);
        wait(&view, |it| it.detail.contains("the agent has ended"));
        let heard: Vec<_> = std::iter::from_fn(|| heard.receive()).collect();
        assert_eq!(heard, [ErrandEnd::Over(1, 0xff), ErrandEnd::Over(1, 0xfe)]);
    }
}
