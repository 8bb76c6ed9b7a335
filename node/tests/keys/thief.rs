//! A thief that has a node's key and sends any message of the protocol to a real node. Without the
//! attachment's key no call of the thief gets an answer or has an effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::attachment::NAME_BYTES_MAX;
use block::wire::{Kind, Names, Outcome, Reply, Request, Title, attachment_id};
use link::{BATCH_DATAGRAMS, Link, Udp, UdpConfig};
use node::keys::{self, KeyKind};
use node::status::QuotaStatus;
use peer::AttachmentSecret;
use peer::proof::Binding;
use transport::{
    BufId, CallId, Endpoint, EndpointConfig, Keyring, KnownKey, LostReason, PeerInfo, Security,
    SessionId, Sink, TransmitBatch,
};

use crate::common::{Home, PATIENCE, address};

/// The events of the endpoint.
#[derive(Default)]
struct Told {
    connected: Option<(SessionId, Binding)>,
    lost: Option<String>,
    answer: Option<Reply>,
}

impl Sink for Told {
    fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        self.connected = Some((session, peer.binding));
    }

    fn lost(&mut self, _session: SessionId, why: &LostReason) {
        self.lost = Some(why.to_string());
    }

    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, bytes: &[u8]) {
        assert!(bytes.is_empty(), "no data for a thief");
    }

    fn reply(&mut self, _: SessionId, _: u64, head: &[u8], _body_bytes: usize) {
        self.answer = Some(Reply::decode(head).expect("a reply of the protocol"));
    }

    fn call(&mut self, _: SessionId, _: u16, _: CallId, _: &[u8], _: Option<(BufId, usize)>) {}
}

/// A peer that sends the messages of the test.
struct Raw {
    endpoint: Endpoint,
    link: Udp,
    batch: TransmitBatch,
    told: Told,
    session: SessionId,
    binding: Binding,
    tokens: u64,
}

impl Raw {
    /// Connects with this node's key to the node of this key.
    fn connect(home: &Home, there: &str, its_key: transport::PublicKey) -> Self {
        let secret = keys::read_node(&home.path("vm1.key")).unwrap();
        let mut keyring = Keyring::new();
        let known = KnownKey { peer: "io1".to_owned(), expires_unix_s: None };
        keyring.add(its_key, known).unwrap();
        let link = Udp::bind(UdpConfig::new(address().parse().unwrap())).unwrap();
        let nonce = link.local_addr().to_string().bytes().map(u64::from).sum();
        let mut config = EndpointConfig::new("vm1", nonce, nonce);
        config.security = Security::Sealed { secret: Arc::new(secret), keyring: Arc::new(keyring) };
        config.entropy = [nonce.to_le_bytes()[0]; 32];
        config.ports = vec![link.local_addr().port()];
        config.datagram_bytes_max = link.datagram_max();
        let mut endpoint = Endpoint::new(config);
        let session = endpoint.connect(sidecore::now_ns(), there.parse().unwrap(), "io1", 0);
        let batch = TransmitBatch::new(BATCH_DATAGRAMS);
        let (told, binding) = (Told::default(), Binding::default());
        let mut raw = Self { endpoint, link, batch, told, session, binding, tokens: 0 };
        raw.run(|told| told.connected.is_some());
        let (session, binding) = raw.told.connected.expect("waited for");
        assert_ne!(binding, Binding::default(), "the session is sealed");
        Self { session, binding, ..raw }
    }

