//! The state of a cluster: its registry, the members of etcd, the nodes, and each problem with its
//! way out.

use registry::membership::{ClusterContents, Membership};
use registry::{PoolSpace, RegistryError};
use serde::{Deserialize, Serialize};

use crate::copies::next_steps;
use crate::directory::{ClusterDirectory, RegistryPlace};
use crate::error::ClusterError;
use crate::etcd::{EtcdHealth, SPACE_WAY_OUT};
use crate::volumes::{self, ClusterVolumeStatus, PROBLEMS_MAX, of_pools, of_volumes};

/// The version of the JSON.
const VERSION: u32 = 2;

/// A certificate that ends sooner than this is a problem.
const CERTIFICATE_SOON_S: u64 = 30 * 86_400;

const DAY_S: u64 = 86_400;

/// The most unreadable records that are named.
const UNREADABLE_MAX: usize = 16;

/// The state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The version of this form.
    pub version: u32,
    /// The cluster's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The state in one word.
    pub verdict: ClusterVerdict,
    /// Each problem, with its way out; the worst first.
    pub problems: Vec<String>,
    /// The registry.
    pub registry: RegistryStatus,
    /// The nodes, as far as the registry answers.
    pub nodes: Vec<ClusterNodeStatus>,
    /// Tokens that can be used.
    pub tokens: usize,
    /// Replicated volumes.
    pub volumes: Vec<ClusterVolumeStatus>,
}

/// The state in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterVerdict {
    /// All is well.
    Well,
    /// Changes go on; something needs a person.
    Degraded,
    /// The registry takes no changes.
    Frozen,
    /// The registry does not answer.
    Away,
}

impl ClusterVerdict {
    /// The word, as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Degraded => "degraded",
            Self::Frozen => "frozen",
            Self::Away => "away",
        }
    }
}

/// The registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryStatus {
    /// `file` or `etcd`.
    pub kind: String,
    /// The directory of a registry in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The id of the registry itself, in hexadecimal digits, if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Its revision, if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The members of etcd.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<EtcdMemberStatus>,
}

/// A member of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdMemberStatus {
    /// Where it is.
    pub endpoint: String,
    /// `leader`, `follower`, `no leader` or `away`.
    pub state: String,
    /// Why it is away; empty if it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Its revision.
    pub revision: u64,
    /// The size of its data.
    pub bytes: u64,
    /// Its release; empty if it is away.
    pub release: String,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNodeStatus {
    /// Its name.
    pub name: String,
    /// `present` or `away`.
    pub state: String,
    /// The public half of its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Where peers reach it.
    pub addresses: Vec<String>,
    /// Its pools.
    pub pools: Vec<PoolSpace>,
    /// The release of its program; empty while it is away.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// When it joined, in seconds since 1970.
    pub joined_s: u64,
    /// For how long it is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_s: Option<u64>,
}

