//! A place for descriptors on their way to the next node, and a server that goes on with them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::hand_over::{DescriptorNumber, RegistrationState, Unfit};
use crate::registration::{DomainSettings, RegistrationServer};

/// Descriptors on their way from a node to the next one.
#[derive(Debug, Default)]
pub(crate) struct Descriptors(Vec<Option<OwnedFd>>);

impl Descriptors {
    pub(crate) fn put(&mut self, fd: OwnedFd) -> DescriptorNumber {
        self.0.push(Some(fd));
        self.0.len() - 1
    }

    pub(crate) fn take(&mut self, number: DescriptorNumber) -> io::Result<OwnedFd> {
        let fd = self.0.get_mut(number).and_then(Option::take);
        fd.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Pauses a server and takes its state for a hand-over.
pub(crate) fn taken(server: &RegistrationServer) -> (RegistrationState, Descriptors) {
    server.stop_accepting().expect("ours");
    server.pause();
    let mut descriptors = Descriptors::default();
    let state = server.take_down(&mut |fd| descriptors.put(fd));
    server.release_liveness();
    (state.expect("there are descriptors"), descriptors)
}

/// A paused successor whose domains all have these settings.
pub(crate) fn adopted(
    path: &Path,
    settings: &DomainSettings,
    (state, mut descriptors): (RegistrationState, Descriptors),
) -> Result<RegistrationServer, Unfit> {
    let take = &mut |number| descriptors.take(number);
    let server = RegistrationServer::adopt(path, state.host, take(state.listener)?)?;
    for domain in state.domains {
        server.adopt_domain(settings.clone(), domain, take)?;
    }
    server.adopt_clients((state.callers, state.departed, state.vfs), take)?;
    Ok(server)
}
