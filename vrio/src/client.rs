//! One question to a node's control socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a node may take to answer: it gives up gathering after ten seconds itself.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);

/// How long a change may take: its turn, the drain of disks and of a volume, their closes. Each is
/// bounded by the node.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(120);

/// The longest answer: a thousand disks are a few megabytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The answer of a node.
#[derive(Debug)]
pub(crate) struct NodeAnswer {
    pub(crate) code: u16,
    pub(crate) body: String,
}

/// Asks for `path` and gives the body of the answer.
///
/// # Errors
/// When no node answers there, or the answer's code is not 200.
pub(crate) fn get(socket: &Path, path: &str) -> Result<String> {
    let NodeAnswer { code, body } = ask(socket, "GET", path, None)?;
    match code {
        200 => Ok(body),
        404 => {
            bail!("the node at {socket:?} does not know this request; it may be of another release")
        }
        code => bail!("the node at {socket:?} answered {code}: {}", body.trim()),
    }
}

/// Asks something of a node, with a JSON body or without.
///
/// # Errors
/// When no node answers there.
pub(crate) fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&str>,
) -> Result<NodeAnswer> {
    let limit = if method == "GET" { ANSWER_TIME_MAX } else { CHANGE_TIME_MAX };
    ask_within(socket, (method, path), body, limit)
}

/// As [`ask`], with a limit to how long the node may be silent.
///
/// # Errors
/// When no node answers there, or not in time.
pub(crate) fn ask_within(
    socket: &Path,
    (method, path): (&str, &str),
    body: Option<&str>,
    limit: Duration,
) -> Result<NodeAnswer> {
    let body = body.map(|body| ("application/json", body.as_bytes()));
    let (code, body) = exchange(socket, (method, path), body, limit)?;
    let body = String::from_utf8(body);
    let body = body.with_context(|| format!("the node at {socket:?}: its answer is no text"))?;
    Ok(NodeAnswer { code, body })
}

/// As [`ask_within`], with bodies of bytes: the body's type and the body, and the answer's code and
/// its body.
///
/// # Errors
/// When no node answers there, or not in time.
pub(crate) fn exchange(
    socket: &Path,
    (method, path): (&str, &str),
    body: Option<(&str, &[u8])>,
    limit: Duration,
) -> Result<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket).with_context(|| no_node(socket))?;
    let limit = Some(limit);
    stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))?;
    // HTTP/1.0 of our own node: it closes at the end and does not cut the body into chunks.
    let mut question = format!("{method} {path} HTTP/1.0\r\nHost: vrio\r\n");
    if let Some((kind, body)) = body {
        let length = body.len();
        question += &format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n");
    }
    question += "\r\n";
    // A node that needs no body, or refuses at once, closes without having read it, and the system
    // resets the connection. An answer that is as long as it says is complete nevertheless.
    let sent = stream
        .write_all(question.as_bytes())
        .and_then(|()| stream.write_all(body.map_or(&[], |(_, body)| body)));
    let mut answer = Vec::new();
    let read = (&stream).take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
    sent.and(read.map(|_| ())).or_else(|error| {
        if parse(&answer).is_ok_and(|head| head.has_length || head.code != 200) {
            return Ok(());
        }
        let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let why = if late { "it took too long" } else { "the connection was lost" };
        let why = format!("the node at {socket:?} did not answer: {why}");
        Err(anyhow::Error::new(error).context(why))
    })?;
    let head = parse(&answer).with_context(|| format!("the node at {socket:?}"))?;
    answer.drain(..head.bytes);
    Ok((head.code, answer))
}

fn no_node(socket: &Path) -> String {
    format!("no node answers at {socket:?}; is it running, and may you open its socket?")
}

/// The head of an answer.
struct AnswerHead {
    code: u16,
    /// Its size; the body follows.
    bytes: usize,
    /// Whether it says how long the body is. The body has that length then.
    has_length: bool,
}

/// Reads the head of an answer that the node has ended.
fn parse(answer: &[u8]) -> Result<AnswerHead> {
    let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        bail!("its answer is incomplete");
    };
    let head = String::from_utf8_lossy(&answer[..at]);
    let line = head.lines().next().unwrap_or_default();
    let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let Some(code) = code.filter(|_| line.starts_with("HTTP/")) else {
        bail!("its answer is not HTTP");
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if length.is_some_and(|length| answer.len() - at - 4 != length) {
        bail!("its answer is incomplete");
    }
    Ok(AnswerHead { code, bytes: at + 4, has_length: length.is_some() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// The client's result when a node answers with these bytes.
    fn with_answer(answer: &'static str) -> Result<String> {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("control");
        let listener = UnixListener::bind(&socket).unwrap();
        let node = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 1024];
            let length = stream.read(&mut question).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&question[..length]).into_owned()
        });
        let got = get(&socket, "/v1/status");
        assert!(node.join().unwrap().starts_with("GET /v1/status HTTP/1.0\r\n"));
        got
    }

    #[test]
    fn the_body_is_taken_and_errors_are_told() {
        assert_eq!(with_answer("HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}").unwrap(), "{}");
        let late = with_answer("HTTP/1.0 503 Later\r\n\r\na sidecore does not answer\n");
        assert!(format!("{:#}", late.unwrap_err()).contains("503: a sidecore does not answer"));
        let old = with_answer("HTTP/1.0 404 Not Found\r\n\r\n");
        assert!(format!("{:#}", old.unwrap_err()).contains("another release"));
        for garbage in ["", "hello", "SSH-2.0\r\n\r\n"] {
            assert!(with_answer(garbage).is_err());
        }
    }

    /// The result of a request with a body that the node does not read before it answers and
    /// closes: the system then resets the connection.
    fn without_reading(answer: &'static str) -> Result<NodeAnswer> {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("control");
        let listener = UnixListener::bind(&socket).unwrap();
        let node = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let got = ask(&socket, "POST", "/v1/disks/a/take", Some(&"x".repeat(1 << 20)));
        node.join().unwrap();
        got
    }

    #[test]
    fn a_complete_answer_counts_although_the_connection_was_reset() {
        for code in [200, 409] {
            let text: &str = format!("HTTP/1.0 {code} X\r\nContent-Length: 2\r\n\r\n{{}}").leak();
            let answer = without_reading(text).unwrap();
            assert_eq!((answer.code, &*answer.body), (code, "{}"));
        }
        assert!(without_reading("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}").is_err());
        // Its length is not known, so its end may be missing.
        assert!(without_reading("HTTP/1.0 200 OK\r\n\r\n{}").is_err());
    }

    #[test]
    fn a_missing_node_is_named() {
        let error = get(Path::new("/nonexistent/control"), "/v1/status").unwrap_err();
        assert!(format!("{error:#}").starts_with("no node answers at"), "{error:#}");
    }
}
