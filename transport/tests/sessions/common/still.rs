//! Datagrams that must change nothing.

use crate::common::{MS, World, addr};
use transport::{BufId, CallId, Endpoint, EndpointCounters, LostReason, PeerInfo, SessionId, Sink};

/// Counts all events.
#[derive(Default)]
struct Told(usize);

impl Sink for Told {
    fn connected(&mut self, _: SessionId, _: &PeerInfo) {
        self.0 += 1;
    }
    fn lost(&mut self, _: SessionId, _: &LostReason) {
        self.0 += 1;
    }
    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, _: &[u8]) {
        self.0 += 1;
    }
    fn reply(&mut self, _: SessionId, _: u64, _: &[u8], _: usize) {
        self.0 += 1;
    }
    fn call(&mut self, _: SessionId, _: u16, _: CallId, _: &[u8], _: Option<(BufId, usize)>) {
        self.0 += 1;
    }
}

/// Two nodes with a session, a call outstanding, and every packet that they exchanged.
pub(crate) fn busy(seed: u64) -> World {
    let mut world = World::new(seed);
    for name in ["vm1", "io1"] {
        let config = world.config(name);
        world.add(config);
    }
    world.tap = Some(Vec::new());
    world.connect(0, 1, "io1");
    world.run_for(MS);
    for bytes in [0, 5_000, 30_000] {
        world.nodes[0].app.order(3, bytes, bytes);
    }
    world.run_for(5 * MS);
    world.nodes[1].app.is_mute = true;
    world.nodes[0].app.order(3, 10, 10);
    world.run_for(5 * MS);
    assert_eq!((world.nodes[0].app.replies, world.nodes[0].app.outstanding()), (3, 1));
    world
}

/// All that can be seen of an endpoint, but for what it counts.
fn state(endpoint: &Endpoint) -> String {
    let sessions: Vec<_> = endpoint.sessions().collect();
    format!("{sessions:?} {:?} {:?}", endpoint.pool(), endpoint.next_timeout_ns())
}

/// Gives a node a datagram, which must change nothing but counts of what was dropped.
pub(crate) fn drop_on(
    world: &mut World,
    node: usize,
    from: usize,
    bytes: &[u8],
) -> EndpointCounters {
    let now_ns = world.now_ns;
    let endpoint = &mut world.nodes[node].endpoint;
    let (before, dropped) = (state(endpoint), endpoint.counters().dropped());
    let mut told = Told::default();
    endpoint.receive(now_ns, now_ns, addr(from), bytes, &mut told);
    assert_eq!(state(endpoint), before);
    assert_eq!((endpoint.counters().dropped(), told.0), (dropped + 1, 0));
    endpoint.counters().clone()
}
