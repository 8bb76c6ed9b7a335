//! The registry on three real members of etcd.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use cluster::registry::membership::Membership;
use cluster::registry::{
    Key, LeaseId, Registry, RegistryError, Swap, SwapOutcome, contract, forget_seen, private_file,
};
use cluster::{
    Agent, AgentRound, ClusterDirectory, ClusterVerdict, EtcdCredentials, EtcdRegistry, JoinToken,
    NodeView, RegistryPlace, issue_token, join, renew_all, renew_client, revoke_node, status,
};

use crate::members::{EtcdMembers, QUOTA, now_s};

/// How long a state may take that comes by itself.
const PATIENCE: Duration = Duration::from_secs(120);

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn text(directory: &Path, file: &str) -> String {
    String::from_utf8(private_file::read(&directory.join(file)).unwrap()).unwrap()
}

fn credentials(directory: &Path) -> EtcdCredentials {
    EtcdCredentials {
        authority_pem: text(directory, "ca.pem"),
        certificate_pem: text(directory, "client.pem"),
        key_pem: text(directory, "client.key"),
    }
}

fn endpoints(members: &EtcdMembers) -> Vec<String> {
    let RegistryPlace::Etcd(endpoints) = &members.operator.file().registry else {
        panic!("it is on etcd")
    };
    endpoints.clone()
}

fn open(members: &EtcdMembers) -> EtcdRegistry {
    EtcdRegistry::open(&endpoints(members), &credentials(members.operator.path())).unwrap()
}

/// Tries until it is so. An election of etcd's may be under way.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// `etcdctl` with the operator's certificate, for one member or all of them, and its input.
fn try_etcdctl(
    members: &EtcdMembers,
    endpoints: &[String],
    words: &[&str],
    input: &[u8],
) -> Output {
    let place = members.operator.path();
    let mut command = Command::new("etcdctl");
    // Its own times are of a machine that is not busy.
    command.env("ETCDCTL_DIAL_TIMEOUT", "60s").env("ETCDCTL_COMMAND_TIMEOUT", "120s");
    command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoints.join(",")]);
    for (option, file) in
        [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")]
    {
        command.arg(option).arg(place.join(file));
    }
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .expect("this test needs etcdctl: `scripts/install test` installs Debian's etcd-client");
    let mut own = child.stdin.take().unwrap();
    own.write_all(input).unwrap();
    drop(own);
    child.wait_with_output().unwrap()
}

