//! The keys of a running node: read at the start and at each reload, given to every sidecore, and
//! watched for their end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Config, PeerConfig};
use parking_lot::Mutex;
use peer::Planes;
use sidecore::{Local, Poll, PollerId, Progress, RoundStage, Wake};
use transport::{Endpoint, Keyring, KnownKey, PublicKey, Security};

use crate::cores::LinkedSidecore;
use crate::error::{ConnectError, ObjectError};
use crate::key_files;

/// How often a sidecore tells its sessions the time: the end of a key need not be more exact.
const CLOCK_NS: u64 = 1_000_000_000;

/// How long before a key's end the log reports it: a week has working days.
const WARN_BEFORE_S: u64 = 7 * DAY_S;

/// How often it does.
const WARN_AGAIN_S: u64 = DAY_S;

const DAY_S: u64 = 24 * 3600;

/// How often the ends of keys are checked.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The keys that sidecores have now, for threads that look at them.
#[derive(Clone, Debug)]
pub struct CurrentKeys(Arc<Mutex<Security>>);

impl CurrentKeys {
    /// A copy, since key files may be read again at any time.
    pub fn get(&self) -> Security {
        self.0.lock().clone()
    }
}

/// The keys that the node's sidecores have now.
#[derive(Debug)]
pub struct SidecoreKeys {
    now: CurrentKeys,
    watcher: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl SidecoreKeys {
    /// Reads the keys that the configuration names.
    ///
    /// # Errors
    /// Every key file that is not sound, by line.
    pub fn load(config: &Config) -> Result<Self, ConnectError> {
        let now = CurrentKeys(Arc::new(Mutex::new(security(config)?)));
        Ok(Self { now, watcher: Mutex::default() })
    }

    /// Logs, from now on, which keys end soon.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn watch(&self) -> Result<(), ConnectError> {
        if !self.security().is_sealed() {
            return Ok(());
        }
        let (stop, stopped) = channel();
        let now = self.now();
        let watch = move || {
            let mut ends = ReportedKeyEnds::default();
            loop {
                if let Security::Sealed { keyring, .. } = now.get() {
                    ends.news(unix_s(), &keyring).iter().for_each(KeyEnd::log);
                }
                if stopped.recv_timeout(LOOK_AGAIN) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("keys".to_owned()).spawn(watch);
        let thread = thread
            .map_err(|source| ConnectError::System { what: "start a thread for keys", source })?;
        *self.watcher.lock() = Some((stop, thread));
        Ok(())
    }

    /// The keys that sidecores have now.
    pub fn security(&self) -> Security {
        self.now.get()
    }

    /// The same, for a thread that looks again and again.
    pub fn now(&self) -> CurrentKeys {
        self.now.clone()
    }

    /// The owner and the end of a peer's key, if the keyring has it.
    pub fn known(&self, key: &PublicKey) -> Option<KnownKey> {
        match self.security() {
            Security::Sealed { keyring, .. } => keyring.get(key).cloned(),
            Security::Plain => None,
        }
    }

    fn replace(&self, security: Security) {
        *self.now.0.lock() = security;
    }
}

impl Drop for SidecoreKeys {
    fn drop(&mut self) {
        let watcher = self.watcher.lock().take();
        if let Some((stop, thread)) = watcher {
            drop(stop);
            if thread.join().is_err() {
                tracing::error!("the thread that watches keys panicked");
            }
        }
    }
}

/// Reads all keys again, the node's own and its peers', and gives them to every sidecore. Sessions
/// with a removed key end, the others go on. All or nothing: with an error nothing has changed.
///
/// # Errors
/// As [`wanted`].
pub fn apply(
    config: &Config,
    keys: &SidecoreKeys,
    cores: &[LinkedSidecore],
) -> Result<(), ConnectError> {
    give(config, wanted(config, keys)?, keys, cores);
    Ok(())
}

/// Reads all keys that a running node would have with this configuration. Whether the node has a
/// key at all does not change while it runs.
///
/// # Errors
/// The fault of a key file, or that the node must be restarted.
pub fn wanted(config: &Config, keys: &SidecoreKeys) -> Result<Security, ConnectError> {
    let wanted = security(config)?;
    if wanted.is_sealed() != keys.security().is_sealed() {
        let text = "a running node cannot change whether its sessions are sealed: restart the node";
        return Err(problem(config.place(&config.lines, "key"), "key", text.to_owned()));
    }
    Ok(wanted)
}

fn give(config: &Config, wanted: Security, keys: &SidecoreKeys, cores: &[LinkedSidecore]) {
    keys.replace(wanted.clone());
    for core in cores {
        let wanted = wanted.clone();
        let set = core.sidecore.call(move |local| {
            let plane = local.services().get::<Planes>()?;
            let endpoint = local.services().get::<Endpoint>()?;
            let mut sink = plane.borrow_mut();
            endpoint.borrow_mut().set_security(local.now_ns(), unix_s(), wanted, &mut *sink);
            Some(())
        });
        // A sidecore that has stopped has no sessions.
        let _ = set;
    }
    if wanted.is_sealed() {
        tracing::info!(own = public(&wanted), peers = config.peers.len(), "keys were read again");
    }
}

/// The node's own public key, as other nodes name it.
pub fn public(security: &Security) -> Option<String> {
    match security {
        Security::Sealed { secret, .. } => Some(secret.public().to_string()),
        Security::Plain => None,
    }
}

fn problem(place: String, object: &str, text: String) -> ConnectError {
    ConnectError::Keys(vec![ObjectError { place, object: object.to_owned(), text }])
}

fn security(config: &Config) -> Result<Security, ConnectError> {
    let Some(path) = &config.key else { return Ok(Security::Plain) };
    let secret = key_files::read_node(path)
        .map_err(|error| problem(config.place(&config.lines, "key"), "key", error.to_string()))?;
    if let Some(peer) = config.peers.iter().find(|peer| peer.has_key(Some(secret.public()))) {
        let text = format!(
            "{} is this node's own key ({path:?}); write the key that `vrio key show` prints on {}",
            secret.public(),
            peer.name
        );
        let object = format!("peer {:?}", peer.name);
        return Err(problem(config.place(&peer.lines, "key"), &object, text));
    }
    let mut keyring = keyring(&config.peers);
    // A disk beside a copy of its volume has a session with its own node.
    let own = KnownKey { peer: config.name.clone(), expires_unix_s: None };
    keyring.add(secret.public(), own).expect("there is room for the node's own key");
    Ok(Security::Sealed { secret: Arc::new(secret), keyring: Arc::new(keyring) })
}

fn keyring(peers: &[PeerConfig]) -> Keyring {
    let mut keyring = Keyring::new();
    for peer in peers {
        for key in &peer.keys {
            let known = KnownKey { peer: peer.name.clone(), expires_unix_s: key.expires_unix_s };
            keyring.add(key.key, known).expect("the configuration bounds peers and their keys");
        }
    }
    keyring
}

/// The time of day. A clock before 1970 counts as 1970: then no key has expired.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Tells a sidecore's sessions the time of day, so that keys end in time.
pub(crate) struct WallClock {
    endpoint: Rc<RefCell<Endpoint>>,
    plane: Rc<RefCell<Planes>>,
    due_ns: u64,
}

impl WallClock {
    /// Puts the clock onto a sidecore, before any packet is received.
    pub(crate) fn install(
        local: &mut Local,
        endpoint: &Rc<RefCell<Endpoint>>,
        plane: &Rc<RefCell<Planes>>,
    ) -> PollerId {
        let mut clock = Self { endpoint: Rc::clone(endpoint), plane: Rc::clone(plane), due_ns: 0 };
        // The time is set at once, since packets of the first round are checked against it.
        let _ = clock.poll(local.now_ns());
        local.add(RoundStage::Receive, Box::new(clock))
    }
}

impl Poll for WallClock {
    fn poll(&mut self, now_ns: u64) -> Progress {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + CLOCK_NS;
            let mut sink = self.plane.borrow_mut();
            self.endpoint.borrow_mut().set_wall_clock(now_ns, unix_s(), &mut *sink);
        }
        Progress::Idle
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        wake.at(self.due_ns);
        Progress::Idle
    }
}

/// The ends of keys that the log has reported.
#[derive(Debug, Default)]
struct ReportedKeyEnds {
    said_s: BTreeMap<PublicKey, u64>,
}

/// A key that ends soon, or has ended.
#[derive(Debug, PartialEq, Eq)]
struct KeyEnd {
    peer: String,
    key: PublicKey,
    /// Seconds until the end; 0 when the key has ended.
    left_s: u64,
}

impl ReportedKeyEnds {
    /// The keys that the log should report now: once a day each, and at their end.
    fn news(&mut self, unix_s: u64, keyring: &Keyring) -> Vec<KeyEnd> {
        let mut news = Vec::new();
        let mut said_s = BTreeMap::new();
        for (key, known) in keyring.iter() {
            let Some(ends_s) = known.expires_unix_s else { continue };
            let left_s = ends_s.saturating_sub(unix_s);
            if left_s > WARN_BEFORE_S {
                continue;
            }
            let last_s = self.said_s.get(&key).copied();
            let has_ended_since = last_s.is_some_and(|last_s| last_s < ends_s) && left_s == 0;
            let is_due = last_s.is_none_or(|last_s| unix_s >= last_s + WARN_AGAIN_S);
            let now = is_due || has_ended_since;
            if now {
                news.push(KeyEnd { peer: known.peer.clone(), key, left_s });
            }
            said_s.insert(key, if now { unix_s } else { last_s.unwrap_or(unix_s) });
        }
        self.said_s = said_s;
        news
    }
}

impl KeyEnd {
    fn log(&self) {
        let Self { peer, key, left_s } = self;
        if *left_s == 0 {
            tracing::error!(
                peer,
                %key,
                "a peer's key has EXPIRED: the peer gets no session with it; give the peer a new \
                 key"
            );
        } else {
            let left_h = left_s.div_ceil(3600);
            tracing::warn!(peer, %key, left_h,
                "a peer's key EXPIRES soon; give the peer a new key");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_announced_daily_and_when_it_comes() {
        let (key, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let ends_s = 100 * DAY_S;
        let mut keyring = Keyring::new();
        let known = |expires_unix_s| KnownKey { peer: "io1".to_owned(), expires_unix_s };
        keyring.add(key, known(Some(ends_s))).unwrap();
        keyring.add(other, known(None)).unwrap();
        let mut ends = ReportedKeyEnds::default();
        let said: Vec<_> = (0..110 * 24)
            .flat_map(|hour| ends.news(hour * 3600, &keyring))
            .inspect(|end| assert_eq!(end.key, key))
            .map(|end| end.left_s / 3600)
            .collect();
        // Seven days before, each day, at the end, and each day after.
        let daily: Vec<_> = (1..=7).rev().map(|days| days * 24).chain([0; 10]).collect();
        assert_eq!(said, daily);
        // A clock that goes back repeats no report at once.
        assert!(ends.news(99 * DAY_S, &keyring).is_empty());
        // A key that goes and comes back is reported again.
        assert!(ends.news(110 * DAY_S, &Keyring::new()).is_empty());
        assert_eq!(ends.news(110 * DAY_S, &keyring).len(), 1);
    }

    #[test]
    fn an_end_within_a_day_of_the_last_word_is_told_when_it_comes() {
        let mut keyring = Keyring::new();
        let known = KnownKey { peer: "io1".to_owned(), expires_unix_s: Some(1_000) };
        keyring.add(PublicKey([1; 32]), known).unwrap();
        let mut ends = ReportedKeyEnds::default();
        let left = |news: Vec<KeyEnd>| news.iter().map(|end| end.left_s).collect::<Vec<_>>();
        assert_eq!(left(ends.news(900, &keyring)), [100]);
        assert_eq!(ends.news(960, &keyring), []);
        assert_eq!(left(ends.news(1_020, &keyring)), [0]);
        assert_eq!(ends.news(1_080, &keyring), []);
    }
}
