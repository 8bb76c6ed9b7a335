//! Endpoints beside a model that knows MPI's rules and nothing else: a list of what was asked, a
//! list of what has come, both scanned in order.

use std::collections::{HashMap, VecDeque};

use super::*;

/// Few, so that much meets by accident; with Open MPI's bit for senders that want an
/// acknowledgement.
const TAGS: [u64; 5] = [0, 1, 2, SYNC, SYNC | 1];
const SYNC: u64 = 1 << 32;

/// The bits that receives ignore: none, that bit, also MPI's tag, all.
const IGNORES: [u64; 6] = [0, 0, 1, SYNC, SYNC | 0x7fff_ffff, u64::MAX];
const LENGTHS: [usize; 7] = [0, 8, 200, 1000, 5000, 9000, 40_000];

/// A message as the model knows it.
#[derive(Clone, Debug)]
struct Sent {
    from: usize,
    class: Class,
    tag: u64,
    data: Option<u64>,
    number: u64,
    len: usize,
}

impl Sent {
    fn fits(&self, asked: &Asked) -> bool {
        self.class == asked.class
            && asked.source.is_none_or(|source| source == self.from)
            && (self.tag ^ asked.tag) & !asked.ignore == 0
    }
}

/// A receive, or a look.
#[derive(Clone, Debug)]
struct Asked {
    class: Class,
    source: Option<usize>,
    tag: u64,
    ignore: u64,
    context: RequestContext,
    room: usize,
    used: usize,
    multi_min_bytes: Option<usize>,
}

/// How a receive ended: where in its buffer, the message, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Outcome {
    at: usize,
    number: u64,
    bytes: usize,
    missing_bytes: usize,
}

#[derive(Debug, Default)]
struct Side {
    /// Of each sender, what waits there for room.
    waiting: HashMap<usize, VecDeque<Sent>>,
    under_way: VecDeque<Sent>,
    unexpected: Vec<Sent>,
    posted: Vec<Asked>,
    claimed: Vec<(RequestContext, Sent)>,
    outcomes: HashMap<RequestContext, Vec<Outcome>>,
    released: Vec<RequestContext>,
}

impl Side {
    /// A message meets a receive. `false`: the receive goes on.
    fn meet(&mut self, asked: &mut Asked, sent: &Sent) -> bool {
        let bytes = sent.len.min(asked.room - asked.used);
        let missing_bytes = sent.len - bytes;
        let outcome = Outcome { at: asked.used, number: sent.number, bytes, missing_bytes };
        self.outcomes.entry(asked.context).or_default().push(outcome);
        asked.used += bytes;
        let Some(min_bytes) = asked.multi_min_bytes else { return true };
        let over = asked.room - asked.used < min_bytes;
        if over {
            self.released.push(asked.context);
        }
        over
    }

    fn ask(&mut self, mut asked: Asked) {
        while let Some(at) = self.unexpected.iter().position(|sent| sent.fits(&asked)) {
            let sent = self.unexpected.remove(at);
            if self.meet(&mut asked, &sent) {
                return;
            }
        }
        self.posted.push(asked);
    }

    fn progress(&mut self) {
        while let Some(sent) = self.under_way.pop_front() {
            match self.posted.iter().position(|asked| sent.fits(asked)) {
                Some(at) => {
                    let mut asked = self.posted.remove(at);
                    if !self.meet(&mut asked, &sent) {
                        self.posted.insert(at, asked);
                    }
                }
                None => self.unexpected.push(sent),
            }
        }
    }
}

