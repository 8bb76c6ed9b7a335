//! A server whose state is taken, and a server that goes on with it.

use std::path::Path;

use handover::SentDescriptors;

use crate::hand_over::{ClientStates, RegistrationState, Unfit};
use crate::registration::{DomainSettings, RegistrationServer};

/// Pauses a server and takes its state for a hand-over.
pub(crate) fn taken(server: &RegistrationServer) -> (RegistrationState, SentDescriptors) {
    server.stop_accepting().expect("ours");
    server.pause();
    let mut descriptors = SentDescriptors::default();
    let state = server.take_down(&mut descriptors);
    server.release_liveness();
    (state.expect("there are descriptors"), descriptors)
}

/// A paused successor whose domains all have these settings.
pub(crate) fn adopted(
    path: &Path,
    settings: &DomainSettings,
    (state, descriptors): (RegistrationState, SentDescriptors),
) -> Result<RegistrationServer, Unfit> {
    let received = &mut descriptors.into_received();
    let RegistrationState { listener, host, domains, callers, departed, vfs } = state;
    let server = RegistrationServer::adopt(path, host, received.take(listener)?)?;
    for domain in domains {
        server.adopt_domain(settings.clone(), domain, received)?;
    }
    server.adopt_clients(ClientStates { callers, departed, vfs }, received)?;
    Ok(server)
}
