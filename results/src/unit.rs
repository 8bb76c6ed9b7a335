//! Quantities and their units. A number is converted inside of its dimension or not at all.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The dimension of a unit. Two numbers of one dimension can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Time.
    Time,
    /// Data.
    Data,
    /// Data in a time.
    DataRate,
    /// Events in a time: messages, requests, rounds.
    Rate,
    /// Processor time for data.
    TimePerData,
    /// A part of a whole, or a change of it.
    Share,
    /// A number of things.
    Count,
    /// A price.
    Money,
    /// Names; there is nothing to convert.
    Name,
}

/// The unit of a number. `docs/results.md` has the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerS,
    /// 10^6 bytes a second: the MB/s of the OSU benchmarks.
    MbPerS,
    /// Bits a second.
    BitsPerS,
    /// Events a second.
    PerS,
    /// Nanoseconds a byte.
    NsPerByte,
    /// Parts of a hundred.
    Percent,
    /// Parts of one: 0.5 is a half, 2 is twice as much.
    Ratio,
    /// A number of things.
    Count,
    /// US dollars.
    Usd,
    /// No unit: names stand in the place of numbers.
    Name,
}

impl Unit {
    /// All units.
    pub const ALL: [Self; 15] = [
        Self::Ns,
        Self::Us,
        Self::Ms,
        Self::S,
        Self::Bytes,
        Self::BytesPerS,
        Self::MbPerS,
        Self::BitsPerS,
        Self::PerS,
        Self::NsPerByte,
        Self::Percent,
        Self::Ratio,
        Self::Count,
        Self::Usd,
        Self::Name,
    ];

    /// The unit's dimension.
    pub fn dimension(self) -> Dimension {
        match self {
            Self::Ns | Self::Us | Self::Ms | Self::S => Dimension::Time,
            Self::Bytes => Dimension::Data,
            Self::BytesPerS | Self::MbPerS | Self::BitsPerS => Dimension::DataRate,
            Self::PerS => Dimension::Rate,
            Self::NsPerByte => Dimension::TimePerData,
            Self::Percent | Self::Ratio => Dimension::Share,
            Self::Count => Dimension::Count,
            Self::Usd => Dimension::Money,
            Self::Name => Dimension::Name,
        }
    }

    /// The size of the unit, in the smallest unit of its dimension.
    fn factor(self) -> f64 {
        match self {
            Self::Us => 1e3,
            Self::Ms | Self::MbPerS => 1e6,
            Self::S => 1e9,
            Self::BitsPerS => 0.125,
            Self::Percent => 0.01,
            _ => 1.0,
        }
    }

    /// A number of this unit, converted into another unit; none if the units are of two dimensions.
    pub fn convert(self, number: f64, to: Self) -> Option<f64> {
        if self == to {
            return Some(number);
        }
        let fits = self.dimension() == to.dimension();
        fits.then(|| number * (self.factor() / to.factor()))
    }

    /// The symbol behind a number or an axis' name; nothing for numbers and names.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::Us => "µs",
            Self::Ms => "ms",
            Self::S => "s",
            Self::Bytes => "B",
            Self::BytesPerS => "B/s",
            Self::MbPerS => "MB/s",
            Self::BitsPerS => "bit/s",
            Self::PerS => "1/s",
            Self::NsPerByte => "ns/B",
            Self::Percent => "%",
            Self::Ratio => "×",
            Self::Usd => "USD",
            Self::Count | Self::Name => "",
        }
    }
}

