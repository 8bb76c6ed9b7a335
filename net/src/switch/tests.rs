//! The switch against a plain model, and its limits.

use std::collections::HashMap;

use super::*;
use random::Random;

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

fn uplink() -> PortOptions {
    PortOptions::of_uplink()
}

fn receivers(switch: &Switch, way: FrameRoute) -> Vec<(u16, u16)> {
    let mut all = Vec::new();
    match way {
        FrameRoute::One { port, tag } => all.push((port, tag)),
        FrameRoute::All(flood) => switch.each_receiver(flood, |port, tag| all.push((port, tag))),
    }
    all
}

/// Everything by the book, without limits and without a table.
#[derive(Default)]
struct Model {
    ports: Vec<Option<PortOptions>>,
    heard: HashMap<(u16, Mac), (u16, u64)>,
    /// By port: the frames that it has sent to everyone too early, as time, and when that was so.
    ahead: HashMap<u16, (u64, u64)>,
}

impl Model {
    fn own(&self, vlan: u16, mac: Mac) -> Option<u16> {
        let is_it = |options: &PortOptions| {
            options.stations == Stations::Own(mac) && options.vlans == Vlans::Access(vlan)
        };
        self.ports.iter().position(|port| port.as_ref().is_some_and(is_it)).map(|at| at as u16)
    }

    fn tag(&self, port: usize, vlan: u16) -> Option<u16> {
        match &self.ports[port].as_ref()?.vlans {
            Vlans::Access(own) if *own == vlan => Some(0),
            Vlans::Access(_) => None,
            Vlans::Trunk { native, .. } if *native == Some(vlan) => Some(0),
            Vlans::Trunk { tagged, .. } => tagged.has(vlan).then_some(vlan),
        }
    }

    fn admit(
        &mut self,
        from: u16,
        to: Mac,
        source: Mac,
        tag: u16,
        now_ns: u64,
    ) -> Result<Vec<(u16, u16)>, Reason> {
        let options = self.ports[usize::from(from)].clone().unwrap();
        let vlan = match &options.vlans {
            Vlans::Access(own) if tag == 0 => *own,
            Vlans::Trunk { native: Some(native), .. } if tag == 0 => *native,
            Vlans::Trunk { tagged, .. } if tag != 0 && tagged.has(tag) => tag,
            _ => return Err(Reason::VlanForeign),
        };
        if !source.is_station() {
            return Err(Reason::SourceInvalid);
        }
        if matches!(options.stations, Stations::Own(mac) if mac != source) {
            return Err(Reason::SourceForeign);
        }
        match self.own(vlan, source) {
            Some(owner) if owner != from => return Err(Reason::SourceForeign),
            Some(_) => {}
            None => {
                self.heard.insert((vlan, source), (from, now_ns));
            }
        }
        let known = self.own(vlan, to).or_else(|| {
            let (port, seen_ns) = self.heard.get(&(vlan, to))?;
            (now_ns - seen_ns <= AGE_NS).then_some(*port)
        });
        let is_isolated = |port: u16| {
            options.isolated && self.ports[usize::from(port)].as_ref().unwrap().isolated
        };
        if let Some(port) = known.filter(|_| !to.is_group()) {
            return match port {
                port if port == from => Err(Reason::Returning),
                port if is_isolated(port) => Err(Reason::Isolated),
                port => Ok(vec![(port, self.tag(usize::from(port), vlan).unwrap())]),
            };
        }
        let wants = |port: u16| {
            let options = self.ports[usize::from(port)].as_ref().unwrap();
            let knows_its_own =
                matches!((&options.stations, &options.vlans), (Stations::Own(_), Vlans::Access(_)));
            port != from && !is_isolated(port) && (to.is_group() || !knows_its_own)
        };
        let all = (0..self.ports.len() as u16).filter_map(|port| {
            let tag = self.tag(usize::from(port), vlan)?;
            wants(port).then_some((port, tag))
        });
        let all: Vec<_> = all.collect();
        // To one is not to everyone, unless it is meant for everyone.
        match all.len() {
            0 | 1 if !to.is_group() => all.first().map(|it| vec![*it]).ok_or(Reason::Nowhere),
            _ if self.may_flood(from, options.floods_per_s, now_ns) => Ok(all),
            _ => Err(Reason::FloodLimit),
        }
    }

