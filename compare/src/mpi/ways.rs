//! The ways that messages of an MPI can go, and the variables that choose each way.

use super::kinds::{Family, Mpi};
use super::options::Hosts;

/// The names of peers, which goals refer to.
pub(super) mod name {
    pub(crate) const VRIO: &str = "vrio";
    pub(crate) const OWN: &str = "its own shared memory";
    pub(crate) const SHM: &str = "libfabric shm";
    pub(crate) const OWN_TCP: &str = "its own TCP";
    pub(crate) const TCP: &str = "libfabric tcp";
    pub(crate) const RXM: &str = "libfabric tcp;ofi_rxm";
    pub(crate) const UCX_SHM: &str = "UCX shm";
    pub(crate) const UCX_TCP: &str = "UCX tcp";
}

/// A carrier of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiTransport {
    /// Our provider, as `vrio mpi env` has it.
    Vrio,
    /// The MPI's own carrier for one host.
    Own,
    /// The MPI's own carrier for several hosts.
    OwnTcp,
    /// Providers of libfabric.
    Shm,
    Tcp,
    Rxm,
    UcxShm,
    UcxTcp,
}

type Variables = Vec<(&'static str, &'static str)>;

impl MpiTransport {
    /// All ways that an MPI may have. A trial shows whether the MPI was built with a way.
    pub(super) fn all(family: Family, hosts: Hosts) -> &'static [Self] {
        match (family, hosts) {
            (Family::OpenMpi, Hosts::One) => {
                &[Self::Vrio, Self::Own, Self::Tcp, Self::Rxm, Self::UcxShm, Self::UcxTcp]
            }
            (Family::OpenMpi, Hosts::Two(_)) => {
                &[Self::Vrio, Self::OwnTcp, Self::Tcp, Self::Rxm, Self::UcxTcp]
            }
            (Family::Mpich, Hosts::Two(_)) => &[Self::Vrio, Self::Tcp, Self::Rxm, Self::UcxTcp],
            (Family::Mpich, Hosts::One) => &[
                Self::Vrio,
                Self::Own,
                Self::Shm,
                Self::Tcp,
                Self::Rxm,
                Self::UcxShm,
                Self::UcxTcp,
            ],
        }
    }

    pub(super) fn name(self, mpi: &Mpi) -> String {
        let (name, more) = match self {
            Self::Vrio => (name::VRIO, ""),
            Self::Own => (name::OWN, own(mpi)),
            Self::OwnTcp => (name::OWN_TCP, ""),
            Self::Shm => (name::SHM, ""),
            Self::Tcp => (name::TCP, if tcp(mpi) == "net" { "net" } else { "" }),
            Self::Rxm => (name::RXM, ""),
            Self::UcxShm => (name::UCX_SHM, ""),
            Self::UcxTcp => (name::UCX_TCP, ""),
        };
        if more.is_empty() { name.to_owned() } else { format!("{name} ({more})") }
    }

    /// The variables that choose this way. [`Self::Vrio`] has these besides the variables that
    /// `vrio mpi env` prints.
    pub(super) fn variables(self, mpi: &Mpi) -> Variables {
        match mpi.family {
            Family::OpenMpi => self.of_open_mpi(mpi),
            Family::Mpich => self.of_mpich(),
        }
    }

    fn of_open_mpi(self, mpi: &Mpi) -> Variables {
        let provider = |provider| {
            vec![
                ("OMPI_MCA_pml", "cm"),
                ("OMPI_MCA_mtl", "ofi"),
                ("OMPI_MCA_mtl_ofi_provider_include", provider),
                // Open MPI 5's name for the same.
                ("OMPI_MCA_opal_common_ofi_provider_include", provider),
            ]
        };
        let ucx = |transports| {
            vec![
                ("OMPI_MCA_pml", "ucx"),
                // Without these, UCX is used for fast networks only.
                ("OMPI_MCA_opal_common_ucx_tls", "any"),
                ("OMPI_MCA_opal_common_ucx_devices", "any"),
                ("UCX_TLS", transports),
            ]
        };
        match self {
            Self::Vrio => Vec::new(),
            Self::Own => {
                let shared = if own(mpi) == "vader" { "self,vader" } else { "self,sm" };
                vec![("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", shared)]
            }
            Self::OwnTcp => vec![("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,tcp")],
            Self::Shm => provider("shm"),
            Self::Tcp => provider(tcp(mpi)),
            Self::Rxm => provider("tcp;ofi_rxm"),
            Self::UcxShm => ucx("self,sm"),
            Self::UcxTcp => ucx("self,tcp"),
        }
    }

    fn of_mpich(self) -> Variables {
        // Without this, MPICH uses its own memory between ranks of a host, with every way.
        const NOT_ITS_OWN: (&str, &str) = ("MPIR_CVAR_NOLOCAL", "1");
        let provider = |provider| {
            vec![("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", provider), NOT_ITS_OWN]
        };
        let ucx = |transports| {
            vec![("MPIR_CVAR_CH4_NETMOD", "ucx"), ("UCX_TLS", transports), NOT_ITS_OWN]
        };
        match self {
            Self::Vrio => vec![NOT_ITS_OWN],
            // On one host, the network that it has besides is not used; on two it is libfabric's.
            Self::Own | Self::OwnTcp => {
                vec![("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp")]
            }
            Self::Shm => provider("shm"),
            Self::Tcp => provider("tcp"),
            Self::Rxm => provider("tcp;ofi_rxm"),
            Self::UcxShm => ucx("self,sm"),
            Self::UcxTcp => ucx("self,tcp"),
        }
    }
}

