//! Arguments that several kinds of measurements have in common.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use bench::block::{LinkKind, Volume};
use bench::measure::WaitMode;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use testbed::pair::PairLink;
use testbed::stage::Offloads;

use crate::results::ToldArgs;

/// The amount of measuring, and the form of its results.
#[derive(Debug, clap::Args)]
pub(super) struct TurnArgs {
    /// How often each contestant is measured, in turn (default: 5, or 3 with --quick); up to twice
    /// as often while the cores' speed changes.
    #[arg(long)]
    pub(super) rounds: Option<u16>,
    /// Seconds of each measurement (default: 1, or 0.3 with --quick; for MPI 0.2 and 0.05).
    #[arg(long)]
    pub(super) seconds: Option<f64>,
    /// Run few and short rounds, as a trial.
    #[arg(long)]
    pub(super) quick: bool,
    /// Run only contests with these words in their name.
    #[arg(long, value_name = "WORDS")]
    pub(super) contest: Option<String>,
    /// Run only cases with these words in their name.
    #[arg(long, value_name = "WORDS")]
    pub(super) case: Option<String>,
    #[command(flatten)]
    pub(super) told: ToldArgs,
}

/// How long each time unless said, and with --quick.
pub(super) const TURN_SECONDS: [f64; 2] = [1.0, 0.3];

impl TurnArgs {
    /// The plan of these arguments, with this program. The two numbers are the seconds unless said,
    /// and with --quick.
    ///
    /// # Errors
    /// When this program's path is not known.
    pub(super) fn plan(
        &self,
        [usual_seconds, quick_seconds]: [f64; 2],
    ) -> anyhow::Result<compare::ComparisonPlan> {
        Ok(compare::ComparisonPlan {
            program: std::env::current_exe().context("finding this program")?,
            rounds: self.rounds.unwrap_or(if self.quick { 3 } else { 5 }),
            seconds: self.seconds.unwrap_or(if self.quick { quick_seconds } else { usual_seconds }),
            contest: self.contest.clone(),
            case: self.case.clone(),
        })
    }
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PairLinkArgs {
    /// The link of sessions (default: udp).
    #[arg(long, value_enum)]
    pub(super) link: Option<LinkArg>,
    /// Whether sessions are sealed (default: on).
    #[arg(long, value_enum)]
    pub(super) encrypt: Option<Switch>,
    /// Connect the nodes by the loopback device, also where network namespaces are allowed.
    #[arg(long)]
    pub(super) loopback: bool,
    /// The longest packet of the virtual cable between two network namespaces.
    #[arg(long, value_name = "BYTES")]
    pub(super) mtu: Option<u32>,
    /// The groups of packets that the ends of that cable take uncut, as a card would: of TCP and
    /// UDP (all), of TCP (tcp), or none (default: all).
    #[arg(long, value_parser = offloads())]
    pub(super) offloads: Option<Offloads>,
}

/// The names of the groups that a cable takes uncut.
pub(super) fn offloads() -> impl TypedValueParser<Value = Offloads> {
    PossibleValuesParser::new(Offloads::ALL.map(Offloads::name)).map(|name| {
        let named = Offloads::ALL.into_iter().find(|offloads| offloads.name() == name);
        named.expect("one of the names")
    })
}

impl From<PairLinkArgs> for PairLink {
    fn from(args: PairLinkArgs) -> Self {
        let PairLinkArgs { link, encrypt, loopback, mtu, offloads } = args;
        let usual = Self::default();
        let link = link.map_or(usual.link, LinkKind::from);
        let encrypt = encrypt.map_or(usual.encrypt, |encrypt| encrypt == Switch::On);
        Self { link, encrypt, loopback, mtu, offloads: offloads.unwrap_or(usual.offloads) }
    }
}

impl PairLinkArgs {
    /// Refuses options that have no meaning here, since the user expects an effect of each: all of
    /// them where no two nodes meet, and the cable's where the nodes share memory. `ways` names the
    /// paths by which nodes meet.
    pub(super) fn check(&self, meets: bool, ways: &str) -> anyhow::Result<()> {
        let of_cable = [
            ("--loopback", self.loopback),
            ("--mtu", self.mtu.is_some()),
            ("--offloads", self.offloads.is_some()),
        ];
        let others = [("--link", self.link.is_some()), ("--encrypt", self.encrypt.is_some())];
        let said = |options: &[(&'static str, bool)]| {
            options.iter().find_map(|(option, said)| said.then_some(*option))
        };
        if let (false, Some(option)) = (meets, said(&of_cable).or(said(&others))) {
            return Err(anyhow!("{option} needs two nodes: add {ways}, or drop the option"));
        }
        if let (Some(LinkArg::Shm), Some(option)) = (self.link, said(&of_cable)) {
            return Err(anyhow!("{option} needs a network, and --link shm has none: drop it"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LinkArg {
    Udp,
    /// AF_XDP.
    Xdp,
    /// Shared memory.
    Shm,
}

impl From<LinkArg> for LinkKind {
    fn from(link: LinkArg) -> Self {
        match link {
            LinkArg::Udp => Self::Udp,
            LinkArg::Xdp => Self::Xdp,
            LinkArg::Shm => Self::Shm,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum BenchDriver {
    /// It polls all the time.
    Polls,
    /// It sleeps until an interrupt, as a guest does.
    Sleeps,
}

impl From<BenchDriver> for WaitMode {
    fn from(driver: BenchDriver) -> Self {
        match driver {
            BenchDriver::Polls => Self::Polls,
            BenchDriver::Sleeps => Self::Sleeps,
        }
    }
}

pub(super) fn volume(words: &str) -> anyhow::Result<Volume> {
    Ok(match words.split_once(':') {
        None if words == "null" => Volume::Null,
        None if words == "memory" => Volume::Memory,
        Some(("file", path)) => Volume::File(PathBuf::from(path)),
        Some(("direct", path)) => Volume::DirectFile(PathBuf::from(path)),
        Some(("pool", path)) => Volume::Pool(PathBuf::from(path)),
        _ => {
            return Err(anyhow!(
                "--volume {words}: it must be null, memory, file:PATH, direct:PATH or pool:PATH"
            ));
        }
    })
}

/// Bytes, with k or m for 1024 and its square.
pub(super) fn size(words: &str) -> Result<u32, String> {
    let lower = words.to_ascii_lowercase();
    let bare = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, unit) = match bare.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => bare.strip_suffix('m').map_or((bare, 1), |digits| (digits, 1 << 20)),
    };
    let count: u32 =
        digits.parse().map_err(|_| "write a size, such as 512, 4k or 1m".to_owned())?;
    count.checked_mul(unit).ok_or_else(|| "a request cannot be that large".to_owned())
}
