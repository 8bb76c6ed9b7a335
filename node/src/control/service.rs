//! The node behind the control socket.

use config::Kind;
use serde_json::Value;

use api::status::Status;
use api::{
    Done, Drain, HandOver, MomentReport, ReceiveProgress, ReceiveStep, Refused, Reload, ReloadPlan,
    SnapshotDiff, WantedStream,
};

/// The node behind the control socket. Each method is called on a thread that may wait, and waits
/// for a bounded time.
pub trait Service: Send + Sync {
    /// The whole status.
    fn status(&self) -> Status;

    /// The objects of one kind alone, as a list in JSON.
    fn list(&self, kind: Kind) -> String;

    /// One object, as JSON.
    fn show(&self, kind: Kind, name: &str) -> Option<String>;

    /// Changes those keys of a nic that can be changed while its guest uses it.
    ///
    /// # Errors
    /// Why the nic is unchanged.
    fn set_nic(&self, name: &str, body: &Value) -> Result<Done, Refused>;

    /// Adds an object with these fields.
    ///
    /// # Errors
    /// Why nothing was changed, as for all methods below.
    fn add(&self, kind: Kind, body: &Value) -> Result<Done, Refused>;

    /// Removes an object; with `force` also an object in use.
    ///
    /// # Errors
    /// The users of the object, or why it cannot be removed.
    fn remove(&self, kind: Kind, name: &str, force: bool) -> Result<Done, Refused>;

    /// Puts another chain before a volume: a list of stages, as the file's `chain` has them.
    ///
    /// # Errors
    /// Why the old chain stays.
    fn set_chain(&self, volume: &str, chain: &Value) -> Result<Done, Refused>;

    /// Gives a volume of a pool another reservation or limit: `{"reservation": "5GiB", "limit":
    /// null}`.
    ///
    /// # Errors
    /// Why the old quota stays.
    fn set_quota(&self, volume: &str, body: &Value) -> Result<Done, Refused>;

    /// Gives a volume of a pool other rules for snapshots by time.
    ///
    /// # Errors
    /// Why the old rules stay.
    fn set_snapshots(&self, volume: &str, rules: &Value) -> Result<Done, Refused>;

    /// Makes the volume of a disk of this node larger or smaller.
    ///
    /// # Errors
    /// Why the size is unchanged.
    fn resize_disk(&self, name: &str, body: &Value) -> Result<Done, Refused>;

    /// Makes a volume larger or smaller.
    ///
    /// # Errors
    /// Why the size is unchanged.
    fn resize_volume(&self, name: &str, body: &Value) -> Result<Done, Refused>;

    /// Gives a volume of a pool another compression: `{"compression": "lz4"}`.
    ///
    /// # Errors
    /// Why the volume keeps the compression that it has.
    fn compress(&self, volume: &str, body: &Value) -> Result<Done, Refused>;

    /// Has a volume of a pool keep a history: `{"history": "2h", "step": "1s"}`, or "none".
    ///
    /// # Errors
    /// Why the volume keeps the history that it has.
    fn keep_history(&self, volume: &str, body: &Value) -> Result<Done, Refused>;

    /// The last moment of a volume's history at a time or before it: `{"at":
    /// "2026-11-28T21:00:00Z"}`.
    ///
    /// # Errors
    /// Why there is none.
    fn find_moment(&self, volume: &str, body: &Value) -> Result<MomentReport, Refused>;

    /// Takes a snapshot of volumes of a pool: `{"volumes": ["a", "b"], "name": "monday"}`.
    ///
    /// # Errors
    /// Why there is none.
    fn take_snapshot(&self, body: &Value) -> Result<Done, Refused>;

    /// Makes a volume again what it was at a snapshot: `{"snapshot": "a@monday"}`.
    ///
    /// # Errors
    /// Why the volume is unchanged.
    fn roll_back(&self, volume: &str, body: &Value) -> Result<Done, Refused>;

    /// Has another node serve a volume with copies on several nodes, `{"primary": "io2"}`, or takes
    /// a copy that is gone for good out of the copies that it waits for, `{"gone": "io2"}`.
    ///
    /// # Errors
    /// Why nothing was changed, or the effect did not come in time.
    fn change_copies(&self, volume: &str, body: &Value) -> Result<Done, Refused>;

    /// Puts an encrypted volume of a pool under another key, `{"key": "/etc/vrio/b.key"}`, or gives
    /// it another data key, `{"data": true}`.
    ///
    /// # Errors
    /// Why the volume has the keys that it had.
    fn set_key(&self, volume: &str, body: &Value) -> Result<Done, Refused>;