/// Open MPI's name for its shared memory.
fn own(mpi: &Mpi) -> &'static str {
    match (mpi.family, mpi.major()) {
        (Family::OpenMpi, ..=4) => "vader",
        (Family::OpenMpi, _) => "sm",
        (Family::Mpich, _) => "",
    }
}

/// libfabric's TCP for endpoints without connections: `net` in those 1.x that Open MPI 4 comes
/// with, part of `tcp` since 2.0.
fn tcp(mpi: &Mpi) -> &'static str {
    match (mpi.family, mpi.major()) {
        (Family::OpenMpi, ..=4) => "net",
        _ => "tcp",
    }
}

/// The reason why an MPI refuses some ways.
pub(super) fn impossible(mpi: &Mpi) -> Option<String> {
    (mpi.family == Family::OpenMpi).then(|| {
        format!("{} by {}: that reaches no other host, as it asks for", mpi.name(), name::SHM)
    })
}

#[cfg(test)]
mod tests {
    use sidecore::Idle;

    use super::super::options::HostSessions;
    use super::*;
    use bench::block::LinkKind;

    const TWO: Hosts = Hosts::Two(HostSessions {
        link: LinkKind::Udp,
        encrypt: false,
        mtu: None,
        offloads: testbed::stage::Offloads::All,
        idle: Idle::Adaptive,
    });

    fn mpi(family: Family, version: &str) -> Mpi {
        let (run, compile) = ("mpirun".into(), "mpicc".into());
        Mpi { family, version: version.to_owned(), run, compile }
    }

    #[test]
    fn each_way_is_told_apart() {
        for mpi in
            [mpi(Family::OpenMpi, "4.1.4"), mpi(Family::OpenMpi, "5.0.1"), mpi(Family::Mpich, "5")]
        {
            for hosts in [Hosts::One, TWO] {
                let ways = MpiTransport::all(mpi.family, hosts);
                for (at, way) in ways.iter().enumerate() {
                    for other in &ways[..at] {
                        let both = [way, other].map(|way| (way.name(&mpi), way.variables(&mpi)));
                        assert!(both[0].0 != both[1].0 && both[0].1 != both[1].1, "{both:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_follow_the_version() {
        let four = mpi(Family::OpenMpi, "4.1.4");
        assert_eq!(MpiTransport::Own.name(&four), "its own shared memory (vader)");
        assert_eq!(MpiTransport::Tcp.name(&four), "libfabric tcp (net)");
        let five = mpi(Family::OpenMpi, "5.0.1");
        assert_eq!(MpiTransport::Own.name(&five), "its own shared memory (sm)");
        assert_eq!(MpiTransport::Tcp.name(&five), "libfabric tcp");
        assert!(MpiTransport::Own.variables(&five).contains(&("OMPI_MCA_btl", "self,sm")));
    }
}
