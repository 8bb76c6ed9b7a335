//! The status of networks and nics.

use std::sync::atomic::Ordering::Relaxed;

use config::{MirrorConfig, NetworkConfig, NicConfig};
use net::PortCounters;
use net::remote::MemberInfo;
use net::stage::meter::SIZES;
use net::stage::{FilterCore, MeterCore, MirrorCore};
use sessions::counted::add_counters;
use sidecore::CounterText;
use virtio::ServerState;

use super::{LiveNetwork, Nics, ServedNic};
use crate::wiring::objects::Objects;
use api::status::{Counters, DiskState, MemberStatus, NetworkStatus, NicStatus};

impl Nics {
    /// The networks, in the order in which they were added.
    pub(crate) fn networks(&self, objects: &Objects) -> Vec<NetworkStatus> {
        let members = self.doors.members.list();
        let networks = self.networks.iter();
        networks.map(|live| live.status((&self.nics, &members), objects)).collect()
    }

    /// The nics, in the order in which they were added.
    pub(crate) fn nics(&self, objects: &Objects) -> Vec<NicStatus> {
        self.nics.iter().map(|shown| shown.status(objects)).collect()
    }
}

impl LiveNetwork {
    fn status(
        &self,
        (nics, members): (&[ServedNic], &[MemberInfo]),
        objects: &Objects,
    ) -> NetworkStatus {
        let mut counters = Counters::new();
        if let Some(uplink) = &self.uplink {
            port_counters(&uplink.counters, "uplink_", &mut counters);
        }
        let looked = self.network.look(|bridge| bridge.switch().counters());
        if let Some(looked) = looked {
            add_counters(&mut counters, "addresses_", looked.counted());
        }
        let ports = nics.iter().filter(|shown| shown.config.network == self.config.name);
        NetworkStatus {
            name: self.config.name.clone(),
            origin: objects.origin::<NetworkConfig>(&self.config.name),
            uplink: self.config.uplink.as_ref().map(ToString::to_string),
            uplink_up: self.uplink.as_ref().map(|uplink| uplink.core.is_up()),
            uplink_why: self.uplink.as_ref().and_then(|uplink| uplink.core.why()),
            sidecore: self.sidecore,
            nics: ports.map(|shown| shown.config.name.clone()).collect(),
            members: members
                .iter()
                .filter(|it| it.network == self.config.name)
                .map(member)
                .collect(),
            counters,
        }
    }
}

impl ServedNic {
    fn state(&self) -> DiskState {
        match self.server.state() {
            _ if self.core.is_broken() => DiskState::Failed,
            ServerState::Failed(_) => DiskState::Failed,
            ServerState::Connected if !self.is_joined() => DiskState::Lost,
            ServerState::Connected => DiskState::Running,
            ServerState::Waiting => DiskState::Ready,
            ServerState::Closed => DiskState::Lost,
            ServerState::Predecessor(_) | ServerState::Stopped => DiskState::Waiting,
        }
    }

    fn detail(&self) -> String {
        if let Some(why) = self.core.broken_why() {
            return format!("it is stopped until its guest starts it again: {why}");
        }
        match self.server.state() {
            ServerState::Failed(why) => why,
            ServerState::Closed if self.cables.uplink_is_away() && self.way.is_some() => {
                let why = self.waits().unwrap_or_else(|| "its network is there again".to_owned());
                format!("{why}; its cable is plugged in again when the network is back")
            }
            ServerState::Closed if self.cables.uplink_is_away() => {
                "the uplink of its network is away; its cable is plugged in again when the uplink \
                 is back"
                    .to_owned()
            }
            ServerState::Closed => {
                let name = &self.config.name;
                format!("its cable is unplugged; `vrio nic set {name} --link up` plugs it in")
            }
            ServerState::Predecessor(holder) => {
                let holder = holder.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                format!("another process{holder} serves its socket; waiting for its end")
            }
            ServerState::Waiting if self.waits().is_none() => {
                let why = self.server.last_drop();
                why.map_or_else(String::new, |why| format!("the last guest was dropped: {why}"))
            }
            _ => self.waits().unwrap_or_default(),
        }
    }