    fn may_flood(&mut self, port: u16, rate: u32, now_ns: u64) -> bool {
        let (ahead_ns, at_ns) = self.ahead.get(&port).copied().unwrap_or_default();
        let ahead_ns = ahead_ns.saturating_sub(now_ns - at_ns);
        if rate == 0 || ahead_ns > FLOOD_BURST_NS {
            return rate == 0;
        }
        self.ahead.insert(port, (ahead_ns + SECOND_NS / u64::from(rate), now_ns));
        true
    }

    fn forget(&mut self, port: u16) {
        self.ports[usize::from(port)] = None;
        self.ahead.remove(&port);
        self.heard.retain(|_, (at, _)| *at != port);
    }
}

fn random_options(dice: &mut Random) -> PortOptions {
    let vlan = dice.below(3) as u16;
    let vlans = if dice.one_in(2) {
        Vlans::Access(vlan)
    } else {
        let native = [None, Some(0), Some(3)][dice.below(3) as usize];
        Vlans::Trunk { native, tagged: (1..=1 + vlan).collect() }
    };
    let stations = match dice.below(2) {
        0 => Stations::Own(mac(dice.below(8) as u8)),
        _ => Stations::Learned(1000),
    };
    let floods_per_s = if dice.one_in(2) { 0 } else { 20 };
    PortOptions { vlans, stations, isolated: dice.one_in(3), floods_per_s }
}

#[test]
fn it_does_what_the_model_does() {
    let mut outcomes = HashMap::new();
    for seed in 0..200 {
        let mut dice = Random::new(seed);
        let (mut switch, mut model, mut now_ns) = (Switch::new(seed), Model::default(), 0);
        for _ in 0..500 {
            let pause_ns = if dice.one_in(40) { AGE_NS / 2 } else { FLOOD_BURST_NS / 20 };
            now_ns += dice.below(pause_ns);
            let ports: Vec<u16> = (0..model.ports.len() as u16)
                .filter(|port| model.ports[usize::from(*port)].is_some())
                .collect();
            if ports.len() < 3 || (ports.len() < 8 && dice.one_in(20)) {
                let options = random_options(&mut dice);
                if let Ok(port) = switch.add(options.clone()) {
                    let at = usize::from(port);
                    model.ports.resize(model.ports.len().max(at + 1), None);
                    if let (Stations::Own(mac), Vlans::Access(vlan)) =
                        (options.stations, &options.vlans)
                    {
                        model.heard.remove(&(*vlan, mac));
                    }
                    model.ports[at] = Some(options);
                }
                continue;
            }
            let from = ports[dice.below(ports.len() as u64) as usize];
            if dice.one_in(60) {
                switch.remove(from);
                model.forget(from);
                continue;
            }
            let source = match &model.ports[usize::from(from)].as_ref().unwrap().stations {
                Stations::Own(own) if !dice.one_in(4) => *own,
                _ => mac(dice.below(10) as u8),
            };
            let to = if dice.one_in(5) { Mac::BROADCAST } else { mac(dice.below(10) as u8) };
            let tag = if dice.one_in(2) { 0 } else { dice.below(5) as u16 };
            let expected = model.admit(from, to, source, tag, now_ns);
            let found = switch.admit(from, (to, source), tag, now_ns);
            let found = found.map(|(way, _)| receivers(&switch, way));
            assert_eq!(found, expected, "seed {seed}: {source} to {to} from {from}, tag {tag}");
            *outcomes.entry(found.err()).or_insert(0) += 1;
            switch.age(now_ns);
        }
    }
    // Each of them happened.
    let dropped = [
        Reason::VlanForeign,
        Reason::SourceForeign,
        Reason::Returning,
        Reason::Isolated,
        Reason::FloodLimit,
        Reason::Nowhere,
    ];
    for outcome in dropped.map(Some).into_iter().chain([None]) {
        assert!(outcomes.get(&outcome).is_some_and(|times| *times > 100), "{outcome:?}");
    }
}

