//! The filter's language, and its decisions about frames.
//!
//! A run of the first kind has rules that were made word by word, and a model that knows their
//! words. The model says whether the text is accepted, and which rule decides about each frame. A
//! run of the second kind has any text. A text that is accepted has the same meaning with other
//! spaces; a text that is refused has an error with a rule of the text.

mod model;

use std::sync::Arc;

use ::net::maker::FrameMaker;
use ::net::nic::{MTU_MAX, NicOptions, features};
use ::net::stage::filter::Action;
use ::net::stage::{Direction, Filter, FilterCore, Rules, Staged, Stages};
use ::net::stand_in::{NicPlan, StandInGuest};
use ::net::{Bridge, Mac, PortCounters, PortOptions, Reason, VlanSet, Vlans};
use arbitrary::{Arbitrary, Unstructured};
use virtio::{RingKind, feature as ring_feature};

use self::model::{FilterVerdict, Model, RuleSpec};
use crate::steps::steps;

const FRAMES_MAX: usize = 120;
const RULES_MAX: usize = 12;

const MS: u64 = 1_000_000;

/// The least time between two frames, so that the switch's table gets its turn.
const STEP_NS: u64 = 1000;

const GUARDED: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

/// A frame, and what happens before it.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct FilterStep {
    is_sent: bool,
    is_v6: bool,
    is_tcp: bool,
    /// A choice of a few addresses and ports, three bits each.
    ends: u16,
    flags: u8,
    payload: u8,
    tag: u8,
    /// Which of the following changes are made: each is rare, by three bits.
    odd: u8,
    protocol: u8,
    bend: (u8, u8),
    len: u8,
    wait: u8,
}

/// Tries the rules and the frames of `input`.
///
/// # Panics
/// When a correct rule is refused or a wrong one accepted; when a frame passes that may not pass,
/// or is dropped without being counted.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok((kind, default, count)) = <(u8, bool, u8)>::arbitrary(&mut input) else { return };
    let default = if default { Action::Allow } else { Action::Deny };
    if kind & 7 == 7 {
        return check_text(input.take_rest(), default);
    }
    let specs = (0..usize::from(count) % (RULES_MAX + 1)).map(|_| RuleSpec::arbitrary(&mut input));
    let Ok(specs) = specs.collect::<Result<Vec<_>, _>>() else { return };
    let Some((rules, specs)) = check_specs(&specs, default) else { return };
    let mut world = FilterWorld::new(rules, Model::new(specs, default));
    for step in steps(&mut input, FRAMES_MAX) {
        world.step(step);
    }
}

fn check_text(text: &[u8], default: Action) {
    let text = String::from_utf8_lossy(text);
    let rules: Vec<_> = text.lines().collect();
    let parsed = Rules::parse(&rules, default);
    let spaced: Vec<_> =
        rules.iter().map(|rule| rule.split_whitespace().collect::<Vec<_>>().join(" \t ")).collect();
    assert_eq!(parsed, Rules::parse(&spaced, default));
    match parsed {
        Ok(parsed) => {
            assert_eq!(parsed.len(), rules.len());
            assert!(rules.iter().all(|rule| !rule.trim().is_empty()));
            assert_eq!(FilterCore::new(&parsed).rules.len(), rules.len());
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            match error.rule() {
                Some(rule) => {
                    assert!((1..=rules.len()).contains(&rule), "{error}");
                    // All rules before it are correct.
                    assert!(Rules::parse(&rules[..rule - 1], default).is_ok());
                    assert!(Rules::parse(&rules[rule - 1..rule], default).is_err());
                }
                None => assert!(rules.len() > ::net::stage::filter::RULES_MAX),
            }
        }
    }
}

/// Checks that each rule by itself is accepted if the model accepts it; gives the accepted rules.
fn check_specs(specs: &[RuleSpec], default: Action) -> Option<(Rules, Vec<RuleSpec>)> {
    let mut right = Vec::new();
    for spec in specs {
        let text = spec.text();
        let parsed = Rules::parse(&[&text], default);
        assert_eq!(parsed.is_ok(), spec.is_right(), "{text}: {parsed:?}");
        if spec.is_right() {
            right.push(*spec);
        }
    }
    let texts: Vec<_> = right.iter().map(RuleSpec::text).collect();
    Some((Rules::parse(&texts, default).ok()?, right))
}

/// A guest behind a filter, and a guest without a filter.
struct FilterWorld {
    bridge: Bridge,
    now_ns: u64,
    core: Arc<FilterCore>,
    guarded: StandInGuest,
    other: StandInGuest,
    model: Model,
}