    /// Why its frames do not reach its network, if they do not.
    fn waits(&self) -> Option<String> {
        let way = self.way.as_ref().filter(|way| !way.core.is_joined())?;
        Some(format!("waiting for network {}: {}", self.config.network, way.core.why()))
    }

    /// Whether its frames reach its network.
    fn is_joined(&self) -> bool {
        self.way.as_ref().is_none_or(|way| way.core.is_joined())
    }

    fn status(&self, objects: &Objects) -> NicStatus {
        let mut counters = Counters::new();
        port_counters(self.core.counters(), "", &mut counters);
        counters.insert("tolerated_in".to_owned(), self.core.tolerated());
        counters.insert("front_ends_turned_away".to_owned(), self.server.turned_away());
        counters.insert("front_ends_too_costly".to_owned(), self.server.too_costly());
        if let Some(way) = &self.way {
            port_counters(&way.counters, "remote_", &mut counters);
            add_counters(&mut counters, "remote_", way.core.counted());
        }
        for (name, count) in self.core.failures() {
            counters.insert(format!("ring_{name}"), count);
        }
        if let Some(meter) = &self.watched.meter {
            meter_counters(meter, &mut counters);
        }
        if let Some(mirror) = &self.watched.mirror {
            let MirrorCore { frames, lost, written_bytes, unwritten, is_up } = &**mirror;
            counters.insert("mirror_frames".to_owned(), frames.get());
            counters.insert("mirror_lost_frames".to_owned(), lost.get());
            counters.insert("mirror_unwritten_frames".to_owned(), unwritten.load(Relaxed));
            let written = match self.config.mirror {
                Some(MirrorConfig::Tap(_)) => "mirror_tap_bytes",
                _ => "mirror_file_bytes_now",
            };
            counters.insert(written.to_owned(), written_bytes.load(Relaxed));
            counters.insert("mirror_up_now".to_owned(), u64::from(is_up.load(Relaxed)));
        }
        if let Some(limit) = &self.watched.limit {
            counters.insert("limit_held_rounds".to_owned(), limit.held_rounds.get());
        }
        if let Some(filter) = &self.watched.filter {
            filter_counters(filter, &mut counters);
        }
        NicStatus {
            name: self.config.name.clone(),
            socket: self.config.socket.display().to_string(),
            network: self.config.network.clone(),
            mac: self.config.mac.to_string(),
            pairs: self.config.pairs,
            mtu: self.config.mtu,
            origin: objects.origin::<NicConfig>(&self.config.name),
            chain: self.config.stages(),
            link: self.server.state() != ServerState::Closed,
            state: self.state(),
            detail: self.detail(),
            front_end_pid: self.server.front_end(),
            counters,
        }
    }
}

fn member(info: &MemberInfo) -> MemberStatus {
    let mut counters = Counters::new();
    port_counters(&info.counters, "", &mut counters);
    add_counters(&mut counters, "", info.cable.counted());
    MemberStatus {
        peer: info.peer.clone(),
        nic: info.nic.clone(),
        mac: info.mac.to_string(),
        counters,
    }
}

fn port_counters(from: &PortCounters, prefix: &str, into: &mut Counters) {
    add_counters(into, prefix, from.counted());
    for (direction, drops) in [("in", &from.drops_in), ("out", &from.drops_out)] {
        into.insert(format!("{prefix}drops_{direction}"), drops.total());
        for (name, count) in drops.by_name() {
            into.insert(format!("{prefix}drops_{direction}_{name}"), count);
        }
    }
}

