//! A door that another process goes on with: its members stay, and notice nothing but a pause.
//!
//! The one that goes stands still first: what is said to it meanwhile stays in its members' sockets
//! and is read by the next one. That one has everything ready before it moves, and until then
//! neither has done anything that the other would have to undo.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::domain::Served;
use super::{Client, DomainSettings, House, Leaver, Server, Shared, Standing, watch};
use crate::hand_over::{
    CallerState, DomainState, DoorState, LeaverState, Put, Take, Unfit, VfState, expect,
};
use fabric::door::wire::Seat;

impl Server {
    /// Sees to nothing any more, and hears nobody, until [`Server::answer`]. Should this process
    /// end meanwhile, VMs are told so as ever.
    pub fn stand_still(&self) {
        self.shared.house().standing = true;
    }

    /// From now on, until [`Server::answer`], nobody is told when this process ends: the next word
    /// makes everything another one's.
    pub fn leave(&self) {
        self.shared.house().domains.iter_mut().for_each(Served::leave_vigil);
    }

    /// What the next process needs to go on with this door.
    ///
    /// # Errors
    /// When a descriptor cannot be copied.
    ///
    /// # Panics
    /// When it does not stand still: somebody might come or go meanwhile.
    pub fn take_down(&self, put: Put<'_>) -> io::Result<DoorState> {
        let house = self.shared.house();
        assert!(house.standing, "it moves");
        let listener = put(self.shared.listener.try_clone()?);
        let domains = house.domains.iter().map(|domain| domain.take_down(put));
        let domains = domains.collect::<io::Result<_>>()?;
        let callers = house.clients.values().map(|client| client.take_down(put));
        let callers = callers.collect::<io::Result<_>>()?;
        let leavers = house.leavers.values().map(|leaver| leaver.take_down(put));
        let leavers = leavers.collect::<io::Result<_>>()?;
        let vfs = house.vfs.iter().map(|vf| vf.take_down(put)).collect::<io::Result<_>>()?;
        Ok(DoorState { listener, host: self.shared.host, domains, callers, leavers, vfs })
    }

    /// Goes on with a domain of the process before this one, which has to be what the settings say.
    ///
    /// # Errors
    /// When it is not, or contradicts itself.
    pub fn adopt_domain(
        &self,
        settings: DomainSettings,
        state: DomainState,
        take: Take<'_>,
    ) -> Result<(), Unfit> {
        let mut house = self.shared.house();
        let is_new = !house.domains.iter().any(|domain| domain.is_called(&settings.name));
        expect(is_new, "it is told of twice")?;
        house.domains.push(Served::adopt(settings, self.shared.host, state, take)?);
        Ok(())
    }

    /// Goes on with those who were there, once their domains are.
    ///
    /// # Errors
    /// When an endpoint is nobody's, or two have it; when the system refuses.
    pub fn adopt_people(
        &self,
        (callers, leavers, vfs): (Vec<CallerState>, Vec<LeaverState>, Vec<VfState>),
        take: Take<'_>,
    ) -> Result<(), Unfit> {
        let house = &mut *self.shared.house();
        assert!(house.standing, "it moves");
        let seats = |domain: &Served| (domain.name().to_owned(), domain.seats());
        let mut vacant = Vacant(house.domains.iter().map(seats).collect());
        for caller in callers {
            self.shared.adopt_caller(house, caller, &mut vacant, take)?;
        }
        for LeaverState { process, domain, seats } in leavers {
            let (process, seats) = (take(process)?, vacant.take(&domain, &seats)?);
            watch(&self.shared.epoll, &process, house.next_client)?;
            house.leavers.insert(house.next_client, Leaver { process, domain, seats });
            house.next_client += 1;
        }
        for vf in vfs {
            self.shared.adopt_vf(house, vf, &mut vacant, take)?;
        }
        expect(vacant.is_empty(), "an endpoint is nobody's")
    }
}

/// Slots of domains that nobody was found to have yet.
pub(super) struct Vacant(Vec<(String, HashSet<Seat>)>);

impl Vacant {
    pub(super) fn take(&mut self, domain: &str, seats: &[(u16, u32)]) -> Result<Vec<Seat>, Unfit> {
        let vacant = self.0.iter_mut().find(|(name, _)| name == domain);
        let (_, vacant) = vacant.ok_or(Unfit::Contradiction("somebody is in no domain"))?;
        let seats = seats.iter().map(|&(slot, incarnation)| {
            let seat = Seat { slot, incarnation };
            expect(vacant.remove(&seat), "an endpoint is another one's, or gone")?;
            Ok(seat)
        });
        seats.collect()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, seats)| seats.is_empty())
    }
}

impl Shared {
    fn adopt_caller(
        &self,
        house: &mut House,
        state: CallerState,
        vacant: &mut Vacant,
        take: Take<'_>,
    ) -> Result<(), Unfit> {
        let CallerState { connection, process, pid, uid, domain, seats } = state;
        let (connection, process) = (take(connection)?, process.map(&mut *take).transpose()?);
        let standing = match domain {
            Some(domain) => {
                let seats = vacant.take(&domain, &seats)?;
                Standing::Member { domain, seats }
            }
            None => {
                expect(seats.is_empty(), "a stranger has an endpoint")?;
                house.strangers += 1;
                Standing::Stranger { since: Instant::now() }
            }
        };
        let number = house.next_client;
        house.next_client += 1;
        watch(&self.epoll, &connection, number)?;
        if let Some(process) = &process {
            watch(&self.epoll, process, number)?;
        }
        let client = Client { connection, process, pid, uid, standing, bells_unread: 0 };
        house.clients.insert(number, client);
        Ok(())
    }
}

impl Client {
    fn take_down(&self, put: Put<'_>) -> io::Result<CallerState> {
        let (domain, seats) = match &self.standing {
            Standing::Stranger { .. } => (None, Vec::new()),
            Standing::Member { domain, seats } => (Some(domain.clone()), numbers(seats)),
        };
        let process = self.process.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(CallerState {
            connection: put(self.connection.try_clone()?),
            process: process.map(put),
            pid: self.pid,
            uid: self.uid,
            domain,
            seats,
        })
    }
}

impl Leaver {
    fn take_down(&self, put: Put<'_>) -> io::Result<LeaverState> {
        let process = put(self.process.try_clone()?);
        Ok(LeaverState { process, domain: self.domain.clone(), seats: numbers(&self.seats) })
    }
}

fn numbers(seats: &[Seat]) -> Vec<(u16, u32)> {
    seats.iter().map(|seat| (seat.slot, seat.incarnation)).collect()
}
