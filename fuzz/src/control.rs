//! The control socket of a running node, with any bytes and objects: the next caller is always
//! answered, and objects that were added can be removed again.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use node::{Config, Node};
use serde_json::{Value, json};

/// The most bytes of one caller's answers; a status without volumes is far shorter.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// How long an answer may take on a busy machine before it counts as none.
const PATIENCE: Duration = Duration::from_secs(20);

/// The lists to which objects are added, in the order in which they can be removed.
const LISTS: [&str; 3] = ["/v1/disks", "/v1/volumes", "/v1/peers"];

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
    /// An object that is nearly right, for one of the lists.
    Object {
        list: u8,
        fields: Vec<(u8, Field)>,
    },
    Chain {
        stages: Vec<Field>,
    },
}

#[derive(Arbitrary, Debug)]
enum Field {
    Text(u8),
    Number(i64),
    Flag(bool),
    Backend(u8, u8),
    List(Vec<u8>),
    Limit(u32),
    None,
}

/// Keys of the configuration.
const KEYS: [&str; 16] = [
    "name",
    "volume",
    "socket",
    "backend",
    "chain",
    "allow",
    "address",
    "queues",
    "key",
    "keys",
    "when-lost",
    "attachment",
    "read-only",
    "shared",
    "role",
    "durability",
];
const TEXTS: [&str; 16] = [
    "alice",
    "bob",
    "alice.sock",
    "bob.sock",
    "io1/alice",
    "io1",
    "16MiB",
    "1MiB",
    "127.0.0.1:9",
    "meter",
    "wait",
    "write-through",
    "../up",
    "",
    "99999999TiB",
    "ü\u{0}",
];

fn text(index: u8) -> &'static str {
    TEXTS[usize::from(index) % TEXTS.len()]
}

impl Field {
    fn value(&self) -> Value {
        match self {
            Self::Text(index) => json!(text(*index)),
            Self::Number(number) => json!(number),
            Self::Flag(flag) => json!(flag),
            Self::Backend(kind, size) => {
                let kind = ["memory", "null", "file"][usize::from(kind % 3)];
                json!({ kind: text(*size) })
            }
            Self::List(texts) => texts.iter().take(8).map(|&index| text(index)).collect(),
            Self::Limit(iops) => json!({ "limit": { "iops": iops } }),
            Self::None => Value::Null,
        }
    }
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
            Self::Object { list, fields } => {
                let path = LISTS[usize::from(*list) % LISTS.len()];
                let key = |&(key, _): &(u8, _)| KEYS[usize::from(key) % KEYS.len()].to_owned();
                let fields = fields.iter().map(|field| (key(field), field.1.value()));
                request("POST", path, &Value::Object(fields.collect()).to_string())
            }
            Self::Chain { stages } => {
                let chain: Value = stages.iter().take(8).map(Field::value).collect();
                request("PUT", "/v1/volumes/alice/chain", &chain.to_string())
            }
        }
    }
}

/// A request with a body.
fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

struct ControlServed {
    path: PathBuf,
}

static SERVED: OnceLock<ControlServed> = OnceLock::new();

/// Starts a node that lives as long as the process, on a thread that keeps it.
fn serve() -> ControlServed {
    let (started, wait) = channel();
    std::thread::spawn(move || {
        let home = tempfile::tempdir().expect("a directory");
        for directory in ["volumes", "sockets", "state"] {
            std::fs::create_dir(home.path().join(directory)).expect("a directory of ours");
        }
        let at = home.path().display();
        let text = format!(
            "name = \"fuzz\"\ncontrol = \"{at}/control\"\n\
             [directories]\nvolumes = \"{at}/volumes\"\nsockets = \"{at}/sockets\"\n\
             state = \"{at}/state\"\n[sidecores]\ncount = 1\nidle = \"sleep\"\n"
        );
        let file = home.path().join("node.toml");
        std::fs::write(&file, text).expect("a file of ours");
        let config = Config::load(&file).expect("a sound configuration");
        let node = Node::start(&config).expect("a node");
        started.send(config.control).expect("the receiver waits");
        loop {
            std::thread::park();
            // The node is never dropped: the next input needs it.
            let _ = (&node, &home);
        }
    });
    ControlServed { path: wait.recv().expect("the node starts") }
}

/// Removes every object that was added.
fn clean(served: &ControlServed) {
    for list in LISTS {
        for name in names(served, list) {
            let name: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let answer =
                ask(served, &request("DELETE", &format!("{list}/{name}?force=true"), ""), false);
            assert!(answer.starts_with(b"HTTP/1.1 2"), "{list}: {:?}", lossy(&answer));
        }
        assert_eq!(names(served, list), Vec::<String>::new(), "{list} is not empty");
    }
}

/// The names of a list's objects.
fn names(served: &ControlServed, list: &str) -> Vec<String> {
    let answer = ask(served, &request("GET", list, ""), false);
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map(|at| &answer[at + 4..]);
    let listed: Value = serde_json::from_slice(body.expect("an answer")).expect("JSON");
    let objects = listed.as_array().unwrap_or_else(|| panic!("{list}: {listed}"));
    objects.iter().filter_map(|object| Some(object["name"].as_str()?.to_owned())).collect()
}

/// Sends the calls that `input` describes on one connection.
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
    clean(served);
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(500).collect()
}

/// Sends everything, then reads to the end. The server may close the connection before all of it
/// is sent. The text may end in half a request, so our side is closed at the end of it; that
/// cancels answers that are on their way.
fn ask(served: &ControlServed, bytes: &[u8], ends: bool) -> Vec<u8> {
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
            // A timer of libFuzzer interrupted the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("no answer and no end of the connection after {PATIENCE:?}")
            }
            Err(_) => return answer,
        }
        assert!(answer.len() < ANSWER_BYTES_MAX, "an endless answer");
    }
}
