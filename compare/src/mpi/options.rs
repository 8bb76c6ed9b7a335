//! The options of `vrio bench mpi`, and the hosts that ranks are on.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::contest::ComparisonPlan;
use bench::block::LinkKind;
use testbed::machine::cores;
use testbed::pair::PairLink;
use testbed::stage::Offloads;

/// The most ranks of cases in which all ranks take part: a rank holds the messages from all to all
/// in memory.
pub const RANKS_MAX: u16 = 64;

/// The first words of contests' names, which goals refer to.
pub(super) const ONE_HOST: &str = "one host";
pub(super) const TWO_HOSTS: &str = "two hosts";

/// Over how many hosts ranks are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hosts {
    /// All are on this one.
    One,
    /// Half of them are on each of two network namespaces, which a virtual cable joins.
    Two(HostSessions),
}

impl Hosts {
    /// The first words of contests' names.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::One => ONE_HOST,
            Self::Two(_) => TWO_HOSTS,
        }
    }
}

/// The sessions between the nodes of two hosts, and their sidecores' behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostSessions {
    /// The link of sessions; not memory, which two hosts would not share.
    pub link: LinkKind,
    /// Whether those are sealed.
    pub encrypt: bool,
    /// The longest packet of the cable; the system's default if none is given.
    pub mtu: Option<u32>,
    /// The groups of packets that the ends of the cable take uncut.
    #[serde(skip_serializing_if = "Offloads::is_usual")]
    pub offloads: Offloads,
    /// The behaviour of sidecores without work.
    #[serde(serialize_with = "bench::block::as_text")]
    pub idle: Idle,
}

impl HostSessions {
    /// The cable and the sessions between the nodes.
    pub(super) fn meeting(self) -> PairLink {
        let Self { link, encrypt, mtu, offloads, .. } = self;
        PairLink { link, encrypt, loopback: false, mtu, offloads }
    }
}

/// A node that runs already, and the domain of it that the ranks join.
#[derive(Clone, Debug, Serialize)]
pub struct JoinedNode {
    /// The node's control socket.
    pub control: PathBuf,
    /// The domain's name; not needed where the node has one only.
    pub domain: Option<String>,
}

/// The options of `vrio bench mpi`.
#[derive(Clone, Debug, Serialize)]
pub struct MpiOptions {
    /// The program and the extent of the comparison; its seconds are of each case.
    #[serde(flatten)]
    pub plan: ComparisonPlan,
    /// Where further MPIs are installed: `bin/mpicc` and `bin/mpirun` are there.
    pub prefixes: Vec<PathBuf>,
    /// The folder of the user's OSU programs, if they replace our program.
    pub osu: Option<PathBuf>,
    /// Ranks of the cases in which all ranks take part; by default as many as there are cores.
    pub ranks: Option<u16>,
    /// Look at every byte of some messages of each kind first.
    pub validate: bool,
    /// Only ways whose name contains this text, besides ours.
    pub way: Option<String>,
    /// A node that runs already; else a node is started. Only with one host.
    pub running: Option<JoinedNode>,
    /// Where ranks are.
    pub hosts: Hosts,
}

impl MpiOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
    pub fn check(&self) -> Result<()> {
        self.plan.check()?;
        let (seconds, ranks) = (self.plan.seconds, self.ranks());
        ensure!((0.001..=600.0).contains(&seconds), "--seconds {seconds}: from 0.001 to 600");
        ensure!(
            (2..=RANKS_MAX).contains(&ranks) && ranks.is_multiple_of(2),
            "--ranks {ranks}: an even number from 2 to {RANKS_MAX}, for some send to the others"
        );
        if let Hosts::Two(together) = self.hosts {
            ensure!(
                self.running.is_none(),
                "--control names a node of one host; with --hosts 2 both are started here: drop one"
            );
            let is_shared = together.link == LinkKind::Shm;
            ensure!(!is_shared, "--link shm: two hosts share no memory; udp, or xdp");
            together.meeting().check()?;
            check_idle(together.idle, ranks, cores().len())?;
        }
        Ok(())
    }

    /// Ranks of the cases in which all ranks take part.
    pub(super) fn ranks(&self) -> u16 {
        let cores = u16::try_from(cores().len()).unwrap_or(RANKS_MAX);
        self.ranks.unwrap_or_else(|| (cores & !1).clamp(2, RANKS_MAX))
    }
}

/// Refuses sidecores that spin where ranks need their cores. Sidecores spin while other ways are
/// measured as well. The ranks of these ways would get half of a core, and the result would not
/// show why.
fn check_idle(idle: Idle, ranks: u16, cores: usize) -> Result<()> {
    // Each host has half of the cores, and its sidecore one of those.
    let seats = 2 * (cores / 2).saturating_sub(1);
    let fewer = match seats {
        0 => "four cores or more".to_owned(),
        seats => format!("at most --ranks {seats}"),
    };
    ensure!(
        idle != Idle::Spin || usize::from(ranks) <= seats,
        "--idle spin: with {ranks} ranks on {cores} cores the two hosts' sidecores take cores that \
         ranks need, also while others are measured: --idle adaptive, or {fewer}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecores_spin_where_no_rank_needs_their_cores() {
        for (ranks, cores) in [(2, 4), (2, 5), (4, 6), (62, 64)] {
            check_idle(Idle::Spin, ranks, cores).unwrap();
        }
        for (ranks, cores, way_out) in [
            (2, 1, "four cores"),
            (2, 3, "four cores"),
            (4, 4, "--ranks 2"),
            (64, 64, "--ranks 62"),
        ] {
            let refused = check_idle(Idle::Spin, ranks, cores).unwrap_err().to_string();
            assert!(refused.contains("--idle adaptive, or"), "{refused}");
            assert!(refused.contains(way_out), "{refused}");
            check_idle(Idle::Adaptive, ranks, cores).unwrap();
            check_idle(Idle::Sleep, ranks, cores).unwrap();
        }
    }
}