/// Endpoints and their model, and the memory of all that was asked.
struct Pair {
    world: World,
    sides: Vec<Side>,
    random: Random,
    sent: Vec<(Sent, Vec<u8>)>,
    buffers: HashMap<(usize, RequestContext), Vec<u8>>,
    ended: Vec<Vec<Completion>>,
    /// Whose cancellation is told later.
    cancelled: Vec<(usize, RequestContext)>,
    next: u64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + random.below(3) as usize;
        let options = EndpointOptions {
            eager_bytes_max: [0, 1000, 8192, 1 << 20][random.below(4) as usize],
            single_copy_bytes_min: [0, 10_000, usize::MAX][random.below(3) as usize],
            waiting_bytes_max: [0, 20_000, 1 << 30][random.below(3) as usize],
        };
        let cells = [16, 256][random.below(2) as usize];
        let region = RegionOptions { cells, buffers: 8, ..RegionOptions::default() };
        let world = World::new(count, region, &options);
        let sides = (0..count).map(|_| Side::default()).collect();
        let ended = vec![Vec::new(); count];
        let buffers = HashMap::new();
        Self {
            world,
            sides,
            random,
            sent: Vec::new(),
            buffers,
            ended,
            cancelled: Vec::new(),
            next: 1,
        }
    }

    fn class(&mut self) -> Class {
        if self.random.below(3) == 0 { Class::Untagged } else { Class::Tagged }
    }

    fn tag(&mut self, class: Class) -> u64 {
        let tag = TAGS[self.random.below(TAGS.len() as u64) as usize];
        if class == Class::Tagged { tag } else { 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn send(&mut self) {
        let count = self.sides.len() as u64;
        let (from, to) = (self.random.below(count) as usize, self.random.below(count) as usize);
        let (class, number) = (self.class(), self.number());
        let tag = self.tag(class);
        let len = LENGTHS[self.random.below(LENGTHS.len() as u64) as usize];
        let inject = len <= INJECT_BYTES_MAX && self.random.below(4) == 0;
        // Nothing else tells empty messages of one buffer apart.
        let data = (len == 0 || self.random.below(2) == 0).then_some(number);
        let (to_address, context) = (self.world.address(to), Some(RequestContext(number)));
        let message = Message { to: to_address, class, tag, data, context, inject };
        let bytes = content(number, len);
        let endpoint = &mut self.world.endpoints[from];
        let is_matched = self.random.below(8) == 0;
        // SAFETY: tests keep what they send until they have seen its completion.
        let result = unsafe {
            match is_matched {
                true => endpoint.send_until_matched(&message, &[part_of(&bytes)]),
                false => endpoint.send(&message, &[part_of(&bytes)]),
            }
        };
        if result != Err(SendError::Busy) {
            let sent = Sent { from, class, tag, data, number, len };
            self.sides[to].waiting.entry(from).or_default().push_back(sent.clone());
            // An injected message's memory may be reused at once.
            let kept = if inject { Vec::new() } else { bytes };
            self.sent.push((sent, kept));
        }
        self.move_on(from);
    }

    /// An endpoint may have sent something that has waited, and each line's first ones first.
    fn move_on(&mut self, from: usize) {
        for (to, side) in self.sides.iter_mut().enumerate() {
            let left = self.world.endpoints[from].waiting_for(self.world.endpoints[to].address());
            let line = side.waiting.entry(from).or_default();
            let gone = line.len() - left;
            side.under_way.extend(line.drain(..gone));
        }
    }

    fn asked(&mut self) -> Asked {
        let (class, context) = (self.class(), RequestContext(self.number()));
        let count = self.sides.len() as u64;
        let source = (self.random.below(2) == 0).then(|| self.random.below(count) as usize);
        let tag = self.tag(class);
        let ignore = IGNORES[self.random.below(IGNORES.len() as u64) as usize];
        let room = LENGTHS[self.random.below(LENGTHS.len() as u64) as usize];
        let several = class == Class::Untagged && self.random.below(4) == 0;
        let multi_min_bytes = several.then_some(room / 3 + 1);
        Asked { class, source, tag, ignore, context, room, used: 0, multi_min_bytes }
    }

    fn receive(&mut self) {
        let (at, asked) = (self.random.below(self.sides.len() as u64) as usize, self.asked());
        let source = asked.source.map(|source| self.world.address(source));
        let Asked { class, tag, ignore, context, multi_min_bytes, .. } = asked;
        let receive = Receive { class, source, tag, ignore, context, multi_min_bytes };
        let mut buffer = vec![0; asked.room];
        ask(&mut self.world.endpoints[at], &receive, &mut buffer);
        self.buffers.insert((at, context), buffer);
        self.sides[at].ask(asked);
    }

    /// Looks, and sometimes claims; its answer comes at once.
    fn peek(&mut self) {
        let (at, asked) = (self.random.below(self.sides.len() as u64) as usize, self.asked());
        let claim = self.random.below(2) == 0;
        let source = asked.source.map(|source| self.world.address(source));
        let Asked { class, tag, ignore, context, .. } = asked;
        self.collect(at);
        let endpoint = &mut self.world.endpoints[at];
        let found = if claim { LookOutcome::Claimed } else { LookOutcome::Stays };
        endpoint.peek(&Peek { class, source, tag, ignore, context, found });
        let answer = ended(endpoint).remove(0);
        let side = &mut self.sides[at];
        let Some(found) = side.unexpected.iter().position(|sent| sent.fits(&asked)) else {
            assert_eq!(answer.failure, Some(RequestFailure::NoMessage));
            return;
        };
        let sent = &side.unexpected[found];
        assert_eq!((answer.failure, answer.bytes, answer.tag), (None, sent.len, sent.tag));
        let source = self.world.endpoints[sent.from].address();
        let (data, start) = (sent.data, std::ptr::null_mut());
        assert_eq!(answer.done, Done::Receive { source, data, start });
        if claim {
            let sent = side.unexpected.remove(found);
            side.claimed.push((context, sent));
        }
    }

    /// Receives or discards what was claimed.
    fn take_claimed(&mut self) {
        let at = self.random.below(self.sides.len() as u64) as usize;
        let Some((context, sent)) = self.sides[at].claimed.pop() else { return };
        if self.random.below(3) == 0 {
            assert!(self.world.endpoints[at].discard_claimed(context));
            return;
        }
        let mut buffer = vec![0; LENGTHS[self.random.below(LENGTHS.len() as u64) as usize]];
        // SAFETY: the buffer is kept until the end.
        unsafe { self.world.endpoints[at].receive_claimed(context, &[part(&mut buffer)]) }
            .expect("it was claimed");
        let bytes = sent.len.min(buffer.len());
        let missing_bytes = sent.len - bytes;
        let outcome = Outcome { at: 0, number: sent.number, bytes, missing_bytes };
        self.sides[at].outcomes.insert(context, vec![outcome]);
        self.buffers.insert((at, context), buffer);
    }

    fn cancel(&mut self) {
        let at = self.random.below(self.sides.len() as u64) as usize;
        let context = RequestContext(self.random.below(self.next + 1));
        self.collect(at);
        let cancelled = self.world.endpoints[at].cancel(context);
        let place = self.sides[at].posted.iter().position(|asked| asked.context == context);
        let waits = |sent: &Sent| sent.number == context.0;
        let lines = self.sides.iter_mut().filter_map(|side| side.waiting.get_mut(&at));
        for line in lines {
            if let Some(waiting) = line.iter().position(waits) {
                let told = ended(&mut self.world.endpoints[at]);
                let (done, failure) = (Done::Send, Some(RequestFailure::Cancelled));
                assert_eq!((told[0].done, told[0].failure, told.len()), (done, failure, 1));
                assert!(cancelled && place.is_none() && line.remove(waiting).is_some());
                return;
            }
        }
        assert_eq!(cancelled, place.is_some());
        if let Some(place) = place {
            let asked = self.sides[at].posted.remove(place);
            let ended = ended(&mut self.world.endpoints[at]);
            match &ended[..] {
                // Something is on its way into a shared buffer: told when that is there.
                [] if asked.multi_min_bytes.is_some() => self.cancelled.push((at, context)),
                _ => assert_eq!(ended[0].failure, Some(RequestFailure::Cancelled)),
            }
        }
    }

    fn progress(&mut self) {
        let at = self.random.below(self.sides.len() as u64) as usize;
        for _ in 0..8 {
            self.world.endpoints[at].progress();
            self.move_on(at);
        }
        self.sides[at].progress();
    }

    fn collect(&mut self, at: usize) {
        self.ended[at].extend(ended(&mut self.world.endpoints[at]));
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=5 => self.send(),
            6..=10 => self.receive(),
            11 => self.peek(),
            12 => self.take_claimed(),
            13 => self.cancel(),
            _ => self.progress(),
        }
    }

    /// Lets all go to its end, and compares.
    fn finish(mut self) {
        let count = self.sides.len();
        for at in (0..1600).flat_map(|_| 0..count) {
            self.world.endpoints[at].progress();
            self.move_on(at);
        }
        assert!(self.sides.iter().all(|side| side.waiting.values().all(VecDeque::is_empty)));
        let mut sends: HashMap<u64, usize> = HashMap::new();
        for at in 0..self.sides.len() {
            self.sides[at].progress();
            self.collect(at);
            let mut outcomes: HashMap<RequestContext, Vec<Outcome>> = HashMap::new();
            let mut released = Vec::new();
            for done in std::mem::take(&mut self.ended[at]) {
                if done.failure == Some(RequestFailure::Cancelled) {
                    let place = self.cancelled.iter().position(|it| *it == (at, done.context));
                    self.cancelled.remove(place.expect("it was cancelled, and is told so once"));
                    continue;
                }
                match done.done {
                    Done::Send => *sends.entry(done.context.0).or_default() += 1,
                    Done::Released => released.push(done.context),
                    Done::Receive { .. } => {
                        outcomes.entry(done.context).or_default().push(self.outcome(at, &done));
                    }
                }
            }
            outcomes.values_mut().for_each(|outcomes| outcomes.sort());
            self.sides[at].outcomes.values_mut().for_each(|outcomes| outcomes.sort());
            assert_eq!(outcomes, self.sides[at].outcomes, "endpoint {at}");
            released.sort_by_key(|context| context.0);
            self.sides[at].released.sort_by_key(|context| context.0);
            assert_eq!(released, self.sides[at].released, "endpoint {at}");
        }
        assert_eq!(self.cancelled, [], "all of those were told");
        assert!(sends.values().all(|&count| count == 1), "each send ends once");
        let outcomes = self.sides.iter().flat_map(|side| side.outcomes.values().flatten());
        for outcome in outcomes {
            assert!(sends.contains_key(&outcome.number), "received, so it was sent: {outcome:?}");
        }
        for endpoint in &self.world.endpoints {
            assert_eq!(endpoint.counters().nonsense, 0);
        }
    }

    /// The outcome that a completion says, after its bytes were compared.
    fn outcome(&self, at: usize, done: &Completion) -> Outcome {
        let Done::Receive { source, data, start } = done.done else { panic!("{done:?}") };
        let buffer = &self.buffers[&(at, done.context)];
        let offset = start.addr() - buffer.as_ptr().addr();
        let missing_bytes = match done.failure {
            None => 0,
            Some(RequestFailure::Truncated { missing_bytes }) => missing_bytes,
            Some(failure) => panic!("{failure}: {done:?}"),
        };
        let expected = self.sides[at].outcomes.get(&done.context).expect("it should end");
        let is_it = |outcome: &&Outcome| {
            let (sent, _) = self.sent.iter().find(|sent| sent.0.number == outcome.number).unwrap();
            (outcome.at, outcome.bytes) == (offset, done.bytes)
                && (sent.tag, sent.data) == (done.tag, data)
                && self.world.endpoints[sent.from].address() == source
                && buffer[offset..offset + done.bytes]
                    == content(sent.number, sent.len)[..done.bytes]
        };
        let number = expected.iter().find(is_it).map_or(0, |outcome| outcome.number);
        Outcome { at: offset, number, bytes: done.bytes, missing_bytes }
    }
}

#[test]
fn endpoints_do_what_the_model_does() {
    let (first, count) = (std::env::var("FABRIC_SEED").ok(), 400);
    let first = first.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in first..first + count {
        println!("FABRIC_SEED={seed}");
        let mut pair = Pair::new(seed);
        let steps = 20 + pair.random.below(400);
        (0..steps).for_each(|_| pair.step());
        pair.finish();
    }
}