/// The quantity that is measured: the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The time of one operation: a message one way, a request, a collective operation.
    Latency,
    /// The time of a way there and back.
    RoundTrip,
    /// The distance between latencies, as one number.
    Jitter,
    /// The time of a job or a pause.
    Duration,
    /// Bytes a second, one way.
    Bandwidth,
    /// Bytes a second of both ways together, under way at the same time.
    BidirectionalBandwidth,
    /// Messages or frames a second.
    MessageRate,
    /// Requests of a disk a second.
    Iops,
    /// Rounds, operations or transactions a second.
    TransactionRate,
    /// Processor time for a byte.
    CpuPerByte,
    /// Processor time for a request, message, frame or operation.
    CpuPerRequest,
    /// Exits, interrupts, kicks, system calls and the like for each request. Several series of one
    /// measurement against the same categories are the parts of a sum, and drawn as one bar.
    EventsPerRequest,
    /// The share of a core that a thread got: 1 is all of one core.
    CoreShare,
    /// Cores that are kept for polling.
    PollingCores,
    /// How much longer a job runs than the job it is compared with: 0.15 is 15 % longer.
    Slowdown,
    /// How much more a figure is than another figure, where more is worse: 0.1 is 10 % more.
    Overhead,
    /// How much less a figure is than another figure, where less is worse: 0.1 is 10 % less.
    Loss,
    /// The share of the line's rate that is reached.
    LineShare,
    /// How many times as much as another figure; neither side is the better one.
    Factor,
    /// Connections or sessions.
    Connections,
    /// Bytes of memory.
    Memory,
    /// The share of frames or datagrams that did not arrive.
    LostShare,
    /// The number of retransmissions.
    Retransmits,
    /// The price of something.
    Price,
    /// The price of a part of something. Several series of one measurement against the same
    /// categories are the parts of a sum, and drawn as one bar.
    PartPrice,
    /// The price of a rack for each of the hosts that would serve its guests by themselves.
    HostPrice,
    /// How much more a price is than another price: -0.1 is 10 % less.
    PriceChange,
    /// The sidecores of a pool for each sidecore that hosts without a pool need: 0.5 is a half.
    SidecoreShare,
}

impl Quantity {
    /// All quantities.
    pub const ALL: [Self; 28] = [
        Self::Latency,
        Self::RoundTrip,
        Self::Jitter,
        Self::Duration,
        Self::Bandwidth,
        Self::BidirectionalBandwidth,
        Self::MessageRate,
        Self::Iops,
        Self::TransactionRate,
        Self::CpuPerByte,
        Self::CpuPerRequest,
        Self::EventsPerRequest,
        Self::CoreShare,
        Self::PollingCores,
        Self::Slowdown,
        Self::Overhead,
        Self::Loss,
        Self::LineShare,
        Self::Factor,
        Self::Connections,
        Self::Memory,
        Self::LostShare,
        Self::Retransmits,
        Self::Price,
        Self::PartPrice,
        Self::HostPrice,
        Self::PriceChange,
        Self::SidecoreShare,
    ];

    /// The dimension that the quantity's unit must have.
    pub fn dimension(self) -> Dimension {
        match self {
            Self::Latency
            | Self::RoundTrip
            | Self::Jitter
            | Self::Duration
            | Self::CpuPerRequest => Dimension::Time,
            Self::Bandwidth | Self::BidirectionalBandwidth => Dimension::DataRate,
            Self::MessageRate | Self::Iops | Self::TransactionRate => Dimension::Rate,
            Self::CpuPerByte => Dimension::TimePerData,
            Self::CoreShare
            | Self::Slowdown
            | Self::Overhead
            | Self::Loss
            | Self::LineShare
            | Self::Factor
            | Self::LostShare
            | Self::PriceChange
            | Self::SidecoreShare => Dimension::Share,
            Self::EventsPerRequest | Self::PollingCores | Self::Connections | Self::Retransmits => {
                Dimension::Count
            }
            Self::Memory => Dimension::Data,
            Self::Price | Self::PartPrice | Self::HostPrice => Dimension::Money,
        }
    }

    /// Whether more of it is better; none where neither is better.
    pub fn more_is_better(self) -> Option<bool> {
        match self {
            Self::Bandwidth
            | Self::BidirectionalBandwidth
            | Self::MessageRate
            | Self::Iops
            | Self::TransactionRate
            | Self::LineShare => Some(true),
            Self::CoreShare | Self::PollingCores | Self::Factor => None,
            _ => Some(false),
        }
    }

