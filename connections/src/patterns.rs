//! Patterns of communication, and the connections that they need by the rules of InfiniBand's
//! transports.

use std::collections::BTreeSet;

use serde::Serialize;

/// The pairs of processes that communicate, as in NAS's parallel benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionPattern {
    /// Each process to each other one, as FT and IS.
    AllToAll,
    /// To the next and from the one before, as pipelines.
    Ring,
    /// To four neighbours in a plane without edges, as BT, SP and LU.
    Halo,
}

impl ConnectionPattern {
    pub(super) const ALL: [Self; 3] = [Self::AllToAll, Self::Ring, Self::Halo];

    /// Its name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all-to-all",
            Self::Ring => "ring",
            Self::Halo => "halo",
        }
    }

    /// The peers of a process, of so many processes.
    pub(super) fn peers(self, process: usize, of: usize) -> BTreeSet<usize> {
        let mut peers: BTreeSet<_> = match self {
            Self::AllToAll => (0..of).collect(),
            Self::Ring => [(process + 1) % of, (process + of - 1) % of].into(),
            Self::Halo => {
                let (rows, columns) = plane(of);
                let (row, column) = (process / columns, process % columns);
                let at = |row: usize, column: usize| (row % rows) * columns + column % columns;
                [
                    at(row + 1, column),
                    at(row + rows - 1, column),
                    at(row, column + 1),
                    at(row, column + columns - 1),
                ]
                .into()
            }
        };
        peers.remove(&process);
        peers
    }
}

/// So many processes as a plane, as square as it can be.
fn plane(of: usize) -> (usize, usize) {
    let rows =
        (1..=of).take_while(|rows| rows * rows <= of).filter(|rows| of.is_multiple_of(*rows));
    let rows = rows.last().unwrap_or(1);
    (rows, of / rows)
}

/// Processes in order: the first processes are on the first host, and the first of these in its
/// first machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLayout {
    pub(super) hosts: usize,
    pub(super) processes: usize,
}

impl JobLayout {
    pub(super) fn all(&self) -> usize {
        self.hosts * self.processes
    }

    pub(super) fn host(&self, process: usize) -> usize {
        process / self.processes
    }

    /// Hosts whose processes talk to each other, each pair once.
    pub(super) fn talking_hosts(&self, pattern: ConnectionPattern) -> BTreeSet<[usize; 2]> {
        let pairs = (0..self.all()).flat_map(|process| {
            let peers = pattern.peers(process, self.all());
            peers.into_iter().map(move |peer| [self.host(process), self.host(peer)])
        });
        pairs.filter(|[one, other]| one < other).collect()
    }
}

/// A transport of InfiniBand, and the far end of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Reliable connections: each leads to a process of another host.
    Rc,
    /// Extended reliable connections: each leads to another host.
    Xrc,
    /// Extended connections in virtual machines of so many cores: each leads to another machine,
    /// also of the own host.
    VmXrc(u16),
    /// The machines of a host share extended connections. Each connection leads to a host, and this
    /// may be the own host for its other machines.
    VmProofXrc,
}

impl Scheme {
    pub(super) fn name(self) -> String {
        match self {
            Self::Rc => "RC".to_owned(),
            Self::Xrc => "XRC".to_owned(),
            Self::VmXrc(cores) => format!("VM-XRC, VMs of {cores}"),
            Self::VmProofXrc => "VM-proof XRC".to_owned(),
        }
    }

    /// Connections of a process.
    pub(super) fn connections(
        self,
        job: &JobLayout,
        process: usize,
        peers: &BTreeSet<usize>,
    ) -> usize {
        let own = job.host(process);
        // Peers in one place share a connection.
        let places: BTreeSet<(usize, usize)> = match self {
            Self::Rc => {
                let elsewhere = peers.iter().filter(|&&peer| job.host(peer) != own);
                elsewhere.map(|&peer| (job.host(peer), peer)).collect()
            }
            Self::Xrc => {
                let hosts = peers.iter().map(|&peer| job.host(peer));
                hosts.filter(|&host| host != own).map(|host| (host, 0)).collect()
            }
            Self::VmXrc(cores) => {
                let machine = |process: usize| {
                    (job.host(process), process % job.processes / usize::from(cores))
                };
                let machines = peers.iter().map(|&peer| machine(peer));
                machines.filter(|&it| it != machine(process)).collect()
            }
            Self::VmProofXrc => peers.iter().map(|&peer| (job.host(peer), 0)).collect(),
        };
        places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLIDE: JobLayout = JobLayout { hosts: 8, processes: 16 };

    fn each(scheme: Scheme, pattern: ConnectionPattern) -> Vec<usize> {
        let all = 0..SLIDE.all();
        all.map(|it| scheme.connections(&SLIDE, it, &pattern.peers(it, SLIDE.all()))).collect()
    }

    /// FT's rows of the slide: 127, 63.4, 31.1 and 15.1 of those in machines of 1, 2, 4 and 8
    /// cores, 8 of VM-proof XRC, 7 natively.
    #[test]
    fn all_to_all_is_as_the_slide_has_it() {
        let all = |scheme| {
            let each = each(scheme, ConnectionPattern::AllToAll);
            assert!(each.iter().all(|it| *it == each[0]), "{scheme:?}");
            each[0]
        };
        assert_eq!(all(Scheme::Rc), 7 * 16);
        assert_eq!(all(Scheme::Xrc), 7);
        assert_eq!([1, 2, 4, 8].map(|cores| all(Scheme::VmXrc(cores))), [127, 63, 31, 15]);
        assert_eq!(all(Scheme::VmProofXrc), 8);
    }

    #[test]
    fn neighbours_are_each_others() {
        for pattern in ConnectionPattern::ALL {
            for of in [2, 3, 12, 128] {
                for process in 0..of {
                    let peers = pattern.peers(process, of);
                    assert!(!peers.contains(&process));
                    let back = |&peer: &usize| pattern.peers(peer, of).contains(&process);
                    assert!(peers.iter().all(back), "{pattern:?} {process} of {of}");
                }
            }
        }
        assert_eq!(ConnectionPattern::Ring.peers(0, 128), [1, 127].into());
        assert_eq!((plane(128), plane(12), plane(7)), ((8, 16), (3, 4), (1, 7)));
        assert_eq!(ConnectionPattern::Halo.peers(0, 128), [1, 15, 16, 112].into());
    }

    #[test]
    fn only_hosts_that_talk_have_anything_between_them() {
        assert_eq!(SLIDE.talking_hosts(ConnectionPattern::AllToAll).len(), 8 * 7 / 2);
        let ring = SLIDE.talking_hosts(ConnectionPattern::Ring);
        assert_eq!((ring.len(), ring.contains(&[0, 7])), (8, true));
        // A row of the plane is a host.
        assert_eq!(SLIDE.talking_hosts(ConnectionPattern::Halo), ring);
        let ring = each(Scheme::Xrc, ConnectionPattern::Ring);
        assert_eq!((ring.iter().sum::<usize>(), ring.into_iter().max()), (16, Some(1)));
    }
}