impl FilterWorld {
    fn new(rules: Rules, model: Model) -> Self {
        let mut bridge = Bridge::new(3);
        let core = FilterCore::new(&rules);
        let vlans = Vlans::Trunk { native: Some(0), tagged: VlanSet::all() };
        let options = |mac| PortOptions {
            vlans: vlans.clone(),
            floods_per_s: 0,
            ..PortOptions::of_guest(mac)
        };
        let plan = NicPlan {
            kind: RingKind::Split,
            event_idx: false,
            features: features(&NicOptions::new("nic", GUARDED)) | ring_feature::VERSION_1,
            size: 4,
            buffer_bytes: 2048,
            mtu: MTU_MAX,
        };
        let shared = Arc::clone(&core);
        let guard = move |port, counters: &Arc<PortCounters>| {
            let filter = Filter::new(rules.clone(), Arc::clone(&shared), 7);
            let stages = Stages { filter: Some(filter), ..Stages::default() };
            let stages = std::rc::Rc::new(std::cell::RefCell::new(stages));
            Box::new(Staged::new(port, stages, Arc::clone(counters))) as Box<dyn ::net::Port>
        };
        let mut guarded = StandInGuest::with(&mut bridge, plan, options(GUARDED), &guard);
        let mut other = StandInGuest::new(&mut bridge, plan, options(OTHER));
        guarded.post_buffers();
        other.post_buffers();
        Self { bridge, now_ns: MS, core, guarded, other, model }
    }

    fn step(&mut self, step: FilterStep) {
        self.now_ns += STEP_NS + step.wait_ns();
        let frame = step.frame();
        let direction = if step.is_sent { Direction::Sent } else { Direction::Received };
        let (from, to) = match step.is_sent {
            true => (&mut self.guarded, &mut self.other),
            false => (&mut self.other, &mut self.guarded),
        };
        let before = (self.model.counted(&self.core), drops([&*from, &*to]));
        from.say(&frame);
        let _ = self.bridge.poll(self.now_ns);
        assert_eq!(from.reap(), 1);
        let heard = to.hear_all();
        let after = (self.model.counted(&self.core), drops([&*from, &*to]));
        assert!(heard.len() <= 1 && heard.iter().all(|it| it.len() <= frame.len()));
        let Some(verdict) = FilterVerdict::between(&before.0, &after.0) else {
            // The frame did not reach the filter.
            let [filtered, all] = [0, 1].map(|at| after.1[at] - before.1[at]);
            assert_eq!((filtered, all, heard.len()), (0, 1, 0), "{frame:?}");
            return;
        };
        let (expected, passes) = self.model.decide(direction, &frame, self.now_ns);
        assert_eq!(verdict, expected, "{direction:?} {step:?}");
        let [filtered, all] = [0, 1].map(|at| after.1[at] - before.1[at]);
        if passes {
            // The switch may have dropped the frame after the filter.
            assert_eq!((filtered, heard.len() as u64 + all), (0, 1));
        } else {
            assert_eq!((filtered, all, heard.len()), (1, 1, 0));
        }
    }
}

/// The drops at both ports: by a filter, and in all.
fn drops(sides: [&StandInGuest; 2]) -> [u64; 2] {
    let mut sums = [0; 2];
    for side in sides {
        let counters = side.core.counters();
        for drops in [&counters.drops_in, &counters.drops_out] {
            sums[0] += drops.get(Reason::Filtered);
            sums[1] += drops.total();
        }
    }
    sums
}

impl FilterStep {
    fn is_odd(&self, which: u8) -> bool {
        self.odd >> (2 * which) & 3 == 3
    }

    /// The time that passes: usually none, else some seconds or an hour.
    fn wait_ns(&self) -> u64 {
        match self.wait {
            0 => 3_601_000 * MS,
            wait @ 1..=120 => u64::from(wait % 32) * 2100 * MS,
            _ => 0,
        }
    }

    fn frame(&self) -> Vec<u8> {
        let maker = match (self.is_v6, self.is_tcp) {
            (false, true) => FrameMaker::tcp4(),
            (false, false) => FrameMaker::udp4(),
            (true, true) => FrameMaker::tcp6(),
            (true, false) => FrameMaker::udp6(),
        };
        // Usually another frame of one of a few conversations.
        let few = if self.ends >> 14 == 3 { 7 } else { 1 };
        let part = |at: u16| self.ends >> (3 * at) & few;
        let (from, to) = if self.is_sent { (GUARDED, OTHER) } else { (OTHER, GUARDED) };
        let tag = if self.tag < 64 { u16::from(self.tag % 8) } else { 0 };
        let address = |at| 0x0a00_0000 + u32::from(part(at));
        let maker = maker.from(from).to(to).tag(tag);
        let maker = maker.addresses(address(0), address(1)).tcp_flags(self.flags);
        let ports = (1000 + part(2), 1000 + part(3));
        let mut frame = maker.ports(ports.0, ports.1).payload(self.payload.into()).build();
        let ip = if tag == 0 { 14 } else { 18 };
        if self.is_odd(0) {
            // Another protocol, such as ICMP.
            frame[ip + if self.is_v6 { 6 } else { 9 }] = self.protocol;
        }
        if self.is_odd(1) {
            // The addresses stay.
            let (at, value) = self.bend;
            let at = 12 + usize::from(at) % (frame.len() - 12);
            frame[at] = value;
        }
        if self.is_odd(2) {
            frame.truncate(14 + usize::from(self.len) % 80);
        }
        frame
    }
}
