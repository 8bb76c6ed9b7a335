//! The control socket: whatever bytes come, the next caller is answered.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use node::control::{Claim, Control};
use node::status::{STATUS_VERSION, Status};

/// Of one caller's answers; a status without volumes is far shorter.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// How long an answer may take on a busy machine before it counts as none.
const PATIENCE: Duration = Duration::from_secs(20);

const PATHS: [&str; 14] = [
    "/v1/status",
    "/v1/disks",
    "/v1/disks/alice",
    "/v1/volumes",
    "/v1/volumes/alice",
    "/v1/volumes/alice/chain",
    "/v1/peers",
    "/v1/peers/io1",
    "/v1/reload",
    "/v1/metrics",
    "/v1/disks/%2e%2e%2f",
    "/v1/volumes/%ff%00/chain",
    "/",
    "/v2/status",
];

#[derive(Arbitrary, Debug)]
enum Call<'a> {
    Raw(&'a [u8]),
    Shaped {
        method: u8,
        path: u8,
        tail: &'a str,
        header: Option<(&'a str, &'a str)>,
        length: Option<u32>,
        body: &'a [u8],
    },
}

impl Call<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.to_vec(),
            Self::Shaped { method, path, tail, header, length, body } => {
                let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "get"];
                let method = methods[usize::from(*method) % methods.len()];
                let path = PATHS[usize::from(*path) % PATHS.len()];
                let mut text = format!("{method} {path}{tail} HTTP/1.1\r\nHost: vrio\r\n");
                if let Some((name, value)) = header {
                    text += &format!("{name}: {value}\r\n");
                }
                text += "Content-Type: application/json\r\n";
                let length = length.map_or(body.len() as u64, u64::from);
                text += &format!("Content-Length: {length}\r\n\r\n");
                let mut bytes = text.into_bytes();
                bytes.extend_from_slice(body);
                bytes
            }
        }
    }
}

struct Served {
    path: PathBuf,
    _control: Control,
    _home: tempfile::TempDir,
}

static SERVED: OnceLock<Served> = OnceLock::new();

fn serve() -> Served {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("node.control");
    let gather = Arc::new(|| Status { version: STATUS_VERSION, ..Status::default() });
    let control = Claim::new(&path).expect("a socket").serve(gather, None).expect("a thread");
    Served { path, _control: control, _home: home }
}

/// Sends what `input` describes, in one or several calls on one connection.
///
/// # Panics
/// When an answer is endless or not HTTP, or the next caller is not answered.
pub fn run(input: &[u8]) {
    let served = SERVED.get_or_init(serve);
    let mut input = Unstructured::new(input);
    let mut bytes = Vec::new();
    for _ in 0..4 {
        let Ok(call) = Call::arbitrary(&mut input) else { break };
        bytes.extend_from_slice(&call.bytes());
        if input.is_empty() {
            break;
        }
    }
    let answer = ask(served, &bytes, true);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", lossy(&answer));
    let sound = b"GET /v1/status HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n\r\n";
    let answer = ask(served, sound, false);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", lossy(&answer));
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(500).collect()
}

/// Says everything, then listens to the end. The server may hang up before all of it is said. To
/// end what may be half a request, we end our side; that calls off answers that are on their way.
fn ask(served: &Served, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut stream = UnixStream::connect(&served.path).expect("the control socket is there");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has time-outs");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket has time-outs");
    let _ = stream.write_all(bytes);
    if ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return answer,
            Ok(count) => answer.extend_from_slice(&part[..count]),
            // A timer of libFuzzer's.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("no answer and no end of the connection after {PATIENCE:?}")
            }
            Err(_) => return answer,
        }
        assert!(answer.len() < ANSWER_BYTES_MAX, "an endless answer");
    }
}
