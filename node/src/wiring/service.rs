//! The answers of a node to its control socket.

use config::Kind;
use serde_json::Value;

use super::inside::Inside;
use super::report;
use crate::control::Service;
use crate::kinds::running_kind;
use api::status::Status;
use api::{
    Done, Drain, HandOver, MomentReport, ReceiveProgress, ReceiveStep, Refused, Reload, ReloadPlan,
    SnapshotDiff, WantedStream,
};

impl Service for Inside {
    fn status(&self) -> Status {
        report::status(self)
    }

    fn list(&self, kind: Kind) -> String {
        running_kind(kind).status(self)
    }

    fn show(&self, kind: Kind, name: &str) -> Option<String> {
        running_kind(kind).status_of(name, self)
    }

    fn add(&self, kind: Kind, body: &Value) -> Result<Done, Refused> {
        self.add(kind, body)
    }

    fn remove(&self, kind: Kind, name: &str, force: bool) -> Result<Done, Refused> {
        self.remove(kind, name, force)
    }

    fn take_snapshot(&self, body: &Value) -> Result<Done, Refused> {
        self.take_snapshot(body)
    }

    fn roll_back(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        self.roll_back(volume, body)
    }

    fn change_copies(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        self.change_copies(volume, body)
    }

    fn set_key(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        self.set_key(volume, body)
    }

    fn shred(&self, pool: &str, number: u32, body: &Value) -> Result<Done, Refused> {
        self.shred(pool, number, body)
    }

    fn remove_from_pool(&self, pool: &str, number: u32, force: bool) -> Result<Done, Refused> {
        self.remove_from_pool(pool, number, force)
    }

    fn change_devices(&self, pool: &str, body: &Value) -> Result<Done, Refused> {
        self.change_devices(pool, body)
    }

    fn scrub(&self, pool: &str, body: &Value) -> Result<Done, Refused> {
        self.scrub(pool, body)
    }

    fn stop_scrub(&self, pool: &str) -> Result<Done, Refused> {
        self.stop_scrub(pool)
    }

    fn diff(&self, from: Option<&str>, to: &str, start: u64) -> Result<SnapshotDiff, Refused> {
        self.diff(from, to, start)
    }

    fn stream_header(&self, wanted: &WantedStream) -> Result<Vec<u8>, Refused> {
        self.stream_header(wanted)
    }

    fn stream_part(&self, token: &str) -> Result<Vec<u8>, Refused> {
        self.stream_part(token)
    }

    fn receive(
        &self,
        step: ReceiveStep,
        (pool, name): (&str, &str),
        bytes: &[u8],
    ) -> Result<ReceiveProgress, Refused> {
        self.receive(step, pool, name, bytes)
    }

    fn give_up_receive(&self, pool: &str, name: &str) -> Result<Done, Refused> {
        self.give_up_receive(pool, name)
    }

    fn set_nic(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        self.set_nic(name, body)
    }

    fn set_chain(&self, volume: &str, chain: &Value) -> Result<Done, Refused> {
        self.set_chain(volume, chain)
    }

    fn set_quota(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        self.set_quota(volume, body)
    }

    fn set_snapshots(&self, volume: &str, rules: &Value) -> Result<Done, Refused> {
        self.set_snapshots(volume, rules)
    }

    fn keep_history(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        self.keep_history(volume, body)
    }

    fn find_moment(&self, volume: &str, body: &Value) -> Result<MomentReport, Refused> {
        self.find_moment(volume, body)
    }

    fn compress(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        self.compress(volume, body)
    }

    fn resize_disk(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        self.resize_disk(name, body)
    }

    fn resize_volume(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        self.resize_volume(name, body)
    }

    fn move_queue(&self, disk: &str, queue: usize, body: &Value) -> Result<Done, Refused> {
        self.move_queue(disk, queue, body)
    }

    fn take_disk(&self, disk: &str) -> Result<Done, Refused> {
        self.take_disk(disk)
    }

    fn set_disk_cache(&self, disk: &str, body: &Value) -> Result<Done, Refused> {
        self.set_disk_cache(disk, body)
    }

    fn set_disk_peers(&self, disk: &str, body: &Value) -> Result<Done, Refused> {
        self.set_disk_peers(disk, body)
    }

    fn plan(&self) -> Result<ReloadPlan, Refused> {
        self.plan()
    }

    fn reload(&self, wanted: &Reload) -> Result<Done, Refused> {
        self.reload(wanted)
    }

    fn drain(&self) -> Drain {
        self.drain()
    }

    fn set_draining(&self, draining: bool) -> Result<Drain, Refused> {
        self.set_draining(draining)
    }

    fn hand_over(&self, wanted: &HandOver) -> Result<(), Refused> {
        self.hand_over(wanted)
    }
}
