//! The models that are compared: the server of a guest's device, its place, and how it learns of
//! work.

use serde::Serialize;

/// The device of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestDevice {
    /// A disk.
    Block,
    /// A network card.
    Net,
}

/// The server of a guest's device, its place, and how it learns of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// The bare backend or link, without vrio.
    Optimum,
    /// The client is in the guest, and the IOhost polls.
    Direct,
    /// A sidecore of the guest's own host polls.
    Elvis,
    /// The client is in the guest, and the IOhost sleeps.
    Unpolled,
    /// The guest's own host sleeps.
    Baseline,
    /// The guest's own host polls, and the IOhost too.
    HostSide,
    /// The guest's own host sleeps, and the IOhost too.
    HostSideUnpolled,
    /// QEMU itself serves a virtqueue, without vrio. Only for a real guest.
    Qemu,
    /// QEMU itself emulates an old device. Only for a real guest.
    Emulation,
}

impl Model {
    /// All models that a stand-in for a guest has, in the order of the table.
    pub const STAND_IN: [Self; 7] = [
        Self::Optimum,
        Self::Direct,
        Self::Elvis,
        Self::Unpolled,
        Self::Baseline,
        Self::HostSide,
        Self::HostSideUnpolled,
    ];

    /// All models of a stand-in, and those of a real guest alone.
    pub const ALL: [Self; 9] = [
        Self::Optimum,
        Self::Direct,
        Self::Elvis,
        Self::Unpolled,
        Self::Baseline,
        Self::HostSide,
        Self::HostSideUnpolled,
        Self::Qemu,
        Self::Emulation,
    ];

    /// Its name. Models of the slides have the slides' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimum => "optimum",
            Self::Direct => "vRIO direct",
            Self::Elvis => "Elvis",
            Self::Unpolled => "vRIO without polling",
            Self::Baseline => "baseline",
            Self::HostSide => "vRIO host-side",
            Self::HostSideUnpolled => "host-side without polling",
            Self::Qemu => "QEMU's virtio",
            Self::Emulation => "emulation",
        }
    }

    /// Whether an IOhost takes part, and so a session.
    pub(super) fn has_iohost(self) -> bool {
        matches!(self, Self::Direct | Self::Unpolled | Self::HostSide | Self::HostSideUnpolled)
    }

    /// Whether a node on the guest's own host takes part, and so a virtqueue.
    pub(super) fn has_vmhost(self) -> bool {
        matches!(self, Self::Elvis | Self::Baseline | Self::HostSide | Self::HostSideUnpolled)
    }

    /// Whether sidecores poll.
    pub(super) fn polls(self) -> bool {
        matches!(self, Self::Direct | Self::Elvis | Self::HostSide)
    }

    /// Whether the server of a guest's device sleeps until it is woken.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Unpolled | Self::Baseline | Self::HostSideUnpolled)
    }

    /// Cores that poll on the guest's host, and on the IOhost.
    pub(super) fn polling_cores(self) -> PollingCores {
        let of = |has: bool| has.then_some(u16::from(self.polls()));
        PollingCores { vmhost: of(self.has_vmhost()).unwrap_or(0), iohost: of(self.has_iohost()) }
    }
}

/// Cores that look for work all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PollingCores {
    /// Polling cores of each host that has guests.
    pub vmhost: u16,
    /// Polling cores of the IOhost, if there is one.
    pub iohost: Option<u16>,
}