fn etcdctl(members: &EtcdMembers, words: &[&str], input: &[u8]) -> String {
    let output = try_etcdctl(members, &endpoints(members), words, input);
    assert!(output.status.success(), "{words:?}: {output:?}\n{}", members.logs());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn it_keeps_the_contract() {
    let members = EtcdMembers::start(0, QUOTA);
    contract::check_all(&mut || contract::Parties {
        one: Box::new(open(&members)),
        other: Box::new(open(&members)),
        wait: Box::new(std::thread::sleep),
    });
    compaction(&members);
    strangers(&members);
    hostile_records(&members);
}

/// A watch that asks for changes that are forgotten says so, and a listing goes on.
fn compaction(members: &EtcdMembers) {
    let mut registry = open(members);
    let above = key("/compacted");
    let a = above.below("a").unwrap();
    let first = registry.stamp().unwrap().revision;
    let mut last = 0;
    for value in ["1", "2", "3"] {
        match registry.swap(&Swap::new().put(&a, value)).unwrap() {
            SwapOutcome::Made { revision } => last = revision,
            outcome => panic!("{outcome:?}"),
        }
    }
    etcdctl(members, &["compact", &last.to_string()], b"");
    // The member that is asked may be behind the compaction.
    let error = eventually("the watch ends", || {
        let mut watch = registry.watch(&above, first).unwrap();
        watch.next(Duration::from_secs(1)).err()
    });
    assert_eq!(error, RegistryError::Compacted { oldest: last });
    let listing = registry.list(&above).unwrap();
    assert_eq!(listing.entries.len(), 1);
    assert!(registry.watch(&above, listing.stamp.revision).is_ok());
}

/// Clients without a certificate of this cluster's authority get nothing.
fn strangers(members: &EtcdMembers) {
    let other = tempfile::tempdir().unwrap();
    let plan = cluster::ClusterPlan {
        name: "test".to_owned(),
        directory: other.path().join("cluster"),
        members: vec![cluster::EtcdMemberPlan {
            name: "a".to_owned(),
            address: "10.0.0.1".parse().unwrap(),
            client_port: None,
            peer_port: None,
        }],
        file: Default::default(),
        random: [6; 24],
        now_s: now_s(),
    };
    let stranger = credentials(cluster::init(&plan).unwrap().path());
    let own = credentials(members.operator.path());
    // Its certificate is of another authority; and it is told to trust another authority.
    let forged = EtcdCredentials { authority_pem: own.authority_pem, ..stranger.clone() };
    for credentials in [stranger, forged] {
        let mut registry = EtcdRegistry::open(&endpoints(members), &credentials).unwrap();
        let error = registry.stamp().unwrap_err();
        assert!(matches!(error, RegistryError::Away { .. }), "{error:?}");
        let swapped = registry.swap(&Swap::new().put(&key("/stranger"), "x"));
        assert!(swapped.is_err(), "{swapped:?}");
    }
    let plain = EtcdRegistry::open(
        &["http://10.0.0.1:2379".to_owned()],
        &credentials(members.operator.path()),
    );
    assert!(matches!(plain, Err(RegistryError::Invalid { .. })));
    assert_eq!(open(members).get(&key("/stranger")).unwrap().entry, None);
}

/// Any client can write any bytes. They hide no record, and the status names them without sending
/// them to the operator's terminal.
fn hostile_records(members: &EtcdMembers) {
    let operator = &members.operator;
    let root = format!("/vrio/{}", operator.file().id);
    let token = JoinToken::read(&issue_token(operator, [8; 16], (now_s(), 3600)).unwrap()).unwrap();
    join(&token, &members.home.path().join("io8"), ("io8", None), now_s()).unwrap();
    let told = || {
        let status = status(operator, now_s()).unwrap();
        let problems = status.problems.join("\n");
        assert!(!problems.replace('\n', "").contains(char::is_control), "{problems:?}");
        (status, problems)
    };
    // More than a page of keys that are no text, before the keys of nodes.
    let puts = (1..=120).map(|number| format!("put \"{root}/a\\xff\\x{number:02x}\" x\n"));
    etcdctl(members, &["txn"], format!("\n{}\n\n", puts.collect::<String>()).as_bytes());
    for (name, value) in [
        ("io7", r#"{"version":1,"name":"io7","key":"\u001b[2J","joined_s":1,"token":"t"}"#),
        ("io6", r#"{"version":"\u001b[2J"}"#),
    ] {
        etcdctl(members, &["put", &format!("{root}/nodes/{name}")], value.as_bytes());
    }
    let (status, problems) = told();
    let names: Vec<_> = status.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!((status.verdict, &names[..]), (ClusterVerdict::Degraded, &["io8"][..]));
    for name in ["io6", "io7"] {
        assert!(problems.contains(&format!("{root}/nodes/{name} is damaged")), "{problems}");
        revoke_node(operator, name, now_s()).unwrap();
    }
    assert!(!told().1.contains("is damaged"));
    for number in 0..12 {
        etcdctl(members, &["put", &format!("{root}/b{number}")], &[b'x'; 1_450_000]);
    }
    let (status, problems) = told();
    assert_eq!(status.verdict, ClusterVerdict::Degraded, "{problems}");
    assert!(problems.contains("etcdctl get --prefix --keys-only"), "{problems}");
    etcdctl(members, &["del", "--prefix", &format!("{root}/b")], b"");
    assert_eq!(told().0.nodes.len(), 1);
}

#[test]
fn one_member_may_fail_and_a_restored_registry_is_frozen() {
    let mut members = EtcdMembers::start(10, QUOTA);
    let home = members.home.path().to_owned();
    let operator = members.operator.clone();
    let token = |seed: u8| issue_token(&operator, [seed; 16], (now_s(), 3600));
    let first = JoinToken::read(&token(1).unwrap()).unwrap();
    let join_as = |token: &JoinToken, name: &str| {
        join(token, &home.join(name), (name, Some(format!("key of {name}"))), now_s())
    };
    join_as(&first, "io1").unwrap();
    let error = join_as(&first, "io2").unwrap_err().to_string();
    assert!(error.contains("node \"io1\" has used this token"), "{error}");
    let variables = documented(&members, "export ETCDCTL_API");
    run(&members, &(variables + &documented(&members, "snapshot save")));
    let backup = operator.path().join("backup.db");
    let second = JoinToken::read(&token(2).unwrap()).unwrap();
    members.kill(0);
    // Changes go on with two members.
    eventually("two members go on", || join_as(&second, "io2").ok());
    let degraded = status(&operator, now_s()).unwrap();
    assert_eq!(degraded.verdict, ClusterVerdict::Degraded);
    assert!(degraded.problems[0].contains("no other member may fail"), "{:?}", degraded.problems);
    assert_eq!(degraded.registry.members[0].state, "away");
    members.kill(1);
    let refused = token(3).unwrap_err().to_string();
    assert!(refused.contains("the registry does not answer"), "{refused}");
    assert!(refused.contains("I/O goes on, and changes wait"), "{refused}");
    assert_eq!(status(&operator, now_s()).unwrap().verdict, ClusterVerdict::Away);
    members.kill(2);
    restore(&mut members, &backup);
    let frozen = status(&operator, now_s()).unwrap();
    assert_eq!(frozen.verdict, ClusterVerdict::Frozen, "{:?}", frozen.problems);
    let refused = token(4).unwrap_err().to_string();
    assert!(refused.contains("changes are frozen"), "{refused}");
    // A node that has seen more refuses as well, and another node cannot know.
    let mut node = ClusterDirectory::open(&home.join("io2")).unwrap().registry().unwrap();
    assert!(matches!(node.grant(60), Err(RegistryError::Frozen { .. })));
    forget_seen(&operator.seen_path()).unwrap();
    token(4).unwrap();
    let mut registry = operator.registry().unwrap();
    let contents = Membership::new(&mut registry, operator.keys()).contents().unwrap();
    let names: Vec<_> = contents.nodes.iter().map(|node| &*node.record.name).collect();
    assert_eq!(names, ["io1"], "io2 joined after the backup");
}

/// The block of commands in docs/cluster.md that contains this text, for these members.
fn documented(members: &EtcdMembers, text: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cluster.md");
    let page = std::fs::read_to_string(page).unwrap();
    let is_in = |line: &&str| line.starts_with("    ");
    let lines: Vec<_> = page.lines().collect();
    let block = lines
        .chunk_by(|a, b| is_in(a) == is_in(b))
        .find(|block| is_in(&block[0]) && block.iter().any(|line| line.contains(text)))
        .unwrap_or_else(|| panic!("docs/cluster.md has no commands with {text:?}"));
    let mut commands = block.iter().map(|line| &line[4..]).collect::<Vec<_>>().join("\n");
    commands = commands.replace("/etc/vrio/cluster", members.operator.path().to_str().unwrap());
    for (at, endpoint) in endpoints(members).iter().enumerate() {
        commands = commands.replace(&format!("https://10.0.0.{}:2379", at + 1), endpoint);
    }
    commands + "\n"
}

fn run(members: &EtcdMembers, commands: &str) {
    let output = Command::new("sh").args(["-e", "-c", commands]).output().unwrap();
    assert!(output.status.success(), "{commands}{output:?}\n{}", members.logs());
}

/// Restores all members from a backup, as docs/cluster.md says.
fn restore(members: &mut EtcdMembers, backup: &Path) {
    let commands = documented(members, "snapshot restore");
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        let directory = members.operator.path().join("members").join(name);
        std::fs::copy(backup, directory.join("backup.db")).unwrap();
        let commands = commands.replace("/var/lib/vrio-etcd", directory.to_str().unwrap());
        // These members run as the user of the test.
        run(members, &commands.replace("chown -R etcd: data\n", ""));
        members.run(at);
    }
    members.wait();
}

#[test]
fn certificates_are_renewed_and_revoked_while_members_run_and_a_full_etcd_says_so() {
    let members = EtcdMembers::start(20, 16 << 20);
    let operator = &members.operator;
    let token = JoinToken::read(&issue_token(operator, [1; 16], (now_s(), 3600)).unwrap()).unwrap();
    let home = members.home.path();
    let node = join(&token, &home.join("io1"), ("io1", None), now_s()).unwrap();
    let before = text(node.path(), "client.pem");
    let later_s = now_s() + 350 * 86_400;
    let old = status(operator, later_s).unwrap();
    assert!(old.problems.iter().any(|it| it.contains("etcd's member a ends in")), "{old:?}");
    renew_all(operator, now_s()).unwrap();
    let renewed = renew_client(operator, "io1", &home.join("renewed"), now_s()).unwrap();
    assert_ne!(text(renewed.path(), "client.pem"), before);
    assert!(renew_client(operator, "io1", node.path(), now_s()).is_err(), "it is in use");
    // Both the old certificate and the new one are good: they are of the same authority.
    for directory in [&node, &renewed] {
        let mut registry = EtcdRegistry::open(&endpoints(&members), &credentials(directory.path()));
        assert!(registry.as_mut().unwrap().stamp().is_ok());
    }
    rotation(&members, &node, renewed.path());
    revocation(&members, &node);
    out_of_space(&members);
}

fn view() -> NodeView {
    NodeView {
        addresses: vec!["10.0.0.9:4870".to_owned()],
        since_s: 1,
        program: "0.1.0".to_owned(),
        ..NodeView::default()
    }
}

/// A round until the presence is kept: an election may be under way.
fn present(agent: &mut Agent) {
    eventually("the node is present", || {
        (agent.round(Some(&view())) == AgentRound::Present).then_some(())
    });
}

/// An agent takes new files while it runs. A forged node, with another key, is refused.
fn rotation(members: &EtcdMembers, node: &ClusterDirectory, renewed: &Path) {
    let mut agent = Agent::new(node, "io1", None, 1);
    present(&mut agent);
    let ends_s = |members: &EtcdMembers| {
        let mut registry = members.operator.registry().unwrap();
        let contents = Membership::new(&mut registry, members.operator.keys()).contents().unwrap();
        contents.nodes[0].presence.as_ref().unwrap().certificate_ends_s
    };
    let before = ends_s(members);
    // The times of both certificates are in whole seconds.
    eventually("the next second", || (now_s() > before? - 365 * 86_400).then_some(()));
    let renewed_later = renewed.with_extension("later");
    renew_client(&members.operator, "io1", &renewed_later, now_s()).unwrap();
    for file in ["cluster.json", "client.key", "client.pem"] {
        std::fs::copy(renewed_later.join(file), node.path().join(file)).unwrap();
    }
    present(&mut agent);
    assert!(ends_s(members) > before, "{before:?}");
    let mut forged = Agent::new(node, "io1", Some("a key of another node".to_owned()), 2);
    match forged.round(Some(&view())) {
        AgentRound::NotKept(text) => {
            assert!(text.contains("has joined with another key"), "{text}")
        }
        round => panic!("{round:?}"),
    }
    agent.leave().unwrap();
}

/// A node that is revoked is away at once, its agent is told, and its certificate opens no new
/// connection; other nodes go on.
fn revocation(members: &EtcdMembers, other: &ClusterDirectory) {
    let operator = &members.operator;
    let token = JoinToken::read(&issue_token(operator, [9; 16], (now_s(), 3600)).unwrap()).unwrap();
    let place = members.home.path().join("io9");
    let node = join(&token, &place, ("io9", None), now_s()).unwrap();
    let mut agent = Agent::new(&node, "io9", None, 3);
    present(&mut agent);
    assert_eq!(revoke_node(operator, "io9", now_s()).unwrap(), 1);
    let told = status(operator, now_s()).unwrap();
    assert!(told.nodes.iter().all(|node| node.name != "io9"), "{told:?}");
    match agent.round(Some(&view())) {
        AgentRound::NotKept(text) => assert!(text.contains("it was removed"), "{text}"),
        round => panic!("{round:?}"),
    }
    // A member that does not answer in time says nothing about the certificate.
    eventually("the certificate is revoked", || {
        let opened = EtcdRegistry::open(&endpoints(members), &credentials(node.path()));
        let error = opened.and_then(|mut registry| registry.stamp()).unwrap_err();
        assert!(matches!(error, RegistryError::Away { .. }), "{error:?}");
        error.to_string().contains("revoked").then_some(())
    });
    // Its record is gone, and its token is known.
    assert_eq!(revoke_node(operator, "io9", now_s()).unwrap(), 1);
    let unknown = revoke_node(operator, "io99", now_s()).unwrap_err().to_string();
    assert!(unknown.contains("no certificate in issued.json"), "{unknown}");
    for directory in [operator, other] {
        let registry = EtcdRegistry::open(&endpoints(members), &credentials(directory.path()));
        registry.unwrap().stamp().unwrap();
    }
}

/// An etcd whose quota is reached, and the way out of it as docs/cluster.md says.
fn out_of_space(members: &EtcdMembers) {
    let mut registry = open(members);
    let lease: LeaseId = registry.grant(600).unwrap();
    // Another program writes until it is refused.
    let is_full = (0..64).any(|_| {
        let words = ["put", "/another/program"];
        let output = try_etcdctl(members, &endpoints(members), &words, &[b'x'; 1_000_000]);
        String::from_utf8_lossy(&output.stderr).contains("database space exceeded")
    });
    assert!(is_full, "{}", members.logs());
    let full = registry.swap(&Swap::new().put_under(&key("/full"), "x", lease)).unwrap_err();
    assert!(matches!(full, RegistryError::OutOfSpace { .. }), "{full}");
    assert!(full.to_string().contains("docs/cluster.md"), "{full}");
    registry.renew(lease).expect("a node stays present");
    let told = status(&members.operator, now_s()).unwrap();
    assert_eq!(told.verdict, ClusterVerdict::Frozen);
    assert!(told.problems.iter().any(|it| it.contains("etcd is out of space")), "{told:?}");
    let variables = documented(members, "export ETCDCTL_API");
    run(members, &(variables + &documented(members, "alarm disarm")));
    let made = registry.swap(&Swap::new().put(&key("/full"), "x")).unwrap();
    assert!(matches!(made, SwapOutcome::Made { .. }), "{made:?}");
}
