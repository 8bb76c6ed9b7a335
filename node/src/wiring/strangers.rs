//! Peers that asked for a session and were refused: in the log, with the change that would admit
//! them, and in the status.
//!
//! Sidecores count them and remember a few (`transport::Strangers`). A thread checks every second
//! whether there are more. It writes a line for the first of each reason, and then one in ten
//! minutes: a flood of refusals is one number in a line.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::name_problem;
use sessions::LinkedSidecore;
use sessions::keys::{CurrentKeys, SidecoreKeys};
use sidecore::Sidecore;
use transport::{
    Endpoint, NAME_BYTES_MAX, PROTOCOL_VERSION, STRANGERS_MAX, Security, Stranger, StrangerReason,
};

use api::status::{StrangerStatus, StrangersStatus};

/// How often refusals are checked: as soon as a person looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long refusals for one reason are only counted after a line about it.
const TOLD_AGAIN: Duration = Duration::from_secs(600);

const REASONS: usize = StrangerReason::ALL.len();

/// The refusals of one sidecore, or of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    /// By reason, in the order of [`StrangerReason::ALL`].
    refused: [u64; REASONS],
    /// Refused peers, and the age of the last Hello of each.
    strangers: Vec<(Stranger, Duration)>,
}

impl Refusals {
    pub(crate) fn of(endpoint: &Endpoint, now_ns: u64) -> Self {
        let strangers = endpoint.strangers();
        let age = |it: &Stranger| Duration::from_nanos(now_ns.saturating_sub(it.last_ns));
        let aged = strangers.iter().map(|it| (it.clone(), age(it))).collect();
        Self { refused: strangers.refused(), strangers: aged }
    }

    /// The refusals of several sidecores together: a stranger asks each of them.
    fn together<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for one in all {
            for (sum, refused) in sum.refused.iter_mut().zip(one.refused) {
                *sum += refused;
            }
            for (stranger, age) in &one.strangers {
                let known = sum.strangers.iter_mut().find(|(known, _)| known.is_same(stranger));
                if let Some((known, known_age)) = known {
                    known.refused += stranger.refused;
                    *known_age = (*known_age).min(*age);
                } else {
                    sum.strangers.push((stranger.clone(), *age));
                }
            }
        }
        sum.strangers.sort_by_key(|(stranger, age)| (stranger.reason, *age));
        sum
    }

    /// The strangers of a reason, the latest first.
    fn latest(&self, reason: StrangerReason) -> impl Iterator<Item = &(Stranger, Duration)> {
        self.strangers.iter().filter(move |(it, _)| it.reason == reason).take(STRANGERS_MAX)
    }
}

/// Their status: every reason, also those that never occurred, since a series of the metrics that
/// appears with its first count loses this count.
pub(crate) fn status<'a>(
    node: &str,
    security: &Security,
    asked: impl Iterator<Item = &'a Refusals>,
) -> Vec<StrangersStatus> {
    let all = Refusals::together(asked);
    let of_reason = |reason: StrangerReason| StrangersStatus {
        reason: word(reason).to_owned(),
        refused: all.refused[reason as usize],
        latest: all
            .latest(reason)
            .map(|(stranger, age)| StrangerStatus {
                address: address(stranger.addr),
                name: stranger.name.clone(),
                key: stranger.key.map(|key| key.to_string()),
                refused: stranger.refused,
                ago_s: age.as_secs(),
                way_out: way_out(stranger, node, security),
            })
            .collect(),
    };
    StrangerReason::ALL.map(of_reason).into()
}

/// The thread that looks. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Watcher {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watcher {
    /// Begins to look at these sidecores. Without the thread the node still serves its guests; the
    /// log says that it will not report strangers.
    pub(crate) fn start(node: &str, keys: &SidecoreKeys, cores: &[LinkedSidecore]) -> Self {
        let with_sessions =
            cores.iter().filter_map(|core| Some((core.sidecore.clone(), core.refused.clone()?)));
        let cores: Vec<_> = with_sessions.collect();
        if cores.is_empty() {
            return Self { thread: None };
        }
        let (stop, stopped) = channel();
        let (node, keys) = (node.to_owned(), keys.now());
        let watch = move || look_on(&node, &keys, &cores, &stopped);
        let thread = std::thread::Builder::new().name("strangers".to_owned()).spawn(watch);
        let thread = thread.inspect_err(|error| {
            tracing::error!(%error, "no thread for the log of refused peers");
        });
        Self { thread: thread.ok().map(|thread| (stop, thread)) }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the thread for the log of refused peers panicked");
        }
    }
}