/// Gathers the state.
///
/// # Errors
/// When the directory's files cannot be read. A registry that does not answer is a state.
pub fn status(directory: &ClusterDirectory, now_s: u64) -> Result<ClusterStatus, ClusterError> {
    let file = directory.file();
    let mut guarded = directory.registry()?;
    let health = directory.etcd()?.map(|etcd| etcd.health()).unwrap_or_default();
    let frozen = guarded.frozen();
    let contents = match &frozen {
        Ok(_) => Membership::new(&mut guarded, directory.keys()).contents(),
        Err(error) => Err(error.clone()),
    };
    let mut problems = Vec::new();
    let mut verdict = ClusterVerdict::Well;
    match (&frozen, &contents) {
        (Ok(Some(reason)), _) => {
            verdict = ClusterVerdict::Frozen;
            problems.push(RegistryError::Frozen { reason: reason.clone() }.to_string());
        }
        (Err(error), _) | (_, Err(error)) => {
            verdict = match error {
                RegistryError::Away { .. } | RegistryError::Denied { .. } => ClusterVerdict::Away,
                _ => ClusterVerdict::Degraded,
            };
            problems.push(error.to_string());
        }
        _ => {}
    }
    let is_full =
        health.iter().any(|it| matches!(&it.answer, Ok(answer) if answer.is_out_of_space));
    if is_full && verdict < ClusterVerdict::Frozen {
        verdict = ClusterVerdict::Frozen;
    }
    problems.extend(of_etcd(&health, verdict == ClusterVerdict::Away));
    let mut contents = contents.ok();
    let mut volumes = Vec::new();
    if let Some(contents) = &mut contents {
        let damaged;
        (volumes, damaged) = volumes::volumes(contents, now_s);
        contents.unreadable.extend(damaged);
        volumes.extend(volumes::unrecorded(contents));
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        problems.extend(of_volumes(&volumes));
        problems.extend(of_steps(contents, now_s));
        problems.extend(of_nodes(contents, now_s));
        problems.extend(of_pools(contents));
        problems.extend(of_records(&contents.unreadable));
    }
    problems.extend(of_certificates(directory, now_s));
    if verdict == ClusterVerdict::Well && !problems.is_empty() {
        verdict = ClusterVerdict::Degraded;
    }
    let is_usable = |token: &registry::TokenRecord| token.used_by.is_none() && token.ends_s > now_s;
    let tokens = contents.iter().flat_map(|it| &it.tokens).filter(|(_, it)| is_usable(it)).count();
    Ok(ClusterStatus {
        version: VERSION,
        id: file.id.clone(),
        name: file.name.clone(),
        verdict,
        problems,
        registry: registry_status(&file.registry, contents.as_ref(), &health),
        nodes: contents.map(|contents| nodes(&contents, now_s)).unwrap_or_default(),
        tokens,
        volumes,
    })
}

/// Copies that must be made and cannot be.
fn of_steps(contents: &ClusterContents, now_s: u64) -> Vec<String> {
    let steps = next_steps(contents, None, now_s, |bytes| format!("{bytes} bytes"));
    let told = steps.into_iter().filter_map(|(volume, step)| {
        let why = step.err()?;
        Some(format!("volume {volume} gets no other copy: {why}"))
    });
    told.take(PROBLEMS_MAX).collect()
}

fn registry_status(
    place: &RegistryPlace,
    contents: Option<&ClusterContents>,
    health: &[EtcdHealth],
) -> RegistryStatus {
    let (kind, file) = match place {
        RegistryPlace::File(path) => ("file", Some(path.display().to_string())),
        RegistryPlace::Etcd(_) => ("etcd", None),
    };
    let members = health.iter().map(|member| {
        let endpoint = member.endpoint.clone();
        match &member.answer {
            Ok(answer) => EtcdMemberStatus {
                endpoint,
                state: match (answer.is_leader, answer.has_leader) {
                    (true, _) => "leader",
                    (false, true) => "follower",
                    (false, false) => "no leader",
                }
                .to_owned(),
                detail: String::new(),
                revision: answer.revision,
                bytes: answer.bytes,
                release: answer.version.clone(),
            },
            Err(reason) => EtcdMemberStatus {
                endpoint,
                // It answers, and has lost the other members.
                state: if reason.contains("no leader") { "no leader" } else { "away" }.to_owned(),
                detail: reason.clone(),
                revision: 0,
                bytes: 0,
                release: String::new(),
            },
        }
    });
    RegistryStatus {
        kind: kind.to_owned(),
        file,
        store: contents.map(|contents| format!("{:016x}", contents.stamp.store)),
        revision: contents.map(|contents| contents.stamp.revision),
        members: members.collect(),
    }
}

fn nodes(contents: &ClusterContents, now_s: u64) -> Vec<ClusterNodeStatus> {
    let shown = contents.nodes.iter().map(|node| {
        let presence = node.presence.as_ref();
        ClusterNodeStatus {
            name: node.record.name.clone(),
            state: if presence.is_some() { "present" } else { "away" }.to_owned(),
            key: node.record.key.clone(),
            addresses: presence.map(|it| it.addresses.clone()).unwrap_or_default(),
            pools: presence.map(|it| it.pools.clone()).unwrap_or_default(),
            release: presence.map(|it| it.program.clone()).unwrap_or_default(),
            joined_s: node.record.joined_s,
            present_s: presence.map(|it| now_s.saturating_sub(it.since_s)),
        }
    });
    shown.collect()
}