#[test]
fn an_own_address_cannot_be_taken() {
    let mut switch = Switch::new(1);
    let guest = switch.add(PortOptions::of_guest(mac(1))).unwrap();
    let up = switch.add(uplink()).unwrap();
    let other = switch.add(PortOptions::of_guest(mac(2))).unwrap();
    assert_eq!(switch.add(PortOptions::of_guest(mac(1))), Err(AddError::Taken(mac(1))));
    // Nor by a trunk in one VLAN of many, from a guest or from another trunk.
    let trunk = |last, native, vlans: std::ops::Range<u16>| {
        let vlans = Vlans::Trunk { native, tagged: vlans.collect() };
        PortOptions { vlans, ..PortOptions::of_guest(mac(last)) }
    };
    assert_eq!(switch.add(trunk(1, Some(0), 5..9)), Err(AddError::Taken(mac(1))));
    switch.add(trunk(3, None, 5..9)).unwrap();
    assert_eq!(switch.add(trunk(3, None, 8..12)), Err(AddError::Taken(mac(3))));
    let far = switch.add(trunk(3, None, 9..12)).unwrap();
    switch.remove(far);
    let group = PortOptions::of_guest(Mac::BROADCAST);
    assert_eq!(switch.add(group), Err(AddError::NoStation(Mac::BROADCAST)));
    let as_guest = switch.admit(up, (mac(2), mac(1)), 0, 5);
    assert_eq!(as_guest, Err(Reason::SourceForeign));
    let (way, vlan) = switch.admit(other, (mac(1), mac(2)), 0, 5).unwrap();
    assert_eq!((way, vlan), (FrameRoute::One { port: guest, tag: 0 }, 0));
    assert_eq!(switch.admit(other, (mac(1), mac(9)), 0, 5), Err(Reason::SourceForeign));
    assert_eq!(switch.admit(other, (mac(1), mac(2)), 7, 5), Err(Reason::VlanForeign));
    assert_eq!(
        switch.admit(other, (Mac([1, 0x80, 0xc2, 0, 0, 14]), mac(2)), 0, 5),
        Err(Reason::Reserved)
    );
}

#[test]
fn a_port_that_makes_addresses_up_gets_its_share_and_no_more() {
    let mut switch = Switch::new(7);
    let limited = PortOptions { stations: Stations::Learned(100), ..uplink() };
    let (bad, good) = (switch.add(limited).unwrap(), switch.add(uplink()).unwrap());
    let made_up = |number: u64| {
        let [.., a, b, c, d] = number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    };
    for number in 0..100_000 {
        switch.admit(bad, (Mac::BROADCAST, made_up(number)), 0, 1).unwrap();
    }
    assert_eq!(switch.learned(bad), 100);
    assert!(switch.counters().unlearned >= 99_900);
    switch.admit(good, (Mac::BROADCAST, mac(1)), 0, 2).unwrap();
    assert_eq!(switch.learned(good), 1);
    let (way, _) = switch.admit(bad, (mac(1), made_up(1)), 0, 3).unwrap();
    assert_eq!(way, FrameRoute::One { port: good, tag: 0 });
    // All of it is forgotten in time, a bounded part at once.
    (0..LEARNED_MAX).for_each(|_| switch.age(AGE_NS + 10));
    assert_eq!((switch.learned(bad), switch.learned(good)), (0, 0));
}

