//! Each form, and hostile files.

use super::*;

fn read(form: TraceForm, text: &str) -> Result<Trace, PlanFault> {
    Trace::read("t", form, text.as_bytes(), None)
}

fn request(at_ns: u64, bytes: u32, is_write: bool) -> TraceRequest {
    TraceRequest { at_ns, bytes, is_write }
}

const BLKPARSE: &str = "\
  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000004000   697  Q  RA 100 + 16 [cat]
  8,0    3        4     0.500004829   697  C   W 223490 + 8 [0]
  8,16   3        5     0.600001829   697  Q FWS [kworker]
CPU0 (8,0):
 Reads Queued:           1,        8KiB  Writes Queued:           1,        4KiB
";

#[test]
fn each_form_is_read() {
    let trace = read(TraceForm::Blktrace, BLKPARSE).unwrap();
    let first = [request(0, 4096, true), request(2171, 8192, false)];
    assert_eq!(trace.requests[..2], first);
    assert_eq!(trace.requests[2], request(600_000_000, 0, true));
    let one = Trace::read("t", TraceForm::Blktrace, BLKPARSE.as_bytes(), Some("8,0"));
    assert_eq!(one.unwrap().requests, first);

    let alibaba = "device_id,opcode,offset,length,timestamp\n\
                   419,W,8792731648,16384,1577808144360767\n\
                   725,R,59110326272,360448,1577808144360813";
    let both = [request(0, 16_384, true), request(46_000, 360_448, false)];
    assert_eq!(read(TraceForm::Alibaba, alibaba).unwrap().requests, both);

    let tencent = "1538323200,12910952,128,0,1063\n1538323200,6338688,8,1,1627\n\
                   1538323201,1904106400,384,0,1360\n";
    let spread = [
        request(0, 65_536, false),
        request(500_000_000, 4096, true),
        request(1_000_000_000, 196_608, false),
    ];
    assert_eq!(read(TraceForm::Tencent, tencent).unwrap().requests, spread);

    // The order of a file need not be that of time.
    let msr = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
               128166372003061529,usr,1,Write,2517950464,4096,1963\n";
    let both = [request(0, 4096, true), request(10_000, 24_576, false)];
    assert_eq!(read(TraceForm::Msr, msr).unwrap().requests, both);
    let one = Trace::read("t", TraceForm::Msr, msr.as_bytes(), Some("usr.0")).unwrap();
    assert_eq!(one.requests, [request(0, 24_576, false)]);
}

/// A record of version 1 or 2.
fn vscsi(version: u16, code: u16, bytes: u32, us: u64) -> Vec<u8> {
    let mut raw = Vec::new();
    let word = |raw: &mut Vec<u8>, word: u32| raw.extend(word.to_le_bytes());
    let pair = |raw: &mut Vec<u8>| {
        raw.extend(code.to_le_bytes());
        raw.extend((version << 8).to_le_bytes());
    };
    if version == 2 {
        pair(&mut raw);
    }
    for value in [7, bytes, 1] {
        word(&mut raw, value);
    }
    if version == 1 {
        pair(&mut raw);
    }
    raw.extend(42_u64.to_le_bytes());
    raw.extend(us.to_le_bytes());
    if version == 2 {
        raw.extend(9_u64.to_le_bytes());
    }
    raw
}

#[test]
fn records_of_vscsi_are_read() {
    for version in [1, 2] {
        let records = [(0x2a, 512, 100), (0x28, 4096, 103), (0x12, 36, 104), (0x88, 8192, 110)];
        let all: Vec<u8> = records
            .iter()
            .flat_map(|(code, bytes, us)| vscsi(version, *code, *bytes, *us))
            .collect();
        let trace = Trace::read("t", TraceForm::Vscsi, &all, None).unwrap();
        let expected =
            [request(0, 512, true), request(3000, 4096, false), request(10_000, 8192, false)];
        assert_eq!(trace.requests, expected, "version {version}");
        // A record that is cut is left out.
        let cut = Trace::read("t", TraceForm::Vscsi, &all[..all.len() - 1], None).unwrap();
        assert_eq!(cut.requests, expected[..2]);
    }
    let odd = Trace::read("t", TraceForm::Vscsi, &[0xff; 80], None).unwrap_err();
    assert!(odd.to_string().contains("neither 1 nor 2"));
}

#[test]
fn speed_divides_times() {
    let own = Arc::new(read(TraceForm::Blktrace, BLKPARSE).unwrap());
    assert!(Arc::ptr_eq(&own, &Trace::faster(&own, 1)), "its own speed is no copy");
    let trace = Trace::faster(&own, 1000);
    assert_eq!(trace.requests[2].at_ns, 600_000);
    assert!(trace.length_ns > 600_000);
}

#[test]
fn hostile_traces_are_named_faults() {
    use TraceForm::{Alibaba, Blktrace, Msr, Tencent};
    let long = format!("1,{}", "x".repeat(5000));
    for (form, text, words) in [
        (Alibaba, "", "no request"),
        (Alibaba, "1,W,1,2", "line 1: a field is missing"),
        (Alibaba, "1,X,1,2,3", "not R or W"),
        (Alibaba, "1,W,1,99999999999,3", "larger than 64 MiB"),
        (Alibaba, "1,W,1,-2,3", "whole number"),
        (Alibaba, "1,W,1,2,99999999999999999999999", "whole number"),
        (Alibaba, "1,W,1,2,0\n1,W,1,2,18446744073709551615", "more than a year"),
        (Alibaba, "1,W,1,2,0\nx", "line 2: the line does not begin"),
        (Alibaba, &long, "longer than 4,096"),
        (Tencent, "1,2,3,4,5", "not 0 or 1"),
        (Tencent, "1,2,18446744073709551615,1,5", "larger than 64 MiB"),
        (Msr, "1,usr,0,Trim,1,2,3", "not Read or Write"),
        (Blktrace, "8,0 3 2 0.1 697 Q W 2 + 8 [k]", "nine decimals"),
        (Blktrace, "8,0 3 2 99999999999999.000000001 697 Q W 2 + 8 [k]", "no time"),
        (Blktrace, "8,0 3 2 0.000000001 697 C W 2 + 8 [k]", "no request"),
    ] {
        let fault = read(form, text).unwrap_err().to_string();
        assert!(fault.contains(words), "{text}: {fault}");
    }
    let odd = Trace::read("t", Alibaba, &[b'1', 0xff, b'\n'], None).unwrap_err();
    assert!(odd.to_string().contains("not text"), "{odd}");
}
