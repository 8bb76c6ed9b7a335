//! Domains of a node: which processes join with which key, and members during changes.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use fabric::{Domain, EndpointOptions, JoinError, OpenEndpointError};
use node::status::{DomainStatus, Origin};
use node::{Config, Node};
use serde_json::json;

use super::control::{done, refused};
use super::{start_file, write_file};
use crate::common::{Home, wait_for};

const NODE: &str = r#"
name = "n1"
control = "HOME/control.sock"
privileges = "keep"
[directories]
sockets = "HOME"
[[domain]]
name = "blue"
key = "HOME/blue.key"
endpoints-max = 2
"#;

const KEY: &str = "blue-0123456789abcdef";
const OTHER_KEY: &str = "other-0123456789abcdef";

fn write_key(home: &Home, name: &str, key: &str) -> PathBuf {
    let path = home.path(name);
    std::fs::write(&path, format!("{key}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    path
}

fn start(home: &Home) -> Node {
    write_key(home, "blue.key", KEY);
    start_file(home, "n.toml", NODE)
}

fn join(home: &Home, name: &str, key: &str) -> Result<Domain, JoinError> {
    Domain::join(&home.path("n1.fabric"), name, key)
}

fn domain(node: &Node, name: &str) -> Option<DomainStatus> {
    node.status().domains.into_iter().find(|domain| domain.name == name)
}

fn until_members(node: &Node, members: usize) {
    wait_for(node, "so many members", |status| {
        status.domains.iter().any(|it| it.name == "blue" && it.members == members)
    });
}

#[test]
fn a_domain_of_the_file_is_joined_and_left() {
    let home = Home::new();
    let node = start(&home);
    let before = domain(&node, "blue").unwrap();
    assert_eq!((before.endpoints, before.endpoints_max, before.members), (0, 2, 0));
    assert_eq!((before.origin, before.region_bytes > 0), (Origin::File, true));
    let member = join(&home, "blue", KEY).unwrap();
    let endpoint = member.endpoint(EndpointOptions::default()).unwrap();
    assert_eq!(endpoint.address().host, member.host());
    let second = member.endpoint(EndpointOptions::default()).unwrap();
    let full = member.endpoint(EndpointOptions::default()).unwrap_err();
    assert!(matches!(full, OpenEndpointError::Full), "{full}");
    let during = domain(&node, "blue").unwrap();
    assert_eq!((during.endpoints, during.members), (2, 1));
    drop(endpoint);
    wait_for(&node, "an endpoint's end", |status| status.domains[0].endpoints == 1);
    drop((member, second));
    until_members(&node, 0);
    assert!(matches!(join(&home, "blue", OTHER_KEY), Err(JoinError::Denied(_))));
    node.stop();
    assert!(matches!(join(&home, "blue", KEY), Err(JoinError::NoNode { .. })));
}

#[test]
fn domains_come_and_go_by_command_and_not_from_under_their_members() {
    let home = Home::new();
    let node = start(&home);
    let key = write_key(&home, "red.key", OTHER_KEY);
    let fields = json!({ "name": "red", "key": key, "endpoints-max": 1 });
    done(&node, "POST", "/v1/domains", &fields);
    assert_eq!(domain(&node, "red").unwrap().origin, Origin::Command);
    let red = join(&home, "red", OTHER_KEY).unwrap();
    let refusal = refused(&node, "DELETE", "/v1/domains/red", None, 409);
    assert!(refusal.error.contains("used by a process"), "{refusal}");
    done(&node, "DELETE", "/v1/domains/red?force=true", &json!(null));
    let gone = red.endpoint(EndpointOptions::default()).unwrap_err();
    assert!(matches!(gone, OpenEndpointError::NodeGone(_)), "{gone}");
    assert!(domain(&node, "red").is_none());
    let missing = json!({ "name": "red", "key": home.path("missing") });
    let refusal = refused(&node, "POST", "/v1/domains", Some(&missing), 500);
    assert!(refusal.error.contains("cannot read"), "{refusal}");
    node.stop();
}

#[test]
fn a_reload_changes_keys_in_place_and_names_users_in_the_way() {
    let home = Home::new();
    let node = start(&home);
    let member = join(&home, "blue", KEY).unwrap();
    // First the content of the key file changes, and then the path of the key file.
    write_key(&home, "blue.key", OTHER_KEY);
    node.reload().unwrap();
    assert!(join(&home, "blue", KEY).is_err());
    join(&home, "blue", OTHER_KEY).unwrap();
    write_key(&home, "next.key", KEY);
    write_file(&home, "n.toml", &NODE.replace("blue.key", "next.key"));
    let applied = node.reload().unwrap().applied;
    assert_eq!(applied, ["change domain \"blue\": its key or peers"]);
    join(&home, "blue", KEY).unwrap();
    member.endpoint(EndpointOptions::default()).unwrap();
    // A key whose file cannot be read stays, and the answer says so.
    std::fs::remove_file(home.path("next.key")).unwrap();
    let notes = node.reload().unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("keeps its key")), "{notes:?}");
    until_members(&node, 1);
    join(&home, "blue", KEY).unwrap();
    // Another size takes another region.
    write_key(&home, "next.key", KEY);
    let larger = NODE.replace("blue.key", "next.key").replace("max = 2", "max = 3");
    write_file(&home, "n.toml", &larger);
    let refusal = node.reload().unwrap_err();
    assert!(refusal.to_string().contains("process"), "{refusal}");
    drop(member);
    until_members(&node, 0);
    node.reload().unwrap();
    assert_eq!(domain(&node, "blue").unwrap().endpoints_max, 3);
    assert!(node.status().node.differs.is_empty());
    node.stop();
}

#[test]
fn a_dead_nodes_socket_is_replaced_and_a_living_ones_is_not() {
    let home = Home::new();
    // A killed process leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(home.path("n1.fabric")).unwrap());
    let node = start(&home);
    join(&home, "blue", KEY).unwrap();
    let text = NODE.replace("control.sock", "other.sock");
    write_file(&home, "other.toml", &text);
    let config = Config::load(&home.path("other.toml")).unwrap();
    let error = Node::start(&config).unwrap_err().to_string();
    assert!(error.contains("cannot make the fabric's socket"), "{error}");
    join(&home, "blue", KEY).unwrap();
    node.stop();
}

#[test]
fn problems_of_a_domain_are_named() {
    let problems = |more: &str| {
        let text = NODE.replace("HOME", "/tmp") + more;
        Config::parse(std::path::Path::new("n.toml"), &text).unwrap_err().to_string()
    };
    let domain = |rest: &str| format!("[[domain]]\nname = \"x\"\n{rest}\n");
    let cases = [
        (domain(""), "the key \"key\" is missing"),
        (domain("key = \"science.key\""), "is not an absolute path"),
        (domain("key = \"/k\"\nendpoints-max = 0"), "out of range"),
        (domain("key = \"/k\"\nendpoints-max = 5000"), "out of range"),
        (domain("key = \"/k\"\nendpoints = 5"), "endpoints"),
        (domain("key = \"/k\"\npeers = [\"h2\"]"), "there is no [[peer]] \"h2\""),
        (domain("key = \"/k\"").replace('x', "blue"), "has the same name"),
    ];
    for (more, expected) in cases {
        let problems = problems(&more);
        assert!(problems.contains(expected), "{more}: {problems}");
    }
    let text = format!("fabric = \"/tmp/control.sock\"\n{}", NODE.replace("HOME", "/tmp"));
    let error = Config::parse(std::path::Path::new("n.toml"), &text).unwrap_err().to_string();
    assert!(error.contains("is another socket of the node"), "{error}");
}