/// The problems of etcd's members.
fn of_etcd(health: &[EtcdHealth], is_away: bool) -> Vec<String> {
    let away: Vec<_> = health.iter().filter(|member| member.answer.is_err()).collect();
    let count = health.len();
    // A majority must be left.
    let more = (count.saturating_sub(1) / 2).saturating_sub(away.len());
    let rest = match (is_away, more) {
        (true, _) => "changes wait; start it again".to_owned(),
        (false, 0) => "changes go on, and no other member may fail".to_owned(),
        (false, more) => format!("changes go on, and {more} more may fail"),
    };
    let away = away.into_iter().filter_map(|member| {
        let reason = member.answer.as_ref().err()?;
        Some(format!("etcd's member {} does not serve ({reason}): {rest}", member.endpoint))
    });
    let full = health.iter().filter(|it| matches!(&it.answer, Ok(it) if it.is_out_of_space));
    let full = full.take(1).map(|_| format!("etcd is out of space; {SPACE_WAY_OUT}"));
    full.chain(away).collect()
}

/// The problems of nodes: nodes that are away, and certificates that end soon.
fn of_nodes(contents: &ClusterContents, now_s: u64) -> Vec<String> {
    let away = contents.nodes.iter().filter(|node| node.presence.is_none()).map(|node| {
        let name = &node.record.name;
        format!(
            "node {name} is away: start it; `vrio status` on its host says why it is not present. \
             Run `vrio cluster remove {name}` if it is gone for good"
        )
    });
    let certificates = contents.nodes.iter().filter_map(|node| {
        let ends_s = node.presence.as_ref()?.certificate_ends_s?;
        let name = &node.record.name;
        soon(&format!("the certificate of node {name}"), ends_s, now_s, &format!("--node {name}"))
    });
    away.chain(certificates).collect()
}

/// Records that cannot be read. Any client can write as many as it likes.
fn of_records(unreadable: &[RegistryError]) -> Vec<String> {
    let shown = unreadable.iter().take(UNREADABLE_MAX).map(ToString::to_string);
    let more = unreadable.len().saturating_sub(UNREADABLE_MAX);
    let rest = (more > 0).then(|| format!("{more} more records cannot be read"));
    shown.chain(rest).collect()
}

/// Certificates of this machine, and of etcd's members on the operator's machine.
fn of_certificates(directory: &ClusterDirectory, now_s: u64) -> Vec<String> {
    let file = directory.file();
    let own = file
        .certificate_ends_s
        .and_then(|ends_s| soon("the certificate in this directory", ends_s, now_s, ""));
    let members = file.members.iter().filter_map(|member| {
        let what = format!("the certificate of etcd's member {}", member.name);
        soon(&what, member.certificate_ends_s, now_s, "")
    });
    own.into_iter().chain(members).collect()
}

