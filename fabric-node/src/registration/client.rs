//! One client of the registration server: its connection, its process, and the requests that it
//! may make as a member of a domain.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use fabric::registration::SlotGrant;
use fabric::registration::wire::{ALONG_MAX, RegistrationAnswer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::domain::ServedDomain;

/// A connection, and the process at its other end.
pub(super) struct RegistrationClient {
    pub(super) connection: OwnedFd,
    /// A pidfd, readable once the process has ended; none where the kernel gives none. It is needed
    /// because children of the process inherit the connection, which may so stay open.
    pub(super) process: Option<OwnedFd>,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) state: ClientState,
    /// Doorbells that it was sent since it was last seen to have read everything.
    pub(super) doorbells_unread: u32,
}

/// Whether a client was let into a domain.
pub(super) enum ClientState {
    Unregistered { since: Instant },
    Member { domain: String, grants: Vec<SlotGrant> },
}

/// The step that follows a client's request.
pub(super) enum Then {
    Stay,
    HangUp(&'static str),
}

/// Whether the process of a pidfd has ended.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    let mut look = [PollFd::new(process, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut look, Some(&none)), Ok(1))
}

impl RegistrationClient {
    pub(super) fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(has_ended)
    }

    /// Says something, without waiting. `false`: it does not read.
    pub(super) fn say(&self, answer: &RegistrationAnswer, along: &[BorrowedFd<'_>]) -> bool {
        let bytes = answer.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ALONG_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !along.is_empty() {
            let rights = SendAncillaryMessage::ScmRights(along);
            assert!(ancillary.push(rights), "room was made for it");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = [IoSlice::new(&bytes)];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.connection, &parts, &mut ancillary, flags)
        })
        .is_ok()
    }

    pub(super) fn new_endpoint(&mut self, domains: &[ServedDomain]) -> Then {
        let ClientState::Member { domain, grants } = &mut self.state else {
            return Then::HangUp("it is not registered");
        };
        let Some(domain) = domains.iter().find(|it| it.is_named(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        let answer = match domain.grant(self.pid) {
            Some(grant) => {
                grants.push(grant);
                RegistrationAnswer::Endpoint { grant, process: self.pid }
            }
            None => RegistrationAnswer::Full,
        };
        if self.say(&answer, &[]) {
            Then::Stay
        } else {
            Then::HangUp("it does not read its answers")
        }
    }

    /// Tells a member the process of an endpoint, so that it can read that process's memory.
    pub(super) fn process_of(&self, domains: &[ServedDomain], grant: SlotGrant) -> Then {
        let ClientState::Member { domain, .. } = &self.state else {
            return Then::HangUp("it is not registered");
        };
        let Some(domain) = domains.iter().find(|it| it.is_named(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        let answer = RegistrationAnswer::Process { grant, process: domain.process_of(grant) };
        if self.say(&answer, &[]) {
            Then::Stay
        } else {
            Then::HangUp("it does not read its answers")
        }
    }

    /// Opens a doorbell for an endpoint of this process.
    pub(super) fn open_doorbell(&mut self, domains: &[ServedDomain], grant: SlotGrant) -> Then {
        let ClientState::Member { domain, grants } = &self.state else {
            return Then::HangUp("it is not registered");
        };
        if !grants.contains(&grant) {
            return Then::HangUp("it wants a doorbell for a slot that it does not have");
        }
        let Some(domain) = domains.iter().find(|it| it.is_named(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        let said = match domain.open_doorbell(grant) {
            _ if !self.has_room_for_doorbell() => {
                self.say(&RegistrationAnswer::NoDoorbell(grant), &[])
            }
            Ok(read_end) => self.say(&RegistrationAnswer::Doorbell(grant), &[read_end.as_fd()]),
            Err(errno) => {
                tracing::warn!(%errno, pid = self.pid, "an endpoint cannot sleep: no descriptors");
                self.say(&RegistrationAnswer::NoDoorbell(grant), &[])
            }
        };
        if said { Then::Stay } else { Then::HangUp("it does not read its answers") }
    }

    /// Wakes an endpoint for this client. Sends the write end of its doorbell if the client wants
    /// to ring itself from now on and has fewer than so many write ends unread.
    pub(super) fn ring(
        &self,
        domains: &[ServedDomain],
        grant: SlotGrant,
        unread_max: Option<usize>,
    ) -> Then {
        let ClientState::Member { domain, .. } = &self.state else {
            return Then::HangUp("it is not registered");
        };
        let Some(domain) = domains.iter().find(|it| it.is_named(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        domain.ring(grant);
        // A client with too much unread is not sent one; it asks again the next time.
        if unread_max.is_some_and(|most| self.has_room_for_write_end(most))
            && let Some(write_end) = domain.write_end(grant)
        {
            self.say(&RegistrationAnswer::DoorbellWriteEnd(grant), &[write_end.as_fd()]);
        }
        Then::Stay
    }

    pub(super) fn close_endpoint(&mut self, domains: &[ServedDomain], grant: SlotGrant) -> Then {
        let ClientState::Member { domain, grants } = &mut self.state else {
            return Then::HangUp("it is not registered");
        };
        let Some(place) = grants.iter().position(|mine| *mine == grant) else {
            return Then::HangUp("it closes a slot that it does not have");
        };
        grants.swap_remove(place);
        if let Some(domain) = domains.iter().find(|it| it.is_named(domain)) {
            domain.declare_dead(&[grant]);
        }
        Then::Stay
    }
}
