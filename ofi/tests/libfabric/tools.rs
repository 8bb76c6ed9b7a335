//! libfabric's own ping-pong, which checks what it receives.

use crate::domain::{TestDomain, installed, output_of, text_of};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

/// A port that no process has now.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("some port is free");
    listener.local_addr().expect("it is bound").port()
}

#[test]
fn libfabrics_ping_pong_finds_its_data_as_it_was_sent() {
    let test = "libfabrics_ping_pong_finds_its_data_as_it_was_sent";
    if !installed("fi_pingpong", "libfabric-bin", test) {
        return;
    }
    let domain = TestDomain::new();
    for tagged in ["msg", "tagged"] {
        let port = free_port().to_string();
        let mut options = vec!["-p", "vrio", "-e", "rdm", "-c", "-I", "50", "-S", "all"];
        options.extend(["-m", tagged]);
        let mut server = domain.command("fi_pingpong");
        server.args(&options).args(["-B", &port]);
        let server: Child =
            server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is installed");
        // The tool's client gives up at once when its server does not listen yet.
        let client = (0..100).find_map(|_| {
            thread::sleep(Duration::from_millis(100));
            let mut client = domain.command("fi_pingpong");
            client.args(&options).args(["-P", &port, "127.0.0.1"]);
            let client = client.output().expect("it is installed");
            (!text_of(&client).contains("refused")).then_some(client)
        });
        let client = output_of(client.expect("its server listens some day"));
        let server = output_of(server.wait_with_output().expect("it was begun"));
        assert!(client.contains("1m"), "{client}{server}");
    }
}
