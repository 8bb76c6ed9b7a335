//! Requests to a node's control socket, as any client makes them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use node::Node;
use node::api::{Done, Refused};
use serde_json::Value;

/// Sends a request; returns the answer's code and body.
pub(crate) fn ask(node: &Node, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
    let mut stream = UnixStream::connect(node.control_path()).unwrap();
    let body = body.filter(|body| !body.is_null()).map(Value::to_string).unwrap_or_default();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: vrio\r\nContent-Length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

/// The result of a change that must succeed.
pub(crate) fn done(node: &Node, method: &str, path: &str, body: &Value) -> Done {
    let (code, answer) = ask(node, method, path, Some(body));
    assert_eq!(code, 200, "{method} {path} {body}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

/// The refusal of a change that must be refused.
pub(crate) fn refused(
    node: &Node,
    method: &str,
    path: &str,
    body: Option<&Value>,
    wanted: u16,
) -> Refused {
    let (code, answer) = ask(node, method, path, body);
    assert_eq!(code, wanted, "{method} {path} {body:?}: {answer}");
    serde_json::from_str(&answer).unwrap()
}
