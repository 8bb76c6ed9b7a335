//! The reports of the node's agent about the cluster. The agent is a process of its own, since the
//! node's process has neither TCP nor certificates (`docs/decisions/080-registry.md`). A thread
//! listens to it; nothing else of the node waits for it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use api::status::NodeClusterStatus;

/// The longest report of an agent: a dozen problems of some hundred characters.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// How long an agent may be silent. Its rounds are 3 s apart, and a round may wait 15 s for its
/// node, and several times 8 s for each of five members of etcd that do not answer.
const SILENCE_S_MAX: u64 = 180;

/// The last report about the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterView {
    heard: Arc<Mutex<Option<HeardReport>>>,
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
    pub(crate) fn listen(&self, node: &str, agent: UnixStream) {
        let report = NodeClusterStatus {
            node: node.to_owned(),
            state: "away".to_owned(),
            detail: "the agent is starting".to_owned(),
            ..NodeClusterStatus::default()
        };
        *self.heard.lock() = Some(HeardReport { report, at: Instant::now(), ended: false });
        let heard = Arc::clone(&self.heard);
        let listen = move || {
            hear(&heard, agent);
            note_end(&heard);
        };
        if let Err(error) = std::thread::Builder::new().name("cluster".to_owned()).spawn(listen) {
            tracing::error!(%error, "no thread that listens to the cluster's agent");
            note_end(&self.heard);
        }
    }

    /// The node's part in its cluster, if it is in one.
    pub(crate) fn status(&self) -> Option<NodeClusterStatus> {
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

fn note_end(heard: &Mutex<Option<HeardReport>>) {
    if let Some(heard) = heard.lock().as_mut() {
        heard.ended = true;
    }
}

/// Notes each report until the agent ends, or says what no agent says.
fn hear(heard: &Mutex<Option<HeardReport>>, agent: UnixStream) {
    let mut agent = BufReader::new(agent);
    loop {
        let mut line = Vec::new();
        match (&mut agent).take(REPORT_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => return tracing::warn!(%error, "the cluster's agent cannot be heard"),
        }
        let report = match serde_json::from_slice::<NodeClusterStatus>(&line) {
            Ok(report) => report,
            Err(error) => {
                return tracing::error!(%error, "the cluster's agent says what no agent says");
            }
        };
        *heard.lock() = Some(HeardReport { report, at: Instant::now(), ended: false });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

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
        let mut line = serde_json::to_vec(&report).unwrap();
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
        for said in [&b"x\n"[..], b"{}\n", &[b'x'; 2 * REPORT_BYTES_MAX as usize]] {
            let view = ClusterView::default();
            let (agent, node) = UnixStream::pair().unwrap();
            view.listen("io1", node);
            // The node may have closed its end before all is written.
            let _ = (&agent).write_all(said);
            wait(&view, |it| it.detail.contains("the agent has ended"));
        }
    }
}
