//! Everything malformed that a driver can put into a ring, one function each.

use super::victim::{
    AVAIL, DATA, DESC, FEATURE_EVENT_IDX, FEATURE_INDIRECT, HEADER, INDIRECT, NEXT, STATUS, TABLE,
    USED, Victim, VictimSetup, WRITE,
};

/// The device's right reaction to an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttackOutcome {
    /// The disk stops, and its node counts this kind of failure.
    Breaks(&'static str),
    /// The request is answered with this status.
    Answers(u8),
    /// Any answer or none, but the device can be started again.
    Survives,
}

/// One way to be wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) outcome: AttackOutcome,
    /// The device is started in this way first.
    pub(super) setup: fn() -> VictimSetup,
    /// Leaves chains available; for [`AttackOutcome::Answers`] exactly one, with its status at
    /// `STATUS`.
    pub(super) run: fn(&mut Victim),
}

use AttackOutcome::{Answers, Breaks, Survives};

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

const fn attack(name: &'static str, outcome: AttackOutcome, run: fn(&mut Victim)) -> Attack {
    Attack { name, outcome, setup: VictimSetup::default, run }
}

const fn attack_with(
    name: &'static str,
    outcome: AttackOutcome,
    setup: fn() -> VictimSetup,
    run: fn(&mut Victim),
) -> Attack {
    Attack { name, outcome, setup, run }
}

/// All of them.
pub(super) const ATTACKS: [Attack; 39] = [
    attack("loop", Breaks("loop"), |v| chain(v, &[(HEADER, 16, NEXT, 1), (DATA, 16, NEXT, 0)])),
    attack("loop-of-one", Breaks("loop"), |v| chain(v, &[(DATA, 16, NEXT, 0)])),
    attack("loop-in-table", Breaks("loop"), |v| table(v, &[(DATA, 16, NEXT, 0), (DATA, 1, 0, 0)])),
    attack("table-in-table", Breaks("indirect_misplaced"), |v| {
        table(v, &[(TABLE, 16, INDIRECT, 0)]);
    }),
    attack("table-and-next", Breaks("indirect_misplaced"), |v| {
        chain(v, &[(TABLE, 16, INDIRECT | NEXT, 1), (STATUS, 1, WRITE, 0)]);
    }),
    attack_with("table-not-negotiated", Breaks("indirect_misplaced"), without_tables, |v| {
        table(v, &[(DATA, 16, 0, 0)]);
    }),
    attack("table-of-17", Breaks("indirect_length"), |v| chain(v, &[(TABLE, 17, INDIRECT, 0)])),
    attack("table-of-0", Breaks("indirect_length"), |v| chain(v, &[(TABLE, 0, INDIRECT, 0)])),
    attack("table-of-4-gib", Breaks("indirect_length"), |v| {
        chain(v, &[(TABLE, u32::MAX - 15, INDIRECT, 0)]);
    }),
    attack("table-outside", Breaks("unmapped"), |v| {
        v.describe_at(DESC, 0, 1 << 60, 32, INDIRECT, 0);
        v.offer(0);
    }),
    attack("outside", Breaks("unmapped"), |v| at_address(v, 1 << 60, 16)),
    attack("over-the-end", Breaks("unmapped"), |v| {
        let end = v.memory_end;
        at_address(v, end - 16, 64);
    }),
    attack("around-the-end", Breaks("unmapped"), |v| at_address(v, u64::MAX - 7, 16)),
    attack("length-0", Breaks("zero_length"), |v| chain(v, &[(HEADER, 0, 0, 0)])),
    attack("length-4-gib", Breaks("unmapped"), |v| chain(v, &[(HEADER, u32::MAX, 0, 0)])),
    attack("lengths-overflow", Breaks("too_long"), |v| {
        chain(v, &[(HEADER, 4096, NEXT, 1), (DATA, u32::MAX, 0, 0)]);
    }),
    attack("index-jump", Breaks("index_jump"), |v| v.set_avail(v.avail().wrapping_add(1000))),
    attack("index-back", Breaks("index_jump"), |v| v.set_avail(v.avail().wrapping_sub(1))),
    attack("head-outside", Breaks("out_of_range"), |v| v.offer(u16::MAX)),
    attack("next-outside", Breaks("out_of_range"), |v| chain(v, &[(HEADER, 16, NEXT, 16)])),
    attack("head-twice", Breaks("head_in_use"), head_twice),
    attack("write-before-read", Breaks("order"), |v| {
        chain(v, &[(STATUS, 1, WRITE | NEXT, 1), (HEADER, 16, 0, 0)]);
    }),
    attack("no-status", Breaks("no_room_for_status"), |v| chain(v, &[(HEADER, 16, 0, 0)])),
    attack("unknown-type", Answers(UNSUPPORTED), |v| ask(v, 0x7777, 0, 4096)),
    attack("sector-overflow", Answers(IO_ERROR), |v| ask(v, 0, u64::MAX, 4096)),
    attack("sector-at-the-end", Answers(IO_ERROR), |v| ask(v, 1, 1 << 40, 4096)),
    attack("data-of-100", Answers(IO_ERROR), |v| ask(v, 0, 0, 100)),
    attack("header-of-8", Answers(IO_ERROR), |v| {
        v.head(0, 0);
        chain(v, &[(HEADER, 8, NEXT, 1), (STATUS, 1, WRITE, 0)]);
    }),
    attack("id-of-5", Answers(IO_ERROR), |v| ask(v, 8, 0, 5)),
    attack("status-only", Answers(IO_ERROR), |v| {
        v.head(0, 0);
        chain(v, &[(STATUS, 1, WRITE, 0)]);
    }),
    attack("header-in-crumbs", Answers(OK), crumbs),
    attack("kicks", Answers(OK), |v| {
        (0..2000).for_each(|_| v.kick());
        ask(v, 0, 0, 4096);
    }),
    attack_with("events-of-nobody", Answers(OK), with_events, |v| {
        v.memory.write_u16((USED + 4 + 8 * 16) as usize, 0x7fff);
        ask(v, 0, 0, 4096);
    }),
    attack("reset-in-the-middle", Survives, |v| {
        for head in 0..5 {
            v.head(0, 0);
            let at = 3 * head;
            v.describe(at, HEADER, 16, NEXT, at + 1);
            v.describe(at + 1, DATA, 65536, NEXT | WRITE, at + 2);
            v.describe(at + 2, STATUS, 1, WRITE, 0);
            v.offer(at);
        }
    }),
    attack("data-over-the-ring", Survives, |v| {
        v.head(0, 0);
        chain(v, &[(HEADER, 16, NEXT, 1), (DESC, 0x3000, WRITE | NEXT, 2), (STATUS, 1, WRITE, 0)]);
    }),
    attack_with(
        "parts-over-each-other",
        Survives,
        || ring([DESC, DESC, DESC]),
        |v| {
            v.set_avail(5);
        },
    ),
    attack_with("used-over-avail", Survives, || ring([DESC, AVAIL, AVAIL]), |v| ask(v, 0, 0, 4096)),
    attack_with(
        "size-3",
        Survives,
        || VictimSetup { size: 3, ..VictimSetup::default() },
        |v| v.set_avail(1),
    ),
    // The front end's message is refused, and it connects anew.
    attack_with(
        "ring-crooked",
        Survives,
        || ring([DESC + 8, AVAIL, USED]),
        |v| {
            v.set_avail(1);
        },
    ),
];

