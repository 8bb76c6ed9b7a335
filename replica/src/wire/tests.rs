//! Messages and records as bytes, and each reason to refuse some.

use random::Random;

use super::*;
use crate::member::{Durable, LifeEnd};
use crate::message::Knowledge;
use crate::record::MemberId;

/// Draws messages of all kinds.
struct Draw(Random);

impl Draw {
    fn number(&mut self) -> u64 {
        let bits = self.0.below(62);
        self.0.below(1 << bits)
    }

    fn member(&mut self) -> MemberId {
        self.0.below(256) as MemberId
    }

    fn place(&mut self) -> Place {
        Place { reign: self.number(), counter: self.number() }
    }

    fn record(&mut self) -> VolumeRecord {
        let members = self.0.between(1, MEMBERS_MAX as u64);
        let in_sync: BTreeMap<_, _> =
            (0..members).map(|_| (self.member(), self.0.draw())).collect();
        let at = self.0.below(in_sync.len() as u64) as usize;
        let primary = *in_sync.keys().nth(at).unwrap();
        let (one, other) = (self.number(), self.number());
        let (epoch, reign, incarnation) = (one.max(other), one.min(other), self.number());
        VolumeRecord { epoch, reign, incarnation, primary, in_sync }
    }

    fn request(&mut self) -> RequestId {
        let attachment = u128::from(self.0.draw()) << 64 | u128::from(self.0.draw());
        let (channel, slot) = (self.0.below(1 << 16) as u16, self.0.below(1 << 16) as u16);
        RequestId { client: ClientId { attachment, channel, slot }, number: self.number() }
    }

    /// A range and its content, with the bytes of the body.
    fn range(&mut self) -> (Extent, WireContent, usize) {
        let kinds = [WireContent::Bytes, WireContent::Zeroes, WireContent::Discarded];
        let data = kinds[self.0.below(3) as usize];
        let most = match data {
            WireContent::Bytes => WIRE_BODY_MAX as u64 / SECTOR_BYTES,
            _ => ZEROED_SECTORS_MAX.into(),
        };
        let extent = Extent::new(self.number(), self.0.between(1, most) as u32).unwrap();
        let bytes = extent.sectors() as usize * SECTOR_BYTES as usize;
        (extent, data, if data == WireContent::Bytes { bytes } else { 0 })
    }

    fn digest(&mut self) -> BlockDigest {
        (u128::from(self.0.draw()) << 64 | u128::from(self.0.draw())).to_le_bytes()
    }

    fn note(&mut self) -> Note {
        (0..self.0.below(40)).map(|at| at as u8).collect()
    }

    fn knowledge(&mut self) -> Knowledge {
        Knowledge {
            life: self.0.draw(),
            promised: self.number(),
            record: self.0.one_in(2).then(|| self.record()),
            reigns: self.0.one_in(2),
            asks: self.0.one_in(2),
            was_in: self.number(),
            stored: self.place(),
            filled_since: self.0.one_in(2).then(|| self.place()),
            cut: self.0.one_in(2).then(|| self.place()),
        }
    }

    fn end(&mut self) -> LifeEnd {
        let ranges = (0..self.0.below(4)).map(|at| (at * 9, at * 9 + 1 + self.0.below(8)));
        let mut tail = ExtentSet::default();
        ranges.for_each(|(first, end)| tail.insert(first, end));
        let mut applied = Applied::default();
        (0..self.0.below(4)).for_each(|_| applied.note(self.request()));
        let cut = self.0.one_in(2).then(|| self.place());
        LifeEnd { life: self.0.draw(), began: self.place(), tail, applied, cut }
    }

