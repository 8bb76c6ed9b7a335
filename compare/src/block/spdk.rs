//! SPDK's targets: vhost-user-blk, driven by our driver, and NVMe/TCP, driven by SPDK's own client.
//!
//! SPDK is in no distribution: it is looked for in `PATH`, and where it was built. It takes its
//! memory from huge pages.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::peer::{DISK_BYTES, DiskClient, DiskPeer, PeerPort, SOCKET, name};
use crate::running::{FOLDER, Ready, ServerProcess, Service, find};
use bench::block;
use testbed::machine::cores;
use testbed::stage::IOHOST;

/// Huge pages for a target with its disk (measured: 1,600 MiB) and its client (256), in MiB.
pub(super) const HUGE_MIB: u64 = 2_300;

/// A subsystem's name is of this form.
const NQN: &str = "nqn.2016-06.io.spdk:bench";

/// Sectors of a bdev.
const BLOCK_BYTES: u64 = 512;

/// SPDK's own clients: of NVMe/TCP, and of vhost-user-blk.
const NVME_PERF: &str = "spdk_nvme_perf";
const BDEVPERF: &str = "bdevperf";

/// The programs.
#[derive(Clone, Debug)]
pub(super) struct Spdk {
    target: PathBuf,
    nvme_perf: Option<PathBuf>,
    bdevperf: Option<PathBuf>,
}

impl Spdk {
    /// Looks in `PATH`, or in the folder of a build. The error names the missing program.
    pub(super) fn find(built: Option<&Path>) -> Result<Self, String> {
        if cores().len() < 2 {
            return Err("SPDK (it polls: it needs a core besides its client's)".to_owned());
        }
        let look = |folder: &str, program: &str| match built {
            None => find(program),
            Some(built) => Some(built.join(folder).join(program)).filter(|it| it.is_file()),
        };
        let (programs, examples) = ("build/bin", "build/examples");
        let target = look(programs, "spdk_tgt").ok_or_else(|| {
            let place = match built {
                None => "not packaged: build it, and name the folder with --spdk".to_owned(),
                Some(folder) => format!("{} has no build/bin/spdk_tgt", folder.display()),
            };
            format!("SPDK ({place})")
        })?;
        let (nvme_perf, bdevperf) = (look(programs, NVME_PERF), look(examples, BDEVPERF));
        Ok(Self { target, nvme_perf, bdevperf })
    }

    /// Peers that cannot be measured though there is a target, since their client was not built.
    pub(super) fn missing(&self) -> Vec<String> {
        let clients = [
            (name::SPDK_NVME, &self.nvme_perf, NVME_PERF, "build/bin"),
            (name::SPDK_BDEVPERF, &self.bdevperf, BDEVPERF, "build/examples"),
        ];
        let absent = clients.into_iter().filter(|(_, client, ..)| client.is_none());
        let say = |(peer, _, program, folder): (&str, _, &str, &str)| {
            format!("{peer} ({program} is not there: build all of SPDK, which has it in {folder})")
        };
        absent.map(say).collect()
    }

    /// A vhost-user-blk disk, null or of memory: by our driver, and by SPDK's driver where that was
    /// built.
    pub(super) fn vhosts(&self, memory: bool) -> Vec<DiskPeer> {
        let method = "vhost_create_blk_controller";
        let disk = json!({"method": method, "params": {"ctrlr": SOCKET, "dev_name": "disk"}});
        let config = config(memory, &[json!({"subsystem": "vhost_blk", "config": [disk]})]);
        let peer = |name: &str, client| DiskPeer {
            name: name.to_owned(),
            service: self.service(Ready::Sockets(&[SOCKET]), config.clone()),
            client,
            depth_max: None,
        };
        let by_ours = peer(name::SPDK_VHOST, DiskClient::Driver);
        let own = self.bdevperf.clone().map(DiskClient::BdevPerf);
        [by_ours].into_iter().chain(own.map(|own| peer(name::SPDK_BDEVPERF, own))).collect()
    }

