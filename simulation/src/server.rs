//! The simulated IOhost's process.

use std::sync::Arc;

use block::{Export, ExportOptions, Exports};
use volume::stage::Ciphered;

use super::cipher::{Encryption, Guarded};
use super::host::{HostPlan, SimCore};
use super::keys::WorldKeys;
use super::nics::{Frames, OpenNetworks};
use super::storage::{SimDisk, SimRecords};
use random::Random;
use simnet::SimNetwork;

/// The IOhost's name and the last byte of its address.
pub(super) const SERVER: (&str, u8) = ("io1", 9);

/// The volume that it exports.
pub(super) const VOLUME: &str = "root";

/// The most sidecores that it has.
const CORES_MAX: u64 = 4;

/// One life of the IOhost's process.
#[derive(Debug)]
pub(super) struct SimServer {
    /// Its sidecores.
    pub(super) cores: Vec<SimCore>,
    /// The volume, without its export.
    guarded: Guarded,
}

impl SimServer {
    /// Starts the process: reads the records and listens.
    pub(super) fn start(
        (disk, encryption): (&SimDisk, &Encryption),
        records: &SimRecords,
        clients: &[String],
        keys: &WorldKeys,
        (frames, random): (&mut Frames, &mut Random),
        datagram_bytes_max: usize,
    ) -> Self {
        let exports = Arc::new(Exports::default());
        let options = ExportOptions { allow: keys.allow(clients), shared: false };
        let guarded = encryption.chain(Arc::new(disk.clone()));
        let volume = Arc::clone(&guarded.volume);
        let export = Export::new(VOLUME, volume, options, Arc::new(records.clone()));
        exports.insert(export.expect("the simulated store can be read"));
        let (name, number) = SERVER;
        // Another number each time, as after a change of the configuration.
        let cores = u16::try_from(random.between(1, CORES_MAX)).expect("small");
        let nonce = random.draw();
        let open = &OpenNetworks::of_server(cores, random);
        let plan = HostPlan { name, number, cores, nonce, datagram_bytes_max, keys, open };
        let mut cores = SimCore::start(&plan, &exports);
        frames.plug_here(&mut cores, open);
        Self { cores, guarded }
    }

    /// One instant.
    pub(super) fn run(&mut self, now_ns: u64, network: &mut SimNetwork) {
        for core in &mut self.cores {
            core.run(now_ns, network, |_| sidecore::Progress::Idle);
        }
    }

    /// Ends the process. Returns the counts of the stage that encrypts. Its unfinished requests
    /// count as interrupted.
    pub(super) fn end(self) -> Ciphered {
        let Self { cores, guarded } = self;
        drop(cores);
        guarded.counted()
    }

    /// Buffers that are in use on all sidecores.
    pub(super) fn buffers_in_use(&self) -> usize {
        self.cores.iter().map(|core| core.endpoint.borrow().pool().in_use()).sum()
    }
}