    fn op(&mut self) -> (Op<WireContent>, usize) {
        let kind = self.0.below(10);
        let (extent, data, bytes) = self.range();
        match kind {
            0 => (Op::Write { id: self.request(), extent, data }, bytes),
            1 => (Op::Flush { id: self.request() }, 0),
            2 => (Op::Cut, 0),
            3 => (Op::Fill { to: self.member(), extent, data }, bytes),
            4 => (Op::Equal { extent, data }, bytes),
            5 => (Op::Nothing, 0),
            6 => {
                let mut applied = Applied::default();
                (0..self.0.below(9)).for_each(|_| applied.note(self.request()));
                (Op::Applied { applied, note: self.note() }, 0)
            }
            7 => (Op::Note { id: self.request(), note: self.note() }, 0),
            8 => {
                let name = "n".repeat(self.0.between(1, SNAPSHOT_NAME_MAX as u64) as usize);
                let (id, at_s) = (self.request(), self.number());
                let takes = self.0.one_in(2);
                let take = |name| SnapshotChange::Take { name, at_s };
                let remove = |name| SnapshotChange::Remove { name };
                (Op::Snapshot { id, change: if takes { take(name) } else { remove(name) } }, 0)
            }
            _ => (Op::Forget(self.request().client.attachment), 0),
        }
    }

    /// A message, and the bytes of the content that it has.
    fn message(&mut self) -> (Message<WireContent>, usize) {
        let (record, life) = (self.record(), self.0.draw());
        let (epoch, began) = (self.number(), self.number());
        let message = match self.0.below(16) {
            0 => Message::Ping { record, life, sent_ns: self.number(), held: self.number() },
            1 => Message::Pong { epoch, life, sent_ns: self.number() },
            2 => Message::Seal { record },
            3 => {
                let extents = (0..self.0.below(9)).map(|_| self.range().0);
                Message::Sealed { epoch, life, tail: extents.collect() }
            }
            4 => {
                let (op, bytes) = self.op();
                let append = Message::Append { epoch, life, began, counter: self.number(), op };
                return (append, bytes);
            }
            5 => {
                let left_out = if self.0.one_in(2) { 0 } else { self.number() };
                Message::Held { life, began: self.place(), counter: self.number(), left_out }
            }
            6 => {
                let cuts = (0..self.0.below(CUTS_MAX as u64 + 1)).map(|_| self.place());
                Message::Join { epoch, life, cuts: cuts.collect() }
            }
            7 => {
                let cut = self.0.one_in(2).then(|| self.place());
                Message::GoBack { record, life, cut, began }
            }
            8 => Message::Hello { life, epoch },
            9 => Message::Ask { number: epoch },
            10 => Message::Known { number: epoch, knowledge: self.knowledge() },
            11 => {
                let extent = self.range().0;
                Message::Lend { epoch, life, counter: self.number(), extent }
            }
            12 => {
                let (extent, data, bytes) = self.range();
                let has = self.0.one_in(2);
                let (data, bytes) = if has { (Some(data), bytes) } else { (None, 0) };
                return (Message::Lent { life, place: self.place(), extent, data }, bytes);
            }
            13 => {
                let (extent, number) = (self.range().0, self.number());
                Message::Prove { epoch, life, number, extent, key: self.digest() }
            }
            14 => {
                let proofs = 0..self.0.below(u64::from(SCRUB_BLOCKS_MAX) + 1);
                let proofs = proofs.map(|_| self.0.one_in(2).then(|| self.digest())).collect();
                Message::Proved { life, reign: epoch, number: began, proofs }
            }
            _ => {
                let answers = self.0.one_in(2).then(|| (self.0.draw(), self.number()));
                let record = self.0.one_in(2).then_some(record);
                Message::Alive { life, record, answers }
            }
        };
        (message, 0)
    }
}