fn without_tables() -> VictimSetup {
    let setup = VictimSetup::default();
    VictimSetup { features: setup.features & !FEATURE_INDIRECT, ..setup }
}

fn with_events() -> VictimSetup {
    let setup = VictimSetup::default();
    VictimSetup { features: setup.features | FEATURE_EVENT_IDX, ..setup }
}

fn ring(ring: [u64; 3]) -> VictimSetup {
    VictimSetup { ring, ..VictimSetup::default() }
}

/// Describes a chain from descriptor 0 on, and makes it available.
fn chain(victim: &mut Victim, pieces: &[(u64, u32, u16, u16)]) {
    for (index, &(at, len, flags, next)) in (0..).zip(pieces) {
        victim.describe(index, at, len, flags, next);
    }
    victim.offer(0);
}

/// The same in a table of its own.
fn table(victim: &mut Victim, pieces: &[(u64, u32, u16, u16)]) {
    for (index, &(at, len, flags, next)) in (0..).zip(pieces) {
        let addr = victim.physical + at;
        victim.describe_at(TABLE, index, addr, len, flags, next);
    }
    chain(victim, &[(TABLE, 16 * pieces.len() as u32, INDIRECT, 0)]);
}

/// A chain of one buffer at any guest address.
fn at_address(victim: &mut Victim, addr: u64, len: u32) {
    victim.describe_at(DESC, 0, addr, len, 0, 0);
    victim.offer(0);
}

/// A request of three descriptors.
fn ask(victim: &mut Victim, kind: u32, sector: u64, data_bytes: u32) {
    victim.head(kind, sector);
    let data = if kind & 1 == 0 { NEXT | WRITE } else { NEXT };
    chain(victim, &[(HEADER, 16, NEXT, 1), (DATA, data_bytes, data, 2), (STATUS, 1, WRITE, 0)]);
}

/// One chain that is available twice, and seen so at once.
fn head_twice(victim: &mut Victim) {
    victim.head(0, 0);
    victim.describe(0, HEADER, 16, NEXT, 1);
    victim.describe(1, DATA, 4096, NEXT | WRITE, 2);
    victim.describe(2, STATUS, 1, WRITE, 0);
    victim.memory.write_u16(AVAIL as usize + 4, 0);
    victim.memory.write_u16(AVAIL as usize + 6, 0);
    victim.set_avail(victim.avail().wrapping_add(2));
}

/// A sound read whose header comes byte by byte, which is allowed.
fn crumbs(victim: &mut Victim) {
    victim.head(0, 0);
    let mut pieces: Vec<_> = (0..16).map(|at| (HEADER + at, 1, NEXT, at as u16 + 1)).collect();
    pieces.push((DATA, 4096, NEXT | WRITE, 17));
    pieces.push((STATUS, 1, WRITE, 0));
    table(victim, &pieces);
}
