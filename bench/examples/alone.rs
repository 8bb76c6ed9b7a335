//! A driver and its disk by turns on one thread, without a socket or another core. It measures the
//! instructions of a request without the cost of cache lines that go between two cores.
//!
//! ```text
//! cargo build --release --package bench --example alone
//! valgrind --tool=callgrind target/release/examples/alone null 32 split 100000
//! ```
//! Search callgrind's listing for the calls of `driver` and of `device`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use block::{
    AttachOptions, Attached, Attachment, DiskCore, DiskQueues, Export, ExportOptions, LocalVolume,
};
use sidecore::Services;
use virtio::driver::{
    Data, DriverGuest, DriverOp, DriverRequest, GuestPlan, RequestStatus, RingDriver, RingOptions,
    RingShape,
};
use virtio::{Queue, RingKind};
use volume::backend::{MemoryVolume, NullVolume};
use volume::chain::{Chain, Swap};
use volume::record::NoRecords;
use volume::{OpenArguments, Volume};

const VOLUME_BYTES: u64 = 64 << 20;
const REQUEST_BYTES: u32 = 4096;

/// The assumed length of a sidecore's round, by which the clock advances.
const ROUND_NS: u64 = 1_000;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut word = |what| args.next().with_context(|| format!("name {what}"));
    let volume: Arc<dyn Volume> = match word("null or memory")?.as_str() {
        "null" => Arc::new(NullVolume::new(VOLUME_BYTES)),
        "memory" => Arc::new(MemoryVolume::new(VOLUME_BYTES)?),
        other => bail!("no volume {other}"),
    };
    let depth: u16 = word("the depth")?.parse()?;
    let kind = match word("split or packed")?.as_str() {
        "split" => RingKind::Split,
        "packed" => RingKind::Packed,
        other => bail!("no ring {other}"),
    };
    let requests: u64 = word("how many requests")?.parse()?;
    let (mut disk, mut ring) = start(volume, depth, kind)?;
    let mut now_ns = 0;
    // The first requests warm everything up.
    work(&mut disk, &mut ring, depth, 10_000, &mut now_ns)?;
    let began = Instant::now();
    work(&mut disk, &mut ring, depth, requests, &mut now_ns)?;
    println!("{:.1} ns a request", began.elapsed().as_nanos() as f64 / requests as f64);
    Ok(())
}

/// A disk on a volume of its own node, wired as a node does it.
fn start(volume: Arc<dyn Volume>, depth: u16, kind: RingKind) -> Result<(DiskQueues, RingDriver)> {
    let chain: Arc<dyn Volume> = Swap::new(Chain::build(volume, &[], None)?.volume);
    let export = Export::new("alone", chain, ExportOptions::default(), Arc::new(NoRecords))?;
    let local = LocalVolume::new(export);
    let (services, options) = (Services::new(), AttachOptions::new(1));
    let attachment = Arc::new(Attachment::new("alone", options));
    let shape = RingShape {
        size: (depth * 4).next_power_of_two().max(16),
        slots: depth,
        transfer_bytes_max: REQUEST_BYTES,
        segments_max: 1,
    };
    let guest = DriverGuest::new(&GuestPlan { shape, ..GuestPlan::default() })?;
    let memory = Arc::new(guest.memory().device_memory()?);
    let (event_idx, indirect) = (true, true);
    let options = RingOptions { kind, event_idx, indirect, ..RingOptions::default() };
    let ring = guest.ring(0, options);
    let open = OpenArguments { services: &services, depth: 1024 };
    let attached = Attached::open(&*local, &attachment, 0, &open)?;
    let mut disk = DiskQueues::new(DiskCore::new("alone", 1), attached, false);
    disk.add_queue(Queue::new(ring.queue_config(memory)?)?);
    Ok((disk, ring))
}

fn work(
    disk: &mut DiskQueues,
    ring: &mut RingDriver,
    depth: u16,
    requests: u64,
    now_ns: &mut u64,
) -> Result<()> {
    let mut done = 0;
    while done < requests {
        submit(ring, depth, done)?;
        device(disk, now_ns);
        done += complete(ring)?;
    }
    Ok(())
}

#[inline(never)]
fn submit(ring: &mut RingDriver, depth: u16, seed: u64) -> Result<()> {
    let places = VOLUME_BYTES / u64::from(REQUEST_BYTES);
    for at in ring.outstanding()..depth {
        let slot = ring.take_slot().context("all are back")?;
        let place = (seed + u64::from(at)).wrapping_mul(0x9e37_79b9) % places;
        let sector = place * u64::from(REQUEST_BYTES) / 512;
        let data = Data::Whole(REQUEST_BYTES);
        ring.submit(&DriverRequest { slot, op: DriverOp::Read, sector, data, token: 0 })?;
    }
    ring.publish();
    Ok(())
}

#[inline(never)]
fn device(disk: &mut DiskQueues, now_ns: &mut u64) {
    *now_ns += ROUND_NS;
    let _ = black_box(disk.poll(*now_ns));
}

#[inline(never)]
fn complete(ring: &mut RingDriver) -> Result<u64> {
    let mut done = 0;
    while let Some(completion) = ring.complete()? {
        if completion.status != RequestStatus::Ok {
            bail!("a request failed");
        }
        ring.release(completion.slot);
        done += 1;
    }
    Ok(done)
}