#[test]
fn a_full_table_takes_no_more_and_forgets_nobodys_own() {
    let mut switch = Switch::new(9);
    let up = switch.add(uplink()).unwrap();
    for number in 0..200_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        switch.admit(up, (Mac::BROADCAST, Mac([2, 9, a, b, c, d])), 0, 1).unwrap();
    }
    assert_eq!(switch.learned(up), LEARNED_MAX);
    let guest = switch.add(PortOptions::of_guest(mac(1))).unwrap();
    assert_eq!(switch.learned(up), LEARNED_MAX - 1);
    let (way, _) = switch.admit(up, (mac(1), Mac([2, 9, 0, 0, 0, 0])), 0, 2).unwrap();
    assert_eq!(way, FrameRoute::One { port: guest, tag: 0 });
}

#[test]
fn floods_are_limited_and_the_limit_passes() {
    let mut switch = Switch::new(3);
    let limited = PortOptions { floods_per_s: 1000, ..PortOptions::of_guest(mac(1)) };
    let port = switch.add(limited).unwrap();
    let only = switch.add(uplink()).unwrap();
    let sent = |now_ns: u64, switch: &mut Switch| {
        (0..5000)
            .filter(|_| switch.admit(port, (Mac::BROADCAST, mac(1)), 0, now_ns).is_ok())
            .count()
    };
    let at_once = sent(SECOND_NS, &mut switch);
    // A tenth of a second's may come at once.
    assert_eq!(at_once, 101);
    assert_eq!(sent(SECOND_NS + 10_000_000, &mut switch), 10);
    // An address that only one port may have does not count. One that two may have does.
    let unknown = |switch: &mut Switch| {
        switch.admit(port, (mac(77), mac(1)), 0, SECOND_NS + 10_000_000).map(|(way, _)| way)
    };
    assert_eq!(unknown(&mut switch), Ok(FrameRoute::One { port: only, tag: 0 }));
    let second = switch.add(uplink()).unwrap();
    assert_eq!(unknown(&mut switch), Err(Reason::FloodLimit));
    switch.remove(second);
    assert_eq!(unknown(&mut switch), Ok(FrameRoute::One { port: only, tag: 0 }));
    assert_eq!(sent(10 * SECOND_NS, &mut switch), at_once);
}

/// A guest of a VMhost sends to a silent station: first to the VMhost's switch, where only the way
/// to the IOhost is left, and then to the IOhost's.
#[test]
fn a_stream_to_a_silent_station_is_not_flooded_unless_its_port_is_unknown() {
    let at_ns = SECOND_NS;
    let passed = |switch: &mut Switch, from: u16, to: Mac, source: Mac| {
        let admit = |_: &u32| switch.admit(from, (to, source), 0, at_ns).is_ok();
        (0..50_000).filter(admit).count()
    };
    let mut vmhost = Switch::new(5);
    let guest = vmhost.add(PortOptions::of_guest(mac(1))).unwrap();
    let way = vmhost.add(uplink()).unwrap();
    assert_eq!(passed(&mut vmhost, guest, mac(2), mac(1)), 50_000);
    // A frame from there to an address that the guest does not have goes nowhere, at once.
    assert_eq!(vmhost.admit(way, (mac(9), mac(2)), 0, at_ns), Err(Reason::Nowhere));

    let mut iohost = Switch::new(6);
    let members = [1, 2, 3].map(|last| iohost.add(PortOptions::of_guest(mac(last))).unwrap());
    // He is a member, so his address is known. One that is made up is nobody's.
    assert_eq!(passed(&mut iohost, members[0], mac(2), mac(1)), 50_000);
    assert_eq!(iohost.admit(members[0], (mac(9), mac(1)), 0, at_ns), Err(Reason::Nowhere));
    let up = iohost.add(uplink()).unwrap();
    let made_up = iohost.admit(members[0], (mac(9), mac(1)), 0, at_ns).unwrap();
    assert_eq!(made_up.0, FrameRoute::One { port: up, tag: 0 });
    // With guests that have guests of their own it may be anybody's. Each sender has his share.
    let nested = PortOptions { stations: Stations::Learned(8), ..PortOptions::of_guest(mac(8)) };
    let nested = iohost.add(nested).unwrap();
    let share = 1 + (FLOOD_BURST_NS * u64::from(FLOODS_PER_S) / SECOND_NS) as usize;
    assert_eq!(passed(&mut iohost, members[0], mac(9), mac(1)), share);
    assert_eq!(passed(&mut iohost, members[0], mac(9), mac(1)), 0);
    assert_eq!(passed(&mut iohost, members[1], mac(9), mac(2)), share);
    // The one of two that sends leaves one, and the isolated do not count for each other.
    assert_eq!(passed(&mut iohost, nested, mac(9), mac(8)), 50_000);
    let hidden = PortOptions { isolated: true, ..PortOptions::of_guest(mac(4)) };
    let hidden = iohost.add(hidden).unwrap();
    assert_eq!(passed(&mut iohost, hidden, mac(9), mac(4)), share);
    iohost.remove(nested);
    let nested = PortOptions {
        stations: Stations::Learned(8),
        isolated: true,
        ..PortOptions::of_guest(mac(8))
    };
    iohost.add(nested).unwrap();
    assert_eq!(passed(&mut iohost, hidden, mac(9), mac(4)), 50_000);
    assert_eq!(passed(&mut iohost, members[2], mac(9), mac(3)), share);
}

