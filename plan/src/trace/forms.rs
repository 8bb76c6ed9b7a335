//! The records of each form.

use super::{BYTES_MAX, RECORDS_MAX, RawRecord, TraceForm, fault};
use crate::fault::PlanFault;

/// Bytes of a sector, in the forms that count sectors.
const SECTOR: u64 = 512;
/// Bytes of a line: a record has a hundred or so.
const LINE_MAX: usize = 4096;

/// Nanoseconds of a form's unit of time.
pub(super) fn tick_ns(form: TraceForm) -> u64 {
    match form {
        TraceForm::Blktrace => 1,
        TraceForm::Msr => 100,
        TraceForm::Alibaba | TraceForm::Vscsi => 1000,
        TraceForm::Tencent => 1_000_000_000,
    }
}

/// Records of a text.
pub(super) fn lines(
    name: &str,
    form: TraceForm,
    content: &[u8],
    volume: Option<&str>,
) -> Result<Vec<RawRecord>, PlanFault> {
    let mut records = Vec::new();
    // A mark of UTF-8 is no part of the first line.
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    for (at, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let place = || format!("line {}", at + 1);
        if line.len() > LINE_MAX {
            return Err(fault(name, &place(), "the line is longer than 4,096 bytes"));
        }
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(fault(name, &place(), "the line is not text"));
        };
        let line = line.trim();
        // The heads of CSV files begin with a letter, and so do the sums of blkparse.
        if line.is_empty() || !line.starts_with(|c: char| c.is_ascii_digit()) {
            if at == 0 || line.is_empty() || form == TraceForm::Blktrace {
                continue;
            }
            return Err(fault(name, &place(), "the line does not begin with a number"));
        }
        let read = match form {
            TraceForm::Blktrace => blkparse(line, volume),
            _ => csv(form, line, volume),
        };
        match read {
            Ok(None) => {}
            Ok(Some(record)) if records.len() < RECORDS_MAX => records.push(record),
            Ok(Some(_)) => return Err(fault(name, &place(), "there are more than 2^26 records")),
            Err(cause) => return Err(fault(name, &place(), cause)),
        }
    }
    Ok(records)
}

type Found = Result<Option<RawRecord>, &'static str>;

fn number(text: Option<&str>) -> Result<u64, &'static str> {
    let text = text.ok_or("a field is missing")?.trim();
    text.parse().map_err(|_| "a field that must be a whole number is none")
}

fn record(ticks: u64, bytes: u64, is_write: bool) -> Found {
    if bytes > BYTES_MAX {
        return Err("the request is larger than 64 MiB");
    }
    Ok(Some(RawRecord { ticks, bytes, is_write }))
}

fn sectors(count: u64) -> u64 {
    count.saturating_mul(SECTOR)
}

/// `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`
fn blkparse(line: &str, volume: Option<&str>) -> Found {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [device, _, _, time, _, action, kind, rest @ ..] = fields.as_slice() else {
        return Ok(None);
    };
    let is_read = kind.contains('R');
    let is_write = kind.contains('W');
    let is_other = volume.is_some_and(|wanted| wanted != *device);
    if *action != "Q" || (!is_read && !is_write) || is_other || !device.contains(',') {
        return Ok(None);
    }
    let (seconds, nanoseconds) = time.split_once('.').ok_or("the time has no point")?;
    if nanoseconds.len() != 9 {
        return Err("the time has not nine decimals");
    }
    let seconds = number(Some(seconds))?.checked_mul(1_000_000_000);
    let ticks = seconds.and_then(|it| it.checked_add(number(Some(nanoseconds)).ok()?));
    let count = match rest {
        [_, "+", count, ..] => number(Some(count))?,
        // An empty flush.
        _ => 0,
    };
    record(ticks.ok_or("the time is no time")?, sectors(count), is_write)
}

fn csv(form: TraceForm, line: &str, volume: Option<&str>) -> Found {
    let mut fields = line.split(',');
    let mut next = || fields.next().map(str::trim);
    let is_other = |found: &str| volume.is_some_and(|wanted| wanted != found);
    match form {
        TraceForm::Alibaba => {
            let (device, kind) = (next().unwrap_or(""), next());
            let (_, bytes, ticks) = (number(next())?, number(next())?, number(next())?);
            let is_write = match kind {
                Some("W") => true,
                Some("R") => false,
                _ => return Err("the operation is not R or W"),
            };
            if is_other(device) { Ok(None) } else { record(ticks, bytes, is_write) }
        }
        TraceForm::Tencent => {
            let (ticks, _, count) = (number(next())?, number(next())?, number(next())?);
            let (kind, device) = (number(next())?, next().unwrap_or(""));
            if kind > 1 {
                return Err("the operation is not 0 or 1");
            }
            if is_other(device) { Ok(None) } else { record(ticks, sectors(count), kind == 1) }
        }
        TraceForm::Msr => {
            let (ticks, host, disk) = (number(next())?, next().unwrap_or(""), next());
            let kind = next();
            let (_, bytes) = (number(next())?, number(next())?);
            let is_write = match kind {
                Some("Write") => true,
                Some("Read") => false,
                _ => return Err("the operation is not Read or Write"),
            };
            let device = format!("{host}.{}", disk.unwrap_or(""));
            if is_other(&device) { Ok(None) } else { record(ticks, bytes, is_write) }
        }
        TraceForm::Blktrace | TraceForm::Vscsi => Err("the form is not one of CSV"),
    }
}

/// Operation codes of SCSI: READ and WRITE of 6, 10, 12 and 16 bytes.
const READS: [u16; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u16; 4] = [0x0a, 0x2a, 0xaa, 0x8a];

/// Records of 32 bytes (version 1) or 40 (version 2), little-endian.
pub(super) fn vscsi(name: &str, content: &[u8]) -> Result<Vec<RawRecord>, PlanFault> {
    let two = |from: &[u8], at: usize| u16::from_le_bytes([from[at], from[at + 1]]);
    let is_version = |version: u16, size: usize, at: usize| {
        let mut first = content.chunks_exact(size).take(2).peekable();
        first.peek().is_some() && first.all(|record| two(record, at) >> 8 == version)
    };
    // The version's and the operation's place, and the length's place.
    let (size, operation, length) = if is_version(1, 32, 14) {
        (32, 12, 4)
    } else if is_version(2, 40, 2) {
        (40, 0, 8)
    } else {
        return Err(fault(name, "record 1", "its version is neither 1 nor 2"));
    };
    if content.len() / size > RECORDS_MAX {
        return Err(fault(name, "all of it", "there are more than 2^26 records"));
    }
    let mut records = Vec::with_capacity(content.len() / size);
    for (at, raw) in content.chunks_exact(size).enumerate() {
        let code = two(raw, operation);
        let (is_read, is_write) = (READS.contains(&code), WRITES.contains(&code));
        if !is_read && !is_write {
            continue;
        }
        let bytes = u64::from(two(raw, length)) | u64::from(two(raw, length + 2)) << 16;
        let ticks = raw[24..32].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        match record(ticks, bytes, is_write) {
            Ok(found) => records.extend(found),
            Err(cause) => return Err(fault(name, &format!("record {}", at + 1), cause)),
        }
    }
    Ok(records)
}
