//! One question to a node's control socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a node may take to answer: it gives up gathering after two seconds itself.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The longest answer: a thousand disks are a few megabytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Asks for `path` and gives the body of the answer.
///
/// # Errors
/// When nobody answers there, or with anything but 200.
pub(crate) fn get(socket: &Path, path: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket).with_context(|| no_node(socket))?;
    let limit = Some(ANSWER_TIME_MAX);
    stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))?;
    // HTTP/1.0 of our own node: it closes at the end and does not cut the body into chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: vrio\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).map_err(|error| {
        let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let why = if late { "it took too long" } else { "reading failed" };
        anyhow::Error::new(error).context(format!("the node at {socket:?} did not answer: {why}"))
    })?;
    body(&answer).with_context(|| format!("the node at {socket:?}"))
}

fn no_node(socket: &Path) -> String {
    format!("no node answers at {socket:?}; is it running, and may you open its socket?")
}

/// The body of an answer that is 200.
fn body(answer: &str) -> Result<String> {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("gave no whole answer");
    };
    let line = head.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("404") => bail!("does not know this question; it may be another release than this"),
        Some(code) => bail!("answered {code}: {}", body.trim()),
        None => bail!("does not speak HTTP"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What the client says of a node that answers with these bytes.
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

    #[test]
    fn nobody_there_is_said_so() {
        let error = get(Path::new("/nonexistent/control"), "/v1/status").unwrap_err();
        assert!(format!("{error:#}").starts_with("no node answers at"), "{error:#}");
    }
}
