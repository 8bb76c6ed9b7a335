//! Software against a plain model: a frame is put together as bytes, and looked at as bytes.

use super::*;
use crate::maker::FrameMaker;
use random::Random;

use crate::testing::pushed;

/// The words of a packet from `at` on, added up by the book.
fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether the checksums of a frame are right, by the book.
fn is_right(frame: &[u8]) -> bool {
    let ip = ether::ip(frame).unwrap();
    let packet = &frame[14..];
    let above = &frame[ip.payload_at..];
    let mut pseudo = Vec::new();
    if ip.is_v4 {
        if plain_sum(&packet[..20]) != 0xffff || usize::from(ip.packet_bytes as u16) != packet.len()
        {
            return false;
        }
        pseudo.extend(&packet[12..20]);
        pseudo.extend([0, ip.protocol]);
    } else {
        pseudo.extend(&packet[8..40]);
        pseudo.extend([0, ip.protocol]);
    }
    pseudo.extend((above.len() as u16).to_be_bytes());
    pseudo.extend(above);
    plain_sum(&pseudo) == 0xffff
}

fn offload_of(maker: &FrameMaker, cut: Cut, segment_bytes: u16) -> Offload {
    let offset = if maker.header_bytes() - maker.above_at() == 20 { 16 } else { 6 };
    Offload {
        needs_checksum: true,
        checksum_start: maker.above_at() as u16,
        checksum_offset: offset,
        cut,
        segment_bytes,
        ..Offload::default()
    }
}

fn kinds() -> [(FrameMaker, Cut); 4] {
    [
        (FrameMaker::tcp4(), Cut::Tcp4),
        (FrameMaker::tcp6(), Cut::Tcp6),
        (FrameMaker::udp4(), Cut::Udp),
        (FrameMaker::udp6(), Cut::Udp),
    ]
}

#[test]
fn a_checksum_is_completed_wherever_the_pieces_are_cut() {
    let mut dice = Random::new(2);
    for round in 0..400 {
        let (maker, _) = kinds()[round % 4].clone();
        let len = dice.below(3000) as usize;
        let maker = maker.payload(len);
        let (bytes, expected) = (maker.clone().partial().build(), maker.build());
        let mut burst = Burst::new();
        let frame = pushed(&mut burst, &bytes, 1 + dice.below(bytes.len() as u64) as usize);
        frame.offload = offload_of(&maker, Cut::None, 0);
        frame.accept(&Offers::ALL).unwrap();
        let mut copy = frame.clone();
        copy.complete_checksum(&burst);
        assert_eq!(burst.to_vec(&copy), expected);
        assert!(is_right(&expected) && copy.offload.is_valid);
        // The original is as it was: others may still want it.
        assert_eq!(burst.to_vec(&burst.frames()[0]), bytes);
    }
}

/// A filter has seen the frame before its checksum is completed: that makes no other packet of it.
#[test]
fn completing_a_checksum_changes_nothing_that_filters_go_by() {
    let mut dice = Random::new(5);
    for (maker, _) in kinds() {
        let bytes = maker.clone().payload(120).partial().build();
        let mut places = Vec::new();
        for start in ETHER_BYTES..maker.header_bytes() + 40 {
            for offset in [0, 2, 6, 16, 30] {
                let mut burst = Burst::new();
                let mut lying = bytes.clone();
                // So that what is written is different from what is there, as its sender likes it.
                lying[maker.header_bytes() + 50] = dice.below(256) as u8;
                let frame = pushed(&mut burst, &lying, 200);
                frame.offload = offload_of(&maker, Cut::None, 0);
                frame.offload.checksum_start = start as u16;
                frame.offload.checksum_offset = offset;
                let before = (ether::packet(frame.head()), ether::addresses(frame.head()));
                if frame.accept(&Offers::ALL).is_err() {
                    continue;
                }
                places.push(start + usize::from(offset) - maker.above_at());
                let mut copy = frame.clone();
                copy.complete_checksum(&burst);
                let after = (ether::packet(copy.head()), ether::addresses(copy.head()));
                assert_eq!(before, after, "{start} and {offset}");
            }
        }
        let own = usize::from(offload_of(&maker, Cut::None, 0).checksum_offset);
        let above_bytes = maker.header_bytes() - maker.above_at();
        assert!(places.contains(&own) && places.iter().any(|place| *place > above_bytes));
        assert!(places.iter().all(|place| *place == own || *place >= above_bytes), "{places:?}");
    }
}