fn meter_counters(meter: &MeterCore, into: &mut Counters) {
    for (direction, flow) in [("in", &meter.sent), ("out", &meter.received)] {
        add_counters(into, &format!("meter_{direction}_"), flow.counted());
        for (most, counter) in SIZES.iter().zip(&flow.sizes) {
            let size = if *most == usize::MAX { "longer".to_owned() } else { most.to_string() };
            into.insert(format!("meter_{direction}_frames_to_{size}"), counter.get());
        }
    }
}

fn filter_counters(filter: &FilterCore, into: &mut Counters) {
    for (at, rule) in filter.rules.iter().enumerate() {
        into.insert(format!("filter_rule_{}_frames", at + 1), rule.frames.get());
    }
    let others =
        [("default", &filter.default), ("kept", &filter.kept), ("unreadable", &filter.unreadable)];
    for (name, rule) in others {
        into.insert(format!("filter_{name}_frames"), rule.frames.get());
    }
    into.insert("filter_flows_begun".to_owned(), filter.flows_begun.get());
    into.insert("filter_flows_lost".to_owned(), filter.flows_lost.get());
}

/// The metrics of a network.
pub(crate) const NETWORK_METRICS: &[CounterText] =
    &[CounterText { name: "nics", help: "Nics in the network." }];

/// The metrics of a nic.
pub(crate) const NIC_METRICS: &[CounterText] = &[
    CounterText { name: "frames_in", help: "Frames that the guest sent." },
    CounterText { name: "bytes_in", help: "Their bytes, without tags." },
    CounterText { name: "frames_out", help: "Frames that the guest got." },
    CounterText { name: "bytes_out", help: "Their bytes, without tags." },
    CounterText {
        name: "cut_out",
        help: "Frames that were cut into segments, because the guest takes no uncut ones.",
    },
    CounterText { name: "checksums_out", help: "Checksums that were completed for the guest." },
    CounterText {
        name: "tolerated_in",
        help: "Descriptors of sent frames that were marked as writable or had no bytes.",
    },
    CounterText {
        name: "front_ends_turned_away",
        help: "Front ends that connected while the node was drained, or soon after a costly \
               front end.",
    },
    CounterText {
        name: "front_ends_too_costly",
        help: "Front ends that were dropped because signals to them took too long.",
    },
    CounterText {
        name: "drops",
        help: "Frames that were dropped, by direction (in: sent by the guest) and reason.",
    },
    CounterText {
        name: "limit_held_rounds",
        help: "Rounds in which the guest's frames had to wait for the limit.",
    },
    CounterText { name: "filter_rule_frames", help: "Frames that this rule decided on." },
    CounterText { name: "filter_default_frames", help: "Frames that no rule matched." },
    CounterText { name: "filter_kept_frames", help: "Frames of conversations that are kept." },
    CounterText {
        name: "filter_unreadable_frames",
        help: "IP packets that were dropped because their headers cannot be read.",
    },
    CounterText { name: "filter_flows_begun", help: "Conversations that were kept." },
    CounterText {
        name: "filter_flows_lost",
        help: "Kept conversations that were evicted by new ones.",
    },
    CounterText { name: "mirror_frames", help: "Frames that a mirror copied." },
    CounterText {
        name: "mirror_lost_frames",
        help: "Frames that a mirror missed, because its writer was too slow.",
    },
    CounterText {
        name: "mirror_unwritten_frames",
        help: "Frames that are missing in its file or at its tap.",
    },
    CounterText { name: "mirror_file_bytes", help: "Bytes in the mirror's file." },
    CounterText {
        name: "mirror_tap_bytes",
        help: "Bytes of frames that went to the mirror's tap.",
    },
    CounterText {
        name: "mirror_up",
        help: "1 while the mirror's file can be written, or its tap is open.",
    },
    CounterText { name: "link_up", help: "Whether the guest's cable is plugged in." },
    CounterText { name: "state", help: "1 for the state that the nic is in." },
];
