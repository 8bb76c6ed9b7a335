//! The status of volumes.

use config::VolumeConfig;
use copies::ServedMember;
use sessions::counted::Counters;
use sidecore::CounterText;
use volume::Durability;

use super::ServedVolume;
use crate::wiring::objects::Objects;
use crate::wiring::report::latency;
use api::status::{AttachmentStatus, VolumeStatus};

/// The volumes, in the order in which they were added.
pub(crate) fn status(objects: &Objects) -> Vec<VolumeStatus> {
    let both = objects.config.volumes.iter().zip(&objects.volumes);
    both.map(|(config, served)| VolumeStatus {
        origin: objects.origin::<VolumeConfig>(&config.name),
        ..volume(config, served)
    })
    .collect()
}

fn volume(config: &VolumeConfig, served: &ServedVolume) -> VolumeStatus {
    let info = served.export.volume().info();
    let durability = match info.durability {
        Durability::Flush => "flush",
        Durability::WriteThrough => "write-through",
    };
    let attached = served.export.attached();
    VolumeStatus {
        name: config.name.clone(),
        backend: served.backend.describe(),
        stopped: served.export.unusable().map(str::to_owned),
        copy: served.member.as_ref().map(ServedMember::status),
        size_bytes: served.member.as_ref().map_or(info.size_bytes, ServedMember::size_bytes),
        block_bytes: info.block_bytes,
        durability: durability.to_owned(),
        read_only: info.read_only,
        shared: config.shared,
        incarnation: info.incarnation.to_string(),
        chain: config.chain.iter().map(ToString::to_string).collect(),
        snapshots: config.snapshots.iter().map(ToString::to_string).collect(),
        allow: served.export.allow().iter().map(ToString::to_string).collect(),
        attachments: attached.into_iter().map(|name| AttachmentStatus { name }).collect(),
        counters: volume_counters(served),
        latencies: latency::of_volume(served),
        ..VolumeStatus::default()
    }
}

fn volume_counters(served: &ServedVolume) -> Counters {
    let mut counters = Counters::new();
    let mut put = |name: &str, value| counters.insert(name.to_owned(), value);
    served.chain().stages.counted(&mut |name, value| {
        put(name, value);
    });
    served.backend.counted(&mut |name, value| {
        put(name, value);
    });
    if let Some(member) = &served.member {
        member.counted(&mut |name, value| {
            put(name, value);
        });
    }
    counters
}

/// The metrics of a volume.
pub(crate) const VOLUME_METRICS: &[CounterText] = &[
    CounterText { name: "size_bytes", help: "The volume's size." },
    CounterText {
        name: "attachments",
        help: "Disks of this and other nodes that use the volume now.",
    },
    CounterText {
        name: "latency",
        help: "Durations of requests, measured by the chain's first meter.",
    },
];