fn look_on(
    node: &str,
    keys: &CurrentKeys,
    cores: &[(Sidecore, Arc<AtomicU64>)],
    stopped: &Receiver<()>,
) {
    let (mut told, mut found) = (LoggedRefusals::default(), Refusals::default());
    let mut total = 0;
    while stopped.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
        // A sidecore is woken only when it has refused a peer.
        let now = cores.iter().map(|(_, refused)| refused.load(Relaxed)).sum();
        if now != total {
            total = now;
            let asked: Vec<_> = cores.iter().filter_map(|(sidecore, _)| ask(sidecore)).collect();
            found = Refusals::together(asked.iter());
        }
        for (reason, refused) in told.news(Instant::now(), &found.refused) {
            if let Some((stranger, _)) = found.latest(reason).next() {
                log(stranger, refused, node, &keys.get());
            }
        }
    }
}

fn ask(sidecore: &Sidecore) -> Option<Refusals> {
    let asked = sidecore.ask(|local| {
        let endpoint = local.services().get::<Endpoint>()?;
        let refusals = Refusals::of(&endpoint.borrow(), local.now_ns());
        Some(refusals)
    });
    asked.ok().flatten()
}

fn log(stranger: &Stranger, refused: u64, node: &str, security: &Security) {
    let address = address(stranger.addr);
    let (name, key) = (stranger.name.as_deref(), stranger.key.map(tracing::field::display));
    let (why, way_out) = (why(stranger.reason), way_out(stranger, node, security));
    let way_out = tracing::field::display(way_out);
    tracing::warn!(address, name, key, refused, way_out, "a peer was refused a session: {why}");
}

/// The refusals that the log has reported.
#[derive(Debug, Default)]
struct LoggedRefusals {
    refused: [u64; REASONS],
    at: [Option<Instant>; REASONS],
}

impl LoggedRefusals {
    /// The reasons that the log should report now, and how many refusals of each are new to it.
    fn news(&mut self, now: Instant, refused: &[u64; REASONS]) -> Vec<(StrangerReason, u64)> {
        let mut news = Vec::new();
        for reason in StrangerReason::ALL {
            let (told, at) = (&mut self.refused[reason as usize], &mut self.at[reason as usize]);
            let more = refused[reason as usize].saturating_sub(*told);
            let is_due = at.is_none_or(|at| now.saturating_duration_since(at) >= TOLD_AGAIN);
            if more > 0 && is_due {
                (*told, *at) = (*told + more, Some(now));
                news.push((reason, more));
            }
        }
        news
    }
}

fn address(addr: SocketAddr) -> String {
    if link::is_shared(addr) { "shm".to_owned() } else { addr.to_string() }
}

/// The reason's word for programs.
fn word(reason: StrangerReason) -> &'static str {
    match reason {
        StrangerReason::Version => "version",
        StrangerReason::NotAccepting => "not-accepting",
        StrangerReason::Plain => "plain",
        StrangerReason::Sealed => "sealed",
        StrangerReason::WrongKey => "wrong-key",
        StrangerReason::UnknownKey => "unknown-key",
        StrangerReason::ExpiredKey => "expired-key",
        StrangerReason::Name => "name",
    }
}

fn why(reason: StrangerReason) -> &'static str {
    match reason {
        StrangerReason::Version => "it has no protocol version in common with this node",
        StrangerReason::NotAccepting => "no object of this node is open to peers",
        StrangerReason::Plain => "it has no key, and sessions are sealed here",
        StrangerReason::Sealed => "it has a key, and sessions are plain here",
        StrangerReason::WrongKey => "it expects another key of this node",
        StrangerReason::UnknownKey => "its key is not a key of any peer",
        StrangerReason::ExpiredKey => "its key has expired",
        StrangerReason::Name => "its key belongs to a peer of another name",
    }
}

