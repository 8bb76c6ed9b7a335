//! Ways in for VMs, in the process that goes on with them: QEMU cannot connect again, and need not.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::bell::Bell;
use super::{CALL, Listener, RING, Vf, VfSettings, Vm, event};
use crate::clerk::Clerk;
use crate::hand_over::{Put, Take, Unfit, VfState, VmState, expect};
use crate::registration::hand_over::Vacant;
use crate::registration::{House, Shared};

impl Vf {
    /// What the next process needs.
    pub(in crate::registration) fn take_down(&self, put: Put<'_>) -> io::Result<VfState> {
        let listener = self.listener.as_ref();
        let listener =
            listener.map(|it| Ok::<_, io::Error>((put(it.socket.try_clone()?), it.inode)));
        let listener = listener.transpose()?;
        let VfSettings { name, domain, path } = self.settings.clone();
        let vm = self.vm.as_ref().map(|vm| vm.take_down(put)).transpose()?;
        Ok(VfState { name, domain, path, listener, denied: self.denied, vm })
    }

    /// From now on its socket is this process's to take away.
    pub(in crate::registration) fn own(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.tidies = true;
        }
    }
}

impl Vm {
    fn take_down(&self, put: Put<'_>) -> io::Result<VmState> {
        let process = self.process.0.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(VmState {
            connection: put(self.connection.try_clone()?),
            bell: put(self.bell.as_fd().try_clone_to_owned()?),
            pid: self.pid,
            process: process.map(put),
            clerk: self.clerk.take_down(),
        })
    }
}

impl Shared {
    /// Goes on with a way in, and with the VM that is there.
    pub(in crate::registration) fn adopt_vf(
        &self,
        house: &mut House,
        state: VfState,
        vacant: &mut Vacant,
        take: Take<'_>,
    ) -> Result<(), Unfit> {
        let VfState { name, domain, path, listener, denied, vm } = state;
        let is_known = house.domains.iter().any(|it| it.is_called(&domain));
        expect(is_known, "a VM is in no domain")?;
        let is_any = listener.is_some() || vm.is_some();
        let is_new =
            |vf: &Vf| listener.is_none() || vf.listener.is_none() || vf.settings.name != name;
        expect(is_any && house.vfs.iter().all(is_new), "a vf is told of twice")?;
        let number = house.next_vf;
        house.next_vf += 1;
        let settings = VfSettings { name, domain, path };
        let listener = match listener {
            Some((socket, inode)) => {
                let (socket, path) = (take(socket)?, settings.path.clone());
                // It is listened to as soon as this process answers.
                let data = EventData::new_u64(event(number, CALL));
                epoll::add(&self.epoll, &socket, data, EventFlags::empty())?;
                Some(Listener { socket, path, inode, tidies: false })
            }
            None => None,
        };
        let vm = match vm {
            Some(vm) => Some(self.adopt_vm(house, (number, &settings), vm, vacant, take)?),
            None => None,
        };
        house.vfs.push(Vf { number, settings, listener, vm, denied });
        Ok(())
    }

    fn adopt_vm(
        &self,
        house: &mut House,
        (number, settings): (u64, &VfSettings),
        state: VmState,
        vacant: &mut Vacant,
        take: Take<'_>,
    ) -> Result<Vm, Unfit> {
        let VmState { connection, bell, pid, process, clerk } = state;
        let seats: Vec<_> = clerk.held.iter().map(|(_, seat)| *seat).collect();
        vacant.take(&settings.domain, &seats)?;
        let clerk = Clerk::adopt(clerk)?;
        let is_same = |vf: &Vf| {
            let part = vf.vm.as_ref().map(|vm| vm.clerk.part());
            vf.settings.domain == settings.domain && part == Some(clerk.part())
        };
        expect(!house.vfs.iter().any(is_same), "two VMs have one part of the desk")?;
        let (connection, bell) = (take(connection)?, take(bell)?);
        let process = process.map(&mut *take).transpose()?;
        let bell = Bell::of(bell, &self.epoll, event(number, RING))?;
        let process = (process, house.next_client);
        house.next_client += 1;
        Ok(self.watch_vm(number, Vm { connection, bell, pid, process, clerk })?)
    }
}
