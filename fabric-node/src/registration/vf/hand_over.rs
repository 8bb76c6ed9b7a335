//! Hand-over of vfs: QEMU cannot connect again, so the next process takes its connection over.

use std::io;
use std::os::fd::AsFd;

use handover::{ReceivedDescriptors, SentDescriptors};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::doorbell::VmDoorbell;
use super::{CALL, Listener, RING, Vf, VfSettings, Vm, event};
use crate::hand_over::{ListenerState, Unfit, VfState, VmState, ensure};
use crate::mailbox::MailboxServer;
use crate::registration::hand_over::Unclaimed;
use crate::registration::{RegistrationShared, Registry};

impl Vf {
    /// The state for the next process.
    pub(in crate::registration) fn take_down(
        &self,
        sent: &mut SentDescriptors,
    ) -> io::Result<VfState> {
        let listener = self.listener.as_ref().map(|listener| {
            let socket = sent.put_copy(&listener.socket)?;
            Ok::<_, io::Error>(ListenerState { socket, inode: listener.inode })
        });
        let listener = listener.transpose()?;
        let VfSettings { name, domain, path } = self.settings.clone();
        let vm = self.vm.as_ref().map(|vm| vm.take_down(sent)).transpose()?;
        Ok(VfState { name, domain, path, listener, denied: self.denied, vm })
    }

    /// From now on this process removes the socket's file when it ends.
    pub(in crate::registration) fn own(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.removes_path = true;
        }
    }
}

impl Vm {
    fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<VmState> {
        let process = self.process.0.as_ref();
        Ok(VmState {
            connection: sent.put_copy(&self.connection)?,
            doorbell: sent.put_copy(self.doorbell.as_fd())?,
            pid: self.pid,
            process: process.map(|process| sent.put_copy(process)).transpose()?,
            mailbox: self.mailbox.take_down(),
        })
    }
}

impl RegistrationShared {
    /// Takes a vf over, with the VM that is connected.
    pub(in crate::registration) fn adopt_vf(
        &self,
        registry: &mut Registry,
        state: VfState,
        unclaimed: &mut Unclaimed,
        received: &mut ReceivedDescriptors,
    ) -> Result<(), Unfit> {
        let VfState { name, domain, path, listener, denied, vm } = state;
        let is_known = registry.domains.iter().any(|it| it.is_named(&domain));
        ensure(is_known, "a VM is in no domain")?;
        let is_any = listener.is_some() || vm.is_some();
        let is_new =
            |vf: &Vf| listener.is_none() || vf.listener.is_none() || vf.settings.name != name;
        ensure(is_any && registry.vfs.iter().all(is_new), "a vf is listed twice")?;
        let number = registry.next_vf;
        registry.next_vf += 1;
        let settings = VfSettings { name, domain, path };
        let listener = match listener {
            Some(ListenerState { socket, inode }) => {
                let (socket, path) = (received.take(socket)?, settings.path.clone());
                // It is listened to as soon as this process answers.
                let data = EventData::new_u64(event(number, CALL));
                epoll::add(&self.epoll, &socket, data, EventFlags::empty())?;
                Some(Listener { socket, path, inode, removes_path: false })
            }
            None => None,
        };
        let vm = match vm {
            Some(vm) => {
                Some(self.adopt_vm(registry, (number, &settings), vm, unclaimed, received)?)
            }
            None => None,
        };
        registry.vfs.push(Vf { number, settings, listener, vm, denied });
        Ok(())
    }

    fn adopt_vm(
        &self,
        registry: &mut Registry,
        (number, settings): (u64, &VfSettings),
        state: VmState,
        unclaimed: &mut Unclaimed,
        received: &mut ReceivedDescriptors,
    ) -> Result<Vm, Unfit> {
        let VmState { connection, doorbell, pid, process, mailbox } = state;
        let grants: Vec<_> = mailbox.held.iter().map(|held| held.grant).collect();
        unclaimed.take(&settings.domain, &grants)?;
        let mailbox = MailboxServer::adopt(mailbox)?;
        let is_same = |vf: &Vf| {
            let number = vf.vm.as_ref().map(|vm| vm.mailbox.number());
            vf.settings.domain == settings.domain && number == Some(mailbox.number())
        };
        ensure(!registry.vfs.iter().any(is_same), "two VMs have one mailbox")?;
        let (connection, doorbell) = (received.take(connection)?, received.take(doorbell)?);
        let process = received.take_any(process)?;
        let doorbell = VmDoorbell::of(doorbell, &self.epoll, event(number, RING))?;
        let process = (process, registry.next_client);
        registry.next_client += 1;
        Ok(self.watch_vm(number, Vm { connection, doorbell, pid, process, mailbox })?)
    }
}