#[test]
fn each_message_arrives_as_it_was_sent() {
    let mut draw = Draw(Random::new(1));
    let (mut head, mut list) = (Vec::new(), Vec::new());
    for _ in 0..20_000 {
        let (message, bytes) = draw.message();
        encode(7, &message, &mut head, &mut list);
        assert!(head.len() <= WIRE_HEAD_MAX && list.len() <= WIRE_BODY_MAX);
        assert!(list.is_empty() || bytes == 0);
        let content = vec![0; bytes];
        let body = if list.is_empty() { &content } else { &list };
        assert_eq!(decode(&head, body), Ok((7, message.clone())));
        // Nothing of it can be missing but for a number that is left out if it is 0, and there can
        // be nothing more.
        let short = draw.0.below(head.len() as u64) as usize;
        let is_whole = match message {
            Message::Held { left_out, .. } if left_out > 0 => short + 8 == head.len(),
            _ => false,
        };
        assert_eq!(decode(&head[..short], body).is_ok(), is_whole, "{message:?}");
        head.push(0);
        assert!(decode(&head, body).is_err(), "{message:?}");
        head.pop();
        let longer: Vec<u8> = body.iter().copied().chain([0]).collect();
        assert!(decode(&head, &longer).is_err(), "{message:?}");
    }
}

#[test]
fn names_of_volumes_arrive_and_others_are_refused() {
    let mut head = Vec::new();
    for name in ["a", &"n".repeat(WIRE_NAME_MAX), "größe"] {
        encode_name(9, [5; WIRE_FORM_BYTES], name, &mut head);
        assert!(is_name(&head) && head.len() <= WIRE_HEAD_MAX);
        assert_eq!(decode_name(&head), Ok((9, [5; WIRE_FORM_BYTES], name)));
        assert!(decode(&head, &[]).is_err(), "it is no message");
    }
    let begin = &head[..8 + WIRE_FORM_BYTES].to_vec();
    let with = |rest: &[u8]| [&begin[..], rest].concat();
    let (long, other) = (vec![b'n'; WIRE_NAME_MAX + 1], [&[kind::PING], &begin[1..]].concat());
    let subject = [&begin[..1], &[1], &begin[2..], b"a"].concat();
    for head in [
        &[][..],
        &begin[..7],
        &begin[..23],
        &with(&[]),
        &with(&long),
        &with(&[0xff]),
        &other,
        &subject,
    ] {
        assert!(decode_name(head).is_err(), "{head:?}");
    }
}

#[test]
fn records_and_states_come_back_as_they_were_kept() {
    let mut draw = Draw(Random::new(2));
    for _ in 0..2000 {
        let record = draw.record();
        let mut bytes = encode_record(&record);
        assert_eq!(decode_record(&bytes), Ok(record.clone()));
        bytes.push(0);
        assert!(decode_record(&bytes).is_err());
        let record = draw.0.one_in(2).then_some(record);
        let ended = draw.0.one_in(2).then(|| draw.end());
        let is_out = ended.is_none() && draw.0.one_in(2);
        let filled_since = (is_out && draw.0.one_in(2)).then(|| draw.place());
        let was_in = if is_out { draw.number() } else { 0 };
        let (promised, note) = (draw.number(), draw.note());
        let durable = Durable { promised, record, note, filled_since, was_in, ended };
        let mut bytes = encode_durable(&durable);
        assert_eq!(decode_durable(&bytes), Ok(durable.clone()));
        if durable.ended.is_some() {
            // Each part of it is needed, or it is the state of a shorter table.
            let cut = draw.0.below(bytes.len() as u64) as usize;
            assert_ne!(decode_durable(&bytes[..cut]), Ok(durable));
        }
        bytes[0] ^= 1;
        assert!(decode_durable(&bytes).is_err());
    }
    assert!(decode_durable(&[]).is_err());
}

#[test]
fn the_largest_lists_fit_a_message() {
    let mut applied = Applied::default();
    for at in 0..APPLIED_MAX {
        let client = ClientId { slot: at as u16, channel: 1, attachment: u128::MAX };
        applied.note(RequestId { client, number: NUMBER_END - 1 });
    }
    let op = Op::Applied { applied, note: vec![1; NOTE_BYTES_MAX] };
    let table = Message::Append { epoch: 1, life: 1, began: 0, counter: 1, op };
    let ranges = (0..TAIL_RANGES_MAX as u64).map(|at| Extent::new(at * 9, 8).unwrap());
    let tail = Message::Sealed { epoch: 1, life: 1, tail: ranges.collect() };
    let (mut head, mut body) = (Vec::new(), Vec::new());
    for message in [table, tail] {
        encode(1, &message, &mut head, &mut body);
        assert!(head.len() <= WIRE_HEAD_MAX && body.len() <= WIRE_BODY_MAX);
        assert_eq!(decode(&head, &body), Ok((1, message)));
        // An entry more is refused.
        let more: Vec<u8> = body.iter().chain(&body[..112]).copied().collect();
        assert!(decode(&head, &more).is_err());
    }
}