/// The change by which an operator admits the stranger. The stranger's own text is repeated only
/// where it is a name: the operator may copy it into a shell.
fn way_out(stranger: &Stranger, node: &str, security: &Security) -> String {
    let name =
        stranger.name.as_deref().filter(|name| name_problem(name).is_none()).unwrap_or("NAME");
    let theirs = || stranger.key.map_or_else(|| "KEY".to_owned(), |key| key.to_string());
    let (ours, known) = match security {
        Security::Plain => ("KEY".to_owned(), None),
        Security::Sealed { secret, keyring } => {
            let known = stranger.key.and_then(|key| keyring.get(&key));
            (secret.public().to_string(), known.map(|known| known.peer.as_str()))
        }
    };
    let has_other_keys = match security {
        Security::Plain => false,
        Security::Sealed { keyring, .. } => keyring.keys_of(name).next().is_some(),
    };
    let add = |name: &dyn Display, key: &dyn Display| {
        format!("a [[peer]] with name = \"{name}\" and key = \"{key}\"")
    };
    match stranger.reason {
        StrangerReason::Version => {
            let (oldest, newest) = stranger.versions;
            format!(
                "update the older of the two nodes: the newest version here is \
                 {PROTOCOL_VERSION}, the peer speaks {oldest} to {newest}"
            )
        }
        StrangerReason::NotAccepting => {
            format!("name the peer in the `allow` of a volume or a network: allow = [\"{name}\"]")
        }
        StrangerReason::Plain => format!(
            "make a key on the peer's host (`vrio key new`) and write {} into the peer's \
             configuration, and {} here",
            add(&node, &ours),
            add(&name, &"the key that `vrio key show` prints there")
        ),
        StrangerReason::Sealed => {
            "give this node a `key` (`vrio key new`) and a [[peer]] with the peer's public key, or \
             remove the key there"
                .to_owned()
        }
        StrangerReason::WrongKey => {
            format!("correct this node's entry in the peer's configuration: {}", add(&node, &ours))
        }
        StrangerReason::UnknownKey if has_other_keys => format!(
            "if the key of \"{name}\" was changed, write it here into the `keys` of that [[peer]], \
             beside the old one, and reload; if it was not, another node uses this name"
        ),
        StrangerReason::UnknownKey => format!(
            "write {} into this node's configuration and reload, or: vrio peer add {name} --key {}",
            add(&name, &theirs()),
            theirs()
        ),
        StrangerReason::ExpiredKey => format!(
            "make a new key there (`vrio key new`) and write it here into the `keys` of the \
             [[peer]] \"{name}\", or give the old key a later `expires`"
        ),
        StrangerReason::Name => format!(
            "the key is that of \"{}\" here: the name of the [[peer]] here and the `name` in the \
             configuration there must be the same",
            known.unwrap_or("another peer")
        ),
    }
}

const _: () = assert!(NAME_BYTES_MAX <= 64, "a stranger's name fits a line of the log");

#[cfg(test)]
mod tests {
    use transport::{Keyring, KnownKey, PublicKey, SecretKey};

    use super::*;

    fn stranger(reason: StrangerReason, name: Option<&str>, key: Option<u8>) -> Stranger {
        Stranger {
            reason,
            addr: SocketAddr::from(([10, 0, 0, 7], 4870)),
            name: name.map(str::to_owned),
            key: key.map(|byte| PublicKey([byte; 32])),
            versions: (7, 9),
            refused: 3,
            last_ns: 5,
        }
    }

    fn sealed() -> Security {
        let mut keyring = Keyring::new();
        let known = KnownKey { peer: "vm1".to_owned(), expires_unix_s: None };
        keyring.add(PublicKey([1; 32]), known).unwrap();
        let secret = Arc::new(SecretKey::from_bytes([9; 32]));
        Security::Sealed { secret, keyring: Arc::new(keyring) }
    }