    /// A disk of memory by NVMe/TCP, if its client is there too.
    pub(super) fn nvme(&self, port: PeerPort) -> Option<DiskPeer> {
        let (host, number) = (port.address(), port.number.to_string());
        let address = json!({
            "trtype": "TCP", "adrfam": "IPv4", "traddr": host, "trsvcid": number
        });
        let methods = json!([
            {"method": "nvmf_create_transport",
             "params": {"trtype": "TCP", "max_io_size": block::SIZE_BYTES_MAX}},
            {"method": "nvmf_create_subsystem", "params": {"nqn": NQN, "allow_any_host": true}},
            {"method": "nvmf_subsystem_add_ns",
             "params": {"nqn": NQN, "namespace": {"bdev_name": "disk"}}},
            {"method": "nvmf_subsystem_add_listener",
             "params": {"nqn": NQN, "listen_address": address}},
        ]);
        let program = self.nvme_perf.clone()?;
        Some(DiskPeer {
            name: name::SPDK_NVME.to_owned(),
            service: self
                .service(
                    Ready::Listens(port.socket()),
                    config(true, &[json!({"subsystem": "nvmf", "config": methods})]),
                )
                .on_cable(port.cable),
            client: DiskClient::NvmePerf {
                program,
                target: format!(
                    "trtype:TCP adrfam:IPv4 traddr:{host} trsvcid:{number} subnqn:{NQN}"
                ),
            },
            depth_max: None,
        })
    }

    fn service(&self, ready: Ready, told: Value) -> Service {
        let core = format!("[{}]", cores()[0]);
        let (config, rpc) = (format!("{FOLDER}/config.json"), format!("{FOLDER}/rpc"));
        let words = ["-m", &core, "--no-pci", "-S", FOLDER, "-r", &rpc, "--json", &config];
        let program = self.target.display().to_string();
        let words = std::iter::once(program).chain(words.map(str::to_owned)).collect();
        let servers = vec![ServerProcess { words, ready, pinned: true, host: IOHOST }];
        Service { servers, config: Some(told), ..Service::default() }
    }
}

/// The configuration of a target: a disk, and the subsystem that exports it.
fn config(memory: bool, shown: &[Value]) -> Value {
    let method = if memory { "bdev_malloc_create" } else { "bdev_null_create" };
    let blocks = DISK_BYTES / BLOCK_BYTES;
    let params = json!({"name": "disk", "num_blocks": blocks, "block_size": BLOCK_BYTES});
    let disks = json!({"subsystem": "bdev", "config": [{"method": method, "params": params}]});
    let all: Vec<_> = std::iter::once(&disks).chain(shown).collect();
    json!({"subsystems": all})
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn missing_builds_are_named() {
        if cores().len() < 2 {
            return println!("SKIP missing_builds_are_named: SPDK polls, which takes two cores");
        }
        let built = tempfile::tempdir().unwrap();
        let nothing = Spdk::find(Some(built.path())).unwrap_err();
        assert!(nothing.contains("has no build/bin/spdk_tgt"), "{nothing}");
        for folder in ["build/bin", "build/examples"] {
            fs::create_dir_all(built.path().join(folder)).unwrap();
        }
        let make = |program: &str| fs::write(built.path().join(program), "").unwrap();
        make("build/bin/spdk_tgt");
        let bare = Spdk::find(Some(built.path())).unwrap();
        let missing = bare.missing();
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].starts_with("SPDK NVMe/TCP, by its own client (spdk_nvme_perf is"));
        assert!(missing[1].starts_with("SPDK vhost, by SPDK's own driver (bdevperf is"));
        let port = PeerPort { number: 1, cable: None };
        assert!(bare.nvme(port).is_none() && bare.vhosts(true).len() == 1);
        make("build/bin/spdk_nvme_perf");
        make("build/examples/bdevperf");
        let whole = Spdk::find(Some(built.path())).unwrap();
        assert!(whole.missing().is_empty() && whole.nvme(port).is_some());
        assert_eq!(whole.vhosts(true).len(), 2);
    }
}