#[test]
fn ports_are_bounded_and_numbers_are_used_again() {
    let mut switch = Switch::new(3);
    for at in 0..PORTS_MAX {
        assert_eq!(switch.add(uplink()), Ok(at as u16));
    }
    assert_eq!(switch.add(uplink()), Err(AddError::Full));
    switch.remove(77);
    assert_eq!(switch.add(uplink()), Ok(77));
    let none = Vlans::Trunk { native: None, tagged: VlanSet::none() };
    assert_eq!(switch.add(PortOptions { vlans: none, ..uplink() }), Err(AddError::NoVlan));
}

/// Ports of a guest and of another node, and what their frames to everyone may cost.
#[test]
fn copies_are_paid_for_by_a_port_or_by_its_node() {
    let mut switch = Switch::new(1);
    let mut add = |owner, last| switch.add_for(owner, PortOptions::of_guest(mac(last))).unwrap();
    let (guest, one, two, other) =
        (add(None, 1), add(Some(7), 2), add(Some(7), 3), add(Some(0), 4));
    for last in 5..=255 {
        add(None, last);
    }
    let flood = |from| Flood { from, vlan: 0, unknown: false };
    // All of a jumbo frame, or nothing of a larger one.
    assert_eq!(switch.pay(flood(guest), 9_216, 0), Ok(()));
    assert_eq!(switch.pay(flood(other), 60_000, 0), Err(Reason::CopyLimit));
    let mut paid = |from, now_ns| {
        (0..10_000).take_while(|_| switch.pay(flood(from), 60, now_ns).is_ok()).count() as u64
    };
    let each_ns = 254 * (COPY_NS + 60 * COPY_NS_PER_BYTE);
    let saved = COPY_BURST_NS / each_ns + 1;
    assert_eq!((paid(one, 0), paid(two, 0), paid(other, 0)), (saved, 0, saved));
    // Time pays, for all ports of a node together; a port that comes anew has what the others have.
    assert_eq!((paid(two, 10 * each_ns), paid(one, 10 * each_ns)), (10, 0));
    switch.remove(one);
    switch.remove(two);
    let again = switch.add_for(Some(7), PortOptions::of_guest(mac(2))).unwrap();
    assert_eq!(switch.pay(flood(again), 60, 10 * each_ns), Err(Reason::CopyLimit));
    // A port that may send as often as it likes pays nothing.
    let free = PortOptions { floods_per_s: 0, ..PortOptions::of_guest(mac(3)) };
    let free = switch.add(free).unwrap();
    assert!((0..10_000).all(|_| switch.pay(flood(free), 60_000, 0).is_ok()));
}
