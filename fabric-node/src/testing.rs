//! What this crate's tests share.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::hand_over::{DoorState, Number, Unfit};
use crate::registration::{DomainSettings, Server};

/// Descriptors on their way from a node to the next one.
#[derive(Debug, Default)]
pub(crate) struct Luggage(Vec<Option<OwnedFd>>);

impl Luggage {
    pub(crate) fn put(&mut self, fd: OwnedFd) -> Number {
        self.0.push(Some(fd));
        self.0.len() - 1
    }

    pub(crate) fn take(&mut self, number: Number) -> io::Result<OwnedFd> {
        let fd = self.0.get_mut(number).and_then(Option::take);
        fd.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// What a node's door has, which stands still from now on and leaves it to somebody.
pub(crate) fn taken(server: &Server) -> (DoorState, Luggage) {
    server.let_wait().expect("ours");
    server.stand_still();
    let mut luggage = Luggage::default();
    let state = server.take_down(&mut |fd| luggage.put(fd));
    server.leave();
    (state.expect("there are descriptors"), luggage)
}

/// Who is to go on with it, and does not move yet: one whose domains are all to be like this.
pub(crate) fn adopted(
    path: &Path,
    settings: &DomainSettings,
    (state, mut luggage): (DoorState, Luggage),
) -> Result<Server, Unfit> {
    let take = &mut |number| luggage.take(number);
    let server = Server::adopt(path, state.host, take(state.listener)?)?;
    for domain in state.domains {
        server.adopt_domain(settings.clone(), domain, take)?;
    }
    server.adopt_people((state.callers, state.leavers, state.vfs), take)?;
    Ok(server)
}