    /// The words for titles and tables.
    pub fn words(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::RoundTrip => "round trip",
            Self::Jitter => "jitter",
            Self::Duration => "duration",
            Self::Bandwidth => "bandwidth",
            Self::BidirectionalBandwidth => "bandwidth both ways",
            Self::MessageRate => "message rate",
            Self::Iops => "IOPS",
            Self::TransactionRate => "transaction rate",
            Self::CpuPerByte => "processor time per byte",
            Self::CpuPerRequest => "processor time per request",
            Self::EventsPerRequest => "events per request",
            Self::CoreShare => "share of a core",
            Self::PollingCores => "polling cores",
            Self::Slowdown => "slowdown",
            Self::Overhead => "overhead",
            Self::Loss => "loss",
            Self::LineShare => "share of line rate",
            Self::Factor => "factor",
            Self::Connections => "connections",
            Self::Memory => "memory",
            Self::LostShare => "lost",
            Self::Retransmits => "retransmissions",
            Self::Price => "price",
            Self::PartPrice => "price of parts",
            Self::HostPrice => "price per host",
            Self::PriceChange => "change of price",
            Self::SidecoreShare => "share of the hosts' sidecores",
        }
    }

    /// Whether it is a change, which may be below nothing.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Slowdown | Self::Overhead | Self::Loss | Self::PriceChange)
    }

    /// Whether the series of a measurement are the parts of a sum.
    pub fn is_part(self) -> bool {
        matches!(self, Self::EventsPerRequest | Self::PartPrice)
    }
}

/// The quantity of the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// Bytes of a message, frame, write or request.
    MessageSize,
    /// Requests outstanding.
    QueueDepth,
    /// Time since the beginning.
    Time,
    /// Virtual machines.
    Guests,
    /// Processes of a job, or threads of a program.
    Processes,
    /// Polling cores.
    Sidecores,
    /// Servers of a rack.
    Servers,
    /// The share of bursts that all guests have at the same time.
    Correlation,
    /// Names, one for each point, in the order of the file.
    Category,
}

impl Against {
    /// All quantities of the axis.
    pub const ALL: [Self; 9] = [
        Self::MessageSize,
        Self::QueueDepth,
        Self::Time,
        Self::Guests,
        Self::Processes,
        Self::Sidecores,
        Self::Servers,
        Self::Correlation,
        Self::Category,
    ];

    /// The dimension that the axis' unit must have.
    pub fn dimension(self) -> Dimension {
        match self {
            Self::MessageSize => Dimension::Data,
            Self::Time => Dimension::Time,
            Self::Category => Dimension::Name,
            Self::Correlation => Dimension::Share,
            Self::QueueDepth | Self::Guests | Self::Processes | Self::Sidecores | Self::Servers => {
                Dimension::Count
            }
        }
    }

    /// The words for titles and tables.
    pub fn words(self) -> &'static str {
        match self {
            Self::MessageSize => "message size",
            Self::QueueDepth => "queue depth",
            Self::Time => "time",
            Self::Guests => "guests",
            Self::Processes => "processes",
            Self::Sidecores => "sidecores",
            Self::Servers => "servers",
            Self::Correlation => "bursts in common",
            Self::Category => "",
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.symbol())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_converted_inside_of_a_dimension_alone() {
        assert_eq!(Unit::Ms.convert(1.5, Unit::Us), Some(1500.0));
        assert_eq!(Unit::BitsPerS.convert(80.0, Unit::BytesPerS), Some(10.0));
        assert_eq!(Unit::MbPerS.convert(3.0, Unit::BitsPerS), Some(24e6));
        assert_eq!(Unit::Percent.convert(15.0, Unit::Ratio), Some(0.15));
        assert_eq!(Unit::Us.convert(1.0, Unit::Bytes), None);
        assert_eq!(Unit::PerS.convert(1.0, Unit::BytesPerS), None);
        for one in Unit::ALL {
            for other in Unit::ALL {
                let fits = one.dimension() == other.dimension();
                let there = one.convert(7.0, other);
                assert_eq!(there.is_some(), fits, "{one:?} {other:?}");
                let back = there.and_then(|number| other.convert(number, one));
                assert!(back.is_none_or(|number| (number - 7.0).abs() < 1e-9), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn each_has_a_name_of_its_own_and_a_unit_to_be_told_in() {
        let mut names: Vec<_> = Quantity::ALL.iter().map(|it| it.words()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Quantity::ALL.len());
        let is_told = |dimension| Unit::ALL.iter().any(|unit| unit.dimension() == dimension);
        assert!(Quantity::ALL.iter().all(|quantity| is_told(quantity.dimension())));
        assert!(Against::ALL.iter().all(|against| is_told(against.dimension())));
    }
}