    /// Forgets the data key of an encrypted volume or snapshot that the node does not serve; with
    /// `{"all": true}` also if others have the same data key. All of them go.
    ///
    /// # Errors
    /// Why all stay.
    fn shred(&self, pool: &str, number: u32, body: &Value) -> Result<Done, Refused>;

    /// Removes a snapshot, or a volume that the node does not serve, from its pool.
    ///
    /// # Errors
    /// Why it stays.
    fn remove_from_pool(&self, pool: &str, number: u32, force: bool) -> Result<Done, Refused>;

    /// Changes the devices of a pool: `{"grow": {}}`, `{"add": {"device": "q.pool"}}`,
    /// `{"remove": {"device": "q.pool"}}`, `{"keep": {"device": "q.pool"}}`.
    ///
    /// # Errors
    /// Why they are unchanged.
    fn change_devices(&self, pool: &str, body: &Value) -> Result<Done, Refused>;

    /// Reads and proves all blocks of a pool: `{"rate": "100MiB"}`.
    ///
    /// # Errors
    /// Why it does not.
    fn scrub(&self, pool: &str, body: &Value) -> Result<Done, Refused>;

    /// Ends that before it is through.
    ///
    /// # Errors
    /// Why it cannot be ended.
    fn stop_scrub(&self, pool: &str) -> Result<Done, Refused>;

    /// A part of the difference of two snapshots, from the byte `start` on; without `from`, of all
    /// that the snapshot has.
    ///
    /// # Errors
    /// Why there is no difference of these.
    fn diff(&self, from: Option<&str>, to: &str, start: u64) -> Result<SnapshotDiff, Refused>;

    /// The header of a stream of a snapshot.
    ///
    /// # Errors
    /// Why there is no such stream.
    fn stream_header(&self, wanted: &WantedStream) -> Result<Vec<u8>, Refused>;

    /// The part of a stream that begins where the token says.
    ///
    /// # Errors
    /// Why there is none; a block may be damaged.
    fn stream_part(&self, token: &str) -> Result<Vec<u8>, Refused>;

    /// Takes a step of receiving a stream into a volume of a pool. Taking one again has no effect.
    ///
    /// # Errors
    /// Why the step was not taken.
    fn receive(
        &self,
        step: ReceiveStep,
        place: (&str, &str),
        bytes: &[u8],
    ) -> Result<ReceiveProgress, Refused>;

    /// Ends a stream before it is complete: the volume is as it was before.
    ///
    /// # Errors
    /// Why it is not.
    fn give_up_receive(&self, pool: &str, name: &str) -> Result<Done, Refused>;

    /// Moves a queue of a disk to another sidecore: `{"sidecore": 1}`.
    ///
    /// # Errors
    /// Why the queue stays where it was.
    fn move_queue(&self, disk: &str, queue: usize, body: &Value) -> Result<Done, Refused>;

    /// Has the guest of a disk take its volume, although another attachment holds it.
    ///
    /// # Errors
    /// Why the disk does not take it.
    fn take_disk(&self, disk: &str) -> Result<Done, Refused>;

    /// Gives a disk another cache, `{"pool": "p", "size": "20GiB"}`, or none, `{}`.
    ///
    /// # Errors
    /// What is wrong with it.
    fn set_disk_cache(&self, disk: &str, body: &Value) -> Result<Done, Refused>;

    /// Replaces the peers that may serve the volume of a disk, `{"peers": ["io1", "io3"]}`, while a
    /// guest may use it.
    ///
    /// # Errors
    /// Why the disk has the peers that it had.
    fn set_disk_peers(&self, disk: &str, body: &Value) -> Result<Done, Refused>;

    /// The changes that a reload of the configuration would make.
    ///
    /// # Errors
    /// Every problem of the file.
    fn plan(&self) -> Result<ReloadPlan, Refused>;

    /// Reloads the configuration.
    ///
    /// # Errors
    /// The change that was refused; `applied` and `untried` list the others.
    fn reload(&self, wanted: &Reload) -> Result<Done, Refused>;

    /// Whether the node is drained, and which guests and nodes still use it.
    fn drain(&self) -> Drain;

    /// Refuses new front ends, attachments and members from now on, or admits them again.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn set_draining(&self, draining: bool) -> Result<Drain, Refused>;

    /// Hands everything over to the process that asks. This process ends then.
    ///
    /// # Errors
    /// Why this process goes on.
    fn hand_over(&self, wanted: &HandOver) -> Result<(), Refused>;
}
