//! Guests that take a volume by its guard, one after the other: the promises about epochs.

use block::export::{Claimer, PendingClaim};
use block::wire::{Claim, Title, attachment_id};
use sidecore::Services;
use volume::Incarnation;

use super::world::{VOLUME, World};

/// A client of the volume's attachment.
#[derive(Clone, Copy, Debug)]
struct GuestClient {
    claimant: u64,
    epoch: u64,
    incarnation: Incarnation,
}

/// The guests of one attachment, in their order.
pub(crate) struct Guests {
    present: GuestClient,
    /// Guests that were replaced by a guest with a later epoch.
    replaced: Vec<GuestClient>,
    /// The claim under way: on which node, of which client, and whether it was replaced.
    pending: Option<(usize, GuestClient, bool, PendingClaim)>,
    /// The greatest epoch that any client was granted.
    granted: u64,
    pub(crate) grants: u64,
    pub(crate) refusals: u64,
    pub(crate) broken: Vec<String>,
}

impl Guests {
    pub(crate) fn new() -> Self {
        let present = GuestClient { claimant: 100, epoch: 0, incarnation: Incarnation::default() };
        let (replaced, broken) = (Vec::new(), Vec::new());
        Self { present, replaced, pending: None, granted: 0, grants: 0, refusals: 0, broken }
    }

    pub(crate) fn step(&mut self, world: &World) {
        let Some((at, client, is_replaced, mut pending)) = self.pending.take() else {
            return self.claim(world);
        };
        let Some(process) = world.process(at) else { return };
        let services = Services::new();
        let now_ns = world.now_ns.get();
        match process.export.poll_claim(&mut pending, &services, now_ns) {
            None => self.pending = Some((at, client, is_replaced, pending)),
            Some(Err(_)) => self.refusals += 1,
            Some(Ok((epoch, incarnation))) => {
                drop(process);
                self.granted(client, is_replaced, epoch, incarnation);
            }
        }
    }

    fn granted(&mut self, client: GuestClient, is_old: bool, epoch: u64, now: Incarnation) {
        self.grants += 1;
        if epoch <= self.granted {
            let text = format!("epoch {epoch} was granted after epoch {}", self.granted);
            self.broken.push(text);
        }
        if is_old {
            self.broken.push(format!("{client:?} was replaced, and has epoch {epoch}"));
        }
        self.granted = self.granted.max(epoch);
        if client.claimant == self.present.claimant {
            (self.present.epoch, self.present.incarnation) = (epoch, now);
        } else {
            // A guest that never had an epoch takes nothing back when it comes late.
            self.replaced.extend(Some(self.present).filter(|it| it.epoch != 0));
            self.present = GuestClient { epoch, incarnation: now, ..client };
        }
    }

    fn claim(&mut self, world: &World) {
        if !world.one_in(20) {
            return;
        }
        let at = world.below(world.nodes.len() as u64) as usize;
        let at = world.server().filter(|_| !world.one_in(3)).unwrap_or(at);
        let Some(process) = world.process(at) else { return };
        let pick = world.below(4);
        let old = self.replaced.get(world.below(self.replaced.len() as u64 + 1) as usize).copied();
        let (client, is_old) = match old.filter(|_| pick == 0) {
            Some(old) => (old, true),
            None if pick == 1 => {
                let claimant = self.present.claimant + 1;
                (GuestClient { claimant, epoch: 0, ..self.present }, false)
            }
            None => (self.present, false),
        };
        let title = Title {
            attachment: attachment_id(VOLUME, "vm"),
            epoch: client.epoch,
            incarnation: client.incarnation,
        };
        let is_first = client.epoch == 0;
        let claim = Claim { claimant: client.claimant, take_over: is_first, ..Claim::default() };
        let by = Claimer::here(world.now_ns.get());
        match process.export.claim("vm", &title, &claim, &by) {
            Ok(pending) => self.pending = Some((at, client, is_old, pending)),
            Err(_) => self.refusals += 1,
        }
    }
}