fn soon(what: &str, ends_s: u64, now_s: u64, option: &str) -> Option<String> {
    let left_s = ends_s.saturating_sub(now_s);
    let when = match left_s {
        0 => "has ended".to_owned(),
        left_s if left_s < CERTIFICATE_SOON_S => format!("ends in {} days", left_s / DAY_S),
        _ => return None,
    };
    let command = format!("vrio cluster renew {option}");
    Some(format!("{what} {when}: renew it with `{}`", command.trim_end()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::agent::{Agent, AgentRound, NodeView};
    use crate::init::{ClusterPlan, init};
    use crate::token::{JoinToken, issue_token, join};

    fn cluster(home: &Path) -> ClusterDirectory {
        let plan = ClusterPlan {
            name: "rack".to_owned(),
            directory: home.join("cluster"),
            members: Vec::new(),
            file: home.join("registry"),
            random: [7; 24],
            now_s: 100,
        };
        init(&plan).unwrap()
    }

    fn view() -> NodeView {
        NodeView {
            addresses: vec!["10.0.0.1:4870".to_owned()],
            pools: vec![PoolSpace::new("fast", 1600, 0)],
            since_s: 110,
            program: "1".to_owned(),
            ..NodeView::default()
        }
    }

    #[test]
    fn the_verdict_names_nodes_that_are_away_and_says_when_all_is_well() {
        let home = tempfile::tempdir().unwrap();
        let operator = cluster(home.path());
        assert_eq!(status(&operator, 100).unwrap().verdict, ClusterVerdict::Well);
        let token = JoinToken::read(&issue_token(&operator, [1; 16], (100, 50)).unwrap()).unwrap();
        assert_eq!(status(&operator, 100).unwrap().tokens, 1);
        assert_eq!(status(&operator, 150).unwrap().tokens, 0, "it has expired");
        let key = Some("key".to_owned());
        let joined = join(&token, &home.path().join("io1"), ("io1", key.clone()), 120).unwrap();
        let away = status(&joined, 120).unwrap();
        assert_eq!(away.verdict, ClusterVerdict::Degraded);
        assert!(away.problems[0].contains("node io1 is away"), "{:?}", away.problems);
        let mut agent = Agent::new(&joined, "io1", key.clone(), 5);
        assert_eq!(agent.round(None), AgentRound::NodeSilent);
        assert_eq!(agent.round(Some(&view())), AgentRound::Present);
        let well = status(&operator, 130).unwrap();
        assert_eq!((well.verdict, well.problems.len(), well.tokens), (ClusterVerdict::Well, 0, 0));
        assert_eq!(well.nodes[0].addresses, ["10.0.0.1:4870"]);
        assert_eq!((well.nodes[0].present_s, well.nodes[0].pools.len()), (Some(20), 1));
        // A node that restarts is not away; a node that stays silent is.
        let mut twin = Agent::new(&joined, "io1", key, 6);
        assert!(matches!(twin.round(Some(&view())), AgentRound::Elsewhere(_)));
        assert_eq!(
            [agent.round(None), agent.round(None)],
            [AgentRound::Present, AgentRound::Present]
        );
        assert_eq!(agent.round(None), AgentRound::NodeSilent);
        assert_eq!(status(&operator, 130).unwrap().nodes[0].state, "away");
    }

    #[test]
    fn a_registry_that_is_gone_or_put_back_is_told() {
        let home = tempfile::tempdir().unwrap();
        let operator = cluster(home.path());
        let content = home.path().join("registry/registry");
        let backup = std::fs::read(&content).unwrap();
        issue_token(&operator, [1; 16], (100, 50)).unwrap();
        std::fs::write(&content, &backup).unwrap();
        let frozen = status(&operator, 100).unwrap();
        assert_eq!(frozen.verdict, ClusterVerdict::Frozen);
        assert!(frozen.problems[0].contains("was put back to an older state"));
        let error = issue_token(&operator, [2; 16], (100, 50)).unwrap_err().to_string();
        assert!(error.contains("changes are frozen"), "{error}");
        registry::forget_seen(&operator.seen_path()).unwrap();
        issue_token(&operator, [2; 16], (100, 50)).unwrap();
        std::fs::remove_file(&content).unwrap();
        let away = status(&operator, 100).unwrap();
        assert_eq!(away.verdict, ClusterVerdict::Away);
        assert!(away.problems[0].contains("there is no registry in"), "{:?}", away.problems);
    }

    #[test]
    fn of_many_records_that_cannot_be_read_a_few_are_named() {
        let one = RegistryError::Damaged { place: "/a".to_owned(), reason: "x".to_owned() };
        assert_eq!(of_records(std::slice::from_ref(&one)), [one.to_string()]);
        let told = of_records(&vec![one; UNREADABLE_MAX + 7]);
        assert_eq!(told.len(), UNREADABLE_MAX + 1);
        assert_eq!(told.last().unwrap(), "7 more records cannot be read");
    }

    #[test]
    fn members_of_etcd_that_are_away_and_certificates_that_end_are_told() {
        let member =
            |at: u8, answer| EtcdHealth { endpoint: format!("https://10.0.0.{at}"), answer };
        let away = |at| member(at, Err("refused".to_owned()));
        let three = [away(1), away(2), away(3)];
        let told = of_etcd(&three[..1], false);
        assert!(told[0].contains("no other member may fail"), "{told:?}");
        assert!(of_etcd(&three, true)[0].contains("changes wait; start it again"));
        assert_eq!(soon("x", 100 * DAY_S, 10 * DAY_S, ""), None);
        let told = soon("x", 100 * DAY_S, 90 * DAY_S, "--node a").unwrap();
        assert_eq!(told, "x ends in 10 days: renew it with `vrio cluster renew --node a`");
        assert!(soon("x", 1, 2, "").unwrap().contains("has ended"));
    }
}
