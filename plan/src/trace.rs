//! Traces of requests: the text of `blkparse`, the CSV files of the Alibaba, Tencent and MSR
//! traces, and vSCSI records.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fault::{PlanFault, key};

mod forms;

/// Records of a trace: each takes 16 bytes.
pub const RECORDS_MAX: usize = 1 << 26;

/// Bytes of a request, as disks have it; a larger record is no request.
const BYTES_MAX: u64 = 64 << 20;

/// The longest trace: a year.
const LENGTH_NS_MAX: u64 = 366 * 86_400 * 1_000_000_000;

/// The form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceForm {
    /// The text of `blkparse`, of which the queued requests (`Q`) count.
    Blktrace,
    /// `device_id,opcode,offset,length,timestamp`: bytes and microseconds.
    Alibaba,
    /// `timestamp,offset,size,type,volume`: seconds and sectors. The requests of a second are
    /// spread over it.
    Tencent,
    /// `timestamp,host,disk,type,offset,size,response`: units of 100 ns and bytes.
    Msr,
    /// Binary records of version 1 or 2: bytes and microseconds.
    Vscsi,
}

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Its time from the first one.
    pub at_ns: u64,
    /// Its data.
    pub bytes: u32,
    /// Whether it is a write.
    pub is_write: bool,
}

/// The requests of a trace, in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The requests.
    pub requests: Vec<TraceRequest>,
    /// The time after which it begins anew.
    pub length_ns: u64,
}

/// A record as it stands in its file.
#[derive(Clone, Copy, Debug)]
struct RawRecord {
    ticks: u64,
    bytes: u64,
    is_write: bool,
}

/// A fault at a place of a file.
fn fault(name: &str, place: &str, cause: &str) -> PlanFault {
    let way_out = "set load.form to the file's form, or leave the record out";
    key(format!("{name}, {place}"), cause, way_out)
}

impl Trace {
    /// Reads a trace. With `volume` only the records of this one count, for forms that have
    /// several in a file.
    ///
    /// # Errors
    /// When a record is not of the form, or there are none or too many.
    pub fn read(
        name: &str,
        form: TraceForm,
        content: &[u8],
        volume: Option<&str>,
    ) -> Result<Self, PlanFault> {
        let records = match form {
            TraceForm::Vscsi => forms::vscsi(name, content)?,
            _ => forms::lines(name, form, content, volume)?,
        };
        if records.is_empty() {
            let cause = "the trace has no request that counts";
            return Err(fault(name, "all of it", cause));
        }
        let tick_ns = forms::tick_ns(form);
        let first = records.iter().map(|record| record.ticks).min().unwrap_or(0);
        let mut requests = Vec::with_capacity(records.len());
        for (at, record) in records.iter().enumerate() {
            let at_ns = (record.ticks - first).checked_mul(tick_ns);
            let at_ns = at_ns.filter(|at_ns| *at_ns <= LENGTH_NS_MAX);
            let Some(at_ns) = at_ns else {
                let cause = "it is more than a year away from the first";
                return Err(fault(name, &format!("request {}", at + 1), cause));
            };
            requests.push(TraceRequest {
                at_ns,
                bytes: record.bytes.min(BYTES_MAX) as u32,
                is_write: record.is_write,
            });
        }
        requests.sort_by_key(|request| request.at_ns);
        if form == TraceForm::Tencent {
            spread_over_ticks(&mut requests, tick_ns);
        }
        let last_ns = requests.last().map_or(0, |request| request.at_ns);
        let length_ns = last_ns + (last_ns / requests.len() as u64).max(1);
        Ok(Self { requests, length_ns })
    }

    /// The same at so many times the speed.
    pub fn faster(trace: &Arc<Self>, times: u64) -> Arc<Self> {
        // At its own speed it is not copied: several scenarios share it.
        if times <= 1 {
            return Arc::clone(trace);
        }
        let mut fast = Self::clone(trace);
        fast.requests.iter_mut().for_each(|request| request.at_ns /= times);
        let last_ns = fast.requests.last().map_or(0, |request| request.at_ns);
        fast.length_ns = (fast.length_ns / times).max(last_ns + 1);
        Arc::new(fast)
    }
}

/// Spreads requests of the same time evenly until the next one.
fn spread_over_ticks(requests: &mut [TraceRequest], tick_ns: u64) {
    for of_tick in requests.chunk_by_mut(|one, other| one.at_ns == other.at_ns) {
        let count = of_tick.len() as u64;
        for (place, request) in of_tick.iter_mut().enumerate() {
            request.at_ns += tick_ns * place as u64 / count;
        }
    }
}

#[cfg(test)]
mod tests;