/// A head with each reason to refuse it.
#[test]
fn messages_that_break_a_limit_are_refused_with_the_reason() {
    let place = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
    let begin = |kind: u8| vec![kind, 0, 0, 0, 7, 0, 0, 0];
    let with = |kind: u8, rest: &[&[u8]]| [begin(kind), rest.concat()].concat();
    let (one, large) = (1_u64.to_le_bytes(), NUMBER_END.to_le_bytes());
    let record = |primary: u8, members: &[u8]| {
        let head = [&one[..], &one, &one, &[primary, members.len() as u8]].concat();
        let lives = members.iter().flat_map(|member| [&[*member][..], &one].concat());
        head.into_iter().chain(lives).collect::<Vec<u8>>()
    };
    let append = [&one[..]; 4].concat();
    let range = |sectors: u32, content: u8| {
        let head = [&append[..], &[op::EQUAL], &one, &sectors.to_le_bytes(), &[content]];
        with(kind::APPEND, &[&head.concat()])
    };
    let snapshot = |name: &[u8]| {
        let request = [0; APPLIED_BYTES];
        with(kind::APPEND, &[&append, &[op::REMOVE_SNAPSHOT], &request, name])
    };
    let cases: &[(Vec<u8>, usize, &str)] = &[
        (vec![], 0, "too short"),
        (with(200 + 30, &[]), 0, "kind is unknown"),
        (vec![kind::SEAL, 1, 0, 0, 7, 0, 0, 0], 0, "subject is unknown"),
        (with(kind::PONG, &[&large, &one, &one]), 0, "number is too large"),
        (with(kind::PONG, &[&one, &one, &one]), 1, "body is too long"),
        (with(kind::SEAL, &[&record(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9])]), 0, "too many members"),
        (with(kind::SEAL, &[&record(1, &[2, 1])]), 0, "not in order"),
        (with(kind::SEAL, &[&record(3, &[1, 2])]), 0, "contradicts itself"),
        (with(kind::SEAL, &[&record(1, &[])]), 0, "contradicts itself"),
        (with(kind::JOIN, &[&one, &one, &[9]]), 0, "too many cuts"),
        (with(kind::JOIN, &[&one, &one, &[2], &place, &place]), 0, "cuts are not in order"),
        (with(kind::SEALED, &[&one, &one]), 15, "list has another length"),
        (with(kind::SEALED, &[&one, &one]), 16, "ranges are not in order"),
        (with(kind::ALIVE, &[&one, &[2]]), 0, "neither 0 nor 1"),
        (with(kind::APPEND, &[&append, &[99]]), 0, "operation is unknown"),
        (snapshot(&[0]), 0, "snapshot has no name"),
        (snapshot(&[65; 66]), 0, "snapshot has no name"),
        (snapshot(&[1, 0xff]), 0, "snapshot has no name"),
        (snapshot(&[2, b'a']), 0, "too short"),
        (with(kind::PROVED, &[&one, &one, &one]), 17 * 17, "list has another length"),
        (with(kind::PROVED, &[&one, &one, &one]), 16, "list has another length"),
        (range(0, 0), 0, "range is empty"),
        (range(1, 3), 0, "content is of an unknown kind"),
        (range(1, 0), 511, "range has another length"),
        (range(2049, 0), 2049 * 512, "range has another length"),
        (range(ZEROED_SECTORS_MAX + 1, 1), 0, "range has another length"),
    ];
    for (head, body_bytes, wanted) in cases {
        let error = decode(head, &vec![0; *body_bytes]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}: {wanted}");
    }
}
