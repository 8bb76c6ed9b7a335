//! Metrics of real nodes: the text is read by a strict parser and compared with the status.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use crate::common::{Guest, Home, PATIENCE, address, wait_for_disk};
use crate::prometheus::Text;
use node::Node;
use node::status::{Counters, DiskState, Status};
use virtio::driver::RequestStatus as Outcome;

const IO1: &str = r#"
name = "io1"
listen = "ADDRESS"
[directories]
volumes = "HOME"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
chain = ["meter", { limit = { iops = 100000 } }]
allow = ["vm1"]
"#;

const VM1: &str = r#"
name = "vm1"
listen = "HERE"
metrics-listen = "METRICS"
[directories]
volumes = "HOME"
sockets = "HOME"
state = "HOME/vm1"
[[peer]]
name = "io1"
address = "ADDRESS"
[[volume]]
name = "local"
backend = { memory = "1MiB" }
chain = ["meter"]
[[disk]]
socket = "a.sock"
volume = "io1/a"
[[disk]]
socket = "b.sock"
volume = "local"
"#;

/// A port of this host that is not in use.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Asks by HTTP and returns head and body.
fn ask(mut stream: impl Read + Write, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn metrics(node: &Node) -> Text {
    let stream = UnixStream::connect(node.control_path()).unwrap();
    let (head, body) = ask(stream, "/v1/metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    Text::parse(&body)
}

/// The name that a counter of the status must have, and the divisor of its value.
fn expected(kind: &str, counter: &str) -> (String, f64) {
    let (name, now) = match counter.strip_suffix("_now") {
        Some(name) => (name, true),
        None => (counter, false),
    };
    let (name, unit) = match name.strip_suffix("_ns") {
        Some(name) => (format!("{name}_seconds"), 1e9),
        None => (name.to_owned(), 1.0),
    };
    (format!("vrio_{kind}_{name}{}", if now { "" } else { "_total" }), unit)
}

/// Compares every counter of an object with the text that was made between two statuses.
fn compare(text: &Text, kind: &str, labels: &[(&str, &str)], before: &Counters, after: &Counters) {
    for (counter, low) in before {
        let (name, unit) = expected(kind, counter);
        let value = text.value(&name, labels);
        if counter.ends_with("_now") {
            assert_eq!(text.kind(&name), "gauge");
            continue;
        }
        assert_eq!(text.kind(&name), "counter");
        let (low, high) = (*low as f64 / unit, after[counter] as f64 / unit);
        assert!((low..=high).contains(&value), "{name}: {value} is not in {low}..={high}");
    }
}

fn compare_all(text: &Text, before: &Status, after: &Status) {
    for (old, new) in before.sidecores.iter().zip(&after.sidecores) {
        let labels = [("sidecore", &*old.index.to_string())];
        compare(text, "sidecore", &labels, &old.counters, &new.counters);
    }
    for (old, new) in before.volumes.iter().zip(&after.volumes) {
        compare(text, "volume", &[("volume", &old.name)], &old.counters, &new.counters);
    }
    for (old, new) in before.disks.iter().zip(&after.disks) {
        compare(text, "disk", &[("disk", &old.name)], &old.counters, &new.counters);
        for (op, latency) in &old.latencies {
            let labels = [("disk", &*old.name), ("op", op)];
            let count = text.value("vrio_disk_latency_seconds_count", &labels) as u64;
            assert!((latency.count..=new.latencies[op].count).contains(&count));
        }
    }
    for (old, new) in before.sessions.iter().zip(&after.sessions) {
        let labels = [("peer", &*old.peer), ("address", &old.address)];
        compare(text, "session", &labels, &old.counters, &new.counters);
    }
}

#[test]
fn metrics_agree_with_the_status_and_only_grow() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let port = free_port();
    let put = |text: &str| {
        text.replace("ADDRESS", &there).replace("HERE", &here).replace("METRICS", &port)
    };
    let io1 = home.start(&put(IO1));
    let vm1 = home.start(&put(VM1));
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    let mut earlier: Vec<Option<Text>> = vec![None, None];
    for round in 0..3 {
        for block in 0..20 {
            assert_eq!(guest.write(block as u16 % 2, block, round), Outcome::Ok);
            assert_eq!(guest.check(block as u16 % 2, block, round), Outcome::Ok);
        }
        assert_eq!(guest.flush(0), Outcome::Ok);
        for (node, earlier) in [&io1, &vm1].into_iter().zip(&mut earlier) {
            let before = node.status();
            let text = metrics(node);
            compare_all(&text, &before, &node.status());
            if let Some(earlier) = earlier.replace(text) {
                earlier.assert_grown_to(&metrics(node));
            }
        }
    }
    let text = metrics(&vm1);
    assert_eq!(text.value("vrio_disk_requests_total", &[("disk", "a")]), 123.0);
    for (op, count) in [("read", 60.0), ("write", 60.0), ("flush", 3.0)] {
        let labels = [("disk", "a"), ("op", op)];
        assert_eq!(text.value("vrio_disk_latency_seconds_count", &labels), count);
        assert!(text.value("vrio_disk_latency_seconds_sum", &labels) > 0.0);
    }
    assert_eq!(text.value("vrio_disk_state", &[("disk", "a"), ("state", "running")]), 1.0);
    assert_eq!(text.value("vrio_disk_state", &[("disk", "b"), ("state", "ready")]), 1.0);
    let labels = [("volume", "a"), ("op", "write")];
    assert_eq!(metrics(&io1).value("vrio_volume_latency_seconds_count", &labels), 60.0);
    // The same over TCP.
    let (head, body) = ask(TcpStream::connect(&port).unwrap(), "/metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(Text::parse(&body).value("vrio_disk_requests_total", &[("disk", "a")]), 123.0);
    let (head, _) = ask(TcpStream::connect(&port).unwrap(), "/v1/status");
    assert!(head.starts_with("HTTP/1.1 404"), "the port gives metrics and nothing else: {head}");
    drop(guest);
    vm1.stop();
    io1.stop();
}

/// More connections than there are places, held by clients that say nothing. The next connection
/// gets the oldest one's place, and the node's own control socket does not notice.
#[test]
fn clients_that_hold_connections_keep_no_client_from_asking() {
    let home = Home::new();
    let port = free_port();
    let text = "name = \"n\"\ncontrol = \"HOME/n.control\"\nmetrics-listen = \"PORT\"\n";
    let node = home.start(&text.replace("PORT", &port));
    let silent: Vec<_> = (0..32).map(|_| TcpStream::connect(&port).unwrap()).collect();
    assert_eq!(metrics(&node).value("vrio_node_info", &[("node", "n")]), 1.0);
    for asked in 0..3 {
        let late = TcpStream::connect(&port).unwrap();
        late.set_read_timeout(Some(PATIENCE)).unwrap();
        let (head, _) = ask(late, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        if asked == 0 {
            // One of them is enough, and it is the oldest.
            let ends = silent.iter().map(|mut stream| {
                stream.set_nonblocking(true).unwrap();
                stream.read(&mut [0; 1]).map_err(|error| error.kind())
            });
            let ends: Vec<_> = ends.collect();
            let open = Err(std::io::ErrorKind::WouldBlock);
            assert!(ends[0] != open && ends[1..].iter().all(|end| *end == open), "{ends:?}");
        }
    }
    node.stop();
}

/// As many connections as the system lets wait: each may have a place for a moment, and then the
/// asking client has its turn.
#[test]
fn silent_connections_keep_no_client_from_asking() {
    let home = Home::new();
    let port = free_port();
    let text = "name = \"n\"\ncontrol = \"HOME/n.control\"\nmetrics-listen = \"PORT\"\n";
    let node = home.start(&text.replace("PORT", &port));
    let silent: Vec<_> = (0..32 + 128).map(|_| TcpStream::connect(&port).unwrap()).collect();
    let late = TcpStream::connect(&port).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    let (head, _) = ask(late, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(silent);
    node.stop();
}

#[test]
fn a_port_in_use_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "name = \"n\"\ncontrol = \"HOME/n.control\"\nmetrics-listen = \"{}\"\n",
        taken.local_addr().unwrap()
    );
    let error = Node::start(&home.config(&text)).unwrap_err().to_string();
    assert!(error.starts_with("n.toml:3: \"metrics-listen\": cannot listen on 127."), "{error}");
}
