//! A node as the end of a stream.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use node::api::{ReceiveProgress, Refused};
use node::store::stream::StreamHeader;

use super::super::{segment, understood};
use crate::client;
use crate::failure::CommandFailure;
use crate::output::say;

/// How long one request may take: a part waits for a pool without space, for instance.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(120);

/// How long a node that has answered before may be away: a restart with a pool whose log is long.
const AWAY_TIME_MAX: Duration = Duration::from_secs(180);

/// The pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);

/// The time since a node has ceased to answer. It begins at the first failure and not at the
/// request: a command that was stopped (Ctrl-Z) in the middle of one finds its connection cut when
/// it goes on, however long it was stopped.
#[derive(Debug, Default)]
struct Away {
    since: Option<Instant>,
}

impl Away {
    /// The node has not answered once more.
    fn is_too_long(&mut self, now: Instant) -> bool {
        now.duration_since(*self.since.get_or_insert(now)) >= AWAY_TIME_MAX
    }
}

/// A node that has answered is asked again when it does not answer or is busy.
pub(super) struct StreamNode {
    socket: PathBuf,
    has_answered: bool,
}

impl StreamNode {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, has_answered: false }
    }

    /// Asks until there is an answer. Each request of a stream can be made again.
    fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Vec<u8>, CommandFailure> {
        let (mut away, mut has_told) = (Away::default(), false);
        loop {
            let body = body.map(|body| ("application/octet-stream", body));
            let answer = client::exchange(&self.socket, (method, path), body, REQUEST_TIME_MAX);
            let failure = match answer {
                Ok((200, body)) => {
                    self.has_answered = true;
                    return Ok(body);
                }
                Ok((503, body)) => refusal(503, &body),
                Ok((code, body)) => return Err(refusal(code, &body)),
                Err(error) if !self.has_answered => return Err(CommandFailure::no_answer(error)),
                Err(error) => CommandFailure::no_answer(error),
            };
            if away.is_too_long(Instant::now()) {
                return Err(failure);
            }
            if !std::mem::replace(&mut has_told, true) {
                say(format_args!("vrio: {failure}; trying again"));
            }
            thread::sleep(ATTEMPT_PAUSE);
        }
    }

    /// The header of the stream that a question asks for.
    pub(super) fn header(&mut self, query: &str) -> Result<StreamHeader, CommandFailure> {
        let bytes = self.ask("GET", &format!("/v1/streams?{query}"), None)?;
        StreamHeader::read(&bytes).map_err(CommandFailure::running)
    }

    /// The part of a stream that begins at a block.
    pub(super) fn part(
        &mut self,
        header: &StreamHeader,
        block: u64,
    ) -> Result<Vec<u8>, CommandFailure> {
        let token = header.id.token(block);
        self.ask("GET", &format!("/v1/streams/part?token={token}"), None)
    }
}

fn refusal(code: u16, body: &[u8]) -> CommandFailure {
    let error = match serde_json::from_slice::<Refused>(body) {
        Ok(refused) => anyhow!(refused.to_string()),
        Err(_) => anyhow!("the node answered {code}: {}", String::from_utf8_lossy(body).trim()),
    };
    let failure = if code == 400 { CommandFailure::configuration } else { CommandFailure::running };
    failure(error)
}

/// A volume into which a node receives.
pub(super) struct ReceivingVolume {
    node: StreamNode,
    path: String,
}

impl ReceivingVolume {
    pub(super) fn new(node: StreamNode, pool: &str, name: &str) -> Result<Self, CommandFailure> {
        let path = format!("/v1/pools/{}/receive/{}", segment(pool)?, segment(name)?);
        Ok(Self { node, path })
    }

    fn step(
        &mut self,
        method: &str,
        below: &str,
        body: &[u8],
    ) -> Result<ReceiveProgress, CommandFailure> {
        let answer = self.node.ask(method, &format!("{}{below}", self.path), Some(body))?;
        understood(&String::from_utf8_lossy(&answer))
    }

    pub(super) fn begin(
        &mut self,
        header: &StreamHeader,
    ) -> Result<ReceiveProgress, CommandFailure> {
        self.step("POST", "", &header.to_bytes())
    }

    pub(super) fn part(&mut self, bytes: &[u8]) -> Result<ReceiveProgress, CommandFailure> {
        self.step("PUT", "", bytes)
    }

    pub(super) fn end(&mut self, header: &StreamHeader) -> Result<ReceiveProgress, CommandFailure> {
        self.step("POST", "/end", &header.to_bytes())
    }

    /// Ends the stream before it is complete; the node's answer.
    pub(super) fn give_up(&mut self) -> Result<String, CommandFailure> {
        let answer = self.node.ask("DELETE", &self.path, None)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_away_from_its_first_failure_on() {
        let mut away = Away::default();
        let first = Instant::now() + Duration::from_secs(86_400);
        assert!(!away.is_too_long(first), "the command was stopped for a day");
        assert!(!away.is_too_long(first + AWAY_TIME_MAX / 2));
        assert!(away.is_too_long(first + AWAY_TIME_MAX));
    }
}