    fn run(&mut self, done: impl Fn(&Told) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(&self.told) {
            assert!(Instant::now() < until, "no answer; lost: {:?}", self.told.lost);
            let now_ns = sidecore::now_ns();
            let (endpoint, told) = (&mut self.endpoint, &mut self.told);
            self.link.receive(now_ns, &mut |arrival| {
                endpoint.receive(now_ns, arrival.at_ns, arrival.from, arrival.bytes, &mut *told);
            });
            endpoint.advance(now_ns, told);
            endpoint.transmit(now_ns, &mut self.batch);
            // Datagrams that the socket does not take now are sent the next time.
            let _ = self.link.send(&mut self.batch, endpoint.pool());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends a call of `kind` about a volume's attachment "alice", and returns the answer.
    fn call(&mut self, kind: Kind, volume: &str, body: Option<&[u8]>) -> Reply {
        let title = Title { attachment: attachment_id(volume, "alice"), ..Title::default() };
        let mut request = Request::new(kind, title, 0);
        if matches!(kind, Kind::Read) {
            request.len_bytes = 4096;
        } else {
            request.names = Some(names(volume));
        }
        let head = request.encode();
        let body = body.map(|bytes| {
            let buffer = self.endpoint.pool_mut().alloc(bytes.len()).unwrap();
            self.endpoint.pool_mut().bytes_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
            (buffer, bytes.len())
        });
        self.tokens += 1;
        let now_ns = sidecore::now_ns();
        let sent = self.endpoint.call(now_ns, self.session, 3, self.tokens, head.as_bytes(), body);
        sent.unwrap();
        if let Some((buffer, _)) = body {
            self.endpoint.pool_mut().release(buffer);
        }
        self.told.answer = None;
        self.run(|told| told.answer.is_some());
        self.told.answer.take().expect("waited for")
    }
}

fn names(volume: &str) -> Names {
    Names { volume: volume.to_owned(), attachment: "alice".to_owned() }
}

const CONTROL: [Kind; 4] = [Kind::Describe, Kind::Claim, Kind::Open, Kind::Close];

#[test]
fn nothing_is_told_or_done_without_the_attachments_key() {
    let home = Home::new();
    let make = |name: &str, kind| keys::create(&home.path(name), kind).unwrap().public();
    let vm1 = make("vm1.key", KeyKind::Node);
    let io1 = make("io1.key", KeyKind::Node);
    let alice = make("alice.key", KeyKind::Attachment);
    make("own.key", KeyKind::Attachment);
    let there = address();
    let node = home.start(&format!(
        "name = \"io1\"\nlisten = \"{there}\"\nkey = \"HOME/io1.key\"\n[directories]\n\
         volumes = \"HOME\"\nsockets = \"HOME\"\n[[peer]]\nname = \"vm1\"\nkey = \"{vm1}\"\n\
         [[volume]]\nname = \"a\"\nbackend = {{ memory = \"1MiB\" }}\nchain = [\"meter\"]\n\
         allow = [{{ node = \"vm1\", key = \"{alice}\" }}]\n"
    ));
    let secret =
        |name: &str| -> AttachmentSecret { keys::read_attachment(&home.path(name)).unwrap() };
    let (alice, own) = (secret("alice.key"), secret("own.key"));
    let io1 = io1.parse().unwrap();
    let before = Raw::connect(&home, &there, io1);
    let mut raw = Raw::connect(&home, &there, io1);
    assert_ne!(before.binding, raw.binding, "each session has its own");
    for kind in CONTROL {
        let other_kind = if kind == Kind::Open { Kind::Claim } else { Kind::Open };
        let (here, elsewhere) = (raw.binding, before.binding);
        let attempts = |volume: &str| {
            let prove = |key: &AttachmentSecret, binding, kind| {
                Some(key.prove(binding, kind as u8, names(volume).pair()).unwrap().to_vec())
            };
            [
                ("nothing", None),
                ("garbage", Some(vec![0x41; 96])),
                ("too little", Some(vec![0x41; 95])),
                ("too much", Some(vec![0x41; 4096])),
                ("his own key", prove(&own, &here, kind)),
                ("a proof from another session", prove(&alice, &elsewhere, kind)),
                ("a proof of another call", prove(&alice, &here, other_kind)),
            ]
        };
        for ((what, about_a), (_, about_b)) in attempts("a").into_iter().zip(attempts("b")) {
            let reply = raw.call(kind, "a", about_a.as_deref());
            assert_eq!(reply.outcome, Outcome::Refused, "{kind:?} with {what}: {reply:?}");
            assert_eq!((reply.volume, reply.epoch), (None, 0), "{kind:?} with {what}");
            // The answer is the same as for a volume that does not exist.
            let missing = raw.call(kind, "b", about_b.as_deref());
            assert_eq!(missing.outcome, Outcome::Refused);
            assert_eq!(missing.text.replace("volume b", "volume a"), reply.text, "{what}");
        }
        // A proof for another volume's attachment.
        let proof = alice.prove(&here, kind as u8, names("b").pair()).unwrap();
        assert_eq!(raw.call(kind, "a", Some(&proof)).outcome, Outcome::Refused);
    }
    let longest = "x".repeat(NAME_BYTES_MAX);
    assert_eq!(raw.call(Kind::Claim, &longest, None).outcome, Outcome::Refused);
    assert_eq!(raw.call(Kind::Read, "a", None).outcome, Outcome::NotOpen);
    let status = node.status();
    assert!(status.volumes[0].attachments.is_empty());
    let did = ["reads", "writes", "flushes"].map(|name| status.volumes[0].counters[name]);
    assert_eq!(did, [0, 0, 0]);
    // With the key the same calls are answered, so the refusals came from the missing key alone.
    for kind in [Kind::Describe, Kind::Claim] {
        let proof = alice.prove(&raw.binding, kind as u8, names("a").pair()).unwrap();
        let reply = raw.call(kind, "a", Some(&proof));
        assert_eq!(reply.outcome, Outcome::Done, "{reply:?}");
        assert_eq!(reply.volume.unwrap().size_bytes, 1 << 20);
    }
    node.stop();
}

/// With a good key for one volume a peer's claims are bounded. The node reports which peer is at
/// which limit, or was.
#[test]
fn a_peer_that_claims_without_end_is_named_with_its_limit() {
    let home = Home::new();
    let make = |name: &str| keys::create(&home.path(name), KeyKind::Node).unwrap().public();
    let (vm1, io1) = (make("vm1.key"), make("io1.key"));
    let there = address();
    let node = home.start(&format!(
        "name = \"io1\"\nlisten = \"{there}\"\nkey = \"HOME/io1.key\"\n[directories]\n\
         volumes = \"HOME\"\n[[peer]]\nname = \"vm1\"\nkey = \"{vm1}\"\n\
         [[volume]]\nname = \"a\"\nbackend = {{ memory = \"1MiB\" }}\nallow = [\"vm1\"]\n"
    ));
    let mut raw = Raw::connect(&home, &there, io1.parse().unwrap());
    let limited = |quota: &QuotaStatus| quota.resource == "claims" && quota.refused > 0;
    let until = Instant::now() + PATIENCE;
    let quotas = loop {
        let quotas = node.status().quotas;
        if quotas.iter().any(limited) {
            break quotas;
        }
        assert!(Instant::now() < until, "{quotas:?}");
        // As many claims as a session takes; the peer waits for none of them.
        let title = Title { attachment: attachment_id("a", "alice"), ..Title::default() };
        let mut request = Request::new(Kind::Claim, title, 0);
        request.names = Some(names("a"));
        let (now_ns, head) = (sidecore::now_ns(), request.encode());
        for flow in 0..1_000u16 {
            raw.tokens += 1;
            let (session, token) = (raw.session, raw.tokens);
            let _ = raw.endpoint.call(now_ns, session, flow % 200, token, head.as_bytes(), None);
        }
        raw.told.answer = None;
        raw.run(|told| told.answer.is_some());
    };
    let of_claims = quotas.iter().find(|quota| limited(quota)).expect("just seen");
    assert_eq!((of_claims.peer.as_str(), of_claims.address.as_deref()), ("vm1", None));
    assert_eq!(of_claims.has_max, 256);
    let sessions = quotas.iter().find(|quota| quota.resource == "sessions").expect("it has one");
    assert_eq!((sessions.has, sessions.has_max, sessions.at_limit), (1, 128, false));
    let metrics = node::metrics::text(&node.status());
    let of = |name: &str| {
        let mut lines = metrics.lines().filter(|line| line.starts_with(name));
        lines.find(|line| line.contains(r#"peer="vm1""#) && line.contains(r#"resource="claims""#))
    };
    let refused = of("vrio_peer_quota_refused_total").expect("a series");
    assert!(!refused.ends_with(" 0"), "{refused}");
    assert!(of("vrio_peer_quota_max").is_some_and(|line| line.ends_with(" 256")), "{metrics}");
    node.stop();
}
