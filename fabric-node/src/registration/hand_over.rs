//! Hand-over of the registration server to another process: members stay, and notice only a pause.
//!
//! The old server pauses first: requests that come meanwhile stay in the members' sockets, and the
//! new server reads them. The new server has everything ready before it starts, and until then
//! neither has done anything that the other would have to undo.

use std::collections::HashSet;
use std::io;
use std::time::Instant;

use handover::{ReceivedDescriptors, SentDescriptors};

use super::client::{ClientState, RegistrationClient};
use super::domain::ServedDomain;
use super::{
    DepartedMember, DomainSettings, RegistrationServer, RegistrationShared, Registry, watch,
};
use crate::hand_over::{
    CallerState, ClientStates, DepartedMemberState, DomainState, GrantState, RegistrationState,
    Unfit, ensure,
};
use fabric::registration::wire::SlotGrant;

impl RegistrationServer {
    /// Handles no event any more, and answers no request, until [`RegistrationServer::answer`].
    /// Should this process end meanwhile, VMs are told so as ever.
    pub fn pause(&self) {
        self.shared.registry().paused = true;
    }

    /// From now on, until [`RegistrationServer::answer`], VMs do not see it when this process ends:
    /// the next message makes another process the owner of everything.
    pub fn release_liveness(&self) {
        self.shared.registry().domains.iter_mut().for_each(ServedDomain::release_liveness);
    }

    /// The state that the next process takes over.
    ///
    /// # Errors
    /// When a descriptor cannot be copied.
    ///
    /// # Panics
    /// When the server is not paused: members might come or go meanwhile.
    pub fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<RegistrationState> {
        let registry = self.shared.registry();
        assert!(registry.paused, "it must be paused");
        let listener = sent.put_copy(&self.shared.listener)?;
        let domains = registry.domains.iter().map(|domain| domain.take_down(sent));
        let domains = domains.collect::<io::Result<_>>()?;
        let callers = registry.clients.values().map(|client| client.take_down(sent));
        let callers = callers.collect::<io::Result<_>>()?;
        let departed = registry.departed.values().map(|departed| departed.take_down(sent));
        let departed = departed.collect::<io::Result<_>>()?;
        let vfs = registry.vfs.iter().map(|vf| vf.take_down(sent)).collect::<io::Result<_>>()?;
        Ok(RegistrationState { listener, host: self.shared.host, domains, callers, departed, vfs })
    }

    /// Takes over a domain of the process before this one, which has to be as the settings say.
    ///
    /// # Errors
    /// When it is not, or contradicts itself.
    pub fn adopt_domain(
        &self,
        settings: DomainSettings,
        state: DomainState,
        received: &mut ReceivedDescriptors,
    ) -> Result<(), Unfit> {
        let mut registry = self.shared.registry();
        let is_new = !registry.domains.iter().any(|domain| domain.is_named(&settings.name));
        ensure(is_new, "it is listed twice")?;
        registry.domains.push(ServedDomain::adopt(settings, self.shared.host, state, received)?);
        Ok(())
    }

    /// Takes over clients, departed members and vfs, once their domains are there.
    ///
    /// # Errors
    /// When an endpoint has no owner, or two; when the system refuses.
    pub fn adopt_clients(
        &self,
        clients: ClientStates,
        received: &mut ReceivedDescriptors,
    ) -> Result<(), Unfit> {
        let registry = &mut *self.shared.registry();
        assert!(registry.paused, "it must be paused");
        let ClientStates { callers, departed, vfs } = clients;
        let grants = |domain: &ServedDomain| (domain.name().to_owned(), domain.grants());
        let mut unclaimed = Unclaimed(registry.domains.iter().map(grants).collect());
        for caller in callers {
            self.shared.adopt_caller(registry, caller, &mut unclaimed, received)?;
        }
        for DepartedMemberState { process, domain, grants } in departed {
            let (process, grants) = (received.take(process)?, unclaimed.take(&domain, &grants)?);
            watch(&self.shared.epoll, &process, registry.next_client)?;
            registry
                .departed
                .insert(registry.next_client, DepartedMember { process, domain, grants });
            registry.next_client += 1;
        }
        for vf in vfs {
            self.shared.adopt_vf(registry, vf, &mut unclaimed, received)?;
        }
        ensure(unclaimed.is_empty(), "an endpoint has no owner")
    }
}

/// Slots of domains whose owner was not found yet.
pub(super) struct Unclaimed(Vec<(String, HashSet<SlotGrant>)>);

impl Unclaimed {
    pub(super) fn take(
        &mut self,
        domain: &str,
        grants: &[GrantState],
    ) -> Result<Vec<SlotGrant>, Unfit> {
        let unclaimed = self.0.iter_mut().find(|(name, _)| name == domain);
        let (_, unclaimed) = unclaimed.ok_or(Unfit::Contradiction("a client is in no domain"))?;
        let grants = grants.iter().map(|grant| {
            let grant = SlotGrant::from(*grant);
            ensure(unclaimed.remove(&grant), "an endpoint has another owner, or is gone")?;
            Ok(grant)
        });
        grants.collect()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, grants)| grants.is_empty())
    }
}

impl RegistrationShared {
    fn adopt_caller(
        &self,
        registry: &mut Registry,
        state: CallerState,
        unclaimed: &mut Unclaimed,
        received: &mut ReceivedDescriptors,
    ) -> Result<(), Unfit> {
        let CallerState { connection, process, pid, uid, domain, grants } = state;
        let (connection, process) = (received.take(connection)?, received.take_any(process)?);
        let state = match domain {
            Some(domain) => {
                let grants = unclaimed.take(&domain, &grants)?;
                ClientState::Member { domain, grants }
            }
            None => {
                ensure(grants.is_empty(), "an unregistered client has an endpoint")?;
                registry.unregistered += 1;
                ClientState::Unregistered { since: Instant::now() }
            }
        };
        let number = registry.next_client;
        registry.next_client += 1;
        watch(&self.epoll, &connection, number)?;
        if let Some(process) = &process {
            watch(&self.epoll, process, number)?;
        }
        let client =
            RegistrationClient { connection, process, pid, uid, state, doorbells_unread: 0 };
        registry.clients.insert(number, client);
        Ok(())
    }
}

impl RegistrationClient {
    fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<CallerState> {
        let (domain, grants) = match &self.state {
            ClientState::Unregistered { .. } => (None, Vec::new()),
            ClientState::Member { domain, grants } => (Some(domain.clone()), states(grants)),
        };
        let process = self.process.as_ref();
        Ok(CallerState {
            connection: sent.put_copy(&self.connection)?,
            process: process.map(|process| sent.put_copy(process)).transpose()?,
            pid: self.pid,
            uid: self.uid,
            domain,
            grants,
        })
    }
}

impl DepartedMember {
    fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<DepartedMemberState> {
        let process = sent.put_copy(&self.process)?;
        Ok(DepartedMemberState {
            process,
            domain: self.domain.clone(),
            grants: states(&self.grants),
        })
    }
}

fn states(grants: &[SlotGrant]) -> Vec<GrantState> {
    grants.iter().map(|grant| GrantState::from(*grant)).collect()
}