#[test]
fn segments_put_together_are_the_frame() {
    let mut dice = Random::new(3);
    for round in 0..400 {
        let (maker, cut) = kinds()[round % 4].clone();
        let len = 1 + dice.below(if round % 16 == 0 { 65_000 } else { 4000 }) as usize;
        let segment_bytes = 48 + dice.below(1500) as u16;
        let flags = FIN | PSH | CWR | ether::ACK;
        let maker = maker.payload(len).tcp_flags(flags);
        let bytes = maker.clone().partial().build();
        let mut burst = Burst::new();
        let frame = pushed(&mut burst, &bytes, 200 + dice.below(5000) as usize);
        frame.offload = offload_of(&maker, cut, segment_bytes);
        frame.offload.has_ecn = cut != Cut::Udp;
        frame.accept(&Offers::ALL).unwrap();
        let frame = &burst.frames()[0];
        let headers = maker.header_bytes();
        let count = len.div_ceil(usize::from(segment_bytes));
        assert_eq!(frame.segments(), count);
        let (mut whole, mut segment) = (Vec::<u8>::new(), Frame::empty());
        for number in 0..count {
            frame.segment(number, &mut segment);
            segment.complete_checksum(&burst);
            let bytes = burst.to_vec(&segment);
            assert!(is_right(&bytes), "segment {number} of {count}, {maker:?}");
            if cut != Cut::Udp {
                let tcp = &bytes[maker.above_at()..];
                let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
                assert_eq!(sequence as usize, 0x0102_0304 + whole.len());
                let first = if number == 0 { CWR } else { 0 };
                let last = if number + 1 == count { FIN | PSH } else { 0 };
                assert_eq!(tcp[13], ether::ACK | first | last);
            }
            whole.extend(&bytes[headers..]);
        }
        assert_eq!(whole, bytes[headers..]);
    }
}

#[test]
fn each_lie_has_its_name() {
    let maker = FrameMaker::tcp4().payload(3000);
    let right = offload_of(&maker, Cut::Tcp4, 1448);
    let refused = |offload: Offload, offers: Offers| {
        let mut burst = Burst::new();
        let frame = pushed(&mut burst, &maker.clone().partial().build(), 1500);
        frame.offload = offload;
        frame.accept(&offers).err()
    };
    let all = Offers::ALL;
    assert_eq!(refused(right, all), None);
    let cases = [
        (Offload { checksum_start: 3014, ..right }, Reason::ChecksumPlace),
        (Offload { checksum_start: 13, ..right }, Reason::ChecksumPlace),
        (Offload { checksum_offset: 0xffff, ..right }, Reason::ChecksumPlace),
        (Offload { checksum_offset: 6, ..right }, Reason::ChecksumPlace),
        (Offload { needs_checksum: false, ..right }, Reason::ChecksumPlace),
        (Offload { segment_bytes: 0, ..right }, Reason::SegmentSize),
        (Offload { segment_bytes: 1, ..right }, Reason::SegmentSize),
        (Offload { cut: Cut::Tcp6, ..right }, Reason::SegmentHeaders),
        (Offload { cut: Cut::Udp, ..right }, Reason::SegmentHeaders),
    ];
    for (offload, reason) in cases {
        assert_eq!(refused(offload, all), Some(reason), "{offload:?}");
    }
    let offers = [Offers { checksum: false, ..all }, Offers { tcp4: false, ..all }];
    for offers in offers {
        assert_eq!(refused(right, offers), Some(Reason::OffloadUnknown), "{offers:?}");
    }
    assert_eq!(Offload::read(&[0, 3, 0, 0, 1, 0, 0, 0, 0, 0]), Err(Reason::OffloadUnknown));
}

#[test]
fn any_header_of_a_guest_gives_bounded_segments_and_no_panic() {
    let mut dice = Random::new(4);
    let mut believed = 0;
    for round in 0..20_000 {
        let (maker, cut) = kinds()[round % 4].clone();
        let maker = maker.payload(dice.below(2000) as usize).partial();
        let mut bytes = maker.build();
        let mut offload = offload_of(&maker, cut, 1 + dice.below(1500) as u16);
        for _ in 0..dice.below(3) {
            match dice.below(6) {
                0 => offload.checksum_start = dice.draw() as u16,
                1 => offload.checksum_offset = dice.below(100) as u16,
                2 => offload.segment_bytes = dice.draw() as u16,
                3 => bytes.truncate(14 + dice.below(bytes.len() as u64 - 13) as usize),
                4 => offload.has_ecn = true,
                _ => {
                    let at = dice.below(bytes.len().min(80) as u64) as usize;
                    bytes[at] = dice.draw() as u8;
                }
            }
        }
        let mut burst = Burst::new();
        let frame = pushed(&mut burst, &bytes, 100);
        frame.offload = offload;
        if frame.accept(&Offers::ALL).is_err() {
            continue;
        }
        believed += 1;
        let (frame, mut segment, mut total) = (&burst.frames()[0], Frame::empty(), 0);
        let count = frame.segments();
        assert!(count <= SEGMENTS_PER_FRAME_MAX);
        for number in 0..count {
            frame.segment(number, &mut segment);
            segment.complete_checksum(&burst);
            total += segment.len_bytes();
        }
        assert!(total >= frame.len_bytes());
    }
    assert!(believed > 5_000, "{believed}");
}

#[test]
fn the_header_survives_being_written_and_read() {
    let maker = FrameMaker::tcp6().payload(9000);
    let offload = Offload { has_ecn: true, ..offload_of(&maker, Cut::Tcp6, 1428) };
    let mut header = [0; HEADER_BYTES];
    offload.write(&maker.build()[..192], 4, &mut header);
    let mut read = Offload::read(&header).unwrap();
    assert_eq!(u16::from_le_bytes([header[2], header[3]]), 78);
    read.move_back(4).unwrap();
    assert_eq!(read, offload);
}