    #[test]
    fn one_line_for_each_reason_and_then_one_in_ten_minutes() {
        let (mut told, start) = (LoggedRefusals::default(), Instant::now());
        let mut refused = [0; REASONS];
        assert_eq!(told.news(start, &refused), []);
        let mut lines = Vec::new();
        for second in 0..3600 {
            // A flood of one reason, and one refusal of another reason.
            refused[StrangerReason::Plain as usize] += 1000;
            refused[StrangerReason::UnknownKey as usize] = 1;
            lines.extend(told.news(start + Duration::from_secs(second), &refused));
        }
        let (plain, unknown) = (StrangerReason::Plain, StrangerReason::UnknownKey);
        assert_eq!(lines[..2], [(plain, 1000), (unknown, 1)]);
        assert_eq!(lines[2..], [(plain, 600_000); 5], "all that came between is counted");
    }

    #[test]
    fn a_stranger_of_several_sidecores_is_one_and_each_reason_has_few() {
        let one = |last_s, name: &str| {
            let it = stranger(StrangerReason::Plain, Some(name), None);
            (it, Duration::from_secs(last_s))
        };
        let first = Refusals { refused: [5; REASONS], strangers: vec![one(9, "a"), one(1, "b")] };
        let more = (0..9).map(|number| one(20 + number, &format!("c{number}")));
        let second = Refusals {
            refused: [7; REASONS],
            strangers: std::iter::once(one(2, "a")).chain(more).collect(),
        };
        let all = status("io1", &Security::Plain, [first, second].iter());
        let plain = all.iter().find(|it| it.reason == "plain").unwrap();
        assert_eq!((plain.refused, plain.latest.len()), (12, STRANGERS_MAX));
        let latest: Vec<_> =
            plain.latest.iter().map(|it| (it.name.as_deref(), it.refused, it.ago_s)).collect();
        assert_eq!(latest[..2], [(Some("b"), 3, 1), (Some("a"), 6, 2)]);
        assert_eq!(all.len(), REASONS, "series of metrics that never go");
    }

    #[test]
    fn the_way_out_has_the_text_for_copying() {
        let (plain, sealed) = (Security::Plain, sealed());
        let key = PublicKey([2; 32]).to_string();
        let ours = SecretKey::from_bytes([9; 32]).public().to_string();
        let cases = [
            (StrangerReason::UnknownKey, "vm7", format!("vrio peer add vm7 --key {key}")),
            (StrangerReason::UnknownKey, "vm7", format!("name = \"vm7\" and key = \"{key}\"")),
            (StrangerReason::UnknownKey, "vm1", "another node uses this name".to_owned()),
            (StrangerReason::WrongKey, "", format!("name = \"io1\" and key = \"{ours}\"")),
            (StrangerReason::Plain, "vm7", "name = \"vm7\" and key = \"the key".to_owned()),
            (StrangerReason::ExpiredKey, "vm1", "later `expires`".to_owned()),
            (StrangerReason::Version, "vm7", "the peer speaks 7 to 9".to_owned()),
            (StrangerReason::NotAccepting, "vm7", "allow = [\"vm7\"]".to_owned()),
        ];
        for (reason, name, wanted) in cases {
            let key = (reason == StrangerReason::UnknownKey).then_some(2);
            let told = way_out(&stranger(reason, Some(name), key), "io1", &sealed);
            assert!(told.contains(&wanted), "{reason:?}: {told}");
        }
        let told = way_out(&stranger(StrangerReason::Name, Some("x"), Some(1)), "io1", &sealed);
        assert!(told.contains("that of \"vm1\" here"), "{told}");
        let told = way_out(&stranger(StrangerReason::Sealed, None, None), "io1", &plain);
        assert!(told.contains("give this node a `key`"), "{told}");
    }

    #[test]
    fn a_strangers_name_is_not_put_into_a_command() {
        for hostile in ["x; rm -rf /", "$(reboot)", "a\nb", "", "--force"] {
            for reason in StrangerReason::ALL {
                let told = way_out(&stranger(reason, Some(hostile), Some(2)), "io1", &sealed());
                assert!(hostile.is_empty() || !told.contains(hostile), "{told}");
                assert!(told.chars().all(|char| !char.is_control()), "{told}");
            }
        }
    }
}
